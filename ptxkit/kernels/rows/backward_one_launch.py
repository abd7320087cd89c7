"""The gradients of norms in one launch, whose x and dy stay in L2: cu/ptxkit/rows/backward_one_launch.cuh.

Some CTAs compute dx, with rows in registers, and others the sums over rows, 32 columns each or, of few rows, a vector of
columns for each thread. The order of the tiles follows from a prediction of the time by named terms, :func:`predicted_us`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.elementwise.elementwise import width
from ptxkit.kernels.per_device import cached_per_device
from ptxkit.kernels.rows import backward, row_tiles
from ptxkit.kernels.rows import rows as row
from ptxkit.targets.sm import NAMED_BARRIERS, WARP

COLUMNS = 32  # of a block, which warps of a CTA add up
BESIDE = 48  # registers of a thread beside the two rows
SHIFTED = 8  # further ones for addresses of rows that begin between two vectors
CONVERTED = 28  # registers that the compiler takes beside those in 16 bits, if the launch bounds leave them
FEW_ROWS = 64  # up to which the CTAs of dx may start first
VECTOR_ROWS = 16  # up to which a thread of the sums may have a vector of columns
GROUP_ROWS = 8  # rows of such a thread: two times four in flight
LEAST_REGISTERS = 64  # what a thread of the sums over rows needs

TILE: Mapping[str, list[Any]] = {
    "THREADS": [512, 256, 1024, 128],  # threads of a CTA
    "VECTORS": [1, 2, 3, 4, 5, 6, 8, 10],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [1, 2, 4, 8, 16],  # CTAs of a cluster, which hold one row; 16 is not portable
    "SPLIT": [1, 2, 4, 8],  # CTAs of a cluster that share the rows of a sum
    "CACHE": [0, 4],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: keep, input
    "SHIFTED": [False, True],  # as in ptxkit.kernels.rows.rows
}

FILE = Path(__file__).with_name("one_launch.json")


@dataclass(frozen=True)
class Coefficients:
    """What ``scripts/fit_gradients.py`` fits to measured times of tiles.

    Attributes:
        launch_us: of a launch, with the latency of its first loads. start_us: until a CTA has its first row.
        row_us: a row of a lane of the sums, times the square root of its columns. column_us: a column of a thread of dx; rows
            that begin between two vectors take UNALIGNED times as long. warp_us: of each warp of a CTA, whose sums are added.
        cluster_us: the exchange in a cluster. cta_us: of each CTA on an SM.
        busy: how many times as long a CTA takes if its SM is full. uneven: the share by which this grows with each doubling of
            the CTAs of a cluster, as clusters do not reach all SMs. unaligned: how many times as long CTAs take for rows of 16
            bits that begin between two vectors. copy_gbs: what memory and L2 deliver and take.
        second_us: of two launches, beside the copy, which takes as many times as long as the coefficient of their :func:`kind`.
            second_copy: rows of one CTA. second_cluster: rows of a cluster. second_single and second_single_cluster: the same
            of rows that begin between two vectors, which nothing prefetches. second_short: rows of which a warp holds several.
            second_blocks: rows that move as blocks, of which registers without columns take as long as the others.
            second_streamed: rows that no cluster's registers hold, which are read three times.
        exchange_us: of each row of a cluster of two CTAs, of larger ones times the logarithm of their number, where it has few
            rows. blocks_us: of the first blocks. streamed_us: of each 1000 columns of rows that are read three times.
    """

    launch_us: float
    start_us: float
    row_us: float
    column_us: float
    warp_us: float
    cluster_us: float
    cta_us: float
    busy: float
    uneven: float
    unaligned: float
    copy_gbs: float
    second_us: float
    second_copy: float
    second_cluster: float
    second_short: float
    second_blocks: float
    second_streamed: float
    second_single: float
    second_single_cluster: float
    exchange_us: float
    blocks_us: float
    streamed_us: float


UNALIGNED = 1.6


@cache
def fitted() -> Coefficients:
    """The coefficients of the package."""
    return Coefficients(**json.loads(FILE.read_text(encoding="utf-8"))["coefficients"])


@cache
def exceptions() -> Mapping[tuple[str, str, int, int, str], Mapping[str, Any] | None]:
    """GPU, kernel, rows, columns and type -> the fastest measured tile, or None where two launches were faster.

    They are the measured cases in which the model chose a slower one.
    """
    read = json.loads(FILE.read_text(encoding="utf-8"))
    gpu = read["measured_on"][0]["gpu"]
    return {(gpu, e["kernel"], e["rows"], e["cols"], e["dtype"]): e["tile"] for e in read["exceptions"]}


def exception_key(w: Any) -> tuple[str, str, int, int, str]:
    """The key of a workload in :func:`exceptions`."""
    return w.device.gpu, w.name, w.rows, w.cols, w.dtype


def held(w: Any, t: Tile) -> int:
    """Registers of a thread beside those for addresses."""
    return int(2 * width(w.dtype) * t.VECTORS + BESIDE)


def addresses(w: Any, t: Tile) -> int:
    """``ADDRESSES`` of VectorizedTile."""
    return row_tiles.ADDRESSES * (row.launched_lanes(w, t)[0] == 0) + SHIFTED * int(t.SHIFTED)


def registers(w: Any, t: Tile) -> int:
    """Registers of a thread: as many as the compiler would like, up to those that the launch bounds leave.

    The bounds are those of the maximum number of threads. In 16 bits the compiler takes more than rows need.
    """
    needed = max(LEAST_REGISTERS, held(w, t) + addresses(w, t))
    wanted = needed + (CONVERTED if width(w.dtype) == 8 else 0)
    unit = w.device.target.limits.thread_register_unit
    return int(min(cdiv(wanted, unit) * unit, row.available_with(w, t, needed) // unit * unit))


def wide(w: Any) -> int:
    """Neighbouring columns of a lane of the sums over rows, which it reads at a time."""
    return math.gcd(w.cols, 4)


def rows_of_warp(w: Any) -> int:
    """Rows that a warp of the sums has in flight: ``rows_in_flight`` of the source, times those that it reads at a time."""
    columns = wide(w)
    return columns * (4 if columns * row.itemsize(w.dtype) > 8 else 8)


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``one_launch``."""
    available = row.registers(w, t.THREADS)
    if t.SHIFTED and row.is_aligned(w):
        return f"{w.cols} columns are whole vectors, so SHIFTED has no effect"
    if held(w, t) + (row_tiles.ADDRESSES + SHIFTED) * t.SHIFTED > available:
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


