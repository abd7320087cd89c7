"""The conditions at which each command that resumes the kernel stops again, in terms of the focused thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.debugger.breakpoints import chain

if TYPE_CHECKING:
    from ptxkit.debugger.places import Place

SOLO_LIMIT = 10_000
"""Maximum of instructions that the focused warp executes alone in one command. After that all warps run, because it may poll
for a result of another warp."""


@dataclass
class Plan:
    """One command that resumes the kernel.

    Attributes:
        kind: ``"continue"``, ``"stepi"``, ``"nexti"``, ``"step"``, ``"next"``, ``"until"`` or ``"finish"``.
        count: number of instructions or lines that remain.
        solo: only the focused warp executes. Cleared when it has to wait for others.
    """

    kind: str
    count: int = 1
    solo: bool = False
    depth: int = 0
    lines: tuple[tuple[str, int], ...] = ()
    position: int = 0
    executed: int = 0

    @property
    def follows(self) -> bool:
        """Whether the position of the focused thread can end the command, in addition to breakpoints."""
        return self.kind != "continue"

    def begin(self, place: Place) -> None:
        """The focused thread starts at ``place``."""
        self.depth = place.frame.depth
        self.position = place.position
        self.lines = _lines(place)

    def arrived(self, place: Place) -> bool:
        """The focused thread has executed an instruction and now stands at ``place``: whether the command is done."""
        self.executed += 1
        if self.executed > SOLO_LIMIT:
            self.solo = False
        if not self._one(place):
            return False
        self.count -= 1
        self.begin(place)
        return self.count <= 0

    def _one(self, place: Place) -> bool:
        depth = place.frame.depth
        match self.kind:
            case "stepi":
                return True
            case "nexti":
                return depth <= self.depth
            case "finish":
                return depth < self.depth
        lines = _lines(place)
        if not lines:
            return depth < self.depth and self.kind != "step"
        if self.kind == "step":
            return depth != self.depth or lines != self.lines
        if depth != self.depth:
            return depth < self.depth
        if not self.lines:
            return True
        if len(lines) > len(self.lines):  # in a call that has been inlined
            return False
        if lines == self.lines:
            return False
        return self.kind != "until" or place.position > self.position


def _lines(place: Place) -> tuple[tuple[str, int], ...]:
    instruction = place.instruction
    if instruction is None:
        return ()
    if instruction.loc is None:
        return (("", instruction.line),)  # hand-written PTX is its own source
    return () if instruction.loc.line == 0 else chain(instruction)
