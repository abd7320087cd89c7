"""Tiles of multicast_product.cuh: products with up to some hundred rows of a, whose clusters load both operands for each other.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`). The tiles of
:mod:`ptxkit.kernels.gemm.sparse_cluster_k` are found in the same way, with the functions that name no product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptxkit import cdiv
from ptxkit.kernels.gemm import ctas_per_sm, stream_model, unaligned
from ptxkit.kernels.gemm.matmul import Matmul
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import Product, split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.runtime.tensor_map.limits import MAX_BOX
from ptxkit.targets.sm import PORTABLE_CLUSTER, SMS_PER_TPC
from ptxkit.targets.wgmma import FLOAT_COLUMNS, columns_of, columns_refused
from ptxkit.workload.inputs import dtype_of

SOURCE = "matmul_multicast.cu"
MAX_STAGES = 32
MIN_STAGES = 3
STATIC_BYTES = 1024 + 512  # for the alignment of the ring, and of the barriers
OTHER_REGISTERS = 40  # of a thread beside its sums, for addresses and counters
DEEP_ROWS = 144  # of both operands in a stage, up to which it has 256 bytes along k
MOST_SUMS = {2: 200, 3: 96}
"""Consumers -> the most sums of a thread with the registers that a producer warpgroup gives up, 240 or 160 in all. ptxas places
the sums of one instruction in the registers that a thread has at launch, which are 128 with three consumers."""
MOST_WAVES = 2
FEW_ROWS = 64  # of a

SPACE = {
    "CONSUMERS": [1, 2, 3],  # warpgroups that multiply
    "ROWS": [1, 2, 3],  # of b in a tile, in units of 64 rows for each warpgroup
    "TOKENS": [64, *(size for size in FLOAT_COLUMNS if size != 64)],  # rows of a in a tile
    "A_SHARING": [4, 1, 2, 8],  # CTAs of a cluster with the same rows of a, of which each loads a part for all
    "B_SHARING": [1, 2, 4],  # CTAs of a cluster with the same rows of b
    "PARTS": [1, 2, 3, 4, 5, 6, 7, 8],  # of k, each for other CTAs of a cluster
    "CTAS_PER_SM": [1, 2],  # CTAs that share the shared memory of an SM
}
SHAPES = tuple({"CONSUMERS": c, "ROWS": r} for c, r in ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2)))
ALONE = {"A_SHARING": 1, "B_SHARING": 1, "PARTS": 1, "CTAS_PER_SM": 1}


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


def gives_registers(t: Mapping[str, int]) -> bool:
    """Whether there is a producer warpgroup that gives up its registers, instead of a producer warp: for many sums."""
    return t["CONSUMERS"] > 1 and t["ROWS"] * t["TOKENS"] // 2 > (128 if t["CONSUMERS"] == 2 else 88)


def threads(t: Mapping[str, int]) -> int:
    """Threads of a CTA."""
    return 128 * t["CONSUMERS"] + (128 if gives_registers(t) else 32)


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
    """Stages of the ring: as many as the shared memory of CTAS_PER_SM CTAs has room for, and at most the steps of a part."""
    room = (ctas_per_sm.shared_bytes(w.device.target.limits, t) - STATIC_BYTES) // stage_bytes(t)
    return min(room, MAX_STAGES, max(MIN_STAGES, cdiv(steps(w, t, itemsize), t["PARTS"])))


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
    return t["A_SHARING"] * t["B_SHARING"] * t["PARTS"]


def loaded_rows(t: Mapping[str, int]) -> tuple[int, int]:
    """The rows of a and of b that a CTA copies at a time."""
    return t["TOKENS"] // t["A_SHARING"], weights(t) // t["B_SHARING"]


def arguments(w: Product, t: Mapping[str, int], itemsize: int = 2) -> tuple[int, ...]:
    """The last arguments of the kernels: the shape of clusters and their grid, steps along k, and stages."""
    grid = (across(w, t), clusters(w, t))
    return (t["A_SHARING"], t["B_SHARING"], t["PARTS"], *grid, steps(w, t, itemsize), stages(w, t, itemsize))


def usable(w: Product, t: Mapping[str, int], itemsize: int = 2) -> bool | str:
    """The constraint of the variants with this kernel."""
    if (refused := columns_refused(w.kind, t["TOKENS"])) is not None:
        return f"TOKENS={t['TOKENS']}: {refused}"
    if (rows := weights(t)) > MAX_BOX:
        return f"{rows} rows of b in a tile are more than the {MAX_BOX} of a box of a tensor map"
    if (ctas := cluster(t)) > PORTABLE_CLUSTER:
        return f"A_SHARING x B_SHARING x PARTS = {ctas} CTAs are more than the {PORTABLE_CLUSTER} of a cluster"
    if (found := steps(w, t, itemsize)) < t["PARTS"]:
        of = f"{found} step{'s' if found > 1 else ''} of {depth(t) * ROW_BYTES} bytes"
        return f"k={w.k} has {of}, fewer than PARTS={t['PARTS']}"
    limits = w.device.target.limits
    sums, room = t["ROWS"] * t["TOKENS"] // 2, ctas_per_sm.registers(limits, t)
    if gives_registers(t) and t["CTAS_PER_SM"] == 1:
        enough = sums <= MOST_SUMS[t["CONSUMERS"]]
    else:
        enough = sums + OTHER_REGISTERS <= min(room, limits.registers_per_thread)
    if not enough:
        of = f"{64 * t['ROWS']} x {t['TOKENS']}"
        return f"{sums} sums of {of} need more than the registers of a thread of {t['CONSUMERS']} consumers"
    if (needed := sums_bytes(t)) > (limit := ctas_per_sm.shared_bytes(limits, t) - STATIC_BYTES):
        return f"the sums of a tile take {needed} bytes of shared memory, more than {limit}"
    major = {"a": w.a_layout == "column", "b": w.b_layout == "row"}
    for name, all_rows, sharing in (("a", t["TOKENS"], t["A_SHARING"]), ("b", weights(t), t["B_SHARING"])):
        whole = 64 if major[name] else 1
        if all_rows % (sharing * whole):
            kind = "whole boxes" if major[name] else "equal parts"
            return f"{all_rows} rows of {name} are no {kind} for {sharing} CTAs"
    if (found := stages(w, t, itemsize)) < MIN_STAGES:
        return f"shared memory has room for {max(0, found)} stages of {stage_bytes(t)} bytes"
    return True


def stores(w: Matmul) -> int:
    """The template argument STORES: 2 if rows of c begin and end at multiples of 16 bytes, 1 if c is read, too, or 0."""
    rows = w.n % 8 == 0 and unaligned.pitches(w)["c"] % 8 == 0
    return 2 if rows and not w.beta else unaligned.stores_pairs(w)


def was_timed(w: Product) -> bool:
    """Whether there are times of such products on the GPU, to which the predictions were close.

    Of operands that are not contiguous along k, tiles for few rows on less than half of the SMs took up to 35% more than
    predicted.
    """
    contiguous = w.a_layout == "row" and w.b_layout == "column"
    return measured(w.device).multicast is not None and (contiguous or w.m > FEW_ROWS)


def fitting_tokens(m: int, sizes: Sequence[int], along: int, sms: int) -> list[int]:
    """The rows of a in a tile to consider, of ``sizes``: those with the fewest rows beyond the last one of the ``m`` of a.

    These are for the fewest tiles and up to five more, and for as many as fill one wave or two with ``along`` tiles beside
    each other.
    """
    fewest = cdiv(m, sizes[-1])
    filling = (sms * waves // along for waves in (1, 2))
    counts = {*range(fewest, fewest + 6), *(tiles for tiles in filling if tiles > fewest)}
    return sorted({next(size for size in sizes if size >= cdiv(m, tiles)) for tiles in counts})


def divisions(w: Product, t: Mapping[str, int], batch: int, most_waves: int) -> Iterator[dict[str, int]]:
    """PARTS and CTAS_PER_SM to consider: parts of k where SMs are idle, and two CTAs on an SM where there are more tiles."""
    whole = clusters(w, {**t, "PARTS": 1}) * t["A_SHARING"] * t["B_SHARING"] * batch
    for ctas_on_sm in SPACE["CTAS_PER_SM"]:
        slots = ctas_on_sm * w.device.sms
        for parts in SPACE["PARTS"]:
            most = slots if parts > 1 else most_waves * slots
            if slots - w.device.sms < whole * parts <= most and t["A_SHARING"] * t["B_SHARING"] * parts <= PORTABLE_CLUSTER:
                yield {"PARTS": parts, "CTAS_PER_SM": ctas_on_sm}


def shapes(w: Product, itemsize: int, batch: int, *, many_sums: bool = False) -> Iterator[dict[str, int]]:
    """CONSUMERS, ROWS and TOKENS to consider: of tiles with the same rows, the one with the fewest warpgroups."""
    for rows in sorted({weights(values) for values in SHAPES}):
        for tokens in fitting_tokens(w.m, columns_of(w.kind), cdiv(w.n, rows) * batch, w.device.sms):
            for values in SHAPES:
                t = {**values, "TOKENS": tokens}
                if gives_registers(t) and not many_sums:
                    continue
                if weights(t) == rows and usable(w, {**t, **ALONE}, itemsize) is True:
                    yield t
                    break


def candidates(
    w: Product, itemsize: int = 2, batch: int = 1, most_waves: int = MOST_WAVES, *, many_sums: bool = False
) -> Iterator[dict[str, int]]:
    """The tiles to consider, for at most ``most_waves`` waves.

    Args:
        many_sums: also those for which a producer warpgroup gives up registers.
    """
    considered = shapes(w, itemsize, batch, many_sums=many_sums)
    found = in_clusters(SPACE, w.m, considered, lambda t: divisions(w, t, batch, most_waves))
    yield from (tile for tile in found if usable(w, tile, itemsize) is True)


def in_clusters(
    space: Mapping[str, Sequence[int]],
    m: int,
    shapes: Iterable[Mapping[str, int]],
    divisions: Callable[[Mapping[str, int]], Iterable[Mapping[str, int]]],
) -> Iterator[dict[str, int]]:
    """The tiles of each shape in each cluster: with A_SHARING and B_SHARING of ``space``, and each division of these.

    Args:
        m: rows of a; clusters that share rows of b in tiles without any are left out.
        shapes: CONSUMERS, ROWS and TOKENS. divisions: from a tile without them, PARTS and CTAS_PER_SM.
    """
    sharing = [(a, b) for b in space["B_SHARING"] for a in space["A_SHARING"] if a * b <= PORTABLE_CLUSTER]
    for shape in shapes:
        for a_sharing, b_sharing in sharing:
            t = {**shape, "A_SHARING": a_sharing, "B_SHARING": b_sharing}
            if (b_sharing - 1) * t["TOKENS"] < m:
                for divided in divisions(t):
                    yield {name: {**t, **divided}[name] for name in space}


def stream_work(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> StreamWork:
    """What a launch for ``batch`` products of elements of ``itemsize`` bytes does."""
    ctas, of_cluster, sums = clusters(w, t) * cluster(t) * batch, cluster(t), weights(t) * t["TOKENS"]
    resident = cluster_ctas(w.device, of_cluster) if of_cluster > 1 else w.device.sms
    on_sm, (from_a, from_b) = cdiv(ctas, resident), loaded_rows(t)
    waves = cdiv(on_sm, t["CTAS_PER_SM"])
    if waves > 1:
        # The CTAs of an SM end at the same time, and as many begin on it together, while there are others for them.
        on_sm = waves * t["CTAS_PER_SM"]
    ends = sums * on_sm / t["PARTS"]
    if isinstance(w, Matmul):
        how = stores(w) if t["PARTS"] == 1 else 1
    else:
        how = 2 if w.n % 4 == 0 else 1
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, from_a, from_b, itemsize),
        steps=on_sm * cdiv(steps(w, t, itemsize), t["PARTS"]) * depth(t),
        rows=t["TOKENS"],
        columns=weights(t),
        delivered=from_a + from_b,
        paired=from_a if t["A_SHARING"] == 2 else 0.0,
        sms=min(ctas, resident),
        idle=1 - min(ctas, resident) / w.device.sms,
        others=t["A_SHARING"] + t["B_SHARING"] - 2,
        stages=stages(w, t, itemsize) * depth(t) * min(on_sm, t["CTAS_PER_SM"]),
        units=weights(t) / 64,
        wgmma_columns=t["TOKENS"],
        ends=ends,
        exchanged=sums * on_sm if t["PARTS"] > 1 else 0,
        scattered=ends if how == 1 else 0.0,
        shifted=0.0 if how else ends,
        wide=ends if dtype_of(w.output_kind).itemsize > 2 else 0.0,
        waves=waves - 1,
        clustered=of_cluster > 1,
        packed=of_cluster > SMS_PER_TPC,
        again_bytes=stream_model.again_bytes(w, itemsize, cdiv(w.n, weights(t) * t["A_SHARING"]), across(w, t)) * batch,
    )


def predicted_us(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    rates = (t["PARTS"] > 1 and entry.multicast_parts) or entry.multicast or entry.swapped
    return stream_model.predicted_us(rates, stream_work(w, t, itemsize, batch), w.device.sms / entry.sms)


def preferred(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w, itemsize, batch), key=lambda t: predicted_us(w, t, itemsize, batch))
