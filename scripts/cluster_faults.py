"""Kills a random worker of a cluster on this machine every few seconds while it sweeps, and compares with an undisturbed sweep.

    python scripts/cluster_faults.py [--seconds 300] [--every 5] [--workers 3] [--evaluations 60] [--seed 0]

Sweeps of the emulator run one after another on the same cluster until the time is over; the last one runs to its end. Each
has an empty journal. For every sweep the script states how many workers were killed, whether the journal has every
configuration exactly once, and whether all costs and the winner are those of the undisturbed sweep in processes of this
machine. It exits with 1 if one of them is not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from ptxkit.cluster import start
from ptxkit.cluster.connection import Connection, connected
from ptxkit.cluster.executor import ClusterExecutor
from ptxkit.errors import UnavailableError
from ptxkit.sweep import search
from ptxkit.sweep.journal import Entry, Journal, read
from ptxkit.sweep.problem import Problem, explore
from ptxkit.sweep.run import Sweep

PROBLEM = Problem("fused_l2norm", "vectorized", {"rows": 64, "cols": 4096}, {"eps": 1e-12}, "sm_90a")


def swept(path: Path, evaluations: int, cluster: Connection | None) -> list[Entry]:
    """A sweep of the first tiles."""
    tiles = explore(PROBLEM).tiles
    executor = None
    if cluster is not None:
        executor = ClusterExecutor(cluster, PROBLEM, 0, 60.0, timed=False, say=lambda line: None)
    journal = Journal(path, PROBLEM, "the emulator")
    return Sweep(PROBLEM, search.exhaustive(tiles), journal, evaluations, timed=False, executor=executor).run()


def kill(cluster: Connection, every: float, generator: random.Random, killed: list[int], over: threading.Event) -> None:
    """Kill a random worker at each interval; the cluster starts another one."""
    while not over.wait(every):
        with suppress(UnavailableError, ProcessLookupError):  # a worker that is asked has just been killed
            pids = sorted(w["pid"] for w in cluster.workers().values() if isinstance(w, dict))
            if pids:
                os.kill(victim := generator.choice(pids), signal.SIGKILL)
                killed.append(victim)


def main() -> int:
    """Print a line for each sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no sweep is started")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--workers", type=int, default=3, help="of one process each")
    parser.add_argument("--evaluations", type=int, default=60, help="configurations of a sweep")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of workers")
    given = parser.parse_args()
    start.CORES_A_WORKER, start.LEAST_WORKERS = 1, given.workers
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PTXKIT_CACHE_DIR"] = f"{folder}/cache"
        alone = swept(Path(folder) / "alone", given.evaluations, None)
        want = {entry.key: entry.cost for entry in read(Path(folder) / "alone").entries}  # as journals round them
        print(f"{len(want)} configurations of {PROBLEM.title}, {given.workers} workers, a kill every {given.every:g} s")
        print("sweep  seconds  killed  lost  twice  other results  same winner", flush=True)
        with connected("local", None, False, given.workers) as cluster:
            begin, number = time.monotonic(), 0
            killed: list[int] = []
            over = threading.Event()
            arguments = (cluster, given.every, random.Random(given.seed), killed, over)
            killer = threading.Thread(target=kill, args=arguments, daemon=True)
            killer.start()
            while time.monotonic() - begin < given.seconds:
                number += 1
                path = Path(folder) / f"journal{number}"
                before = len(killed)
                mine = time.monotonic()
                found = swept(path, given.evaluations, cluster)
                kills = len(killed) - before
                entries = read(path).entries
                times = Counter(entry.key for entry in entries)
                lost = len(want.keys() - times.keys())
                twice = sum(count > 1 for count in times.values())
                others = [entry for entry in entries if entry.cost != want[entry.key]]
                winner = found[0].key == alone[0].key
                wrong += lost + twice + len(others) + (not winner)
                seconds = time.monotonic() - mine
                same = "yes" if winner else "NO"
                counts = f"{kills:6}  {lost:4}  {twice:5}  {len(others):13}"
                print(f"{number:5}  {seconds:7.1f}  {counts}  {same}", flush=True)
                for entry in others:
                    print(f"       {entry.tile}: {entry.status}: {entry.error}", flush=True)
            over.set()
            killer.join()
            print(f"{len(killed)} workers killed in {time.monotonic() - begin:.0f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
