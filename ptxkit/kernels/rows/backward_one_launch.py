"""The gradients of norms in one launch, whose x and dy stay in L2: cu/ptxkit/rows/backward_one_launch.cuh.

Some CTAs compute dx, with rows in registers, and others the sums over rows, 32 columns each. The order of the tiles follows
from a prediction of the time by named terms, :func:`predicted_us`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.elementwise.elementwise import width
from ptxkit.kernels.measured import resident_bytes
from ptxkit.kernels.rows import backward
from ptxkit.kernels.rows import rows as row
from ptxkit.targets.sm import NAMED_BARRIERS, WARP

COLUMNS = 32  # of a block, which warps of a CTA add up
BESIDE = 48  # registers of a thread beside the two rows; SHIFTED_BESIDE: for addresses of rows that begin between vectors
SHIFTED_BESIDE = 20
LEAST_REGISTERS = 64  # what a thread of the sums over rows needs

TILE: Mapping[str, list[Any]] = {
    "THREADS": [512, 256, 1024, 128],  # threads of a CTA
    "VECTORS": [1, 2, 3, 4, 5, 6, 8],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [1, 2, 4, 8],  # CTAs of a cluster, which hold one row
    "SPLIT": [1, 2, 4, 8],  # CTAs of a cluster that share the rows of a sum
    "CACHE": [0, 4],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: keep, input
    "SHIFTED": [False, True],  # as in ptxkit.kernels.rows.rows
}

LATENCY_US = 1.0  # from the start of a CTA to the arrival of its first row, and
STEP_US = 0.45  # of each further set of rows that a warp has in flight
COLUMN_US = 0.012  # of each column of a thread
EXCHANGE_US = 0.2  # of the sums over the warps of a row
CLUSTER_US = 0.4  # of the exchange in a cluster


def registers(w: Any, t: Tile) -> int:
    """Registers of a thread, in the multiples that the hardware gives out."""
    held = 2 * width(w.dtype) * t.VECTORS + BESIDE + SHIFTED_BESIDE * t.SHIFTED
    return max(LEAST_REGISTERS, cdiv(held, 8) * 8)


def wide(w: Any) -> int:
    """Neighbouring columns of a lane of the sums over rows, which it reads at a time."""
    return gcd(w.cols, 4)


def rows_of_warp(w: Any) -> int:
    """Rows that a warp of the sums over rows has in flight: ``rows_in_flight`` of the source, for each row that it reads at a time."""
    columns = wide(w)
    return columns * (4 if columns * row.itemsize(w.dtype) > 8 else 8)


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``one_launch``."""
    available = row.registers(w, t.THREADS)
    if t.SHIFTED and row.is_aligned(w):
        return f"{w.cols} columns are whole vectors, so SHIFTED has no effect"
    if registers(w, t) > available:
        return f"{t.THREADS} threads have {available} registers each, too few for VECTORS={t.VECTORS}"
    if not row.in_registers(w, t):
        return f"{w.cols} columns do not fit in the registers of {t.CLUSTER} CTAs of {t.THREADS} threads"
    if t.CLUSTER > 1 and w.cols <= row.capacity(w, t) // 2:
        return f"half of the cluster of {t.CLUSTER} holds {w.cols} columns already"
    if t.CLUSTER > 1 and t.SPLIT not in (1, t.CLUSTER):
        return f"SPLIT={t.SPLIT} is not the size of the clusters, {t.CLUSTER}"
    if t.THREADS // row.lanes(w, t) > NAMED_BARRIERS and row.lanes(w, t) > WARP:
        return f"more than {NAMED_BARRIERS} rows of {row.lanes(w, t)} threads per CTA"
    if t.SPLIT > 1 and w.rows <= t.SPLIT // 2 * rows_of_warp(w):
        return f"half of SPLIT={t.SPLIT} covers all {w.rows} rows"
    return True


