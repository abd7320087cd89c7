"""The row kernels: tile parameters, constraints, preferred tiles by size, and launches.

The kernels use ``cu/ptxkit/rows/row.cuh``. A vectorized kernel holds rows in registers; its last template argument is a
:class:`VectorizedTile`. A streamed kernel takes rows in chunks; its template arguments end with
``THREADS, VECTORS, CTAS, STAGED``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.elementwise.elementwise import ELEMENTS, stays_in_l2, width
from ptxkit.kernels.measured import keep_input_bytes, measured
from ptxkit.kernels.rows.row_tiles import SHARED_CTA, SHORT_COLUMNS, Shape, resident_ctas, shapes, short_rows_shift
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets import missing
from ptxkit.targets.sm import NAMED_BARRIERS, WARP

Dtype = Literal["f32", "f16", "bf16"]

THREADS = 256  # threads of a CTA in the unfused chains and the fused kernels
CHUNK = 4  # elements of a thread in the element-wise launches of the unfused chains
VECTOR_BYTES = 16
ASYNC_COPY = ("cp.async",)
EARLY_LAUNCH = ("griddepcontrol",)
RECORD_BYTES = 11 * 1024  # shared memory of a CTA that is left for records where it stages a part of a row
FEW_WAVES = 2  # up to which the latency of weights counts, where not all rows are resident at a time
SPILLED = 12  # registers without which columns spill: see spills_at of preferred
PACKED_BESIDE = 24  # registers beside columns in the format of memory
ALONE = 8  # registers that a thread saves where a CTA has one row
LINE_COLUMNS = 64  # of 16 bits, in a cache line of 128 bytes
MANY_ROWS = 64  # short rows for each SM from which on not all of them are resident
NARROW_COLUMNS = 128  # minimum number of columns of short rows with WIDTH
NARROW_VECTORS = 3  # accesses of a thread there
LONG_COLUMNS = 8192  # columns from which SHIFTED is faster with two arrays of weights
NULL = np.uint64(0)  # a null pointer, for outputs that are not requested

TILE: Mapping[str, list[Any]] = {
    "THREADS": [128, 32, 64, 256, 512, 1024],  # threads of a CTA
    "VECTORS": [4, 1, 2, 8, 16, 3, 5, 6, 7],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [1, 2, 4, 8],  # CTAs of a cluster, which hold one row
    "CACHE": [1, 0, 2, 3, 4],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: keep, stream, once, output, input
    "PREFETCH_WEIGHTS": [False, True],  # load the weights before the row's sums are known
    "STAGED": [True, False],  # keep rows that do not fit in registers in shared memory instead of reading them again
    "NO_EARLY_LAUNCH": [False, True],  # let the next grid start when this one ends: see follow_previous_grid
    "SHIFTED": [False, True],  # move rows that begin between two vectors in vectors instead of single columns
    "EVEN": [False, True],  # let an SM hold no more CTAs than the grid needs: see even_bytes
    "WIDTH": [0, 2, 4],  # columns of an access, a VECTOR; 0: as many as are in 128 bits
    "PREFETCH_L2": [False, True],  # request rows before the previous grid has ended
}

FULL_TILE_COLUMNS = 16
"""Maximum number of columns per thread for code without bounds checks (FULL_TILE); with more, registers spill."""

TILE_WITHOUT_WEIGHTS: Mapping[str, list[Any]] = {
    name: values for name, values in TILE.items() if name != "PREFETCH_WEIGHTS"
}
"""Tile parameters of kernels without weights."""


@dataclass(frozen=True)
class VectorizedTile(TemplateStruct):
    """``VectorizedTile`` of cu/ptxkit/rows/row.cuh."""

    THREADS: int
    LANES: int
    VECTORS: int
    CTAS: int
    CACHE: int
    PREFETCH_WEIGHTS: bool
    NO_EARLY_LAUNCH: bool
    FULL_TILE: bool
    SHIFTED: bool
    WIDTH: int
    PREFETCH_L2: bool


def width_of(w: Any, t: Mapping[str, Any]) -> int:
    """Columns of an access."""
    return int(t.get("WIDTH") or width(w.dtype))


def capacity(w: Any, t: Tile) -> int:
    """Number of columns that the registers of a cluster can hold."""
    columns: int = width_of(w, t) * t.VECTORS * t.THREADS * t.CLUSTER
    return columns


def is_aligned(w: Any) -> bool:
    """Whether all rows begin with a vector."""
    return bool(w.cols % width(w.dtype) == 0)


def held_columns(w: Any, t: Mapping[str, Any]) -> int:
    """Number of columns that registers are needed for: with SHIFTED, all elements of the vectors that a row touches."""
    wide, cols = width(w.dtype), int(w.cols)
    return cdiv(cols + wide - math.gcd(cols, wide), wide) * wide if t.get("SHIFTED") else cols


def lanes(w: Any, t: Tile) -> int:
    """Threads of a CTA that share a row: the smallest power of two whose registers hold its columns, at most THREADS."""
    threads: int = t.THREADS
    return min(threads, 1 << (cdiv(held_columns(w, t), width_of(w, t) * t.VECTORS * t.CLUSTER) - 1).bit_length())


def launched_lanes(w: Any, t: Tile) -> tuple[int, int]:
    """LANES of the kernel and the number of threads of a CTA.

    A CTA with a row of its own has no more warps than hold columns. LANES is 0 if these are fewer than THREADS: the kernel then
    takes the number from the launch.
    """
    shared = lanes(w, t)
    if shared < t.THREADS:
        return shared, t.THREADS
    threads = WARP * cdiv(held_columns(w, t), WARP * width_of(w, t) * t.VECTORS * t.CLUSTER)
    return (0, threads) if threads < t.THREADS else (t.THREADS, t.THREADS)


def in_registers(w: Any, t: Tile) -> bool:
    """Whether a row fits in the registers of a cluster."""
    return held_columns(w, t) <= capacity(w, t)


def staged_bytes(w: Any, t: Tile, size: int = 0) -> int:
    """Size of a CTA's part of a row in shared memory, in bytes; ``size`` bytes per element, 0 for the size of the dtype."""
    bytes_: int = cdiv(w.cols, capacity(w, t)) * t.THREADS * t.VECTORS * width(w.dtype) * (size or itemsize(w.dtype))
    return bytes_


