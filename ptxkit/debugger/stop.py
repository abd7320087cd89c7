"""A stop of a kernel, and its threads at that stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ptxkit.arguments import COORDINATES, NOTHING, TEXT, takes
from ptxkit.debugger.evaluate import Value
from ptxkit.debugger.show import text_of
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.debugger.controller import Controller, Event, Focus
    from ptxkit.debugger.places import Place
    from ptxkit.debugger.thread import Call, Thread


Coordinates = int | Sequence[int]
"""A thread or a CTA: its linear index, or (x, y, z)."""


class ThreadView:
    """One thread of the stopped kernel. ``view["%r3"]`` is the value of any expression.

    Attributes:
        cta, thread: (x, y, z).
        state: ``"ready"``, ``"waiting"``, ``"exited"``, ``"not started"`` or ``"finished"`` (its CTA is not resident).
    """

    def __init__(self, controller: Controller, focus: Focus) -> None:
        self._controller = controller
        self.focus = focus
        launch = self._controller.launch
        assert launch is not None
        self._launch = launch
        bx, by, _ = launch.block
        t = focus.thread
        self.cta: tuple[int, int, int] = launch.cta_coordinates(focus.cta)
        self.thread: tuple[int, int, int] = (t % bx, t // bx % by, t // (bx * by))
        lane = self._controller.lane(focus)
        self._thread: Thread | None = None if lane is None else self._controller.thread(lane, focus.level)

    @property
    def name(self) -> str:
        """The thread in words: ``thread (3,0,0) of CTA (1,0,0)``."""
        return f"thread ({','.join(map(str, self.thread))}) of CTA ({','.join(map(str, self.cta))})"

    @property
    def state(self) -> str:
        """See the class."""
        if self._thread is None:
            return "finished" if self.focus.cta in self._controller.done_ctas else "not started"
        place = self._thread.place
        if place is None:
            return "exited"
        return "waiting" if place.waiting else "ready"

    @property
    def waits_for(self) -> str:
        """What a waiting thread waits for, in words; ``""`` for one that is ready."""
        place = self.place
        wave = self._controller.wave
        if place is None or not place.waiting or wave is None:
            return ""
        note = wave.waits_for(place.group, place.block).removeprefix(", ")
        return note or "the other threads of its warp"

    @property
    def resident(self) -> Thread:
        """The thread's state.

        Raises:
            UsageError: its CTA is not resident now.
        """
        if self._thread is None:
            raise UsageError(
                f"{self.name} has {'ended' if self.state == 'finished' else 'not started'}; its CTA is not resident"
            )
        return self._thread

    @property
    def place(self) -> Place | None:
        """The group and block that the thread is in; None when it is not executing."""
        return None if self._thread is None else self._thread.place

    @property
    def call(self) -> Call | None:
        """The selected call of the backtrace."""
        return None if self.place is None else self.resident.call()

    @property
    def depth(self) -> int:
        """How many calls deep the thread is; 0 in the kernel itself."""
        return 0 if self.place is None else self.place.frame.depth

    @property
    def file(self) -> str:
        """Source file, or ``""``."""
        return self.call.file if self.call else ""

    @property
    def line(self) -> int:
        """Source line, or 0."""
        return self.call.line if self.call else 0

    @property
    def ptx_file(self) -> str:
        """Name of the PTX."""
        return self.resident.subject.module.path

    @property
    def ptx_line(self) -> int:
        """PTX line of the instruction that is executed next, or of the call."""
        return self.call.ptx_line if self.call else 0

    @property
    def function(self) -> str:
        """Readable name of the function."""
        return self.call.function if self.call else ""

    @property
    def instruction(self) -> str:
        """The instruction that is executed next; ``""`` at the end."""
        call = self.call
        if call is None or call.position >= len(call.code.instructions):
            return ""
        return str(call.code.instructions[call.position])

    @takes(expression=TEXT)
    def __getitem__(self, expression: str) -> Any:
        """The value of an expression: an int, float, bool, list or dict.

        Raises:
            UsageError: it has none; the message says why.
        """
        value = self.evaluate(expression)
        if value.raw is None:
            raise UsageError(f"{expression} is {value.missing}")
        return value.python

    @takes(expression=TEXT)
    def evaluate(self, expression: str) -> Value:
        """The value of an expression with its type."""
        return self.resident.evaluate(expression)

    @takes(expression=TEXT, style=TEXT)
    def text(self, expression: str, style: str = "") -> str:
        """The value as the command ``print`` shows it."""
        return text_of(self.evaluate(expression), style)

    @property
    def registers(self) -> dict[str, Any]:
        """Every register that the thread has written in this call -> its value."""
        return {n: v.python for n, v in self.resident.all_registers().items() if v.raw is not None}

    @property
    def variables(self) -> dict[str, Any]:
        """Every C variable in scope that has a value, and the kernel's parameters -> its value."""
        return {n: v.python for n, v in self.resident.all_variables().items() if v.raw is not None}

    def backtrace(self) -> list[Call]:
        """The calls that the thread is in, innermost first."""
        return self.resident.calls()


class Stop:
    """The position and reason of a stop. It can be read until the session resumes the kernel.

    Attributes:
        reason: see :class:`ptxkit.debugger.controller.Event`.
        message: a fault's text, or the change that a watchpoint detected.
        breakpoints: numbers of the breakpoints or watchpoints that were hit.
        threads: how many threads stopped here together.
        error: the exception that the launch ended in or is going to end in, or None.
    """

    def __init__(self, event: Event, find: Callable[[Coordinates | None, Coordinates | None], ThreadView]) -> None:
        self._find = find
        self.event = event
        self.reason = event.reason
        self.message = event.message
        self.breakpoints = event.numbers
        self.threads = event.threads
        self.error = event.error
        self.current = True

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.reason in ("finished", "failed")

    @takes(thread=COORDINATES | NOTHING, cta=COORDINATES | NOTHING)
    def thread(self, thread: Coordinates | None = None, cta: Coordinates | None = None) -> ThreadView:
        """A thread, linear or (x, y, z); omitted coordinates are those of the focus."""
        self._fresh()
        return self._find(thread, cta)

    def __getitem__(self, expression: str) -> Any:
        """The value of an expression in the focused thread."""
        return self.thread()[expression]

    @property
    def variables(self) -> dict[str, Any]:
        """Values of the focused thread by name."""
        return self.thread().variables

    @property
    def registers(self) -> dict[str, Any]:
        """Values of the focused thread by name."""
        return self.thread().registers

    @property
    def file(self) -> str:
        """Source file of the focused thread, or ``""``."""
        return "" if self.ended else self.thread().file

    @property
    def line(self) -> int:
        """Its source line, or 0."""
        return 0 if self.ended else self.thread().line

    @property
    def ptx_line(self) -> int:
        """Its PTX line, or 0."""
        return 0 if self.ended else self.thread().ptx_line

    @property
    def instruction(self) -> str:
        """The instruction that it executes next."""
        return "" if self.ended else self.thread().instruction

    def _fresh(self) -> None:
        if not self.current:
            raise UsageError(
                "this stop is no longer current: the session has resumed since; use the stop that it returned"
            )
        if self.ended:
            raise UsageError(f"the kernel has ended ({self.reason}); the state of its threads is no longer available")

    def __repr__(self) -> str:
        return f"Stop({self.reason}{f', {self.message}' if self.message else ''})"
