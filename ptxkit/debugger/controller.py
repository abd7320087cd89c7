"""Controls the execution of a kernel: stops it before or after an instruction, and resumes one warp or all of them.

The kernel executes in a separate host thread. When it stops, that thread waits for a command, and until the command comes the
session may read all state. The two threads never execute at the same time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.breakpoints import Breakpoint, Watchpoint
from ptxkit.debugger.hits import BreakpointTable
from ptxkit.debugger.places import Lane, Place, Places, holds, lanes_of, only_of
from ptxkit.debugger.plans import Plan
from ptxkit.debugger.registers import Written, executing
from ptxkit.debugger.thread import Thread
from ptxkit.debugger.watchpoints import Stores, changed
from ptxkit.emulator.instructions.branches import Return
from ptxkit.errors import FaultError

if TYPE_CHECKING:
    from ptxkit.debugger.subject import Subject
    from ptxkit.emulator.engine.schedule import RunningLaunch
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.blocks import BasicBlock
    from ptxkit.emulator.simt.threads import Frame, Group

_FAULTING = re.compile(r"CTA \((\d+), (\d+), (\d+)\), thread \((\d+), (\d+), (\d+)\)")
_FAULTING_TOO = re.compile(r"thread \((\d+), (\d+), (\d+)\) of CTA \((\d+), (\d+), (\d+)\)")


class AbandonedError(BaseException):
    """Raised in the kernel's thread to end it when the session abandons the run."""


@dataclass(frozen=True)
class Event:
    """Why the kernel has stopped.

    Attributes:
        reason: ``"breakpoint"``, ``"watchpoint"``, ``"step"``, ``"exited"`` (the focused thread has ended), ``"fault"``,
            ``"race"``, ``"interrupt"``, ``"finished"`` (everything has ended) or ``"failed"`` (it has ended in an error).
        message: a description; for a fault, its whole text.
        numbers: of the breakpoints or watchpoints that were hit.
        threads: how many threads stopped together.
        error: the exception that ended the run.
        outcome: the return value of the run.
    """

    reason: str
    message: str = ""
    numbers: tuple[int, ...] = ()
    threads: int = 1
    error: BaseException | None = None
    outcome: Any = None


@dataclass
class Focus:
    """The thread that commands apply to: linear index of its CTA in the grid, and of the thread in the CTA."""

    cta: int = 0
    thread: int = 0
    level: int = 0


@dataclass
class _Pending:
    """State recorded before an instruction executes, for the checks after it."""

    group: Group
    block: BasicBlock
    mask: Any
    parked: Any
    had_focus: bool
    stores: Stores | None
    serial: int
    frame: Frame
    frames: int
    returns: tuple[tuple[Frame, int], ...] = ()


