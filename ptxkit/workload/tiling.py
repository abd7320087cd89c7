"""The tile of a variant that computes a product in blocks: the preferred one, unless the model expects another to be faster.

The tiles that are compared differ in the blocks, in their number in flight, and in the cluster; each is the first one with
these values that the description prefers or declares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ptxkit.errors import UsageError
from ptxkit.workload.cost import Model, fitted
from ptxkit.workload.launch import Launch, Tile

if TYPE_CHECKING:
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import DeviceFacts
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

DEPTHS = 2  # values of STAGES that are compared for each block, the largest that fit


def faster(
    workload: Workload, variant: Variant, target: Target, preferred: Tile
) -> tuple[Tile, tuple[Launch, ...], float] | None:
    """A tile that is predicted to be faster than the preferred one by more than the fitted margin, with its launches and how
    many times as fast; None without one.

    Args:
        workload: with its sizes and the facts of a device. preferred: the tile that the variant would take.
    """
    if not variant.blocks:
        return None
    tile, gain = _best(workload, workload.device, variant.name, target.name, preferred)
    if tile is None:
        return None
    return tile, variant.launches(workload, tile), gain


@lru_cache(maxsize=4096)
def _best(workload: Workload, facts: DeviceFacts, name: str, target: str, preferred: Tile) -> tuple[Tile | None, float]:
    from ptxkit.targets import Target

    workload, variant, parsed = workload.on(facts), workload.variant(name), Target.parse(target)

    def predicted(tile: Tile) -> float:
        return Model(workload, variant, parsed, tile, variant.launches(workload, tile)).terms().least

    before = predicted(preferred)
    found = {tile: predicted(tile) for tile in candidates(workload, variant, parsed)}
    if not found:
        return None, 1.0
    best = min(found, key=found.__getitem__)
    gain = before / found[best]
    return (best, gain) if gain > fitted().margin else (None, gain)


def candidates(workload: Workload, variant: Variant, target: Target) -> Iterator[Tile]:
    """For each block, and each cluster without idle CTAs, the tiles with the most stages that fit."""
    if not variant.blocks:
        return
    rows, columns = variant.blocks
    clusters = [name for name in ("CLUSTER_M", "CLUSTER_N") if name in variant.tile]
    for block in itertools.product(variant.tile[rows], variant.tile[columns]):
        for cluster in itertools.product(*(variant.tile[name] for name in clusters)):
            fixed = dict(zip((rows, columns, *clusters), (*block, *cluster), strict=True))
            stages = sorted(variant.tile.get("STAGES", ()), reverse=True)
            deepest = (_first(workload, variant, target, {**fixed, "STAGES": value}) for value in stages)
            made = deepest if stages else iter([_first(workload, variant, target, fixed)])
            yield from itertools.islice((tile for tile in made if tile is not None), DEPTHS)


def _first(workload: Workload, variant: Variant, target: Target, fixed: Mapping[str, Any]) -> Tile | None:
    try:
        return variant.select_tile(workload, target, fixed)
    except UsageError:
        return None
