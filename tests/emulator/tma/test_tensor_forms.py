"""Which forms of the tensor instructions the emulator binds, and which it refuses before launch."""

from __future__ import annotations

import numpy as np
import pytest
from programs import Run, kernel

from ptxkit.errors import UnsupportedError

LOAD = "cp.async.bulk.tensor.{}.mbarrier::complete_tx::bytes"
MAP_1D, MAP_2D, MAP_3D = "[%rd0, {%r1}]", "[%rd0, {%r1, %r1}]", "[%rd0, {%r1, %r1, %r1}]"

REFUSED = [
    (LOAD.format("3d.shared::cta.global.im2col::w"), f"[%r0], {MAP_3D}, [%r0], {{%h0}}"),
    (LOAD.format("2d.shared::cta.global.im2col::w"), f"[%r0], {MAP_2D}, [%r0], {{%h0, %h0}}"),
    (LOAD.format("2d.shared::cta.global") + ".multicast::cluster", f"[%r0], {MAP_2D}, [%r0], %h0"),
    (LOAD.format("2d.shared::cta.global"), f"[%r0], {MAP_1D}, [%r0]"),
    (LOAD.format("3d.shared::cta.global.im2col"), f"[%r0], {MAP_3D}, [%r0]"),
    ("tensormap.replace.tile.box_dim.global.b1024.b32", "[%rd0], 5, %r0"),
    ("tensormap.replace.tile.elemtype.global.b1024.b32", "[%rd0], %r0"),
    ("tensormap.replace.tile.global_address.global.b1024.b32", "[%rd0], %r0"),
]

BOUND = [
    (LOAD.format("2d.tile.shared::cta.global"), f"[%r0], {MAP_2D}, [%r0]"),
    (LOAD.format("2d.shared::cta.global") + ".tile", f"[%r0], {MAP_2D}, [%r0]"),
    (LOAD.format("2d.shared::cluster.global") + ".L2::cache_hint", f"[%r0], {MAP_2D}, [%r0], %rd1"),
    (
        LOAD.format("2d.shared::cluster.global") + ".multicast::cluster.L2::cache_hint",
        f"[%r0], {MAP_2D}, [%r0], %h0, %rd1",
    ),
    (LOAD.format("3d.im2col.shared::cluster.global"), f"[%r0], {MAP_3D}, [%r0], {{%h0}}"),
    ("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group.L2::cache_hint", f"{MAP_1D}, [%r0], %rd1"),
    ("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group.L2::cache_hint", f"{MAP_1D}, [%r0], %rd1"),
    ("cp.reduce.async.bulk.tensor.3d.global.shared::cta.xor.im2col_no_offs.bulk_group", f"{MAP_3D}, [%r0]"),
    ("cp.async.bulk.prefetch.tensor.3d.L2.global.im2col", f"{MAP_3D}, {{%h0}}"),
    ("cp.async.bulk.prefetch.tensor.1d.L2.global.tile.L2::cache_hint", f"{MAP_1D}, %rd1"),
    ("tensormap.replace.tile.swizzle_atomicity.b1024.b32", "[%rd0], 3"),
    ("fence.proxy.tensormap::generic.release.gpu", ""),
]


@pytest.mark.parametrize(("opcode", "operands"), REFUSED)
def test_what_is_not_emulated_is_refused_before_launch(opcode, operands):
    with pytest.raises(UnsupportedError) as caught:
        Run(kernel(f"{opcode} {operands};", target="sm_100a"), target="sm_100a")(np.zeros(128, np.uint8))
    assert opcode in str(caught.value)


@pytest.mark.parametrize(("opcode", "operands"), BOUND)
def test_every_way_of_writing_it_is_bound(opcode, operands):
    """No access to a tensor map occurs, because no thread executes the instruction."""
    Run(kernel(f"mov.u32 %r0, 0; setp.ne.u32 %p0, %r0, %r0; @%p0 {opcode} {operands};"))(np.zeros(128, np.uint8), 0)
