"""The row kernels: tile parameters, constraints, preferred tiles by size, and launches.

The kernels use ``cu/ptxkit/rows/row.cuh``. A vectorized kernel holds rows in registers; its last template argument is a
:class:`VectorizedTile`. A streamed kernel takes rows in chunks; its template arguments end with
``THREADS, VECTORS, CTAS, STAGED``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.elementwise.elementwise import ELEMENTS, stays_in_l2, width
from ptxkit.kernels.measured import measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import NAMED_BARRIERS, WARP

Dtype = Literal["f32", "f16", "bf16"]

THREADS = 256  # threads of a CTA in the unfused chains and the fused kernels
CHUNK = 4  # elements of a thread in the element-wise launches of the unfused chains
RECORD_BYTES = 11 * 1024  # shared memory of a CTA that is left for records where it stages a part of a row
NULL = np.uint64(0)  # a null pointer, for outputs that are not requested

TILE: Mapping[str, list[Any]] = {
    "THREADS": [128, 32, 64, 256, 512, 1024],  # threads of a CTA
    "VECTORS": [4, 1, 2, 8, 16],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [1, 2, 4, 8],  # CTAs of a cluster, which hold one row
    "CACHE": [1, 0, 2, 3, 4],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: keep, stream, once, output, input
    "PREFETCH_WEIGHTS": [False, True],  # load the weights before the row's sums are known
    "STAGED": [True, False],  # keep rows that do not fit in registers in shared memory instead of reading them again
    "NO_EARLY_LAUNCH": [False, True],  # let the next grid start when this one ends: see follow_previous_grid
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


def capacity(w: Any, t: Tile) -> int:
    """Number of columns that the registers of a cluster can hold."""
    columns: int = width(w.dtype) * t.VECTORS * t.THREADS * t.CLUSTER
    return columns


def lanes(w: Any, t: Tile) -> int:
    """Threads of a CTA that share a row: the smallest power of two whose registers hold its columns, at most THREADS."""
    threads: int = t.THREADS
    return min(threads, 1 << (cdiv(w.cols, width(w.dtype) * t.VECTORS * t.CLUSTER) - 1).bit_length())


def in_registers(w: Any, t: Tile) -> bool:
    """Whether a row fits in the registers of a cluster."""
    return bool(w.cols <= capacity(w, t))


def staged_bytes(w: Any, t: Tile, size: int = 0) -> int:
    """Size of a CTA's part of a row in shared memory, in bytes; ``size`` bytes per element, 0 for the size of the dtype."""
    bytes_: int = cdiv(w.cols, capacity(w, t)) * t.THREADS * t.VECTORS * width(w.dtype) * (size or itemsize(w.dtype))
    return bytes_


