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

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.counters.tally import UNWRITTEN
from ptxkit.emulator.memory.allocations import POISON, Allocation, poison
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.native import context
from ptxkit.emulator.native.context import NOWHERE, SPACES, Field, Status
from ptxkit.emulator.native.machine_code import CALLBACK, is_installed
from ptxkit.emulator.native.operands import LANES
from ptxkit.emulator.native.program import NativeFunction, NativeProgram
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.threads import Frame, Group, Registers

if TYPE_CHECKING:
    from ptxkit.emulator.native.host import HostWave

HOT = 16
"""Executions of a block after which it is worth compiling."""

AFTER_S = 0.2
"""Seconds of the thread's processor time that a wave must have taken before anything is compiled, so that short launches never
pay for LLVM."""

WORK = 1 << 21
"""Thread blocks (lanes times blocks) after which machine code returns, so that a launch can be stopped."""

NUMPY_STEPS = 32
"""The number of blocks as which a segment that numpy executes counts."""

_BITS = np.arange(32, dtype=np.uint32)


def _address(array: NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])


class Storage:
    """The registers of one frame for machine code.

    Attributes:
        bytes: of all rows. views: by register, in the wave's shape. current: what the frame has of them.
    """

    def __init__(self, function: NativeFunction, shape: tuple[int, int, int]) -> None:
        ctas, warps, _ = shape
        places = function.places
        self.bytes = np.full(ctas * warps * places.row_bytes, POISON, np.uint8)
        self.views: list[Lanes] = []
        for k, t in enumerate(places.code.register_types):
            dtype = t.dtype
            strides = (warps * places.row_bytes, places.row_bytes, dtype.itemsize)
            view: Lanes = np.ndarray(shape, dtype, self.bytes, places.offsets[k], strides)
            if dtype.kind == "b":
                view[...] = True
            self.views.append(view)
        self.current: Registers = [None] * len(self.views)
        self.address = _address(self.bytes)
        self.constants = np.zeros(max(1, len(places.frame)), np.int64)

    def take(self, frame: Frame, touched: tuple[int, ...]) -> None:
        """Let the frame's registers be in this storage."""
        registers, current, views = frame.registers, self.current, self.views
        poisons = bool(frame.function.undefined)  # else every register is written before it is read
        for k in touched:
            value = registers[k]
            if value is current[k] and value is not None:
                frame.owned[k] = True
                continue
            view = views[k]
            if value is not None:
                view[...] = value
            elif poisons:
                view[...] = poison(view.dtype)
            registers[k] = current[k] = view
            frame.owned[k] = True
        frame.dirty = True

    def give(self, frame: Frame, written: tuple[int, ...]) -> None:
        """New views for the frame, because address patterns of the old ones are remembered by their identity."""
        registers, current, views = frame.registers, self.current, self.views
        for k in written:
            registers[k] = current[k] = views[k].view()


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
        self.groups: dict[tuple[bytes, bytes], Group] = {}
        self.running: tuple[NativeFunction, Frame] | None = None
        self.callback = CALLBACK(self._by_numpy)
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
        ):
            c[key] = _address(array)
        c[Field.SHARED_STRIDE] = wave.shared_stride
        c[Field.SHARED_BEGIN] = wave.launch.shared_begin
        c[Field.SHARED_END] = SHARED_BASE + wave.launch.shared_bytes
        c[Field.COUNTING] = wave.tally.traffic
        c[Field.CALLBACK] = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        self.context = _address(c)

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
        hot = [
            b.index
            for b in wave.blocks
            if b.function is code and b.gate is None and (self.visits[b.index] >= HOT // 2) and not self._polls(b)
        ]
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
        c[Field.STORED] = c[Field.TICKS] = 0
        self.running = function, frame
        self.groups.clear()
        status = function.compiled.run(self.context)
        storage.give(frame, function.written)
        self.sizes.update(function.sizes)
        wave.ticks += int(c[Field.TICKS])
        if c[Field.STORED]:
            wave.launch.machine.version += 1
        if status == Status.FAILED:
            error, self.error = self.error, None
            assert error is not None
            raise error
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
            pool = self.free.setdefault(function.code.entry, [])
            found = pool.pop() if pool else Storage(function, self.wave.shape)
            found.current = [None] * len(found.views)
            frame.native = found
        return found

    def released(self, frame: Frame) -> None:
        """No thread is in the frame any more: another one may use its storage."""
        if isinstance(frame.native, Storage):
            self.free.setdefault(frame.function.entry, []).append(frame.native)
            frame.native = None

    def _locate(self, storage: Storage, frame: Frame) -> None:
        """Where memory is."""
        c, wave = self.c, self.wave
        check = None if wave.instrumentation is None else wave.instrumentation.check
        allocations = wave.launch.machine.memory.allocations()
        marked = () if check is None else tuple([a.undefined_stores is not None for a in allocations])
        if self.table != allocations or marked != self.marked:
            self._read_table(allocations)
            self.table, self.marked = allocations, marked
        c[Field.REGISTERS] = storage.address
        c[Field.LOCAL] = _address(wave.local)
        c[Field.LOCAL_BYTES] = wave.local.shape[1]
        c[Field.UNDEFINED] = 0 if check is None or not check.has_stack else _address(check.local_marks())
        for name, n in storage_places(frame, self.program).items():
            offset = frame.function.frame_offsets.get(name)
            storage.constants[n] = frame.local_base + offset if offset is not None else frame.bindings.get(name, -1)
        c[Field.FRAME] = _address(storage.constants)

    def _read_table(self, allocations: tuple[Allocation, ...]) -> None:
        c, n = self.c, len(allocations)
        self.arrays = [
            np.array([a.base for a in allocations], np.uint64),
            np.array([a.base + a.nbytes for a in allocations], np.uint64),
            np.array([_address(a.data) for a in allocations], np.uint64),
            np.array([-1 if a.sentinel is None else a.sentinel for a in allocations], np.int64),
            np.array([a.undefined_stores is not None for a in allocations], np.int64),
        ]
        fields = (Field.BASE, Field.END, Field.HOST, Field.SENTINEL, Field.NO_STORES)
        for key, array in zip(fields, self.arrays, strict=True):
            c[key] = _address(array)
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

    def _by_numpy(self, number: int, first: int) -> int:
        """Execute a segment, and perhaps the rest of its block, by numpy for the active warps from ``first`` on."""
        try:
            return self._segment(number, first)
        except BaseException as error:  # noqa: BLE001  raised again when machine code has returned
            self.error = error
            return 1

    def _segment(self, number: int, first: int) -> int:
        assert self.running is not None
        function, frame = self.running
        wave = self.wave
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
        key = self.active_row[first:count].tobytes(), self.active_mask[first:count].tobytes()
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


def storage_places(frame: Frame, program: NativeProgram) -> dict[str, int]:
    """The constants of a frame: name -> position."""
    found = program.functions[frame.function.entry]
    return found.places.frame
