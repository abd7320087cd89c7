"""Branches, loops, calls and exits, of the whole wave and of some of its lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

from ptxkit.errors import DeadlockError, FaultError, TrapError, UnsupportedError


def test_lanes_take_different_sides_and_meet_again():
    run = Run(
        kernel(
            THREAD
            + """
        and.b32 %r4, %r0, 1; setp.eq.u32 %p0, %r4, 0; @%p0 bra EVEN;
        mov.u32 %r5, 100; bra JOIN;
    EVEN: mov.u32 %r5, 200;
    JOIN: add.u32 %r5, %r5, %r0; st.global.u32 [%rd21], %r5;
    """
        )
    )
    out, _ = run(np.zeros(64, np.uint32), np.zeros(1, np.uint32), block=64)
    lane = np.arange(64)
    assert (out == np.where(lane % 2 == 0, 200, 100) + lane).all()
    assert run.result.counters.divergent_branches == 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=200))
def test_every_lane_loops_as_often_as_it_wants(trips):
    run = Run(
        kernel(
            THREAD
            + """
        ld.global.u32 %r4, [%rd21]; mov.u32 %r5, 0; mov.u32 %r6, 0;
    LOOP: setp.ge.u32 %p0, %r6, %r4; @%p0 bra DONE;
        add.u32 %r5, %r5, %r6; add.u32 %r6, %r6, 1; bra LOOP;
    DONE: st.global.u32 [%rd22], %r5;
    """
        )
    )
    n = np.array(trips, np.uint32)
    _, out = run(n, np.zeros_like(n), block=len(trips))
    assert (out == n.astype(np.int64) * (n.astype(np.int64) - 1) // 2).all()


def test_threads_that_exit_early_leave_the_rest_alone():
    run = Run(
        kernel(
            THREAD
            + """
        setp.lt.u32 %p0, %r0, 40; @%p0 exit;
        bar.sync 0;
        mov.u32 %r4, 7; st.global.u32 [%rd21], %r4;
    """
        )
    )
    out, _ = run(np.zeros(96, np.uint32), np.zeros(1, np.uint32), block=96)
    assert (out == np.where(np.arange(96) < 40, 0, 7)).all()


def test_a_block_that_is_no_multiple_of_a_warp():
    run = Run(kernel(THREAD + "mov.u32 %r4, 5; bar.sync 0; st.global.u32 [%rd21], %r4;"))
    out, _ = run(np.zeros(45 * 3 + 4, np.uint32), np.zeros(1, np.uint32), grid=3, block=45)
    assert (out[: 45 * 3] == 5).all() and (out[45 * 3 :] == 0).all()


RECURSIVE = """
.func (.param .b32 result) fact(.param .b32 n)
{
    .reg .pred %p<2>; .reg .b32 %r<6>;
    ld.param.u32 %r0, [n];
    setp.gt.u32 %p0, %r0, 1;
    @%p0 bra MORE;
    mov.u32 %r1, 1; st.param.b32 [result], %r1; ret;
MORE:
    add.u32 %r2, %r0, -1;
    { .param .b32 a; .param .b32 v; st.param.b32 [a], %r2; call.uni (v), fact, (a); ld.param.b32 %r3, [v]; }
    mul.lo.u32 %r4, %r3, %r0;
    st.param.b32 [result], %r4;
    ret;
}
"""


def test_recursion_to_a_different_depth_in_every_lane():
    run = Run(
        kernel(
            THREAD
            + """
        rem.u32 %r4, %r0, 10;
        { .param .b32 a; .param .b32 v; st.param.b32 [a], %r4; call (v), fact, (a); ld.param.b32 %r5, [v]; }
        st.global.u32 [%rd21], %r5;
    """,
            before=RECURSIVE,
        )
    )
    out, _ = run(np.zeros(64, np.uint32), np.zeros(1, np.uint32), block=64)
    factorials = [1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880]
    assert out.tolist() == [factorials[i % 10] for i in range(64)]


def test_endless_recursion_is_a_stack_overflow():
    endless = """
