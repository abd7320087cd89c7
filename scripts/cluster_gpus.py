"""Measures sweeps on 1, 2, ... GPUs of this machine: configurations a second, and where the time of the command goes.

    python scripts/cluster_gpus.py [--gpus 1,2,4] [--evaluations 574] [--rounds 2] [--limit 150] [--kernel KERNEL:VARIANT]
        [--sizes M,N,K]

Every run is one command, ``ptxkit sweep tiles ... --cluster local-gpus --search random``, with an empty journal, and the first
GPUs of ``CUDA_VISIBLE_DEVICES``. All of them measure the same configurations. The first run has an empty compile cache, which
it fills. In each of the ``--rounds``, the sweeps of all numbers of GPUs follow each other with that cache, so that nothing is
compiled; these end by Ctrl-C when all configurations are known. Then come the other numbers of GPUs with empty caches. A run
that would not be over within ``--limit`` seconds, by the time of those before, is left out, and one that is not over by then is
ended.

The first table has the seconds of the parts of each command, one after another:

- ``before``: imports, the GPUs of the machine, its cluster, and the constraints of all tiles;
- ``first``: from the start of the sweep until the first configuration was known; ``ready``, a part of it: until the first
  measuring process had started and launched the canary cases;
- ``1st tenth``, ``steady`` (second to ninth tenth), ``last tenth``: until so many configurations were known;
- ``leaders``: their repeated measurement, on all GPUs at the same time; ``end``: the other GPUs' results, disassembling,
  the table, and the end of the cluster;
- ``command``: all of them together.

The second table has the rate, and what a configuration takes, of those of ``steady``:

- ``a second``, and over the mean of the runs of the first number of GPUs with the same kind of cache, and the number of GPUs
  (``linear``: 1.00 is linear); ``linear*`` is that of all configurations, from the first on;
- ``GPUs busy``: the share of the time in which the measuring processes measured; ``processors``: in which the processors that
  this process may use were busy, whatever with;
- milliseconds of a measuring process: ``prepare``, ``verify`` and ``time``, in the journal; ``answer``: what a request took
  beyond them; ``wait``: from its end until the next one began; ``compile``: of a compiling process.

A line for each number of GPUs has the mean and the range of ``linear`` in the rounds, each over the run of the first number of
GPUs of the same round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTS = ("before", "ready", "first", "1st tenth", "steady", "last tenth", "leaders", "end", "command")
EACH = ("prepare", "verify", "time", "answer", "wait", "compile")
LOOK_S = 0.01  # interval at which the journal is read


@dataclass
class Run:
    """A sweep. Seconds since its command was started.

    Attributes:
        cache: ``"empty"`` or ``"full"`` at its start. round: its number; 0 for one with an empty cache.
        entries: lines of the journal, each with the time at which it was read as ``read``.
        processors: busy seconds of the processors, and seconds, at each of these lines.
        result: the JSON of the sweep, or nothing if it was ended before.
    """

    gpus: int
    cache: str = "empty"
    round: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)
    leaders: list[dict[str, Any]] = field(default_factory=list)
    processors: list[float] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def parts(self) -> dict[str, float]:
        """The columns of the first table; 0 for what is not known."""
        count, read = len(self.entries), [entry["read"] for entry in self.entries]
        marks = [read[0], read[count // 10], read[count * 9 // 10], read[-1]]
        spent = self.result.get("spent_s", {})
        begin = marks[-1] - spent["explored"] if spent else 0.0
        repeated = max([marks[-1], *(each["read"] for each in self.leaders if not each.get("other_gpu"))])
        ends = [begin, *marks, repeated, self.seconds]
        names = ("first", "1st tenth", "steady", "last tenth", "leaders", "end")
        found = {name: after - before for name, before, after in zip(names, ends[:-1], ends[1:], strict=True)}
        return {"before": begin, "ready": spent.get("start", 0.0), "command": self.seconds, **found}

    def rates(self) -> tuple[float, float]:
        """Configurations a second, of the second to the ninth tenth, and of all from the first on."""
        parts, count = self.parts(), len(self.entries)
        return (count * 9 // 10 - count // 10) / parts["steady"], (count - 1) / sum(
            parts[name] for name in ("1st tenth", "steady", "last tenth")
        )

    def steady(self) -> dict[str, float]:
        """The other columns of the second table; milliseconds, and shares of the time."""
        count = len(self.entries)
        first, last = count // 10, count * 9 // 10
        chosen = self.entries[first + 1 : last + 1]
        window = self.entries[last]["read"] - self.entries[first]["read"]
        parts = {part: mean(chosen, f"{part}_s") for part in ("prepare", "verify", "time")}
        asked = mean(chosen, "measured_s")
        busy = asked * len(chosen) / 1e3 / self.gpus / window
        wait = 1e3 * self.gpus * window / len(chosen) - asked
        processors = (self.processors[last] - self.processors[first]) / window / len(os.sched_getaffinity(0))
        spent = {"answer": asked - sum(parts.values()), "wait": wait, "compile": mean(self.entries, "compile_s")}
        return {**parts, **spent, "busy": busy, "processors": processors}


def mean(entries: Sequence[dict[str, Any]], name: str) -> float:
    """Milliseconds."""
    return 1e3 * statistics.fmean(entry.get(name, 0.0) for entry in entries)


def busy_seconds() -> float:
    """Of the processors that this process may use, since the machine was started."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines())
    ticks = [[int(number) for number in numbers] for name, *numbers in lines if name in mine]
    return sum(sum(each[:8]) - each[3] - each[4] for each in ticks) / os.sysconf("SC_CLK_TCK")  # without idle, iowait


