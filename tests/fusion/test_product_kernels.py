"""Products with epilogues: the kernel that a report names computes what the operations compute, on a GPU that has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.fusion.analysis import analyse, compiled_kernel
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.models import model_graph
from ptxkit.fusion.offers import offer
from ptxkit.targets import Target
from ptxkit.workload import registry
from tests.fusion.evaluation import evaluated

M, N, K = 32, 64, 128
HALVES, BYTES = ("bf16", "f16"), ("e4m3", "s8")
FORMS = ("linear", "matmul", "transposed", "permuted")


def graph_of(dtype, form="linear", scales=(), bias="none", activation="none", residual=False, swapped=False):
    """An epilogue as its operations; ``bias``: "inside" the linear layer, "added", or "none"."""
    g = GraphBuilder()
    out = dtype if dtype in HALVES else "bf16"
    sums = {} if dtype in HALVES else {"dtype": "s32" if dtype == "s8" else "f32"}
    a, shape = g.input("a", (M, K), dtype), (K, N) if form == "matmul" else (N, K)
    b = g.input("b", shape, dtype)
    added = g.input("bias", (N,), out) if bias != "none" else ""
    if form == "linear":
        y = g.linear(a, b, *([added] if bias == "inside" else []), **sums)
    else:
        b = g.permute(b, axes=[1, 0]) if form == "permuted" else b
        y = g.matmul(a, b, **({"transpose_b": True} if form == "transposed" else {}), **sums)
    for i, name in enumerate(scales):
        scale = g.input(name, (M, 1) if name == "row_scales" else (N,), "f32")
        y = g.multiply(y, scale, name=f"scaled{i}", **({} if dtype in HALVES and i + 1 < len(scales) else {"dtype": out}))

    def add(name, x):
        return g.add(*((x, y) if swapped else (y, x)), name=name, dtype=out)

    y = add("biased", added) if bias == "added" else y
    y = g.operation(activation, y, name="activated") if activation != "none" else y
    if residual:
        add("out", g.input("residual", (M, N), out))
    return g.graph()


def epilogues():
    rows, columns = "row_scales", "column_scales"
    scales = st.sampled_from([(), (rows,), (columns,), (rows, columns), (columns, rows)])
    activations = st.sampled_from(["none", "relu", "gelu", "silu"])
    flags = [st.booleans()] * 2
    return st.tuples(st.sampled_from(HALVES + BYTES), st.sampled_from(FORMS), scales, st.booleans(), activations, *flags)


@settings(max_examples=60)
@given(epilogues(), st.booleans())
def test_the_reference_of_the_named_kernel_is_the_result(epilogue, inside):
    dtype, form, scales, bias, activation, residual, swapped = epilogue
    if dtype in BYTES and (not scales or form == "matmul"):
        form, scales = "linear", scales or ("row_scales",)
    within = inside and not scales and form == "linear"
    graph = graph_of(dtype, form, scales, ("inside" if within else "added") if bias else "none", activation, residual, swapped)
    found = offer(Group.of(graph, graph.launches))
    if len(graph.launches) == 1 and not within:
        return  # a product alone
    assert found is not None and found.kernel in ("matmul_wgmma", "matmul_fused", "moe_int8")
    workload = registry.get(found.kernel)(**found.sizes)
    arrays = dict(workload.inputs(np.random.default_rng(3)))
    (wanted,) = (value for key, value in workload.reference(**arrays).items() if key != "largest")
    arrays |= {"row_scales": arrays.get("a_scales"), "column_scales": arrays.get("b_scales")} if "a_scales" in arrays else {}
    given_ = [t for t in graph.tensors.values() if t.name not in graph.producers and t.name not in graph.views]
    results = evaluated(graph, {t.name: np.asarray(arrays[t.name], np.float64).reshape(t.shape) for t in given_})
    (out,) = graph.outputs
    np.testing.assert_allclose(np.asarray(wanted, np.float64), results[out], rtol=1e-5, atol=1e-5 * np.abs(results[out]).max())


def gate(g, x, w, v):
    return g.multiply(g.silu(g.linear(x, w)), g.linear(x, v, name="up_product"), name="gated")


def test_gate_and_up_are_one_product_of_alternating_rows():
    g = GraphBuilder()
    gate(g, g.input("x", (M, K), "bf16"), g.input("gate", (N, K), "bf16"), g.input("up", (N, K), "bf16"))
    graph = g.graph()
    found = offer(Group.of(graph, graph.launches))
    assert found.command == f"ptxkit run matmul_fused {M} {2 * N} {K} --option dtype=bf16 --option activation=silu_mul"
    assert "alternating" in found.note
    workload = registry.get(found.kernel)(**found.sizes)
    arrays = workload.inputs(np.random.default_rng(3))
    parts = {"x": arrays["a"], "gate": arrays["b"][::2], "up": arrays["b"][1::2]}
    results = evaluated(graph, {name: np.asarray(value, np.float64) for name, value in parts.items()})
    wanted = np.asarray(workload.reference(**arrays)["c"], np.float64)
    np.testing.assert_allclose(wanted, results["gated"], rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def layers(*biases, dtype="bf16", rows=("x",) * 3, widths=(64, 32, 32), after=""):
    """Linear layers, each with its bias inside ("in"), added ("add") or none ("")."""
    g = GraphBuilder()
    inputs = {name: g.input(name, (M, K), dtype) for name in dict.fromkeys(rows)}
    for i, (row, bias, n) in enumerate(zip(rows, biases, widths, strict=True)):
        w = g.input(f"w{i}", (n, K), dtype)
        added = [g.input(f"b{i}", (n,), dtype)] if bias else []
        y = g.linear(inputs[row], w, *(added if bias == "in" else []), name=f"y{i}")
        y = g.add(y, *added, name=f"z{i}") if bias == "add" else y
        if after and i == 0:
            g.operation(after, y, name="after")
    return g.graph()


@pytest.mark.parametrize(("biases", "epilogue"), [(("", "", ""), ""), (("in", "add", "in"), "--option epilogue=bias ")])
def test_layers_of_the_same_rows_are_one_product(biases, epilogue):
    graph = layers(*biases)
    found = offer(Group.of(graph, graph.launches))
    assert found.command == f"ptxkit run matmul_wgmma {M} 128 {K} {epilogue}--option dtype=bf16"
    assert "y0, y1, y2 after each other" in found.note


@pytest.mark.parametrize(
    "graph",
    [
        layers("add", "", "add"),  # a bias of zeros would have to be stored
        layers("", "", "", rows=("x", "x", "other")),
        layers("", "", "", dtype="f32"),
        layers("", "", "", after="relu"),
    ],
    ids=["some biases", "other rows", "f32", "an activation"],
)
def test_other_layers_side_by_side_have_no_kernel(graph):
    assert offer(Group.of(graph, graph.launches)) is None


KERNELS = {"sm_80": "matmul_mma", "sm_89": "matmul_mma", "sm_90a": "matmul_wgmma", "sm_100a": "matmul_tcgen05"}


def test_one_value_for_each_row_is_no_bias():
    g = GraphBuilder()
    x = g.input("x", (64, K), "bf16")
    for i in range(2):
        y = g.linear(x, g.input(f"w{i}", (64, K), "bf16"), name=f"y{i}")
        g.add(y, g.input(f"b{i}", (64, 1), "bf16"), name=f"z{i}")
    graph = g.graph()
    assert offer(Group.of(graph, graph.launches)) is None


@pytest.mark.parametrize(("target", "kernel"), KERNELS.items())
def test_the_kernel_exists_on_the_gpu(target, kernel):
    graph = graph_of("bf16", bias="inside", activation="gelu")
    assert offer(Group.of(graph, graph.launches), Target.parse(target)).kernel == kernel


def test_no_kernel_is_named_that_the_gpu_lacks():
    graph = graph_of("bf16", residual=True)
    group = Group.of(graph, graph.launches)
    assert offer(group, Target.parse("sm_80")) is None
    assert offer(group, Target.parse("sm_90a")).kernel == "matmul_fused"


def test_products_of_gpt2_have_kernels():
    report = analyse(model_graph("gpt2"), machine_for("H200"))
    named = {c.group.name: c.offer.kernel for c in report.groups if c.offer}
    assert named["q + q_bias + k + k_bias + v + v_bias"] == "matmul_wgmma"
    assert named["down + down_bias + ffn_residual"] == "matmul_fused"
    assert named["output + output_bias + attention_residual"] == "matmul_fused"  # of rows that attention writes
    assert not any(group.names <= set(name.split(" + ")) for group, _ in report.bundled for name in named)


def test_registers_are_those_of_the_chosen_variant():
    graph = graph_of("bf16", residual=True)
    machine = machine_for("H200")
    found = compiled_kernel(offer(Group.of(graph, graph.launches), machine.target), machine)
    assert found.variant in ("fused", "stream_k") and found.registers > 32


@pytest.mark.parametrize(("axes", "found"), [([1, 0, 2], True), ([1, 2, 0], False)], ids=["heads, then d", "d, then heads"])
def test_rows_of_attention_are_in_the_order_of_its_kernel(axes, found):
    heads, tokens, d = 4, 32, 64
    g = GraphBuilder()
    q, k, v = (g.input(name, (heads, tokens, d), "bf16") for name in "qkv")
    rows = g.permute(g.attention(q, k, v), name="ordered", axes=axes)
    flat = g.reshape(rows, name="flat", shape=[tokens, heads * d])
    y = g.relu(g.linear(flat, g.input("w", (N, heads * d), "bf16")))
    graph = g.graph([y])
    offered = offer(Group.of(graph, [o for o in graph.launches if o.kind in ("linear", "relu")]))
    assert (offered is not None) == found
