"""The kernel that measures the peak of the tensor cores executes the flops that are counted."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.bench.measure import roofs
from ptxkit.compiler.paths import kernels_dir
from ptxkit.runtime.device import device
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload.inputs import uniform


def test_every_round_multiplies_whole_tiles():
    emulator = device("emulator")
    launch, sums = roofs.tensor_peak(emulator, 2, 3)
    found = emulator.measure(launch, samples=1)
    warpgroups = 2 * roofs.PEAK_THREADS // 128
    assert found.counters.flops_by_type["tensor.bf16"] == warpgroups * 3 * roofs.PEAK_FLOPS
    data = uniform(np.random.default_rng(0), roofs.PEAK_SHARED // 2, "bf16").astype(np.float64)
    totals = sums.numpy().reshape(-1, 128).sum(1)
    assert np.isfinite(totals).all()
    assert np.allclose(totals, totals[0])
    a, b = (unswizzled(part.reshape(-1, 64)) for part in (data[: 64 * 64], data[64 * 64 :]))
    assert np.isclose(totals[0], 3 * (a @ b.T).sum(), rtol=1e-3)


def unswizzled(tile):
    """Rows of 64 elements, with the 16-byte atoms of each row permuted by the row's index modulo eight."""
    rows = np.arange(len(tile))[:, None]
    atoms = np.arange(8)[None, :] ^ rows % 8
    return tile.reshape(len(tile), 8, 8)[rows, atoms].reshape(len(tile), 64)


def test_ptxas_keeps_the_products_apart_from_everything_else():
    assert_sass(f"{kernels_dir() / 'tensor_peak.cu'}@sm_90a", has="HGMMA", spills=0)


@pytest.mark.parametrize(
    ("multiprocessors", "threads"), [(132, 2048), (108, 2048), (84, 1536), (170, 1536), (40, 1024)]
)
def test_every_multiprocessor_gets_as_many_threads_of_the_fma_peak(multiprocessors, threads):
    workload = roofs.fma_peak(multiprocessors, threads)
    target = Target.parse("sm_90a")
    for name in ("fused", "vectorized"):
        variant = workload.variant(name)
        (launch,) = variant.launches(workload, variant.select_tile(workload, target))
        resident = threads // launch.block[0]
        assert launch.grid[0] % (multiprocessors * resident) == 0