def swept(gpus: int, given: argparse.Namespace, folder: Path, cache: Path, until: float, *, whole: bool) -> Run:
    """A sweep on the first GPUs of this machine; it is ended at ``until``, and unless ``whole``, when all tiles are known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = ",".join(visible[:gpus] if visible != [""] else map(str, range(gpus)))
    found, journal = folder / "sweep.json", folder / "journal"
    words = ["sweep", "tiles", given.kernel, *given.sizes.split(","), "--cluster", "local-gpus", "--search", "random"]
    words += ["--evaluations", str(given.evaluations), "--journal", str(journal), "--json", str(found), "--top", "1"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": chosen, "PTXKIT_CACHE_DIR": str(cache)}
    run, begin, interrupted = Run(gpus), time.perf_counter(), False
    with (folder / "out").open("w") as out:
        running = subprocess.Popen([sys.executable, "-m", "ptxkit", *words], env=env, stdout=out, stderr=out, text=True)
        try:
            with Lines(journal) as lines:
                while running.poll() is None:
                    time.sleep(LOOK_S)
                    for value in lines.more():
                        entries = run.leaders if value.get("leader") else run.entries
                        entries.append({**value, "read": time.perf_counter() - begin})
                        if entries is run.entries:
                            run.processors.append(busy_seconds() if len(entries) % 8 == 1 else run.processors[-1])
                    enough = not whole and len(run.entries) >= given.evaluations
                    if not interrupted and (enough or time.perf_counter() > until):
                        running.send_signal(signal.SIGINT)
                        interrupted = True
        finally:
            running.terminate()
            running.wait()
        if running.returncode not in (0, 130):
            raise SystemExit((folder / "out").read_text())
    run.seconds = time.perf_counter() - begin
    told = (line for line in (folder / "out").read_text().splitlines() if line.startswith("the "))
    print("".join(f"      {line}\n" for line in told), end="")
    if not interrupted:
        run.result = json.loads(found.read_text())
    return run


class Lines:
    """The lines of a journal as they come, without the first."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._text, self._number = path, None, "", 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def more(self) -> list[dict[str, Any]]:
        """The values of those that have come."""
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open()
        *lines, self._text = (self._text + self._file.read()).split("\n")
        skipped, self._number = max(0, 1 - self._number), self._number + len(lines)
        return [json.loads(line) for line in lines[skipped:]]


