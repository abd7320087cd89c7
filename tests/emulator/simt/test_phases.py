"""Latest-legal completion performs no more operations of an mbarrier than the phase that a thread waits for requires."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel
from test_async_copy import POISON as BYTE_POISON
from test_async_copy import through_mbarrier, words
from test_bulk_copy import INIT, MULTICAST, POISON, RING, SHARED, WAIT
from test_cluster import async_reduction, async_store

from ptxkit.errors import DeadlockError, RaceError

LATEST = "latest-legal"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {};"
BY_ONE_THREAD = f"""
    @!%p0 bra ISSUED;
    {EXPECT}
    {COPY} [%r11], [%rd0], 512, [%r10];
    add.u32 %r12, %r11, 512; add.u64 %rd10, %rd0, 512; {COPY} [%r12], [%rd10], 512, [%r10];
    ISSUED:
"""
BY_A_WARP = f"""
    setp.ge.u32 %p2, %r0, 32; @%p2 bra ISSUED;
    @%p0 {EXPECT}
    bar.warp.sync -1;
    shl.b32 %r12, %r0, 5; cvt.u64.u32 %rd10, %r12; add.u64 %rd10, %rd0, %rd10; add.u32 %r12, %r11, %r12;
    {COPY} [%r12], [%rd10], 32, [%r10];
    ISSUED:
"""


def loads(issue: str, expected: int, wait: str = WAIT.format(parity=0)) -> str:
    """256 threads copy 1024 bytes in two or more bulk copies through shared memory, and expect ``expected`` bytes of them."""
    read = "shl.b32 %r13, %r0, 2; add.u32 %r13, %r11, %r13; ld.shared.b32 %r14, [%r13]; st.global.b32 [%rd22], %r14;"
    return THREAD + SHARED + INIT + issue.format(expected) + wait + read


@pytest.mark.parametrize("issue", [BY_ONE_THREAD, BY_A_WARP], ids=["two instructions", "elements of one instruction"])
@pytest.mark.parametrize("racecheck", [False, "warps", "lanes"])
def test_half_of_the_bytes_are_expected(issue, racecheck):
    """The oldest 512 bytes complete the phase; the other copies are pending until the kernel ends."""
    source = np.arange(1, 257, dtype=np.uint32)

    def run(expected: int) -> np.ndarray:
        program = Run(kernel(loads(issue, expected)))
        return program(source, np.zeros_like(source), block=256, completion=LATEST, racecheck=racecheck)[1]

    assert (run(1024) == source).all()
    if racecheck:  # a copy that stays pending is not ordered by the phase
        with pytest.raises(RaceError, match=r"read-after-write: .* a copy that completes on .* wait for that phase"):
            run(512)
        return
    out = run(512)
    assert (out[:128] == source[:128]).all()
    assert (out[128:] == POISON).all()


@pytest.mark.parametrize("issue", [BY_ONE_THREAD, BY_A_WARP], ids=["two instructions", "elements of one instruction"])
@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_the_race_check_reports_half_of_the_bytes_in_eager_mode(racecheck, issue):
    source = np.arange(1, 257, dtype=np.uint32)
    Run(kernel(loads(issue, 1024)))(source, np.zeros_like(source), block=256, racecheck=racecheck)
    with pytest.raises(RaceError, match="read-after-write"):
        Run(kernel(loads(issue, 512)))(source, np.zeros_like(source), block=256, racecheck=racecheck)


@pytest.mark.parametrize("completion", ["eager", LATEST, "random"])
def test_a_phase_completes_between_the_copies_of_one_instruction(completion):
    """The tx-count is 0 after half of the copies, so that hardware completes the phase there; the others count for the next."""
    source = np.arange(1, 257, dtype=np.uint32)
    second = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 512;" + WAIT.format(parity=1).replace("WAIT", "AGAIN")
    body = loads(BY_A_WARP, 512, WAIT.format(parity=0) + second)
    out = Run(kernel(body))(source, np.zeros_like(source), block=256, completion=completion, racecheck=True)[1]
    assert (out == source).all()


@pytest.mark.parametrize("completion", ["eager", LATEST, "random"])
def test_phases_complete_between_the_arrivals_of_one_instruction(completion):
    """64 arrivals at an mbarrier that expects 32 complete two phases; the parity of the third is that of the first."""
    body = THREAD + (
        ".shared .align 8 .b64 bar; .shared .align 16 .b32 buf[64]; mov.u32 %r10, bar; mov.u32 %r11, buf;"
        "setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r10], 32; bar.sync 0;"
        "shl.b32 %r12, %r0, 2; add.u32 %r11, %r11, %r12; cp.async.ca.shared.global [%r11], [%rd21], 4;"
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r10]; cp.async.wait_all;"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [%r10], 1; @!%p1 bra WAIT;"
        "ld.shared.b32 %r14, [%r11]; st.global.b32 [%rd22], %r14;"
    )
    source = np.arange(1, 65, dtype=np.uint32)
    assert (Run(kernel(body))(source, np.zeros_like(source), block=64, completion=completion)[1] == source).all()


def test_bytes_that_no_prefix_matches_are_a_deadlock():
    """All operations are performed before a deadlock is reported, so that the report names what is still missing."""
    for expected, message in ((2048, "lacks 0 of 1 arrivals and 1,024 bytes"), (256, "768 bytes more than were expected")):
        source = np.arange(1, 257, dtype=np.uint32)
        with pytest.raises(DeadlockError, match=message):
            Run(kernel(loads(BY_ONE_THREAD, expected)))(source, np.zeros_like(source), block=256, completion=LATEST)


BOTH_PHASES = """
    FIRST: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 0; @!%p1 bra FIRST;
    {early}
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 512;
    SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 1; @!%p1 bra SECOND;
