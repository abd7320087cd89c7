"""Bulk copies, bulk reductions and their completion by mbarriers and groups."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from either import bench  # noqa: F401  a fixture
from programs import THREAD, Run, kernel

from ptxkit.errors import ArithmeticTrap, DeadlockError, MemoryFault, RaceError, TrapError, UnsupportedError

POISON = 0xCBCBCBCB
RNG = np.random.default_rng(5)

# one CTA of 128 threads copies `bytes` of its own part of the first array to shared memory, all threads copy them on
SHARED = ".shared .align 8 .b64 bar; .shared .align 128 .b8 buf[8192];\n"
INIT = """
    setp.eq.u32 %p0, %r0, 0; mov.u32 %r10, bar; mov.u32 %r11, buf;
    @%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
WAIT = """
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], {parity}; @!%p1 bra WAIT;
"""


def load(size: int, wait: str, to: str = "shared::cluster", hint: str = "") -> str:
    """Each CTA loads ``size`` bytes of the first array and stores them reversed, by words, to the second."""
    policy = "createpolicy.fractional.L2::evict_first.b64 %rd12, 1.0;" if hint else ""
    return (
        THREAD
        + SHARED
        + INIT
        + policy
        + f"""
    mul.wide.u32 %rd10, %r2, {size}; add.u64 %rd11, %rd0, %rd10; add.u64 %rd13, %rd1, %rd10;
    @!%p0 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {size};
    cp.async.bulk.{to}.global.mbarrier::complete_tx::bytes{hint} [%r11], [%rd11], {size}, [%r10]{", %rd12" if hint else ""};
    ISSUED:
    {wait}
    mov.u32 %r12, %r0;
    NEXT: setp.ge.u32 %p2, %r12, {size // 4}; @%p2 bra DONE;
    shl.b32 %r13, %r12, 2; add.u32 %r14, %r11, %r13; ld.shared.b32 %r15, [%r14];
    sub.u32 %r16, {size - 4}, %r13; cvt.u64.u32 %rd14, %r16; add.u64 %rd14, %rd13, %rd14; st.global.b32 [%rd14], %r15;
    add.u32 %r12, %r12, %r1; bra NEXT;
    DONE:
    """
    )


