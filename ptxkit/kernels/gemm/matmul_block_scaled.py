"""matmul_block_scaled: product of matrices that are quantized in blocks, to MXFP8 or NVFP4, on Blackwell's tensor cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Work, Workload, cdiv, uniform, variant
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
    "nvf4": Format("ptxkit::nvf4", 4, 16, "float4_e2m1fn", "float8_e4m3fn", 6.0),
}


def dequantized(x: np.ndarray[Any, Any], form: Format) -> np.ndarray[Any, Any]:
    """A matrix as its quantization represents it, in float64.

    A block's scale factor is its largest magnitude divided by ``form.largest`` in float32: for MXFP8 rounded up to a power of
    two, for NVFP4 to the nearest e4m3. Elements are divided by it in float32 and rounded to the nearest, ties to even.
    """
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, form.block)
    share = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(form.largest)
    if form.scales == "float8_e8m0fnu":
        mantissa, exponent = np.frexp(share)  # share = mantissa * 2^exponent, mantissa in [0.5, 1)
        power = np.where(mantissa == 0.5, exponent - 1, exponent)
        scale = np.ldexp(np.float32(1), np.clip(np.where(share == 0, -127, power), -127, 127))
    else:
        scale = share.astype(dtype_of("e4m3")).astype(np.float32)
    safe = np.where(scale == 0, np.float32(1), scale)
    quantized = np.where(scale == 0, np.float32(0), blocks / safe)
    limited = np.clip(quantized, -form.largest, form.largest)
    elements = limited.astype(dtype_of(form.elements)).astype(np.float64)
    return np.asarray(elements * scale.astype(np.float64)).reshape(x.shape)


def shared_bytes(form: Format, cols: int, stages: int, accumulators: int) -> int:
    """Dynamic shared memory of a CTA: ``Layout`` of the kernels."""
    groups = ROW_BYTES * 8 // form.bits // form.block // 4
    used = (BM + cols) * ROW_BYTES + (1 + cols // 128) * groups * SCALE_BYTES
    return stages * cdiv(used, 1024) * 1024 + 16 * stages + 16 * accumulators + 8


def usable(w: MatmulBlockScaled, t: Tile) -> bool | str:
    """The constraint of step 2."""
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := shared_bytes(w.form, t.BN, t.STAGES, 2)) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    groups = ROW_BYTES * 8 // w.form.bits // w.form.block // 4
    if (columns := 2 * t.BN + t.STAGES * groups * 4 * (1 + t.BN // 128)) > TENSOR_MEMORY_COLUMNS:
        return f"needs {columns} columns of tensor memory, more than {TENSOR_MEMORY_COLUMNS}"
    return True


class MatmulBlockScaled(Workload):
    """c = a b^T: a (m, k) and b (n, k) in bf16 are quantized in blocks and then multiplied."""

    source = "matmul_block_scaled.cu"
    m: int = 4096
    n: int = 4096
    k: int = 4096
    format: Literal["mxf8", "nvf4"] = "mxf8"
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
            sizes[f"{name}_scales"] = (cdiv(rows, 128) * cdiv(self.k // block, 4) * SCALE_BYTES, "u8")
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
        return Launch("quantize_blocks", grid, 128, args, template=(self.form.struct,))

    @property
    def quantized(self) -> list[Launch]:
        """The launches that quantize a and b."""
        return [self.quantize("a", self.m), self.quantize("b", self.n)]

    def maps(self, cols: int) -> tuple[object, ...]:
        """The arguments of the products on quantized matrices."""
        return (
            TensorMap("a_q", box=(BM, ROW_BYTES), swizzle="128B"),
            TensorMap("b_q", box=(cols, ROW_BYTES), swizzle="128B"),
            "a_scales",
            "b_scales",
            "c",
            self.m,
            self.n,
            self.k,
        )

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
        launch = Launch(
            "matmul_block_scaled_single_issuer",
            (cdiv(self.n, 128), cdiv(self.m, BM)),
            128,
            self.maps(128),
            shared=shared_bytes(self.form, 128, 3, 1),
            template=(self.form.struct, 128, 3),
        )
        return [*self.quantized, launch]

    @variant(
        requires=REQUIRES,
        tile={
            "BN": [128],  # columns of c in a tile; two accumulators of 256 would leave no room for scale factors
            "STAGES": [5, 4, 3, 6],  # of the ring of tiles
            "GROUP": [8, 1, 4, 16],  # tile rows before the next columns
        },
        constraint=usable,
    )
    def step2_specialized(self, t: Tile) -> list[Launch]:
        """Persistent CTAs: a warp loads, a warp multiplies, four warps store, with two accumulators."""
        tiles = cdiv(self.m, BM) * cdiv(self.n, t.BN)
        launch = Launch(
            "matmul_block_scaled_specialized",
            min(tiles, self.device.sms),
            192,
            self.maps(t.BN),
            shared=shared_bytes(self.form, t.BN, t.STAGES, 2),
            template=(self.form.struct, t.BN, t.STAGES, t.GROUP),
        )
        return [*self.quantized, launch]
