"""Measure the speed of the emulator on this machine: the fused l2norm at two sizes, and a profile.

    python scripts/emulator_speed.py            # medians of several launches, and thread instructions a second
    python scripts/emulator_speed.py --profile  # also the functions that take the time, on one worker

Times are host times of the emulation; they say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import struct
import sys
from statistics import median

import numpy as np
from tabulate import tabulate

from ptxkit.compiler import compile_source
from ptxkit.compiler.paths import kernels_dir
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.isa.parser import parse

ENTRY = "l2norm_fused<256, true>"
THREADS = 256


class FusedL2norm:
    """The fused variant of fused_l2norm on a machine of its own, checked once against numpy."""

    def __init__(self, rows: int, cols: int, workers: int | None) -> None:
        image = compile_source(kernels_dir() / "fused_l2norm.cu", target="sm_90a", instantiate=[ENTRY])
        self.machine = Machine(workers=workers)
        self.program = self.machine.load(parse(image.ptx, "fused_l2norm.ptx"))
        self.entry = image.entry(ENTRY)
        self.rows, self.cols = rows, cols
        x = np.random.default_rng(0).uniform(-1, 1, (rows, cols)).astype(np.float32)
        self.x, self.y = self.machine.allocate(x.nbytes, "x"), self.machine.allocate(x.nbytes, "y")
        self.machine.write(self.x, x)
        self.launch(counters=False)
        got = self.machine.read(self.y, x.nbytes).view(np.float32).reshape(x.shape)
        want = x / np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True) + 1e-12)
        assert np.abs(got - want).max() < 1e-6, "wrong result"

    def launch(self, counters: bool) -> tuple[float, int]:
        """Host milliseconds of one launch, and its thread instructions (0 when they are not counted)."""
        params = struct.pack("<QQif", self.x, self.y, self.cols, 1e-12)
        result = self.program.launch(
            self.entry,
            params,
            grid=(self.rows, 1, 1),
            block=(THREADS, 1, 1),
            shared_bytes=4 * self.cols,
            settings=EmulatorSettings(counting=counters),
        )
        return result.elapsed_s * 1e3, result.counters.instructions if result.counters else 0


def main() -> int:
    """Print the table, and the profile on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    rows = []
    for shape, repeats in (((128, 4096), options.repeats), ((4096, 4096), max(3, options.repeats // 5))):
        case = FusedL2norm(*shape, workers=None)
        instructions = case.launch(counters=True)[1]
        for counters in (True, False):
            times = sorted(case.launch(counters)[0] for _ in range(repeats))
            rate = instructions / median(times) / 1e3
            rows.append(
                (f"{shape[0]} x {shape[1]}", "yes" if counters else "no", median(times), times[0], times[-1], rate)
            )
    print(f"fused_l2norm, variant fused; {platform.machine()}, {os.cpu_count()} processors, numpy {np.__version__}")
    headers = ["size", "counters", "median ms", "min ms", "max ms", "M thread instructions/s"]
    print(tabulate(rows, headers, floatfmt=".1f"))
    if options.profile:
        case = FusedL2norm(1024, 4096, workers=1)
        profile = cProfile.Profile()
        profile.runcall(case.launch, True)
        pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(15)
    return 0


if __name__ == "__main__":
    sys.exit(main())
