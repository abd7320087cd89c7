"""The formulas that the bundled kernels compute, as patterns, and the sizes and options that follow from a match.

A kernel is named for a group only if it computes exactly the group's operations on arrays of exactly its shapes and types,
with its constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ptxkit.fusion import product_kernels
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import Graph
from ptxkit.fusion.layout import View
from ptxkit.fusion.patterns import Bound, In, Match, Node, Op, Param, Result, Swapped, candidates, matches, op
from ptxkit.fusion.product_kernels import one_per_column
from ptxkit.fusion.use import Array, Use

INTERLEAVED = "with 8 rows of gate and 8 of up alternating in one array"


@dataclass(frozen=True)
class Kernel:
    """A formula, and how a match of it becomes a use of a kernel; None where no kernel has such sizes."""

    roots: tuple[Op, ...]
    use: Callable[[Match], Use | None]

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of its operations, sorted."""
        return sorted(_kinds(self.roots))


def uses(group: Group) -> Iterator[Use]:
    """The bundled kernels that compute a group, by their formulas; whether their sizes are permitted is not checked."""
    yield from _formulas(group)
    if (attended := _before_copy(group)) is not None:
        yield from (use for use in _formulas(attended) if use.kernel == "attention")
    if (together := product_kernels.side_by_side(group)) is not None:
        yield together


def _formulas(group: Group) -> Iterator[Use]:
    kinds = sorted(operation.kind for operation in group.operations)
    for kernel in KERNELS:
        if kernel.kinds != kinds:
            continue
        for match in matches(group, kernel.roots):
            use = kernel.use(match)
            if use is not None and _fits(group.graph, match, use):
                yield use


def _before_copy(group: Group) -> Group | None:
    """A group without the copy of its result to the order with the tokens before the heads, in which the kernels of attention
    write it; None where the group does not end so."""
    graph, copy = group.graph, group.operations[-1]
    if copy.kind != "copy" or list(group.writes()) != [copy.outputs[0]] or len(graph.shape(copy.inputs[0])) < 3:
        return None
    memory = graph.memory(copy.inputs[0])
    whole = View.whole(memory, graph.shape(memory))
    rank = len(whole.axes)
    turned = whole.permuted([*range(rank - 3), rank - 2, rank - 3, rank - 1]) if rank >= 3 else None
    return Group.of(graph, group.operations[:-1]) if graph.layouts[copy.inputs[0]] == turned else None


def groups(graph: Graph) -> Iterator[Group]:
    """The groups of several operations of a graph that a bundled kernel may compute; :func:`uses` says whether it does."""
    kinds = {operation.kind for operation in graph.launches}
    seen = set[frozenset[str]]()
    for kernel in KERNELS:
        if len(kernel.kinds) > 1 and kinds.issuperset(kernel.kinds):
            for group in candidates(graph, kernel.roots):
                if group.names not in seen:
                    seen.add(group.names)
                    yield group


def _kinds(roots: Sequence[Op]) -> list[str]:
    seen: dict[int, str] = {}

    def visit(node: Node) -> None:
        if isinstance(node, (Swapped, Result)):
            visit(node.of)
        elif isinstance(node, Op) and id(node) not in seen:
            seen[id(node)] = node.kind
            for child in node.inputs:
                visit(child)

    for root in roots:
        visit(root)
    return list(seen.values())


def _fits(graph: Graph, match: Match, use: Use) -> bool:
    """Whether the arrays of a match are those that the kernel reads and writes."""
    if match.inputs.keys() != use.inputs.keys() or not match.inside <= use.inside:
        return False
    pairs = [(match.inputs[name], array) for name, array in use.inputs.items()]
    if len(match.results) != len(use.outputs):
        return False
    return all(_is(graph, bound, *array) for bound, array in (*pairs, *zip(match.results, use.outputs, strict=True)))


