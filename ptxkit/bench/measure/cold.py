"""The cold time of a build without verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.candidates import BufferSets
from ptxkit.bench.measure.session import Session
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.bench.results.results import Accuracy, Row, Timed
from ptxkit.workload import execute

if TYPE_CHECKING:
    from ptxkit.bench.measure.method import Method
    from ptxkit.workload.build import Build
    from ptxkit.workload.verify import Verdict


class Unverified:
    """A build on several sets of buffers, which :class:`~ptxkit.bench.measure.session.Session` times without comparing."""

    def __init__(self, sets: BufferSets, build: Build) -> None:
        self.sets = sets
        self.row = Row(build.variant.name)
        self.prepared = [execute.bound(case, build) for case in sets.cases]
        self.restart()

    def restart(self) -> None:
        """Restore the arrays of every set, and variables of modules."""
        for prepared in self.prepared:
            prepared.state.restore()
            prepared.case.reset()

    def check(self, percentiles: bool) -> tuple[Verdict | None, Accuracy | None]:
        """No comparison."""
        return None, None

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """A graph of one call on each of these sets."""

        def calls() -> None:
            for which in order:
                self.prepared[which].launch()

        return self.sets.device.graph(calls)

    def check_graph(self, run: Callable[[], None], which: int) -> Verdict | None:
        """No comparison."""
        return None


def cold_time(
    device: Any, build: Build, method: Method, seed: int, say: Callable[[str], None], limit: TimeLimit
) -> Timed | None:
    """Cold times of a build on a GPU, with the same method as all commands; None if all samples were discarded.

    Raises:
        PtxkitError: a kernel failed, or the buffers need more memory than there is.
    """
    count = method.sets(build.workload.work().bytes, build.workload.bytes_needed(), device.l2_bytes, device.memory_bytes)
    sets = BufferSets(build.workload, device, count, seed)
    session = Session(device, sets, method, limit=limit)
    (row,) = session.measure([Unverified(sets, build)], say)
    for error in session.errors.values():
        raise error
    return row.cold
