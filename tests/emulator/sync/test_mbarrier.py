"""mbarrier objects: arrivals, phases, transactions, waits, and what goes wrong with them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from either import MODES, bench  # noqa: F401  a fixture
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

from ptxkit.emulator.sync.mbarriers import MAX_COUNT, pack, parity, unpack
from ptxkit.errors import DeadlockError, InstructionLimitError, MemoryFault, TrapError, UnsupportedError

HEAD = THREAD + ".shared .align 8 .b64 bar[64]; mov.u32 %r10, bar; setp.eq.u32 %p0, %r0, 0;\n"


def initialised(count: int, threads: int = 1) -> str:
    """The first ``threads`` threads each initialise a barrier of their own for ``count`` arrivals."""
    return (
        HEAD
        + f"""
    shl.b32 %r11, %r0, 3; add.u32 %r11, %r10, %r11; setp.lt.u32 %p9, %r0, {threads};
    @%p9 mbarrier.init.shared::cta.b64 [%r11], {count};
    @%p9 fence.mbarrier_init.release.cluster; bar.sync 0;
    """
    )


def wait(condition: str, address: str = "[%r10]", kind: str = "try_wait", label: str = "W") -> str:
    """Loop until the phase is over; ``condition`` is a state, or ``parity n``."""
    how, _, value = condition.partition(" ")
    suffix, operand = (".parity", value) if how == "parity" else ("", how)
    return f"{label}: mbarrier.{kind}{suffix}.shared::cta.b64 %p1, {address}, {operand}; @!%p1 bra {label};\n"


def run(body: str, *arrays: np.ndarray, completion: str = "eager", **options):
    return Run(kernel(body, params=len(arrays)))(*arrays, completion=completion, **options)


EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 8; "
REST = "@!%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];"

# -- arriving and waiting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
@pytest.mark.parametrize("by", ["%rd10", "parity 0"])
def test_all_threads_meet(bench, kind, by):  # noqa: F811
    """What was stored before the arrival is visible after the wait."""
    body = (
        initialised(96)
        + """
    .shared .b32 buf[96]; mov.u32 %r12, buf; shl.b32 %r13, %r0, 2; add.u32 %r14, %r12, %r13; st.shared.b32 [%r14], %r3;
    mbarrier.arrive.shared::cta.b64 %rd10, [%r10];
    """
        + wait(by, kind=kind)
        + "sub.u32 %r15, 380, %r13; add.u32 %r15, %r15, %r12; ld.shared.b32 %r16, [%r15]; st.global.b32 [%rd21], %r16;"
    )
    out, _ = bench(body, np.zeros(480, np.uint32), np.zeros(480, np.uint32), grid=5, block=96)
    assert (out.reshape(5, 96) == np.arange(480).reshape(5, 96)[:, ::-1]).all()


@pytest.mark.parametrize(
    ("arrive", "count"),
    [
        ("mbarrier.arrive.b64 %rd10, [%rd11];", 32),
        ("mbarrier.arrive.shared.b64 _, [%r10];", 32),
        ("mbarrier.arrive.shared::cta.b64 %rd10, [bar];", 32),
        ("mbarrier.arrive.release.cta.shared::cta.b64 _, [%r10], 3;", 96),
        ("mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%r10], 3;", 96),
        ("mbarrier.arrive.shared::cta.b64 _, [%r10], %r12;", 32 * 33 // 2),
        ("mbarrier.arrive.noComplete.shared::cta.b64 _, [%r10], 2; mbarrier.arrive.shared::cta.b64 _, [%r10];", 96),
        ("mbarrier.arrive.shared::cluster.b64 _, [%r10];", 32),
        ("@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];", 16),
        ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 8; mbarrier.complete_tx.shared::cta.b64 [%r10], 8;", 32),
        (EXPECT + "mbarrier.arrive.shared::cta.b64 _, [%r10]; mbarrier.complete_tx.shared::cta.b64 [%r10], 8;", 32),
        ("@%p2 mbarrier.arrive_drop.shared::cta.b64 _, [%r10]; " + REST, 32),
        ("@%p2 mbarrier.arrive_drop.release.cta.shared::cta.b64 %rd10, [%r10], 2; " + REST, 48),
        ("@%p2 mbarrier.arrive_drop.expect_tx.shared::cta.b64 _, [%r10], 0; " + REST, 32),
    ],
)
def test_every_way_to_arrive_completes_the_phase(bench, arrive, count):  # noqa: F811
    body = (
        initialised(count)
        + "cvta.shared.u64 %rd12, bar; mov.u64 %rd11, %rd12; add.u32 %r12, %r0, 1; and.b32 %r13, %r0, 1;"
        + "setp.eq.u32 %p2, %r13, 0;"
        + arrive
        + wait("parity 0")
        + "mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r10], 1; selp.u32 %r14, 1, 2, %p3; st.global.b32 [%rd21], %r14;"
    )
    out, _ = bench(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert (out == 2).all()  # phase 0 is over, and phase 1 is not


def test_the_pending_count_is_that_before_the_arrival(bench):  # noqa: F811
    body = (
        initialised(1000)
        + "add.u32 %r12, %r0, 1; mbarrier.arrive.noComplete.shared::cta.b64 %rd10, [%r10], %r12;"
        + "mbarrier.pending_count.b64 %r13, %rd10; st.global.b32 [%rd21], %r13;"
    )
    out, _ = bench(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    counts = np.arange(1, 33)
    # the order of the lanes is not defined; in every order the counts form a chain
    order = np.argsort(-out.astype(np.int64))
    assert (out[order] == 1000 - np.concatenate(([0], np.cumsum(counts[order])[:-1]))).all()


def test_dropped_threads_are_not_expected_any_more(bench):  # noqa: F811
    body = (
        initialised(64)
        + "setp.lt.u32 %p2, %r0, 16; @%p2 bra DROP; mbarrier.arrive.shared::cta.b64 _, [%r10]; bra GO;"
        + "DROP: mbarrier.arrive_drop.shared::cta.b64 _, [%r10]; bra OUT; GO:"
        + wait("parity 0", label="A")
        + "mbarrier.arrive.shared::cta.b64 _, [%r10];"
        + wait("parity 1", label="B")
        + "st.global.b32 [%rd21], %r0; OUT:"
    )
    out, _ = bench(body, np.full(64, 99, np.uint32), np.zeros(64, np.uint32), block=64)
    assert (out == np.where(np.arange(64) < 16, 99, np.arange(64))).all()


def test_every_warp_has_a_barrier(bench):  # noqa: F811
    """Each thread uses its mbarrier as many times as its index."""
    body = (
        initialised(32, threads=8)
        + """
    shr.u32 %r15, %r0, 5; shl.b32 %r12, %r15, 3; add.u32 %r12, %r12, %r10; mov.u32 %r14, 0;
    ROUND: mbarrier.arrive.shared::cta.b64 %rd10, [%r12];
    """
        + wait("%rd10", address="[%r12]")
        + "add.u32 %r14, %r14, 1; setp.le.u32 %p2, %r14, %r15; @%p2 bra ROUND; st.global.b32 [%rd21], %r14;"
    )
    out, _ = bench(body, np.zeros(256, np.uint32), np.zeros(256, np.uint32), block=256)
    assert (out == np.arange(256) // 32 + 1).all()


# producer warp and three consumer warps, a ring of `stages` words
PIPELINE = (
    THREAD
    + """
    .shared .align 8 .b64 full[{stages}]; .shared .align 8 .b64 empty[{stages}]; .shared .b32 ring[{words}];
    mov.u32 %r10, full; mov.u32 %r11, empty; mov.u32 %r12, ring;
    setp.ge.u32 %p0, %r0, {stages}; @%p0 bra READY;
    shl.b32 %r13, %r0, 3; add.u32 %r14, %r10, %r13; add.u32 %r15, %r11, %r13;
    mbarrier.init.shared::cta.b64 [%r14], 32; mbarrier.init.shared::cta.b64 [%r15], 96;
    READY: bar.sync 0;
    mov.u32 %r16, 0; mov.u32 %r17, 0; mov.u32 %r18, 0; mov.u32 %r19, 0;
    and.b32 %r20, %r0, 31; shl.b32 %r21, %r20, 2;
    setp.ge.u32 %p1, %r0, 32; @%p1 bra CONSUME;

    PRODUCE:
    shl.b32 %r22, %r16, 3; add.u32 %r23, %r10, %r22; add.u32 %r24, %r11, %r22;
    xor.b32 %r25, %r17, 1;
    FREE: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r24], %r25; @!%p2 bra FREE;
    mul.wide.u32 %rd10, %r18, 128; cvt.u64.u32 %rd11, %r21; add.u64 %rd10, %rd10, %rd11; add.u64 %rd10, %rd10, %rd0;
    ld.global.b32 %r26, [%rd10];
    shl.b32 %r27, %r16, 7; add.u32 %r27, %r27, %r21; add.u32 %r27, %r27, %r12; st.shared.b32 [%r27], %r26;
    mbarrier.arrive.shared::cta.b64 _, [%r23];
    add.u32 %r16, %r16, 1; setp.lt.u32 %p3, %r16, {stages}; @%p3 bra SAME1; mov.u32 %r16, 0; xor.b32 %r17, %r17, 1; SAME1:
    add.u32 %r18, %r18, 1; setp.lt.u32 %p4, %r18, {steps}; @%p4 bra PRODUCE; bra OUT;

    CONSUME:
    shl.b32 %r22, %r16, 3; add.u32 %r23, %r10, %r22; add.u32 %r24, %r11, %r22;
    FULL: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r23], %r17; @!%p2 bra FULL;
    shl.b32 %r27, %r16, 7; add.u32 %r27, %r27, %r21; add.u32 %r27, %r27, %r12; ld.shared.b32 %r26, [%r27];
    mad.lo.u32 %r19, %r19, 3, %r26;
    mbarrier.arrive.shared::cta.b64 _, [%r24];
    add.u32 %r16, %r16, 1; setp.lt.u32 %p3, %r16, {stages}; @%p3 bra SAME2; mov.u32 %r16, 0; xor.b32 %r17, %r17, 1; SAME2:
    add.u32 %r18, %r18, 1; setp.lt.u32 %p4, %r18, {steps}; @%p4 bra CONSUME;
    st.global.b32 [%rd22], %r19;
    OUT:
    """
)


@pytest.mark.parametrize(("stages", "steps"), [(1, 7), (2, 9), (4, 21), (3, 2)])
def test_a_ring_between_a_producer_and_three_consumers(bench, stages, steps):  # noqa: F811
    source = np.random.default_rng(3).integers(0, 2**32, (steps, 32), np.uint32)
    body = PIPELINE.format(stages=stages, steps=steps, words=32 * stages)
    _, out = bench(body, source, np.zeros((3, 128), np.uint32), grid=3, block=128)
    expected = np.zeros(32, np.uint32)
    for row in source:
        expected = expected * np.uint32(3) + row
    assert (out[:, 32:].reshape(3, 3, 32) == expected).all()


def test_try_wait_comes_back_in_vain_when_nothing_else_can_happen():
    """A thread that does other work between two tries: the first try must return."""
    body = (
        initialised(1, threads=2)
        + "setp.lt.u32 %p2, %r0, 32; @%p2 bra FIRST;"
        + wait("parity 0", address="[%r10+8]", label="OTHER")
        + "setp.eq.u32 %p6, %r0, 32; @%p6 mbarrier.arrive.shared::cta.b64 _, [%r10]; bra OUT;"
        + "FIRST: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 0, 20; @%p1 bra OUT;"
        + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10+8]; setp.ne.u32 %p0, 0, 0; bra FIRST;"
        + "OUT: st.global.b32 [%rd21], 1;"
    )
    for mode in MODES:
        out, _ = run(body, np.zeros(64, np.uint32), np.zeros(64, np.uint32), block=64, completion=mode)
        assert (out == 1).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=64, max_size=64), st.lists(st.integers(1, 4), min_size=64, max_size=64))
def test_lanes_arrive_in_order(barriers, counts):
    """64 threads at up to 6 mbarriers: each state has the count that remains after the arrivals of lower lanes."""
    body = (
        initialised(5000, threads=6)
        + "ld.global.b32 %r12, [%rd21]; shl.b32 %r12, %r12, 3; add.u32 %r12, %r12, %r10; ld.global.b32 %r13, [%rd22];"
        + "mbarrier.arrive.shared::cta.b64 %rd10, [%r12], %r13; mbarrier.pending_count.b64 %r14, %rd10;"
        + "st.global.b32 [%rd22], %r14;"
    )
    _, out = run(body, np.array(barriers, np.uint32), np.array(counts, np.uint32), block=64)
    left = dict.fromkeys(range(6), 5000)
    for b, n, found in zip(barriers, counts, out, strict=True):
        assert found == left[b]
        left[b] -= n


@given(st.integers(0, MAX_COUNT), st.integers(0, MAX_COUNT), st.integers(-MAX_COUNT, MAX_COUNT), st.integers(0, 1))
def test_a_word_holds_its_fields(pending, expected, tx, phase):
    word = pack(np.array([pending]), np.array([expected]), np.array([tx]), np.array([phase]))
    assert [int(v[0]) for v in unpack(word)] == [pending, expected, tx, phase]
    assert parity(word)[0] == phase


def test_more_arrivals_than_a_phase_has_go_into_the_next():
    """Two warps execute one instruction at one mbarrier: PTX does not define the states, which here follow from one
    arrival after the other."""
    body = (
        initialised(32)
        + "mbarrier.arrive.shared::cta.b64 %rd10, [%r10]; mbarrier.pending_count.b64 %r12, %rd10; st.global.b32 [%rd21], %r12;"
        + "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r10], 1; selp.b32 %r13, 1, 0, %p2; st.global.b32 [%rd22], %r13;"
    )
    pending, over = run(body, np.zeros(64, np.uint32), np.zeros(64, np.uint32), block=64)
    assert (pending == np.tile(np.arange(32, 0, -1), 2)).all() and (over == 1).all()


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (HEAD + "mbarrier.arrive.shared::cta.b64 _, [%r10];", r"mbarrier at 0x400 \(bar\) is no mbarrier"),
        (initialised(32) + "mbarrier.arrive.shared::cta.b64 _, [%r10+16];", r"0x410 \(bar\+16\) is no mbarrier"),
        (
            initialised(32) + "@%p0 mbarrier.inval.shared::cta.b64 [%r10]; bar.sync 0; " + wait("parity 0"),
            "is no mbarrier: mbarrier.inval has invalidated it",
        ),
        (HEAD + "mbarrier.init.shared::cta.b64 [%r10], 0;", "an expected count of 0"),
        (HEAD + "mbarrier.init.shared::cta.b64 [%r10], 1048576;", "an expected count of 1048576"),
        (
            initialised(2) + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10], 3;",
            r"3 arrivals at the mbarrier at 0x400 \(bar\), whose phase lacks 2: initialise it with more arrivals",
        ),
        (
            initialised(1) + "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 16;"
            "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];",
            r"1 arrival at the mbarrier at 0x400 \(bar\), whose phase lacks 0: .*wait for it \(mbarrier.try_wait\)",
        ),
        (
            initialised(8) + "mbarrier.expect_tx.shared::cta.b64 [%r10], 1000000;",
            "a tx-count of 32,000,000 at .*the limit is 1,048,575",
        ),
        (
            initialised(32) + "mbarrier.arrive.noComplete.shared::cta.b64 _, [%r10], 1;",
            "noComplete, but the arrival completes the phase",
        ),
    ],
)
def test_mistakes_name_the_barrier_and_the_thread(body, message):
    with pytest.raises(
        TrapError, match=rf"test.ptx:\d+ mbarrier.*thread \(0, 0, 0\) of CTA \(0, 0, 0\).*{message}"
    ) as e:
        run(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("address", "message"), [("[%r10+4]", "misaligned"), ("[%r10+512]", "past the end")])
def test_addresses_are_checked(address, message):
    with pytest.raises(MemoryFault, match=message):
        run(initialised(32) + f"mbarrier.arrive.shared::cta.b64 _, {address};", np.zeros(32, np.uint32), np.zeros(1))


def test_arrivals_elsewhere_have_no_result():
    with pytest.raises(UnsupportedError, match="no result"):
        run(initialised(1) + "mbarrier.arrive.shared::cluster.b64 %rd10, [%r10];", np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
@pytest.mark.parametrize("completion", MODES)
def test_a_wait_for_arrivals_that_never_come_is_a_deadlock(kind, completion):
    body = initialised(40) + "mbarrier.arrive.shared::cta.b64 _, [%r10];" + wait("parity 0", kind=kind)
    message = r"waits in a loop.*waits for phase 0 \(parity 0\) of the mbarrier at 0x400 \(bar\), which lacks 8 of 40 arrivals"
    with pytest.raises(DeadlockError, match=rf"(?s)mbarrier\.{kind}") as e:
        run(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32), completion=completion)
    assert re.search(message, str(e.value).replace("\n", " "))


@pytest.mark.parametrize(
    ("before", "lacks"),
    [
        ("", "lacks 1 of 1 arrivals and 0 bytes"),
        (
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 64;",
            "lacks 1 of 1 arrivals and 0 bytes; 2,048 bytes more than were expected have arrived",
        ),
    ],
)
def test_a_deadlock_of_a_polling_loop_of_several_blocks_names_the_barrier(before, lacks):
    """The error is the same wherever in the loop the threads are when the repeated state is detected."""
    loop = (
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 0; selp.u32 %r11, 1, 0, %p1; bra NEXT; "
        "NEXT: add.u32 %r12, %r11, 0; setp.eq.u32 %p2, %r12, 0; bra LAST; LAST: @%p2 bra AGAIN;"
    )
    with pytest.raises(DeadlockError) as e:
        run(initialised(1) + before + loop, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert f"phase 0 (parity 0) of the mbarrier at 0x400 (bar), which {lacks}" in str(e.value)


def test_every_thread_may_invalidate_a_barrier():
    """The threads of one warp together, and those of another warp later."""
    body = initialised(64) + "@%p0 bra LATE; mbarrier.inval.shared::cta.b64 [%r10]; LATE: bar.sync 0; "
    body += "mbarrier.inval.shared::cta.b64 [%r10]; st.global.b32 [%rd21], 1;"
    out, _ = run(body, np.zeros(64, np.uint32), np.zeros(1), block=64, racecheck="lanes")
    assert (out == 1).all()


def test_a_variable_of_a_function_has_its_name_from_the_source():
    text = kernel(
        "mbarrier.arrive.shared.b64 _, [_ZZ1kPiE4full_$_1];", before=".shared .align 8 .b64 _ZZ1kPiE4full_$_1;"
    )
    with pytest.raises(TrapError, match=r"the mbarrier at 0x400 \(full\) is no mbarrier"):
        Run(text)(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("kind", ["try_wait", "test_wait"])
def test_a_listing_of_threads_whose_wait_has_succeeded_in_all_active_lanes(kind):
    """What the other lanes of the warp would observe does not count: lanes 16 to 31 would test for the phase after."""
    body = (
        initialised(1)
        + f"""
    @%p0 mbarrier.arrive.shared::cta.b64 _, [%r10]; bar.sync 0; shr.u32 %r13, %r0, 4; setp.ge.u32 %p2, %r0, 16; @%p2 bra OUT;
    LOOP: mbarrier.{kind}.parity.shared::cta.b64 %p1, [%r10], %r13; bra LOOP;
    OUT:
    """
    )
    with pytest.raises(InstructionLimitError, match=f"mbarrier.{kind}.*lanes 0-15 of warp 0 of CTA"):
        run(body, np.zeros(32, np.uint32), np.zeros(32, np.uint32), max_instructions=5000)
