"""cutlass_gemm: matrix product whose kernel NVIDIA's CUTLASS writes, for CUDA cores, mma.sync, wgmma and tcgen05."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.cutlass.block_scaled import scale_bytes, scale_places
from ptxkit.cutlass.description import (
    BITS,
    OUTPUTS,
    GemmDescription,
    complaint_of_types,
    default_alignment,
    output_alignment,
)
from ptxkit.cutlass.formats import FORMATS
from ptxkit.cutlass.program import GemmProgram
from ptxkit.errors import DescriptionError
from ptxkit.kernels.elementwise.elementwise import activation
from ptxkit.kernels.gemm.matmul import LARGE, LARGEST_FACTOR
from ptxkit.kernels.gemm.product import Gemm, HasLayout, Layout

Describe = Callable[["CutlassGemm", Tile], GemmDescription]

WARP_SPACE = {
    "BM": [128, 256, 64],
    "BN": [128, 256, 64],
    "BK": [32, 64, 16, 128],
    "WARPS_M": [2, 4, 1],
    "WARPS_N": [2, 4, 1],
}
TMA_SPACE = {
    "BM": [128, 256, 64],
    "BN": [128, 256, 64, 192],
    "CLUSTER_M": [2, 1, 4],
    "CLUSTER_N": [1, 2],
    "STAGES": [0, 3, 4, 5, 6],  # 0: as many as fit
}


def unpacked(packed: Any) -> Any:
    """(rows, 2 n) values of type e2m1, of (rows, n) bytes."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1).view(ml_dtypes.float4_e2m1fn)


def usable(arch: int, schedule: str, describe: Describe) -> Callable[[CutlassGemm, Tile], str | bool]:
    """The constraint of a variant: types and layouts that the schedule multiplies, sizes that are multiples of its alignment,
    and a tile that makes a valid description. The tile is read last, so that one refusal stands for all tiles."""

    def check(w: CutlassGemm, t: Tile) -> str | bool:
        if (reason := complaint_of_types(arch, schedule, w.dtype, w.a_layout, w.b_layout)) is not None:
            return reason
        alignment = default_alignment(schedule, w.dtype)
        contiguous = {
            "k": w.a_layout == "row" or w.b_layout == "column",
            "m": w.a_layout == "column",
            "n": w.b_layout == "row",
        }
        for name, along in contiguous.items():
            if along and w.sizes[name] % alignment:
                return f"{name}={w.sizes[name]} must be a multiple of {alignment}"
        if w.n % (multiple := output_alignment(alignment, w.dtype, w.output)):
            return f"n={w.n} must be a multiple of {multiple}"
        try:
            describe(w, t)
        except DescriptionError as error:
            return str(error).partition(": ")[2]  # without the description's name, which repeats the tile
        return True

    return check


def simt(w: CutlassGemm, t: Tile) -> GemmDescription:
    """The description of a product on the CUDA cores."""
    return w.describe(80, "simt", tile=(t.BM, t.BN, t.BK), warps=(t.WARPS_M, t.WARPS_N, 1), stages=2)


def multistage(w: CutlassGemm, t: Tile) -> GemmDescription:
    """mma.sync with cp.async."""
    return w.describe(80, "multistage", tile=(t.BM, t.BN, t.BK), warps=(t.WARPS_M, t.WARPS_N, 1), stages=t.STAGES)


def multistage_f8(w: CutlassGemm, t: Tile) -> GemmDescription:
    """mma.sync with cp.async for 8-bit floats, which need sm_89."""
    return w.describe(89, "multistage", tile=(t.BM, t.BN, t.BK), warps=(t.WARPS_M, t.WARPS_N, 1), stages=t.STAGES)


def tma(arch: int, schedule: str) -> Describe:
    """TMA with wgmma (sm_90) or tcgen05 (sm_100); a stage holds 128 bytes of each row."""

    def describe(w: CutlassGemm, t: Tile) -> GemmDescription:
        depth = 1024 // BITS[w.dtype]
        return w.describe(
            arch, schedule, tile=(t.BM, t.BN, depth), cluster=(t.CLUSTER_M, t.CLUSTER_N, 1), stages=t.STAGES
        )

    return describe


def by_tma(arch: int, schedule: str) -> Callable[[CutlassGemm, Tile], str | bool]:
    """The constraint of a variant that loads by TMA."""
    return usable(arch, schedule, tma(arch, schedule))


