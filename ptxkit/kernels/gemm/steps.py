"""Which of the last steps of matmul_wgmma is predicted to be the fastest: the smallest of the times of their preferred tiles.

The models of steps 8 and 10, and those of 9 and 13, are fitted to times of their own, and each is best where its tiles are the
fastest. :data:`FACTORS` are the ratios of measured and predicted times where the steps were compared with each other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ptxkit.kernels.gemm import stream_k, swapped, unaligned, wgmma_tiles

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

FACTORS = {8: 1.05, 9: 1.05, 10: 1.15, 11: 1.15, 12: 1.15, 13: 1.05}
FEW = 128  # rows of a, up to which
FEW_FACTOR = 1.15  # steps 8 and 10 take longer than their model says, because few bytes of b are in flight


@lru_cache(maxsize=1024)
def times(w: Matmul) -> dict[int, float]:
    """Step -> predicted microseconds, of the steps from 8 on that may be the fastest."""
    few = FEW_FACTOR if w.m <= FEW else 1.0
    whole = min(wgmma_tiles.predicted_us(w, t) for t in wgmma_tiles.candidates(w))
    shared = min(stream_k.predicted_us(w, t) for t in stream_k.candidates(w) if stream_k.usable(w, t) is True)
    if unaligned.needed(w):
        step = 12 if unaligned.copies(w) else 11
        return {step: whole * few * FACTORS[step], 13: shared * FACTORS[13]}
    found = {8: whole * few * FACTORS[8], 13: shared * FACTORS[13]}
    split = min((wgmma_tiles.predicted_us(w, t, t["PARTS"]) for t in wgmma_tiles.split_candidates(w)), default=None)
    if split is not None:
        found[10] = split * few * FACTORS[10]
    if w.m <= swapped.MOST_ROWS:
        usable = (t for t in swapped.candidates(w) if swapped.usable(w, t) is True)
        found[9] = min(swapped.predicted_us(w, t) for t in usable) * FACTORS[9]
    return found


def slower(w: Matmul, step: int) -> str | None:
    """Why another step is faster than this one; None if this one is predicted to be the fastest."""
    found = times(w)
    fastest = min(found, key=lambda other: found[other])
    if fastest == step:
        return None
    if step not in found:
        return f"step {fastest} is for products of these sizes"
    return f"predicted to take {found[step]:.3g} us, and step {fastest} {found[fastest]:.3g} us"


def swapped_slower(w: Matmul) -> str | None:
    """Why step 8 is faster than step 9, for kernels that have no others."""
    found = times(w)
    if 9 not in found:
        return f"for more than {swapped.MOST_ROWS} rows of a, larger tiles are faster"
    return None if found[9] <= found[8] else f"predicted to take {found[9]:.3g} us, and step 8 {found[8]:.3g} us"