@pytest.mark.parametrize("to", ["shared::cluster", "shared::cta"])
@pytest.mark.parametrize("size", [16, 48, 1024, 8192])
def test_load(bench, size, to):  # noqa: F811
    source = RNG.integers(0, 2**32, 5 * size // 4, np.uint32)
    hint = ".L2::cache_hint" if size == 48 else ""
    _, out = bench(load(size, WAIT.format(parity=0), to, hint), source, np.zeros_like(source), grid=5, block=128)
    assert (out.reshape(5, -1) == source.reshape(5, -1)[:, ::-1]).all()


@pytest.mark.parametrize(
    "wait",
    [
        "",
        "bar.sync 0;",
        "@!%p0 bra SKIP;" + WAIT.format(parity=0) + "SKIP:",  # one thread waits, without a barrier for the others
    ],
)
def test_a_missing_wait_shows(wait):
    source = np.arange(512, dtype=np.uint32)
    program = Run(kernel(load(2048, wait)))
    _, out = program(source, np.zeros_like(source), block=128, completion="latest-legal")
    # the warp of the waiting thread may be late
    wrong = out[np.arange(512)[::-1] % 128 >= 32] if "SKIP" in wait else out
    assert (wrong == POISON).all()
    _, out = program(source, np.zeros_like(source), block=128, completion="eager")
    assert (out == source[::-1]).all()


def test_a_wait_for_the_wrong_phase_shows():
    """The phase before the first is always complete. If the copy completes earlier, the wait is for a phase that never
    completes."""
    source = np.arange(512, dtype=np.uint32)
    program = Run(kernel(load(2048, WAIT.format(parity=1))))
    _, out = program(source, np.zeros_like(source), block=128, completion="latest-legal")
    assert (out == POISON).all()
    with pytest.raises(DeadlockError, match="waits for phase 1 "):
        program(source, np.zeros_like(source), block=128, completion="eager")


def test_the_wait_of_one_thread_and_a_barrier_serve_all(bench):  # noqa: F811
    source = RNG.integers(0, 2**32, 512, np.uint32)
    wait = "@!%p0 bra SKIP;" + WAIT.format(parity=0) + "SKIP: bar.sync 0;"
    _, out = bench(load(2048, wait), source, np.zeros_like(source), block=128)
    assert (out == source[::-1]).all()


# successive phases of one mbarrier, into two halves of the buffer
RING = (
    THREAD
    + SHARED
    + INIT
    + """
    mov.u32 %r20, 0; mov.u32 %r21, 0; mov.u32 %r25, 0; mov.u64 %rd10, %rd0;
    ROUND:
    shl.b32 %r22, %r20, 9; add.u32 %r22, %r11, %r22;
    @!%p0 bra ISSUED;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r22], [%rd10], 512, [%r10];
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 512;
    ISSUED:
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], %r20, 1000; @!%p1 bra WAIT;
    shl.b32 %r23, %r0, 2; add.u32 %r23, %r22, %r23; ld.shared.b32 %r24, [%r23]; add.u32 %r21, %r21, %r24;
    bar.sync 0;
    add.u64 %rd10, %rd10, 512; xor.b32 %r20, %r20, 1; add.u32 %r25, %r25, 1; setp.lt.u32 %p3, %r25, 9; @%p3 bra ROUND;
    st.global.b32 [%rd22], %r21;
    """
)


def test_phases_follow_each_other(bench):  # noqa: F811
    """The copy is issued before its expect_tx: the tx-count may be negative."""
    source = RNG.integers(0, 2**32, (9, 128), np.uint32)
    _, out = bench(RING, source, np.zeros(128, np.uint32), block=128)
    assert (out == source.sum(0, dtype=np.uint32)).all()


def store(after: str) -> str:
    """128 threads write the first array to shared memory; thread 0 copies it to the second."""
    return (
        THREAD
        + SHARED
        + """
    setp.eq.u32 %p0, %r0, 0; mov.u32 %r11, buf; shl.b32 %r12, %r0, 2; add.u32 %r12, %r11, %r12;
    ld.global.b32 %r13, [%rd21]; st.shared.b32 [%r12], %r13;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mul.wide.u32 %rd10, %r2, 512; add.u64 %rd11, %rd1, %rd10;
    @!%p0 bra STORED;
    cp.async.bulk.global.shared::cta.bulk_group [%rd11], [%r11], 512;
    cp.async.bulk.commit_group;
    """
        + after
        + "STORED:"
    )


@pytest.mark.parametrize("read", ["", ".read"])
def test_store(bench, read):  # noqa: F811
    source = RNG.integers(0, 2**32, 3 * 128, np.uint32)
    # once the source is read it may be overwritten
    after = f"cp.async.bulk.wait_group{read} 0; st.shared.b32 [%r11], -1; st.shared.b32 [%r11+508], -1;"
    _, out = bench(store(after), source, np.zeros_like(source), grid=3, block=128)
    assert (out == source).all()


def test_a_store_whose_source_is_overwritten_or_lost_shows():
    source = np.arange(128, dtype=np.uint32)
    early = Run(kernel(store("st.shared.b32 [%r11], 77; cp.async.bulk.wait_group.read 0;")))
    _, out = early(source, np.zeros_like(source), block=128, completion="latest-legal")
    assert out[0] == 77 and (out[1:] == source[1:]).all()
    one_may_be_pending = Run(kernel(store("cp.async.bulk.wait_group.read 1; st.shared.b32 [%r11], 77;")))
    with pytest.raises(RaceError, match=r"cp.async.bulk.global.*: the CTA exits before .* thread \(0, 0, 0\) of CTA"):
        one_may_be_pending(source, np.zeros_like(source), block=128, completion="latest-legal")
    _, out = one_may_be_pending(source, np.zeros_like(source), block=128, completion="eager")
    assert (out == source).all()


@pytest.mark.parametrize("fence", ["", "fence.proxy.async.global;", "fence.acq_rel.cta;"])
def test_a_missing_proxy_fence_is_named(fence):
    source = np.arange(128, dtype=np.uint32)
    body = store("cp.async.bulk.wait_group 0;").replace("fence.proxy.async.shared::cta;", fence)
    message = r"cp.async.bulk.*thread \(0.* reads 512 bytes at 0x480: test.ptx:\d+ st.shared.* no fence.proxy.async after it"
    with pytest.raises(MemoryFault, match=message):
        Run(kernel(body))(source, np.zeros_like(source), block=128, completion="latest-legal")
    _, out = Run(kernel(body))(source, np.zeros_like(source), block=128, completion="eager")
    assert (out == source).all()


@pytest.mark.parametrize("fence", ["", ".shared::cta", ".shared::cluster"])
@pytest.mark.parametrize("behind", [False, True])
def test_one_thread_may_fence_for_all_after_a_barrier(bench, fence, behind):  # noqa: F811
    source = RNG.integers(0, 2**32, 3 * 128, np.uint32)
    body = store("cp.async.bulk.wait_group 0;")
    if behind:
        body = body.replace("fence.proxy.async.shared::cta;", "").replace("bar.sync 0;", "bar.sync 0; FENCE")
        body = body.replace("FENCE", f"@%p0 fence.proxy.async{fence};")
    else:
        body = body.replace("fence.proxy.async.shared::cta;", f"fence.proxy.async{fence};")
    _, out = bench(body, source, np.zeros_like(source), grid=3, block=128)
    assert (out == source).all()


def test_what_a_bulk_copy_brought_needs_no_fence(bench):  # noqa: F811
    """From global to shared memory and back, over memory that threads had written."""
    body = (
        THREAD
        + SHARED
        + INIT
        + """
        mov.u64 %rd11, %rd0; shl.b32 %r12, %r0, 2; add.u32 %r12, %r11, %r12; st.shared.b32 [%r12], 1;
        {fence} bar.sync 0; @!%p0 bra DONE;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 512;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r11], [%rd0], 512, [%r10];
        """
        + WAIT.format(parity=0)
        + """
        cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r11], 512; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;
        DONE:
        """
    ).replace("{fence}", "fence.proxy.async;")
    source = RNG.integers(0, 2**32, 128, np.uint32)
    _, out = bench(body, source, np.zeros_like(source), block=128)
    assert (out == source).all()


def test_some_bytes_of_sixteen():
    body = store("cp.async.bulk.wait_group 0;").replace(
        ".bulk_group [%rd11], [%r11], 512;", ".bulk_group.cp_mask [%rd11], [%r11], 512, 0x8001;"
    )
    source = np.arange(512, dtype=np.uint8)
    for mode in ("eager", "latest-legal"):
        _, out = Run(kernel(body, target="sm_100a"), target="sm_100a")(
            source.view(np.uint32), np.zeros(128, np.uint32), block=128, completion=mode
        )
        kept = np.isin(np.arange(512) % 16, (0, 15))
        expected = np.where(
            kept, source, 0 if mode == "eager" else 0xCB
        )  # latest-legal: all of the destination is poisoned
        assert (out.view(np.uint8) == expected).all()
    with pytest.raises(UnsupportedError, match="sm_100"):
        Run(kernel(body))(source.view(np.uint32), np.zeros(128, np.uint32), block=128)


def test_zeros_in_bulk():
    body = THREAD + ".shared .align 16 .b32 buf[64]; mov.u32 %r4, buf; shl.b32 %r5, %r0, 3; add.u32 %r5, %r4, %r5;"
    body += "st.shared.v2.u32 [%r5], {7, 7}; bar.sync 0; setp.eq.u32 %p0, %r0, 0;"
    body += "@%p0 st.bulk.weak.shared::cta [%r4+8], 240, 0;"
    body += "bar.sync 0; ld.shared.v2.u32 {%r6, %r7}, [%r5]; add.u32 %r6, %r6, %r7; st.global.u32 [%rd21], %r6;"
    for mode in ("eager", "latest-legal"):
        out, _ = Run(kernel(body, target="sm_100a"), target="sm_100a")(
            np.zeros(32, np.uint32), np.zeros(1), completion=mode
        )
        assert (out == np.where(np.isin(np.arange(32), (0, 31)), 14, 0)).all()
    with pytest.raises(UnsupportedError, match="sm_100"):
        Run(kernel(body))(np.zeros(1), np.zeros(1))


REDUCTIONS = [
    *[("add", t) for t in "u32 s32 u64 f32 f64 f16 bf16".split()],
    *[(op, t) for op in ("min", "max") for t in "u32 s32 u64 s64 f16 bf16".split()],
    *[(op, "u32") for op in ("inc", "dec")],
    *[(op, t) for op in ("and", "or", "xor") for t in ("b32", "b64")],
]
DTYPES = {
    "u32": "u4", "s32": "i4", "b32": "u4", "u64": "u8", "s64": "i8", "b64": "u8",
    "f16": "f2", "f32": "f4", "f64": "f8", "bf16": ml_dtypes.bfloat16,
}  # fmt: skip


def reduced(op: str, old: np.ndarray, value: np.ndarray) -> np.ndarray:
    match op:
        case "add":
            return old + value
        case "inc":
            return np.where(old >= value, 0, old + 1).astype(old.dtype)
        case "dec":
            return np.where((old == 0) | (old > value), value, old - 1).astype(old.dtype)
        case "and" | "or" | "xor":
            return getattr(np, f"bitwise_{op}")(old, value)
        case _:
            return (np.minimum if op == "min" else np.maximum)(old, value)


@pytest.mark.parametrize(("op", "t"), REDUCTIONS)
def test_reduce_to_global(bench, op, t):  # noqa: F811
    dtype = np.dtype(DTYPES[t])
    rng = np.random.default_rng(7)
    if dtype.kind in "ui":
        old, value = (rng.integers(0, 2**63, 512 // dtype.itemsize, np.uint64).astype(dtype) for _ in range(2))
        if op in ("inc", "dec"):
            old, value = old % 8, value % 8
    else:
        old, value = (rng.standard_normal(512 // dtype.itemsize).astype(dtype) for _ in range(2))
    noftz = ".noftz" if op == "add" and t in ("f16", "bf16") else ""
    body = store("cp.async.bulk.wait_group 0;").replace(
        "cp.async.bulk.global.shared::cta.bulk_group",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}{noftz}.{t}",
    )
    _, out = bench(body, value.view(np.uint32), old.view(np.uint32), block=128)
    expected = reduced(op, old, value)
    assert (out == expected.view(np.uint32)).all()


def test_reductions_of_f32_keep_subnormal_numbers(bench):  # noqa: F811
    tiny = np.float32(1e-39)
    value = np.tile(np.array([tiny, -tiny, 1e-38, -1.2e-38], np.float32), 32)
    old = np.tile(np.array([0, 0, tiny, 1.3e-38], np.float32), 32)
    body = store("cp.async.bulk.wait_group 0;").replace(
        "cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
    )
    _, out = bench(body, value.view(np.uint32), old.view(np.uint32), block=128)
    assert (out.view(np.float32) == old + value).all()


def test_every_cta_reduces_into_one_place(bench):  # noqa: F811
    body = store("cp.async.bulk.wait_group 0;").replace(
        "cp.async.bulk.global.shared::cta.bulk_group [%rd11]",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1]",
    )
    source = RNG.integers(0, 2**32, (40, 128), np.uint32)
    _, out = bench(body, source, np.zeros(128, np.uint32), grid=40, block=128)
    assert (out == source.sum(0, dtype=np.uint32)).all()


def test_prefetch_changes_nothing(bench):  # noqa: F811
    body = THREAD + "cp.async.bulk.prefetch.L2.global [%rd0], 128; st.global.b32 [%rd22], %r0;"
    source = np.ones(32, np.uint32)
    same, out = bench(body, source, np.zeros(32, np.uint32))
    assert (same == 1).all() and (out == np.arange(32)).all()


# -- clusters ----------------------------------------------------------------------------------------------------------

TO_NEIGHBOUR = (
    THREAD
    + SHARED
    + INIT
    + """
    ld.global.b32 %r12, [%rd21]; shl.b32 %r13, %r0, 2; add.u32 %r13, %r11, %r13; st.shared.b32 [%r13], %r12;
    mov.u32 %r26, 0; st.shared.b32 [%r13+1024], %r0;
    fence.proxy.async.shared::cta;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 512;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r14, %cluster_ctarank; mov.u32 %r15, %cluster_nctarank; add.u32 %r14, %r14, 1; rem.u32 %r14, %r14, %r15;
    mapa.shared::cluster.u32 %r16, %r11, %r14; mapa.shared::cluster.u32 %r17, %r10, %r14;
    add.u32 %r16, %r16, 1024;
    @%p0 {copy} [%r16], [%r11], 512, [%r17];
    {wait}
    ld.shared.b32 %r18, [%r13+1024]; st.global.b32 [%rd22], %r18;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
)
COPY_TO_CLUSTER = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


def test_copy_to_the_next_cta_of_the_cluster(bench):  # noqa: F811
    source = RNG.integers(0, 2**32, (8, 128), np.uint32)
    body = TO_NEIGHBOUR.format(copy=COPY_TO_CLUSTER, wait=WAIT.format(parity=0))
    _, out = bench(body, source, np.zeros_like(source), grid=8, block=128, cluster=4)
    assert (out.reshape(2, 4, 128) == np.roll(source.reshape(2, 4, 128), 1, 1)).all()


def test_a_copy_to_the_cluster_without_a_wait_is_an_access_after_exit():
    body = TO_NEIGHBOUR.format(copy=COPY_TO_CLUSTER, wait="")
    with pytest.raises(RaceError, match="access-after-exit"):
        Run(kernel(body))(
            np.zeros(512, np.uint32), np.zeros(512, np.uint32), grid=4, block=128, cluster=4, completion="latest-legal"
        )


@pytest.mark.parametrize(
    ("op", "t"),
    [
        *[("add", t) for t in ("u32", "s32", "u64")],
        *[(op, t) for op in ("min", "max") for t in ("u32", "s32")],
        *[(op, "u32") for op in ("inc", "dec")],
        *[(op, "b32") for op in ("and", "or", "xor")],
    ],
)
def test_reduce_into_the_next_cta(bench, op, t):  # noqa: F811
    dtype = np.dtype(DTYPES[t])
    source = RNG.integers(0, 2**32, (4, 128), np.uint32)
    if op in ("inc", "dec"):
        source %= 200
    copy = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{t}"
    body = TO_NEIGHBOUR.format(copy=copy, wait=WAIT.format(parity=0))
    _, out = bench(body, source, np.zeros_like(source), grid=4, block=128, cluster=2)
    old = np.broadcast_to(np.arange(128, dtype=np.uint32), source.shape).copy()
    value = np.roll(source.reshape(2, 2, 128), 1, 1).reshape(4, 128)
    assert (out.view(dtype) == reduced(op, old.view(dtype), value.view(dtype))).all()


MULTICAST = (
    THREAD
    + SHARED
    + INIT
    + """
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], %r19;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r14, %cluster_ctarank; mov.u32 %r15, %clusterid.x;
    mul.wide.u32 %rd10, %r15, 512; add.u64 %rd11, %rd0, %rd10;
    setp.eq.u32 %p3, %r14, 1; and.pred %p3, %p3, %p0; mov.b16 %h0, {mask};
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r11], [%rd11], 512, [%r10], %h0;
    mov.u32 %r18, -1;
    shr.u32 %r20, {mask}, %r14; and.b32 %r20, %r20, 1; setp.eq.u32 %p4, %r20, 0; @%p4 bra OUT;
    {wait}
    shl.b32 %r13, %r0, 2; add.u32 %r13, %r11, %r13; ld.shared.b32 %r18, [%r13];
    OUT: st.global.b32 [%rd22], %r18;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
).replace("@%p0 mbarrier.arrive.expect_tx", "mov.u32 %r19, 512; @%p0 mbarrier.arrive.expect_tx")


def test_multicast(bench):  # noqa: F811
    source = RNG.integers(0, 2**32, (3, 128), np.uint32)
    body = MULTICAST.format(mask=0b1101, wait=WAIT.format(parity=0))
    _, out = bench(body, source, np.zeros(12 * 128, np.uint32), grid=12, block=128, cluster=4)
    out = out.reshape(3, 4, 128)
    assert (out[:, 1] == 0xFFFFFFFF).all()
    assert (out[:, [0, 2, 3]] == source[:, None]).all()


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_bytes_that_never_come_are_a_deadlock():
    body = load(1024, WAIT.format(parity=0)).replace(
        "expect_tx.shared::cta.b64 _, [%r10], 1024", "expect_tx.shared::cta.b64 _, [%r10], 2048"
    )
    for mode in ("eager", "latest-legal"):
        with pytest.raises(
            DeadlockError, match=r"try_wait.*phase 0 \(parity 0\).*\(bar\).* 0 of 1 arrivals and 1,024 bytes"
        ):
            Run(kernel(body))(np.zeros(256, np.uint32), np.zeros(256, np.uint32), block=128, completion=mode)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("[%rd11], 1024, [%r10]", "[%rd11], 1032, [%r10]", MemoryFault, "1032 bytes; .* multiple of 16"),
        ("[%r11], [%rd11], 1024", "[%r11+8], [%rd11], 1024", MemoryFault, "writes 1,024 bytes .* misaligned"),
        ("[%r11], [%rd11], 1024", "[%r11], [%rd11+4], 1024", MemoryFault, "reads 1,024 bytes .* misaligned"),
        ("[%r11], [%rd11], 1024", "[%r11], [%rd11+16], 1024", MemoryFault, "16 bytes past the end of 'arg0'"),
        (
            "[%r11], [%rd11], 1024",
            "[%r11+7680], [%rd11], 1024",
            MemoryFault,
            "outside the .* bytes of shared memory of the CTA",
        ),
        ("[%rd11], 1024, [%r10]", "[%rd11], 1024, [%r10+4]", MemoryFault, "misaligned"),
        ("[%rd11], 1024, [%r10]", "[%rd11], 1024, [%r11]", TrapError, "is no mbarrier"),
    ],
)
def test_mistakes_name_the_instruction_and_the_thread(old, new, error, message):
    body = load(1024, WAIT.format(parity=0))
    assert old in body
    with pytest.raises(error, match=rf"test.ptx:\d+ cp.async.bulk.*thread \(0, 0, 0\).*{message}") as e:
        Run(kernel(body.replace(old, new)))(np.zeros(256, np.uint32), np.zeros(256, np.uint32), block=128)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("offset", "misaligned"), [(0, 0), (16, 3 * 512), (64, 3 * 512), (128, 0)])
