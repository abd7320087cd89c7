"""attention_e4m3: attention, forward, of e4m3 elements with one scale for each head, in six steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, cdiv, uniform, variant
from ptxkit.kernels.attention import decode, decode_choice
from ptxkit.kernels.attention.attention import Attention, forward
from ptxkit.kernels.attention.balance import alone, section, steps_of_queries, strided_remark
from ptxkit.kernels.attention.sizes import LOG2E, AttentionSizes, fits
from ptxkit.kernels.attention.tiles import AttentionTile, alone_on_an_sm
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload.inputs import dtype_of

NULL = np.uint64(0)  # no counter
ALIGNMENT = 1024  # of the tiles in shared memory, behind the numbers of work items
LARGEST = 448  # e4m3
TRANSPOSED = 128  # of cu/kernels/attention_e4m3.cu: columns of a CTA
GROUP = 16  # keys: a sequence begins at a multiple in the transposed values
THREADS = 256  # of the kernels that convert
ALIKE = (
    "heads",
    "q",
    "k",
    "d",
    "batch",
    "causal",
    "kv_heads",
    "lengths",
)  # sizes and options of the same attention in bf16


@dataclass(frozen=True)
class E4m3Tile(TemplateStruct):
    """``E4m3Tile`` of cu/kernels/attention_e4m3.cu."""

    D: int
    BN: int
    STAGES: int
    OVERLAP: bool
    PING_PONG: bool
    LATE_WAIT: bool = False

    queries: ClassVar[int] = 128
    """Queries of a CTA."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: queries, stages of keys and values, results in bf16, mbarriers."""
        return self.D * (3 * self.queries + 2 * self.STAGES * self.BN) + 8 * (2 + 4 * self.STAGES)


@dataclass(frozen=True)
class E4m3ContinuousTile(E4m3Tile):
    """``E4m3ContinuousTile`` of cu/kernels/attention_e4m3_continuous.cu."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: two tiles of queries, stages of keys and values, results in bf16, mbarriers."""
        return super().shared_bytes + self.D * self.queries + 8 * 2


def in_bf16_tolerance(w: AttentionE4m3) -> Mapping[str, Tolerance]:
    """The tolerance of variants that multiply in bf16, which rounds elements times their scale.

    The root mean square of these roundings is at most 0.0026 (see ``DEQUANTIZED`` in moe_int8). Those of queries and keys
    change a score, which has variance 1, by 0.0037, and with those of values and probabilities a result by 0.0047 of the root
    mean square r of its row. The largest error is 5.7 standard deviations: 0.021 in lse, for a query that sees one key, and
    0.027 r in o, where the typical magnitude is about 0.45 r. All errors together are limited to 1.7 times 0.0047 r.
    """
    return {
        "o": Tolerance(relative=2.0**-6, typical=0.06, absolute=1e-30, rms=w.rms(0.008)),
        "lse": Tolerance(relative=1e-5, absolute=5.7 * 0.0037, rms=w.rms(0.0037)),
    }


