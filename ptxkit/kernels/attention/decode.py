"""Launches of the steps of attention for few queries, whose keys are divided among CTAs (cu/ptxkit/attention/decode.cuh).

A *unit* is a tile of rows of a head of keys of a sequence; the rows are queries of all heads that share it. Its keys are
divided into parts, one for each CTA, or for each cluster, whose CTAs divide them once more. With several parts, a second launch
combines their results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxkit import Launch, TensorMap, Tile, cdiv
from ptxkit.kernels.attention import tiles
from ptxkit.kernels.attention.sizes import LOG2E, AttentionSizes, fits
from ptxkit.kernels.attention.tiles import LateAttentionTile
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload.inputs import dtype_of

SOURCE = "attention_decode.cu"
REGISTERS = 128  # that a thread of a step by mma.sync needs at least
SHARED_REGISTERS = 232  # of a consumer thread, where two CTAs with one consumer warpgroup share the registers of an SM
COMBINE_WARPS, AT_ONCE = 8, 8  # of a CTA of attention_combine, and parts that a warp requests at once
MOST_ROWS = 128  # of a tile
MOST_CTAS_PER_SM = 4
TILE = {
    "ROW_WARPS": [1, 2, 4, 8],  # warps of a group, 16 rows each
    "KEY_WARPS": [4, 8, 2, 1],  # groups, with keys of their own
    "BN": [32, 16, 64],  # keys of a tile
    "STAGES": [2, 3, 4],  # tiles of keys and values of each group in shared memory
    "CTAS_PER_SM": [1, 2, 3, MOST_CTAS_PER_SM],  # at most, of the grid
}
CLUSTER_TILE = {
    **TILE,
    "CLUSTER": [1, 2, 4, 8],  # CTAs that combine their results through distributed shared memory
    "PERSISTENT": [0, 1],  # CTAs take one work item after the other, and load the next one meanwhile
}
WGMMA_TILE = {
    "CONSUMERS": [1, 2],  # warpgroups of 64 rows each
    "BN": [64, 128],  # keys of a tile
    "STAGES": [3, 2],  # tiles of keys, and of values, in shared memory
    "PING_PONG": [0, 1],  # warpgroups issue products one after the other
    "CTAS_PER_SM": [1, 2],  # at most, of the grid
}


@dataclass(frozen=True)
class DecodeTile(TemplateStruct):
    """``DecodeTile`` of cu/ptxkit/attention/decode.cuh."""

    D: int
    BYTES: int
    ROW_WARPS: int
    KEY_WARPS: int
    BN: int
    STAGES: int
    CLUSTER: int
    PERSISTENT: bool

    @property
    def rows(self) -> int:
        """Rows of a CTA."""
        return 16 * self.ROW_WARPS

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.ROW_WARPS * self.KEY_WARPS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: queries, tiles or the results that take their place, sums, mbarriers. Persistent
        CTAs have two tiles of queries, and results beside the tiles."""
        loaded = self.KEY_WARPS * self.STAGES * 2 * self.BN * self.D * self.BYTES
        results = self.KEY_WARPS * self.rows * (self.D + 8) * 4
        sums = (self.KEY_WARPS + 1) * self.rows * 8
        queries = self.rows * self.D * self.BYTES
        tiles = 2 * queries + loaded + results if self.PERSISTENT else queries + max(loaded, results)
        return tiles + sums + 16 * self.KEY_WARPS * self.STAGES


@dataclass(frozen=True)
class Parts:
    """How the keys of a launch are divided.

    Attributes:
        units: tiles of rows of all heads of keys and sequences; of_head: those of a head of a sequence.
        parts: of the keys, each for a CTA or a cluster. keys: of a CTA, a multiple of those of a tile.
    """

    units: int
    of_head: int
    parts: int
    keys: int


def shared_by(w: AttentionSizes) -> int:
    """Heads that share a head of keys."""
    return w.heads // w.shared_heads


