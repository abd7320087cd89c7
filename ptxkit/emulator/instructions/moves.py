"""mov: registers, immediates, addresses, special registers, and packing into and out of vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import Step, Typed
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Function, Instruction, SpecialRegister, Vector
from ptxkit.isa.types import TYPES, PtxType

_LEGAL = {
    "b16",
    "b32",
    "b64",
    "b128",
    "u16",
    "u32",
    "u64",
    "s16",
    "s32",
    "s64",
    "f32",
    "f64",
    "pred",
    "f16",
    "bf16",
    "f16x2",
    "bf16x2",
}


def _same(a: Lanes) -> Lanes:
    return a


def _pack(parts: int, bits: int) -> Callable[..., Lanes]:
    if bits == 128:
        return _pack_opaque
    wide = np.dtype(f"u{bits // 8}")
    step = wide.type(bits // parts)

    def pack(*lanes: Lanes) -> Lanes:
        out = lanes[-1].astype(wide)
        for lane in reversed(lanes[:-1]):
            out = (out << step) | lane
        return out

    return pack


def _pack_opaque(*lanes: Lanes) -> Lanes:
    """Packs registers into 128 bits, which are consecutive bytes, since numpy has no integer of that width."""
    joined = np.stack(np.broadcast_arrays(*lanes), axis=-1)
    return joined.view("V16")[..., 0]


def _unpack(parts: int, bits: int, wanted: list[bool]) -> Callable[..., tuple[Lanes | None, ...]]:
    narrow = np.dtype(f"u{bits // parts // 8}")

    def unpack(a: Lanes) -> tuple[Lanes | None, ...]:
        # the parts of a little-endian word are a strided view
        view = np.ascontiguousarray(a).view(narrow)
        view = view.reshape(*a.shape, parts)
        return tuple(np.ascontiguousarray(view[..., k]) if wanted[k] else None for k in range(parts))

    return unpack


def bind_move(i: Instruction, where: Where, function: Function) -> Step:
    """The step for any mov.

    Raises:
        UnsupportedError: a type or shape mov does not have.
    """
    modifiers = i.modifiers
    if len(modifiers) == 2 and modifiers[0] in ("v2", "v4") and modifiers[1] in _LEGAL and len(i.operands) == 2:
        return _bind_vectors(i, where, int(modifiers[0][1:]), TYPES[modifiers[1]])
    if len(modifiers) != 1 or modifiers[0] not in _LEGAL or len(i.operands) != 2:
        raise UnsupportedError(f"{where}: this form of mov")
    t = TYPES[modifiers[0]]
    destination, source = i.operands
    if isinstance(destination, Vector):
        part = _part(t, len(destination.items), where)
        call = _unpack(len(destination.items), t.bits, [o is not None for o in destination.items])
        outs: tuple[Typed, ...] = tuple((o, part) for o in destination.items)
        bits = TYPES[f"b{t.bits}"]
        return Step(call if len(outs) > 1 else _same, ((source, bits),), outs, pure=True)
    if isinstance(source, Vector):
        part = _part(t, len(source.items), where)
        if any(o is None for o in source.items):
            raise UnsupportedError(f"{where}: '_' where a value is read")
        ins: tuple[Typed, ...] = tuple((o, part) for o in source.items)
        return Step(_pack(len(ins), t.bits), ins, ((destination, TYPES[f"b{t.bits}"]),), pure=True)
    return Step(_same, ((source, t),), ((destination, t),), pure=True)


def _bind_vectors(i: Instruction, where: Where, count: int, t: PtxType) -> Step:
    """``mov.v2`` and ``mov.v4``: element by element, from a vector or from a special register with components."""
    destination, source = i.operands
    if isinstance(source, SpecialRegister) and "." not in source.name:
        source = Vector(tuple(SpecialRegister(f"{source.name}.{axis}") for axis in "xyzw"[:count]))
    if not (isinstance(destination, Vector) and isinstance(source, Vector)):
        raise UnsupportedError(f"{where}: needs a vector on both sides")
    if len(destination.items) != count or len(source.items) != count or any(o is None for o in source.items):
        raise UnsupportedError(f"{where}: needs vectors of {count} elements")
    ins: tuple[Typed, ...] = tuple((o, t) for o in source.items)
    outs: tuple[Typed, ...] = tuple((o, t) for o in destination.items)
    return Step(lambda *lanes: lanes, ins, outs, pure=True)


def _part(t: PtxType, count: int, where: Where) -> PtxType:
    bits = t.bits // count
    if (t.kind != "b" and not t.name.startswith(("u", "s"))) or bits < 8 or bits * count != t.bits:
        raise UnsupportedError(f"{where}: {count} elements in a .{t.name}")
    return TYPES[f"b{bits}"]
