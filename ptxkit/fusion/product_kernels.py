"""The formulas of the bundled matrix products with epilogues, and of products that share their rows.

Every formula has several kernels: they are in the order of their speed, and the first that the GPU's target has is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import Operation
from ptxkit.fusion.kinds import DEFAULTS
from ptxkit.fusion.patterns import HINTS, Bound, In, Match, Op, Swapped, op
from ptxkit.fusion.use import Array, Use

HALVES = ("bf16", "f16")
BYTES = ("e4m3", "s8")
ACTIVATIONS = ("none", "relu", "gelu", "silu")
SCALES = {"none": (), "rows": ("row_scales",), "columns": ("column_scales",), "rows_columns": ("row_scales", "column_scales")}
ALTERNATING = "with rows of gate and up alternating in one array"

Formula = tuple[Op, Callable[[Match], "Use | None"]]


def formulas() -> Iterator[Formula]:
    """The formulas of products with more than the product, with the uses of kernels that compute them."""
    for scale, bias, activation, residual in product(SCALES, (False, True), ACTIVATIONS, (False, True)):
        if (scale, bias, activation, residual) == ("none", False, "none", False):
            continue
        plain = scale == "none" and not residual
        for root, layout in _roots(scale, bias, activation, residual):
            if plain and activation in ("none", "gelu") and bias:
                epilogue = "bias" if activation == "none" else "bias_gelu"
                yield root, _matmul("matmul_wgmma", layout, epilogue, layouts=True)
            yield root, _fused(layout, scale, bias, activation, residual)
            if plain and activation == "gelu" and bias and layout == "tn":
                yield root, _matmul("matmul_tcgen05", layout, "bias_gelu")
                yield root, _matmul("matmul_mma", layout, "bias_gelu")
    x, gate, up = In("x"), In("gate"), In("up")
    yield op("multiply", op("silu", op("linear", x, gate)), op("linear", x, up)), _gate


def _roots(scale: str, bias: bool, activation: str, residual: bool) -> Iterator[tuple[Op, str]]:
    """The ways to write a product with an epilogue, with the layout of the kernel."""
    a, b, added = In("a"), In("b"), In("bias")
    products: list[tuple[Op, str]] = [
        (op("linear", a, b), "tn"),
        (op("linear", a, Swapped(b)), "tt"),
        (op("matmul", a, b), "tt"),
        (op("matmul", a, b, transpose_b=True), "tn"),
        (op("matmul", a, Swapped(b)), "tn"),
    ]
    orders = [SCALES[scale], SCALES[scale][::-1]] if scale == "rows_columns" else [SCALES[scale]]
    for (found, layout), order in product(products, orders):
        scaled: Op = found
        for name in order:
            scaled = op("multiply", scaled, In(name))
        biased = [op("add", scaled, added)] if bias else [scaled]
        if bias and not order and found.kind == "linear":
            biased.append(op("linear", a, b if layout == "tn" else Swapped(b), added))
        for last in biased:
            root = last if activation == "none" else op(activation, last)
            yield (op("add", root, In("residual")) if residual else root), layout


def _sizes(match: Match, layout: str) -> dict[str, int] | None:
    """m, n and k; None where b is no matrix."""
    a, b = match.inputs["a"], match.inputs["b"]
    if len(b.shape) != 2:
        return None
    (m, k), n = a.matrix, b.shape[0] if layout == "tn" else b.shape[1]
    return {"m": m, "n": n, "k": k}


def _operands(sizes: dict[str, int], layout: str, dtype: str) -> dict[str, Array]:
    m, n, k = sizes.values()
    return {"a": ((m, k), dtype), "b": ((n, k) if layout == "tn" else (k, n), dtype)}


def one_per_column(bound: Bound) -> bool:
    """Whether a tensor has one element for each column."""
    return bound.elements == bound.matrix[1]


def _matmul(kernel: str, layout: str, epilogue: str, layouts: bool = False) -> Callable[[Match], Use | None]:
    """A kernel of 16-bit products with an epilogue of its own; ``layouts``: whether it has that option."""

    def use(match: Match) -> Use | None:
        dtype, sizes = match.inputs["a"].dtype, _sizes(match, layout)
        if sizes is None or dtype not in HALVES or not one_per_column(match.inputs["bias"]):
            return None
        inputs = _operands(sizes, layout, dtype) | {"bias": ((sizes["n"],), dtype)}
        options = {"epilogue": epilogue, "dtype": dtype} | ({"layout": layout} if layouts else {})
        outputs: list[Array] = [((sizes["m"], sizes["n"]), dtype)]
        return Use(kernel, sizes, options, inputs, outputs, frozenset((dtype, "f32")))

    return use


def _fused(layout: str, scale: str, bias: bool, activation: str, residual: bool) -> Callable[[Match], Use | None]:
    """``matmul_fused``."""

    def use(match: Match) -> Use | None:
        dtype, sizes = match.inputs["a"].dtype, _sizes(match, layout)
        if sizes is None or dtype not in HALVES + BYTES:
            return None
        m, n = sizes["m"], sizes["n"]
        out = dtype if dtype in HALVES else "bf16"
        inputs = _operands(sizes, layout, dtype)
        if bias:
            inputs["bias"] = ((n,), out)
        if residual:
            inputs["residual"] = ((m, n), out)
        if "row_scales" in SCALES[scale]:
            if match.inputs["row_scales"].shape[-1:] != (1,):
                return None  # a scale for each row is broadcast along it
            inputs["row_scales"] = ((m,), "f32")
        if "column_scales" in SCALES[scale]:
            inputs["column_scales"] = ((n,), "f32")
        across = [name for name in ("bias", "column_scales") if name in inputs]
        if not all(one_per_column(match.inputs[name]) for name in across):
            return None
        options = {"dtype": dtype, "layout": layout, "scale": scale, "bias": bias, "activation": activation}
        inside = frozenset((out, "f32", "s32"))
        outputs: list[Array] = [((m, n), out)]
        return Use("matmul_fused", sizes, options | {"residual": residual}, inputs, outputs, inside)

    return use


def _gate(match: Match) -> Use | None:
    """silu(x gate^T) (x up^T): one product, whose columns alternate between gate and up."""
    x = match.inputs["x"]
    (m, k), n, dtype = x.matrix, match.inputs["gate"].shape[0], x.dtype
    if dtype not in HALVES:
        return None
    inputs: dict[str, Array] = {"x": ((m, k), dtype), "gate": ((n, k), dtype), "up": ((n, k), dtype)}
    sizes, options = {"m": m, "n": 2 * n, "k": k}, {"dtype": dtype, "activation": "silu_mul"}
    outputs: list[Array] = [((m, n), dtype)]
    return Use("matmul_fused", sizes, options, inputs, outputs, frozenset((dtype, "f32")), ALTERNATING)


# Products that share their rows


def side_by_side(group: Group) -> Use | None:
    """Linear layers of the same rows, all with a bias or none with one, as one product with their weights below each other."""
    layers = _layers(group)
    if len(layers) < 2:
        return None
    graph = group.graph
    rows = {product.inputs[0] for product, _ in layers}
    biased = {len(bias) for _, bias in layers}
    weights = [graph.layouts[product.inputs[1]] for product, _ in layers]
    if len(rows) != 1 or len(biased) != 1 or any(view is None or not view.contiguous for view in weights):
        return None
    (x,) = rows
    view, tensor = graph.layouts[x], graph.tensors[x]
    if view is None or not view.contiguous or tensor.dtype not in HALVES or len(set(weights)) != len(weights):
        return None
    (m, k), dtype = Bound(view, tensor.shape, tensor.dtype).matrix, tensor.dtype
    inputs = [name for product, bias in layers for name in (product.inputs[1], *bias)]
    if any(graph.tensors[name].dtype != dtype for name in (*inputs, *group.writes())):
        return None
    widths = [graph.shape(product.inputs[1])[0] for product, _ in layers]
    for width, (_, bias) in zip(widths, layers, strict=True):
        if any(graph.tensors[name].elements != width or graph.shape(name)[-1] != width for name in bias):
            return None  # one value for each row is no bias, either
    n = sum(widths)
    has_bias = biased == {1}
    names = ", ".join(product.name for product, _ in layers)
    what = "weights and biases" if has_bias else "weights"
    note = f"with the {what} of {names} after each other in one array, and their results side by side in the rows of another"
    options = {"epilogue": "bias" if has_bias else "none", "dtype": dtype}
    return Use("matmul_wgmma", {"m": m, "n": n, "k": k}, options, {}, [], note=note)


def _layers(group: Group) -> Sequence[tuple[Operation, tuple[str, ...]]]:
    """The linear layers of a group with the names of their biases; none if it has other operations or results."""
    graph, written = group.graph, set(group.writes())
    layers: list[tuple[Operation, tuple[str, ...]]] = []
    others = {operation.name for operation in group.operations}
    for found in group.operations:
        if found.kind != "linear" or not _plain(found):
            continue
        others.discard(found.name)
        last, bias = found, found.inputs[2:]
        readers = [o for o in group.operations if found.outputs[0] in map(graph.memory, o.inputs)]
        if not bias and len(readers) == 1 and readers[0].kind == "add" and len(readers[0].inputs) == 2:
            last = readers[0]
            others.discard(last.name)
            bias = tuple(name for name in last.inputs if graph.memory(name) != found.outputs[0])
            if len(bias) != 1 or graph.shape(last.outputs[0]) != graph.shape(found.outputs[0]):
                return ()
        if last.outputs[0] not in written:
            return ()
        layers.append((found, bias))
    return () if others or len(layers) != len(written) else layers


def _plain(operation: Operation) -> bool:
    """Whether the attributes of a linear layer are the defaults."""
    has = {name: value for name, value in operation.attributes.items() if name not in HINTS}
    return {**DEFAULTS["linear"], **has} == DEFAULTS["linear"]
