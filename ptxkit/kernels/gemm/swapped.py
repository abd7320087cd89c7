"""Launches of matmul_swapped.cu: products that are limited by reading b, because a has few rows.

The tile and the number of parts of k are those for which a model predicts the shortest time, from the sizes and from the facts
of the device (:mod:`ptxkit.kernels.gemm.stream_model`): how fast device memory and L2 deliver, how many bytes of it the shared
memory has in flight, how many clusters are resident, and how evenly the SMs are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm import ctas_per_sm, stream_model, unaligned, wgmma_tiles
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.gemm.unaligned import Boxes
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import PORTABLE_CLUSTER, SMS_PER_TPC

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_swapped.cu"
BK = 64  # elements of k in a stage
ROW_BYTES = 2 * BK
MAX_STAGES = 32
STATIC_BYTES = 1024  # of the barriers, and for the alignment of the ring
MOST_SUMS = 128  # of a thread
OTHER_REGISTERS = 32  # of a thread, for addresses and counters
MOST_ROWS = 384  # of a, up to which the step is considered: for more, it was nowhere measured to be the fastest

SPACE = {
    "TOKENS": [64, 8, 16, 32, 48, 80, 96, 112, 128, 160, 192, 224, 256],  # rows of a in a tile
    "CONSUMERS": [1, 2],  # warpgroups that multiply
    "ROWS": [1, 2],  # times 64 rows of b for each of them
    "PARTS": [1, 2, 3, 4, 5, 6, 7, 8],  # parts of k, each for a CTA of a cluster
    "SHARING": [1, 2, 4, 8],  # tiles of a cluster that share the rows of a
    "CTAS_PER_SM": [2, 1, 3, 4],  # CTAs that share the shared memory of an SM
}


@dataclass(frozen=True)
class SwappedTile(TemplateStruct):
    """``SwappedTile`` of cu/ptxkit/gemm/swapped_product.cuh."""

    CONSUMERS: int
    ROWS: int
    TOKENS: int


def weights(t: Mapping[str, int]) -> int:
    """Rows of b in a tile."""
    return 64 * t["CONSUMERS"] * t["ROWS"]


def stage_bytes(t: Mapping[str, int]) -> int:
    """Bytes of a stage of the ring."""
    return (weights(t) + t["TOKENS"]) * ROW_BYTES


def sums_bytes(t: Mapping[str, int]) -> int:
    """Shared memory for the sums that a CTA receives: ``ClusterSums`` of cu/ptxkit/gemm/cluster_sums.cuh."""
    return t["PARTS"] * cdiv(t["TOKENS"], t["PARTS"]) * (weights(t) + 4) * 4


def stages(w: Matmul, t: Mapping[str, int]) -> int:
    """Stages of the ring: as many as CTAS_PER_SM rings in the shared memory of an SM can have, and at most the steps."""
    room = ctas_per_sm.shared_bytes(w.device.target.limits, t) - STATIC_BYTES - (sums_bytes(t) if t["PARTS"] > 1 else 0)
    return min(room // stage_bytes(t), MAX_STAGES, max(2, cdiv(cdiv(w.k, BK), t["PARTS"])))


def grid(w: Matmul, t: Mapping[str, int]) -> tuple[int, int]:
    """Clusters, and CTAs of a cluster."""
    clusters = cdiv(w.m, t["TOKENS"]) * cdiv(w.n, weights(t) * t["SHARING"])
    return clusters, t["PARTS"] * t["SHARING"]


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of ``step9_swapped``."""
    of_cta = t["TOKENS"] / t["SHARING"]
    if of_cta % (64 if w.a_layout == "column" else 8):
        return f"each of {t['SHARING']} CTAs copies {of_cta:g} rows of a, which are no whole boxes of a {w.a_layout}-major a"
    if (ctas := t["PARTS"] * t["SHARING"]) > PORTABLE_CLUSTER:
        return f"PARTS x SHARING = {ctas} CTAs are more than the {PORTABLE_CLUSTER} of a cluster"
    if (sums := t["ROWS"] * t["TOKENS"] // 2) > MOST_SUMS:
        return f"a thread holds {sums} sums of {64 * t['ROWS']} x {t['TOKENS']}, more than {MOST_SUMS}"
    limits = w.device.target.limits
    if sums + OTHER_REGISTERS > (room := ctas_per_sm.registers(limits, t)):
        return f"{sums} sums need more than the {room} registers that a thread of {t['CTAS_PER_SM']} CTAs on an SM can have"
    if t["PARTS"] > (steps := cdiv(w.k, BK)):
        return f"k={w.k} has {steps} steps of {BK}, fewer than PARTS={t['PARTS']}"
    if t["PARTS"] == 1 and sums_bytes(t) > (limit := limits.shared_bytes_per_cta - STATIC_BYTES):
        return f"the sums of a tile take {sums_bytes(t)} bytes of shared memory, more than {limit}"
    if (found := stages(w, t)) < 2:
        return f"the shared memory of {t['CTAS_PER_SM']} CTAs has room for {max(0, found)} stages of {stage_bytes(t)} bytes"
    return True


def product_launch(
    kernel: str,
    w: Matmul,
    t: Tile,
    boxes: tuple[object, object],
    args: tuple[object, ...],
    template: tuple[object, ...],
) -> Launch:
    """A launch of a kernel around ``swapped_product`` of cu/ptxkit/gemm/swapped_product.cuh.

    Args:
        w: the product, for its sizes and the device.
        t: a tile of :data:`SPACE`; its :class:`SwappedTile` is the first template argument.
        boxes: tensor maps of a and b, the first parameters of the kernel, for copies of :func:`copied_rows`.
        args, template: the other arguments; the stages of the ring and SHARING follow ``args``.
    """
    clusters, ctas = grid(w, t)
    ring = stages(w, t)
    return Launch(
        kernel,
        clusters * ctas,
        128 * t.CONSUMERS + 32,
        (*boxes, *args, ring, t.SHARING),
        shared=ring * stage_bytes(t) + sums_bytes(t) if t.PARTS > 1 else max(ring * stage_bytes(t), sums_bytes(t)),
        cluster=ctas if ctas > 1 else None,
        template=(SwappedTile(t.CONSUMERS, t.ROWS, t.TOKENS), *template),
    )


def copied_rows(t: Tile) -> tuple[int, int]:
    """The rows of a and of b that a CTA copies at a time."""
    return t.TOKENS // t.SHARING, weights(t)


def launches(w: Matmul, operands: Boxes, t: Tile) -> list[Launch]:
    """A launch of ``matmul_swapped``."""
    a, b = (unaligned.map_of(w, made) for made in operands.boxes("a", "b", *copied_rows(t)))
    return [product_launch("matmul_swapped", w, t, (a, b), w.scalars, (f"ptxkit::{w.kind}", operands, w.epilogue_bits))]


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What a launch does."""
    sms = w.device.sms
    clusters, cluster = grid(w, t)
    ctas, resident = clusters * cluster, cluster_ctas(w.device, cluster) if cluster > 1 else sms
    on_sm = cdiv(ctas, resident)
    waves = cdiv(on_sm, t["CTAS_PER_SM"])
    sums, from_a = weights(t) * t["TOKENS"], t["TOKENS"] / t["SHARING"]
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=wgmma_tiles.split_share(w, from_a, weights(t)),
        steps=cdiv(cdiv(w.k, BK), t["PARTS"]) * on_sm,
        rows=t["TOKENS"],
        columns=weights(t),
        delivered=from_a + weights(t),
        sms=min(ctas, resident),
        idle=1 - min(ctas, resident) / sms,
        others=t["SHARING"] - 1,
        stages=stages(w, t) * min(on_sm, t["CTAS_PER_SM"]),
        units=weights(t) / 64,
        wgmma_columns=t["TOKENS"],
        ends=sums * waves,
        waves=waves - 1,
        exchanged=sums * waves if t["PARTS"] > 1 else 0,
        clustered=cluster > 1,
        packed=cluster > SMS_PER_TPC,
    )


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time of a launch by the model."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.swapped, stream_work(w, t), w.device.sms / entry.sms)


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider: those with the fewest rows beyond the last one of a, of up to two tiles more than needed."""
    sizes = [size for size in sorted(SPACE["TOKENS"]) if w.a_layout == "row" or size % 64 == 0]
    fewest = cdiv(w.m, sizes[-1])
    fitting = {next(size for size in sizes if size >= cdiv(w.m, tiles)) for tiles in range(fewest, fewest + 3)}
    names = ("TOKENS", "CONSUMERS", "ROWS", "SHARING", "PARTS", "CTAS_PER_SM")
    for values in product(sorted(fitting), *(SPACE[name] for name in names[1:-1]), (2, 1, 3)):
        t = dict(zip(names, values, strict=True))
        if t["PARTS"] * t["SHARING"] <= PORTABLE_CLUSTER:
            yield t


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates that can be used, the one with the shortest predicted time first."""
    yield from sorted((t for t in candidates(w) if usable(w, t) is True), key=lambda t: predicted_us(w, t))
