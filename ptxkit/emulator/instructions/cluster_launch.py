"""clusterlaunchcontrol: a cluster takes over the work of one that has not started. PTX ISA, "clusterlaunchcontrol.try_cancel".

PTX does not define the format of the response. Here its four words are the coordinates of the first CTA and 1 for success, else
zeros. Hardware may report failure although clusters are pending; unless completion is eager every fourth request fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxkit.emulator.access.shared_memory import SharedSite
from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Elements, Index, Lanes
from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.simt.asynchronous import MBARRIER, Operation
from ptxkit.emulator.simt.step import PRED, U32, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.sync.mbarrier_instructions import BarrierSite, address_type
from ptxkit.emulator.sync.mbarriers import Mbarriers
from ptxkit.isa.types import TYPES

_BYTES = 16
_B128 = TYPES["b128"]


@effect(
    "clusterlaunchcontrol.try_cancel.async{.<space>}.mbarrier::complete_tx::bytes{.multicast::cluster::all}.b128",
    space="shared::cta",
)
def _try_cancel(b: Binding) -> Step:
    if b.target < 100:
        raise b.fail("needs sm_100 or newer")
    base, offset = b.address(b.operands[0])
    site = SharedSite(b.where, b.index, offset, _B128.dtype, 1, True)
    barrier = BarrierSite(b, b.operands[1], "shared::cta", key=1)
    everywhere, where = b.form["multicast__cluster__all"], b.where

    def cancel(x: Group, to: Lanes, at: Index) -> None:
        wave = x.wave
        active = x.active()
        index, _, start = site._flat(x, widen(to))
        words = barrier.index(x, at)
        wave.part(Mbarriers).check(x, words, where)
        cells = np.broadcast_to(index + start, x.shape)[active]
        signalled = np.broadcast_to(words, x.shape)[active]
        element, size = np.arange(len(cells)), wave.launch.cluster_size
        if everywhere and size > 1:
            cta = np.broadcast_to(x.cta, x.shape)[active]
            # the same offset in each CTA of the cluster
            steps = np.arange(size) - wave.cluster_rank[cta][:, None]
            element = np.repeat(element, size)
            cells = (cells[:, None] + steps * (wave.shared_stride // _BYTES)).reshape(-1)
            signalled = (signalled[:, None] + steps * (wave.shared_stride // 8)).reshape(-1)
        threads = x.thread[active][element]
        for races in wave.races:
            accessed = [(True, cells * _BYTES, np.full(1, _BYTES))]
            races.operations.completing(where, threads, signalled, accessed)
        responses: dict[int, Any] = {}

        def perform(which: Elements) -> None:
            for k in np.arange(len(cells))[which].tolist():
                e = int(element[k])
                if e not in responses:
                    responses[e] = _response(x)
                wave.shared.view(np.uint32).reshape(-1, 4)[cells[k]] = responses[e]
            wave.part(Mbarriers).complete_tx(signalled[which], _BYTES, where)

        def poison() -> None:
            wave.shared.reshape(-1, _BYTES)[cells] = POISON

        for writes in wave.generic_writes:
            writes.replaced(cells * _BYTES, np.full(len(cells), _BYTES))
        wave.launch.machine.version += 1
        wave.queue.submit(Operation(threads, perform, poison, barrier=signalled, tx=_BYTES), MBARRIER)

    return Step(cancel, ((base, address_type(b, base)), barrier.source))


def _response(x: Group) -> tuple[int, int, int, int]:
    cta = x.wave.launch.cancel_cluster()
    return (0, 0, 0, 0) if cta is None else (*x.wave.launch.cta_coordinates(cta), 1)


def _words(response: Lanes) -> Lanes:
    """The four words of each response, (..., 4) uint32."""
    flat = np.ascontiguousarray(response)
    return flat.view(np.uint32).reshape(*flat.shape, 4)


@effect("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128")
def _is_canceled(b: Binding) -> Step:
    to, response = b.operands
    return Step(lambda r: _words(r)[..., 3] == 1, ((response, _B128),), ((to, PRED),), pure=True)


@effect("clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128")
def _first(b: Binding) -> Step:
    to, response = b.operands
    out = tuple((o, U32) for o in b.elements(to))
    if len(out) != 4:
        raise b.fail(f"{len(out)} destinations; it has 4")
    return Step(
        lambda r: tuple(np.ascontiguousarray(_words(r)[..., k]) for k in range(4)), ((response, _B128),), out, pure=True
    )


@effect("clusterlaunchcontrol.query_cancel.<axis>.b32.b128", axis=" ".join(f"get_first_ctaid::{a}" for a in "xyz"))
def _coordinate(b: Binding) -> Step:
    to, response = b.operands
    k = "xyz".index(b.form["axis"][-1])
    return Step(lambda r: np.ascontiguousarray(_words(r)[..., k]), ((response, _B128),), ((to, U32),), pure=True)
