"""Tiles and launches of sparse_cluster_k.cu: 2:4 sparse products with up to some hundred rows of a, limited by reading b.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxkit import Launch, TensorMap, cdiv
from ptxkit.kernels.gemm import ctas_per_sm, sparse, stream_model
from ptxkit.kernels.gemm.multicast import (
    ALONE,
    MAX_STAGES,
    OTHER_REGISTERS,
    STATIC_BYTES,
    cluster,
    fitting_tokens,
    in_clusters,
    weights,
)
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.measured import Facts, cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import PORTABLE_CLUSTER
from ptxkit.targets.wgmma import FLOAT_COLUMNS

SOURCE = "sparse_cluster_k.cu"
STEPS = 2  # stages of the metadata in a stage of the ring
BOX_WORDS = 256  # of metadata of 64 rows in a copy
MIN_STAGES = 2
MOST_COLUMNS = 256  # of c in a tile: rows of a box of a tensor map
MOST_ROWS = 4096  # of a, up to which the variant is considered
MOST_WAVES = 8

SPACE = {
    "CONSUMERS": [1, 2, 3],  # warpgroups that multiply
    "ROWS": [1, 2, 3, 4],  # of b in a tile, in units of 64 rows for each warpgroup
    "TOKENS": [64, *(size for size in FLOAT_COLUMNS if size != 64)],  # rows of a in a tile
    "A_SHARING": [1, 2, 4, 8],  # CTAs of a cluster with the same rows of a, of which each loads a part for all
    "B_SHARING": [1, 2, 4],  # CTAs of a cluster with the same rows of b
    "PARTS": [1, 2, 3, 4, 5, 6, 7, 8],  # of k, each for other CTAs of a cluster
    "CTAS_PER_SM": [1, 2, 3, 4],  # CTAs that share the shared memory of an SM
}
SHAPES = tuple({"CONSUMERS": c, "ROWS": r} for c, r in ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (3, 2)))
OTHERWISE = {"CONSUMERS": 2, "ROWS": 2, "TOKENS": 64, "A_SHARING": 1, "B_SHARING": 1, "PARTS": 1, "CTAS_PER_SM": 1}
"""The tile for sizes that have no candidates."""


@dataclass(frozen=True)
class SparseClusterTile(TemplateStruct):
    """``SparseClusterTile`` of cu/ptxkit/gemm/sparse_cluster_k.cuh; T is the type of the elements in C++."""

    T: str
    CONSUMERS: int
    ROWS: int
    TOKENS: int
    MATRICES: int


@dataclass(frozen=True)
class SparseProduct:
    """a (m, k) times one sparse matrix (n, k), or two of them whose products are combined.

    Attributes:
        itemsize: bytes of an element of a and of the matrices. moved: the minimum bytes of the product.
    """

    m: int
    n: int
    k: int
    itemsize: int
    matrices: int
    moved: int
    device: Facts

    @property
    def all_steps(self) -> int:
        """Stages of the ring along k."""
        return cdiv(self.k, STEPS * sparse.stage_elements(self.itemsize))

    @property
    def boxes(self) -> int:
        """Copies of the metadata of a stage."""
        return STEPS * sparse.block_words(self.itemsize) // BOX_WORDS


def columns(w: SparseProduct, t: Mapping[str, int]) -> int:
    """Columns of c in a tile."""
    return weights(t) // w.matrices


def b_row_bytes(w: SparseProduct) -> int:
    """Bytes of a stage for each row of a sparse matrix: stored elements and metadata."""
    return ROW_BYTES + w.boxes * BOX_WORDS * 4 // sparse.ROWS


def stage_bytes(w: SparseProduct, t: Mapping[str, int]) -> int:
    """Bytes of a stage of the ring."""
    return STEPS * t["TOKENS"] * ROW_BYTES + weights(t) * b_row_bytes(w)


def end_bytes(w: SparseProduct, t: Mapping[str, int]) -> int:
    """Shared memory of the sums, which are transposed: as elements, or in f32 if those of several parts are added."""
    if t["PARTS"] > 1:
        return t["TOKENS"] * (weights(t) + 4) * 4
    return t["TOKENS"] * (2 * columns(w, t) + 16)


def stages(w: SparseProduct, t: Mapping[str, int]) -> int:
    """Stages of the ring: as many as the shared memory of CTAS_PER_SM CTAs has room for, and at most the steps of a part."""
    room = (ctas_per_sm.shared_bytes(w.device.target.limits, t) - STATIC_BYTES) // stage_bytes(w, t)
    return min(room, MAX_STAGES, max(MIN_STAGES, cdiv(w.all_steps, t["PARTS"])))


def across(w: SparseProduct, t: Mapping[str, int]) -> int:
    """Clusters along the rows of a."""
    return cdiv(w.m, t["TOKENS"] * t["B_SHARING"])


def ctas(w: SparseProduct, t: Mapping[str, int]) -> int:
    """CTAs of a launch."""
    return across(w, t) * cdiv(w.n, columns(w, t) * t["A_SHARING"]) * cluster(t)


def usable(w: SparseProduct, t: Mapping[str, int]) -> bool | str:
    """Whether the kernel can have this tile, or why not."""
    if t["ROWS"] % w.matrices:
        return f"ROWS={t['ROWS']} are no equal parts for gate and up"
    if columns(w, t) > MOST_COLUMNS:
        return f"{columns(w, t)} rows of b in a tile are more than the {MOST_COLUMNS} of a box of a tensor map"
    if (found := cluster(t)) > PORTABLE_CLUSTER:
        return f"A_SHARING x B_SHARING x PARTS = {found} CTAs are more than the {PORTABLE_CLUSTER} of a cluster"
    if w.all_steps < t["PARTS"]:
        of = f"{w.all_steps} step{'s' if w.all_steps > 1 else ''} of {2 * ROW_BYTES} bytes"
        return f"k={w.k} has {of}, fewer than PARTS={t['PARTS']}"
    limits = w.device.target.limits
    words = 2 * STEPS * t["ROWS"] * sparse.block_words(w.itemsize) // 128
    held, room = t["ROWS"] * t["TOKENS"] // 2, ctas_per_sm.registers(limits, t)
    if held + words + OTHER_REGISTERS > min(room, limits.registers_per_thread):
        of = f"{64 * t['ROWS']} x {t['TOKENS']}"
        return f"{held} sums of {of} need more than the registers of a thread of {t['CONSUMERS']} consumers"
    if (needed := end_bytes(w, t)) > (limit := ctas_per_sm.shared_bytes(limits, t) - STATIC_BYTES):
        return f"the sums of a tile take {needed} bytes of shared memory, more than {limit}"
    if t["TOKENS"] % (8 * t["A_SHARING"]):
        return f"{t['TOKENS']} rows of a are no whole patterns of 8 rows for each of {t['A_SHARING']} CTAs"
    if columns(w, t) % (sparse.ROWS * t["B_SHARING"]):
        return f"{columns(w, t)} rows of b are no whole blocks of 64 rows for each of {t['B_SHARING']} CTAs"
    if (found := stages(w, t)) < MIN_STAGES:
        return f"shared memory has room for {max(0, found)} stages of {stage_bytes(w, t)} bytes"
    return True


def shapes(w: SparseProduct) -> Iterator[dict[str, int]]:
    """CONSUMERS, ROWS and TOKENS to consider: of tiles with the same rows, the one with the fewest warpgroups."""
    for rows in sorted({weights(values) for values in SHAPES}):
        if rows % (sparse.ROWS * w.matrices):
            continue
        for tokens in fitting_tokens(w.m, FLOAT_COLUMNS, cdiv(w.n, rows // w.matrices), w.device.sms):
            for values in SHAPES:
                t = {**values, "TOKENS": tokens}
                if weights(t) == rows and usable(w, {**t, **ALONE}) is True:
                    yield t
                    break


def divisions(w: SparseProduct, t: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """PARTS and CTAS_PER_SM to consider: parts of k where SMs are idle, several CTAs on an SM where there are more tiles."""
    whole = ctas(w, {**t, "PARTS": 1})
    for on_sm in SPACE["CTAS_PER_SM"]:
        slots = on_sm * w.device.sms
        for parts in SPACE["PARTS"]:
            most = slots if parts > 1 else MOST_WAVES * slots
            fewest = 0 if on_sm == 1 else (on_sm - 1) * w.device.sms * 3 // 4
            if fewest < whole * parts <= most and t["A_SHARING"] * t["B_SHARING"] * parts <= PORTABLE_CLUSTER:
                yield {"PARTS": parts, "CTAS_PER_SM": on_sm}


def candidates(w: SparseProduct) -> Iterator[dict[str, int]]:
    """The tiles to consider."""
    if w.m > MOST_ROWS:
        return
    found = in_clusters(SPACE, w.m, shapes(w), lambda t: divisions(w, t))
    yield from (tile for tile in found if usable(w, tile) is True)


def stream_work(w: SparseProduct, t: Mapping[str, int]) -> StreamWork:
    """What a launch does. A row of b in a stage is more than 128 bytes, with its metadata, and one of a is twice 128 bytes.

    Where SMs have room for more CTAs, those of the next launch begin there, which counts as a part of a wave less.
    """
    count, of_cluster = ctas(w, t), cluster(t)
    resident = cluster_ctas(w.device, of_cluster) if of_cluster > 1 else w.device.sms
    on_sm, of_b = cdiv(count, resident), b_row_bytes(w) / ROW_BYTES
    sums, slots = weights(t) * t["TOKENS"], t["CTAS_PER_SM"]
    return StreamWork(
        memory_bytes=w.moved,
        split=0.0 if w.k * w.itemsize % (2 * ROW_BYTES) == 0 else 1.0,
        steps=on_sm * cdiv(w.all_steps, t["PARTS"]),
        rows=STEPS * t["TOKENS"],
        columns=weights(t) * of_b,
        delivered=STEPS * t["TOKENS"] / t["A_SHARING"] + weights(t) * of_b / t["B_SHARING"],
        sms=min(count, resident),
        idle=1 - min(count, resident) / w.device.sms,
        others=t["A_SHARING"] + t["B_SHARING"] - 2,
        stages=stages(w, t) * min(on_sm, slots),
        units=weights(t) / 64,
        wgmma_columns=t["TOKENS"],
        ends=sums * on_sm / t["PARTS"],
        exchanged=sums * on_sm if t["PARTS"] > 1 else 0,
        scattered=sums * on_sm / t["PARTS"] if t["PARTS"] > 1 else 0.0,
        waves=(on_sm / slots if on_sm < slots else cdiv(on_sm, slots)) - 1,
        clustered=of_cluster > 1,
    )


def predicted_us(w: SparseProduct, t: Mapping[str, int]) -> float:
    """The time by the model; before there were times of it, by that of the dense products with the same loop."""
    entry = measured(w.device)
    rates = entry.sparse or entry.multicast or entry.swapped
    return stream_model.predicted_us(rates, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: SparseProduct) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t)) or [OTHERWISE]


def launch(
    w: SparseProduct, t: Mapping[str, int], arrays: Mapping[str, str], types: tuple[str, str], *, early: bool = False
) -> Launch:
    """The launch of a tile.

    Args:
        arrays: the names of ``a``, ``values``, ``metadata`` and ``c``, of two matrices also ``up_values`` and ``up_metadata``.
        types: of the elements of a and of c, in C++.
        early: the weights are loaded before the previous grid is complete, which must have waited for those before it.
    """
    cols, depth = columns(w, t) // t["B_SHARING"], sparse.stage_elements(w.itemsize)
    maps = [TensorMap(arrays["a"], box=(t["TOKENS"] // t["A_SHARING"], depth), swizzle="128B")]
    for prefix in ("", "up_")[: w.matrices]:
        maps.append(TensorMap(arrays[f"{prefix}values"], box=(cols, depth), swizzle="128B"))
        maps.append(TensorMap(arrays[f"{prefix}metadata"], box=(cols // sparse.ROWS, BOX_WORDS)))
    ring = stages(w, t)
    tile = SparseClusterTile(types[0], t["CONSUMERS"], t["ROWS"], t["TOKENS"], w.matrices)
    return Launch(
        "matmul_sparse_cluster_k" if w.matrices == 1 else "sparse_gated_cluster_k",
        ctas(w, t),
        128 * t["CONSUMERS"] + 32,
        (
            *(*maps, arrays["c"], w.m, w.n, t["A_SHARING"], t["B_SHARING"], t["PARTS"]),
            *(across(w, t), w.all_steps, ring),
        ),
        shared=max(ring * stage_bytes(w, t), end_bytes(w, t)),
        cluster=cluster(t) if cluster(t) > 1 else None,
        source=SOURCE,
        template=(tile, types[0], types[1], early) if w.matrices == 1 else (tile, types[0]),
    )
