"""The logical clock of timelines: steps of warps, waits, asynchronous operations and phases of mbarriers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from programs import THREAD, Run, kernel
from test_async_copy import STAGES, folded
from test_bulk_copy import WAIT, load

from ptxkit.emulator.timeline import record as spans
from ptxkit.emulator.timeline.recorder import Timeline
from ptxkit.errors import DeadlockError

SOURCE = np.arange(1, 513, dtype=np.uint32)


def traced(text: str, *arrays: np.ndarray, ctas=None, latency: int = 100, workers: int = 2, **launch):
    timeline = Timeline(ctas, latency)
    outs = Run(kernel(text), workers)(*arrays, timeline=timeline, **launch)
    timeline.finish()
    (record,) = timeline.launches
    return record, outs


def test_a_load_is_in_flight_from_its_issue_to_the_wait():
    record, (_, out) = traced(load(2048, WAIT.format(parity=0)), SOURCE, np.zeros_like(SOURCE), block=128)
    assert (out == SOURCE[::-1]).all()
    (flight,) = record.flights
    assert (flight.kind, flight.nbytes, flight.cta, flight.warp) == ("TMA load", 2048, 0, 0)
    assert flight.completes == flight.issued + 100 == flight.observed
    waits = [s for s in record.spans if s.kind == spans.WAIT and "mbarrier" in s.name]
    assert {s.warp for s in waits} == {0, 1, 2, 3} and {s.end for s in waits} == {flight.observed}
    (phase,) = record.phases
    assert phase.number == 0 and phase.end == flight.completes


@pytest.mark.parametrize("latency", [0, 1, 1000])
def test_the_latency_is_what_a_wait_waits_for(latency):
    record, _ = traced(load(2048, WAIT.format(parity=0)), SOURCE, np.zeros_like(SOURCE), block=128, latency=latency)
    (flight,) = record.flights
    assert flight.observed >= flight.issued + latency
    assert latency < 1000 or record.ends[0] > 1000


def test_an_operation_that_no_wait_observes():
    record, _ = traced(load(2048, "bar.sync 0;"), SOURCE, np.zeros_like(SOURCE), block=128)
    assert record.flights[0].observed is None


def test_groups_in_flight():
    """Three copies are issued in advance; each wait that allows two copies in flight waits for the oldest one."""
    rows = np.arange(1280, dtype=np.uint32).reshape(10, 128)
    record, (_, out) = traced(STAGES.format(pending=2), rows, np.zeros(128, np.uint32), block=128)
    assert (out == folded(rows)).all()
    mine = [f for f in record.flights if f.warp == 0]
    assert len(mine) == 10 and {f.nbytes for f in mine} == {128} and {f.kind for f in mine} == {"cp.async"}
    assert all(f.observed >= f.completes for f in mine)
    most = max(sum(g.issued <= f.issued < g.observed for g in mine) for f in mine)
    assert most == 3


BARRIER = (
    THREAD
    + """
    setp.lt.u32 %p1, %r0, 32; @!%p1 bra MEET;
    mov.u32 %r5, 0; AGAIN: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 50; @%p2 bra AGAIN;
    MEET: bar.sync 0; st.global.b32 [%rd22], %r0;
    """
)


def test_warps_that_are_early_wait_at_a_barrier():
    record, _ = traced(BARRIER, SOURCE, SOURCE, block=128)
    waits = {s.warp: s for s in record.spans if s.kind == spans.WAIT}
    assert set(waits) == {1, 2, 3}
    assert all(s.end - s.start > 140 and "barrier" in s.name for s in waits.values())
    assert {s.warp for s in record.spans if s.kind == spans.EPILOGUE} == {0, 1, 2, 3}


def test_spans_of_a_warp_cover_its_steps_without_gaps():
    record, _ = traced(BARRIER, SOURCE, SOURCE, block=128)
    for warp in range(4):
        mine = [s for s in record.spans if s.warp == warp]
        assert mine[0].start == 0
        assert all(a.end == b.start for a, b in pairwise(mine))
        assert mine[-1].end == record.ends[0]


def test_chosen_ctas_alone_are_recorded():
    source = np.arange(40 * 512, dtype=np.uint32)
    text = load(2048, WAIT.format(parity=0))
    record, _ = traced(text, source, np.zeros_like(source), grid=40, block=128, ctas=[3, 7])
    assert list(record.recorded) == [3, 7] and {f.cta for f in record.flights} == {3, 7}


def test_a_cluster_is_recorded_as_a_whole():
    source = np.arange(8 * 512, dtype=np.uint32)
    text = load(2048, WAIT.format(parity=0))
    record, _ = traced(text, source, np.zeros_like(source), grid=8, block=128, cluster=2, ctas=[5])
    assert list(record.recorded) == [4, 5] and set(record.clusters.values()) == {4}


def test_the_number_of_host_threads_changes_nothing():
    source = np.arange(100 * 512, dtype=np.uint32)
    text = load(2048, WAIT.format(parity=0))
    records = [
        traced(text, source, np.zeros_like(source), grid=100, block=128, ctas=[0, 60, 99], workers=n)[0] for n in (1, 2)
    ]
    assert [f.__dict__ for f in records[0].flights] == [f.__dict__ for f in records[1].flights]
    assert records[0].spans == records[1].spans and records[0].ends == records[1].ends


def test_a_deadlock_leaves_what_came_before_it():
    timeline = Timeline()
    text = kernel(load(2048, WAIT.format(parity=0) + WAIT.format(parity=1).replace("WAIT", "AGAIN")))
    with pytest.raises(DeadlockError):
        Run(text)(SOURCE, np.zeros_like(SOURCE), block=128, timeline=timeline)
    timeline.finish()
    assert len(timeline.launches[0].flights) == 1 and timeline.launches[0].ends[0] > 100
