"""The read-modify-write operations of atomics, on arrays of elements. PTX ISA, "atom", "red".

:func:`apply_in_order` applies one operation for many lanes. Lanes with the same address are processed in order of their index.
Hardware promises no order, so that every order is legal; this one makes runs repeatable as long as a launch fits one wave.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Index, Lanes

Operation = Callable[..., Lanes]
"""(old values, operands) -> new values, on arrays of the element's type."""


def _inc(old: Lanes, bound: Lanes) -> Lanes:
    return np.where(old >= bound, np.zeros_like(old), old + old.dtype.type(1))


def _dec(old: Lanes, bound: Lanes) -> Lanes:
    return np.where((old == 0) | (old > bound), bound, old - old.dtype.type(1))


def _cas(old: Lanes, compare: Lanes, value: Lanes) -> Lanes:
    if old.dtype.itemsize == 16:  # a structured dtype, which numpy cannot compare
        a, b = (np.ascontiguousarray(v).view(np.uint64).reshape(-1, 2) for v in (old, compare))
        return np.where((a == b).all(axis=1), value, old)
    return np.where(old == compare, value, old)


def _exchange(old: Lanes, value: Lanes) -> Lanes:
    return value


def _minimum(old: Lanes, value: Lanes) -> Lanes:
    return np.fmin(old, value) if old.dtype.kind == "f" else np.minimum(old, value)


def _maximum(old: Lanes, value: Lanes) -> Lanes:
    return np.fmax(old, value) if old.dtype.kind == "f" else np.maximum(old, value)


def _as_bf16(operation: Operation) -> Operation:
    def run(old: Lanes, value: Lanes) -> Lanes:
        wide = operation(
            old.view(ml_dtypes.bfloat16).astype(np.float32), value.view(ml_dtypes.bfloat16).astype(np.float32)
        )
        return wide.astype(ml_dtypes.bfloat16).view(np.uint16)

    return run


def _halves(operation: Operation, dtype: DTypeLike) -> Operation:
    def run(old: Lanes, value: Lanes) -> Lanes:
        a, b = (np.ascontiguousarray(v).view(dtype).reshape(*v.shape, 2) for v in (old, value))
        return np.ascontiguousarray(operation(a, b)).view(np.uint32).reshape(old.shape)

    return run


_OPERATIONS: dict[str, Operation] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": _exchange,
    "inc": _inc,
    "dec": _dec,
    "min": _minimum,
    "max": _maximum,
    "cas": _cas,
}

TYPES_OF = {
    "add": "u32 s32 u64 f32 f64 f16 bf16 f16x2 bf16x2",
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
    "exch": "b32 b64 b128",
    "inc": "u32",
    "dec": "u32",
    "min": "u32 s32 u64 s64 f16 bf16 f16x2 bf16x2",
    "max": "u32 s32 u64 s64 f16 bf16 f16x2 bf16x2",
    "cas": "b16 b32 b64 b128",
}


def operation_for(op: str, t: str) -> Operation:
    """The function (old values, operands...) -> new values of an operation, on elements of a PTX type."""
    f = _OPERATIONS[op]
    match t:
        case "bf16":
            return _as_bf16(f)
        case "f16x2":
            return _halves(f, np.float16)
        case "bf16x2":
            return _halves(_as_bf16(f), np.uint16)
        case _:
            return f


def apply_in_order(cells: Lanes, index: Index, operation: Operation, values: tuple[Lanes, ...]) -> Lanes:
    """``cells[index] = operation(cells[index], value)``, one lane after the other; returns the old value for each lane.

    Args:
        cells: one-dimensional memory, changed in place.
        index: element index of each lane, one-dimensional.
        values: the operation's other operands, one-dimensional.
    """
    old = np.empty(len(index), cells.dtype)
    if len(index) == 0:
        return old
    order = np.argsort(index, kind="stable")
    sorted_index = index[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_index[1:] != sorted_index[:-1])))
    lengths = np.diff(np.append(starts, len(index)))
    longest = int(lengths.max())
    if longest > 64 and operation is np.add and cells.dtype.kind in "iu":
        # a running sum for each address, which is exact in modular arithmetic
        v = values[0][order]
        total = np.cumsum(v, dtype=cells.dtype)
        before = total - v
        base = np.repeat(before[starts], lengths)
        found = np.repeat(cells[sorted_index[starts]], lengths) + (before - base)
        old[order] = found
        ends = starts + lengths - 1
        cells[sorted_index[starts]] = found[ends] + v[ends]
        return old
    if longest > 64 and len(starts) * 8 < longest and isinstance(operation, np.ufunc):
        for s, n in zip(starts, lengths, strict=True):
            lanes = order[s : s + n]
            chain = operation.accumulate(np.concatenate((cells[index[lanes[:1]]], values[0][lanes])), dtype=cells.dtype)
            old[lanes] = chain[:-1]
            cells[index[lanes[0]]] = chain[-1]
        return old
    for rank in range(longest):
        lanes = order[starts[lengths > rank] + rank]
        at = index[lanes]
        found = cells[at]
        old[lanes] = found
        cells[at] = operation(found, *(v[lanes] for v in values))
    return old


def changed(cells: Lanes, index: Index, old: Lanes) -> bool:
    """Whether the cells differ from ``old``, their values before the atomics. A failed compare-and-swap changes nothing."""
    return bool((cells[index].view(np.uint8) != np.ascontiguousarray(old).view(np.uint8)).any())
