"""Configurations per second of `ptxkit sweep tiles` and of Kernel Tuner: one kernel, one space, one run on one GPU.

python scripts/against_kernel_tuner.py [--size 2048] [--configurations 60] [--seed 0] [--backend CUPY|NVCUDA]

Needs a GPU, kernel_tuner and the backend's package. Both get the same random configurations of micro_tiling_matmul:step6_warps
with at most 48 KiB of shared memory (Kernel Tuner's backends do not ask the driver for more), compile with NVRTC, uncached,
and compare each result with the same reference within the same tolerance before they time it. Kernel Tuner takes its default of
seven samples; ptxkit takes what `sweep tiles` takes, and more of the leaders. Kernel Tuner cannot parse the launch bounds of a
template, so it gets the same file with the parameters of the kernel's template as constants.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.compiler import toolkit
from ptxkit.compiler.paths import include_dir, kernels_dir
from ptxkit.kernels.gemm import micro_tiling_matmul as described
from ptxkit.runtime.device import device
from ptxkit.sweep import search
from ptxkit.sweep.journal import Journal
from ptxkit.sweep.problem import Problem, explore
from ptxkit.sweep.run import Sweep
from ptxkit.workload.execute import Data
from ptxkit.workload.launch import Tile

VARIANT = "step6_warps"
SHARED = 48 << 10
KERNEL = re.compile(r"template <([^>]*)>\s*(__global__[^;{]*? void matmul_pipelined\()")


def specialized(tile: dict[str, Any]) -> str:
    """The kernel's file with the template of ``matmul_pipelined`` made a plain kernel of one configuration."""
    text = (kernels_dir() / "micro_tiling_matmul.cu").read_text()
    found = KERNEL.search(text)
    if found is None:
        raise SystemExit("matmul_pipelined is not declared as this script expects; adapt KERNEL")
    constants = ""
    for parameter in found[1].split(", "):
        kind, name = parameter.split()
        constants += f"constexpr {kind} {name} = {tile.get(name, 'true')};\n"
    return f'{text[: found.start()]}{constants}extern "C" {text[found.start(2) :]}'


def kernel_tuner(problem: Problem, tiles: list[Tile], data: Data, backend: str) -> tuple[float, list[dict[str, Any]]]:
    """Seconds of the whole call, and its results."""
    from kernel_tuner import tune_kernel

    w: Any = problem.workload
    wanted = {tuple(tile.values()) for tile in tiles}
    names = list(problem.axes)
    parameters = {name: sorted({tile[name] for tile in tiles}) for name in names}
    parameters["block_size_x"] = sorted({described.threads(tile) for tile in tiles})

    def restriction(p: Any) -> bool:
        return tuple(p[n] for n in names) in wanted and p["block_size_x"] == described.threads(Tile(p))

    allowed = w.tolerance
    arguments = [data.inputs["a"], data.inputs["b"], np.zeros((w.m, w.n), np.float32), *map(np.int32, (w.m, w.n, w.k))]
    options = [f"-I{include_dir()}", *(f"-I{tool.path}" for tool in toolkit.headers()), "--std=c++17"]
    begin = time.perf_counter()
    results, _ = tune_kernel(
        "matmul_pipelined",
        specialized,
        lambda p: (w.grid(p["BM"], p["BN"]), 1, 1),
        arguments,
        parameters,
        grid_div_x=[],
        restrictions=restriction,
        answer=[None, None, data.expected["c"].astype(np.float32), None, None, None],
        atol=allowed.absolute,
        lang=backend,
        smem_args={"size": lambda p: described.shared_bytes(Tile(p))},
        compiler_options=options,
        defines={},
        quiet=True,
    )
    return time.perf_counter() - begin, results


def ptxkit(problem: Problem, tiles: list[Tile], journal: Path) -> tuple[float, Sweep]:
    """Seconds of the whole sweep, the measuring of the leaders included, and the sweep."""
    gpu = device("gpu")
    begin = time.perf_counter()
    sweep = Sweep(problem, search.exhaustive(tiles), Journal(journal, problem, gpu.name), len(tiles), timed=True)
    sweep.run()
    return time.perf_counter() - begin, sweep


def main() -> int:
    """Run both and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--configurations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=("CUPY", "NVCUDA"), default="CUPY")
    arguments = parser.parse_args()
    size = dict.fromkeys("mnk", arguments.size)
    gpu = device("gpu")
    problem = Problem("micro_tiling_matmul", VARIANT, size, {}, gpu.target.name if gpu.target else "")
    tiles = [tile for tile in explore(problem).tiles if described.shared_bytes(tile) <= SHARED]
    tiles = random.Random(arguments.seed).sample(tiles, min(arguments.configurations, len(tiles)))
    data = Data(problem.workload)
    _ = data.expected
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PTXKIT_CACHE_DIR"] = f"{scratch}/ptxkit"
        os.environ["CUPY_CACHE_DIR"] = f"{scratch}/cupy"
        os.environ["CUDA_CACHE_DISABLE"] = "1"
        ours_s, sweep = ptxkit(problem, tiles, Path(scratch) / "journal.jsonl")
        theirs_s, results = kernel_tuner(problem, tiles, data, arguments.backend)
    ours = {entry.key: entry.value for entry in sweep.done.values()}
    theirs = {
        Tile({n: r[n] for n in problem.axes}): r["time"] * 1e3 for r in results if isinstance(r.get("time"), float)
    }
    work_s = sum(r.get(k, 0.0) for r in results for k in ("compile_time", "verification_time", "benchmark_time")) / 1e3
    count = len(tiles)
    print(f"{problem.title} on {gpu.name}, {count} configurations, {os.cpu_count()} processors")
    print(f"ptxkit: {ours_s:.1f} s, {count / ours_s:.2f} a second, {sweep.measured} measured; seconds {sweep.spent}")
    print(
        f"Kernel Tuner: {theirs_s:.1f} s, {count / theirs_s:.2f} a second, {len(theirs)} measured, {arguments.backend}"
    )
    print(f"    of them {work_s:.1f} s in compiling, verifying and timing: {count / max(work_s, 1e-9):.2f} a second")
    if len(theirs) < count:
        print("Kernel Tuner did not measure all: the comparison is not worth much")
        return 1
    print(f"ratio: {theirs_s / ours_s:.2f}; of what it spends on configurations alone: {work_s / ours_s:.2f}")
    for name, times, other in (("ptxkit", ours, theirs), ("Kernel Tuner", theirs, ours)):
        best = min(times, key=lambda t: times[t])
        print(f"best of {name}: {times[best]:.1f} us, {best}; the other measured {other[best]:.1f} us there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
