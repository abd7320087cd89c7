"""Unordered accesses to tensor memory are reported with both places, in whatever order they were emulated."""

from __future__ import annotations

import re

import pytest

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import RaceError
from ptxkit.isa.parser import parse

TEXT = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<8>;
    .shared .align 1024 .b8 tile[16384]; .shared .align 8 .b64 done;
    .shared .align 8 .b64 again; .shared .align 8 .b64 free; .shared .b32 where;
    mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 128; setp.ge.u32 %p2, %r1, 128;
    @%p1 mbarrier.init.shared.b64 [done], 1;
    @%p1 mbarrier.init.shared.b64 [again], 1;
    @%p1 mbarrier.init.shared.b64 [free], 4;
    @!%p2 bra allocated;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], 64;
allocated:
    fence.mbarrier_init.release.cluster; bar.sync 0; // ALLOCATED
    ld.shared.b32 %r2, [where]; mov.u32 %r3, tile; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd1, %r4;
    or.b64 %rd1, %rd1, 0x4000404000010000; mov.u32 %r5, 0x8110490; setp.ne.u32 %p3, %r1, %r1;
    @!%p2 bra reader;
    @!%p1 bra end;
    tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd1, %rd1, %r5, %p3; // FIRST
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
wait:
    mbarrier.try_wait.parity.shared.b64 %p4, [free], 0; // FREE
    @!%p4 bra wait;
    tcgen05.fence::after_thread_sync; // AFTER
    tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd1, %rd1, %r5, %p3; // SECOND
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [again];
last:
    mbarrier.try_wait.parity.shared.b64 %p4, [again], 0; @!%p4 bra last;
    bra end;
reader:
    mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; // DONE
    @!%p4 bra reader;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r2]; // LOAD
    tcgen05.wait::ld.sync.aligned; // WAIT
    tcgen05.fence::before_thread_sync; // BEFORE
    and.b32 %r11, %r1, 31; setp.eq.u32 %p5, %r11, 0;
    bar.warp.sync -1; // WARP
    @%p5 mbarrier.arrive.shared.b64 _, [free];
end:
    bar.warp.sync -1;
    bar.sync 0; // LAST
    @!%p2 bra freed;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64; // DEALLOC
