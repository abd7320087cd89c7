"""The race check of shared memory on single kernels; random kernels are in test_race_model.py."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.emulator.racecheck import shadow
from ptxkit.emulator.racecheck.hazards import Hazard
from ptxkit.errors import FaultError, RaceError, UsageError

HEAD = (
    THREAD
    + """
    .shared .align 128 .b8 buf[2048]; .shared .align 8 .b64 bar[2];
    mov.u32 %r10, buf; shl.b32 %r11, %r0, 2; add.u32 %r12, %r10, %r11; sub.u32 %r13, 252, %r11; add.u32 %r13, %r13, %r10;
    mov.u32 %r14, bar; setp.eq.u32 %p0, %r0, 0; shr.u32 %r15, %r0, 5; mov.u32 %r16, %cluster_ctarank;
    """
)
"""%r12 is the thread's word of buf, %r13 that of the thread as far from the end of 64; %r15 the warp."""

INIT = "@%p0 mbarrier.init.shared::cta.b64 [%r14], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r14], 0; @!%p1 bra W;\n"
BULK = (
    "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], 256;"
    "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd0], 256, [%r14];\n"
)
SAVE = (
    "fence.proxy.async; bar.sync 0; @%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 256;"
    "@%p0 cp.async.bulk.commit_group;\n"
)


def hazards(body: str, block: int = 64, racecheck: str = "warps", **options) -> tuple[Hazard, ...]:
    """The races of a kernel with this body, which must be the same in both completion modes."""
    found = []
    for completion in ("eager", "latest-legal"):
        source = np.arange(512, dtype=np.uint32)
        try:
            Run(kernel(HEAD + body))(
                source, np.zeros_like(source), block=block, racecheck=racecheck, completion=completion, **options
            )
            found.append(())
        except RaceError as error:
            found.append(error.hazards)
    assert found[0] == found[1]
    return found[0]


def kinds(body: str, **options) -> list[str]:
    return sorted(h.what for h in hazards(body, **options))


STORE, LOAD = "st.shared.b32 [%r12], %r3;\n", "ld.shared.b32 %r20, [%r13];\n"


# -- words -------------------------------------------------------------------------------------------------------------


def test_a_race_names_both_accesses():
    with pytest.raises(RaceError) as caught:
        Run(kernel(HEAD + STORE + LOAD))(
            np.zeros(128, np.uint32), np.zeros(128, np.uint32), grid=2, block=64, racecheck=True
        )
    (h,) = caught.value.hazards
    assert h.what == "read-after-write" and h.count == 2 * 64
    assert (h.later_thread, h.earlier_thread) == ("thread (0, 0, 0) (warp 0) of CTA (0, 0, 0)", "warp 1 of CTA (0, 0, 0)")
    assert h.address == 0x400 + 252 and "ld.shared.b32" in h.later and "st.shared.b32" in h.earlier
    text = str(caught.value)
    assert "shared memory at 0x4fc (buf+252)" in text and "put __syncthreads() (bar.sync)" in text
    assert caught.value.exit_code == 5 and isinstance(caught.value, FaultError)


def test_no_race_is_reported_without_racecheck():
    Run(kernel(HEAD + STORE + LOAD))(np.zeros(64, np.uint32), np.zeros(64, np.uint32), block=64)


def test_what_was_found_comes_with_the_fault_that_followed():
    with pytest.raises(RaceError, match=r"(?s)read-after-write.*the launch failed: test\.ptx:\d+ trap"):
        Run(kernel(HEAD + STORE + LOAD + "trap;"))(
            np.zeros(64, np.uint32), np.zeros(64, np.uint32), block=64, racecheck=True
        )


