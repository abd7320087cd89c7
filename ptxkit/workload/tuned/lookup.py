"""Which recorded winner applies to a workload on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError
from ptxkit.workload.tuned import code, merge, store
from ptxkit.workload.tuned.record import Record, distance, size_class

if TYPE_CHECKING:
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload

Resolve = Callable[["Workload", str, Mapping[str, Any]], code.Resolved]
"""(workload, name of a variant, tile) -> resolved for the device without recorded winners."""


def tile_of(workload: Workload, variant: str, gpu: str, target: Target) -> Record | None:
    """The record whose tile the variant takes at these sizes: of a sweep over its tiles, or of ``--tune`` that it won.

    It is of exactly these sizes, or else of the nearest ones in their class. Its machine code has not been checked yet; see
    :func:`applies`.
    """
    return _best(workload, gpu, target, lambda r: r.variant == variant)


def winner(workload: Workload, gpu: str, target: Target) -> Record | None:
    """The record of ``--tune`` for these sizes or for the nearest ones in their class, unchecked as :func:`tile_of`."""
    return _best(workload, gpu, target, lambda r: r.scope == "variant")


def applies(found: Record | None, workload: Workload, resolve: Resolve) -> bool:
    """Whether the variant still offers the recorded tile, and its machine code is what was measured; the log says why not."""
    if found is None:
        return False
    why = objection(found, workload, resolve)
    if why:
        store.say_once(f"the recorded winner {found.winner} of {found.case} is not used: {why} (ptxkit tuned list)")
    return not why


def objection(found: Record, workload: Workload, resolve: Resolve) -> str:
    """Why a record of the workload's kernel is not used today; "" if it is."""
    if found.incomplete:
        return found.incomplete
    variant = workload.variants().get(found.variant)
    if variant is None:
        return f"{workload.name} has no variant {found.variant} any more"
    if not all(value in variant.tile.get(name, ()) for name, value in found.tile.items()):
        return f"{found.variant} does not offer this tile any more"
    try:
        fields: dict[str, Any] = {**found.sizes, **found.options}
        measured = type(workload).of(fields).on(workload.device)
        resolved = resolve(measured, found.variant, found.tile)
    except PtxkitError as error:
        return str(error).splitlines()[0]
    why = code.changed(found.inputs, found.code, resolved)
    return f"{why}; NVRTC {found.nvrtc} had compiled it" if why and found.nvrtc else why


def _best(workload: Workload, gpu: str, target: Target, suits: Callable[[Record], bool]) -> Record | None:
    sizes, options = workload.sizes, workload.options
    wanted = size_class(sizes)
    found = [
        r
        for r in store.read_leniently(gpu)
        if r.kernel == workload.name
        and r.options == options
        and suits(r)
        and r.target in ("", target.name)
        and list(r.sizes) == list(sizes)
        and (r.sizes == sizes or r.size_class == wanted)
    ]
    if not found:
        return None
    nearest = min(distance(r.sizes, sizes) for r in found)
    return max((r for r in found if distance(r.sizes, sizes) == nearest), key=merge.rank)