def rows_of_a_head(w: AttentionSizes) -> int:
    """Rows of a head of keys of a sequence."""
    return w.q * shared_by(w)


def divided(w: AttentionSizes, of_head: int, step: int, ctas_per_sm: int, cluster: int = 1, groups: int = 1) -> Parts:
    """As many parts as the SMs have CTAs, at most, and as there are tiles of keys for all groups of the CTAs.

    Args:
        of_head: tiles of rows. step: keys of a tile. groups: of a CTA, each with tiles of its own.
    """
    units = of_head * w.shared_heads * w.batch
    steps = cdiv(w.k, step)
    parts = max(1, min(ctas_per_sm * w.device.sms // (units * cluster), steps // (groups * cluster)))
    of_cta = max(1, cdiv(steps, parts * cluster))
    return Parts(units, of_head, max(1, cdiv(steps, of_cta * cluster)), of_cta * step)


def most_parts(w: AttentionSizes) -> int:
    """The most parts of any tile."""
    units = cdiv(rows_of_a_head(w), MOST_ROWS) * w.shared_heads * w.batch
    return max(1, MOST_CTAS_PER_SM * w.device.sms // max(1, units))


def partials(w: AttentionSizes) -> Mapping[str, Any]:
    """The temporaries: results and logarithms of each part."""
    parts = most_parts(w)
    rows = max(1, parts * w.heads * w.tokens[0]) if parts > 1 else 1
    return {"partial_o": ((rows, w.d), "f32"), "partial_lse": (rows, "f32")}


def tile_of(w: AttentionSizes, t: Tile) -> DecodeTile:
    """The tile of the steps by mma.sync."""
    return DecodeTile(
        w.d,
        dtype_of(w.dtype).itemsize,
        t.ROW_WARPS,
        t.KEY_WARPS,
        t.BN,
        t.STAGES,
        t.get("CLUSTER", 1),
        bool(t.get("PERSISTENT", 0)),
    )


def parts_of(w: AttentionSizes, t: Tile) -> Parts:
    """The parts of the steps by mma.sync."""
    tile = tile_of(w, t)
    return divided(w, cdiv(rows_of_a_head(w), tile.rows), tile.BN, t.CTAS_PER_SM, tile.CLUSTER, tile.KEY_WARPS)


def usable(w: AttentionSizes, t: Tile) -> bool | str:
    """The constraint of the steps by mma.sync."""
    tile = tile_of(w, t)
    if (most := w.device.target.limits.registers_of(tile.threads)) < REGISTERS:
        return f"{tile.threads} threads have {most} registers each, fewer than {REGISTERS}"
    if tile.BN * tile.D * tile.BYTES < 16 * 32 * tile.ROW_WARPS:
        return f"a tile of {tile.BN} keys has fewer vectors than a group has threads"
    if tile.PERSISTENT and tile.CLUSTER > 1:
        return "the CTAs of a cluster have one work item"
    return fits(w, tile.shared_bytes)


def launches(w: AttentionSizes, t: Tile, kernel: str, *, tma: bool, scales: Sequence[str] = ()) -> list[Launch]:
    """The launches of a step by mma.sync.

    Args:
        kernel: of :data:`SOURCE`. tma: it loads by TMA. scales: arrays of scales of heads.
    """
    tile, found = tile_of(w, t), parts_of(w, t)
    span, items = min(128, w.d * tile.BYTES), found.parts * found.units
    keys = w.tokens[1]
    boxes = (tiles.sequence_map(name, keys, w.shared_heads, w.d, tile.BYTES, tile.BN, span) for name in ("key", "value"))
    main = Launch(
        kernel,
        min(items, t.CTAS_PER_SM * w.device.sms) if tile.PERSISTENT else items * tile.CLUSTER,
        tile.threads,
        (
            *("query", *(boxes if tma else ("key", "value")), *scales, "o", "lse", "q_starts", "k_starts"),
            *(w.tokens[0], *((keys,) if tma else ()), w.heads, w.shared_heads, "partial_o", "partial_lse"),
            *(found.parts, found.of_head, found.keys, items, np.float32(LOG2E / math.sqrt(w.d))),
        ),
        shared=tile.shared_bytes,
        cluster=tile.CLUSTER if tile.CLUSTER > 1 else None,
        template=(*(() if scales else (f"ptxkit::{w.dtype}",)), tile, w.causal),
        source=SOURCE,
        instantiate=tuple(f"attention_combine<{_result_type(w)}, {w.d}, {warps}>" for warps in (1, COMBINE_WARPS)),
    )
    return [main, *_combined(w, found.parts)]


def wgmma_tile(w: AttentionSizes, t: Tile) -> LateAttentionTile:
    """The tile of the step by wgmma."""
    registers = 240 if t.CONSUMERS == 2 else SHARED_REGISTERS if t.CTAS_PER_SM == 2 else 0
    return LateAttentionTile(w.d, t.CONSUMERS, t.BN, t.STAGES, True, bool(t.PING_PONG), registers)


def queries_of(w: AttentionSizes, tile: LateAttentionTile) -> int:
    """Queries of a tile, with the rows of all heads that share a head of keys."""
    return tile.queries // shared_by(w)


def wgmma_parts_of(w: AttentionSizes, t: Tile) -> Parts:
    """The parts of the step by wgmma."""
    return divided(w, cdiv(w.q, queries_of(w, wgmma_tile(w, t))), t.BN, t.CTAS_PER_SM)


def usable_by_wgmma(w: AttentionSizes, t: Tile) -> bool | str:
    """The constraint of the step by wgmma."""
    tile = wgmma_tile(w, t)
    if t.CTAS_PER_SM == 2 and (t.CONSUMERS == 2 or w.d == 256):
        return "an SM has registers for two CTAs with one warpgroup that multiplies, for heads of up to 128 elements"
    if not queries_of(w, tile):
        return f"{shared_by(w)} heads share keys, and a tile has {tile.queries} rows"
    return tiles.usable(w, tile)


def wgmma_launches(w: AttentionSizes, t: Tile) -> list[Launch]:
    """The launches of the step by wgmma."""
    tile, found = wgmma_tile(w, t), wgmma_parts_of(w, t)
    queries = queries_of(w, tile)
    main = Launch(
        "attention_decode_wgmma",
        found.parts * found.units,
        128 * (tile.CONSUMERS + 1),
        (
            TensorMap("query", box=(queries, shared_by(w), 64), swizzle="128B"),
            TensorMap("key", box=(tile.BN, 1, 64), swizzle="128B"),
            tiles.sequence_map("value", w.tokens[1], w.shared_heads, w.d, 2, tile.BN),
            *("o", "lse", "q_starts", "k_starts", *w.tokens, w.heads, w.shared_heads, "partial_o", "partial_lse"),
            *(found.parts, found.of_head, found.keys, queries, np.float32(LOG2E / math.sqrt(w.d))),
        ),
        shared=tile.shared_bytes,
        template=(f"ptxkit::{w.dtype}", tile, w.causal),
        source="attention_decode_wgmma.cu",
    )
    return [main, *_combined(w, found.parts)]


def _result_type(w: AttentionSizes) -> str:
    return f"ptxkit::{w.outputs()['o'][1]}"


def _combined(w: AttentionSizes, parts: int) -> list[Launch]:
    """The launch that combines the results of several parts."""
    if parts == 1:
        return []
    rows = w.heads * w.tokens[0]
    full = rows * COMBINE_WARPS > w.device.sms * w.device.target.limits.warps  # more warps would not run at the same time
    warps = 1 if parts <= AT_ONCE or full else COMBINE_WARPS  # of a row
    return [
        Launch(
            "attention_combine",
            cdiv(rows, COMBINE_WARPS // warps),
            32 * COMBINE_WARPS,
            ("partial_o", "partial_lse", "o", "lse", w.tokens[0], w.heads, parts),
            template=(_result_type(w), w.d, warps),
            source=SOURCE,
        )
    ]
