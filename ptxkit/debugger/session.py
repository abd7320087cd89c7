"""A debugging session: breakpoints, stepping and access to the state of a stopped kernel.

::

    with ptxkit.debug(saxpy, np.float32(2), x, y, np.int32(n), grid=4, block=256) as session:
        session.break_at("saxpy.cu:12")
        stop = session.run()
        assert stop.thread(3)["i"] == 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.arguments import COORDINATES, FLAG, NOTHING, TEXT, WHOLE, check, takes, whole
from ptxkit.debugger.breakpoints import Breakpoint, Watchpoint, Where, resolve
from ptxkit.debugger.controller import AbandonedError, Controller, Event, Focus, linear
from ptxkit.debugger.plans import Plan
from ptxkit.debugger.stop import Coordinates, Stop, ThreadView
from ptxkit.debugger.subject import Subject
from ptxkit.debugger.syntax import parse
from ptxkit.errors import PtxkitError, UsageError

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import EmulatingDevice

Extent = tuple[int, int, int]


class Session:
    """A debugging session of one kernel or one sequence of launches.

    Args:
        device: the emulator that the kernels are loaded on.
        subjects: the kernels that ``target`` launches, in their order.
        target: launches them; its return value is the outcome of the last stop.
        settings: of the emulator, such as ``completion`` and ``racecheck``.
        geometry: (grid, block) of the first launch, where they are known.
    """

    def __init__(
        self,
        device: EmulatingDevice,
        subjects: Sequence[Subject],
        target: Callable[[], Any],
        settings: Mapping[str, Any] | None = None,
        geometry: tuple[Extent, Extent] | None = None,
    ) -> None:
        if not subjects:
            raise UsageError("there is no kernel to debug")
        self.device = device
        self.subjects = {s.entry: s for s in subjects}
        self.settings = dict(settings or {})
        self._target = target
        self._geometry = geometry
        self.controller = Controller(self.subjects)
        self.stop: Stop | None = None
        self.outcome: Any = None
        self.locking = "step"
        self._numbers = 0
        self._memory: dict[int, np.ndarray[Any, Any]] | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the run at its current position."""
        if self.running:
            self.controller.abandon()
        self._over()

    @property
    def running(self) -> bool:
        """Whether the kernel has been started and has not ended."""
        return self.stop is not None and not self.stop.ended

    # -- breakpoints --------------------------------------------------------------------------------------

    @takes(location=TEXT, condition=TEXT | NOTHING, thread=COORDINATES | NOTHING, cta=COORDINATES | NOTHING)
    def break_at(
        self,
        location: str,
        condition: str | None = None,
        *,
        thread: Coordinates | None = None,
        cta: Coordinates | None = None,
        temporary: bool = False,
    ) -> Breakpoint:
        """Stop before the instructions of a source line, a PTX line or a function.

        Args:
            location: ``"saxpy.cu:12"``, ``"saxpy.ptx:40"``, ``"12"`` in the file of the last stop, or ``"saxpy"``.
            condition: an expression; only threads for which it holds stop the kernel.
            thread, cta: stop for this thread or CTA only; linear, or (x, y, z) once the kernel runs.
            temporary: delete the breakpoint when it is hit.

        Raises:
            UsageError: no code at the location, or no expression.
        """
        where = self.location(location)
        node = parse(condition) if condition else None
        self._numbers += 1
        made = Breakpoint(self._numbers, where, node, condition or "", self._numbered(cta, thread), temporary)
        self.controller.breakpoints.append(made)
        return made

    @takes(text=TEXT)
    def location(self, text: str) -> Where:
        """The instructions that a location means; see :meth:`break_at`."""
        if not text.strip() and self.running:
            at = self.here
            return resolve(f"{at.ptx_file}:{at.ptx_line}", self._modules(), self.subjects)
        file = self.stop.file if self.running and self.stop is not None and self.stop.file else self._main_file()
        return resolve(text, self._modules(), self.subjects, file)

    @takes(expression=TEXT)
    def watch(self, expression: str) -> Watchpoint:
        """Stop after each instruction that changes the value of an expression, as the focused thread evaluates it.

        Something in memory is watched at its address, whichever thread writes it.
        """
        node = parse(expression)
        focus = self.controller.focus
        made = Watchpoint(self._numbers + 1, expression.strip(), node, (focus.cta, focus.thread))
        if self.running and self.controller.lane() is not None:
            self.view().evaluate(expression)  # report an unknown name now
            self.controller.changed(made)
        self._numbers += 1
        self.controller.watchpoints.append(made)
        return made

    @takes(number=WHOLE)
    def delete(self, number: int) -> None:
        """Remove a breakpoint or watchpoint.

        Raises:
            UsageError: no breakpoint has this number.
        """
        found = self.point(number)
        if isinstance(found, Breakpoint):
            self.controller.breakpoints.remove(found)
        else:
            self.controller.watchpoints.remove(found)

    @takes(number=WHOLE)
    def point(self, number: int) -> Breakpoint | Watchpoint:
        """The breakpoint or watchpoint of a number."""
        points: list[Breakpoint | Watchpoint] = [*self.controller.breakpoints, *self.controller.watchpoints]
        found = next((p for p in points if p.number == number), None)
        if found is None:
            raise UsageError(f"no breakpoint {number}; there is {', '.join(str(p.number) for p in points) or 'none'}")
        return found

    def _modules(self) -> list[Any]:
        return [s.module for s in self.subjects.values()]

    def _main_file(self) -> str | None:
        from ptxkit.debugger.breakpoints import chain

        for s in self.subjects.values():
            for i in s.module.functions[s.entry].instructions:
                if chain(i):
                    return chain(i)[0][0]
            return s.module.path
        return None

    # -- running --------------------------------------------------------------------------------------

    @takes(stop_at_entry=FLAG)
    def run(self, *, stop_at_entry: bool = False) -> Stop:
        """Start the kernel, or restart it with the memory as it was at the first start.

        Args:
            stop_at_entry: stop before the first instruction.

        Returns:
            The first stop: a breakpoint, a fault, or the end.

        Raises:
            PtxkitError: the kernel cannot be launched at all.
        """
        if self.running:
            self.controller.abandon()
        old = self.controller
        self.controller = Controller(
            self.subjects, old.breakpoints, old.watchpoints, Focus(old.focus.cta, old.focus.thread)
        )
        for watch in self.controller.watchpoints:
            watch.seen, watch.nbytes, watch.old = False, 0, None
        self._restore_memory()
        if stop_at_entry:
            self.break_at(next(iter(self.subjects)), temporary=True)
        self.outcome = None
        return self._stopped(self.controller.start(self._observed, Plan("continue")))

    def _observed(self) -> Any:
        with self.device.settings(**self.settings, observer=self.controller):
            return self._target()

    def resume(self) -> Stop:
        """Resume all threads until the next stop."""
        return self._go(Plan("continue"))

    def stepi(self, count: int = 1) -> Stop:
        """Let the focused thread execute ``count`` instructions."""
        return self._go(self._stepping("stepi", count))

    def nexti(self, count: int = 1) -> Stop:
        """Let the focused thread execute ``count`` instructions; a call counts as one instruction."""
        return self._go(self._stepping("nexti", count))

    def step(self, count: int = 1) -> Stop:
        """Let the focused thread execute to another source line, ``count`` times, also into functions."""
        return self._go(self._stepping("step", count))

    def next(self, count: int = 1) -> Stop:
        """Let the focused thread execute to another source line, ``count`` times, without stopping in called functions."""
        return self._go(self._stepping("next", count))

    def finish(self) -> Stop:
        """Let the focused thread return from its function."""
        if self.view().depth == 0:
            raise UsageError("finish: the thread is in the kernel itself, which has no caller; use 'continue'")
        return self._go(Plan("finish"))

    @takes(location=TEXT | NOTHING)
    def until(self, location: str | None = None) -> Stop:
        """Let the focused thread execute to a location, or without one to a later line, so that a loop runs to its end."""
        if location is None:
            return self._go(self._stepping("until", 1))
        focus = self.controller.focus
        made = self.break_at(location, temporary=True)
        made.thread = focus.cta, focus.thread
        try:
            return self.resume()
        finally:
            if made in self.controller.breakpoints:
                self.controller.breakpoints.remove(made)

    def _stepping(self, kind: str, count: int) -> Plan:
        check(f"{kind}: count", count, whole(1))
        view = self.view()
        if view.state in ("exited", "not started", "finished"):
            raise UsageError(
                f"{view.name} has {'not started' if view.state == 'not started' else 'ended'}; select another thread"
            )
        return Plan(kind, count, solo=self.locking == "step")

    def _go(self, plan: Plan) -> Stop:
        self.need_running()
        assert self.stop is not None
        return self._stopped(self.controller.resume(plan))

    def _stopped(self, event: Event) -> Stop:
        if self.stop is not None:
            self.stop.current = False
        if event.reason == "failed" and not (isinstance(event.error, PtxkitError) and self.controller.launches):
            self._over()
            assert event.error is not None
            raise event.error
        self.stop = Stop(event, self._thread_at)
        if event.reason == "finished":
            self.outcome = event.outcome
        return self.stop

    def need_running(self) -> None:
        """Raise UsageError if no kernel is stopped."""
        if not self.running:
            ended = self.stop is not None
            raise UsageError(
                f"the kernel {'has ended' if ended else 'is not running'}; 'run' starts it{' again' if ended else ''}"
            )

    def _over(self) -> None:
        if self.stop is not None:
            self.stop.current = False
        self.stop = None

    def _restore_memory(self) -> None:
        """Global memory as it was when the session was first run: arrays and module variables."""
        memory = self.device.machine.memory
        if self._memory is None:
            self._memory = {a.base: a.data.copy() for a in memory.allocations()}
            return
        for allocation in memory.allocations():
            if allocation.base in self._memory:
                allocation.data[:] = self._memory[allocation.base]

    # -- focus --------------------------------------------------------------------------------------

    @property
    def here(self) -> ThreadView:
        """The focused thread, in the selected call."""
        return self.view()

    @takes(cta=WHOLE | NOTHING, thread=WHOLE | NOTHING, level=WHOLE | NOTHING)
    def view(self, cta: int | None = None, thread: int | None = None, level: int | None = None) -> ThreadView:
        """A thread; omitted coordinates are those of the focus."""
        self.need_running()
        f = self.controller.focus
        same = cta in (None, f.cta) and thread in (None, f.thread)
        chosen = Focus(f.cta if cta is None else cta, f.thread if thread is None else thread)
        chosen.level = level if level is not None else f.level if same else 0
        return ThreadView(self.controller, chosen)

    def _thread_at(self, thread: Coordinates | None, cta: Coordinates | None) -> ThreadView:
        chosen_cta, chosen = self._numbered(cta, thread)
        return self.view(chosen_cta, chosen)

    @takes(thread=COORDINATES | NOTHING, cta=COORDINATES | NOTHING)
    def focus(self, thread: Coordinates | None = None, cta: Coordinates | None = None) -> None:
        """Select the thread to which commands apply.

        Args:
            thread: linear in the CTA, or (x, y, z). cta: linear in the grid, or (x, y, z).

        Raises:
            UsageError: no such thread.
        """
        chosen_cta, chosen_thread = self._numbered(cta, thread)
        f = self.controller.focus
        self.controller.focus = Focus(
            f.cta if chosen_cta is None else chosen_cta, f.thread if chosen_thread is None else chosen_thread
        )

    def _numbered(self, cta: Coordinates | None, thread: Coordinates | None) -> tuple[int | None, int | None]:
        launch = self.controller.launch
        grid, block = (launch.grid, launch.block) if launch is not None else self._geometry or (None, None)
        return _linear(cta, grid, "CTA", "grid"), _linear(thread, block, "thread", "CTA")


def _linear(value: Coordinates | None, extent: tuple[int, int, int] | None, what: str, whole: str) -> int | None:
    if value is None:
        return None
    parts = [int(value)] if isinstance(value, (int, np.integer)) else [int(v) for v in value]
    if not 1 <= len(parts) <= 3 or min(parts) < 0:
        raise UsageError(f"a {what} is a number, or x,y,z, of at least 0, not {value!r}")
    if extent is None:
        if any(parts[1:]):
            raise UsageError(
                f"{what} ({', '.join(map(str, parts))}): y and z are known once the kernel runs; give a linear index"
            )
        return parts[0]
    count = extent[0] * extent[1] * extent[2]
    inside = parts[0] < count if len(parts) == 1 else all(p < e for p, e in zip(parts, extent, strict=False))
    if not inside:
        raise UsageError(f"no {what} {', '.join(map(str, parts))}: the {whole} has {' x '.join(map(str, extent))}")
    return parts[0] if len(parts) == 1 else linear(parts, extent)


__all__ = ["AbandonedError", "Session"]
