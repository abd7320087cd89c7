"""fused_l2norm's variants against torch eager and torch.compile on one GPU, in one run.

    python scripts/l2norm_against_torch.py [ROWS COLS]...

Each figure is the median of several rounds; in every round all candidates are timed one after another in random order, each
sample with a cold L2. torch's work is replayed from a CUDA graph, so that its host time does not count. Outputs are verified.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
from tabulate import tabulate

from ptxkit.runtime.device import device as open_device
from ptxkit.workload import execute, registry

DEFAULT = ["128", "4096", "8192", "4096", "16384", "8192"]
ROUNDS, SAMPLES = 8, 15


def replayed(function: Callable[[Any], Any], x: Any, stream: Any) -> Callable[[], None]:
    """``function(x)`` as a CUDA graph on ``stream``."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            function(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            function(x)
    return graph.replay


def compare(rows: int, cols: int) -> None:
    """Print one table."""
    gpu: Any = open_device("gpu")
    workload = registry.get("fused_l2norm").make([str(rows), str(cols)], {})
    case = execute.Case(workload, gpu)
    candidates: dict[str, Callable[[], None]] = {}
    for name, variant in workload.variants().items():
        prepared = execute.prepare(case, variant)
        assert prepared.verify().verified, name
        candidates[f"ptxkit {name}"] = prepared.launch
    x = torch.from_numpy(case.inputs["x"]).cuda()
    stream = torch.cuda.ExternalStream(gpu.stream_handle)

    def l2norm(v: Any) -> Any:
        return v / torch.sqrt((v * v).sum(1, keepdim=True) + 1e-12)

    torch._dynamo.reset()
    candidates["torch eager"] = replayed(l2norm, x, stream)
    candidates["torch.compile"] = replayed(torch.compile(l2norm), x, stream)
    copied = torch.empty_like(x)
    candidates["copy of x"] = replayed(copied.copy_, x, stream)
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name in random.sample(list(candidates), len(candidates)):
            times[name] += gpu.measure(candidates[name], SAMPLES).times_us
    roof = 2 * (1 << 30) / median(gpu.measure_copy(1 << 30, 20)) / 1e3
    base = median(times["torch.compile"])
    table = []
    for name, t in sorted(times.items(), key=lambda item: median(item[1])):
        low, _, high = quantiles(t, n=4)
        gbs = 8 * rows * cols / median(t) / 1e3
        table.append((name, median(t), (high - low) / 2, gbs, 100 * gbs / roof, base / median(t)))
    print(f"\nl2norm {rows} x {cols} on {gpu.name}; copy of 1 GiB: {roof:.0f} GB/s")
    print(
        tabulate(
            table,
            ["", "median us", "+- us", "GB/s", "% of copy", "x torch.compile"],
            floatfmt=(None, ".2f", ".2f", ".0f", ".1f", ".3f"),
        )
    )


def main() -> int:
    """Every size asked for."""
    sizes = [int(a) for a in sys.argv[1:] or DEFAULT]
    for rows, cols in zip(sizes[::2], sizes[1::2], strict=True):
        compare(rows, cols)
    return 0


if __name__ == "__main__":
    sys.exit(main())