"""


@pytest.mark.parametrize("racecheck", [False, "warps", "lanes"])
def test_the_copies_of_two_phases_are_in_flight(racecheck):
    """Each phase expects 512 of the 1024 bytes. They are read after the second phase, when all of them have arrived."""
    source = np.arange(1, 257, dtype=np.uint32)

    def run(issue: str, **settings: object) -> np.ndarray:
        program = Run(kernel(loads(issue, 512, BOTH_PHASES.format(early=""))))
        return program(source, np.zeros_like(source), block=256, racecheck=racecheck, **settings)[1]

    assert (run(BY_ONE_THREAD) == source).all()
    assert (run(BY_ONE_THREAD, completion=LATEST) == source).all()
    assert (run(BY_A_WARP, completion=LATEST) == source).all()
    for seed in range(8):
        assert (run(BY_ONE_THREAD, completion="random", completion_seed=seed) == source).all(), seed


def test_the_first_of_two_phases_performs_its_own_bytes():
    early = "shl.b32 %r13, %r0, 2; add.u32 %r13, %r11, %r13; ld.shared.b32 %r14, [%r13]; st.global.b32 [%rd21+1024], %r14;"
    source = np.concatenate([np.arange(1, 257, dtype=np.uint32), np.zeros(256, np.uint32)])
    program = Run(kernel(loads(BY_ONE_THREAD, 512, BOTH_PHASES.format(early=early))))
    both, out = program(source, np.zeros(256, np.uint32), block=256, completion=LATEST)
    assert (both[256:384] == source[:128]).all()
    assert (both[384:] == POISON).all()
    assert (out == source[:256]).all()


def test_arrivals_of_copies_that_the_phase_does_not_require():
    """128 threads let the mbarrier track their cp.async; half as many arrivals complete its phase."""
    source = words(8)
    for count, complete in ((128, 128), (64, 64)):
        program = Run(kernel(through_mbarrier(".noinc", count)))
        _, out = program(source, np.zeros_like(source), grid=3, block=128, completion=LATEST)
        out = out[:, ::-1]  # thread i has stored what thread 127 - i copied
        assert (out[:, :complete] == source[:, :complete]).all()
        assert (out[:, complete:] == BYTE_POISON).all()


@pytest.mark.parametrize("vector", [1, 4])
def test_asynchronous_stores_that_the_phase_does_not_require(vector):
    text = async_store("b32", vector)
    whole = f"[%r12], {256 * vector};"
    assert whole in text
    out = {}
    for expected in (256 * vector, 128 * vector):
        program = Run(kernel(text.replace(whole, f"[%r12], {expected};")))
        arrays = np.zeros(2 * 64 * vector, np.uint32), np.zeros(1, np.uint32)
        out[expected], _ = program(*arrays, grid=2, block=64, cluster=2, completion=LATEST)
    right, half = (v.reshape(2, 2, -1) for v in out.values())
    assert (right != POISON).all()
    assert (half[:, 0] == right[:, 0]).all()
    assert (half[:, 1] == POISON).all()


def test_asynchronous_reductions_that_the_phase_does_not_require():
    text = async_reduction("add", "u32")
    assert "[%r12], 256;" in text
    program = Run(kernel(text.replace("[%r12], 256;", "[%r12], 128;")))
    old, added = np.zeros(128, np.uint32), np.arange(1, 129, dtype=np.uint32)
    out, _ = program(old, added, grid=2, block=64, cluster=2, completion=LATEST)
    sums = np.roll(added.reshape(2, 32, 2).sum(2, dtype=np.uint32), 1, 0)  # pairs of threads add to a word of the other CTA
    assert (out.reshape(2, 64)[:, :16] == sums[:, :16]).all()
    assert (out.reshape(2, 64)[:, 16:] == 0).all()


def test_a_multicast_completes_on_each_mbarrier_separately():
    """Each CTA receives two copies of 512 bytes; CTA 0 expects both, the others only the first."""
    text = MULTICAST.format(mask=0b1111, wait=WAIT.format(parity=0))
    first = f"{COPY}.multicast::cluster [%r11], [%rd11], 512, [%r10], %h0;"
    assert first in text
    text = text.replace(
        f"@%p3 {first}", f"@%p3 {first} add.u32 %r21, %r11, 512; @%p3 {first.replace('[%r11]', '[%r21]')}"
    )
    text = text.replace(
        "mov.u32 %r19, 512;",
        "mov.u32 %r22, %cluster_ctarank; setp.eq.u32 %p5, %r22, 0; selp.u32 %r19, 1024, 512, %p5;",
    )
    second = text.replace("ld.shared.b32 %r18, [%r13]", "ld.shared.b32 %r18, [%r13+512]")
    assert second != text
    source = np.arange(1, 129, dtype=np.uint32)
    for body, others in ((text, source), (second, POISON)):
        _, out = Run(kernel(body))(source, np.zeros(512, np.uint32), grid=4, block=128, cluster=4, completion=LATEST)
        assert (out.reshape(4, 128)[0] == source).all()
        assert (out.reshape(4, 128)[1:] == others).all()


@pytest.mark.parametrize("completion", ["eager", LATEST, "random"])
@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_the_race_check_finds_a_missing_release_of_a_buffer(completion, racecheck):
    """The results are right: only the race check reports a copy into a buffer that other threads may still read."""
    ring = RING.replace("shl.b32 %r22, %r20, 9; add.u32 %r22, %r11, %r22;", "mov.u32 %r22, %r11;")
    release = "bar.sync 0;\n    add.u64 %rd10"
    assert ring != RING
    assert release in ring
    source = np.arange(9 * 128, dtype=np.uint32).reshape(9, 128)
    arrays = source, np.zeros(128, np.uint32)
    hasty = Run(kernel(ring.replace(release, "add.u64 %rd10")))
    Run(kernel(ring))(*arrays, block=128, completion=completion, racecheck=racecheck)
    assert (hasty(*arrays, block=128, completion=completion)[1] == source.sum(0)).all()
    with pytest.raises(RaceError, match="write-after-read"):
        hasty(*arrays, block=128, completion=completion, racecheck=racecheck)
