"""Synchronisation of CTAs of a cluster needs the scope .cluster or wider. PTX ISA, "Morally strong operations"."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.errors import RaceError

MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
HEAD = (
    THREAD
    + """
    .shared .b32 data; .shared .b32 flag; mov.u32 %r10, %cluster_ctarank; mov.u32 %r11, data; mov.u32 %r12, flag;
    mapa.shared::cluster.u32 %r13, %r11, 1; mapa.shared::cluster.u32 %r14, %r12, 1; st.shared.u32 [%r12], 0;
    setp.eq.u32 %p0, %r10, 0; setp.ne.u32 %p2, %r0, 0;
    """
    + MEET
)
HAND_OVER = """
    @%p2 bra END; @!%p0 bra READ; st.shared::cluster.u32 [%r13], 7; {release} bra.uni END;
    READ: {acquire} setp.eq.u32 %p1, %r4, 0; @%p1 bra READ; {fence} ld.shared.u32 %r5, [%r11]; END:
"""


def races(body: str, racecheck: str) -> list[str]:
    try:
        Run(kernel(HEAD + body + MEET))(
            np.zeros(64, np.uint32), np.zeros(1), grid=2, cluster=2, block=32, racecheck=racecheck
        )
    except RaceError as error:
        return sorted(h.what for h in error.hazards)
    return []


def handed_over(store: str, load: str, fence: str) -> str:
    release = f"{fence}st.{store}.shared::cluster.u32 [%r14], 1;"
    return HAND_OVER.format(release=release, acquire=f"ld.{load}.shared.u32 %r4, [%r12];", fence=fence)


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize(
    ("store", "load", "fence", "found"),
    [
        ("release.cluster", "acquire.cluster", "", []),
        ("release.sys", "acquire.gpu", "", []),
        ("relaxed.cluster", "relaxed.cluster", "fence.acq_rel.cluster; ", []),
        ("volatile", "volatile", "fence.sc.gpu; ", []),
        ("relaxed.cluster", "relaxed.cluster", "fence.acq_rel.cta; ", ["read-after-write"]),
        ("volatile", "volatile", "membar.cta; ", ["read-after-write"]),
        ("relaxed.cta", "relaxed.cta", "fence.acq_rel.cluster; ", ["read-after-write"] * 2),
        ("release.cta", "acquire.cta", "", ["read-after-write"] * 2),
        ("release.cluster", "acquire.cta", "", ["read-after-write"] * 2),
        ("release.cta", "acquire.cluster", "", ["read-after-write"] * 2),
    ],
)
def test_a_flag_between_ctas(store, load, fence, found, racecheck):
    """Accesses of the flag with the scope .cta race themselves, and pass nothing on."""
    assert sorted(set(races(handed_over(store, load, fence), racecheck))) == sorted(set(found))


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_a_flag_within_a_cta_of_a_cluster(racecheck):
    """The scope .cta suffices."""
    body = """
    @!%p0 bra END; setp.eq.u32 %p1, %r0, 0; @!%p1 bra READ; st.shared.u32 [%r11], 7; st.release.cta.shared.u32 [%r12], 1;
    bra.uni END; READ: ld.acquire.{scope}.shared.u32 %r4, [%r12]; setp.eq.u32 %p1, %r4, 0; @%p1 bra READ;
    ld.shared.u32 %r5, [%r11]; END:
    """
    assert races(body.format(scope="cta"), racecheck) == []
    assert races(body.format(scope="cluster"), racecheck) == []


@pytest.mark.parametrize(("scope", "found"), [("cta", ["write-after-write"]), ("cluster", []), ("gpu", [])])
def test_atomics_of_several_ctas(scope, found):
    assert races(f"red.relaxed.{scope}.shared::cluster.add.u32 [%r14], 1;", "warps") == found


ARRIVAL = """
    .shared .align 8 .b64 full; .shared .align 8 .b64 free; mov.u32 %r15, full; mov.u32 %r16, free;
    mapa.shared::cluster.u32 %r17, %r15, 1; mapa.shared::cluster.u32 %r18, %r16, 0;
    @%p2 bra INITIALISED; mbarrier.init.shared.b64 [full], 1; mbarrier.init.shared.b64 [free], 1;
    fence.mbarrier_init.release.cluster;
INITIALISED:
"""
SEND = """
    @%p2 bra END; @!%p0 bra READ; {write} {before} mbarrier.arrive.{arrival}.shared::cluster.b64 _, [%r17]; bra.uni END;
    READ: mbarrier.try_wait.parity.{wait}.shared.b64 %p1, [full], 0; @!%p1 bra READ; {after} {read} END:
