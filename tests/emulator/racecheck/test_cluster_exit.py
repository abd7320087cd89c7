"""Accesses to the shared memory of CTAs of the cluster that have exited, may have exited, or may not have started."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

from ptxkit.errors import FaultError, RaceError

SYNC = "barrier.cluster.arrive; barrier.cluster.wait;"
HEAD = (
    THREAD
    + """
    mov.u32 %r10, %cluster_ctarank; xor.b32 %r11, %r10, 1; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r10, 1;
    mov.u32 %r12, tile; mapa.shared::cluster.u32 %r13, %r12, %r11;
    mov.u32 %r14, bar; mapa.shared::cluster.u32 %r15, %r14, %r11;
    mad.lo.u32 %r16, %r0, 4, %r12; st.shared.u32 [%r16], %r0;
    @%p0 mbarrier.init.shared.b64 [%r14], 1; fence.mbarrier_init.release.cluster; fence.proxy.async;
"""
    + SYNC
)
VARIABLES = ".shared .align 128 .b8 tile[1024]; .shared .align 8 .b64 bar; .global .align 16 .b8 input[64];"
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [%r14], {};"
WAIT = "WAIT{0}: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r14], 0; @!%p2 bra WAIT{0};"

ACCESSES = {
    "ld": "ld.shared::cluster.u32 %r4, [%r13];",
    "generic ld": "cvta.shared.u64 %rd9, tile; mapa.u64 %rd10, %rd9, %r11; ld.u32 %r4, [%rd10];",
    "st": "st.shared::cluster.u32 [%r13+256], 1;",
    "atom": "atom.shared::cluster.add.u32 %r4, [%r13+256], 1;",
    "red": "red.shared::cluster.add.u32 [%r13+256], 1;",
    "arrive": "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r15];",
    "expect_tx": "@%p0 mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r15], 16;",
    "st.async": "@%p0 st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r13+256], 1, [%r15];",
    "red.async": "@%p0 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r13+256], 1, [%r15];",
    "bulk": "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r13+512], [%r12+128], 16, [%r15];",
    "multicast": "mov.b16 %h1, 3; @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[tile+512], [input], 16, [bar], %h1;",
}
COMMIT = "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
MULTICAST = f"mov.b16 %h1, 3; {COMMIT}.multicast::cluster.b64 [bar], %h1;"
SIGNALS = {
    "multicast commit": MULTICAST,
    "commit of a pair": MULTICAST.replace("group::1", "group::2"),
    "remote commit": f"{COMMIT}.b64 [%r15];",
    "multicast request": "@%p0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    ".multicast::cluster::all.b128 [tile+256], [bar];",
}
"""Asynchronous signals at mbarriers of other CTAs, of sm_100a."""
TRACKED = [{"completion": "latest-legal"}, {"racecheck": "warps"}, {"racecheck": "lanes"}]


def run(body: str, ctas: int = 2, **settings):
    return Run(kernel(HEAD + body, before=VARIABLES))(
        np.zeros(128, np.uint32), np.zeros(1), grid=ctas, cluster=ctas, **settings
    )


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_a_cta_that_has_exited_cannot_be_accessed(access, completion):
    with pytest.raises(FaultError, match=r"test.ptx:\d+ .*which (has|may have) exited"):
        run("@%p1 exit;" + ACCESSES[access], completion=completion)


def signal(body: str, **settings):
    program = Run(kernel(HEAD + body, before=VARIABLES, target="sm_100a"), target="sm_100a")
    return program(np.zeros(128, np.uint32), np.zeros(1), grid=2, cluster=2, **settings)


RANDOM = [{"completion": "random", "completion_seed": seed} for seed in range(3)]


@pytest.mark.parametrize("access", SIGNALS)
@pytest.mark.parametrize("settings", [{}, *TRACKED, *RANDOM])
def test_a_signal_to_a_cta_that_has_exited(access, settings):
    """It is found in every mode, though no thread waits for it."""
    with pytest.raises(FaultError, match=r"test.ptx:\d+ .*which (has|may have) exited"):
        signal("@%p1 exit;" + SIGNALS[access], **settings)


@pytest.mark.parametrize("access", SIGNALS)
@pytest.mark.parametrize("settings", TRACKED)
def test_a_signal_has_to_happen_before_the_exit_of_the_cta(access, settings):
    """Both CTAs end together; the one that waits for the phase may exit."""
    with pytest.raises(RaceError, match="access-after-exit.*CTA .*which may have exited"):
        signal("@!%p1 bra SIGNAL; bra END; SIGNAL:" + SIGNALS[access] + "END:", **settings)
    if access != "multicast request":
        signal(
            "@%p1 bra END;"
            + SIGNALS[access]
            + "END:"
            + WAIT.format(0).replace("WAIT0:", "@%p1 bra WAIT0; ret; WAIT0:"),
            **settings,
        )


@pytest.mark.parametrize("address", ["%r12", "%r17"])
def test_a_cta_may_access_its_own_memory_when_others_have_exited(address):
    """The instruction selects the lanes of one CTA of four, but they take no part."""
    run(f"mapa.shared::cluster.u32 %r17, %r12, %r10; @%p1 exit; st.shared::cluster.u32 [{address}+256], 1;", ctas=4)


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("settings", TRACKED)
def test_an_access_has_to_happen_before_the_exit_of_the_cta(access, settings):
    """Both CTAs end together, so that the emulated access is performed before the exit."""
    with pytest.raises(RaceError, match="access-after-exit.*CTA .*which may have exited") as e:
        run(ACCESSES[access], **settings)
    (hazard,) = e.value.hazards
    assert hazard.what == "access-after-exit" and hazard.later_thread != hazard.earlier_thread


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("settings", TRACKED)
def test_an_access_has_to_happen_after_the_start_of_the_cta(access, settings):
    """A barrier before the first access is missing; a relaxed one suffices to show that all CTAs have started."""
    head = HEAD.replace("barrier.cluster.arrive; barrier.cluster.wait;", "{}")
    for first, found in (("", 1), ("bar.sync 0;", 1), ("barrier.cluster.arrive.relaxed; barrier.cluster.wait;", 0)):
        try:
            Run(kernel(head.replace("{}", first) + ACCESSES[access] + SYNC, before=VARIABLES))(
                np.zeros(128, np.uint32), np.zeros(1), grid=2, cluster=2, **settings
            )
            hazards = ()
        except RaceError as error:
            hazards = error.hazards
        assert sum(h.what == "access-before-start" for h in hazards) == found


@pytest.mark.parametrize("access", ["ld", "generic ld", "st", "atom", "red", "arrive"])
@pytest.mark.parametrize("settings", [{}, *TRACKED])
def test_a_cluster_barrier_puts_the_access_before_the_exit(access, settings):
    run(ACCESSES[access] + SYNC, **settings)


@pytest.mark.parametrize(("access", "nbytes"), [("st.async", 4), ("red.async", 4), ("bulk", 16), ("multicast", 32)])
@pytest.mark.parametrize("settings", [{}, *TRACKED])
def test_the_phase_that_a_copy_completes_puts_it_before_the_exit(access, nbytes, settings):
    """The source of a copy between two CTAs must exist until the copy is complete, so that its CTA must wait for the
    receiver."""
    body = "@%p0 " + EXPECT.format(nbytes) + SYNC + ACCESSES[access] + WAIT.format(0)
    run(body + (SYNC if access == "bulk" else ""), **settings)
    if access == "bulk" and settings:
        with pytest.raises(RaceError, match="access-after-exit"):
            run(body, **settings)


@pytest.mark.parametrize("settings", [{}, *TRACKED])
def test_a_remote_arrival_that_the_owner_waits_for_puts_the_access_before_its_exit(settings):
    run("ld.shared::cluster.u32 %r4, [%r13]; bar.sync 0;" + ACCESSES["arrive"] + WAIT.format(0), **settings)


@pytest.mark.parametrize("settings", TRACKED)
def test_an_arrival_without_the_owners_wait_is_not_enough(settings):
    with pytest.raises(RaceError, match="access-after-exit"):
        run("ld.shared::cluster.u32 %r4, [%r13]; bar.sync 0;" + ACCESSES["arrive"], **settings)


@pytest.mark.parametrize("completion", ["eager", "latest-legal", "random"])
def test_what_is_still_in_flight_at_the_end_is_performed(completion):
    """The mbarriers of a multicast are checked when it completes; no thread waits for this one, at which there is none."""
    with pytest.raises(FaultError, match="the mbarrier at .* is no mbarrier: never initialised"):
        signal(SIGNALS["multicast commit"].replace("[bar]", "[tile+512]") + SYNC, completion=completion)
