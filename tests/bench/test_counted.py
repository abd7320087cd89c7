"""The emulator's counts in benchmark results."""

from __future__ import annotations

from ptxkit.bench.measure.counted import counted
from ptxkit.emulator.counters.counters import Counters


def test_asynchronous_copies_count_like_loads_and_stores():
    given = Counters(
        flops=300,
        global_load_bytes=64,
        global_load_sectors=2,
        async_bytes={"global_to_shared": 128, "shared_to_global": 32},
        async_sectors={"global_to_shared": 4, "shared_to_global": 1},
    )
    found = counted(given, {"n": 8})
    assert (found.load_bytes, found.store_bytes) == (192, 32)
    assert (found.load_sectors, found.store_sectors) == (6, 1)
    assert found.intensity == 300 / 224
    assert found.sizes == {"n": 8}
