"""Measures cases one after another, each with all its candidates, for ``ptxkit run`` and ``ptxkit bench run``."""

from __future__ import annotations

import datetime
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ptxkit
from ptxkit.bench.cases import Plan, Rest, description_of
from ptxkit.bench.measure import counted
from ptxkit.bench.measure.candidates import (
    BufferSets,
    Candidate,
    PeerCandidate,
    VariantCandidate,
    accuracy_of,
    arrays_sha256,
    compiled_row,
)
from ptxkit.bench.measure.data_ahead import DataAhead
from ptxkit.bench.measure.environment import environment
from ptxkit.bench.measure.faults import not_run, step_of
from ptxkit.bench.measure.gpu_products import gpu_products
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.peers_ahead import prepare_ahead
from ptxkit.bench.measure.plain_launch import plain_launch
from ptxkit.bench.measure.session import Session
from ptxkit.bench.measure.stopwatch import Stopwatch
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.derived import with_figures
from ptxkit.bench.results.results import CaseResult, Counted, Results, Row
from ptxkit.errors import DescriptionError, FaultError, PtxkitError, TimeLimitError, UnavailableError, UsageError
from ptxkit.exit_codes import ExitCode
from ptxkit.runtime.abilities import is_emulating, is_timed
from ptxkit.runtime.device import timed_device
from ptxkit.workload import execute
from ptxkit.workload.ahead import compile_ahead
from ptxkit.workload.data import Prepared, not_prepared
from ptxkit.workload.products import by_library
from ptxkit.workload.resolve import target_for, unavailable

if TYPE_CHECKING:
    from ptxkit.bench.peers.base import Peer
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

Say = Callable[[str], None]
Take = Callable[[Results, Sequence[Row]], None]


def silent(what: str) -> None:
    """Report no progress."""


