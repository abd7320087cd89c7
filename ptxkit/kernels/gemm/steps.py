"""Which of the last steps of matmul_wgmma is predicted to be the fastest: the smallest of the times of their preferred tiles.

All steps have one model (:mod:`ptxkit.kernels.gemm.stream_model`) with coefficients of their own, and a factor for each that is
fitted where the steps were compared with each other. Step 14 is left out until there are times of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxkit.kernels.gemm import cluster_k, stream_k, swapped, unaligned, wgmma_tiles
from ptxkit.kernels.measured import measured
from ptxkit.kernels.per_device import cached_per_device

CLEARLY = 0.95
"""The share of the predicted time of step 8 below which step 9 is taken by kernels that have no others. The mean error of the
choice is 3%; where ``linear_layernorm_gelu`` was measured on an H200, step 9 was slower than step 8 at the two sizes between
(128 rows of 4096 and of 8192, by 2 and 11%)."""

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul


@cached_per_device
def times(w: Matmul) -> dict[int, float]:
    """Step -> predicted microseconds, of the steps from 8 on that may be the fastest."""
    found = {13: min(stream_k.predicted_us(w, t) for t in stream_k.candidates(w) if stream_k.usable(w, t) is True)}
    if (divided := cluster_k.least_us(w)) is not None:
        found[14] = divided
    if unaligned.needed(w):
        found[12 if unaligned.copies(w) else 11] = min(unaligned.predicted_us(w, t) for t in unaligned.candidates(w))
        return found
    found[8] = min(wgmma_tiles.predicted_us(w, t) for t in wgmma_tiles.candidates(w))
    split = min((wgmma_tiles.predicted_us(w, t, t["PARTS"]) for t in wgmma_tiles.split_candidates(w)), default=None)
    if split is not None:
        found[10] = split
    if w.m <= swapped.MOST_ROWS:
        usable = (t for t in swapped.candidates(w) if swapped.usable(w, t) is True)
        found[9] = min(swapped.predicted_us(w, t) for t in usable)
    return found


def slower(w: Matmul, step: int) -> str | None:
    """Why another step is faster than this one; None if this one is predicted to be the fastest."""
    found = times(w)
    fastest = min(found, key=lambda other: found[other])
    if fastest == step:
        return None
    if step == 14 and measured(w.device).cluster_k is None:
        return "no times of it were measured"
    if step not in found:
        return f"step {fastest} is for products of these sizes"
    return f"predicted to take {found[step]:.3g} us, and step {fastest} {found[fastest]:.3g} us"


def swapped_slower(w: Matmul) -> str | None:
    """Why step 8 is faster than step 9, or not clearly slower, for kernels that have no others."""
    found = times(w)
    if 9 not in found:
        return f"for more than {swapped.MOST_ROWS} rows of a, larger tiles are faster"
    if found[9] <= CLEARLY * found[8]:
        return None
    compared = f"predicted to take {found[9]:.3g} us, and step 8 {found[8]:.3g} us"
    return compared if found[9] > found[8] else f"{compared}, a difference within the model's error"
