"""Clusters: their shape, distributed shared memory, barriers, asynchronous stores and reductions, remote arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from either import MODES, bench  # noqa: F401  a fixture
from programs import THREAD, Run, kernel

from ptxkit.errors import DeadlockError, LaunchError, MemoryFault, RaceError, TrapError, UnsupportedError

RNG = np.random.default_rng(11)
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
RANK = "mov.u32 %r10, %cluster_ctarank; mov.u32 %r11, %cluster_nctarank;\n"
ZEROS = np.zeros(1, np.uint32)


# -- shape -------------------------------------------------------------------------------------------------------------

SPECIALS = (
    "ctaid.x ctaid.y ctaid.z clusterid.x clusterid.y clusterid.z nclusterid.x nclusterid.y nclusterid.z cluster_ctaid.x "
    "cluster_ctaid.y cluster_ctaid.z cluster_nctaid.x cluster_nctaid.y cluster_nctaid.z cluster_ctarank cluster_nctarank"
).split()


def test_special_registers(bench):  # noqa: F811
    grid, cluster = (4, 6, 2), (2, 3, 1)
    body = """
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %ctaid.z; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %nctaid.y;
        mad.lo.u32 %r4, %r4, %r6, %r3; mad.lo.u32 %r4, %r4, %r5, %r2; mul.wide.u32 %rd2, %r4, 68; add.u64 %rd2, %rd2, %rd0;
    """
    body += "".join(f"mov.u32 %r7, %{s}; st.global.u32 [%rd2+{4 * n}], %r7;" for n, s in enumerate(SPECIALS))
    out, _ = bench(body, np.zeros((48, 17), np.uint32), ZEROS, grid=grid, block=1, cluster=cluster)
    z, y, x = (v.reshape(-1) for v in np.meshgrid(np.arange(2), np.arange(6), np.arange(4), indexing="ij"))
    one = np.ones(48)
    expected = [x, y, z, x // 2, y // 3, z, 2 * one, 2 * one, 2 * one, x % 2, y % 3, 0 * one, 2 * one, 3 * one, one]
    expected += [x % 2 + 2 * (y % 3), 6 * one]
    assert (out == np.stack(expected, axis=1)).all()


def test_clusters_stay_together_in_a_wave():
    """A grid with more CTAs than a wave: each CTA reads the shared memory of its neighbour."""
    body = (
        THREAD
        + RANK
        + ".shared .b32 s; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [s], %r2;"
        + MEET
        + "sub.u32 %r12, %r11, %r10; sub.u32 %r12, %r12, 1; mapa.shared::cluster.u32 %r13, s, %r12;"
        + "ld.shared::cluster.u32 %r14, [%r13]; @%p0 st.global.u32 [%rd23], %r14;"
        + MEET
    ).replace("add.u64 %rd22", "mul.wide.u32 %rd23, %r2, 4; add.u64 %rd23, %rd0, %rd23; add.u64 %rd22")
    run = Run(kernel(body), workers=3)
    out, _ = run(np.zeros(300, np.uint32), ZEROS, grid=300, block=256, cluster=6)
    assert (out == np.arange(300).reshape(-1, 6)[:, ::-1].reshape(-1)).all()


@pytest.mark.parametrize(
    ("directives", "cluster", "message"),
    [
        (".reqnctapercluster 2, 1, 1", 4, r"cluster \(4, 1, 1\); the kernel requires \(2, 1, 1\)"),
        ("", 3, "not a multiple of the cluster"),
        ("", 32, "32 CTAs in a cluster; sm_90a takes at most 16, and 8 is portable"),
        (".maxclusterrank 2", 4, "4 CTAs in a cluster; the kernel is bounded to 2"),
        (".explicitcluster", None, "the launch names no cluster; the kernel is declared .explicitcluster"),
    ],
)
def test_clusters_that_do_not_fit(directives, cluster, message):
    with pytest.raises(LaunchError, match=message):
        Run(kernel("", directives=directives))(ZEROS, ZEROS, grid=64, cluster=cluster)


# -- distributed shared memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mapa", "generic"])
@pytest.mark.parametrize("vec", [1, 4])
def test_loads_and_stores(bench, how, vec):  # noqa: F811
    """Each thread writes to the next CTA and reads from the one after it."""
    head = THREAD + RANK + f".shared .align 16 .b32 a[{64 * vec}]; .shared .align 16 .b32 b[{64 * vec}];"
    head += f"mul.lo.u32 %r12, %r0, {4 * vec}; add.u32 %r13, %r10, 1; rem.u32 %r13, %r13, %r11;"
    head += "add.u32 %r14, %r10, 2; rem.u32 %r14, %r14, %r11; mul.lo.u32 %r15, %r3, 4;"
    values = "{%r15, %r16, %r17, %r18}" if vec == 4 else "%r15"
    loaded = "{%r25, %r26, %r27, %r28}" if vec == 4 else "%r25"
    suffix = ".v4.b32" if vec == 4 else ".b32"
    head += "add.u32 %r16, %r15, 1; add.u32 %r17, %r15, 2; add.u32 %r18, %r15, 3;" + MEET
    if how == "mapa":
        body = f"""
        mapa.shared::cluster.u32 %r20, a, %r13; add.u32 %r20, %r20, %r12; st.shared::cluster{suffix} [%r20], {values};
        mov.u32 %r21, b; add.u32 %r21, %r21, %r12; st.shared{suffix} [%r21], {values};
        {MEET}
        mapa.shared::cluster.u32 %r22, %r21, %r14; ld.shared::cluster{suffix} {loaded}, [%r22];
        """
    else:
        body = f"""
        mov.u64 %rd10, a; cvta.shared.u64 %rd10, %rd10; cvt.u64.u32 %rd11, %r12; add.u64 %rd10, %rd10, %rd11;
        mapa.u64 %rd12, %rd10, %r13; st{suffix} [%rd12], {values};
        mov.u64 %rd13, b; cvta.shared.u64 %rd13, %rd13; add.u64 %rd13, %rd13, %rd11; st{suffix} [%rd13], {values};
        {MEET}
        mapa.u64 %rd14, %rd13, %r14; ld{suffix} {loaded}, [%rd14];
        """
    tail = f"""
        mov.u32 %r21, a; add.u32 %r21, %r21, %r12; ld.shared{suffix} {values}, [%r21];
        mul.wide.u32 %rd15, %r3, {4 * vec}; add.u64 %rd16, %rd0, %rd15; add.u64 %rd17, %rd1, %rd15;
        st.global{suffix} [%rd16], {values}; st.global{suffix} [%rd17], {loaded};
    """
    shape = (2, 4, 64, vec)
    written, read = bench(
        head + body + tail + MEET, np.zeros(shape, np.uint32), np.zeros(shape, np.uint32), grid=8, block=64, cluster=4
    )
    own = 4 * np.arange(512, dtype=np.uint32).reshape(2, 4, 64, 1) + np.arange(vec, dtype=np.uint32)
    assert (written == np.roll(own, 1, 1)).all()
    assert (read == np.roll(own, -2, 1)).all()


@pytest.mark.parametrize(("start", "step"), [(0, 8), (504, -8), (12, 4)])
def test_walks_through_another_ctas_memory(bench, start, step):  # noqa: F811
    """Half of the lanes access the next CTA, with ascending or descending addresses, the others their own; one lane in five is
    inactive."""
    body = (
        THREAD
        + RANK
        + f"""
        .shared .b32 a[192]; mov.u32 %r12, a; add.u32 %r13, %r10, 1; rem.u32 %r13, %r13, %r11; shl.b32 %r14, %r0, 2;
        add.u32 %r15, %r12, %r14; mov.u32 %r16, %r3;
        FILL: st.shared.b32 [%r15], %r16; add.u32 %r15, %r15, 128; add.u32 %r16, %r16, 1000;
        setp.lt.u32 %p0, %r16, 6000; @%p0 bra FILL;
        {MEET}
        setp.lt.u32 %p1, %r0, 16; selp.u32 %r17, %r13, %r10, %p1; mapa.shared::cluster.u32 %r18, %r12, %r17;
        add.u32 %r18, %r18, %r14; add.u32 %r18, %r18, {start}; rem.u32 %r19, %r0, 5; setp.ne.u32 %p2, %r19, 4;
        mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r22, 0;
        WALK: @%p2 ld.shared::cluster.b32 %r20, [%r18]; mad.lo.u32 %r21, %r21, 3, %r20;
        @%p2 st.shared::cluster.b32 [%r18], %r20;
        add.u32 %r18, %r18, {step}; add.u32 %r22, %r22, 1; setp.lt.u32 %p3, %r22, 10; @%p3 bra WALK;
        st.global.b32 [%rd21], %r21;
        """
        + MEET
    )
    out, _ = bench(body, np.zeros((4, 32), np.uint32), ZEROS, grid=4, cluster=2)
    lanes = np.arange(32)
    memory = np.stack([(32 * cta + lanes + 1000 * np.arange(6)[:, None]).reshape(-1) for cta in range(4)]).astype(
        np.uint32
    )
    for cta in range(4):
        home = np.where(lanes < 16, cta ^ 1, cta)
        total = np.zeros(32, np.uint32)
        for k in range(10):
            total = total * np.uint32(3) + np.where(lanes % 5 == 4, 0, memory[home, lanes + (start + step * k) // 4])
        assert (out[cta] == total).all()


def test_walking_off_another_ctas_memory_is_a_fault():
    body = (
        THREAD
        + RANK
        + ".shared .b32 a[64]; mapa.shared::cluster.u32 %r12, a, 1; shl.b32 %r13, %r0, 2; add.u32 %r12, %r12, %r13;"
        + "WALK: ld.shared::cluster.b32 %r14, [%r12]; add.u32 %r12, %r12, 64; bra WALK;"
    )
    with pytest.raises(MemoryFault, match=r"lane 16 of warp 0.* outside the 256 bytes of shared memory of CTA rank 1"):
        Run(kernel(body))(ZEROS, ZEROS, grid=2, cluster=2)


def test_addresses_say_which_cta_they_mean(bench):  # noqa: F811
    body = (
        THREAD
        + RANK
        + """
        .shared .b32 s; mov.u32 %r12, s; add.u32 %r13, %r10, 1; rem.u32 %r13, %r13, %r11;
        mov.u64 %rd10, s; cvta.shared.u64 %rd10, %rd10; mapa.u64 %rd11, %rd10, %r13; mapa.u64 %rd12, %rd10, %r10;
        mapa.shared::cluster.u32 %r14, %r12, %r13; getctarank.shared::cluster.u32 %r15, %r14; getctarank.u64 %r16, %rd11;
        getctarank.shared::cluster.u32 %r17, %r12;
        isspacep.shared::cta %p0, %rd10; isspacep.shared::cta %p1, %rd11; isspacep.shared::cta %p2, %rd12;
        isspacep.shared::cluster %p3, %rd10; isspacep.shared::cluster %p4, %rd11; isspacep.shared::cluster %p5, %rd0;
        isspacep.global %p6, %rd11;
        mov.u32 %r18, 0;
        """
        + "".join(f"selp.u32 %r19, {1 << n}, 0, %p{n}; or.b32 %r18, %r18, %r19;" for n in range(7))
        + """
        shl.b32 %r15, %r15, 8; shl.b32 %r16, %r16, 12; shl.b32 %r17, %r17, 16;
        or.b32 %r18, %r18, %r15; or.b32 %r18, %r18, %r16; or.b32 %r18, %r18, %r17; st.global.u32 [%rd21], %r18;
        """
    )
    out, _ = bench(body, np.zeros((3, 32), np.uint32), ZEROS, grid=3, cluster=3)
    for rank in range(3):
        following = (rank + 1) % 3
        assert (out[rank] == 0b0011101 + (following << 8) + (following << 12) + (rank << 16)).all()


def test_addresses_hold_the_rank(bench):  # noqa: F811
    """PTX does not document it, but sm_90 and later behave so, and code for CTA pairs clears the lowest bit to
    address the first CTA."""
    body = (
        THREAD
        + RANK
        + """
        .shared .align 4 .b32 s[32]; mov.u32 %r12, s; shl.b32 %r13, %r0, 2; add.u32 %r12, %r12, %r13;
        mad.lo.u32 %r14, %r10, 100, %r0; st.shared.u32 [%r12], %r14;
        """
        + MEET
        + """
        shr.u32 %r15, %r12, 24; and.b32 %r16, %r12, 0xFEFFFFFF; ld.shared::cluster.u32 %r17, [%r16];
        mov.u64 %rd10, s; cvta.shared.u64 %rd10, %rd10; cvt.u64.u32 %rd11, %r13; add.u64 %rd10, %rd10, %rd11;
        and.b64 %rd10, %rd10, -0x1000001; ld.u32 %r18, [%rd10]; ld.shared.u32 %r19, [%r12];
        sub.u32 %r18, %r18, %r17; sub.u32 %r19, %r19, %r14; or.b32 %r18, %r18, %r19; shl.b32 %r18, %r18, 24;
        shl.b32 %r15, %r15, 16; or.b32 %r17, %r17, %r15; or.b32 %r17, %r17, %r18; st.global.u32 [%rd21], %r17;
        """
        + MEET
    )
    out, _ = bench(body, np.zeros((4, 32), np.uint32), ZEROS, grid=4, cluster=4)
    for rank in range(4):
        assert (out[rank] == np.arange(32) + 100 * (rank & ~1) + (rank << 16)).all()


def test_code_without_cluster_instructions_runs_in_a_cluster(bench):  # noqa: F811
    body = (
        THREAD
        + """
        .shared .align 4 .b32 s[32]; mov.u64 %rd10, s; cvta.shared.u64 %rd10, %rd10; mul.wide.u32 %rd11, %r0, 4;
        add.u64 %rd10, %rd10, %rd11; st.u32 [%rd10], %r3; bar.sync 0;
        xor.b32 %r12, %r0, 31; mul.wide.u32 %rd11, %r12, 4; mov.u64 %rd12, s; add.u64 %rd12, %rd12, %rd11;
        ld.shared.u32 %r13, [%rd12]; ld.u32 %r14, [%rd10]; mad.lo.u32 %r13, %r14, 1000, %r13; st.global.u32 [%rd21], %r13;
        """
    )
    out, _ = bench(body, np.zeros((4, 32), np.uint32), ZEROS, grid=4, cluster=2)
    thread = np.arange(128).reshape(4, 32)
    assert (out == thread * 1000 + thread[:, ::-1]).all()


@pytest.mark.parametrize("instruction", ["atom", "red"])
@pytest.mark.parametrize("generic", [False, True])
def test_atomics(bench, instruction, generic):  # noqa: F811
    """Every thread of the cluster adds to a counter in CTA 1."""
    body = THREAD + RANK + ".shared .b32 s; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [s], 100;" + MEET
    old = "%r14, " if instruction == "atom" else ""
    if generic:
        body += "mov.u64 %rd10, s; cvta.shared.u64 %rd10, %rd10; mapa.u64 %rd10, %rd10, 1;"
        body += f"{instruction}.relaxed.cluster.add.u32 {old}[%rd10], %r3;"
    else:
        body += f"mapa.shared::cluster.u32 %r12, s, 1; {instruction}.shared::cluster.add.u32 {old}[%r12], %r3;"
    body += MEET + "ld.shared.u32 %r13, [s]; st.global.u32 [%rd21], %r13;"
    out, _ = bench(body, np.zeros((2, 4, 64), np.uint32), ZEROS, grid=8, block=64, cluster=4)
    sums = np.arange(512).reshape(2, 256).sum(1)
    assert (out[:, [0, 2, 3]] == 100).all() and (out[:, 1] == 100 + sums[:, None]).all()


def test_cas_on_another_ctas_memory(bench):  # noqa: F811
    body = (
        THREAD
        + RANK
        + ".shared .b32 s; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [s], 0;"
        + MEET
        + """
        mapa.shared::cluster.u32 %r12, s, 0; mov.u32 %r13, 0;
        AGAIN: add.u32 %r14, %r13, 3; atom.shared::cluster.cas.b32 %r15, [%r12], %r13, %r14;
        setp.ne.u32 %p1, %r15, %r13; mov.u32 %r13, %r15; @%p1 bra AGAIN;
        """
        + MEET
        + "ld.shared::cluster.u32 %r16, [%r12]; st.global.u32 [%rd21], %r16;"
        + MEET
    )
    out, _ = bench(body, np.zeros(64, np.uint32), ZEROS, grid=2, cluster=2)
    assert (out == 3 * 64).all()


def test_ranks_beyond_the_cluster_are_faults():
    body = ".shared .b32 s; mapa.shared::cluster.u32 %r1, s, 2; ld.shared::cluster.u32 %r2, [%r1];"
    with pytest.raises(MemoryFault, match=r"CTA rank 2 in a cluster of 2"):
        Run(kernel(body))(ZEROS, ZEROS, grid=2, cluster=2)


# -- barriers ----------------------------------------------------------------------------------------------------------


def test_work_between_arrival_and_wait(bench):  # noqa: F811
    """Ten iterations, in each of which every CTA adds the value that its neighbour wrote in the previous one."""
    body = (
        THREAD
        + RANK
        + """
        .shared .b32 s[2]; setp.eq.u32 %p0, %r0, 0; mov.u32 %r12, s; add.u32 %r13, %r10, 1; rem.u32 %r13, %r13, %r11;
        mapa.shared::cluster.u32 %r14, %r12, %r13; add.u32 %r15, %r2, 1; mov.u32 %r16, 0; mov.u32 %r20, 0;
        ROUND: and.b32 %r17, %r16, 1; shl.b32 %r17, %r17, 2; add.u32 %r18, %r12, %r17;
        @%p0 st.shared.u32 [%r18], %r15;
        barrier.cluster.arrive; add.u32 %r20, %r20, %r16; barrier.cluster.wait;
        add.u32 %r19, %r14, %r17; ld.shared::cluster.u32 %r21, [%r19]; add.u32 %r15, %r15, %r21;
        add.u32 %r16, %r16, 1; setp.lt.u32 %p1, %r16, 10; @%p1 bra ROUND;
        add.u32 %r15, %r15, %r20; st.global.u32 [%rd21], %r15;
        """
        + MEET
    )
    out, _ = bench(body, np.zeros((8, 64), np.uint32), ZEROS, grid=8, block=64, cluster=4)
    value = np.arange(1, 9).reshape(2, 4)
    for _ in range(10):
        value = value + np.roll(value, -1, 1)
    assert (out == value.reshape(8, 1) + 45).all()


def test_threads_that_have_exited_are_not_waited_for(bench):  # noqa: F811
    body = (
        THREAD
        + "setp.ge.u32 %p0, %r0, 40; @%p0 exit; barrier.cluster.arrive.relaxed; barrier.cluster.wait; st.global.u32 [%rd21], 1;"
    )
    out, _ = bench(body, np.zeros((4, 64), np.uint32), ZEROS, grid=4, block=64, cluster=2)
    assert (out[:, :40] == 1).all() and (out[:, 40:] == 0).all()


def test_a_cta_that_does_not_arrive_is_a_deadlock():
    body = (
        THREAD
        + RANK
        + "setp.eq.u32 %p0, %r10, 1; @%p0 bra LOST; barrier.cluster.arrive; barrier.cluster.wait; bra OUT;"
    )
    body += ".shared .align 8 .b64 bar; LOST: mbarrier.init.shared.b64 [bar], 1;"
    body += "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra WAIT; OUT:"
    with pytest.raises(DeadlockError) as e:
        Run(kernel(body))(ZEROS, ZEROS, grid=2, cluster=2)
    assert "at barrier.cluster with 32 of 64 threads of the cluster there" in str(e.value)
    assert "waits for phase 0" in str(e.value) and "of CTA (1, 0, 0)" in str(e.value)


def test_arriving_twice_is_named():
    with pytest.raises(TrapError, match=r"thread \(0, 0, 0\) of CTA \(0, 0, 0\) arrives twice"):
        Run(kernel("barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;"))(
            ZEROS, ZEROS, grid=2, cluster=2
        )


# -- remote mbarriers, st.async, red.async -----------------------------------------------------------------------------

BARRIER = """
    .shared .align 8 .b64 bar; .shared .align 16 .b32 box[512]; setp.eq.u32 %p0, %r0, 0; mov.u32 %r12, bar; mov.u32 %r13, box;
    @%p0 mbarrier.init.shared::cta.b64 [%r12], {count};
    @%p0 fence.mbarrier_init.release.cluster;
    {setup}
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    add.u32 %r14, %r10, 1; rem.u32 %r14, %r14, %r11;
    mapa.shared::cluster.u32 %r15, %r12, %r14; mapa.shared::cluster.u32 %r16, %r13, %r14;
