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
