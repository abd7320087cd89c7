"""PTX fundamental types: names, sizes, and the numpy dtype whose bits a register of that type holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PtxType:
    """One PTX type.

    Attributes:
        name: as written in PTX, without the dot (``"f32"``).
        bits: width in bits; predicates have 1.
        kind: ``"b"`` untyped bits, ``"u"`` unsigned, ``"s"`` signed, ``"f"`` float, ``"bf"`` bfloat, ``"p"`` predicate,
            ``"x"`` packed or alternate formats that only exist inside an instruction.
        dtype: numpy dtype of a lane array of this type. ``bf16``, the packed types and the alternate formats have no
            numpy arithmetic, so they are held as unsigned bits.
    """

    name: str
    bits: int
    kind: str
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """Size in memory, in bytes."""
        return max(1, self.bits // 8)

    def __reduce__(self) -> tuple[object, ...]:
        return named, (self.name,)


def named(name: str) -> PtxType:
    """The type of a name, as pickled types are read: there is one object for each type."""
    return TYPES[name]


def _type(name: str, bits: int, kind: str, dtype: str) -> PtxType:
    return PtxType(name, bits, kind, np.dtype(dtype))


TYPES: dict[str, PtxType] = {
    t.name: t
    for t in (
        _type("pred", 1, "p", "?"),
        *(_type(f"b{n}", n, "b", f"u{n // 8}") for n in (8, 16, 32, 64)),
        *(_type(f"u{n}", n, "u", f"u{n // 8}") for n in (8, 16, 32, 64)),
        *(_type(f"s{n}", n, "s", f"i{n // 8}") for n in (8, 16, 32, 64)),
        _type("f16", 16, "f", "f2"),
        _type("f32", 32, "f", "f4"),
        _type("f64", 64, "f", "f8"),
        _type("bf16", 16, "bf", "u2"),
        _type("f16x2", 32, "x", "u4"),
        _type("bf16x2", 32, "x", "u4"),
        _type("u16x2", 32, "x", "u4"),
        _type("s16x2", 32, "x", "u4"),
        _type("u8x4", 32, "x", "u4"),
        _type("s8x4", 32, "x", "u4"),
        _type("f32x2", 64, "x", "u8"),
        _type("tf32", 32, "x", "u4"),
        _type("e4m3", 8, "x", "u1"),
        _type("e5m2", 8, "x", "u1"),
        _type("e4m3x2", 16, "x", "u2"),
        _type("e5m2x2", 16, "x", "u2"),
        _type("e4m3x4", 32, "x", "u4"),
        _type("e5m2x4", 32, "x", "u4"),
        _type("e2m3x2", 16, "x", "u2"),
        _type("e3m2x2", 16, "x", "u2"),
        _type("e2m1x2", 8, "x", "u1"),
        _type("ue8m0x2", 16, "x", "u2"),
        _type("s2f6x2", 16, "x", "u2"),
        _type("b128", 128, "b", "V16"),
        *(_type(name, 64, "x", "u8") for name in ("texref", "samplerref", "surfref")),
    )
}
"""Every type ptxkit knows, by name.

``b128`` is bits without arithmetic: numpy has no 16-byte integer, so its lanes are opaque. ``texref``, ``samplerref``
and ``surfref`` are handles.
"""
