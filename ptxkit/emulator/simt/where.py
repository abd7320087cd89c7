"""Names an instruction in messages."""

from __future__ import annotations

from dataclasses import dataclass

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
        if i.loc is not None and i.loc.file != self.path:
            place += f" ({i.loc})"
        return f"{place} {i.opcode}"


def named(where: Where) -> str:
    """An instruction with its PTX line and source line, and where the function was called that it has been inlined from."""
    callers = source_lines(where.instruction)[1:]
    return f"{where}, called at {callers[-1]}" if callers else str(where)


def source_lines(i: Instruction) -> list[str]:
    """Source lines of an instruction, innermost first."""
    found, loc = [], i.loc
    while loc is not None:
        found.append(str(loc))
        loc = loc.inlined_at
    return found
