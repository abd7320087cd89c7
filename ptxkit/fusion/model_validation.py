"""Validation of the cost model: predicted speed-ups of fused variants of the bundled kernels compared with measured ones.

A graph has one operation for each launch of the variant ``unfused``; the fused variants compute all of them in one launch, in
two where sums of all rows are needed, or in those of :data:`LAUNCHES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptxkit.fusion.cost import Group, cost
from ptxkit.fusion.graph import Graph, GraphBuilder
from ptxkit.fusion.machine import Machine

Sizes = Mapping[str, Any]

NOT_COMPARED = {
    "matmul_sparse": "`unfused` executes the dense product, the other variants half of its multiplications",
    "matmul_block_scaled": "`unfused` multiplies in another type",
    "sparse_swiglu_ffn": "`unfused` executes the dense products",
    "moe_int8": "`unfused` multiplies in bf16",
    "attention_e4m3": "`unfused` multiplies in bf16",
    "attention_backward": "`unfused` multiplies by mma.sync, and the fastest variant by wgmma",
    "attention_scores": "`unfused` multiplies by mma.sync, and the fastest variant by wgmma, each score twice",
    "ffn_sublayer": "`unfused` multiplies by mma.sync, and the fastest variant by wgmma",
    "linear_layernorm_gelu": "`unfused` multiplies by mma.sync, and the fastest variant by wgmma",
    "sparse_compress": "`unfused` and `fused` prune and pack 2:4 weights, which is no operation of a graph",
    "swiglu_ffn": "`unfused` is four launches, the fused variants are two",
}
"""Kernel with a variant ``unfused`` -> why no fusion of the same operations is measured by it."""


def _elementwise(name: str, *chain: tuple[Any, ...]) -> Callable[[Sizes], Graph]:
    """A chain of element-wise operations: (kind, further full inputs, further inputs of another shape, dtype)."""

    def made(w: Sizes) -> Graph:
        g, dtype = GraphBuilder(name), w.get("dtype", "f32")
        shape = (w["n"],) if "n" in w else (w["rows"], w["cols"])
        x = g.input("x", shape, dtype)
        for i, (kind, full, attributes) in enumerate(chain):
            others = [g.input(f"operand{i}.{j}", shape, dtype) for j in range(full)]
            x = g.operation(kind, x, *others, **attributes)
        return g.graph()

    return made


def _multiply_adds(w: Sizes) -> Graph:
    g = GraphBuilder("chain")
    fmas = int(w["intensity"] * 4)  # 8 bytes of an element, two flops of a multiply-add
    launches = min(4, fmas)
    x = g.input("x", (w["n"],), "f32")
    for k in range(launches):
        count = fmas * (k + 1) // launches - fmas * k // launches
        x = g.operation("polynomial", x, multiply_adds=count)
    return g.graph()


def _bias_dropout(w: Sizes) -> Graph:
    g, shape, dtype = GraphBuilder("bias_dropout_residual"), (w["rows"], w["cols"]), w["dtype"]
    biased = g.add(g.input("x", shape, dtype), g.input("bias", shape[1:], dtype))
    dropped = g.dropout(biased)
    return g.graph(outputs=[g.add(dropped, g.input("residual", shape, dtype), name="residual_add")])


def _l2norm(w: Sizes) -> Graph:
    g, shape = GraphBuilder("fused_l2norm"), (w["rows"], w["cols"])
    x = g.input("x", shape, "f32")
    sums = g.sum(g.square(x))
    roots = g.sqrt(g.add(sums, value=w.get("eps", 0)))
    return g.graph(outputs=[g.divide(x, roots)])


def _layernorm(w: Sizes, *, quantized: bool = False) -> Graph:
    g, shape, dtype = GraphBuilder("layernorm"), (w["rows"], w["cols"]), w["dtype"]
    x, weights = g.input("x", shape, dtype), [g.input(n, shape[1:], dtype) for n in ("gamma", "beta")]
    mean = g.mean(x, dtype="f64")
    rstd = g.variance(x, mean, dtype="f64")
    normalized = g.where(x, mean, rstd, name="normalize", dtype="f32")
    affine = g.fma(normalized, *weights, name="affine")
    if quantized:
        largest = g.max(affine, name="row_scales")
        return g.graph(outputs=[g.divide(affine, largest, name="quantize", dtype="s8")])
    if w.get("activation", "none") != "none":
        affine = g.operation(w["activation"], affine, name="activation", dtype=dtype)
    return g.graph(outputs=[affine])


def _rmsnorm(w: Sizes) -> Graph:
    g, shape, dtype = GraphBuilder("rmsnorm"), (w["rows"], w["cols"]), w["dtype"]
    x = g.input("x", shape, dtype)
    mean = g.mean(g.square(x, dtype="f32"))
    normalized = g.multiply(x, g.rsqrt(mean), name="normalize", dtype="f32")
    return g.graph(outputs=[g.multiply(normalized, g.input("gamma", shape[1:], dtype), name="scale", dtype=dtype)])


def _softmax(w: Sizes, *, masked: bool = False) -> Graph:
    g, shape, dtype = GraphBuilder("softmax"), (w["rows"], w["cols"]), w["dtype"]
    x = g.input("x", shape, dtype)
    if masked:
        scaled = g.multiply(x, value=0.125, name="scale", dtype="f32")
        x = g.add(scaled, g.input("mask", shape, dtype), name="mask_scores", dtype="f32")
    exponentials = g.subtract(x, g.max(x), name="exponentials", dtype="f32")
    y = g.divide(exponentials, g.sum(exponentials), name="quotients", dtype=dtype)
    if w.get("p"):
        y = g.dropout(y)
    return g.graph(outputs=[y])


def _norm_backward(w: Sizes, *, centered: bool) -> Graph:
    g, shape, dtype = GraphBuilder("norm_backward"), (w["rows"], w["cols"]), w["dtype"]
    x, dy = g.input("x", shape, dtype), g.input("dy", shape, dtype)
    rstd = g.input("rstd", (shape[0], 1), "f32")
    normalized = g.multiply(x, rstd, name="normalize", dtype="f32")
    weighted = g.multiply(dy, g.input("gamma", shape[1:], dtype), name="weigh", dtype="f32")
    product = g.multiply(weighted, normalized, name="product")
    means = [g.mean(product, name="mean_wn")] + ([g.mean(weighted, name="mean_w")] if centered else [])
    combined = g.where(weighted, normalized, means[0], name="combine", dtype=dtype)
    again = g.multiply(dy, normalized, name="product_dy", dtype="f32")
    sums = [g.column_sum(again, name="dgamma")] + ([g.column_sum(dy, name="dbeta")] if centered else [])
    return g.graph(outputs=[combined, *sums])


def _softmax_backward(w: Sizes) -> Graph:
    g, shape, dtype = GraphBuilder("softmax_backward"), (w["rows"], w["cols"]), w["dtype"]
    y, dy = g.input("y", shape, dtype), g.input("dy", shape, dtype)
    sums = g.sum(g.multiply(y, dy, name="products", dtype="f32"))
    return g.graph(outputs=[g.fma(y, dy, sums, name="combine", dtype=dtype)])


def _swiglu_backward(w: Sizes) -> Graph:
    g, shape, dtype = GraphBuilder("swiglu_backward"), (w["rows"], w["cols"]), w["dtype"]
    dy, gate, up = (g.input(name, shape, dtype) for name in ("dy", "gate", "up"))
    return g.graph(outputs=[g.fma(dy, gate, up, name="gate_gradient"), g.multiply(dy, gate, name="up_gradient")])


def _add_activation_backward(w: Sizes) -> Graph:
    g, shape, dtype = GraphBuilder("add_activation_backward"), (w["n"],), w["dtype"]
    dy, x, residual = (g.input(name, shape, dtype) for name in ("dy", "x", "residual"))
    return g.graph(outputs=[g.multiply(dy, g.gelu(g.add(x, residual), name="derivative"))])


def _attention(w: Sizes) -> Graph:
    g, dtype = GraphBuilder("attention"), w["dtype"]
    heads = (w["batch"], w["heads"])
    q = g.input("q", (*heads, w["q"], w["d"]), dtype)
    k, v = (g.input(name, (*heads, w["k"], w["d"]), dtype) for name in "kv")
    scores = g.matmul(q, k, transpose_b=True, name="scores", dtype="f32")
    return g.graph(outputs=[g.matmul(g.softmax(scores, dtype=dtype), v, name="values")])


def _moe_routed(w: Sizes) -> Graph:
    g, dtype = GraphBuilder("moe_routed"), w["dtype"]
    tokens, hidden, ffn, experts, k = (w[name] for name in ("tokens", "hidden", "ffn", "experts", "top_k"))
    hit = max(1, round(experts * (1 - (1 - k / experts) ** tokens)))
    probabilities = g.softmax(g.input("logits", (tokens, experts), "f32"), name="gate_softmax")
    expert, chosen = g.top_k(probabilities, name="gate_top_k", k=k, scores="none", renormalize=False)
    weight = g.divide(chosen, g.input("ones", (tokens, 1), "f32"), name="gate_normalize")
    order = g.copy(g.reshape(expert, name="pairs", shape=[tokens * k]), name="sort")
    of_row = g.reshape(g.copy(order, name="row_experts"), name="of_row", shape=[tokens * k, 1])
    rows = g.gather(g.input("x", (tokens, hidden), dtype), order, name="permute")

    def product(x: str, name: str, n: int, scales: str, result: str) -> str:
        weights = g.input(f"{name}.weight", (experts, n, g.shape(x)[-1]), dtype)
        sums = g.routed_linear(x, weights, of_row, name=name, experts=hit, dtype="s32")
        flat = g.reshape(sums, name=f"{name}_sums", shape=[tokens * k, n])
        return str(g.multiply(flat, scales, name=f"{name}_scaled", dtype=result))

    both = product(rows, "up", 2 * ffn, g.input("x_scales", (tokens * k, 1), "f32"), "f32")
    gate, up = g.chunk(both, name="halves")
    inner = g.multiply(gate, up, name="swiglu")
    largest = g.max(inner, name="row_scales")
    quantized = g.divide(inner, largest, name="quantize", dtype=dtype)
    results = product(quantized, "down", hidden, largest, "bf16")
    by_token = g.permute(g.reshape(results, name="by_token", shape=[tokens, k, hidden]), name="last", axes=[0, 2, 1])
    return g.graph(outputs=[g.sum(by_token, name="combine", dtype="bf16"), expert, weight])


LAUNCHES: dict[str, tuple[tuple[str, ...], ...]] = {
    "moe_routed": (
        ("gate_softmax", "gate_top_k", "gate_normalize"),
        ("sort", "row_experts"),
        ("permute",),
        ("up", "up_scaled", "swiglu"),
        ("row_scales", "quantize"),
        ("down", "down_scaled"),
        ("combine",),
    )
}
"""Kernel of which the fused variants are several launches -> the operations of each of them; those of others are one launch."""

def _matmul_fused(w: Sizes) -> Graph:
    """A product and a launch for each part of its epilogue, between which results are f32."""
    g = GraphBuilder("matmul_fused")
    m, n, k, dtype = w["m"], w["n"], w["k"], w["dtype"]
    y = g.linear(g.input("a", (m, k), dtype), g.input("b", (n, k), dtype), dtype="s32" if dtype == "s8" else "f32")
    other = {"s8": "bf16", "e4m3": "bf16", "tf32": "f32"}
    output = other.get(dtype, str(dtype))
    shapes: dict[str, tuple[int, ...]] = {"rows": (m, 1), "columns": (n,)}
    for part in [part for part in shapes if part in w["scale"]]:
        y = g.multiply(y, g.input(part, shapes[part], "f32"), dtype="f32")
    if w["bias"] == "True":
        y = g.add(y, g.input("bias", (n,), output), dtype="f32")
    if w["activation"] == "silu_mul":
        y = g.pointwise(*g.chunk(y, parts=2), function="silu_mul", dtype=output)
    elif w["activation"] != "none":
        y = g.operation(w["activation"], y, dtype=output)
    return g.graph()


GRAPHS: dict[str, Callable[[Sizes], Graph]] = {
    "add_activation": _elementwise("add_activation", ("add", 1, {}), ("gelu", 0, {})),
    "add_gelu": _elementwise("add_gelu", ("add", 1, {}), ("gelu", 0, {})),
    "add_mul_exp": _elementwise("add_mul_exp", ("add", 1, {}), ("multiply", 0, {"value": 2}), ("exp", 0, {})),
    "swiglu": _elementwise("swiglu", ("silu", 0, {}), ("multiply", 1, {})),
    "quantize_int8": _elementwise(
        "quantize_int8",
        ("divide", 0, {"value": 0.0123}),
        ("add", 0, {"value": 3}),
        ("round", 0, {}),
        ("clamp", 0, {}),
        ("cast", 0, {"dtype": "s8"}),
    ),
    "memory_bound": _multiply_adds,
    "compute_bound": _multiply_adds,
    "bias_dropout_residual": _bias_dropout,
    "fused_l2norm": _l2norm,
    "layernorm": _layernorm,
    "layernorm_quantize": lambda w: _layernorm(w, quantized=True),
    "rmsnorm": _rmsnorm,
    "softmax": _softmax,
    "scale_mask_softmax": lambda w: _softmax(w, masked=True),
    "layernorm_backward": lambda w: _norm_backward(w, centered=True),
    "rmsnorm_backward": lambda w: _norm_backward(w, centered=False),
    "attention": _attention,
    "moe_routed": _moe_routed,
    "matmul_fused": _matmul_fused,
    "softmax_backward": _softmax_backward,
    "swiglu_backward": _swiglu_backward,
    "add_activation_backward": _add_activation_backward,
}
"""Kernel -> its unfused chain, from its sizes and options."""


@dataclass(frozen=True)
class Comparison:
    """A predicted speed-up of a fused kernel over its unfused chain, and the measured one.

    Attributes:
        case: kernel, sizes and options, as the expectations name it.
        predicted, measured: times of the unfused chain over those of the fused launch.
        best: the fused variant that was fastest.
    """

    case: str
    predicted: float
    measured: float
    best: str

    @property
    def error(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def comparisons(known: Mapping[str, Any], machine: Machine) -> Iterator[Comparison]:
    """Every recorded case with an unfused and a fused variant, by the medians of its cold samples."""
    for case, recorded in known.get("cases", {}).items():
        name, *pairs = case.split()
        rows = recorded["rows"]
        fused = {
            row: times["cold"]["median_us"]
            for row, times in rows.items()
            if row != "unfused" and times.get("kind") == "variant" and times.get("cold")
        }
        sizes = dict(map(_pair, pairs))
        if name not in GRAPHS or not fused or not rows.get("unfused", {}).get("cold"):
            continue
        if sizes.get("causal") == "True":
            continue  # `unfused` computes all scores, the fused variants the half that the mask leaves
        graph = GRAPHS[name](sizes)
        best = min(fused, key=fused.__getitem__)
        predicted_speedup = predicted(graph, machine, LAUNCHES.get(name))
        yield Comparison(case, predicted_speedup, rows["unfused"]["cold"]["median_us"] / fused[best], best)


def predicted(graph: Graph, machine: Machine, launches: Sequence[Sequence[str]] | None = None) -> float:
    """The predicted speed-up if all operations of a graph share a launch, or those of each of some launches."""
    apart = sum(cost(Group.of(graph, [operation]), machine).time_us for operation in graph.launches)
    groups = [[o for o in graph.launches if o.name in launch] for launch in launches] if launches else [graph.launches]
    return apart / sum(cost(Group.of(graph, group), machine).time_us for group in groups)


def _pair(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's coefficient: the correlation of the ranks, equal values having the mean of their ranks."""
    import numpy as np

    def ranks(values: list[float]) -> Any:
        array = np.asarray(values)
        return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])

    first, second = (ranks([pair[i] for pair in pairs]) for i in (0, 1))
    return float(np.corrcoef(first, second)[0, 1])
