"""Tiles of matmul_shifted.cu: products whose CTAs shift rows of any length into place, for a short k or few rows of a.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm import direct, stream_model, unaligned
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import PORTABLE_CLUSTER

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_shifted.cu"
STAGES = 4  # steps along k whose copies are in flight
MOST_STEPS = 2  # along k, up to which the variant is considered
ALIGNED_BYTES = 144  # of the aligned vectors that contain 128 bytes of a row

SPACE = {
    "CONSUMERS": [1, 2],  # warpgroups that multiply, with 64 rows of a each
    "COLUMNS": [64, 128],  # rows of b in a tile
    "PARTS": [1, 2, 3, 4, 5, 6, 7, 8],  # of k, each for a CTA of a cluster
}


@dataclass(frozen=True)
class ShiftedTile(TemplateStruct):
    """``ShiftedTile`` of the kernel."""

    CONSUMERS: int
    COLUMNS: int


def height(t: Mapping[str, int]) -> int:
    """Rows of a in a tile."""
    return 64 * t["CONSUMERS"]


def steps(w: Matmul) -> int:
    """Steps along k."""
    return cdiv(w.k * unaligned.SIZE, ROW_BYTES)


def shared_bytes(w: Matmul, t: Mapping[str, int]) -> int:
    """Dynamic shared memory of a CTA: one tile or two, and the vectors of the steps in flight, whose place the sums take."""
    lines, count = height(t) + t["COLUMNS"], cdiv(steps(w), t["PARTS"])
    ring = lines * (min(count, 2) * ROW_BYTES + min(count, STAGES) * ALIGNED_BYTES)
    rows_of_warps = 4 * t["CONSUMERS"] * 64 * 4
    return max(ring, height(t) * (t["COLUMNS"] + 4) * 4 + rows_of_warps) if t["PARTS"] > 1 else ring


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of step 17."""
    if not direct.along_k(w):
        return "reads rows of a and of b along k: layout tn"
    if t["PARTS"] > (found := steps(w)):
        return f"k={w.k} has {found} step{'s' if found > 1 else ''} of {ROW_BYTES} bytes, fewer than PARTS={t['PARTS']}"
    return True


def tiles(w: Matmul, t: Mapping[str, int]) -> int:
    """Tiles of c."""
    return cdiv(w.m, height(t)) * cdiv(w.n, t["COLUMNS"])


def launches(w: Matmul, t: Tile) -> list[Launch]:
    """A launch of ``matmul_shifted``."""
    pitch = unaligned.pitches(w)
    return [
        Launch(
            "matmul_shifted",
            tiles(w, t) * t.PARTS,
            128 * t.CONSUMERS,
            ("a", "b", *w.scalars, pitch["a"], pitch["b"], t.PARTS),
            shared=shared_bytes(w, t),
            cluster=t.PARTS if t.PARTS > 1 else None,
            template=(ShiftedTile(t.CONSUMERS, t.COLUMNS), f"ptxkit::{w.kind}", w.epilogue_bits),
        )
    ]


def considered(w: Matmul) -> bool:
    """Whether the variant may be the fastest: where TMA cannot read an operand, and k has few steps.

    With more of them, the shifts take longer than a launch that copies the operands: 129 x 4099 x 300 took 9.0 us, step 12 7.7.
    """
    return direct.along_k(w) and steps(w) <= MOST_STEPS and bool(unaligned.copies(w))


def was_timed(w: Matmul) -> bool:
    """Whether there are times of such products."""
    return considered(w) and measured(w.device).shifted is not None


def resident(w: Matmul, t: Mapping[str, int]) -> int:
    """CTAs that share an SM, by their shared memory."""
    limits = w.device.target.limits
    return limits.shared_bytes // (shared_bytes(w, t) + limits.reserved_bytes)


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider: k is divided where there are fewer tiles than CTAs that can be resident."""
    for consumers in SPACE["CONSUMERS"]:
        for columns in SPACE["COLUMNS"]:
            for parts in SPACE["PARTS"]:
                t = {"CONSUMERS": consumers, "COLUMNS": columns, "PARTS": parts}
                fitting = parts <= PORTABLE_CLUSTER and tiles(w, t) * parts <= resident(w, t) * w.device.sms
                if parts == 1 or (fitting and usable(w, t) is True):
                    yield t


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What the launch does."""
    parts, rows, columns = t["PARTS"], min(height(t), w.m), t["COLUMNS"]
    count, sms = tiles(w, t) * parts, cluster_ctas(w.device, parts) if parts > 1 else w.device.sms
    on_sm = cdiv(count, sms)
    together = min(on_sm, resident(w, t))
    of_part = cdiv(steps(w), parts)
    sums = rows * columns * on_sm
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, rows, columns),
        steps=on_sm * of_part,
        rows=rows,
        columns=columns,
        delivered=rows + columns,
        sms=min(count, sms),
        idle=1 - min(count, sms) / w.device.sms,
        stages=min(of_part, STAGES) * together,
        units=height(t) / 64,
        wgmma_columns=columns,
        ends=sums / parts,
        scattered=sums / parts if parts > 1 and w.n % 2 else 0.0,
        shifted=sums if parts == 1 else 0.0,
        exchanged=sums if parts > 1 else 0,
        waves=cdiv(on_sm, together) - 1,
        clustered=parts > 1,
    )


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.shifted or entry.swapped, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t))