def prefer_warps(w: CutlassGemm) -> Iterator[dict[str, Any]]:
    """Large tiles if nearly every SM gets one, else small tiles; a stage holds 64 bytes of each row."""
    depth = 512 // BITS[w.dtype]
    if cdiv(w.m, 128) * cdiv(w.n, 256) >= w.device.sms * 3 // 4:
        yield {"BM": 128, "BN": 256, "BK": depth, "WARPS_M": 2, "WARPS_N": 4, "STAGES": 3}
    if cdiv(w.m, 128) * cdiv(w.n, 128) >= w.device.sms * 3 // 4:
        yield {"BM": 128, "BN": 128, "BK": depth, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 4}
        yield {"BM": 128, "BN": 128, "BK": depth, "WARPS_M": 2, "WARPS_N": 4, "STAGES": 4}  # of 8-bit floats
    yield {"BM": 64, "BN": 64, "BK": depth, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 5}
    yield {"BM": 128, "BN": 128, "BK": depth, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 4}


def prefer_simt(w: CutlassGemm) -> Iterator[dict[str, Any]]:
    """Large tiles if nearly every SM gets one, else small tiles."""
    if cdiv(w.m, 128) * cdiv(w.n, 128) >= w.device.sms * 3 // 4:
        yield {"BM": 128, "BN": 128, "BK": 8, "WARPS_M": 4, "WARPS_N": 2}
    yield {"BM": 64, "BN": 64, "BK": 8, "WARPS_M": 2, "WARPS_N": 2}


def prefer_cooperative(w: CutlassGemm) -> Iterator[dict[str, Any]]:
    """Tiles of 128 x 256 in clusters of two if nearly every SM gets one, else smaller tiles."""
    if cdiv(w.m, 256) * cdiv(w.n, 256) * 2 >= w.device.sms * 3 // 4:
        yield {"BM": 128, "BN": 256, "CLUSTER_M": 2}
    if cdiv(w.m, 256) * 2 * cdiv(w.n, 128) >= w.device.sms * 3 // 4:
        yield {"BM": 128, "BN": 128, "CLUSTER_M": 2}
    yield {"BM": 128, "BN": 128 if w.n > 64 else 64, "CLUSTER_M": 1}


def prefer_pingpong(w: CutlassGemm) -> Iterator[dict[str, Any]]:
    """Tiles of 64 rows: each of the two consumer warpgroups works on a tile of its own."""
    if cdiv(w.m, 64) * cdiv(w.n, 256) >= w.device.sms:
        yield {"BM": 64, "BN": 256, "CLUSTER_M": 2}
    yield {"BM": 64, "BN": 128, "CLUSTER_M": 2 if w.m > 64 else 1}


