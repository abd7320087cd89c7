"""A cost model for machines without a GPU: the minimum time of each part of an SM and of the memory, from the
emulator's exact counts, divided by the share of the peak that the resident warps can sustain.

The model includes the number of issued warp instructions, the wavefronts of shared memory, the sectors and bytes moved,
the CTAs of the busiest SM and its resident warps. It does not include latency chains, caches or the scheduler.
``scripts/search_quality.py --model`` compares its ranking with measured times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.targets.gpus import reference_facts

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters

# Resident warps per SM at which latency is hidden and the peak is reached, and the share of the peak as that number
# approaches 0. Both were fitted to journals of sweeps on an H200.
WARPS_FOR_PEAK = 9
PEAK_WITHOUT_WARPS = 0.2
SECTORS = 2.0  # 32-byte sectors of L1 traffic of each SM in each clock
DRAM_SHARE = 0.55  # of those sectors, the share that is read from beyond L1
SPILL = 8  # clocks for each warp that stores or loads a spilled register, beyond the instruction


_H200 = reference_facts("sm_90a")  # the GPU that the constants above were fitted to
ISSUE = _H200.target.limits.subpartitions  # warp instructions that an SM issues in a clock


@dataclass(frozen=True)
class Geometry:
    """The geometry of a launch, and the SMs that it is distributed over.

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

    The busiest SM executes its share of the CTAs in rounds of as many as are resident at a time. The last round may
    have fewer CTAs, whose warps hide less latency.
    """
    warps = math.ceil(geometry.threads / 32)
    held = max(1, round(geometry.occupancy * geometry.max_warps / warps))
    rounds, rest = divmod(math.ceil(geometry.ctas / geometry.sms), held)
    share = rounds * held / hidden(held * warps) + (rest / hidden(rest * warps) if rest else 0)
    return share / geometry.ctas


def transferred(value: float, counted: Geometry, launched: Geometry) -> float:
    """The cost of a launch, estimated from the cost of a smaller launch of the same tile: the total work is assumed to
    grow by the same factor for all tiles, while the residency of CTAs is computed for the larger launch."""
    return value / stretch(counted) * stretch(launched)


def hidden(warps: int) -> float:
    """The share of its peak that an SM reaches with this number of resident warps."""
    return min(1.0, PEAK_WITHOUT_WARPS + (1 - PEAK_WITHOUT_WARPS) * warps / WARPS_FOR_PEAK)