.func spin(.param .b32 n)
{
    .local .align 16 .b8 buffer[4096]; .reg .b32 %r<2>;
    ld.param.u32 %r0, [n];
    { .param .b32 a; st.param.b32 [a], %r0; call spin, (a); }
    ret;
}
"""
    run = Run(kernel("mov.u32 %r0, 1; { .param .b32 a; st.param.b32 [a], %r0; call spin, (a); }", before=endless))
    with pytest.raises(FaultError, match=r"test\.ptx:\d+ call: thread \(0, 0, 0\) of CTA .* calls spin from .*stack overflow"):
        run(np.zeros(1), np.zeros(1))


def test_calls_through_a_register_go_where_each_lane_points():
    functions = """
.func (.param .b32 r) one(.param .b32 n) { .reg .b32 %r<2>; ld.param.u32 %r0, [n]; add.u32 %r0, %r0, 1; st.param.b32 [r],
%r0; ret; } .func (.param .b32 r) two(.param .b32 n) { .reg .b32 %r<2>; ld.param.u32 %r0, [n]; add.u32 %r0, %r0, 2;
st.param.b32 [r], %r0; ret; }
"""
    run = Run(
        kernel(
            THREAD
            + """
        and.b32 %r4, %r0, 1; setp.eq.u32 %p0, %r4, 0;
        mov.u64 %rd5, one; mov.u64 %rd6, two; selp.b64 %rd7, %rd5, %rd6, %p0;
        PROTO: .callprototype (.param .b32 _) _ (.param .b32 _);
        { .param .b32 a; .param .b32 v; st.param.b32 [a], %r0; call (v), %rd7, (a), PROTO; ld.param.b32 %r5, [v]; }
        st.global.u32 [%rd21], %r5;
    """,
            before=functions,
        )
    )
    out, _ = run(np.zeros(32, np.uint32), np.zeros(1, np.uint32))
    lane = np.arange(32)
    assert (out == lane + np.where(lane % 2 == 0, 1, 2)).all()


def test_an_indexed_branch_sends_each_lane_to_its_label():
    run = Run(
        kernel(
            THREAD
            + """
        rem.u32 %r4, %r0, 3;
        T: .branchtargets A, B, C;
        brx.idx %r4, T;
    A: mov.u32 %r5, 10; bra END;
    B: mov.u32 %r5, 20; bra END;
    C: mov.u32 %r5, 30;
    END: st.global.u32 [%rd21], %r5;
    """
        )
    )
    out, _ = run(np.zeros(33, np.uint32), np.zeros(1, np.uint32), block=33)
    assert out.tolist() == [(10, 20, 30)[i % 3] for i in range(33)]


def test_trap_names_line_and_thread():
    run = Run(kernel(THREAD + "setp.eq.u32 %p0, %r0, 37; @%p0 trap;"))
    with pytest.raises(TrapError, match=r"test\.ptx:\d+ trap: executed by thread \(37, 0, 0\) of CTA \(0, 0, 0\)"):
        run(np.zeros(1), np.zeros(1), block=64)


def test_every_unsupported_form_is_reported_at_once():
    run = Run(
        kernel("frobnicate.u32 %r0, %r1;\n tex.2dms.v4.f32.s32 {%f0,%f1,%f2,%f3}, [%rd0, {%r0,%r1,%r2,%r3}];\n mov.u8 %h0, 1;")
    )
    with pytest.raises(UnsupportedError) as caught:
        run(np.zeros(1), np.zeros(1))
    text = str(caught.value)
    assert "frobnicate.u32" in text and "tex.2dms" in text and "mov.u8" in text


def test_a_predicate_keeps_the_old_value_in_the_other_lanes():
    run = Run(
        kernel(
            THREAD
            + """
        mov.u32 %r4, 1; setp.gt.u32 %p0, %r0, 9; @%p0 add.u32 %r4, %r4, 4; @!%p0 ld.global.u32 %r4, [%rd22];
        st.global.u32 [%rd21], %r4;
    """
        )
    )
    out, _ = run(np.zeros(32, np.uint32), np.full(32, 77, np.uint32))
    assert out.tolist() == [77] * 10 + [5] * 22


def test_a_barrier_only_half_a_cta_reaches_is_a_deadlock():
    run = Run(kernel(THREAD + "setp.lt.u32 %p0, %r0, 32; @%p0 bra SKIP; bar.sync 0; bra END; SKIP: bar.sync 1; END:"))
    with pytest.raises(DeadlockError) as caught:
        run(np.zeros(1), np.zeros(1), block=64)
    text = str(caught.value)
    assert "barrier 0 with 32 of 64" in text and "barrier 1 with 32 of 64" in text


def test_polling_a_flag_that_no_thread_sets_is_a_deadlock():
    run = Run(kernel("LOOP: ld.volatile.global.u32 %r0, [%rd0]; setp.eq.u32 %p0, %r0, 0; @%p0 bra LOOP;"))
    with pytest.raises(DeadlockError, match=r"ld\.volatile\.global\.u32: 32 thread"):
        run(np.zeros(1, np.uint32), np.zeros(1))


def test_a_consumer_polling_below_its_producer_gets_its_value():
    run = Run(
        kernel(
            THREAD
            + """
        setp.ge.u32 %p0, %r0, 32; @%p0 bra PRODUCE;
    WAIT: ld.acquire.gpu.global.u32 %r4, [%rd0]; setp.eq.u32 %p1, %r4, 0; @%p1 bra WAIT;
        st.global.u32 [%rd22], %r4; bra END;
    PRODUCE: mov.u32 %r5, 0;
    WORK: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 50; @%p2 bra WORK;
        st.release.gpu.global.u32 [%rd0], %r5;
    END:
    """
        )
    )
    _, out = run(np.zeros(1, np.uint32), np.zeros(32, np.uint32), block=64)
    assert (out == 50).all()


CTAS_AND_A_FLAG = (
    THREAD
    + """
    setp.lt.u32 %p0, %r2, 32; @{}%p0 bra PRODUCE;
