"""Names an instruction, and lanes of a warp, in messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Mask
from ptxkit.isa.model import Instruction


@dataclass(frozen=True)
class Where:
    """An instruction with the file and the function that hold it."""

    path: str
    instruction: Instruction
    function: str

    def __str__(self) -> str:
        i = self.instruction
        place = f"{self.path}:{i.line}"
        lines = source_lines(i)
        if i.loc is not None and i.loc.file != self.path:
            place += f" ({lines[0]})"
        return f"{place} {i.opcode}"


def named(where: Where) -> str:
    """An instruction with its PTX line and source line, and where the function was called that it has been inlined from."""
    callers = source_lines(where.instruction)[1:]
    return f"{where}, called at {callers[-1]}" if callers else str(where)


BUILTINS = "__nv_nvrtc_builtin_header.h"
"""The name of NVRTC's own header in line tables. It is no file, and its functions, such as those of textures, are inlined."""


def source_lines(i: Instruction) -> list[str]:
    """Source lines of an instruction, innermost first, without those of NVRTC's own header, if it was called from others."""
    found, loc = [], i.loc
    while loc is not None:
        found.append(loc)
        loc = loc.inlined_at
    own = [loc for loc in found if loc.file.rpartition("/")[2] != BUILTINS]
    return [str(loc) for loc in own or found]


def lanes_text(lanes: Mask) -> str:
    """``lanes``, (32,) bool, as text: ``lanes 0-15, 20``."""
    numbers = [int(n) for n in np.flatnonzero(lanes)]
    ranges: list[list[int]] = []
    for n in numbers:
        if ranges and ranges[-1][1] == n - 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return f"lane{'s' * (len(numbers) != 1)} {text}"
