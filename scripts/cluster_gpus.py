"""Measures sweeps on 1, 2, ... GPUs of this machine: configurations a second, and what limits them.

    python scripts/cluster_gpus.py [--gpus 1,2,4] [--evaluations 574] [--warm] [--kernel KERNEL:VARIANT] [--sizes M,N,K]

Every run is one command, ``ptxkit sweep tiles ... --cluster local-gpus --search random``, with an empty journal, and the first
GPUs of ``CUDA_VISIBLE_DEVICES``. All of them measure the same configurations, each with an empty compile cache; with ``--warm``
they are repeated with the cache that the first run has filled, so that nothing is compiled. The columns are:

- the seconds of the whole command, until all configurations were known (``explored``), and until the first one was;
- configurations a second until all were known, and while the second to the ninth tenth of them came (``steady``), which leaves
  out the start of the processes and the end, when GPUs become idle; each of them over that of the first number of GPUs and
  their number: 1.00 is linear;
- the share of the time after the first configuration in which the GPUs measured, that of the time until all were known in
  which the compiling processes compiled, and milliseconds of a GPU for a configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def swept(gpus: int, given: argparse.Namespace, folder: Path, cache: Path) -> tuple[dict[str, Any], float, list[float]]:
    """The JSON of a sweep on the first GPUs of this machine, its seconds, and when each line of the journal came."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = ",".join(visible[:gpus] if visible != [""] else map(str, range(gpus)))
    found, journal = folder / "sweep.json", folder / "journal"
    words = ["sweep", "tiles", given.kernel, *given.sizes.split(","), "--cluster", "local-gpus", "--search", "random"]
    words += ["--evaluations", str(given.evaluations), "--journal", str(journal), "--json", str(found), "--top", "1"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": chosen, "PTXKIT_CACHE_DIR": str(cache)}
    begin = time.perf_counter()
    times: list[float] = []
    with (folder / "out").open("w") as out:
        running = subprocess.Popen([sys.executable, "-m", "ptxkit", *words], env=env, stdout=out, stderr=out, text=True)
        try:
            while running.poll() is None:
                time.sleep(0.02)
                lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
                times += [time.perf_counter() - begin] * (lines - len(times))
        finally:
            running.terminate()
            running.wait()
        if running.returncode:
            raise SystemExit((folder / "out").read_text())
    print("".join(f"      {line}\n" for line in (folder / "out").read_text().splitlines() if line.startswith("the ")), end="")
    return dict(json.loads(found.read_text())), time.perf_counter() - begin, times


def figures(result: dict[str, Any], times: list[float], gpus: int, cores: int) -> dict[str, float]:
    """The figures of a row; see the docstring of this file."""
    spent, count = result["spent_s"], len(result["entries"])
    measuring = sum(spent[part] for part in ("prepare", "verify", "time"))
    explored = spent["explored"]
    from_tenth, to_tenth = count // 10, count * 9 // 10
    return {
        "explored": explored,
        "first": spent["first"],
        "rate": count / explored,
        "steady": (to_tenth - from_tenth) / (times[to_tenth] - times[from_tenth]),
        "measuring": measuring / gpus / max(explored - spent["first"], 1e-9),
        "compiling": spent["compile"] / cores / explored,
        "each_ms": 1e3 * measuring / max(1, result["measured"]),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2", help="numbers of GPUs, separated by commas")
    parser.add_argument("--evaluations", type=int, default=574, help="configurations of each sweep")
    parser.add_argument("--warm", action="store_true", help="repeat the sweeps with a filled compile cache")
    parser.add_argument("--kernel", default="matmul_wgmma:step8_tma_store", help="kernel and variant")
    parser.add_argument("--sizes", default="4096,4096,4096", help="its sizes, separated by commas")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the command, too
    counts = [int(word) for word in given.gpus.split(",")]
    cores = len(os.sched_getaffinity(0))
    print(f"{given.kernel} {given.sizes} on {cores} processors", flush=True)
    print("cache  GPUs  configurations  command  explored  first after  a second  linear  steady  steady linear", end="")
    print("  GPUs busy  cores busy  each")
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty", "full")[: 1 + given.warm]:
            first: dict[str, float] | None = None
            for number, gpus in enumerate(counts):
                mine = Path(folder) / f"{cache}{number}"
                mine.mkdir()
                filled = Path(folder) / "empty0" / "cache" if cache == "full" else mine / "cache"
                result, seconds, times = swept(gpus, given, mine, filled)
                row = figures(result, times, gpus, cores)
                first = first or {"rate": row["rate"] / gpus, "steady": row["steady"] / gpus}
                linear, steady = (row[name] / first[name] / gpus for name in ("rate", "steady"))
                print(
                    f"{cache:5}  {gpus:4}  {len(result['entries']):14}  {seconds:7.1f}  {row['explored']:8.1f}"
                    f"  {row['first']:11.1f}  {row['rate']:8.1f}  {linear:6.2f}  {row['steady']:6.1f}  {steady:13.2f}"
                    f"  {row['measuring']:9.0%}  {row['compiling']:10.0%}  {row['each_ms']:.0f} ms",
                    flush=True,
                )
                _tell(result)


def _tell(result: dict[str, Any]) -> None:
    """Print the winner, and whether the GPUs agree on it."""
    best = result["entries"][0]
    print(f"      best {best['tile']}: {best['time_us']} us on {best['measured_on']}", flush=True)
    if result["agreement"]:
        each = result["agreement"]["each"]
        print(f"      {result['agreement']['agreeing']} of {result['agreement']['gpus']} GPUs agree: regret "
              f"{[one['regret'] for one in each]}, {[one['times_us'] for one in each]}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
