"""matmul_block_scaled: product of matrices that are quantized in blocks, to MXFP8, MXFP4 or NVFP4, on Blackwell's tensor cores.

``mma_sync`` is the block-scaled step of ``matmul_mma``, for sm_120a; the other variants use tcgen05.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.gemm import matmul_mma
from ptxkit.kernels.gemm.matmul_mma import MmaTile
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import TENSOR_MEMORY_COLUMNS
from ptxkit.workload.inputs import dtype_of

BM = 128  # rows of c that a CTA computes
ROW_BYTES = 128  # of a row of a tile of a or b in shared memory
SCALE_BYTES = 512  # scale factors are stored for 128 rows and four blocks
REQUIRES = ("tcgen05",)


@dataclass(frozen=True)
class Format:
    """A block-scaled format; see cu/ptxkit/gemm/block_scale.cuh.

    Attributes:
        struct: its name there. bits: of an element. block: elements with a common scale factor.
        elements, scales: ml_dtypes types. largest: finite element.
    """

    struct: str
    bits: int
    block: int
    elements: str
    scales: str
    largest: float


FORMATS = {
    "mxf8": Format("ptxkit::mxf8", 8, 32, "float8_e4m3fn", "float8_e8m0fnu", 448.0),
    "mxf8_e5m2": Format("ptxkit::mxf8_e5m2", 8, 32, "float8_e5m2", "float8_e8m0fnu", 57344.0),
    "mxf4": Format("ptxkit::mxf4", 4, 32, "float4_e2m1fn", "float8_e8m0fnu", 6.0),
    "nvf4": Format("ptxkit::nvf4", 4, 16, "float4_e2m1fn", "float8_e4m3fn", 6.0),
}


def dequantized(x: np.ndarray[Any, Any], form: Format) -> np.ndarray[Any, Any]:
    """A matrix as its quantization represents it, in float64.

    A block's scale factor is its largest magnitude divided by ``form.largest`` in float32: for MXFP8 and MXFP4 rounded up to
    a power of two, for NVFP4 to the nearest e4m3, at most 448. Elements are divided by it in float32 and rounded to the
    nearest, ties to even.
    """
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, form.block)
    share = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(form.largest)
    if form.scales == "float8_e8m0fnu":
        mantissa, exponent = np.frexp(share)  # share = mantissa * 2^exponent, mantissa in [0.5, 1)
        power = np.where(mantissa == 0.5, exponent - 1, exponent)
        scale = np.ldexp(np.float32(1), np.clip(np.where(share == 0, -127, power), -127, 127))
    else:
        scale = np.minimum(share, np.float32(448)).astype(dtype_of("e4m3")).astype(np.float32)
    safe = np.where(scale == 0, np.float32(1), scale)
    quantized = np.where(scale == 0, np.float32(0), blocks / safe)
    limited = np.clip(quantized, -form.largest, form.largest)
    elements = limited.astype(dtype_of(form.elements)).astype(np.float64)
    return np.asarray(elements * scale.astype(np.float64)).reshape(x.shape)


@dataclass(frozen=True)
class BlockScaledTile(TemplateStruct):
    """``BlockScaledTile`` of cu/kernels/matmul_block_scaled.cu."""

    BN: int
    CTAS: int
    STAGES: int
    ACCUMULATORS: int
    GROUP: int


def scale_groups(form: Format) -> int:
    """Groups of four scale factors of a row of a tile."""
    return ROW_BYTES * 8 // form.bits // form.block // 4


def shared_bytes(form: Format, t: Tile) -> int:
    """Dynamic shared memory of a CTA: ``Layout`` of the kernels."""
    used = (BM + t.BN // t.CTAS) * ROW_BYTES + (1 + t.BN // 128) * scale_groups(form) * SCALE_BYTES
    return int(t.STAGES * cdiv(used, 1024) * 1024 + 16 * t.STAGES + 16 * t.ACCUMULATORS + 8)


def usable(w: MatmulBlockScaled, t: Tile) -> bool | str:
    """The constraint of steps 2 and 3."""
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := shared_bytes(w.form, t)) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    scales = t.STAGES * scale_groups(w.form) * 4 * (1 + t.BN // 128)
    if (columns := t.ACCUMULATORS * t.BN + scales) > TENSOR_MEMORY_COLUMNS:
        return f"needs {columns} columns of tensor memory, more than {TENSOR_MEMORY_COLUMNS}"
    return True


def mma_tile(t: Tile) -> MmaTile:
    """The tile of ``mma_sync``, whose rows are counted in 16-bit units."""
    return MmaTile(BM, t.BN, ROW_BYTES // 2, t.WM, t.WN, t.STAGES, t.GROUP)


def mma_shared_bytes(form: Format, t: Tile) -> int:
    """Dynamic shared memory of a CTA of ``mma_sync``."""
    return int(t.STAGES * ((BM + t.BN) * ROW_BYTES + 2 * scale_groups(form) * SCALE_BYTES))


def usable_mma(w: MatmulBlockScaled, t: Tile) -> bool | str:
    """The constraint of ``mma_sync``."""
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := mma_shared_bytes(w.form, t)) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


class MatmulBlockScaled(Workload):
    """c = a b^T: a (m, k) and b (n, k) in bf16 are quantized in blocks and then multiplied."""

    source = "matmul_block_scaled.cu"
    m: int = 4096
    n: int = 4096
    k: int = 4096
    format: Literal["mxf8", "mxf8_e5m2", "mxf4", "nvf4"] = "mxf8"
    emulator_sizes = {"m": 256, "n": 256, "k": 256}
    benchmarks = ({}, {"m": 8192, "n": 8192, "k": 8192})

    @property
    def form(self) -> Format:
        """The format of the quantized matrices."""
        return FORMATS[self.format]

    def constraints(self) -> Iterable[str]:
        if self.n % 8:
            yield "n must be a multiple of 8, so that rows of c are multiples of 16 bytes"
        if self.k % 32:
            yield "k must be a multiple of 32: whole blocks, and rows of multiples of 16 bytes"
        for name, rows in (("m", self.m), ("n", self.n)):
            if rows > 65_408:
                yield f"{name} must be at most 65408, since a grid has a row for each"
        for name, rows, cols in (("a", self.m, self.k), ("b", self.n, self.k), ("c", self.m, self.n)):
            if rows * cols >= 2**40:
                yield f"{name} is too large"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"a": uniform(rng, (self.m, self.k), "bf16"), "b": uniform(rng, (self.n, self.k), "bf16")}

    def reference(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, Any]:
        """The product of the dequantized matrices in float64."""
        return {"c": dequantized(a, self.form) @ dequantized(b, self.form).T}

    def outputs(self) -> Mapping[str, Any]:
        return {"c": ((self.m, self.n), "bf16")}

    def temporaries(self) -> Mapping[str, Any]:
        bits, block = self.form.bits, self.form.block
        sizes: dict[str, Any] = {}
        for name, rows in (("a", self.m), ("b", self.n)):
            sizes[f"{name}_q"] = ((rows, self.k * bits // 8), "u8")
            sizes[f"{name}_scales"] = ((cdiv(rows, 128) * cdiv(self.k // block, 4), SCALE_BYTES // 4), "u32")
            sizes[f"{name}_bf16"] = ((rows, self.k), "bf16")
        return sizes

    def work(self) -> Work:
        """The bytes are those of a and b in bf16 and of c; quantized matrices need not leave the chip."""
        elements = (self.m + self.n) * self.k + self.m * self.n
        return Work(flops=2 * self.m * self.n * self.k, bytes=2 * elements, unit=self.format)

    def quantize(self, name: str, rows: int) -> Launch:
        """A launch of ``quantize_blocks``."""
        padded = cdiv(self.k // self.form.block, 4) * 4
        grid = (cdiv(padded, 128), cdiv(rows, 128) * 128)
        args = (name, f"{name}_q", f"{name}_scales", rows, self.k)
        return Launch("quantize_blocks", grid, 128, args, source="quantize_blocks.cu", template=(self.form.struct,))

    @property
    def quantized(self) -> list[Launch]:
        """The launches that quantize a and b."""
        return [self.quantize("a", self.m), self.quantize("b", self.n)]

    def arguments(self, cols: int) -> tuple[object, ...]:
        """The arguments of the products by tcgen05, with boxes of b of that many rows."""
        return (
            TensorMap("a_q", box=(BM, ROW_BYTES), swizzle="128B"),
            TensorMap("b_q", box=(cols, ROW_BYTES), swizzle="128B"),
            *(TensorMap(f"{x}_scales", box=(scale_groups(self.form), SCALE_BYTES // 4)) for x in "ab"),
            "c",
            self.m,
            self.n,
            self.k,
        )

    def specialized(self, t: Tile) -> list[Launch]:
        """Quantization, and a launch of ``matmul_block_scaled_specialized``."""
        tiles = cdiv(self.m, BM * t.CTAS) * cdiv(self.n, t.BN)
        launch = Launch(
            "matmul_block_scaled_specialized",
            t.CTAS * min(tiles, max(1, self.device.sms // t.CTAS)),
            192,
            self.arguments(t.BN // t.CTAS),
            shared=shared_bytes(self.form, t),
            cluster=t.CTAS if t.CTAS > 1 else None,
            template=(self.form.struct, BlockScaledTile(**t)),
        )
        return [*self.quantized, launch]

    @variant(requires=REQUIRES)
    def unfused(self) -> list[Launch]:
        """Quantized, converted back to bf16 in device memory, and multiplied in bf16."""
        blocks = cdiv(self.k // self.form.block, 128)
        back = [
            Launch(
                "dequantize_blocks",
                (blocks, rows),
                128,
                (f"{name}_q", f"{name}_scales", f"{name}_bf16", rows, self.k),
                source="quantize_blocks.cu",
                template=(self.form.struct,),
            )
            for name, rows in (("a", self.m), ("b", self.n))
        ]
        maps = (TensorMap(f"{name}_bf16", box=(BM, 64), swizzle="128B") for name in ("a", "b"))
        product = Launch(
            "matmul_single_issuer",
            (cdiv(self.n, 128), cdiv(self.m, BM)),
            128,
            (*maps, "c", np.uint64(0), self.m, self.n, self.k, np.float32(1), np.float32(0)),
            shared=6 * (BM + 128) * ROW_BYTES + 16 * 6 + 16,
            source="matmul_tcgen05.cu",
            template=("ptxkit::bf16", "ptxkit::bf16", 128, 6, 0),
        )
        return [*self.quantized, *back, product]

    @variant(requires=REQUIRES)
    def step1_single_issuer(self) -> list[Launch]:
        """One thread loads tiles and scale factors and multiplies them; three stages."""
        tile = Tile({"BN": 128, "CTAS": 1, "STAGES": 3, "ACCUMULATORS": 1})
        launch = Launch(
            "matmul_block_scaled_single_issuer",
            (cdiv(self.n, tile.BN), cdiv(self.m, BM)),
            128,
            self.arguments(tile.BN),
            shared=shared_bytes(self.form, tile),
            template=(self.form.struct, tile.BN, tile.STAGES),
        )
        return [*self.quantized, launch]

    @variant(
        requires=REQUIRES,
        tile={
            "BN": [128, 256],  # columns of c in a tile
            "CTAS": [1],  # CTAs that multiply a tile together
            "STAGES": [5, 4, 3, 6],  # of the ring of tiles
            "ACCUMULATORS": [2, 1],  # two of 256 columns would leave no room for scale factors
            "GROUP": [8, 1, 4, 16],  # tile rows before the next columns
        },
        constraint=usable,
    )
    def step2_specialized(self, t: Tile) -> list[Launch]:
        """Persistent CTAs: a warp loads, a warp multiplies, four warps store, with two accumulators."""
        return self.specialized(t)

    @variant(
        requires=REQUIRES,
        tile={
            "BN": [256, 128],
            "CTAS": [2],
            "STAGES": [5, 4, 3, 6],
            "ACCUMULATORS": [1, 2],
            "GROUP": [8, 1, 4, 16],
        },
        constraint=usable,
    )
    def step3_cta_pairs(self, t: Tile) -> list[Launch]:
        """Two CTAs multiply a tile of 256 x 256; TMA multicast loads the scale factors that both need."""
        return self.specialized(t)

    @variant(
        requires=("mma.block_scale", "fp4"),
        tile={
            "BN": [128, 64],  # columns of c in a tile; it has 128 rows
            "WM": [32, 64],  # rows and columns of c that a warp computes
            "WN": [64, 32],
            "STAGES": [3, 2],  # of the ring of tiles
            "GROUP": [8, 1, 4, 16],  # tile rows before the next columns
        },
        constraint=usable_mma,
    )
    def mma_sync(self, t: Tile) -> list[Launch]:
        """mma.sync with block scaling, for sm_120a: cp.async fills a ring of tiles; ldmatrix."""
        tile = mma_tile(t)
        launch = Launch(
            "matmul_mma_block_scaled",
            cdiv(self.m, BM) * cdiv(self.n, t.BN),
            32 * matmul_mma.warps(Tile({"BM": BM, **t})),
            ("a_q", "b_q", "a_scales", "b_scales", "c", self.m, self.n, self.k),
            shared=mma_shared_bytes(self.form, t),
            source="matmul_mma_block_scaled.cu",
            template=(self.form.struct, tile),
        )
        return [*self.quantized, launch]
