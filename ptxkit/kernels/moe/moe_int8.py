"""moe_int8: the product of quantized tokens with the quantized weights of one expert, quantized again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, variant
from ptxkit.kernels.gemm import matmul_mma, s8_sums
from ptxkit.kernels.moe import fitted, two_launches
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe.product import NULL, TYPES, Array, Dtype, Product

DENSE = Tile({"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 32, "STAGES": 4, "GROUP": 16})  # matmul_mma, step 5


def usable_mma(w: MoeInt8, t: Tile) -> bool | str:
    """The constraint of step 1."""
    return w.product.usable_mma(t)


def preferred_mma(w: MoeInt8) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 1 by the number of tokens."""
    yield from moe.mma_tiles(w.m)


def usable_wgmma(w: MoeInt8, t: Tile) -> bool | str:
    """The constraint of step 2."""
    return w.product.usable_wgmma(t)


def preferred_wgmma(w: MoeInt8) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 2 by the number of tokens."""
    yield from moe.wgmma_tiles(w.product, w.m)


def usable_two(w: MoeInt8, t: Tile) -> bool | str:
    """The constraint of step 3."""
    return reason if (reason := two_launches.usable(w)) is not True else two_launches.product(w).usable_wgmma(t)


def preferred_two(w: MoeInt8) -> Iterator[Mapping[str, Any]]:
    """Tiles of step 3 by the number of tokens."""
    yield from moe.wgmma_tiles(two_launches.product(w), w.m)


DEQUANTIZED = 5.7 * 2**0.5 * 0.0026 * 1.25
"""Error of a sum of products of numbers that were rounded to bf16, relative to the mean magnitude of such sums: two roundings
for each product, 5.7 standard deviations for the largest of 67 million sums, 1.25 means for a standard deviation.

