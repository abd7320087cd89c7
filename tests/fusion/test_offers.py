"""The bundled kernels and formulas that compute groups."""

from __future__ import annotations

import shlex

import numpy as np
import pytest

from ptxkit.expression.syntax import parse
from ptxkit.fusion.analysis import analyse
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.models import model_graph
from ptxkit.fusion.offers import bundled, offer
from ptxkit.workload import registry
from ptxkit.workload.registry import load_file


def whole(build, shape=(64, 256), dtype="f32", outputs=()):
    g = GraphBuilder()
    build(g, g.input("x", shape, dtype), lambda name, s=None: g.input(name, s or shape, dtype))
    graph = g.graph(outputs)
    return offer(Group.of(graph, graph.launches))


@pytest.mark.parametrize(
    ("build", "command"),
    [
        (
            lambda g, x, i: g.quantize_rows(g.layernorm(x, i("a", (256,)), i("b", (256,)))),
            "layernorm_quantize 64 256 --option dtype=f32",
        ),
        (lambda g, x, i: g.rmsnorm(x, i("a", (256,))), "rmsnorm 64 256 --option dtype=f32"),
        (lambda g, x, i: g.dropout(g.softmax(x)), "softmax 64 256 --option p=0.1 --option dtype=f32"),
        (
            lambda g, x, i: g.softmax(g.add(g.multiply(x, value=0.125), i("m"))),
            "scale_mask_softmax 64 256 --option scale=0.125 --option dtype=f32",
        ),
        (lambda g, x, i: g.l2norm(x), "fused_l2norm 64 256"),
        (lambda g, x, i: g.multiply(g.silu(x), i("up")), "swiglu 64 256 --option dtype=f32"),
        (
            lambda g, x, i: g.add(g.dropout(g.add(x, i("b", (256,)))), i("r"), name="r_add"),
            "bias_dropout_residual 64 256 --option dtype=f32",
        ),
        (lambda g, x, i: g.silu(g.add(x, i("r"))), "add_activation 16384 --option activation=silu --option dtype=f32"),
        (lambda g, x, i: g.exp(g.multiply(g.add(x, i("y")), value=2)), "add_mul_exp 16384"),
        (lambda g, x, i: g.quantize(x, scale=0.5), "quantize_int8 16384 --option zero_point=0 --option scale=0.5"),
    ],
)
def test_bundled_kernels(build, command):
    found = whole(build)
    assert found.command == f"ptxkit run {command}"
    registry.get(found.kernel)(**found.sizes)  # sizes and options exist


def test_products_with_bias_and_gelu():
    def build(g, x, i):
        g.gelu(g.add(g.linear(x, i("w", (512, 256))), i("bias", (512,))))

    for dtype in ("bf16", "f16"):
        words = f"--option epilogue=bias_gelu --option dtype={dtype}"
        assert whole(build, dtype=dtype).command == f"ptxkit run matmul_wgmma 64 512 256 {words}"


@pytest.mark.parametrize(
    ("build", "formula"),
    [
        (lambda g, x, i: g.multiply(g.gelu(g.add(x, i("bias", (256,)))), i("y")), "(gelu((x + bias)) * y)"),
        (lambda g, x, i: g.tanh(g.l2norm(x)), "tanh((x / sqrt(sum(square(x)) + 1e-12)))"),
        (lambda g, x, i: g.relu(g.rmsnorm(x, i("gain", (256,)))), "relu((x * rsqrt(mean(square(x)) + 1e-6) * gain))"),
        (lambda g, x, i: g.sigmoid(g.softmax(x)), "sigmoid((exp(x - max(x)) / sum(exp(x - max(x)))))"),
        (lambda g, x, i: g.exp(g.maximum(x, value=0.0)), "exp(maximum(x, 0.0))"),
    ],
)
def test_formulas_can_be_written(build, formula):
    found = whole(build)
    assert found.formula == formula
    words = shlex.split(found.command)
    columns = tuple(words[i + 1] for i, word in enumerate(words) if word == "--column")
    arrays = tuple(words[i + 1] for i, word in enumerate(words) if word == "--array")
    parse(words[words.index("--expression") + 1], columns=columns, arrays=arrays)