@pytest.mark.parametrize(
    ("earlier", "later", "fix"),
    [
        ("cp.async.ca.shared.global [%r12], [%rd21], 4; bar.sync 0;", LOAD, "cp.async.wait_group"),
        (INIT + BULK + "bar.sync 0;", LOAD, "wait for that phase of it (mbarrier.try_wait)"),
        (
            SAVE + "bar.sync 0;",
            STORE,
            "cp.async.bulk.wait_group.read",
        ),
        (MEET + "mapa.shared::cluster.u32 %r21, %r13, 0; st.shared::cluster.b32 [%r21], %r3;", LOAD, "barrier.cluster"),
    ],
)
def test_the_fix_names_what_is_missing(earlier, later, fix):
    cluster = {"grid": 2, "cluster": 2} if "mapa" in earlier else {}
    found = hazards(earlier + later, **cluster)
    assert any(fix in h.fix for h in found)


# -- accesses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (STORE, LOAD, ["read-after-write"]),
        (LOAD, STORE, ["write-after-read"]),
        (STORE, "st.shared.b32 [%r13], %r3;", ["write-after-write"]),
        (LOAD, LOAD, []),
        (STORE, "ld.shared.b32 %r20, [%r12];", []),
        ("st.shared.b32 [%r12], 7;", "st.shared.b32 [%r13], 7;", []),  # the same value, whichever store is last
        ("st.shared.b32 [%r10], %r15;", "", ["write-after-write"]),  # both warps in one instruction
        ("st.shared.b32 [%r10], 7;", "", []),
        (
            "st.shared.v2.b32 [%r10], {%r0, %r0};",
            "ld.shared.b8 %r20, [%r10+7];",
            ["read-after-write", "write-after-write"],
        ),
        ("red.shared.add.u32 [%r10], 1;", "atom.shared.add.u32 %r20, [%r10], 1;", []),
        ("red.shared.add.u32 [%r10], 1;", "ld.shared.b32 %r20, [%r10];", ["read-after-write"]),
        ("red.shared.add.u32 [%r10], 1;", "ld.volatile.shared.b32 %r20, [%r10];", []),
        (STORE, "atom.shared.add.u32 %r20, [%r10], 1;", ["write-after-write"]),
        (STORE, "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r10];", ["read-after-write"]),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r10], {%r0};", "ld.shared.b32 %r20, [%r10];", None),
        ("cp.async.ca.shared.global [%r13], [%rd21], 4; cp.async.wait_all;", "ld.shared.b32 %r20, [%r12];", None),
        ("cvta.shared.u64 %rd30, buf; st.b32 [%rd30], %r15;", "", ["write-after-write"]),
    ],
)
def test_pairs_of_accesses(first, second, expected):
    """Warps race unless there is a barrier between the accesses; None stands for either."""
    found = kinds(first + second)
    assert found == expected if expected is not None else found
    if "%r15" not in first and "%r0, %r0" not in first and "stmatrix" not in first:  # these race without other accesses
        assert kinds(first + "bar.sync 0;" + second) == []


@pytest.mark.parametrize("size", [1, 2])
def test_neighbours_in_a_word_do_not_race(size):
    """Warps that write alternate bytes, or halves of words."""
    index = "and.b32 %r21, %r0, 31; shl.b32 %r21, %r21, 1; add.u32 %r21, %r21, %r15;"
    store = f"{index} mad.lo.u32 %r21, %r21, {size}, %r10; mov.b16 %h1, 3; st.shared.b{8 * size} [%r21], %h1;"
    assert kinds(store) == []
    assert kinds(store + "ld.shared.b32 %r20, [%r12];") == ["read-after-write"]
    assert kinds("ld.shared.b32 %r20, [%r12];" + store) == ["write-after-read"]  # cells are split at that access


@pytest.mark.parametrize(
    ("between", "racing"),
    [
        ("", True),
        ("bar.warp.sync -1;", False),
        ("bar.sync 0;", False),
        ("shfl.sync.idx.b32 %r21, %r0, 0, 31, -1;", True),
        ("setp.lt.u32 %p2, %r0, 16; @%p2 bar.warp.sync 0xffff; @!%p2 bar.warp.sync 0xffff0000;", True),
        ("membar.cta;", True),
    ],
)
def test_races_between_lanes_of_a_warp_are_found_if_requested(between, racing):
    body = STORE + between + "ld.shared.b32 %r20, [%r10];"
    assert hazards(body, block=32) == ()
    found = hazards(body, block=32, racecheck="lanes")
    assert [h.what for h in found] == ["read-after-write"] * racing
    assert all("thread (0, 0, 0) of CTA" in h.earlier_thread and "__syncwarp()" in h.fix for h in found)


