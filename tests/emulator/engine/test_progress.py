"""Long waits are executed to their end, deadlocks are detected by a repeating state, and endless loops can be stopped."""

from __future__ import annotations

import re
import signal
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

from ptxkit.emulator.engine import progress
from ptxkit.emulator.engine import wave as engine_wave
from ptxkit.emulator.native import wave as native_wave
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import DeadlockError, InstructionLimitError, UsageError

LONG = 3 * progress.MIN_STEADY

ENDING_LOOPS = {
    "sum over a volatile pointer": f"""
        mov.u32 %r5, 0; mov.u32 %r6, 0;
    LOOP: ld.volatile.global.u32 %r7, [%rd0]; add.u32 %r6, %r6, %r7; add.u32 %r5, %r5, 1;
        setp.lt.u32 %p0, %r5, {LONG}; @%p0 bra LOOP;
    """,
    "bounded spin on an acquire": f"""
        mov.u32 %r5, 0;
    LOOP: ld.acquire.gpu.global.u32 %r6, [%rd0+4]; add.u32 %r5, %r5, 1;
        setp.eq.u32 %p0, %r6, 0; setp.lt.and.u32 %p0, %r5, {LONG}, %p0; @%p0 bra LOOP;
    """,
    "time-out by the clock": f"""
        mov.u64 %rd10, %clock64;
    LOOP: ld.volatile.global.u32 %r6, [%rd0+4]; mov.u64 %rd11, %clock64; sub.u64 %rd11, %rd11, %rd10;
        setp.lt.u64 %p0, %rd11, {8 * LONG}; @%p0 bra LOOP;
    """,
    "time-out by the global timer while it sleeps": f"""
        mov.u64 %rd10, %globaltimer;
    LOOP: nanosleep.u32 2; mov.u64 %rd11, %globaltimer; sub.u64 %rd11, %rd11, %rd10;
        setp.lt.u64 %p0, %rd11, {8 * LONG}; @%p0 bra LOOP;
    """,
    "counter in local memory": f"""
        .local .align 4 .b32 i; st.volatile.local.u32 [i], 0;
    LOOP: ld.volatile.local.u32 %r5, [i]; add.u32 %r5, %r5, 1; st.volatile.local.u32 [i], %r5;
        ld.volatile.local.u32 %r6, [i]; setp.lt.u32 %p0, %r6, {LONG}; @%p0 bra LOOP;
    """,
    "bounded mbarrier.try_wait": f"""
        .shared .align 8 .b64 bar; mov.u32 %r5, 0; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [bar], 1; bar.sync 0;
    LOOP: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; add.u32 %r5, %r5, 1;
        setp.lt.u32 %p0, %r5, {LONG}; @%p0 bra LOOP;
    """,
    "a lock that is held, tried so many times": f"""
        mov.u32 %r5, 0;
    LOOP: atom.global.cas.b32 %r6, [%rd0+4], 1, 0; add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, {LONG}; @%p0 bra LOOP;
    """,
    "each lane its own number of times": f"""
        mov.u32 %r5, 0; mul.lo.u32 %r8, %r0, 40; add.u32 %r8, %r8, {LONG};
    LOOP: ld.volatile.global.u32 %r6, [%rd0]; add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, %r8; @%p0 bra LOOP;
    """,
}


@pytest.mark.parametrize("loop", ENDING_LOOPS)
def test_a_loop_that_ends_is_no_deadlock(loop):
    run = Run(kernel(THREAD + ENDING_LOOPS[loop] + "st.global.u32 [%rd22], 7;"))
    _, out = run(np.array([1, 0], np.uint32), np.zeros(32, np.uint32))
    assert (out == 7).all()


