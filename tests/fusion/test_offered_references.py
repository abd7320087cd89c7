"""Every bundled kernel that a report names computes what the operations of its group compute: its reference, on its inputs."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.fusion import product_kernels
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.kernels import KERNELS
from ptxkit.fusion.offers import offer
from ptxkit.fusion.patterns import matches
from ptxkit.workload import registry
from tests.fusion.evaluation import evaluated

R, C, M, N, K = 16, 64, 32, 64, 128
B, H, Q, T, D = 2, 4, 16, 24, 64  # batch, heads, queries, keys, elements of a head
SCALE = D**-0.5


def activation(g, i, name):
    g.operation(name, g.add(i("x", R, C), i("residual", R, C)))


def layernorm(g, i, name):
    y = g.layernorm(i("x", R, C), i("gamma", C), i("beta", C), eps=1e-3)
    if name != "none":
        g.operation(name, y)


def scores(g, i, heads=H, divided=False, permuted=False):
    q = i("query", B, H, Q, D)
    if permuted:
        s = g.matmul(q, g.permute(i("key", B, heads, T, D), axes=[0, 1, 3, 2]))
    else:
        s = g.matmul(q, i("key", B, heads, T, D), transpose_b=True)
    return g.divide(s, value=1 / SCALE) if divided else g.multiply(s, value=SCALE)


def attention(g, i, heads=H, **how):
    g.matmul(g.softmax(scores(g, i, heads, **how)), i("value", B, heads, T, D), name="values")


def backward(g, i):
    q, k, v = i("query", B, H, Q, D), i("key", B, H, T, D), i("value", B, H, T, D)
    o, do, lse = i("o", B, H, Q, D), i("do", B, H, Q, D), g.input("lse", (B, H, Q, 1), "f32")
    p = g.exp(g.subtract(g.multiply(g.matmul(q, k, transpose_b=True), value=SCALE), lse))
    delta = g.sum(g.multiply(do, o))
    dp = g.matmul(do, v, transpose_b=True, name="dp")
    ds = g.multiply(p, g.subtract(dp, delta, name="centred"), name="ds")
    turned = [g.permute(each, axes=[0, 1, 3, 2], name=f"turned_{each}") for each in (p, ds)]
    g.multiply(g.matmul(ds, k, name="ds_k"), value=SCALE, name="dq", dtype=g.tensor(q).dtype)
    g.multiply(g.matmul(turned[1], q, name="ds_q"), value=SCALE, name="dk", dtype=g.tensor(q).dtype)
    g.matmul(turned[0], do, name="dv", dtype=g.tensor(q).dtype)


def swiglu_ffn(g, i, **how):
    x = i("x", M, K)
    first = g.silu(g.linear(x, i("gate", N, K), **how))
    inner = g.multiply(first, g.linear(x, i("up", N, K), name="second", **how))
    g.linear(inner, i("down", K, N), name="y", **how)


def moe_bf16(g, i):
    a, b = g.input("a", (M, K), "s8"), g.input("b", (N, K), "s8")
    scales = g.input("a_scales", (M, 1), "f32"), g.input("b_scales", (N,), "f32")
    scaled = g.multiply(g.linear(a, b, dtype="s32"), scales[0])
    g.multiply(scaled, scales[1], dtype="bf16", name="out")


def moe_token(g, i):
    a, b = g.input("a", (M, K), "s8"), g.input("b", (N, K), "s8")
    scales = g.input("a_scales", (M, 1), "f32"), g.input("b_scales", (N,), "f32")
    g.quantize_rows(g.multiply(scales[1], g.multiply(g.linear(a, b, dtype="s32"), scales[0]), name="scaled"))


def moe(g, i, gating="top_k", **how):
    """Four experts, two for each token: (tokens, hidden, ffn) = (M, K, N)."""
    experts, choices = 4, 2
    logits = g.input("logits", (M, experts), "f32")
    if gating == "top_k":
        expert, score = g.top_k(logits, k=choices, **how)
    else:
        expert, score = g.top_k(g.softmax(logits), k=choices, scores="none", renormalize=False)
    if gating == "divided":
        score = g.divide(score, g.sum(score, name="of_token"))

    def product(name, x, scales, n, dtype):
        weights = i(name, experts, n, g.shape(x)[-1]), expert, scales, g.input(f"{name}_scales", (experts, n), "f32")
        return g.routed_linear(x, *weights, name=f"{name}_product", experts=3, dtype=dtype)

    x, scales = i("x", M, K), g.input("x_scales", (M, 1), "f32")
    gate = g.silu(product("gate", x, scales, N, "f32"))
    rows = g.quantize_rows(g.multiply(product("up", x, scales, N, "f32"), gate), dtype=g.tensor(x).dtype)
    weights = g.reshape(score, name="column", shape=[M, choices, 1])
    weighted = g.multiply(product("down", *rows, K, "bf16"), weights, name="weighted")
    g.sum(g.permute(weighted, name="last", axes=[0, 2, 1]), name="y", dtype="bf16")


def separate(inputs):
    """The inputs of moe_routed with gate and up as two arrays, of which 8 rows each alternate in ``w1``."""
    parts = {}
    for name, array in (("", inputs["w1"]), ("_scales", inputs["w1_scales"])):
        blocks = array.reshape(4, N // 8, 2, 8, -1)
        parts |= {f"gate{name}": blocks[:, :, 0], f"up{name}": blocks[:, :, 1]}
    return {**inputs, **parts, "down": inputs["w2"], "down_scales": inputs["w2_scales"]}


def linear_layernorm(g, i):
    biased = g.add(g.linear(i("x", M, K), i("w", N, K)), i("bias", N))
    g.gelu(g.layernorm(biased, i("gamma", N), i("beta", N)))


def sublayer(g, i):
    normalized = g.layernorm(i("x", M, K), i("gamma", K), i("beta", K))
    g.add(i("residual", M, N), g.gelu(g.linear(normalized, i("w", N, K), i("bias", N))))


def rms_parts(g, i, dtype, before, in_both):
    """RMS normalization in its parts, in f32 from the conversion of x on."""
    x, gamma = i("x", R, C), i("gamma", C)
    first = g.cast(x, dtype="f32", name="wide") if before else x
    inverse = g.rsqrt(g.add(g.mean(g.square(first)), value=1e-2))
    y = g.multiply(first if in_both else x, inverse, name="normalized", dtype="f32" if before else dtype)
    g.multiply(gamma, g.cast(y, dtype=dtype, name="narrow") if before else y, name="y", dtype=dtype)


def scaled_queries(g, i, divided=False, permuted=False):
    q, k = i("query", B, H, Q, D), i("key", B, H, T, D)
    q = g.divide(q, value=1 / SCALE) if divided else g.multiply(q, value=SCALE)
    s = g.matmul(q, g.permute(k, axes=[0, 1, 3, 2])) if permuted else g.matmul(q, k, transpose_b=True)
    g.matmul(g.softmax(s), i("value", B, H, T, D), name="values")


CASES = {
    "rms_parts": ("rmsnorm", "f32", lambda g, i: rms_parts(g, i, "f32", False, False)),
    "rms_parts_wide": ("rmsnorm", "bf16", lambda g, i: rms_parts(g, i, "bf16", True, True)),
    "rms_parts_one_wide": ("rmsnorm", "f16", lambda g, i: rms_parts(g, i, "f16", True, False)),
    "attention_scaled_queries": ("attention", "bf16", scaled_queries),
    "attention_divided_queries": ("attention", "f16", lambda g, i: scaled_queries(g, i, divided=True)),
    "attention_permuted_keys": ("attention", "bf16", lambda g, i: scaled_queries(g, i, permuted=True)),
    "swiglu": ("swiglu", "f32", lambda g, i: g.multiply(g.silu(i("gate", R, C)), i("up", R, C))),
    "add_gelu": ("add_activation", "f16", lambda g, i: activation(g, i, "gelu")),
    "add_silu": ("add_activation", "bf16", lambda g, i: activation(g, i, "silu")),
    "add_relu": ("add_activation", "f32", lambda g, i: activation(g, i, "relu")),
    "add_mul_exp": ("add_mul_exp", "f32", lambda g, i: g.exp(g.multiply(g.add(i("x", R, C), i("y", R, C)), value=2))),
    "bias_dropout_residual": (
        "bias_dropout_residual",
        "f32",
        lambda g, i: g.add(g.dropout(g.add(i("x", R, C), i("bias", C)), p=0.25), i("residual", R, C), name="out"),
    ),
    "quantize_int8": ("quantize_int8", "f32", lambda g, i: g.quantize(i("x", R, C), scale=0.02, zero_point=5)),
    "layernorm": ("layernorm", "f32", lambda g, i: layernorm(g, i, "none")),
    "layernorm_relu": ("layernorm", "f32", lambda g, i: layernorm(g, i, "relu")),
    "layernorm_gelu": ("layernorm", "bf16", lambda g, i: layernorm(g, i, "gelu")),
    "layernorm_quantize": (
        "layernorm_quantize",
        "f32",
        lambda g, i: g.quantize_rows(g.layernorm(i("x", R, C), i("gamma", C), i("beta", C))),
    ),
    "rmsnorm": ("rmsnorm", "f32", lambda g, i: g.rmsnorm(i("x", R, C), i("gamma", C), eps=1e-2)),
    "l2norm": ("fused_l2norm", "f32", lambda g, i: g.l2norm(i("x", R, C), eps=0.5)),
    "softmax": ("softmax", "f32", lambda g, i: g.softmax(i("x", R, C))),
    "softmax_dropout": ("softmax", "f32", lambda g, i: g.dropout(g.softmax(i("x", R, C)), p=0.3)),
    "scale_mask_softmax": (
        "scale_mask_softmax",
        "f32",
        lambda g, i: g.softmax(g.add(i("mask", R, C), g.multiply(i("s", R, C), value=0.3))),
    ),
    "linear_layernorm_gelu": ("linear_layernorm_gelu", "bf16", linear_layernorm),
    "ffn_sublayer": ("ffn_sublayer", "f16", sublayer),
    "bias_gelu": ("matmul_wgmma", "bf16", lambda g, i: g.gelu(g.linear(i("a", M, K), i("b", N, K), i("bias", N)))),
    "bias_gelu_f16": (
        "matmul_wgmma",
        "f16",
        lambda g, i: g.gelu(g.add(i("bias", N), g.linear(i("a", M, K), i("b", N, K)))),
    ),
    "sparse": ("matmul_sparse", "bf16", lambda g, i: g.linear(i("a", M, K), i("b", N, K), sparse=True)),
    "swiglu_ffn": ("swiglu_ffn", "bf16", swiglu_ffn),
    "sparse_swiglu_ffn": ("sparse_swiglu_ffn", "f16", lambda g, i: swiglu_ffn(g, i, sparse=True)),
    "moe_bf16": ("moe_int8", "s8", moe_bf16),
    "moe_token": ("moe_int8", "s8", moe_token),
    "moe_routed": ("moe_routed", "s8", moe),
    "moe_routed_e4m3": ("moe_routed", "e4m3", moe),
    "moe_routed_all": ("moe_routed", "s8", lambda g, i: moe(g, i, renormalize=False)),
    "moe_routed_softmax": ("moe_routed", "s8", lambda g, i: moe(g, i, "softmax")),
    "moe_routed_divided": ("moe_routed", "s8", lambda g, i: moe(g, i, "divided")),
    "attention": ("attention", "bf16", attention),
    "attention_divided": ("attention", "f16", lambda g, i: attention(g, i, divided=True)),
    "attention_permuted": ("attention", "bf16", lambda g, i: attention(g, i, permuted=True)),
    "attention_one_head_of_keys": ("attention", "bf16", lambda g, i: attention(g, i, 1)),
    "attention_kind": (
        "attention",
        "bf16",
        lambda g, i: g.attention(i("query", B, H, Q, D), i("key", B, 2, T, D), i("value", B, 2, T, D), causal=True),
    ),
    "attention_scores": ("attention_scores", "bf16", lambda g, i: g.softmax(scores(g, i))),
    "attention_scores_masked": (
        "attention_scores",
        "bf16",
        lambda g, i: g.softmax(g.add(scores(g, i), i("added", H, Q, T))),
    ),
    "attention_backward": ("attention_backward", "bf16", backward),
}


def made(name):
    kernel, dtype, build = CASES[name]
    g = GraphBuilder()
    build(g, lambda tensor, *shape: g.input(tensor, shape, dtype))
    graph = g.graph()
    return kernel, graph, offer(Group.of(graph, graph.launches))


def by_head(array, shape):
    """An array of a kernel of attention, (tokens, heads, d) or (heads, tokens), as the graph has it: (batch, heads, n, d)."""
    if array.shape == shape:
        return array
    if array.ndim == 2:
        return array.reshape(shape[1], B, -1, 1).swapaxes(0, 1)
    return array.reshape(B, -1, *array.shape[-2:]).swapaxes(1, 2)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_of_the_offered_kernel_is_the_result_of_the_group(name):
    kernel, graph, found = made(name)
    assert found is not None and found.kernel == kernel
    workload = registry.get(kernel)(**found.sizes)
    inputs = dict(workload.inputs(np.random.default_rng(1)))
    reference = workload.reference(**inputs)
    if kernel == "moe_routed":
        inputs, reference = separate(inputs), {"y": reference["y"]}
    arrays = {}
    for tensor in graph.tensors.values():
        if tensor.name not in graph.producers and tensor.name not in graph.views:
            given = np.asarray(inputs[tensor.name])
            heads = kernel.startswith("attention") and tensor.name != "added"
            arrays[tensor.name] = by_head(given, tensor.shape) if heads else given.reshape(tensor.shape)
    results = evaluated(graph, arrays)
    wanted = [value for key, value in reference.items() if key != "lse"]
    written = [name for name in graph.tensors if name in graph.outputs]
    assert len(written) == len(wanted)
    for tensor, value in zip(written, wanted, strict=True):
        value = np.asarray(value, np.float64)
        value = by_head(value, results[tensor].shape) if kernel.startswith("attention") else value
        close = {"rtol": 1e-5, "atol": 1e-6}
        if graph.tensors[tensor].dtype == "s8":
            close = {"rtol": 0, "atol": 1}  # numbers close to a tie may be rounded to the other integer
        if kernel == "attention_backward":
            close = {"rtol": 2e-3, "atol": 1e-2}  # the kernel reads o and lse as rounded numbers
        np.testing.assert_allclose(value.reshape(results[tensor].shape), results[tensor], **close)


@pytest.mark.parametrize("name", CASES)
def test_one_input_of_another_type_is_another_kernel(name):
    """The kernels have one type for all inputs that share a type in their descriptions."""
    _, dtype, build = CASES[name]
    _, graph, found = made(name)
    for changed in [tensor for tensor in graph.tensors if tensor not in graph.producers and tensor not in graph.views]:
        g = GraphBuilder()
        for tensor in graph.tensors.values():
            if tensor.name not in graph.producers and tensor.name not in graph.views:
                other = {"f32": "bf16"}.get(tensor.dtype, "f32")
                g.input(tensor.name, tensor.shape, other if tensor.name == changed else tensor.dtype)
        for operation in graph.operations:
            attributes = dict(operation.attributes)
            if "dtype" in operation.rules.attributes:
                attributes["dtype"] = graph.tensors[operation.outputs[0]].dtype
            g.operation(operation.kind, *operation.inputs, name=operation.name, outputs=operation.outputs, **attributes)
        again = g.graph()
        other = offer(Group.of(again, again.launches))
        single = sum(tensor not in graph.producers and tensor not in graph.views for tensor in graph.tensors) == 1
        assert other is None or not other.kernel or (single and other.command != found.command)


def test_every_kernel_of_the_table_has_a_case():
    reached = set()
    for name in CASES:
        _, graph, _ = made(name)
        group = Group.of(graph, graph.launches)
        reached |= {id(kernel) for kernel in KERNELS for match in matches(group, kernel.roots) if kernel.use(match)}
    others = [kernel for kernel in KERNELS if kernel.use.__module__ != product_kernels.__name__]  # see test_product_kernels.py
    unreached = [kernel.roots[0].kind for kernel in others if id(kernel) not in reached]
    assert len(unreached) <= len(others) // 2  # of formulas that differ in the form of one operand only