def few_and_long(w: Any) -> bool:
    """Whether rows are few, and have so many columns that each SM has a warp even if a lane has a vector of them."""
    return bool(w.rows <= FEW_ROWS and cdiv(w.cols, WARP * width(w.dtype)) >= w.device.sms)


def groups(w: Any, t: Tile) -> int:
    """Groups of warps of a CTA that share the rows of the sums, where a thread has a vector of columns; 0: blocks of columns.

    Blocks of columns are read by more warps, each of which reads less of a row at a time and has sums to exchange.
    """
    if t.SPLIT > 1 or not few_and_long(w) or w.rows > VECTOR_ROWS or not row.is_aligned(w):
        return 0
    count = cdiv(w.rows, GROUP_ROWS)
    return count if count <= row.launched_lanes(w, t)[1] // WARP else 0


def blocks(w: Any, t: Tile) -> int:
    """Blocks of columns of a CTA: as many as divide its warps, with all rows in flight, up to one CTA of sums for each SM."""
    if t.SPLIT > 1:
        return 1
    warps = row.launched_lanes(w, t)[1] // WARP
    of_block = cdiv(w.rows, rows_of_warp(w))  # warps that have all rows in flight
    most = max(1, min(warps // of_block, cdiv(w.cols, COLUMNS * w.device.sms)))
    return max(count for count in range(1, most + 1) if warps % count == 0)


def columns_of_cta(w: Any, t: Tile) -> int:
    """Columns that a CTA of the sums adds up, or those that SPLIT of them do."""
    if count := groups(w, t):
        return row.launched_lanes(w, t)[1] // WARP // count * WARP * width(w.dtype)
    return COLUMNS * blocks(w, t)


def grid(w: Any, t: Tile) -> tuple[int, int]:
    """CTAs that add up columns, and CTAs that compute dx, each in whole clusters."""
    of_row, _ = row.launched_lanes(w, t)
    cluster = max(t.CLUSTER, t.SPLIT)
    of_sums = cdiv(w.cols, columns_of_cta(w, t)) * t.SPLIT
    of_dx = cdiv(w.rows, t.THREADS // of_row if of_row else 1) * t.CLUSTER
    return cdiv(of_sums, cluster) * cluster, cdiv(of_dx, cluster) * cluster


def dx_first(w: Any, t: Tile) -> bool:
    """Whether the CTAs that compute dx start before those of the sums, which take less time for few rows.

    Clusters that start last wait until as many SMs have room at a time.
    """
    return t.SPLIT == 1 and few_and_long(w)


@dataclass(frozen=True)
class Parts:
    """What the time of a tile follows from.

    Attributes:
        of_sums, of_dx: CTAs, as :func:`grid`. per_device: CTAs that are resident at a time. sms: of the device.
        rows: that a lane of the sums adds up, times the square root of its columns.
        columns: of a thread of dx, times UNALIGNED where it applies.
        block_warps: whose sums are added, of a block or of the other groups. warps: of a CTA.
        split: whether clusters share rows of a sum. cluster: CTAs that hold a row. unaligned: whether rows of 16 bits begin
            between two vectors.
        moved: bytes of memory and L2.
    """

    of_sums: int
    of_dx: int
    per_device: int
    sms: int
    rows: float
    columns: float
    block_warps: int
    warps: int
    split: bool
    cluster: int
    unaligned: bool
    moved: int

    def time_us(self, c: Coefficients) -> float:
        """The predicted time: of the longest CTA, of all over those that are resident, and of the copy, which overlap."""
        sums = c.row_us * self.rows + c.warp_us * self.block_warps + c.cluster_us * self.split
        dx = c.column_us * self.columns + c.warp_us * self.warps + c.cluster_us * (self.cluster > 1)
        busy = c.busy * (1 + c.uneven * math.log2(self.cluster))
        full = busy * (self.of_sums * (c.start_us + sums) + self.of_dx * (c.start_us + dx)) / self.per_device
        copy = self.moved / c.copy_gbs / 1e3
        shifted = c.unaligned if self.unaligned else 1.0
        overlapped = math.hypot(shifted * max(sums, dx), shifted * full, copy)  # terms that overlap, as a norm of order 2
        return c.launch_us + overlapped + c.cta_us * (self.of_sums + self.of_dx) / self.sms


def parts(w: Any, t: Tile) -> Parts:
    """The parts of the time of a tile of ``one_launch``."""
    limits, of_vector, sms = w.device.target.limits, width(w.dtype), w.device.sms
    _, threads = row.launched_lanes(w, t)
    resident = max(1, min(limits.registers // (registers(w, t) * threads), limits.threads // threads))
    of_sums, of_dx = grid(w, t)
    if count := groups(w, t):
        block_warps, columns = count - 1, of_vector
        rows = cdiv(w.rows, count)
    else:
        block_warps, columns = threads // WARP // blocks(w, t), wide(w)
        rows = cdiv(w.rows, block_warps * t.SPLIT * columns)
    return Parts(
        of_sums=of_sums,
        of_dx=of_dx,
        per_device=resident * sms,
        sms=sms,
        rows=rows * columns**0.5,
        columns=t.VECTORS * of_vector * (1 if row.is_aligned(w) else UNALIGNED),
        block_warps=block_warps,
        warps=threads // WARP,
        split=t.SPLIT > 1,
        cluster=t.CLUSTER,
        unaligned=width(w.dtype) == 8 and not row.is_aligned(w),
        moved=moved_bytes(w),
    )


def moved_bytes(w: Any) -> int:
    """x, dy and dx, and the part of x and dy that L2 does not hold when they are read again."""
    array: int = w.rows * w.cols * row.itemsize(w.dtype)
    l2: int = w.device.l2_bytes
    return 3 * array + max(0, 2 * array - l2)


def predicted_us(w: Any, t: Tile) -> float:
    """The time of a tile of ``one_launch``."""
    return parts(w, t).time_us(fitted())


def kind(w: Any, t: Tile) -> str:
    """The coefficient of the copy in two launches with a tile of ``vectorized`` or ``pipelined``."""
    if t.get("BLOCK_STAGES"):
        return "second_blocks"
    if not row.in_registers(w, t):
        return "second_streamed"
    if row.lanes(w, t) < WARP:
        return "second_short"
    if row.is_aligned(w):
        return "second_cluster" if t.CLUSTER > 1 else "second_copy"
    return "second_single_cluster" if t.CLUSTER > 1 else "second_single"


def second_us(w: Any, c: Coefficients) -> float:
    """The time of the variants with partial sums, which a second launch adds up; infinite if they have no tile."""
    t = backward.second_tile(w)
    if t is None:
        return math.inf
    of, doublings = kind(w, t), math.log2(t.CLUSTER)
    copy = 3 * w.rows * w.cols * row.itemsize(w.dtype) / c.copy_gbs / 1e3
    beside = 0.0
    if of == "second_blocks":
        copy *= row.lanes(w, t) * t.VECTORS * width(w.dtype) / w.cols
        beside = c.blocks_us
    elif of == "second_streamed":
        beside = c.streamed_us * w.cols / 1e3
    elif doublings:
        of_each = w.rows * t.CLUSTER / w.device.sms  # rows of a cluster
        beside = c.exchange_us * doublings * math.ceil(of_each) if of_each < backward.MANY_ROWS else 0.0
        copy *= math.sqrt(doublings) if of == "second_single_cluster" else 1.0
    return float(c.second_us + beside + getattr(c, of) * copy)


@cached_per_device
def ordered(w: Any) -> tuple[tuple[float, Mapping[str, Any]], ...]:
    """Predicted times of the usable tiles in microseconds, with the tiles, the shortest first.

    Clusters that are not portable come last: they are for rows that no other cluster holds. So do many vectors of rows that
    begin between two: the weights of each are put together from two, one vector after the other.
    """
    shifted, limits = row.moves_shifted(w, 1), w.device.target.limits
    names = ("THREADS", "VECTORS", "CLUSTER", "SPLIT")
    found = []
    for values in itertools.product(*(TILE[name] for name in names)):
        tile = {**dict(zip(names, values, strict=True)), "CACHE": 0, "SHIFTED": shifted}
        t = Tile(tile)
        if max(t.CLUSTER, t.SPLIT) <= limits.largest_cluster and usable(w, t) is True:
            found.append((predicted_us(w, t), tile))

    def order(each: tuple[float, Mapping[str, Any]]) -> tuple[bool, bool, float]:
        time_us, tile = each
        return tile["CLUSTER"] > limits.portable_cluster, shifted and tile["VECTORS"] > row_tiles.SHIFTED_VECTORS, time_us

    return tuple(sorted(found, key=order))


def preferred(w: Any) -> Iterator[Mapping[str, Any]]:
    """A measured exception, then tiles in the order of their predicted times."""
    measured = exceptions().get(exception_key(w))
    if measured is not None:
        yield measured
    yield from (tile for _, tile in ordered(w) if tile != measured)


def slower(w: Any) -> str | None:
    """Why the variants with partial sums are faster."""
    if (key := exception_key(w)) in exceptions():
        return "two launches were measured to be faster at these sizes" if exceptions()[key] is None else None
    tiles = ordered(w)
    if not tiles:
        return None
    one, two = tiles[0][0], second_us(w, fitted())
    if two < one:
        return f"it is predicted to take {one:.1f} us, as all rows are read twice, and two launches {two:.1f} us"
    return None


def launches(w: Any, t: Tile) -> list[Launch]:
    """The launch of ``one_launch``."""
    of_row, threads = row.launched_lanes(w, t)
    tile = row.tile_in_registers(w, t, of_row)
    of_sums, of_dx = grid(w, t)
    cluster = max(t.CLUSTER, t.SPLIT)
    arrays = ("x", "dy", *backward.weights(w), *backward.statistics(w), "dx", *backward.gradients(w))
    return [
        Launch(
            f"{backward.prefix(w)}_one_launch",
            of_sums + of_dx,
            threads,
            (*arrays, w.rows, w.cols, of_sums, blocks(w, t), groups(w, t), int(dx_first(w, t))),
            0,
            cluster if cluster > 1 else None,
            template=(*backward.types(w), tile, t.SPLIT, wide(w)),
        )
    ]
