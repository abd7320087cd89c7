"""Tiles and launches of the row kernels whose CTAs stay resident and prefetch rows to shared memory.

Pipelined kernels use ``cu/ptxkit/rows/row_pipeline.cuh``; their last template argument is a :class:`PipelinedTile`. Dynamic
persistent kernels use ``cu/ptxkit/rows/tile_scheduler.cuh``; theirs is a :class:`PersistentTile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptxkit import Launch, Tile, cdiv, variant
from ptxkit.kernels.elementwise.elementwise import width
from ptxkit.kernels.measured import measured
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import NAMED_BARRIERS, WARP
from ptxkit.workload.variant import Variant

SLOT_BYTES = 2560  # maximum size of the records that the warps of a row exchange

TILE: Mapping[str, list[Any]] = {
    "THREADS": [512, 256, 128, 1024],  # threads of a CTA
    "VECTORS": [4, 2, 8, 16, 1],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [1, 2, 4, 8],  # CTAs of a cluster, which hold one row
    "CACHE": [1, 4],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: stream, input
    "STAGES": [2, 1, 3, 4],  # rows that are prefetched while one is computed
    "SMEM_VECTORS": [0, 1, 2, 3, 4, 6, 8, 16],  # vectors of each weight array that a thread keeps in shared memory
    "CTAS_PER_SM": [1, 2, 3, 4, 6],  # resident CTAs per SM
}


@dataclass(frozen=True)
class PipelinedTile(TemplateStruct):
    """``PipelinedTile`` of cu/ptxkit/rows/row_pipeline.cuh."""

    THREADS: int
    LANES: int
    VECTORS: int
    CTAS: int
    CACHE: int
    STAGES: int
    SMEM_VECTORS: int
    CTAS_PER_SM: int


@dataclass(frozen=True)
class PersistentTile(TemplateStruct):
    """``PersistentTile`` of cu/ptxkit/rows/tile_scheduler.cuh."""

    THREADS: int
    VECTORS: int
    CTAS: int
    CACHE: int
    CHUNK_VECTORS: int
    STAGES: int
    CTAS_PER_SM: int
    FULL_TILE: bool
    SMEM_VECTORS: int


def shared_bytes(w: Any, t: Tile, weights: int) -> int:
    """Dynamic shared memory of a CTA in bytes: the prefetched rows, and SMEM_VECTORS of ``weights`` arrays."""
    ahead = t.STAGES * t.THREADS * t.VECTORS
    kept = weights * t.SMEM_VECTORS * row.lanes(w, t)
    return int(16 * (ahead + kept))


def fits(w: Any, t: Tile, weights: int) -> bool:
    """Whether the shared memory of an SM is enough for CTAS_PER_SM CTAs."""
    limits = w.device.target.limits
    cta = shared_bytes(w, t, weights) + SLOT_BYTES + limits.reserved_bytes
    return bool(t.CTAS_PER_SM * cta <= limits.shared_bytes_per_cta)


def usable(beside: int, weights: int) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE`: rows must fit in the registers and the shared memory of a CTA.

    Args:
        beside: registers per thread that the kernel needs in addition to those of the row; taken from compiled kernels.
        weights: number of weight arrays, which all rows share.
    """

    def check(w: Any, t: Tile) -> bool | str:
        wide = width(w.dtype)
        lanes = row.lanes(w, t)
        if not row.in_registers(w, t):
            return f"{w.cols} columns do not fit in registers"
        if t.CLUSTER > 1 and w.cols <= row.capacity(w, t) // 2:
            return f"half of the cluster of {t.CLUSTER} holds {w.cols} columns already"
        if t.VECTORS > 1 and 2 * w.cols <= wide * t.VECTORS * lanes:
            return f"half of VECTORS={t.VECTORS} holds {w.cols} columns already"
        if t.THREADS // lanes > NAMED_BARRIERS and lanes > WARP:
            return f"more than {NAMED_BARRIERS} rows of {lanes} threads per CTA"
        available = row.registers(w, t.THREADS * t.CTAS_PER_SM)
        if wide * t.VECTORS + beside > available:
            return f"{t.CTAS_PER_SM} CTAs of {t.THREADS} threads have {available} registers each"
        if t.SMEM_VECTORS > t.VECTORS:
            return f"a thread has {t.VECTORS} vectors, not {t.SMEM_VECTORS}"
        if 0 < t.SMEM_VECTORS < t.VECTORS and fits(w, Tile({**t, "SMEM_VECTORS": t.VECTORS}), weights):
            return f"shared memory can hold all {t.VECTORS} vectors"
        if not fits(w, t, weights):
            return f"{t.CTAS_PER_SM} CTAs take more than an SM's shared memory"
        return True

    return check


