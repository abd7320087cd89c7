"""Measuring the contenders of one target against each other: round by round, in random order, until all are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ptxkit.bench.measure.conditions import Conditions, Log
from ptxkit.bench.measure.method import Method, throttled
from ptxkit.bench.measure.statistics import summarize
from ptxkit.bench.results.judge import alarms
from ptxkit.bench.results.results import Mode, Roofs, Row, Timed
from ptxkit.errors import PtxkitError
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.bench.measure.candidates import BufferSets, Contender

WARM_UP_S = 0.1  # at least, of calls that nobody times
SETTLED = 0.01  # relative change of the SM clock between looks that counts as none
LOOKS = 3  # in a row, without change
WARM_UP_LIMIT_S = 2.0
PATIENCE_S = 30.0  # without one sample that counts: a GPU that throttles for good gives none
PAUSE_S = 0.05  # after a sample taken under throttling, for the chip to cool
FRESH_SEED = 0x5EED  # added to the seed: inputs of the check after timing


@dataclass
class Track:
    """The samples of one contender in one mode.

    Attributes:
        replay: queues the graph of one sample.
        calls: calls in it.
        samples: microseconds of a call. dropped: samples thrown away.
    """

    contender: int
    mode: Mode
    replay: Callable[[], None]
    calls: int
    sets: int
    samples: list[float] = field(default_factory=list)
    dropped: int = 0

    def timed(self) -> Timed | None:
        """The summary; None without samples."""
        if not self.samples:
            return None
        s = summarize(self.samples)
        return Timed(s.median, s.mean, s.std, s.ci95, s.spread, s.samples, self.dropped, self.calls, self.sets)


class Session:
    """One target's contenders on a GPU.

    Args:
        device: the GPU.
        sets: the buffers they all work on.
        method: how to measure.
        roofs: measured in this run.
        modes: in which each contender is timed.
        plain: makes a call that gives the time of a plain launch, taken once a round; None for none.
    """

    def __init__(
        self,
        device: Any,
        sets: BufferSets,
        method: Method,
        roofs: Roofs,
        modes: Sequence[Mode] = ("cold", "hot"),
        plain: Callable[[Any], Callable[[], float]] | None = None,
    ) -> None:
        self.modes = modes
        self.device = device
        self.sets = sets
        self.method = method
        self.roofs = roofs
        self.highest_mhz = 0  # seen since the warm-up began
        self.log = Log()
        self.plain = plain

    def measure(self, contenders: Sequence[Contender], say: Callable[[str], None]) -> list[Row]:
        """Verify, time, and verify again on fresh inputs; a row a contender.

        Raises:
            FaultError: a kernel failed, and with it the device.
        """
        rows = [c.row for c in contenders]
        tracks: list[Track] = []
        for i, contender in enumerate(contenders):
            say(f"{contender.row.name}: verifying")
            try:
                rotation = contender.replay(range(len(self.sets)))
                verdict, accuracy = contender.check(rotation, 0)
                right = verdict is None or verdict.verified  # the time of a wrong result is worth nothing
                found = self._tracks(i, contender, rotation) if right else []
            except PtxkitError as error:
                if self.device.lost:
                    raise
                rows[i] = rows[i].failed(error)
                continue
            tracks += found
            rows[i] = replace(
                rows[i],
                verified=verdict.verified if verdict else None,
                worst=verdict.worst if verdict else "",
                accuracy=accuracy,
            )
        if tracks:
            say("warming up")
            self._warm_up(tracks)
            self._sample(tracks, say)
            self._check_again(contenders, rows, tracks, say)
        for track in tracks:
            i = track.contender
            changed: dict[str, Any] = {track.mode: track.timed()}
            rows[i] = replace(rows[i], **changed)
            if complaint := self._too_few(track):
                rows[i] = complaint_added(rows[i], complaint, nothing=not track.samples)
        return [self._finished(row) for row in rows]

    def conditions(self) -> Conditions:
        """How the GPU was while samples were taken."""
        return self.log.conditions()

    def _tracks(self, i: int, contender: Contender, rotation: Callable[[], None]) -> list[Track]:
        timing, sets = self.device.timing, len(self.sets)
        call_us = min(timing.replays(rotation, 3, warm=False)) / sets
        calls = self.method.calls_for(call_us, sets)
        cold = rotation if calls == sets else contender.replay(list(range(sets)) * (calls // sets))
        hot_calls = self.method.calls_for(call_us, 1)
        hot = contender.replay([0] * hot_calls)
        tracks = [Track(i, "cold", cold, calls, sets), Track(i, "hot", hot, hot_calls, 1)]
        return [track for track in tracks if track.mode in self.modes]

    def _warm_up(self, tracks: Sequence[Track]) -> None:
        """Until the clock has settled: the first calls after a pause run at a clock that falls with temperature and power."""
        begin = time.perf_counter()
        steady, last = 0, 0
        while steady < LOOKS or time.perf_counter() - begin < WARM_UP_S:
            for track in tracks:
                self.device.timing.replays(track.replay, 2, warm=False)
            clock = self.device.sensors().sm_clock_mhz or 0
            self.highest_mhz = max(self.highest_mhz, clock)
            steady = steady + 1 if abs(clock - last) <= SETTLED * clock else 0
            last = clock
            if time.perf_counter() - begin > WARM_UP_LIMIT_S:
                return

    def _sample(self, tracks: Sequence[Track], say: Callable[[str], None]) -> None:
        self.device.reset_persisting_l2()
        plain = self.plain(self.device) if self.plain else None  # made where the contenders' graphs were
        begin = fruitful = time.perf_counter()
        kept = 0
        for number, order in enumerate(self.method.rounds(len(tracks))):
            samples = [t.samples for t in tracks]
            now = time.perf_counter()
            if sum(map(len, samples)) > kept:
                kept, fruitful = sum(map(len, samples)), now
            if self.method.over(samples, now - begin) or now - fruitful > PATIENCE_S:
                return
            say(f"round {number + 1}, {self.method.progress(samples, now - begin)}")
            if plain:
                self.log.launched(plain())
            for k in order:
                self._take(tracks[k])

    def _take(self, track: Track) -> None:
        count = self.method.wants(track.samples)
        if not count:
            return
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

    def _too_few(self, track: Track) -> str | None:
        """Why a track has fewer samples than the method asks for, or None."""
        wanted = self.method.minimum if self.method.iterations is None else self.method.iterations
        if len(track.samples) >= wanted:
            return None
        few = f"{len(track.samples)} samples" if track.samples else "no sample"
        return f"{few} of {wanted}, {track.dropped} dropped for throttling"

    def _check_again(
        self,
        contenders: Sequence[Contender],
        rows: list[Row],
        tracks: Sequence[Track],
        say: Callable[[str], None],
    ) -> None:
        """Verify the very graphs that were timed, on fresh inputs and the last set that each computes; and that timing changed
        no input."""
        say("verifying on fresh inputs")
        changed = self.sets.overwritten()
        self.sets.renew(self.sets.data.seed + FRESH_SEED)
        for track in sorted(tracks, key=lambda t: t.contender):
            i = track.contender
            if rows[i].verified is False or rows[i].error:
                continue
            try:
                verdict, _ = contenders[i].check(track.replay, track.sets - 1, again=True)
            except PtxkitError as error:
                if self.device.lost:
                    raise
                rows[i] = rows[i].failed(error)
                continue
            if verdict is not None and not verdict.verified:
                worst = f"on fresh inputs after timing, {track.mode}: {verdict.worst}"
                rows[i] = replace(rows[i], verified=False, worst=worst)
        if changed and all(row.verified is not False for row in rows):  # the launch that did it cannot be named
            worst = f"one of the variants or peers changed an input while samples were taken: {changed[0]}"
            for i, row in enumerate(rows):
                if row.kind == "variant" and not row.error:
                    rows[i] = replace(row, verified=False, worst=worst)

    def _finished(self, row: Row) -> Row:
        """The row with what follows from its cold time."""
        if row.cold is None:
            return row
        work = self.sets.workload.work()
        bandwidth = work.bytes / row.cold.median_us / 1e3
        in_l2 = self.sets.workload.bytes_needed() <= self.device.l2_bytes
        cold = alarms(row.cold.median_us, work.bytes, work.flops, work.unit, in_l2, self.roofs)
        hot = []
        if row.hot is not None:
            hot = alarms(row.hot.median_us, work.bytes, work.flops, work.unit, True, self.roofs)
        return replace(
            row,
            bandwidth_gbs=bandwidth,
            tflops=work.flops / row.cold.median_us / 1e6,
            roof_fraction=bandwidth / self.roofs.copy_gbs,
            alarms=[*(f"cold: {a}" for a in cold), *(f"hot: {a}" for a in hot)],
        )


def complaint_added(row: Row, complaint: str, *, nothing: bool) -> Row:
    """The row with what is to be said of its samples: an error where it has none."""
    if nothing:
        return replace(row, error=f"no time: {complaint}", exit_code=int(ExitCode.WRONG))
    return replace(row, note=", ".join(filter(None, [row.note, complaint])))
