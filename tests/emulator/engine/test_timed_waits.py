"""A wait that reads a clock is a deadlock if the clock decides only how long it sleeps; a loop that a clock can end is none."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.emulator.engine import progress
from ptxkit.errors import DeadlockError

NS = 24 * progress.MIN_STEADY
"""A time limit that passes only after a comparison of states has begun."""

BACK_OFF = """
    mov.u64 %rd11, %globaltimer; sub.s64 %rd11, %rd11, %rd10;
    setp.lt.s64 %p1, %rd11, 40000; @%p1 bra SHORT; setp.lt.s64 %p1, %rd11, 4000000; @%p1 bra MEDIUM;
    nanosleep.u32 1000000; bra POLLED;
MEDIUM: shr.u64 %rd12, %rd11, 2; cvt.u32.u64 %r9, %rd12; nanosleep.u32 %r9; bra POLLED;
SHORT: bra POLLED;
POLLED:
"""
"""What libcu++ does between two polls: nothing at first, then it sleeps for a quarter of the time that has passed."""

BEGIN = "mov.u64 %rd10, %globaltimer; mov.u32 %r8, 0;"
POLL = "ld.acquire.gpu.global.u32 %r5, [%rd0+4]; setp.eq.u32 %p0, %r5, 0;"

DEADLOCKS = {
    "flag": f"{BEGIN} LOOP: {BACK_OFF} {POLL} @%p0 bra LOOP;",
    "sixteen polls without a clock": f"{BEGIN} LOOP: setp.lt.s32 %p2, %r8, 16; @%p2 bra COUNT; {BACK_OFF} bra AGAIN;"
    f"COUNT: add.s32 %r8, %r8, 1; AGAIN: {POLL} @%p0 bra LOOP;",
    "mbarrier": f"""
        .shared .align 8 .b64 bar; setp.eq.u32 %p2, %r0, 0; @%p2 mbarrier.init.shared.b64 [bar], 65; bar.sync 0;
        mbarrier.arrive.shared.b64 %rd13, [bar]; {BEGIN}
    LOOP: {BACK_OFF} mbarrier.try_wait.shared.b64 %p0, [bar], %rd13; @!%p0 bra LOOP;
    """,
    "one warp at a barrier": f"setp.lt.u32 %p2, %r0, 32; @%p2 bra WAIT; bar.sync 0; bra END; WAIT: {BEGIN}"
    f"LOOP: {BACK_OFF} {POLL} @%p0 bra LOOP; END:",
    "the clock of the SM, read once": f"mov.u32 %r8, %clock; LOOP: nanosleep.u32 %r8; {POLL} @%p0 bra LOOP;",
    "time is measured, and not used": f"LOOP: mov.u64 %rd10, %clock64; add.u64 %rd11, %rd11, %rd10; {POLL} @%p0 bra LOOP;",
    "a lock": f"{BEGIN} LOOP: {BACK_OFF} atom.global.cas.b32 %r5, [%rd0], 0, 1; setp.ne.u32 %p0, %r5, 0; @%p0 bra LOOP;",
}


@pytest.mark.parametrize("wait", DEADLOCKS)
def test_a_wait_that_reads_a_clock_to_sleep_is_a_deadlock(wait):
    run = Run(kernel(THREAD + "mov.u64 %rd11, 0;" + DEADLOCKS[wait]))
    with pytest.raises(DeadlockError, match=r"(?s)waits in a loop .*lanes 0-31 of warp"):
        run(np.array([1, 0], np.uint32), np.zeros(64, np.uint32), block=64, max_instructions=20_000_000)


LATE = f"setp.gt.u64 %p2, %rd11, {NS};"  # of the time since BEGIN

ENDING = {
    "time limit": f"{BEGIN} LOOP: {BACK_OFF} {LATE} @%p2 bra END; {POLL} @%p0 bra LOOP; END:",
    "the end of the kernel": f"st.global.u32 [%rd22], 7; {BEGIN} LOOP: {BACK_OFF} {LATE} @%p2 ret; {POLL} @%p0 bra LOOP;",
    "exit after a flag that is set late": f"{BEGIN} LOOP: {BACK_OFF} {LATE} @!%p2 bra SKIP; mov.u32 %r8, 1; SKIP: {POLL} "
    "setp.eq.and.u32 %p0, %r8, 0, %p0; @%p0 bra LOOP;",
    "a predicated write": f"{BEGIN} LOOP: {BACK_OFF} {LATE} @%p2 mov.u32 %r8, 1; {POLL} "
    "setp.eq.and.u32 %p0, %r8, 0, %p0; @%p0 bra LOOP;",
    "time is compared by arithmetic": f"{BEGIN} LOOP: {BACK_OFF} {LATE} selp.u32 %r6, 1, 0, %p2; add.u32 %r8, %r8, %r6; {POLL} "
    "setp.lt.and.u32 %p0, %r8, 3, %p0; @%p0 bra LOOP;",
    "through local memory": f""".local .align 8 .b64 t; {BEGIN} LOOP: {BACK_OFF} st.volatile.local.u64 [t], %rd11;
        ld.volatile.local.u64 %rd11, [t]; {LATE} @%p2 bra END; {POLL} @%p0 bra LOOP; END:""",
    "through a function": f"""{BEGIN} LOOP: {BACK_OFF} {{ .param .b64 r; call (r), now, (); ld.param.b64 %rd11, [r]; }}
        sub.u64 %rd11, %rd11, %rd10; {LATE} @%p2 bra END; {POLL} @%p0 bra LOOP; END:""",
    "an address": f"{BEGIN} LOOP: {BACK_OFF} {LATE} selp.u64 %rd12, 0, 4, %p2; add.u64 %rd12, %rd0, %rd12; "
    "ld.volatile.global.u32 %r5, [%rd12]; setp.eq.u32 %p0, %r5, 0; @%p0 bra LOOP;",
    "a vote": f"{BEGIN} LOOP: {BACK_OFF} {LATE} vote.sync.any.pred %p2, %p2, 0xffffffff; @%p2 bra END; {POLL} "
    "@%p0 bra LOOP; END:",
    "another warp waits by the clock, and stores": f"""
        {BEGIN} setp.lt.u32 %p2, %r0, 32; @%p2 bra LOOP;
    TIMED: mov.u64 %rd11, %globaltimer; sub.u64 %rd11, %rd11, %rd10; {LATE} @!%p2 bra TIMED;
        st.volatile.global.u32 [%rd0+4], 1; bra END;
    LOOP: {BACK_OFF} {POLL} @%p0 bra LOOP; END:""",
    "another warp counts, and stores": f"""
        {BEGIN} setp.lt.u32 %p2, %r0, 32; @%p2 bra LOOP;
    COUNT: add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, {4 * progress.MIN_STEADY}; @%p2 bra COUNT;
        st.volatile.global.u32 [%rd0+4], 1; bra END;
    LOOP: {BACK_OFF} {POLL} @%p0 bra LOOP; END:""",
    "so many polls": f"{BEGIN} LOOP: {BACK_OFF} add.u32 %r8, %r8, 1; {POLL} setp.lt.and.u32 %p0, %r8, 3000, %p0; "
    "@%p0 bra LOOP;",
}
NOW = ".func (.param .b64 r) now() { .reg .b64 %t; mov.u64 %t, %globaltimer; st.param.b64 [r], %t; ret; }\n"


@pytest.mark.parametrize("loop", ENDING)
def test_a_loop_that_time_or_another_thread_ends_is_no_deadlock(loop):
    run = Run(kernel(THREAD + ENDING[loop] + "st.global.u32 [%rd22], 7;", before=NOW))
    _, out = run(np.array([1, 0], np.uint32), np.zeros(64, np.uint32), block=64)
    assert (out == 7).all()


SOURCE = """
#include <cuda/barrier>
#include <cuda/latch>
#include <cuda/semaphore>
using namespace cuda;
extern "C" __global__ void barrier_wait(int n) {
    __shared__ barrier<thread_scope_block> b;
    if (threadIdx.x == 0) init(&b, n);
    __syncthreads();
    b.arrive_and_wait();
}
extern "C" __global__ void latch_wait(int n) {
    __shared__ alignas(8) char raw[sizeof(latch<thread_scope_block>)];
    auto* l = reinterpret_cast<latch<thread_scope_block>*>(raw);
    if (threadIdx.x == 0) new (l) latch<thread_scope_block>(n);
    __syncthreads();
    l->arrive_and_wait();
}
extern "C" __global__ void semaphore_wait(int n) {
    __shared__ alignas(8) char raw[sizeof(counting_semaphore<thread_scope_block, 64>)];
    auto* s = reinterpret_cast<counting_semaphore<thread_scope_block, 64>*>(raw);
    if (threadIdx.x == 0) new (s) counting_semaphore<thread_scope_block, 64>(96 - n);
    __syncthreads();
    s->acquire();
}
"""


def test_the_waits_of_libcupp_end_or_are_deadlocks():
    import ptxkit

    device = ptxkit.device("emulator")
    module = ptxkit.compile(SOURCE, device=device)
    for name in ("barrier_wait", "latch_wait", "semaphore_wait"):
        module[name](np.int32(64), grid=1, block=64 if name != "semaphore_wait" else 32)
        with pytest.raises(DeadlockError, match="which decides only how long it sleeps"):
            module[name](np.int32(65), grid=1, block=64 if name != "semaphore_wait" else 32)
