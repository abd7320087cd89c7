"""All facts about hardware: targets and their features, the limits of an SM, occupancy, launch limits, and GPUs.

==================  =====================================================================================
:mod:`.features`    what a kernel can require, and which targets have it
:mod:`.target`      the targets (``sm_75`` to ``sm_121a``), requirements in words
:mod:`.wgmma`       the shapes of the instruction
:mod:`.sm`          registers, threads, shared memory, CTA slots and clusters of an SM
:mod:`.occupancy`   how many CTAs of a kernel are resident
:mod:`.launch`      why no GPU of a target can launch a grid
:mod:`.gpus`        GPUs: SM count, L2, clocks, documented bandwidth and peak rates
:mod:`.achievable`  what kernels reach of these rates, and what launches cost
==================  =====================================================================================

The package needs neither numpy nor a CUDA library. It stands beside :mod:`ptxkit.isa`: neither imports the other.
"""

from ptxkit.targets.features import FEATURES, Feature
from ptxkit.targets.sm import SM_LIMITS, WARP, SmLimits
from ptxkit.targets.target import (
    TARGETS,
    Target,
    lowest_target,
    missing,
    needed_target,
    needs,
    rule_of,
    target_that_runs,
)

__all__ = [
    "FEATURES",
    "SM_LIMITS",
    "TARGETS",
    "WARP",
    "Feature",
    "SmLimits",
    "Target",
    "lowest_target",
    "missing",
    "needed_target",
    "needs",
    "rule_of",
    "target_that_runs",
]
