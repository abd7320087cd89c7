"""attention: softmax(q k^T / sqrt(d)) v of each head of each sequence, forward, in five steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload.inputs import dtype_of

HEAD_SIZES = (64, 128, 256)
UNFUSED = 64  # rows and columns of a tile of the unfused kernels
LOG2E = math.log2(math.e)
LARGE = 1 << 33  # pairs of a query and a key times d; float64 products of this size take seconds
ROWS = 1024  # queries of a block of the reference, to limit temporary memory


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


def preferred(w: Attention) -> Iterator[Mapping[str, Any]]:
    """The widest tile of keys that fits in the registers, with as many stages as fit in shared memory.

    A wide tile has fewer barriers and maxima for each score. Of the other numbers of warpgroups none was faster on an H200.
    """
    for keys in (192, 128, 64):
        for stages in (3, 2):
            yield {"CONSUMERS": 2, "BN": keys, "STAGES": stages, "PING_PONG": 1}


class Attention(Workload):
    """Attention of several heads over a batch of sequences: o = softmax(q k^T / sqrt(d)) v, and the log-sum-exp of the scores.

    q and o have the shape (tokens, heads, d), k and v (tokens, kv_heads, d), lse (heads, tokens); the tokens of the sequences
    follow each other. With ``causal``, query i of n sees the keys up to i + m - n of m: the last query sees all keys. Queries
    without a visible key have results 0 and lse -inf.
    """

    source = "attention.cu"
    batch: int = 2
    heads: int = 16
    q: int = 4096  # queries of a sequence
    k: int = 4096  # keys and values of a sequence
    d: int = 128  # elements of a head
    causal: bool = False
    kv_heads: int = field(default=0, kw_only=True)  # heads of k and v; 0: as many as of q
    lengths: Literal["equal", "random"] = "equal"  # random: sequences of 1 to q queries and 1 to k keys
    dtype: Literal["bf16", "f16"] = "bf16"
    emulator_sizes = {"batch": 1, "heads": 2, "q": 192, "k": 192, "d": 64}
    benchmarks = (
        {"batch": 8, "q": 2048, "k": 2048},
        {"batch": 4},
        {"batch": 2, "q": 8192, "k": 8192},
        {"batch": 1, "q": 16384, "k": 16384},
        {"batch": 8, "q": 2048, "k": 2048, "causal": True},
        {"batch": 4, "causal": True},
        {"batch": 2, "q": 8192, "k": 8192, "causal": True},
        {"batch": 1, "q": 16384, "k": 16384, "causal": True},
    )

    def constraints(self) -> Iterable[str]:
        if self.d not in HEAD_SIZES:
            yield f"d must be one of {', '.join(map(str, HEAD_SIZES))}"
        if self.kv_heads < 0 or self.heads % self.shared_heads:
            yield f"kv_heads must divide the {self.heads} heads, or be 0 for as many"
        most = self.device.target.limits.grid[1]
        if self.batch > most or self.heads > most:
            yield f"batch and heads must be at most {most}, the limit of a grid's y and z"
        if max(self.batch * self.q, self.batch * self.k) * self.heads * self.d >= 2**40:
            yield "the arrays are too large"
        if max(self.batch * self.q, self.batch * self.k) >= 2**31:
            yield "there are too many tokens"

    @property
    def shared_heads(self) -> int:
        """Heads of k and v."""
        return self.kv_heads or self.heads

    def starts(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The first query and the first key of each sequence, and the numbers of all, as int32."""
        counts = [np.full(self.batch, self.q), np.full(self.batch, self.k)]
        if self.lengths == "random":
            rng = np.random.default_rng(self.batch)
            counts = [rng.integers(1, most + 1, self.batch) for most in (self.q, self.k)]
            if self.q == self.k:
                counts[1] = counts[0]
        q_starts, k_starts = (np.concatenate([[0], np.cumsum(count)]).astype(np.int32) for count in counts)
        return q_starts, k_starts

    @property
    def tokens(self) -> tuple[int, int]:
        """The numbers of queries and of keys of all sequences."""
        q_starts, k_starts = self.starts()
        return int(q_starts[-1]), int(k_starts[-1])

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        queries, keys = self.tokens
        q_starts, k_starts = self.starts()

        def with_variance_1(*shape: int) -> np.ndarray[Any, Any]:  # so that the scores have variance 1, too
            return (math.sqrt(3) * uniform(rng, shape)).astype(dtype_of(self.dtype))

        return {
            "query": with_variance_1(queries, self.heads, self.d),
            "key": with_variance_1(keys, self.shared_heads, self.d),
            "value": uniform(rng, (keys, self.shared_heads, self.d), self.dtype),
            "q_starts": q_starts,
            "k_starts": k_starts,
        }

    def reference(self, query: Any, key: Any, value: Any, q_starts: Any, k_starts: Any) -> dict[str, Any]:
        """The reference in float64; in float32, whose error is far below the tolerance, for large sizes."""
        wide = np.float32 if self.pairs() * self.d >= LARGE else np.float64
        o = np.zeros(query.shape, wide)
        lse = np.full((self.heads, len(query)), -np.inf)
        group = self.heads // self.shared_heads
        for i in range(self.batch):
            queries, keys = slice(*q_starts[i : i + 2]), slice(*k_starts[i : i + 2])
            for head in range(self.heads):
                q, k, v = query[queries, head], key[keys, head // group], value[keys, head // group]
                o[queries, head], lse[head, queries] = attend(q.astype(wide), k.astype(wide), v.astype(wide), self.causal)
        return {"o": o, "lse": lse}

    def outputs(self) -> Mapping[str, Any]:
        queries = self.tokens[0]
        return {"o": ((queries, self.heads, self.d), self.dtype), "lse": ((self.heads, queries), "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.heads, self.tokens[0], self.k)
        return {"scores": (shape, "f32"), "probabilities": (shape, self.dtype)}

    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head of all sequences."""
        found = 0
        for queries, keys in zip(*(np.diff(starts) for starts in self.starts()), strict=True):
            n, m = int(queries), int(keys)
            found += causal_pairs(n, m) if self.causal else n * m
        return found

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

    def specialized(self, tile: AttentionTile, *, persistent: bool = False) -> list[Launch]:
        """A launch of ``attention_specialized``."""
        tiles = cdiv(self.q, tile.queries)
        works = tiles * self.heads * self.batch
        maps = (
            TensorMap("query", box=(tile.queries, 1, 64), swizzle="128B"),
            TensorMap("key", box=(tile.BN, 1, 64), swizzle="128B"),
            TensorMap("value", box=(tile.BN, 1, 64), swizzle="128B"),
        )
        return [
            Launch(
                "attention_specialized",
                min(works, self.device.sms) if persistent else works,
                128 * (tile.CONSUMERS + 1),
                (*maps, *self.pointers[3:], tiles, self.batch, np.float32(LOG2E / math.sqrt(self.d))),
                shared=tile.shared_bytes,
                template=(f"ptxkit::{self.dtype}", tile, self.causal),
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
        tile={
            "CONSUMERS": [2, 3, 1],  # warpgroups of 64 queries each
            "BN": [128, 64, 192],  # keys of a tile
            "STAGES": [2, 3],  # tiles of keys, and of values, in shared memory
            "PING_PONG": [1, 0],  # warpgroups issue products one after the other
        },
        constraint=lambda w, t: usable(w, swept(w, t)),
        prefer=preferred,
    )
    def step5_persistent(self, t: Tile) -> list[Launch]:
        """One CTA per SM takes tile after tile; with a causal mask the longest rows first."""
        return self.specialized(swept(self, t), persistent=True)


def attend(
    q: np.ndarray[Any, Any], k: np.ndarray[Any, Any], v: np.ndarray[Any, Any], causal: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The results (n, d) and log-sum-exps (n) of the queries (n, d) of one head of one sequence, whose keys are (m, d)."""
    o, lse = np.zeros_like(q), np.full(len(q), -np.inf)
    for first in range(0, len(q), ROWS):
        rows = slice(first, first + ROWS)
        scores = q[rows] @ k.T / q.dtype.type(math.sqrt(q.shape[1]))
        if causal:
            position = np.arange(len(q))[rows, None] + len(k) - len(q)
            scores[np.arange(len(k)) > position] = -np.inf
        highest = scores.max(1, keepdims=True)
        highest[np.isneginf(highest)] = 0
        exponentials = np.exp(scores - highest)
        sums = exponentials.sum(1, keepdims=True)
        seen = sums[:, 0] != 0
        o[rows][seen] = (exponentials @ v)[seen] / sums[seen]
        lse[rows][seen] = (highest + np.log(np.where(sums, sums, 1)))[seen, 0]
    return o, lse


def causal_pairs(n: int, m: int) -> int:
    """Pairs of n queries and the keys, of m, that they see with a causal mask: query i sees i + 1 + m - n, or none."""
    fewest = max(1, 1 + m - n)
    return min(n, m) * (fewest + m) // 2


def swept(w: Attention, t: Tile) -> AttentionTile:
    """The tile of step 5."""
    registers = {1: 0, 2: 240, 3: 160}[t.CONSUMERS]
    return AttentionTile(w.d, t.CONSUMERS, t.BN, t.STAGES, True, bool(t.PING_PONG), registers)


def usable(w: Attention, tile: AttentionTile) -> bool | str:
    """The constraint of step 5."""
    if tile.PING_PONG and tile.CONSUMERS != 2:
        return "two warpgroups alternate; other numbers cannot"
    registers = tile.REGISTERS or 255
    if (needed := tile.D // 2 + 3 * tile.BN // 4 + 40) > registers:
        rows = f"two rows of {tile.BN} scores and {tile.D} results"
        return f"a thread needs about {needed} registers for {rows}, and has {registers}"
    return fits(w, tile.shared_bytes)


def fits(w: Attention, needed: int) -> bool | str:
    """Whether a CTA may have this much shared memory."""
    limit = w.device.target.limits.shared_bytes_per_cta
    return needed <= limit or f"needs {needed} bytes of shared memory, more than {limit}"
