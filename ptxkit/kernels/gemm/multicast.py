"""Tiles of multicast_product.cuh: products with up to some hundred rows of a, whose clusters load both operands for each other.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxkit import cdiv
from ptxkit.kernels.gemm import ctas_per_sm, stream_model
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import Product, split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.wgmma import FLOAT_COLUMNS, columns_of, columns_refused

SOURCE = "matmul_multicast.cu"
MAX_STAGES = 32
MIN_STAGES = 3
STATIC_BYTES = 1024 + 512  # for the alignment of the ring, and of the barriers
OTHER_REGISTERS = 40  # of a thread beside its sums, for addresses and counters
MOST_REGISTERS = 255  # of a thread
MAX_CLUSTER = 8  # CTAs of a cluster on every GPU
DEEP_ROWS = 144  # of both operands in a stage, up to which it has 256 bytes along k
MOST_ROWS = 1024  # of a, up to which the variants are considered
MOST_WAVES = 2

SPACE = {
    "CONSUMERS": [1, 2],  # warpgroups that multiply
    "ROWS": [1, 2],  # of b in a tile, in units of 64 rows for each warpgroup
    "TOKENS": [64, *(size for size in FLOAT_COLUMNS if size != 64)],  # rows of a in a tile
    "A_SHARING": [4, 1, 2, 8],  # CTAs of a cluster with the same rows of a, of which each loads a part for all
    "B_SHARING": [1, 2, 4],  # CTAs of a cluster with the same rows of b
}


@dataclass(frozen=True)
class MulticastTile(TemplateStruct):
    """``MulticastTile`` of cu/ptxkit/gemm/multicast_product.cuh."""

    CONSUMERS: int
    ROWS: int
    TOKENS: int
    DEPTH: int

    @classmethod
    def of(cls, t: Mapping[str, int]) -> MulticastTile:
        """The template argument of a tile."""
        return cls(t["CONSUMERS"], t["ROWS"], t["TOKENS"], depth(t))


def weights(t: Mapping[str, int]) -> int:
    """Rows of b in a tile."""
    return 64 * t["CONSUMERS"] * t["ROWS"]


def threads(t: Mapping[str, int]) -> int:
    """Threads that multiply."""
    return 128 * t["CONSUMERS"]


def depth(t: Mapping[str, int]) -> int:
    """Rows of 128 bytes along k of a stage: two in small stages, so that half as many barriers are waited for."""
    return 2 if weights(t) + t["TOKENS"] <= DEEP_ROWS else 1


def stage_bytes(t: Mapping[str, int]) -> int:
    """Bytes of a stage of the ring."""
    return depth(t) * (weights(t) + t["TOKENS"]) * ROW_BYTES


def sums_bytes(t: Mapping[str, int]) -> int:
    """Shared memory of the sums that are transposed."""
    return t["TOKENS"] * (weights(t) + 4) * 4


def stages(w: Product, t: Mapping[str, int], itemsize: int = 2) -> int:
    """Stages of the ring: as many as shared memory has room for, and at most the steps."""
    room = (w.device.target.limits.shared_bytes_per_cta - STATIC_BYTES) // stage_bytes(t)
    return min(room, MAX_STAGES, max(MIN_STAGES, steps(w, t, itemsize)))


def shared_bytes(w: Product, t: Mapping[str, int], itemsize: int = 2) -> int:
    """Dynamic shared memory of a CTA: the ring, whose place the sums take."""
    return max(stages(w, t, itemsize) * stage_bytes(t), sums_bytes(t))


def steps(w: Product, t: Mapping[str, int], itemsize: int = 2) -> int:
    """Stages along k, of elements of ``itemsize`` bytes."""
    return cdiv(w.k * itemsize, ROW_BYTES * depth(t))


def across(w: Product, t: Mapping[str, int]) -> int:
    """Clusters along the rows of a."""
    return cdiv(w.m, t["TOKENS"] * t["B_SHARING"])


def clusters(w: Product, t: Mapping[str, int]) -> int:
    """Clusters of one product of a batch."""
    return across(w, t) * cdiv(w.n, weights(t) * t["A_SHARING"])


def cluster(t: Mapping[str, int]) -> int:
    """CTAs of a cluster."""
    return t["A_SHARING"] * t["B_SHARING"]


def loaded_rows(t: Mapping[str, int]) -> tuple[int, int]:
    """The rows of a and of b that a CTA copies at a time."""
    return t["TOKENS"] // t["A_SHARING"], weights(t) // t["B_SHARING"]


def arguments(w: Product, t: Mapping[str, int], itemsize: int = 2) -> tuple[int, ...]:
    """The last arguments of the kernels: the shape of clusters and their grid, steps along k, and stages."""
    grid = (across(w, t), clusters(w, t))
    return (t["A_SHARING"], t["B_SHARING"], *grid, steps(w, t, itemsize), stages(w, t, itemsize))


def usable(w: Product, t: Mapping[str, int], itemsize: int = 2) -> bool | str:
    """The constraint of the variants with this kernel."""
    if (refused := columns_refused(w.kind, t["TOKENS"])) is not None:
        return f"TOKENS={t['TOKENS']}: {refused}"
    if (ctas := cluster(t)) > MAX_CLUSTER:
        return f"A_SHARING x B_SHARING = {ctas} CTAs are more than the {MAX_CLUSTER} of a cluster"
    sums, room = t["ROWS"] * t["TOKENS"] // 2, ctas_per_sm.registers(w.device.target.limits, {**t, "CTAS_PER_SM": 1})
    if sums + OTHER_REGISTERS > min(room, MOST_REGISTERS):
        of = f"{64 * t['ROWS']} x {t['TOKENS']}"
        return f"{sums} sums of {of} need more than the registers of a thread of {t['CONSUMERS']} consumers"
    major = {"a": w.a_layout == "column", "b": w.b_layout == "row"}
    for name, all_rows, sharing in (("a", t["TOKENS"], t["A_SHARING"]), ("b", weights(t), t["B_SHARING"])):
        whole = 64 if major[name] else 1
        if all_rows % (sharing * whole):
            kind = "whole boxes" if major[name] else "equal parts"
            return f"{all_rows} rows of {name} are no {kind} for {sharing} CTAs"
    if (found := stages(w, t, itemsize)) < MIN_STAGES:
        return f"shared memory has room for {max(0, found)} stages of {stage_bytes(t)} bytes"
    return True


def was_timed(w: Product) -> bool:
    """Whether there are times of such products: of operands that are contiguous along k, and of pairs of results."""
    return w.a_layout == "row" and w.b_layout == "column" and w.n % 2 == 0 and measured(w.device).multicast is not None


def candidates(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[dict[str, int]]:
    """The tiles to consider: those with the fewest rows beyond the last one of a, for at most two waves."""
    if w.m > MOST_ROWS:
        return
    sizes = columns_of(w.kind)
    fewest = cdiv(w.m, sizes[-1])
    parts = range(fewest, fewest + 6)
    fitting = sorted({next(size for size in sizes if size >= cdiv(w.m, tiles)) for tiles in parts})
    for tokens in fitting:
        for consumers in SPACE["CONSUMERS"]:
            for rows in SPACE["ROWS"]:
                for b_sharing in SPACE["B_SHARING"]:
                    for a_sharing in SPACE["A_SHARING"]:
                        tile = {"CONSUMERS": consumers, "ROWS": rows, "TOKENS": tokens}
                        t = {**tile, "A_SHARING": a_sharing, "B_SHARING": b_sharing}
                        if (b_sharing - 1) * tokens >= w.m or clusters(w, t) * cluster(t) * batch > MOST_WAVES * w.device.sms:
                            continue
                        if usable(w, t, itemsize) is True:
                            yield t


def stream_work(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> StreamWork:
    """What a launch for ``batch`` products of elements of ``itemsize`` bytes does."""
    ctas, of_cluster, sums = clusters(w, t) * cluster(t) * batch, cluster(t), weights(t) * t["TOKENS"]
    resident = cluster_ctas(w.device, of_cluster) if of_cluster > 1 else w.device.sms
    waves, (from_a, from_b) = cdiv(ctas, resident), loaded_rows(t)
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, from_a, from_b, itemsize),
        steps=waves * steps(w, t, itemsize) * depth(t),
        rows=t["TOKENS"],
        columns=weights(t),
        delivered=from_a + from_b,
        sms=min(ctas, resident),
        stages=stages(w, t, itemsize) * depth(t),
        units=weights(t) / 64,
        wgmma_columns=t["TOKENS"],
        ends=sums * waves,
        scattered=sums * waves if w.n % 2 else 0.0,
        waves=waves - 1,
        clustered=of_cluster > 1,
    )


def predicted_us(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    rates = entry.multicast or entry.swapped
    return stream_model.predicted_us(rates, stream_work(w, t, itemsize, batch), w.device.sms / entry.sms)


def preferred(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w, itemsize, batch), key=lambda t: predicted_us(w, t, itemsize, batch))
