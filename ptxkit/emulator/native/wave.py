"""Executes blocks of a wave by machine code, and goes back to its scheduler where that has to decide.

The registers of a frame that machine code accesses are in one array, of which the frame's lane arrays are views, so that numpy
and machine code see the same values.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.counters.tally import UNWRITTEN
from ptxkit.emulator.instructions.branches import Call
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.native import context
from ptxkit.emulator.native.context import MAX_LEVELS, NOWHERE, SPACES, Field, Level, Request, Status
from ptxkit.emulator.native.machine_code import CALLBACK, is_installed
from ptxkit.emulator.native.program import NativeFunction, NativeProgram
from ptxkit.emulator.native.storage import LevelArrays, Storage, address_of
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.threads import Frame, Group

if TYPE_CHECKING:
    from ptxkit.emulator.native.host import HostWave

HOT = 16
"""Executions of a block after which it is worth compiling."""

AFTER_S = 0.2
"""Seconds of the thread's processor time that a wave must have taken before anything is compiled, so that short launches never
pay for LLVM."""

WHOLE = 2000
"""Instructions of a function that is compiled as a whole; of larger ones, the blocks that are executed often are."""

WORK = 1 << 22
"""Thread blocks (lanes times blocks) after which machine code returns, so that a launch can be stopped."""

NUMPY_STEPS = 32
"""The number of blocks as which a segment that numpy executes counts."""

_BITS = np.arange(32, dtype=np.uint32)


class NativeWave:
    """The machine code of one wave."""

    def __init__(self, wave: HostWave, program: NativeProgram) -> None:
        self.wave = wave
        self.program = program
        self.began = time.thread_time()
        self.compiled_s = 0.0
        self.visits = [0] * len(wave.blocks)
        count = len(wave.launch.code.instructions)
        rows = wave.shape[0] * wave.shape[1]
        self.c = np.zeros(Field.SIZE, np.int64)
        self.row = np.zeros(rows, np.int32)
        self.cta = np.zeros(rows, np.int32)
        self.standing = np.zeros((rows, LANES), np.uint32)
        self.active_row = np.zeros(rows, np.int32)
        self.active_mask = np.zeros(rows, np.uint32)
        self.taken = np.zeros(rows, np.uint32)
        self.block_lanes = np.zeros(len(wave.blocks), np.int64)
        self.block_warps = np.zeros(len(wave.blocks), np.int64)
        self.predicated = np.zeros(count, np.int64)
        self.branches = np.zeros(count, np.int64)
        self.divergent = np.zeros(count, np.int64)
        self.unwritten = np.zeros(count, np.int64)
        self.hints = np.zeros(count, np.int64)
        self.traffic = np.zeros((count, len(SPACES), 4), np.int64)
        self.memory = np.zeros((count * len(SPACES), 36), np.int64)
        self.sizes: dict[int, int] = {}
        self.table: tuple[Allocation, ...] = ()
        self.marked: tuple[bool, ...] = ()  # allocations to which undefined bytes were copied
        self.arrays: list[NDArray[np.generic]] = []
        self.storages: dict[int, Storage] = {}
        self.free: dict[int, list[Storage]] = {}
        self.error: BaseException | None = None
        self.groups: dict[tuple[int, bytes, bytes], Group] = {}
        self.callback = CALLBACK(self._answer)
        self.levels = np.zeros((MAX_LEVELS, Level.SIZE), np.int64)
        self.code = np.zeros(len(program.codes), np.int64)
        self.storage = np.zeros((len(program.codes), MAX_LEVELS), np.int64)
        self.calls: dict[int, LevelArrays] = {}  # by level
        self.functions: dict[int, NativeFunction] = {}  # by entry, of the machine code that is being executed
        self.frames: list[Frame] = []  # of the calls that machine code has made, as far as Python needed them
        c = self.c
        for key, array in (
            (Field.ROW, self.row),
            (Field.CTA, self.cta),
            (Field.BLOCKS, self.standing),
            (Field.ACTIVE_ROW, self.active_row),
            (Field.ACTIVE_MASK, self.active_mask),
            (Field.TAKEN, self.taken),
            (Field.SHARED, wave.shared),
            (Field.BLOCK_LANES, self.block_lanes),
            (Field.BLOCK_WARPS, self.block_warps),
            (Field.PREDICATED, self.predicated),
            (Field.BRANCHES, self.branches),
            (Field.DIVERGENT, self.divergent),
            (Field.UNWRITTEN, self.unwritten),
            (Field.HINTS, self.hints),
            (Field.TRAFFIC, self.traffic),
            (Field.MEMORY, self.memory),
            (Field.PARAMETERS, wave.launch.param_allocation.data),
            (Field.LEVELS, self.levels),
            (Field.CODE, self.code),
            (Field.STORAGE, self.storage),
        ):
            c[key] = address_of(array)
        c[Field.SHARED_STRIDE] = wave.shared_stride
        c[Field.SHARED_BEGIN] = wave.launch.shared_begin
        c[Field.SHARED_END] = SHARED_BASE + wave.launch.shared_bytes
        c[Field.COUNTING] = wave.tally.traffic
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
            alone: the scheduler executes the groups in turn, not the one at the lowest block first.
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
        if group.resume or group.yielded or wave.divergence.open or frame.undefined_bits & function.touched_bits:
            return 0
        return self._run(function, group, index, alone)

    def _compile(self, code: FunctionCode) -> bool:
        """Compile the blocks of a function that have been executed often, once that is likely to pay."""
        began = time.thread_time()
        spent = began - self.began - self.compiled_s
        if spent < AFTER_S or spent < self.compiled_s:
            return False
        wave = self.wave
        usable = [b for b in wave.blocks if b.function is code and b.gate is None and not self._polls(b)]
        if sum(len(b.instructions) for b in usable) > WHOLE:
            usable = [b for b in usable if self.visits[b.index] >= HOT // 2]
        hot = [b.index for b in usable]
        if hot:
            self.program.compile(code, hot)
        self.compiled_s += time.thread_time() - began
        return bool(hot)

    def _polls(self, block: BasicBlock) -> bool:
        """Whether a block has loads after which other groups are to be executed first."""
        return any(
            i.name == "ld" and {"volatile", "relaxed", "acquire"} & set(i.opcode.split("."))
            for _, i in block.instructions
        )

    # -- execution ---------------------------------------------------------------------------------------------------

    def _run(self, function: NativeFunction, group: Group, index: int, alone: bool) -> int:
        wave, c, frame = self.wave, self.c, group.frame
        groups = [(group, index)]
        limit = NOWHERE
        for key in () if alone else list(wave.ready):
            other = wave.ready[key]
            if other.yielded or other.frame.depth != frame.depth:
                continue
            if other.frame is frame and key[2] == 0:
                groups.append((other, key[1]))
                del wave.ready[key]
            else:
                limit = min(limit, key[1])
        storage = self._storage(function, frame)
        storage.take(frame, function.touched)
        self._select(groups)
        self._locate(storage, frame)
        rows = int(c[Field.ROWS])
        c[Field.LIMIT] = limit
        steps = c[Field.STEPS] = max(64, min(4096, WORK // (rows * LANES)))
        c[Field.STORED] = c[Field.TICKS] = c[Field.LEVEL] = 0
        c[Field.LOCAL_BASE] = frame.local_base
        self.functions = dict(self.program.functions)  # another wave may replace some of them meanwhile
        self.functions[frame.function.entry] = function
        for entry, found in self.functions.items():
            self.code[self.program.numbers[entry]] = found.compiled.address
        self.groups.clear()
        self.frames = [frame]
        status = function.compiled.run(self.context)
        storage.give(frame, function.written)
        wave.ticks += int(c[Field.TICKS])
        if c[Field.STORED]:
            wave.launch.machine.version += 1
        if status == Status.FAILED:
            error, self.error = self.error, None
            assert error is not None
            raise error
        if c[Field.LEVEL]:
            self._unwind(groups, status)
        else:
            self._leave(groups, status)
        return int(steps - c[Field.STEPS])

    def _select(self, groups: list[tuple[Group, int]]) -> None:
        """The warps that take part, and where their lanes stand."""
        c, warps = self.c, self.wave.shape[1]
        if len(groups) == 1 and not groups[0][0].rows and groups[0][0].mask is None:
            rows = self.wave.shape[0] * warps
            self.row[:rows] = np.arange(rows, dtype=np.int32)
            self.standing[:rows] = groups[0][1]
        elif len(groups) == 1 and groups[0][0].rows:
            group, index = groups[0]
            rows = len(group.c)
            self.row[:rows] = group.c * warps + group.w
            self.standing[:rows] = index
            if group.mask is not None:
                self.standing[:rows][~group.mask[:, 0]] = NOWHERE
        else:
            standing = np.full((self.wave.shape[0] * warps, LANES), NOWHERE, np.uint32)
            for group, index in groups:
                standing[group.full_mask().reshape(-1, LANES)] = index
            chosen = np.flatnonzero((standing != NOWHERE).any(1))
            rows = len(chosen)
            self.row[:rows] = chosen
            self.standing[:rows] = standing[chosen]
        self.cta[:rows] = self.row[:rows] // warps
        c[Field.ROWS] = rows

    def _storage(self, function: NativeFunction, frame: Frame) -> Storage:
        found = frame.native
        if not isinstance(found, Storage):
            found = frame.native = self._unused(function)
        return found

    def _unused(self, function: NativeFunction) -> Storage:
        pool = self.free.setdefault(function.code.entry, [])
        found = pool.pop() if pool else Storage(function, self.wave.shape)
        found.current = [None] * len(found.views)
        return found

    def released(self, frame: Frame) -> None:
        """No thread is in the frame any more: another one may use its storage."""
        if isinstance(frame.native, Storage):
            self.free.setdefault(frame.function.entry, []).append(frame.native)
            frame.native = None

    def _locate(self, storage: Storage, frame: Frame) -> None:
        """Where memory is."""
        c, wave = self.c, self.wave
        self._refresh()
        check = None if wave.instrumentation is None else wave.instrumentation.check
        c[Field.REGISTERS] = storage.address
        c[Field.BLOCKS] = address_of(self.standing)
        c[Field.LOCAL] = address_of(wave.local)
        c[Field.LOCAL_BYTES] = wave.local.shape[1]
        c[Field.UNDEFINED] = 0 if check is None or not check.has_stack else address_of(check.local_marks())
        for name, n in self.program.places[frame.function.entry].frame.items():
            offset = frame.function.frame_offsets.get(name)
            storage.constants[n] = frame.local_base + offset if offset is not None else frame.bindings.get(name, -1)
        c[Field.FRAME] = address_of(storage.constants)

    def _refresh(self) -> None:
        """Where the allocations are."""
        wave = self.wave
        check = None if wave.instrumentation is None else wave.instrumentation.check
        allocations = wave.launch.machine.memory.allocations()
        marked = () if check is None else tuple([a.undefined_stores is not None for a in allocations])
        if self.table != allocations or marked != self.marked:
            self._read_table(allocations)
            self.table, self.marked = allocations, marked

    def _read_table(self, allocations: tuple[Allocation, ...]) -> None:
        c, n = self.c, len(allocations)
        self.arrays = [
            np.array([a.base for a in allocations], np.uint64),
            np.array([a.base + a.nbytes for a in allocations], np.uint64),
            np.array([address_of(a.data) for a in allocations], np.uint64),
            np.array([-1 if a.sentinel is None else a.sentinel for a in allocations], np.int64),
            np.array([a.undefined_stores is not None for a in allocations], np.int64),
        ]
        fields = (Field.BASE, Field.END, Field.HOST, Field.SENTINEL, Field.NO_STORES)
        for key, array in zip(fields, self.arrays, strict=True):
            c[key] = address_of(array)
        c[Field.ALLOCATIONS] = n
        np.minimum(self.hints, max(0, n - 1), out=self.hints)

    def _leave(self, groups: list[tuple[Group, int]], status: int) -> None:
        """Hand the lanes back to the scheduler."""
        wave, c = self.wave, self.c
        rows = int(c[Field.ROWS])
        standing = self.standing[:rows]
        block = wave.blocks[int(c[Field.BLOCK])] if status != Status.STOPPED else None
        active = self._active_mask(0) if block is not None else None
        if active is not None:
            standing[self.active_row[: len(active)]] = np.where(
                active, np.uint32(NOWHERE), standing[self.active_row[: len(active)]]
            )
        places = [int(p) for p in np.unique(standing) if p != NOWHERE]
        if len(groups) == 1 and active is None and len(places) == 1:
            wave.go(groups[0][0], places[0])
            return
        if len(groups) == 1 and active is not None and not places:
            self._finish(groups[0][0], block, status)
            return
        frame = groups[0][0].frame
        for group, _ in groups:
            wave.retire(group)
        moved = [(wave.new_group(frame, self._mask(standing == p)), p) for p in places]
        if active is not None:
            full = np.zeros((rows, LANES), np.bool_)
            full[self.active_row[: len(active)]] = active
            mine = wave.new_group(frame, self._mask(full))
            for group, place in moved:
                wave.go(group, place)
            self._finish(mine, block, status)
            return
        for group, place in moved:
            wave.go(group, place)

    def _unwind(self, groups: list[tuple[Group, int]], status: int) -> None:
        """Hand the lanes back to the scheduler, of which some are in calls that machine code has made."""
        wave, c = self.wave, self.c
        rows, depth = int(c[Field.ROWS]), int(c[Field.LEVEL])
        frames = [self._frame_at(level) for level in range(depth + 1)]
        for group, _ in groups:
            wave.retire(group)
        inside = np.zeros((rows, LANES), np.bool_)
        block, mine = None, None
        if status != Status.STOPPED:
            block = wave.blocks[int(c[Field.BLOCK])]
            active = self._active_mask(0)
            inside[self.active_row[: len(active)]] = active
            mine = wave.new_group(frames[-1], self._mask(inside))
        for level in range(depth, -1, -1):
            standing = self.calls[level].standing[:rows] if level else self.standing[:rows]
            standing[inside] = NOWHERE
            for place in np.unique(standing).tolist():
                if place != NOWHERE:
                    wave.go(wave.new_group(frames[level], self._mask(standing == place)), place)
            inside |= standing != NOWHERE
        for frame in frames[1:]:
            function = self.functions[frame.function.entry]
            assert isinstance(frame.native, Storage)
            frame.native.give(frame, function.written)
            self.storage[self.program.numbers[frame.function.entry], frame.depth - frames[0].depth] = 0
        if mine is not None:
            self._finish(mine, block, status)

    def _frame_at(self, level: int) -> Frame:
        """The frame of a call that machine code has made; 0 is the frame in which it was entered."""
        for n in range(1, level + 1):
            record = self.levels[n]
            stamp = int(record[Level.STAMP])
            if n < len(self.frames) and self.calls[n].stamp == stamp:
                continue
            del self.frames[n:]
            self.frames.append(self._new_frame(self.frames[n - 1], n))
            self.calls[n].stamp = stamp
        return self.frames[level]

    def _new_frame(self, caller: Frame, level: int) -> Frame:
        record = self.levels[level]
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

    def _finish(self, group: Group, block: BasicBlock | None, status: int) -> None:
        """``group`` has executed ``block`` except for its terminator."""
        assert block is not None
        predicate = self._predicate(group, block)
        if status == Status.TERMINATOR:
            if self.wave.instrumentation is not None:
                self.wave.instrumentation.decides(group, block)
            block.terminator.execute(group, block, predicate)
            return
        assert predicate is not None
        assert block.reconverges is not None
        wave = self.wave
        taken, other = wave.split(group, predicate)
        if taken is not None and other is not None:
            wave.divergence.opened(taken, other, group.frame.serial, block.index, block.reconverges)
        if other is not None:
            wave.go(other, block.next)
        if taken is not None:
            wave.go(taken, block.terminator.successors(block.next)[0])

    @staticmethod
    def _predicate(group: Group, block: BasicBlock) -> Mask | None:
        p = block.terminator.predicate
        if p is None or block.gate is not None:
            return None
        lanes = group.fetch(group.frame.function.register_index[p.register.name])
        assert lanes is not None
        return ~lanes if p.negated else lanes.copy()

    def _active_mask(self, first: int) -> Mask:
        """The active lanes of the active warps from number ``first`` on, (warps, 32)."""
        count = int(self.c[Field.ACTIVE_ROWS])
        bits = self.active_mask[first:count, None] >> _BITS
        return (bits & np.uint32(1)).astype(np.bool_)

    def _mask(self, chosen: Mask) -> Mask:
        """Lanes of the warps that take part, in the wave's shape."""
        full = np.zeros((self.wave.shape[0] * self.wave.shape[1], LANES), np.bool_)
        full[self.row[: len(chosen)]] = chosen
        return full.reshape(self.wave.shape)

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def _answer(self, request: int, number: int, first: int) -> int:
        """Do what machine code asks for; not 0 if it cannot go on with the next instruction."""
        try:
            if request == Request.STORAGE:
                return self._provide(self.program.codes[number], first)
            level = int(self.c[Field.LEVEL])
            frame = self._frame_at(level)
            if request == Request.BUILTIN:
                return self._by_driver(frame, number)
            return self._segment(frame, number, first)
        except BaseException as error:  # noqa: BLE001  raised again when machine code has returned
            self.error = error
            return 1

    def _provide(self, code: FunctionCode, level: int) -> int:
        """Registers for the calls of a function at a level."""
        arrays = self.calls.get(level)
        if arrays is None:
            constants = max((len(p.frame) for p in self.program.places.values()), default=0)
            arrays = self.calls[level] = LevelArrays(len(self.row), constants)
            self.levels[level, Level.STANDING] = address_of(arrays.standing)
            self.levels[level, Level.CONSTANTS] = address_of(arrays.constants)
        storage = self._unused(self.functions[code.entry])
        arrays.storages[code.entry] = storage
        self.storage[self.program.numbers[code.entry], level] = storage.address
        return 0

    def _by_driver(self, frame: Frame, index: int) -> int:
        """The active lanes call a function that the driver provides."""
        call = self.wave.blocks[index].terminator
        assert isinstance(call, Call)
        assert call.builtin is not None
        group = self._group(frame, 0)
        if self.wave.instrumentation is not None:
            self.wave.instrumentation.decides(group, self.wave.blocks[index])
        call.builtin(group, call.site)
        self._refresh()
        return 0

    def _segment(self, frame: Frame, number: int, first: int) -> int:
        """Execute a segment, and perhaps the rest of its block, by numpy for the active warps from ``first`` on."""
        function, wave = self.functions[frame.function.entry], self.wave
        wave.ticks += int(self.c[Field.TICKS])
        self.c[Field.TICKS] = 0
        self.c[Field.STEPS] = max(0, int(self.c[Field.STEPS]) - NUMPY_STEPS)
        block = wave.blocks[function.translation.segments[number].block]
        group = self._group(frame, first)
        check = None if wave.instrumentation is None else wave.instrumentation.check
        followed = check is not None and check.wants(frame, block)
        self._numpy(function, number, group, followed)
        if not followed or not frame.undefined_bits & function.touched_bits:
            return 0
        group = self._group(frame, 0)
        for n in function.rest(number):
            self._numpy(function, n, group, True)
        return 2

    def _group(self, frame: Frame, first: int) -> Group:
        """The active lanes of the active warps from number ``first`` on; the group of a loop is kept."""
        count = int(self.c[Field.ACTIVE_ROWS])
        key = frame.serial, self.active_row[first:count].tobytes(), self.active_mask[first:count].tobytes()
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = self._new_group(frame, first)
        return found

    def _new_group(self, frame: Frame, first: int) -> Group:
        mask = self._active_mask(first)
        rows = self.row[self.active_row[first : first + len(mask)]].astype(np.int64)
        warps = self.wave.shape[1]
        part = None if mask.all() else mask[:, None]
        return Group(self.wave, frame, rows // warps, rows % warps, part, self.wave.tally)

    def _numpy(self, function: NativeFunction, number: int, group: Group, followed: bool) -> None:
        wave, frame = self.wave, group.frame
        found = function.by_numpy(number)
        block = wave.blocks[function.translation.segments[number].block]
        if followed:
            assert wave.instrumentation is not None
            wave.instrumentation.part(group, block, found.instrumented)
        else:
            found.run(frame.registers, group)

    # -- counts ------------------------------------------------------------------------------------------------------

    def add_counts(self) -> None:
        """Add the counts since the last call to the wave's: when it ends, and before a message states them."""
        tally = self.wave.tally
        for function in self.program.functions.values():
            self.sizes.update(function.sizes)
        for b in np.flatnonzero(self.block_warps).tolist():
            tally.block_lanes[b] += int(self.block_lanes[b])
            tally.block_warps[b] += int(self.block_warps[b])
        for n in np.flatnonzero(self.predicated).tolist():
            tally.predicated_lanes[n] = tally.predicated_lanes.get(n, 0) + int(self.predicated[n])
        for n in np.flatnonzero(self.branches).tolist():
            tally.branch(n, int(self.branches[n]), int(self.divergent[n]))
        for n in np.flatnonzero(self.unwritten).tolist():
            tally.add(n, UNWRITTEN, int(self.unwritten[n]))
        for n, s in np.argwhere(self.traffic[..., context.LANES]).tolist():
            lanes, units, fronts, conflicts = (int(v) for v in self.traffic[n, s])
            tally.access(n, SPACES[s], lanes * self.sizes[n], units, fronts, conflicts, lanes)
        counts = (self.block_lanes, self.block_warps, self.predicated, self.branches, self.divergent, self.unwritten)
        for array in (*counts, self.traffic):
            array[...] = 0

