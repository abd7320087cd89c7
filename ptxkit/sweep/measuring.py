"""The one process that uses the GPU: it verifies and times configurations on request, and may hang or fault without harm."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.candidates import BufferSets, VariantCandidate, unforeseeable_poison
from ptxkit.bench.measure.method import Method
from ptxkit.bench.results.statistics import summarize
from ptxkit.errors import FaultError, PtxkitError, UnavailableError
from ptxkit.processes.interrupts import interrupts_blocked
from ptxkit.processes.orphans import end_with
from ptxkit.sweep.canary import Canary, Reading
from ptxkit.sweep.device_verification import DeviceVerification
from ptxkit.sweep.problem import Problem
from ptxkit.workload import execute

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Accuracy
    from ptxkit.compiler.image import Image
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.verify import Verdict

# Measuring a configuration ends early if its first launch, which is the verified one, takes this many times the best
# time. The factor is large because a first launch can be slow for other reasons.
FIRST_LAUNCH_CUTOFF = 1.6
# It also ends early if the fastest sample takes this many times the best time.
SAMPLE_CUTOFF = 1.25
# The stopping rule is that of the benchmark with a lower precision: the leaders are measured again (Bench.leaders).
SCREENING = Method(
    budget_s=0.01, precision=0.01, minimum=10, maximum=40, batch=2, sample_us=300.0, modes=("cold",), percentiles=False
)
LEADERS = Method(precision=0.002, modes=("cold",), percentiles=False)
START_S = 120.0  # for the process to prepare inputs and reference
# Limit of building and loading configurations. Their images are in the cache as a rule; where it cannot be written, they are
# compiled in the process, which is not part of the time that --timeout limits.
BUILD_S = 600.0
CANARY_LIMIT_S = 30.0
ENDING_S = 5.0  # for a process whose pipe is closed to end
KILLS = {-signal.SIGKILL, -signal.SIGTERM}  # exit codes of a process that another one ended, or the system for want of memory
BUILT = "built"
"""What the process sends when it has built and loaded what was requested, before it launches anything."""


@dataclass(frozen=True)
class Measured:
    """The measurement of one configuration; see :class:`ptxkit.sweep.journal.Entry`. ``seconds``: until the answer
    arrived."""

    status: str
    error: str = ""
    time_us: float | None = None
    spread_us: float | None = None
    samples: int = 0
    seconds: float = 0.0
    prepare_s: float = 0.0
    verify_s: float = 0.0
    time_s: float = 0.0
    measured_on: Mapping[str, Any] | None = None


class MeasuringProcess:
    """Starts the measuring process, sends requests to it, and replaces it when it hangs, faults or dies.

    Args:
        problem: what is swept.
        seed: of the inputs.
        timeout_s: for the launches of one configuration.
    """

    def __init__(self, problem: Problem, seed: int, timeout_s: float) -> None:
        self.problem = problem
        self.seed = seed
        self.timeout_s = timeout_s
        self._process: Any = None
        self._pipe: Connection | None = None
        self._over = False
        self._killed = False  # whether the last request ended because the process was killed
        self._lock = threading.Lock()

    def measure(self, tile: Mapping[str, Any], best_us: float, images: Sequence[str] = ()) -> Measured:
        """Verify and time one configuration, a second time where its process was killed.

        Args:
            best_us: the best time so far, infinite at first.
            images: see :func:`ptxkit.workload.build.compiled`.
        """
        begin = time.perf_counter()
        request = ("measure", dict(tile), (best_us, tuple(images)))
        answer = self._ask(request, self.timeout_s)
        if self._killed:
            answer = self._ask(request, self.timeout_s)
        seconds = time.perf_counter() - begin
        if answer is None:
            return Measured("timeout", f"not done within {self.timeout_s:g} s", seconds=seconds)
        if isinstance(answer, Measured):
            if answer.status == "fault":
                self.close()
            return Measured(**{**asdict(answer), "seconds": seconds})
        return Measured("fault", str(answer), seconds=seconds)

    def leaders(self, tiles: Sequence[Mapping[str, Any]], budget_s: float) -> list[dict[str, Any]]:
        """Measure several against each other, interleaved: a row of the benchmark for each, as a dictionary.

        Raises:
            FaultError: the process did not answer.
        """
        answer = self._ask(("leaders", [dict(t) for t in tiles], budget_s), self.timeout_s * len(tiles) + 10 * budget_s)
        if not isinstance(answer, list):
            raise FaultError(f"measuring the best once more failed: {answer or 'no answer in time'}")
        return answer

    def canary(self) -> Reading:
        """Verify and time the canary cases. One that fails or is not done in time is wrong."""
        answer = self._ask(("canary", None, 0.0), CANARY_LIMIT_S)
        if isinstance(answer, Reading):
            return answer
        self.close()
        return Reading(f"the canary cases failed: {answer or f'not done within {CANARY_LIMIT_S:g} s'}", {}, {})

    def close(self) -> None:
        """End the process, also during a request; the next request starts another process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def end(self) -> None:
        """End the process for good; from any thread, while another waits for an answer."""
        with self._lock:
            self._over = True
            process = self._process
        if process is not None:
            process.kill()
            process.join()

    def _ask(self, request: Any, timeout_s: float) -> Any:
        """The answer; None without one ``timeout_s`` after the tile was built; a string if the process died."""
        self._killed = False
        self.start()
        assert self._pipe is not None
        try:
            self._pipe.send(request)
            if self._pipe.poll(BUILD_S):
                first = self._pipe.recv()
                if first != BUILT:
                    return first
                if self._pipe.poll(timeout_s):
                    return self._pipe.recv()
        except (EOFError, OSError):
            return self._died()
        self.close()
        return None

    def _died(self) -> str:
        """How the process ended."""
        process = self._process
        process.join(ENDING_S)
        self._killed = process.exitcode in KILLS and not self._over
        self.close()
        return "the measuring process died" + (", killed; is there enough memory?" if self._killed else "")

    def start(self) -> None:
        """Start the process unless it is running, and wait until it is ready.

        Raises:
            UnavailableError: it does not become ready.
        """
        with self._lock:
            if self._process is not None:
                return
            if self._over:
                raise UnavailableError("measuring has ended")
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self.problem, self.seed), daemon=True)
            with interrupts_blocked():
                process.start()
            self._process = process
        theirs.close()
        try:
            ready = self._pipe.recv() if self._pipe.poll(START_S) else f"not ready within {START_S:g} s"
        except (EOFError, OSError):
            ready = "the process died"
        if ready != "ready":
            self.close()
            raise UnavailableError(f"measuring cannot start: {ready}")


