"""Executes a wave: the CTAs that are resident at one time.

Threads that are at the same block in the same frame form a group, and execute the block together. Of the groups that are ready,
the one in the deepest call is executed first, and among those the one at the lowest block: in the layout that compilers choose,
the other groups reach that block later and join it. A group whose wait has failed is executed again after all other groups, so
that a consumer that polls does not keep its producer from running. If no group is ready, or the state of the whole wave repeats
(:mod:`ptxkit.emulator.engine.progress`), the wave is deadlocked, and the error lists where its threads are.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from ptxkit.emulator.arrays import Bytes, Index, Lanes, Mask
from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.engine.calls import WaveCalls
from ptxkit.emulator.engine.divergence import Divergence
from ptxkit.emulator.engine.progress import MIN_STEADY, Progress
from ptxkit.emulator.engine.schedule import RunningLaunch
from ptxkit.emulator.engine.stops import (
    StoppedError,
    deadlocked,
    interrupted,
    listing_of_loops,
    not_resident,
    stop_reason,
)
from ptxkit.emulator.engine.values import WaveValues
from ptxkit.emulator.engine.whereabouts import listing
from ptxkit.emulator.initcheck.meeting import met
from ptxkit.emulator.instrumentation import Instrumentation
from ptxkit.emulator.memory.allocations import POISON, poison
from ptxkit.emulator.memory.layout import SHARED_BASE, align_up
from ptxkit.emulator.native.wave import NativeWave
from ptxkit.emulator.observer import StepHooks
from ptxkit.emulator.racecheck.check import Races
from ptxkit.emulator.simt.asynchronous import Queue
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.hooks import ArithmeticHooks, ProxyHooks, StackHooks
from ptxkit.emulator.simt.random_times import RandomTimes
from ptxkit.emulator.simt.state import MachineState
from ptxkit.emulator.simt.step import Gate, Step
from ptxkit.emulator.simt.threads import Group, P, Synchroniser, WaveState
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.proxies import GenericWrites
from ptxkit.errors import InstructionLimitError, TimeLimitError
from ptxkit.isa.model import Operand, Pair, Register

NATIVE_AFTER = 32
"""Number of blocks after which a wave counts how often each is executed, to choose those worth compiling to machine code."""

PATIENCE = 100_000
"""Number of blocks after which a group that is ready, but that the order never selects, is executed all the same."""


class Wave(WaveCalls, WaveValues):
    """Resident CTAs, and the scheduler that executes them. Its base classes document most of its attributes.

    Attributes:
        number: of the wave, in the order of the grid.
    """

    def __init__(self, launch: RunningLaunch, ctas: Index, tally: Tally, number: int) -> None:
        super().__init__()
        self.launch = launch
        self.blocks = launch.code.blocks
        self.ctas = ctas
        self.tally = tally
        self.number = number
        threads = launch.threads
        warps = -(-threads // 32)
        self.shape = (len(ctas), warps, 32)
        self.cluster_rank = np.arange(len(ctas), dtype=np.int64) % launch.cluster_size
        self.ranked = launch.cluster_size > 1 and launch.code.layout.ranked
        self.shared_stride = align_up(SHARED_BASE + launch.shared_bytes, 1024)
        self.shared: Bytes = np.full(len(ctas) * self.shared_stride, POISON, np.uint8)
        self.local_bytes = 0
        self.local = np.zeros((len(ctas) * warps * 32, 0), np.uint8)
        self.live = None
        self.live_lanes = len(ctas) * warps * 32
        self.ended = None
        self.synchronisers = []
        self._parts: dict[Callable[[WaveState], object], object] = {}
        self.ready = {}
        self.waiting = {}
        self.divergence = Divergence(self)
        eager = launch.settings.completion == "eager"
        self.generic_writes: tuple[ProxyHooks, ...] = () if eager else (GenericWrites(self),)
        self.races = () if launch.hazards is None else (Races(self, launch.hazards),)
        self.steps: StepHooks | None = None
        if launch.settings.timeline is not None:
            followed = launch.settings.timeline.follow(self)
            if followed is not None:
                self.steps, self.races = followed, (*self.races, followed)
        drawn = launch.settings.completion == "random"
        times = RandomTimes(launch.settings.completion_seed, number) if drawn else None
        self.queue = Queue(len(ctas) * warps * 32, eager, self.races, times)
        self.spinning = False
        self.ticks = 0
        self.serial = 0
        self.output: list[str] = []
        self.lost: Mask | None = None
        self.changes = 0  # printed texts: progress that changes no memory
        self.clock_reads = 0
        self.running: tuple[Group, int] | None = None
        self.native = None
        self.yields = 0
        self.instrumentation = Instrumentation.of(
            self, launch.settings, launch.code.has_stack, launch.code.reads_undefined
        )
        self.stack_hooks: tuple[StackHooks, ...] = () if self.instrumentation is None else (self.instrumentation,)
        traps = None if self.instrumentation is None else self.instrumentation.traps
        self.arithmetic: tuple[ArithmeticHooks, ...] = () if traps is None else (traps,)
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
            raise type(error)(self._interrupted(stop_reason(error))) from None
        finally:
            if self.native is not None:
                self.native.add_counts()

    def _interrupted(self, why: str) -> str:
        """The message of a wave that is ended from outside."""
        if self.native is not None:
            self.native.add_counts()
        return interrupted(self, why)

    def _run(self) -> None:
        ready, blocks, machine, launch = self.ready, self.blocks, self.launch.machine, self.launch
        observer = launch.observer
        step = self.step if observer is None else partial(observer.step, self)
        if self.queue.times is not None:
            step = partial(self._step_and_tick, step, self.queue.times)
        progress = Progress(self)
        idle = streak = steady = taken = 0
        version = changes = -1
        while True:
            in_turn = progress.fair
            if len(ready) == 1:
                key, group = ready.popitem()
            elif ready:
                streak += 1
                if in_turn or streak > PATIENCE:
                    in_turn = True
                    streak = 0
                    key = next(iter(ready))
                else:
                    key = min(ready, key=lambda k: (ready[k].yielded, -ready[k].frame.depth, k[1]))
                group = ready.pop(key)
            else:
                if observer is not None and observer.idle(self):
                    continue
                if self.live_lanes == 0:
                    self.ended = None  # what is still in flight was issued while the CTAs that it accesses existed
                    self.queue.finish()
                    return
                if not self.force() and not self.time_out():
                    deadlocked(self, "no thread can go on")
                continue
            self.spinning = False
            self.running = group, key[1]
            if launch.limited:
                self._check_limits(group, blocks[key[1]])
            taken += 1
            if taken == NATIVE_AFTER:
                self.native = NativeWave.of(self, launch.code.native)
            native = self.native if progress.timed is None else None
            done = 0 if native is None else native.step(group, blocks[key[1]], in_turn)
            streak += done
            if not done:
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
            steady = steady + 1 if done < MIN_STEADY else max(steady + 1, MIN_STEADY)
            if steady >= MIN_STEADY and observer is not None and observer.idle(self):
                continue
            if steady >= MIN_STEADY and progress.deadlocked(steady, key[1]):
                if self.queue.times is not None and self.queue.times.advance():
                    continue
                if launch.waits_for_others(self.number, version) or machine.version != version:
                    time.sleep(0.001)  # a CTA of another wave may still set the flag that is polled, or has just set it
                else:
                    where = listing_of_loops(self) if observer is None else listing(self)
                    deadlocked(self, progress.reason(), where, not_resident(self))

    @staticmethod
    def _step_and_tick(
        step: Callable[[Group, BasicBlock], None], times: RandomTimes, group: Group, block: BasicBlock
    ) -> None:
        """A step after which asynchronous operations may complete."""
        step(group, block)
        times.tick()

    def _check_limits(self, group: Group, block: BasicBlock) -> None:
        """Called before each block if the launch has a limit of instructions or is being stopped."""
        launch = self.launch
        if launch.stopped:
            raise StoppedError(self._interrupted(launch.stopped))
        limit = launch.settings.max_instructions
        if limit is not None and not group.resume and launch.count(group.lanes * len(block.instructions)) > limit:
            raise InstructionLimitError(self._interrupted("stopped by max_instructions"))

    def step(self, group: Group, block: BasicBlock) -> None:
        """``group`` executes ``block``, or as much of it as it may execute now."""
        resume = group.resume
        if resume != 1:
            if resume == 0:
                self.tally.block(group, block.index)
                self.ticks += len(block.instructions)
            gate = block.gate
            if gate is not None:
                if self.steps is not None and resume == 0:
                    self.steps.enters(group, block)
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
        if self.steps is not None:
            self.steps.executes(group, block)
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
            if self.lost is not None:
                self._lose(group, block)
        self.executed(group)
        block.terminator.execute(group, block, predicate)

    def executed(self, group: Group) -> None:
        """``group`` has executed a block except for its terminator: if its wait has failed, others are executed first."""
        if self.spinning:
            self.yields += 1
            group.yielded = self.yields
        else:
            group.yielded = 0

    def _lose(self, group: Group, block: BasicBlock) -> None:
        """The collective of ``block`` has an undefined result in the lanes ``self.lost``: mark it as uninitialised there."""
        lost, self.lost = self.lost, None
        number, instruction = block.instructions[0]
        first = instruction.operands[0]
        result = first.first if isinstance(first, Pair) else first
        if lost is not None and isinstance(result, Register):
            k = group.frame.function.register_index[result.name]
            self._checks().lost(group, k, lost, self.launch.code.instructions[number][0])

    def _checks(self) -> Instrumentation:
        """The instrumentation, made when the first undefined value appears."""
        if self.instrumentation is None:
            self.instrumentation = Instrumentation(self, None, None)
        return self.instrumentation

    def undefined_together(
        self, step: Step, where: Where, union: Group, values: list[Lanes], parts: list[tuple[Group, Step]]
    ) -> Shadow | None:
        """See :class:`~ptxkit.emulator.simt.threads.WaveState`."""
        check = None if self.instrumentation is None else self.instrumentation.check
        return None if check is None else met(check, step, where, union, values, parts)

    def collected(
        self, group: Group, result: Operand | None, lost: Mask | None, where: Where, undefined: Shadow | None
    ) -> None:
        """A collective outside of generated code has written the register ``result``; it is undefined in the lanes ``lost``."""
        if not isinstance(result, Register) or (lost is None and self.instrumentation is None):
            return
        k = group.frame.function.register_index[result.name]
        self._checks().written(group, k, undefined)
        if lost is not None:
            self._checks().lost(group, k, lost, where)

    # -- parts -------------------------------------------------------------------------------------------------------

    def part(self, kind: Callable[[WaveState], P]) -> P:
        """The wave's only object of the class ``kind``, made at the first request: the state of one mechanism."""
        found = self._parts.get(kind)
        if found is None:
            found = kind(self)
            self.provide(kind, found)
        return cast(P, found)

    def provide(self, kind: Callable[[WaveState], P], part: P) -> None:
        """Make ``part`` the object that :meth:`part` returns for ``kind``. A Synchroniser is added to :attr:`synchronisers`."""
        self._parts[kind] = part
        if isinstance(part, Synchroniser):
            self.synchronisers.append(part)

    def on_memory(self, machine: MachineState, shared: Bytes) -> Wave:
        """A copy of the wave with other memory, without hooks, and with its own mechanisms."""
        other = copy.copy(self)
        other.launch = self.launch.on_machine(machine)
        other.shared = shared
        other.steps = None
        other.races, other.generic_writes, other.stack_hooks, other.arithmetic = (), (), (), ()
        other._parts, other.synchronisers = {}, []
        other.queue = Queue(self.queue.threads, True)
        return other

    def force(self) -> bool:
        """No thread can continue: perform asynchronous operations that threads wait for. False if there are none."""
        if self.queue.times is not None and self.queue.times.advance():
            return True
        return sum(s.force() for s in self.synchronisers) > 0

    def time_out(self) -> bool:
        """No thread can continue: end the waits that hardware ends after a time limit. False if there are none."""
        return sum(s.time_out() for s in self.synchronisers) > 0

    def gate_at(self, block: int) -> Gate | None:
        """The gate of a block, or None."""
        return self.blocks[block].gate

    def after(self, block: int) -> int:
        """The index of the block that follows ``block`` in the PTX."""
        return self.blocks[block].next

    # -- output ------------------------------------------------------------------------------------------------------

    def flush_output(self) -> None:
        """Pass the text that printf has collected to the launch."""
        if self.output:
            self.launch.write_output("".join(self.output))
            self.output.clear()

    # -- for messages ------------------------------------------------------------------------------------------------

    def parked_groups(self) -> list[tuple[Group, int]]:
        """Every group that waits for other threads or for an mbarrier, with its block."""
        places = [(g, b) for (_, b), g in self.waiting.items()]
        return places + [place for s in self.synchronisers for place in s.waiting()]

    def standing(self) -> list[tuple[Group, int]]:
        """Every group that waits or is ready, with its block."""
        return self.parked_groups() + [(g, key[1]) for key, g in self.ready.items()]

    def waits_for(self, group: Group, block: BasicBlock) -> str:
        """What ``group``, at ``block``, waits for: ``", at barrier 0 with ..."``; ``""`` where an aligned instruction waits."""
        numbers = [n for n, _ in block.instructions]
        found = next(filter(None, (s.note(group, numbers) for s in self.synchronisers)), "")
        if not found and block.gate is not None and any(g is group for g in self.waiting.values()):
            return block.gate.note(group)
        return found