def test_records_of_more_than_half_of_the_free_memory_are_refused(monkeypatch):
    body = STORE + "bar.sync 0; ld.shared.b32 %r20, [%r10];"
    monkeypatch.setattr(shadow, "available_bytes", lambda: 1000)
    with pytest.raises(UsageError, match="more than 1/2 of the free memory: take smaller sizes, or --racecheck instead of"):
        hazards(body, block=32, racecheck="lanes")


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("size", [1, 2, 8, 16, 32])
@pytest.mark.parametrize("distance", [1, 4, 7, 8, 15, 16, 31])
def test_lanes_meet_at_a_bar_warp_sync_only_with_those_of_the_same_mask(size, distance, exits):
    """Tiles of ``size`` lanes, each with its own mask in a register, and words of the lane ``distance`` away (XOR)."""
    tile = (1 << size) - 1
    body = (
        ("setp.ge.u32 %p2, %r0, 48; @%p2 ret;" if exits else "")
        + f"and.b32 %r21, %r0, {32 - size}; mov.u32 %r22, {tile:#x}; shl.b32 %r22, %r22, %r21;"
        + f"xor.b32 %r23, %r0, {distance}; shl.b32 %r23, %r23, 2; add.u32 %r23, %r23, %r10;"
        + STORE
        + "bar.warp.sync %r22; ld.shared.b32 %r20, [%r23];"
    )
    assert kinds(body, block=64, racecheck="lanes") == ["read-after-write"] * (distance >= size)


@pytest.mark.parametrize(("size", "racing"), [(16, True), (32, False)])
def test_lanes_of_one_mask_meet_at_different_instructions(size, racing):
    """Even and odd lanes wait at different instructions; each word is read by the lane 31 - i."""
    body = (
        f"and.b32 %r21, %r0, {32 - size}; mov.u32 %r22, {(1 << size) - 1:#x}; shl.b32 %r22, %r22, %r21;"
        "xor.b32 %r23, %r0, 31; shl.b32 %r23, %r23, 2; add.u32 %r23, %r23, %r10;"
        + STORE
        + "and.b32 %r24, %r0, 1; setp.eq.u32 %p2, %r24, 0; @%p2 bra EVEN;"
        "bar.warp.sync %r22; bra JOIN; EVEN: bar.warp.sync %r22; JOIN: ld.shared.b32 %r20, [%r23];"
    )
    assert kinds(body, block=32, racecheck="lanes") == ["read-after-write"] * racing


def test_one_lane_acts_for_its_warp():
    """The lane stores data that the other lanes have written, and lets others overwrite data that they read; both need a
    bar.warp.sync."""
    first = "and.b32 %r21, %r0, 31; setp.eq.u32 %p2, %r21, 0; fence.proxy.async;"
    store = "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r10], 128; @%p2 cp.async.bulk.commit_group;"
    wait = "@%p2 cp.async.bulk.wait_group.read 0;"
    again = "st.shared.b32 [%r12], 5;"
    meet = "bar.warp.sync -1;"
    for missing, expected in ((None, []), (0, ["read-after-write"]), (1, ["write-after-read"])):
        ahead, behind = ("" if missing == 0 else meet), ("" if missing == 1 else meet)
        body = STORE + first + ahead + store + wait + behind + again
        assert kinds(body, block=32, racecheck="lanes") == expected
        assert kinds(body, block=32) == []


def test_values_of_the_racecheck_setting():
    with pytest.raises(UsageError, match="racecheck is False, True, 'warps' or 'lanes', not 'words'"):
        hazards("", racecheck="words")


# -- what puts accesses in order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "between",
    [
        "bar.sync 0;",
        "barrier.sync 3, 64;",
        "bar.red.popc.u32 %r22, 0, %p0;",
        "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
        "fence.acq_rel.cta; barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;",
    ],
)
def test_barriers(between):
    assert kinds(STORE + between + LOAD) == []