freed:
    ret;
}
"""
"""Warp 4 multiplies twice; warps 0 to 3 load the first sums."""


def launch(text: str, racecheck: str = "warps", completion: str = "eager") -> None:
    machine = Machine(capacity=1 << 20, workers=1, sms=1)
    program = machine.load(parse(text, "races.ptx"), "sm_100a")
    settings = EmulatorSettings(racecheck=racecheck, completion=completion, counting=False)
    program.launch("k", b"", grid=(1, 1, 1), block=(160, 1, 1), settings=settings)


def without(mark: str) -> str:
    """The program without the instruction on a line; a wait gives true."""
    line = re.search(rf"^(.*); // {mark}$", TEXT, re.MULTILINE)
    assert line is not None
    instruction = line[1].split("; ")[-1]
    return TEXT.replace(f"{instruction}; // {mark}", "setp.eq.u32 %p4, 0, 0;" if "try_wait" in instruction else "")


def place(mark: str) -> str:
    return f"races.ptx:{TEXT[: TEXT.index(f'// {mark}')].count(chr(10)) + 1} "


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_nothing_races_as_it_is(racecheck, completion):
    launch(TEXT, racecheck, completion)


@pytest.mark.parametrize(
    ("mark", "racecheck", "later", "earlier", "message"),
    [
        ("DONE", "warps", "LOAD", "FIRST", "that is not known to be complete: let a thread wait for the mbarrier"),
        ("FREE", "warps", "LOAD", "SECOND", "wait for the mbarrier of its tcgen05.commit between"),
        ("WAIT", "warps", "SECOND", "LOAD", "put tcgen05.wait::ld after the load"),
        ("AFTER", "warps", "SECOND", "LOAD", "has executed no tcgen05.fence::after_thread_sync since"),
        ("BEFORE", "warps", "SECOND", "LOAD", "has executed no tcgen05.fence::before_thread_sync since"),
        ("WARP", "lanes", "SECOND", "LOAD", "write-after-read: thread .* writes .* of tensor memory, which warp"),
    ],
)
def test_both_places_are_reported(mark, racecheck, later, earlier, message):
    text = without(mark)
    with pytest.raises(RaceError, match=message) as found:
        launch(text, racecheck)
    assert place(later) in str(found.value) and place(earlier) in str(found.value)


def relaxed(text: str) -> str:
    """The wait for the readers, which then orders only what tcgen05.fence orders."""
    return text.replace("try_wait.parity.shared.b64 %p4, [free]", "try_wait.parity.relaxed.cta.shared.b64 %p4, [free]")


def unfenced(text: str) -> str:
    """The program without any tcgen05.fence."""
    return re.sub(r"tcgen05\.fence::\w+;", "", text)


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_relaxed_arrivals_and_waits_need_the_fences_of_tcgen05(racecheck):
    """PTX ISA, "Canonical synchronization patterns": a relaxed mbarrier.arrive and try_wait suffice with both fences."""
    arrived = TEXT.replace("mbarrier.arrive.shared.b64", "mbarrier.arrive.relaxed.cta.shared.b64")
    for text in (relaxed(TEXT), relaxed(arrived), arrived):
        launch(text, racecheck)
    message = "write-after-read: thread .* writes column 0 of tensor memory, which warp 0 .* read"
    for text in (relaxed(TEXT), relaxed(arrived)):
        with pytest.raises(RaceError, match=f"a race in tensor memory:\\n.*{message}") as found:
            launch(unfenced(text), racecheck)
        assert place("SECOND") in str(found.value) and place("LOAD") in str(found.value)
    launch(unfenced(TEXT), racecheck)


def test_the_fences_of_tcgen05_order_no_shared_memory():
    text = TEXT.replace(".shared .b32 where;", ".shared .b32 where; .shared .b32 word;")
    text = text.replace("// WARP", "\n    setp.eq.u32 %p6, %r1, 0; @%p6 st.shared.b32 [word], %r1;")
    text = text.replace("// AFTER", "\n    ld.shared.b32 %r12, [word];")
    launch(text)
    with pytest.raises(RaceError, match=r"a race in shared memory:\n.*read-after-write.*\(word\)"):
        launch(relaxed(text))


def test_columns_that_are_freed_before_the_loads_of_other_warps():
    begin, end = TEXT.index("    tcgen05.fence::after_thread_sync; // AFTER"), TEXT.index("    bra end;\nreader")
    freed = TEXT[:begin] + TEXT[end:]  # one product alone
    launch(freed)
    acquired = "@!%p4 bra wait; last: mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; @!%p4 bra last;"
    launch(relaxed(freed).replace("bar.sync 0; // LAST", "").replace("@!%p4 bra wait;", acquired))
    text = freed.replace("mbarrier.try_wait.parity.shared.b64 %p4, [free], 0; // FREE", "setp.eq.u32 %p4, 0, 0;")
    text = text.replace("bar.sync 0; // LAST", "").replace("@!%p4 bra wait;", acquired)
    message = "write-after-read: warp 4 .* deallocates column 0 of tensor memory, which warp 0 .* read"
    with pytest.raises(RaceError, match=message) as found:
        launch(text)
    assert place("LOAD").split(":")[0] in str(found.value)


def test_shared_memory_that_is_overwritten_while_a_product_reads_it():
    text = TEXT.replace("wait:\n    mb", "wait:\n    st.shared.b32 [tile], %r1; fence.proxy.async.shared::cta; mb")
    message = r"st.shared.*write-after-read.* writes .*\(tile\), which a tcgen05 operation"
    with pytest.raises(RaceError, match=message) as found:
        launch(text)
    assert place("FREE") in str(found.value) and place("FIRST") in str(found.value)


PAIR = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<8>;
    .shared .align 1024 .b8 tile[16384]; .shared .align 8 .b64 done; .shared .b32 where;
    mov.u32 %r1, %tid.x; mov.u32 %r6, %cluster_ctarank; setp.ge.u32 %p2, %r1, 32;
    setp.eq.u32 %p1, %r1, 32; setp.eq.and.u32 %p1, %r6, 0, %p1;
    @%p1 mbarrier.init.shared.b64 [done], 1;
    @%p2 bra allocated;
    tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [where], 64;
allocated:
    bar.sync 0; // ALLOCATED
    mov.u32 %r2, 0; mov.u32 %r3, tile; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd1, %r4;
    or.b64 %rd1, %rd1, 0x4000404000010000; mov.u32 %r5, 0x10110490; setp.ne.u32 %p3, %r1, %r1;
    @!%p1 bra end;
    tcgen05.mma.cta_group::2.kind::f16 [%r2], %rd1, %rd1, %r5, %p3;
    tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [done];
last:
    mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; @!%p4 bra last;
end:
    bar.warp.sync -1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p2 bra freed;
    tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r2, 64;
freed:
    ret;
}
"""
"""A pair allocates; another warp of the first CTA multiplies into the tensor memory of both."""


