"""The order in which the vectorized row kernels try shapes: how many threads, registers and CTAs hold a row.

A CTA loads its row to registers, waits for it, and stores the result. Memory is busy meanwhile if the other CTAs of the SM load
their rows. Which shape is the fastest therefore follows from the CTAs that are resident at a time, which the registers of a
thread limit, and from the bytes of their rows.

- If all rows are resident at a time, the time of the grid is the latency of one row and that of starting the CTAs
  (:attr:`Shape.latency_us`). Few rows are held by many threads, and by several SMs where most would be idle; many short
  rows share CTAs.
- Otherwise the rows of an SM should have :func:`enough_bytes`. With more columns for each thread, fewer registers hold
  addresses, and more hold rows.

The coefficients were determined on an H200 from the times of 1100 tiles of 54 shapes, those of short rows and of grids just
above one wave from the times of ``tests/workload/data/choices-6-h200.jsonl.gz`` and ``choices-7-h200.jsonl.gz`` (docs/rows.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ptxkit import cdiv
from ptxkit.kernels.elementwise.elementwise import width
from ptxkit.targets.achievable import copy_gbs
from ptxkit.targets.gpus import gpu_named, reference_gpu
from ptxkit.targets.sm import WARP

VECTORS = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # vectors of a row that a thread holds
CLUSTERS = (1, 2, 4, 8)  # CTAs that hold a row; more are not portable
SHARED_CTA = 128  # threads of a CTA that computes several rows
LINE_LANES = 8  # threads of a warp whose vectors are a cache line of 128 bytes
LATENCY_US = 1.33  # copying the resident rows of an SM should take at least this long, so that latency is covered
CLUSTER_SHARE = {1: 1.0, 2: 0.95, 4: 0.82, 8: 0.7}  # CTAs of a row -> share of the bytes, as they wait for each other
SCHEDULED = 128  # registers are given out for multiples of this many threads: a warp for each of an SM's four partitions
WARP_VECTORS = {True: 5, False: 4}  # whether two arrays are held -> maximum vectors of a thread, where a row has one warp
ADDRESSES = 12  # registers for them, where the launch determines the number of threads (ADDRESSES of VectorizedTile)
MANY_HELD = {True: 24, False: 32}
"""Whether all rows share arrays, which the compiler loads early -> columns of a thread from which on it takes more registers
than the row needs, because the launch bounds leave them. (Read from compiled kernels.)"""
MOST_HELD = 40  # the maximum of such columns in kernels for clusters without shared arrays, which take ADDRESSES more
CTA_US = 0.0003  # between the starts of two CTAs of a grid
COLUMN_US = 0.025  # of latency for each column of a thread
EXCHANGE_US = 0.2  # of latency for the sums over the warps of a row (docs/benchmarking.md)
UNEVEN = 1.5  # factor of the waves of clusters, which do not reach all SMs
CTA_COLUMNS = 8192  # columns of a CTA from which on another SM saves more than the exchange through its cluster costs
HELD_COLUMNS = {True: 80, False: 64}  # the same -> maximum number of columns of a thread
FEW_COLUMNS = {True: 32, False: 24}  # the same where all rows are resident; key: whether an SM has at most two CTAs
LEAST_USED = 7 / 8  # share of the threads that have columns, of shapes that are preferred to others with as many bytes
SINGLE_VECTORS = 2  # of a thread, of all arrays, where rows of 16 bits are accessed by single columns
SINGLE_COLUMNS = 24  # maximum number of columns of a thread there in short rows, and in f32
SINGLE_LANES = {True: 16, False: 8}  # whether a thread has more than 16 columns -> minimum number of threads of a short row
SHORT_COLUMNS = 512  # maximum number of columns of a short row
FULL_SHARE = 5 / 8  # share of the registers with columns from which more threads of a row are better than more columns each
SHIFT_COST = 1.15  # how many times as long a register of single columns takes as one of shifted vectors
SHIFTED_VECTORS = 5  # maximum number of vectors of a thread in rows that are shifted: in short ones, and in gradients
TAIL_WAVES = 1.25  # waves up to which the last one has few CTAs, and takes as long as another


@dataclass(frozen=True)
class Shape:
    """A shape of the kernel.

    Attributes:
        threads: maximum number of threads of a CTA, a power of two. vectors: of a thread. cluster: CTAs of a row.
        block: threads of a CTA as launched. of_row: those that share a row. ctas: of the grid.
        waves: CTAs over those that are resident at a time.
        resident: CTAs of an SM at a time. resident_bytes: of their rows.
        used: share of the threads that have registers for which there are columns.
        latency_us: what depends on the shape where all rows are resident: starting the CTAs, the columns of a thread, and the
            exchange of sums between warps.
    """

    threads: int
    vectors: int
    cluster: int
    block: int
    of_row: int
    ctas: int
    waves: float
    resident: int
    resident_bytes: int
    used: float
    latency_us: float

    @property
    def tile(self) -> dict[str, Any]:
        """Its tile parameters."""
        return {"THREADS": self.threads, "VECTORS": self.vectors, "CLUSTER": self.cluster}

    @property
    def is_half(self) -> bool:
        """Whether two rows share a CTA."""
        return self.cluster == 1 and self.threads == self.block == SHARED_CTA and self.of_row == SHARED_CTA // 2

    @property
    def alone(self) -> Shape:
        """The same rows, each of which has a CTA."""
        return replace(self, threads=self.of_row, block=self.of_row, ctas=2 * self.ctas)

    def with_twice_the_threads(self, resident: int, sms: int) -> Shape:
        """The same rows in CTAs of twice as many, of which an SM holds ``resident`` at a time."""
        ctas = cdiv(self.ctas, 2)
        return replace(
            self, threads=2 * self.threads, block=2 * self.block, ctas=ctas, resident=resident, waves=ctas / (resident * sms)
        )

    @property
    def useful_bytes(self) -> float:
        """The resident bytes that count: of the CTAs of an SM about one computes, and loads nothing meanwhile."""
        return self.resident_bytes * self.resident / (self.resident + 1) * CLUSTER_SHARE[self.cluster]


def shapes(
    w: Any,
    columns: int,
    inputs: int,
    beside: int,
    shifted: bool,
    packed: bool = False,
    *,
    weights: int = 0,
    latency: float = 1.0,
) -> Iterator[Shape]:
    """The shapes for a workload, best first.

    Args:
        w: a workload with ``rows``, ``cols`` and ``dtype``.
        columns: that a row needs registers for.
        inputs: arrays of which a thread holds its columns at a time.
        beside: registers of a thread that hold no columns.
        shifted: whether rows that begin between two vectors move in vectors.
        packed: whether two columns of 16 bits share a register.
        weights: number of arrays that all rows share.
        latency: how many times as long as in other kernels a row takes between its loads and its stores.
    """
    wide = width(w.dtype)
    unaligned = w.cols % wide != 0
    single = wide == 8 and unaligned and not shifted
    short = unaligned and w.cols <= SHORT_COLUMNS
    first = least_cluster(w, columns)
    found = [
        shape
        for cluster in CLUSTERS
        if first <= cluster <= w.device.target.limits.portable_cluster
        if cluster == 1 or cluster == first or columns > CTA_COLUMNS * cluster
        for vectors in VECTORS
        if wide * vectors * inputs <= HELD_COLUMNS[inputs == 2]
        if (shape := _shape(w, columns, vectors, cluster, inputs, beside, packed, weights))
    ]
    enough = latency * enough_bytes(w)
    few_suffice = any(shape.vectors * inputs <= SINGLE_VECTORS and shape.useful_bytes >= enough / 2 for shape in found)

    def at_once(shape: Shape) -> bool:
        waves = shape.waves * (UNEVEN if shape.cluster > 1 else 1)
        return waves <= 1 and wide * shape.vectors * inputs <= FEW_COLUMNS[shape.resident <= 2]

    def order(shape: Shape) -> tuple[Any, ...]:
        many = single and shape.vectors * inputs > SINGLE_VECTORS
        if at_once(shape):
            return many, False, shape.cluster, shape.latency_us
        many = many and few_suffice
        if short and inputs == 1:
            lanes = lanes_of(columns, wide * shape.vectors)
            return False, True, *short_order(columns, wide * shape.vectors, lanes, shifted)
        tail = 1 < shape.waves < TAIL_WAVES and shape.cluster == 1 and not unaligned
        useful = min(shape.useful_bytes, enough)
        return many, True, tail, -useful, shape.cluster, shape.used < LEAST_USED, shape.vectors

    yield from sorted(found, key=order)


def lanes_of(columns: int, held: int) -> int:
    """Threads of a short row, of which each holds ``held`` columns."""
    return 1 << (cdiv(columns, held) - 1).bit_length()


def short_order(columns: int, held: int, lanes: int, shifted: bool) -> tuple[Any, ...]:
    """Where a shape comes for short rows that begin between two vectors: the more of its registers have columns, the better.

    Few threads of a row access few adjacent columns at a time, and registers of many single columns are filled one after the
    other. Of shapes with equally many registers of single columns, the one with at least eight columns of a thread and the
    fewest; if many of them have no column, and in vectors, the one with more columns, in which more rows share a warp.
    """
    share = columns / (held * lanes)
    if shifted:
        unsuitable = lanes < LINE_LANES or held > 8 * SHIFTED_VECTORS
    else:
        unsuitable = lanes < SINGLE_LANES[held > 16] or not 8 <= held <= SINGLE_COLUMNS
    return unsuitable, -share, held if share >= FULL_SHARE and not shifted else -held


def short_rows_shift(w: Any, touched: int) -> bool:
    """Whether short rows of 16 bits move in vectors; ``touched``: columns of all vectors that a row touches."""

    def registers(columns: int, shifted: bool) -> float:
        found = [(short_order(columns, 8 * v, lanes_of(columns, 8 * v), shifted), v) for v in VECTORS[:SHIFTED_VECTORS]]
        vectors = min(found)[1]
        return 8 * vectors * lanes_of(columns, 8 * vectors)

    return registers(touched, True) <= SHIFT_COST * registers(w.cols, False)


def enough_bytes(w: Any) -> float:
    """Bytes of resident rows of an SM with which device memory is busy: what it delivers while a row is computed."""
    gpu = gpu_named(w.device.gpu) or reference_gpu(w.device.target)
    return copy_gbs(gpu) * 1e3 * LATENCY_US / float(w.device.sms)


def least_cluster(w: Any, columns: int) -> int:
    """CTAs that hold a row where rows are so few that most SMs would be idle."""
    cluster, most = 1, min(CLUSTERS[-1], w.device.target.limits.portable_cluster)
    while cluster < most and w.rows * cluster <= w.device.sms and columns > CTA_COLUMNS * cluster:
        cluster *= 2
    return cluster


def _shape(
    w: Any, columns: int, vectors: int, cluster: int, inputs: int, beside: int, packed: bool, weights: int
) -> Shape | None:
    """The shape with these numbers; None if it cannot hold a row or is not resident."""
    limits, wide = w.device.target.limits, width(w.dtype)
    needed = cdiv(columns, wide * vectors * cluster)
    if needed <= SHARED_CTA // 2 and cluster == 1:
        lanes = 1 << (needed - 1).bit_length()
        short = w.cols % wide != 0 and w.cols <= SHORT_COLUMNS
        most = SHIFTED_VECTORS if short else WARP_VECTORS[inputs == 2]
        if vectors > 1 and (lanes < LINE_LANES or (lanes <= WARP and vectors > most)):
            return None
        threads = block = max(lanes, min(SHARED_CTA, _fewest(w.rows * lanes, w.device.sms)))
        rows = block // lanes
    else:
        block, rows = WARP * cdiv(needed, WARP), 1
        threads = 1 << (block - 1).bit_length()
    if threads > limits.threads_per_cta:
        return None
    held = wide * vectors * inputs
    if packed and wide == 8:
        held = held // 2 + ADDRESSES * (block < threads)
    unit = limits.thread_register_unit
    registers = cdiv(held + beside, unit) * unit
    if registers >= limits.registers_of(threads):  # ptxas would spill some
        return None
    resident = resident_ctas(w, block, registers)
    counted = wide == 8 or w.cols % wide == 0  # single columns of f32 are faster with many threads nevertheless
    if block < threads and held >= MANY_HELD[weights > 0] and counted:  # launch bounds are those of `threads`
        promised = max(1, limits.registers // ((registers + ADDRESSES) * threads))
        if weights or cluster == 1:
            taken = limits.registers // (threads * promised)
        elif wide == 8 and held <= MOST_HELD:
            taken = cdiv(registers + ADDRESSES, unit) * unit
        else:
            taken = registers
        resident = min(resident, max(promised, resident_ctas(w, block, taken)))
    if not resident:
        return None
    ctas = cdiv(w.rows, rows) * cluster
    row_bytes = columns * 16 // wide * inputs
    return Shape(
        threads,
        vectors,
        cluster,
        block,
        block // rows,
        ctas,
        waves=ctas / (resident * w.device.sms),
        resident=resident,
        resident_bytes=resident * rows * row_bytes // cluster,
        used=rows * needed / max(_allocated(block), WARP),
        latency_us=CTA_US * ctas + COLUMN_US * wide * vectors + EXCHANGE_US * (needed > WARP),
    )


def resident_ctas(w: Any, block: int, registers: int) -> int:
    """CTAs of ``block`` threads that an SM holds, if a thread takes this number of registers."""
    limits = w.device.target.limits
    return int(min(limits.registers // (registers * _allocated(block)), limits.threads // block, limits.ctas))


def _allocated(block: int) -> int:
    """The threads for which a CTA takes registers."""
    return block if block <= SCHEDULED // 2 else SCHEDULED * cdiv(block, SCHEDULED)


def _fewest(threads: int, sms: int) -> int:
    """Threads of a CTA with which a grid of ``threads`` reaches all SMs, a power of two of whole warps."""
    return max(WARP, 1 << int(math.log2(max(1, threads // sms))))
