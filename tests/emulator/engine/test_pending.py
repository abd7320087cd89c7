"""The order in which CTAs become resident, and waves that are made only when they are executed."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import Run, kernel

from ptxkit.emulator.engine.launch import EmulatedLaunch
from ptxkit.emulator.engine.pending import Pending
from ptxkit.errors import InstructionLimitError

DIM = st.tuples(*[st.integers(1, 3)] * 3)


def launch_of(grid, cluster):
    launch = EmulatedLaunch.__new__(EmulatedLaunch)
    launch.grid, launch.cluster, launch.cluster_size = grid, cluster, int(np.prod(cluster))
    return launch


@given(DIM, DIM, st.integers(1, 5), st.integers(0, 5))
def test_waves_hold_each_cta_once_and_clusters_together(clusters, cluster, per_wave, cancelled):
    grid = tuple(a * b for a, b in zip(clusters, cluster, strict=True))
    size, count = int(np.prod(cluster)), int(np.prod(grid))
    pending = Pending(launch_of(grid, cluster).order, count, per_wave * size, size, refuses=False)
    first = [c for _ in range(cancelled) if (c := pending.cancel()) is not None]
    assert len(first) == min(cancelled, count // size)
    found = []
    while (taken := pending.take()) is not None:
        assert taken[0] == len(found)
        found.append(taken[1])
        assert 0 < len(taken[1]) <= per_wave * size
    rest = np.concatenate(found) if found else np.zeros(0, np.int64)
    # numpy's index of each CTA: (z, y, x) of its cluster, then its rank
    index = np.arange(count).reshape(clusters[2], cluster[2], clusters[1], cluster[1], clusters[0], cluster[0])
    order = index.transpose(0, 2, 4, 1, 3, 5).reshape(-1)
    assert (rest == order[len(first) * size :]).all() and first == list(order[: len(first) * size : size])
    assert pending.cancel() is None


def test_a_large_grid_takes_no_memory_for_ctas_that_have_not_started():
    run = Run(kernel("LOOP: bra LOOP;"))
    tracemalloc.start()
    try:
        with pytest.raises(InstructionLimitError):
            run(np.zeros(1), np.zeros(1), grid=1 << 23, block=64, max_instructions=100_000)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # 8 bytes for each CTA would be 64 MiB
    finally:
        tracemalloc.stop()
