"""Relaxed arrivals at the barrier of a cluster release what precedes a fence. PTX ISA, "Release and Acquire Patterns"."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.errors import RaceError

RELAXED = "barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire; "
END = "barrier.cluster.arrive; barrier.cluster.wait;"
HEAD = (
    THREAD
    + """
    mov.u32 %r10, %cluster_ctarank; xor.b32 %r11, %r10, 1; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 32;
    mov.u32 %r12, tile; mapa.shared::cluster.u32 %r13, %r12, %r11;
    mov.u32 %r14, bar; mapa.shared::cluster.u32 %r15, %r14, %r11;
"""
)
VARIABLES = ".shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 bar;"
INIT = "@%p0 mbarrier.init.shared.b64 [%r14], 1; "
INIT_FENCE = "@%p0 fence.mbarrier_init.release.cluster; "
ARRIVE = "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r15]; "
STORE = "@%p0 st.shared.u32 [%r12], %r10; "
LOAD_OWN, LOAD_OTHER = "ld.shared.u32 %r4, [%r12]; ", "ld.shared::cluster.u32 %r4, [%r13]; "


def hazards(body: str, racecheck: str, ctas: int = 2) -> list[str]:
    run = Run(kernel(HEAD + body + END, before=VARIABLES))
    try:
        run(np.zeros(64, np.uint32), np.zeros(1), grid=ctas, cluster=ctas, block=64, racecheck=racecheck)
    except RaceError as error:
        return sorted(h.what for h in error.hazards)
    return []


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize(
    ("before", "found"),
    [
        (INIT + INIT_FENCE, False),
        (INIT + "fence.mbarrier_init.release.cluster; ", False),
        (INIT + "fence.acq_rel.cluster; ", False),
        (INIT + "fence.sc.gpu; ", False),
        (INIT + "membar.gl; ", False),
        (INIT + "fence.release.cluster; ", False),
        (INIT, True),
        (INIT_FENCE + INIT, True),  # only what precedes the fence is released
        (INIT + "@%p1 fence.mbarrier_init.release.cluster; ", True),  # by another warp
        (INIT + "fence.acq_rel.cta; ", True),  # a scope that lacks the other CTA
        (INIT + "membar.cta; ", True),
        (INIT + "fence.proxy.async; ", True),
        (INIT + "bar.sync 0; @%p1 fence.mbarrier_init.release.cluster; ", True),  # the init of other threads is left out
        (INIT + "bar.sync 0; @%p1 fence.acq_rel.cluster; ", False),  # a fence is cumulative
    ],
)
def test_an_mbarrier_is_released_by_a_fence_after_its_initialisation(before, found, racecheck):
    assert bool(hazards(before + RELAXED + ARRIVE, racecheck)) == found


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
@pytest.mark.parametrize(
    ("fence", "own", "other"),
    [
        ("", True, True),
        ("fence.mbarrier_init.release.cluster; ", True, True),
        ("fence.acq_rel.cta; ", False, True),
        ("fence.acq_rel.cluster; ", False, False),
        ("fence.acq_rel.gpu; ", False, False),
        ("fence.sc.cluster; ", False, False),
    ],
)
def test_stores_need_a_fence_whose_scope_contains_the_reader(fence, own, other, racecheck):
    for load, found in ((LOAD_OWN, own), (LOAD_OTHER, other)):
        assert hazards(STORE + fence + RELAXED + load, racecheck) == (["read-after-write"] if found else [])


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_the_next_phase_releases_what_the_first_did_not(racecheck):
    """The fence comes after the first barrier; a reader after the second one is ordered, one in between is not."""
    two = STORE + "{0}" + RELAXED + "{1} fence.acq_rel.cluster; " + RELAXED + "{2}"
    assert hazards(two.format("", "", LOAD_OTHER), racecheck) == []
    assert hazards(two.format("", LOAD_OTHER, ""), racecheck) == ["read-after-write"]
    late = STORE + RELAXED + "fence.acq_rel.cta; " + RELAXED
    assert hazards(late + LOAD_OWN, racecheck) == [] and hazards(late + LOAD_OTHER, racecheck) == ["read-after-write"]


def test_what_a_third_cta_has_released_is_passed_on():
    """A fence releases also what its thread has acquired: CTA 0 stores, CTA 1 takes part in both barriers."""
    text = STORE + "fence.acq_rel.cluster; " + RELAXED + RELAXED + LOAD_OTHER
    assert hazards(text, "warps", ctas=4) == []


@pytest.mark.parametrize("racecheck", ["warps", "lanes"])
def test_a_relaxed_arrival_at_an_mbarrier_of_another_cta_needs_a_fence_of_the_cluster(racecheck):
    wait = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r14], 0; @!%p2 bra WAIT; "
    arrive = "@%p0 mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r15]; "
    for fence, found in (("", True), ("fence.acq_rel.cta; ", True), ("fence.acq_rel.cluster; ", False)):
        text = INIT + END + STORE + fence + arrive + wait + LOAD_OTHER
        assert hazards(text, racecheck) == (["read-after-write"] if found else [])
    own = INIT + END + STORE + "fence.acq_rel.cta; @%p0 mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r14]; "
    assert hazards(own + wait + LOAD_OWN, racecheck) == []