def launch_pair(text: str) -> None:
    machine = Machine(capacity=1 << 20, workers=1, sms=2)
    program = machine.load(parse(text, "races.ptx"), "sm_100a")
    settings = EmulatorSettings(racecheck="warps", counting=False)
    program.launch("k", b"", grid=(2, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1), settings=settings)


def test_a_pair_allocates_together():
    """What follows the allocation of one CTA also follows that of the other one, without a barrier of the cluster."""
    launch_pair(PAIR)
    with pytest.raises(RaceError, match="write-after-write: thread .* writes .*, which warp 0 .* allocated"):
        launch_pair(PAIR.replace("bar.sync 0; // ALLOCATED", ""))


def test_a_relaxed_barrier_of_the_cluster_orders_allocation_and_deallocation():
    """Both are synchronous, so that the order of execution suffices; the products have been waited for."""
    relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
    text = PAIR.replace("bar.sync 0; // ALLOCATED", relaxed)
    text = text.replace("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", relaxed)
    launch_pair(text)


def test_arrivals_of_commits_reach_a_cta_before_its_exit():
    """The arrivals of a thread's commits are in order: the wait for the last one covers the first."""
    commit = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
    one, both = f"{commit}.b64 [done];", "mov.b16 %h1, 3; " + commit + ".multicast::cluster.b64 [{0}], %h1; "
    relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
    text = PAIR.replace(".shared .b32 where;", ".shared .b32 where; .shared .align 8 .b64 other; .reg .b16 %h<4>;")
    text = text.replace("setp.eq.and.u32 %p1, %r6, 0, %p1;", "setp.eq.and.u32 %p6, %r6, 0, %p1;")
    text = text.replace("[done], 1;", "[done], 1; @%p1 mbarrier.init.shared.b64 [other], 1;")
    text = text.replace("bar.sync 0; // ALLOCATED", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")
    text = text.replace("@!%p1 bra end;", "@!%p1 bra end; @!%p6 bra last;")
    text = text.replace(
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n    @%p2", relaxed + "\n    @%p2"
    )
    launch_pair(text.replace(one, both.format("other") + both.format("done")))
    with pytest.raises(RaceError, match=r"tcgen05.commit.*access-after-exit: a tcgen05 operation of .*\(other\)"):
        launch_pair(text.replace(one, both.format("done") + both.format("other")))


ISSUERS = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<8>;
    .shared .align 1024 .b8 tile[16384]; .shared .align 8 .b64 done; .shared .align 8 .b64 again; .shared .b32 where;
    mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p6, %r1, 32; setp.lt.u32 %p2, %r1, 32;
    @%p1 mbarrier.init.shared.b64 [done], 1;
    @%p1 mbarrier.init.shared.b64 [again], 1;
    @!%p2 bra allocated;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], 256;
