"""The frames of calls that machine code has made, and where the registers of frames are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.instructions.branches import Call
from ptxkit.emulator.native.context import MAX_LEVELS, Field, Level
from ptxkit.emulator.native.host import HostWave
from ptxkit.emulator.native.program import NativeFunction, NativeProgram
from ptxkit.emulator.native.storage import LevelArrays, Storage, address_of
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.threads import Frame
from ptxkit.isa.model import Symbol


class Frames:
    """The registers of frames, and the calls by machine code that have not returned, each at a level.

    Machine code records a call in ``levels``. A frame for the scheduler is made only where Python needs it.

    Attributes:
        functions: by entry, of the machine code that is being executed.
        calls: by level, what the calls at this level use.
    """

    def __init__(self, wave: HostWave, program: NativeProgram, c: NDArray[np.int64]) -> None:
        self.wave = wave
        self.program = program
        self.c = c
        self.functions: dict[int, NativeFunction] = {}
        self.calls: dict[int, LevelArrays] = {}
        self._free: dict[int, list[Storage]] = {}  # by entry of the function
        self._frames: list[Frame] = []  # of the calls that machine code has made, as far as Python needed them
        self._levels = np.zeros((MAX_LEVELS, Level.SIZE), np.int64)
        self._code = np.zeros(len(program.codes), np.int64)
        self._storage = np.zeros((len(program.codes), MAX_LEVELS), np.int64)

    def fields(self) -> Sequence[tuple[Field, NDArray[np.generic]]]:
        """The arrays, each with the field of the context that holds its address."""
        return (Field.LEVELS, self._levels), (Field.CODE, self._code), (Field.STORAGE, self._storage)

    def begin(self, frame: Frame, function: NativeFunction) -> None:
        """Machine code of a function is to be executed for threads of a frame."""
        self.functions = dict(self.program.functions)  # another wave may replace some of them meanwhile
        self.functions[frame.function.entry] = function
        for entry, found in self.functions.items():
            self._code[self.program.numbers[entry]] = found.address
        self._frames = [frame]

    def storage(self, function: NativeFunction, frame: Frame) -> Storage:
        """The registers of a frame that the scheduler has made."""
        found = frame.native
        if not isinstance(found, Storage):
            found = frame.native = self._unused(function)
        return found

    def _unused(self, function: NativeFunction) -> Storage:
        pool = self._free.setdefault(function.code.entry, [])
        found = pool.pop() if pool else Storage(function.places, self.wave.shape)
        found.current = [None] * len(found.views)
        return found

    def released(self, frame: Frame) -> None:
        """No thread is in the frame any more: another one may use its storage."""
        if isinstance(frame.native, Storage):
            self._free.setdefault(frame.function.entry, []).append(frame.native)
            frame.native = None

    def provide(self, code: FunctionCode, level: int) -> None:
        """Registers for the calls of a function at a level."""
        arrays = self.calls.get(level)
        if arrays is None:
            constants = max((len(p.frame) for p in self.program.places.values()), default=0)
            arrays = self.calls[level] = LevelArrays(self.wave.shape[0] * self.wave.shape[1], constants)
            self._levels[level, Level.STANDING] = address_of(arrays.standing)
            self._levels[level, Level.CONSTANTS] = address_of(arrays.constants)
        storage = self._unused(self.functions[code.entry])
        arrays.storages[code.entry] = storage
        self._storage[self.program.numbers[code.entry], level] = storage.address

    def at(self, level: int) -> Frame:
        """The frame of a call that machine code has made; 0 is the frame in which it was entered."""
        known = min(level, len(self._frames) - 1)
        while known and self.calls[known].stamp != int(self._levels[known, Level.STAMP]):
            known -= 1  # the calls below one that has not returned have not returned either
        if known < level:
            del self._frames[known + 1 :]
        for n in range(known + 1, level + 1):
            self._frames.append(self._new_frame(self._frames[n - 1], n))
            self.calls[n].stamp = int(self._levels[n, Level.STAMP])
        return self._frames[level]

    def storage_at(self, level: int) -> tuple[NativeFunction, Storage]:
        """The function that is executed at a level, and its registers."""
        if level == 0:
            frame = self._frames[0]
            assert isinstance(frame.native, Storage)
            return self.functions[frame.function.entry], frame.native
        code = self.program.codes[int(self._levels[level, Level.FUNCTION])]
        return self.functions[code.entry], self.calls[level].storages[code.entry]

    def address_at(self, level: int, variable: Symbol) -> int:
        """Where a variable in local memory of the function at a level is."""
        function, storage = self.storage_at(level)
        constants = storage.constants if level == 0 else self.calls[level].constants
        return int(constants[function.places.frame[variable.name]]) + variable.offset

    def caller(self, level: int) -> BasicBlock | None:
        """The block whose call is at a level; None for 0."""
        return self.wave.blocks[int(self._levels[level, Level.BLOCK])] if level else None

    def _new_frame(self, caller: Frame, level: int) -> Frame:
        record = self._levels[level]
        block = self.wave.blocks[int(record[Level.BLOCK])]
        call = block.terminator
        assert isinstance(call, Call)
        code = self.program.codes[int(record[Level.FUNCTION])]
        frame = self.wave.called(caller, code, call.site, block.next)
        storage = self.calls[level].storages[code.entry]
        frame.native = storage
        storage.current = [None] * len(storage.views)
        storage.hold(frame, self.functions[code.entry].touched)
        return frame

    def detach(self, frames: Sequence[Frame]) -> None:
        """The scheduler executes these frames from now on, the first of which it has made; later calls get new registers."""
        for frame in frames[1:]:
            function = self.functions[frame.function.entry]
            assert isinstance(frame.native, Storage)
            frame.native.give(frame, function.written)
            self._storage[self.program.numbers[frame.function.entry], frame.depth - frames[0].depth] = 0
