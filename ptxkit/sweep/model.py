"""A cost from counts, for machines without a GPU: what each part of an SM and the memory needs at least, over what hides it.

It is a model and is called one. It knows how many warp instructions are issued, how often shared memory is passed through, how
many sectors and bytes are moved, how many warps are resident and how full the last wave of CTAs is. It does not know latency
chains, caches or the scheduler. Its ranking has not been held against measured times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.emulator.counters import Counters

ISSUE = 4  # warp instructions an SM issues in a clock
ENOUGH_WARPS = 16  # resident on an SM: fewer leave latency exposed, at full unrolling
SECTORS = 2.0  # 32-byte sectors of L1 traffic an SM and clock
DRAM_SHARE = 0.55  # of those, from beyond L1
SPILL = 8  # clocks for each warp that stores or loads a spilled register, beyond the instruction


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
    max_warps: int = 64
    sms: int = 132


def cost(counters: Counters, geometry: Geometry) -> float:
    """Clocks, roughly; only ratios mean anything."""
    issue = counters.warp_instructions / ISSUE
    shared = counters.shared_load_wavefronts + counters.shared_store_wavefronts
    memory = counters.global_sectors / SECTORS / DRAM_SHARE
    local = SPILL * (counters.local_load_bytes + counters.local_store_bytes) / 128
    bound = max(issue, shared, memory) + 0.25 * (issue + shared + memory - max(issue, shared, memory)) + local
    return bound / geometry.sms / hidden(geometry) / filled(geometry)


def hidden(geometry: Geometry) -> float:
    """Part of the peak that the resident warps can keep busy."""
    warps = max(1.0, geometry.occupancy * geometry.max_warps)
    return min(1.0, 0.35 + 0.65 * warps / ENOUGH_WARPS)


def filled(geometry: Geometry) -> float:
    """Part of the SMs that work, over all waves of CTAs."""
    warps = math.ceil(geometry.threads / 32)
    resident = max(1, round(geometry.occupancy * geometry.max_warps / warps)) * geometry.sms
    return geometry.ctas / (math.ceil(geometry.ctas / resident) * resident)
