"""Addresses of 32 bits below 0, which a constant offset makes positive again, as NVRTC generates for ``tile[127 - i]``."""

from __future__ import annotations

import numpy as np
import pytest
from either import bench  # noqa: F401  a fixture
from programs import THREAD, Run, kernel

from ptxkit.errors import MemoryFault

REVERSED = THREAD + """
    .shared .align 16 .b32 tile[128]; mov.u32 %r10, tile; shl.b32 %r11, %r0, 2; add.u32 %r12, %r10, %r11;
    st.shared.b32 [%r12], %r3; bar.sync 0;
    sub.u32 %r13, %r10, %r11; add.u32 %r13, %r13, -4096;  // below 0: the variable begins at 0x400
"""
LOAD = "ld.shared.b32 %r14, [%r13+4604]; st.global.b32 [%rd21], %r14;"
WAYS = {
    "load": LOAD,
    "atomic": "atom.shared.add.u32 %r14, [%r13+4604], 0; st.global.b32 [%rd21], %r14;",
    "store": "st.shared.b32 [%r13+4604], %r3; bar.sync 0; ld.shared.b32 %r14, [%r12]; st.global.b32 [%rd21], %r14;",
    "copy": "sub.u64 %rd5, %rd22, 0; cp.async.ca.shared.global [%r13+4604], [%rd5], 4; cp.async.wait_all; bar.sync 0; "
    "ld.shared.b32 %r14, [%r12]; st.global.b32 [%rd21], %r14;",
}


@pytest.mark.parametrize("way", WAYS)
def test_the_offset_wraps_around(bench, way):  # noqa: F811
    values = np.arange(128, dtype=np.uint32)
    out, _ = bench(REVERSED + WAYS[way], np.zeros(128, np.uint32), values, block=128)
    assert (out == values[::-1]).all()


@pytest.mark.parametrize("settings", [{"racecheck": "warps"}, {"racecheck": "lanes"}, {"initcheck": True}])
def test_checks_find_the_bytes(settings):
    values = np.arange(128, dtype=np.uint32)
    out, _ = Run(kernel(REVERSED + LOAD))(np.zeros(128, np.uint32), values, block=128, **settings)
    assert (out == values[::-1]).all()


def test_the_offset_wraps_around_within_a_cta_of_a_cluster():
    """There, the address without its offset is in the window of the CTA of the next lower rank."""
    values = np.arange(512, dtype=np.uint32)
    out, _ = Run(kernel(REVERSED + LOAD))(np.zeros(512, np.uint32), values, grid=4, cluster=4, block=128)
    assert (out.reshape(4, 128) == values.reshape(4, 128)[:, ::-1]).all()


@pytest.mark.parametrize("offset", [0, 1024])
def test_an_address_that_stays_below_0_is_a_fault(offset):
    with pytest.raises(MemoryFault, match="below the CTA's shared memory"):
        Run(kernel(REVERSED + LOAD.replace("4604", str(offset))))(np.zeros(128), np.zeros(128), block=128)
