"""The tile of a product by wgmma, and into how many parts k is divided, by a model of the time.

Tiles are computed in waves of as many as there are SMs, so that the number of waves, a whole number, decides between large and
small tiles; a row of an operand that does not begin at a multiple of 128 bytes lies in one cache line more, for which L2
delivers more, and clusters that share such an operand are faster (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

from ptxkit import Work, cdiv
from ptxkit.kernels.gemm import stream_model
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import Measured, StreamRates, cluster_ctas, measured
from ptxkit.targets.gpus import DeviceFacts


class Product(Protocol):
    """What the model needs of a product c = a b with c (m, n)."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def output_kind(self) -> str: ...
    @property
    def device(self) -> DeviceFacts: ...
    @property
    def a_layout(self) -> Literal["row", "column"]: ...
    @property
    def b_layout(self) -> Literal["row", "column"]: ...

    def work(self) -> Work:
        """Its flops and bytes."""


BK = 64  # elements of k in a step
LINE_BYTES = 128
ALIGNMENT = 16  # bytes, of the rows that TMA reads: of the pitch that a tensor map needs
PARTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # parts of k


def shape(rows: int, cols: int, consumers: int, stages: int, boxes: int = 2) -> dict[str, int]:
    """A tile of step 8; parameters that it omits have their default."""
    registers = {"REGISTERS": {1: 0, 2: 240, 3: 160}[consumers]}
    return {"BM": rows, "BN": cols, "CONSUMERS": consumers, "STAGES": stages, "BOXES": boxes, **registers}


SHAPES = (
    shape(128, 256, 2, 4),
    shape(256, 128, 2, 4),
    shape(128, 192, 2, 5, boxes=1),
    shape(128, 224, 2, 4, boxes=1),
    shape(128, 208, 2, 4, boxes=1),
    shape(128, 160, 2, 5, boxes=1),
    shape(192, 192, 3, 4, boxes=1),
    shape(192, 128, 3, 5, boxes=1),
    shape(192, 160, 3, 4, boxes=1),
    shape(192, 96, 3, 5, boxes=1),
    shape(128, 128, 1, 6),
    shape(64, 256, 1, 5),
    shape(64, 224, 1, 6, boxes=1),
    shape(64, 192, 1, 6, boxes=1),
    shape(64, 160, 1, 6, boxes=1),
    shape(64, 128, 1, 8),
    shape(64, 96, 1, 8, boxes=1),
)
CLUSTERS = ((1, 1), (2, 1), (1, 2))
MOST_WAVES = 2  # of CTAs with a part of k


def alternating(rows: int, cols: int, stages: int, boxes: int) -> dict[str, int]:
    """A tile that each of two consumers computes alone."""
    return {**shape(rows, cols, 2, stages, boxes), "PING_PONG": 1}


ALTERNATING = (
    alternating(128, 128, 6, 2),
    alternating(128, 160, 5, 2),
    alternating(128, 176, 5, 2),
    alternating(128, 192, 5, 1),
)
"""Tiles of consumers that compute them in turn."""
FEW_STEPS = 8
"""Steps along k up to which tiles have a model of their own, because the stores of c take longer than the products.

Tiles of 192 columns that consumers compute in turn then have two boxes of c for each warp, and a stage less in the ring: with
up to 7 steps this is 3 to 17% faster, with 64, 1% slower.
"""
TWO_BOXES = alternating(128, 192, 4, 2)
TWO_BOXES_CLUSTERS = (*CLUSTERS, (4, 1))
GROUP = 8  # rows of clusters in a group of such tiles
MOST_SUMS = 128  # of a thread, with an epilogue that needs registers


def candidates(w: Product) -> Iterator[dict[str, int]]:
    """The tiles to consider: of column-major operands those of whole boxes for each CTA."""
    yield from _in_clusters(w, SHAPES)