DEADLOCKS = {
    "flag": "LOOP: ld.acquire.gpu.global.u32 %r5, [%rd0+4]; setp.eq.u32 %p0, %r5, 0; @%p0 bra LOOP;",
    "flag with sleep": "LOOP: nanosleep.u32 9; ld.relaxed.gpu.global.u32 %r5, [%rd0+4]; setp.eq.u32 %p0, %r5, 0; "
    "@%p0 bra LOOP;",
    "plain load": "LOOP: ld.global.u32 %r5, [%rd0+4]; setp.eq.u32 %p0, %r5, 0; @%p0 bra LOOP;",
    "nothing at all": "LOOP: bra LOOP;",
    "lock never released": "LOOP: atom.global.cas.b32 %r5, [%rd0], 0, 1; setp.ne.u32 %p0, %r5, 0; @%p0 bra LOOP;",
    "lock taken by exchange": "LOOP: atom.global.exch.b32 %r5, [%rd0], 1; setp.ne.u32 %p0, %r5, 0; @%p0 bra LOOP;",
    "poll by adding 0": "LOOP: atom.global.add.u32 %r5, [%rd0], 0; setp.ne.u32 %p0, %r5, 0; @%p0 bra LOOP;",
    "half waits at a barrier": """
        setp.lt.u32 %p1, %r0, 32; @%p1 bra LOOP; bar.sync 0; bra END;
    LOOP: ld.volatile.global.u32 %r5, [%rd0+4]; setp.eq.u32 %p0, %r5, 0; @%p0 bra LOOP;
    END:
    """,
    "circles of different lengths": """
        mov.u32 %r6, 0; and.b32 %r7, %r0, 3; add.u32 %r7, %r7, 2;
    LOOP: ld.volatile.global.u32 %r5, [%rd0+4]; add.u32 %r6, %r6, 1; rem.u32 %r6, %r6, %r7;
        setp.eq.u32 %p0, %r5, 0; @%p0 bra LOOP;
    """,
    "in a function that is called again and again": """
    LOOP: { .param .b64 a; .param .b32 v; st.param.b64 [a], %rd0; call (v), peek, (a); ld.param.b32 %r5, [v]; }
        setp.ne.u32 %p0, %r5, 0; @%p0 bra LOOP;
    """,
}
PEEK = """
.func (.param .b32 r) peek(.param .b64 a) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd0, [a];
ld.volatile.global.u32 %r0, [%rd0]; st.param.b32 [r], %r0; ret; }
"""


@pytest.mark.parametrize("wait", DEADLOCKS)
def test_a_wait_that_nothing_can_end_is_a_deadlock(wait):
    run = Run(kernel(THREAD + DEADLOCKS[wait], before=PEEK))
    with pytest.raises(DeadlockError, match=r"(?s)waits in a loop.*lanes 0-31 of warp"):
        run(np.array([1, 0], np.uint32), np.zeros(64, np.uint32), block=64)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=2, max_size=2), st.booleans())
def test_only_a_store_that_never_comes_makes_a_deadlock(log_delays, stores):
    """Two warps count for a while; one then stores the value that the other polls. Without the store this is a deadlock."""
    body = f"""
        setp.lt.u32 %p0, %r0, 32; selp.u32 %r4, {1 << log_delays[0]}, {1 << log_delays[1]}, %p0; mov.u32 %r5, 0;
    COUNT: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, %r4; @%p1 bra COUNT;
        @%p0 bra POLL; {"st.volatile.global.u32 [%rd0], 1;" if stores else ""} bra END;
    POLL: ld.global.u32 %r6, [%rd0]; setp.eq.u32 %p2, %r6, 0; @%p2 bra POLL;
    END: st.global.u32 [%rd22], 7;
    """
    run = Run(kernel(THREAD + body))
    if not stores:
        with pytest.raises(DeadlockError, match="32 thread"):
            run(np.zeros(1, np.uint32), np.zeros(64, np.uint32), block=64)
    else:
        _, out = run(np.zeros(1, np.uint32), np.zeros(64, np.uint32), block=64)
        assert (out == 7).all()


def test_a_loop_that_repeats_lets_others_run():
    """The polling warp has the lower program counter and never yields by itself; the other one needs thousands of steps
    to store."""
    body = f"""
        setp.ge.u32 %p0, %r0, 32; @%p0 bra WORK;
    POLL: ld.global.u32 %r6, [%rd0]; setp.eq.u32 %p2, %r6, 0; @%p2 bra POLL; bra END;
    WORK: mov.u32 %r5, 0;
    COUNT: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, {LONG}; @%p1 bra COUNT;
        st.global.u32 [%rd0], 1;
    END: st.global.u32 [%rd22], 7;
    """
    _, out = Run(kernel(THREAD + body))(np.zeros(1, np.uint32), np.zeros(64, np.uint32), block=64)
    assert (out == 7).all()


