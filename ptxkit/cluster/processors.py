"""The processors of a machine that compile, beside those that are left to the processes that measure.

A measuring process loads and binds kernels for most of the time of a short configuration. It takes longer where a compiling
process shares its core, whatever the priorities of the two are.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

CORES_A_GPU = 4  # with fewer cores for each GPU, all processors compile
TOPOLOGY = Path("/sys/devices/system/cpu")


def compiling_processors(gpus: int) -> list[int]:
    """The processors of this process that compile: all but those of one core for each GPU, where there are enough cores.

    Args:
        gpus: that are measured on at the same time.
    """
    every = os.sched_getaffinity(0)
    cores = _cores(every)
    if not gpus or len(cores) < CORES_A_GPU * gpus:
        return sorted(every)
    kept = [cores[number * len(cores) // gpus] for number in range(gpus)]  # on all sockets, as the GPUs are
    return sorted(every.difference(*kept))


def _cores(processors: Collection[int]) -> list[frozenset[int]]:
    """The processors of each core, of those given, in the order of their numbers."""
    found = {frozenset(_siblings(number)).intersection(processors) for number in processors}
    return sorted(found, key=min)


def _siblings(processor: int) -> set[int]:
    """A processor and those that share its core; alone where the system does not say."""
    try:
        text = (TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
        ends = [[int(number) for number in part.split("-")] for part in text.strip().split(",")]
    except (OSError, ValueError):
        return {processor}
    return {processor}.union(*(range(end[0], end[-1] + 1) for end in ends))
