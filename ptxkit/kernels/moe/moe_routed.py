"""moe_routed: a mixture of experts on quantized tokens: gating, sorting, grouped products with SwiGLU, weighted sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, variant
from ptxkit.blas import one_thread
from ptxkit.kernels.gemm import s8_sums
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe import two_launches
from ptxkit.kernels.moe.product import NULL, SUMS, TYPES, Array, Dtype, Product
from ptxkit.workload.parallel import cores
from ptxkit.workload.tolerance import Sums

WGMMA = ("sm_90a",)
GATE_THREADS = 128
SORT_THREADS = 1024
PARTS = (1, 2, 4, 8)
MOST_PAIRS = 4096  # for which there is memory for the parts of the second product
FITTED = {
    **moe.WGMMA_TILE,
    "DOWN": [128, 256, 64],  # weights in a tile of the second product
    "PARTS": list(PARTS),  # of k of the second product
}
TAKEN = {
    **FITTED,
    "DYNAMIC": [0, 1],  # CTAs take the next tile from a counter when they are free
}
MOST_PROMOTED = 128  # tokens of a tile of 128 weights, whose consumers have room for the sums of a step
PROMOTED = {**FITTED, "BT": [block for block in FITTED["BT"] if block <= MOST_PROMOTED], "CLUSTER": [2, 1]}
MOST_FOR_NARROW = 16  # tokens of the largest tile of 64 weights that is taken
LEAST_TAKEN = 8 << 20  # bytes of weights that an SM reads where tiles are taken
MOST_THREADS = 16  # of the reference, which limits its memory
BLOCK = 8  # gates, and the factors that follow them, in the interleaved weights
MIXTRAL = {"hidden": 4096, "ffn": 14336, "experts": 8, "top_k": 2}
DEEPSEEK_V3 = {"hidden": 7168, "ffn": 2048, "experts": 256, "top_k": 8}
STEP = 2**-3
"""A step of the quantization relative to the values, at most: of e4m3, which has 3 bits after the binary point, and of s8 where
the largest of a row is 16 times the typical value."""
MEAN_ERROR = 1.4
"""Mean relative error of a quantized value, in standard deviations of the errors of sums: sqrt(3) for three sums, times 0.8."""
LARGEST_TERM = 12.0
"""The largest of thousands of intermediate results in their root mean square: their distribution is that of products of two
normally distributed numbers."""
ROUNDED = 2**-10
"""Mean relative error of a rounding to bf16, whose largest is 2^-9."""
FIXED = Tile(
    {"BW": 128, "BT": 128, "CONSUMERS": 2, "GROUP": 8, "CLUSTER": 1, "SHARE_WEIGHTS": 0, "PING_PONG": 0}
)  # step 2


def usable_mma(w: MoeRouted, t: Tile) -> bool | str:
    """The constraint of step 1."""
    return w.first.usable_mma(t)


def preferred_mma(w: MoeRouted) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 1 by the number of tokens of an expert."""
    yield from moe.mma_tiles(w.tokens_of_expert)


def down(t: Tile) -> Tile:
    """The tile of the second product of steps 3 and 4."""
    shared = {name: t[name] for name in ("BT", "GROUP", "CLUSTER", "SHARE_WEIGHTS", "DYNAMIC") if name in t}
    alternating = t.PING_PONG if t.DOWN == t.BW and t.PARTS == 1 else 0
    return Tile({"BW": t.DOWN, "CONSUMERS": moe.consumers(t.DOWN), "PING_PONG": alternating, **shared})


def usable_wgmma(w: MoeRouted, t: Tile, form: str | None = None, promoted: bool = False) -> bool | str:
    """The constraint of step 3."""
    form = form or w.wide(promoted)
    if w.most_parts < t.PARTS:
        return f"parts of k are for up to {MOST_PAIRS} pairs of a token and an expert, not {w.pairs}"
    if (verdict := replace(w.first, format=form, promoted=promoted).usable_wgmma(t)) is not True:
        return verdict
    return replace(w.second, promoted=promoted, parts=t.PARTS).usable_wgmma(down(t))