def _is(graph: Graph, bound: Bound, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a tensor is an array of this shape and type, but for axes of one element and axes before the rows."""
    if bound.dtype != dtype or bound.elements != math.prod(shape):
        return False
    if len(shape) == 4:  # heads, as (batch, heads, n, d) or, as the kernels have them, with the tokens first
        stated = bound.shape if len(bound.shape) == 4 else (1, *bound.shape)
        return stated == shape and (bound.view.contiguous or _tokens_first(bound.view))
    if not bound.view.contiguous and not _attended(graph, bound.view):
        return False
    if len(shape) == 1:
        return True
    wide = [extent for extent in bound.shape if extent != 1]
    return bound.matrix == shape or wide == [extent for extent in shape if extent != 1]


def _attended(graph: Graph, view: View) -> bool:
    """Whether a view is a result of attention with the tokens first, as the kernels of attention write it."""
    writer = graph.producers.get(view.memory)
    if writer is None or writer.kind != "attention":
        return False
    whole = View.whole(view.memory, graph.shape(view.memory))
    rank = len(whole.axes)
    first = whole.permuted([*range(rank - 3), rank - 2, rank - 3, rank - 1])
    return (view.offset, view.order) == (0, first.order)


def _tokens_first(view: View) -> bool:
    """Whether (batch, heads, n, d), or (heads, n, d), is a view of (batch, n, heads, d)."""
    rank = len(view.axes)
    return view.permuted([*range(rank - 3), rank - 2, rank - 3, rank - 1]).contiguous


# Uses: sizes and options from a match


def _flat(kernel: str, *names: str, only: str = "", out: str = "", **options: Any) -> Callable[[Match], Use | None]:
    """A kernel of n elements, all inputs of which have them."""

    def use(match: Match) -> Use | None:
        first = match.inputs[names[0]]
        dtype, n = first.dtype, first.elements
        if any(match.inputs[name].shape != match.results[0].shape for name in names) or (only and dtype != only):
            return None
        given = {**options, **match.params, **({} if only else {"dtype": dtype})}
        return Use(
            kernel,
            {"n": n},
            given,
            dict.fromkeys(names, ((n,), dtype)),
            [((n,), out or dtype)],
            frozenset((dtype, "f32")),
        )

    return use


def _rows(
    kernel: str,
    arrays: Sequence[str],
    columns: Sequence[str] = (),
    only: str = "",
    quantized: bool = False,
    **options: Any,
) -> Callable[[Match], Use | None]:
    """A kernel of rows, with inputs of one element for each column."""

    def use(match: Match) -> Use | None:
        first = match.inputs[arrays[0]]
        dtype, (rows, cols) = first.dtype, first.matrix
        shape = match.results[0].shape
        if any(match.inputs[name].shape != shape for name in arrays) or (only and dtype != only):
            return None
        if not all(one_per_column(match.inputs[name]) for name in columns):
            return None
        inputs: dict[str, Array] = dict.fromkeys(arrays, ((rows, cols), dtype))
        inputs |= dict.fromkeys(columns, ((cols,), dtype))
        outputs: list[Array] = [((rows, cols), "s8"), ((rows,), "f32")] if quantized else [((rows, cols), dtype)]
        given = {**options, **match.params, **({} if only else {"dtype": dtype})}
        sizes = {"rows": rows, "cols": cols}
        return Use(kernel, sizes, given, inputs, outputs, frozenset((dtype, "f32")))

    return use


def _sparse_product(match: Match) -> Use | None:
    a, b = match.inputs["a"], match.inputs["b"]
    (m, k), n = a.matrix, b.shape[0]
    inputs: dict[str, Array] = {"a": ((m, k), a.dtype), "b": ((n, k), a.dtype)}
    out = "bf16" if a.dtype == "e4m3" else a.dtype
    return Use("matmul_sparse", {"m": m, "n": n, "k": k}, {"dtype": a.dtype}, inputs, [((m, n), out)])


def _layer(kernel: str, *across: str) -> Callable[[Match], Use | None]:
    """A linear layer with layer normalization; ``across`` names the inputs of one element for each feature."""

    def use(match: Match) -> Use | None:
        x, w = match.inputs["x"], match.inputs["w"]
        (rows, hidden), features = x.matrix, w.shape[0]
        names = [name for name in match.inputs if name not in ("x", "w", "residual")]
        if not all(one_per_column(match.inputs[name]) for name in names):
            return None
        inputs: dict[str, Array] = {"x": ((rows, hidden), x.dtype), "w": ((features, hidden), x.dtype)}
        inputs |= {name: ((features if name in across else hidden,), x.dtype) for name in names}
        if "residual" in match.inputs:
            inputs["residual"] = ((rows, features), x.dtype)
            if match.inputs["residual"].shape != match.results[0].shape:
                return None
        sizes = {"rows": rows, "hidden": hidden, "features": features}
        outputs: list[Array] = [((rows, features), x.dtype)]
        return Use(kernel, sizes, {"dtype": x.dtype, **match.params}, inputs, outputs, frozenset((x.dtype, "f32")))

    return use


def _gated_ffn(kernel: str) -> Callable[[Match], Use | None]:
    def use(match: Match) -> Use | None:
        x = match.inputs["x"]
        (tokens, hidden), ffn = x.matrix, match.inputs["gate"].shape[0]
        inputs: dict[str, Array] = {"x": ((tokens, hidden), x.dtype), "down": ((hidden, ffn), x.dtype)}
        inputs |= dict.fromkeys(("gate", "up"), ((ffn, hidden), x.dtype))
        sizes = {"tokens": tokens, "hidden": hidden, "ffn": ffn}
        outputs: list[Array] = [((tokens, hidden), x.dtype)]
        return Use(kernel, sizes, {"dtype": x.dtype}, inputs, outputs, frozenset((x.dtype, "f32")))

    return use


def _moe_int8(output: str) -> Callable[[Match], Use | None]:
    def use(match: Match) -> Use | None:
        a, b, scales = match.inputs["a"], match.inputs["b"], match.inputs["a_scales"]
        (m, k), n = a.matrix, b.shape[0]
        if scales.shape[-1:] != (1,) or not one_per_column(match.inputs["b_scales"]):
            return None  # a scale for each token is broadcast along its row
        inputs: dict[str, Array] = {"a": ((m, k), a.dtype), "b": ((n, k), a.dtype)}
        inputs |= {"a_scales": ((m,), "f32"), "b_scales": ((n,), "f32")}
        outputs: list[Array] = [((m, n), "bf16")] if output == "bf16" else [((m, n), a.dtype), ((m,), "f32")]
        sizes, options = {"m": m, "n": n, "k": k}, {"dtype": a.dtype, "output": output}
        return Use("moe_int8", sizes, options, inputs, outputs, frozenset(("s32", "f32")))

    return use


def _moe_routed(match: Match) -> Use | None:
    x, logits, gate, down = (match.inputs[name] for name in ("x", "logits", "gate", "down"))
    (tokens, hidden), (experts, ffn, _) = x.matrix, gate.shape
    top_k = match.params["k"]
    if logits.matrix != (tokens, experts) or down.shape != (experts, hidden, ffn) or x.shape[:-1] != logits.shape[:-1]:
        return None
    inputs: dict[str, Array] = {"x": ((tokens, hidden), x.dtype), "x_scales": ((tokens,), "f32")}
    inputs |= {"logits": ((tokens, experts), "f32"), "down": ((experts, hidden, ffn), x.dtype)}
    inputs |= dict.fromkeys(("gate", "up"), ((experts, ffn, hidden), x.dtype))
    inputs |= dict.fromkeys(("gate_scales", "up_scales"), ((experts, ffn), "f32"))
    inputs["down_scales"] = ((experts, hidden), "f32")
    outputs: list[Array] = [((tokens, hidden), "bf16")]
    if len(match.results) > 1:
        outputs += [((tokens, top_k), "s32"), ((tokens, top_k), "f32")]
    sizes = {"tokens": tokens, "hidden": hidden, "ffn": ffn, "experts": experts, "top_k": top_k}
    options = {"dtype": x.dtype, "renormalize": match.params.get("renormalize", True)}
    inside = frozenset((x.dtype, "s32", "f32", "bf16"))
    return Use("moe_routed", sizes, options, inputs, outputs, inside, INTERLEAVED)


def _heads(match: Match, name: str) -> tuple[int, ...]:
    """(batch, heads, n, d) of an input; () where it has other axes."""
    shape = match.inputs[name].shape
    return shape if len(shape) == 4 else (1, *shape) if len(shape) == 3 else ()


def _attention_sizes(match: Match) -> tuple[dict[str, int], dict[str, Any], dict[str, Array]] | None:
    """Sizes, options and inputs of q and k that the kernels of attention share; the scale must be 1 / sqrt(d)."""
    q, k = _heads(match, "q"), _heads(match, "k")
    if not q or not k or q[0] != k[0] or q[3] != k[3] or q[1] % k[1]:
        return None
    dtype, (batch, heads, queries, d), keys = match.inputs["q"].dtype, q, k[2]
    scale = match.params.get("scale", 1 / math.sqrt(d))
    if "divisor" in match.params:
        scale = 1 / match.params["divisor"] if match.params["divisor"] else math.inf
    if not math.isclose(scale, 1 / math.sqrt(d), rel_tol=1e-6):
        return None
    sizes = {"batch": batch, "heads": heads, "q": queries, "k": keys, "d": d}
    options: dict[str, Any] = {} if k[1] == heads else {"kv_heads": k[1]}
    inputs: dict[str, Array] = {"q": (q, dtype), "k": (k, dtype)}
    return sizes, options | {"dtype": dtype}, inputs


def _attention(match: Match) -> Use | None:
    found = _attention_sizes(match)
    if found is None:
        return None
    sizes, options, inputs = found
    dtype, (batch, heads, queries, d) = options["dtype"], _heads(match, "q")
    if match.params.get("causal"):
        options = {"causal": True} | options
    inputs["v"] = (_heads(match, "k"), dtype)
    outputs: list[Array] = [((batch, heads, queries, d), dtype)]
    return Use("attention", sizes, options, inputs, outputs, frozenset((dtype, "f32")))


def _attention_scores(match: Match) -> Use | None:
    found = _attention_sizes(match)
    if found is None:
        return None
    sizes, options, inputs = found
    dtype, (batch, heads, queries, _), keys = options["dtype"], _heads(match, "q"), sizes["k"]
    if "mask" in match.inputs:
        mask = match.inputs["mask"].shape
        mask = (1,) * (4 - len(mask)) + mask if len(mask) <= 4 else ()
        shapes = {"shared": (1, 1), "batch": (batch, 1), "heads": (1, heads), "full": (batch, heads)}
        shape = next((name for name, ahead in shapes.items() if mask == (*ahead, queries, keys)), None)
        if shape is None:
            return None
        options = {"mask": "array", "mask_shape": shape} | options
        inputs["mask"] = (mask, dtype)
        # the elements of a mask follow each other, whichever axes of one element it has
        if not match.inputs["mask"].view.contiguous:
            return None
    outputs: list[Array] = [((batch, heads, queries, keys), dtype)]
    return Use("attention_scores", sizes, options, inputs, outputs, frozenset((dtype, "f32")))


def _attention_backward(match: Match) -> Use | None:
    found = _attention_sizes(match)
    if found is None:
        return None
    sizes, options, inputs = found
    dtype, q, k = options["dtype"], _heads(match, "q"), _heads(match, "k")
    if q[1] != k[1] or _heads(match, "lse") != (*q[:3], 1):
        return None
    inputs |= {"v": (k, dtype), "o": (q, dtype), "do": (q, dtype), "lse": ((*q[:3], 1), "f32")}
    outputs: list[Array] = [(q, dtype), (k, dtype), (k, dtype)]
    return Use("attention_backward", sizes, options, inputs, outputs, frozenset((dtype, "f32")))


# Formulas


def _scaled(scores: Op | In) -> list[Op]:
    """Scores, or queries, times 1 / sqrt(d), or divided by sqrt(d)."""
    return [op("multiply", scores, value=Param("scale")), op("divide", scores, value=Param("divisor"))]


def _all_scores() -> Iterator[Op]:
    """q k^T, scaled, with keys as rows or as columns."""
    q, k = In("q"), In("k")
    yield from _scaled(op("matmul", q, k, transpose_b=True))
    yield from _scaled(op("matmul", q, Swapped(k)))


def _of_scaled_queries() -> Iterator[Op]:
    """(scale q) k^T."""
    k = In("k")
    for scaled in _scaled(In("q")):
        yield op("matmul", scaled, k, transpose_b=True)
        yield op("matmul", scaled, Swapped(k))


def _rms_normalized(x: In, gamma: In) -> Iterator[Op]:
    """RMS normalization, written as its parts: in the type of x, or in f32 with x converted once, before both uses or one."""
    wide = op("cast", x)
    for first, second in ((x, x), (wide, wide), (wide, x)):
        inverse = op("rsqrt", op("add", op("mean", op("square", first)), value=Param("eps")))
        normalized = op("multiply", second, inverse)
        yield op("multiply", normalized, gamma)
        yield op("multiply", op("cast", normalized), gamma)


def _with_bias(x: Op | In, bias: In) -> list[Op]:
    """A product with a bias, in one operation or in two."""
    return [op("linear", x, In("w"), bias), op("add", op("linear", x, In("w")), bias)]


def _backward(scaled: Op, scale: str) -> tuple[Op, ...]:
    """dq, dk and dv from the scores, the log-sum-exp of their rows, o and its gradient (arXiv 2205.14135, appendix B)."""
    q, k, v, o, do = map(In, ("q", "k", "v", "o", "do"))
    p = op("exp", op("subtract", scaled, In("lse")))
    delta = op("sum", op("multiply", do, o))
    ds = op("multiply", p, op("subtract", op("matmul", do, v, transpose_b=True), delta))
    last = "multiply" if scale == "scale" else "divide"
    dq, dk = (op(last, product, value=Param(scale)) for product in (op("matmul", ds, k), op("matmul", Swapped(ds), q)))
    return dq, dk, op("matmul", Swapped(p), do)


def _gating() -> Iterator[tuple[Op, Result, Result]]:
    """Top-k gating: the operation that chooses, the experts, and their weights as a column."""
    k, logits = Param("k"), In("logits")
    softmax = op("softmax", logits)
    for one in (
        op("top_k", logits, k=k, renormalize=Param("renormalize")),
        op("top_k", softmax, k=k, scores="none", renormalize=Param("renormalize")),
    ):
        yield one, Result(one, 0), Result(one, 1, column=True)
    one = op("top_k", softmax, k=k, scores="none", renormalize=False)
    chosen = Result(one, 1)
    yield one, Result(one, 0), Result(op("divide", chosen, op("sum", chosen)), 0, column=True)


def _experts(gating: Op, expert: Node, weight: Node) -> Op:
    """Quantized experts with SwiGLU, and the weighted sum of their results, as ``moe_routed`` computes it."""

    def product(name: str, *x: Node) -> Op:
        return op("routed_linear", x[0], In(name), expert, x[1], In(f"{name}_scales"))

    x = In("x"), In("x_scales")
    inner = op("quantize_rows", op("multiply", op("silu", product("gate", *x)), product("up", *x)))
    down = product("down", Result(inner, 0), Result(inner, 1))
    return op("sum", Swapped(op("multiply", down, weight)))


def _kernels() -> Iterator[Kernel]:
    x, y, gate, up, mask, residual, bias = map(In, ("x", "y", "gate", "up", "mask", "residual", "bias"))
    gamma, beta, a, b = map(In, ("gamma", "beta", "a", "b"))
    eps = {"eps": Param("eps")}
    yield Kernel((op("multiply", op("silu", gate), up),), _rows("swiglu", ("gate", "up")))
    for name in ("gelu", "silu", "relu"):
        root = op(name, op("add", x, residual))
        yield Kernel((root,), _flat("add_activation", "x", "residual", activation=name))
    root = op("exp", op("multiply", op("add", x, y), value=2.0))
    yield Kernel((root,), _flat("add_mul_exp", "x", "y", only="f32"))
    root = op("add", op("dropout", op("add", x, bias), p=Param("p")), residual)
    yield Kernel((root,), _rows("bias_dropout_residual", ("x", "residual"), ("bias",)))
    root = op("quantize", x, scale=Param("scale"), zero_point=Param("zero_point"))
    yield Kernel((root,), _flat("quantize_int8", "x", only="f32", out="s8"))

    norm = op("layernorm", x, gamma, beta, **eps)
    for name, root in (("none", norm), ("relu", op("relu", norm)), ("gelu", op("gelu", norm))):
        yield Kernel((root,), _rows("layernorm", ("x",), ("gamma", "beta"), activation=name))
    yield Kernel((op("quantize_rows", norm),), _rows("layernorm_quantize", ("x",), ("gamma", "beta"), quantized=True))
    yield Kernel((op("rmsnorm", x, gamma, **eps),), _rows("rmsnorm", ("x",), ("gamma",)))
    for root in _rms_normalized(x, gamma):
        yield Kernel((root,), _rows("rmsnorm", ("x",), ("gamma",)))
    yield Kernel((op("l2norm", x, **eps),), _rows("fused_l2norm", ("x",), only="f32"))
    yield Kernel((op("softmax", x),), _rows("softmax", ("x",)))
    yield Kernel((op("dropout", op("softmax", x), p=Param("p")),), _rows("softmax", ("x",)))
    root = op("softmax", op("add", op("multiply", x, value=Param("scale")), mask))
    yield Kernel((root,), _rows("scale_mask_softmax", ("x", "mask")))

    for biased in _with_bias(x, bias):
        root = op("gelu", op("layernorm", biased, gamma, beta, **eps))
        yield Kernel((root,), _layer("linear_layernorm_gelu", "bias", "gamma", "beta"))
    for biased in _with_bias(norm, bias):
        yield Kernel((op("add", residual, op("gelu", biased)),), _layer("ffn_sublayer", "bias"))
    yield Kernel((op("linear", a, b, sparse=True),), _sparse_product)
    for name, sparse in (("swiglu_ffn", False), ("sparse_swiglu_ffn", True)):
        gated = op("multiply", op("silu", op("linear", x, gate, sparse=sparse)), op("linear", x, up, sparse=sparse))
        yield Kernel((op("linear", gated, In("down"), sparse=sparse),), _gated_ffn(name))
    first, second = In("a_scales"), In("b_scales")
    for one, other in ((first, second), (second, first)):
        product = op("multiply", op("multiply", op("linear", a, b), one), other)
        yield Kernel((product,), _moe_int8("bf16"))
        yield Kernel((op("quantize_rows", product),), _moe_int8("token"))

    for gating, expert, weight in _gating():
        combined = _experts(gating, expert, weight)
        yield Kernel((combined,), _moe_routed)
        if weight.of is gating:  # the kernel writes the weights that are used
            yield Kernel((combined, gating), _moe_routed)

    for root, use in product_kernels.formulas():
        yield Kernel((root,), use)

    yield Kernel((op("attention", In("q"), In("k"), In("v"), causal=Param("causal")),), _attention)
    for scores in (*_all_scores(), *_of_scaled_queries()):
        yield Kernel((op("matmul", op("softmax", scores), In("v")),), _attention)
        yield Kernel((op("softmax", scores),), _attention_scores)
        yield Kernel((op("softmax", op("add", scores, mask)),), _attention_scores)
    for scores in _all_scores():
        scale = "scale" if scores.kind == "multiply" else "divisor"
        yield Kernel(_backward(scores, scale), _attention_backward)


KERNELS: tuple[Kernel, ...] = tuple(_kernels())
"""The formulas of the bundled kernels."""