class AttentionE4m3(AttentionSizes):
    """Attention of e4m3 elements: o = softmax(q k^T / sqrt(d)) v, where q, k and v are elements times the scale of their head.

    query has the shape (tokens, heads, d), key and value (tokens, kv_heads, d), query_scale (heads), key_scale and value_scale
    (kv_heads), in f32; equal scales make one scale for the tensor. o has bf16 elements. Masks, sequences and lse are those of
    ``attention``. The values have the same layout as the keys; the kernels transpose them.
    """

    source = "attention_e4m3.cu"
    head_sizes: ClassVar[tuple[int, ...]] = (64, 128, 256)
    dtype: Literal["e4m3"] = "e4m3"  # type: ignore[assignment]  # another type than those of attention

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        queries, keys = self.tokens
        q_starts, k_starts = self.starts()

        def quantized(tokens: int, heads: int, largest: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            """Uniform elements up to ``largest``, divided by scales so that the largest of each head is near 448."""
            scales = (largest / LARGEST * rng.uniform(1, 2, heads)).astype(np.float32)
            elements = largest * uniform(rng, (tokens, heads, self.d)) / scales[:, None]
            return elements.astype(dtype_of("e4m3")), scales

        query, query_scale = quantized(queries, self.heads, math.sqrt(3))  # so that the scores have variance 1
        key, key_scale = quantized(keys, self.shared_heads, math.sqrt(3))
        value, value_scale = quantized(keys, self.shared_heads, 1)
        return {
            "query": query,
            "key": key,
            "value": value,
            "query_scale": query_scale,
            "key_scale": key_scale,
            "value_scale": value_scale,
            "q_starts": q_starts,
            "k_starts": k_starts,
        }

    def reference(
        self,
        query: Any,
        key: Any,
        value: Any,
        query_scale: Any,
        key_scale: Any,
        value_scale: Any,
        q_starts: Any,
        k_starts: Any,
    ) -> dict[str, Any]:
        """Attention of the elements times their scales."""
        wide = [
            x.astype(self.wide) * s[:, None] for x, s in ((query, query_scale), (key, key_scale), (value, value_scale))
        ]
        o, lse = forward(self, *wide)
        return {"o": o, "lse": lse}

    def outputs(self) -> Mapping[str, Any]:
        queries = self.tokens[0]
        return {"o": ((queries, self.heads, self.d), "bf16"), "lse": ((self.heads, queries), "f32")}

    @property
    def columns(self) -> int:
        """Columns of the transposed values: ``first_column`` of cu/kernels/attention_e4m3.cu after the last sequence."""
        return (self.tokens[1] + (GROUP - 1) * self.batch) // GROUP * GROUP

    def temporaries(self) -> Mapping[str, Any]:
        queries, keys = self.tokens
        pairs = (self.heads, queries, self.k)
        return {
            "transposed": ((self.shared_heads, self.d, self.columns), "e4m3"),
            "wide_query": ((queries, self.heads, self.d), "bf16"),
            "wide_key": ((keys, self.shared_heads, self.d), "bf16"),
            "wide_value": ((keys, self.shared_heads, self.d), "bf16"),
            "scores": (pairs, "f32"),
            "probabilities": (pairs, "bf16"),
            "counter": (1, "s32"),
            **decode.partials(self),
        }

    def work(self) -> Work:
        """Both products, and one pass over the inputs and outputs."""
        queries, keys = self.tokens
        elements = queries * self.heads * self.d * (1 + 2) + 2 * keys * self.shared_heads * self.d
        scales = self.heads + 2 * self.shared_heads
        return Work(
            flops=4 * self.heads * self.pairs() * self.d,
            bytes=elements + 4 * (scales + self.heads * queries),
            unit="e4m3",
            sum_length=max(self.k, self.d),
        )

    @property
    def tolerance(self) -> Mapping[str, Tolerance]:  # type: ignore[override]  # depends on sizes
        """The errors of e4m3 exponentials and of sums of e4m3 products.

        wgmma keeps 13 bits of fraction of a sum, relative to its largest term: for sums of d products the error of a score is
        about 8 sqrt(d / 32) 2^-13 times its magnitude (docs/verification.md), which is up to 4 here, where scores have
        variance 1: s in the exponent, and in lse.

        Exponentials are rounded to 4 significant bits: a relative error of up to 2^-4, with a root mean square of
        2^-4 / sqrt(3) times that of 1 / m for a significand m in [1, 2), 0.74: 0.027. A result is a sum of independent terms,
        whose errors add up to 0.027 of the root mean square r of the results in its row. The largest error among 67 million is
        5.7 standard deviations, 0.15 r. The typical magnitude (docs/verification.md) is at least a product of geometric means,
        0.53 r for normally distributed results, and 14% less where 64 results of a row vary: 0.15 r is a third of it. A result
        of few terms has an error of at most 2^-4 times the largest of them, since exponentials are divided by their exact sum.

        All errors together are limited to 1.4 times 0.027 r, and those of lse to a quarter of s / 8, one standard deviation of
        the largest scores, so that a wrong scale or a key too many of a thousand is found.
        """
        deviation = 4 * math.sqrt(self.d / 32) * 2.0**-13
        s = 8 * deviation
        return {
            "o": Tolerance(relative=2.0**-4 + s + 2.0**-8, typical=1 / 3, absolute=1e-30, rms=self.rms(0.038)),
            "lse": Tolerance(relative=1e-5, absolute=s, rms=self.rms(deviation / 4 / (0.5 + math.log(self.k + 1)))),
        }

    def rms(self, limit: float) -> float:
        """The limit of a root mean square error; none for few rows, of which a single one may have most of the error."""
        return limit if self.tokens[0] * self.heads >= 64 else 0.0

    def dequantized(self, name: str) -> Launch:
        """The launch that writes the elements of an input times their scale, in bf16."""
        queries, keys = self.tokens
        heads = self.heads if name == "query" else self.shared_heads
        rows = (queries if name == "query" else keys) * heads
        return Launch(
            "attention_e4m3_dequantize",
            cdiv(rows, THREADS // (self.d // 16)),
            THREADS,
            (name, f"{name}_scale", f"wide_{name}", rows, heads),
            template=(self.d, THREADS),
        )

    def in_bf16(self, launches: Sequence[Launch]) -> list[Launch]:
        """Launches of ``attention`` in bf16, on dequantized inputs."""
        names = {name: f"wide_{name}" for name in ("query", "key", "value")}

        def renamed(argument: object) -> object:
            if isinstance(argument, TensorMap):
                return argument.with_array(names[argument.array])
            return names.get(argument, argument) if isinstance(argument, str) else argument

        converted = [
            Launch(
                each.kernel,
                each.grid,
                each.block,
                tuple(map(renamed, each.args)),
                shared=each.shared,
                source=Attention.source,
                template=each.template,
            )
            for each in launches
        ]
        return [*(self.dequantized(name) for name in names), *converted]

    @property
    def alike(self) -> Attention:
        """The same attention in bf16."""
        return Attention(**{name: getattr(self, name) for name in ALIKE})

    @variant(requires=("sm_90",), tolerance=in_bf16_tolerance)
    def unfused(self) -> list[Launch]:
        """Six launches: query, key and value in bf16; scores, softmax, product with the values."""
        return self.in_bf16(Attention.variant("unfused").launches(self.alike, Tile({})))

    @variant(requires=("sm_90a",), tolerance=in_bf16_tolerance)
    def step1_dequantized(self) -> list[Launch]:
        """Four launches: query, key and value in bf16, and the fastest kernel of attention in bf16."""
        tile = AttentionTile(self.d, 2, 64 if self.d == 256 else 128, 2, True, True, 240)
        return self.in_bf16(self.alike.specialized(tile, persistent=True))

    def launches(self, tile: E4m3Tile, *, persistent: bool = False) -> list[Launch]:
        """The launches that transpose the values and compute the results."""
        continuous = isinstance(tile, E4m3ContinuousTile)
        queries, tiles = self.tokens[0], cdiv(self.q, tile.queries)
        works = tiles * self.heads * self.batch
        span = min(self.d, 128)
        swizzle, value_swizzle = f"{span}B", f"{tile.BN}B"
        maps = (
            TensorMap("query", box=(tile.queries, 1, span), swizzle=swizzle),
            TensorMap("key", box=(tile.BN, 1, span), swizzle=swizzle),
            TensorMap("transposed", box=(1, self.d, tile.BN), swizzle=value_swizzle),
        )
        return [
            Launch(
                "attention_e4m3_transpose",
                (cdiv(self.k + 2 * (GROUP - 1), TRANSPOSED), self.shared_heads, self.batch),
                THREADS,
                ("value", "transposed", "k_starts", self.shared_heads, self.columns, "counter" if continuous else NULL),
                template=(self.d, THREADS),
            ),
            Launch(
                "attention_e4m3_continuous" if continuous else "attention_e4m3",
                min(works, self.device.sms) if persistent else works,
                384,
                (
                    *maps,
                    *("query_scale", "key_scale", "value_scale", "o", "lse", "q_starts", "k_starts"),
                    *(queries, self.heads, self.shared_heads, tiles, self.batch),
                    np.float32(LOG2E / math.sqrt(self.d)),
                    *(("counter", section(self), alone(self)) if continuous else ()),
                ),
                shared=tile.shared_bytes,
                template=(tile, self.causal),
                source="attention_e4m3_continuous.cu" if continuous else None,
            ),
        ]

    def tile(self, *, overlap: bool = False, ping_pong: bool = False) -> E4m3Tile:
        """The tile of the steps that are not swept."""
        return E4m3Tile(self.d, 64 if self.d == 256 else 128, 2, overlap and self.d < 256, ping_pong)

    @variant(requires=("sm_90a",))
    def step2_wgmma(self) -> list[Launch]:
        """Two launches: the values are transposed; both products by wgmma on e4m3, exponentials in registers."""
        return self.launches(self.tile())

    @variant(requires=("sm_90a",))
    def step3_overlap(self) -> list[Launch]:
        """The scores of the next tile are computed during the product with the values; one warpgroup after the other."""
        return self.launches(self.tile(overlap=True, ping_pong=True))

    @variant(
        requires=("sm_90a",),
        tile={
            "BN": [128, 64],  # keys of a tile
            "STAGES": [2, 3, 4],  # tiles of keys, and of values, in shared memory
            "OVERLAP": [1, 0],  # of the next scores and the product with the values
            "PING_PONG": [1, 0],  # warpgroups issue products one after the other
        },
        constraint=lambda w, t: usable(w, swept(w, t)),
        prefer=lambda w: [{"BN": 64, "OVERLAP": 0}] if w.d == 256 else [{"STAGES": 3}],
        slower=lambda w: strided_remark(w, steps_of_queries(w, 128, 128)),
    )
    def step4_persistent(self, t: Tile) -> list[Launch]:
        """One CTA per SM takes tile after tile; with a causal mask the longest rows first."""
        return self.launches(swept(self, t), persistent=True)

    @variant(
        requires=("sm_90a",),
        tile={
            "BN": [128, 64],  # keys of a tile
            "STAGES": [3, 2, 4, 5],  # tiles of keys, and of values, in shared memory
            "PING_PONG": [0, 1],  # warpgroups issue products one after the other
        },
        constraint=lambda w, t: usable(w, continuous(w, t), beside=ALIGNMENT),
        slower=alone_on_an_sm,
    )
    def step5_continuous(self, t: Tile) -> list[Launch]:
        """Tiles from a counter. The first scores of the next queries are computed during the last product of these."""
        return self.launches(continuous(self, t), persistent=True)

    @variant(
        requires=("sm_90",),
        tile=decode.CLUSTER_TILE,
        constraint=decode.usable,
        prefer=lambda w: decode_choice.preferred(w, clusters=True),
        slower=decode_choice.slower_e4m3,
    )
    def step6_decode(self, t: Tile) -> list[Launch]:
        """For few queries: keys are divided among CTAs; both products by mma.sync in f16, to which elements are converted."""
        scales = ("query_scale", "key_scale", "value_scale")
        return decode.launches(self, t, "attention_e4m3_decode", tma=True, scales=scales)


def continuous(w: AttentionE4m3, t: Tile) -> E4m3ContinuousTile:
    """The tile of step 5."""
    return E4m3ContinuousTile(w.d, t.BN, t.STAGES, True, bool(t.PING_PONG), True)


def swept(w: AttentionE4m3, t: Tile) -> E4m3Tile:
    """The tile of step 4."""
    return E4m3Tile(w.d, t.BN, t.STAGES, bool(t.OVERLAP), bool(t.PING_PONG))


def usable(w: AttentionE4m3, tile: E4m3Tile, beside: int = 0) -> bool | str:
    """The constraint of steps 4 and 5, with shared memory ``beside`` that of the tile."""
    if tile.OVERLAP and tile.D == 256:
        return "heads of 256 elements need more registers for the overlap than a thread has"
    if tile.D == 256 and tile.BN > 64:
        return f"a thread has no registers for two rows of {tile.BN} scores and 256 results"
    return fits(w, tile.shared_bytes + beside)
