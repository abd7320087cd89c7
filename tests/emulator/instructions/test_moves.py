"""mov of vectors, components of special registers, and sums in place of a value."""

from __future__ import annotations

import numpy as np
import ptxas_oracle
import pytest
from either import Bench
from programs import Run, kernel

from ptxkit.errors import PtxSyntaxError, UnsupportedError

LANE = np.arange(32, dtype=np.uint32)
ADDRESS = "mov.u32 %r0, %tid.x; mad.wide.u32 %rd9, %r0, 4, %rd0;"


def run(device, body: str, **options) -> np.ndarray:
    (out,) = Bench(device, "eager")(f"{ADDRESS} {body} st.global.u32 [%rd9], %r4;", np.zeros(32, np.uint32), **options)
    return out


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("mov.u32 %r1, 7; mov.v2.u32 {%r5, %r4}, {%r0, %r1};", 7),
        ("mov.v2.u32 {%r4, %r0}, {%r0, %r9};".replace("%r9", "3"), LANE),
        ("mov.u32 %r1, 9; mov.v2.u32 {%r0, %r1}, {%r1, %r0}; mov.u32 %r4, %r1;", LANE),
        ("mov.v4.b32 {%r5, _, %r6, %r4}, {1, 2, 3, %r0};", LANE),
        ("mov.b32 %f1, %r0; mov.v2.f32 {%f2, %f3}, {%f1, 0f40000000}; mov.b32 %r4, %f2;", LANE),
        ("cvt.u64.u32 %rd5, %r0; mov.v2.b64 {%rd6, %rd7}, {0, %rd5}; cvt.u32.u64 %r4, %rd7;", LANE),
        ("cvt.u16.u32 %h1, %r0; mov.v2.b16 {%h2, %h3}, {%h1, 5}; cvt.u32.u16 %r4, %h2;", LANE),
        ("{ .reg .v2 .u32 a, b; mov.u32 a.x, 1; mov.u32 a.y, %r0; mov.v2.u32 b, a; mov.u32 %r4, b.y; }", LANE),
        ("{ .reg .v4 .u32 v; mov.v4.u32 v, %tid; mov.u32 %r4, v.x; }", LANE),
        ("{ .reg .v4 .u32 v; mov.v4.u32 v, %ntid; add.u32 %r4, v.x, v.y; }", 33),
        ("mov.u32 %r4, %clusterid.w;", 0),
        ("mov.u32 %r4, %tid.w; mov.u32 %r1, %nctaid.w; add.u32 %r4, %r4, %r1;", 0),
        ("mov.u32 %r4, %r0+1;", LANE + 1),
        ("add.u32 %r4, %r0+1, %r0 + 0x10;", 2 * LANE + 17),
        ("setp.lt.u32 %p0, %r0, 4; mov.u32 %r4, 0; @%p0 mov.u32 %r4, %r0 + 2;", np.where(LANE < 4, LANE + 2, 0)),
        ("mov.u32 %r4, 1; bra IN; AGAIN: add.u32 %r4, %r4, %r4+1; IN: setp.lt.u32 %p0, %r4+1, 9; @%p0 bra AGAIN;", 15),
    ],
)
def test_moves(device, body, want):
    np.testing.assert_array_equal(run(device, body), np.broadcast_to(want, 32))


def test_a_sum_is_stored(device):
    body = "st.global.u32 [%rd9], %r0 + 1; bar.sync 0; ld.global.u32 %r4, [%rd9];"
    np.testing.assert_array_equal(run(device, body), LANE + 1)


def test_performance_monitors_can_be_read(device):
    run(device, "mov.u32 %r4, %pm0; mov.u32 %r4, %pm7; mov.u64 %rd5, %pm3_64; mov.u32 %r4, 1;")


@pytest.mark.parametrize(
    "statement",
    ["mov.v2.u32 {%r1, %r2}, {%r3, %r4, %r5, %r6};", "mov.v4.u32 {%r1, %r2}, {%r3, %r4};", "mov.v2.u32 %r1, {%r3, %r4};"],
)
def test_vectors_of_another_length_are_refused(statement):
    assert ptxas_oracle.refused([statement], "sm_90a")
    with pytest.raises(UnsupportedError, match="mov.v[24].u32: needs (a vector|vectors of [24] elements)"):
        Run(kernel(statement))(0, 0)


def test_a_constant_is_not_added_to_a_float():
    with pytest.raises(PtxSyntaxError, match="a constant cannot be added to '%f1', which is .f32"):
        Run(kernel("mov.f32 %f2, %f1+1;"))
