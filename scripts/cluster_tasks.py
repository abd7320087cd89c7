"""Measures what a cluster costs for each configuration of a sweep, with workers that simulate compiling and measuring.

    python scripts/cluster_tasks.py [--gpus 1,2,4] [--evaluations 574] [--compile-ms 315] [--measure-ms 32]
        [--slots 16] [--profile] | --costs

Everything of a sweep with ``--cluster local-gpus`` is real but the work: on each worker, a compilation sleeps for
``--compile-ms``, and a measurement, one at a time, for ``--measure-ms``. The defaults are the mean times of
``matmul_wgmma:step8_tma_store`` at 4096³ on H200 GPUs of a host with 64 processors. So the results say what the client, its
scheduler and the connections take, also on a machine without a GPU; they say nothing about GPUs.

The columns are, for each number of simulated GPUs: seconds from the first to the last measurement; configurations a second in
that time, over those of one and their number; the share of the time in which the simulated GPUs measured; milliseconds of
processor time of this process, which has the client and the scheduler, for each configuration, and of its main thread, which
chooses and records them; Dask tasks.

With ``--costs``, what ``scripts/cluster_simulation.py`` takes for a task of Dask and for an answer is measured: tasks whose
jobs do nothing are sent at the highest rate of :mod:`ptxkit.cluster.placing`, with 1 and with 33 jobs each.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from ptxkit.cluster import placing, start
from ptxkit.cluster.bundles import Bundles
from ptxkit.cluster.connection import Connection, connected
from ptxkit.cluster.executor import ClusterExecutor
from ptxkit.cluster.gpus import ClusterGpu
from ptxkit.cluster.jobs import CPU, Job
from ptxkit.cluster.team import Team
from ptxkit.sweep import search
from ptxkit.sweep.journal import Journal
from ptxkit.sweep.problem import Problem, explore
from ptxkit.sweep.run import Sweep

PROBLEM = Problem("matmul_wgmma", "step8_tma_store", {"m": 4096, "n": 4096, "k": 4096}, {}, "sm_90a")
MODEL = "simulated GPU"


def simulate(compile_s: float, measure_s: float) -> None:
    """Executed on each worker: replace what compiles and measures there."""
    from concurrent.futures import Future, ThreadPoolExecutor

    from ptxkit.cluster import tasks
    from ptxkit.sweep.canary import Reading
    from ptxkit.sweep.compiling import Compiled
    from ptxkit.sweep.journal import Entry

    class Process:
        def canary(self) -> Reading:
            return Reading("", {"saxpy": 10.0}, {"saxpy": "digest"})

    class Simulated:
        def __init__(self, *_: Any, workers: int, **__: Any) -> None:
            self.process = Process()
            self._pool, self._gpu = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)

        def compile(self, tile: Any) -> Future[Compiled]:
            def work() -> Compiled:
                time.sleep(compile_s)
                return Compiled("", compile_s, False, f"{hash(tuple(tile.items())):016x}", images=("0" * 64,))

            known = getattr(self, "_known", {})
            key = tuple(tile.items())
            if key not in known:
                known[key] = self._pool.submit(work)
                self._known = known
            return known[key]  # type: ignore[no-any-return]

        def measure(self, tile: Any, compiled: Any, best: Any) -> Future[Entry]:
            def work() -> Entry:
                time.sleep(measure_s)
                value = 100.0 + int(compiled.fingerprint, 16) % 1000
                times = {"time_us": value, "spread_us": 0.1, "samples": 50, "time_s": measure_s}
                return Entry(tile, "ok", measured_on={"uuid": "simulated", "sm_clock_mhz": 1980, "throttled": []}, **times)

            return self._gpu.submit(work)

        def leaders(self, tiles: Any, budget_s: float) -> list[dict[str, Any]]:
            cold = {"median_us": 100.0, "spread_us": 0.0, "samples": 50}
            return [{"cold": cold, "verified": True, "error": "", "worst": "", "measured_on": {}} for _ in tiles]

        def end(self) -> None:
            self._pool.shutdown()
            self._gpu.shutdown()

    tasks.LocalExecutor = Simulated  # type: ignore[assignment,misc]
    tasks.fetch_images = lambda keys, source: None
    tasks._prepare = lambda executor, tiles: None


def swept(cluster: Connection, evaluations: int, folder: Path) -> tuple[float, float, float, int]:
    """Seconds between the first and the last measurement, processor seconds of this process and of this thread, Dask tasks."""
    tiles = explore(PROBLEM).tiles
    executor = ClusterExecutor(cluster, PROBLEM, 0, 60.0, timed=True, say=print, gpu=MODEL)
    journal = Journal(folder / "journal", PROBLEM, MODEL)
    sweep = Sweep(PROBLEM, search.exhaustive(tiles), journal, evaluations, timed=True, executor=executor)
    while len(executor.hosts()) == 0 or executor.measurers < len(cluster.workers()):
        time.sleep(0.1)
    placed = Bundles.send
    count = 0

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return placed(*arguments)

    Bundles.send = counted  # type: ignore[method-assign]
    try:
        begin, mine = time.process_time(), time.thread_time()
        sweep.run()
        used, mine = time.process_time() - begin, time.thread_time() - mine
    finally:
        Bundles.send = placed  # type: ignore[method-assign]
    return sweep.spent["explored"] - sweep.spent["first"], used, mine, count


def costs(tasks: int = 200) -> None:
    """Print what a task of Dask and an answer take of this process."""
    with connected("local", None, False, 2) as cluster:
        team = Team(cluster, (), print)
        while len(team.workers()) < len(cluster.workers()):
            time.sleep(0.1)
        found = {}
        for each in (1, 33):
            jobs = [[Job("nothing", CPU, int, lambda: ()) for _ in range(each)] for _ in range(tasks)]
            begin = time.process_time()
            for number, some in enumerate(jobs):
                worker = team.workers()[number % len(team.workers())]
                team.dispatcher._post(team.dispatcher._bundles.send, worker, some)
                time.sleep(1 / placing.BUNDLES_S)
            wait([job.future for some in jobs for job in some])
            found[each] = (time.process_time() - begin) / tasks
        team.end()
    answer = (found[33] - found[1]) / 32
    print(f"a task {1e3 * (found[1] - answer):.2f} ms, an answer {1e3 * answer:.2f} ms", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2,4", help="numbers of simulated GPUs, separated by commas")
    parser.add_argument("--evaluations", type=int, default=574, help="configurations of a sweep")
    parser.add_argument("--compile-ms", type=float, default=315.0, help="that a compilation sleeps")
    parser.add_argument("--measure-ms", type=float, default=32.0, help="that a measurement sleeps")
    parser.add_argument("--slots", type=int, default=16, help="compilations that each worker executes at a time")
    parser.add_argument("--profile", action="store_true", help="print where this process spends its time")
    parser.add_argument("--costs", action="store_true", help="measure what a task of Dask and an answer take")
    given = parser.parse_args()
    os.environ["PTXKIT_EMULATOR_THREADS"] = "1"
    print(f"{len(os.sched_getaffinity(0))} processors; load {os.getloadavg()[0]:.1f} before", flush=True)
    if given.costs:
        costs()
        return
    print("GPUs  seconds  a second  over linear  GPUs busy  processor ms  main ms  tasks", flush=True)
    first = 0.0
    for count in map(int, given.gpus.split(",")):
        gpus = [ClusterGpu(MODEL, f"GPU-{os.getpid()}-{i}", "0", "sm_90a", 132, 50 << 20, 80 << 30) for i in range(count)]
        start.visible_gpus = lambda gpus=gpus: gpus  # type: ignore[misc]
        with tempfile.TemporaryDirectory() as folder, connected("local-gpus", None, False, given.slots * count) as cluster:
            cluster.client.run(simulate, given.compile_ms / 1e3, given.measure_ms / 1e3)
            profile = cProfile.Profile()
            if given.profile:
                threading.setprofile(profile.dispatcher) if hasattr(profile, "dispatcher") else None
                cluster.client.loop.add_callback(profile.enable)
            seconds, used, mine, tasks = swept(cluster, given.evaluations, Path(folder))
            if given.profile:
                cluster.client.loop.add_callback(profile.disable)
                time.sleep(1)
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        rate = (given.evaluations - 1) / seconds
        first = first or rate / count
        busy = given.evaluations * given.measure_ms / 1e3 / count / seconds
        row = f"{count:4}  {seconds:7.1f}  {rate:8.1f}  {rate / count / first:11.2f}  {busy:9.0%}"
        print(f"{row}  {1e3 * used / given.evaluations:12.1f}  {1e3 * mine / given.evaluations:7.2f}  {tasks:5}", flush=True)


if __name__ == "__main__":
    main()