def grid(w: Any, t: Tile) -> int:
    """CTAs of the grid: the smallest number with the same number of iterations as a full GPU.

    All CTAs then end together. Some SMs are idle all the time instead of many at the end, which costs no bandwidth.
    """
    groups = t.THREADS // row.lanes(w, t)
    at_once = max(w.device.sms * t.CTAS_PER_SM // t.CLUSTER, 1) * groups
    iterations = cdiv(w.rows, at_once)
    return cdiv(w.rows, iterations * groups) * int(t.CLUSTER)


def preferred(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles by size: few threads with many columns each, and weights in shared memory."""
    wide = width(w.dtype)
    columns, most = measured(w.device).rows.pipelined_columns
    vectors, threads, cluster = 1 if w.cols <= 64 * wide else columns // wide, 128, 1
    while threads < 512 and wide * vectors * threads < w.cols:
        threads *= 2
    while vectors < most // wide and wide * vectors * threads < w.cols:
        vectors *= 2
    while cluster < 8 and wide * vectors * threads * cluster < w.cols:
        cluster *= 2
    tile = {"THREADS": threads, "VECTORS": vectors, "CLUSTER": cluster, "CACHE": 4, "STAGES": 1}
    for resident in (4, 3, 2, 1):
        for kept in (vectors, 0):
            yield tile | {"CTAS_PER_SM": resident, "SMEM_VECTORS": kept}


def launch(
    kernel: str, w: Any, t: Tile, args: tuple[object, ...], template: tuple[object, ...], weights: int
) -> Launch:
    """The launch of ``kernel_pipelined``.

    Args:
        kernel: first part of the kernel's name.
        w: a workload with ``rows`` and ``cols``.
        t: a tile of :data:`TILE`.
        args: arguments of the kernel.
        template: template arguments before the tile.
        weights: see :func:`usable`.
    """
    tile = PipelinedTile(
        THREADS=t.THREADS,
        LANES=row.lanes(w, t),
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        CACHE=t.CACHE,
        STAGES=t.STAGES,
        SMEM_VECTORS=t.SMEM_VECTORS,
        CTAS_PER_SM=t.CTAS_PER_SM,
    )
    cluster = t.CLUSTER if t.CLUSTER > 1 else None
    shared = shared_bytes(w, t, weights)
    return Launch(f"{kernel}_pipelined", grid(w, t), t.THREADS, args, shared, cluster, template=(*template, tile))


# -- dynamic persistent kernels for long rows ----------------------------------------------------------------------------

TILE_PERSISTENT: Mapping[str, list[Any]] = {
    "THREADS": [512, 256, 128, 64],  # threads of a CTA
    "VECTORS": [8, 4, 2, 1, 16],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [8, 16, 4, 2],  # CTAs of a cluster, which hold one row; 16 is not portable
    "CACHE": [4, 1],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: input, stream
    "CHUNK_VECTORS": [4, 8, 2, 1, 16],  # 128-bit vectors of a thread in a chunk of a row, the unit of a copy
    "STAGES": [4, 1, 2, 3, 6, 8],  # chunks in flight or in shared memory at a time
    "CTAS_PER_SM": [1, 2, 3, 4],  # resident CTAs per SM
    "SMEM_VECTORS": TILE["SMEM_VECTORS"],
}

TILE_PERSISTENT_WITHOUT_WEIGHTS = {name: values for name, values in TILE_PERSISTENT.items() if name != "SMEM_VECTORS"}
"""Tile parameters of kernels without weights."""


def persistent_bytes(t: Tile, weights: int) -> int:
    """Dynamic shared memory of a CTA of a persistent kernel, in bytes."""
    return int(16 * t.THREADS * (t.STAGES * t.CHUNK_VECTORS + weights * t.get("SMEM_VECTORS", 0)))


def persistent_fits(w: Any, t: Tile, weights: int) -> bool:
    """Whether the shared memory of a CTA and of an SM is enough for CTAS_PER_SM CTAs of a persistent kernel."""
    warps = t.THREADS // 32
    slots = (4 if weights else 8) * t.CLUSTER * warps + 32 * (warps + t.CLUSTER) + 16 * t.STAGES + 240
    mine = persistent_bytes(t, weights) + slots
    limits = w.device.target.limits
    resident = t.CTAS_PER_SM * (mine + limits.reserved_bytes)
    return bool(mine <= limits.shared_bytes_per_cta and resident <= limits.shared_bytes)


def persistent_usable(beside: int, weights: int) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE_PERSISTENT`; see :func:`usable`."""

    def check(w: Any, t: Tile) -> bool | str:
        fewest = measured(w.device).rows.persistent_cols
        if w.cols < fewest:
            return f"requires cols >= {fewest}"
        wide = width(getattr(w, "dtype", "f32"))
        capacity = wide * t.VECTORS * t.THREADS * t.CLUSTER
        if w.cols > capacity:
            return f"{w.cols} columns do not fit in registers"
        if t.CLUSTER > 2 and 2 * w.cols <= capacity:
            return f"half of the cluster of {t.CLUSTER} holds {w.cols} columns already"
        if t.VECTORS % t.CHUNK_VECTORS:
            return f"{t.VECTORS} vectors are not a multiple of CHUNK_VECTORS={t.CHUNK_VECTORS}"
        if t.STAGES == 1 and t.CHUNK_VECTORS < t.VECTORS:
            return "rows of several chunks need at least two stages"
        if t.STAGES * t.CHUNK_VECTORS > 3 * t.VECTORS:
            return f"{t.STAGES * t.CHUNK_VECTORS} vectors are more than three rows"
        if weights and t.SMEM_VECTORS > t.VECTORS:
            return f"a thread has {t.VECTORS} vectors, not {t.SMEM_VECTORS}"
        available = row.registers(w, t.THREADS * t.CTAS_PER_SM)
        if wide * t.VECTORS + beside > available:
            return f"{t.CTAS_PER_SM} CTAs of {t.THREADS} threads have {available} registers each"
        if not persistent_fits(w, t, weights):
            return f"{t.CTAS_PER_SM} CTAs take more than an SM's shared memory"
        return True

    return check


def preferred_persistent(weights: int) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """Tiles by size: the measured ones, then the fewest CTAs of 512 threads that hold a row.

    Little more than one row is in flight, in chunks.
    """

    def choose(w: Any) -> Iterator[dict[str, Any]]:
        wide = width(getattr(w, "dtype", "f32"))
        threads, vectors, cluster = 64, 1, 2
        while threads < 512 and wide * vectors * threads * cluster < w.cols:
            threads *= 2
        while vectors < 8 and wide * vectors * threads * cluster < w.cols:
            vectors *= 2
        while cluster < 16 and wide * vectors * threads * cluster < w.cols:
            cluster *= 2
        tile = {"THREADS": threads, "VECTORS": vectors, "CLUSTER": cluster}
        drops = bool(getattr(w, "p", 0.0))  # random numbers need registers
        yield from _measured_persistent(w, tile, weights) if threads == 512 and vectors == 8 and not drops else ()
        part = min(vectors, 4)
        parts = vectors // part
        for stages in (2 * parts, parts + 1 if parts > 1 else 1):
            for kept in ({"SMEM_VECTORS": vectors}, {"SMEM_VECTORS": 0}) if weights else ({},):
                yield tile | {"CHUNK_VECTORS": part, "STAGES": stages} | kept

    return choose


def _measured_persistent(w: Any, tile: dict[str, Any], weights: int) -> Iterator[dict[str, Any]]:
    """The measured tiles for rows that fit in clusters of this tile."""
    element_bytes = row.itemsize(getattr(w, "dtype", "f32"))
    for entry in measured(w.device).rows.persistent:
        if (
            tile["CLUSTER"] in entry.clusters
            and entry.weights == weights
            and entry.element_bytes in (None, element_bytes)
        ):
            yield tile | dict(entry.tile)


def vectorized_is_faster(w: Any) -> str | None:
    """Why the variant ``vectorized`` is faster than ``persistent``, or None."""
    dtype = getattr(w, "dtype", "f32")
    if w.cols % width(dtype):
        return "rows that begin between two vectors cannot be prefetched by bulk copies"
    file, row_bytes = 4 * w.device.target.limits.registers, w.cols * row.itemsize(dtype)
    if 2 * row_bytes < file:
        return "several rows fit in the registers of an SM, so that one is loaded while another is computed"
    if w.rows * row_bytes <= w.device.sms * file:
        return "all rows fit in the registers of the SMs, so that there is nothing to prefetch"
    return None


def persistent(beside: int, weights: int) -> Callable[[Callable[..., Sequence[Launch]]], Variant]:
    """Declares a variant whose launches are those of :func:`launch_persistent`; the arguments are those of :func:`usable`."""
    return variant(
        tile=TILE_PERSISTENT if weights else TILE_PERSISTENT_WITHOUT_WEIGHTS,
        constraint=persistent_usable(beside, weights),
        prefer=preferred_persistent(weights),
        requires=("tma",),
        slower=vectorized_is_faster,
    )


def reset_tile_scheduler() -> Launch:
    """A launch that sets the row counter ``next`` to 0; it precedes each persistent kernel."""
    return Launch("reset_tile_scheduler", 1, 32, ("next",), template=(32,))


def launch_persistent(
    kernel: str, w: Any, t: Tile, args: tuple[object, ...], template: tuple[object, ...], weights: int
) -> list[Launch]:
    """The launches of ``kernel_persistent``, which uses a temporary ``next`` of the workload; the first launch sets it to 0.

    Args: those of :func:`launch`.
    """
    # The number of clusters that are resident at a time is not known; a cluster that starts late finds no row and exits.
    clusters = min(w.rows, w.device.sms * t.CTAS_PER_SM // t.CLUSTER + 1)
    tile = PersistentTile(
        THREADS=t.THREADS,
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        CACHE=t.CACHE,
        CHUNK_VECTORS=t.CHUNK_VECTORS,
        STAGES=t.STAGES,
        CTAS_PER_SM=t.CTAS_PER_SM,
        FULL_TILE=w.cols == width(getattr(w, "dtype", "f32")) * t.VECTORS * t.THREADS * t.CLUSTER,
        SMEM_VECTORS=t.SMEM_VECTORS if weights else 0,
    )
    return [
        reset_tile_scheduler(),
        Launch(
            f"{kernel}_persistent",
            clusters * t.CLUSTER,
            t.THREADS,
            args,
            persistent_bytes(t, weights),
            t.CLUSTER,
            template=(*template, tile),
        ),
    ]
