"""Step 10 of micro_tiling_matmul: clusters that compute one tile each and divide k among their CTAs."""

from __future__ import annotations

from typing import Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm.micro_tiles import (
    COPIES,
    OPTIONS,
    PARTS,
    RING_SPACE,
    F32Product,
    boxes_usable,
    copies_usable,
    copying,
    distributable,
    micro_tile,
    operands,
    producers,
    ring_bytes,
    threads,
)

SPACE = RING_SPACE | {
    "BM": [64, 128, 256, 32, 16, 96, 192],
    "BN": [128, 64, 256, 32, 16, 96, 192],
    "TM": [8, 4, 16],
    "TN": [8, 16, 4, 12],
    "WM": [32, 64, 16, 128],
    "WN": [64, 128, 32, 16, 48, 96],
    "STAGES": [3, 4, 5, 6, 8, 2],
    "CTAS": [2, 1, 3, 4],
    "PARTS": PARTS,
    "COPY": COPIES,
}


def sums_bytes(t: Tile) -> int:
    """Shared memory of the sums that a CTA receives."""
    vectors = t.TM * t.TN // 4
    return int(t.PARTS * cdiv(vectors, t.PARTS) * threads(t) * 16) if t.PARTS > 1 else 0


def apart(w: F32Product, t: Tile) -> int:
    """Bytes from the ring to the sums: those of the ring if both fit, else 0, with which sums take its place."""
    limits = w.device.target.limits
    both = ring_bytes(t) + sums_bytes(t)
    return ring_bytes(t) if (both + limits.reserved_bytes) * t.CTAS <= limits.shared_bytes else 0


def shared_bytes(w: F32Product, t: Tile) -> int:
    """Dynamic shared memory of ``matmul_cluster_k``."""
    return max(ring_bytes(t), apart(w, t) + sums_bytes(t))


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of the variant: that of the ring for rows of any length, a step for each part, and room for the sums."""
    for allows in (boxes_usable, copies_usable):
        if (said := allows(w, t)) is not True:
            return said
    if (steps := cdiv(w.k, t.BK)) < t.PARTS:
        return f"k={w.k} has {steps} steps of {t.BK}, fewer than PARTS={t.PARTS}"
    limits = w.device.target.limits
    if (shared_bytes(w, t) + limits.reserved_bytes) * t.CTAS > limits.shared_bytes:
        return f"{t.CTAS} CTAs need {shared_bytes(w, t) * t.CTAS} bytes of shared memory"
    return distributable(w, t)


def launches(w: F32Product, t: Tile) -> list[Launch]:
    """The launch of ``matmul_cluster_k``, and before it that of copies."""
    suffix, of_operands, of_template = operands(w, t)
    return [
        *copying(w, t),
        Launch(
            f"matmul_cluster_k{suffix}",
            w.grid(t.BM, t.BN) * t.PARTS,
            threads(t) + producers(t),
            (*of_operands, "c", w.m, w.n, w.k, apart(w, t)),
            shared=shared_bytes(w, t),
            cluster=t.PARTS if t.PARTS > 1 else None,
            template=(micro_tile(t), *of_template),
            options=OPTIONS,
        ),
    ]
