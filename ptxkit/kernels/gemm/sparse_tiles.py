"""Which step of a 2:4 sparse product is taken: step 6 of matmul_sparse, or the large tiles of step 5.

Both have the model of :mod:`ptxkit.kernels.gemm.stream_model` with coefficients of their own, which
``scripts/fit_sparse.py`` fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ptxkit import cdiv
from ptxkit.kernels.gemm import sparse_cluster_k, stream_model
from ptxkit.kernels.gemm.sparse_cluster_k import SparseProduct
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.measured import measured

MOST_ROWS = 700
"""Rows of a up to which step 6 has been compared with step 5 by times."""
MOST_TIMED_ROWS = 2048
"""Rows of a of the largest products whose times the models are fitted to."""


def stream_work(w: SparseProduct, t: Mapping[str, int]) -> StreamWork:
    """What a launch of step 5 does, in steps of 256 bytes of the dense matrix, which are two of its stages."""
    cluster, cols = t["CLUSTER_M"] * t["CLUSTER_N"], t["BN"] // w.matrices
    tiles = cdiv(w.m, t["BM"] * t["CLUSTER_M"]) * cdiv(w.n, cols * t["CLUSTER_N"]) * cluster
    ctas = max(1, w.device.sms // cluster) * cluster
    waves, of_b = cdiv(tiles, ctas), sparse_cluster_k.b_row_bytes(w) / ROW_BYTES
    return StreamWork(
        memory_bytes=w.moved,
        split=0.0 if w.k * w.itemsize % (2 * ROW_BYTES) == 0 else 1.0,
        steps=waves * w.all_steps,
        rows=2 * t["BM"],
        columns=t["BN"] * of_b,
        delivered=2 * t["BM"] / t["CLUSTER_N"] + t["BN"] * of_b / t["CLUSTER_M"],
        sms=min(tiles, ctas),
        idle=1 - min(tiles, ctas) / w.device.sms,
        others=t["CLUSTER_M"] + t["CLUSTER_N"] - 2,
        stages=t["STAGES"] / 2,
        units=t["BN"] / 64,
        wgmma_columns=t["BM"],
        ends=t["BM"] * t["BN"] * (1 if t["STORE"] else waves),
        clustered=cluster > 1,
    )


def predicted_us(w: SparseProduct, t: Mapping[str, int]) -> float | None:
    """The time of step 5 by the model; None for GPUs that have no times like it."""
    entry = measured(w.device)
    if entry.sparse_tiles is None:
        return None
    return stream_model.predicted_us(entry.sparse_tiles, stream_work(w, t), w.device.sms / entry.sms)


def slower(products: Sequence[tuple[SparseProduct, Mapping[str, int]]], step: str) -> str | None:
    """Why tiles of a few rows are not taken for these products: the large ones of ``step`` are predicted to be faster.

    None where they are not, or on GPUs that have no times of them.
    """
    if (rows := products[0][0].m) > MOST_ROWS:
        return f"for up to {MOST_ROWS} rows, not {rows}"
    mine = others = 0.0
    for w, large in products:
        if (other := predicted_us(w, large)) is None:
            return None
        mine += sparse_cluster_k.predicted_us(w, next(sparse_cluster_k.preferred(w)))
        others += other
    return f"predicted to take {mine:.1f} us, {step} {others:.1f} us" if others < mine else None
