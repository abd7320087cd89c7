"""Functions whose parameters and results are registers. PTX ISA, ".func", "call"."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.errors import UninitialisedError

LANE = np.arange(32)
ADD3 = ".func (.reg .u32 sum) f (.reg .u32 a) { add.u32 sum, a, 3; ret; }"
STORE = "st.global.u32 [%rd21], %r4;"


def result(before: str, body: str, **settings):
    out, _ = Run(kernel(THREAD + body + STORE, before=before))(np.zeros(32, np.uint32), np.zeros(1), **settings)
    return out


@pytest.mark.parametrize("initcheck", [False, True])
@pytest.mark.parametrize(
    ("before", "body", "want"),
    [
        (ADD3, "call (%r4), f, (%r0);", LANE + 3),
        (ADD3, "call (%r4), f, (9);", LANE * 0 + 12),
        (ADD3, "mov.u32 %r4, %r0; call (%r4), f, (%r4); call (%r4), f, (%r4);", LANE + 6),
        (ADD3, "call (_), f, (%r0); mov.u32 %r4, 1;", LANE * 0 + 1),
        (
            ADD3,
            "mov.u64 %rd10, f; P: .callprototype (.reg .u32 _) _ (.reg .u32 _); call (%r4), %rd10, (%r0), P;",
            LANE + 3,
        ),
        (
            ".func (.reg .f32 y) f (.reg .f32 x) { add.f32 y, x, 0f3F800000; ret; }",
            "call (%f2), f, (0f40000000); cvt.rzi.u32.f32 %r4, %f2;",
            LANE * 0 + 3,
        ),
        (
            ".func (.reg .b32 y, .reg .u16 z) f (.reg .f32 x, .reg .u16 h) { mov.b32 y, x; add.u16 z, h, 1; ret; }",
            (
                "cvt.u16.u32 %h1, %r0; call (%f2, %h2), f, (0f40400000, %h1); cvt.rzi.u32.f32 %r4, %f2;"
                "cvt.u32.u16 %r5, %h2; add.u32 %r4, %r4, %r5;"
            ),
            LANE + 4,
        ),
        (
            (
                ".func (.reg .u32 y) f (.reg .u32 a) { .reg .pred p; .reg .u32 t, u; mov.u32 y, 0; setp.eq.u32 p, a, 0; @p ret;"
                "sub.u32 t, a, 1; call (u), f, (t); add.u32 y, u, a; ret; }"
            ),
            "and.b32 %r5, %r0, 7; call (%r4), f, (%r5);",
            (LANE & 7) * ((LANE & 7) + 1) // 2,
        ),
    ],
)
def test_a_call_returns_its_result(before, body, want, initcheck):
    assert (result(before, body, initcheck=initcheck) == want).all()


@pytest.mark.parametrize("branch", ["@%p0 call (%r4), f, (%r0);", "@!%p0 bra PAST; call (%r4), f, (%r0); PAST:"])
def test_lanes_that_do_not_call_keep_their_register(branch):
    out = result(ADD3, "setp.gt.u32 %p0, %r0, 20; mov.u32 %r4, 77;" + branch)
    assert (out == np.where(LANE > 20, LANE + 3, 77)).all()


def test_an_uninitialised_argument_or_result_is_followed_through_the_call():
    with pytest.raises(UninitialisedError, match="register %r9"):
        result(ADD3, "call (%r4), f, (%r9);")
    with pytest.raises(UninitialisedError, match="register y"):
        result(".func (.reg .u32 y) f (.reg .u32 a) { ret; }", "call (%r4), f, (%r0);")


TWICE = ".func (.param .b32 y) f (.param .b32 x) { .reg .u32 t; ld.param.u32 t, [x]; add.u32 t,t,t; st.param.u32 [y], t; ret; }"
POINTER, LABEL = "mov.u64 %rd10, f;", "P: .callprototype (.{0} .b32 _) _ (.{0} .b32 _);"


@pytest.mark.parametrize("initcheck", [False, True])
@pytest.mark.parametrize(
    ("before", "body", "want"),
    [
        (TWICE, "call (%r4), f, (%r0);", 2 * LANE),
        (TWICE, "call (%r4), f, (9);", LANE * 0 + 18),
        (TWICE, "setp.ne.u32 %p0, %r0, 3; mov.u32 %r4, 7; @%p0 call (%r4), f, (%r0);", np.where(LANE == 3, 7, 2 * LANE)),
        (TWICE, "call (_), f, (%r0); mov.u32 %r4, 1;", LANE * 0 + 1),
        (TWICE, "call (%f2), f, (0f40000000); mov.b32 %r4, %f2;", LANE * 0 + (1 << 31)),
        (TWICE, "{ .param .b32 a; st.param.u32 [a], %r0; call (%r4), f, (a); }", 2 * LANE),
        (TWICE, "{ .param .b32 a; call (a), f, (%r0); ld.param.u32 %r4, [a]; }", 2 * LANE),
        (TWICE, POINTER + LABEL.format("param") + "call (%r4), %rd10, (%r0), P;", 2 * LANE),
        (TWICE, POINTER + "T: .calltargets f; call (%r4), %rd10, (%r0), T;", 2 * LANE),
        (ADD3, "{ .param .b32 a; st.param.u32 [a], %r0; call (%r4), f, (a); }", LANE + 3),
        (ADD3, "{ .param .b32 a; call (a), f, (%r0); ld.param.u32 %r4, [a]; }", LANE + 3),
        (
            ADD3,
            POINTER + LABEL.format("reg") + "{ .param .b32 a, b; st.param.u32 [a], %r0; call (b), %rd10, (a), P;"
            "ld.param.u32 %r4, [b]; }",
            LANE + 3,
        ),
        (TWICE, ("mov.u32 %r4, %r0; bra IN; AGAIN: add.u32 %r4, %r4, 1; IN: call (%r4), f, (%r4); setp.lt.u32 %p0, %r4, 2; "
         "@%p0 bra AGAIN;"), np.where(LANE == 0, 2, 2 * LANE)),
    ],
)
def test_arguments_may_be_in_another_state_space_than_the_parameters(before, body, want, initcheck):
    assert (result(before, body, initcheck=initcheck) == want).all()


def test_an_uninitialised_register_is_followed_into_a_parameter():
    with pytest.raises(UninitialisedError, match="param memory .*never initialised"):
        result(TWICE, "call (%r4), f, (%r9);")