def registers(w: Any, threads: int) -> int:
    """Maximum number of registers per thread with ``threads`` resident threads per SM."""
    limits = w.device.target.limits
    return int(min(limits.registers // threads, limits.registers_per_thread))


def few(w: Any) -> bool:
    """Whether there are at most as many rows as SMs."""
    return bool(w.rows <= w.device.sms)


def late(w: Any, t: Tile) -> bool:
    """Whether NO_EARLY_LAUNCH can have an effect on the time."""
    return bool(in_registers(w, t) and stays_in_l2(w))


def usable(beside: int, early: int = 0, size: int = 0) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE`.

    Args:
        beside: registers that the kernel needs in addition to the row without spilling, read from compiled kernels.
        early: number of further rows of registers with PREFETCH_WEIGHTS.
        size: bytes of an element of a staged row in shared memory; 0 for the size of the dtype.
    """

    def check(w: Any, t: Tile) -> bool | str:
        held = width(w.dtype) * t.VECTORS
        available = registers(w, t.THREADS)
        if held * (1 + early * bool(t.get("PREFETCH_WEIGHTS"))) + beside > available:
            return f"{t.THREADS} threads have {available} registers each, too few for VECTORS={t.VECTORS}"
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
        if t.NO_EARLY_LAUNCH and not late(w, t):
            return "NO_EARLY_LAUNCH applies to rows in registers whose arrays fit in L2"
        return True

    return check


def _shape(w: Any, resident: bool, heavy: bool, alone: int) -> tuple[int, int, int]:
    """THREADS, VECTORS and CLUSTER for :func:`preferred`; the cluster may be too small for a row."""
    wide, shapes = width(w.dtype), measured(w.device).rows
    held = shapes.columns // wide  # vectors of a thread

    def short(threads: int, vectors: int, cluster: int = 1) -> bool:
        return bool(wide * vectors * threads * cluster < w.cols)

    threads, vectors, cluster, most_threads = 128, 1, 1, w.device.target.limits.threads_per_cta
    if resident:
        vectors = 1 if few(w) else shapes.l2_columns // wide
        while few(w) and wide * vectors < alone and short(threads, vectors):
            vectors *= 2
        while threads < most_threads and short(threads, vectors):
            threads *= 2
        while 8 * w.rows <= w.device.sms and cluster < 8 and short(threads, vectors, cluster):
            cluster *= 2  # several SMs per row, because most would be idle
        while vectors < held and short(threads, vectors, cluster):
            vectors *= 2
    else:
        vectors = 1 if w.cols <= 64 * wide else 2 * held if heavy else held
        if not heavy:
            vectors = shapes.vectors_at.get((itemsize(w.dtype), w.cols), vectors)
        while threads < 256 and short(threads, vectors):
            threads *= 2
        while vectors < 2 * held and short(threads, vectors):
            vectors *= 2
    if short(threads, vectors, cluster):  # 64 columns per thread, for which 1024 threads have no registers
        threads, vectors, cluster = (512, vectors, 1) if not short(512, vectors) else (512, 4 * held, 1)
    while cluster < 8 and short(threads, vectors, cluster):
        cluster *= 2
    if cluster == 4 and vectors == 4 * held and not resident:
        threads, cluster = shapes.instead_of_four
    return threads, vectors, cluster


def preferred(
    shared: bool = True,
    heavy: bool = False,
    cache: int = 4,
    alone: int = 8,
    late: bool = False,
    weights: bool = False,
) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Tiles by size, for :data:`TILE`.

    Data in L2 is limited by latency: a row is distributed over many threads, and all its loads, including those of the
    weights, are in flight at once. Data in device memory needs many bytes in flight per thread, and CACHE_INPUT, with which
    outputs leave L2 at a steady rate. The number of instructions per column then matters as well, so that few threads hold a
    row, with many columns each.

    Args:
        shared: whether the kernel has weights, and so PREFETCH_WEIGHTS.
        heavy: whether the kernel's instructions limit it more than the bytes in flight.
        cache: CACHE for data in device memory.
        alone: columns per thread if there are at most as many rows as SMs.
        late: whether NO_EARLY_LAUNCH is faster for many rows of 16-bit elements as well.
        weights: whether PREFETCH_WEIGHTS is faster for rows of f32 in device memory as well.
    """

    def choose(w: Any) -> Iterator[dict[str, Any]]:
        resident = stays_in_l2(w)
        shapes = measured(w.device).rows
        for most, (of_cta, held) in shapes.chunked.get(w.name, {}).items():
            if width(w.dtype) == 4 and not resident and most // 2 < w.cols <= most:
                yield {"THREADS": of_cta, "VECTORS": held, "CLUSTER": 8, "CACHE": cache}
        threads, vectors, cluster = _shape(w, resident, heavy, alone)
        tile = {"THREADS": threads, "VECTORS": vectors, "CLUSTER": cluster, "CACHE": 0 if resident else cache}
        wide = width(w.dtype)
        if wide == 8 and cluster == 8 and not resident:
            of_cta, held = shapes.instead_of_eight
            yield tile | {"THREADS": of_cta, "VECTORS": held}
        if wide * vectors * threads * cluster >= w.cols:
            at_once = shared and vectors * wide <= 16 and (resident or (weights and wide == 4))
            early = {"PREFETCH_WEIGHTS": True} if at_once else {}
            ends = {"NO_EARLY_LAUNCH": True} if resident and (w.cols >= 1024 if few(w) else late or wide == 4) else {}
            yield tile | early | ends
            yield tile | early
            yield tile | ends
            yield tile
        parts = tile | {"THREADS": 1024, "VECTORS": 16 // wide}  # leaves registers for addresses
        for ctas in (cluster, 1):  # the second one is for targets without clusters
            yield parts | {"CLUSTER": ctas}
            yield parts | {"CLUSTER": ctas, "VECTORS": 1}  # the last chunk may have less padding
            yield parts | {"CLUSTER": ctas, "STAGED": False}

    return choose


TILE_IN_REGISTERS: Mapping[str, list[Any]] = {name: TILE[name] for name in ("THREADS", "VECTORS", "CLUSTER", "CACHE")}
"""Tile parameters of kernels that take only rows that fit in the registers of a cluster."""


def fits_in_registers(inputs: int) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE_IN_REGISTERS`; ``inputs`` is the number of arrays that a kernel holds in registers."""

    def check(w: Any, t: Tile) -> bool | str:
        held, available = inputs * width(w.dtype) * t.VECTORS, registers(w, t.THREADS)
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


def preferred_in_registers(inputs: int) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Tiles by size, for :data:`TILE_IN_REGISTERS`: as for :func:`preferred`, or fewer vectors in more threads."""

    def choose(w: Any) -> Iterator[dict[str, Any]]:
        threads, vectors, cluster = _shape(w, stays_in_l2(w), heavy=inputs > 1, alone=8)
        cache = 0 if stays_in_l2(w) else 4
        while True:
            yield {"THREADS": threads, "VECTORS": vectors, "CLUSTER": cluster, "CACHE": cache}
            if vectors > 1 and threads < 1024:
                threads, vectors = 2 * threads, vectors // 2
            elif vectors > 1 and cluster < 8:
                vectors, cluster = vectors // 2, 2 * cluster
            elif threads > 256 and cluster < 8:
                threads, cluster = threads // 2, 2 * cluster
            else:
                return

    return choose


def launch_in_registers(kernel: str, w: Any, t: Tile, args: tuple[object, ...], template: tuple[object, ...]) -> Launch:
    """The launch of a kernel for :data:`TILE_IN_REGISTERS`, whose template arguments end with :class:`VectorizedTile`."""
    tile = VectorizedTile(
        THREADS=t.THREADS,
        LANES=lanes(w, t),
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        CACHE=t.CACHE,
        PREFETCH_WEIGHTS=False,
        NO_EARLY_LAUNCH=False,
        FULL_TILE=False,
    )
    grid = cdiv(w.rows, tile.THREADS // tile.LANES) * t.CLUSTER
    return Launch(kernel, grid, t.THREADS, args, 0, t.CLUSTER if t.CLUSTER > 1 else None, template=(*template, tile))


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
    tile = VectorizedTile(
        THREADS=t.THREADS,
        LANES=lanes(w, t),
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        CACHE=t.CACHE,
        PREFETCH_WEIGHTS=t.get("PREFETCH_WEIGHTS", False),
        NO_EARLY_LAUNCH=t.NO_EARLY_LAUNCH,
        FULL_TILE=is_full_tile(w, t, full_tile_shares_cta) and t.VECTORS * width(w.dtype) <= full_tile_columns,
    )
    grid = cdiv(w.rows, tile.THREADS // tile.LANES) * t.CLUSTER
    return Launch(f"{kernel}_vectorized", grid, t.THREADS, args, 0, cluster, template=(*template, tile))


def is_full_tile(w: Any, t: Tile, shares_cta: bool) -> bool:
    """Whether each register of each CTA holds a column, for FULL_TILE; ``shares_cta``: also of CTAs with several rows."""
    rows = t.THREADS // lanes(w, t) if shares_cta else 1
    return bool(rows * w.cols == capacity(w, t) and w.rows % rows == 0)


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