def test_bytes_to_poorly_aligned_shared_memory_are_counted(offset, misaligned):
    source = RNG.integers(0, 2**32, 3 * 128, np.uint32)
    body = load(512, WAIT.format(parity=0))
    old = "@!%p0 bra ISSUED;"
    assert old in body
    program = Run(kernel(body.replace(old, f"add.u32 %r11, %r11, {offset}; {old}")))
    _, out = program(source, np.zeros_like(source), grid=3, block=128)
    np.testing.assert_array_equal(out.reshape(3, -1), source.reshape(3, -1)[:, ::-1])
    assert program.result.counters.async_misaligned_bytes == misaligned


def test_bytes_moved_are_counted():
    source = np.zeros(5 * 256, np.uint32)
    program = Run(kernel(load(1024, WAIT.format(parity=0))))
    program(source, source, grid=5, block=128)
    counters = program.result.counters
    assert counters.async_bytes == {"global_to_shared": 5 * 1024} and counters.async_sectors == {
        "global_to_shared": 5 * 32
    }
    assert counters.global_bytes == 2 * 5 * 1024
    program = Run(kernel(store("cp.async.bulk.wait_group 0;")))
    program(source, source, grid=3, block=128)
    counters = program.result.counters
    assert counters.async_bytes == {"shared_to_global": 3 * 512} and counters.async_sectors == {
        "shared_to_global": 3 * 16
    }
    assert counters.by_class["async.copy"] == 9  # copy, commit, wait


