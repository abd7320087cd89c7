"""Tiles and shares of stream_k.cuh: products with tiles of any multiple of 8 columns and equal shares of the steps of k.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxkit import cdiv
from ptxkit.kernels.gemm import ctas_per_sm, stream_model, unaligned
from ptxkit.kernels.gemm.matmul import Matmul
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import Product, split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import WARP
from ptxkit.targets.wgmma import columns_refused

SOURCE = "matmul_stream_k.cu"
MAX_STAGES = 32
MIN_STAGES = 3
STATIC_BYTES = 1024 + 512  # for the alignment of the ring, and of the barriers
SHARE_THREADS = 128  # of a CTA of the second launch, for each of its adders
MOST_ADDERS, ADDED = 4, 8  # adders; parts of a tile from which on there is one more: as many loads are in flight in a thread
MOST_SUMS = 128  # of a thread
OTHER_REGISTERS = 40  # of a thread, for addresses and counters
MOST_SHIFTED = 64  # columns of rows that begin anywhere, which a warp stores at a time
MOST_ROWS = 256  # of a box of a tensor map

COLUMNS = (64, 8, 16, 24, 32, 40, 48, 56, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
SPACE = {
    "CONSUMERS": [1, 2, 3],  # warpgroups that multiply
    "ROWS": [1, 2],  # of a in a tile, in units of 64 rows for each warpgroup
    "COLUMNS": list(COLUMNS),  # rows of b in a tile
    "SHARING": [1, 2, 4],  # CTAs of a cluster, which load the rows of a for each other
    "CTAS_PER_SM": [1, 2],  # persistent CTAs that share the shared memory of an SM
    "DIVIDED": [0, 1],  # 1: the steps of k of the last groups of tiles are shared by all clusters
}


@dataclass(frozen=True)
class StreamKTile(TemplateStruct):
    """``StreamKTile`` of cu/ptxkit/gemm/stream_k.cuh."""

    CONSUMERS: int
    ROWS: int
    COLUMNS: int

    @classmethod
    def of(cls, t: Mapping[str, int]) -> StreamKTile:
        """The template argument of a tile."""
        return cls(t["CONSUMERS"], t["ROWS"], t["COLUMNS"])


def height(t: Mapping[str, int]) -> int:
    """Rows of a in a tile."""
    return 64 * t["CONSUMERS"] * t["ROWS"]


def loaded_rows(w: Product, t: Mapping[str, int]) -> int:
    """Rows of a in a tile that a cluster loads: for each CTA a multiple of 8, the swizzle pattern; 64 of a column-major a."""
    whole = 64 if w.a_layout == "column" else 8
    return min(height(t), cdiv(w.m, whole * t["SHARING"]) * whole * t["SHARING"])


def threads(t: Mapping[str, int]) -> int:
    """Threads that multiply."""
    return 128 * t["CONSUMERS"]


def vectors(t: Mapping[str, int]) -> int:
    """Vectors of four sums of a tile."""
    return height(t) * t["COLUMNS"] // 4


def stage_bytes(t: Mapping[str, int]) -> int:
    """Bytes of a stage of the ring."""
    return (height(t) + t["COLUMNS"]) * ROW_BYTES


def stages(w: Product, t: Mapping[str, int]) -> int:
    """Stages of the ring: as many as the shared memory of CTAS_PER_SM CTAs has room for."""
    of_cta = ctas_per_sm.shared_bytes(w.device.target.limits, t) - staged_bytes(w, t)
    return min((of_cta - STATIC_BYTES) // stage_bytes(t), MAX_STAGES)


def staged_bytes(w: Product, t: Mapping[str, int]) -> int:
    """Shared memory after the ring, through which rows of c that begin anywhere are stored: cu/ptxkit/gemm/shifted_rows.cuh."""
    if not isinstance(w, Matmul) or unaligned.stores_by_tma(w):
        return 0
    columns = t["COLUMNS"]
    widths = (columns // pieces for pieces in range(1, columns + 1) if columns % (8 * pieces) == 0)
    width = next(width for width in widths if width <= MOST_SHIFTED)
    return threads(t) // WARP * unaligned.shifted_bytes(width)


@dataclass(frozen=True)
class Shares:
    """How the steps of k are divided: ``Shares`` of cu/ptxkit/gemm/stream_k.cuh.

    Attributes:
        down: groups of tiles down the rows of a. groups: all. steps: of k of a tile. whole: groups that each cluster computes.
        shares: clusters with a share of the remaining groups, all or 0. sharing: CTAs of a cluster, and tiles of a group.
        rows: of a that each CTA loads for its cluster. clusters: of the launch. of_product: groups of a product of a batch.
    """

    down: int
    groups: int
    steps: int
    whole: int
    shares: int
    sharing: int
    rows: int
    clusters: int
    of_product: int

    @classmethod
    def of(cls, w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> Shares:
        """The shares of ``batch`` products of elements of ``itemsize`` bytes."""
        down, steps, sharing = cdiv(w.m, height(t)), cdiv(w.k * itemsize, ROW_BYTES), t["SHARING"]
        of_product = down * cdiv(w.n, t["COLUMNS"] * sharing)
        groups = of_product * batch
        rows = loaded_rows(w, t) // sharing
        resident = max(1, (cluster_ctas(w.device, sharing) if sharing > 1 else w.device.sms) // sharing) * t["CTAS_PER_SM"]
        clusters = min(resident, groups * steps)
        if t["DIVIDED"] and groups % clusters:
            whole = max(0, groups // clusters - 1)
            return cls(down, groups, steps, whole, clusters, sharing, rows, clusters, of_product)
        clusters = min(resident, groups)
        return cls(down, groups, steps, cdiv(groups, clusters), 0, sharing, rows, clusters, of_product)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments of both kernels."""
        return (self.down, self.groups, self.steps, self.whole, self.shares, self.sharing, self.rows)

    @property
    def divided(self) -> int:
        """Groups of tiles whose steps are shared."""
        return self.groups - self.whole * self.shares if self.shares else 0

    @property
    def adders(self) -> int:
        """Threads that add the parts of an element of a divided tile."""
        parts = cdiv(self.shares, self.divided) if self.shares else 1
        return min(MOST_ADDERS, max(1, parts // ADDED))

    @property
    def longest(self) -> int:
        """Steps of the cluster with the most of them."""
        return self.whole * self.steps + (cdiv(self.divided * self.steps, self.shares) if self.shares else 0)


def partial_bytes(t: Mapping[str, int], shares: Shares) -> int:
    """Bytes of the partial sums of a launch."""
    return 2 * shares.shares * shares.sharing * vectors(t) * 16


def stored_parts(shares: Shares) -> int:
    """Parts of groups of tiles whose sums are stored: a share that does not end with a group has parts of two."""
    if not shares.shares:
        return 0
    of_share, within = divmod(shares.divided * shares.steps, shares.shares)
    aligned = math.gcd(shares.steps, of_share) == of_share and not within  # each share lies in one group
    return shares.shares if aligned else shares.shares + shares.divided - 1


def usable(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> bool | str:
    """The constraint of the variants with this kernel."""
    rows = height(t)
    if rows > MOST_ROWS:
        return f"boxes of a tensor map have at most {MOST_ROWS} rows, fewer than {rows} of a"
    if (refused := columns_refused(w.kind, t["COLUMNS"])) is not None:
        return f"COLUMNS={t['COLUMNS']}: {refused}"
    if w.b_layout == "row" and t["COLUMNS"] % 64:
        return f"COLUMNS={t['COLUMNS']} are no whole boxes of a row-major b"
    if w.a_layout == "column" and rows // t["SHARING"] % 64:
        of_cta = rows // t["SHARING"]
        return f"each of {t['SHARING']} CTAs copies {of_cta} rows of a, which are no whole boxes of a column-major a"
    if (sums := t["ROWS"] * t["COLUMNS"] // 2) > MOST_SUMS:
        return f"a thread holds {sums} sums of {64 * t['ROWS']} x {t['COLUMNS']}, more than {MOST_SUMS}"
    if sums + OTHER_REGISTERS > (room := ctas_per_sm.registers(w.device.target.limits, t)):
        return f"{sums} sums need more than the {room} registers that a thread of {t['CTAS_PER_SM']} CTAs on an SM can have"
    if (found := stages(w, t)) < MIN_STAGES:
        return f"the shared memory of {t['CTAS_PER_SM']} CTAs has room for {max(0, found)} stages of {stage_bytes(t)} bytes"
    if t["DIVIDED"] and not Shares.of(w, t, itemsize, batch).shares:
        return "no group of tiles remains to be divided"
    return True


def candidates(w: Product, batch: int = 1) -> Iterator[dict[str, int]]:
    """The tiles to consider: the numbers of columns for which whole waves of tiles are the fullest, and large ones."""
    sizes = sorted(size for size in COLUMNS if w.b_layout == "column" or size % 64 == 0)
    for consumers in SPACE["CONSUMERS"]:
        for rows in SPACE["ROWS"]:
            tall = 64 * consumers * rows
            if tall > MOST_ROWS or (tall > 64 and tall - 64 >= w.m):
                continue
            down = cdiv(w.m, tall) * batch
            for sharing in SPACE["SHARING"]:
                for ctas in SPACE["CTAS_PER_SM"]:
                    slots = w.device.sms * ctas
                    fitting = {sizes[-1], *(size for size in sizes if 96 <= size * rows <= 256 and size % 64 == 0)}
                    for waves in (1, 2, 3):
                        across = max(1, slots * waves // down)
                        fitting |= {next((size for size in sizes if size >= cdiv(w.n, across)), sizes[-1])}
                    for columns in sorted(fitting):
                        for divided in SPACE["DIVIDED"]:
                            yield {
                                "CONSUMERS": consumers,
                                "ROWS": rows,
                                "COLUMNS": columns,
                                "SHARING": sharing,
                                "CTAS_PER_SM": ctas,
                                "DIVIDED": divided,
                            }


def stream_work(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> StreamWork:
    """What a launch for ``batch`` products of elements of ``itemsize`` bytes does."""
    shares, sms = Shares.of(w, t, itemsize, batch), w.device.sms
    ctas = shares.clusters * shares.sharing
    on_sm, rows = cdiv(ctas, sms), loaded_rows(w, t)
    from_a, shifts = rows / shares.sharing, staged_bytes(w, t) > 0
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, from_a, t["COLUMNS"], itemsize),
        steps=shares.longest * on_sm,
        rows=rows,
        columns=t["COLUMNS"],
        delivered=from_a + t["COLUMNS"],
        sms=min(ctas, sms),
        idle=1 - min(ctas, sms) / sms,
        others=shares.sharing - 1,
        stages=stages(w, t) * on_sm,
        units=height(t) / 64,
        wgmma_columns=t["COLUMNS"],
        ends=(ends := min(height(t), w.m) * t["COLUMNS"] * max(1, shares.whole)),
        scattered=0.0 if shifts else ends if w.n % 2 else ends / 2 if w.n % 8 else 0.0,
        shifted=ends if shifts else 0.0,
        clustered=shares.sharing > 1,
        again_bytes=stream_model.again_bytes(w, itemsize, cdiv(w.n, t["COLUMNS"] * shares.sharing), shares.down) * batch,
        partial_bytes=stored_parts(shares) * shares.sharing * vectors(t) * 16,
    )


def predicted_us(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> float:
    """The time by the model."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.stream_k, stream_work(w, t, itemsize, batch), w.device.sms / entry.sms)


def preferred(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[Mapping[str, Any]]:
    """The candidates that can be used, the one with the shortest predicted time first."""
    usable_ones = (t for t in candidates(w, batch) if usable(w, t, itemsize, batch) is True)
    yield from sorted(usable_ones, key=lambda t: predicted_us(w, t, itemsize, batch))


def partials(w: Product, itemsize: int = 2, batch: int = 1) -> int:
    """The most elements of partial sums that a candidate has."""
    divided = (t for t in candidates(w, batch) if t["DIVIDED"] and usable(w, t, itemsize, batch) is True)
    return max((partial_bytes(t, Shares.of(w, t, itemsize, batch)) // 4 for t in divided), default=0)
