"""Warp collectives, barriers, clusters, atomics, printf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

from ptxkit.emulator.instructions.atomic_operations import apply_in_order
from ptxkit.emulator.instructions.builtins import format_printf
from ptxkit.errors import DeadlockError, TrapError, UninitialisedError

LANE = np.arange(32)


@pytest.mark.parametrize(
    ("mode", "b", "want"),
    [
        ("bfly", 5, LANE ^ 5),
        ("up", 3, np.where(LANE >= 3, LANE - 3, LANE)),
        ("down", 4, np.where(LANE + 4 <= 31, LANE + 4, LANE)),
        ("idx", 9, np.full(32, 9)),
    ],
)
def test_shfl(mode, b, want):
    clamp = 0 if mode == "up" else 31
    run = Run(
        kernel(
            THREAD + f"shfl.sync.{mode}.b32 %r4|%p0, %r0, {b}, {clamp}, -1; selp.u32 %r5, 1, 0, %p0; "
            "st.global.u32 [%rd21], %r4; st.global.u32 [%rd22], %r5;"
        )
    )
    out, inside = run(np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert (out == want).all()
    assert (inside == ((want != LANE) | (mode == "bfly") | (mode == "idx"))).all()


def test_collectives_wait_for_lanes_that_come_by_another_way():
    run = Run(
        kernel(
            THREAD
            + """
        setp.lt.u32 %p0, %r0, 8; @%p0 bra LATE; bra MEET;
    LATE: mov.u32 %r6, 0;
    SPIN: add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 20; @%p1 bra SPIN;
    MEET: vote.sync.ballot.b32 %r4, 1, -1; st.global.u32 [%rd21], %r4;
    """
        )
    )
    out, _ = run(np.zeros(32, np.uint32), np.zeros(1, np.uint32))
    assert (out == 0xFFFFFFFF).all()


def test_subsets_of_a_warp_vote_by_themselves():
    run = Run(
        kernel(
            THREAD
            + """
        setp.lt.u32 %p0, %r0, 16; @%p0 bra LOW;
        vote.sync.ballot.b32 %r4, 1, 0xffff0000; bra END;
    LOW: and.b32 %r5, %r0, 1; setp.eq.u32 %p1, %r5, 1; vote.sync.ballot.b32 %r4, %p1, 0x0000ffff;
    END: st.global.u32 [%rd21], %r4;
    """
        )
    )
    out, _ = run(np.zeros(32, np.uint32), np.zeros(1, np.uint32))
    assert (out[:16] == 0xAAAA).all() and (out[16:] == 0xFFFF0000).all()


def test_lanes_meet_at_different_warp_barriers():
    """Lanes with the same mask synchronize wherever they are, whatever the other lanes wait for."""
    body = (
        THREAD
        + """
    .shared .b32 s[32]; mov.u32 %r10, s; shl.b32 %r11, %r0, 2; add.u32 %r12, %r10, %r11; st.shared.b32 [%r12], 0;
    mov.u32 %r20, 0; bar.warp.sync -1; setp.lt.u32 %p0, %r0, 8; @%p0 bra LOW; setp.lt.u32 %p0, %r0, 16; @%p0 bra MIDDLE;
    st.shared.b32 [%r12], 3; bar.warp.sync 0xffff0000; bra END;
    LOW: bar.warp.sync 0xffff; ld.shared.b32 %r20, [%r12+32]; bra END;
    MIDDLE: st.shared.b32 [%r12], 9; bar.warp.sync 0xffff; mov.u32 %r20, 1;
    END: bar.warp.sync -1; st.global.b32 [%rd21], %r20;
    """
    )
    out, _ = Run(kernel(body))(np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert out.tolist() == [9] * 8 + [1] * 8 + [0] * 16
    with pytest.raises(DeadlockError, match=r"bar\.warp\.sync: 8 threads of 1 warp"):
        Run(kernel(body.replace("LOW: bar.warp.sync 0xffff;", "LOW: bar.warp.sync 0xfff0ffff;")))(
            np.zeros(32, np.uint32), np.zeros(32, np.uint32)
        )


def test_a_collective_whose_lanes_never_come_is_a_deadlock():
    run = Run(
        kernel(
            THREAD
            + """
        setp.lt.u32 %p0, %r0, 16; @%p0 bra LOW; bar.sync 0; bra END;
    LOW: shfl.sync.idx.b32 %r4, %r0, 0, 31, -1; bar.sync 0;
    END:
    """
        )
    )
    with pytest.raises(DeadlockError, match=r"shfl\.sync\.idx\.b32: 16 thread"):
        run(np.zeros(1), np.zeros(1))


def test_vote_match_redux_elect_activemask():
    run = Run(
        kernel(
            THREAD
            + """
        setp.lt.u32 %p0, %r0, 5;
        vote.sync.any.pred %p1, %p0, -1; vote.sync.all.pred %p2, %p0, -1; selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 2, 0, %p2;
        or.b32 %r4, %r4, %r5; st.global.u32 [%rd21], %r4;
        shr.u32 %r6, %r0, 3; match.any.sync.b32 %r7, %r6, -1; st.global.u32 [%rd21+128], %r7;
        redux.sync.add.u32 %r8, %r0, -1; st.global.u32 [%rd21+256], %r8;
        elect.sync %r9|%p3, -1; selp.u32 %r10, %r9, 99, %p3; st.global.u32 [%rd21+384], %r10;
        activemask.b32 %r11; st.global.u32 [%rd21+512], %r11;
        match.all.sync.b32 %r12|%p4, 3, -1; st.global.u32 [%rd21+640], %r12;
        redux.sync.min.s32 %r13, %r0, -1; st.global.u32 [%rd21+768], %r13;
    """
        )
    )
    out, _ = run(np.zeros((7, 32), np.uint32), np.zeros(1))
    assert (out[0] == 1).all()
    assert (out[1] == np.array([0xFF << 8 * (i // 8) for i in range(32)], np.uint32)).all()
    assert (out[2] == 496).all()
    assert out[3].tolist() == [0] + [99] * 31
    assert (out[4] == 0xFFFFFFFF).all() and (out[5] == 0xFFFFFFFF).all() and (out[6] == 0).all()


def test_named_barriers_let_halves_of_a_cta_synchronise_alone():
    run = Run(
        kernel(
            THREAD
            + """
        .shared .b32 s[128]; shr.u32 %r4, %r0, 6; add.u32 %r5, %r4, 1; mov.u32 %r6, s; mad.lo.u32 %r7, %r0, 4, %r6;
        st.shared.u32 [%r7], %r0; bar.sync %r5, 64; xor.b32 %r8, %r0, 63; mad.lo.u32 %r9, %r8, 4, %r6; ld.shared.u32 %r10,
        [%r9]; st.global.u32 [%rd21], %r10;
    """
        )
    )
    out, _ = run(np.zeros(128, np.uint32), np.zeros(1), block=128)
    assert (out == np.arange(128) ^ 63).all()


ARRIVALS = [
    "bar.sync %r5;",
    "bar.sync %r5, 32;",
    "barrier.cta.sync.aligned %r5;",
    "bar.arrive %r5, 64;",
    "bar.red.popc.u32 %r6, %r5, %p0;",
]


@pytest.mark.parametrize("instruction", ARRIVALS)
def test_an_aligned_barrier_has_one_number_in_a_warp(instruction):
    program = kernel(THREAD + f"setp.lt.u32 %p0, %r0, 40; selp.u32 %r5, 1, 2, %p0; {instruction}")
    with pytest.raises(
        TrapError, match=r"thread \(40, 0, 0\) of CTA .* names barrier 2, and another lane of its warp barrier 1"
    ):
        Run(program)(np.zeros(64, np.uint32), np.zeros(1), block=64)


def test_arrive_counts_without_waiting():
    run = Run(
        kernel(
            THREAD
            + """
        .shared .b32 s; setp.lt.u32 %p0, %r0, 32; @%p0 bra PRODUCER;
        bar.sync 1, 64; ld.shared.u32 %r4, [s]; st.global.u32 [%rd21], %r4; bra END;
    PRODUCER: mov.u32 %r5, 42; st.shared.u32 [s], %r5; bar.arrive 1, 64;
    END:
    """
        )
    )
    out, _ = run(np.zeros(64, np.uint32), np.zeros(1), block=64)
    assert (out[32:] == 42).all()


def test_barrier_reductions():
    run = Run(
        kernel(
            THREAD
            + """
        setp.lt.u32 %p0, %r0, 40; barrier.cta.red.popc.aligned.u32 %r4, 0, %p0; barrier.cta.red.and.aligned.pred %p1, 0, %p0;
        bar.red.or.pred %p2, 0, !%p0; selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 2, 0, %p2; or.b32 %r5, %r5, %r6;
        st.global.u32 [%rd21], %r4; st.global.u32 [%rd22], %r5;
    """
        )
    )
    count, flags = run(np.zeros(96, np.uint32), np.zeros(96, np.uint32), block=96)
    assert (count == 40).all() and (flags == 2).all()


def test_a_cluster_reads_its_neighbours_shared_memory():
    run = Run(
        kernel(
            THREAD
            + """
        .shared .align 4 .b32 s; mov.u32 %r4, %cluster_ctarank; mad.lo.u32 %r5, %r2, 10, %r4; setp.eq.u32 %p0, %r0, 0;
        @%p0 st.shared.u32 [s], %r5; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        xor.b32 %r6, %r4, 1; mov.u32 %r7, s; mapa.shared::cluster.u32 %r8, %r7, %r6; ld.shared::cluster.u32 %r9, [%r8];
        st.global.u32 [%rd21], %r9; barrier.cluster.arrive; barrier.cluster.wait;
    """
        )
    )
    out, _ = run(np.zeros((6, 32), np.uint32), np.zeros(1), grid=6, cluster=2)
    assert (out == np.array([[11], [0], [31], [20], [51], [40]])).all()


def test_waiting_for_a_cluster_without_arriving_is_named():
    run = Run(kernel("barrier.cluster.wait;"))
    with pytest.raises(TrapError, match="waits without having arrived"):
        run(np.zeros(1), np.zeros(1), grid=2, cluster=2)


def test_atomics_count_every_lane_over_many_waves():
    run = Run(
        kernel(
            THREAD
            + """
        atom.global.add.u32 %r4, [%rd1], 1; red.global.add.u32 [%rd1+4], %r0; mov.f32 %f0, 0f3F800000;
        red.global.add.f32 [%rd1+8], %f0; atom.global.max.s32 %r6, [%rd1+12], %r3; st.global.u32 [%rd21], %r4;
    """
        )
    )
    tickets, sums = run(np.zeros(40_000, np.uint32), np.zeros(4, np.uint32), grid=400, block=100)
    assert sorted(tickets.tolist()) == list(range(40_000))
    assert sums[0] == 40_000 and sums[1] == 400 * 4950 and sums[2:3].view(np.float32)[0] == 40_000 and sums[3] == 39_999


def test_a_lock_taken_by_lanes_of_one_warp():
    run = Run(
        kernel("""
    SPIN: atom.global.cas.b32 %r1, [%rd0], 0, 1; setp.ne.u32 %p0, %r1, 0; @%p0 bra SPIN;
        ld.volatile.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%rd1], %r2;
        atom.global.exch.b32 %r3, [%rd0], 0;
    """)
    )
    _, count = run(np.zeros(1, np.uint32), np.zeros(1, np.uint32), block=64)
    assert count[0] == 64


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1000)), max_size=300), st.sampled_from(["add", "min", "exch"])
)
def test_atomics_in_lane_order(pairs, name):
    index = np.array([i for i, _ in pairs], np.int64)
    values = np.array([v for _, v in pairs], np.uint32)
    operation = {"add": np.add, "min": np.minimum, "exch": lambda old, v: v}[name]
    cells = np.full(5, 500, np.uint32)
    want, expected_old = cells.copy(), []
    for i, v in zip(index, values, strict=True):
        expected_old.append(want[i])
        want[i] = operation(want[i : i + 1], v.reshape(1))[0]
    old = apply_in_order(cells, index, operation, (values,))
    assert (cells == want).all() and old.tolist() == expected_old


def test_printf_formats():
    data = (
        np.array([-5], np.int32).tobytes()
        + b"\0" * 4
        + np.array([2.5], np.float64).tobytes()
        + np.array([7], np.uint64).tobytes()
    )
    assert format_printf("%3d|%.2f|%s|%%", data, lambda p: f"<{p}>") == " -5|2.50|<7>|%"


ODD = "and.b32 %r9, %r0, 1; setp.eq.u32 %p9, %r9, 1; setp.eq.u32 %p1, %r0, %r0; mov.u32 %r4, 77;"
ODD_MASK = 0xAAAAAAAA
BARRIER = "setp.eq.u32 %p8, %r0, 0; @%p8 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;"
FALSE, TRUE, WORD = "setp.ne.u32 %p3, %r0, %r0;", "setp.eq.u32 %p3, %r0, %r0;", "selp.u32 %r4, 1, 0, %p3;"


@pytest.mark.parametrize("initcheck", [False, True])
@pytest.mark.parametrize(
    ("body", "taken", "other"),
    [
        (f"@%p9 redux.sync.add.u32 %r4, %r0, {ODD_MASK};", 256, 77),
        (f"@%p9 vote.sync.ballot.b32 %r4, %p1, {ODD_MASK};", ODD_MASK, 77),
        (FALSE + f"@%p9 vote.sync.all.pred %p3, %p9, {ODD_MASK};" + WORD, 1, 0),
        (TRUE + f"@%p9 vote.sync.any.pred %p3, !%p9, {ODD_MASK};" + WORD, 0, 1),
        (FALSE + f"@%p9 vote.sync.uni.pred %p3, %p9, {ODD_MASK};" + WORD, 1, 0),
        (f"@%p9 shfl.sync.idx.b32 %r4, %r0, 5, 31, {ODD_MASK};", 5, 77),
        (FALSE + f"@%p9 shfl.sync.idx.b32 %r4|%p3, %r0, 5, 31, {ODD_MASK}; @%p3 add.u32 %r4, %r4, 100;", 105, 77),
        (f"mov.u32 %r5, 3; @%p9 match.any.sync.b32 %r4, %r5, {ODD_MASK};", ODD_MASK, 77),
        (FALSE + f"mov.u32 %r5, 3; @%p9 match.all.sync.b32 %r4|%p3, %r5, {ODD_MASK};", ODD_MASK, 77),
        (f"@%p9 elect.sync %r4|%p3, {ODD_MASK};", 1, 77),
        (f"@%p9 elect.sync _|%p9, {ODD_MASK}; setp.eq.u32 %p5, %r0, 1; xor.pred %p3, %p5, %p9;" + WORD, 0, 0),
        ("@%p9 activemask.b32 %r4;", ODD_MASK, 77),
        (BARRIER + FALSE + "@%p9 mbarrier.test_wait.parity.shared.b64 %p3, [bar], 1;" + WORD, 1, 0),
        (BARRIER + TRUE + "@%p9 mbarrier.test_wait.parity.shared.b64 %p3, [bar], 0;" + WORD, 0, 1),
        (BARRIER + FALSE + "@%p9 mbarrier.try_wait.parity.shared.b64 %p3, [bar], 1;" + WORD, 1, 0),
        (BARRIER + TRUE + "@%p9 mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0;" + WORD, 0, 1),
    ],
)
def test_a_guard_leaves_the_other_lanes_alone(body, taken, other, initcheck):
    """The destinations of these lanes keep their values, and these lanes do not take part in the vote."""
    text = kernel(THREAD + ODD + body + "st.global.u32 [%rd21], %r4;", before=".shared .align 8 .b64 bar;")
    out, _ = Run(text)(np.zeros(32, np.uint32), np.zeros(1), initcheck=initcheck)
    assert (out == np.where(LANE % 2, taken, other)).all()


DOWN = "shfl.sync.down.b32 %r5, %r0, 8, 31, {};"
LAST_EXIT = "setp.ge.u32 %p9, %r0, 20; @%p9 exit; setp.lt.u32 %p1, %r0, 12; mov.u32 %r4, %r0;"
LOST = "uninitialised value: the result of test.ptx:15 shfl.sync.down.b32, which reads a lane that has exited or that its mask"


@pytest.mark.parametrize("initcheck", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        LAST_EXIT + DOWN.format(-1) + "mov.u32 %r4, %r5;",
        LAST_EXIT + DOWN.format("0xfff").replace("shfl", "@%p1 shfl") + "mov.u32 %r4, %r5;",
        LAST_EXIT
        + "and.b32 %r9, %r0, 1; setp.eq.u32 %p2, %r9, 1; @%p2 bra ODD;"
        + DOWN.format(-1)
        + "bra MEET; ODD: "
        + DOWN.format(-1)
        + "MEET: mov.u32 %r4, %r5;",
    ],
)
def test_the_use_of_what_shfl_reads_from_a_lane_that_takes_no_part_is_an_error(body, initcheck):
    with pytest.raises(UninitialisedError, match=LOST):
        Run(kernel(THREAD + body + "st.global.u32 [%rd21], %r4;"))(
            np.zeros(32, np.uint32), np.zeros(1), initcheck=initcheck
        )


@pytest.mark.parametrize("initcheck", [False, True])
@pytest.mark.parametrize("use", ["@%p1 add.u32 %r4, %r4, %r5;", "selp.u32 %r5, %r5, 0, %p1; add.u32 %r4, %r4, %r5;"])
def test_a_lane_may_drop_what_it_reads_from_one_that_takes_no_part(use, initcheck):
    text = kernel(THREAD + LAST_EXIT + DOWN.format(-1) + use + "st.global.u32 [%rd21], %r4;")
    out, _ = Run(text)(np.zeros(32, np.uint32), np.zeros(1), initcheck=initcheck)
    assert (out == np.where(LANE < 12, 2 * LANE + 8, np.where(LANE < 20, LANE, 0))).all()
