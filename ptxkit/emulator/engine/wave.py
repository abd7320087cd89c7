"""Runs the CTAs that are resident at one time, all their warps in buckets that stand at the same block.

Scheduling: of the groups that are ready the deepest call goes first, and then the lowest block, because in code as compilers
lay it out everybody else then joins it there. A group that fails a wait is set aside until all others have had their turn,
so a spinning consumer never starves its producer. Groups meeting at a block become one. When nobody is ready, or the state of
the whole wave repeats (:mod:`ptxkit.emulator.engine.progress`), that is a deadlock, and the error says who stands where.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Addresses, Bytes, Index, Lanes, Mask, Shape, Words
from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.engine.divergence import Divergence
from ptxkit.emulator.engine.progress import MIN_STEADY, Progress
from ptxkit.emulator.engine.schedule import RunningLaunch
from ptxkit.emulator.engine.whereabouts import listing
from ptxkit.emulator.instrumentation import Instrumentation
from ptxkit.emulator.lowering.literals import constant
from ptxkit.emulator.lowering.reconvergence import RETURN
from ptxkit.emulator.memory.allocations import POISON, poison
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE, align_up
from ptxkit.emulator.racecheck.check import Races
from ptxkit.emulator.simt.asynchronous import Queue
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.hooks import ProxyHooks, RaceHooks, StackHooks
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.special import static_lanes
from ptxkit.emulator.simt.state import MachineState
from ptxkit.emulator.simt.step import Gate
from ptxkit.emulator.simt.threads import CallSite, Frame, Group, P, Synchroniser, WaveState
from ptxkit.emulator.sync.proxies import GenericWrites
from ptxkit.errors import DeadlockError, FaultError, InstructionLimitError, TimeLimitError
from ptxkit.isa.mangled import base_name
from ptxkit.isa.model import Immediate, Operand, Register, Symbol
from ptxkit.isa.types import PtxType

PATIENCE = 100_000
"""Blocks that others may execute before a group that is ready but never lowest gets a turn."""

STACK_LIMIT = 512 * 1024
"""Bytes of local memory a thread may use, as on hardware."""


def stop_reason(error: BaseException) -> str:
    """How an exception that a signal handler raised begins the message of a wave."""
    return f"{error}," if str(error) else "interrupted"


class StoppedError(Exception):
    """The launch is being interrupted; the message says where the wave's threads are."""


