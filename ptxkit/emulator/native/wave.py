"""Executes blocks of a wave by machine code, and goes back to its scheduler where that has to decide.

The registers of a frame that machine code accesses are in one array, of which the frame's lane arrays are views, so that numpy
and machine code see the same values.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

import numpy as np

from ptxkit.emulator.instructions.barriers import BarrierGate
from ptxkit.emulator.instructions.branches import Call
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.native.context import NOWHERE, Field, Request, Status
from ptxkit.emulator.native.counts import Counts
from ptxkit.emulator.native.frames import Frames
from ptxkit.emulator.native.handover import Handover
from ptxkit.emulator.native.heap import Heap
from ptxkit.emulator.native.machine_code import CALLBACK, can_compile, is_installed, lock_function
from ptxkit.emulator.native.memory_table import MemoryTable
from ptxkit.emulator.native.program import NativeFunction, NativeProgram
from ptxkit.emulator.native.pure import compute
from ptxkit.emulator.native.storage import Storage, address_of
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.native.warps import Warps
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.threads import Frame, Group

if TYPE_CHECKING:
    from ptxkit.emulator.native.host import HostWave

HOT = 4
"""Executions of a block after which it is worth compiling."""

AFTER_S = 0.02
"""Seconds of the thread's processor time that a wave must have taken before anything is compiled, so that short launches never
pay for LLVM: to load what the cache has takes a few hundredths of a second."""

WHOLE = 2000
"""Instructions of a function that is compiled as a whole; of larger ones, the blocks that are executed often are."""

WORK = 1 << 22
"""Thread blocks (lanes times blocks) after which machine code returns, so that a launch can be stopped."""

NUMPY_STEPS = 32
"""The number of blocks as which a segment that numpy executes counts."""

class NativeWave:
    """The machine code of one wave."""

    def __init__(self, wave: HostWave, program: NativeProgram) -> None:
        self.wave = wave
        self.program = program
        self.began = time.thread_time()
        self.compiled_s = 0.0
        self.visits = [0] * len(wave.blocks)
        count = len(wave.launch.code.instructions)
        self.c = c = np.zeros(Field.SIZE, np.int64)
        self.counts = Counts(len(wave.blocks), count)
        self.table = MemoryTable(count)
        self.warps = Warps(wave, c)
        self.frames = Frames(wave, program, c)
        self.handover = Handover(wave, c, self.warps, self.frames)
        self.heap = Heap(wave, self.warps, self.frames)
        self.error: BaseException | None = None
        self.callback = CALLBACK(self._answer)
        shared = (Field.SHARED, wave.shared), (Field.PARAMETERS, wave.launch.param_allocation.data)
        arrays = (*self.counts.fields(), *self.warps.fields(), *self.frames.fields(), *shared)
        for key, array in (*arrays, (Field.HINTS, self.table.hints)):
            c[key] = address_of(array)
        c[Field.SHARED_STRIDE] = wave.shared_stride
        c[Field.SHARED_BEGIN] = wave.launch.shared_begin
        c[Field.SHARED_END] = SHARED_BASE + wave.launch.shared_bytes
        c[Field.COUNTING] = wave.tally.traffic
        c[Field.LOCK] = address_of(wave.launch.machine.atomics.word)
        c[Field.CALLBACK] = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        self.context = address_of(c)

    @staticmethod
    def of(wave: HostWave, program: NativeProgram | None) -> NativeWave | None:
        """For a wave that machine code can serve; None for others, such as those whose accesses are checked for races."""
        launch = wave.launch
        hooks = wave.races or wave.generic_writes or wave.steps is not None or wave.queue.times is not None
        if program is None or not is_installed() or hooks or wave.ranked or wave.arithmetic:
            return None
        settings = launch.settings
        checks = settings.initcheck or settings.max_instructions is not None or settings.observer is not None
        if checks or launch.footprint is not None:
            return None
        return NativeWave(wave, program)

    # -- choice ------------------------------------------------------------------------------------------------------

    def step(self, group: Group, block: BasicBlock, alone: bool) -> int:
        """Execute ``block`` and what follows by machine code, if there is any; returns the number of blocks, 0 for none.

        Args:
            alone: the scheduler has selected the group in turn, not as the one that its order puts first, so that no other one
                takes part: machine code would execute that first, and perhaps nothing of this one.
        """
        index = block.index
        function = self.program.functions.get(block.function.entry)
        if function is None or index not in function.blocks:
            self.visits[index] += 1
            if self.visits[index] % HOT or block.gate is not None or not self._compile(block.function):
                return 0
            function = self.program.functions[block.function.entry]
            if index not in function.blocks:
                return 0
        wave, frame = self.wave, group.frame
        if block.gate is not None and not self._opens(group, block):
            return 0
        if group.resume or wave.divergence.open or frame.undefined_bits & function.touched_bits:
            return 0
        return self._run(function, group, index, alone)

    def _opens(self, group: Group, block: BasicBlock) -> bool:
        """Whether machine code certainly lets a group pass a gate: the group waits for no other thread at a barrier of its CTA.

        At other gates, machine code has not let the lanes pass, or lanes have waited.
        """
        complete = group.lanes == self.wave.live_lanes and not self.wave.waiting
        return complete and isinstance(block.gate, BarrierGate)

    def _compile(self, code: FunctionCode) -> bool:
        """Compile the blocks of a function that have been executed often, once that is likely to pay."""
        began = time.thread_time()
        spent = began - self.began - self.compiled_s
        if spent < max(AFTER_S, self.compiled_s):
            return False
        if not can_compile():
            return False
        usable = self._usable(code)
        if sum(len(b.instructions) for b in usable) > WHOLE:
            usable = [b for b in usable if self.visits[b.index] >= HOT // 2]
        hot = [b.index for b in usable]
        if hot:
            self.program.compile(code, hot)
        self.compiled_s += time.thread_time() - began
        return bool(hot)

    def _usable(self, code: FunctionCode) -> list[BasicBlock]:
        """The blocks of a function that may be executed by machine code."""
        return [b for b in self.wave.blocks if b.function is code and self.program.can_execute(b)]

    # -- execution ---------------------------------------------------------------------------------------------------

    def _run(self, function: NativeFunction, group: Group, index: int, alone: bool) -> int:
        wave, c, frame = self.wave, self.c, group.frame
        groups = [(group, index)]
        limit = NOWHERE
        usable = [] if alone else [k for k, g in wave.ready.items() if g.frame is frame and k[2] == 0]
        apart = len(usable) < len(wave.ready)
        if apart:  # groups that have yielded are executed after those that do not take part
            group.yielded = 0
            usable = [k for k in usable if not wave.ready[k].yielded]
            others = [] if alone else [k for k in wave.ready if k not in usable and not wave.ready[k].yielded]
            limit = min((k[1] for k in others if wave.ready[k].frame.depth == frame.depth), default=NOWHERE)
        for key in usable:
            groups.append((wave.ready.pop(key), key[1]))
        c[Field.MAY_YIELD] = not apart
        storage = self.frames.storage(function, frame)
        storage.take(frame, function.touched)
        self.warps.select(groups)
        self._locate(storage, frame)
        rows = self.warps.count
        c[Field.LIMIT] = limit
        c[Field.GATES] = not wave.waiting
        steps = c[Field.STEPS] = max(64, min(4096, WORK // (rows * LANES)))
        c[Field.STORED] = c[Field.TICKS] = c[Field.LEVEL] = c[Field.SPUN] = 0
        c[Field.LOCAL_BASE] = frame.local_base
        self.frames.begin(frame, function)
        wave.launch.machine.atomics.share(lock_function())
        status = self.program.run(self.context, function)
        storage.give(frame, function.written)
        wave.ticks += int(c[Field.TICKS])
        if c[Field.STORED]:
            wave.launch.machine.version += 1
        if status == Status.FAILED:
            error, self.error = self.error, None
            assert error is not None
            raise error
        wave.spinning |= bool(c[Field.SPUN])
        self.handover.finish(groups, status)
        return int(steps - c[Field.STEPS])

    def _locate(self, storage: Storage, frame: Frame) -> None:
        """Where memory is."""
        c, wave = self.c, self.wave
        self.table.refresh(c, wave)
        self._locate_stack()
        c[Field.REGISTERS] = storage.address
        c[Field.BLOCKS] = address_of(self.warps.standing)
        for name, n in self.program.places[frame.function.entry].frame.items():
            offset = frame.function.frame_offsets.get(name)
            storage.constants[n] = frame.local_base + offset if offset is not None else frame.bindings.get(name, -1)
        c[Field.FRAME] = address_of(storage.constants)

    def _locate_stack(self) -> None:
        """Where local memory is, and which of it is undefined: numpy makes both when they are first needed."""
        c, wave = self.c, self.wave
        check = None if wave.instrumentation is None else wave.instrumentation.check
        c[Field.LOCAL] = address_of(wave.local)
        c[Field.LOCAL_BYTES] = wave.local.shape[1]
        c[Field.UNDEFINED] = 0 if check is None or not check.has_stack else address_of(check.local_marks())

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def _answer(self, request: int, number: int, first: int) -> int:
        """Do what machine code asks for; not 0 if it cannot go on with the next instruction."""
        try:
            if request == Request.STORAGE:
                self.frames.provide(self.program.codes[number], first)
                return 0
            level = int(self.c[Field.LEVEL])
            if request == Request.SEGMENT and self._compute(level, number, first):
                return 0
            if request == Request.BUILTIN and self.heap.perform(self._call_of(number), level):
                self.table.refresh(self.c, self.wave)
                return 0
            frame = self.frames.at(level)
            answer = self._by_driver(frame, number) if request == Request.BUILTIN else self._segment(frame, number, first)
            self._locate_stack()
            return answer
        except BaseException as error:  # noqa: BLE001  raised again when machine code has returned
            self.error = error
            return 1

    def _compute(self, level: int, number: int, first: int) -> bool:
        """Execute a segment of pure instructions; false for other segments. The registers that it reads are defined."""
        function, storage = self.frames.storage_at(level)
        found = function.pure(number)
        if found is None:
            return False
        c, warps, count = self.c, self.warps, int(self.c[Field.ACTIVE_ROWS])
        c[Field.STEPS] = max(0, int(c[Field.STEPS]) - NUMPY_STEPS)
        compute(found, storage, warps.row[warps.active_row[first:count]], warps.active_mask[first:count])
        return True

    def _by_driver(self, frame: Frame, index: int) -> int:
        """The active lanes call a function that the driver provides."""
        call = self._call_of(index)
        assert call.builtin is not None
        group = self.warps.group(frame, 0)
        if self.wave.instrumentation is not None:
            self.wave.instrumentation.decides(group, self.wave.blocks[index])
        call.builtin(group, call.site)
        self.table.refresh(self.c, self.wave)
        return 0

    def _call_of(self, index: int) -> Call:
        call = self.wave.blocks[index].terminator
        assert isinstance(call, Call)
        return call

    def _segment(self, frame: Frame, number: int, first: int) -> int:
        """Execute a segment, and perhaps the rest of its block, by numpy for the active warps from ``first`` on."""
        function, wave = self.frames.functions[frame.function.entry], self.wave
        wave.ticks += int(self.c[Field.TICKS])
        self.c[Field.TICKS] = 0
        self.c[Field.STEPS] = max(0, int(self.c[Field.STEPS]) - NUMPY_STEPS)
        block = wave.blocks[function.translation.segments[number].block]
        group = self.warps.group(frame, first)
        check = None if wave.instrumentation is None else wave.instrumentation.check
        followed = check is not None and check.wants(frame, block)
        self._numpy(function, number, group, followed)
        if not wave.spinning and not (followed and frame.undefined_bits & function.touched_bits):
            return 0
        group = self.warps.group(frame, 0)
        for n in function.rest(number):
            self._numpy(function, n, group, followed)
        return 2

    def _numpy(self, function: NativeFunction, number: int, group: Group, followed: bool) -> None:
        wave, frame = self.wave, group.frame
        found = function.by_numpy(number)
        block = wave.blocks[function.translation.segments[number].block]
        if followed:
            assert wave.instrumentation is not None
            wave.instrumentation.part(group, block, found.instrumented)
        else:
            found.run(frame.registers, group)

    # -- for the scheduler -------------------------------------------------------------------------------------------

    def released(self, frame: Frame) -> None:
        """No thread is in the frame any more: another one may use the arrays of its registers."""
        self.frames.released(frame)

    def add_counts(self) -> None:
        """Add the counts since the last call to the wave's: when it ends, and before a message states them."""
        self.counts.add_to(self.wave.tally, [function.sites for function in self.program.functions.values()])
