"""attention_backward: the gradients of query, key and value of attention, in several steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, cdiv, uniform, variant
from ptxkit.kernels.attention import sizes
from ptxkit.kernels.attention.attention import forward
from ptxkit.kernels.attention.balance import steps_of_keys, strided_remark
from ptxkit.kernels.attention.sizes import (
    UNFUSED,
    AttentionSizes,
    fits,
    for_each_part,
    hide,
    key_blocks,
    query_blocks,
)
from ptxkit.kernels.attention.tiles import rows_map, sequence_map
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.products import converted

PADDING = 128  # of cu/ptxkit/attention/backward.cuh: rows of a sequence in padded arrays are a multiple
QUERIES = 64  # of a tile of step 1 and 2, and of a CTA that converts dq
KEYS = 128  # of a CTA of the steps with wgmma
THREADS = 256  # of the small kernels
NULL = np.uint64(0)  # no sums of dq


@dataclass(frozen=True)
class AttentionBackwardTile(TemplateStruct):
    """``AttentionBackwardTile`` of cu/kernels/attention_backward.cu."""

    D: int
    STAGES: int
    OVERLAP: bool
    DEFERRED: bool = False

    @property
    def queries(self) -> int:
        """Queries of a tile."""
        return 64 * 128 // self.D

    @property
    def separate(self) -> bool:
        """``SEPARATE``: whether tiles hold no rows of other sequences."""
        return self.D == 128

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: keys, values, the stages of queries and do, dS, dq, lse and delta, mbarriers."""
        stage = 4 * self.D * self.queries + 8 * self.queries
        return 4 * self.D * KEYS + self.STAGES * stage + 4 * KEYS * self.queries + 32768 + 8 * (7 + 4 * self.STAGES)


def deferrable(w: AttentionBackward, t: Tile) -> bool | str:
    """The constraint of step 6."""
    return w.d == 128 or "tiles of 128 queries leave no registers for operands of a product that runs during the next scores"


