"""What kernels reach of a GPU's documented rates, and what launches and waves of CTAs cost: the coefficients of predictions.

``ptxkit fuse`` predicts the time of groups of operations with them, and :mod:`ptxkit.workload.choice` the time of variants.
They were determined on an H200 and are used for other GPUs as shares of their documented facts.
"""

from __future__ import annotations

from ptxkit.targets.gpus import Gpu

COPY = 0.89  # fraction of the documented bandwidth that a copy reaches on an H200: 4283 of 4800 GB/s (expectations)
L2_RATE = 2.0  # rate of reads that hit in L2, relative to device memory; an assumption
PRODUCT = 0.75  # fraction of the documented peak that a good product reaches on an H200 (docs/gemm.md)
VECTOR = 0.5  # fraction of the peak of f32 multiply-adds that a mixture of operations reaches; an assumption
LAUNCH_US = 1.0  # the time that one more kernel costs in a graph of kernels on an H200 (docs/benchmarking.md)
RESIDENT = 0.5  # fraction of L2 up to which a result is assumed to be there still when the next kernel reads it
WARP_PRODUCT = 0.71  # rate of mma.sync over that of wgmma (scripts/regret.py --fit)
WAVE_US = (
    0.96  # a wave of CTAs that load, compute and store once: the latency of device memory (scripts/regret.py --fit)
)


def copy_gbs(gpu: Gpu) -> float:
    """The bandwidth that a copy is expected to reach, in GB/s."""
    return COPY * gpu.bandwidth_gbs