"""


def sent(arrival: str, wait: str, write: str, read: str, before: str = "", after: str = "") -> str:
    body = SEND.format(arrival=arrival, wait=wait, write=write, read=read, before=before, after=after)
    return ARRIVAL + MEET + body


PUSH, PULL = "st.shared::cluster.u32 [%r13], 7;", "ld.shared.u32 %r5, [%r11];"


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize(
    ("arrival", "wait", "before", "after", "found"),
    [
        ("release.cluster", "acquire.cluster", "", "", []),
        ("release.cta", "acquire.cluster", "", "", ["read-after-write"]),
        ("release.cluster", "acquire.cta", "", "", ["read-after-write"]),
        ("release.cta", "acquire.cta", "", "", ["read-after-write"]),
        ("release.cta", "acquire.cta", "fence.acq_rel.cluster;", "fence.acq_rel.cluster;", []),
        ("release.cta", "acquire.cta", "fence.acq_rel.cta;", "fence.acq_rel.cluster;", ["read-after-write"]),
        ("release.cta", "acquire.cta", "fence.acq_rel.cluster;", "fence.acq_rel.cta;", ["read-after-write"]),
    ],
)
def test_an_arrival_at_the_mbarrier_of_another_cta_makes_writes_visible_with_the_scope_cluster(
    arrival, wait, before, after, found, racecheck
):
    assert races(sent(arrival, wait, PUSH, PULL, before, after), racecheck) == found


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize("write", ["", "ld.shared::cluster.u32 %r4, [%r13];"])
def test_that_a_place_has_been_read_is_shown_by_an_arrival_of_any_scope(write, racecheck):
    """The message that a buffer is free: CUTLASS's consumers arrive so at the producer's mbarrier."""
    overwrite = "st.shared.u32 [%r11], 9;"
    assert races(sent("release.cta", "acquire.cta", write, overwrite), racecheck) == []
    assert races(sent("release.cta", "acquire.cta", PUSH, overwrite), racecheck) == []
    unordered = sent("relaxed.cta", "relaxed.cta", "ld.shared::cluster.u32 %r4, [%r13];", overwrite)
    assert "write-after-read" in races(unordered, racecheck)


def test_the_fix_names_the_scope():
    with pytest.raises(RaceError, match=r"mbarrier\.arrive\.release\.cluster"):
        Run(kernel(HEAD + sent("release.cta", "acquire.cta", PUSH, PULL) + MEET))(
            np.zeros(64, np.uint32), np.zeros(1), grid=2, cluster=2, block=32, racecheck="warps"
        )


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize(("scope", "found"), [("cta", ["read-after-write"]), ("cluster", [])])
def test_a_relay(scope, found, racecheck):
    """A thread that has seen a copy complete tells another CTA, which reads what was copied (quack, issue 63)."""
    relay = f"""
    @%p2 bra END; @%p0 bra READ; mbarrier.init.shared.b64 [free], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [free], 4;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r13], 7, [%r19];
    COPIED: mbarrier.try_wait.parity.shared.b64 %p1, [free], 0; @!%p1 bra COPIED;
    mbarrier.arrive.release.{scope}.shared::cluster.b64 _, [%r20]; bra.uni END;
    READ: mbarrier.try_wait.parity.acquire.{scope}.shared.b64 %p1, [full], 0; @!%p1 bra READ;
    ld.shared::cluster.u32 %r5, [%r13]; END:
    """
    there = "mapa.shared::cluster.u32 %r19, %r16, 1; mapa.shared::cluster.u32 %r20, %r15, 0;"
    assert races(ARRIVAL + there + MEET + relay, racecheck) == found


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_an_arrival_at_the_own_mbarrier_needs_no_wider_scope(racecheck):
    """Although the address is one of the cluster; and what one thread has seen from elsewhere it may pass on within its CTA."""
    body = """
    setp.gt.u32 %p4, %r0, 1; @%p4 bra END; @%p0 bra SEND; @%p2 bra READ;
    FIRST: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p1, [full], 0; @!%p1 bra FIRST;
    mapa.shared::cluster.u32 %r19, %r16, 1; mbarrier.arrive.shared::cluster.b64 _, [%r19]; bra.uni END;
    READ: mbarrier.try_wait.parity.shared.b64 %p1, [free], 0; @!%p1 bra READ; ld.shared.u32 %r5, [%r11]; bra.uni END;
    SEND: @%p2 bra END; st.shared::cluster.u32 [%r13], 7; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r17]; END:
    """
    assert races(ARRIVAL + MEET + body, racecheck) == []