ENDLESS = "mov.u32 %r5, 0; LOOP: add.u32 %r5, %r5, 1; bra LOOP;"


@pytest.mark.parametrize(("grid", "workers"), [(1, 1), (200, 2)])
def test_max_instructions_ends_an_endless_loop_and_lists_its_threads(grid, workers):
    run = Run(kernel(THREAD + "setp.lt.u32 %p0, %r0, 40; @%p0 bra END;" + ENDLESS + "END:"), workers=workers)
    with pytest.raises(InstructionLimitError) as caught:
        run(np.zeros(1), np.zeros(1), grid=grid, block=64, max_instructions=1_000_000)
    text = str(caught.value)
    assert re.search(r"k: stopped by max_instructions after (99\d,\d{3}|1,000,000) thread instructions", text)
    assert "test.ptx" in text and "lanes 8-31 of warp 1 of CTA (" in text and "thread instructions here" in text


def test_lanes_that_are_all_at_a_collective_do_not_wait_for_lanes():
    run = Run(kernel(THREAD + "LOOP: shfl.sync.bfly.b32 %r5, %r0, 1, 31, -1; bra LOOP;"))
    found = []
    for limit in (1000, 1030):  # an iteration has two instructions: one of the limits ends it before the shuffle
        with pytest.raises(InstructionLimitError) as caught:
            run(np.zeros(1), np.zeros(1), block=32, max_instructions=limit)
        found.append(str(caught.value))
    (text,) = (t for t in found if "shfl.sync.bfly.b32" in t)
    assert "with the mask 0xffffffff, executed" in text


@pytest.mark.parametrize(("limit", "error"), [(None, DeadlockError), (32, InstructionLimitError)])
def test_messages_name_the_kernel_without_its_mangling(limit, error):
    ptx = kernel("LOOP: ld.volatile.global.u32 %r5, [%rd0]; setp.eq.u32 %p0, %r5, 0; @%p0 bra LOOP;")
    program = Run(ptx.replace(".entry k(", ".entry _Z4spinPViS_(")).program
    flag = program.machine.allocate(4, "flag")
    program.machine.write(flag, np.zeros(1, np.uint32))
    limited = EmulatorSettings(max_instructions=limit)
    with pytest.raises(error, match=r"^spin: (deadlock|stopped)"):
        program.launch("_Z4spinPViS_", struct.pack("<QQ", flag, flag), grid=(1, 1, 1), block=(32, 1, 1), settings=limited)


def test_a_launch_below_max_instructions_runs_to_its_end():
    run = Run(kernel(THREAD + "st.global.u32 [%rd22], 7;"))
    _, out = run(np.zeros(1), np.zeros(32, np.uint32), max_instructions=10_000)
    assert (out == 7).all()
    count = run.result.counters.instructions
    run(np.zeros(1), np.zeros(32, np.uint32), max_instructions=count)
    with pytest.raises(InstructionLimitError):
        run(np.zeros(1), np.zeros(32, np.uint32), max_instructions=count - 1)


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "9"])
def test_a_limit_that_is_none_is_refused(value):
    with pytest.raises(UsageError, match="max_instructions is None or an integer of at least 1"):
        Run(kernel(""))(np.zeros(1), np.zeros(1), max_instructions=value)


class Stop(KeyboardInterrupt):
    """The exception of a signal handler."""


@pytest.mark.parametrize(("grid", "workers"), [(1, 1), (200, 2)])
def test_an_interrupt_lists_the_looping_threads_and_keeps_its_type(grid, workers):
    def stop(number, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Stop, match=r"(?s)k: interrupted after [\d,]+ thread instructions.*lanes 0-31 of warp 0 of CTA"):
            Run(kernel(THREAD + ENDLESS), workers=workers)(np.zeros(1), np.zeros(1), grid=grid, block=64)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


AWAITS_THE_LAST_CTA = """
    mov.u32 %r5, %nctaid.x; sub.u32 %r5, %r5, 1; setp.eq.u32 %p0, %r2, %r5; setp.eq.u32 %p1, %r0, 0;
    @!%p1 bra DONE;
    @%p0 st.volatile.global.u32 [%rd0], 1;
POLL: ld.volatile.global.u32 %r6, [%rd0]; setp.eq.u32 %p2, %r6, 0; @%p2 bra POLL;
DONE: bar.sync 0; st.global.u32 [%rd22], 7;
"""


