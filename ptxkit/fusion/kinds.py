"""The kinds of operations: shapes of their results, flops, and bytes that they read.

====================  =============================================================================================
``elementwise``       each element of the result depends on one element of each input, which may be broadcast
``row``               an element of the result depends on a whole row (the last axis) of the first input
``contraction``       a matrix product, on tensor cores where the type has them
``attention``         softmax(q k^T / sqrt(d)) v in one launch
``movement``          copies without arithmetic
``view``              other shapes of the same memory, without a launch
``other``             an operation of which only the shapes are known; it is fused with nothing
====================  =============================================================================================

Flops are counted as by the bundled kernels: an exponential, a reciprocal or a root is one, a multiply-add two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ptxkit.errors import UsageError
from ptxkit.expression.operations import OPERATIONS, REDUCTIONS
from ptxkit.fusion import captured_kinds, routed
from ptxkit.fusion.attributes import Attributes, boolean, dtype_of, finite, number
from ptxkit.fusion.tensors import Shaped, Tensor, broadcast, is_float, promoted
from ptxkit.workload.blame import short
from ptxkit.workload.workload import suggestion

Family = Literal["elementwise", "row", "contraction", "attention", "movement", "view", "other"]
GELUS = ("tanh", "none")  # the formula with tanh, and the exact function with erf


@dataclass(frozen=True)
class Kind:
    """The rules of a kind of operation.

    Attributes:
        family: see the module.
        operands: the least and the largest number of inputs.
        results: (inputs, attributes) -> shape and dtype of each result. Raises UsageError.
        count: (inputs, outputs, attributes) -> flops.
        attributes: name of each attribute -> what it is.
        reads: (index of the input, inputs, outputs, attributes) -> bytes; None: the whole input.
        summary: one line for the documentation.
    """

    family: Family
    operands: tuple[int, int]
    results: Callable[[Sequence[Tensor], Attributes], list[Shaped]]
    count: Callable[[Sequence[Tensor], Sequence[Tensor], Attributes], float]
    attributes: Mapping[str, str] = field(default_factory=dict)
    reads: Callable[[int, Sequence[Tensor], Sequence[Tensor], Attributes], float] | None = None
    summary: str = ""

    def check(self, inputs: int, attributes: Attributes) -> None:
        """Raise UsageError for a wrong number of inputs and for unknown attributes."""
        least, most = self.operands
        if not least <= inputs <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise UsageError(f"takes {wanted} input{'s' if most > 1 else ''}, not {inputs}")
        for name in attributes:
            if name not in self.attributes:
                raise UsageError(f"has no attribute {name!r}; {suggestion(name, self.attributes)}")

    def flops(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: Attributes) -> float:
        """Flops of an operation."""
        return self.count(inputs, outputs, attributes)

    def read(self, i: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: Attributes) -> float:
        """Bytes of input ``i`` that an operation reads."""
        return self.reads(i, inputs, outputs, attributes) if self.reads else inputs[i].bytes


WHOLE_NUMBERS = {
    *(
        "add",
        "subtract",
        "multiply",
        "minimum",
        "maximum",
        "where",
        "abs",
        "negative",
        "square",
        "relu",
        "power",
        "fma",
    ),
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    *("cast", "clamp", "round", "dropout", "quantize"),
}
"""Element-wise kinds whose results of integers are integers; those of others are f32."""


def _elementwise(
    kind: str,
    flops: float,
    operands: tuple[int, int],
    summary: str,
    dtype: str = "",
    attributes: Mapping[str, str] | None = None,
    ranges: Mapping[str, tuple[Callable[[float], bool], str]] | None = None,
) -> Kind:
    """An element-wise kind. The type of its result is ``dtype``, else that to which its inputs are promoted. ``attributes`` are
    numbers, of which ``ranges`` says which ones are valid, by a function and in words."""

    def results(inputs: Sequence[Tensor], given: Attributes) -> list[Shaped]:
        if len(inputs) < operands[1] and "value" not in given and operands != (1, 1):
            raise UsageError(f"takes {operands[1]} inputs, or {len(inputs)} and the attribute 'value'")
        if "value" in given and len(inputs) == operands[1]:
            raise UsageError(f"takes {operands[1]} inputs, or the attribute 'value' in place of the last one, not both")
        if "value" in given:
            finite(given, "value")
        for name in attributes or {}:
            if name in given:
                valid, words = (ranges or {}).get(name, (lambda _: True, ""))
                if not valid(finite(given, name)):
                    raise UsageError(f"the attribute {name!r} must be a number {words}, not {short(given[name])}")
        # the condition of `where` selects elements, and has no part in the type of the result
        operand_types = [tensor.dtype for tensor in (inputs[1:] if kind == "where" else inputs)]
        found = promoted(operand_types)
        if not is_float(found) and (kind not in WHOLE_NUMBERS or isinstance(given.get("value"), float)):
            found = "f32"
        return [(broadcast(inputs), dtype_of(given, dtype or found))]

    names = {"dtype": "the type of the result"} | dict(attributes or {})
    if operands[0] < operands[1]:
        names["value"] = "the number that takes the place of the last input"
    return Kind(
        "elementwise", operands, results, lambda _, outputs, __: flops * outputs[0].elements, names, None, summary
    )


def _rows(flops: float, operands: tuple[int, int], summary: str, eps: float | None = None) -> Kind:
    """A kind whose result has the shape of its first input; the other inputs are broadcast to it."""

    def results(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
        _check_row(inputs)
        if "eps" in attributes and finite(attributes, "eps") < 0:
            raise UsageError(f"the attribute 'eps' must be a number from 0, not {attributes['eps']!r}")
        if broadcast(inputs) != inputs[0].shape:
            raise UsageError(f"the first input has the shape {list(inputs[0].shape)}; the others must fit into it")
        return [(inputs[0].shape, dtype_of(attributes, inputs[0].dtype))]

    names = {"dtype": "the type of the result"}
    if eps is not None:
        names["eps"] = f"what is added under the root, {eps:g} by default"
    return Kind("row", operands, results, lambda inputs, _, __: flops * inputs[0].elements, names, None, summary)


def _reduction(flops: float, summary: str, operands: tuple[int, int] = (1, 1)) -> Kind:
    """A kind with one result for each row."""

    def results(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
        _check_row(inputs)
        if len(inputs) > 1 and inputs[1].shape not in ((*inputs[0].shape[:-1], 1), inputs[0].shape[:-1]):
            raise UsageError(f"the means must be {[*inputs[0].shape[:-1], 1]}, not {list(inputs[1].shape)}")
        return [((*inputs[0].shape[:-1], 1), dtype_of(attributes, inputs[0].dtype))]

    names = {"dtype": "the type of the result"}
    return Kind("row", operands, results, lambda inputs, _, __: flops * inputs[0].elements, names, None, summary)


def _check_row(inputs: Sequence[Tensor]) -> None:
    if not inputs[0].shape:
        raise UsageError("the first input has no axis along which a row could lie")


def _quantized_rows(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    _check_row(inputs)
    return [(inputs[0].shape, dtype_of(attributes, "s8")), ((*inputs[0].shape[:-1], 1), "f32")]


def _column_sum(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    _check_row(inputs)
    return [((inputs[0].shape[-1],), dtype_of(attributes, inputs[0].dtype))]


def _product(inputs: Sequence[Tensor], attributes: Attributes) -> tuple[tuple[int, ...], int, int, int]:
    """Batch axes, m, n and k of a matmul."""
    a, b = inputs[:2]
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise UsageError("both inputs of a matmul need two axes or more")
    m, k = a.shape[-2:]
    rows, n = b.shape[-2:]
    if boolean(attributes, "transpose_b"):
        rows, n = n, rows
    if rows != k:
        raise UsageError(f"the inner sizes differ: {k} of {list(a.shape)} and {rows} of {list(b.shape)}")
    batch = broadcast([Tensor("a", a.shape[:-2], a.dtype), Tensor("b", b.shape[:-2], b.dtype)])
    return batch, m, n, k


def _matmul(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    batch, m, n, _ = _product(inputs, attributes)
    return [((*batch, m, n), dtype_of(attributes, promoted([tensor.dtype for tensor in inputs])))]


def _matmul_flops(inputs: Sequence[Tensor], _: Sequence[Tensor], attributes: Attributes) -> float:
    batch, m, n, k = _product(inputs, attributes)
    return 2.0 * math.prod(batch) * m * n * k


def _linear(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    x, w = inputs[:2]
    if len(x.shape) < 1 or len(w.shape) != 2 or x.shape[-1] != w.shape[1]:
        raise UsageError(f"x {list(x.shape)} needs weights (n, {x.shape[-1] if x.shape else 'k'}), not {list(w.shape)}")
    if len(inputs) > 2 and inputs[2].shape != (w.shape[0],):
        raise UsageError(f"the bias must have the shape [{w.shape[0]}], not {list(inputs[2].shape)}")
    if boolean(attributes, "sparse") and w.shape[1] % 4:
        raise UsageError(f"the rows of 2:4 sparse weights need a multiple of 4 elements, not {w.shape[1]}")
    return [((*x.shape[:-1], w.shape[0]), dtype_of(attributes, promoted([x.dtype, w.dtype])))]


def _linear_flops(inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: Attributes) -> float:
    terms = inputs[1].shape[1] // (2 if attributes.get("sparse") else 1)
    return (2.0 * terms + (len(inputs) > 2)) * outputs[0].elements


def _linear_read(i: int, inputs: Sequence[Tensor], _: Sequence[Tensor], attributes: Attributes) -> float:
    """Of 2:4 sparse weights a half of the elements is stored, and two bits for the place of each."""
    tensor = inputs[i]
    if i != 1 or not attributes.get("sparse"):
        return tensor.bytes
    return tensor.bytes / 2 + tensor.elements / 2 * 2 / 8


def _grouped(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    x, w = inputs[:2]
    if len(x.shape) != 2 or len(w.shape) != 3 or x.shape[1] != w.shape[2]:
        raise UsageError(f"rows {list(x.shape)} need weights (experts, n, k) of the same k, not {list(w.shape)}")
    hit = number(attributes, "experts", w.shape[0])
    if hit > w.shape[0]:
        raise UsageError(f"experts is {hit}, but the weights have {w.shape[0]}")
    return [((x.shape[0], w.shape[1]), dtype_of(attributes, promoted([x.dtype, w.dtype])))]


def _grouped_read(i: int, inputs: Sequence[Tensor], _: Sequence[Tensor], attributes: Attributes) -> float:
    if i != 1:
        return inputs[i].bytes
    experts = inputs[1].shape[0]
    hit = min(number(attributes, "experts", experts), inputs[0].shape[0])
    return inputs[1].bytes * hit / experts


def _attention(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    q, k, v = inputs[:3]
    shapes = f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}"
    if len({len(q.shape), len(k.shape), len(v.shape)}) != 1 or len(q.shape) not in (3, 4):
        raise UsageError(f"{shapes} must all be (batch, heads, length, d) or (heads, length, d)")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        raise UsageError(f"{shapes} do not fit: k needs the d of q, v the heads and the length of k")
    if q.shape[-3] % k.shape[-3]:
        raise UsageError(f"the {k.shape[-3]} heads of k and v must divide the {q.shape[-3]} heads of q")
    boolean(attributes, "causal")
    if attributes.get("scale") is not None:
        finite(attributes, "scale")
    if len(inputs) > 3:
        scores = Tensor("scores", (*q.shape[:-1], k.shape[-2]), "f32")
        if broadcast([scores, inputs[3]]) != scores.shape:
            raise UsageError(f"the mask {list(inputs[3].shape)} does not fit the scores {list(scores.shape)}")
    return [((*q.shape[:-1], v.shape[-1]), dtype_of(attributes, promoted([q.dtype, k.dtype, v.dtype])))]


def _attention_flops(inputs: Sequence[Tensor], _: Sequence[Tensor], attributes: Attributes) -> float:
    q, k, v = inputs[:3]
    pairs = math.prod(q.shape[:-1]) * k.shape[-2]
    return (2.0 * (q.shape[-1] + v.shape[-1]) + 5) * pairs / (2 if attributes.get("causal") else 1)


def _parts(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    x = inputs[0]
    axis = attributes.get("axis", -1)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(x.shape) <= axis < len(x.shape):
        raise UsageError(f"axis {short(axis)} is none of {list(x.shape)}")
    sizes = attributes.get("sizes")
    if sizes is None:
        parts = number(attributes, "parts", 2)
        if x.shape[axis] % parts:
            raise UsageError(f"{parts} parts do not divide the {x.shape[axis]} elements of axis {axis}")
        sizes = [x.shape[axis] // parts] * parts
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not all(type(s) is int and s > 0 for s in sizes):
        raise UsageError(f"sizes must be a list of positive numbers, not {short(sizes)}")
    if sum(sizes) != x.shape[axis]:
        raise UsageError(f"the sizes add up to {sum(sizes)}, but axis {axis} has {x.shape[axis]} elements")
    place = axis % len(x.shape)
    return [((*x.shape[:place], size, *x.shape[place + 1 :]), x.dtype) for size in sizes]


def _concatenated(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    axis = attributes.get("axis", -1)
    first = inputs[0].shape
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(first) <= axis < len(first):
        raise UsageError(f"axis {short(axis)} is none of {list(first)}")
    place = axis % len(first)
    rests = {(*t.shape[:place], *t.shape[place + 1 :]) for t in inputs if len(t.shape) == len(first)}
    if len(rests) != 1 or any(len(t.shape) != len(first) for t in inputs):
        raise UsageError("the inputs may differ along the axis only")
    return [
        (
            (*first[:place], sum(t.shape[place] for t in inputs), *first[place + 1 :]),
            promoted([t.dtype for t in inputs]),
        )
    ]


def permutation(rank: int, attributes: Attributes) -> list[int]:
    """The axes of the input in the order of the result; by default reversed. Raises UsageError if they are none."""
    axes = attributes.get("axes", list(reversed(range(rank))))
    if (
        isinstance(axes, str)
        or not isinstance(axes, Sequence)
        or not all(type(axis) is int for axis in axes)
        or sorted(axes) != list(range(rank))
    ):
        raise UsageError(f"axes must be a permutation of {list(range(rank))}, not {short(axes)}")
    return list(axes)


def _permuted(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    shape = inputs[0].shape
    return [(tuple(shape[a] for a in permutation(len(shape), attributes)), inputs[0].dtype)]


def _reshaped(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    shape = attributes.get("shape")
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise UsageError("needs the attribute 'shape', a list of numbers")
    result = Tensor.checked("the result", list(shape), inputs[0].dtype)
    if result.elements != inputs[0].elements:
        raise UsageError(f"{list(inputs[0].shape)} has other than the {result.elements} elements of {list(shape)}")
    return [(result.shape, inputs[0].dtype)]


def _polynomial(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    number(attributes, "multiply_adds", 1)
    return [(inputs[0].shape, dtype_of(attributes, inputs[0].dtype))]


def _gathered(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    table, indices = inputs
    if not table.shape:
        raise UsageError("the table needs an axis")
    return [((*indices.shape, *table.shape[1:]), table.dtype)]


def _gathered_read(i: int, inputs: Sequence[Tensor], outputs: Sequence[Tensor], _: Attributes) -> float:
    return inputs[1].bytes if i else min(outputs[0].bytes, inputs[0].bytes)


def _no_flops(*_: Any) -> float:
    return 0.0


def _formula_kinds() -> Iterator[tuple[str, Kind]]:
    """The kinds of the formulas of ``ptxkit new --expression``."""
    for operation in OPERATIONS.values():
        most = operation.operands
        summary = f"`{operation.numpy.format('x', 'y', 'z')}`" if "activation(" not in operation.numpy else ""
        yield (
            operation.word,
            _elementwise(
                operation.word, operation.flops, (max(1, most - 1), most), summary or f"the activation {operation.word}"
            ),
        )
    for name, reduction in REDUCTIONS.items():
        yield name, _reduction(reduction.flops, f"{name} of each row")


def _gelu() -> Kind:
    """The activation gelu, by either of its formulas."""
    kind = _elementwise("gelu", OPERATIONS["gelu"].flops, (1, 1), "the activation gelu")

    def results(inputs: Sequence[Tensor], given: Attributes) -> list[Shaped]:
        if given.get("approximate", "tanh") not in GELUS:
            raise UsageError(f"approximate must be one of {', '.join(GELUS)}, not {short(given['approximate'])}")
        return kind.results(inputs, given)

    formula = {"approximate": "`tanh`, or `none` for the exact function"}
    return replace(kind, results=results, attributes={**kind.attributes, **formula})


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "layernorm": {"eps": 1e-5},
    "rmsnorm": {"eps": 1e-6},
    "l2norm": {"eps": 1e-12},
    "dropout": {"p": 0.1},
    "quantize": {"zero_point": 0},
    "linear": {"sparse": False},
    "matmul": {"transpose_b": False},
    "attention": {"causal": False, "scale": None},
    "gelu": {"approximate": "tanh"},
    "top_k": {"scores": "softmax", "renormalize": True},
}
"""Kind -> attributes that it has where none are given."""
LAYOUT = {"axes": "the order of the axes"}
PARTS = {"axis": "the axis", "parts": "the number of equal parts", "sizes": "the sizes of the parts"}
PRODUCT = {"dtype": "the type of the result"}

KINDS: dict[str, Kind] = {
    **dict(_formula_kinds()),
    "gelu": _gelu(),
    "pointwise": Kind(
        "elementwise",
        (1, captured_kinds.MOST_INPUTS),
        captured_kinds.pointwise,
        lambda _, outputs, __: float(outputs[0].elements),
        {"dtype": "the type of the result", "function": "its name"},
        None,
        "another function of elements, counted as one flop for each",
    ),
    "cast": _elementwise("cast", 1, (1, 1), "conversion to `dtype`"),
    "clamp": _elementwise("clamp", 2, (1, 1), "limits to a range"),
    "round": _elementwise("round", 1, (1, 1), "rounds to an integer"),
    "power": _elementwise("power", 2, (1, 2), "`x ** y`"),
    "fma": _elementwise("fma", 2, (1, 3), "`x * y + z`"),
    "polynomial": Kind(
        "elementwise",
        (1, 1),
        _polynomial,
        lambda inputs, _, attributes: 2.0 * number(attributes, "multiply_adds", 1) * inputs[0].elements,
        {"dtype": "the type of the result", "multiply_adds": "how many for each element"},
        None,
        "a number of dependent multiply-adds",
    ),
    "dropout": _elementwise(
        "dropout",
        2,
        (1, 1),
        "zero with the probability `p`, else scaled; random numbers are not counted",
        attributes={"p": f"the probability, {DEFAULTS['dropout']['p']} by default"},
        ranges={"p": (lambda p: 0 <= p <= 1, "from 0 to 1")},
    ),
    "rope": _elementwise("rope", 3, (3, 3), "rotary position embedding of x by cosines and sines"),
    "quantize": _elementwise(
        "quantize",
        4,
        (1, 1),
        "divided by `scale`, plus `zero_point`, rounded and limited to int8",
        dtype="s8",
        attributes={"scale": "the size of a step", "zero_point": "what is added before rounding, 0 by default"},
        ranges={"scale": (lambda scale: scale > 0, "above 0")},
    ),
    "layernorm": _rows(
        7, (1, 3), "layer normalization of x with optional weight and bias", DEFAULTS["layernorm"]["eps"]
    ),
    "rmsnorm": _rows(4, (1, 2), "RMS normalization of x with an optional weight", DEFAULTS["rmsnorm"]["eps"]),
    "l2norm": _rows(3, (1, 1), "rows divided by their norm", DEFAULTS["l2norm"]["eps"]),
    "softmax": _rows(5, (1, 1), "softmax of rows"),
    "variance": _reduction(3, "variance of each row, of x and the means", (1, 2)),
    "top_k": Kind(
        "row",
        (1, 1),
        routed.chosen,
        lambda inputs, _, __: 5.0 * inputs[0].elements,
        {
            "k": "how many",
            "scores": "`softmax`, `sigmoid` or `none`: what is computed of the elements",
            "renormalize": "whether the chosen scores are divided by their sum",
            "indices": "the type of the positions, s32 by default, or s64",
            "dtype": "the type of the scores, f32 by default",
        },
        None,
        "gating: the positions of the `k` largest elements of each row, in descending order, and their scores",
    ),
    "column_sum": Kind(
        "row",
        (1, 1),
        _column_sum,
        lambda inputs, _, __: float(inputs[0].elements),
        {"dtype": "the type of the result"},
        None,
        "the sum of all rows",
    ),
    "quantize_rows": Kind(
        "row",
        (1, 1),
        _quantized_rows,
        lambda inputs, _, __: 5.0 * inputs[0].elements,
        {"dtype": "the type of the result"},
        None,
        "int8 (or `dtype`) with a scale for each row, which is the second result",
    ),
    "matmul": Kind(
        "contraction",
        (2, 2),
        _matmul,
        _matmul_flops,
        {**PRODUCT, "transpose_b": "whether b is (n, k) instead of (k, n)"},
        None,
        "a (..., m, k) times b (..., k, n)",
    ),
    "linear": Kind(
        "contraction",
        (2, 3),
        _linear,
        _linear_flops,
        {**PRODUCT, "sparse": "whether w is 2:4 sparse and stored compressed"},
        _linear_read,
        "x (..., k) times w (n, k) transposed, plus bias (n)",
    ),
    "grouped_linear": Kind(
        "contraction",
        (2, 2),
        _grouped,
        lambda inputs, outputs, _: 2.0 * inputs[0].shape[1] * outputs[0].elements,
        {**PRODUCT, "experts": "how many experts have rows"},
        _grouped_read,
        "rows (m, k), sorted by expert, times the weights (experts, n, k) of their experts",
    ),
    "routed_linear": Kind(
        "contraction",
        (3, 5),
        routed.products,
        routed.flops,
        {**PRODUCT, "experts": "how many experts have rows"},
        routed.read,
        "x (..., k), or (..., choices, k), times the weights (experts, n, k) of the experts (..., choices) of each token; with "
        "the scales (..., 1) of quantized rows of x, and (experts, n) of the weights",
    ),
    "attention": Kind(
        "attention",
        (3, 4),
        _attention,
        _attention_flops,
        {
            **PRODUCT,
            "causal": "whether a query sees earlier keys only",
            "scale": "what the scores are multiplied by, 1 / sqrt(d) by default",
        },
        None,
        "softmax(q k^T / sqrt(d) + mask) v of q (batch, heads, n, d), k and v (batch, kv_heads, m, d); "
        "mask is optional, and may be boolean: scores where it is false are left out",
    ),
    "split": Kind("movement", (1, 1), _parts, _no_flops, PARTS, None, "copies of the parts of x"),
    "concat": Kind(
        "movement", (2, 64), _concatenated, _no_flops, {"axis": "the axis"}, None, "the inputs, one after the other"
    ),
    "transpose": Kind("movement", (1, 1), _permuted, _no_flops, LAYOUT, None, "a copy with other axes"),
    "copy": Kind("movement", (1, 1), lambda i, a: [(i[0].shape, i[0].dtype)], _no_flops, {}, None, "a copy"),
    "gather": Kind(
        "movement", (2, 2), _gathered, _no_flops, {}, _gathered_read, "rows of a table, such as embeddings, by indices"
    ),
    "reshape": Kind(
        "view", (1, 1), _reshaped, _no_flops, {"shape": "the new shape"}, None, "the same memory with another shape"
    ),
    "permute": Kind("view", (1, 1), _permuted, _no_flops, LAYOUT, None, "the same memory with other axes"),
    "chunk": Kind("view", (1, 1), _parts, _no_flops, PARTS, None, "parts of x without copies"),
    "expand": Kind(
        "view",
        (1, 1),
        captured_kinds.expanded,
        _no_flops,
        {"shape": "the new shape"},
        None,
        "the same memory with elements repeated along axes",
    ),
    "strided": Kind(
        "view",
        (1, 1),
        captured_kinds.strided,
        _no_flops,
        {
            "shape": "the new shape",
            "strides": "for each axis the distance of its elements, in elements of x; without them, the order is not known",
            "offset": "the first element, 0 by default",
            "dtype": "the type as which the memory is read, that of x by default",
        },
        None,
        "the elements of x at an offset and at strides in its row-major order, such as every second one",
    ),
    "other": Kind(
        "other",
        (1, captured_kinds.MOST_INPUTS),
        captured_kinds.unknown,
        _no_flops,
        {"shapes": "the shape of each result", "dtypes": "their types", "what": "its name"},
        None,
        "an operation of which only the shapes are known: its bytes are counted, no flops",
    ),
}
"""Name of the kind -> its rules."""
