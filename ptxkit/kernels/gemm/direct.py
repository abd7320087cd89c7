"""Tiles of direct_rows.cuh: products with few rows of a that read rows of b of any length, each byte once.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm import stream_model, unaligned
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import WARP

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_direct.cu"
WARPS = 8
GROUP = 8  # rows of b that a warp loads together
STEP_BYTES = 64  # along k, of a step of a warp
MOST_ROWS = 16  # of a, up to which the variant is considered: beyond, to read a in each warp takes longer than to copy b

SPACE = {
    "TOKENS": [8, 16, 32],  # rows of a in a tile
    "ROWS": [2, 1, 4],  # of b of a warp, in units of 8 rows
    "STAGES": [4, 3, 6, 8],  # of the ring of a warp
    "PARTS": [8, 4, 2, 1],  # of k, each for other warps
    "CLUSTER": [1, 2, 4, 8],  # CTAs that divide k in addition
    "ALIGN": [16, 32, 64, 128],  # bytes of which the rows of a tile begin at the same place
}
SHAPES = {8: ((4, 8), (4, 4), (2, 4)), 16: ((4, 4),)}
"""TOKENS -> ROWS and STAGES of the tiles that are considered."""


@dataclass(frozen=True)
class DirectTile(TemplateStruct):
    """``DirectTile`` of cu/ptxkit/gemm/direct_rows.cuh."""

    TOKENS: int
    ROWS: int
    STAGES: int


def shared_bytes(t: Mapping[str, int]) -> int:
    """Bytes of dynamic shared memory of a CTA: the rings of its warps."""
    return int(WARPS * t["STAGES"] * (t["ROWS"] + 2 * t["TOKENS"] // GROUP) * GROUP * STEP_BYTES)


def along_k(w: Matmul) -> bool:
    """Whether both operands are contiguous along k."""
    return w.a_layout == "row" and w.b_layout == "column"


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of step 16."""
    if not along_k(w):
        return "reads rows of a and of b along k: layout tn"
    if (needed := shared_bytes(t)) > (limit := w.device.target.limits.shared_bytes_per_cta):
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


def period(pitch: int, align: int) -> int:
    """Rows from one to the next that begins at the same place of ``align`` bytes; ``pitch`` in elements."""
    return align // gcd(align, pitch * unaligned.SIZE)


def weights(t: Mapping[str, int]) -> int:
    """Rows of b of a CTA."""
    return GROUP * t["ROWS"] * (WARPS // t["PARTS"])


def ctas(w: Matmul, t: Mapping[str, int]) -> int:
    """CTAs of the launch: those of a cluster have the same TOKENS rows of a and rows of b, which begin at one place."""
    places = period(unaligned.pitches(w)["b"], t["ALIGN"])
    return places * cdiv(cdiv(w.n, places), weights(t)) * cdiv(w.m, t["TOKENS"]) * t["CLUSTER"]


def launches(w: Matmul, t: Tile) -> list[Launch]:
    """A launch of ``matmul_direct``."""
    pitch = unaligned.pitches(w)
    places = (period(pitch["b"], t.ALIGN), t.ALIGN // unaligned.SIZE)
    return [
        Launch(
            "matmul_direct",
            ctas(w, t),
            WARP * WARPS,
            ("a", "b", *w.scalars, pitch["a"], pitch["b"], *places, WARPS // t.PARTS),
            shared=shared_bytes(t),
            cluster=t.CLUSTER if t.CLUSTER > 1 else None,
            template=(DirectTile(t.TOKENS, t.ROWS, t.STAGES), f"ptxkit::{w.kind}", w.epilogue_bits),
        )
    ]


def considered(w: Matmul) -> bool:
    """Whether the variant may be the fastest: for few rows of a, and operands that TMA cannot read.

    With other operands, step 13, 14 or 15 was faster or within 3% in all products that were measured.
    """
    return along_k(w) and w.m <= MOST_ROWS and bool(unaligned.copies(w))


def was_timed(w: Matmul) -> bool:
    """Whether there are times of such products."""
    return considered(w) and measured(w.device).direct is not None


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider: the fewest rows of a that hold them all, and parts of k for all SMs."""
    tokens = min((size for size in SHAPES if size >= w.m), default=max(SHAPES))
    align = 16 if unaligned.aligned(unaligned.pitches(w)["b"]) else 32
    for rows, stages in SHAPES[tokens]:
        for cluster in SPACE["CLUSTER"]:
            t = {"TOKENS": tokens, "ROWS": rows, "STAGES": stages, "PARTS": WARPS, "CLUSTER": cluster, "ALIGN": align}
            parted = cluster == 1 or (ctas(w, t) <= w.device.sms and w.k * unaligned.SIZE >= cluster * WARPS * STEP_BYTES)
            if parted and usable(w, t) is True:
                yield t


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What the launch does; a stage has 128 bytes along k of all rows of b of a CTA."""
    count, of_cluster, rows = ctas(w, t), t["CLUSTER"], weights(t)
    sms = cluster_ctas(w.device, of_cluster) if of_cluster > 1 else w.device.sms
    limits = w.device.target.limits
    on_sm = cdiv(count, sms)
    resident = min(on_sm, limits.shared_bytes // (shared_bytes(t) + limits.reserved_bytes))
    sums = t["TOKENS"] * rows * on_sm
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, t["TOKENS"], rows),
        steps=on_sm * cdiv(w.k * unaligned.SIZE, ROW_BYTES * of_cluster),
        rows=t["TOKENS"],
        columns=rows,
        delivered=t["TOKENS"] + rows,
        sms=min(count, sms),
        idle=1 - min(count, sms) / w.device.sms,
        stages=t["PARTS"] * t["STAGES"] // 2 * resident,
        units=rows / 64,
        wgmma_columns=t["TOKENS"],
        ends=sums / of_cluster,
        scattered=sums / of_cluster,
        exchanged=sums if of_cluster > 1 else 0,
        waves=cdiv(on_sm, resident) - 1,
        clustered=of_cluster > 1,
    )


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.direct or entry.swapped, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t))
