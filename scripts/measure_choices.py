"""Measure many variants and tiles of a sample of shapes on a GPU, from which the choice is fitted and its regret computed.

    python scripts/measure_choices.py OUT.jsonl [--sample 40] [--seed 1] [--family rows] [--candidates 24] [--seconds 120]
        [--peers compile]

The cases are drawn from the grid of ``ptxkit bench shapes``, families in turn. For each, the candidates are the chosen variant
and tile, every other variant with its first tile, and further tiles of the chosen variant and of its predecessor: all, or where
there are more than --candidates, half from the preferred ones and half at random. They are compiled in a process for each
processor. Each is timed with a cold L2, and the fastest four and the chosen one are then timed against each other,
interleaved. Nothing is verified: the tests of the kernels and ``bench shapes`` do that.

With --peers, these peers are timed among the leaders. ``copy_us`` of a case is the time of copies of as many bytes as it moves
at least, over arrays that rotate in the same way. ``single_us`` of the chosen candidate and of the peers is that of one call
between two events, after a kernel that flushes the L2 cache.

One JSON line follows for each case, after a first line that names GPU, driver and NVRTC. ``scripts/fit_choice.py`` and
``scripts/regret.py`` read the file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate, VariantCandidate
from ptxkit.bench.measure.method import Method
from ptxkit.bench.peers import peers as peers_named
from ptxkit.bench.shapes.grid import FAMILIES, Shape, grid
from ptxkit.errors import PtxkitError
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.workload import registry
from ptxkit.workload.build import compiled
from ptxkit.workload.choice import choose
from ptxkit.workload.resolve import resolve

METHOD = Method(sample_us=300.0, calls=200, minimum=8, modes=("cold",), percentiles=False)
MOST_BYTES = 1 << 28  # of a case, and
MOST_FLOPS = 1 << 37  # its flops: inputs are generated on the host
LEADERS, ROUNDS = 4, 12
SINGLE = 20  # samples of single calls
SLOW = 4.0  # times the best so far after which a candidate gets three samples only
Candidate = tuple[str, dict[str, Any]]


def compiled_candidates(family: str, fields: Sequence[Any], facts: DeviceFacts, count: int, seed: int) -> list[Candidate]:
    """The candidates of a case, whose programs are in the compile cache; the chosen one first. Runs in a process of its own."""
    kernel, values = fields
    workload = registry.get(kernel)(**values).on(facts)
    generator = random.Random(f"{kernel} {values} {seed}")
    choice = choose(workload, target=facts.target)
    order = [o.resolved for o in choice.candidates]
    chosen = choice.chosen.resolved
    wanted = [chosen, *(r for r in order if r is not chosen)]
    place = order.index(chosen)
    for index, share in ((place, 0.7), (max(0, place - 1), 0.3)):
        resolved, room = order[index], round(count * share)
        tiles = [t for t in resolved.variant.tiles(workload) if t != resolved.tile][:20_000]
        if len(tiles) > room:
            near = tiles[: room // 2]
            tiles = near + generator.sample(tiles[room // 2 :], room - room // 2)
        for tile in tiles:
            try:
                wanted.append(resolve(workload, resolved.variant, facts.target, tile))
            except PtxkitError:
                continue
    found = {}
    for resolved in wanted:
        try:
            compiled(resolved)
        except PtxkitError:
            continue
        found.setdefault(repr((resolved.programs, resolved.launches)), (resolved.variant.name, dict(resolved.tile)))
    return list(found.values())


class Case:
    """One case on the GPU."""

    def __init__(self, device: Any, shape: Shape, seed: int) -> None:
        self.device = device
        workload = shape.workload
        count = METHOD.sets(workload.work().bytes, workload.bytes_needed(), device.l2_bytes, device.memory_bytes)
        self.sets = BufferSets(workload, device, count, seed)

    def variant(self, candidate: Candidate) -> VariantCandidate:
        """A candidate whose programs are in the compile cache."""
        name, tile = candidate
        return VariantCandidate(self.sets, self.sets.workload.variant(name), tile)

    def graph(self, made: Any, best_us: float) -> tuple[Any, int, list[float]]:
        """A graph of a candidate or peer, its number of calls, and the first samples in microseconds of a call."""
        timing, sets = self.device.timing, len(self.sets)
        rotation = made.replay(range(sets))
        call_us = min(timing.replays(rotation, 3, warm=False)) / sets
        calls = METHOD.calls_for(call_us, sets)
        replay = rotation if calls == sets else made.replay(list(range(sets)) * (calls // sets))
        samples = 3 if call_us > SLOW * best_us else METHOD.minimum
        return replay, calls, [t / calls for t in timing.replays(replay, samples, warm=False)]

    def single_us(self, made: Any) -> float:
        """The time of one call after a flush of the L2 cache."""
        return round(statistics.median(self.device.timing.replays(made.replay([0]), SINGLE, warm=False)), 4)

    def measured(self, candidates: Sequence[Candidate], peers: Sequence[Any]) -> list[dict[str, Any]]:
        """A row for each candidate and peer; the first one, which is chosen, the leaders and the peers have ``leader_us``."""
        rows: list[dict[str, Any]] = []
        graphs: list[tuple[Any, int]] = []
        best = float("inf")
        offering = [peer for peer in peers if peer.offers(self.sets.workload)]
        for which in (*candidates, *offering):
            own = isinstance(which, tuple)
            row: dict[str, Any] = {"variant": which[0], "tile": which[1]} if own else {"peer": which.name}
            rows.append(row)
            try:
                made: Any = self.variant(which) if own else PeerCandidate(self.sets, which)
                replay, calls, times = self.graph(made, best)
                if not own or len(rows) == 1:
                    row["single_us"] = self.single_us(made)
            except PtxkitError as error:
                row["error"] = str(error).splitlines()[0]
                graphs.append((None, 0))
                if self.device.lost:
                    raise
                continue
            row["us"] = round(statistics.median(times), 4)
            best = min(best, row["us"])
            graphs.append((replay, calls))
        timed = sorted((i for i, row in enumerate(rows) if "us" in row), key=lambda i: rows[i]["us"])
        compared = [i for i in timed if i == 0 or "peer" in rows[i]]
        leaders = list(dict.fromkeys([*timed[:LEADERS], *compared]))
        samples: dict[int, list[float]] = {i: [] for i in leaders}
        for _ in range(ROUNDS):
            for i in random.sample(leaders, len(leaders)):
                replay, calls = graphs[i]
                samples[i] += [t / calls for t in self.device.timing.replays(replay, 2, warm=False)]
        for i, times in samples.items():
            rows[i]["leader_us"] = round(statistics.median(times), 4)
            quartiles = statistics.quantiles(times, n=4)
            rows[i]["spread_us"] = round((quartiles[2] - quartiles[0]) / 2, 4)
        return rows

    def copy_us(self) -> float:
        """The time of a copy that moves as many bytes as the case, over as many arrays."""
        half = max(16, self.sets.workload.work().bytes // 2)
        return round(statistics.median(self.device.timing.rotating_copy(half, len(self.sets), SINGLE)), 4)


def sampled(seed: int, count: int, families: Sequence[str]) -> list[Shape]:
    """The cases, families in turn, so that any first part of them is balanced."""
    every = grid(seed).of_families(families)
    fitting = [s for s in every.shapes if (w := s.workload.work()).bytes <= MOST_BYTES and w.flops <= MOST_FLOPS]
    generator = random.Random(f"choices {seed}")
    by_family = {f: [s for s in fitting if s.family == f] for f in FAMILIES}
    for group in by_family.values():
        generator.shuffle(group)
    found = []
    while len(found) < count and any(by_family.values()):
        found += [group.pop() for group in by_family.values() if group]
    return found[:count]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="write the times to this file")
    parser.add_argument("--sample", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", action="append", default=[], metavar="FAMILY")
    parser.add_argument("--candidates", type=int, default=24, metavar="N", help="tiles beside the first of each variant")
    parser.add_argument("--peers", default="", metavar="NAMES", help="also time these peers, such as torch,compile")
    parser.add_argument("--seconds", type=float, default=120.0, help="end after this time; what was measured is written")
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    from ptxkit.compiler.nvrtc import nvrtc_version
    from ptxkit.runtime.device import timed_device

    shapes = sampled(given.seed, given.sample, given.family)
    peers = peers_named(given.peers.split(","))[0] if given.peers else []
    try:
        device: Any = timed_device()
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    facts = device.facts_for(None)
    gpu = device.facts()
    device.timing.flush()
    workers = len(os.sched_getaffinity(0))
    with Path(given.out).open("w", encoding="utf-8") as out, ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_without_gpu
    ) as pool:
        head = {"schema": "ptxkit.choices/1", "gpu": device.name, "driver": gpu.kernel_driver, "nvrtc": nvrtc_version()}
        print(json.dumps({**head, "seed": given.seed}), file=out)
        pending: dict[Future[list[Candidate]], Shape] = {}
        for shape in shapes:
            w = shape.workload
            fields = (w.name, {**w.sizes, **w.options})
            pending[pool.submit(compiled_candidates, shape.family, fields, facts, given.candidates, given.seed)] = shape
        done = count = 0
        for future in as_completed(pending):
            shape = pending[future]
            if time.monotonic() - begin > given.seconds:
                break
            try:
                candidates = future.result()
                case = Case(device, shape, given.seed)
                rows, copy_us = case.measured(candidates, peers), case.copy_us()
            except PtxkitError as error:
                print(f"{shape.workload.name} {shape.workload.size_text()}: {error}", file=sys.stderr)
                if device.lost:
                    break
                continue
            w = shape.workload
            line = {"family": shape.family, "origin": shape.origin, "kernel": w.name, "sizes": w.sizes, "options": w.options}
            print(json.dumps({**line, "copy_us": copy_us, "rows": rows}), file=out, flush=True)
            done, count = done + 1, count + len(rows)
        compiling = list(getattr(pool, "_processes", {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in compiling:
            process.kill()
        seconds = time.monotonic() - begin
        print(f"{done} of {len(shapes)} cases, {count} candidates, {seconds:.0f} s, on {device.name}")
    return 0


def _without_gpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