def preferred_wgmma(w: MoeRouted) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 3: those of many tokens first, where an expert has as many; those of few are taken, see :func:`taken`."""
    for tile in moe.tiles_of_many(w.tokens_of_expert, w.expected_experts, (w.first, w.second)):
        yield {**tile, "DOWN": tile["BW"], "PARTS": 1}
    for general in preferred_general(w):
        if (from_counter := taken(w, general)) != general:
            yield from_counter
        yield general


def taken(w: MoeRouted, tile: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tile with those of the products taken from a counter, where memory limits these, and an SM reads many weights.

    SMs read at different speeds, and with fixed shares all of them wait for the slowest one. Taking tiles costs 2 us of a call
    and saves 0.7% of its time (docs/moe.md). At the end, SMs wait for the last tiles; those of 64 weights are half as long, but
    read their tokens twice as often, which costs more where a tile has more than 16.
    """
    few = tile["BT"] <= MOST_FOR_NARROW
    chosen = {**tile, "DYNAMIC": 1, **({"BW": 64, "CONSUMERS": 1, "DOWN": 64} if few else {})}
    memory_limited = tile["BT"] <= moe.MEMORY_LIMITED and tile["CLUSTER"] == 1 and not tile["PING_PONG"]
    weights = w.expected_experts * 3 * w.hidden * w.ffn
    return chosen if memory_limited and weights >= LEAST_TAKEN * w.device.sms else tile


def preferred_general(w: MoeRouted) -> Iterator[Mapping[str, Any]]:
    """Tiles by the expected numbers of experts that are hit, and of their tokens."""
    tokens, experts = w.tokens_of_expert, w.expected_experts
    for tile in moe.wgmma_tiles(w.first, tokens, experts, exact=False):
        second = next(t for t in moe.wgmma_tiles(w.second, tokens, experts, exact=False) if t["BT"] == tile["BT"])
        parts, most = 1, min(w.most_parts, cdiv(w.ffn, moe.DEPTH))  # a part without a step would only add zeros
        while second["BW"] == 64 and 2 * parts <= most and experts * cdiv(w.hidden, 64) * parts < 3 * w.device.sms:
            parts *= 2
        yield {**tile, "DOWN": second["BW"], "PARTS": parts}


def usable_exchange(w: MoeRouted, t: Tile) -> bool | str:
    """The constraint of step 4."""
    return usable_wgmma(w, t, "own")


def usable_promoted(w: MoeRouted, t: Tile) -> bool | str:
    """The constraint of step 5."""
    if w.dtype == "s8":
        return "sums of s8 are exact"
    return usable_wgmma(w, t, promoted=True)


