"""The cells of tensor memory that correspond to the registers of a warp in tcgen05.ld and tcgen05.st.

PTX ISA, "Matrix fragments for shape ..."; the figures' content is derived from CuTe's ``atom/copy_traits_sm100.hpp``
(``DstLayout`` of SM100_TMEM_LOAD_*). With thread t and register r, in lanes and columns from the address:

- ``.32x32b``: lane t, column r.
- ``.16x64b``: lane t / 4 + 8 (t % 2), column t / 2 % 2 + 2 r.
- ``.16x128b``: lane t / 4 + 8 (r % 2), column t % 4 + 4 (r / 2).
- ``.16x256b``: lane t / 4 + 8 (r / 2 % 2), column 2 (t % 4) + r % 2 + 8 (r / 4).
- ``.16x32bx2``: lane t % 16, column r, in the upper half of the warp from ``immHalfSplitoff`` columns further on. The
  manual's text and CuTe have lanes 0 to 15; a figure of the manual shows 16 to 31.

With ``.pack::16b`` and ``.unpack::16b`` a register holds the lower halves of two neighbouring columns, so each column
above stands for two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_WORDS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Number of registers of the form ``.x1``."""
SHAPES = " ".join(_WORDS)
MAX_REGISTERS = 128


@dataclass(frozen=True)
class Fragment:
    """The cells of the registers of a warp.

    Attributes:
        lanes: (registers, 32), lanes from that of the address; below 32.
        columns: (registers, 32), columns from that of the address; the first of two where halves are packed.
        width: columns from the first to the last, both included.
        height: lanes, 16 or 32.
    """

    lanes: NDArray[np.int64]
    columns: NDArray[np.int64]
    width: int
    height: int


def registers(shape: str, repeat: int) -> int:
    """32-bit registers of a thread for ``shape`` and ``.x{repeat}``."""
    return _WORDS[shape] * repeat


@lru_cache(maxsize=256)
def fragment(shape: str, repeat: int, split: int = 0, packed: bool = False) -> Fragment:
    """The layout of one form.

    Args:
        shape: ``"32x32b"``, ``"16x64b"``, ``"16x128b"``, ``"16x256b"`` or ``"16x32bx2"``.
        repeat: 1 to 128.
        split: of ``.16x32bx2``, columns from the first half to the second.
        packed: two columns to a register.
    """
    r = np.arange(registers(shape, repeat))[:, None]
    t = np.arange(32)[None]
    step = 2 if packed else 1
    further = np.zeros((1, 1), np.int64)
    match shape:
        case "32x32b":
            lanes, columns = t, r
        case "16x64b":
            lanes, columns = t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r
        case "16x128b":
            lanes, columns = t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)
        case "16x256b":
            lanes, columns = t // 4 + 8 * (r // 2 % 2), 2 * (t % 4) + r % 2 + 8 * (r // 4)
        case _:
            lanes, columns, further = t % 16, r, t // 16 * split
    full = (len(r), 32)
    lanes, columns = np.broadcast_to(lanes, full), np.broadcast_to(columns * step + further, full)
    return Fragment(lanes, columns, int(columns.max()) + step, 32 if shape == "32x32b" else 16)
