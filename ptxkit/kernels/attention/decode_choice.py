"""Where the steps of attention for few queries are the fastest, and with which tiles.

The time of a launch is that of the longest of two terms: the bytes of keys and values at the bandwidth of a copy, and the
products of the busiest SM. Steps whose CTAs have a tile of queries of one head each compute tiles that few queries leave mostly
empty, one for each head that shares a key, on a part of the SMs. Those of decode.py fill their tiles with the rows of all heads
that share keys, and the SMs with parts of the keys, for which they need a second launch or clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np

from ptxkit import Tile, cdiv
from ptxkit.kernels.attention import decode
from ptxkit.kernels.attention.balance import Steps, busiest, of_all_heads, steps_of_queries
from ptxkit.kernels.attention.sizes import AttentionSizes
from ptxkit.kernels.measured import cluster_ctas
from ptxkit.targets.achievable import L2_RATE, LAUNCH_US, PRODUCT, WARP_PRODUCT, WAVE_US, copy_gbs
from ptxkit.targets.gpus import Gpu, gpu_named, reference_gpu
from ptxkit.targets.target import missing
from ptxkit.workload.inputs import dtype_of

MMA_ROWS = 16  # rows of mma.sync
IN_FLIGHT = 128 << 10  # bytes of keys and values in the shared memory of a CTA; more were not faster (docs/attention.md)
LATENCY_US = 2.2  # from the request of a tile to that of the next one in its place
NEIGHBOURS = 1.5  # times as long for the CTAs of a cluster, whose SMs have one path to L2
CLUSTER_US = 0.2  # of the exchange in a cluster, for each of its CTAs
SERIAL = 0.5  # rate of products by mma.sync of one warp, which depend on each other, relative to that of a matrix product
STEP_US = 0.65  # of a tile of 64 keys of step 10 with one warpgroup: scores, exponentials and products follow each other
ALTERNATING, TWO_CTAS = 0.92, 0.82
"""Rate of step 10 with two warpgroups of a CTA, or of two CTAs, relative to steps whose CTAs compute tile after tile."""
FEWEST_KEYS, OF_ONE_TILE = 16, 10
"""For each query, of the sizes with which step 10 was timed; the second where one warpgroup has all rows of a head."""
MARGIN = 0.9  # predicted time of step 10, relative to that of steps 5 and 7, below which it is taken
TILE_US = 0.5  # of a tile of queries that does not overlap with others: its queries are loaded, its results stored
LEAST_GROUPS = 4  # of a CTA: the warps of a group wait for each of their products
OF_A_SCORE = 2  # what else is computed of a score takes as long as its exponential
STEP_1_QUERIES, WGMMA_QUERIES, WGMMA_KEYS = 64, 128, 128  # of a tile


def predicted_us(w: AttentionSizes, t: Mapping[str, Any]) -> float:
    """The time of a step by mma.sync with a tile."""
    tile, found = decode.tile_of(w, Tile(t)), decode.parts_of(w, Tile(t))
    limits, sms = w.device.target.limits, w.device.sms
    resident = min(limits.shared_bytes // (tile.shared_bytes + limits.reserved_bytes), limits.threads // tile.threads)
    ctas = found.units * found.parts * tile.CLUSTER
    if tile.PERSISTENT:
        resident = min(resident, t["CTAS_PER_SM"])
    at_once = resident * (cluster_ctas(w.device, tile.CLUSTER) if tile.CLUSTER > 1 else sms)
    in_flight = tile.KEY_WARPS * tile.STAGES * 2 * tile.BN * tile.D * tile.BYTES
    waves, last = divmod(ctas, at_once)

    def loaded_us(count: int) -> float:
        """Of CTAs that run at the same time: at the bandwidth, or at that of their bytes in flight."""
        latency = LATENCY_US * (NEIGHBOURS if tile.CLUSTER > 1 else 1)
        gbs = min(_copy_gbs(w), count * in_flight / latency / 1e3)
        return count * w.work().bytes / ctas / gbs / 1e3 if count else 0.0

    memory = waves * loaded_us(at_once) + loaded_us(last)
    if tile.PERSISTENT:  # later keys are requested before they are needed, and CTAs with fewer work items end early
        memory = ctas * loaded_us(at_once) / at_once
    of_an_sm = waves * resident + cdiv(last, max(1, at_once // resident))
    arithmetic = of_an_sm * found.keys * _key_us(w, tile.rows, wgmma=False)
    exchange = CLUSTER_US * tile.CLUSTER if tile.CLUSTER > 1 else 0.0
    starts = 1 if tile.PERSISTENT else waves + bool(last)
    return LAUNCH_US + WAVE_US * starts + max(memory, arithmetic) + exchange + _combined_us(w, found.parts)


def preferred(w: AttentionSizes, *, clusters: bool) -> list[Mapping[str, Any]]:
    """Tiles of a step by mma.sync, the one with the shortest predicted time first.

    One, two or three CTAs on an SM together have as many bytes in flight as are useful: with few stages, and at least four
    groups if they fit. The CTAs of a cluster are alone on their SMs, and all clusters run at the same time. With more work
    items than CTAs at once, CTAs may be persistent, two on an SM.
    """
    row_warps = next((warps for warps in (1, 2) if MMA_ROWS * warps >= decode.rows_of_a_head(w)), 4)
    limits, itemsize = w.device.target.limits, dtype_of(w.dtype).itemsize
    row_bytes = 2 * w.d * itemsize
    found: list[Mapping[str, Any]] = []
    for ctas, persistent in ((1, 0), (3, 0), (2, 0), (2, 1)):  # of equal predicted times, the first was shorter on an H200
        fitting = []
        for warps, keys, stages in product((8, 4, 2) if ctas == 1 else (4, 2), (32, 16), (2, 3, 4)):
            t = {"ROW_WARPS": row_warps, "KEY_WARPS": warps, "BN": keys, "STAGES": stages, "CTAS_PER_SM": ctas}
            t |= {"PERSISTENT": 1} if persistent else {}
            loaded = warps * keys * stages * row_bytes
            needed = ctas * (decode.tile_of(w, Tile(t)).shared_bytes + limits.reserved_bytes)
            if warps * row_warps <= 8 and loaded <= IN_FLIGHT and needed <= limits.shared_bytes:
                fitting.append(((loaded, -stages, warps >= LEAST_GROUPS, keys), t))
        if not fitting:
            continue
        best = max(fitting, key=itemgetter(0))[1]
        several = decode.parts_of(w, Tile(best)).units > ctas * w.device.sms
        if not persistent or (clusters and itemsize > 1 and several):  # of e4m3, persistent CTAs were not timed
            found.append(best)
    if clusters and found:
        for size in (2, 4, 8):
            t = {**found[0], "CLUSTER": size}
            if decode.parts_of(w, Tile(t)).units * size <= cluster_ctas(w.device, size):
                found.append(t)
    return sorted(found, key=lambda t: predicted_us(w, t))


def predicted_wgmma_us(w: AttentionSizes, t: Mapping[str, Any]) -> float:
    """The time of step 10 with a tile."""
    tile, found = decode.wgmma_tile(w, Tile(t)), decode.wgmma_parts_of(w, Tile(t))
    steps, of_cta = steps_of(w, decode.queries_of(w, tile), w.shared_heads, tile.BN), found.keys // tile.BN
    of_parts = np.concatenate([np.clip(steps - part * of_cta, 0, of_cta) for part in range(found.parts)])
    of_sm = busiest(of_parts, w.device.sms)
    rate = ALTERNATING if tile.CONSUMERS == 2 else TWO_CTAS
    arithmetic = of_sm * tile.BN * _key_us(w, tile.queries, wgmma=True) / rate
    if tile.CONSUMERS == 1:  # its steps follow each other
        arithmetic = max(arithmetic, busiest(of_parts, w.device.sms * t["CTAS_PER_SM"]) * STEP_US)
    waves = cdiv(found.units * found.parts, w.device.sms * t["CTAS_PER_SM"])
    return LAUNCH_US + WAVE_US * waves + max(w.work().bytes / _copy_gbs(w) / 1e3, arithmetic) + _combined_us(w, found.parts)


def preferred_wgmma(w: AttentionSizes) -> list[Mapping[str, Any]]:
    """Tiles of step 10, the one with the shortest predicted time first: one warpgroup, two that alternate, or two CTAs with one
    warpgroup each on an SM."""
    narrow = {"CONSUMERS": 1, "PING_PONG": 0}
    wide = {"CONSUMERS": 2, "PING_PONG": 0 if w.d == 256 else 1}
    found = []
    for t, keys, ctas in ((narrow, 64, 1), (wide, 64 if w.d == 256 else 128, 1), (narrow, 64, 2)):
        stages = 3 if keys * 3 * 4 * w.d <= IN_FLIGHT else 2
        made = {**t, "BN": keys, "STAGES": stages, "CTAS_PER_SM": ctas}
        if decode.usable_by_wgmma(w, Tile(made)) is True:
            found.append(made)
    return sorted(found, key=lambda t: predicted_wgmma_us(w, t))


def predicted_of_tiles_us(w: AttentionSizes) -> float:
    """The time of the steps whose CTAs compute tiles of queries of one head: steps 5 and 7 where there is wgmma, else step 1.
    Those of e4m3 elements transpose the values in a launch of its own."""
    wgmma, narrow = _has(w, "sm_90a"), dtype_of(w.dtype).itemsize == 1
    queries = WGMMA_QUERIES if wgmma else STEP_1_QUERIES
    steps = steps_of_queries(w, queries, WGMMA_KEYS)
    arithmetic = busiest(steps, w.device.sms) * WGMMA_KEYS * _key_us(w, queries, wgmma=wgmma)
    moved = w.work().bytes + (2 * w.tokens[1] * w.shared_heads * w.d if narrow else 0)
    tiles = cdiv(int(np.count_nonzero(steps)), w.device.sms)  # of the busiest SM
    return (LAUNCH_US + WAVE_US) * (1 + narrow) + TILE_US * tiles + max(moved / _copy_gbs(w) / 1e3, arithmetic)


def slower_mma(w: AttentionSizes, *, tma: bool) -> str | None:
    """``slower`` of steps 8 and 9."""
    if not tma and _has(w, "sm_90"):
        return "step 9 loads by TMA"
    if tma and decode.rows_of_a_head(w) > MMA_ROWS and _has(w, "sm_90a") and decode.shared_by(w) <= 2 * 64:
        return f"step 10 multiplies more than {MMA_ROWS} rows by wgmma"
    return _slower(w, predicted_us(w, preferred(w, clusters=tma)[0]))


def slower_e4m3(w: AttentionSizes) -> str | None:
    """``slower`` of step 6 of ``attention_e4m3``."""
    return _slower(w, predicted_us(w, preferred(w, clusters=True)[0]))


def slower_wgmma(w: AttentionSizes) -> str | None:
    """``slower`` of step 10."""
    if decode.rows_of_a_head(w) <= MMA_ROWS:
        return f"step 9 has tiles of {MMA_ROWS} rows"
    fewest = OF_ONE_TILE if decode.rows_of_a_head(w) <= 64 else FEWEST_KEYS
    if w.k < fewest * w.q:
        return f"no time of it was measured with less than {fewest} keys for each query (docs/attention.md)"
    tiles = preferred_wgmma(w)
    return _slower(w, predicted_wgmma_us(w, tiles[0]), MARGIN) if tiles else "no tile has rows for all heads that share keys"


def _slower(w: AttentionSizes, us: float, margin: float = 1.0) -> str | None:
    other = predicted_of_tiles_us(w)
    if us < margin * other:
        return None
    return f"it is predicted to take {us / other:.2f} times as long as with tiles of queries of one head"


def _has(w: AttentionSizes, requirement: str) -> bool:
    return missing((requirement,), w.device.target) is None


def steps_of(w: AttentionSizes, queries: int, heads: int, keys: int) -> Steps:
    """The steps of tiles of ``queries`` of ``heads`` heads with ``keys`` each; 0 for tiles without a query."""

    def of_head(n: int, m: int) -> Steps:
        first = np.arange(cdiv(w.q, queries)) * queries
        last = np.minimum(first + queries, n) - 1
        visible = np.clip(last + 1 + m - n, 0, m) if w.causal else np.full(len(first), m)
        return np.where(first < n, -(-visible // keys), 0)

    return of_all_heads(heads, of_head, w.sequence_lengths())


def _copy_gbs(w: AttentionSizes) -> float:
    return copy_gbs(_gpu(w))


def _gpu(w: AttentionSizes) -> Gpu:
    return gpu_named(w.device.gpu) or reference_gpu(w.device.target)


def _key_us(w: AttentionSizes, rows: int, *, wgmma: bool) -> float:
    """The time of an SM for a key and a tile of rows: the products, or the exponentials, which overlap with them."""
    gpu = _gpu(w)
    kind = w.dtype if wgmma or dtype_of(w.dtype).itemsize > 1 else "f16"
    own = wgmma or not w.device.target.has_a_form
    rate = gpu.peak_tflops.get(kind, gpu.peak_tflops.get("f16", 1.0)) * PRODUCT * (1.0 if own else WARP_PRODUCT)
    products = 4 * rows * w.d * w.device.sms / rate / 1e6 / (1.0 if wgmma else SERIAL)
    return max(products, OF_A_SCORE * rows / w.device.target.limits.special_per_clock / gpu.clock_mhz)


def _combined_us(w: AttentionSizes, parts: int) -> float:
    """The second launch of several parts; their results are in L2."""
    if parts == 1:
        return 0.0
    moved = 2 * parts * w.heads * w.tokens[0] * w.d * 4
    return LAUNCH_US + WAVE_US + moved / (L2_RATE * _copy_gbs(w)) / 1e3
