"""Compare kernels and peers on one GPU, in blocks of calls that are long enough for each to reach its own sustained
clock.

    python scripts/sustained_clock.py 4096x4096x4096 matmul_wgmma:step8_tma_store matmul_mma:step6_tma@BK=64,STAGES=3 cublas
    python scripts/sustained_clock.py 8192x8192x8192 matmul_wgmma:step8_tma_store cutlass --block 0.016  # one clock

`ptxkit bench run` changes candidates every few milliseconds. The driver averages power over longer than that, so that at the
power cap they all run at one clock, and a candidate with a lower power draw is slowed by the others. Here a block of calls
lasts most of a second, of which the later half counts. Candidates are KERNEL:VARIANT[@TILE] or peers of the first kernel, all
at the same sizes, in a random order in each round; ratios are with the first one, round by round. The order, the number of
calls and the stopping rule are those of `ptxkit bench` (:class:`Method`). Every output is compared with the reference first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tabulate import tabulate

import ptxkit
from ptxkit.bench.cases import parse_sizes
from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate, VariantCandidate
from ptxkit.bench.measure.environment import require_gpu
from ptxkit.bench.measure.method import Method
from ptxkit.bench.peers import peers
from ptxkit.bench.results.statistics import median_standard_error, summarize
from ptxkit.errors import PtxkitError, UsageError
from ptxkit.workload import registry
from ptxkit.workload.workload import Workload

SETS = 2  # of buffers that calls rotate over
GRAPH_US = 25_000.0  # of one graph at most; a block has at least two
MINIMUM = 3  # rounds


@dataclass
class Track:
    """A candidate: its graph of ``calls`` calls, how many replays of it make a block, and what was measured in each block.

    Attributes:
        candidate: owns the device memory that the graph works on. tflops_us: TFLOP/s times us.
        times_us: of a call, the median of a block's later half. clocks_mhz, power_w: right after it.
    """

    name: str
    candidate: Any
    tflops_us: float
    replay: Callable[[], None]
    calls: int
    replays: int
    times_us: list[float] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)

    def take(self, device: Any) -> None:
        """Measure one block."""
        times = device.timing.replays(self.replay, self.replays, warm=False)
        now = device.sensors()
        self.times_us.append(statistics.median(times[len(times) // 2 :]) / self.calls)
        self.clocks_mhz.append(now.sm_clock_mhz or 0)
        self.power_w.append(now.power_w or 0)


def parse(word: str, sizes: Sequence[str]) -> tuple[Workload, str, dict[str, str]] | None:
    """``KERNEL:VARIANT[@NAME=VALUE,...]`` as workload, variant and tile; None for a peer."""
    kernel, colon, rest = word.partition(":")
    if not colon:
        return None
    variant, _, tile = rest.partition("@")
    pairs = [pair.partition("=") for pair in tile.split(",") if pair]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError(f"{word}: a tile is NAME=VALUE,NAME=VALUE")
    return registry.find(kernel).make(list(sizes)), variant, {name: value for name, _, value in pairs}


def ratio_to(times: Sequence[float], of: Sequence[float]) -> tuple[float, float]:
    """Speed relative to another candidate's, the median over rounds, and its standard error."""
    each = [b / a for a, b in zip(times, of, strict=True)]
    return statistics.median(each), median_standard_error(each)


def method_of(block_s: float, seconds: float) -> Method:
    """Graphs of half a block at most, in rounds until ``seconds`` have passed."""
    graph_us = min(GRAPH_US, block_s * 1e6 / 2)
    return Method(
        budget_s=seconds, precision=1e-9, minimum=MINIMUM, maximum=10**9, batch=1, sample_us=graph_us, calls=10**6
    )


def tracks(device: Any, words: Sequence[str], sizes: Sequence[str], block_us: float, method: Method) -> list[Track]:
    """The candidates that the words name, after verifying them.

    Raises:
        UsageError: the first is a peer, or an output is wrong.
    """
    sets: dict[str, BufferSets] = {}
    found: list[Track] = []
    for word in words:
        parsed = parse(word, sizes)
        if parsed:
            workload, variant, tile = parsed
            if workload.name not in sets:
                sets[workload.name] = BufferSets(workload, device, SETS, seed=0)
            candidate: Any = VariantCandidate(sets[workload.name], workload.variant(variant), tile)
        elif sets:
            candidate = PeerCandidate(next(iter(sets.values())), _peer(word))
        else:
            raise UsageError(f"{word}: the first candidate is a KERNEL:VARIANT")
        rotation = candidate.replay(range(SETS))
        for verdict in (candidate.check(percentiles=False)[0], candidate.check_graph(rotation, SETS - 1)):
            if verdict is not None and not verdict.verified:
                raise UsageError(f"{word} is wrong: {verdict.worst}")
        call_us = min(device.timing.replays(rotation, 3, warm=False)) / SETS
        calls = method.calls_for(call_us, SETS)
        replays = max(2, round(block_us / call_us / calls))
        work = candidate.sets.workload.work()
        graph = candidate.replay(list(range(SETS)) * (calls // SETS))
        found.append(Track(word, candidate, work.flops / 1e6, graph, calls, replays))
    return found


def table(found: Sequence[Track]) -> str:
    """Fastest first."""
    lines = []
    for track in sorted(found, key=lambda t: statistics.median(t.times_us)):
        s = summarize(track.times_us)
        ratio, error = ratio_to(track.times_us, found[0].times_us)
        time_of = [f"{s.median:.2f}", f"{100 * s.relative_spread:.1f}%", f"{track.tflops_us / s.median:.1f}"]
        state = [f"{statistics.median(readings):.0f}" for readings in (track.clocks_mhz, track.power_w)]
        lines.append([track.name, *time_of, f"{ratio:.3f} ± {error:.3f}", *state])
    headers = ["", "us", "±", "TFLOP/s", "x first", "MHz", "W"]
    return tabulate(lines, headers, tablefmt="github", colalign=["left"] + ["right"] * 6, disable_numparse=True)


def _peer(name: str) -> Any:
    there, absent = peers([name])
    if not there:
        raise UsageError(absent[0][1])
    return there[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", help="such as 4096x4096x4096")
    parser.add_argument("candidates", nargs="+", metavar="KERNEL:VARIANT[@TILE]|PEER")
    parser.add_argument(
        "--block",
        type=float,
        default=0.7,
        metavar="SECONDS",
        help="run a candidate for so long [default: 0.7]",
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="measure for so long in all [default: 30]"
    )
    options = parser.parse_args(arguments)
    try:
        device: Any = ptxkit.device()
        require_gpu(device, "measuring")
        (sizes,) = parse_sizes(options.sizes)
        method = method_of(options.block, options.seconds)
        found = tracks(device, options.candidates, sizes, options.block * 1e6, method)
        begin = time.perf_counter()
        for order in method.rounds(len(found)):
            if method.over([track.times_us for track in found], time.perf_counter() - begin):
                break
            for i in order:
                found[i].take(device)
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    rounds = len(found[0].times_us)
    print(
        f"{device.name}, {options.sizes}: {rounds} rounds, blocks of {options.block} s; {device.sensors()}\n\n{table(found)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
