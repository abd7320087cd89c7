"""Partial results of ``ptxkit bench`` when it is stopped early: every case that was measured by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Results


class Kept:
    """The results so far, in a file as well where one is given.

    Args:
        file: to write them to; ``"-"`` for stdout, where the command prints them in the end. None for nowhere.
        also: called with the results after each case.

    Attributes:
        stopped: what ended the measurement before its time, or None.

    Raises:
        UsageError: the file cannot be written. An older one stays as it is until there is something to write.
    """

    def __init__(self, file: str | None, also: Callable[[Results], None] = lambda results: None) -> None:
        from ptxkit.files import check_writable

        if file == "":
            raise UsageError("--json takes the name of a file, or - for stdout")
        self.file = None if file == "-" else file
        if self.file:
            check_writable(self.file)
        self.also = also
        self.stopped: BaseException | None = None
        self._results: Results | None = None

    def done(self, results: Results) -> None:
        """Keep these, which replace what was kept before."""
        from ptxkit.files import write_json

        self._results = results
        self.also(results)
        if self.file:
            write_json(self.file, results.to_json())

    @property
    def results(self) -> Results:
        """The latest."""
        assert self._results is not None
        return self._results

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside, Ctrl-C, SIGTERM and errors end the block and no more, once a case is measured; :meth:`end` raises them."""
        from ptxkit.cli._signals import Stop

        stop = Stop()
        with stop.kept():
            yield
        if stop.reason is not None and (self._results is None or not self._results.cases):
            raise stop.reason
        self.stopped = stop.reason

    def end(self, cases: int) -> None:
        """Print how much was measured, and raise what stopped it, if anything did.

        Args:
            cases: how many were to be measured.
        """
        from ptxkit.cli._text import to_stderr

        if self.stopped is not None:
            measured = len(self.results.cases)
            to_stderr(f"stopped: {measured} of {cases} cases are measured")
            raise self.stopped