def alternating_candidates(w: Product, *, simple: bool, two_boxes: bool = False) -> Iterator[dict[str, int]]:
    """Those of consumers that compute tiles in turn, once there are times of them; a CTA with one tile has one busy consumer.

    Args:
        simple: the epilogue reads no arrays, and a thread has registers for more sums.
        two_boxes: with few steps along k, 192 columns have two boxes, of which there are times for results of 16 bits.
    """
    if measured(w.device).ping_pong is not None:
        two_boxes = two_boxes and few_steps(w)
        shapes = tuple(t for t in ALTERNATING if not two_boxes or t["BN"] != TWO_BOXES["BN"])
        found = [*_in_clusters(w, shapes), *(_in_clusters(w, (TWO_BOXES,), TWO_BOXES_CLUSTERS) if two_boxes else ())]
        for tile in found:
            if simple or tile["BM"] * tile["BN"] <= 128 * MOST_SUMS:
                yield {**tile, "GROUP": _group(w, tile)}


def _group(w: Product, t: Mapping[str, int]) -> int:
    """Rows of clusters in a group.

    One or two rows beyond the first group are a part of it, where a CTA has several tiles. As a group of their own, they would
    need all of b once more, in a wave or less: docs/gemm.md has times.
    """
    alone = cdiv(w.m, t["BM"] * t["CLUSTER_M"]) - GROUP
    return 2 * GROUP if 0 < alone <= GROUP // 4 and tiles(w, t) > w.device.sms else GROUP