def registers(w: Any, threads: int) -> int:
    """Maximum number of registers per thread with ``threads`` resident threads per SM."""
    return int(w.device.target.limits.registers_of(threads))


def available_with(w: Any, t: Tile, needed: int) -> int:
    """Registers that the launch bounds leave to a thread, which let as many CTAs be resident as ``needed`` registers permit."""
    return registers(w, t.THREADS * max(1, w.device.target.limits.registers // (t.THREADS * needed)))


def even_bytes(w: Any, ctas: int) -> int:
    """Dynamic shared memory of a CTA with which an SM holds no more CTAs than each has to, if all ``ctas`` are resident.

    The next grid starts as soon as all CTAs of this one have. With room for more CTAs on an SM, its first ones go where room is
    left, and the others to the SMs that are ready first, so that some SMs get far more of them than others.
    """
    limits = w.device.target.limits
    each = cdiv(ctas, w.device.sms)
    if each >= limits.ctas:
        return 0
    least = limits.shared_bytes // (each + 1) - limits.reserved_bytes  # of which one CTA more would fit
    return int(max(0, min(least + VECTOR_BYTES * WARP // 2, limits.shared_bytes_per_cta - RECORD_BYTES)))


def late(w: Any, t: Tile) -> bool:
    """Whether NO_EARLY_LAUNCH can have an effect on the time."""
    return bool(in_registers(w, t) and stays_in_l2(w))


def narrow_refusal(w: Any, t: Tile) -> str:
    """Why WIDTH cannot be used, or ""."""
    if not t.get("WIDTH"):
        return ""
    if width(w.dtype) <= t.WIDTH:
        return f"WIDTH={t.WIDTH} is not less than the {width(w.dtype)} columns of 128 bits"
    if t.SHIFTED or t.CLUSTER > 1 or not in_registers(w, t):
        return "WIDTH applies to rows in the registers of a CTA that are not SHIFTED"
    return ""


def request_refusal(w: Any, t: Tile) -> str:
    """Why PREFETCH_L2 cannot be used, or ""."""
    if t.get("PREFETCH_L2") and not (in_registers(w, t) and stays_in_l2(w)):
        return "PREFETCH_L2 applies to rows in registers whose arrays fit in L2"
    return ""


def spill_refusal(w: Any, t: Tile, beside: int, spills_at: int) -> str:
    """Why a tile has too few registers for ``spills_at`` or more columns of f32 of a thread and an activation, or ""."""
    held = width_of(w, t) * t.VECTORS
    if width(w.dtype) != 4 or held < spills_at or t.PREFETCH_WEIGHTS or not in_registers(w, t):
        return ""
    left = available_with(w, t, held + beside)
    if left >= held + beside + SPILLED:
        return ""
    return f"the launch bounds of {t.THREADS} threads leave {left} registers, too few for VECTORS={t.VECTORS}"


def usable(beside: int, early: int = 0, size: int = 0, spills_at: int = 0) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE`.

    Args:
        beside: registers that the kernel needs in addition to the row without spilling, read from compiled kernels.
        early: number of further rows of registers with PREFETCH_WEIGHTS.
        size: bytes of an element of a staged row in shared memory; 0 for the size of the dtype.
        spills_at: columns of f32 of a thread from which on registers spill with an activation if the launch bounds leave few.
    """

    def check(w: Any, t: Tile) -> bool | str:
        held = width_of(w, t) * t.VECTORS
        available = registers(w, t.THREADS)
        if refusal := narrow_refusal(w, t) or request_refusal(w, t):
            return refusal
        if t.SHIFTED and is_aligned(w):
            return f"{w.cols} columns are whole vectors, so SHIFTED has no effect"
        if t.SHIFTED and not in_registers(w, t):
            return "SHIFTED applies to rows in registers"
        if held * (1 + early * bool(t.get("PREFETCH_WEIGHTS"))) + beside > available:
            return f"{t.THREADS} threads have {available} registers each, too few for VECTORS={t.VECTORS}"
        if spills_at and w.activation != "none" and (refusal := spill_refusal(w, t, beside, spills_at)):
            return refusal
        if t.CLUSTER > 1 and w.cols <= capacity(w, t) // 2:
            return f"half of the cluster of {t.CLUSTER} holds {w.cols} columns already"
        if t.THREADS // lanes(w, t) > NAMED_BARRIERS and lanes(w, t) > WARP:
            return f"more than {NAMED_BARRIERS} rows of {lanes(w, t)} threads per CTA"
        if in_registers(w, t):
            if not t.STAGED:
                return f"{w.cols} columns fit in registers, so STAGED=False has no effect"
        elif held > 32:
            return f"chunks with VECTORS={t.VECTORS} need too many registers"
        elif t.STAGED and staged_bytes(w, t, size) > w.device.target.limits.shared_bytes_per_cta - RECORD_BYTES:
            return f"a CTA's part of {w.cols} columns needs {staged_bytes(w, t, size):,} bytes of shared memory"
        if t.get("EVEN") and (t.CLUSTER > 1 or t.NO_EARLY_LAUNCH or not late(w, t)):
            return "EVEN applies to CTAs with rows in registers whose arrays fit in L2, and to an early launch"
        if t.NO_EARLY_LAUNCH and not late(w, t):
            return "NO_EARLY_LAUNCH applies to rows in registers whose arrays fit in L2"
        return True

    return check


def moves_shifted(w: Any, weights: int, long_columns: int = LONG_COLUMNS, arrays: int = 1) -> bool:
    """Whether rows that begin between two vectors should move in vectors, with SHIFTED.

    Single columns of 16 bits take eight times as many accesses. The vectors of weights, which are put together from two, cost
    arithmetic; and in short rows there are few vectors beside the first and the last one. ``arrays``: of which a thread holds
    its columns at a time.
    """
    least = WARP * width(w.dtype) if weights < 2 else long_columns
    if width(w.dtype) == 4 or is_aligned(w):
        return False
    if weights == 0 and arrays == 1 and LINE_COLUMNS <= w.cols < least and w.rows > MANY_ROWS * w.device.sms:
        return short_rows_shift(w, held_columns(w, {"SHIFTED": True}))
    return bool(w.cols >= least)


def is_even(w: Any, shape: Shape) -> bool:
    """Whether all rows are resident at a time, with room for more on each SM, and the next grid may start early."""
    room = w.device.sms < shape.ctas and cdiv(shape.ctas, w.device.sms) < shape.resident
    return room and shape.cluster == 1 and stays_in_l2(w) and missing(EARLY_LAUNCH, w.device.target) is None


def is_requested(w: Any, shape: Shape, short: bool = False) -> bool:
    """Whether rows are requested before the previous grid has ended (PREFETCH_L2).

    The latency of device memory then overlaps with the end of that grid. It is done where all rows are resident at a time.
    ``short``: also for rows of a warp or less.
    """
    if not stays_in_l2(w) or missing(EARLY_LAUNCH, w.device.target) is not None:
        return False
    return bool(shape.waves <= 1 or (short and shape.of_row <= WARP))


def narrow_tiles(w: Any, rows: int) -> Iterator[dict[str, Any]]:
    """Tiles with WIDTH for up to ``rows`` short rows of 16 bits that are whole numbers of narrower accesses.

    A thread needs an instruction for each of its single columns, and where all rows are resident these instructions are most
    of the time. With the widest access that divides a row, few threads hold it in as few instructions.
    """
    if width(w.dtype) == 4 or is_aligned(w) or w.cols % 2 or not (NARROW_COLUMNS <= w.cols <= SHORT_COLUMNS):
        return
    wide = 4 if w.cols % 4 == 0 else 2
    of_row = 1 << (cdiv(w.cols, NARROW_VECTORS * wide) - 1).bit_length()
    few = w.rows <= w.device.sms
    if w.rows <= rows and stays_in_l2(w) and missing(EARLY_LAUNCH, w.device.target) is None:
        threads = max(WARP if few else SHARED_CTA, of_row)
        tile = {"THREADS": threads, "VECTORS": NARROW_VECTORS, "CLUSTER": 1, "CACHE": 0, "SHIFTED": False, "WIDTH": wide}
        if few or w.rows * of_row <= w.device.sms * w.device.target.limits.threads // 2:
            yield tile | {"PREFETCH_L2": True}


def waves_with(w: Any, shape: Shape, weights: int, beside: int) -> float:
    """CTAs over those that are resident at a time, if a thread holds the columns of the weights as well."""
    unit = w.device.target.limits.thread_register_unit
    held = cdiv(width(w.dtype) * shape.vectors * (1 + weights) + beside, unit) * unit
    return shape.ctas / float(max(1, w.device.sms * resident_ctas(w, shape.block, held)))


def preferred(
    beside: int,
    weights: int = 0,
    cache: int = 4,
    early: bool = False,
    *,
    prefetched: bool = True,
    long_columns: int = LONG_COLUMNS,
    spills_at: int = 0,
    latency: float = 1.0,
) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Tiles by size, for :data:`TILE`: in the order of :func:`ptxkit.kernels.rows.row_tiles.shapes`.

    Args:
        beside: see :func:`usable`.
        weights: number of arrays that all rows share. If there are some, the kernel has PREFETCH_WEIGHTS, which shortens the
            latency of a row and takes registers.
        cache: CACHE for arrays several times larger than L2.
        early: whether PREFETCH_WEIGHTS is faster for many rows of f32 as well.
        prefetched: whether it is faster for few rows. long_columns: columns from which SHIFTED is faster with two arrays of
            weights.
        spills_at: columns of a thread with which the registers of CTAs of several short rows spill in 16 bits, as the launch
            bounds let as many CTAs be resident as the other registers have room for. CTAs of twice as many threads, of which
            fewer are resident, have more registers; they are taken where all rows are resident nevertheless.
        latency: see :func:`ptxkit.kernels.rows.row_tiles.shapes`. If a row takes longer than others, two rows of 64 threads
            each have CTAs of their own, where no warp waits for another row.
    """

    def choose(w: Any) -> Iterator[dict[str, Any]]:
        large, wide = w.work().bytes >= keep_input_bytes(w.device), width(w.dtype)
        for most, (of_cta, held) in measured(w.device).rows.chunked.get(w.name, {}).items():
            if wide == 4 and large and most // 2 < w.cols <= most:
                yield {"THREADS": of_cta, "VECTORS": held, "CLUSTER": 8, "CACHE": cache}
        common: dict[str, Any] = {"CACHE": cache if large else 0, "SHIFTED": moves_shifted(w, weights, long_columns)}
        yield from narrow_tiles(w, w.device.sms)
        waits = latency if wide == 4 else 1.0  # in 16 bits, the conversions of a row take longer than its loads
        order = list(shapes(w, held_columns(w, common), 1, beside, common["SHIFTED"], weights=weights, latency=waits))
        if weights == 1 and wide == 8 and stays_in_l2(w) and order and order[0].waves > 1:
            for shape in order:
                alone = shape.cluster == 1 and shape.of_row == shape.block and shape.vectors * wide <= 16
                if alone and 1 < waves_with(w, shape, weights, beside) <= FEW_WAVES:
                    yield shape.tile | common | {"EVEN": False, "PREFETCH_WEIGHTS": True}
        for found in order:
            shape = found.alone if latency > 1 and found.is_half and found.waves > 1 else found
            requested = is_requested(w, shape)
            if wide == 8 and shape.vectors * wide == spills_at and shape.of_row == WARP and shape.block == SHARED_CTA:
                resident = resident_ctas(w, 2 * SHARED_CTA, spills_at + beside + SPILLED)
                fewer = shape.with_twice_the_threads(resident, w.device.sms)
                if fewer.waves <= 1 < cdiv(shape.ctas, w.device.sms):
                    yield fewer.tile | common | {"EVEN": is_even(w, fewer), "PREFETCH_L2": requested}
            tile = shape.tile | common | {"EVEN": is_even(w, shape), "PREFETCH_L2": requested}
            if weights and shape.vectors * wide <= 16:
                share = waves_with(w, shape, weights, beside - ALONE * (shape.of_row == shape.block))
                # two arrays of 16 bits are loaded after x has arrived; requested, they take no longer after the sums
                hidden = prefetched and shape.waves <= 1 and (weights == 1 or wide == 4)
                hidden = hidden or (prefetched and shape.waves <= 1 and w.rows <= w.device.sms and not requested)
                if (hidden and share <= 1) or (early and wide == 4):
                    yield tile | {"PREFETCH_WEIGHTS": True}
                elif hidden and wide == 4 and shape.is_half and waves_with(w, shape.alone, weights, beside - ALONE) <= 1:
                    yield tile | shape.alone.tile | {"EVEN": False, "PREFETCH_WEIGHTS": True}
            yield tile
        parts = {"THREADS": 1024, "VECTORS": 16 // wide, "CACHE": common["CACHE"]}  # leaves registers for addresses
        for ctas in (8, 1):  # the second one is for targets without clusters
            yield parts | {"CLUSTER": ctas}
            yield parts | {"CLUSTER": ctas, "VECTORS": 1}  # the last chunk may have less padding
            yield parts | {"CLUSTER": ctas, "STAGED": False}

    return choose


TILE_IN_REGISTERS: Mapping[str, list[Any]] = {
    name: TILE[name] for name in ("THREADS", "VECTORS", "CLUSTER", "CACHE", "SHIFTED")
}
"""Tile parameters of kernels that take only rows that fit in the registers of a cluster."""


def fits_in_registers(inputs: int) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE_IN_REGISTERS`; ``inputs`` is the number of arrays that a kernel holds in registers."""

    def check(w: Any, t: Tile) -> bool | str:
        held = inputs * width_of(w, t) * t.VECTORS
        available = registers(w, t.THREADS)
        if refusal := narrow_refusal(w, t) or request_refusal(w, t):
            return refusal
        if t.SHIFTED and is_aligned(w):
            return f"{w.cols} columns are whole vectors, so SHIFTED has no effect"
        if held + 44 > available:
            return f"{t.THREADS} threads have {available} registers each, too few for VECTORS={t.VECTORS}"
        if not in_registers(w, t):
            return f"{w.cols} columns do not fit in the registers of {t.CLUSTER} CTAs of {t.THREADS} threads"
        if t.CLUSTER > 1 and w.cols <= capacity(w, t) // 2:
            return f"half of the cluster of {t.CLUSTER} holds {w.cols} columns already"
        if t.THREADS // lanes(w, t) > NAMED_BARRIERS and lanes(w, t) > WARP:
            return f"more than {NAMED_BARRIERS} rows of {lanes(w, t)} threads per CTA"
        return True

    return check


def preferred_in_registers(
    inputs: int, requests: bool = False, packed: bool = False
) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Tiles by size, for :data:`TILE_IN_REGISTERS`, in the order of :func:`ptxkit.kernels.rows.row_tiles.shapes`.

    Args:
        inputs: number of arrays that a kernel holds in registers. requests: whether it has PREFETCH_L2.
        packed: whether it holds them in the format of memory, unless they are shifted.
    """

    def choose(w: Any) -> Iterator[dict[str, Any]]:
        cache = 4 if w.work().bytes >= keep_input_bytes(w.device) else 0
        common: dict[str, Any] = {"CACHE": cache, "SHIFTED": moves_shifted(w, 0, arrays=inputs)}
        if requests:
            yield from narrow_tiles(w, w.rows)
        shares = packed and width(w.dtype) == 8 and not common["SHIFTED"]
        beside = PACKED_BESIDE if shares else 44
        for shape in shapes(w, held_columns(w, common), inputs, beside, common["SHIFTED"], shares):
            yield shape.tile | common | ({"PREFETCH_L2": is_requested(w, shape, short=True)} if requests else {})

    return choose


def tile_in_registers(w: Any, t: Tile, lanes: int) -> VectorizedTile:
    """The template argument of a tile of :data:`TILE_IN_REGISTERS`; ``lanes``: of a row."""
    return VectorizedTile(
        THREADS=t.THREADS,
        LANES=lanes,
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        CACHE=t.CACHE,
        PREFETCH_WEIGHTS=False,
        NO_EARLY_LAUNCH=False,
        FULL_TILE=False,
        SHIFTED=t.SHIFTED,
        WIDTH=width_of(w, t),
        PREFETCH_L2=t.get("PREFETCH_L2", False),
    )


def launch_in_registers(kernel: str, w: Any, t: Tile, args: tuple[object, ...], template: tuple[object, ...]) -> Launch:
    """The launch of a kernel for :data:`TILE_IN_REGISTERS`, whose template arguments end with :class:`VectorizedTile`."""
    of_row, threads = launched_lanes(w, t)
    tile = tile_in_registers(w, t, of_row)
    grid = cdiv(w.rows, tile.THREADS // of_row if of_row else 1) * t.CLUSTER
    return Launch(kernel, grid, threads, args, 0, t.CLUSTER if t.CLUSTER > 1 else None, template=(*template, tile))


def cu_type(dtype: str) -> str:
    """The C++ name of a dtype."""
    return ELEMENTS[dtype][0]


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return ELEMENTS[dtype][1]


def vectorized(
    kernel: str,
    w: Any,
    t: Tile,
    args: tuple[object, ...],
    template: tuple[object, ...],
    size: int = 0,
    full_tile_columns: int = 0,
    full_tile_shares_cta: bool = False,
) -> Launch:
    """The launch of ``kernel_vectorized``, or of ``kernel_streamed`` if a row does not fit in the registers of a cluster.

    Args:
        kernel: first part of the names of both.
        w: a workload with ``rows``, ``cols`` and ``dtype``.
        t: a tile of :data:`TILE` or :data:`TILE_WITHOUT_WEIGHTS`.
        args: arguments of both kernels.
        template: template arguments before the tile.
        size: see :func:`usable`.
        full_tile_columns: maximum number of columns per thread for code without bounds checks (FULL_TILE); 0 for none.
        full_tile_shares_cta: whether this code is also used for rows that share a CTA, if the rows fill all CTAs.
    """
    cluster = t.CLUSTER if t.CLUSTER > 1 else None
    if not in_registers(w, t):
        full = (*template, t.THREADS, t.VECTORS, t.CLUSTER, t.STAGED)
        kept = staged_bytes(w, t, size) if t.STAGED else 0
        return Launch(f"{kernel}_streamed", w.rows * t.CLUSTER, t.THREADS, args, kept, cluster, template=full)
    of_row, threads = launched_lanes(w, t)
    tile = VectorizedTile(
        THREADS=t.THREADS,
        LANES=of_row,
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        CACHE=t.CACHE,
        PREFETCH_WEIGHTS=t.get("PREFETCH_WEIGHTS", False),
        NO_EARLY_LAUNCH=t.NO_EARLY_LAUNCH,
        FULL_TILE=is_full_tile(w, t, full_tile_shares_cta) and t.VECTORS * width_of(w, t) <= full_tile_columns,
        SHIFTED=t.SHIFTED,
        WIDTH=width_of(w, t),
        PREFETCH_L2=t.get("PREFETCH_L2", False),
    )
    grid = cdiv(w.rows, tile.THREADS // of_row if of_row else 1) * t.CLUSTER
    kept = even_bytes(w, grid) if t.get("EVEN") else 0
    return Launch(f"{kernel}_vectorized", grid, threads, args, kept, cluster, template=(*template, tile))


def is_full_tile(w: Any, t: Tile, shares_cta: bool) -> bool:
    """Whether each register of each CTA holds a column, for FULL_TILE; ``shares_cta``: also of CTAs with several rows."""
    of_row, threads = launched_lanes(w, t)
    rows = t.THREADS // of_row if shares_cta and of_row else 1
    columns = width_of(w, t) * t.VECTORS * threads * t.CLUSTER
    return bool(rows * w.cols == columns and w.rows % rows == 0)


def by_row(
    kernel: str, w: Any, args: tuple[object, ...], template: tuple[object, ...], source: str | None = None
) -> Launch:
    """A launch with one CTA per row; the template arguments end with THREADS."""
    return Launch(kernel, w.rows, THREADS, args, template=(*template, THREADS), source=source)


def kept(kernel: str, w: Any, args: tuple[object, ...], template: tuple[object, ...], size: int = 0) -> Launch:
    """A launch with one CTA per row, which stays in shared memory if it fits; template arguments end with THREADS, KEEP.

    Args:
        size: bytes of an element in shared memory; 0 for the size of the dtype.
    """
    row = (size or itemsize(w.dtype)) * w.cols
    keep = row <= w.device.target.limits.default_shared_bytes - 2048  # 2048 bytes are for records
    return Launch(kernel, w.rows, THREADS, args, shared=row if keep else 0, template=(*template, THREADS, keep))


def by_element(
    kernel: str, w: Any, args: tuple[object, ...], template: tuple[object, ...], source: str | None = None
) -> Launch:
    """An element-wise launch over rows; the template arguments end with THREADS, ELEMENTS."""
    grid = w.rows * cdiv(w.cols, THREADS * CHUNK)
    return Launch(kernel, grid, THREADS, args, template=(*template, THREADS, CHUNK), source=source)


def too_many(w: Any) -> Iterator[str]:
    """A message if the element-wise launches would need more CTAs than a grid can have."""
    if w.rows * cdiv(w.cols, THREADS * CHUNK) >= 2**31:
        yield "more CTAs than a grid can have"