@pytest.mark.parametrize(
    "between",
    ["bar.warp.sync -1;", "membar.cta;", "fence.proxy.async;", "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"],
)
def test_what_does_not_put_accesses_in_order(between):
    assert kinds(STORE + between + LOAD) == ["read-after-write"]


def test_arriving_is_not_waiting():
    """Warp 1 arrives and continues, warp 0 waits: only warp 0 may read what the other warp has written."""
    half = "setp.ne.u32 %p2, %r15, {}; @%p2 bra SKIP{}; {} SKIP{}:\n"
    meet = "setp.eq.u32 %p3, %r15, 1; @%p3 bar.arrive 1, 64; @!%p3 bar.sync 1, 64;\n"
    for reader, expected in ((0, []), (1, ["read-after-write"])):
        body = STORE + meet + half.format(reader, 0, LOAD, 0)
        assert kinds(body) == expected


def test_a_fast_warp_may_be_a_barrier_ahead():
    """One barrier per iteration does not order a load before the store of the next iteration."""
    loop = "mov.u32 %r22, 0; AGAIN: " + STORE + "bar.sync 0;" + LOAD + "{} add.u32 %r22, %r22, 1;"
    loop += "add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r22, 3; @%p2 bra AGAIN;"
    assert kinds(loop.format("")) == ["write-after-read"]
    assert kinds(loop.format("bar.sync 0;")) == []


@pytest.mark.parametrize(("init", "expected"), [(INIT, []), (INIT.replace("bar.sync 0;", ""), ["read-after-write"])])
def test_mbarriers_are_initialised_ahead_of_their_use(init, expected):
    found = hazards(init + "@%p0 mbarrier.arrive.shared.b64 %rd30, [%r14];" + WAIT)
    assert [h.what for h in found] == expected
    assert all("mbarrier.init" in h.earlier and "mbarrier.try_wait" in h.later for h in found)


def test_waiting_for_a_bulk_copy():
    assert kinds(INIT + BULK + WAIT + LOAD) == []
    assert kinds(INIT + BULK + LOAD + WAIT) == ["read-after-write"]
    assert kinds(INIT + LOAD + BULK + WAIT) == ["write-after-read"]
    # the phase before is complete from the start
    early = "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r14], 1;"
    assert kinds(INIT + BULK + early + LOAD) == ["read-after-write"]


def test_copies_of_no_bytes():
    none = BULK.replace(", 256", ", 0")
    assert kinds(INIT + none + WAIT + STORE + "bar.sync 0;" + SAVE.replace("256", "0") + STORE) == []
    assert kinds(INIT + STORE + SAVE.replace("256", "0") + "st.shared.b32 [%r13], 3;") == []


def test_a_relaxed_arrival_passes_nothing_on():
    body = (
        INIT + "setp.eq.u32 %p2, %r0, 32; @%p2 st.shared.b32 [%r10], 5; {} @%p2 mbarrier.arrive.{}.b64 %rd30, [%r14];"
    )
    body += WAIT + "@%p0 ld.shared.b32 %r20, [%r10];"
    assert kinds(body.format("", "shared::cta")) == []
    assert kinds(body.format("", "relaxed.cta.shared::cta")) == ["read-after-write"]
    assert kinds(body.format("fence.acq_rel.cta;", "relaxed.cta.shared::cta")) == []


def test_other_ctas_of_a_cluster():
    there = "mapa.shared::cluster.u32 %r21, %r12, {}; st.shared::cluster.b32 [%r21], %r16;\n"
    own = "xor.b32 %r22, %r16, 1;" + there.format("%r22")
    cluster = {"grid": 4, "cluster": 2}
    assert kinds(MEET + own + LOAD + MEET, **cluster) == ["read-after-write"]
    assert kinds(MEET + own + "bar.sync 0;" + LOAD + MEET, **cluster) == ["read-after-write"]
    assert kinds(MEET + own + MEET + LOAD, **cluster) == []
    assert kinds(LOAD + MEET + own + MEET, **cluster) == []
    assert kinds(MEET + LOAD + "bar.sync 0;" + own + MEET, **cluster) == ["write-after-read"]
    assert kinds(MEET + there.format("0") + MEET, **cluster) == ["write-after-write"]