def preferred_promoted(w: MoeRouted) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 5: those of step 3 that it can have; of many tokens first 128 x 128 in clusters of two, which read the
    tokens from L2 once for both."""
    for tile in preferred_general(w):
        if tile["BT"] == MOST_PROMOTED:
            yield {**tile, "BW": 128, "DOWN": 128, "CONSUMERS": 2, "CLUSTER": 2}
        if tile["BT"] <= MOST_PROMOTED:
            yield {**tile, "DOWN": min(tile["DOWN"], 128)}


def requantized_tolerance(
    w: MoeRouted, terms: int | None = None, rounded: float | None = None
) -> Mapping[str, Tolerance]:
    """The tolerance of results that follow from the products' sums through a quantization.

    An intermediate result that differs by d from the reference's is quantized to another step s with probability d / s, so that
    the mean square of the difference is d s, much more than d^2: sums of e4m3 products that are right to 0.2% change y by 2%.
    d is that of a gate, of its factor, and of the largest magnitude of the token, from which the scale follows. The sums of y
    have an error of their own, and its terms one rounding to bf16. All of these are independent, so that y has a relative root
    mean square error of this size, and single elements one of up to 5.7 times that. The typical magnitude
    (docs/verification.md) is a third of the root mean square of results whose token has one expert with nearly all of the
    weight, and whose column has a large scale in it; less for one of a thousand. The largest term of a sum may be quantized to
    another step as well, which matters where terms are few.

    With exact sums (s8, not ``rounded``), hardly any intermediate result is near a tie.

    Args:
        terms: that the tensor cores add before the sum is added to one in f32; None for all.
        rounded: mean relative error of the intermediate results by further roundings; None for none.
    """
    narrow = "float8_e4m3fn" if w.dtype == "e4m3" else ""
    first, second = (
        Sums(min(k, terms or k), stated=True, unit=w.dtype, narrow=narrow).deviation for k in (w.hidden, w.ffn)
    )
    y = Tolerance(relative=2**-7, typical=2**-5)
    if first or rounded is not None:
        deviation = math.hypot(math.sqrt(math.hypot(MEAN_ERROR * first, rounded or 0.0) * STEP), second, 2**-9)
        one = STEP * min(1.0, LARGEST_TERM / math.sqrt(w.ffn))
        y = replace(
            y,
            typical=3 * math.hypot(5.7 * deviation, one),
            rms=math.hypot(1.5 * deviation, 2 * one / math.sqrt(w.pairs)),
        )
    return {"y": y, "expert": Tolerance(), "weight": Tolerance(relative=1e-5, absolute=1e-7)}


def wgmma_tolerance(w: MoeRouted) -> Mapping[str, Tolerance]:
    """The tolerance of steps 2 and 3, which may round the intermediate results to bf16 before their quantization."""
    return requantized_tolerance(w, rounded=ROUNDED if w.wide() == "bf16" else None)


class MoeRouted(Workload):
    """y = sum over a token's experts of weight * down(silu(gate x) * up x): quantized tokens, weights and intermediate results.

    ``x`` (tokens, hidden) with ``x_scales`` (tokens); ``logits`` (tokens, experts), f32, finite or minus infinity; ``w1``
    (experts * 2 * ffn, hidden), in which 8 rows of gates and the 8 rows of factors that belong to them alternate, with
    ``w1_scales``; ``w2`` (experts * hidden, ffn) with ``w2_scales``. A token's experts are those with the largest logits, in
    descending order; of equal logits, the lower expert comes first. Their weights are the softmax of the logits, over the
    token's experts with ``renormalize``, else over all. The intermediate results are quantized with a scale per token and
    expert. ``y`` (tokens, hidden) is bf16.

    The logits follow from the sizes and ``routing_seed``, not from the seed of the other inputs, so that the experts that
    are hit, and with them the work, are known.
    """

    source = "moe_routed.cu"
    tokens: int = 1024
    hidden: int = 4096
    ffn: int = 14336
    experts: int = 8
    top_k: int = 2
    dtype: Dtype = "s8"
    renormalize: bool = True
    routing_seed: int = field(default=0, kw_only=True)
    emulator_sizes = {"tokens": 16, "hidden": 128, "ffn": 128, "experts": 8, "top_k": 2}
    benchmarks = (
        *({"tokens": tokens, **MIXTRAL} for tokens in (1, 16, 128, 1024, 8192)),
        *({"tokens": tokens, **DEEPSEEK_V3} for tokens in (1, 16, 128, 1024, 8192)),
        *({"tokens": tokens, **MIXTRAL, "dtype": "e4m3"} for tokens in (1, 16, 128, 1024, 8192)),
        *({"tokens": tokens, **DEEPSEEK_V3, "dtype": "e4m3"} for tokens in (1, 16, 128, 1024, 8192)),
    )

    @property
    def tolerance(self) -> Mapping[str, Tolerance]:  # type: ignore[override]
        return requantized_tolerance(self)

    def constraints(self) -> Iterable[str]:
        for name in ("hidden", "ffn"):
            if getattr(self, name) % 16:
                yield f"{name} must be a multiple of 16, so that rows are multiples of 16 bytes"
        yield from s8_sums.refused(self.dtype, hidden=self.hidden, ffn=self.ffn)
        if self.routing_seed < 0:
            yield f"routing_seed must be at least 0, not {self.routing_seed}"
        if self.top_k > self.experts:
            yield f"top_k must be at most experts={self.experts}, not {self.top_k}"
        if self.experts > moe.MAX_EXPERTS:
            yield f"experts must be at most {moe.MAX_EXPERTS}, not {self.experts}"
        if (
            self.experts * 2 * self.ffn >= 2**31
            or self.experts * self.hidden >= 2**31
            or self.tokens * self.top_k >= 2**30
        ):
            yield "rows of weights and pairs of tokens and experts must be numbers of 31 bits"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        rows1, rows2 = self.experts * 2 * self.ffn, self.experts * self.hidden
        deep = np.float32(self.hidden**-0.5)  # products of this size, so that the gates are neither 0 nor linear
        return {
            "x": moe.random_elements(rng, (self.tokens, self.hidden), self.dtype),
            "x_scales": moe.random_scales(rng, self.tokens, self.dtype),
            "logits": self.routing().copy(),
            "w1": moe.random_elements(rng, (rows1, self.hidden), self.dtype),
            "w1_scales": moe.random_scales(rng, rows1, self.dtype) * (4 * deep),
            "w2": moe.random_elements(rng, (rows2, self.ffn), self.dtype),
            "w2_scales": moe.random_scales(rng, rows2, self.dtype) * (4 * np.float32(self.ffn**-0.5)),
        }

    def routing(self) -> Array:
        """The logits (tokens, experts)."""
        return logits_of(self.tokens, self.experts, self.routing_seed)

    def reference(
        self, x: Array, x_scales: Array, logits: Array, w1: Array, w1_scales: Array, w2: Array, w2_scales: Array
    ) -> dict[str, Any]:
        expert, weight = gated(logits, self.top_k, self.renormalize)
        y = np.zeros((self.tokens, self.hidden))

        def results(e: int) -> tuple[Array, Array, Array]:
            token, slot = np.nonzero(expert == e)
            rows1, rows2 = (
                slice(e * 2 * self.ffn, (e + 1) * 2 * self.ffn),
                slice(e * self.hidden, (e + 1) * self.hidden),
            )
            both = moe.sums_of(x[token], w1[rows1]) * x_scales[token].astype(np.float64)[:, None] * w1_scales[rows1]
            both = both.reshape(len(token), self.ffn // BLOCK, 2, BLOCK)
            gate, factor = (both[:, :, i].reshape(len(token), self.ffn) for i in range(2))
            with np.errstate(over="ignore"):
                h, scales = moe.quantized(gate / (1 + np.exp(-gate)) * factor, self.dtype)
            return token, slot, moe.sums_of(h, w2[rows2]) * scales[:, None] * w2_scales[rows2]

        hit = [int(e) for e in np.unique(expert)]
        for some in (hit[i : i + 32] for i in range(0, len(hit), 32)):
            with one_thread(), ThreadPoolExecutor(min(cores(), MOST_THREADS)) as pool:
                for token, slot, found in pool.map(results, some):
                    y[token] += weight[token, slot][:, None] * found
        return {"y": y, "expert": expert, "weight": weight}

    def outputs(self) -> Mapping[str, Any]:
        shape = (self.tokens, self.top_k)
        return {"y": ((self.tokens, self.hidden), "bf16"), "expert": (shape, "s32"), "weight": (shape, "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        pairs, sums = self.pairs, SUMS[self.dtype]
        return {
            "offsets": (self.experts + 1, "s32"),
            "row": (pairs, "s32"),
            "token": (pairs, "s32"),
            "largest": (pairs, "u32"),
            "arrived": (moe.arrived_blocks(pairs, self.experts), "u32"),
            "x_sorted": ((pairs, self.hidden), self.dtype),
            "x_sorted_scales": (pairs, "f32"),
            "h": ((pairs, self.ffn), "f32"),
            "h_bf16": ((pairs, self.ffn), "bf16"),
            "h_quantized": ((pairs, self.ffn), self.dtype),
            "h_scales": (pairs, "f32"),
            "results": ((pairs, self.hidden), "bf16"),
            "parts": ((self.most_parts * pairs, self.hidden), sums),
            "probabilities": ((self.tokens, self.experts), "f32"),
            "of_row": (pairs, "s32"),
            "sums": ((pairs, 2 * self.ffn), sums),
            "both": ((pairs, 2 * self.ffn), "f32"),
            "magnitudes": (pairs, "f32"),
        }

    def work(self) -> Work:
        """The products of the pairs, and the weights of the experts that are hit, each once."""
        # each expert misses all tokens with a probability below exp(-pairs / experts)
        every = self.pairs >= 100 * self.experts
        hit = self.experts if every else len(np.unique(gated(self.routing(), self.top_k, True)[0]))
        weights = hit * (3 * self.hidden * self.ffn + 4 * (2 * self.ffn + self.hidden))
        routed = self.tokens * (4 * self.experts + 8 * self.top_k)
        return Work(
            flops=self.pairs * 6 * self.hidden * self.ffn,
            bytes=weights + self.tokens * (3 * self.hidden + 4) + routed,
            unit=self.dtype,
            sum_length=max(self.hidden, self.ffn),
        )

    @property
    def pairs(self) -> int:
        """Pairs of a token and one of its experts."""
        return self.tokens * self.top_k

    @property
    def expected_experts(self) -> float:
        """The expected number of experts that are hit, if all are equally likely."""
        return float(self.experts * (1 - (1 - self.top_k / self.experts) ** self.tokens))

    @property
    def tokens_of_expert(self) -> float:
        """Expected tokens of an expert that is hit."""
        return self.pairs / self.expected_experts

    @property
    def most_parts(self) -> int:
        """Parts of k for which there is memory."""
        return max(PARTS) if self.pairs <= MOST_PAIRS else 1

    @property
    def first(self) -> Product:
        """The product with gates and factors, whose tokens are in their own order."""
        return Product(
            self.device,
            self.dtype,
            "f32",
            *(self.pairs, 2 * self.ffn, self.hidden),
            a="x",
            b="w1",
            a_scales="x_scales",
            b_scales="w1_scales",
            out="h",
            token="token",
            offsets="offsets",
            experts=self.experts,
            swiglu=True,
        )

    @property
    def second(self) -> Product:
        """The product with the down projection."""
        return Product(
            self.device,
            self.dtype,
            "bf16",
            *(self.pairs, self.hidden, self.ffn),
            a="h_quantized",
            b="w2",
            a_scales="h_scales",
            b_scales="w2_scales",
            out="results",
            offsets="offsets",
            experts=self.experts,
        )

    def wide(self, promoted: bool = False) -> str:
        """The type of the intermediate results before their quantization, see :data:`two_launches.WIDE`; f32 for accurate
        sums, of which it would be the largest error."""
        return "f32" if promoted else two_launches.WIDE[self.dtype]

    def sorted_first(self, form: str) -> Product:
        """The first product with tokens in the order of their rows, for TMA."""
        in_rows = replace(self.first, a="x_sorted", a_scales="x_sorted_scales", token=NULL, format=form)
        if form == "bf16":
            return replace(in_rows, out="h_bf16")
        return replace(in_rows, out="h_quantized", scales="h_scales") if form == "own" else in_rows

    def by_warp(self, kernel: str, args: tuple[object, ...], template: tuple[object, ...] = ()) -> Launch:
        """A launch with a warp per token."""
        return Launch(
            kernel, cdiv(self.tokens, GATE_THREADS // 32), GATE_THREADS, args, template=(GATE_THREADS, *template)
        )

    @property
    def logits_of_lane(self) -> int:
        """Logits of a token that a lane keeps in registers, rounded up to a power of two, for few different programs."""
        return 1 << (cdiv(self.experts, 32) - 1).bit_length()

    def sort(self, clear: bool = False) -> Launch:
        """The launch that sorts the pairs by expert. clear: it sets the magnitudes and counters of the products to 0."""
        cleared = ("largest", "arrived") if clear else (NULL, NULL)
        blocks = moe.arrived_blocks(self.pairs, self.experts)
        args = ("expert", "offsets", "row", "token", *cleared, self.pairs, self.top_k, blocks)
        threads = min(SORT_THREADS, 32 * cdiv(self.pairs, 32))
        return Launch("moe_sort", self.experts, threads, args, template=(threads,))

    def route(self, clear: bool = False) -> list[Launch]:
        """Gating and sorting. clear: see :meth:`sort`."""
        args = ("logits", "expert", "weight", self.tokens, self.experts, self.top_k)
        return [self.by_warp("moe_gate", args, (self.logits_of_lane, self.renormalize)), self.sort(clear)]

    @property
    def permute(self) -> Launch:
        """The launch that copies the tokens to their rows."""
        args = ("x", "x_scales", "token", "x_sorted", "x_sorted_scales", self.hidden)
        return Launch("moe_permute", self.pairs, 128, args, template=(128,))

    def requantize(self, wide: str = "f32") -> Launch:
        """The launch that quantizes the intermediate results, which are of this type."""
        vectors = 2 if self.ffn <= 2048 else 14
        name, cu = ("h", "float") if wide == "f32" else ("h_bf16", "ptxkit::bf16")
        args = (name, "h_quantized", "h_scales", self.ffn)
        return Launch("moe_requantize", self.pairs, 256, args, template=(TYPES[self.dtype], cu, 256, vectors))

    @property
    def combine(self) -> Launch:
        """The launch that adds the results of a token's experts."""
        args = ("results", "row", "weight", "y", self.top_k, self.hidden)
        return Launch("moe_combine", (self.tokens, cdiv(self.hidden, 8 * 128)), 128, args, template=(128,))

    def wgmma(
        self, first: Tile, second: Tile, *, parts: int = 1, exchange: bool = False, promoted: bool = False
    ) -> list[Launch]:
        """The chain with products by wgmma."""
        chain = [*self.route(exchange or bool(first.get("DYNAMIC"))), self.permute]
        wide = self.wide(promoted)
        chain.append(replace(self.sorted_first("own" if exchange else wide), promoted=promoted).wgmma(first))
        if not exchange:
            chain.append(self.requantize(wide))
        down = replace(self.second, promoted=promoted)
        if parts == 1:
            return [*chain, down.wgmma(second), self.combine]
        chain.append(replace(down, format="sums", out="parts", parts=parts).wgmma(second))
        args = ("parts", "row", "expert", "weight", "h_scales", "w2_scales", "y", self.pairs, self.top_k, self.hidden)
        grid = (self.tokens, cdiv(self.hidden, 128))
        chain.append(Launch("moe_combine_parts", grid, 128, args, template=(TYPES[self.dtype], 128, parts)))
        return chain

    @variant(requires=("sm_80",), constraint=lambda w, t: w.first.usable_mma(w.plain_tile))
    def unfused(self) -> list[Launch]:
        """A launch for each operation; sums, gates and factors go through device memory."""
        pairs, cu = self.pairs, TYPES[self.dtype]
        softmax = ("logits", "probabilities", self.tokens, self.experts)
        top_k = ("logits", "probabilities", "expert", "weight", self.tokens, self.experts, self.top_k)
        raw = replace(self.sorted_first("sums"), out="sums", swiglu=False)
        down = replace(self.second, format="sums", out="parts")
        gate = [self.by_warp("gate_softmax", softmax), self.by_warp("gate_top_k", top_k, (self.logits_of_lane,))]
        if self.renormalize:
            grid = cdiv(self.tokens, 128)
            gate.append(Launch("gate_normalize", grid, 128, ("weight", self.tokens, self.top_k), template=(128,)))
        first = ("sums", "x_sorted_scales", "w1_scales", "of_row", "both", 2 * self.ffn)
        second = ("parts", "h_scales", "w2_scales", "of_row", "results", self.hidden)
        return [
            *gate,
            self.sort(),
            Launch("row_experts", cdiv(pairs, 256), 256, ("expert", "row", "of_row", pairs), template=(256,)),
            self.permute,
            raw.mma(self.plain_tile),
            Launch("dequantize_sums", pairs, 256, first, template=(cu, "float", 256)),
            Launch("swiglu_blocks", pairs, 256, ("both", "h", self.ffn), template=(256,)),
            moe.by_row("row_scales", pairs, ("h", "magnitudes", "h_scales", self.ffn), (cu, "float")),
            moe.by_row("quantize_row", pairs, ("h", "magnitudes", "h_scales", "h_quantized", self.ffn), (cu, "float")),
            down.mma(self.plain_tile),
            Launch("dequantize_sums", pairs, 256, second, template=(cu, "ptxkit::bf16", 256)),
            self.combine,
        ]

    @property
    def plain_tile(self) -> Tile:
        """The tile of the unfused products, and of the second one of step 1."""
        tile = next(iter(moe.mma_tiles(self.tokens_of_expert)))
        return Tile({**tile, "GROUP": 8})

    @variant(requires=("sm_80",), tile=moe.MMA_TILE, constraint=usable_mma, prefer=preferred_mma)
    def step1_mma(self, t: Tile) -> list[Launch]:
        """Grouped products by mma.sync; SwiGLU in the epilogue of the first, the tokens of which are gathered by cp.async."""
        return [*self.route(), self.first.mma(t), self.requantize(), self.second.mma(t), self.combine]

    @variant(requires=WGMMA, tolerance=wgmma_tolerance)
    def step2_wgmma(self) -> list[Launch]:
        """Tokens are copied in the order of their experts, then TMA and wgmma on tiles of 128 weights x 128 tokens."""
        return self.wgmma(FIXED, FIXED)

    @variant(requires=WGMMA, tile=TAKEN, constraint=usable_wgmma, prefer=preferred_wgmma, tolerance=wgmma_tolerance)
    def step3_fitted(self, t: Tile) -> list[Launch]:
        """Tiles as small as the experts' tokens; for few tokens, k of the second product is divided into parts."""
        return self.wgmma(t, down(t), parts=t.PARTS)

    @variant(
        requires=WGMMA,
        tile=FITTED,
        constraint=usable_exchange,
        prefer=preferred_general,
        slower=lambda w: "with the same tile, the exchange took longer than a second launch (docs/moe.md)",
    )
    def step4_quantized(self, t: Tile) -> list[Launch]:
        """The first product quantizes its results: CTAs exchange the largest magnitudes of tokens through device memory."""
        return self.wgmma(t, down(t), parts=t.PARTS, exchange=True)

    @variant(
        requires=WGMMA,
        tile=PROMOTED,
        constraint=usable_promoted,
        prefer=preferred_promoted,
        slower=lambda w: (
            "adding sums of e4m3 products in f32 takes time, and makes the results more accurate (docs/moe.md)"
        ),
        tolerance=lambda w: requantized_tolerance(w, moe.DEPTH),
    )
    def step5_promoted(self, t: Tile) -> list[Launch]:
        """Step 3 with accurate sums of e4m3: those of 128 products leave the tensor cores and are added in f32."""
        return self.wgmma(t, down(t), parts=t.PARTS, promoted=True)


@lru_cache(maxsize=8)
def logits_of(tokens: int, experts: int, seed: int) -> Array:
    """Standard normal logits (tokens, experts), which must not be changed."""
    return np.random.default_rng((seed, tokens, experts)).standard_normal((tokens, experts), dtype=np.float32)


def gated(logits: Array, top_k: int, renormalize: bool) -> tuple[Array, Array]:
    """The experts (tokens, top_k) in descending order of their logits, lower experts first where these are equal, and their
    weights in float64."""
    expert = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    terms = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(terms, expert, axis=1)
    return expert.astype(np.int32), chosen / (chosen if renormalize else terms).sum(axis=1, keepdims=True)