A rounding to bf16 has a root mean square error of 0.0016 of normally distributed numbers. Elements times their scale are
different: an e4m3 element has one of 8 significands, and for some scales all of their products with it lie far from a bf16
number. The largest root mean square over scales from 1 to 2 is 0.0025.
"""


def dequantized_tolerance(w: MoeInt8) -> Mapping[str, Tolerance]:
    """The tolerance of the unfused chain, whose product is rounded to bf16 before its quantization.

    That rounding, of up to 2^-8, and the error of the scale are at most an eighth of a quantization step of e4m3. Among fewer
    than 16 tokens, the typical magnitude of a column is not known: its scale may be 1.5 times the typical one
    (``random_scales``).
    """
    of_sums = DEQUANTIZED * (1 if w.m >= 16 else 1.5)
    rounded = {
        "s8": Tolerance(absolute=0.5, relative=2**-7, typical=of_sums),
        "e4m3": Tolerance(ulp=0.5 + 1 / 8, typical=of_sums),
    }[w.dtype]
    wide = Tolerance(relative=2**-7, typical=of_sums)
    scales = {"scales": Tolerance(relative=2**-7, typical=of_sums)} if w.output == "token" else {}
    return {"out": wide if w.output == "bf16" else rounded, **scales}


class MoeInt8(Workload):
    """out = a_scales (a b^T) b_scales, quantized per token: a (m, k) tokens, b (n, k) weights of one expert, 8-bit elements.

    ``a_scales`` (m) are per token, ``b_scales`` (n) per output channel. With ``output="token"`` the results are elements of
    ``dtype`` and a scale per token, its largest magnitude divided by 127 (s8) or 448 (e4m3); with ``"given"`` the scales of the
    tokens are an input; with ``"bf16"`` the results are not quantized.
    """

    source = moe.SOURCE
    m: int = 4096
    n: int = 14336
    k: int = 4096
    dtype: Dtype = "s8"
    output: Literal["token", "given", "bf16"] = "token"
    emulator_sizes = {"m": 96, "n": 256, "k": 256}
    benchmarks = (
        {},
        {"dtype": "e4m3"},
        {"output": "bf16"},
        {"m": 1},
        {"m": 16},
        {"m": 256},
        {"n": 2048, "k": 7168},
    )

    @property
    def tolerance(self) -> Mapping[str, Tolerance] | None:  # type: ignore[override]  # depends on the type here
        """Sums of s8 are exact, and their products with the scales have the precision of f32. The reference is not rounded, so
        that a result is within half of it: a tie, or a value next to it, may become either integer. e4m3 has the default, which
        includes the precision of the sums."""
        if self.dtype == "e4m3" or self.output == "bf16":
            return None
        scales = {"scales": Tolerance(relative=1e-5)} if self.output == "token" else {}
        return {"out": Tolerance(absolute=0.5, relative=2**-20), **scales}

    def constraints(self) -> Iterable[str]:
        for name in ("n", "k"):
            if getattr(self, name) % 16:
                yield f"{name} must be a multiple of 16, so that rows are multiples of 16 bytes"
        for name, rows, cols in (("a", self.m, self.k), ("b", self.n, self.k), ("the output", self.m, self.n)):
            if rows * cols >= 2**36:
                yield f"{name} is too large"
        yield from s8_sums.refused(self.dtype, k=self.k)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        given = {
            "a": moe.random_elements(rng, (self.m, self.k), self.dtype),
            "b": moe.random_elements(rng, (self.n, self.k), self.dtype),
            "a_scales": moe.random_scales(rng, self.m, self.dtype),
            "b_scales": moe.random_scales(rng, self.n, self.dtype),
        }
        if (
            self.output == "given"
        ):  # three standard deviations are the largest magnitude, so that a few results are limited
            spread = np.float32(self.k**0.5 / moe.LARGEST[self.dtype])
            given["scales"] = spread * (rng.random(self.m, dtype=np.float32) + np.float32(0.5))
        return given

    def reference(
        self, a: Array, b: Array, a_scales: Array, b_scales: Array, scales: Array | None = None
    ) -> dict[str, Any]:
        c = moe.sums_of(a, b) * a_scales.astype(np.float64)[:, None] * b_scales.astype(np.float64)
        if self.output == "bf16":
            return {"out": c}
        q, found = moe.in_steps(c, self.dtype, None if scales is None else scales.astype(np.float64))
        return {"out": q} if scales is not None else {"out": q, "scales": found}

    def outputs(self) -> Mapping[str, Any]:
        if self.output == "bf16":
            return {"out": ((self.m, self.n), "bf16")}
        scales = {"scales": (self.m, "f32")} if self.output == "token" else {}
        return {"out": ((self.m, self.n), self.dtype), **scales}

    def temporaries(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"a_wide": ((self.m, self.k), "bf16"), "b_wide": ((self.n, self.k), "bf16")}
        if self.output != "bf16":
            found["c_wide"] = ((self.m, self.n), "bf16")
        if self.output == "token":
            found["magnitudes"] = (self.m, "f32")
            found["wide"] = ((self.m, self.n), two_launches.WIDE[self.dtype])
            found["largest"] = (self.m, "u32")
            found["arrived"] = (moe.arrived_blocks(self.m, 1), "u32")
        return {**found, **fitted.temporaries(self)}

    def work(self) -> Work:
        size = 2 if self.output == "bf16" else 1
        scales = 4 * (self.m + self.n + (self.m if self.output != "bf16" else 0))
        moved = (self.m + self.n) * self.k + self.m * self.n * size + scales
        return Work(flops=2 * self.m * self.n * self.k, bytes=moved, unit=self.dtype, sum_length=self.k)

    @property
    def product(self) -> Product:
        """The product in one launch."""
        return Product(
            self.device,
            self.dtype,
            {"token": "own", "given": "given", "bf16": "bf16"}[self.output],
            *(self.m, self.n, self.k),
            scales=NULL if self.output == "bf16" else "scales",
        )

    def launches(self, launch: Launch) -> list[Launch]:
        """The product, after a launch that clears what its CTAs exchange, if they do."""
        return [moe.clear_launch(self.m, 1), launch] if self.output == "token" else [launch]

    @variant(
        requires=("sm_80",),
        constraint=lambda w, t: w.product.has_type(),
        tolerance=dequantized_tolerance,
    )
    def unfused(self) -> list[Launch]:
        """Dequantize a and b to bf16, multiply (matmul_mma, step 5), find the scale of each token, quantize."""
        cu, wide = TYPES[self.dtype], "ptxkit::bf16"
        c = "out" if self.output == "bf16" else "c_wide"
        chain = [
            moe.by_row("dequantize_rows", self.m, ("a", "a_scales", "a_wide", self.k), (cu,)),
            moe.by_row("dequantize_rows", self.n, ("b", "b_scales", "b_wide", self.k), (cu,)),
            Launch(
                "matmul_mma_pipelined",
                cdiv(self.m, DENSE.BM) * cdiv(self.n, DENSE.BN),
                32 * matmul_mma.warps(DENSE),
                ("a_wide", "b_wide", c, NULL, self.m, self.n, self.k, np.float32(1), np.float32(0)),
                shared=matmul_mma.shared_bytes(DENSE, coalesced=True),
                source="matmul_mma.cu",
                template=(wide, matmul_mma.MmaTile(**DENSE), True, True, 0),
            ),
        ]
        if self.output == "token":
            chain.append(moe.by_row("row_scales", self.m, (c, "magnitudes", "scales", self.n), (cu, wide)))
        if self.output != "bf16":
            magnitudes = "magnitudes" if self.output == "token" else NULL
            chain.append(moe.by_row("quantize_row", self.m, (c, magnitudes, "scales", "out", self.n), (cu, wide)))
        return chain

    @variant(requires=("sm_80",), tile=moe.MMA_TILE, constraint=usable_mma, prefer=preferred_mma)
    def step1_mma(self, t: Tile) -> list[Launch]:
        """mma.sync on 8-bit operands; the epilogue scales the sums and quantizes them in registers."""
        return self.launches(self.product.mma(t))

    @variant(requires=("sm_90a",), tile=moe.WGMMA_TILE, constraint=usable_wgmma, prefer=preferred_wgmma)
    def step2_wgmma(self, t: Tile) -> list[Launch]:
        """TMA and wgmma with warp specialization; the number of tokens in a tile follows from that of the tokens."""
        return self.launches(self.product.wgmma(t))

    @variant(
        requires=("sm_90a",),
        tile=moe.WGMMA_TILE,
        constraint=usable_two,
        prefer=preferred_two,
        tolerance=two_launches.tolerance,
        slower=two_launches.slower_two,
    )
    def step3_two_launches(self, t: Tile) -> list[Launch]:
        """The product stores its results in bf16, or f32 for s8; another launch finds the scale of each token and quantizes."""
        quantize = two_launches.quantize_launch(self, "wide", two_launches.WIDE[self.dtype])
        return [two_launches.product(self).wgmma(t), quantize]

    @variant(
        requires=("sm_90a",),
        constraint=fitted.usable,
        tolerance=fitted.tolerance,
        slower=fitted.slower,
    )
    def step4_fitted(self) -> list[Launch]:
        """The product that matmul_fused takes for these sizes, and for quantized results the second launch of step 3."""
        return fitted.launches(self)
