"""Timelines as a trace in the JSON format of Chrome's trace viewer and of Perfetto.

Source: "Trace Event Format", Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Its
``ts`` and ``dur`` count steps here (:mod:`ptxkit.emulator.timeline.record`), although viewers label them as microseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptxkit.emulator.timeline.record import EPILOGUE, WAIT, Flight, LaunchRecord, PhaseSpan
from ptxkit.isa.mangled import base_name

UNIT = (
    "ts and dur count steps, not time: a warp advances by one step with each instruction, all warps advance together, a wait "
    "continues at the step of what it has waited for, and an asynchronous operation takes {latency} steps or more"
)
FIRST_FLIGHT, FIRST_BARRIER = 1000, 100_000
"""Thread numbers of the tracks of asynchronous operations and of mbarriers, after those of warps."""

PRODUCTS = ("tcgen05.mma", "wgmma")
"""Kinds of matrix products."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Traced:
    """The launches of one variant; ``error`` is what ended them, or "" ."""

    title: str
    launches: Sequence[LaunchRecord]
    error: str = ""


def document(found: Sequence[Traced], latency: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The trace: one process for each CTA of each launch, in the order of the launches.

    Args:
        facts: entries of the metadata: the version, the sizes, the target.
    """
    named: list[Event] = []
    events: list[Event] = []
    launches: list[dict[str, Any]] = []
    process = 0
    for traced in found:
        base = 0
        for number, record in enumerate(traced.launches):
            for cta in record.recorded:
                process += 1
                place = f"launch {number}, " if len(traced.launches) > 1 else ""
                title = f"{traced.title}: {place}CTA {record.recorded[cta]}"
                if record.cluster_size > 1:
                    title += f", cluster of CTA {record.recorded[record.clusters[cta]]}"
                named += _names(process, title)
                tracks, new = _events(record, cta, process, base)
                named += tracks
                events += new
            base += max(record.ends.values(), default=0)
            launches.append(_facts(traced, number, record))
    events.sort(key=lambda e: (e["ts"], e["pid"], e["tid"], -e.get("dur", 0)))
    other = {"unit": UNIT.format(latency=latency), "latency_steps": latency, **facts, "launches": launches}
    return {"traceEvents": [*named, *events], "otherData": other}


def _facts(traced: Traced, number: int, record: LaunchRecord) -> dict[str, Any]:
    return {
        "variant": traced.title,
        "launch": number,
        "kernel": base_name(record.kernel),
        "grid": list(record.grid),
        "block": list(record.block),
        "cluster": list(record.cluster),
        "ctas": record.ctas,
        "recorded_ctas": [list(at) for at in record.recorded.values()],
        "left_out_ctas": record.ctas - len(record.recorded),
        "left_out_spans": record.dropped,
        "ended_by": traced.error or None,
    }


def _names(process: int, title: str) -> list[Event]:
    return [
        {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": title}},
        {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}},
    ]


def _track(process: int, thread: int, title: str) -> list[Event]:
    return [
        {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": title}},
        {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}},
    ]


def _span(process: int, thread: int, category: str, name: str, start: int, end: int, **args: Any) -> Event:
    return {
        "ph": "X", "pid": process, "tid": thread, "cat": category, "name": name, "ts": start, "dur": end - start, "args": args
    }  # fmt: skip


def end_of(flight: Flight, record: LaunchRecord) -> int:
    """Step at which an operation is no longer in flight: the first wait for it, or the end of the recorded CTAs."""
    if flight.observed is not None:
        return flight.observed
    return max(flight.completes, *record.ends.values()) if record.ends else flight.completes


def _events(record: LaunchRecord, cta: int, process: int, base: int) -> tuple[list[Event], list[Event]]:
    """The names of the tracks of a CTA, and its events."""
    named: list[Event] = []
    events: list[Event] = []
    warps = -(-record.block[0] * record.block[1] * record.block[2] // 32)
    spans = [s for s in record.spans if s.cta == cta]
    for warp in range(warps):
        mine = [s for s in spans if s.warp == warp]
        kinds = {s.kind for s in mine}
        issues = {f.kind for f in record.flights if f.cta == cta and f.warp == warp}
        roles = sorted(issues | ({EPILOGUE} & kinds))
        named += _track(process, warp + 1, f"warp {warp}" + (f" ({', '.join(roles)})" if roles else ""))
        for s in mine:
            name = f"wait: {s.name}" if s.kind == WAIT else s.name
            events.append(_span(process, warp + 1, s.kind, name, base + s.start, base + s.end))
    tracks, flights = _flights([f for f in record.flights if f.cta == cta], record, process, base)
    named += tracks
    events += flights
    tracks, phases = _phases([p for p in record.phases if p.cta == cta], process, base)
    named += tracks
    events += phases
    return named, events + _counters(record, cta, process, base)


def _flights(
    flights: Iterable[Flight], record: LaunchRecord, process: int, base: int
) -> tuple[list[Event], list[Event]]:
    """Operations in flight, on so many tracks of each kind that those of one track do not overlap."""
    by_kind: dict[str, list[Flight]] = {}
    for flight in flights:
        by_kind.setdefault(flight.kind, []).append(flight)
    named: list[Event] = []
    events: list[Event] = []
    thread = FIRST_FLIGHT
    for kind, mine in sorted(by_kind.items()):
        free: list[tuple[int, int]] = []
        for f in mine:
            end = end_of(f, record)
            if free and free[0][0] <= f.issued:
                _, track = heapq.heappop(free)
            else:
                track = thread + len(free)
                named += _track(process, track, f"{kind} #{len(free)}")
            heapq.heappush(free, (end, track))
            args: dict[str, Any] = {"opcode": f.opcode, "at": f.place, "warp": f.warp, "completes": base + f.completes}
            if f.nbytes:
                args["bytes"] = f.nbytes
            if f.observed is None:
                args["observed"] = False
            events.append(_span(process, track, kind, kind, base + f.issued, base + end, **args))
        thread += len(free)
    return named, events


def _phases(phases: Iterable[PhaseSpan], process: int, base: int) -> tuple[list[Event], list[Event]]:
    """The phases of mbarriers, a track for each mbarrier."""
    named: list[Event] = []
    events: list[Event] = []
    tracks: dict[str, int] = {}
    for p in phases:
        if p.barrier not in tracks:
            tracks[p.barrier] = FIRST_BARRIER + len(tracks)
            named += _track(process, tracks[p.barrier], p.barrier)
        events.append(_span(process, tracks[p.barrier], "mbarrier", f"phase {p.number}", base + p.start, base + p.end))
    return named, events


def levels(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The sum of the weights of (start, end, weight) spans as (step, level) at each step where it changes."""
    changes: dict[int, int] = {}
    for start, end, weight in spans:
        if end > start:
            changes[start] = changes.get(start, 0) + weight
            changes[end] = changes.get(end, 0) - weight
    level, found = 0, []
    for step in sorted(changes):
        level += changes[step]
        found.append((step, level))
    return found


def _counters(record: LaunchRecord, cta: int, process: int, base: int) -> list[Event]:
    mine = [f for f in record.flights if f.cta == cta]
    moved = levels((f.issued, end_of(f, record), f.nbytes) for f in mine if f.kind == "TMA load")
    products = levels((f.issued, end_of(f, record), 1) for f in mine if f.kind in PRODUCTS)
    columns = [(c.step, c.own) for c in record.columns if c.cta == cta]
    found = []
    for name, unit, samples in (
        ("TMA load bytes in flight", "bytes", moved),
        ("matrix products in flight", "products", products),
        ("tensor memory columns", "columns", columns),
    ):
        for step, level in samples:
            found.append({"ph": "C", "pid": process, "tid": 0, "name": name, "ts": base + step, "args": {unit: level}})
    return found
