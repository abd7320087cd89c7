"""Measure the host time of a remembered choice: python scripts/choice_overhead.py [--device auto] [--calls 200000]

Printed are nanoseconds of a call of ``ptxkit.workload.choice.remembered`` for the same workload, for an equal workload that is
another object, and of the first call for each, which searches. The loop itself is subtracted. Each figure is the smallest of
seven repetitions, because other processes only add time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ptxkit.runtime.device import device as open_device
from ptxkit.workload import registry
from ptxkit.workload.choice import forget, remembered

CASES = (
    ("rmsnorm", {"rows": 2048, "cols": 4096, "dtype": "bf16"}),
    ("matmul_mma", {"m": 300, "n": 4096, "k": 4096, "dtype": "f16"}),
)
REPETITIONS = 7


def nanoseconds(call: Callable[[Any, Any], object], workload: Any, device: Any, calls: int) -> float:
    """Of one call: the smallest mean of several repetitions."""
    found = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call(workload, device)
        found.append((time.perf_counter_ns() - begin) / calls)
    return min(found)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, gpu or emulator")
    parser.add_argument("--calls", type=int, default=200_000)
    given = parser.parse_args(arguments)
    device = open_device(given.device)

    def nothing(workload: Any, device: Any) -> None:
        return None

    for kernel, fields in CASES:
        workload, equal = (registry.get(kernel)(**fields) for _ in range(2))
        forget()
        begin = time.perf_counter()
        remembered(workload, device)
        first_ms = 1e3 * (time.perf_counter() - begin)
        loop = nanoseconds(nothing, workload, device, given.calls)
        same = nanoseconds(remembered, workload, device, given.calls) - loop
        other = nanoseconds(remembered, equal, device, given.calls) - loop
        print(f"{kernel} {workload.size_text()}: {same:.0f} ns, an equal workload {other:.0f} ns; first {first_ms:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
