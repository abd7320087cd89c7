"""Proxy fences: which writes of threads the async proxy sees, by the order of write, fence and operation."""

from __future__ import annotations

import numpy as np
import pytest
from programs import Run, kernel
from test_races import HEAD, INIT, MEET, STORE, WAIT

from ptxkit.errors import MemoryFault, RaceError

LANE0 = "and.b32 %r21, %r0, 31; setp.eq.u32 %p3, %r21, 0; setp.eq.u32 %p4, %r15, 1;"
SEND = (
    "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 256; @%p0 cp.async.bulk.commit_group;"
    "cp.async.bulk.wait_group.read 0;"
)
FENCE = "fence.proxy.async.shared::cta;"
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r14];"
MANY = INIT.replace("1;", "64;", 1)
COPY = "cp.async.ca.shared.global [%r12], [%rd21], 4;"
LATE = "cp.async.wait_all; bar.sync 0;"


def found(body: str, completion: str = "eager", racecheck: bool | str = True, block: int = 64, **options) -> list[str]:
    """The kinds of hazards in the kernel with this body, or the name of another error."""
    arrays = np.zeros(512, np.uint32), np.zeros(512, np.uint32)
    try:
        Run(kernel(HEAD + LANE0 + body))(*arrays, block=block, completion=completion, racecheck=racecheck, **options)
    except RaceError as error:
        return [h.what for h in error.hazards]
    except MemoryFault as error:
        assert "no fence.proxy.async after it" in str(error)
        return ["missing-proxy-fence"]
    return []


def hidden(body: str, **options) -> bool:
    """Whether the bulk copy may not see a write: the same by every check and in every mode."""
    verdicts = {
        (racecheck, completion): found(body, completion, racecheck, **options)
        for racecheck in (False, "warps", "lanes")
        for completion in ("eager", "latest-legal")
        if racecheck or completion != "eager"
    }
    assert all(kinds in ([], ["missing-proxy-fence"]) for kinds in verdicts.values()), verdicts
    assert len({bool(kinds) for kinds in verdicts.values()}) == 1, verdicts
    return bool(verdicts["warps", "eager"])


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        (FENCE, "", False),  # each writer fences, and then all synchronise
        ("", f"@%p0 {FENCE}", False),  # the issuing thread fences after the barrier
        ("", f"@%p4 {FENCE} bar.sync 0;", False),  # another warp does, and synchronises with the issuing thread
        ("bar.sync 0; fence.proxy.async;", "", False),
        (f"bar.sync 0; @%p4 {FENCE}", "", False),  # one warp fences for both, between two barriers
        (f"bar.warp.sync -1; @%p3 {FENCE}", "", False),  # one lane fences for its warp, which has synchronised
        (f"@%p3 {FENCE} @!%p3 {FENCE}", "", False),  # all lanes fence, in two instructions
        ("", "", True),
        ("fence.proxy.async.global;", "", True),
        ("fence.acq_rel.cta;", "membar.cta;", True),
        (f"@%p4 {FENCE}", "", True),  # only one of two writing warps
        (f"@%p3 {FENCE}", "", True),  # only one lane of each warp, before the barrier
        (f"@%p3 {FENCE} bar.warp.sync -1;", "", True),
        ("", f"@%p4 {FENCE}", True),  # the other warp after the barrier, in no order with the operation
        (f"{FENCE} st.shared.b32 [%r12], 9;", "", True),  # before the last write
    ],
)
def test_a_fence_counts_between_the_write_and_the_operation(before, after, missing):
    assert hidden(f"{STORE} {before} bar.sync 0; {after} {SEND}") == missing


@pytest.mark.parametrize(
    ("writers", "fences", "missing"),
    [
        ("@%p0", "@%p0", False),
        ("@%p3", "@%p3", False),
        ("@%p4", "@%p4", False),
        ("@%p3", "@%p0", True),
        ("@%p0", "@%p4", True),
    ],
)
def test_the_lanes_that_have_written_have_to_fence(writers, fences, missing):
    assert hidden(f"{writers} {STORE} {fences} {FENCE} bar.sync 0; {SEND}") == missing


def test_a_later_fence_of_the_same_lane_does_not_move_the_earlier_one():
    """Lane 0 fences before its arrival and again after it; the operation is ordered after the first fence only."""
    body = f"{MANY} @%p3 {STORE} @%p3 {FENCE} {ARRIVE} @%p3 {FENCE} @!%p0 bra OUT; {WAIT} {SEND} OUT:"
    assert not hidden(body)


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [(FENCE, "", False), ("", FENCE, False), ("", "", True), (f"@%p4 {FENCE}", "", True), (f"@%p3 {FENCE}", "", True)],
)
def test_an_mbarrier_passes_a_fence_on(before, after, missing):
    body = f"{MANY} {STORE} {before} {ARRIVE} @!%p0 bra OUT; {WAIT} {after} {SEND} OUT:"
    assert hidden(body) == missing


@pytest.mark.parametrize(
    ("between", "missing"),
    [(LATE + FENCE + "bar.sync 0;", False), (LATE + f"@%p0 {FENCE}", False), (LATE, True), (FENCE + LATE, True)],
)
def test_a_fence_covers_a_cp_async_that_the_program_has_waited_for(between, missing):
    assert hidden(f"{COPY} {between} {SEND}") == missing


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ("fence.proxy.async;", "", False),
        ("fence.proxy.async.shared::cluster;", "", False),
        ("", FENCE, False),
        ("", "", True),
        ("setp.eq.u32 %p5, %r16, 0; @%p5 fence.proxy.async;", "", True),  # the CTA that has not written
    ],
)
def test_a_fence_covers_writes_to_the_shared_memory_of_another_cta(before, after, missing):
    body = f"""mapa.shared::cluster.u32 %r21, %r12, 0; setp.eq.u32 %p2, %r16, 1; {MEET}
        @%p2 st.shared::cluster.b32 [%r21], %r3; {before} {MEET} setp.eq.and.u32 %p0, %r16, 0, %p0; {after} {SEND} {MEET}"""
    assert hidden(body, grid=2, cluster=2) == missing


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_what_a_bulk_copy_has_written_needs_no_fence(completion):
    bring = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd0], 256, [%r14];"
    body = f"{INIT} @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], 256; @%p0 {bring} {WAIT} {SEND}"
    assert found(body, completion) == []


def test_a_write_that_nothing_orders_is_a_race_only():
    assert found(f"{STORE} {FENCE} {SEND}") == ["read-after-write"]


def test_the_message_names_write_operation_and_fix():
    with pytest.raises(RaceError) as caught:
        Run(kernel(HEAD + LANE0 + f"{STORE} @%p4 {FENCE} bar.sync 0; {SEND}"))(
            np.zeros(512, np.uint32), np.zeros(512, np.uint32), block=64, racecheck=True
        )
    (h,) = caught.value.hazards
    assert "st.shared.b32" in h.earlier and "cp.async.bulk" in h.later and h.count == 32
    assert "through the async proxy, which warp 0 of CTA (0, 0, 0) wrote" in str(h)
    assert "let each writing thread execute fence.proxy.async between its writes and the synchronisation" in str(h)