@pytest.mark.parametrize("wait", ["", WAIT])
def test_asynchronous_stores_to_the_cluster(wait):
    """The receiver waits for the bytes, or does not."""
    body = INIT.replace("bar.sync 0;", MEET) + "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], 256;"
    body += (
        "xor.b32 %r22, %r16, 1; mapa.shared::cluster.u32 %r21, %r12, %r22; mapa.shared::cluster.u32 %r23, %r14, %r22;"
    )
    body += "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r21], %r3, [%r23];" + wait + LOAD
    body += "bar.sync 0;" + MEET
    assert kinds(body, grid=2, cluster=2) == ([] if wait else ["access-after-exit", "read-after-write"])


def test_a_lock():
    """Warps add to a word under a lock, which one lane of each warp takes."""
    lock = """
    .shared .b32 lock; @%p0 st.shared.b32 [lock], 0; bar.sync 0; and.b32 %r21, %r0, 31; setp.ne.u32 %p2, %r21, 0; @%p2 bra END;
    TAKE: atom.{}.cta.shared.cas.b32 %r22, [lock], 0, 1; setp.ne.u32 %p3, %r22, 0; @%p3 bra TAKE; {}
    ld.shared.b32 %r23, [%r10]; add.u32 %r23, %r23, 1; st.shared.b32 [%r10], %r23; {}
    {} END:
    """
    assert kinds(lock.format("acquire", "", "", "st.release.cta.shared.b32 [lock], 0;"), block=128) == []
    fence = "membar.cta;"
    assert (
        kinds(lock.format("relaxed", fence, fence, "atom.relaxed.cta.shared.exch.b32 %r22, [lock], 0;"), block=128)
        == []
    )
    found = kinds(lock.format("relaxed", "", "", "atom.relaxed.cta.shared.exch.b32 %r22, [lock], 0;"), block=128)
    assert "read-after-write" in found


def test_many_mbarriers():
    """Each thread has a barrier and a copy of its own, and waits for those of the other warp."""
    body = """
    .shared .align 8 .b64 bars[64]; mov.u32 %r20, bars; shl.b32 %r21, %r0, 3; add.u32 %r22, %r20, %r21;
    mbarrier.init.shared::cta.b64 [%r22], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
    shl.b32 %r23, %r0, 4; add.u32 %r24, %r10, %r23; cvt.u64.u32 %rd30, %r23; add.u64 %rd31, %rd0, %rd30;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r22], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r24], [%rd31], 16, [%r22];
    sub.u32 %r25, 504, %r21; add.u32 %r25, %r25, %r20; sub.u32 %r26, {}, %r23; and.b32 %r26, %r26, 1023;
    W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r25], 0; @!%p1 bra W; add.u32 %r26, %r26, %r10;
    ld.shared.b32 %r27, [%r26];
    """
    assert kinds(body.format(1008)) == []
    assert kinds(body.format(1024 + 992)) == [
        "read-after-write"
    ]  # the barrier of the last lane belongs to another warp, for which no thread waits


# -- shapes of launches ------------------------------------------------------------------------------------------------


def test_every_wave_is_looked_at():
    """More CTAs than are resident at one time, of which only the last races."""
    body = "mov.u32 %r21, %nctaid.x; sub.u32 %r21, %r21, 1; setp.eq.u32 %p2, %r2, %r21;"
    body += STORE + "@!%p2 bar.sync 0;" + LOAD
    run = Run(kernel(HEAD + body), workers=2)
    for grid in (700, 1):
        with pytest.raises(RaceError) as caught:
            run(np.zeros(700 * 64, np.uint32), np.zeros(700 * 64, np.uint32), grid=grid, block=64, racecheck=True)
        (h,) = caught.value.hazards
        assert h.count == 64 and f"of CTA ({grid - 1}, 0, 0)" in h.later_thread


