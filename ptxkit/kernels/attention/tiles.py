"""Tiles of the steps of attention by TMA and wgmma: their parameters, and which are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ptxkit import TensorMap, Tile, cdiv
from ptxkit.kernels.attention.balance import busiest, steps_of_queries
from ptxkit.kernels.attention.sizes import AttentionSizes, fits
from ptxkit.kernels.template import TemplateStruct


def sequence_map(name: str, tokens: int, heads: int, d: int, size: int, rows: int, span: int = 128) -> TensorMap:
    """A map of an array (tokens, heads, d), whose boxes have zeros beyond the end of the sequence that they are of.

    TMA writes zeros for elements outside of the array only, and the next sequence is inside. This map has two dimensions of
    tokens: coordinate e of the first one moves the array to where its last row, number ``tokens`` - 1 of the second dimension,
    is row e - 1 in memory. The kernel gives the end of the sequence as e, and counts rows from there
    (``load_rows_of_sequence`` in cu/ptxkit/attention/wgmma_tiles.cuh). Only rows of the array are read.

    Args:
        size: bytes of an element. rows: of a box. span: bytes of a row of a box, and of its swizzle.
    """
    row, most = heads * d * size, max(1, tokens)
    return TensorMap(
        name,
        box=(1, rows, 1, span // size),
        swizzle=f"{span}B",
        shape=(most + 1, most, heads, d),
        strides=(row, row, d * size, size),
        offset=-most * row,
    )


def rows_map(name: str, tokens: int, heads: int, d: int, size: int, rows: int) -> TensorMap:
    """A map of the same array whose boxes hold rows of the next sequence beyond the end of one."""
    return TensorMap(name, box=(rows, 1, 128 // size), swizzle="128B")


@dataclass(frozen=True)
class AttentionTile(TemplateStruct):
    """``AttentionTile`` of cu/kernels/attention.cu."""

    D: int
    CONSUMERS: int
    BN: int
    STAGES: int
    OVERLAP: bool
    PING_PONG: bool
    REGISTERS: int

    @property
    def queries(self) -> int:
        """Queries of a CTA."""
        return 64 * self.CONSUMERS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: the queries, the stages of keys and values, mbarriers."""
        return 2 * self.D * (self.queries + 2 * self.STAGES * self.BN) + 8 * (2 + 4 * self.STAGES)


@dataclass(frozen=True)
class LateAttentionTile(AttentionTile):
    """``LateAttentionTile`` of cu/ptxkit/attention/consumer.cuh: AttentionTile, and the wait for values after the maxima."""


@dataclass(frozen=True)
class ContinuousTile(TemplateStruct):
    """``ContinuousTile`` of cu/kernels/attention_continuous.cu."""

    D: int
    CONSUMERS: int
    BN: int
    STAGES: int
    PING_PONG: bool
    REGISTERS: int
    RESCALE_ABOVE: int

    @property
    def queries(self) -> int:
        """Queries of a CTA."""
        return 64 * self.CONSUMERS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: two tiles of queries, the stages of keys and values, mbarriers."""
        return 4 * self.D * (self.queries + self.STAGES * self.BN) + 8 * (4 + 4 * self.STAGES)


def preferred(w: AttentionSizes) -> Iterator[Mapping[str, Any]]:
    """Tiles of steps 5 and 6, the one to take first, as measured on an H200 (docs/attention.md).

    Of short prompts, where no SM has a second tile of 128 queries: 128 keys and two stages, with which the shared memory of an
    SM has room for a CTA of the next launch (heads of 64 elements). With still fewer keys, and where no SM has a second tile of
    64 queries either, tiles of one warpgroup: twice as many SMs compute, in shorter steps.

    Otherwise the widest tile of keys that fits in the registers, with as many stages as fit in shared memory: a wide tile has
    fewer barriers and maxima for each score. Warpgroups do not alternate for heads of 256 elements.
    """
    if w.d in MEASURED_D and w.k <= SHORT_KEYS and tiles_of_queries(w, 128) <= w.device.sms:
        if tiles_of_queries(w, 64) <= w.device.sms and w.k <= ONE_WARPGROUP_KEYS:
            yield {"CONSUMERS": 1, "BN": 64, "STAGES": 2, "PING_PONG": 0}
        yield {"CONSUMERS": 2, "BN": 128, "STAGES": 2, "PING_PONG": 1}
    for keys in (192, 128, 64):
        for stages in (3, 2):
            yield {"CONSUMERS": 2, "BN": keys, "STAGES": stages, "PING_PONG": 0 if w.d == 256 else 1}


def tiles_of_queries(w: AttentionSizes, queries: int) -> int:
    """Tiles of ``queries`` of all heads and sequences, if these have as many queries as the longest one."""
    return cdiv(w.q, queries) * w.heads * w.batch


PERSISTENT_TILE = {
    "CONSUMERS": [2, 3, 1],  # warpgroups of 64 queries each
    "BN": [128, 64, 192],  # keys of a tile
    "STAGES": [2, 3],  # tiles of keys, and of values, in shared memory
    "PING_PONG": [1, 0],  # warpgroups issue products one after the other
}
CONTINUOUS = "attention_continuous.cu"  # the source of step 7
CONTINUOUS_TILE = {
    **PERSISTENT_TILE,
    "BN": [128, 64, 144, 160, 176, 192],
    "RESCALE_ABOVE": [8, 0],  # powers of two by which exponentials exceed 1 before results are multiplied by a factor
}
OTHER_KEYS = 16  # a tile of keys takes as long as the products of its keys and of this many more (docs/attention.md)
THREE_WARPGROUPS = 0.93
"""Time for a pair of a query and a key without a mask, of heads of 64 elements, in tiles of 192 queries and 64 keys,
relative to that in tiles of 128 queries and keys."""
MEASURED_D = (64, 128)  # sizes of heads for which steps 6 and 7, and step 5 with tiles of one warpgroup, were timed
SHORT_KEYS = 600  # of a sequence, the most of the prompts that were timed with few stages
ONE_WARPGROUP_KEYS = 384  # of a sequence; with as many, tiles of 64 queries took as long as those of 128 (docs/attention.md)


WIDTHS = (128, 160, 192)
"""Keys of a tile of step 7 with heads of 128 elements."""
MUCH_SHORTER = 0.9
"""Predicted time of one of the :data:`WIDTHS`, relative to that of 128 keys, with which step 7 was faster than step 5 although
no SM has a second tile of queries."""


def predicted(w: AttentionSizes, keys: int) -> int:
    """A number in proportion to the predicted time with tiles of 128 queries and ``keys``."""
    return int(steps_of_queries(w, 128, keys).sum()) * (keys + OTHER_KEYS)


def preferred_continuous(w: AttentionSizes) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 7, as measured on an H200 (docs/attention.md).

    Of heads of 64 elements, warpgroups do not alternate. Otherwise the tile of keys with the smallest predicted time: wide
    tiles have fewer steps, but more keys beyond the mask.
    """

    def work(queries: int, keys: int) -> float:
        return busiest(steps_of_queries(w, queries, keys), w.device.sms) * queries * keys

    small = w.d == 64
    if small and not w.causal and THREE_WARPGROUPS * work(192, 64) < work(128, 128):
        yield {"CONSUMERS": 3, "BN": 64, "STAGES": 3, "PING_PONG": 0, "RESCALE_ABOVE": 8}
    widths = (128,) if small else sorted(WIDTHS, key=partial(predicted, w))  # tiles of 144 keys were nowhere the fastest
    for keys in (*widths, 64):
        for stages in (3, 2):
            yield {"CONSUMERS": 2, "BN": keys, "STAGES": stages, "PING_PONG": 0 if small else 1, "RESCALE_ABOVE": 8}


