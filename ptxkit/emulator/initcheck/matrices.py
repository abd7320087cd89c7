"""Undefined elements of matrix products.

An element of the result is undefined if one of its row of A, of its column of B, or its own in C is. The instruction itself
knows how matrices lie in registers, so it is executed on matrices that hold one where an element is undefined and zero
elsewhere, against a matrix of ones: what is not zero depends on an undefined element.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.initcheck.memory import Mirror
from ptxkit.emulator.initcheck.shadow import every, origins, shadow
from ptxkit.emulator.simt.instrumented import Instrumented, unsigned
from ptxkit.emulator.simt.step import result_tuple
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.tensor_core import warpgroups
from ptxkit.emulator.tensor_core.in_flight import Issue
from ptxkit.emulator.tensor_core.multiplication import Multiplication
from ptxkit.emulator.tensor_core.shared_operand import SharedOperand
from ptxkit.emulator.tensor_core.warpgroups import Warpgroups
from ptxkit.isa.model import Vector
from ptxkit.isa.types import PtxType

Sources = list[Shadow | None]

_ONES = {
    "f16": (16, 0x3C00),
    "bf16": (16, 0x3F80),
    "tf32": (32, 0x3F80_0000),
    "f64": (64, 0x3FF0_0000_0000_0000),
    "e4m3": (8, 0x38),
    "e5m2": (8, 0x3C),
    "e3m2": (8, 0x0C),
    "e2m3": (8, 0x08),
    "e2m1": (8, 0x08),
    "packed e2m1": (4, 0x2),
    "s8": (8, 1),
    "u8": (8, 1),
    "s4": (4, 1),
    "u4": (4, 1),
    "b1": (1, 1),
}
"""Element type of a multiplicand -> bits of an element, and 1 as such an element."""


def _repeated(t: str, width: int) -> int:
    bits, one = _ONES[t]
    return sum(one << at for at in range(0, width, bits))


def marked(bits: Lanes, t: str) -> Lanes:
    """Words that hold elements of ``t``: one where an element has an undefined bit, else zero."""
    size, one = _ONES[t]
    word = bits.dtype
    if size >= 8:
        element = np.dtype(f"u{size // 8}")
        parts = np.ascontiguousarray(bits).view(element)
        return np.where(parts != 0, element.type(one), element.type(0)).view(word)
    low = word.type(_repeated(t, word.itemsize * 8))
    out = bits
    for step in range(1, size):
        out = out | (bits >> word.type(step))
    return out & low


def types_of(parts: tuple[str, ...]) -> tuple[str, str]:
    """Element types of A and B in an mma or wmma opcode."""
    found = [p for p in parts if p in _ONES or p in ("f32", "s32")]
    if "kind::mxf4" in parts or "kind::mxf4nvf4" in parts:
        return "packed e2m1", "packed e2m1"
    return (found[1], found[2]) if len(found) == 4 else ("f16", "f16")


def multiplied(
    w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources, mirror: Mirror
) -> list[Shadow | None]:
    """Undefined bits of the registers of D: mma and wmma.mma, all operands in registers."""
    counts = [len(o.items) if isinstance(o, Vector) else 1 for o in w.instruction.operands[1:4]]
    ta, tb = types_of(w.parts)
    ends = counts[0], counts[0] + counts[1], sum(counts)
    if "xor" in w.parts or any(s is not None for s in sources[ends[2] :]):
        return _whole_warps(w, x, sources)
    inner = mirror.group(x)
    a, b, c = sources[: ends[0]], sources[ends[0] : ends[1]], sources[ends[1] : ends[2]]
    origin = _per_warp(x, origins(sources))
    zeros = [np.zeros((1, 1, 1), s.type.dtype) for s in w.sources[ends[1] : ends[2]]]
    rest = list(values[ends[2] :])
    lanes: list[Lanes] = [np.zeros((1, 1, 1), unsigned(d.type)) for d in w.destinations]
    for mine, other in ((a, False), (b, True)):
        if all(s is None for s in mine):
            continue
        given_a = _ones(w, 0, ends[0], ta) if other else _marks(w, 0, a, ta)
        given_b = _marks(w, ends[0], b, tb) if other else _ones(w, ends[0], ends[1], tb)
        found = result_tuple(w.step.call(inner, *given_a, *given_b, *zeros, *rest))
        for k, (v, d) in enumerate(zip(found, w.destinations, strict=True)):
            assert v is not None
            lanes[k] = lanes[k] | _nonzero(v, d.type)
    if any(s is not None for s in c):
        if len(c) != len(w.destinations):
            return _whole_warps(w, x, sources)
        lanes = [
            o if s is None else o | _elements(s.bits, d.type) for o, s, d in zip(lanes, c, w.destinations, strict=True)
        ]
    return [shadow(v, np.broadcast_to(origin, np.broadcast_shapes(v.shape, origin.shape))) for v in lanes]


def _marks(w: Instrumented, first: int, mine: Sources, t: str) -> list[Lanes]:
    out = []
    for k, s in enumerate(mine):
        kind = w.sources[first + k].type
        bits = np.zeros((1, 1, 1), unsigned(kind)) if s is None else s.bits
        out.append(np.ascontiguousarray(marked(bits, t)).view(kind.dtype))
    return out


def _ones(w: Instrumented, first: int, end: int, t: str) -> list[Lanes]:
    out = []
    for k in range(first, end):
        kind = w.sources[k].type
        word = unsigned(kind)
        out.append(np.full((1, 1, 1), _repeated(t, word.itemsize * 8), word).view(kind.dtype))
    return out


def _nonzero(value: Lanes, t: PtxType) -> Lanes:
    """A mask with all bits set in each element that is not zero. A .b32 register of the result holds two f16 elements."""
    return _elements(np.ascontiguousarray(value).view(unsigned(t)), t)


def _elements(bits: Lanes, t: PtxType) -> Lanes:
    if t.name != "b32":
        return every(bits != 0, bits.dtype)
    halves = np.ascontiguousarray(bits).view(np.uint16)
    return every(halves != 0, halves.dtype).view(bits.dtype)


def _per_warp(x: Group, origin: NDArray[np.int32]) -> NDArray[np.int32]:
    """The first origin among the lanes of each warp, as it is an element of another lane that is undefined."""
    return np.broadcast_to(origin, x.shape).max(-1, keepdims=True)


def _whole_warps(w: Instrumented, x: Group, sources: Sources) -> list[Shadow | None]:
    lanes: Mask = np.zeros(x.shape, np.bool_)
    for s in sources:
        if s is not None:
            lanes = lanes | s.lanes
    warps = np.broadcast_to(lanes.any(-1, keepdims=True), x.shape)
    origin = _per_warp(x, origins(sources))
    return [shadow(every(warps, unsigned(d.type)), origin) for d in w.destinations]


def multiplied_from_shared(
    w: Instrumented,
    x: Group,
    values: tuple[Lanes, ...],
    sources: Sources,
    mirror: Mirror,
    load: Callable[[], NDArray[np.int32]],
) -> list[Shadow | None]:
    """Undefined bits of the accumulators of wgmma.mma_async.

    Args:
        load: gives this execution a number as the origin of what it reads from shared memory.
    """
    what = w.step.call.what if isinstance(w.step.call, Issue) else None
    assert isinstance(what, Multiplication)
    count = what.count
    rest = list(values[count:])
    descriptor, scale = rest[0], rest[1]
    compressed = what.expand is not None
    groups = warpgroups.of(x, w.where)
    inner = mirror.group(x)
    origin = _per_warp(x, origins(sources))
    a_values, a_sources = rest[2 + compressed :], sources[count + 2 + compressed :]
    if what.a is None:
        marks = tuple(
            np.ascontiguousarray(marked(np.zeros((1, 1, 1), np.uint32) if s is None else s.bits, what.ta)).view(
                np.uint32
            )
            for s in a_sources
        )
        rows = what.fragment_a(x, groups, marks) != 0
    else:
        rows = _undefined_tile(what.a, what.ta, inner, groups, groups.uniform(x, a_values[0], "A", w.where))
    columns = _undefined_tile(what.b, what.b.t, inner, groups, groups.uniform(x, descriptor, "B", w.where))
    undefined = np.any(rows, -1)[:, :, None] | np.any(columns, -1)[:, None, :]
    d = np.broadcast_to(undefined, (groups.count, what.m, what.n))
    lanes: list[Lanes] = [np.zeros((1, 1, 1), unsigned(t.type)) for t in w.destinations]
    if d.any():
        if not np.any(origin):
            origin = load()
        kind: DTypeLike = np.float16 if what.td == "f16" else what.d_type
        found = groups.spread(x, what.registers_of(np.ascontiguousarray(d).astype(kind)), what.d_type)
        lanes = [_nonzero(v, t.type) for v, t in zip(found, w.destinations, strict=True)]
    keeps = np.broadcast_to(scale, x.shape)
    for k, s in enumerate(sources[:count]):
        if s is not None:
            lanes[k] = lanes[k] | np.where(keeps, _elements(s.bits, w.destinations[k].type), lanes[k].dtype.type(0))
    return [shadow(v, np.broadcast_to(origin, np.broadcast_shapes(v.shape, origin.shape))) for v in lanes]


def _undefined_tile(operand: SharedOperand, t: str, inner: Group, groups: Warpgroups, descriptors: Lanes) -> Mask:
    """(E, extent, k): which elements of a tile in shared memory are undefined."""
    wave = inner.wave
    kept = wave.shared
    chunks = operand.chunks(wave, groups.cta, descriptors)
    if not kept.view(np.uint64).reshape(-1, 2)[chunks].any():
        return np.zeros((groups.count, 1, 1), np.bool_)
    wave.shared = marked(kept.view(np.uint32), t).view(np.uint8)
    try:
        tiles, which = operand.load(wave, groups.cta, descriptors)
    finally:
        wave.shared = kept
    return tiles[which] != 0