def serve(pipe: Connection, problem: Problem, seed: int) -> None:
    """The main function of the process: answers requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    end_with(os.getppid())  # also during a launch that does not end
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    try:
        bench = Bench(problem, seed)
    except (PtxkitError, MemoryError) as error:
        pipe.send(str(error) or "too little memory")
        return
    pipe.send("ready")
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        while True:
            what, argument, given = pipe.recv()
            answer: Any = {"measure": bench.measure, "leaders": bench.leaders, "canary": bench.canary}[what]
            pipe.send(answer(argument, given, partial(pipe.send, BUILT)))


class Bench:
    """The state of the measuring process: the GPU and the buffers."""

    def __init__(self, problem: Problem, seed: int) -> None:
        from ptxkit.runtime.device import timed_device

        self.problem = problem
        gpu: Any = timed_device()
        self.device = gpu
        self.facts = gpu.facts()
        workload = problem.workload
        count = SCREENING.sets(workload.work().bytes, workload.bytes_needed(), self.device.l2_bytes, self.device.memory_bytes)
        self.sets = BufferSets(workload, self.device, count, seed)
        self.checks = DeviceVerification(self.device, self.sets.cases[0], problem.chosen)
        self._canary: Canary | None = None
        self.device.timing.flush()  # compiles the flush kernel before the first measurement
        self.device.synchronize()

    def measure(
        self, tile: Mapping[str, Any], given: tuple[float, Sequence[str]], built: Callable[[], None]
    ) -> Measured:
        """One configuration, with the best time so far and the keys of its images; calls ``built`` before the first launch."""
        best_us, keys = given
        images: Sequence[Image] = ()
        marks = [time.perf_counter()]
        try:
            prepared = execute.prepare(self.sets.cases[0], self.problem.chosen, tile=tile, images=keys)
            images = prepared.build.images
            built()
            marks.append(time.perf_counter())
            first_us, wrong = self._verified(prepared)
            marks.append(time.perf_counter())
            if wrong:
                found = Measured("wrong", wrong)
            else:
                found = self._timed(prepared, first_us, best_us)
            del prepared
        except FaultError as error:
            return Measured("fault", str(error))
        except PtxkitError as error:
            found = Measured("launch", str(error))
        for image in images:
            self.device.unload(image)
        marks.append(time.perf_counter())
        prepare_s, verify_s, time_s = (*(b - a for a, b in pairwise(marks)), 0.0, 0.0)[:3]
        return replace(found, prepare_s=prepare_s, verify_s=verify_s, time_s=time_s, measured_on=self._state())

    def _state(self) -> dict[str, Any]:
        """The GPU and what its sensors read now; see :class:`ptxkit.sweep.journal.Entry`."""
        now = self.device.sensors()
        read = {"sm_clock_mhz": now.sm_clock_mhz, "temperature_c": now.temperature_c, "throttled": list(now.throttled)}
        known = {"uuid": self.facts.uuid, "driver": self.facts.kernel_driver, **read}
        return {name: value for name, value in known.items() if value}

    def _verified(self, prepared: execute.Prepared) -> tuple[float, str]:
        """Microseconds of the first launch, on poisoned outputs, and what is wrong with them, or ""."""
        prepared.state.restore()
        prepared.case.reset()
        (first_us,) = self.device.timing.cold(prepared.launch, 1)
        if self.checks.within_tolerance():
            return first_us, next(iter(prepared.case.overwritten()), "")
        verdict = prepared.case.verify(self.problem.chosen)
        return first_us, "" if verdict.verified else verdict.worst

    def _timed(self, prepared: execute.Prepared, first_us: float, best_us: float) -> Measured:
        """Cold samples: single launches, each after a flush, or of short ones a graph that rotates over the sets of buffers."""
        if first_us > FIRST_LAUNCH_CUTOFF * best_us:
            return Measured("slow", "", first_us, 0.0, 1)
        timing, sets = self.device.timing, len(self.sets)
        calls = 1 if first_us > SCREENING.sample_us else SCREENING.calls_for(first_us, sets)
        if calls == 1:
            take = partial(timing.cold, prepared.launch)
        else:
            others = [execute.bound(case, prepared.build) for case in self.sets.cases[1:]]
            take = partial(timing.replays, self._rotation([prepared, *others], calls // sets), warm=False)
        times, cut_short = screened(lambda count: [t / calls for t in take(samples=count)], best_us)
        s = summarize(times)
        return Measured("slow" if cut_short else "ok", "", s.median, s.spread, s.samples)

    def _rotation(self, prepared: Sequence[execute.Prepared], rounds: int) -> Callable[[], None]:
        def calls() -> None:
            for _ in range(rounds):
                for one in prepared:
                    one.launch()

        return self.device.graph(calls)  # type: ignore[no-any-return]

    def leaders(
        self, tiles: Sequence[Mapping[str, Any]], budget_s: float, built: Callable[[], None]
    ) -> list[dict[str, Any]] | str:
        """Measure several tiles with interleaved samples, as the benchmark does, but with a cold L2 only and verified
        on the device."""
        from ptxkit.bench.measure.session import Session

        session = Session(self.device, self.sets, replace(LEADERS, budget_s=budget_s))
        checks = partial(self._checks_of, {})
        try:
            candidates = [Leader(self.sets, self.problem.chosen, tile, checks) for tile in tiles]
            built()
            rows = session.measure(candidates, lambda what: None)
        except PtxkitError as error:
            return str(error)
        if self.device.lost:
            return str(next(iter(session.errors.values())))
        state = self._state()
        return [{**asdict(row), "measured_on": state} for row in rows]

    def canary(self, argument: None, number: float, built: Callable[[], None]) -> Reading | str:
        """Launch the canary cases, which are compiled the first time; a text if a launch failed."""
        try:
            self._canary = self._canary or Canary(self.device)
            built()
            return self._canary.read()
        except PtxkitError as error:
            return str(error)

    def _checks_of(self, made: dict[tuple[int, int], DeviceVerification], which: int) -> DeviceVerification:
        """Checks of a set of buffers against the reference of the inputs that are there now."""
        key = (self.sets.data.seed, which)
        if key not in made:
            made[key] = DeviceVerification(self.device, self.sets.cases[which], self.problem.chosen)
        return made[key]


def screened(take: Callable[[int], Sequence[float]], best_us: float) -> tuple[list[float], bool]:
    """Samples of a configuration by the rule of :data:`SCREENING`, and whether measuring ended early.

    Args:
        take: takes the given number of samples. best_us: time of the best configuration so far.
    """
    begin = time.perf_counter()
    times: list[float] = []
    while not SCREENING.over([times], time.perf_counter() - begin):
        times += take(SCREENING.wants(times))
        if min(times) > SAMPLE_CUTOFF * best_us:
            return times, True
    return times, False


class Leader(VariantCandidate):
    """A leading tile in the repeated measurement; its outputs are verified on the device if possible, else on the
    host."""

    def __init__(
        self, sets: BufferSets, variant: Variant, tile: Mapping[str, Any], checks: Callable[[int], DeviceVerification]
    ) -> None:
        super().__init__(sets, variant, tile)
        self.checks = checks

    def check(self, percentiles: bool) -> tuple[Verdict | None, Accuracy | None]:
        """See :class:`~ptxkit.bench.measure.candidates.Candidate`."""
        return self._checked(partial(self.launch, 0), 0, None), None

    def check_graph(self, run: Callable[[], None], which: int) -> Verdict | None:
        """See :class:`~ptxkit.bench.measure.candidates.Candidate`."""
        return self._checked(run, which, unforeseeable_poison())

    def _checked(self, run: Callable[[], None], which: int, poison: int | None) -> Verdict | None:
        """What is wrong; None where every element is within the tolerance."""
        self.compute(run, which, poison)
        if self.checks(which).within_tolerance() and not self.sets.overwritten():
            return None
        return self.sets.cases[which].verify(self.variant)