def test_a_multicast_reads_once():
    body = MULTICAST.format(mask=0b1101, wait=WAIT.format(parity=0))
    program = Run(kernel(body))
    program(np.zeros(3 * 128, np.uint32), np.zeros(12 * 128, np.uint32), grid=12, block=128, cluster=4)
    assert program.result.counters.async_bytes == {"global_to_shared": 3 * 512}


WARPS = (
    THREAD
    + SHARED
    + """
    mov.u32 %r11, buf; shl.b32 %r12, %r0, 2; add.u32 %r12, %r11, %r12;
    ld.global.b32 %r13, [%rd21]; st.shared.b32 [%r12], %r13;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    """
)


@pytest.mark.parametrize("distinct", [1, 2, 8])
def test_lanes_that_store_the_same_count_once(bench, distinct):  # noqa: F811
    """Every lane copies 16 bytes of its warp's 128; lanes with one destination copy the same."""
    body = f"""
    and.b32 %r14, %r0, {distinct - 1}; shl.b32 %r14, %r14, 4;
    shr.u32 %r15, %r0, 5; shl.b32 %r15, %r15, 7; add.u32 %r14, %r14, %r15;
    add.u32 %r16, %r11, %r14; cvt.u64.u32 %rd10, %r14; add.u64 %rd11, %rd1, %rd10;
    cp.async.bulk.global.shared::cta.bulk_group [%rd11], [%r16], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.b32 [%r12], -1;
    """
    source = RNG.integers(0, 2**32, 128, np.uint32)
    _, out = bench(WARPS + body, source, np.zeros_like(source), block=128)
    warps = out.reshape(4, 32)
    assert (warps[:, : 4 * distinct] == source.reshape(4, 32)[:, : 4 * distinct]).all()
    assert not warps[:, 4 * distinct :].any()
    if bench.device.kind == "emulator":
        assert bench.device.counters.async_bytes == {"shared_to_global": 16 * 4 * distinct}
        assert bench.device.counters.async_sectors == {"shared_to_global": 4 * distinct}


