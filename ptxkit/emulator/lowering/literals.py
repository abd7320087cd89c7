"""Converts immediate operands to one-element lane arrays of the type as which an instruction reads them."""

from __future__ import annotations

import struct

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Immediate
from ptxkit.isa.types import PtxType


def constant(literal: Immediate, t: PtxType) -> Lanes:
    """``literal`` as an array of shape (1, 1, 1) and dtype ``t.dtype``.

    Raises:
        UnsupportedError: a float literal where the type is an integer, or of a width that the type does not have.
    """
    if t.kind == "p":
        return np.full((1, 1, 1), bool(literal.value))
    return np.array(bits_of(literal, t), f"u{t.dtype.itemsize}").view(t.dtype).reshape(1, 1, 1)


def bits_of(literal: Immediate, t: PtxType) -> int:
    """The bits of ``literal`` as type ``t``, as an unsigned integer."""
    value, bits = literal.value, t.dtype.itemsize * 8
    mask = (1 << bits) - 1
    if literal.width:
        if t.kind == "f" and t.bits != literal.width:
            number = struct.unpack(
                "<f" if literal.width == 32 else "<d", literal.bits.to_bytes(literal.width // 8, "little")
            )[0]
            return _float_bits(number, t)
        if literal.width > bits:
            raise UnsupportedError(f"the {literal.width}-bit literal {literal} does not fit .{t.name}")
        return literal.bits
    if t.kind == "f":
        return _float_bits(float(value), t) if isinstance(value, float) else int(value) & mask
    if isinstance(value, float):
        # for an untyped operand (.b32, .b64), a decimal float literal has the format of the operand's width
        if t.kind == "b" and bits in (32, 64):
            return int.from_bytes(struct.pack("<f" if bits == 32 else "<d", value), "little")
        raise UnsupportedError(f"the float literal {value} where .{t.name} is expected")
    return int(value) & mask


def _float_bits(number: float, t: PtxType) -> int:
    return int(np.array(number, t.dtype).view(f"u{t.dtype.itemsize}"))