def main() -> None:
    """Print the tables; a row of the first one when its run is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2", help="numbers of GPUs, separated by commas")
    parser.add_argument("--evaluations", type=int, default=574, help="configurations of each sweep")
    parser.add_argument("--rounds", type=int, default=0, help="sweeps of each number of GPUs with a filled compile cache")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for all of them")
    parser.add_argument("--kernel", default="matmul_wgmma:step8_tma_store", help="kernel and variant")
    parser.add_argument("--sizes", default="4096,4096,4096", help="its sizes, separated by commas")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the command, too
    counts = [int(word) for word in given.gpus.split(",")]
    cores = len(os.sched_getaffinity(0))
    print(f"{given.kernel} {given.sizes}, {given.evaluations} configurations, on {cores} processors", flush=True)
    print("cache  GPUs  " + "  ".join(f"{name:>10}" for name in PARTS))
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            _measure(given, counts, Path(folder), time.perf_counter() + given.limit, runs)
        finally:
            _rates(runs, counts[0])


def _measure(given: argparse.Namespace, counts: list[int], folder: Path, until: float, runs: list[Run]) -> None:
    """Add the runs to ``runs``, and print a row of the first table for each."""
    order = [("empty", counts[0], 0)]
    order += [("full", gpus, number) for number, gpus in itertools.product(range(1, given.rounds + 1), counts)]
    order += [("empty", gpus, 0) for gpus in reversed(counts[1:])]  # that of the most GPUs is not left out
    for cache, gpus, number in order:
        expected = max((run.seconds for run in runs if (run.cache, run.gpus) == (cache, gpus)), default=0.0)
        if time.perf_counter() + expected > until:
            print(f"{cache:5}  {gpus:4}  left out: the limit is near", flush=True)
            continue
        mine = folder / f"{cache}{gpus}-{number}"
        mine.mkdir()
        filled = folder / f"empty{counts[0]}-0" / "cache" if cache == "full" else mine / "cache"
        run = swept(gpus, given, mine, filled, until, whole=cache == "empty")
        if len(run.entries) < min(20, given.evaluations):
            print(f"{cache:5}  {gpus:4}  ended after {len(run.entries)} configurations", flush=True)
            continue
        run.cache, run.round = cache, number
        runs.append(run)
        parts = run.parts()
        print(f"{cache:5}  {gpus:4}  " + "  ".join(f"{parts[name]:9.2f}s" for name in PARTS), flush=True)
        _tell(run.result)


def _rates(runs: list[Run], base: int) -> None:
    """Print the second table, and what the rounds say together."""
    print("cache  GPUs  configurations  a second  linear  linear*  GPUs busy  processors  ", end="")
    print("  ".join(f"{name:>8}" for name in EACH))
    for run in runs:
        ones = [one.rates() for one in runs if (one.cache, one.gpus) == (run.cache, base)]
        means = [statistics.fmean(each) for each in zip(*ones, strict=True)] or [float("nan")] * 2
        rates, each = run.rates(), run.steady()
        linear, everything = (mine / one / run.gpus * base for mine, one in zip(rates, means, strict=True))
        row = f"{run.cache:5}  {run.gpus:4}  {len(run.entries):14}  {rates[0]:8.1f}  {linear:6.2f}  {everything:7.2f}"
        row += f"  {each['busy']:9.0%}  {each['processors']:10.0%}  "
        print(row + "  ".join(f"{each[name]:8.2f}" for name in EACH), flush=True)
    for gpus in dict.fromkeys(run.gpus for run in runs if run.gpus != base):
        found = in_rounds(runs, gpus, base)
        if found:
            spread = f"{min(found):.2f} to {max(found):.2f} in {len(found)} rounds"
            print(f"{gpus} GPUs: {statistics.fmean(found):.2f} of linear, {spread}", flush=True)


def in_rounds(runs: list[Run], gpus: int, base: int) -> list[float]:
    """The rate of ``gpus`` GPUs over that of ``base``, and over linear, in each round that has both."""
    rates = {(run.round, run.gpus): run.rates()[0] for run in runs if run.round}
    pairs = [(rates[number, gpus], rates[number, base]) for number, which in rates if which == gpus and (number, base) in rates]
    return [mine / one / gpus * base for mine, one in pairs]


def _tell(result: dict[str, Any]) -> None:
    """Print the winner, and whether the GPUs agree on it."""
    if not result:
        return
    best = result["entries"][0]
    print(f"      best {best['tile']}: {best['time_us']} us on {best['measured_on']}", flush=True)
    if result["agreement"]:
        each = result["agreement"]["each"]
        print(f"      {result['agreement']['agreeing']} of {result['agreement']['gpus']} GPUs agree: regret "
              f"{[one['regret'] for one in each]}, {[one['times_us'] for one in each]}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
