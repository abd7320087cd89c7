"""Measures what a cluster costs for each task, with workers in network namespaces of this machine, and cuts one of them off.

    sudo python scripts/cluster_namespaces.py [--workers 1,2,4,8,16] [--tasks 40] [--seconds 0.2] [--cut 20]

Each worker is a ``ptxkit cluster worker`` in a network namespace of its own, which a bridge connects with the scheduler's. All
connections are encrypted. A task sleeps for ``--seconds``, as the time of a configuration on a GPU, so that the processors of
this machine, which all processes share, execute only what belongs to the cluster: the columns are tasks a second, over
those of one worker and their number, and milliseconds of processor time of the client and of the scheduler for each task.

With ``--cut``, one worker of the last row loses its network for that many seconds while tasks are executed; every task must end
exactly once. The namespaces and the bridge have names that begin with ptxkit, and are removed at the end. Needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ptxkit.cluster import roster
from ptxkit.cluster.connection import connected
from ptxkit.cluster.jobs import CPU
from ptxkit.cluster.security import write_keys
from ptxkit.cluster.team import Team

BRIDGE, NET = "ptxkitbr", "10.213.77"
HUB = f"{NET}.1"


def ip(*words: str) -> None:
    """Execute the command ip with these words."""
    subprocess.run(["ip", *words], check=True)


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """A bridge with the address of the scheduler, and namespaces that it connects."""
    made: list[str] = []
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{HUB}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number in range(count):
            name = f"ptxkit{number}"
            ip("netns", "add", name)
            made.append(name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", BRIDGE)
            ip("link", "set", name, "up")
            ip("-n", name, "addr", "add", f"{NET}.{number + 10}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield made
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)


@contextmanager
def serving(words: Sequence[str], said: str, namespace: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A ``ptxkit cluster`` process, and the line that it prints when it is ready."""
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    command = [*inside, sys.executable, "-m", "ptxkit", "cluster", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if said not in line:
            raise SystemExit(f"ptxkit cluster {' '.join(words)}: {line}")
        yield process, line
    finally:
        process.terminate()
        process.wait()


def processor_s(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cut(name: str, seconds: float) -> None:
    """Take a namespace off the network for a while."""
    time.sleep(2)
    ip("link", "set", name, "down")
    time.sleep(seconds)
    ip("link", "set", name, "up")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4,8,16", help="numbers of workers, separated by commas")
    parser.add_argument("--tasks", type=int, default=40, help="tasks of each worker")
    parser.add_argument("--seconds", type=float, default=0.2, help="that a task sleeps")
    parser.add_argument("--cut", type=float, default=0.0, help="seconds for which one worker loses its network")
    given = parser.parse_args()
    counts = [int(word) for word in given.workers.split(",")]
    print(f"{len(os.sched_getaffinity(0))} processors; load {os.getloadavg()[0]:.1f} before", flush=True)
    print("workers  tasks  a second  over linear  client ms  scheduler ms", flush=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        keys = f"{folder}/keys"
        write_keys(keys)
        names = stack.enter_context(namespaces(max(counts)))
        words = ["scheduler", "--host", HUB, "--port", "0", "--tls", keys]
        scheduler, line = stack.enter_context(serving(words, "scheduler at"))
        address = line.split()[-1]
        first, started = 0.0, 0
        for count in counts:
            for name in names[started:count]:
                words = ["worker", address, "--no-gpu", "--jobs", "1", "--tls", keys]
                stack.enter_context(serving(words, "with the emulator", name))
            started = count
            with connected(address, keys, False) as cluster:
                team = Team(cluster, (), lambda line: print(f"  {line}", flush=True))
                while len(team.workers()) < count:
                    time.sleep(0.2)
                last = count == counts[-1]
                if last and given.cut:
                    roster.HUNG_S = 8.0
                    threading.Thread(target=cut, args=(names[count - 1], given.cut), daemon=True).start()
                begin, mine, its = time.perf_counter(), time.process_time(), processor_s(scheduler.pid)
                number = count * given.tasks
                jobs = [team.submit(CPU, "sleeping", time.sleep, lambda: (given.seconds,)) for _ in range(number)]
                wait([job.future for job in jobs])
                seconds = time.perf_counter() - begin
                ended = sum(job.future.exception() is None for job in jobs)
                costs = [1e3 * (time.process_time() - mine) / number, 1e3 * (processor_s(scheduler.pid) - its) / number]
                done = sum(worker.done[CPU] for worker in team.workers())
                team.end()
            first = first or number / seconds / count
            share = number / seconds / count / first
            rates = f"{number / seconds:8.2f}  {share:11.2f}"
            print(f"{count:7}  {ended:5}  {rates}  {costs[0]:9.1f}  {costs[1]:12.1f}", flush=True)
            if last and given.cut:
                print(f"  cut off for {given.cut:g} s: {ended} of {number} tasks ended, {done} of them on the workers now")


if __name__ == "__main__":
    main()
