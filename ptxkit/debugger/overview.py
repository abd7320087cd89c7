"""Tables of the resident part of a kernel: positions of its warps, barriers, mbarriers and asynchronous operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.breakpoints import chain
from ptxkit.debugger.places import Lane, Place, lanes_of
from ptxkit.emulator.sync.cluster_barrier import ClusterBarrier
from ptxkit.emulator.sync.cta_barriers import CtaBarriers
from ptxkit.emulator.sync.mbarriers import Mbarriers, unpack
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.debugger.controller import Controller
    from ptxkit.debugger.session import Session
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.asynchronous import Operation

Row = dict[str, Any]


def resident_wave(session: Session) -> tuple[Controller, Wave]:
    """The wave that is being executed.

    Raises:
        UsageError: the kernel does not run.
    """
    session.need_running()
    controller = session.controller
    if controller.wave is None or controller.places is None:
        raise UsageError("no CTA is resident")
    return controller, controller.wave


def focused_cta(session: Session) -> tuple[Controller, Wave, int]:
    """The same with the index in the wave of the focused thread's CTA."""
    controller, wave = resident_wave(session)
    found = np.flatnonzero(wave.ctas == controller.focus.cta)
    if not len(found):
        raise UsageError(f"CTA {controller.focus.cta} is not resident; 'info cta' lists those that are")
    return controller, wave, int(found[0])


def _standing(wave: Wave, place: Place) -> Row:
    instruction = place.instruction
    lines = chain(instruction) if instruction is not None else ()
    waits = ""
    if place.waiting:
        waits = wave.waits_for(place.group, place.block).removeprefix(", ") or "the other threads of its warp"
    return {
        "state": "waiting" if place.waiting else "ready",
        "ptx_line": instruction.line if instruction is not None else 0,
        "file": lines[-1][0] if lines else "",
        "line": lines[-1][1] if lines else 0,
        "instruction": str(instruction) if instruction is not None else "end of the function",
        "waits_for": waits,
    }


def warps(session: Session) -> list[Row]:
    """The warps of the focused CTA; a warp whose threads stand at different instructions has a row for each."""
    controller, wave, cta = focused_cta(session)
    assert controller.places is not None
    rows: list[Row] = []
    seen = np.zeros(wave.shape, np.bool_)
    for place in controller.places.all():
        mask = place.group.full_mask() & ~seen
        seen |= mask
        for warp in np.flatnonzero(mask[cta].any(-1)).tolist():
            bits = _bits(mask[cta, warp])
            rows.append({"warp": warp, "lanes": bits, **_standing(wave, place)})
    for warp in range(wave.shape[1]):
        exists = np.arange(warp * 32, warp * 32 + 32) < wave.launch.threads
        gone = _bits(exists & ~seen[cta, warp])
        if gone:
            rows.append({"warp": warp, "lanes": gone, "state": "exited", "ptx_line": 0, "line": 0, "file": ""})
            rows[-1] |= {"instruction": "", "waits_for": ""}
    return sorted(rows, key=lambda r: (r["warp"], r["state"] == "exited", r["ptx_line"]))


def threads(session: Session) -> list[Row]:
    """All resident threads, those that stand at one instruction together."""
    controller, wave = resident_wave(session)
    assert controller.places is not None
    rows = []
    for place in controller.places.all():
        c, w, k = lanes_of(place.group)
        rows.append(
            {
                "threads": len(c),
                "warps": len(set(zip(c.tolist(), w.tolist(), strict=True))),
                "ctas": len(set(c.tolist())),
                "first_cta": wave.cta_coordinates(int(c[0])),
                "first_thread": wave.thread_coordinates(int(w[0]) * 32 + int(k[0])),
                "function": place.function.name,
                **_standing(wave, place),
            }
        )
    return sorted(rows, key=lambda r: (r["first_cta"][::-1], r["first_thread"][::-1]))


def lanes(session: Session) -> list[Row]:
    """The lanes of the focused warp."""
    controller, wave, cta = focused_cta(session)
    assert controller.places is not None
    warp = controller.focus.thread // 32
    rows = []
    for lane in range(min(32, wave.launch.threads - warp * 32)):
        where = Lane(cta, warp, lane)
        place = controller.places.find(where)
        row: Row = {"lane": lane, "thread": wave.thread_coordinates(where.thread)}
        gone = {"state": "exited", "ptx_line": 0, "file": "", "line": 0, "instruction": "", "waits_for": ""}
        rows.append({**row, **(gone if place is None else _standing(wave, place))})
    return rows