def blocks(w: Any, t: Tile) -> int:
    """Blocks of columns of a CTA: several where fewer warps have all rows in flight, and no SM would be idle."""
    warps, count = row.launched_lanes(w, t)[1] // WARP, 1
    while (
        t.SPLIT == 1
        and warps % (2 * count) == 0
        and w.rows <= warps // (2 * count) * rows_of_warp(w)
        and cdiv(w.cols, COLUMNS * 2 * count) >= w.device.sms
    ):
        count *= 2
    return count


def grid(w: Any, t: Tile) -> tuple[int, int]:
    """CTAs that add up columns, and CTAs that compute dx, each in whole clusters."""
    of_row, _ = row.launched_lanes(w, t)
    cluster = max(t.CLUSTER, t.SPLIT)
    of_sums = cdiv(w.cols, COLUMNS * blocks(w, t)) * t.SPLIT
    of_dx = cdiv(w.rows, t.THREADS // of_row if of_row else 1) * t.CLUSTER
    return cdiv(of_sums, cluster) * cluster, cdiv(of_dx, cluster) * cluster


def predicted_us(w: Any, t: Tile) -> float:
    """The time of a tile without that of a launch: of the longest CTA, or of all over those that are resident at a time."""
    limits, of_vector = w.device.target.limits, width(w.dtype)
    _, threads = row.launched_lanes(w, t)
    resident = min(limits.registers // (registers(w, t) * threads), limits.threads // threads)
    of_sums, of_dx = grid(w, t)
    steps = cdiv(w.rows, threads // WARP // blocks(w, t) * t.SPLIT * rows_of_warp(w))
    sums_us: float = LATENCY_US + STEP_US * steps + CLUSTER_US * (t.SPLIT > 1)
    exchange_us = EXCHANGE_US * (row.lanes(w, t) > WARP) + CLUSTER_US * (t.CLUSTER > 1)
    dx_us: float = LATENCY_US + COLUMN_US * 2 * of_vector * t.VECTORS + exchange_us
    all_us: float = (of_sums * sums_us + of_dx * dx_us) / (max(resident, 1) * w.device.sms)
    return max(sums_us, dx_us) + max(0.0, all_us - min(sums_us, dx_us))


def preferred(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles in the order of their predicted times."""
    shifted = row.moves_shifted(w, 1)
    names = ("THREADS", "VECTORS", "CLUSTER", "SPLIT")
    found = []
    for values in itertools.product(*(TILE[name] for name in names)):
        tile = {**dict(zip(names, values, strict=True)), "CACHE": 0, "SHIFTED": shifted}
        t = Tile(tile)
        if t.CLUSTER <= w.device.target.limits.portable_cluster >= t.SPLIT and usable(w, t) is True:
            found.append((predicted_us(w, t), tile))
    yield from (tile for _, tile in sorted(found, key=lambda each: each[0]))


def slower(w: Any) -> str | None:
    """Why the variants with partial sums are faster.

    Measured on an H200: with 12 to 17 MB of x and dy in f32, one launch took 0.6 to 0.95 of their time; with 29 MB in f16 it
    took more.
    """
    read, most = 2 * w.rows * w.cols * row.itemsize(w.dtype), resident_bytes(w.device) // 2
    if read > most:
        return f"the sums over rows read x and dy again, {read:,} bytes, which takes long above {most:,}"
    return None


def launches(w: Any, t: Tile) -> list[Launch]:
    """The launch of ``one_launch``."""
    of_row, threads = row.launched_lanes(w, t)
    tile = row.tile_in_registers(t, of_row)
    of_sums, of_dx = grid(w, t)
    cluster = max(t.CLUSTER, t.SPLIT)
    arrays = ("x", "dy", *backward.weights(w), *backward.statistics(w), "dx", *backward.gradients(w))
    return [
        Launch(
            f"{backward.prefix(w)}_one_launch",
            of_sums + of_dx,
            threads,
            (*arrays, w.rows, w.cols, of_sums, blocks(w, t)),
            0,
            cluster if cluster > 1 else None,
            template=(*backward.types(w), tile, t.SPLIT, wide(w)),
        )
    ]
