"""attention_scores: softmax(q k^T / sqrt(d) + mask) of each head of each sequence, as a matrix, in four steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.attention.sizes import (
    HEAD_SIZES,
    LOG2E,
    UNFUSED,
    causal_pairs,
    fits,
    for_each_head,
    hide,
    query_blocks,
)
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload.inputs import dtype_of

MASKS = {
    "none": "NO_MASK",
    "array": "ARRAY_MASK",
    "causal": "CAUSAL_MASK",
}  # ScoresMask of cu/kernels/attention_scores.cu
NONE = np.uint64(0)  # a null pointer
TWO_PASSES_TILE = {
    "CONSUMERS": [2, 3, 1],  # warpgroups of 64 queries each
    "BN": [128, 64, 192, 256],  # keys of a tile
    "STAGES": [2, 3, 4],  # tiles of keys in shared memory
}
LARGE = 1 << 24  # probabilities of which the reference is computed in float32
BOX_ROWS, BOX_COLUMNS = 16, 64  # probabilities that TMA stores at a time


@dataclass(frozen=True)
class ScoresTile(TemplateStruct):
    """``ScoresTile`` of cu/kernels/attention_scores.cu."""

    D: int
    CONSUMERS: int
    BN: int
    STAGES: int
    REGISTERS: int
    MASK_TILES: bool = False

    @property
    def queries(self) -> int:
        """Queries of a CTA."""
        return 64 * self.CONSUMERS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: queries, stages of keys and masks, two boxes of results for each warp, mbarriers."""
        masks = self.STAGES * self.queries * self.BN if self.MASK_TILES else 0
        tiles = 2 * self.D * (self.queries + self.STAGES * self.BN) + 2 * masks
        return tiles + 8 * self.CONSUMERS * box_bytes(self.BN) + 8 * (2 + 2 * self.STAGES)


@dataclass(frozen=True)
class ScoresClusterTile(TemplateStruct):
    """``ScoresClusterTile`` of cu/kernels/attention_scores.cu."""

    D: int
    CTAS: int
    BN: int
    STAGES: int

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: keys, queries and results of two warpgroups, records of two tiles, mbarriers."""
        tiles = 2 * self.D * (self.BN + 2 * self.STAGES * 64)
        return tiles + 8 * box_bytes(self.BN) + 4 * 512 * self.CTAS + 8 * (1 + 2 * (2 * self.STAGES + 2))


def box_bytes(columns: int) -> int:
    """Shared memory of a warp's 16 rows of results."""
    return cdiv(columns, BOX_COLUMNS) * BOX_ROWS * 128


def holding(w: AttentionScores) -> Iterator[Mapping[str, Any]]:
    """The smallest cluster that holds a row, and in it the smallest tile of keys."""
    for ctas in (1, 2, 4, 8):
        for keys in (64, 128, 192, 256):
            for stages in (2, 1):
                yield {"CTAS": ctas, "BN": keys, "STAGES": stages}


def slower_with_array(w: AttentionScores) -> str | None:
    """``slower`` of step 2: by 1.18 and 1.25 times on an H200, with 2048 and 4096 keys."""
    return "with an array of masks, which both passes read, others took less time on an H200" if w.mask == "array" else None


def slower_with_few_tiles(w: AttentionScores) -> str | None:
    """``slower`` of step 4, which took half as long as the others on an H200 with as many tiles as SMs or more."""
    if (tiles := cdiv(w.q, 128) * w.heads * w.batch) < w.device.sms:
        return f"there are {tiles} tiles of queries for {w.device.sms} SMs, for which no time of it was compared"
    return None


def slower_without_array(w: AttentionScores) -> str | None:
    """``slower`` of step 3."""
    return None if w.mask == "array" else "reading a mask once is all that it saves, and there is no array of masks"