class AttentionBackward(AttentionSizes):
    """Gradients of attention: dq, dk and dv from do, the gradient of o, and from the inputs and results of the forward kernel.

    query, o, do and dq have the shape (tokens, heads, d), key, value, dk and dv (tokens, kv_heads, d), lse (heads, tokens).
    With ``kv_heads``, dk and dv are sums over the heads that share a head of keys. Masks and sequences are those of
    ``attention``. Queries without a visible key have gradients 0 and add nothing to others.
    """

    source = "attention_backward.cu"
    head_sizes: ClassVar[tuple[int, ...]] = (64, 128)

    def constraints(self) -> Iterable[str]:
        yield from super().constraints()
        if self.padded >= 2**31:
            yield "there are too many tokens"

    @property
    def padded(self) -> int:
        """Rows of an array in which each sequence begins at a multiple of PADDING, and has a multiple of as many rows."""
        return (self.tokens[0] // PADDING + self.batch) * PADDING

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return self._inputs(rng, forward)

    def shaped_inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """See :meth:`Workload.shaped_inputs`: without the results of the forward kernel, whose values are zero."""
        return self._inputs(rng, lambda w, query, **_: (np.zeros(query.shape), np.zeros((w.heads, len(query)))))

    def _inputs(self, rng: np.random.Generator, forward: Callable[..., tuple[Any, Any]]) -> dict[str, Any]:
        queries, keys = self.tokens
        q_starts, k_starts = self.starts()
        arrays = self.query_and_key(rng) | {"value": uniform(rng, (keys, self.shared_heads, self.d), self.dtype)}
        o, lse = forward(self, **arrays)
        return {
            **arrays,
            "o": o.astype(dtype_of(self.dtype)),
            "lse": lse.astype(np.float32),
            "do": uniform(rng, (queries, self.heads, self.d), self.dtype),
            "q_starts": q_starts,
            "k_starts": k_starts,
        }

    def reference(
        self, query: Any, key: Any, value: Any, o: Any, lse: Any, do: Any, q_starts: Any, k_starts: Any
    ) -> dict[str, Any]:
        """The gradients in float64; in float32, whose error is far below the tolerance, for large sizes."""
        dq, dk, dv = (np.zeros(x.shape, self.wide) for x in (query, key, value))
        group = self.heads // self.shared_heads

        query, key, value, o, do, lse = (converted(x, self.wide) for x in (query, key, value, o, do, lse))

        def of_part(sequence: int, shared: int, part: slice) -> tuple[slice, int, Any, Any]:  # all heads that share keys
            queries, keys = self.rows(sequence)
            k, v = key[keys, shared], value[keys, shared]
            to_k, to_v = np.zeros_like(k), np.zeros_like(v)
            for head in range(shared * group, (shared + 1) * group):
                of_head = query[queries, head], k, v, o[queries, head], do[queries, head], lse[head, queries]
                gradients(*of_head, self.causal, dq[queries, head], to_k, to_v, part)
            return keys, shared, to_k, to_v

        for keys, shared, to_k, to_v in for_each_part(self, self.shared_heads, of_part):
            dk[keys, shared] += to_k
            dv[keys, shared] += to_v
        return {"dq": dq, "dk": dk, "dv": dv}

    def rounded_terms(
        self, query: Any, key: Any, value: Any, o: Any, lse: Any, do: Any, q_starts: Any, k_starts: Any
    ) -> dict[str, Any]:
        """The magnitudes of dq and dk that P dP and P delta have, whose difference is dS.

        dS is 0 where a query sees one key, where its values agree, and where one probability is 1. A library that computes dP
        or delta in 16 bits has an error of P (u |dP| + u |delta|) there, independent for each key and query: it adds to dq the
        root of the sum of squares over the keys of a query, times the typical element of a key and the scale; dk likewise.
        """
        of_queries, of_keys = np.zeros(query.shape[:2]), np.zeros(key.shape[:2])
        group = self.heads // self.shared_heads
        query, key, value, o, do, lse = (converted(x, self.wide) for x in (query, key, value, o, do, lse))

        def of_part(sequence: int, shared: int, part: slice) -> tuple[slice, int, Any]:
            queries, keys = self.rows(sequence)
            k, v = key[keys, shared], value[keys, shared]
            to_keys = np.zeros(len(k))
            for head in range(shared * group, (shared + 1) * group):
                of_head = query[queries, head], k, v, o[queries, head], do[queries, head], lse[head, queries]
                for rows, seen, probabilities, products, delta in pair_blocks(*of_head, self.causal, part):
                    both = np.square(probabilities * (np.abs(products) + np.abs(delta)))
                    of_queries[queries, head][rows] += both.sum(1)
                    to_keys[seen] += both.sum(0)
            return keys, shared, to_keys

        for keys, shared, to_keys in for_each_part(self, self.shared_heads, of_part):
            of_keys[keys, shared] += to_keys
        typical_key, typical_query = (math.sqrt(np.square(x).mean()) if x.size else 0.0 for x in (key, query))
        return {
            "dq": (self.scale * typical_key * np.sqrt(of_queries))[..., None],
            "dk": (self.scale * typical_query * np.sqrt(of_keys))[..., None],
        }

    def outputs(self) -> Mapping[str, Any]:
        queries, keys = self.tokens
        shared = ((keys, self.shared_heads, self.d), self.dtype)
        return {"dq": ((queries, self.heads, self.d), self.dtype), "dk": shared, "dv": shared}

    def temporaries(self) -> Mapping[str, Any]:
        pairs, rows = (self.heads, self.tokens[0], self.k), (self.heads, self.padded)
        return {
            "scores": (pairs, "f32"),
            "probabilities": (pairs, self.dtype),
            "dp": (pairs, "f32"),
            "ds": (pairs, self.dtype),
            "scaled_lse": (rows, "f32"),
            "delta": (rows, "f32"),
            "dq_sums": ((*rows, self.d), "f32"),
        }

    def work(self) -> Work:
        queries, keys = self.tokens
        elements = (4 * queries * self.heads + 4 * keys * self.shared_heads) * self.d
        return Work(
            flops=10 * self.heads * self.pairs() * self.d,  # five products: scores, dP, dv, dk, dq
            bytes=elements * dtype_of(self.dtype).itemsize + 4 * self.heads * queries,
            unit=self.dtype,
            sum_length=max(self.q * self.heads // self.shared_heads, self.k, self.d),
        )

    @property
    def tolerance(self) -> Mapping[str, Tolerance]:  # type: ignore[override]  # depends on the type here
        """Probabilities and dS are rounded to the type of the inputs before the last three products, which is as large an error
        as that of rounding the results, relative to the results around an element.

        dS = P (dP - delta) is 0 where a query sees one key, or where its values agree. There remains the error of dP and
        delta, sums of d products of numbers up to 1 in f32 (see :class:`ptxkit.workload.tolerance.Sums`), which dq and dk
        multiply with elements up to sqrt(3) and with 1 / sqrt(d): 2^-24 (8 sqrt(d) + d / 8) sqrt(d) / 3 sqrt(3) / sqrt(d).

        The elements of dS of a query add up to about 0. Where the keys agree in a column, the terms of dq cancel in all rows,
        and the error, of 8 standard deviations, is relative to what dq is in other columns: 1 / sqrt(3 k), since dP has a
        standard deviation of sqrt(d) / 3, probabilities are about 1 / k, and elements of the keys are up to sqrt(3).
        """
        rounding = 2.0**-8 if self.dtype == "bf16" else 2.0**-11
        absolute = 2.0**-24 * (8 * math.sqrt(self.d) + self.d / 8) / math.sqrt(3)
        common = Tolerance(relative=rounding, typical=8 * rounding, absolute=absolute)
        of_dq = replace(common, absolute=absolute + 8 * (rounding / 2) / math.sqrt(3 * self.k))
        return {"dq": of_dq, "dk": common, "dv": common}

    @property
    def kind(self) -> str:
        """The element type in C++."""
        return f"ptxkit::{self.dtype}"

    @property
    def scale(self) -> np.float32:
        """The factor of the scores."""
        return np.float32(1 / math.sqrt(self.d))

    def delta(self, dq_sums: object = NULL) -> Launch:
        """The launch before the others: delta, and lse in the form in which they read it; sums of dq are set to zero."""
        rows = THREADS * 8 // self.d
        return Launch(
            "attention_backward_delta",
            (cdiv(cdiv(self.q, PADDING) * PADDING, rows), self.heads, self.batch),
            THREADS,
            ("o", "do", "lse", "scaled_lse", "delta", dq_sums, "q_starts", self.tokens[0], self.heads, self.padded),
            template=(self.kind, self.d, THREADS),
        )

    def convert(self) -> Launch:
        """The launch after the others: dq from its sums."""
        return Launch(
            "attention_backward_convert",
            (cdiv(self.q, QUERIES), self.heads, self.batch),
            128,
            ("dq_sums", "dq", "q_starts", self.heads, self.padded, self.scale),
            template=(self.kind, self.d),
        )

    @variant(requires=("sm_80",))
    def unfused(self) -> list[Launch]:
        """Eight launches: scores, probabilities, dP, delta, dS and three products, all through device memory. Deterministic."""
        starts, heads = ("q_starts", "k_starts", self.tokens[0]), (self.heads, self.shared_heads)
        tiles, tile_bytes = cdiv(self.q, UNFUSED), UNFUSED * self.d * 2
        rows = (cdiv(self.q, THREADS // 32), self.heads, self.batch)

        def pairs(a: str, b: str, to: str, causal: bool, scale: np.float32) -> Launch:
            grid = (tiles * cdiv(self.k, UNFUSED), self.heads, self.batch)
            args = (a, b, to, *starts, *heads, self.k, scale)
            template = (self.kind, self.d, causal)
            return Launch("attention_scores", grid, 128, args, 2 * tile_bytes, source="attention.cu", template=template)

        def transposed(a: str, x: str, to: str) -> Launch:
            grid = (cdiv(self.k, UNFUSED), self.shared_heads, self.batch)
            args = (a, x, to, *starts, *heads, self.k)
            return Launch("attention_backward_transposed", grid, 128, args, tile_bytes, template=(self.kind, self.d))

        return [
            self.delta(),
            pairs("query", "key", "scores", self.causal, self.scale),
            Launch(
                "attention_backward_probabilities",
                rows,
                THREADS,
                ("scores", "scaled_lse", "probabilities", *starts, self.padded, self.k),
                template=(self.kind, THREADS),
            ),
            transposed("probabilities", "do", "dv"),
            pairs("do", "value", "dp", False, np.float32(1)),
            Launch(
                "attention_backward_scores",
                rows,
                THREADS,
                ("probabilities", "dp", "delta", "ds", *starts, self.padded, self.k, self.scale),
                template=(self.kind, THREADS),
            ),
            transposed("ds", "query", "dk"),
            Launch(
                "attention_values",
                (tiles, self.heads, self.batch),
                128,
                ("ds", "key", "dq", *starts, *heads, self.k),
                shared=tile_bytes,
                source="attention.cu",
                template=(self.kind, self.d),
            ),
        ]

    def keys(self, t: Tile, *, atomics: bool) -> Launch:
        """A launch of ``attention_backward_keys``."""
        sums = "dq_sums" if atomics else NULL
        inputs = ("query", "key", "value", "do", "scaled_lse", "delta")
        return Launch(
            "attention_backward_keys",
            (cdiv(self.k, t.BN), self.shared_heads, self.batch),
            2 * t.BN,
            (*inputs, "dk", "dv", sums, "q_starts", "k_starts", self.heads, self.shared_heads, self.padded, self.scale),
            shared=keys_bytes(self.d, t, atomics=atomics),
            template=(self.kind, self.d, t.BN, t.STAGES, self.causal, atomics),
        )

    @variant(
        requires=("sm_80",),
        tile={
            "BN": [64, 128],  # keys of a CTA that computes dk and dv
            "STAGES": [2, 1],  # tiles in shared memory
        },
        constraint=lambda w, t: fits(w, max(keys_bytes(w.d, t, atomics=False), queries_bytes(w.d, t))),
    )
    def step1_tiled(self, t: Tile) -> list[Launch]:
        """dk and dv with CTAs that keep keys, dq with CTAs that keep queries: seven products by mma.sync. Deterministic."""
        inputs = ("query", "key", "value", "do", "scaled_lse", "delta")
        return [
            self.delta(),
            self.keys(t, atomics=False),
            Launch(
                "attention_backward_queries",
                (cdiv(self.q, QUERIES), self.heads, self.batch),
                2 * QUERIES,
                (*inputs, "dq", "q_starts", "k_starts", self.heads, self.shared_heads, self.padded, self.scale),
                shared=queries_bytes(self.d, t),
                template=(self.kind, self.d, QUERIES, t.STAGES, self.causal),
            ),
        ]

    @variant(
        requires=("sm_80",),
        tile={"BN": [64, 128], "STAGES": [2, 1]},
        constraint=lambda w, t: fits(w, keys_bytes(w.d, t, atomics=True)),
    )
    def step2_atomics(self, t: Tile) -> list[Launch]:
        """Five products: the CTAs that keep keys add their share of dq to f32 sums by atomics. Not deterministic."""
        return [self.delta("dq_sums"), self.keys(t, atomics=True), self.convert()]

    def specialized(self, tile: AttentionBackwardTile, *, persistent: bool = False) -> list[Launch]:
        """The launches of the steps with wgmma."""
        tiles = cdiv(self.k, KEYS)
        works = tiles * self.shared_heads * self.batch
        queries = self.tokens[0], self.heads, self.d, 2, tile.queries
        keys = self.tokens[1], self.shared_heads, self.d, 2, KEYS
        of_sequences = sequence_map if tile.separate else rows_map
        maps = (
            of_sequences("query", *queries),
            of_sequences("key", *keys),
            of_sequences("value", *keys),
            of_sequences("do", *queries),
        )
        arrays = ("scaled_lse", "delta", "dk", "dv", "dq_sums", "q_starts", "k_starts")
        sizes = (self.shared_heads, self.heads // self.shared_heads, self.padded, tiles, works, self.scale, *self.tokens)
        main = Launch(
            "attention_backward_specialized",
            min(works, self.device.sms) if persistent else works,
            384,
            (*maps, *arrays, *sizes),
            shared=tile.shared_bytes,
            template=(self.kind, tile, self.causal),
        )
        return [self.delta("dq_sums"), main, self.convert()]

    @variant(requires=("sm_90a",))
    def step3_wgmma(self) -> list[Launch]:
        """Step 2 with wgmma and TMA: producer, two warpgroups, and warps that add to the sums of dq by bulk reductions."""
        return self.specialized(AttentionBackwardTile(self.d, 2, False))

    @variant(requires=("sm_90a",))
    def step4_overlap(self) -> list[Launch]:
        """Products run while probabilities and dS are computed."""
        return self.specialized(AttentionBackwardTile(self.d, 2, True))

    @variant(
        requires=("sm_90a",),
        tile={"STAGES": [2, 1]},  # tiles of queries, and of do, in shared memory
        constraint=lambda w, t: fits(w, AttentionBackwardTile(w.d, t.STAGES, True).shared_bytes),
        slower=lambda w: strided_remark(w, steps_of_keys(w, KEYS, AttentionBackwardTile(w.d, 2, True).queries)),
    )
    def step5_persistent(self, t: Tile) -> list[Launch]:
        """One CTA per SM computes tile after tile of keys."""
        return self.specialized(AttentionBackwardTile(self.d, t.STAGES, True), persistent=True)

    @variant(requires=("sm_90a",), constraint=deferrable)
    def step6_deferred(self) -> list[Launch]:
        """Step 4, and the product for dk runs until the next scores have been computed."""
        return self.specialized(AttentionBackwardTile(self.d, 2, True, True))


def gradients(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    do: Any,
    lse: Any,
    causal: bool,
    dq: Any,
    dk: Any,
    dv: Any,
    part: slice | None = None,
) -> None:
    """Add the gradients of one head of one sequence, with n queries (n, d) and m keys (m, d), to dq, dk and dv.

    Args:
        part: those of the results for these queries only.
    """
    scale = q.dtype.type(1 / math.sqrt(q.shape[1]))
    for rows, keys, probabilities, ds, delta in pair_blocks(q, k, v, o, do, lse, causal, part):
        dv[keys] += probabilities.T @ do[rows]
        ds -= delta
        ds *= probabilities
        dq[rows] += ds @ k[keys] * scale
        dk[keys] += ds.T @ q[rows] * scale


def pair_blocks(
    q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any, causal: bool, part: slice | None = None
) -> Iterator[tuple[slice, slice, Any, Any, Any]]:
    """Blocks of queries and keys: their rows, and of these pairs P, dP and delta. Keys that no query sees are left out.

    The arguments are those of :func:`gradients`.
    """
    scale = q.dtype.type(1 / math.sqrt(q.shape[1]))
    for rows, keys in query_blocks(len(q), len(k), causal, sizes.QUERIES, part):
        subtracted = np.where(np.isfinite(lse[rows]), lse[rows], np.inf)[:, None]
        delta = (do[rows] * o[rows]).sum(1, keepdims=True)
        for block in key_blocks(keys):
            scores = q[rows] @ k[block].T
            scores *= scale
            scores -= subtracted
            probabilities = np.exp(scores, out=scores)
            if causal:
                hide(probabilities, rows, len(k) - len(q) - block.start, 0)
            yield rows, block, probabilities, do[rows] @ v[block].T, delta


def keys_bytes(d: int, t: Tile, *, atomics: bool) -> int:
    """Shared memory of ``attention_backward_keys``: keys, values, dS, the stages of queries and do, lse and delta."""
    return int(4 * d * t.BN + (2 * t.BN * QUERIES if atomics else 0) + t.STAGES * QUERIES * (4 * d + 8))


def queries_bytes(d: int, t: Tile) -> int:
    """Shared memory of ``attention_backward_queries``: queries, do, the stages of keys and values."""
    return int(4 * d * QUERIES * (1 + t.STAGES))
