"""What a sweep needs from the processes that work for it: on this machine (:mod:`ptxkit.sweep.local`) or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry
from ptxkit.workload.launch import Tile


class Executor(Protocol):
    """Compiles, measures and disassembles tiles of one problem; every method but :meth:`leaders` returns at once.

    A future raises :class:`~ptxkit.errors.FaultError` for a tile that must not be tried any more, and
    :class:`~ptxkit.errors.UnavailableError` if nothing can be executed any more.
    """

    def start(self) -> Future[float] | None:
        """Prepare for measuring; the future gives ``time.perf_counter()`` when that is done. None if there is nothing to wait
        for.
        """

    @property
    def slots(self) -> int:
        """Number of tiles that can be compiled at a time; it may change during a sweep."""

    @property
    def measurers(self) -> int:
        """Number of GPUs that measure at a time; 1 where the emulator models costs in the compiling processes."""

    def compile(self, tile: Tile) -> Future[Compiled]:
        """Compile one tile."""

    def measure(self, tile: Tile, compiled: Compiled, best: Callable[[], float]) -> Future[Entry]:
        """Verify a compiled tile, and time it or model its cost. ``best`` returns the best value so far, infinite at first."""

    def mix(self, tile: Tile) -> Future[str]:
        """The instruction mix of a tile, see :func:`ptxkit.sweep.disassembled.sass_mix`."""

    def leaders(self, tiles: Sequence[Mapping[str, Any]], budget_s: float) -> list[dict[str, Any]]:
        """Measure tiles against each other on one GPU, see :meth:`ptxkit.sweep.measuring.MeasuringProcess.leaders`.

        Raises:
            FaultError: they could not be measured.
        """

    def leaders_elsewhere(self) -> list[list[dict[str, Any]]]:
        """What the last call of :meth:`leaders` finds on each of the other GPUs; empty where there is one GPU only."""

    def report(self) -> str:
        """The state of the workers for the line of progress, in further lines about each of them; or ""."""

    def abort(self) -> None:
        """Stop work in progress, whose results are not needed any more; :meth:`end` follows."""

    def end(self) -> None:
        """End everything that was started."""
