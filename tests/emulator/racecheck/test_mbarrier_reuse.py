"""An mbarrier is not initialised again, invalidated or overwritten while other threads may still use it."""

from __future__ import annotations

import pytest
from test_races import BULK, INIT, LOAD, WAIT, kinds

ARRIVE = "mbarrier.arrive.shared::cta.b64 %rd30, [%r14];\n"
ALL = INIT.replace("], 1;", "], 64;") + ARRIVE + WAIT
AGAIN = {
    "init": "@%p0 mbarrier.init.shared::cta.b64 [%r14], 1;",
    "inval": "@%p0 mbarrier.inval.shared::cta.b64 [%r14];",
    "data": "@%p0 st.shared.b32 [%r14], 5;",
    "cp.async": "@%p0 cp.async.ca.shared.global [%r14], [%rd0], 8; @%p0 cp.async.wait_all;",
}


@pytest.mark.parametrize("again", AGAIN)
def test_threads_may_still_wait(again):
    assert kinds(ALL + AGAIN[again]) == ["write-after-read"]
    assert kinds(ALL + "bar.sync 0;" + AGAIN[again]) == []


def test_every_thread_may_invalidate():
    """As the destructor of cuda::barrier does, if each thread calls it: without a barrier before it, others may still wait."""
    inval = AGAIN["inval"].removeprefix("@%p0 ")
    assert kinds(ALL + "bar.sync 0;" + inval) == []
    assert "write-after-read" in kinds(ALL + inval)


@pytest.mark.parametrize("again", AGAIN)
def test_threads_may_still_arrive(again):
    """A warp arrives, and nothing orders the arrival before the next use of the memory; or a wait does."""
    arrive = INIT + "setp.eq.u32 %p2, %r0, 32; @%p2 " + ARRIVE
    assert kinds(arrive + AGAIN[again]) == ["write-after-read"]
    assert kinds(arrive + WAIT + "bar.sync 0;" + AGAIN[again]) == []
    waits = "@!%p0 bra END; " + WAIT + AGAIN[again] + "END:"
    assert kinds(arrive + waits) == []  # the only thread that waits invalidates


def test_a_copy_may_still_complete_on_it():
    """A copy counts its bytes at the mbarrier until a thread has waited for its phase."""
    test = "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r14], 1;"  # the phase before
    assert kinds(INIT + BULK + test + "bar.sync 0;" + AGAIN["data"]) == ["write-after-read"]
    assert kinds(INIT + BULK + WAIT + "bar.sync 0;" + AGAIN["data"]) == []


TWO = INIT.replace("], 1;", "], 2;") + "and.b32 %r22, %r0, 31; setp.eq.u32 %p2, %r22, 0; mul.wide.u32 %rd30, %r15, {};"
TWO += "add.u64 %rd30, %rd30, %rd0; mad.lo.u32 %r23, %r15, {}, %r10;"


@pytest.mark.parametrize(
    ("source", "to", "found"), [(256, 0, True), (256, 128, True), (256, 256, False), (0, 0, False), (0, 128, True)]
)
def test_copies_of_one_instruction_overlap(source, to, found):
    """One bulk copy of each of two warps; the same data to the same bytes is no race."""
    body = TWO.format(source, to) + BULK.replace("%p0", "%p2").replace("%r10", "%r23").replace("%rd0", "%rd30")
    assert kinds(body + WAIT + LOAD) == (["write-after-write"] if found else [])


@pytest.mark.parametrize("lane", [0, 1])
def test_asynchronous_copies_of_lanes_overlap(lane):
    """cp.async of the lanes of one warp: lanes of equal parity write one row."""
    body = "and.b32 %r22, %r0, 1; shl.b32 %r22, %r22, 4; add.u32 %r22, %r22, %r10; shl.b32 %r23, %r0, {};"
    body += "and.b32 %r23, %r23, 16; cvt.u64.u32 %rd30, %r23; add.u64 %rd30, %rd30, %rd0;"
    body += "cp.async.ca.shared.global [%r22], [%rd30], 16; cp.async.wait_all;"
    # << 4: the source depends on the row only; << 3: also on the lane
    assert kinds(body.format(4 - lane), block=32) == (["write-after-write"] if lane else [])


def test_asynchronous_stores_of_one_instruction_overlap():
    """Threads of one warp store to the same word of another CTA, which a wait for the phase does not put in order."""
    body = INIT.replace("bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;")
    body += "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], 128; xor.b32 %r22, %r16, 1;"
    body += "mapa.shared::cluster.u32 %r21, {}, %r22; mapa.shared::cluster.u32 %r23, %r14, %r22;"
    body += "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r21], {}, [%r23];" + WAIT
    body += "barrier.cluster.arrive; barrier.cluster.wait;"
    cluster = {"grid": 2, "cluster": 2, "block": 32}
    assert kinds(body.format("%r12", "%r0"), **cluster) == []
    assert kinds(body.format("%r10", "%r0"), **cluster) == ["write-after-write"]
    assert kinds(body.format("%r10", "%r22"), **cluster) == []
