"""Tiles and shares of stream_k.cuh: products with tiles of any multiple of 8 columns and equal shares of the steps of k.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ptxkit import Launch, Work, cdiv
from ptxkit.kernels.gemm import ctas_per_sm, stream_model, unaligned
from ptxkit.kernels.gemm.matmul import Matmul
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import Product, split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.per_device import cached_per_device
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.targets.sm import PORTABLE_CLUSTER, SMS_PER_TPC, WARP
from ptxkit.targets.wgmma import columns_refused

SOURCE = "matmul_stream_k.cu"
MAX_STAGES = 32
MIN_STAGES = 3
STATIC_BYTES = 1024 + 512  # for the alignment of the ring, and of the barriers
SHARE_THREADS = 128  # of a CTA of the second launch
MOST_ADDERS, ADDED = 16, 4  # lanes that add the parts of a vector, and the loads of a lane that are in flight
MOST_TOGETHER = 32  # parts of a tile that its CTAs add: bits of a word
FEWEST_TOGETHER = 9216  # sums of such a part: those of smaller ones are added as fast or faster by another launch
MOST_POLLS = 64  # for the other parts, about a microsecond each, before a CTA leaves its share of the sums to the last one
MOST_SUMS = 128  # of a thread
OTHER_REGISTERS = 40  # of a thread, for addresses and counters
MOST_SHIFTED = 64  # columns of rows that begin anywhere, which a warp stores at a time
MOST_ROWS = 256  # of a box of a tensor map

COLUMNS = (64, 8, 16, 24, 32, 40, 48, 56, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
PART_COLUMNS = tuple(range(32, 257, 8))  # of tiles whose steps of k are divided among as many clusters each
SPACE = {
    "CONSUMERS": [1, 2, 3],  # warpgroups that multiply
    "ROWS": [1, 2],  # of a in a tile, in units of 64 rows for each warpgroup
    "COLUMNS": [*COLUMNS, *(size for size in PART_COLUMNS if size not in COLUMNS)],  # rows of b in a tile
    "SHARING": [1, 2, 4],  # CTAs of a cluster with the same rows of a, which they load for each other
    "B_SHARING": [1, 2, 4],  # CTAs of a cluster with the same rows of b
    "CTAS_PER_SM": [1, 2],  # persistent CTAs that share the shared memory of an SM
    # 1: all clusters share the steps of k of the last groups of tiles; 2: as many clusters share those of each of few groups;
    # 3: the same of the transposed product, b aᵀ, whose tiles have rows of b where others have rows of a
    "DIVIDED": [0, 1, 2, 3],
}
ALONE = {"B_SHARING": 1}
"""What tiles had before CTAs could load rows of b for each other."""
PART_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
"""SHARING and B_SHARING to consider where all groups are divided."""
ALONE_BELOW = 96  # columns, from which on one warpgroup with 128 rows took 2% longer than two, in 33 of 33 measured tiles
MOST_ACROSS = 16  # tiles across c whose width is fitted to n where all groups are divided


TRANSPOSED = 3
"""The value of DIVIDED for tiles of the transposed product."""


@dataclass(frozen=True)
class Transposed:
    """The product cᵀ = b aᵀ of a product c = a bᵀ."""

    of: Product

    @property
    def m(self) -> int:
        return self.of.n

    @property
    def n(self) -> int:
        return self.of.m

    @property
    def k(self) -> int:
        return self.of.k

    @property
    def kind(self) -> str:
        return self.of.kind

    @property
    def output_kind(self) -> str:
        return self.of.output_kind

    @property
    def device(self) -> DeviceFacts:
        return self.of.device

    @property
    def a_layout(self) -> Literal["row", "column"]:
        return "row" if self.of.b_layout == "column" else "column"

    @property
    def b_layout(self) -> Literal["row", "column"]:
        return "column" if self.of.a_layout == "row" else "row"

    def work(self) -> Work:
        return self.of.work()


def multiplied(w: Product, t: Mapping[str, int]) -> Product:
    """The product of which a tile is a part: the transposed one with DIVIDED=3."""
    return Transposed(w) if t["DIVIDED"] == TRANSPOSED else w


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
    """Rows of a in a tile that a cluster loads: for each CTA a multiple of 8, the swizzle pattern; 64 of a column-major a.

    ``w`` is the product that :func:`multiplied` returns.
    """
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
    if not isinstance(w, Matmul) or unaligned.stores_by_tma(w) or t["DIVIDED"] == TRANSPOSED:
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
        shares: clusters with a share of the remaining groups, all or 0. sharing, b_sharing: CTAs of a cluster, and tiles of a
            group, with the same rows of a, and of b.
        rows: of a that each CTA loads for its cluster. clusters: of the launch. parts: shares of each group, if all have as
            many, else 0. polls: how often their CTAs poll for the other parts, if they add these, else 0.
        transposed: whether the tiles are those of the transposed product, whose parts their CTAs always add.
        of_product: groups of a product of a batch.
    """

    down: int
    groups: int
    steps: int
    whole: int
    shares: int
    sharing: int
    b_sharing: int
    rows: int
    clusters: int
    parts: int
    polls: int
    transposed: bool
    of_product: int

    @classmethod
    def of(cls, w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> Shares:
        """The shares of ``batch`` products of elements of ``itemsize`` bytes."""
        w, transposed = multiplied(w, t), t["DIVIDED"] == TRANSPOSED
        steps, sharing, b_sharing = cdiv(w.k * itemsize, ROW_BYTES), t["SHARING"], t["B_SHARING"]
        down, ctas = cdiv(w.m, height(t) * b_sharing), sharing * b_sharing
        of_product = down * cdiv(w.n, t["COLUMNS"] * sharing)
        groups = of_product * batch
        rows = loaded_rows(w, t) // sharing
        resident = max(1, (cluster_ctas(w.device, ctas) if ctas > 1 else w.device.sms) // ctas) * t["CTAS_PER_SM"]
        parts = min(resident // groups, steps, MOST_TOGETHER if transposed else steps)
        if t["DIVIDED"] in (2, TRANSPOSED) and parts > 1:
            clusters = parts * groups
            together = parts <= MOST_TOGETHER and rows * sharing * t["COLUMNS"] >= FEWEST_TOGETHER
            polls = MOST_POLLS if together or transposed else 0
            of_parts = clusters, parts, polls, transposed, of_product
            return cls(down, groups, steps, 0, clusters, sharing, b_sharing, rows, *of_parts)
        clusters = min(resident, groups * steps)
        if t["DIVIDED"] == 1 and groups % clusters:
            whole = max(0, groups // clusters - 1)
            return cls(down, groups, steps, whole, clusters, sharing, b_sharing, rows, clusters, 0, 0, False, of_product)
        clusters = min(resident, groups)
        return cls(down, groups, steps, cdiv(groups, clusters), 0, sharing, b_sharing, rows, clusters, 0, 0, False, of_product)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments of both kernels."""
        of_steps = self.down, self.groups, self.steps, self.whole, self.shares
        return (*of_steps, self.sharing, self.b_sharing, self.rows, self.parts, self.polls, int(self.transposed))

    @property
    def words(self) -> tuple[int, int]:
        """The arguments of the kernel that clears the words of tiles: CTAs whose sums are before them, and tiles."""
        return self.clusters * self.ctas, self.groups * self.ctas

    def launches(self, clear: Launch, multiply: Launch, add: Launch) -> list[Launch]:
        """Those that are needed: CTAs that add parts themselves need cleared words, other parts are added by a launch."""
        if self.polls:
            return [clear, multiply]
        return [multiply, add] if self.shares else [multiply]

    @property
    def ctas(self) -> int:
        """CTAs of a cluster, and tiles of a group."""
        return self.sharing * self.b_sharing

    @property
    def divided(self) -> int:
        """Groups of tiles whose steps are shared."""
        return self.groups - self.whole * self.shares if self.shares else 0

    @property
    def adders(self) -> int:
        """Lanes that add the parts of a vector of a divided tile."""
        return adders(cdiv(self.shares, self.divided) if self.shares else 1)

    def sums(self, t: Mapping[str, int]) -> tuple[int, int]:
        """The grid of the second launch."""
        return vectors(t) * self.adders // SHARE_THREADS, max(1, self.divided) * self.ctas

    @property
    def longest(self) -> int:
        """Steps of the cluster with the most of them."""
        return self.whole * self.steps + (cdiv(self.divided * self.steps, self.shares) if self.shares else 0)


def adders(parts: int) -> int:
    """Lanes that add the parts of a vector: a power of two, with at most ADDED loads of a lane unless these are MOST_ADDERS."""
    return min(MOST_ADDERS, 1 << max(0, cdiv(parts, ADDED) - 1).bit_length())


def partial_bytes(t: Mapping[str, int], shares: Shares) -> int:
    """Bytes of the partial sums of a launch."""
    return 2 * shares.shares * shares.ctas * vectors(t) * 16


def stored_parts(shares: Shares) -> int:
    """Parts of groups of tiles whose sums are stored: a share that does not end with a group has parts of two."""
    if not shares.shares or shares.parts:
        return shares.shares
    of_share, within = divmod(shares.divided * shares.steps, shares.shares)
    aligned = math.gcd(shares.steps, of_share) == of_share and not within  # each share lies in one group
    return shares.shares if aligned else shares.shares + shares.divided - 1


def stored_bytes(t: Mapping[str, int], shares: Shares) -> float:
    """Bytes of partial sums that count as stored in device memory: each CTA keeps its slice of a part that it adds itself.

    Of two parts that is half, but three tiles took 0.8 us less in the mean (H100) where half the bytes would save 2.5 us or
    more.
    """
    kept = 1 / shares.parts if shares.polls and shares.parts > 2 else 0.0
    return stored_parts(shares) * shares.ctas * vectors(t) * 16 * (1 - kept)


def usable(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> bool | str:
    """The constraint of the variants with this kernel."""
    rows = height(t)
    if rows > MOST_ROWS:
        return f"boxes of a tensor map have at most {MOST_ROWS} rows, fewer than {rows} of a"
    if (refused := columns_refused(w.kind, t["COLUMNS"])) is not None:
        return f"COLUMNS={t['COLUMNS']}: {refused}"
    given, w = w, multiplied(w, t)
    if w.b_layout == "row" and t["COLUMNS"] % 64:
        return f"COLUMNS={t['COLUMNS']} are no whole boxes of a row-major b"
    if w.a_layout == "column" and rows // t["SHARING"] % 64:
        of_cta = rows // t["SHARING"]
        return f"each of {t['SHARING']} CTAs copies {of_cta} rows of a, which are no whole boxes of a column-major a"
    if t["COLUMNS"] % (whole := (64 if w.b_layout == "row" else 1) * t["B_SHARING"]):
        return f"COLUMNS={t['COLUMNS']} are no multiple of {whole}, of which each of {t['B_SHARING']} CTAs copies an equal part"
    if (ctas := t["SHARING"] * t["B_SHARING"]) > PORTABLE_CLUSTER:
        return f"SHARING x B_SHARING = {ctas} CTAs are more than the {PORTABLE_CLUSTER} of a cluster"
    if (sums := t["ROWS"] * t["COLUMNS"] // 2) > MOST_SUMS:
        return f"a thread holds {sums} sums of {64 * t['ROWS']} x {t['COLUMNS']}, more than {MOST_SUMS}"
    if sums + OTHER_REGISTERS > (room := ctas_per_sm.registers(w.device.target.limits, t)):
        return f"{sums} sums need more than the {room} registers that a thread of {t['CTAS_PER_SM']} CTAs on an SM can have"
    if (found := stages(given, t)) < MIN_STAGES:
        return f"the shared memory of {t['CTAS_PER_SM']} CTAs has room for {max(0, found)} stages of {stage_bytes(t)} bytes"
    if t["DIVIDED"] and not Shares.of(given, t, itemsize, batch).shares:
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
                        for divided in (0, 1):
                            yield {
                                "CONSUMERS": consumers,
                                "ROWS": rows,
                                "COLUMNS": columns,
                                "SHARING": sharing,
                                "B_SHARING": 1,
                                "CTAS_PER_SM": ctas,
                                "DIVIDED": divided,
                            }
    if measured(w.device).parts is not None:
        yield from part_candidates(w, batch)
        yield from ({**t, "DIVIDED": TRANSPOSED} for t in part_candidates(Transposed(w), batch))


def part_candidates(w: Product, batch: int = 1) -> Iterator[dict[str, int]]:
    """Those that divide all groups, for results with tiles for at most half of the SMs: of widths that c has whole tiles of."""
    fitting = [size for size in PART_COLUMNS if columns_refused(w.kind, size) is None]
    widths = {next((size for size in fitting if size >= cdiv(w.n, across)), 0) for across in range(1, MOST_ACROSS + 1)}
    for consumers in SPACE["CONSUMERS"]:
        for rows in SPACE["ROWS"]:
            tall = 64 * consumers * rows
            if tall > MOST_ROWS or (tall > 64 and tall - 64 >= w.m):
                continue
            for columns in sorted(widths | {64, 128, 256}):
                down, across = cdiv(w.m, tall), cdiv(w.n, columns or 1)
                if not 32 <= columns < w.n + 64 or 2 * down * across * batch > w.device.sms:
                    continue
                if (consumers, rows) == (1, 2) and columns >= ALONE_BELOW:
                    continue
                for sharing, b_sharing in PART_CLUSTERS:
                    if sharing <= across and b_sharing <= down:
                        yield {
                            "CONSUMERS": consumers,
                            "ROWS": rows,
                            "COLUMNS": columns,
                            "SHARING": sharing,
                            "B_SHARING": b_sharing,
                            "CTAS_PER_SM": 1,
                            "DIVIDED": 2,
                        }


def stream_work(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> StreamWork:
    """What a launch for ``batch`` products of elements of ``itemsize`` bytes does."""
    shares, sms, of = Shares.of(w, t, itemsize, batch), w.device.sms, multiplied(w, t)
    ctas = shares.clusters * shares.ctas
    on_sm, rows = cdiv(ctas, sms), loaded_rows(of, t)
    from_a, shifts = rows / shares.sharing, staged_bytes(w, t) > 0
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(of, from_a, t["COLUMNS"], itemsize),
        steps=shares.longest * on_sm,
        rows=rows,
        columns=t["COLUMNS"],
        delivered=from_a + t["COLUMNS"] / shares.b_sharing,
        sms=min(ctas, sms),
        idle=1 - min(ctas, sms) / sms,
        others=shares.sharing + shares.b_sharing - 2,
        stages=stages(w, t) * on_sm,
        units=height(t) / 64,
        wgmma_columns=t["COLUMNS"],
        ends=(ends := min(height(t), of.m) * t["COLUMNS"] * max(1, shares.whole)),
        scattered=0.0 if shifts else ends if w.n % 2 else ends / 2 if w.n % 8 else 0.0,
        shifted=ends if shifts else 0.0,
        clustered=shares.ctas > 1,
        packed=shares.ctas > SMS_PER_TPC,
        again_bytes=stream_model.again_bytes(of, itemsize, cdiv(of.n, t["COLUMNS"] * shares.sharing), shares.down) * batch,
        partial_bytes=stored_bytes(t, shares),
    )


def predicted_us(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> float:
    """The time by the model."""
    entry = measured(w.device)
    rates = entry.parts if t["DIVIDED"] in (2, TRANSPOSED) and entry.parts is not None else entry.stream_k
    return stream_model.predicted_us(rates, stream_work(w, t, itemsize, batch), w.device.sms / entry.sms)


def preferred(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[Mapping[str, Any]]:
    """The candidates that can be used, the one with the shortest predicted time first."""
    usable_ones = (t for t in candidates(w, batch) if usable(w, t, itemsize, batch) is True)
    yield from sorted(usable_ones, key=lambda t: predicted_us(w, t, itemsize, batch))


@cached_per_device
def partials(w: Product, itemsize: int = 2, batch: int = 1) -> int:
    """The most elements of partial sums that a candidate has."""
    divided = (t for t in candidates(w, batch) if t["DIVIDED"] and usable(w, t, itemsize, batch) is True)
    return max((partial_bytes(t, Shares.of(w, t, itemsize, batch)) // 4 for t in divided), default=0)


def fits(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> bool | str:
    """The constraint of the variants that divide tiles: memory is allocated for the partial sums of :func:`candidates`."""
    allowed = usable(w, t, itemsize, batch)
    if allowed is not True or not t["DIVIDED"]:
        return allowed
    needed, room = partial_bytes(t, Shares.of(w, t, itemsize, batch)), 4 * partials(w, itemsize, batch)
    return True if needed <= room else f"{needed} bytes of partial sums are more than the {room} of tiles that are considered"
