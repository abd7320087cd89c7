"""The location of the scale factors of A's rows and B's columns in tensor memory.

PTX ISA, "Scale Factor A ID", "Scale Factor B ID": content of the figures from CuTe's ``atom/mma_traits_sm100.hpp``
(``tmem_sf_frg``). A factor is a byte. The factors of row r are in lane r % 32 of each partition that computes with them,
in the word of column r / 32 from the address, from the byte on that the descriptor's id gives. The rows of A count from
the first of the CTA; the columns of B from the first that the partition computes, so that with M = 128 in a pair lanes 0
to 63 hold those of the first half of N and lanes 64 to 127 those of the second. Where more than four bytes follow (K =
96), the next ones are in the words after all of these columns, a multiple of four.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import Product

_SIZES = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4}
_ALLOWED = {
    "mxf8f6f4": ("", "scale_vec::1X", "block32"),
    "mxf4": ("", "scale_vec::2X", "block32"),
    "mxf4nvf4": ("scale_vec::2X", "scale_vec::4X", "block16", "block32"),
}


@dataclass(frozen=True)
class Factors:
    """The number of factors of a row, and their location.

    Attributes:
        count: of a row along K.
        block: number of stored elements along K to which one factor applies.
        first: byte of the first one in its word.
        columns: words of tensor memory that they occupy.
        step: words from one group of four bytes to the next.
    """

    count: int
    block: int
    first: int
    columns: int
    step: int

    def read(self, words: Lanes, lane: int, rows: int, start: int) -> Lanes:
        """(rows, count) uint8 of rows ``start`` and following, from (128, columns) uint32, in the partition of ``lane``."""
        r = np.arange(start, start + rows)[:, None]
        at = self.first + np.arange(self.count)[None]
        found = words[lane // 32 * 32 + r % 32, r // 32 + self.step * (at // 4)]
        return (found >> (8 * (at % 4)).astype(np.uint32) & np.uint32(255)).astype(np.uint8)


def refusal(kind: str, vector: str) -> str:
    """The reason why the modifier for the size of the scale vector is not valid for the kind; "" if it is."""
    if vector in _ALLOWED[kind]:
        return ""
    allowed = ", ".join(f".{v}" for v in _ALLOWED[kind] if v)
    return f".kind::{kind} takes {allowed}; {'.' + vector if vector else 'one of them must be written'}"


def factors(p: Product, kind: str, vector: str, rows: int, chosen: int, name: str, stored: int) -> Factors | str:
    """The layout of the factors of ``rows`` rows of A or columns of B; or why there is none, naming the bits.

    Args:
        vector: the modifier, "" for the kind's own.
        chosen: the id in the instruction descriptor.
        name: ``"A"`` or ``"B"``.
        stored: elements of a row of A along K that are stored.
    """
    if vector in _SIZES and p.k != 96:
        count = _SIZES[vector]
    elif vector in _SIZES:
        return f"bit 31 (K = 96) is set, which needs .block16 or .block32 instead of .{vector}"
    elif vector == "block16":
        count = 6 if p.k == 96 else 4
    elif kind == "mxf8f6f4":
        count = 1
    else:
        count = 3 if p.k == 96 else 2
    if p.scale == "ue4m3" and count in (2, 3):
        return f"bit 23 (type of the scale factors) is 0 (ue4m3), which .{vector or 'block32'} does not have"
    ids = {1: (0, 1, 2, 3), 2: (0, 2), 3: (0, 1, 2, 3), 4: (0,), 6: (0, 2)}[count]
    if chosen not in ids:
        bits = "29 and 30" if name == "A" else "4 and 5"
        return f"bits {bits} (scale factor id of {name}) are {chosen}; with {count} factors a row it is {_listed(ids)}"
    step = -(-rows // 128) * 4
    groups = -(-(chosen + count) // 4)
    return Factors(count, stored // count, chosen, step * (groups - 1) + -(-rows // 32), step)


def _listed(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))