def test_a_last_warp_that_is_not_full():
    assert kinds(STORE + "bar.sync 0;" + LOAD.replace("%r13", "%r10"), block=40) == []
    assert kinds(STORE + LOAD.replace("[%r13]", "[%r10+156]"), block=40) == ["read-after-write"]  # of thread 39


def test_a_warp_that_has_ended_was_not_waited_for():
    """bar.sync orders only the warps that have not exited: accesses of a warp that has exited are not ordered."""
    leave = "setp.eq.u32 %p2, %r15, 1; @%p2 exit;"
    assert kinds(STORE + leave + "bar.sync 0;" + LOAD) == ["read-after-write"]
    assert kinds(STORE + "bar.sync 0;" + leave + LOAD) == []


def test_accesses_of_a_function():
    function = """
    .func add_one(.param .b32 at) { .reg .b32 %a, %v; ld.param.b32 %a, [at];
        ld.shared.b32 %v, [%a]; add.u32 %v, %v, 1; st.shared.b32 [%a], %v; ret; }
    """
    call = "{{ .param .b32 at; st.param.b32 [at], {}; call add_one, (at); }}"
    for between, expected in (("bar.sync 0;", []), ("", ["read-after-write", "write-after-read", "write-after-write"])):
        text = kernel(HEAD + call.format("%r12") + between + call.format("%r13"), before=function)
        arrays = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
        try:
            Run(text)(*arrays, block=64, racecheck=True)
            found = []
        except RaceError as error:
            found = sorted({h.what for h in error.hazards})
        assert found == expected


def test_copies_that_arrive_at_an_mbarrier():
    """cp.async.mbarrier.arrive is an arrival for earlier copies, and not for later ones."""
    copy = "cp.async.ca.shared.global [%r12], [%rd21], 4;"
    arrive = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r14];"
    init = INIT.replace("[%r14], 1", "[%r14], 64")
    assert kinds(init + copy + arrive + WAIT + LOAD) == []
    assert kinds(init + arrive + copy + WAIT + LOAD) == ["read-after-write"]
    assert kinds(init + copy + "mbarrier.arrive.shared::cta.b64 _, [%r14];" + WAIT + LOAD) == ["read-after-write"]


def test_fragments_of_wmma():
    load = "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {{{}}}, [%r10];".format(
        ", ".join(f"%r{k}" for k in range(20, 28))
    )
    store = "mov.f32 %f0, 0f00000000; wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r10], {{{}}};".format(
        ", ".join(["%f0"] * 8)
    )
    assert kinds(STORE + load) == ["read-after-write"]
    assert kinds(STORE + "bar.sync 0;" + load) == []
    first = "setp.ne.u32 %p2, %r15, 0; @%p2 bra SKIP;" + store + "SKIP:"
    assert kinds(first + LOAD) == ["read-after-write"]
    assert kinds(first + "bar.sync 0;" + LOAD) == []


def test_bulk_reductions_into_one_place_do_not_race_with_each_other():
    """Each CTA of the cluster adds to the memory of the first one; a thread that reads the sum has to wait."""
    copy = """
    setp.eq.u32 %p2, %r16, 0; @%p0 mov.u32 %r22, 512; @%p2 mov.u32 %r22, 512;
    @%p0 st.shared.b32 [%r10], 1; fence.proxy.async; setp.eq.and.u32 %p3, %r0, 0, %p2;
    @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r14], 512;
    """
    send = """
    mapa.shared::cluster.u32 %r23, %r10, 0; add.u32 %r23, %r23, 1024; mapa.shared::cluster.u32 %r24, %r14, 0;
    @%p0 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r23], [%r10], 256, [%r24];
    """
    init = INIT.replace("bar.sync 0;", "")
    body = init + copy + MEET + send + "@!%p2 bra END;\n{} ld.shared.b32 %r20, [%r12+1024];\nEND:\n" + MEET
    assert kinds(body.format(WAIT), grid=2, cluster=2) == []
    assert kinds(body.format(""), grid=2, cluster=2) == ["access-after-exit", "read-after-write"]