def _in_clusters(
    w: Product, shapes: Iterable[Mapping[str, int]], clusters: Iterable[tuple[int, int]] = CLUSTERS
) -> Iterator[dict[str, int]]:
    whole_a = 64 if w.a_layout == "column" else 8
    whole_b = 64 if w.b_layout == "row" else 8
    for tile in shapes:
        for down, across in clusters if tile["CONSUMERS"] > 1 else ((1, 1),):
            if tile["BM"] % (whole_a * across) == 0 and tile["BN"] % (whole_b * down) == 0:
                yield {**tile, "CLUSTER_M": down, "CLUSTER_N": across, "GROUP": 16 // down}


def tiles(w: Product, t: Mapping[str, int]) -> int:
    """Tiles of c, with those beyond its edges that clusters have."""
    down, across = t["CLUSTER_M"], t["CLUSTER_N"]
    return cdiv(w.m, t["BM"] * down) * cdiv(w.n, t["BN"] * across) * down * across


def split_share(w: Product, rows: float, cols: float, itemsize: int = 2) -> float:
    """How much of the delivered ``rows`` rows of a and ``cols`` of b is split between cache lines.

    Rows that begin at any multiple of 16 bytes count fully; those that begin at multiples of 32 or 64 bytes half and a quarter
    as much, because fewer of them begin within a line and none within a sector of 32 bytes.
    """
    row_a = w.k if w.a_layout == "row" else w.m
    row_b = w.k if w.b_layout == "column" else w.n
    return (rows * split_rows(row_a * itemsize) + cols * split_rows(row_b * itemsize)) / (rows + cols)


def split_rows(row_bytes: int) -> float:
    """The same of rows with this pitch."""
    whole = math.gcd(row_bytes, LINE_BYTES)
    return 0.0 if whole == LINE_BYTES else min(1.0, ALIGNMENT / whole)


def box_row_bytes(t: Mapping[str, int], element: int = 2, columns: int = 1) -> int:
    """Bytes of a row of the boxes by which a tile of c is stored: ``box_row_bytes`` of cu/ptxkit/gemm/tma_boxes.cuh.

    Args:
        element: bytes of an element of c. columns: of the sums that make one element.
    """
    of_tile = t["BN"] // columns * element
    whole = (LINE_BYTES, LINE_BYTES // 2, LINE_BYTES // 4)
    return next((size for size in whole if of_tile % size == 0), whole[-1])


def box_rows(w: Product, t: Mapping[str, int]) -> float:
    """Rows of boxes of c, of 16-bit elements, that TMA stores for a tile; twice as many where rows of c split cache lines."""
    return t["BM"] * t["BN"] * 2 / box_row_bytes(t) * (1 if w.n * 2 % LINE_BYTES == 0 else 2)


def stream_work(w: Product, t: Mapping[str, int], parts: int = 1, batch: int = 1) -> StreamWork:
    """What a launch does with this tile, and k in this many parts, whose sums are added by another launch.

    Args:
        batch: products of the launch, all of which are like ``w``.
    """
    cluster = t["CLUSTER_M"] * t["CLUSTER_N"]
    rows, cols = t["BM"], t["BN"]
    ctas = cluster_ctas(w.device, cluster) // cluster * cluster
    work = tiles(w, t) * parts * batch
    waves = cdiv(work, ctas)
    from_a, from_b = rows / t["CLUSTER_N"], cols / t["CLUSTER_M"]
    return StreamWork(
        memory_bytes=w.work().bytes * batch,
        split=split_share(w, from_a, from_b),
        steps=waves * cdiv(cdiv(w.k, BK), parts),
        rows=rows,
        columns=cols,
        delivered=from_a + from_b,
        paired=from_a if t["CLUSTER_N"] == 2 else 0.0,
        sms=min(work, ctas),
        idle=1 - min(work, ctas) / w.device.sms,
        others=t["CLUSTER_M"] + t["CLUSTER_N"] - 2,
        stages=t["STAGES"],
        units=rows / 64,
        wgmma_columns=cols,
        # the sums of the other tiles are stored while the other consumer multiplies
        ends=rows * cols * (1 if t.get("PING_PONG") else waves),
        waves=waves - 1,
        clustered=cluster > 1,
        again_bytes=stream_model.again_bytes(
            w, 2, cdiv(w.n, t["BN"] * t["CLUSTER_N"]), cdiv(w.m, t["BM"] * t["CLUSTER_M"])
        )
        * batch,
        partial_bytes=4 * parts * w.m * w.n if parts > 1 else 0,
        box_rows=waves * box_rows(w, t) if parts == 1 else 0.0,
    )


def predicted_us(w: Product, t: Mapping[str, int], parts: int = 1) -> float:
    """The time by the model."""
    entry = measured(w.device)
    rates = rates_of(entry, t, few=parts == 1 and few_steps(w))
    return stream_model.predicted_us(rates, stream_work(w, t, parts), w.device.sms / entry.sms)


def few_steps(w: Product) -> bool:
    """Whether a product has few steps along k."""
    return cdiv(w.k, BK) <= FEW_STEPS


def rates_of(
    entry: Measured, t: Mapping[str, int], others: StreamRates | None = None, *, few: bool = False
) -> StreamRates:
    """The coefficients for a tile.

    Args:
        others: of tiles that all consumers compute together, instead of those of step 8. few: for few steps along k.
    """
    in_turn = bool(t.get("PING_PONG"))
    alone = entry.ping_pong if in_turn else None
    short = (entry.few_steps_ping_pong if in_turn else entry.few_steps) if few else None
    return short or alone or others or entry.products


def preferred(w: Product) -> Iterator[Mapping[str, Any]]:
    """All candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t))


def split_candidates(w: Product) -> Iterator[dict[str, int]]:
    """Tiles with numbers of parts, for products with fewer tiles than there are SMs."""
    steps = cdiv(w.k, BK)
    for tile in candidates(w):
        of_c = tiles(w, tile)
        for parts in PARTS:
            if of_c < w.device.sms and of_c * parts <= MOST_WAVES * w.device.sms and parts <= steps:
                yield {**tile, "PARTS": parts}


def split_preferred(w: Product) -> Iterator[Mapping[str, Any]]:
    """The candidates of :func:`split_candidates`, the one with the shortest predicted time first."""
    yield from sorted(split_candidates(w), key=lambda t: predicted_us(w, t, t["PARTS"]))


def most_parts(w: Product) -> int:
    """The most parts of k that a candidate has; 0 without one."""
    return max((t["PARTS"] for t in split_candidates(w)), default=0)
