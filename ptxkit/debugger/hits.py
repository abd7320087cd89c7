"""Breakpoints during execution: the blocks of a wave that have one, and the threads for which it stops the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.breakpoints import Breakpoint
from ptxkit.debugger.evaluate import truth
from ptxkit.debugger.places import Lane, Place
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.debugger.thread import Thread
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.blocks import BasicBlock
    from ptxkit.emulator.simt.threads import Group


@dataclass(frozen=True)
class Hit:
    """Breakpoints that stop the kernel at one block.

    Attributes:
        numbers: of the breakpoints.
        lane: the thread that becomes the focused one.
        threads: how many threads stop together.
        problems: why conditions could not be evaluated, or ``""``.
    """

    numbers: tuple[int, ...]
    lane: Lane
    threads: int
    problems: str


class BreakpointTable:
    """The breakpoints of one wave by block.

    A group that arrives at a breakpoint is put back and executes its instruction later. ``_announced`` marks the threads that
    have stopped at their current instruction already, so that a breakpoint stops each thread once per execution.

    Args:
        wave: the wave that is executed.
        breakpoints: the list of the session; commands change it while the kernel is stopped.
        thread_at: gives the thread of a lane at a place, in which conditions are evaluated.
    """

    def __init__(self, wave: Wave, breakpoints: list[Breakpoint], thread_at: Callable[[Lane, Place], Thread]) -> None:
        self._wave = wave
        self._breakpoints = breakpoints
        self._thread_at = thread_at
        self._announced: Any = None
        self._at: dict[int, list[Breakpoint]] = {}
        self._placed: tuple[Breakpoint, ...] = ()

    def update(self) -> None:
        """Find the blocks of the breakpoints, if any was added or deleted."""
        if tuple(self._breakpoints) == self._placed:
            return
        functions = {b.function.function.name: b.function for b in self._wave.launch.code.blocks}
        self._at = {}
        for breakpoint_ in self._breakpoints:
            for address in breakpoint_.where.addresses:
                function = functions.get(address.function)
                if function is not None:
                    self._at.setdefault(function.entry + address.position, []).append(breakpoint_)
        self._placed = tuple(self._breakpoints)

    def arrived(self, group: Group, block: BasicBlock, focused: Lane | None) -> Hit | None:
        """The breakpoints that stop a group before it executes a block; None if there are none."""
        if group.resume != 0 or block.index not in self._at:
            return None
        mask = group.full_mask()
        fresh = mask if self._announced is None else mask & ~self._announced
        if not fresh.any():
            return None
        self._announce(mask.copy())
        problems: list[str] = []
        hit: list[Breakpoint] = []
        chosen: Lane | None = None
        for b in self._at[block.index]:
            lane = self._stops_for(b, fresh, Place(group, block), focused) if b.enabled else None
            if lane is None:
                continue
            if b.ignore > 0:
                b.ignore -= 1
                continue
            b.hits += 1
            hit.append(b)
            chosen = chosen or lane
            if b.problem:
                problems.append(f"the condition of breakpoint {b.number} cannot be evaluated: {b.problem}")
                b.problem = ""
        if chosen is None:
            return None
        self._delete_temporary(hit)
        return Hit(tuple(b.number for b in hit), chosen, _stopped_together(hit, fresh), "; ".join(problems))

    def stepped_to(self, place: Place, lane: Lane) -> tuple[int, ...]:
        """Numbers of the breakpoints at the place where a step of a thread has ended; its warp does not stop there again."""
        if place.block.index not in self._at or place.waiting:
            return ()
        single, warp = np.zeros(self._wave.shape, np.bool_), np.zeros(self._wave.shape, np.bool_)
        single[lane.cta, lane.warp, lane.lane] = True
        warp[lane.cta, lane.warp] = True
        stopping = [b for b in self._at[place.block.index] if b.enabled and self._stops_for(b, single, place, lane)]
        for b in stopping:
            b.hits += 1
        self._delete_temporary(stopping)
        self._announce(warp & place.group.full_mask())
        return tuple(b.number for b in stopping)

    def executes(self, group: Group) -> None:
        """Called before a group executes its instruction: it may stop at its next one."""
        if self._announced is not None:
            self._announced &= ~group.full_mask()

    def _announce(self, mask: Any) -> None:
        self._announced = mask if self._announced is None else self._announced | mask

    def _delete_temporary(self, hit: list[Breakpoint]) -> None:
        for b in hit:
            if b.temporary:
                self._breakpoints.remove(b)

    def _stops_for(self, b: Breakpoint, fresh: Any, place: Place, focused: Lane | None) -> Lane | None:
        """The thread of ``fresh`` that a breakpoint stops for, preferably the focused one; None if it stops for none."""
        c, w, k = np.nonzero(fresh)
        if b.thread != (None, None):
            cta, thread = b.thread
            keep = np.ones(len(c), np.bool_)
            if cta is not None:
                keep &= self._wave.ctas[c] == cta
            if thread is not None:
                keep &= w * 32 + k == thread
            c, w, k = c[keep], w[keep], k[keep]
        order = list(range(len(c)))
        if focused is not None:
            mine = np.flatnonzero((c == focused.cta) & (w == focused.warp) & (k == focused.lane))
            order = [*mine.tolist(), *order]
        for n in order:
            lane = Lane(int(c[n]), int(w[n]), int(k[n]))
            if b.condition is None or self._condition_holds(b, lane, place):
                return lane
        return None

    def _condition_holds(self, b: Breakpoint, lane: Lane, place: Place) -> bool:
        assert b.condition is not None
        try:
            return truth(b.condition, self._thread_at(lane, place))
        except UsageError as error:
            b.problem = str(error)
            return True


def _stopped_together(hit: list[Breakpoint], fresh: Any) -> int:
    """The number of threads that stop: all arriving ones if a breakpoint has neither a condition nor a thread, else one."""
    unconditional = any(b.condition is None and b.thread == (None, None) for b in hit)
    return int(np.count_nonzero(fresh)) if unconditional else 1