COUNTS_BEFORE_IT_STORES = """
    mov.u32 %r5, %nctaid.x; sub.u32 %r5, %r5, 1; setp.eq.u32 %p0, %r2, %r5; setp.eq.u32 %p1, %r0, 0;
    @!%p1 bra DONE;
    @!%p0 bra POLL;
    mov.u32 %r7, 30000;
COUNT: sub.u32 %r7, %r7, 1; setp.ne.u32 %p3, %r7, 0; @%p3 bra COUNT;
    st.volatile.global.u32 [%rd0], 1;
POLL: ld.volatile.global.u32 %r6, [%rd0]; setp.eq.u32 %p2, %r6, 0; @%p2 bra POLL;
DONE: bar.sync 0; st.global.u32 [%rd22], 7;
"""


def test_a_cta_waits_for_a_later_one_that_is_executed_by_another_worker():
    """39 CTAs are two waves for two workers; the first one polls until the second one, which counts for long, stores."""
    run = Run(kernel(THREAD + COUNTS_BEFORE_IT_STORES), workers=2)
    _, out = run(np.zeros(1, np.uint32), np.zeros(1024 * 39, np.uint32), grid=39, block=1024)
    assert (out == 7).all()


def test_a_cta_that_waits_for_one_that_is_not_resident():
    """The message names the number of resident CTAs and the option that makes all CTAs resident; with it the kernel ends."""
    run = Run(kernel(THREAD + AWAITS_THE_LAST_CTA), workers=1)
    arrays = np.zeros(1, np.uint32), np.zeros(1024 * 40, np.uint32)
    with pytest.raises(DeadlockError) as caught:
        run(*arrays, grid=40, block=1024)
    last = str(caught.value).splitlines()[-1]
    assert "the grid is not resident at once: 32 CTA(s) are, and 8 more do not start before these exit" in last
    assert "cooperative=True" in last and "a grid of at most 32 CTA(s)" in last
    for fixed in ({"grid": 40, "cooperative": True}, {"grid": 32}):
        _, out = run(*arrays, block=1024, **fixed)
        assert (out[: 1024 * fixed["grid"]] == 7).all()


@pytest.mark.parametrize("grid, block", [(2, 64), (39, 1024)], ids=["one wave", "two waves"])
def test_a_deadlock_of_a_resident_grid_does_not_blame_the_grid(grid, block):
    run = Run(kernel(THREAD + "POLL: ld.volatile.global.u32 %r6, [%rd0]; setp.eq.u32 %p2, %r6, 0; @%p2 bra POLL;"), workers=2)
    with pytest.raises(DeadlockError) as caught:
        run(np.zeros(1, np.uint32), np.zeros(grid * block, np.uint32), grid=grid, block=block)
    assert "resident" not in str(caught.value)


CHAIN = THREAD + """
    mul.wide.u32 %rd10, %r2, 4; add.u64 %rd11, %rd0, %rd10; setp.eq.u32 %p0, %r2, 0; @%p0 bra GO;
    W: {poll}
    setp.eq.u32 %p1, %r10, 0; @%p1 bra W;
    GO: atom.global.add.u32 %r11, [%rd11], 1;
"""


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("op", ["add", "or", "xor"])
def test_a_loop_that_polls_by_an_atomic_that_only_reads_lets_the_others_run(op, native, monkeypatch):
    """Each CTA waits for the one before: it polls about as often as there are CTAs."""
    if not native:
        monkeypatch.setattr(native_wave, "is_installed", lambda: False)
    monkeypatch.setattr(engine_wave, "NATIVE_AFTER", 1)
    run = Run(kernel(CHAIN.format(poll=f"atom.global.{op}.b32 %r10, [%rd11+-4], 0;".replace("add.b32", "add.u32")), params=1))
    (flags,) = run(np.zeros(32, np.uint32), grid=32, block=1)
    assert (flags == 1).all()
    assert run.result.counters.instructions < 32 * 32 * 3 * 4