WAIT: ld.acquire.gpu.global.u32 %r4, [%rd0]; setp.eq.u32 %p1, %r4, 0; @%p1 bra WAIT;
    st.global.u32 [%rd22], %r4; bra END;
PRODUCE: mov.u32 %r5, 0;
WORK: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 20000; @%p2 bra WORK;
    st.release.gpu.global.u32 [%rd0], %r5;
END:
"""
)


def test_ctas_may_wait_for_those_of_an_earlier_wave(monkeypatch):
    """64 CTAs of 1024 threads are two waves; the second one polls until the first one has stored."""
    monkeypatch.setattr("ptxkit.emulator.engine.wave.MIN_STEADY", 20)
    run = Run(kernel(CTAS_AND_A_FLAG.format("")))
    _, out = run(np.zeros(1, np.uint32), np.zeros(64 * 1024, np.uint32), grid=64, block=1024)
    assert (out[32 * 1024 :] == 20000).all()


def test_ctas_that_wait_for_those_of_a_later_wave_need_a_cooperative_launch(monkeypatch):
    monkeypatch.setattr("ptxkit.emulator.engine.wave.MIN_STEADY", 20)
    run = Run(kernel(CTAS_AND_A_FLAG.format("!")), workers=1)
    arguments = np.zeros(1, np.uint32), np.zeros(64 * 1024, np.uint32)
    _, out = run(*arguments, grid=64, block=1024, cooperative=True)
    assert (out[: 32 * 1024] == 20000).all()
    with pytest.raises(DeadlockError):
        run(*arguments, grid=64, block=1024)
