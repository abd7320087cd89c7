"""Describes a wrong output: number of wrong elements, the first, the worst, their positions and their values."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.workload.element_errors import Format
from ptxkit.workload.parallel import blocks, in_threads

Array = npt.NDArray[Any]
Sentinel = int | bytes
"""The contents of an array before a launch: the value of every byte, or the bytes of every element."""

SHARE = 0.9  # fraction of the wrong elements that must agree with an explanation of their values
CLOSE = 1e-4  # relative difference up to which values count as equal there
SHOWN = 4  # maximum number of rows or columns listed by number
COMPARED = 1 << 20  # elements of a block that a thread compares with a sentinel
EXAMINED = 1 << 16  # maximum number of wrong elements, evenly spaced, whose values are examined


def element(name: str, shape: tuple[int, ...], flat: int) -> str:
    """``"y[3, 17]"``."""
    index = np.unravel_index(flat, shape)
    return f"{name}[{', '.join(str(int(i)) for i in index)}]" if index else name


def value_text(value: Any) -> str:
    """A value of an output with enough digits to distinguish it from its neighbours."""
    return str(value) if np.asarray(value).dtype.kind in "iub" else f"{float(value):.9g}"


def comparison(name: str, actual: Array, expected: Array, flat: int) -> str:
    """``"y[3] is 7.5, the reference says 6.0"``."""
    where = element(name, actual.shape, flat)
    return f"{where} is {value_text(actual.flat[flat])}, the reference says {expected.flat[flat]}"


def places(wrong: npt.NDArray[np.bool_]) -> str:
    """The positions of wrong elements: rows, columns, a block, a tail, a period, or their density."""
    count = int(np.count_nonzero(wrong))
    if count == wrong.size:
        return "every element"
    if wrong.ndim >= 2 and min(wrong.shape[-1], wrong.size // max(1, wrong.shape[-1])) > 1:
        found = _in_matrix(wrong.reshape(-1, wrong.shape[-1]), count)
        if found:
            return found + (" (rows of all leading axes together)" if wrong.ndim > 2 else "")
    flat = np.flatnonzero(wrong)
    if count == 1:
        return _one(int(flat[0]), wrong.size)
    return _in_line(flat, wrong.size)


def _one(flat: int, size: int) -> str:
    return "the last element" if flat == size - 1 else "the first element" if flat == 0 else "one element"


def _in_matrix(matrix: npt.NDArray[np.bool_], count: int) -> str:
    rows, columns = np.flatnonzero(matrix.any(axis=1)), np.flatnonzero(matrix.any(axis=0))
    height, width = matrix.shape
    if count == 1:
        return ""
    if count == rows.size * width:
        return f"all of {_listed('row', rows, height)}"
    if count == columns.size * height:
        return f"all of {_listed('column', columns, width)}"
    if rows.size == 1:
        return f"in row {rows[0]}: {_listed('column', columns, width)}"
    if columns.size == 1:
        return f"in column {columns[0]}: {_listed('row', rows, height)}"
    if count == rows.size * columns.size:
        return _block(rows, columns, height, width)
    share = count / (rows.size * columns.size)
    return f"{_listed('row', rows, height)}, {_listed('column', columns, width)}: {share:.2g} of these"


def _block(rows: Array, columns: Array, height: int, width: int) -> str:
    text = f"all of {_listed('row', rows, height)} in {_listed('column', columns, width)}"
    spans = [int(a[-1] - a[0] + 1) for a in (rows, columns)]
    if spans != [rows.size, columns.size]:
        return text
    starts = [int(rows[0]), int(columns[0])]
    if all(start % span == 0 for start, span in zip(starts, spans, strict=True)):
        tile = ", ".join(str(start // span) for start, span in zip(starts, spans, strict=True))
        last = rows[-1] == height - 1 and columns[-1] == width - 1
        text += f", which is tile ({tile}) of {spans[0]} x {spans[1]} elements" + (", the last" if last else "")
    elif rows[-1] == height - 1 and columns[-1] == width - 1:
        text += ", the last corner"
    return text


def _listed(noun: str, numbers: Array, total: int) -> str:
    """``row 3``, ``rows 8 to 15``, ``every 4th row from row 1``, ``rows 1, 5, 6 and 9 more``."""
    first, last, count = int(numbers[0]), int(numbers[-1]), int(numbers.size)
    if count == 1:
        return f"{noun} {first}" + (", the last," if first == total - 1 and total > 1 else "")
    if count == total:
        return f"all {total} {noun}s"
    if last - first + 1 == count:
        return f"the last {count} {noun}s" if last == total - 1 else f"{noun}s {first} to {last}"
    steps = np.diff(numbers)
    if count > 2 and (steps == steps[0]).all():
        return f"every {_ordinal(int(steps[0]))} {noun} from {noun} {first}" + (
            "" if last + steps[0] >= total else f" to {last}"
        )
    shown = ", ".join(map(str, numbers[:SHOWN].tolist()))
    return f"{noun}s {shown} and {count - SHOWN} more" if count > SHOWN else f"{noun}s {shown}"


def _in_line(flat: Array, size: int) -> str:
    """The positions of wrong elements in the order of memory."""
    first, last, count = int(flat[0]), int(flat[-1]), int(flat.size)
    if last - first + 1 == count:
        return f"the last {count} elements" if last == size - 1 else f"elements {first} to {last}"
    steps = np.diff(flat)
    step = int(np.gcd.reduce(steps))
    if (steps == steps[0]).all() and count > 2:
        return f"every {_ordinal(step)} element from {first}" + ("" if last + step >= size else f" to {last}")
    starts = flat[np.concatenate([[True], steps > 1])]
    lengths = np.diff(np.concatenate([np.flatnonzero(np.concatenate([[True], steps > 1])), [count]]))
    apart = np.diff(starts)
    if starts.size > 2 and (apart == apart[0]).all() and (lengths[:-1] == lengths[0]).all() and lengths[0] > 1:
        return f"runs of {lengths[0]} elements, one every {apart[0]} from {first}"
    if step > 1 and gcd(step, size) > 1:
        return f"elements {first} to {last}, only places {first % step} modulo {step}"
    return f"{count / (last - first + 1):.2g} of the elements from {first} to {last}, in {starts.size} runs"


def _ordinal(n: int) -> str:
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def explanations(
    actual: Array, expected: Array, wrong: npt.NDArray[np.bool_], poison: Sentinel | None, smallest_store: int = 1
) -> Iterator[str]:
    """The values of wrong elements: never written, NaN, zero, a neighbour's value, a multiple of the reference.

    Args:
        poison: the contents of the output before the launch, or None.
        smallest_store: bytes of the kernel's smallest write; elements of more bytes may be written in part.
    """
    flat = np.flatnonzero(wrong)
    total = flat.size
    unwritten = int(np.count_nonzero(holds(actual, poison)[flat])) if poison is not None else 0
    in_part = poison is not None and smallest_store < actual.dtype.itemsize
    octets = _unwritten_bytes(actual, wrong, poison) if in_part and poison is not None else ""
    if octets:
        yield octets
    elif unwritten:
        yield f"{_share(unwritten, total)} never written"
    if unwritten == total:
        return
    flat = flat[:: max(1, total // EXAMINED)]
    with np.errstate(all="ignore"):
        found = actual.reshape(-1)[flat].astype(np.float64)
        reference = expected.reshape(-1)
        if np.isnan(found).any() and (nans := int(np.count_nonzero(np.isnan(found)))):
            yield f"{_share(nans, flat.size)} NaN"
        if not found.any():
            yield "all 0"
            return
        yield from _neighbours(found, reference, flat, actual.shape)
        yield from _multiples(found, reference[flat].astype(np.float64))


def _neighbours(found: Array, reference: Array, flat: Array, shape: tuple[int, ...]) -> Iterator[str]:
    shifts = {1: "the next element", -1: "the element before"}
    if len(shape) >= 2 and shape[-1] > 1:
        shifts |= {shape[-1]: "the same column of the next row", -shape[-1]: "the same column of the row before"}
    for shift, whose in shifts.items():
        other = flat + shift
        inside = (other >= 0) & (other < reference.size)
        if inside.sum() > 1 and _agree(found[inside], reference[other[inside]].astype(np.float64)):
            yield f"each holds the value of {whose}: off by one"
            return
    if len(shape) >= 2 and shape[-1] == shape[-2] > 1 and flat.size > 1:
        n = shape[-1]
        matrix, place = np.divmod(flat, n * n)
        if _agree(found, reference[matrix * n * n + place % n * n + place // n].astype(np.float64)):
            yield "each holds the value of the transposed matrix"


def _unwritten_bytes(actual: Array, wrong: npt.NDArray[np.bool_], poison: Sentinel) -> str:
    """The bytes that hold the sentinel in nearly all wrong elements, if the others do not; "" if there are none."""
    found = actual.reshape(-1)[wrong.reshape(-1)][:EXAMINED]
    where = (holds_in_part(found, poison) & ~_computed_nan(found)[:, None]).mean(0) >= SHARE
    if not where.any() or where.all():
        return ""
    numbers = np.flatnonzero(where).tolist()
    return f"byte{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} of the elements never written"


def _computed_nan(array: Array) -> npt.NDArray[np.bool_]:
    """Which elements are a NaN as instructions return it, by its bits, of which some are those of a sentinel.

    Its significand has the highest bit set, in results of x86 and of conversions, or all bits, in those of NVIDIA GPUs.
    """
    form = Format.of(array.dtype)
    if form is None or array.dtype.itemsize not in (2, 4, 8):
        return np.zeros(array.size, np.bool_)
    kind = np.dtype(f"u{array.dtype.itemsize}").type
    significand = array.view(kind) & kind((1 << form.mantissa_bits) - 1)
    usual = (1 << form.mantissa_bits - 1, (1 << form.mantissa_bits) - 1)
    with np.errstate(invalid="ignore"):
        return np.isnan(array) & np.isin(significand, np.array(usual, kind))


def _multiples(found: Array, reference: Array) -> Iterator[str]:
    usable = np.isfinite(found) & np.isfinite(reference) & (reference != 0)
    if usable.sum() < 2:
        return
    ratio = float(np.median(found[usable] / reference[usable]))
    if np.isfinite(ratio) and ratio != 0 and abs(ratio - 1) > CLOSE and _agree(found, ratio * reference):
        yield f"each is {ratio:.6g} times the reference"
        return
    difference = float(np.median(found[usable] - reference[usable]))
    if difference and np.ptp(reference[usable]) > 0 and _agree(found - reference, np.full_like(found, difference)):
        yield f"each differs by {difference:.6g}"


def _agree(found: Array, other: Array) -> bool:
    close = np.abs(found - other) <= CLOSE * np.abs(other)
    return bool(np.count_nonzero(close) >= SHARE * found.size)


def _share(count: int, total: int) -> str:
    return "all" if count == total else f"{count:,} of them"


def holds_in_part(array: Array, poison: Sentinel) -> npt.NDArray[np.bool_]:
    """Which bytes of elements are equal to those of the sentinel: (elements, bytes of an element)."""
    data = np.ascontiguousarray(array)
    size = data.dtype.itemsize
    pattern = bytes([poison]) * size if isinstance(poison, int) else poison
    octets = data.reshape(-1).view(np.uint8).reshape(data.size, size)
    return octets == np.frombuffer(pattern, np.uint8)  # type: ignore[no-any-return]


def may_be_unwritten(array: Array, poison: Sentinel, smallest_store: int) -> bool:
    """Whether an output has elements, or bytes, that a kernel may not have written, because they equal the sentinel.

    Args:
        smallest_store: bytes of the kernel's smallest write; elements of more bytes may be written in part.
    """
    flat = array.reshape(-1)
    held = holds_in_part if smallest_store < array.dtype.itemsize else holds

    def of_block(block: slice) -> bool:
        return bool(held(flat[block], poison).any())

    return any(in_threads(of_block, blocks(flat.size, flat.size, COMPARED)))


def holds(array: Array, poison: Sentinel) -> npt.NDArray[np.bool_]:
    """Which elements are equal to the sentinel."""
    data = np.ascontiguousarray(array)
    size = data.dtype.itemsize
    if not data.size:
        return np.zeros(0, np.bool_)
    octets = data.reshape(-1).view(np.uint8)
    pattern = bytes([poison]) * size if isinstance(poison, int) else poison
    if size in (1, 2, 4, 8):
        word = int.from_bytes(pattern, "little")
        found: npt.NDArray[np.bool_] = octets.view(f"u{size}") == word
        return found
    return (octets.reshape(prod(data.shape), size) == np.frombuffer(pattern, np.uint8)).all(axis=1)  # type: ignore[no-any-return]
