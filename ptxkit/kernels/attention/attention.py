"""attention: softmax(q k^T / sqrt(d)) v of each head of each sequence, forward, in ten steps."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, cdiv, uniform, variant
from ptxkit.kernels.attention import decode, decode_choice
from ptxkit.kernels.attention.balance import alone, section, steps_of_queries, strided_remark
from ptxkit.kernels.attention.sizes import (
    LOG2E,
    QUERIES,
    UNFUSED,
    AttentionSizes,
    fits,
    for_each_part,
    hide,
    key_blocks,
    query_blocks,
)
from ptxkit.kernels.attention.tiles import (
    CONTINUOUS,
    CONTINUOUS_TILE,
    PERSISTENT_TILE,
    AttentionTile,
    ContinuousTile,
    alone_on_an_sm,
    continuous,
    late,
    preferred,
    preferred_continuous,
    sequence_map,
    slower_continuous,
    slower_dynamic,
    swept,
    usable,
)
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.products import converted


class Attention(AttentionSizes):
    """Attention of several heads over a batch of sequences: o = softmax(q k^T / sqrt(d)) v, and the log-sum-exp of the scores.

    q and o have the shape (tokens, heads, d), k and v (tokens, kv_heads, d), lse (heads, tokens); the tokens of the sequences
    follow each other. With ``causal``, query i of n sees the keys up to i + m - n of m: the last query sees all keys. Queries
    without a visible key have results 0 and lse -inf.
    """

    source = "attention.cu"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        q_starts, k_starts = self.starts()
        return {
            **self.query_and_key(rng),
            "value": uniform(rng, (self.tokens[1], self.shared_heads, self.d), self.dtype),
            "q_starts": q_starts,
            "k_starts": k_starts,
            "next_tile": np.zeros(1, np.int32),  # of step 6, which leaves it 0
        }

    def reference(
        self, query: Any, key: Any, value: Any, q_starts: Any, k_starts: Any, next_tile: Any = None
    ) -> dict[str, Any]:
        o, lse = forward(self, query, key, value)
        return {"o": o, "lse": lse}

    def outputs(self) -> Mapping[str, Any]:
        queries = self.tokens[0]
        return {"o": ((queries, self.heads, self.d), self.dtype), "lse": ((self.heads, queries), "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.heads, self.tokens[0], self.k)
        return {
            "scores": (shape, "f32"),
            "probabilities": (shape, self.dtype),
            "counter": (1, "s32"),
            **decode.partials(self),
        }

    def work(self) -> Work:
        queries, keys = self.tokens
        size = dtype_of(self.dtype).itemsize
        elements = (2 * queries * self.heads + 2 * keys * self.shared_heads) * self.d
        return Work(
            flops=4 * self.heads * self.pairs() * self.d,
            bytes=elements * size + 4 * self.heads * queries,
            unit=self.dtype,
            sum_length=max(self.k, self.d),
        )

    @property
    def tolerance(self) -> Mapping[str, Tolerance]:  # type: ignore[override]  # depends on the type here
        """That of o: probabilities are rounded to the type of v before the second product, which is as large an error as that
        of rounding o, relative to the results around an element."""
        rounding = 2.0**-8 if self.dtype == "bf16" else 2.0**-11
        return {"o": Tolerance(relative=rounding, typical=8 * rounding, absolute=1e-30)}

    @property
    def pointers(self) -> tuple[object, ...]:
        """The arguments query, key, value, o, lse, q_starts, k_starts, tokens, heads, kv_heads."""
        arrays = ("query", "key", "value", "o", "lse", "q_starts", "k_starts")
        return (*arrays, self.tokens[0], self.heads, self.shared_heads)

    @variant(requires=("sm_80",))
    def unfused(self) -> list[Launch]:
        """Three launches: scores, softmax, product with the values; scores and probabilities go through device memory."""
        kind, (queries, _) = f"ptxkit::{self.dtype}", self.tokens
        starts, heads = ("q_starts", "k_starts", queries), (self.heads, self.shared_heads)
        tiles, tile_bytes = cdiv(self.q, UNFUSED), UNFUSED * self.d * 2
        scale = np.float32(1 / math.sqrt(self.d))
        return [
            Launch(
                "attention_scores",
                (tiles * cdiv(self.k, UNFUSED), self.heads, self.batch),
                128,
                ("query", "key", "scores", *starts, *heads, self.k, scale),
                shared=2 * tile_bytes,
                template=(kind, self.d, self.causal),
            ),
            Launch(
                "attention_softmax",
                (cdiv(self.q, 8), self.heads, self.batch),
                256,
                ("scores", "probabilities", "lse", *starts, self.heads, self.k),
                template=(kind, 256),
            ),
            Launch(
                "attention_values",
                (tiles, self.heads, self.batch),
                128,
                ("probabilities", "value", "o", *starts, *heads, self.k),
                shared=tile_bytes,
                template=(kind, self.d),
            ),
        ]

    @variant(
        requires=("sm_80",),
        tile={
            "BM": [64, 128],  # queries of a CTA
            "BN": [64, 32, 128],  # keys of a tile
        },
        constraint=lambda w, t: fits(w, 2 * w.d * (t.BM + 4 * t.BN)),
        prefer=lambda w: [{"BM": 64, "BN": 32}] if w.d > 128 else [],  # more scores would not fit in the registers
    )
    def step1_tiled(self, t: Tile) -> list[Launch]:
        """One launch: scores of a tile, softmax and the product with the values stay on the SM; mma.sync, cp.async."""
        return [
            Launch(
                "attention_tiled",
                (cdiv(self.q, t.BM), self.heads, self.batch),
                2 * t.BM,
                (*self.pointers, np.float32(LOG2E / math.sqrt(self.d))),
                shared=2 * self.d * (t.BM + 4 * t.BN),
                template=(f"ptxkit::{self.dtype}", self.d, t.BM, t.BN, self.causal),
            )
        ]

    def specialized(
        self,
        tile: AttentionTile | ContinuousTile,
        kernel: str = "attention_specialized",
        *,
        persistent: bool = False,
        counter: str = "next_tile",
    ) -> list[Launch]:
        """A launch of ``attention_specialized``, or of a kernel that takes tiles from a counter."""
        dynamic = kernel != "attention_specialized"
        tiles = cdiv(self.q, tile.queries)
        works = tiles * self.heads * self.batch
        maps = (
            TensorMap("query", box=(tile.queries, 1, 64), swizzle="128B"),
            TensorMap("key", box=(tile.BN, 1, 64), swizzle="128B"),
            sequence_map("value", self.tokens[1], self.shared_heads, self.d, 2, tile.BN),
        )
        return [
            Launch(
                kernel,
                min(works, self.device.sms) if persistent else works,
                128 * (tile.CONSUMERS + 1),
                (
                    *(*maps, *self.pointers[3:8], self.tokens[1], *self.pointers[8:], tiles, self.batch),
                    np.float32(LOG2E / math.sqrt(self.d)),
                    *((counter, section(self), alone(self)) if dynamic else ()),
                ),
                shared=tile.shared_bytes,
                template=(f"ptxkit::{self.dtype}", tile, self.causal),
                source=CONTINUOUS if isinstance(tile, ContinuousTile) else None,
            )
        ]

    def tile(self, *, overlap: bool = False, ping_pong: bool = False) -> AttentionTile:
        """The tile of the steps that are not swept."""
        return AttentionTile(self.d, 2, 64 if self.d == 256 else 128, 2, overlap, ping_pong, 240)

    @variant(requires=("sm_90a",))
    def step2_wgmma(self) -> list[Launch]:
        """A producer warp loads tiles by TMA; two warpgroups multiply by wgmma, exponentials stay in registers."""
        return self.specialized(self.tile())

    @variant(requires=("sm_90a",))
    def step3_overlap(self) -> list[Launch]:
        """The scores of the next tile are computed during the product with the values."""
        return self.specialized(self.tile(overlap=True))

    @variant(requires=("sm_90a",))
    def step4_ping_pong(self) -> list[Launch]:
        """One warpgroup computes exponentials while the other one multiplies."""
        return self.specialized(self.tile(overlap=True, ping_pong=True))

    @variant(
        requires=("sm_90a",),
        tile=PERSISTENT_TILE,
        constraint=lambda w, t: usable(w, swept(w, t)),
        prefer=preferred,
        slower=lambda w: strided_remark(w, steps_of_queries(w, 128, 128)),
    )
    def step5_persistent(self, t: Tile) -> list[Launch]:
        """One CTA per SM takes tile after tile; with a causal mask the longest rows first."""
        return self.specialized(swept(self, t), persistent=True)

    @variant(
        requires=("sm_90a",),
        tile=PERSISTENT_TILE,
        constraint=lambda w, t: usable(w, swept(w, t), beside=16),
        prefer=preferred,
        slower=slower_dynamic,
    )
    def step6_dynamic(self, t: Tile) -> list[Launch]:
        """Each CTA takes the next tile from a counter when it is free, the longest of several heads first."""
        return self.specialized(swept(self, t), "attention_dynamic", persistent=True)

    @variant(
        requires=("sm_90a",),
        tile={"PING_PONG": [0, 1]},  # warpgroups issue products one after the other
        constraint=lambda w, t: usable(w, late(w, t), beside=16) if w.d == 256 else "step 7 is for these heads",
        slower=alone_on_an_sm,
    )
    def late_wait(self, t: Tile) -> list[Launch]:
        """Step 6 for heads of 256 elements, and the product with values is waited for after the maxima."""
        return self.specialized(late(self, t), "attention_dynamic", persistent=True)

    @variant(
        requires=("sm_90a",),
        tile=CONTINUOUS_TILE,
        constraint=lambda w, t: usable(w, continuous(w, t), beside=16),
        prefer=preferred_continuous,
        slower=slower_dynamic,
    )
    def private_counter(self, t: Tile) -> list[Launch]:
        """Step 7 after a launch that sets a counter of its own to 0: calls may run at the same time, on several streams."""
        clear = Launch("attention_clear", 1, 1, ("counter",), source=CONTINUOUS, template=("unsigned",))
        return [clear, *self.specialized(continuous(self, t), "attention_continuous", persistent=True, counter="counter")]

    @variant(
        requires=("sm_90a",),
        tile=CONTINUOUS_TILE,
        constraint=lambda w, t: usable(w, continuous(w, t), beside=16),
        prefer=preferred_continuous,
        slower=slower_continuous,
    )
    def step7_continuous(self, t: Tile) -> list[Launch]:
        """The first scores of the next queries are computed during the last product of these, whose results are stored then."""
        return self.specialized(continuous(self, t), "attention_continuous", persistent=True)

    @variant(
        requires=("sm_80",),
        tile=decode.TILE,
        constraint=decode.usable,
        prefer=lambda w: decode_choice.preferred(w, clusters=False),
        slower=lambda w: decode_choice.slower_mma(w, tma=False),
    )
    def step8_decode(self, t: Tile) -> list[Launch]:
        """For few queries: keys divided among CTAs, tiles with queries of all heads that share keys; mma.sync, cp.async."""
        return decode.launches(self, t, "attention_decode", tma=False)

    @variant(
        requires=("sm_90",),
        tile=decode.CLUSTER_TILE,
        constraint=decode.usable,
        prefer=lambda w: decode_choice.preferred(w, clusters=True),
        slower=lambda w: decode_choice.slower_mma(w, tma=True),
    )
    def step9_decode_tma(self, t: Tile) -> list[Launch]:
        """Step 8 with TMA; the CTAs of a cluster combine their results, without a second launch."""
        return decode.launches(self, t, "attention_decode_tma", tma=True)

    @variant(
        requires=("sm_90a",),
        tile=decode.WGMMA_TILE,
        constraint=decode.usable_by_wgmma,
        prefer=decode_choice.preferred_wgmma,
        slower=decode_choice.slower_wgmma,
    )
    def step10_decode_wgmma(self, t: Tile) -> list[Launch]:
        """Step 8 with the products of step 4, for tiles of more than 16 rows."""
        return decode.wgmma_launches(self, t)


def forward(w: AttentionSizes, query: Any, key: Any, value: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """o and lse of all heads and sequences, in the type ``w.wide``."""
    o, lse = np.zeros(query.shape, w.wide), np.full((w.heads, len(query)), -np.inf)
    query, key, value = (converted(x, w.wide) for x in (query, key, value))

    def attend_one(sequence: int, head: int, part: slice) -> None:
        queries, keys = w.rows(sequence)
        shared = head // (w.heads // w.shared_heads)
        q, k, v = query[queries, head], key[keys, shared], value[keys, shared]
        rows = slice(queries.start + part.start, queries.start + part.stop)
        o[rows, head], lse[head, rows] = attend(q, k, v, w.causal, part)

    collections.deque(for_each_part(w, w.heads, attend_one), maxlen=0)
    return o, lse


def attend(
    q: np.ndarray[Any, Any],
    k: np.ndarray[Any, Any],
    v: np.ndarray[Any, Any],
    causal: bool,
    part: slice | None = None,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The results (n, d) and log-sum-exps (n) of the queries (n, d) of one head of one sequence, whose keys are (m, d).

    Args:
        part: only these queries.
    """
    part = part or slice(0, len(q))
    o, lse = np.zeros_like(q[part]), np.full(part.stop - part.start, -np.inf)
    scale = q.dtype.type(1 / math.sqrt(q.shape[1]))
    for rows, keys in query_blocks(len(q), len(k), causal, QUERIES, part):
        here = slice(rows.start - part.start, rows.stop - part.start)
        total = np.zeros_like(o[here])
        highest, sums = np.full((len(total), 1), -np.inf, q.dtype), np.zeros((len(total), 1), q.dtype)
        for block in key_blocks(keys):
            scores = q[rows] @ k[block].T
            scores *= scale
            if causal:
                hide(scores, rows, len(k) - len(q) - block.start, -np.inf)
            before, highest = highest, np.maximum(highest, scores.max(1, keepdims=True))
            subtracted = np.where(np.isneginf(highest), 0, highest)
            scores -= subtracted
            exponentials = np.exp(scores, out=scores)
            factor = np.exp(before - subtracted)  # of what was added with a lower maximum
            sums = sums * factor + exponentials.sum(1, keepdims=True)
            total *= factor
            total += exponentials @ v[block]
        seen = sums[:, 0] != 0
        o[here][seen] = total[seen] / sums[seen]
        lse[here][seen] = (highest + np.log(np.where(sums, sums, 1)))[seen, 0]
    return o, lse