@dataclass
class Controller:
    """Controls one run, as the observer of its launches.

    Attributes:
        subjects: entry -> kernel, for the kernels that the run may launch.
        breakpoints, watchpoints: checked while the kernel executes; the session changes them while it is stopped.
        focus: the thread that stepping follows.
        issued: serial number of an asynchronous operation -> the instruction that issued it.
        mbarriers: those that were initialised, by their index among the 8-byte words of the wave's shared memory.
    """

    subjects: dict[str, Subject]
    breakpoints: list[Breakpoint] = field(default_factory=list)
    watchpoints: list[Watchpoint] = field(default_factory=list)
    focus: Focus = field(default_factory=Focus)
    wave: Wave | None = None
    launch: RunningLaunch | None = None
    launches: int = 0

    def __post_init__(self) -> None:
        self.orders: SimpleQueue[Plan | None] = SimpleQueue()
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.interrupted = threading.Event()
        self.plan = Plan("continue")
        self.places: Places | None = None
        self.written: Written | None = None
        self.issued: dict[int, str] = {}
        self.mbarriers: set[int] = set()
        self.done_ctas: set[int] = set()
        self._table: BreakpointTable | None = None
        self._hazards = 0

    # -- called by the session --------------------------------------------------------------------------------------

    def start(self, target: Callable[[], Any], plan: Plan) -> Event:
        """Execute ``target`` on a new thread until the first stop."""
        self.plan = plan
        self.worker = threading.Thread(target=self._work, args=(target,), name="ptxkit-debug", daemon=True)
        self.worker.start()
        return self._next_event()

    def resume(self, plan: Plan) -> Event:
        """Resume until the next stop."""
        self.orders.put(plan)
        return self._next_event()

    def abandon(self) -> None:
        """End the run at its current position."""
        if self.worker.is_alive():
            self.orders.put(None)
            self.worker.join()

    def _next_event(self) -> Event:
        while True:
            try:
                return self.events.get()
            except KeyboardInterrupt:
                self.interrupted.set()  # the kernel stops before its next instruction

    def _work(self, target: Callable[[], Any]) -> None:
        try:
            outcome = target()
        except AbandonedError:
            return
        except BaseException as error:  # noqa: BLE001  passed to the session's thread, which raises all but faults
            self.events.put(Event("failed", str(error), error=error))
            return
        self.events.put(Event("finished", outcome=outcome))

    # -- called by the emulator --------------------------------------------------------------------------------------

    def run(self, wave: Wave) -> None:
        """See :class:`~ptxkit.emulator.observer.Observer`."""
        if wave.launch is not self.launch:
            self.launch = wave.launch
            self.launches += 1
            self.done_ctas = set()
            self._hazards = 0
        self.wave, self.places, self.written = wave, Places(wave), Written(wave)
        self._table = BreakpointTable(wave, self.breakpoints, self._thread_at)
        self.issued, self.mbarriers = {}, set()
        for watch in self.watchpoints:
            watch.seen = watch.seen and watch.space == "global"
        try:
            wave.run()
        except FaultError as fault:
            self._focus_on_fault(str(fault))
            self._stop(Event("fault", str(fault), error=fault))
            raise
        finally:
            self.done_ctas.update(int(c) for c in wave.ctas)
            self.wave = self.places = self.written = self._table = None

    def step(self, wave: Wave, group: Group, block: BasicBlock) -> None:
        """See :class:`~ptxkit.emulator.observer.Observer`."""
        assert self.places is not None
        assert self._table is not None
        if self.interrupted.is_set():
            self.interrupted.clear()
            wave.enter(group, block.index)
            self._stop(Event("interrupt", "interrupted"))
            return
        lane = self.lane()
        if self.plan.solo and lane is not None and not only_of(group, lane.cta, lane.warp):
            wave.enter(group, block.index)
            self.places.isolate(lane.cta, lane.warp)
            return
        self._table.update()
        hit = self._table.arrived(group, block, lane)
        if hit is not None:
            wave.enter(group, block.index)
            if lane != hit.lane:
                self._refocus(hit.lane)
            self._stop(Event("breakpoint", hit.problems, numbers=hit.numbers, threads=hit.threads))
            return
        self._table.executes(group)
        pending = self._before(wave, group, block, lane)
        try:
            wave.step(group, block)
        except FaultError:
            self.places.failed = group, block
            raise
        self._after(wave, pending, lane)

    def idle(self, wave: Wave) -> bool:
        """See :class:`~ptxkit.emulator.observer.Observer`."""
        assert self.places is not None
        self.plan.solo = False  # the focused warp waits, so the others must run
        return self.places.release()

    # -- threads --------------------------------------------------------------------------------------

    def lane(self, focus: Focus | None = None) -> Lane | None:
        """The focused thread in the wave that is executed; None where its CTA is not part of it."""
        focus = focus or self.focus
        if self.wave is None:
            return None
        index = np.flatnonzero(self.wave.ctas == focus.cta)
        if not len(index) or focus.thread >= self.wave.launch.threads:
            return None
        return Lane(int(index[0]), focus.thread // 32, focus.thread % 32)

    def thread(self, lane: Lane, level: int = 0) -> Thread:
        """A thread of the wave that is executed."""
        assert self.wave is not None
        assert self.places is not None
        assert self.written is not None
        subject = self.subjects[self.wave.launch.name]
        return Thread(subject, self.wave, self.places.find(lane), lane, self.written, level)

    def _thread_at(self, lane: Lane, place: Place) -> Thread:
        """A thread at a place that the groups of the wave do not contain at the moment."""
        assert self.wave is not None
        assert self.written is not None
        return Thread(self.subjects[self.wave.launch.name], self.wave, place, lane, self.written)

    def changed(self, watch: Watchpoint) -> str:
        """See :func:`ptxkit.debugger.watchpoints.changed`."""
        return changed(watch, self.wave, partial(self._owner, watch))

    def _owner(self, watch: Watchpoint) -> Thread | None:
        lane = self.lane(Focus(*watch.owner))
        return None if lane is None else self.thread(lane)

    def _refocus(self, lane: Lane) -> None:
        assert self.wave is not None
        self.focus = Focus(int(self.wave.ctas[lane.cta]), lane.thread)

    def _focus_on_fault(self, message: str) -> None:
        assert self.wave is not None
        launch = self.wave.launch
        if match := _FAULTING.search(message):
            numbers = [int(n) for n in match.groups()]
        elif match := _FAULTING_TOO.search(message):
            numbers = [int(n) for n in match.groups()]
            numbers = numbers[3:] + numbers[:3]
        else:
            lane = self.lane()
            if self.places is not None and self.places.failed and not (lane and holds(self.places.failed[0], lane)):
                self._refocus(_first(lanes_of(self.places.failed[0])))
            return
        cta, thread = linear(numbers[:3], launch.grid), linear(numbers[3:], launch.block)
        if cta in self.wave.ctas:
            self.focus = Focus(cta, thread)

    # -- around an instruction --------------------------------------------------------------------------------------

    def _before(self, wave: Wave, group: Group, block: BasicBlock, lane: Lane | None) -> _Pending:
        assert self.places is not None
        parked = None
        if block.gate is not None:
            parked = self._standing(wave, block, group.frame.serial)
        mask = executing(group, block)
        had = lane is not None and self.plan.follows and holds(group, lane)
        if lane is not None and self.plan.follows and parked is not None:
            had = had or bool(parked[lane.cta, lane.warp, lane.lane])
        for watch in self.watchpoints:
            if not watch.seen:
                self.changed(watch)
        stores = Stores(wave, group, block, mask) if self.watchpoints else None
        returns: tuple[tuple[Frame, int], ...] = ()
        if isinstance(block.terminator, Return) and group.frame.parent is not None:
            returns = tuple((group.frame.parent, theirs) for _, theirs in group.frame.reg_returns)
        return _Pending(group, block, mask, parked, had, stores, wave.queue.issued, group.frame, wave.serial, returns)

    def _standing(self, wave: Wave, block: BasicBlock, serial: int) -> Any:
        """Threads of one call that wait at a block, or whose wait has ended and that have not executed it yet."""
        mask = np.zeros(wave.shape, np.bool_)
        for group, at in wave.parked_groups():
            if at == block.index and group.frame.serial == serial:
                mask |= group.full_mask()
        for (frame, at, resume), group in wave.ready.items():
            if at == block.index and resume and frame == serial:
                mask |= group.full_mask()
        return mask

    def _after(self, wave: Wave, p: _Pending, lane: Lane | None) -> None:
        assert self.written is not None
        assert self.places is not None
        if p.block.written:
            mask = p.mask
            if p.parked is not None:
                mask = (mask | p.parked) & ~self._standing(wave, p.block, p.frame.serial)
            self.written.note(p.frame, p.block.written, mask)
        for parent, register in p.returns:
            self.written.note(parent, 1 << register, p.mask)
        if wave.serial != p.frames:
            self._note_arguments(wave, p)
        self._note_operations(wave, p)
        if wave.spinning and self.plan.solo:
            self.plan.solo = False
            self.places.release()
        if p.stores is not None and self._watch(p.stores):
            return
        if wave.launch.hazards is not None and len(wave.launch.hazards.found) > self._hazards:
            found = list(wave.launch.hazards.found.values())
            self._hazards = len(found)
            if lane is None or not holds(p.group, lane):
                self._refocus(_first(np.nonzero(p.mask)))
            self._stop(Event("race", str(found[-1])))
            return
        if p.had_focus and lane is not None:
            self._follow(p, lane)

    def _follow(self, p: _Pending, lane: Lane) -> None:
        """Called when the focused thread may have executed its instruction; stops if the command is complete."""
        assert self.places is not None
        assert self._table is not None
        place = self.places.find(lane)
        if place is None:
            self._stop(Event("exited", "the thread has ended"))
            return
        if place.block is p.block and (place.waiting or place.group.resume != 0):
            return
        solo = self.plan.solo
        if self.plan.arrived(place):
            numbers = self._table.stepped_to(place, lane)
            self._stop(Event("breakpoint" if numbers else "step", numbers=numbers))
        elif solo and not self.plan.solo:
            self.places.release()

    def _note_arguments(self, wave: Wave, p: _Pending) -> None:
        """Called when a call has created frames: marks their register parameters as written."""
        assert self.written is not None
        for group in wave.ready.values():
            frame = group.frame
            if frame.serial > p.frames:
                bits = 0
                for formal in frame.function.function.params:
                    if formal.name in frame.function.register_index:
                        bits |= 1 << frame.function.register_index[formal.name]
                self.written.note(frame, bits, group.full_mask())

    def _note_operations(self, wave: Wave, p: _Pending) -> None:
        place = str(wave.launch.code.instructions[p.block.instructions[0][0]][0]) if p.block.instructions else ""
        for serial in range(p.serial + 1, wave.queue.issued + 1):
            self.issued[serial] = place
        instruction = p.block.instructions[0][1] if p.block.instructions else None
        if instruction is not None and instruction.opcode.startswith("mbarrier.init"):
            stores = p.stores or Stores(wave, p.group, p.block, p.mask)
            self.mbarriers.update(stores.shared_words())

    def _watch(self, stores: Stores) -> bool:
        """Check the watched values; True if the kernel has stopped because one changed."""
        hit: list[tuple[Watchpoint, str]] = []
        for watch in self.watchpoints:
            if watch.enabled:
                text = self.changed(watch)
                if text:
                    watch.hits += 1
                    hit.append((watch, text))
        if not hit:
            return False
        writer = next((lane for watch, _ in hit if (lane := stores.writer(watch)) is not None), None)
        if writer is not None and self.lane() != writer:
            self._refocus(writer)
        message = "; ".join(text for _, text in hit) + f"; written by {stores.where}"
        if writer is None and any(w.nbytes for w, _ in hit):
            message += (
                " (an asynchronous operation that it performs)" if stores.block.gate or not stores.is_store else ""
            )
        self._stop(Event("watchpoint", message, numbers=tuple(w.number for w, _ in hit)))
        return True

    # -- stopping --------------------------------------------------------------------------------------

    def _stop(self, event: Event) -> None:
        """Wait for the next command."""
        if self.wave is not None:
            self.wave.flush_output()
        self.events.put(event)
        order = self.orders.get()
        if order is None:
            raise AbandonedError
        self.plan = order
        if self.places is not None:
            self.places.release()
        lane = self.lane()
        if lane is not None and self.places is not None and order.follows:
            place = self.places.find(lane)
            if place is not None:
                order.begin(place)


def linear(coordinates: Any, extent: tuple[int, int, int]) -> int:
    """The linear index of (x, y, z) in a grid or a block."""
    x, y, z = (*coordinates, 0, 0)[:3]
    return int(x + extent[0] * (y + extent[1] * z))


def _first(found: Any) -> Lane:
    c, w, k = found
    return Lane(int(c[0]), int(w[0]), int(k[0]))
