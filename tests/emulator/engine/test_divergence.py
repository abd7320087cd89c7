"""Lanes that do not execute a barrier or collective at which other lanes of their warp wait are an error; the corrected
programs run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

from ptxkit.errors import DeadlockError, TrapError, UninitialisedError

SHARED = ".shared .b32 s[64]; mov.u32 %r10, s; shl.b32 %r11, %r0, 2; add.u32 %r12, %r10, %r11; st.shared.b32 [%r12], %r0;\n"
TAIL = "ld.shared.b32 %r9, [%r12]; st.global.u32 [%rd22], %r9;"

ALIGNED = {
    "bar.sync 0;": 1,
    "bar.sync 0, 64;": 1,
    "barrier.sync.aligned 0;": 1,
    "bar.arrive 1, 64;": 1,
    "setp.eq.u32 %p9, %r0, 0; bar.red.popc.u32 %r8, 0, %p9;": 1,
    "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;": 1,
    "setmaxnreg.inc.sync.aligned.u32 64;": 1,
    "movmatrix.sync.aligned.m8n8.trans.b16 %r8, %r0;": 1,
}


def launch(body, block=64, values=None, **options):
    run = Run(kernel(THREAD + SHARED + body + TAIL))
    data = np.zeros(64, np.uint32) if values is None else np.array(values, np.uint32)
    return run(data, np.zeros(64, np.uint32), block=block, **options)[1]


@pytest.mark.parametrize("instruction", ALIGNED)
@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p0, %r0, 16; @!%p0 bra OVER; {} OVER:",
        "setp.ge.u32 %p0, %r0, 16; @%p0 bra OVER; {} OVER: mov.u32 %r7, 0; bar.sync 3;",
        "setp.lt.u32 %p0, %r0, 16; @%p0 bra ONE; {0} bra OVER; ONE: {0} OVER:",
        "mov.u32 %r7, 0; AGAIN: add.u32 %r7, %r7, 1; {} setp.lt.u32 %p0, %r7, %r0; @%p0 bra AGAIN;",
    ],
    ids=["half a warp", "half a warp, then all", "two paths", "trip counts"],
)
def test_part_of_a_warp_at_an_aligned_instruction(instruction, body):
    with pytest.raises(TrapError, match=r"(?s)test\.ptx:\d+ .*(divergent: lanes? [\d, -]+ of warp 0|of 32 lanes execute it)"):
        launch(body.format(instruction))


@pytest.mark.parametrize("instruction", [i for i in ALIGNED if ".arrive 1" not in i])
@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p0, %r0, 64; @!%p0 bra OVER; {} OVER:",
        "mov.u32 %r7, 0; AGAIN: add.u32 %r7, %r7, 1; {} setp.lt.u32 %p0, %r7, 5; @%p0 bra AGAIN;",
        "setp.lt.u32 %p0, %r0, 16; @%p0 bra SLOW; BACK: {} bra OVER; SLOW: add.u32 %r7, %r0, 1; bra BACK; OVER:",
        "setp.lt.u32 %p0, %r0, 16; setp.lt.u32 %p1, %r0, 99; @%p0 bra IT; @%p1 bra IT; bra OVER; IT: {} OVER:",
    ],
    ids=["true for all", "same trip counts", "some come later", "short circuit"],
)
def test_a_whole_warp_at_an_aligned_instruction(instruction, body):
    assert (launch(body.format(instruction)) == np.arange(64)).all()


def test_the_message_names_lanes_and_lines():
    with pytest.raises(TrapError) as caught:
        launch("setp.lt.u32 %p0, %r0, 16;\n@!%p0 bra OVER;\nbar.sync 0;\nOVER:\n")
    text = str(caught.value)
    assert "bar.sync: divergent: lanes 0-15 of warp 0 of CTA (0, 0, 0) are here, but lanes 16-31 have gone on to" in text
    assert "ld.shared.b32 without it since test.ptx:" in text and " bra; all lanes of a warp must" in text


def test_a_guarded_barrier_that_only_some_lanes_execute():
    with pytest.raises(TrapError, match="divergent: lanes 0-15 of warp 0"):
        launch("setp.lt.u32 %p0, %r0, 16; @%p0 bar.sync 0;")
    assert (launch("setp.lt.u32 %p0, %r0, 64; @%p0 bar.sync 0;") == np.arange(64)).all()


@pytest.mark.parametrize("instruction", ["bar.sync 0;", "shfl.sync.idx.b32 %r8, %r0, 1, 31, -1;", "bar.warp.sync -1;"])
def test_threads_that_have_exited_do_not_count(instruction):
    out = launch("setp.ge.u32 %p0, %r0, 40; @%p0 exit;" + instruction)
    assert (out[:40] == np.arange(40)).all() and (out[40:] == 0).all()
    end = kernel(THREAD + SHARED + "setp.ge.u32 %p0, %r0, 40; @%p0 bra END;" + instruction + TAIL + "END:")
    assert (Run(end)(np.zeros(1), np.zeros(64, np.uint32), block=64)[1][:40] == np.arange(40)).all()


def test_a_barrier_that_is_not_aligned_may_be_reached_one_by_one():
    out = launch("setp.lt.u32 %p0, %r0, 16; @%p0 bra ONE; barrier.sync 0; bra OVER; ONE: barrier.sync 0; OVER:")
    assert (out == np.arange(64)).all()


def test_a_function_that_half_a_warp_leaves_early():
    f = ".func f(.param .b32 n) { .reg .pred %p<2>; .reg .b32 %r<2>; ld.param.u32 %r0, [n]; setp.ge.u32 %p0, %r0, "
    call = THREAD + SHARED + "{ .param .b32 a; st.param.b32 [a], %r0; call f, (a); }" + TAIL
    for lanes, good in ((16, False), (99, True)):
        run = Run(kernel(call, before=f"{f}{lanes}; @%p0 ret; bar.sync 0; ret; }}\n"))
        if good:
            assert (run(np.zeros(1), np.zeros(64, np.uint32), block=64)[1] == np.arange(64)).all()
        else:
            with pytest.raises(TrapError, match="lanes 16-31 have returned without it"):
                run(np.zeros(1), np.zeros(64, np.uint32), block=64)


def test_warps_may_take_different_ways():
    out = launch("setp.lt.u32 %p0, %r0, 32; @%p0 bra ONE; bar.sync 0; bra OVER; ONE: bar.sync 0; OVER:")
    assert (out == np.arange(64)).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.lists(st.integers(0, 3), min_size=32, max_size=32), st.booleans())
def test_trip_counts(base, extra, same):
    """A barrier in a loop is legal exactly if all lanes of the warp execute the same number of iterations."""
    counts = [base] * 32 if same else [base + e for e in extra]
    body = """
        ld.global.u32 %r4, [%rd21]; mov.u32 %r5, 0;
    LOOP: setp.ge.u32 %p0, %r5, %r4; @%p0 bra DONE; bar.sync 0; add.u32 %r5, %r5, 1; bra LOOP;
    DONE:
    """
    if len(set(counts)) == 1:
        assert (launch(body, block=32, values=counts)[:32] == np.arange(32)).all()
    else:
        with pytest.raises(TrapError, match="divergent: lane"):
            launch(body, block=32, values=counts)


# -- collectives with a member mask ------------------------------------------------------------------------------------

COLLECTIVES = [
    "shfl.sync.idx.b32 %r8, %r0, 3, 31, {};",
    "vote.sync.ballot.b32 %r8, 1, {};",
    "vote.sync.any.pred %p8, %p0, {};",
    "match.any.sync.b32 %r8, %r0, {};",
    "redux.sync.add.u32 %r8, %r0, {};",
    "elect.sync %r8|%p8, {};",
    "bar.warp.sync {};",
]


@pytest.mark.parametrize("instruction", COLLECTIVES)
def test_lanes_that_the_mask_names_and_that_pass_it_by(instruction):
    body = "setp.lt.u32 %p0, %r0, 16; @!%p0 bra OVER;" + instruction + "OVER:"
    with pytest.raises(TrapError, match=r"divergent: lanes 0-15 of warp 0 .*but lanes 16-31 have gone on"):
        launch(body.format("-1"), block=32)
    assert (launch(body.format("0xffff"), block=32)[:32] == np.arange(32)).all()


@pytest.mark.parametrize("instruction", COLLECTIVES)
def test_a_lane_that_is_not_in_its_own_mask(instruction):
    with pytest.raises(TrapError, match="lane 5 of warp 0 of CTA .0, 0, 0. executes it with the mask 0xffffffdf"):
        launch(instruction.format("0xffffffdf"), block=32)
    with pytest.raises(TrapError, match="lane 5 of warp 0 of CTA .0, 0, 0. executes it with the mask 0xffffffdf"):
        launch("mov.u32 %r20, 0xffffffdf;" + instruction.format("%r20"), block=32)


def test_lanes_wait_for_those_that_have_the_same_mask():
    """The mask of lane 0 names the whole warp, those of the other lanes only themselves: lane 0 waits for lanes that exit or
    wait elsewhere."""
    body = "setp.eq.u32 %p0, %r0, 0; shl.b32 %r20, 1, %r0; selp.b32 %r20, -1, %r20, %p0; redux.sync.add.u32 %r8, 1, %r20;"
    for rest in ("st.global.u32 [%rd22], %r8;", "bar.sync 0;"):
        with pytest.raises(TrapError, match="redux.*lane 0 .* the mask 0xffffffff, but lane 1 with the mask 0x00000002"):
            Run(kernel(THREAD + body + rest))(np.zeros(1), np.zeros(32, np.uint32))


def test_both_sides_of_a_branch_exchange_values():
    """CUDA C++ Programming Guide, "Independent Thread Scheduling": a valid program, in which the lanes of both branches
    take part."""
    body = """
        setp.lt.u32 %p0, %r0, 16; @%p0 bra LOW; add.u32 %r6, %r0, 100; shfl.sync.bfly.b32 %r9, %r6, 16, 31, -1; bra OVER;
    LOW: mov.u32 %r7, %r0; shfl.sync.bfly.b32 %r9|%p1, %r7, 16, 31, -1;
    OVER: st.global.u32 [%rd22], %r9;
    """
    out = Run(kernel(THREAD + body))(np.zeros(1), np.zeros(32, np.uint32))[1]
    assert (out == np.where(np.arange(32) < 16, np.arange(32) + 116, np.arange(32) - 16)).all()


GUARDED = {
    "redux.sync.add.u32 %r8, 1, %r20;": lambda n: n,
    "vote.sync.ballot.b32 %r8, 1, %r20;": lambda n: (1 << n) - 1,
    "shfl.sync.idx.b32 %r8, %r0, 2, 31, %r20;": lambda n: 2,
    "match.any.sync.b32 %r8, 7, %r20;": lambda n: (1 << n) - 1,
    "match.all.sync.b32 %r8|%p5, 7, %r20;": lambda n: (1 << n) - 1,
    "elect.sync %r8|%p5, %r20;": lambda n: 0,
    "activemask.b32 %r8;": lambda n: (1 << n) - 1,
}


@pytest.mark.parametrize("instruction", GUARDED)
@pytest.mark.parametrize("n", [32, 20, 5])
def test_lanes_whose_guard_is_false_take_no_part_and_are_left_alone(instruction, n):
    mask = f"mov.u32 %r20, {(1 << n) - 1}; setp.lt.u32 %p0, %r0, {n}; mov.u32 %r8, 77;"
    run = Run(kernel(THREAD + mask + "@%p0 " + instruction + "st.global.u32 [%rd22], %r8;"))
    out = run(np.zeros(1), np.zeros(32, np.uint32))[1]
    assert (out[:n] == GUARDED[instruction](n)).all() and (out[n:] == 77).all()


def test_a_guarded_wait_leaves_the_predicate_of_the_others():
    body = """
        .shared .align 8 .b64 bar; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;
        setp.lt.u32 %p2, %r0, 9; setp.ge.u32 %p1, %r0, 0;
        @%p2 mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; selp.u32 %r8, 1, 0, %p1; st.global.u32 [%rd22], %r8;
    """
    out = Run(kernel(THREAD + body))(np.zeros(1), np.zeros(32, np.uint32))[1]
    assert out.tolist() == [0] * 9 + [1] * 23


def test_a_shuffle_from_a_lane_that_takes_no_part_gives_no_value():
    """Lanes 16 and above have exited, or are not in the mask: a correct program does not use the values read from them."""
    for leave in ("@!%p0 exit;", "@!%p0 bra END;"):
        for mask in ("0xffff", "-1") if "exit" in leave else ("0xffff",):
            body = f"setp.lt.u32 %p0, %r0, 16; {leave} shfl.sync.down.b32 %r8, %r0, 4, 31, {mask}; "
            store = "setp.lt.u32 %p1, %r0, 12; @%p1 st.global.u32 [%rd22], %r8; END:"
            out = Run(kernel(THREAD + body + store))(np.zeros(1), np.zeros(32, np.uint32))[1]
            assert (out[:12] == np.arange(4, 16)).all()
            with pytest.raises(UninitialisedError, match="the result of .*shfl.sync.down"):
                Run(kernel(THREAD + body + store.replace("@%p1", "")))(np.zeros(1), np.zeros(32, np.uint32))


ODD_ALONE = "and.b32 %r9, %r0, 1; setp.eq.u32 %p9, %r9, 1; selp.b32 %r10, 0xaaaaaaaa, 0xffffffff, %p9;"
COLLECTIVES = [
    "shfl.sync.bfly.b32 %r4, %r0, 2, 31, %r10;",
    "vote.sync.ballot.b32 %r4, %p9, %r10;",
    "redux.sync.add.u32 %r4, %r0, %r10;",
    "match.any.sync.b32 %r4, %r0, %r10;",
    "elect.sync %r4|%p1, %r10;",
    "bar.warp.sync %r10; mov.u32 %r4, 1;",
]


@pytest.mark.parametrize("rest", ["", "bar.sync 0;"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_lanes_of_one_collective_have_one_mask(collective, rest):
    """The odd lanes continue and exit, or wait at a barrier; the even lanes wait for them with another mask."""
    with pytest.raises(TrapError) as e:
        Run(kernel(THREAD + ODD_ALONE + collective + rest))(np.zeros(32, np.uint32), np.zeros(1))
    message = str(e.value)
    assert f"{collective.split()[0]}: lanes 0, 2, 4" in message and "mask 0xffffffff" in message
    assert "but lanes 1, 3, 5" in message and "mask 0xaaaaaaaa" in message


def test_lanes_that_wait_for_each_other_with_different_masks():
    masks = "and.b32 %r9, %r0, 1; setp.eq.u32 %p9, %r9, 1; selp.b32 %r10, 0xffffffff, 0x7fffffff, %p9;"
    with pytest.raises(TrapError, match="mask 0x7fffffff, but lanes 1, 3.* with the mask 0xffffffff"):
        Run(kernel(THREAD + masks + COLLECTIVES[0]))(np.zeros(32, np.uint32), np.zeros(1))


def test_lanes_may_execute_a_collective_with_a_part_of_the_mask_first():
    """The upper half executes one more iteration, in which its mask contains only these lanes."""
    body = """
        mov.u32 %r5, 0; setp.lt.u32 %p9, %r0, 16;
    LOOP: setp.eq.u32 %p1, %r5, 0; and.pred %p2, %p1, %p9; @%p2 bra SKIP;
        selp.b32 %r10, 0xffff0000, 0xffffffff, %p1; vote.sync.ballot.b32 %r4, 1, %r10;
    SKIP: add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 3; @%p3 bra LOOP; st.global.u32 [%rd21], %r4;
    """
    out, _ = Run(kernel(THREAD + body))(np.zeros(32, np.uint32), np.zeros(1))
    assert (out == 0xFFFFFFFF).all()


def test_two_places_whose_masks_name_each_other_are_both_shown():
    """The instructions have different qualifiers, so that the lanes of each wait for those of the other."""
    body = """
        setp.lt.u32 %p0, %r0, 16; @%p0 bra LOW;
        shfl.sync.up.b32 %r8, %r0, 1, 0, 0x00ff00ff; bra END;
    LOW: shfl.sync.down.b32 %r8, %r0, 1, 31, 0xffffffff;
    END: st.global.u32 [%rd22], %r8;
    """
    body = body.replace("setp.lt", "and.b32 %r9, %r0, 8; setp.ne.u32 %p1, %r9, 0; @%p1 exit; setp.lt", 1)
    with pytest.raises(DeadlockError) as caught:
        Run(kernel(THREAD + body))(np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    text = str(caught.value)
    assert "shfl.sync.up.b32" in text and "lanes 16-23 of warp 0" in text
    assert "with the mask 0x00ff00ff, waits for lanes 0-7" in text
    assert "lanes 0-7 of warp 0" in text and "with the mask 0xffffffff, waits for lanes 16-23" in text
