"""Measures the candidates of one case with interleaved samples: rounds in random order, until all medians are known.

Each candidate is verified, then timed in CUDA graphs, and the timed graphs are verified afterwards. A candidate that fails gets
a row with its error, and the others continue unless the device is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.faults import not_run, step_of
from ptxkit.bench.measure.method import FEW_SETS, Method, throttled
from ptxkit.bench.measure.sensor_log import SensorLog
from ptxkit.bench.measure.stopwatch import Stopwatch
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.bench.results.conditions import Conditions
from ptxkit.bench.results.results import Mode, Row, Timed
from ptxkit.bench.results.statistics import summarize
from ptxkit.errors import PtxkitError
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.bench.measure.candidates import BufferSets, Candidate
    from ptxkit.bench.results.results import Accuracy

WARM_UP_S = 0.1  # minimum duration of the warm-up
SETTLED = 0.01  # relative change of the SM clock between readings that counts as no change
READINGS = 3  # consecutive readings without change
WARM_UP_LIMIT_S = 2.0
PATIENCE_S = 30.0  # limit without a valid sample, for a GPU that throttles permanently
PAUSE_S = 0.05  # pause after a sample during throttling, in which the GPU cools


@dataclass
class Track:
    """The samples of one candidate in one mode.

    Attributes:
        candidate: its index. replay: queues the graph of one sample.
        calls: calls in the graph. sets: sets of buffers over which they rotate.
        samples: microseconds per call. dropped: number of discarded samples. replays: how often the graph was executed.
    """

    candidate: int
    mode: Mode
    replay: Callable[[], None]
    calls: int
    sets: int
    samples: list[float] = field(default_factory=list)
    dropped: int = 0
    replays: int = 0

    def timed(self) -> Timed | None:
        """The summary; None without samples."""
        if not self.samples:
            return None
        s = summarize(self.samples)
        return Timed(s.median, s.mean, s.std, s.ci95, s.spread, s.samples, self.dropped, self.calls, self.sets)


class Session:
    """One case's candidates on a GPU.

    Args:
        device: the GPU.
        sets: the buffers of all candidates.
        method: how to measure.
        plain: makes a call that gives the time of a plain launch, taken once a round; None for none.
        limit: on the time of each candidate; None for no limit. watch: is told the steps.

    Attributes:
        rows: the result row of each candidate so far. errors: index of a candidate -> the error that ended it.
        culprit: the row of the candidate whose kernel made the GPU unusable, or None.
    """

    def __init__(
        self,
        device: Any,
        sets: BufferSets,
        method: Method,
        plain: Callable[[Any], Callable[[], float]] | None = None,
        limit: TimeLimit | None = None,
        watch: Stopwatch | None = None,
    ) -> None:
        self.device = device
        self.sets = sets
        self.method = method
        self.limit = limit or TimeLimit()
        self.watch = watch or Stopwatch()
        self.highest_mhz = 0  # since the warm-up began
        self.log = SensorLog()
        self.plain = plain
        self.rows: list[Row] = []
        self.errors: dict[int, PtxkitError] = {}
        self.culprit: Row | None = None
        self._accuracies: dict[int, Accuracy | Future[Accuracy] | None] = {}

    def measure(self, candidates: Sequence[Candidate], say: Callable[[str], None]) -> list[Row]:
        """Verify, time, and verify again; a row for each candidate."""
        self.watch.step("verification")
        self.rows = [c.row for c in candidates]
        tracks: list[Track] = []
        for i, candidate in enumerate(candidates):
            if not self.device.lost:
                say(f"{candidate.row.name}: verifying")
                with self._guarded(i, "it was verified"):
                    tracks += self._verified(i, candidate)
        self._add_accuracies()
        if tracks:
            say("warming up")
            self.watch.step("warm-up")
            self._warm_up(tracks)
            self.watch.step("samples")
            self._sample(tracks, say)
            self.watch.step("verification")
            self._check_again(candidates, tracks, say)
        for track in tracks:
            self._finish(track)
        if self.device.lost:
            self._mark_not_run()
        return self.rows

    def conditions(self) -> Conditions:
        """The state of the GPU while samples were taken."""
        return self.log.conditions()

    @contextmanager
    def _guarded(self, i: int, step: str) -> Iterator[None]:
        """A context in which an error ends candidate ``i`` only, and whose time counts towards its limit.

        Args:
            step: see :func:`~ptxkit.bench.measure.faults.step_of`.
        """
        row = self.rows[i]
        try:
            with self.limit.around(row.name), step_of(self.device, row, step):
                yield
        except PtxkitError as error:
            self.rows[i] = self.rows[i].failed(error)
            self.errors[i] = error
            if self.device.lost:
                self.culprit = self.rows[i]

    def _verified(self, i: int, candidate: Candidate) -> list[Track]:
        """The tracks of a candidate after its first verification; none if it is wrong."""
        verdict, accuracy = candidate.check(self.method.percentiles)
        if verdict is not None:
            self.rows[i] = replace(
                self.rows[i],
                verified=verdict.verified,
                worst=verdict.worst,
                explanation=verdict.explanation,
                less_accurate=verdict.less_accurate,
            )
            self._accuracies[i] = accuracy
            if not verdict.verified:
                return []
        timing, sets = self.device.timing, len(self.sets)
        if sets > FEW_SETS:
            one = candidate.replay([0])
            sets = self.method.rotation(min(timing.replays(one, 2, warm=False)), sets)
        rotation = candidate.replay(range(sets))
        call_us = min(timing.replays(rotation, 3, warm=False)) / sets
        calls = self.method.calls_for(call_us, sets)
        found = []
        if "cold" in self.method.modes:
            cold = rotation if calls == sets else candidate.replay(list(range(sets)) * (calls // sets))
            found.append(Track(i, "cold", cold, calls, sets))
        if "hot" in self.method.modes:
            calls = self.method.calls_for(call_us, 1)
            found.append(Track(i, "hot", candidate.replay([0] * calls), calls, 1))
        return found

    def _add_accuracies(self) -> None:
        """Enter the errors of the verified outputs, some of which other threads have computed meanwhile."""
        for i, found in self._accuracies.items():
            self.rows[i] = replace(self.rows[i], accuracy=found.result() if isinstance(found, Future) else found)

    def _alive(self, track: Track) -> bool:
        return track.candidate not in self.errors and not self.device.lost

    def _warm_up(self, tracks: Sequence[Track]) -> None:
        """Run until the clock is stable: after a pause it is high at first and falls with temperature and power."""
        begin = time.perf_counter()
        steady, last = 0, 0
        while not self.device.lost and (steady < READINGS or time.perf_counter() - begin < WARM_UP_S):
            for track in filter(self._alive, tracks):
                with self._guarded(track.candidate, "it warmed the GPU up"):
                    track.replays += 2
                    self.device.timing.replays(track.replay, 2, warm=False)
            clock = self.device.sensors().sm_clock_mhz or 0
            self.highest_mhz = max(self.highest_mhz, clock)
            steady = steady + 1 if abs(clock - last) <= SETTLED * clock else 0
            last = clock
            if time.perf_counter() - begin > WARM_UP_LIMIT_S:
                return

    def _sample(self, tracks: Sequence[Track], say: Callable[[str], None]) -> None:
        if self.device.lost:
            return
        self.device.reset_persisting_l2()
        plain = self.plain(self.device) if self.plain else None  # made where the candidates' graphs were made
        begin = last_kept = time.perf_counter()
        kept = 0
        for number, order in enumerate(self.method.rounds(len(tracks))):
            alive = list(filter(self._alive, tracks))
            samples = [t.samples for t in alive]
            now = time.perf_counter()
            if sum(map(len, samples)) > kept:
                last_kept = now
            kept = sum(map(len, samples))
            if self.method.over(samples, now - begin, [t.calls for t in alive]) or now - last_kept > PATIENCE_S:
                return
            say(f"round {number + 1}, {self.method.progress(samples, now - begin)}")
            if plain:
                self.log.launched(plain())
            counts = self.method.counts(
                [t.samples for t in tracks], [t.calls for t in tracks], together=self.log.power_capped
            )
            for k in order:
                if counts[k] and self._alive(tracks[k]):
                    with self._guarded(tracks[k].candidate, "it was timed"):
                        self._take(tracks[k], counts[k])

    def _take(self, track: Track, count: int) -> None:
        track.replays += count
        times = self.device.timing.replays(track.replay, count, warm=track.mode == "hot")
        now = self.device.sensors()
        self.highest_mhz = max(self.highest_mhz, now.sm_clock_mhz or 0)
        if throttled(now.throttled, now.sm_clock_mhz, self.highest_mhz):
            track.dropped += count
            self.log.drop(now, count)
            time.sleep(PAUSE_S)
        else:
            self.log.keep(now)
            track.samples += [t / track.calls for t in times]

    def _check_again(
        self, candidates: Sequence[Candidate], tracks: Sequence[Track], say: Callable[[str], None]
    ) -> None:
        """Verify the graphs that were timed, on the last set of buffers that each uses, with another poison and, if the
        method has ``fresh_inputs``, with new inputs. Also check that timing has changed no input."""
        if self.device.lost:
            return
        what = "on fresh inputs" if self.method.fresh_inputs else "once more"
        say(f"verifying {what}")
        changed = self.sets.overwritten()
        found = self._changing(candidates, tracks) if changed else {}
        if self.device.lost:
            return
        if self.method.fresh_inputs:
            self.watch.step("inputs and references")
            self.sets.renew(self.method.seeds(self.sets.data.seed)[-1])
            self.watch.step("verification")
        for track in sorted(tracks, key=lambda t: t.candidate):
            i = track.candidate
            if self._alive(track) and self.rows[i].verified is not False:
                with self._guarded(i, f"it was verified {what} after timing"):
                    verdict = candidates[i].check_graph(track.replay, track.sets - 1)
                    if verdict is not None and not verdict.verified:
                        self._wrong(i, f"{what} after timing, {track.mode}: ", verdict.worst, verdict.explanation)
                    elif verdict is not None and not self.rows[i].less_accurate:
                        self.rows[i] = replace(self.rows[i], less_accurate=verdict.less_accurate)
        if changed:
            self._report_changed(changed[0], found)

    def _changing(self, candidates: Sequence[Candidate], tracks: Sequence[Track]) -> dict[int, str]:
        """Find the candidates that changed an input: index -> what was changed.

        Each is launched alone as often as before, from the initial state of its module. The inputs are restored afterwards.
        """
        found = {}
        for i in sorted({track.candidate for track in tracks}):
            if self.device.lost:
                break
            with self._guarded(i, "it was launched alone"):
                candidates[i].restart()
                for track in tracks:
                    if track.candidate == i and self._alive(track):
                        self.device.timing.replays(track.replay, track.replays, warm=False)
                complaints = self.sets.overwritten()
                if complaints:
                    found[i] = complaints[0]
                candidates[i].restart()
        return found

    def _report_changed(self, complaint: str, found: Mapping[int, str]) -> None:
        """Enter into the rows that inputs were changed while samples were taken.

        Args:
            complaint: what was changed. found: see :meth:`_changing`.
        """
        for i, worst in found.items():
            if self.rows[i].verified is not False:
                self._wrong(i, "while samples were taken, ", worst, worst)
        culprits = [row.name for row in self.rows if row.verified is False]
        unknown = f"one of the variants or peers changed an input while samples were taken: {complaint}"
        for i, row in enumerate(self.rows):
            if row.error or row.skipped or row.verified is False:
                continue
            if culprits:
                why = f"timed on inputs that {', '.join(culprits)} changed"
                self.rows[i] = replace(row, note=", ".join(filter(None, [row.note, why])))
            elif row.kind == "variant":
                self._wrong(i, "", unknown, unknown)

    def _wrong(self, i: int, when: str, worst: str, explanation: str) -> None:
        self.rows[i] = replace(
            self.rows[i], verified=False, worst=when + worst, explanation=when + (explanation or worst)
        )

    def _finish(self, track: Track) -> None:
        """Add a track's times to its row, or the reason why it has fewer samples than the method requires."""
        i = track.candidate
        if i in self.errors or self.device.lost:
            return
        row = (
            replace(self.rows[i], cold=track.timed())
            if track.mode == "cold"
            else replace(self.rows[i], hot=track.timed())
        )
        needed = self.method.needed(track.samples, track.calls)
        wanted = needed if self.method.iterations is None else self.method.iterations
        if len(track.samples) < wanted:
            few = f"{len(track.samples)} samples" if track.samples else "no sample"
            complaint = f"{few} of {wanted}, {track.dropped} dropped for throttling"
            row = complaint_added(row, complaint, nothing=not track.samples)
        self.rows[i] = row

    def _mark_not_run(self) -> None:
        """Mark candidates without a result as not run, because another candidate lost the device."""
        why = not_run(self.culprit.name if self.culprit else "a kernel", self.device)
        for i, row in enumerate(self.rows):
            if not row.error and row.verified is not False:
                self.rows[i] = replace(row, skipped=why, verified=None, accuracy=None)


def complaint_added(row: Row, complaint: str, *, nothing: bool) -> Row:
    """The row with a remark about its samples; an error if it has none."""
    if nothing:
        return replace(row, error=f"no time: {complaint}", exit_code=int(ExitCode.WRONG))
    return replace(row, note=", ".join(filter(None, [row.note, complaint])))
