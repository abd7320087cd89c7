"""Measures configurations a second of an emulated sweep on clusters of this machine with 1, 2, ... workers.

    python scripts/cluster_throughput.py [--workers 1,2,4] [--evaluations 48] [--repeat 3]

Each worker has one process that compiles and emulates. Every run begins with an empty compile cache and journal, and its time
is that of the sweep alone, without the start of the cluster; the median of the repetitions is printed. The last column is the
throughput over that of one worker and the number of workers; processors that workers share limit it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from ptxkit.cluster import start
from ptxkit.cluster.connection import connected
from ptxkit.cluster.executor import ClusterExecutor
from ptxkit.sweep import search
from ptxkit.sweep.journal import Journal
from ptxkit.sweep.problem import Problem, explore
from ptxkit.sweep.run import Sweep

PROBLEM = Problem("fused_l2norm", "vectorized", {"rows": 64, "cols": 4096}, {"eps": 1e-12}, "sm_90a")


def rate(workers: int, evaluations: int) -> float:
    """Configurations a second of one sweep."""
    start.CORES_A_WORKER = 1
    start.LEAST_WORKERS = workers
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PTXKIT_CACHE_DIR"] = f"{folder}/cache"
        with connected("local", None, False, workers) as cluster:
            tiles = explore(PROBLEM).tiles
            executor = ClusterExecutor(cluster, PROBLEM, 0, 60.0, timed=False, say=print)
            while executor.slots < workers:
                time.sleep(0.1)
            journal = Journal(Path(folder) / "journal", PROBLEM, "the emulator")
            sweep = Sweep(PROBLEM, search.exhaustive(tiles), journal, evaluations, timed=False, executor=executor)
            begin = time.perf_counter()
            found = sweep.run()
            return len(found) / (time.perf_counter() - begin)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, separated by commas")
    parser.add_argument("--evaluations", type=int, default=48, help="configurations of each run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the median is printed")
    given = parser.parse_args()
    print(f"{given.evaluations} configurations of {PROBLEM.title}, {len(os.sched_getaffinity(0))} processors")
    print("workers  a second  over linear")
    first = None
    for count in map(int, given.workers.split(",")):
        found = statistics.median(rate(count, given.evaluations) for _ in range(given.repeat))
        first = first or found / count
        print(f"{count:7}  {found:8.2f}  {found / first / count:11.2f}")


if __name__ == "__main__":
    main()