def test_one_lane_may_wait_for_what_its_warp_stored():
    body = """
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r11], 512;
    cp.async.bulk.commit_group; and.b32 %r0, %r0, 31; setp.eq.u32 %p2, %r0, 5;
    @%p2 cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.b32 [%r12], -1;
    """
    source = RNG.integers(0, 2**32, 128, np.uint32)
    run = Run(kernel(WARPS + body))
    _, out = run(source, np.zeros_like(source), block=128, completion="latest-legal")
    assert (out == source).all()


@pytest.mark.parametrize("lanes", [1, 32])
def test_every_lane_that_reduces_counts(bench, lanes):  # noqa: F811
    body = f"""
    setp.lt.u32 %p2, %r0, {lanes};
    @%p2 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r11], 128;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    """
    source = RNG.integers(0, 2**32, 32, np.uint32)
    _, out = bench(WARPS + body, source, np.zeros_like(source))
    assert (out == source * np.uint32(lanes)).all()


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize("t", ["f16.add", "bf16.add", "f32.add", "f64.add"])
def test_traps_report_what_a_reduction_produces_and_not_what_it_is_given(t, completion):
    name = t.partition(".")[0]
    dtype = np.dtype(DTYPES[name])
    most = ml_dtypes.finfo(dtype).max
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add{'.noftz' * (dtype.itemsize == 2)}.{name}"
    body = store("cp.async.bulk.wait_group 0;").replace("cp.async.bulk.global.shared::cta.bulk_group", opcode)

    def launch(old, value, *traps):
        whole = [np.full(512 // dtype.itemsize, v, dtype).view(np.uint32) for v in (value, old)]
        Run(kernel(body))(*whole, block=128, trap=traps, completion=completion)

    launch(1, 2, "nan", "inf")
    launch(np.inf, 2, "inf")
    launch(1, np.nan, "nan", "inf")
    with pytest.raises(ArithmeticTrap, match=r"cp.reduce.*issued by thread \(0, 0, 0\) of CTA .*, computes an infinity"):
        launch(most, most, "inf")
    with pytest.raises(ArithmeticTrap, match="computes a NaN"):
        launch(np.inf, -np.inf, "nan")
