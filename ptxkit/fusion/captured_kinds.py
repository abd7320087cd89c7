"""Kinds for what capturing a torch module finds beside the formulas: element-wise functions without one, views with repeated
elements or any strides, and operations of which only the shapes are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.fusion.attributes import Attributes, dtype_of
from ptxkit.fusion.tensors import BITS, MOST, Shaped, Tensor, broadcast, promoted
from ptxkit.workload.blame import short

MOST_INPUTS = 64


def expanded(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    """The result of ``expand``: numpy's ``broadcast_to``."""
    x = inputs[0]
    wanted = _extents(attributes, "shape")
    padded = (1,) * (len(wanted) - len(x.shape)) + x.shape
    if len(padded) != len(wanted) or any(have not in (1, want) for have, want in zip(padded, wanted, strict=False)):
        raise UsageError(f"{list(x.shape)} cannot be expanded to {list(wanted)}")
    return [(wanted, x.dtype)]


def strided(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    """The result of ``strided``: elements of the input at some strides, or in an order that is not stated."""
    x, shape = inputs[0], _extents(attributes, "shape")
    made = Tensor("the result", shape, dtype_of(attributes, x.dtype))
    strides, offset = attributes.get("strides"), attributes.get("offset", 0)
    if strides is None:
        return [(shape, made.dtype)]
    if BITS[made.dtype] != BITS[x.dtype]:
        raise UsageError(f"the strides count elements of {x.dtype}, which are not as large as those of {made.dtype}")
    numbers = [*_listed(strides), offset]
    if len(numbers) != len(shape) + 1 or not all(type(n) is int and 0 <= n <= MOST for n in numbers):
        given = f"{short(strides)} and {short(offset)}"
        raise UsageError(f"strides must be {len(shape)} numbers from 0, and offset one, not {given}")
    last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, numbers[:-1], strict=True))
    if last >= x.elements:
        raise UsageError(f"the last element would be number {last} of the {x.elements} elements of x")
    return [(shape, made.dtype)]


def pointwise(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    """The result of ``pointwise``: the shape to which the inputs are broadcast."""
    if not isinstance(attributes.get("function"), str):
        raise UsageError("needs the attribute 'function', its name")
    return [(broadcast(inputs), dtype_of(attributes, promoted([tensor.dtype for tensor in inputs])))]


def unknown(inputs: Sequence[Tensor], attributes: Attributes) -> list[Shaped]:
    """The results of ``other``: as its attributes state."""
    shapes, dtypes = _listed(attributes.get("shapes")), _listed(attributes.get("dtypes"))
    if not shapes or len(shapes) != len(dtypes):
        raise UsageError("needs the attributes 'shapes' and 'dtypes', with one item for each result")
    if "what" in attributes and not isinstance(attributes["what"], str):
        raise UsageError(f"the attribute 'what' must be a text, not {short(attributes['what'])}")
    made = [Tensor.checked("a result", shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return [(tensor.shape, tensor.dtype) for tensor in made]


def _listed(value: object) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def _extents(attributes: Attributes, name: str) -> tuple[int, ...]:
    value = _listed(attributes.get(name))
    if not value:
        raise UsageError(f"needs the attribute {name!r}, a list of numbers")
    return Tensor.checked("the result", value, "f32").shape