class CutlassGemm(HasLayout, Workload):
    """c = activation(alpha a b + beta c) by CUTLASS; sums in f32, or int32 for s8.

    ``layout`` gives the layouts of a and b in the notation of BLAS: t is row-major, n column-major. With the default "tn"
    both are contiguous along k. c is row-major.
    """

    m: int = 4096
    n: int = 4096
    k: int = 4096
    alpha: float = 1.0
    beta: float = 0.0
    dtype: Literal["bf16", "f16", "tf32", "f32", "e4m3", "e5m2", "mxf8", "mxf4", "nvf4", "s8"] = "bf16"
    layout: Layout = "tn"
    epilogue: Literal["linear", "relu", "gelu", "silu"] = "linear"
    emulator_sizes = {"m": 128, "n": 128, "k": 128}
    benchmarks = (
        {"m": 1024, "n": 1024, "k": 1024},
        {"m": 2048, "n": 2048, "k": 2048},
        {},
        {"m": 8192, "n": 8192, "k": 8192},
    )

    def constraints(self) -> Iterable[str]:
        for name in ("alpha", "beta"):
            factor = getattr(self, name)
            if self.dtype == "s8" and not (abs(factor) < 2**31 and factor == int(factor)):
                yield f"{name} must be a whole number of 32 bits for s8, not {factor}"
            elif not abs(factor) <= LARGEST_FACTOR:
                yield f"{name} must be a finite number of f32, not {factor}"
        if self.dtype in FORMATS and self.k % 32:
            yield f"k must be a multiple of 32 for {self.dtype}: whole scale factors, and rows of multiples of 16 bytes"
        if self.dtype == "s8" and self.epilogue in ("gelu", "silu"):
            yield f"{self.epilogue} has no meaning for int32"
        for rows, cols in ((self.m, self.k), (self.n, self.k), (self.m, self.n)):
            if rows * cols >= 2**40:
                yield "the matrices are too large"

    @property
    def output(self) -> str:
        """Element type of c."""
        return OUTPUTS[self.dtype][0]

    @property
    def tolerance(self) -> Tolerance | None:  # type: ignore[override]  # by type
        """A relative part for the rounding of the output, and an absolute part for the f32 sums, whose error depends on the
        size of their terms and not of the result."""
        if self.dtype == "s8":
            return None  # exact
        if self.dtype in ("e4m3", "e5m2", *FORMATS):
            # wgmma adds products of 8-bit floats with fewer bits than f32 has
            return Tolerance(relative=2**-8, absolute=5e-2 * self.k**0.5 / 64)
        rounding = {"bf16": 2**-8, "f16": 2**-10, "f32": 2**-16}[self.output]
        return Tolerance(relative=rounding, absolute=5e-3 if self.output != "f32" else 2e-6 * self.k)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        a_shape, b_shape = self.stored(self.m, self.n, self.k)
        given = {"a": self._random(rng, a_shape), "b": self._random(rng, b_shape)}
        if self.dtype in FORMATS:  # scale factors from 1/4 to 4
            lowest, highest = (0x28, 0x48) if FORMATS[self.dtype].scale == "ue4m3" else (125, 129)
            for name, rows in (("a_scales", self.m), ("b_scales", self.n)):
                size = scale_bytes(rows, self.k, FORMATS[self.dtype].block)
                given[name] = rng.integers(lowest, highest, size, np.uint8, endpoint=True)
        if self.beta:
            given["c"] = self._random(rng, (self.m, self.n), self.output)
        return given

    def reference(self, a: Any, b: Any, c: Any = None, a_scales: Any = None, b_scales: Any = None) -> dict[str, Any]:
        """In float64; in float32 from 2^35 multiply-adds, where its error is still far below the tolerance."""
        large = self.m * self.n * self.k >= LARGE and self.dtype != "s8"
        wide = np.float32 if large else np.float64  # of int8, too: every sum below 2^53 is exact
        if BITS[self.dtype] == 4:
            a, b = unpacked(a), unpacked(b)
        a, b = a.astype(wide), b.astype(wide)
        if self.dtype in FORMATS:
            a, b = self._scaled(a, a_scales), self._scaled(b, b_scales)
        result = (a if self.a_layout == "row" else a.T) @ (b if self.b_layout == "row" else b.T)
        if self.alpha != 1:
            result *= self.alpha
        if c is not None:
            result += self.beta * c.astype(wide)
        if self.epilogue == "relu":
            result = np.maximum(result, 0)
        elif self.epilogue != "linear":
            result = activation(self.epilogue, result)
        return {"c": result.astype(np.int64) if self.dtype == "s8" else result}

    def outputs(self) -> Mapping[str, Any]:
        return {"c": ((self.m, self.n), self.output)}

    def work(self) -> Work:
        operands = (self.m + self.n) * self.k * BITS[self.dtype] // 8
        results = self.m * self.n * BITS[self.output] // 8 * (2 if self.beta else 1)
        return Work(flops=2 * self.m * self.n * self.k, bytes=operands + results, unit=self.dtype)

    def gemm(self) -> Gemm | None:
        """The product as libraries compute it; None if no library computes it."""
        if self.dtype in ("e4m3", "e5m2", *FORMATS):
            return None
        return Gemm(
            *(self.m, self.n, self.k),
            a_transposed=self.a_layout == "column",
            b_transposed=self.b_layout == "column",
            alpha=self.alpha,
            beta=self.beta,
            activation="none" if self.epilogue == "linear" else self.epilogue,
            compute="tf32" if self.dtype == "tf32" else "s32" if self.dtype == "s8" else "f32",
        )

    def describe(self, arch: Any, schedule: str, **parts: Any) -> GemmDescription:
        """A description of this product."""
        return GemmDescription(
            arch=arch,
            schedule=schedule,
            dtype=self.dtype,
            a_layout=self.a_layout,
            b_layout=self.b_layout,
            epilogue=self.epilogue,
            **parts,
        )

    def launches(self, d: GemmDescription) -> list[Launch]:
        """The one launch of a description."""
        return [GemmProgram(d, self.m, self.n, self.k, self.alpha, self.beta).launch()]

    @variant(
        requires=["sm_80"],
        tile={**WARP_SPACE, "BK": [8]},
        constraint=usable(80, "simt", simt),
        prefer=prefer_simt,
    )
    def simt(self, t: Tile) -> list[Launch]:
        """f32 on the CUDA cores."""
        return self.launches(simt(self, t))

    @variant(
        requires=["sm_80"],
        tile={**WARP_SPACE, "STAGES": [4, 3, 5, 6]},
        constraint=usable(80, "multistage", multistage),
        prefer=prefer_warps,
    )
    def multistage(self, t: Tile) -> list[Launch]:
        """mma.sync fed by cp.async, of sm_80."""
        return self.launches(multistage(self, t))

    @variant(
        requires=["sm_89"],
        tile={**WARP_SPACE, "STAGES": [4, 3, 5, 6]},
        constraint=usable(89, "multistage", multistage_f8),
        prefer=prefer_warps,
    )
    def multistage_f8(self, t: Tile) -> list[Launch]:
        """mma.sync of 8-bit floats, of sm_89."""
        return self.launches(multistage_f8(self, t))

    @variant(
        requires=["sm_100a", "tcgen05"],
        tile={**TMA_SPACE, "CLUSTER_M": [1, 2, 4]},
        constraint=by_tma(100, "one_sm"),
    )
    def one_sm(self, t: Tile) -> list[Launch]:
        """TMA and tcgen05, without CTA pairs."""
        return self.launches(tma(100, "one_sm")(self, t))

    @variant(
        requires=["sm_100a", "tcgen05"],
        tile={**TMA_SPACE, "BM": [256]},
        constraint=by_tma(100, "two_sm"),
    )
    def two_sm(self, t: Tile) -> list[Launch]:
        """TMA and tcgen05 with CTA pairs: two SMs work on one tile."""
        return self.launches(tma(100, "two_sm")(self, t))

    @variant(
        requires=["sm_100a", "tcgen05"],
        tile={**TMA_SPACE, "CLUSTER_M": [1, 2, 4]},
        constraint=by_tma(100, "one_sm_stream_k"),
    )
    def one_sm_stream_k(self, t: Tile) -> list[Launch]:
        """As one_sm, with the last wave of tiles split along k among all SMs."""
        return self.launches(tma(100, "one_sm_stream_k")(self, t))

    @variant(requires=["sm_90a"], tile=TMA_SPACE, constraint=by_tma(90, "stream_k"), prefer=prefer_cooperative)
    def stream_k(self, t: Tile) -> list[Launch]:
        """As cooperative, with the last wave of tiles split along k among all SMs."""
        return self.launches(tma(90, "stream_k")(self, t))

    @variant(requires=["sm_90a"], tile=TMA_SPACE, constraint=by_tma(90, "pingpong"), prefer=prefer_pingpong)
    def pingpong(self, t: Tile) -> list[Launch]:
        """TMA and wgmma: of two consumer warpgroups, one multiplies while the other stores."""
        return self.launches(tma(90, "pingpong")(self, t))

    @variant(requires=["sm_90a"], tile=TMA_SPACE, constraint=by_tma(90, "cooperative"), prefer=prefer_cooperative)
    def cooperative(self, t: Tile) -> list[Launch]:
        """TMA and wgmma: two consumer warpgroups share a tile."""
        return self.launches(tma(90, "cooperative")(self, t))

    def _scaled(self, elements: Any, scales: Any) -> Any:
        """(rows, k) elements with the scale factors of their blocks."""
        format_ = FORMATS[self.dtype]
        codes = scales[scale_places(len(elements), self.k, format_.block)]
        if format_.scale == "ue4m3":
            factors = codes.view(ml_dtypes.float8_e4m3fn).astype(elements.dtype)
        else:
            factors = np.ldexp(elements.dtype.type(1), codes.astype(np.int32) - 127)
        return elements * np.repeat(factors, format_.block, axis=1)[:, : self.k]

    def _random(self, rng: np.random.Generator, shape: tuple[int, int], dtype: str = "") -> Any:
        """Values that the type represents exactly, so that the kernel does not round them: for tf32, float32 with 10
        mantissa bits."""
        dtype = dtype or self.dtype
        if dtype == "s8":
            return rng.integers(-128, 128, shape, np.int8)
        if BITS[dtype] == 4:  # two elements in a byte, the first one in the lower half
            return rng.integers(0, 256, (shape[0], shape[1] // 2), np.uint8)
        if dtype == "mxf8":
            dtype = "e4m3"
        if dtype == "s32":
            return rng.integers(-(1 << 16), 1 << 16, shape, np.int32)
        if dtype != "tf32":
            return uniform(rng, shape, dtype)
        values = uniform(rng, shape)
        return (values.view(np.uint32) & np.uint32(0xFFFF_E000)).view(np.float32)
