"""Tiles of cluster_k.cuh: products whose clusters compute one tile each and divide k among their CTAs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ptxkit import cdiv
from ptxkit.kernels.gemm import stream_k, stream_model
from ptxkit.kernels.gemm.stream_k import height, stage_bytes
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import Product, split_share
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.targets.sm import SMS_PER_TPC

SOURCE = "matmul_cluster_k.cu"
MOST_WAVES = 2
WIDE = (256, 224, 192, 160, 128, 96, 80, 64)
SPACE = {
    "CONSUMERS": [2, 1, 3],  # warpgroups that multiply
    "ROWS": [1, 2],  # of a in a tile, in units of 64 rows for each warpgroup
    "COLUMNS": [*WIDE, *(size for size in stream_k.COLUMNS if size not in WIDE)],  # rows of b in a tile
    "PARTS": [2, 3, 4, 5, 6, 7, 8],  # parts of k, each for a CTA of a cluster, which has at most 8 on every GPU
}
ALONE = {"SHARING": 1, "B_SHARING": 1, "CTAS_PER_SM": 1, "DIVIDED": 0}
"""What tiles of step 13 have beside those here: each CTA loads its own rows of a, and there is one on each SM."""


def unit(t: Mapping[str, int]) -> int:
    """Vectors of a thread that have one owner: ``UNIT`` of ``ClusterOwners``."""
    return 2 if t["COLUMNS"] % 16 == 0 else 1


def units(t: Mapping[str, int]) -> int:
    """Units of a thread."""
    return t["ROWS"] * t["COLUMNS"] // 8 // unit(t)


def sums_bytes(t: Mapping[str, int]) -> int:
    """Shared memory for the sums that a CTA receives."""
    return t["PARTS"] * cdiv(units(t), t["PARTS"]) * unit(t) * stream_k.threads(t) * 16


def stages(w: Product, t: Mapping[str, int]) -> int:
    """Stages of the ring: as many as shared memory has room for."""
    return stream_k.stages(w, {**t, **ALONE})


def shared_bytes(w: Product, t: Mapping[str, int]) -> int:
    """Dynamic shared memory of a CTA: the ring, whose place the sums take."""
    return max(stages(w, t) * stage_bytes(t), sums_bytes(t))


def steps(w: Product, itemsize: int) -> int:
    """Steps along k, of elements of ``itemsize`` bytes."""
    return cdiv(w.k * itemsize, ROW_BYTES)


def down(w: Product, t: Mapping[str, int]) -> int:
    """Tiles down the rows of a."""
    return cdiv(w.m, height(t))


def of_product(w: Product, t: Mapping[str, int]) -> int:
    """Tiles of c of one product of a batch; a cluster computes each."""
    return down(w, t) * cdiv(w.n, t["COLUMNS"])


def usable(w: Product, t: Mapping[str, int], itemsize: int = 2) -> bool | str:
    """The constraint of the variants with this kernel."""
    allowed = stream_k.usable(w, {**t, **ALONE}, itemsize)
    if allowed is not True:
        return allowed
    if (found := steps(w, itemsize)) < t["PARTS"]:
        return f"k={w.k} has {found} step{'s' if found > 1 else ''} of {ROW_BYTES} bytes, fewer than PARTS={t['PARTS']}"
    limit = w.device.target.limits.shared_bytes_per_cta - stream_k.STATIC_BYTES
    if (needed := shared_bytes(w, t)) > limit:
        return f"the sums of {t['PARTS']} parts take {needed} bytes of shared memory, more than {limit}"
    return True


def candidates(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[dict[str, int]]:
    """The tiles to consider: large ones, of which c has fewer than there are SMs, and parts for at most two waves."""
    sms = w.device.sms
    for consumers in SPACE["CONSUMERS"]:
        for rows in SPACE["ROWS"]:
            for columns in WIDE:
                tile = {"CONSUMERS": consumers, "ROWS": rows, "COLUMNS": columns}
                tall, clusters = height(tile), of_product(w, tile) * batch
                if tall - 64 >= max(w.m, 64) or clusters >= sms:
                    continue
                for parts in SPACE["PARTS"]:
                    t = {**tile, "PARTS": parts}
                    if clusters * parts <= MOST_WAVES * sms and usable(w, t, itemsize) is True:
                        yield t


def stream_work(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> StreamWork:
    """What a launch for ``batch`` products of elements of ``itemsize`` bytes does."""
    parts, rows = t["PARTS"], stream_k.loaded_rows(w, {**t, **ALONE})
    ctas, resident = of_product(w, t) * batch * parts, cluster_ctas(w.device, parts)
    waves, sums = cdiv(ctas, resident), height(t) * t["COLUMNS"]
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, rows, t["COLUMNS"], itemsize),
        steps=waves * cdiv(steps(w, itemsize), parts),
        rows=rows,
        columns=t["COLUMNS"],
        delivered=rows + t["COLUMNS"],
        sms=min(ctas, resident),
        idle=1 - min(ctas, resident) / w.device.sms,
        stages=stages(w, t),
        units=height(t) / 64,
        wgmma_columns=t["COLUMNS"],
        ends=waves * sums / parts,
        waves=waves - 1,
        exchanged=waves * sums,
        scattered=waves * sums / parts if w.n % 2 else 0.0,
        clustered=True,
        packed=parts > SMS_PER_TPC,
        again_bytes=stream_model.again_bytes(w, itemsize, cdiv(w.n, t["COLUMNS"]), down(w, t)) * batch,
    )


def predicted_us(w: Product, t: Mapping[str, int], itemsize: int = 2, batch: int = 1) -> float:
    """The time by the model; without times of this kernel, by that of step 13 with step 9's time of an exchanged sum."""
    entry = measured(w.device)
    rates = entry.cluster_k or replace(entry.stream_k, exchange_us=entry.swapped.exchange_us)
    return stream_model.predicted_us(rates, stream_work(w, t, itemsize, batch), w.device.sms / entry.sms)


def preferred(w: Product, itemsize: int = 2, batch: int = 1) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first; where there is none, all tiles in their order."""
    found = sorted(candidates(w, itemsize, batch), key=lambda t: predicted_us(w, t, itemsize, batch))
    yield from found or iter(all_tiles())


def all_tiles() -> Iterator[dict[str, int]]:
    """All tiles, those with few parts first."""
    for parts in SPACE["PARTS"]:
        for consumers in SPACE["CONSUMERS"]:
            for columns in SPACE["COLUMNS"]:
                yield {"CONSUMERS": consumers, "ROWS": 1, "COLUMNS": columns, "PARTS": parts}
