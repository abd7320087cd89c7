"""The location of D, and of an A in tensor memory: the data path layouts A to G of the manual.

PTX ISA, "Data Path Layout Organization", names the layouts and has their content as figures; it is derived from
CuTe's ``atom/mma_traits_sm100.hpp`` (``tmem_frg``, ``tmem_frg_ws``). A part is a run of rows and of columns of D in
neighbouring lanes and columns of one CTA's tensor memory.

- A (M = 256, pair): CTA i of the pair has rows 128 i to 128 i + 127 in its lanes.
- B (M = 128, pair, dense): CTA i has rows 64 i to 64 i + 63: the first half of N in lanes 0 to 63, the second in 64
  to 127.
- C (M = 128, pair, sparse): CTA i has rows 64 i to 64 i + 63, 16 in each partition, as F.
- D (M = 128): row r in lane r.
- E (M = 64, .ws): the first half of N in lanes 0 to 63, the second in lanes 64 to 127.
- F (M = 64): rows 16 p to 16 p + 15 in lanes 32 p to 32 p + 15, or 16 lanes further on where the address says so.
- G (M = 32, .ws): quarter p of N in lanes 32 p to 32 p + 31.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Part:
    """A part of D.

    Attributes:
        cta: 0, or 1 for the second CTA of a pair.
        row, rows: first row of D, and how many.
        column, columns: first column of D, and how many.
        lane: of the first row; columns begin at the address.
    """

    cta: int
    row: int
    rows: int
    column: int
    columns: int
    lane: int


@dataclass(frozen=True)
class Layout:
    """A data path layout.

    Attributes:
        name: the manual's letter.
        parts: the parts of which D consists.
        alignments: lanes at which the matrices may begin.
    """

    name: str
    parts: tuple[Part, ...]
    alignments: tuple[int, ...] = (0,)

    @property
    def width(self) -> int:
        """Columns of tensor memory that D occupies."""
        return self.parts[0].columns


@lru_cache(maxsize=512)
def layout(m: int, n: int, group: int, ws: bool, sparse: bool, lane: int = 0) -> Layout:
    """The layout of a product of shape ``m`` by ``n``.

    Args:
        group: CTAs, 1 or 2.
        lane: that of D's address, 0 or 16, for the layouts that use half of the lanes.
    """
    if group == 2 and m == 256:
        return Layout("A", tuple(Part(c, 128 * c + 32 * p, 32, 0, n, 32 * p) for c in (0, 1) for p in range(4)))
    if group == 2 and sparse:
        return Layout(
            "C", tuple(Part(c, 64 * c + 16 * p, 16, 0, n, 32 * p + lane) for c in (0, 1) for p in range(4)), (0, 16)
        )
    if group == 2:
        return Layout(
            "B",
            tuple(
                Part(c, 64 * c + 32 * (p % 2), 32, n // 2 * (p // 2), n // 2, 32 * p) for c in (0, 1) for p in range(4)
            ),
        )
    if m == 128:
        return Layout("D", tuple(Part(0, 32 * p, 32, 0, n, 32 * p) for p in range(4)))
    if m == 64 and ws:
        return Layout("E", tuple(Part(0, 32 * (p % 2), 32, n // 2 * (p // 2), n // 2, 32 * p) for p in range(4)))
    if m == 64:
        return Layout("F", tuple(Part(0, 16 * p, 16, 0, n, 32 * p + lane) for p in range(4)), (0, 16))
    return Layout("G", tuple(Part(0, 0, 32, n // 4 * p, n // 4, 32 * p) for p in range(4)))