"""
WAIT = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r12], 0; @!%p1 bra WAIT;\n"


@pytest.mark.parametrize(
    ("arrive", "count"),
    [
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r15];", 64),
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r15], 2;", 128),
        ("mapa.u64 %rd11, %rd10, %r14; mbarrier.arrive.release.cluster.b64 _, [%rd11];", 64),
        ("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r15], 4;" + "{tx}", 64),
        ("@%p2 mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%r15];", 32),
    ],
)
def test_remote_arrivals(bench, arrive, count):  # noqa: F811
    """Threads of the neighbour arrive at an mbarrier of this CTA; what they stored before is visible."""
    arrive = arrive.replace("{tx}", "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r15], 4;")
    body = (
        THREAD
        + RANK
        + BARRIER.format(count=count, setup="mov.u64 %rd10, bar; cvta.shared.u64 %rd10, %rd10;")
        + """
        and.b32 %r17, %r0, 1; setp.eq.u32 %p2, %r17, 0;
        shl.b32 %r18, %r0, 2; add.u32 %r16, %r16, %r18; st.shared::cluster.u32 [%r16], %r3;
        """
        + ("bar.sync 0;" if "@%p2" in arrive else "")
        + arrive
        + WAIT
        + "add.u32 %r18, %r18, %r13; ld.shared.u32 %r19, [%r18]; st.global.u32 [%rd21], %r19;"
        + MEET
    )
    out, _ = bench(body, np.zeros((6, 64), np.uint32), ZEROS, grid=6, block=64, cluster=3)
    own = np.arange(6 * 64, dtype=np.uint32).reshape(2, 3, 64)
    assert (out.reshape(2, 3, 64) == np.roll(own, 1, 1)).all()


STORES = [("b32", 1), ("u64", 1), ("b32", 2), ("s32", 4), ("u64", 2), ("f32", 4)]


def async_store(t: str, n: int, wait: str = WAIT, generic: bool = False) -> str:
    size = int(t[1:]) // 8
    register = "%rd3{}" if size == 8 else "%r3{}"
    names = [register.format(k) for k in range(n)]
    fill = "".join(f"mad.lo.u{8 * size} {name}, {register.format(9)}, {n}, {k};" for k, name in enumerate(names))
    values = names[0] if n == 1 else "{" + ", ".join(names) + "}"
    vec = "" if n == 1 else f".v{n}"
    move = [register.format(k + 4) for k in range(n)]
    loaded = move[0] if n == 1 else "{" + ", ".join(move) + "}"
    fill = fill.replace(".f32", ".u32")
    store = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vec}.{t} [%r16], {{}}, [%r15];"
    if t == "f32":
        fill += "".join(f"mov.b32 %f{k}, {name};" for k, name in enumerate(names))
        values = "{" + ", ".join(f"%f{k}" for k in range(n)) + "}"
    bits = f"b{8 * size}"
    return (
        THREAD
        + RANK
        + BARRIER.format(count=1, setup=f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r12], {64 * size * n};")
        + f"""
        mul.lo.u32 %r18, %r0, {size * n}; add.u32 %r16, %r16, %r18; mov.u32 %r39, %r3; cvt.u64.u32 %rd39, %r3;
        {fill} {store.format(values)}
        {wait}
        add.u32 %r18, %r18, %r13; ld.shared{vec}.{bits} {loaded}, [%r18];
        mul.wide.u32 %rd20, %r3, {size * n}; add.u64 %rd20, %rd0, %rd20; st.global{vec}.{bits} [%rd20], {loaded};
        """
        + MEET
    )


@pytest.mark.parametrize(("t", "n"), STORES)
def test_asynchronous_stores(bench, t, n):  # noqa: F811
    dtype = np.uint64 if t.endswith("64") else np.uint32
    out, _ = bench(async_store(t, n), np.zeros((4, 64, n), dtype), ZEROS, grid=4, block=64, cluster=2)
    own = np.arange(4 * 64 * n, dtype=dtype).reshape(2, 2, 64, n)
    assert (out.reshape(2, 2, 64, n) == np.roll(own, 1, 1)).all()


def test_an_asynchronous_store_that_is_not_waited_for_shows():
    """The cluster barrier at the end does not complete it, so that the receiver may exit before."""
    run = Run(kernel(async_store("b32", 4, wait="")))
    with pytest.raises(RaceError, match="st.async.*access-after-exit"):
        run(np.zeros((4, 64, 4), np.uint32), ZEROS, grid=4, block=64, cluster=2, completion="latest-legal")


def async_reduction(op: str, t: str) -> str:
    size = int(t[1:]) // 8
    r, address = ("%rd3{}", "%r18") if size == 8 else ("%r3{}", "%r18")
    kind = f"b{8 * size}"
    return (
        THREAD
        + RANK
        + BARRIER.format(
            count=1,
            setup=f"""
            mul.lo.u32 %r18, %r0, {size}; add.u32 %r18, %r18, %r13; mul.wide.u32 %rd20, %r3, {size};
            add.u64 %rd21, %rd0, %rd20; add.u64 %rd22, %rd1, %rd20;
            ld.global.{kind} {r.format(0)}, [%rd21]; st.shared.{kind} [%r18], {r.format(0)};
            ld.global.{kind} {r.format(1)}, [%rd22];
            @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r12], {64 * size};
            """,
        )
        + f"""
        shr.u32 %r17, %r0, 1; mul.lo.u32 %r17, %r17, {size}; add.u32 %r16, %r16, %r17;
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{t} [%r16], {r.format(1)}, [%r15];
        {WAIT}
        ld.shared.{kind} {r.format(0)}, [{address}]; st.global.{kind} [%rd21], {r.format(0)};
        """
        + MEET
    )


REDUCTIONS = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("add", "s64"),
    ("min", "u32"),
    ("min", "s32"),
    ("max", "u32"),
    ("max", "s32"),
]
REDUCTIONS += [(op, "b32") for op in ("and", "or", "xor")]


@pytest.mark.parametrize(("op", "t"), REDUCTIONS)
def test_asynchronous_reductions(bench, op, t):  # noqa: F811
    """Two threads of the neighbour reduce into each element."""
    dtype = {"u32": np.uint32, "b32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}[t]
    old, value = (RNG.integers(0, 2**63, (4, 64), np.uint64).astype(dtype) for _ in range(2))
    out, _ = bench(async_reduction(op, t), old, value, grid=4, block=64, cluster=2)
    function = {"min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    f = function.get(op, np.add)
    theirs = value.reshape(2, 2, 64)[:, ::-1].reshape(4, 32, 2)
    expected = old.copy()
    expected[:, :32] = f(f(old[:, :32], theirs[..., 0]), theirs[..., 1])
    assert (out == expected).all()


@pytest.mark.parametrize("op", ["inc", "dec"])
def test_asynchronous_increments(bench, op):  # noqa: F811
    old, bound = RNG.integers(0, 9, (4, 64)).astype(np.uint32), np.full((4, 64), 6, np.uint32)
    out, _ = bench(async_reduction(op, "u32"), old, bound, grid=4, block=64, cluster=2)
    expected = old.astype(np.int64)
    for _ in range(2):
        v = expected[:, :32]
        step = np.where(v >= 6, 0, v + 1) if op == "inc" else np.where((v == 0) | (v > 6), 6, v - 1)
        expected[:, :32] = step
    assert (out == expected).all()


@pytest.mark.parametrize(
    ("body", "cluster", "message"),
    [
        (async_store("b32", 1), 1, "the cluster has one CTA"),
        (
            async_store("b32", 1).replace("[%r15];", "[%r12];"),
            2,
            "the destination and the mbarrier are in different CTAs",
        ),
        (
            async_reduction("add", "u32").replace("add.u32 %r14, %r10, 1;", "add.u32 %r14, %r10, 0;"),
            2,
            "in the executing CTA",
        ),
    ],
)
@pytest.mark.parametrize("completion", MODES)
def test_mistakes(body, cluster, message, completion):
    zeros = np.zeros((4, 64), np.uint32)
    with pytest.raises(TrapError, match=rf"test.ptx:\d+ (st|red).async.*thread \(0, 0, 0\).*{message}"):
        Run(kernel(body))(zeros, zeros, grid=4, block=64, cluster=cluster, completion=completion)


def test_release_stores_and_additions_of_sm_100():
    body = THREAD + "add.u32 %r4, %r0, 5; st.async.release.gpu.global.u32 [%rd21], %r4;"
    body += "red.async.release.gpu.add.u32 [%rd21], %r0; red.async.mmio.release.sys.global.add.u32 [%rd1], %r0;"
    run = Run(kernel(body, target="sm_100a"), target="sm_100a")
    out, total = run(np.zeros(32, np.uint32), np.ones(1, np.uint32))
    assert (out == 2 * np.arange(32) + 5).all() and total == 1 + 31 * 16
    with pytest.raises(UnsupportedError, match="sm_100"):
        Run(kernel(body))(ZEROS, ZEROS)


# -- hints of warp-specialised kernels ---------------------------------------------------------------------------------


def test_setmaxnreg_is_checked():
    Run(kernel("setmaxnreg.inc.sync.aligned.u32 232; setmaxnreg.dec.sync.aligned.u32 24;"))(ZEROS, ZEROS, block=128)
    for count in (16, 260, 28, 264):
        with pytest.raises(UnsupportedError, match="multiple of 8 from 24 to 256"):
            Run(kernel(f"setmaxnreg.inc.sync.aligned.u32 {count};"))(ZEROS, ZEROS, block=128)


def test_fences_do_nothing(bench):  # noqa: F811
    fences = [
        "fence.proxy.async", "fence.proxy.async.global", "fence.proxy.async.shared::cta", "fence.proxy.async.shared::cluster",
        "fence.proxy.alias", "membar.proxy.alias", "fence.mbarrier_init.release.cluster", "fence.acq_rel.cluster",
        "fence.acquire.sync_restrict::shared::cluster.cluster", "fence.release.sync_restrict::shared::cta.cluster",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
        "fence.proxy.tensormap::generic.release.gpu",
    ]  # fmt: skip
    out, _ = bench(THREAD + "; ".join(fences) + "; st.global.u32 [%rd21], %r0;", np.zeros(32, np.uint32), ZEROS)
    assert (out == np.arange(32)).all()