def test_the_command_of_a_formula_writes_a_kernel_that_is_verified(tmp_path):
    from ptxkit import cli
    from ptxkit.testing import assert_verified

    found = whole(lambda g, x, i: g.multiply(g.gelu(g.add(x, i("bias", (256,)))), i("y")))
    with pytest.raises(SystemExit) as stopped:
        cli.main([*shlex.split(found.command)[1:], "--directory", str(tmp_path)])
    assert stopped.value.code == 0
    (description,) = (file for file in tmp_path.glob("*.py") if not file.name.startswith("test_"))
    assert_verified(load_file(description)(rows=3, cols=100), variants="fused", device="emulator")


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x, i: g.transpose(g.gelu(x)),  # copies are no formula
        lambda g, x, i: g.gelu(g.cast(x, dtype="bf16")),  # a kernel of a formula has one type
        lambda g, x, i: g.gelu(g.add(x, i("r", (64, 1)))),  # one value for each row is no input of a formula
        lambda g, x, i: g.gelu(g.rope(x, i("c"), i("s"))),
    ],
)
def test_groups_without_an_offer(build):
    assert whole(build) is None


def test_two_results_are_no_formula():
    g = GraphBuilder()
    x = g.input("x", (4, 8), "f32")
    a, b = g.gelu(x), g.exp(x)
    graph = g.graph([a, b])
    assert offer(Group.of(graph, graph.launches)) is None


def test_a_formula_begins_with_the_inputs_of_its_group():
    g = GraphBuilder()
    h = g.exp(g.input("x", (4, 8), "f32"), name="h")
    g.tanh(g.gelu(h))
    graph = g.graph()
    group = Group.of(graph, graph.launches[1:])
    assert offer(group).formula == "tanh(gelu(h))"


def test_other_shapes_of_a_value_are_no_formula():
    assert whole(lambda g, x, i: g.gelu(g.reshape(g.exp(x), shape=[256, 64]))) is None


def test_names_that_a_formula_cannot_have():
    g = GraphBuilder()
    x = g.input("lambda", (4, 8), "f32")
    g.gelu(g.add(x, g.input("layer.0/weight", (8,), "f32")))
    graph = g.graph()
    found = offer(Group.of(graph, graph.launches))
    assert found.formula == "gelu((in_lambda + layer_0_weight))"
    assert np.all([word in found.command for word in ("--column layer_0_weight", "--array in_lambda")])


def attention_graph(scale=64**-0.5, kind="multiply", v=64, keys=64, heads=8, turned=False, dtype="bf16"):
    g = GraphBuilder()
    q, k = g.input("q", (2, 8, 512, 64), dtype), g.input("k", (2, heads, 512, 64), dtype)
    values = g.input("v", (2, heads, 512, v), dtype)
    s = g.matmul(q, k, transpose_b=True)
    s = g.operation(kind, s, value=scale, name="scaled") if scale else s
    if turned:
        s = g.permute(s, axes=[0, 1, 3, 2])
    p = g.softmax(s)
    p = g.permute(p, axes=[0, 1, 3, 2], name="back") if turned else p
    g.matmul(p, values, name="values")
    graph = g.graph()
    return offer(Group.of(graph, graph.launches))


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 0},
        {"scale": 0.5},
        {"scale": 2, "kind": "power"},
        {"kind": "add"},
        {"v": 128},
        {"turned": True},
        {"dtype": "f32"},
    ],
)
def test_other_computations_than_attention(changed):
    assert attention_graph().kernel == "attention"
    assert attention_graph(**changed) is None


def test_one_head_of_keys_for_all_queries():
    assert "--option kv_heads=1" in attention_graph(heads=1).command


