"""Launches of matmul_swapped.cu: products that are limited by reading b, because a has few rows.

The tile and the number of parts of k are those for which a model predicts the shortest time, from the sizes and from the facts
of the device (:class:`~ptxkit.kernels.measured.StreamRates`): how fast device memory and L2 deliver, how many bytes of it the
shared memory has in flight, how many clusters are resident, and how evenly the SMs are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from ptxkit import Launch, TensorMap, Tile, cdiv
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_swapped.cu"
BK = 64  # elements of k in a stage
ROW_BYTES = 2 * BK
MAX_STAGES = 32
STATIC_BYTES = 1024  # of the barriers, and for the alignment of the ring
MAX_CLUSTER = 8  # CTAs of a cluster on every GPU
MOST_TOKENS = 128  # rows of a, up to which a GPU reads b no faster than it multiplies

SPACE = {
    "TOKENS": [64, 8, 16, 32, 48, 96, 128],  # rows of a in a tile
    "CONSUMERS": [1, 2],  # warpgroups, each with 64 rows of b
    "PARTS": [1, 2, 3, 4, 5, 6, 7, 8],  # parts of k, each for a CTA of a cluster
    "SHARING": [1, 2, 4, 8],  # tiles of a cluster that share the rows of a
    "CTAS_PER_SM": [2, 1, 3, 4],  # CTAs that share the shared memory of an SM
}


class Boxes(Protocol):
    """The operands of a product as a template argument, which give the tensor maps for their copies."""

    def boxes(self, a: str, b: str, rows: int, cols: int) -> tuple[TensorMap, TensorMap]:
        """Tensor maps of the arrays a and b, for copies of ``rows`` rows of a and ``cols`` rows of b, (n, k)."""


@dataclass(frozen=True)
class SwappedTile(TemplateStruct):
    """``SwappedTile`` of the kernel."""

    CONSUMERS: int
    TOKENS: int


def weights(t: Mapping[str, int]) -> int:
    """Rows of b in a tile."""
    return 64 * t["CONSUMERS"]


def stage_bytes(t: Mapping[str, int]) -> int:
    """Bytes of a stage of the ring."""
    return (weights(t) + t["TOKENS"]) * ROW_BYTES


def sums_bytes(t: Mapping[str, int]) -> int:
    """Shared memory for the sums that a CTA receives: ``ClusterSums`` of cu/ptxkit/gemm/cluster_sums.cuh."""
    return t["PARTS"] * cdiv(t["TOKENS"], t["PARTS"]) * (weights(t) + 4) * 4


def stages(w: Matmul, t: Mapping[str, int]) -> int:
    """Stages of the ring: as many as CTAS_PER_SM rings in the shared memory of an SM can have, and at most the steps."""
    limits = w.device.target.limits
    of_cta = min(limits.shared_bytes // t["CTAS_PER_SM"] - limits.reserved_bytes, limits.shared_bytes_per_cta)
    room = of_cta - STATIC_BYTES - (sums_bytes(t) if t["PARTS"] > 1 else 0)
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
    if (ctas := t["PARTS"] * t["SHARING"]) > MAX_CLUSTER:
        return f"PARTS x SHARING = {ctas} CTAs are more than the {MAX_CLUSTER} of a cluster"
    if t["PARTS"] > (steps := cdiv(w.k, BK)):
        return f"k={w.k} has {steps} steps of {BK}, fewer than PARTS={t['PARTS']}"
    if (found := stages(w, t)) < 2:
        return f"the shared memory of {t['CTAS_PER_SM']} CTAs has room for {max(0, found)} stages of {stage_bytes(t)} bytes"
    return True


def launches(w: Matmul, operands: Boxes, t: Tile) -> list[Launch]:
    """A launch of ``matmul_swapped``."""
    clusters, ctas = grid(w, t)
    ring = stages(w, t)
    launch = Launch(
        "matmul_swapped",
        clusters * ctas,
        128 * t.CONSUMERS + 32,
        (*operands.boxes("a", "b", t.TOKENS // t.SHARING, weights(t)), *w.scalars, ring, t.SHARING),
        shared=ring * stage_bytes(t) + sums_bytes(t) if t.PARTS > 1 else max(ring * stage_bytes(t), sums_bytes(t)),
        cluster=ctas if ctas > 1 else None,
        template=(SwappedTile(t.CONSUMERS, t.TOKENS), f"ptxkit::{w.kind}", operands, w.epilogue_bits),
    )
    return [launch]


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time of a launch by the model: the longest of reading b, of what L2 delivers, and of multiplying."""
    rates, sms = measured(w.device).streams, w.device.sms
    clusters, cluster = grid(w, t)
    ctas, steps = clusters * cluster, w.k / BK / t["PARTS"]
    in_flight = stages(w, t) * weights(t) * ROW_BYTES  # of b, by a CTA
    of_cta = steps * weights(t) * ROW_BYTES
    cta_rate = in_flight / rates.latency_us  # bytes a microsecond
    sm_rate, all_rate = rates.sm_gbs * 1e3, rates.memory_gbs * 1e3 * sms / measured(w.device).sms
    resident = cluster_ctas(w.device, cluster) * t["CTAS_PER_SM"]
    if ctas <= resident:
        # SMs with the same number of CTAs share the bandwidth, then those that have one more
        least, more = divmod(ctas, sms)
        reading = 0.0
        if least:
            reading += least * of_cta / min(all_rate / sms, sm_rate, least * cta_rate)
        if more:
            reading += of_cta / min(all_rate / more, sm_rate, max(1, least) * cta_rate)
    else:
        waves = ctas / resident
        reading = ctas * of_cta / min(all_rate, resident * cta_rate, sms * sm_rate) + rates.wave_us
        reading *= ceil(waves) / waves if waves < 3 else 1.0
        reading += rates.wave_us * waves if t["CTAS_PER_SM"] == 1 else 0.0
    delivered = ctas * steps * (weights(t) + t["TOKENS"] / t["SHARING"]) * ROW_BYTES / (rates.l2_gbs * 1e3)
    multiplying = steps * cdiv(ctas, sms) * t["TOKENS"] * t["CONSUMERS"] * rates.column_us
    exchanged = weights(t) * t["TOKENS"] * rates.sum_us * (1.5 if t["PARTS"] > 1 else 1.0)
    return max(reading, delivered, multiplying) + rates.launch_us + exchanged


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider: all rows of a in one tile as far as it takes them."""
    sizes = [size for size in sorted(SPACE["TOKENS"]) if w.a_layout == "row" or size % 64 == 0]
    tokens = next((size for size in sizes if size >= w.m), sizes[-1])
    for consumers, sharing, parts in product(SPACE["CONSUMERS"], SPACE["SHARING"], SPACE["PARTS"]):
        if (consumers == 1 or tokens >= 32) and parts * sharing <= MAX_CLUSTER:
            for resident in (2, 1, 3):
                yield {
                    "TOKENS": tokens,
                    "CONSUMERS": consumers,
                    "PARTS": parts,
                    "SHARING": sharing,
                    "CTAS_PER_SM": resident,
                }


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates that can be used, the one with the shortest predicted time first."""
    yield from sorted((t for t in candidates(w) if usable(w, t) is True), key=lambda t: predicted_us(w, t))


def slower(w: Matmul) -> str | None:
    """Why an earlier step is faster: it multiplies larger tiles."""
    if w.m <= MOST_TOKENS:
        return None
    return f"for more than {MOST_TOKENS} rows of a the time is that of the products, which larger tiles do faster"
