"""Measures in a new process what is left after a kernel has made the GPU unusable for this one.

The candidate whose kernel failed keeps its error; the other candidates of its case are measured without it, and all later cases
with every candidate. If a kernel fails there as well, another process follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ptxkit.bench import peers
from ptxkit.bench.cases import CaseSpec, Rest
from ptxkit.bench.measure.benchmark import Benchmark, Say, Take
from ptxkit.bench.measure.method import Method
from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.results import Results
from ptxkit.processes.child import Child, ChildDied
from ptxkit.targets import Target


@dataclass(frozen=True)
class Order:
    """How the new process measures: see :class:`~ptxkit.bench.measure.benchmark.Benchmark`.

    Attributes:
        peers: their names. target: name of the target, or None. roofs: ``known_roofs``.
        open_device: opens the GPU in the new process.
    """

    peers: tuple[str, ...]
    method: Method
    open_device: Callable[[], Any]
    seed: int = 0
    tile: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = False
    target: str | None = None
    recorded: bool = True
    leave_out: bool = False
    roofs: Roofs | None = None
    ahead: bool = False

    @classmethod
    def of(cls, bench: Benchmark) -> Order:
        """How a benchmark measures that has begun."""
        return cls(
            tuple(peer.name for peer in bench.peers),
            bench.method,
            bench.open_device,
            bench.seed,
            bench.tile,
            bench.counts,
            None if bench.target is None else bench.target.name,
            bench.recorded,
            bench.leave_out,
            bench.roofs,
            bench.ahead,
        )

    def benchmark(self) -> Benchmark:
        """The benchmark, in the process that measures."""
        return Benchmark(
            self.open_device(),
            peers.peers(self.peers)[0],
            method=self.method,
            seed=self.seed,
            tile=self.tile,
            counts=self.counts,
            target=None if self.target is None else Target.parse(self.target),
            recorded=self.recorded,
            leave_out=self.leave_out,
            known_roofs=self.roofs,
            ahead=self.ahead,
        )


def in_new_process(bench: Benchmark, rest: Rest, say: Say, take: Take) -> None:
    """Measure what is left, in as many processes as it takes: see ``when_lost`` of a benchmark.

    Raises:
        ChildDied: a process ended. PtxkitError: what ended its measurement.
    """
    while True:
        plan, failed = rest.plans[0], rest.failed[-1]
        case = f"{plan.workload.name} {plan.workload.size_text()}"
        bench.tell(f"{case}: {failed.name}: {failed.error}; a new process measures what is left, without {failed.name}")
        count, lost = 0, None

        def receive(message: tuple[str, Any]) -> None:
            nonlocal count, lost
            what, value = message
            if what == "say":
                say(value)
            elif what == "failed":
                lost = value
            else:
                take(value, rest.failed if count == 0 else ())  # noqa: B023  # called in this iteration only
                count += 1

        child = Child(Order.benchmark, Order.of(bench), gpu=True)
        try:
            child.ask(_measure, rest.specs(), rest.before, bench.left_s(), take=receive)
        except ChildDied as error:
            where = rest.plans[min(count, len(rest.plans) - 1)].workload
            raise ChildDied(f"{where.name} {where.size_text()} in a new process: {error}") from None
        finally:
            child.end()
        if lost is None:
            return
        rest = rest.after(count, lost)


class _Lost(Exception):
    """A kernel made the GPU unusable for this process."""


def _measure(
    bench: Benchmark,
    specs: Sequence[CaseSpec],
    before: int,
    stop_after_s: float | None,
    send: Callable[[tuple[str, Any]], None],
) -> None:
    """In the new process: measure cases, and send the results of each, or the row of the candidate whose kernel failed."""
    os.dup2(2, 1)  # what libraries print is no output of the command
    sent = 0

    def done(results: Results) -> None:
        nonlocal sent
        if bench.culprit is not None:
            send(("failed", bench.culprit))
            raise _Lost
        send(("case", replace(results, cases=results.cases[sent:])))
        sent = len(results.cases)

    bench.stop_after_s = stop_after_s
    with suppress(_Lost):
        bench.run_rest([spec.plan() for spec in specs], before, lambda text: send(("say", text)), done)
