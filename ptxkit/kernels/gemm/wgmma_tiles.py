"""The tile of a product by wgmma, and into how many parts k is divided, by a model of the time.

The time of a tile is the longer one of multiplying it and of what L2 delivers to all SMs meanwhile. Tiles are computed in waves
of as many as there are SMs, so that the number of waves, a whole number, decides between large and small tiles. A row of an
operand that does not begin at a multiple of 128 bytes lies in one cache line more, for which L2 delivers twice as much;
clusters that share such an operand are therefore faster. The coefficients are those of a GPU that was measured
(:class:`~ptxkit.kernels.measured.ProductRates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from ptxkit import Work, cdiv
from ptxkit.kernels.measured import measured
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
    def device(self) -> DeviceFacts: ...
    @property
    def a_layout(self) -> Literal["row", "column"]: ...
    @property
    def b_layout(self) -> Literal["row", "column"]: ...

    def work(self) -> Work:
        """Its flops and bytes."""


BK = 64  # elements of k in a step
LINE_BYTES = 128
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
    shape(128, 160, 2, 5, boxes=1),
    shape(192, 192, 3, 4, boxes=1),
    shape(192, 128, 3, 5, boxes=1),
    shape(128, 128, 1, 6),
    shape(64, 256, 1, 5),
    shape(64, 128, 1, 8),
)
LARGE = (128, 256), (256, 128)  # which read the fewest bytes of shared memory for each product
CLUSTERS = ((1, 1), (2, 1), (1, 2))
MOST_WAVES = 2  # of CTAs with a part of k


def candidates(w: Product) -> Iterator[dict[str, int]]:
    """The tiles to consider: of column-major operands those of whole boxes for each CTA."""
    whole_a = 64 if w.a_layout == "column" else 8
    whole_b = 64 if w.b_layout == "row" else 8
    for tile in SHAPES:
        for down, across in CLUSTERS if tile["CONSUMERS"] > 1 else CLUSTERS[:1]:
            if tile["BM"] % (whole_a * across) == 0 and tile["BN"] % (whole_b * down) == 0:
                clusters = {"CLUSTER_M": down, "CLUSTER_N": across, "GROUP": 16 // down}
                yield {**tile, **clusters}


def tiles(w: Product, t: Mapping[str, int]) -> int:
    """Tiles of c, with those beyond its edges that clusters have."""
    down, across = t["CLUSTER_M"], t["CLUSTER_N"]
    return cdiv(w.m, t["BM"] * down) * cdiv(w.n, t["BN"] * across) * down * across


def predicted_us(w: Product, t: Mapping[str, int], parts: int = 1) -> float:
    """The time by the model, with k in this many parts, whose sums are added by another launch."""
    rates, sms = measured(w.device).products, w.device.sms
    down, across, rows, cols = t["CLUSTER_M"], t["CLUSTER_N"], t["BM"], t["BN"]
    ctas = max(1, sms // (down * across)) * down * across
    work = tiles(w, t) * parts
    steps, area = cdiv(cdiv(w.k, BK), parts), rows * cols / (64 * 256)
    multiplying = rates.step_us * area * steps * (rates.large if (rows, cols) in LARGE else 1.0)
    row_a = w.k if w.a_layout == "row" else w.m
    row_b = w.k if w.b_layout == "column" else w.n
    of_a, of_b = (2 if 2 * row % LINE_BYTES else 1 for row in (row_a, row_b))
    delivered = min(work, ctas) * steps * (rows / across * of_a + cols / down * of_b) * 2 * BK / (rates.l2_gbs * 1e3)
    time = cdiv(work, ctas) * max(multiplying, delivered) + rates.tile_us * area
    time += rates.cluster_us if down * across > 1 else 0.0
    memory = rates.memory_gbs * 1e3
    time = max(time, w.work().bytes / memory)
    if parts > 1:  # f32 sums are written and read again
        time += rates.launch_us + 8 * parts * w.m * w.n / (rates.l2_gbs * 1e3)
    return time + rates.launch_us


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