def ctas(session: Session) -> list[Row]:
    """The resident CTAs: how many threads are ready, wait and have exited."""
    controller, wave = resident_wave(session)
    assert controller.places is not None
    waiting = np.zeros(wave.shape, np.bool_)
    for place in controller.places.all():
        if place.waiting:
            waiting |= place.group.full_mask()
    live = np.ones(wave.shape, np.bool_) if wave.live is None else wave.live
    if wave.live_lanes == 0:
        live = np.zeros(wave.shape, np.bool_)
    exist = np.arange(wave.shape[1] * 32).reshape(wave.shape[1:]) < wave.launch.threads
    rows = []
    for k, cta in enumerate(wave.ctas.tolist()):
        alive, waits = int((live[k] & exist).sum()), int(waiting[k].sum())
        rows.append(
            {
                "cta": wave.cta_coordinates(k),
                "index": cta,
                "cluster_rank": int(wave.cluster_rank[k]),
                "ready": alive - waits,
                "waiting": waits,
                "exited": wave.launch.threads - alive,
            }
        )
    return rows


def barriers(session: Session) -> list[Row]:
    """The barriers of the focused CTA at which threads have arrived, and that of its cluster."""
    _, wave, cta = focused_cta(session)
    rows = []
    for number, b in sorted(wave.part(CtaBarriers).barriers.items()):
        waiting, extra = int(b.mask[cta].sum()), int(b.extra[cta])
        if waiting or extra:
            expected = int(b.count[cta]) or wave.launch.threads
            rows.append({"barrier": str(number), "waiting": waiting, "arrived": waiting + extra, "expected": expected})
    cluster = wave.part(ClusterBarrier)
    size = wave.launch.cluster_size
    start = cta // size * size
    arrived = int(cluster.arrived[start : start + size].sum())
    if arrived:
        waiting = sum(int(g.full_mask()[start : start + size].sum()) for g, _ in cluster.sleepers)
        expected = size * wave.launch.threads
        rows.append({"barrier": "cluster", "waiting": waiting, "arrived": arrived, "expected": expected})
    return rows


def mbarriers(session: Session) -> list[Row]:
    """The mbarriers that the focused CTA has initialised."""
    controller, wave, cta = focused_cta(session)
    words = wave.part(Mbarriers).words
    rows = []
    for at in sorted(controller.mbarriers):
        if at * 8 // wave.shared_stride != cta:
            continue
        pending, expected, tx, phase = (int(v[0]) for v in unpack(words[at : at + 1]))
        valid = int(words[at]) >> 62 == 1
        waiting = sum(
            int((np.broadcast_to(s.index, s.group.shape)[s.group.active()] == at).sum())
            for s in wave.part(Mbarriers).waiters.sleepers
        )
        rows.append(
            {
                "address": at * 8 % wave.shared_stride,
                "name": _mbarrier_name(wave, at),
                "valid": valid,
                "parity": phase,
                "pending": pending,
                "expected": expected,
                "tx_bytes": tx,
                "waiting": waiting,
            }
        )
    return rows


def operations(session: Session) -> list[Row]:
    """The asynchronous operations that have been issued and not been performed, of all resident CTAs."""
    controller, wave = resident_wave(session)
    rows = []
    for mechanism, pending in wave.queue.pending.items():
        for operation in pending.operations:
            rows.append(_operation(controller, wave, operation, mechanism.name))
            rows[-1]["group"] = pending.describe(operation, lambda at: _mbarrier_name(wave, at))
    return sorted(rows, key=lambda r: int(r["serial"]))


def _mbarrier_name(wave: Wave, at: int) -> str:
    return wave.part(Mbarriers).name(at).removeprefix("the mbarrier at ")


def _operation(controller: Controller, wave: Wave, operation: Operation, mechanism: str) -> Row:
    owners = operation.owner if operation.left is None else operation.owner[operation.left]
    per_cta = wave.shape[1] * 32
    found = sorted({int(o) // per_cta for o in owners.tolist()})
    first = int(owners[0]) if len(owners) else 0
    return {
        "serial": operation.serial,
        "mechanism": mechanism,
        "issued_at": controller.issued.get(operation.serial, ""),
        "elements": len(owners),
        "ctas": len(found),
        "first_cta": wave.cta_coordinates(first // per_cta),
        "first_thread": wave.thread_coordinates(first % per_cta),
        "group": "",
    }


def shared_variables(session: Session) -> list[Row]:
    """The variables in shared memory."""
    from ptxkit.debugger.thread import variable_name
    from ptxkit.emulator.memory.layout import SHARED_BASE

    _, wave = resident_wave(session)
    layout = wave.launch.code.layout
    module = session.subjects[wave.launch.name].module
    declared = {v.name: v for v in module.variables.values()}
    for f in module.functions.values():
        declared.update(f.variables)
    rows = []
    for name, address in sorted(layout.shared.items(), key=lambda p: p[1]):
        nbytes = declared[name].bytes if name in declared else 0
        rows.append(
            {
                "name": variable_name(name),
                "address": address,
                "offset": address - SHARED_BASE,
                "bytes": nbytes or SHARED_BASE + wave.launch.shared_bytes - layout.dynamic_base,
                "dynamic": nbytes == 0,
            }
        )
    return rows


def _bits(mask: Any) -> int:
    return int(sum(1 << int(k) for k in np.flatnonzero(mask)))
