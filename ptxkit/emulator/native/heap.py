"""Calls of malloc and free for the active lanes of machine code, without a frame and a group."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.instructions.branches import Call
from ptxkit.emulator.instructions.builtins import FREE, MALLOC, allocated, freed
from ptxkit.emulator.native.frames import Frames
from ptxkit.emulator.native.host import HostWave
from ptxkit.emulator.native.warps import Warps
from ptxkit.isa.model import Symbol

POINTER = 8
"""Bytes of a size and of an address."""


class Heap:
    """What allocates and frees memory for one wave."""

    def __init__(self, wave: HostWave, warps: Warps, frames: Frames) -> None:
        self.wave = wave
        self.warps = warps
        self.frames = frames

    def perform(self, call: Call, level: int) -> bool:
        """Perform a call at a level of machine code; false, and nothing is done, where a group is needed, as for a fault."""
        operands = (*call.site.arguments, *call.site.returns)
        name = call.callee.name if isinstance(call.callee, Symbol) else ""
        variables = [o for o in operands if isinstance(o, Symbol)]
        wanted = {MALLOC: 2, FREE: 1}.get(name)
        if wanted != len(variables) or len(operands) != wanted:
            return False
        threads, local = self.warps.threads(), self.wave.local
        at = self.frames.address_at(level, variables[0])
        values = np.ascontiguousarray(local[threads, at : at + POINTER]).view(np.uint64)[:, 0].tolist()
        if name == FREE:
            return freed(self.wave.launch, values)
        found = allocated(self.wave.launch, values)
        to = self.frames.address_at(level, variables[1])
        local[threads, to : to + POINTER] = found[:, None].view(np.uint8)
        for hook in self.wave.stack_hooks:
            hook.returned(threads, to, POINTER)
        return True