@pytest.mark.parametrize(
    ("build", "formula"),
    [
        (lambda g, x, i: g.multiply(g.silu(x), x), "(silu(x) * x)"),  # one array, where swiglu reads two
        (lambda g, x, i: g.multiply(g.silu(x), value=3), "(silu(x) * 3)"),
        (lambda g, x, i: g.multiply(*[g.silu(x)] * 2), "(silu(x) * silu(x))"),
        (lambda g, x, i: g.gelu(g.add(x, x)), "gelu((x + x))"),
        (lambda g, x, i: g.exp(g.multiply(g.add(x, i("y")), value=2.5)), "exp(((x + y) * 2.5))"),
        (lambda g, x, i: g.relu(g.add(x, i("b", (256,)))), "relu((x + b))"),
        (lambda g, x, i: g.softmax(g.add(g.multiply(x, value=2), value=7)), None),
        (lambda g, x, i: g.softmax(g.add(i("m", (256,)), g.multiply(x, value=2))), None),
        (lambda g, x, i: g.rmsnorm(x, i("gain")), None),  # a weight for each element
    ],
)
def test_operations_that_resemble_those_of_a_kernel_are_a_formula(build, formula):
    found = whole(build)
    assert not found.kernel and (formula is None or found.formula == formula)


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x, i: g.quantize(x),  # without a scale
        lambda g, x, i: g.multiply(g.silu(x, dtype="bf16"), i("up")),
        lambda g, x, i: g.dropout(g.exp(x), p=0.25),  # a formula has the default probability
        lambda g, x, i: g.divide(x, g.sum(g.permute(x, axes=[1, 0]))),
        lambda g, x, i: g.add(g.exp(g.chunk(x, parts=2)[0]), value=1.0),  # a part of each row
        lambda g, x, i: g.multiply(g.silu(g.chunk(x, parts=2)[0]), i("up", (64, 128))),
        lambda g, x, i: g.softmax(g.mean(x)),  # rows of one element
    ],
)
def test_groups_that_no_kernel_and_no_formula_computes(build):
    assert whole(build, shape=(256, 256) if "permute" in build.__code__.co_names else (64, 256)) is None


def test_a_variance_of_given_means_is_no_formula():
    assert whole(lambda g, x, i: g.sqrt(g.variance(x, i("m", (64, 1))))) is None


def test_constants_of_a_group_are_options_of_the_kernel():
    found = whole(lambda g, x, i: g.gelu(g.layernorm(x, i("a", (256,)), i("b", (256,)), eps=1e-3)))
    assert "--option eps=0.001" in found.command
    assert "p=0.5" in whole(lambda g, x, i: g.dropout(g.softmax(x), p=0.5)).command


def test_kernels_of_several_launches_are_listed_beside_the_plan():
    found = analyse(model_graph("llama3-8b"), machine_for("H200"))
    commands = {group.name: offered.command for group, offered in found.bundled}
    name = "gate + silu + up + gated + down"
    assert commands[name] == "ptxkit run swiglu_ffn 4096 4096 14336 --option dtype=bf16"
    assert not {group.names for group, _ in found.bundled} & {group.names for group, _, _ in found.plan}


def test_a_group_whose_results_are_needed_elsewhere_is_not_listed():
    g = GraphBuilder()
    x = g.input("x", (64, 256), "bf16")
    weights = [
        g.input(name, shape, "bf16") for name, shape in (("a", (256, 256)), ("b", (256, 256)), ("c", (256, 256)))
    ]
    gate = g.silu(g.linear(x, weights[0]))
    inner = g.multiply(gate, g.linear(x, weights[1], name="up"))
    y = g.linear(inner, weights[2], name="down")
    assert [offered.kernel for _, offered in bundled(g.graph([y]))] == ["swiglu_ffn"]
    assert "swiglu_ffn" not in [offered.kernel for _, offered in bundled(g.graph([y, inner]))]