allocated:
    bar.sync 0;
    ld.shared.b32 %r2, [where]; add.u32 %r6, %r2, 128; mov.u32 %r3, tile; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd1, %r4;
    or.b64 %rd1, %rd1, 0x4000404000010000; mov.u32 %r5, 0x8110490; setp.ne.u32 %p3, %r1, %r1;
    @!%p1 bra issued;
    tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd1, %rd1, %r5, %p3; // FIRST
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
issued:
    bar.warp.sync -1;
    tcgen05.fence::before_thread_sync; // BEFORE
    bar.sync 0; // MEET
    tcgen05.fence::after_thread_sync; // AFTER
    @!%p6 bra end;
    tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd1, %rd1, %r5, %p3; // SECOND
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [again];
end:
    bar.warp.sync -1;
first:
    mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; @!%p4 bra first;
last:
    mbarrier.try_wait.parity.shared.b64 %p4, [again], 0; @!%p4 bra last;
    bar.sync 0;
    @!%p2 bra freed;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 256;
freed:
    ret;
}
"""
"""Thread 0 issues an operation of the tensor cores, and thread 32 another one that conflicts with it."""

PRODUCT = "tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd1, %rd1, %r5, %p3;"
FROM_MEMORY = "tcgen05.mma.cta_group::1.kind::f16 [%r6], [%r2], %rd1, %r5, %p3;"
COPY = "tcgen05.cp.cta_group::1.128x256b [%r2], %rd1;"
CONFLICTING = {
    "write-after-write": (PRODUCT, PRODUCT),
    "read-after-write": (COPY, FROM_MEMORY),
    "write-after-read": (FROM_MEMORY, COPY),
}


def issuers(first: str = PRODUCT, second: str = PRODUCT, between: str = "") -> str:
    """The program with these operations; without a mark, if one is given."""
    text = ISSUERS.replace(f"{PRODUCT} // FIRST", first).replace(f"{PRODUCT} // SECOND", second)
    return re.sub(rf"^.*; // ({between or 'NONE'})$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize("hazard", CONFLICTING)
def test_operations_that_two_threads_issue_in_no_order(hazard, racecheck):
    """PTX ISA, "Canonical synchronization patterns", pipelined instructions of different threads."""
    launch(issuers(*CONFLICTING[hazard]), racecheck)
    with pytest.raises(RaceError, match=rf"{hazard}: thread \(32.* which thread \(0.*issue both from one thread"):
        launch(issuers(*CONFLICTING[hazard], between="MEET"), racecheck)


@pytest.mark.parametrize(("mark", "thread"), [("BEFORE", "0"), ("AFTER", "32")])
@pytest.mark.parametrize("hazard", CONFLICTING)
def test_operations_of_two_threads_without_a_fence(hazard, mark, thread):
    message = rf"thread \({thread}, 0, 0\) of CTA .* has executed no tcgen05.fence::{mark.lower()}_thread_sync since"
    with pytest.raises(RaceError, match=message):
        launch(issuers(*CONFLICTING[hazard], between=mark))


@pytest.mark.parametrize(
    "text",
    [
        issuers(PRODUCT, PRODUCT.replace("[%r2]", "[%r6]"), between="MEET"),
        issuers(
            FROM_MEMORY,
            FROM_MEMORY.replace("[%r6]", "[%r7]").replace("tcgen05", "add.u32 %r7, %r6, 64; tcgen05", 1),
            "MEET",
        ),
        issuers(between="MEET").replace(
            "@!%p6 bra end;",
            "@!%p6 bra end; W: mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; "
            "@!%p4 bra W; tcgen05.fence::after_thread_sync;",
        ),
        issuers(between="BEFORE|AFTER"),
    ],
    ids=["other columns", "two reads", "after a wait for the first", "a kernel without tcgen05.fence"],
)
def test_operations_of_two_threads_that_do_not_conflict(text):
    launch(text)