class AttentionScores(Workload):
    """The probabilities of attention: p = softmax(q k^T / sqrt(d) + mask), a matrix (q, k) for each head of each sequence.

    query has the shape (batch, q, heads, d), key (batch, k, kv_heads, d), p (batch, heads, q, k). ``mask`` is

    - ``none``,
    - ``causal``: query i of q sees the keys up to i + k - q, so that the last query sees all keys,
    - ``array``: an additive mask in the type of the inputs, in which minus infinity hides a key. Its shape
      (1 or batch, 1 or heads, q, k) follows from ``mask_shape``.

    Rows without a visible key are zero.
    """

    source = "attention_scores.cu"
    batch: int = 1
    heads: int = 16
    q: int = 4096  # queries of a sequence
    k: int = 4096  # keys of a sequence
    d: int = 128  # elements of a head
    mask: Literal["none", "array", "causal"] = "none"
    mask_shape: Literal["shared", "batch", "heads", "full"] = (
        "shared"  # of an array: one mask, or one for each of these
    )
    masked: float = 0.25  # fraction of the random mask that is minus infinity
    kv_heads: int = field(default=0, kw_only=True)  # heads of key; 0: as many as of query
    dtype: Literal["bf16", "f16"] = "bf16"
    emulator_sizes = {"batch": 1, "heads": 2, "q": 192, "k": 192, "d": 64}
    benchmarks = (
        {"batch": 4, "q": 1024, "k": 1024},
        {"batch": 2, "q": 2048, "k": 2048},
        {},
        {"batch": 2, "q": 2048, "k": 2048, "mask": "array"},
        {"mask": "array"},
        {"batch": 2, "q": 2048, "k": 2048, "mask": "causal"},
        {"mask": "causal"},
    )

    def constraints(self) -> Iterable[str]:
        if self.d not in HEAD_SIZES:
            yield f"d must be one of {', '.join(map(str, HEAD_SIZES))}"
        if self.kv_heads < 0 or self.heads % self.shared_heads:
            yield f"kv_heads must divide the {self.heads} heads, or be 0 for as many, not {self.kv_heads}"
        if not 0 <= self.masked <= 1:
            yield f"masked must be between 0 and 1, not {self.masked}"
        if self.mask_shape != "shared" and self.mask != "array":
            yield f"mask_shape={self.mask_shape} is for mask=array"
        most = self.device.target.limits.grid[1]
        if self.batch > most or self.heads > most:
            yield f"batch and heads must be at most {most}, the limit of a grid's y and z"
        if max(self.q, self.k) * self.heads * self.d >= 2**39 or self.batch * self.heads * self.q * self.k >= 2**38:
            yield "the arrays are too large"
        if max(self.q, self.k) > 2**24 or cdiv(self.q, 64) * cdiv(self.k, 64) * self.heads * self.batch >= 2**31:
            yield "there are too many tiles"

    @property
    def shared_heads(self) -> int:
        """Heads of key."""
        return self.kv_heads or self.heads

    @property
    def masks(self) -> tuple[int, int]:
        """The first two dimensions of an array that is added: 1, or as many as there are sequences, and heads."""
        return (
            self.batch if self.mask_shape in ("batch", "full") else 1,
            self.heads if self.mask_shape in ("heads", "full") else 1,
        )

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        def with_variance_1(*shape: int) -> np.ndarray[Any, Any]:  # so that the scores have variance 1, too
            return (math.sqrt(3) * uniform(rng, shape)).astype(dtype_of(self.dtype))

        given = {
            "query": with_variance_1(self.batch, self.q, self.heads, self.d),
            "key": with_variance_1(self.batch, self.k, self.shared_heads, self.d),
        }
        if self.mask == "array":
            given["added"] = uniform(rng, (*self.masks, self.q, self.k), self.dtype)
            given["added"][rng.random(given["added"].shape, np.float32) < self.masked] = -np.inf
        return given

    def reference(self, query: Any, key: Any, added: Any = None) -> dict[str, Any]:
        """The reference in float64; in float32, whose error is far below the tolerance, for large sizes."""
        shape = (self.batch, self.heads, self.q, self.k)
        wide = np.float32 if math.prod(shape) >= LARGE else np.float64
        p = np.zeros(shape, wide)

        def compute(i: int, head: int) -> None:
            q = query[i, :, head].astype(wide)
            k = key[i, :, head // (self.heads // self.shared_heads)].astype(wide)
            for rows, keys in query_blocks(self.q, self.k, self.mask == "causal"):
                if not keys:
                    continue
                scores = q[rows] @ k[:keys].T
                scores *= wide(1 / math.sqrt(self.d))
                if self.mask == "causal":
                    hide(scores, rows, self.k - self.q, -np.inf)
                if added is not None:
                    scores += added[min(i, added.shape[0] - 1), min(head, added.shape[1] - 1), rows].astype(wide)
                highest = scores.max(1, keepdims=True)
                scores -= np.where(np.isneginf(highest), 0, highest)
                np.exp(scores, out=scores)
                sums = scores.sum(1, keepdims=True)
                np.divide(scores, np.where(sums == 0, 1, sums), out=p[i, head, rows, :keys])

        for_each_head(self.batch, self.heads, compute)
        return {"p": p}

    def outputs(self) -> Mapping[str, Any]:
        return {"p": ((self.batch, self.heads, self.q, self.k), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        return {"scores": ((self.batch, self.heads, self.q, self.k), "f32")}

    def pairs(self) -> int:
        """Pairs of a query and a key of one head of one sequence whose score is needed."""
        return causal_pairs(self.q, self.k) if self.mask == "causal" else self.q * self.k

    def work(self) -> Work:
        """The product, and one pass over each array; exponentials and sums are not counted."""
        heads, size = self.batch * self.heads, dtype_of(self.dtype).itemsize
        elements = self.batch * (self.q * self.heads + self.k * self.shared_heads) * self.d + heads * self.q * self.k
        if self.mask == "array":
            elements += math.prod(self.masks) * self.q * self.k
        return Work(
            flops=2 * heads * self.pairs() * self.d,
            bytes=elements * size,
            unit=self.dtype,
            sum_length=max(self.k, self.d),
        )

    @property
    def tolerance(self) -> Tolerance:  # type: ignore[override]  # depends on the type here
        """One rounding to the type of p, and the errors of the exponent.

        An error e of a scaled score is a relative error e of its probability. Tensor cores compute a sum of d products with an
        error of about (8 sqrt(d) + d/8) 2^-24 times its magnitude (docs/verification.md): 1e-5 times |score| < 8 for d = 256;
        scaling, subtraction and the approximate exponential add a few units of 2^-23 |score|. All are below 2^-13. The same
        holds for the sum of the row, whose terms have these errors. Probabilities below the smallest normal number of f16 are
        rounded to multiples of 2^-24.
        """
        rounding, smallest = (2.0**-8, 2.0**-126) if self.dtype == "bf16" else (2.0**-11, 2.0**-25)
        return Tolerance(relative=rounding + 2 * 2.0**-13, absolute=smallest)

    @property
    def vector(self) -> int:
        """Elements of a row of keys that can be accessed together: VECTOR of the kernels."""
        return 8 if self.k % 8 == 0 else 2 if self.k % 2 == 0 else 1

    @property
    def mask_arguments(self) -> tuple[object, ...]:
        """The mask, and the elements from one sequence, and from one head, to the next."""
        if self.mask != "array":
            return (NONE, 0, 0)
        sequences, heads = self.masks
        one = self.q * self.k
        return ("added", heads * one if sequences > 1 else 0, one if heads > 1 else 0)

    @property
    def sizes_and_heads(self) -> tuple[int, ...]:
        """The arguments queries, keys, heads, kv_heads."""
        return (self.q, self.k, self.heads, self.shared_heads)

    @property
    def exponent_scale(self) -> np.float32:
        """What scores are multiplied by, so that exponentials are powers of two."""
        return np.float32(LOG2E / math.sqrt(self.d))

    @variant(requires=("sm_80",))
    def unfused(self) -> list[Launch]:
        """Three launches: scaled product, mask (without one, two launches), softmax; scores go through device memory in f32."""
        kind, rows = f"ptxkit::{self.dtype}", self.batch * self.heads * self.q
        product = Launch(
            "scores_product",
            (cdiv(self.q, UNFUSED) * cdiv(self.k, UNFUSED), self.heads, self.batch),
            128,
            ("query", "key", "scores", *self.sizes_and_heads, np.float32(1 / math.sqrt(self.d))),
            shared=2 * UNFUSED * self.d * 2,
            template=(kind, self.d),
        )
        mask = Launch(
            "scores_mask",
            (self.q, self.heads, self.batch),
            256,
            ("scores", *self.mask_arguments, self.q, self.k),
            template=(kind, MASKS[self.mask], 256),
        )
        softmax = Launch("scores_softmax", cdiv(rows, 8), 256, ("scores", "p", rows, self.k), template=(kind, 256))
        return [product, softmax] if self.mask == "none" else [product, mask, softmax]

    @variant(
        requires=("sm_80",),
        tile={
            "BM": [64, 128],  # queries of a CTA
            "BN": [64, 128, 32],  # keys of a tile
        },
        constraint=lambda w, t: fits(w, 2 * w.d * (t.BM + 2 * t.BN) + t.BM // 16 * box_bytes(t.BN)),
    )
    def step1_two_passes(self, t: Tile) -> list[Launch]:
        """One launch, each score twice: for the maxima and sums of the rows, then for the probabilities; mma.sync, cp.async."""
        return [
            Launch(
                "scores_two_passes",
                (cdiv(self.q, t.BM), self.heads, self.batch),
                2 * t.BM,
                ("query", "key", "p", *self.mask_arguments, *self.sizes_and_heads, self.exponent_scale),
                shared=2 * self.d * (t.BM + 2 * t.BN) + t.BM // 16 * box_bytes(t.BN),
                template=(f"ptxkit::{self.dtype}", self.d, t.BM, t.BN, MASKS[self.mask], self.vector),
            )
        ]

    def maps(self, queries: int, keys: int) -> tuple[TensorMap, TensorMap, TensorMap]:
        """The tensor maps of query, key and p for boxes of these rows; rows of p that TMA cannot store have none."""
        query = TensorMap("query", box=(1, queries, 1, 64), swizzle="128B")
        results = TensorMap("p", box=(1, 1, BOX_ROWS, BOX_COLUMNS), swizzle="128B") if self.vector == 8 else query
        return query, TensorMap("key", box=(1, keys, 1, 64), swizzle="128B"), results

    @variant(
        requires=("sm_90a",),
        tile=TWO_PASSES_TILE,
        constraint=lambda w, t: usable(w, two_passes(w, t)),
        prefer=lambda w: [{"BN": 64}] if w.d == 256 else [],
        slower=slower_with_array,
    )
    def step2_wgmma(self, t: Tile) -> list[Launch]:
        """The same with a producer warp that loads tiles by TMA, warpgroups that multiply by wgmma, and stores by TMA."""
        return self.specialized(two_passes(self, t))

    def specialized(self, tile: ScoresTile) -> list[Launch]:
        """A launch of ``scores_specialized``."""
        tiles = cdiv(self.q, tile.queries)
        works = tiles * self.heads * self.batch
        maps = self.maps(tile.queries, tile.BN)
        mask = TensorMap("added", box=(1, 1, tile.queries, BOX_COLUMNS), swizzle="128B") if tile.MASK_TILES else maps[0]
        return [
            Launch(
                "scores_specialized",
                min(works, self.device.sms),
                128 * (tile.CONSUMERS + 1),
                (
                    *(*maps, mask),
                    "p",
                    *self.mask_arguments,
                    *self.sizes_and_heads,
                    tiles,
                    works,
                    self.exponent_scale,
                ),
                shared=tile.shared_bytes,
                template=(f"ptxkit::{self.dtype}", tile, MASKS[self.mask], self.vector),
            )
        ]

    @variant(
        requires=("sm_90a",),
        tile={
            "CTAS": [1, 2, 4, 8],  # of a cluster, which holds 64 rows
            "BN": [256, 192, 128, 64],  # keys of a CTA
            "STAGES": [1, 2],  # tiles of 64 queries in shared memory, for each of two warpgroups
        },
        constraint=lambda w, t: holds(w, ScoresClusterTile(w.d, t.CTAS, t.BN, t.STAGES)),
        prefer=holding,
        slower=slower_without_array,
    )
    def step3_cluster(self, t: Tile) -> list[Launch]:
        """Each score once: a cluster holds rows in registers, each CTA a range of keys; st.async exchanges maxima and sums."""
        tile = ScoresClusterTile(self.d, t.CTAS, t.BN, t.STAGES)
        tiles, rows = cdiv(self.q, 64), self.heads * self.batch
        # As many clusters as run at the same time, each with at least two tiles of one head, one for each warpgroup.
        clusters = max(1, self.device.sms // tile.CTAS)
        chunk = max(2, cdiv(tiles, max(1, clusters // rows)))
        chunks = cdiv(tiles, chunk)
        return [
            Launch(
                "scores_cluster",
                tile.CTAS * chunks * rows,
                384,
                (
                    *self.maps(64, tile.BN),
                    "p",
                    *self.mask_arguments,
                    *self.sizes_and_heads,
                    chunk,
                    chunks,
                    self.exponent_scale,
                ),
                shared=tile.shared_bytes,
                cluster=tile.CTAS if tile.CTAS > 1 else None,
                template=(f"ptxkit::{self.dtype}", tile, MASKS[self.mask], self.vector),
            )
        ]

    @variant(
        requires=("sm_90a",),
        tile=TWO_PASSES_TILE,
        constraint=lambda w, t: has_mask_tiles(w) if has_mask_tiles(w) is not True else usable(w, with_mask(w, t)),
        prefer=lambda w: [{"BN": 64}] if w.d == 256 else [],
        slower=slower_with_few_tiles,
    )
    def step4_mask_tiles(self, t: Tile) -> list[Launch]:
        """Step 2 for an array of masks, which TMA loads in tiles beside those of the keys."""
        return self.specialized(with_mask(self, t))


def two_passes(w: AttentionScores, t: Tile) -> ScoresTile:
    """The tile of step 2."""
    return ScoresTile(w.d, t.CONSUMERS, t.BN, t.STAGES, {1: 0, 2: 240, 3: 160}[t.CONSUMERS])


def with_mask(w: AttentionScores, t: Tile) -> ScoresTile:
    """The tile of step 4."""
    return replace(two_passes(w, t), MASK_TILES=True)


def has_mask_tiles(w: AttentionScores) -> bool | str:
    """Whether TMA can load the mask."""
    if w.mask != "array":
        return "there is no array of masks"
    return w.vector == 8 or f"TMA requires rows of a multiple of 16 bytes, and those of the mask have {w.k} elements"


def usable(w: AttentionScores, tile: ScoresTile) -> bool | str:
    """The constraint of step 2."""
    registers = tile.REGISTERS or 255
    if (needed := tile.BN // 2 + 60) > registers:
        return f"a thread needs about {needed} registers for two rows of {tile.BN} scores, and has {registers}"
    return fits(w, tile.shared_bytes)


def holds(w: AttentionScores, tile: ScoresClusterTile) -> bool | str:
    """The constraint of step 3."""
    if (most := 8 * (192 if w.d == 256 else 256)) < w.k:
        return f"the registers and shared memory of a cluster hold rows of up to {most} keys, not of {w.k}"
    if w.k > tile.CTAS * tile.BN:
        return f"{tile.CTAS} CTAs hold {tile.CTAS * tile.BN} keys, and a row has {w.k}"
    if tile.CTAS > 1 and w.k <= 32 * tile.CTAS:
        return "half of the CTAs have no key"
    return fits(w, tile.shared_bytes)
