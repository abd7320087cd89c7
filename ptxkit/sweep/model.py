"""A cost from counts, for machines without a GPU: what each part of an SM and the memory needs at least, over what hides it.

It is a model and is called one. It knows how many warp instructions are issued, how often shared memory is passed through, how
many sectors and bytes are moved, how many CTAs the busiest SM gets and how many warps it holds at a time. It does not know
latency chains, caches or the scheduler. ``scripts/search_quality.py --model`` holds its ranking against measured times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.targets.gpus import reference_facts

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters

ISSUE = 4  # warp instructions an SM issues in a clock
ENOUGH_WARPS = (
    9  # on an SM: fewer leave latency exposed, even at full unrolling. This and ALONE suit an H200's journals
)
ALONE = 0.2  # of the peak, what is left of it with hardly any warp
SECTORS = 2.0  # 32-byte sectors of L1 traffic an SM and clock
DRAM_SHARE = 0.55  # of those, from beyond L1
SPILL = 8  # clocks for each warp that stores or loads a spilled register, beyond the instruction


_H200 = reference_facts("sm_90a")  # the GPU whose journals the constants above suit


@dataclass(frozen=True)
class Geometry:
    """What the launch looks like.

    Attributes:
        ctas: of the grid. threads: of a CTA.
        occupancy: resident warps over the most. max_warps: of an SM. sms: of the GPU that is imagined.
    """

    ctas: int
    threads: int
    occupancy: float
    max_warps: int = _H200.target.limits.warps
    sms: int = _H200.sms


def cost(counters: Counters, geometry: Geometry) -> float:
    """Clocks, roughly; only ratios mean anything."""
    issue = counters.warp_instructions / ISSUE
    shared = counters.shared_wavefronts
    memory = counters.global_sectors / SECTORS / DRAM_SHARE
    local = SPILL * (counters.local_load_bytes + counters.local_store_bytes) / 128
    bound = max(issue, shared, memory) + 0.25 * (issue + shared + memory - max(issue, shared, memory)) + local
    return bound * stretch(geometry)


def stretch(geometry: Geometry) -> float:
    """Clocks of the busiest SM for each clock of work of the whole grid.

    An SM gets its share of the CTAs, and works on as many at a time as it holds, the last ones with fewer warps beside them.
    """
    warps = math.ceil(geometry.threads / 32)
    held = max(1, round(geometry.occupancy * geometry.max_warps / warps))
    rounds, rest = divmod(math.ceil(geometry.ctas / geometry.sms), held)
    share = rounds * held / hidden(held * warps) + (rest / hidden(rest * warps) if rest else 0)
    return share / geometry.ctas


def transferred(value: float, counted: Geometry, launched: Geometry) -> float:
    """The cost of a launch whose counts come from a smaller one of the same tile: work grows alike for all tiles, what an SM
    holds at a time does not."""
    return value / stretch(counted) * stretch(launched)


def hidden(warps: int) -> float:
    """Part of the peak that so many warps keep an SM at."""
    return min(1.0, ALONE + (1 - ALONE) * warps / ENOUGH_WARPS)
