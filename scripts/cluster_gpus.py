"""Measures sweeps on 1, 2, ... GPUs of this machine: configurations a second, and what limits them.

    python scripts/cluster_gpus.py [--gpus 1,2,4] [--evaluations 150,574,574] [--kernel KERNEL:VARIANT] [--sizes M,N,K]

Every run is one command, ``ptxkit sweep tiles ... --cluster local-gpus --search random``, with an empty compile cache, an empty
journal, and the first GPUs of ``CUDA_VISIBLE_DEVICES``. The columns are, for each number of GPUs:

- the seconds of the whole sweep, until all configurations were known (``explored``), and until the first one was measured;
- configurations a second over the whole sweep, and between the first and the last measured one (``steady``), over those of one
  GPU and the number of GPUs: 1.00 is linear;
- the share of the steady time in which the GPUs measured, and of the whole time in which the compiling processes compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def swept(gpus: int, evaluations: int, kernel: str, sizes: str, folder: Path) -> dict[str, Any]:
    """The JSON of a sweep on the first GPUs of this machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    chosen = ",".join(visible[:gpus] if visible != [""] else map(str, range(gpus)))
    found = folder / "sweep.json"
    words = ["sweep", "tiles", kernel, *sizes.split(","), "--cluster", "local-gpus", "--search", "random"]
    words += ["--evaluations", str(evaluations), "--journal", str(folder / "journal"), "--json", str(found), "--top", "1"]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": chosen, "PTXKIT_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-m", "ptxkit", *words], env=env, capture_output=True, text=True, check=False)
    print(done.stderr, end="", flush=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return dict(json.loads(found.read_text()))


def figures(result: dict[str, Any], gpus: int, cores: int) -> dict[str, float]:
    """The figures of a row; see the docstring of this file."""
    spent, count = result["spent_s"], len(result["entries"])
    measuring = sum(spent[part] for part in ("prepare", "verify", "time"))
    explored = spent["explored"]
    steady = max(explored - spent["first"], 1e-9)
    return {
        "seconds": result["seconds"],
        "explored": explored,
        "first": spent["first"],
        "rate": count / result["seconds"],
        "steady": (count - gpus) / steady,
        "measuring": measuring / gpus / steady,
        "compiling": spent["compile"] / cores / explored,
        "each_ms": 1e3 * measuring / max(1, result["measured"]),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2", help="numbers of GPUs, separated by commas")
    parser.add_argument("--evaluations", default="574", help="configurations: one number, or one for each number of GPUs")
    parser.add_argument("--kernel", default="matmul_wgmma:step8_tma_store", help="kernel and variant")
    parser.add_argument("--sizes", default="4096,4096,4096", help="its sizes, separated by commas")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the command, too
    counts = [int(word) for word in given.gpus.split(",")]
    evaluations = [int(word) for word in given.evaluations.split(",")] * (len(counts) if "," not in given.evaluations else 1)
    cores = len(os.sched_getaffinity(0))
    print(f"{given.kernel} {given.sizes} on {cores} processors", flush=True)
    print("GPUs  configurations  seconds  explored  first after  a second  steady  linear  steady linear", end="")
    print("  GPUs busy  cores busy  each")
    first: dict[str, float] | None = None
    for gpus, count in zip(counts, evaluations, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            result = swept(gpus, count, given.kernel, given.sizes, Path(folder))
        row = figures(result, gpus, cores)
        first = first or {"rate": row["rate"] / gpus, "steady": row["steady"] / gpus}
        linear, steady = (row[name] / first[name] / gpus for name in ("rate", "steady"))
        print(
            f"{gpus:4}  {len(result['entries']):14}  {row['seconds']:7.1f}  {row['explored']:8.1f}  {row['first']:11.1f}"
            f"  {row['rate']:8.2f}  {row['steady']:6.2f}  {linear:6.2f}  {steady:13.2f}  {row['measuring']:9.0%}"
            f"  {row['compiling']:10.0%}  {row['each_ms']:.0f} ms",
            flush=True,
        )
        best = result["entries"][0]
        print(f"      best {best['tile']}: {best['time_us']} us on {best['measured_on']}", flush=True)
        if result["agreement"]:
            print(f"      {result['agreement']['agreeing']} of {result['agreement']['gpus']} GPUs agree: "
                  f"{[each['regret'] for each in result['agreement']['each']]}, "
                  f"{[each['times_us'] for each in result['agreement']['each']]}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
