"""The cases of ``ptxkit bench`` and the seeds of ``ptxkit run --seeds`` on the workers of a cluster."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

import ptxkit
from ptxkit.bench.cases import CaseSpec, Plan, description_of
from ptxkit.bench.measure.benchmark import Benchmark, case_result
from ptxkit.bench.results.results import CaseResult, Results, Row
from ptxkit.cluster import case_tasks
from ptxkit.cluster.case_tasks import CaseOrder
from ptxkit.cluster.connection import Connection
from ptxkit.cluster.gpus import ClusterGpu
from ptxkit.cluster.jobs import CPU, GPU, Job
from ptxkit.cluster.team import Team, on_workers
from ptxkit.errors import PtxkitError, UnavailableError, UsageError
from ptxkit.runtime.device import is_timed
from ptxkit.workload import execute
from ptxkit.workload.seeds import SeedChecks, SeedRow
from ptxkit.workload.workload import Workload

LIMIT_S = 1800.0  # for one case, unless --timeout sets another: a kernel that never ends holds one worker for as long
AHEAD = 3  # cases in flight for each slot of a worker, so that none waits for the client

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """One thing to be done on a worker, after what it needs has been compiled.

    Attributes:
        case: what is compiled. function: of :mod:`ptxkit.cluster.case_tasks`. arguments: after the order and the case.
        place: in the order of the command.
    """

    place: int
    case: CaseSpec
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


def spec_of(plan: Plan) -> CaseSpec:
    """A case as it travels."""
    spec = CaseSpec.of(plan)
    return replace(spec, kernel=on_workers(spec.kernel))


def order_of(bench: Benchmark, limit_s: float | None, peers: Sequence[str] | None, settings: Mapping[str, Any]) -> CaseOrder:
    """The order for what a benchmark of this machine would measure.

    Args:
        limit_s: for one case; None for :data:`LIMIT_S`. peers: names; None for all that workers have.
        settings: of the emulator.
    """
    device = bench.device
    return CaseOrder(
        "",
        is_timed(device),
        device.values() if isinstance(device, ClusterGpu) else None,
        None if peers is None else tuple(peers),
        bench.method,
        bench.seed,
        dict(bench.tile),
        bench.counts,
        None if bench.target is None else bench.target.name,
        bench.leave_out,
        dict(settings),
        limit_s or LIMIT_S,
    )


class Cases:
    """Executes tasks on a cluster.

    Args:
        connection: to the cluster. order: its ticket is set here. kernels: of all tasks.
        say: called with a line about a worker that is refused or lost; from a thread.
    """

    def __init__(self, connection: Connection, order: CaseOrder, kernels: Sequence[str], say: Say) -> None:
        gpu = None if order.gpu is None or not order.timed else str(order.gpu["name"])
        self._team = Team(connection, tuple(dict.fromkeys(kernels)), say, gpu)
        self._order = replace(order, ticket=self._team.ticket)

    def execute(self, tasks: Sequence[Task], say: Say, take: Callable[[Task, Any], None]) -> None:
        """Execute all tasks.

        Args:
            say: called with the progress.
            take: called with each task and its result, or the :class:`~ptxkit.errors.PtxkitError` of it, as they are known;
                after an interrupt, also with what had been measured by then.

        Raises:
            UnavailableError: no worker can be used any more.
        """
        waiting = list(reversed(tasks))
        images: dict[int, Job] = {}
        pending: dict[Future[Any], tuple[Task, bool]] = {}  # whether it is compiled
        done = 0
        try:
            while waiting or pending:
                slots = self._team.slots(CPU) + (self._team.slots(GPU) if self._order.timed else 0)
                for _ in range(min(AHEAD * slots - len(pending), len(waiting))):
                    self._begin(waiting.pop(), images, pending)
                say(f"{done} of {len(tasks)}, {self._team.report()}")
                ready, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ready:
                    task, compiled = pending.pop(future)
                    error = future.exception()
                    if isinstance(error, UnavailableError) or not isinstance(error, PtxkitError | None):
                        raise error
                    if not compiled and error is None:
                        self._measure(task, images[id(task.case)], pending)
                        continue
                    done += 1
                    take(task, error or future.result())
        except BaseException:
            self._team.abort()
            for future, (task, compiled) in pending.items():
                if compiled and future.done() and not future.cancelled() and future.exception() is None:
                    take(task, future.result())
            raise
        finally:
            self._team.end()

    def _begin(self, task: Task, images: dict[int, Job], pending: dict[Future[Any], tuple[Task, bool]]) -> None:
        """Compile what a task needs, once for all tasks of its case; in the emulator, where it compiles itself, start it."""
        if not self._order.timed:
            self._measure(task, None, pending)
            return
        known = images.get(id(task.case))
        if known is not None and known.future.done() and known.future.exception() is None:
            self._measure(task, known, pending)
            return
        job = self._team.submit(CPU, "compiling", case_tasks.compile_case, lambda: (self._order, task.case))
        images.setdefault(id(task.case), job)
        pending[job.future] = task, False

    def _measure(self, task: Task, made: Job | None, pending: dict[Future[Any], tuple[Task, bool]]) -> None:
        resource = GPU if self._order.timed else CPU
        images, source = (made.future.result(), made.where) if made is not None else ((), "")
        what = f"measuring {task.case.kernel.rpartition('/')[2]}"
        job = self._team.submit(
            resource,
            what,
            task.function,
            lambda: (self._order, task.case, *task.arguments, images, source),
            prefers=source,
        )
        pending[job.future] = task, True


class ClusterBenchmark:
    """A :class:`~ptxkit.bench.measure.benchmark.Benchmark` whose cases are measured on a cluster.

    Args:
        connection: to the cluster. bench: what a machine alone would do, on a device that stands for the workers'.
        order: see :func:`order_of`. say: see :class:`Cases`.
    """

    def __init__(self, connection: Connection, bench: Benchmark, order: CaseOrder, say: Say) -> None:
        self._connection, self.bench, self._order, self._say = connection, bench, order, say

    def run(
        self, plans: Sequence[Plan], say: Say, done: Callable[[Results], None] = lambda results: None
    ) -> Results:
        """See :meth:`~ptxkit.bench.measure.benchmark.Benchmark.run`. ``roofs`` and ``environment`` of the results are those of
        the worker that was the first to answer; each case refers to the roofs of the GPU that measured it.

        Raises:
            UnavailableError: a case needs more memory than the GPU has, or no worker can be used any more.
        """
        for plan in plans:
            execute.check_memory(plan.workload, self.bench.device)
        specs = [spec_of(plan) for plan in plans]
        cases = Cases(self._connection, self._order, [spec.kernel for spec in specs], self._say)
        tasks = [Task(place, spec, case_tasks.measure_case) for place, spec in enumerate(specs)]
        known: dict[int, Sequence[CaseResult]] = {}
        results = self._empty()

        def take(task: Task, found: Any) -> None:
            nonlocal results
            if isinstance(found, PtxkitError):
                known[task.place] = [self._failed(plans[task.place], found)]
            else:
                if not results.environment:
                    results = replace(found, created=results.created, command=results.command, absent=results.absent)
                results = replace(results, absent={**found.absent, **results.absent})
                known[task.place] = [_of_this_machine(case, plans[task.place]) for case in found.cases]
            every = tuple(case for place in sorted(known) for case in known[place])
            results = replace(results, cases=every, partial=len(known) < len(plans))
            done(results)

        cases.execute(tasks, say, take)
        return results

    def _empty(self) -> Results:
        device, bench = self.bench.device, self.bench
        return Results(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            ptxkit=ptxkit.__version__,
            command=tuple(bench.command),
            device_kind=device.kind,
            device=device.name,
            environment={},
            method=asdict(bench.method),
            cases=(),
            absent=dict(bench.absent),
        )

    def _failed(self, plan: Plan, error: PtxkitError) -> CaseResult:
        """A case whose variants all have an error: its process hung, or ended the workers."""
        workload = plan.workload.on(self.bench.device.facts_for(self.bench.target))
        names = plan.variants or tuple(workload.variants())
        rows = [Row(name).failed(error) for name in names]
        seed = self.bench.seed if plan.seed is None else plan.seed
        return replace(case_result(workload, rows, self.bench.device, seed), chosen=plan.chosen)


def _of_this_machine(case: CaseResult, plan: Plan) -> CaseResult:
    """A case with the path of its description as it was given here."""
    return replace(case, description=description_of(type(plan.workload)))


def check_seeds(
    connection: Connection, order: CaseOrder, checks: SeedChecks, variants: Sequence[str], say: Say, tell: Say
) -> None:
    """Verify a kernel with many seeds on a cluster; fills ``checks``, also when it is interrupted.

    Args:
        variants: names; none for all. say: progress. tell: see ``say`` of :class:`Cases`.

    Raises:
        UsageError, UnavailableError: see :func:`ptxkit.workload.seeds.check_seed`; or no worker can be used any more.
    """
    case = replace(spec_of(Plan(checks.workload)), variants=tuple(variants))
    seeds = range(checks.first, checks.first + checks.count)
    tasks = [Task(place, case, case_tasks.check_case, (seed,)) for place, seed in enumerate(seeds)]

    def take(task: Task, found: Any) -> None:
        seed = seeds[task.place]
        if isinstance(found, UsageError):
            raise found
        if isinstance(found, PtxkitError):
            checks.rows += _failed_rows(checks.workload, variants, seed, found)
        else:
            rows, checks.measured_on[seed] = found
            checks.rows += rows

    Cases(connection, order, [case.kernel], tell).execute(tasks, say, take)


def _failed_rows(workload: Workload, variants: Sequence[str], seed: int, error: PtxkitError) -> list[SeedRow]:
    names = variants or tuple(workload.variants())
    return [SeedRow(name, seed, error=str(error), exit_code=int(error.exit_code)) for name in names]
