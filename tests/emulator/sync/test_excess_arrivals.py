"""Barriers that get more arrivals than they expect, in one instruction: the rest belongs to the next phase."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.errors import DeadlockError, RaceError


def run(body: str, *arrays: np.ndarray, **options):
    arrays = arrays or (np.zeros(1), np.zeros(1))
    return Run(kernel(body))(*arrays, **options)


@pytest.mark.parametrize("count", [96, 192])
def test_a_barrier_for_a_divisor_of_the_warps_completes(count):
    run(f"bar.sync 1, {count};", block=192)


@pytest.mark.parametrize("racecheck", [False, "warps"])
def test_a_warp_that_arrives_after_the_barrier_is_complete_waits_for_the_next_phase(racecheck):
    with pytest.raises(DeadlockError, match=r"at barrier 1 with 32 of 160 threads there"):
        run("bar.sync 1, 160;", block=192, racecheck=racecheck)


def test_arrivals_without_a_wait_complete_several_phases():
    """Six warps arrive at a barrier for two, three times in all; a seventh then waits, alone."""
    body = THREAD + "setp.lt.u32 %p0, %r0, 192; @%p0 bar.arrive 1, 64; @!%p0 bar.sync 1, 64;"
    with pytest.raises(DeadlockError, match=r"at barrier 1 with 32 of 64 threads there"):
        run(body, block=224)


def test_warps_meet_in_pairs():
    """Each pair of warps that a barrier for 64 threads brings together gets its own vote."""
    body = THREAD + """
    shr.u32 %r5, %r0, 6; setp.eq.u32 %p0, %r5, 1;
    barrier.red.popc.aligned.u32 %r6, 1, 64, %p0; st.global.u32 [%rd21], %r6;
    """
    out, _ = run(body, np.zeros(192, np.uint32), np.zeros(1), block=192)
    assert out.reshape(3, 64).tolist() == [[0] * 64, [64] * 64, [0] * 64]


HALVES = THREAD + """
    .shared .b32 sent[96]; mov.u32 %r12, sent; shl.b32 %r13, %r0, 2; add.u32 %r14, %r12, %r13;
    and.b32 %r15, %r0, 16; setp.eq.u32 %p0, %r15, 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra WAIT;
    st.shared.b32 [%r14], %r0; @%p0 bra LOW;
    {high} bra END;
    LOW: barrier.arrive 1, 96; bra END;
    WAIT: barrier.sync 1, 96;
    sub.u32 %r16, 95, %r0; and.b32 %r16, %r16, 31; shl.b32 %r16, %r16, 2; add.u32 %r16, %r12, %r16; ld.shared.b32 %r17, [%r16];
    END:
"""


@pytest.mark.parametrize("high", ["barrier.arrive 1, 96;", "barrier.sync 1, 96;"])
@pytest.mark.parametrize("racecheck", [False, "warps", "lanes"])
def test_the_halves_of_a_warp_that_arrive_separately_are_one_warp(high, racecheck):
    run(HALVES.format(high=high), block=96, racecheck=racecheck)


def test_one_half_of_a_warp_is_no_warp():
    with pytest.raises(DeadlockError, match=r"at barrier 1 with 64 of 96 threads there"):
        run(HALVES.format(high="barrier.sync 2, 64;"), block=96)


MESSAGES = """
    .shared .align 8 .b64 bar; .shared .b32 sent[128]; mov.u32 %r10, bar; mov.u32 %r12, sent;
    setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared::cta.b64 [%r10], {count}; bar.sync 0;
    shl.b32 %r13, %r0, 2; add.u32 %r14, %r12, %r13; st.shared.b32 [%r14], %r0;
    {arrive}
    W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 0; @!%p1 bra W;
    sub.u32 %r15, %r12, %r13; ld.shared.b32 %r16, [%r15+508];
"""
ARRIVALS = {
    "arrive": "mbarrier.arrive.shared::cta.b64 _, [%r10];",
    "copies": "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r10];",
}


@pytest.mark.parametrize("arrive", ARRIVALS)
def test_an_mbarrier_for_all_threads_orders_their_messages(arrive):
    run(THREAD + MESSAGES.format(count=128, arrive=ARRIVALS[arrive]), block=128, racecheck="warps")


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize("arrive", ARRIVALS)
def test_arrivals_after_the_phase_order_nothing_for_those_who_wait_for_it(arrive, racecheck):
    body = THREAD + MESSAGES.format(count=96, arrive=ARRIVALS[arrive])
    with pytest.raises(RaceError, match=r"read-after-write"):
        run(body, block=128, racecheck=racecheck)