class Wave:
    """Resident CTAs.

    Attributes:
        shape: (CTAs, warps a CTA, 32).
        ctas: linear index in the grid of each CTA.
        number: of the wave, in the order of the grid.
        cluster_rank: rank of each CTA in its cluster; the CTAs of a cluster are consecutive.
        ranked: addresses in shared memory hold the CTA's rank.
        live: lanes that have not exited, or None while all run.
        ended: (CTAs,) which CTAs have no threads left; None while all have, or where none can access another's memory.
    """

    def __init__(self, launch: RunningLaunch, ctas: Index, tally: Tally, number: int) -> None:
        self.launch = launch
        self.blocks = launch.code.blocks
        self.ctas = ctas
        self.tally = tally
        self.number = number
        threads = launch.threads
        warps = -(-threads // 32)
        self.shape: Shape = (len(ctas), warps, 32)
        self.cluster_rank = np.arange(len(ctas), dtype=np.int64) % launch.cluster_size
        self.ranked = launch.cluster_size > 1 and launch.code.layout.ranked
        self.shared_stride = align_up(SHARED_BASE + launch.shared_bytes, 1024)
        self.shared: Bytes = np.full(len(ctas) * self.shared_stride, POISON, np.uint8)
        self.local_bytes = 0
        self.local: Bytes = np.zeros((len(ctas) * warps * 32, 0), np.uint8)
        self.live: Mask | None = None
        self.live_lanes = len(ctas) * warps * 32
        self.ended: Mask | None = None
        self.synchronisers: list[Synchroniser] = []
        self._parts: dict[Callable[[WaveState], object], object] = {}
        self.ready: dict[tuple[int, int, int], Group] = {}
        self.waiting: dict[tuple[int, int], Group] = {}
        self.divergence = Divergence(self)
        eager = launch.settings.completion == "eager"
        self.generic_writes: tuple[ProxyHooks, ...] = () if eager else (GenericWrites(self),)
        self.races: tuple[RaceHooks, ...] = () if launch.hazards is None else (Races(self, launch.hazards),)
        self.queue = Queue(len(ctas) * warps * 32, eager, self.races)
        self.spinning = False
        self.ticks = 0
        self.serial = 0
        self.output: list[str] = []
        self.changes = 0  # reads of clocks and printed texts, which no memory shows
        self.running: tuple[Group, int] | None = None
        self._specials: dict[str, Lanes] = {}
        self._addresses: dict[int, Addresses] = {}
        self._shared_addresses: dict[tuple[int, DTypeLike], Lanes] = {}
        self._yields = 0
        self.instrumentation = Instrumentation.of(self, launch.settings, launch.code.has_stack, launch.code.reads_undefined)
        self.stack_hooks: tuple[StackHooks, ...] = () if self.instrumentation is None else (self.instrumentation,)
        mask: Mask | None = None
        if threads % 32:
            mask = np.broadcast_to(np.arange(warps * 32).reshape(1, warps, 32) < threads, self.shape).copy()
            self.live = mask
            self.live_lanes = len(ctas) * threads
        frame = self._frame(launch.code.entry, None, 0, {})
        self.enter(self.new_group(frame, mask), launch.code.entry.entry)

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute until every thread has exited.

        Raises:
            FaultError: and its children, from the instruction that failed.
        """
        try:
            self._run()
        except (KeyboardInterrupt, TimeLimitError) as error:
            raise type(error)(self.interrupted(stop_reason(error))) from None

    def _run(self) -> None:
        ready, blocks, machine, launch = self.ready, self.blocks, self.launch.machine, self.launch
        observer = launch.observer
        step = self.step if observer is None else partial(observer.step, self)
        progress = Progress(self)
        idle = streak = steady = 0
        version = changes = -1
        while True:
            if len(ready) == 1:
                key, group = ready.popitem()
            elif ready:
                streak += 1
                if progress.fair or streak > PATIENCE:
                    streak = 0
                    key = next(iter(ready))
                else:
                    key = min(ready, key=lambda k: (ready[k].yielded, -ready[k].frame.depth, k[1]))
                group = ready.pop(key)
            else:
                if observer is not None and observer.idle(self):
                    continue
                if self.live_lanes == 0:
                    self.queue.finish()
                    return
                if not self.force() and not self.time_out():
                    self.stuck("no thread can go on")
                continue
            self.spinning = False
            self.running = group, key[1]
            if launch.limited:
                self._check_limits(group, blocks[key[1]])
            step(group, blocks[key[1]])
            now = machine.version
            if self.spinning:
                idle = idle + 1 if now == version else 0
                if idle > 2 * len(ready) and all(g.yielded for g in ready.values()) and self.force():
                    idle = 0
            if now != version or self.changes != changes:
                if steady >= MIN_STEADY:
                    progress.changed()
                version, changes, steady = now, self.changes, 0
                continue
            steady += 1
            if steady >= MIN_STEADY and observer is not None and observer.idle(self):
                continue
            if steady >= MIN_STEADY and progress.deadlocked(steady):
                if launch.waits_for_earlier(self.number):
                    time.sleep(0.001)  # one of its CTAs may have yet to set the flag that is polled
                else:
                    self.stuck("every thread waits in a loop whose registers and memory no longer change")

    def _check_limits(self, group: Group, block: BasicBlock) -> None:
        """Before a block of a launch that is limited or about to be stopped."""
        launch = self.launch
        if launch.stopped:
            raise StoppedError(self.interrupted(launch.stopped))
        limit = launch.settings.max_instructions
        if limit is not None and not group.resume and launch.count(group.lanes * len(block.instructions)) > limit:
            raise InstructionLimitError(self.interrupted("stopped by max_instructions"))

    def step(self, group: Group, block: BasicBlock) -> None:
        """``group`` executes ``block``, or as much of it as it may execute now."""
        resume = group.resume
        if resume != 1:
            if resume == 0:
                self.tally.block(group, block.index)
                self.ticks += len(block.instructions)
            gate = block.gate
            if gate is not None:
                if self.instrumentation is not None:
                    self.instrumentation.gate(group, block)
                guard = block.instructions[0][1].predicate
                if guard is not None and resume == 0:
                    lanes = group.fetch(group.frame.function.register_index[guard.register.name])
                    if lanes is None:
                        lanes = poison(np.bool_)
                    taken, other = self.split(group, ~lanes if guard.negated else lanes)
                    if other is not None:
                        if taken is not None and block.reconverges is not None:
                            self.divergence.opened(taken, other, group.frame.serial, block.index, block.reconverges)
                        self.go(other, block.next)
                    if taken is None:
                        return
                    self.tally.lanes(taken, block.instructions[0][0])
                    group = taken
                passed = gate.enter(group, block.index)
                if passed is None:
                    return
                group = passed
        group.resume = 0
        frame = group.frame
        predicate = None
        if block.fast is not None:
            if frame.dirty and not group.rows:
                frame.owned = [False] * len(frame.owned)
                frame.dirty = False
            if self.instrumentation is not None and self.instrumentation.wants(group, block):
                predicate = self.instrumentation.run(group, block)
            else:
                run = block.general if group.rows or frame.groups != 1 else block.fast
                predicate = run(frame.registers, group)  # type: ignore[misc]
        if self.spinning:
            self._yields += 1
            group.yielded = self._yields
        else:
            group.yielded = 0
        block.terminator.execute(group, block, predicate)

    # -- moving groups -----------------------------------------------------------------------------------------------

    def new_group(self, frame: Frame, mask: Mask | None) -> Group:
        """A group of the lanes in ``mask`` (wave shape; None means all), selected by rows where few warps take part."""
        f: Frame | None = frame
        while f is not None:
            f.groups += 1
            f = f.parent
        if mask is not None:
            rows = mask.any(-1)
            count = int(np.count_nonzero(rows))
            if count * 2 <= rows.size and rows.size > 1:
                c, w = np.nonzero(rows)
                part: Mask | None = mask[c, w][:, None]
                if part is not None and part.all():
                    part = None
                return Group(self, frame, c, w, part, self.tally)
            if count == rows.size and mask.all():
                mask = None
        return Group(self, frame, None, None, mask, self.tally)

    def retire(self, group: Group) -> None:
        """``group`` is no more: split, merged, returned or exited."""
        f: Frame | None = group.frame
        while f is not None:
            f.groups -= 1
            f = f.parent

    def split(self, group: Group, lanes: Mask) -> tuple[Group | None, Group | None]:
        """The lanes of ``group`` for which ``lanes`` (in its selection) holds, and the others; None for an empty part."""
        if lanes.size == 1:
            return (group, None) if lanes.flat[0] else (None, group)
        if group.mask is None:
            if lanes.all():
                return group, None
            if not lanes.any():
                return None, group
            yes = np.broadcast_to(lanes, group.shape)
            no = ~yes
        else:
            yes = lanes & group.mask
            count = int(np.count_nonzero(yes))
            if count == group.lanes:
                return group, None
            if count == 0:
                return None, group
            no = ~lanes & group.mask
        parts = []
        for part in (yes, no):
            full = part
            if group.rows:
                full = np.zeros(self.shape, np.bool_)
                full[group.c, group.w] = part[:, 0]
            g = self.new_group(group.frame, full)
            g.yielded, g.resume = group.yielded, group.resume
            parts.append(g)
        self.retire(group)
        return parts[0], parts[1]

    def join(self, a: Group, b: Group) -> Group:
        """One group of both."""
        mask = a.full_mask() | b.full_mask()
        frame = a.frame
        joined = self.new_group(frame, mask)
        if joined.mask is not None and not joined.rows and self.live is not None and joined.lanes == self.live_lanes:
            joined.mask = self.live
        joined.yielded = min(a.yielded, b.yielded)
        joined.resume = a.resume
        self.retire(a)
        self.retire(b)
        return joined

    def go(self, group: Group, block: int) -> None:
        """``group`` is ready at ``block``."""
        if self.divergence.open:
            self.divergence.reach(group, group.frame.serial, block)
        group.resume = 0
        self.enter(group, block)

    def wake(self, group: Group, block: int, passed: bool) -> None:
        """A waiting group is ready again: past the gate of ``block``, or to try it once more."""
        group.resume = 1 if passed else 2
        group.yielded = 0
        self.enter(group, block)

    def enter(self, group: Group, block: int) -> None:
        """``group``, in the state that ``group.resume`` says, is ready at ``block``."""
        key = (group.frame.serial, block, group.resume)
        other = self.ready.pop(key, None)
        self.ready[key] = group if other is None else self.join(other, group)

    def spin(self) -> None:
        """The running group's wait failed: let all others go first."""
        self.spinning = True

    def park(self, group: Group, block: int) -> None:
        """``group`` waits at ``block`` for others of its warps to arrive there."""
        key = (group.frame.serial, block)
        other = self.waiting.pop(key, None)
        self.waiting[key] = group if other is None else self.join(other, group)

    def parked(self, group: Group, block: int) -> Group | None:
        """Takes out the group that waits where ``group`` has arrived."""
        return self.waiting.pop((group.frame.serial, block), None)

    # -- calls and ends ----------------------------------------------------------------------------------------------

    def _frame(self, code: FunctionCode, parent: Frame | None, base: int, bindings: dict[str, int]) -> Frame:
        self.serial += 1
        need = base + code.frame_bytes
        if need > self.local.shape[1]:
            if need > STACK_LIMIT:
                raise FaultError(
                    f"{base_name(code.function.name)}: stack overflow, "
                    f"a thread needs more than {STACK_LIMIT:,} bytes of local memory"
                )
            width = align_up(max(need, self.local.shape[1] * 2), 16)
            grown = np.full((self.local.shape[0], width), POISON, np.uint8)
            grown[:, : self.local.shape[1]] = self.local
            self.local = grown
        frame = Frame(code, parent, base, bindings, self.serial)
        if self.instrumentation is not None:
            self.instrumentation.entered(frame)
        return frame

    def call(self, group: Group, code: FunctionCode, site: CallSite, back: int) -> None:
        """``group`` enters a function and will come back to block ``back``."""
        caller = group.frame
        base = caller.local_base + caller.function.frame_bytes
        bindings: dict[str, int] = {}
        function = code.function
        frame = self._frame(code, caller, base, bindings)
        frame.back = back
        if self.instrumentation is not None:
            self.instrumentation.called(group, base, code.frame_bytes)
        arguments: tuple[Operand | None, ...] = site.arguments
        for formal, actual in zip(function.params, arguments, strict=True):
            if isinstance(actual, Symbol):
                bindings[formal.name] = caller.variable(actual)
            else:
                k = code.register_index[formal.name]
                value = self._argument(group, actual, code.register_types[k])
                frame.registers[k] = value if not group.rows else self._spread(group, value)
                if self.instrumentation is not None and isinstance(actual, Register):
                    self.instrumentation.passed(group, caller, caller.function.register_index[actual.name], frame, k)
        for formal, actual in zip(function.returns, site.returns, strict=True):
            if isinstance(actual, Symbol):
                bindings[formal.name] = caller.variable(actual)
            elif isinstance(actual, Register):
                frame.reg_returns.append(
                    (code.register_index[formal.name], caller.function.register_index[actual.name])
                )
        frame.groups = 1
        group.frame = frame
        self.go(group, code.entry)

    @staticmethod
    def _argument(group: Group, operand: Operand | None, t: PtxType) -> Lanes:
        """An argument of a call as lanes of the type ``t`` that its parameter has."""
        return constant(operand, t) if isinstance(operand, Immediate) else operand_lanes(group, operand, t.dtype)

    def _spread(self, group: Group, value: Lanes) -> Lanes:
        full = np.zeros(self.shape, value.dtype)
        full[group.c, group.w] = np.broadcast_to(value, group.shape)[:, 0]
        return full

    def leave(self, group: Group) -> None:
        """``group`` returns from its function."""
        frame = group.frame
        parent = frame.parent
        assert parent is not None
        if self.divergence.open:
            self.divergence.reach(group, frame.serial, RETURN)
        values = [(mine, theirs, group.fetch(mine)) for mine, theirs in frame.reg_returns]
        frame.groups -= 1
        group.frame = parent
        for mine, theirs, value in values:
            dtype = parent.function.register_types[theirs].dtype
            if value is None:
                value = poison(dtype)
            elif value.dtype != dtype:
                value = value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)
            group.store(theirs, value)
            if self.instrumentation is not None:
                self.instrumentation.passed(group, frame, mine, parent, theirs)
        self.go(group, frame.back)

    def exit(self, group: Group) -> None:
        """The threads of ``group`` end."""
        self.retire(group)
        if group.lanes == self.live_lanes:
            self.live_lanes = 0
            if self.ranked:
                self._end(np.ones(self.shape[0], np.bool_))
            return
        gone = group.full_mask()
        self.live = ~gone if self.live is None else self.live & ~gone
        self.live_lanes -= group.lanes
        if self.ranked:
            self._end(np.asarray(~self.live.any((1, 2))))
        if self.divergence.open:
            self.divergence.exited(gone)
        for s in self.synchronisers:
            s.threads_left()
        # whoever waits for a lane of its warp that has exited waits no longer
        for (_, block), waiting in list(self.waiting.items()):
            self.waiting.pop((waiting.frame.serial, block))
            self.wake(waiting, block, passed=False)

    def _end(self, ended: Mask) -> None:
        """The CTAs ``ended`` have no threads left: nothing may access their shared memory any more."""
        new = ended if self.ended is None else ended & ~self.ended
        if new.any():
            self.ended = ended
            for races in self.races:
                races.ended(new)

    # -- parts -------------------------------------------------------------------------------------------------------

    def part(self, kind: Callable[[WaveState], P]) -> P:
        """The wave's only object of the class ``kind``, made when it is first asked for: the state of one mechanism."""
        found = self._parts.get(kind)
        if found is None:
            found = kind(self)
            self.provide(kind, found)
        return cast(P, found)

    def provide(self, kind: Callable[[WaveState], P], part: P) -> None:
        """Let ``part`` be what :meth:`part` gives for ``kind``; the scheduler asks it where it is a Synchroniser."""
        self._parts[kind] = part
        if isinstance(part, Synchroniser):
            self.synchronisers.append(part)

    def on_memory(self, machine: MachineState, shared: Bytes) -> Wave:
        """The same threads on other memory, with no hooks, and with mechanisms of their own."""
        other = copy.copy(self)
        other.launch = self.launch.on_machine(machine)
        other.shared = shared
        other.races, other.generic_writes, other.stack_hooks = (), (), ()
        other._parts, other.synchronisers = {}, []
        other.queue = Queue(self.queue.threads, True)
        return other

    def force(self) -> bool:
        """No thread can go on: perform asynchronous operations that one waits for. False if there are none."""
        return sum(s.force() for s in self.synchronisers) > 0

    def time_out(self) -> bool:
        """No thread can go on: end the waits that hardware ends after a time limit. False if there are none."""
        return sum(s.time_out() for s in self.synchronisers) > 0

    def gate_at(self, block: int) -> Gate | None:
        """The gate of a block, or None."""
        return self.blocks[block].gate

    def after(self, block: int) -> int:
        """The block that follows in the text."""
        return self.blocks[block].next

    # -- values ------------------------------------------------------------------------------------------------------

    def special(self, group: Group, name: str) -> Lanes:
        """Lanes of a special register under ``group``'s selection."""
        lanes = self._specials.get(name)
        if lanes is None:
            if name.startswith(("%clock", "%globaltimer")):
                return self._clock(name)
            lanes = self._specials[name] = static_lanes(self, name)
        return group.select(lanes)

    def _clock(self, name: str) -> Lanes:
        self.ticks += 1  # two reads never give the same time
        self.changes += 1
        now = self.ticks if name.startswith("%clock") else self.launch.start_ns + self.ticks
        if name.endswith("_hi"):
            now >>= 32
        wide = name in ("%clock64", "%globaltimer")
        return np.full((1, 1, 1), now if wide else now & 0xFFFFFFFF, np.uint64 if wide else np.uint32)

    def thread_index(self, axis: int) -> Words:
        """%tid along an axis, shape (1, warps, 32)."""
        bx, by, _ = self.launch.block
        linear = np.arange(self.shape[1] * 32).reshape(1, self.shape[1], 32)
        return (linear % bx, linear // bx % by, linear // (bx * by))[axis].astype(np.uint32)

    def local_address(self, group: Group, offset: int) -> Addresses:
        """Address in local memory of a variable of the group's frame."""
        return self._uniform(group.frame.local_base + offset)

    def bound_address(self, group: Group, name: str, offset: int) -> Addresses:
        """Address in local memory of a parameter of the function that ``group`` is in."""
        return self._uniform(group.frame.bindings[name] + offset)

    def shared_address(self, group: Group, offset: int, dtype: DTypeLike) -> Lanes:
        """Address of a byte of shared memory, with the CTA's rank in its cluster."""
        key = offset, dtype
        lanes = self._shared_addresses.get(key)
        if lanes is None:
            lanes = np.full((1, 1, 1), offset, dtype)
            if self.ranked:
                lanes = lanes | (self.cluster_rank << CLUSTER_RANK_SHIFT).astype(lanes.dtype)[:, None, None]
            self._shared_addresses[key] = lanes
        return group.select(lanes)

    def param_address(self, offset: int) -> Addresses:
        """Generic address of a byte of the kernel's parameters."""
        return self._uniform(self.launch.param_allocation.base + offset)

    def _uniform(self, value: int) -> Addresses:
        lanes = self._addresses.get(value)
        if lanes is None:
            lanes = self._addresses[value] = np.full((1, 1, 1), value, np.uint64)
        return lanes

    def cta_coordinates(self, index: int) -> tuple[int, int, int]:
        """Grid coordinates of a CTA of this wave."""
        return self.launch.cta_coordinates(int(self.ctas[index]))

    def thread_coordinates(self, linear: int) -> tuple[int, int, int]:
        """Coordinates of a thread in its CTA."""
        bx, by, _ = self.launch.block
        return linear % bx, linear // bx % by, linear // (bx * by)

    def flush_output(self) -> None:
        """Hand printf's text to the launch."""
        if self.output:
            self.launch.write_output("".join(self.output))
            self.output.clear()

    # -- deadlock ----------------------------------------------------------------------------------------------------

    def parked_groups(self) -> list[tuple[Group, int]]:
        """Every group that waits for other threads or for an mbarrier, with its block."""
        places = [(g, b) for (_, b), g in self.waiting.items()]
        return places + [place for s in self.synchronisers for place in s.waiting()]

    def standing(self) -> list[tuple[Group, int]]:
        """Every group with its block, whether it waits or is ready."""
        return self.parked_groups() + [(g, key[1]) for key, g in self.ready.items()]

    def waits_for(self, group: Group, block: BasicBlock) -> str:
        """What ``group``, at ``block``, waits for: ``", at barrier 0 with ..."``; ``""`` where only its warp is incomplete."""
        numbers = [n for n, _ in block.instructions]
        return next(filter(None, (s.note(group, numbers) for s in self.synchronisers)), "")

    def stuck(self, why: str) -> None:
        """Raise the deadlock error, listing every group that waits or spins."""
        self.flush_output()
        for s in self.synchronisers:
            s.deadlocked()
        raise DeadlockError(f"{base_name(self.launch.name)}: deadlock, {why}:\n  {listing(self)}")

    def interrupted(self, why: str) -> str:
        """The message for a wave that is stopped from outside: where its threads are, and how much they have executed."""
        self.flush_output()
        places = self.standing()
        if self.running is not None and all(g is not self.running[0] for g, _ in places):
            self.waiting[-1, self.running[1]] = self.running[0]  # so that it is listed; nothing runs after this
        sizes = [len(b.instructions) for b in self.blocks]
        executed = sum(t.executed(sizes) for t in self.launch.tallies)
        threads = listing(self, counts=True)
        kernel = base_name(self.launch.name)
        return f"{kernel}: {why} after {executed:,} thread instructions; where its threads are:\n  {threads}"