@dataclass
class Benchmark:
    """One run.

    Args:
        device: a GPU, or the emulator, which counts instead of measuring.
        peers: the peers to compare with. absent: peers that cannot be run, with the reasons.
        method: parameters of the measurement. seed: seed for the inputs.
        tile: tile parameters to fix, for the variants that have them.
        counts: whether the emulator also counts the memory traffic of each variant.
        command: the words after ``ptxkit``, for the result file.
        target: target to compile for; None for that of the device.
        strict: raise an error of use (an unavailable variant that was named, a wrong tile, a wrong description) instead of
            reporting it as the variant's.
        recorded: collect the data of a result file: versions, sensors, the cost of a plain launch, hashes of the inputs, and
            every peak rate; without it, only the peak rates that may bound the work are measured.
        timeout_s: limit for the execution of one variant's kernels, or None.
        leave_out: kernels of which no variant can run here, because of a package or the target, become notes in the results'
            ``absent`` instead of failed cases: for runs of the whole catalogue.
        stuck: called with the results so far if a variant hangs in a call that only the end of the process ends; must end it.
        known_roofs: the ceilings of the device, if they have been measured before.
        stop_after_s: seconds after which no further case begins; None for no limit.
        ahead: whether other processes compute the inputs and references of the next cases and, for a GPU, compile for all of
            them before the first is measured.
        tell: called with a line about such a process that failed, and about a new process.
        open_device: opens the GPU in another process.
        when_lost: called when a kernel has made the GPU unusable for this process, with this object, what is left, ``say``,
            and a function to be called after each case, with its results and the rows of the candidates that they leave out;
            must measure what is left (:func:`ptxkit.bench.measure.new_process.in_new_process`). None to stop there.

    Attributes:
        culprit: the row of the candidate whose kernel made the GPU unusable, or None.
    """

    device: Any
    peers: Sequence[Peer] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    method: Method = field(default_factory=Method)
    seed: int = 0
    tile: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True
    command: Sequence[str] = ()
    target: Target | None = None
    strict: bool = False
    recorded: bool = True
    timeout_s: float | None = None
    leave_out: bool = False
    stuck: Callable[[Results], None] = lambda results: None
    known_roofs: Roofs | None = None
    stop_after_s: float | None = None
    ahead: bool = False
    tell: Say = silent
    when_lost: Callable[[Benchmark, Rest, Say, Take], None] | None = None
    open_device: Callable[[], Any] = timed_device

    def __post_init__(self) -> None:
        self._rows: list[Row] = []  # rows of the current case, without the candidates of a session
        self._session: Session | None = None
        self.culprit: Row | None = None
        self._began = 0.0
        self._case: tuple[Plan, Workload] | None = None
        self._prepared: Callable[[Workload, int], Prepared | None] = not_prepared

    def run(
        self, plans: Sequence[Plan], say: Say = silent, done: Callable[[Results], None] = lambda results: None
    ) -> Results:
        """Measure all cases.

        Args:
            say: called with a description of the current step.
            done: called with the results so far after each case, marked as partial until the last, so that an interrupt
                loses only one case.

        Raises:
            UnavailableError: a case needs more memory than there is.
            FaultError: the device was lost before the last case, without ``when_lost``.
        """
        plans, too_large = self._fitting(plans)
        empty = self._empty()
        self._results = replace(
            empty, target=self._target_name(plans[0]) if plans else "", absent={**empty.absent, **too_large}
        )
        with self._references(plans):
            watch = Stopwatch()
            if self.recorded and is_timed(self.device):
                watch.step("roofs")
                self._roofs(plans, say)
            self._began = time.perf_counter()
            if self.ahead and is_timed(self.device):
                watch.step("preparation")
                kept = [peer for peer in self.peers if peer.keeps_code]
                prepare_ahead(plans, kept, say, tile=self.tile, stop_after_s=self.stop_after_s)
            self._results = replace(self._results, seconds=watch.seconds())
            count = self._measured(plans, say, done)
        if self.culprit is not None and self.when_lost is not None:
            self._measure_rest(Rest(tuple(plans[count:]), (self.culprit,), count), say, done)
        return self._results

    def run_rest(self, plans: Sequence[Plan], before: int, say: Say, done: Callable[[Results], None]) -> Results:
        """Measure cases for which an earlier process has checked the memory and prepared the peers.

        Args:
            before: how many cases were measured before. say, done: see :meth:`run`.
        """
        self._results = self._empty()
        self._began = time.perf_counter()
        with self._references(plans):
            self._measured(plans, say, done, before)
        return self._results

    @property
    def roofs(self) -> Roofs | None:
        """The ceilings of the GPU, once they are known."""
        return self._results.roofs

    def left_s(self) -> float | None:
        """Seconds after which no further case begins, or None."""
        return None if self.stop_after_s is None else self.stop_after_s - (time.perf_counter() - self._began)

    def _measure_rest(self, rest: Rest, say: Say, done: Callable[[Results], None]) -> None:
        """Measure elsewhere what is left after a kernel has made the GPU unusable for this process."""
        assert self.when_lost is not None
        self._session = None  # what it refers to is of no use any more
        gc.collect()
        plans = iter(rest.plans)
        last = rest.plans[-1]

        def take(found: Results, failed: Sequence[Row]) -> None:
            plan = next(plans)
            cases = [replace(case, rows=in_order([*case.rows, *failed], plan.workload)) for case in found.cases]
            kept = self._results
            self._results = replace(
                kept,
                cases=(*kept.cases, *cases),
                absent={**kept.absent, **found.absent},
                environment={**kept.environment, **found.environment},
                sensors={**kept.sensors, **found.sensors},
                roofs=kept.roofs or found.roofs,
                partial=plan is not last,
            )
            done(self._results)

        self.when_lost(self, rest, say, take)

    @contextmanager
    def _references(self, plans: Sequence[Plan]) -> Iterator[None]:
        """A context in which other processes compute the data of the cases, where that is wanted, and cuBLAS large products."""
        library = gpu_products(self.device) if is_timed(self.device) else None
        with self._ahead(plans, leave_products=library is not None) as ahead, by_library(library, self.tell):
            self._prepared = ahead.take
            yield

    def _ahead(self, plans: Sequence[Plan], *, leave_products: bool) -> DataAhead:
        """The data of the cases, computed in other processes where that is wanted."""
        facts = self.device.facts_for(self.target)
        again = is_timed(self.device)  # the emulator verifies with one seed
        seeds = [self.method.seeds(self._seed(plan)) for plan in plans]
        wanted = [(p.workload.on(facts), s if again else s[:1]) for p, s in zip(plans, seeds, strict=True)]
        return DataAhead(wanted if self.ahead else (), leave_products=leave_products, say=self.tell)

    def _measured(self, plans: Sequence[Plan], say: Say, done: Callable[[Results], None], before: int = 0) -> int:
        """Measure the cases one after another; none begins ``stop_after_s`` after the run has started.

        Returns:
            How many are in the results, or left out: all before the one in which the GPU became unusable for this process.
        """
        begin = time.perf_counter()
        total = before + len(plans)
        for number, plan in enumerate(plans):
            if self.device.lost:
                raise FaultError(f"{self.device.name} was lost: {self.device.lost}")
            if number and (left_s := self.left_s()) is not None and left_s <= 0:
                break
            left = (time.perf_counter() - begin) / number * (len(plans) - number) if number else 0
            about = f", about {left:.0f} s left" if left else ""
            place = f"[{before + number + 1}/{total}{about}] " if total > 1 else ""
            prefix = f"{place}{plan.workload.name} {plan.workload.size_text()}: "
            self._measure(plan, plans, partial(_say_of, say, prefix))
            if self.culprit is not None and self.when_lost is not None:
                return number
            self._results = replace(self._results, partial=number + 1 < len(plans))
            done(self._results)
        return len(plans)

    def _fitting(self, plans: Sequence[Plan]) -> tuple[list[Plan], dict[str, str]]:
        """The cases for which there is enough memory; of the others, with ``leave_out``, name and sizes -> the reason.

        Raises:
            UnavailableError: a case needs more memory than there is, and is not to be left out, or none is left.
        """
        fitting, too_large = [], {}
        for plan in plans:
            try:
                execute.check_memory(plan.workload, self.device)
                fitting.append(plan)
            except UnavailableError as error:
                if not self.leave_out:
                    raise
                too_large[f"{plan.workload.name} {plan.workload.size_text()}"] = str(error)
        if plans and not fitting:
            raise UnavailableError(next(iter(too_large.values())))
        return fitting, too_large

    def _measure(self, plan: Plan, plans: Sequence[Plan], say: Say) -> None:
        """Append a case to the results."""
        workload = plan.workload.on(self.device.facts_for(self.target))
        self._rows, self._session, self._case = [], None, (plan, workload)
        if is_timed(self.device):
            gc.collect()  # arrays of the case before, which are in cycles of references
        self.limit = TimeLimit(self.timeout_s, None if is_emulating(self.device) else self._stuck)
        try:
            case = self._timed(plan, workload, plans, say) if is_timed(self.device) else self._counted(plan, workload, say)
        except UnavailableError as error:  # too little memory is left for it
            if not self.leave_out:
                raise
            name = f"{workload.name} {workload.size_text()}"
            self._results = replace(self._results, absent={**self._results.absent, name: str(error)})
            return
        if self.culprit is not None and self.when_lost is not None:
            return  # it is measured again
        case = replace(case, chosen=plan.chosen)
        if self.leave_out and (reason := cannot_run(case)) is not None:
            self._results = replace(self._results, absent={**self._results.absent, case.kernel: reason})
        else:
            self._results = replace(self._results, cases=(*self._results.cases, case))

    def _empty(self) -> Results:
        gpu = is_timed(self.device)
        return Results(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            ptxkit=ptxkit.__version__,
            command=tuple(self.command),
            device_kind=self.device.kind,
            device=self.device.name,
            environment=environment(self.device) if self.recorded else {},
            facts=asdict(self.device.facts()) if gpu and self.recorded else {},
            method=asdict(self.method),
            cases=(),
            absent=dict(self.absent),
            roofs=self.known_roofs,
        )

    # -- on a GPU ----------------------------------------------------------------------------------------------------

    def _timed(self, plan: Plan, workload: Workload, plans: Sequence[Plan], say: Say) -> CaseResult:
        device = self.device
        watch = Stopwatch()
        watch.step("buffers")
        count = self.method.sets(workload.work().bytes, workload.bytes_needed(), device.l2_bytes, device.memory_bytes)
        sets = BufferSets(workload, device, count, self._seed(plan), self.target, self._prepared)
        compile_ahead(sets.cases[0].resolvable(self._variants(plan), partial(self._tile, plan)), say)
        say("preparing inputs")
        watch.step("inputs and references")
        inputs = sets.data.inputs
        with ThreadPoolExecutor(1) as other:  # hashing gigabytes takes seconds, on one core
            hashing = other.submit(arrays_sha256, inputs if self.recorded else {})
            with suppress(PtxkitError):  # which the candidates report
                _ = sets.data.expected  # outside the limit of time, and before its arrays need device memory
            candidates = self._candidates(plan, sets, say, watch)
            watch.step("hash of inputs")
        inputs_hash = hashing.result() if self.recorded else ""
        plain = plain_launch if self.recorded else None
        session = self._session = Session(device, sets, self.method, plain, self.limit, watch)
        session.culprit = self.culprit
        measured = session.measure(candidates, say)
        self.culprit = session.culprit
        if self.counts and not device.lost:
            measured = self._with_counts(workload, measured, say)
        case = case_result(workload, [*measured, *self._rows], device, self._seed(plan), inputs_hash)
        case = replace(case, conditions=session.conditions(), seconds=watch.seconds())
        if any(row.cold or row.hot for row in measured) and not device.lost:
            case = with_figures(case, self._roofs(plans, say))
        if self.recorded and not device.lost:
            sensors = {**self._results.sensors, "end": asdict(device.sensors())}
            # the peers have imported their packages
            self._results = replace(self._results, sensors=sensors, environment=environment(device))
        return case

    def _candidates(self, plan: Plan, sets: BufferSets, say: Say, watch: Stopwatch) -> list[Candidate]:
        """The variants and peers of a case; those that cannot be measured are entered as rows."""
        candidates: list[Candidate] = []
        watch.step("variants")
        for variant in self._variants(plan):
            say(f"compiling {variant.name}")
            make = partial(self._variant, plan, sets, variant)
            self._enter(candidates, Row(name=variant.name), make)
        for peer in self.peers:
            wanted = (plan.peers is None or peer.name in plan.peers) and peer.name not in plan.without
            if wanted and peer.offers(sets.workload):
                say(f"preparing {peer.name}")
                watch.step(peer.name)
                self._enter(candidates, Row(name=peer.name, kind="peer"), partial(PeerCandidate, sets, peer))
        return candidates

    def _roofs(self, plans: Sequence[Plan], say: Say) -> Roofs:
        """The ceilings of the GPU, measured for the first case that needs them."""
        if self._results.roofs is None:
            from ptxkit.bench.measure.roofs import roofs

            say("measuring the roofs")
            self.device.reset_persisting_l2()
            start = {"start": asdict(self.device.sensors())} if self.recorded else {}
            works = None if self.recorded else [plan.workload.work() for plan in plans]
            self._results = replace(self._results, roofs=roofs(self.device, works), sensors=start)
        assert self._results.roofs is not None
        return self._results.roofs

    def _with_counts(self, workload: Workload, rows: Sequence[Row], say: Say) -> list[Row]:
        say("counting in the emulator")
        names = [row.name for row in rows if row.kind == "variant" and not row.error and not row.skipped]
        counts = counted.count(workload, names, self.target or self.device.target)
        return [
            replace(row, counted=found) if isinstance(found := counts.get(row.name), Counted) else row for row in rows
        ]

    def _enter(self, candidates: list[Candidate], row: Row, make: Callable[[], Candidate | Row]) -> None:
        """Add a candidate, or a row with the reason why it cannot be measured."""
        if self.device.lost:
            culprit = self.culprit.name if self.culprit else "a kernel"
            self._rows.append(replace(row, skipped=not_run(culprit, self.device)))
            return
        try:
            with step_of(self.device, row, "it was prepared"):
                made = make()
        except UnavailableError as error:  # a package that is not installed, a feature that the GPU lacks
            if self.strict and row.kind == "variant":
                raise
            self._rows.append(replace(row, skipped=str(error)) if row.kind == "peer" else row.failed(error))
            return
        except PtxkitError as error:
            if self._to_be_raised(error):
                raise
            self._rows.append(row.failed(error))
            if self.device.lost:
                self.culprit = self._rows[-1]
            return
        if isinstance(made, Row):
            self._rows.append(made)
        else:
            candidates.append(made)

    def _variant(self, plan: Plan, sets: BufferSets, variant: Variant) -> Candidate | Row:
        if skipped := self._skipped(plan, variant, sets.workload):
            return Row(name=variant.name, skipped=skipped)
        return VariantCandidate(sets, variant, self._tile(plan, variant), self.target)

    # -- in the emulator ---------------------------------------------------------------------------------------------

    def _counted(self, plan: Plan, workload: Workload, say: Say) -> CaseResult:
        data = execute.Data(workload, self._seed(plan), prepared=self._prepared)
        case = execute.Case(workload, self.device, data=data, target=self.target)
        compile_ahead(case.resolvable(self._variants(plan), partial(self._tile, plan)), say)
        say("preparing inputs")
        if self.timeout_s is not None:
            _ = case.expected
        for variant in self._variants(plan):
            say(f"{variant.name} on {self.device.name}")
            row = Row(name=variant.name)
            try:
                row = self._emulated(plan, case, variant)
            except PtxkitError as error:
                if self._to_be_raised(error) or (self.strict and isinstance(error, UnavailableError)):
                    raise
                row = row.failed(error)
            self._rows.append(row)
        inputs_hash = arrays_sha256(case.inputs) if self.recorded else ""
        return case_result(workload, self._rows, self.device, self._seed(plan), inputs_hash)

    def _emulated(self, plan: Plan, case: execute.Case, variant: Variant) -> Row:
        explicit = self.strict and bool(plan.variants)
        around = partial(self.limit.around, variant.name)
        result = execute.run(case, variant, self.target, self._tile(plan, variant), explicit=explicit, around=around)
        if result.verdict is None or result.prepared is None:
            return Row(name=variant.name, skipped=result.skipped)
        verdict = result.verdict
        return replace(
            compiled_row(result.prepared, resources=False),
            accuracy=accuracy_of(verdict, case.outputs() if self.method.percentiles else {}, case.expected),
            verified=verdict.verified,
            worst=verdict.worst,
            explanation=verdict.explanation,
            counted=counted.counted(result.counters) if result.counters else None,
        )

    # -- both --------------------------------------------------------------------------------------------------------

    def _to_be_raised(self, error: PtxkitError) -> bool:
        """Whether an error ends the run. An error about sizes ends only the variant, unless the user named it or its tile."""
        named = bool(self._case and self._case[0].variants) or bool(self.tile)
        return self.strict and isinstance(error, UsageError) and (named or isinstance(error, DescriptionError))

    def _skipped(self, plan: Plan, variant: Variant, workload: Workload) -> str | None:
        """Why the device does not run a variant, or None.

        Raises:
            UnavailableError: the variant was named, and the run is strict.
        """
        reason = unavailable(variant, self.target or self.device.target, workload)
        reason = reason or execute.lacking(variant, self.device, workload.name)
        if reason and self.strict and plan.variants:
            raise UnavailableError(reason)
        return reason

    def _tile(self, plan: Plan, variant: Variant) -> dict[str, Any]:
        fixed = {**self.tile, **plan.tiles.get(variant.name, {})}
        return {name: value for name, value in fixed.items() if name in variant.tile}

    def _seed(self, plan: Plan) -> int:
        return self.seed if plan.seed is None else plan.seed

    def _variants(self, plan: Plan) -> list[Variant]:
        every = plan.workload.variants()
        wanted = [every[name] for name in plan.variants] if plan.variants else list(every.values())
        return [variant for variant in wanted if variant.name not in plan.without]

    def _target_name(self, plan: Plan) -> str:
        """The name of the given target, that of the device, or the default target of most variants."""
        return (self.target or self.device.target or target_for(self._variants(plan)[0], None)).name

    def _stuck(self, name: str) -> None:
        """Called by the watchdog's thread: a variant is stuck in a call that no signal ends."""
        assert self._case is not None
        plan, workload = self._case
        message = (
            f"not done within {self.timeout_s:g} s, the limit of --timeout; {self.device.name} is still executing it, so "
            "this process ends"
        )
        failed = Row(name).failed(TimeLimitError(message))
        known = {**self._complete(), name: failed}
        self.stuck(self._so_far(plan, workload, known, f"not run: {name} did not end"))

    def until_interrupted(self) -> Results | None:
        """The results of an interrupted run, with the complete variants of the case that it was in; None without any."""
        known = self._complete()
        if self._case is None or not any(row.verified is not None or row.error for row in known.values()):
            return None
        plan, workload = self._case
        return self._so_far(plan, workload, known, "not run: interrupted")

    def _complete(self) -> dict[str, Row]:
        """The rows of the current case that say more than a name: verified, timed, counted, skipped or failed."""
        rows = (*(self._session.rows if self._session else ()), *self._rows)
        return {r.name: r for r in rows if r.cold or r.counted or r.skipped or r.error or r.verified is not None}

    def _so_far(self, plan: Plan, workload: Workload, known: Mapping[str, Row], otherwise: str) -> Results:
        """The results so far and the current case, in which variants without a row are skipped for the reason ``otherwise``."""
        rows = [known.get(v.name) or Row(v.name, skipped=otherwise) for v in self._variants(plan)]
        case = case_result(workload, rows, self.device, self._seed(plan))
        return replace(self._results, cases=(*self._results.cases, case), partial=True)