def slower_dynamic(w: AttentionSizes) -> str | None:
    """``slower`` of steps 6 and 7: where they were not timed, or no SM has more than one tile, which they then begin later."""
    if w.d not in MEASURED_D:
        return f"no time of it was measured for d={w.d} (docs/attention.md)"
    return alone_on_an_sm(w)


def slower_continuous(w: AttentionSizes) -> str | None:
    """``slower`` of step 7: that of step 6, unless the keys fit much better in a tile that only step 7 has."""
    if w.d == 128 and min(predicted(w, keys) for keys in WIDTHS) < MUCH_SHORTER * predicted(w, 128):
        return None
    return slower_dynamic(w)


def alone_on_an_sm(w: AttentionSizes) -> str | None:
    """``slower`` of steps in which tiles of queries follow each other: None unless no SM has more than one."""
    if (tiles := tiles_of_queries(w, 128)) <= w.device.sms:
        return f"{w.device.sms} SMs have {tiles} tiles of queries, so that none takes another one"
    return None


def swept(w: AttentionSizes, t: Tile) -> AttentionTile:
    """The tile of steps 5 and 6."""
    registers = {1: 0, 2: 240, 3: 160}[t.CONSUMERS]
    return AttentionTile(w.d, t.CONSUMERS, t.BN, t.STAGES, True, bool(t.PING_PONG), registers)


def late(w: AttentionSizes, t: Tile) -> LateAttentionTile:
    """The tile of ``late_wait``."""
    return LateAttentionTile(w.d, 2, 64, 2, True, bool(t.PING_PONG), 240)


def continuous(w: AttentionSizes, t: Tile) -> ContinuousTile:
    """The tile of step 7."""
    found = swept(w, t)
    return ContinuousTile(w.d, t.CONSUMERS, t.BN, t.STAGES, found.PING_PONG, found.REGISTERS, t.RESCALE_ABOVE)


def usable(w: AttentionSizes, tile: AttentionTile | ContinuousTile, beside: int = 0) -> bool | str:
    """The constraint of steps 5 to 7, with shared memory ``beside`` that of the tile."""
    if tile.PING_PONG and tile.CONSUMERS != 2:
        return "two warpgroups alternate; other numbers cannot"
    registers = tile.REGISTERS or 255
    if (needed := tile.D // 2 + 3 * tile.BN // 4 + 40) > registers:
        rows = f"two rows of {tile.BN} scores and {tile.D} results"
        return f"a thread needs about {needed} registers for {rows}, and has {registers}"
    return fits(w, tile.shared_bytes + beside)