def case_result(
    workload: Workload, rows: Sequence[Row], device: Device, seed: int, inputs_hash: str = ""
) -> CaseResult:
    """A case with the rows of its candidates, variants first, in the order of the description.

    Args:
        seed: of the inputs. inputs_hash: SHA-256 of them, or "".
    """
    work = workload.work()
    footprint = workload.bytes_needed()
    l2_bytes = device.l2_bytes if is_timed(device) else 0
    return CaseResult(
        kernel=workload.name,
        sizes=workload.sizes,
        options=workload.options,
        flops=work.flops,
        bytes=work.bytes,
        unit=work.unit,
        footprint_bytes=footprint,
        lives_in="L2" if footprint <= l2_bytes else "DRAM",
        seed=seed,
        inputs_sha256=inputs_hash,
        description=description_of(type(workload)),
        executed_flops=work.executed_flops,
        rows=in_order(rows, workload),
    )


def in_order(rows: Sequence[Row], workload: Workload) -> list[Row]:
    """Rows of candidates: variants first, in the order of the description."""
    order = list(workload.variants())
    return sorted(rows, key=lambda r: (r.kind == "peer", order.index(r.name) if r.name in order else 0))


def cannot_run(case: CaseResult) -> str | None:
    """Why no variant of a case can run on this machine; None if one ran or failed for another reason."""
    rows = [row for row in case.rows if row.kind == "variant"]
    if any(row.skipped is None and row.exit_code != ExitCode.UNAVAILABLE for row in rows):
        return None
    reasons = [*(row.error for row in rows), *(row.skipped for row in rows)]
    return next(filter(None, reasons), None)


def _say_of(say: Say, prefix: str, what: str) -> None:
    say(prefix + what)
