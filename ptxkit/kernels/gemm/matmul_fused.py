"""matmul_fused: products by wgmma in five element types, with scales, bias, activation, residual and amax in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.elementwise.elementwise import ACTIVATION_FLOPS, activation
from ptxkit.kernels.gemm import cluster_k, fused_tiles, matmul_wgmma, multicast, s8_sums, stream_k, wgmma_tiles
from ptxkit.kernels.gemm.matmul_wgmma import BY_TMA, ROW_BYTES, STAGED, Operands, WgmmaTile
from ptxkit.kernels.gemm.product import Gemm, HasLayout, Layout
from ptxkit.kernels.measured import cluster_ctas
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.tolerance import Sums

REQUIRES = ("sm_90a",)
PART_THREADS = 256
NULL = np.uint64(0)
LARGEST_S8 = 127

TYPES = {"bf16": "ptxkit::bf16", "f16": "ptxkit::f16", "e4m3": "ptxkit::e4m3"}
TYPES |= {"f32": "float", "s8": "signed char", "s32": "int"}
PARTS = {"scale": 1, "row_scales": 2, "column_scales": 4, "bias": 8, "residual": 16, "largest": 32}
"""Bits of ``Parts`` of the kernel, by the array that a part reads or writes."""
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3, "silu_mul": 4}
"""``Activation`` of the kernel."""
SCALES = {
    "none": (),
    "tensor": ("scale",),
    "rows": ("row_scales",),
    "columns": ("column_scales",),
    "rows_columns": ("row_scales", "column_scales"),
}

F32_ROUNDINGS = 2.0**-21  # of scales, bias, activation and residual
AMPLIFIED = {"none": 1.0, "relu": 2.0, "gelu": 2.5, "silu": 4.0, "silu_mul": 8.0}
"""The error of a sum after the activation, in units of the error before it and of the typical magnitudes: activations halve the
mean magnitude and have slopes of up to 1.13; a gate is multiplied by a factor of several standard deviations."""
AMPLIFIED_RMS = 1.1
"""The same of root mean squares, at most: 1.04 with gelu. ``silu_mul`` has two sums, each of which contributes as much."""
ENOUGH_FOR_RMS = 256  # elements, whose root mean square error hardly depends on single ones

TILE = matmul_wgmma.TILE


class MatmulFused(HasLayout, Workload):
    """c = activation(scales a b^T + bias) + residual for ``batch`` products: a (batch, m, k), b (batch, n, k), c (batch, m, n),
    or for one product a (m, k), b (n, k), c (m, n).

    Elements of a and b are bf16, f16, f32 read as tf32, e4m3 or s8; c is of the same type, f32 for tf32, bf16 for e4m3, and for
    s8 the exact sums as s32 without an epilogue and else bf16. ``layout`` is that of matmul_wgmma; other types than those of 16
    bits take "tn" alone, because wgmma transposes no others. ``lda``, ``ldb`` and ``ldc`` are the elements from one row in
    memory to the next where that is more than the length of a row: a, b and c are then parts of larger matrices, and the rest
    of c is not written.

    With ``activation="silu_mul"``, columns of the sums alternate between gate and up, rows 2 i and 2 i + 1 of b, and c has
    n / 2 columns: silu(gate) up. ``largest`` is the largest magnitude of c before it is rounded.
    """

    source = "matmul_fused.cu"
    m: int = 4096
    n: int = 4096
    k: int = 4096
    dtype: Literal["bf16", "f16", "tf32", "e4m3", "s8"] = "bf16"
    layout: Layout = "tn"
    scale: Literal["none", "tensor", "rows", "columns", "rows_columns"] = "none"
    bias: bool = False
    activation: Literal["none", "relu", "gelu", "silu", "silu_mul"] = "none"
    residual: bool = False
    amax: bool = False
    batch: int = field(default=1, kw_only=True)
    lda: int = field(default=0, kw_only=True)
    ldb: int = field(default=0, kw_only=True)
    ldc: int = field(default=0, kw_only=True)
    emulator_sizes = {"m": 128, "n": 128, "k": 128}
    benchmarks = (
        {"activation": "gelu", "bias": True},
        {"dtype": "e4m3", "scale": "rows_columns"},
        {"dtype": "s8", "scale": "rows_columns"},
        {"dtype": "tf32"},
        {"m": 8192, "n": 28672, "activation": "silu_mul"},
    )

    def constraints(self) -> Iterable[str]:
        if self.itemsize != 2 and self.layout != "tn":
            yield (
                f"layout {self.layout} needs an operand transposed, which wgmma does for bf16 and f16 only, "
                f"not for {self.dtype}"
            )
        if self.activation == "silu_mul" and self.n % 2:
            yield "n must be even, because its columns alternate between gate and up"
        if self.batch < 1:
            yield "batch must be at least 1"
        for name, given, length in zip(("lda", "ldb", "ldc"), (self.lda, self.ldb, self.ldc), self.lengths, strict=True):
            if given and given < length:
                yield f"{name} must be at least {length}, the length of a row"
        for name, pitch in zip("ab", self.pitches, strict=False):
            if pitch * self.itemsize % 16:
                yield (
                    f"rows of {name} have {pitch * self.itemsize} bytes in memory, no multiple of 16, which TMA cannot read: "
                    f"set ld{name}, or take matmul_wgmma, which reads such rows of 16-bit types"
                )
        if self.batch * max(self.m, self.k, self.n) * max(self.pitches) >= 2**40:
            yield "the arrays are too large"
        yield from s8_sums.refused(self.dtype, k=self.k)

    # -- shapes and types ----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """Element type of a and b in memory."""
        return "f32" if self.dtype == "tf32" else self.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an element of a and b."""
        return dtype_of(self.kind).itemsize

    @property
    def output_kind(self) -> str:
        """Element type of c, bias and residual."""
        if self.dtype == "s8":
            return "bf16" if self.parts or self.activation != "none" else "s32"
        return "bf16" if self.dtype == "e4m3" else self.kind

    @property
    def sums_kind(self) -> str:
        """Type of the sums."""
        return "s32" if self.dtype == "s8" else "f32"

    def stacked(self, *shape: int) -> tuple[int, ...]:
        """The shape of an array of all products, which has no dimension for one product."""
        return (self.batch, *shape) if self.batch > 1 else shape

    def gemm(self) -> Gemm | None:
        """The product as libraries compute it; None with what they do not."""
        others = self.scale != "none" or self.residual or self.amax or self.activation == "silu_mul"
        parts = self.lda or self.ldb or self.ldc or self.batch > 1
        if others or parts or (self.dtype == "s8" and self.output_kind != "s32"):
            return None
        return Gemm(
            *(self.m, self.n, self.k),
            a_transposed=self.a_layout == "column",
            b_transposed=self.b_layout == "column",
            bias="bias" if self.bias else None,
            activation=self.activation,  # type: ignore[arg-type]  # silu_mul returned above
            compute={"tf32": "tf32", "s8": "s32"}.get(self.dtype, "f32"),  # type: ignore[arg-type]
            operands="e4m3" if self.dtype == "e4m3" else "",
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """The arrays of the epilogue, in the order in which it uses them."""
        others = {"bias": self.bias, "residual": self.residual, "largest": self.amax}
        return (*SCALES[self.scale], *(name for name, there in others.items() if there))

    @property
    def width(self) -> int:
        """Columns of c."""
        return self.n // 2 if self.activation == "silu_mul" else self.n

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Elements of a row of a, b and c in memory."""
        (_, a), (_, b) = self.stored(self.m, self.n, self.k)
        return a, b, self.width

    @property
    def pitches(self) -> tuple[int, int, int]:
        """Elements from one row of a, b and c to the next."""
        a, b, c = self.lengths
        return self.lda or a, self.ldb or b, self.ldc or c

    # -- what is computed ----------------------------------------------------------------------------------------------

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, (rows, _), pitch in zip("ab", self.stored(self.m, self.n, self.k), self.pitches, strict=False):
            shape = self.stacked(rows, pitch)
            if self.dtype == "s8":
                given[name] = rng.integers(-LARGEST_S8, LARGEST_S8 + 1, shape, np.int8)
            else:
                given[name] = uniform(rng, shape, self.kind)
        if self.pitches[2] > self.width:
            rest = uniform(rng, self.stacked(self.m, self.pitches[2]))
            given["c"] = rest.astype(dtype_of(self.output_kind))
        shapes = {"scale": (1,), "row_scales": self.stacked(self.m), "column_scales": self.stacked(self.n)}
        for name in SCALES[self.scale]:
            scales = uniform(rng, shapes[name]) * np.float32(0.5) + 1
            given[name] = scales * np.float32(self._usual_scale ** (1 / len(SCALES[self.scale])))
        if self.bias:
            given["bias"] = uniform(rng, self.n, self.output_kind)
        if self.residual:
            given["residual"] = uniform(rng, self.stacked(self.m, self.width), self.output_kind)
        if self.amax:
            given["largest"] = np.zeros(1, np.float32)
        return given

    @property
    def _usual_scale(self) -> float:
        """The factor after which sums of uniform random numbers have a standard deviation of 1."""
        largest = LARGEST_S8 if self.dtype == "s8" else 1
        return float(3 / (np.sqrt(self.k) * largest**2))

    def reference(self, a: Any, b: Any, c: Any = None, **given: Any) -> dict[str, Any]:
        """In float64; the sums of s8 are exact. From 2^35 multiply-adds on in float32 for 16-bit types and e4m3."""
        large = self.batch * self.m * self.n * self.k >= 1 << 35 and self.itemsize <= 2 and self.dtype != "s8"
        wide = np.float32 if large else np.float64
        a, b = (x[..., :length].astype(wide) for x, length in zip((a, b), self.lengths, strict=False))
        x = np.matmul(
            a if self.a_layout == "row" else a.swapaxes(-1, -2), b if self.b_layout == "row" else b.swapaxes(-1, -2)
        )
        if "scale" in given:
            x = x * given["scale"].astype(wide)
        if "row_scales" in given:
            x = x * given["row_scales"].astype(wide)[..., :, None]
        if "column_scales" in given:
            x = x * given["column_scales"].astype(wide)[..., None, :]
        if "bias" in given:
            x = x + given["bias"].astype(wide)
        if self.activation == "silu_mul":
            x = activation("silu", x[..., ::2]) * x[..., 1::2]
        else:
            x = activation(self.activation, x)
        if "residual" in given:
            x = x + given["residual"].astype(wide)
        found = {"largest": np.abs(x).max(keepdims=True).reshape(1)} if self.amax else {}
        if self.output_kind == "s32":
            x = x.astype(np.int64)
        if c is not None:
            rest = c.astype(x.dtype)
            rest[..., : self.width] = x
            x = rest
        return {"c": x, **found}

    def outputs(self) -> Mapping[str, Any]:
        c = (self.stacked(self.m, self.pitches[2]), self.output_kind)
        return {"c": c, "largest": (1, "f32")} if self.amax else {"c": c}

    def temporaries(self) -> Mapping[str, Any]:
        elements = stream_k.partials(self, self.itemsize, self.batch)
        partials = {"partials": ((elements,), self.sums_kind)} if elements else {}
        if not self._launched_parts:
            return partials
        sums = ((self.batch, self.m, self.n), self.sums_kind)
        products = ((self.batch, self.m, self.width), "f32")
        return {"sums": sums, "values": (sums[0], "f32"), "products": products, **partials}

    def work(self) -> Work:
        """The flops of products and epilogue; each array is read or written once."""
        results, out = self.batch * self.m * self.width, dtype_of(self.output_kind).itemsize
        moved = self.batch * (self.m + self.n) * self.k * self.itemsize + results * out * (2 if self.residual else 1)
        read = {"scale": 4, "row_scales": 4 * self.batch * self.m, "column_scales": 4 * self.batch * self.n}
        read["bias"] = out * self.n
        moved += sum(read.get(name, 0) for name in self.parts)
        each = len(self.parts) * (self.n // self.width) + ACTIVATION_FLOPS.get(self.activation, 0)
        each += ACTIVATION_FLOPS["silu"] + 1 if self.activation == "silu_mul" else 0
        flops = 2 * self.batch * self.m * self.n * self.k + each * results
        return Work(flops=flops, bytes=moved, unit=self.dtype, sum_length=self.k)

    @property
    def tolerance(self) -> Mapping[str, Tolerance] | None:  # type: ignore[override]  # depends on the types here
        """That of the sums on tensor cores, and of one rounding to the type of c; exact for s32.

        The default for bf16 allows several roundings, 1.6%, which would hide a wrong scale. So would the largest error of a
        single sum of many e4m3 products; all of these together are limited by ``rms``.
        """
        if self.output_kind == "s32":
            return None
        narrow = "" if self.dtype == "s8" else dtype_of(self.kind).name
        sums = Sums(self.k, stated=True, unit=self.dtype, narrow="" if narrow == "float32" else narrow)
        typical = AMPLIFIED[self.activation] * (sums.error("float32") + F32_ROUNDINGS)
        relative = F32_ROUNDINGS + sums.relative
        rms = 0.0
        if sums.deviation and self.batch * self.m * self.width >= ENOUGH_FOR_RMS:
            amplified = AMPLIFIED_RMS * math.sqrt(self.n // self.width) * sums.deviation
            rms = 1.25 * math.hypot(amplified, 2.0**-9)  # the latter of a rounding to bf16
        found = {"c": Tolerance(relative=relative, absolute=1e-7, ulp=0.5, typical=typical, rms=rms)}
        return {**found, "largest": Tolerance(relative=relative, typical=typical)} if self.amax else found

    # -- launches ------------------------------------------------------------------------------------------------------

    def pointers(self, *there: str) -> tuple[object, ...]:
        """The arguments of an epilogue with these parts."""
        return tuple(name if name in there else NULL for name in PARTS)

    @property
    def operands(self) -> Operands:
        """The layouts of a and b, of tensor maps with a dimension for the product."""
        return replace(Operands.of(self), BATCHED=1)

    @property
    def unfused_result(self) -> tuple[str, str]:
        """Name and element type of what the product of the unfused variant stores."""
        return ("sums", self.sums_kind) if self._launched_parts else ("c", self.output_kind)

    def pitch_of(self, c: str) -> int:
        """Elements from one row of a result of the product to the next."""
        return self.pitches[2] if c == "c" else self.n

    def stored_tile(self, t: Tile, c: str) -> Tile:
        """The tile with its store: by TMA, which writes 16 bytes at a time, where rows of the result are multiples of these."""
        size = dtype_of(self.output_kind if c == "c" else self.sums_kind).itemsize
        lengths = self.pitch_of(c), self.width if c == "c" else self.n
        aligned = all(length * size % 16 == 0 for length in lengths)
        return Tile({**t, "STORE": BY_TMA if aligned else STAGED})

    def product(self, t: Tile, c: str, kind: str, parts: tuple[str, ...], function: str) -> Launch:
        """A launch of ``matmul_fused`` that stores elements of type ``kind`` in c."""
        t, operands = self.stored_tile(t, c), self.operands
        pitch, pairs = self.pitch_of(c), function == "silu_mul"
        cluster = t.CLUSTER_M * t.CLUSTER_N
        across = cdiv(self.m, t.BM * t.CLUSTER_M) * cdiv(self.n, t.BN * t.CLUSTER_N)
        return Launch(
            "matmul_fused",
            cluster * min(self.batch * across, cluster_ctas(self.device, cluster) // cluster),
            128 * (t.CONSUMERS + 1),
            (
                self.map("a", 0, operands.A_MAJOR, t.BM // t.CLUSTER_N),
                self.map("b", 1, operands.B_MAJOR, t.BN // t.CLUSTER_M),
                self.result_map(t, c, kind, pairs),
                c,
                *self.pointers(*parts),
                *(self.m, self.n, self.k, self.batch, pitch, self.m * pitch),
            ),
            shared=matmul_wgmma.shared_bytes(t),
            cluster=cluster if cluster > 1 else None,
            template=(
                WgmmaTile(**t),
                TYPES[self.kind],
                TYPES[kind],
                operands,
                sum(PARTS[name] for name in parts),
                ACTIVATIONS[function],
            ),
        )

    def result_map(self, t: Tile, c: str, kind: str, pairs: bool) -> TensorMap:
        """The tensor map of the result, or, where TMA does not store it, one that is not used."""
        if t.STORE != BY_TMA:
            return TensorMap("a", box=(16,), shape=(16,))
        size, pitch = dtype_of(kind).itemsize, self.pitch_of(c)
        row_bytes = wgmma_tiles.box_row_bytes(t, size, 2 if pairs else 1)
        return TensorMap(
            c,
            box=(1, 16, row_bytes // size),
            swizzle=f"{row_bytes}B",
            shape=(self.batch, self.m, self.width if c == "c" else self.n),
            strides=(self.m * pitch * size, pitch * size, size),
        )

    def shared_products(self, t: Tile) -> list[Launch]:
        """Launches of ``matmul_fused_stream_k``, and of the sums of divided tiles, where there are any."""
        operands, shares = self.operands, stream_k.Shares.of(self, t, self.itemsize, self.batch)
        tile, ring, pitch = stream_k.StreamKTile.of(t), stream_k.stages(self, t), self.pitches[2]
        output = ("c", *self.pointers(*self.parts), self.m, self.n, pitch, self.m * pitch)
        of_shares = (*shares.arguments, shares.of_product)
        epilogue = (sum(PARTS[name] for name in self.parts), ACTIVATIONS[self.activation])
        a, b = ("a", 0), ("b", 1)
        if shares.transposed:
            operands, a, b = replace(operands, A_MAJOR=operands.B_MAJOR, B_MAJOR=operands.A_MAJOR), b, a
        add = Launch(
            "matmul_fused_sum_shares",
            shares.sums(t),
            stream_k.SHARE_THREADS,
            ("partials", *output, *of_shares, shares.adders),
            template=(tile, TYPES[self.sums_kind], TYPES[self.output_kind], *epilogue),
        )
        clear = Launch(
            "matmul_fused_clear_arrived",
            1,
            stream_k.SHARE_THREADS,
            ("partials", *shares.words),
            template=(tile, TYPES[self.sums_kind]),
        )
        multiply = Launch(
            "matmul_fused_stream_k",
            shares.clusters * shares.ctas,
            stream_k.threads(t) + 32,
            (
                self.map(*a, operands.A_MAJOR, shares.rows),
                self.map(*b, operands.B_MAJOR, t.COLUMNS // shares.b_sharing),
                *(*output, "partials" if shares.shares else NULL, *of_shares, ring),
            ),
            shared=ring * stream_k.stage_bytes(t),
            cluster=shares.ctas if shares.ctas > 1 else None,
            template=(tile, TYPES[self.kind], TYPES[self.output_kind], operands, *epilogue),
            instantiate=(add.entry, clear.entry),
        )
        return shares.launches(clear, multiply, add)

    def divided_products(self, t: Tile) -> list[Launch]:
        """A launch of ``matmul_fused_cluster_k``."""
        operands, rows, pitch = self.operands, stream_k.loaded_rows(self, {**t, **cluster_k.ALONE}), self.pitches[2]
        of_product, steps = cluster_k.of_product(self, t), cluster_k.steps(self, self.itemsize)
        launch = Launch(
            "matmul_fused_cluster_k",
            self.batch * of_product * t.PARTS,
            stream_k.threads(t) + 32,
            (
                self.map("a", 0, operands.A_MAJOR, rows),
                self.map("b", 1, operands.B_MAJOR, t.COLUMNS),
                *("c", *self.pointers(*self.parts), self.m, self.n, pitch, self.m * pitch),
                *(cluster_k.down(self, t), of_product, steps, rows, cluster_k.stages(self, t)),
            ),
            shared=cluster_k.shared_bytes(self, t),
            cluster=t.PARTS,
            template=(
                stream_k.StreamKTile.of(t),
                TYPES[self.kind],
                TYPES[self.output_kind],
                operands,
                sum(PARTS[name] for name in self.parts),
                ACTIVATIONS[self.activation],
            ),
        )
        return [launch]

    def loaded_by_clusters(self, t: Tile) -> list[Launch]:
        """A launch of ``matmul_fused_multicast``."""
        operands, pitch, (from_a, from_b) = self.operands, self.pitches[2], multicast.loaded_rows(t)
        launch = Launch(
            "matmul_fused_multicast",
            self.batch * multicast.clusters(self, t) * multicast.cluster(t),
            multicast.threads(t),
            (
                self.map("a", 0, operands.A_MAJOR, from_a),
                self.map("b", 1, operands.B_MAJOR, from_b),
                *("c", *self.pointers(*self.parts), self.m, self.n, pitch, self.m * pitch),
                *multicast.arguments(self, t, self.itemsize),
            ),
            shared=multicast.shared_bytes(self, t, self.itemsize),
            cluster=multicast.cluster(t) if multicast.cluster(t) > 1 else None,
            template=(
                multicast.MulticastTile.of(t),
                TYPES[self.kind],
                TYPES[self.output_kind],
                operands,
                sum(PARTS[name] for name in self.parts),
                ACTIVATIONS[self.activation],
            ),
        )
        return [launch]

    def map(self, name: str, index: int, mn_major: int, rows: int) -> TensorMap:
        """The tensor map of a or b, for copies of ``rows`` rows of a tile, or of blocks of 64 rows of an MN-major one."""
        stored, pitch = self.stored(self.m, self.n, self.k)[index], self.pitches[index]
        depth = ROW_BYTES // self.itemsize
        return TensorMap(
            name,
            box=(1, depth if mn_major else rows, depth),
            swizzle="128B",
            shape=(self.batch, *stored),
            strides=(stored[0] * pitch * self.itemsize, pitch * self.itemsize, self.itemsize),
        )

    @property
    def _launched_parts(self) -> list[tuple[tuple[str, ...], str]]:
        """The launches of the unfused epilogue: the arrays of a part, and an activation."""
        before = [((name,), "none") for name in self.parts if name not in ("residual", "largest")]
        after = [((name,), "none") for name in self.parts if name in ("residual", "largest")]
        return [*before, *([((), self.activation)] if self.activation != "none" else []), *after]

    def parts_of_epilogue(self) -> Iterator[Launch]:
        """The launches of ``epilogue_part``, from ``sums`` to c."""
        steps = self._launched_parts
        source, kind, width = "sums", self.sums_kind, self.n
        for i, (parts, function) in enumerate(steps):
            halves = function == "silu_mul"
            last = i == len(steps) - 1
            to = "c" if last else "products" if halves or source == "products" else "values"
            out = width // 2 if halves else width
            pitch = self.pitches[2] if last else out
            yield Launch(
                "epilogue_part",
                cdiv(self.batch * self.m * out, PART_THREADS),
                PART_THREADS,
                (source, to, *self.pointers(*parts), self.m, width, self.batch, pitch, self.m * pitch),
                template=(
                    TYPES[kind],
                    TYPES[self.output_kind if last else "f32"],
                    TYPES[self.output_kind],
                    sum(PARTS[name] for name in parts),
                    ACTIVATIONS[function],
                ),
            )
            source, kind, width = to, "f32", out

    @variant(requires=REQUIRES, tile=TILE, constraint=fused_tiles.usable_unfused, prefer=fused_tiles.preferred)
    def unfused(self, t: Tile) -> list[Launch]:
        """The product, and a launch for each part of the epilogue, with intermediate results in f32."""
        product = self.product(t, *self.unfused_result, (), "none")
        return [product, *self.parts_of_epilogue()] if self._launched_parts else [product]

    @variant(
        requires=REQUIRES,
        tile=matmul_wgmma.STEP_8_TILE,
        constraint=fused_tiles.usable,
        prefer=fused_tiles.tiles_of("fused"),
        slower=lambda w: fused_tiles.slower(w, "fused"),
    )
    def fused(self, t: Tile) -> list[Launch]:
        """One launch: the epilogue is applied to the sums before they are stored."""
        return [self.product(t, "c", self.output_kind, self.parts, self.activation)]

    @variant(
        requires=REQUIRES,
        tile=stream_k.SPACE,
        constraint=fused_tiles.usable_shares,
        prefer=fused_tiles.tiles_of("stream_k"),
        slower=lambda w: fused_tiles.slower(w, "stream_k"),
    )
    def stream_k(self, t: Tile) -> list[Launch]:
        """Tiles as wide as n divided by the SMs, or equal shares of the steps of k, whose sums are added in order."""
        return self.shared_products(t)

    @variant(
        requires=REQUIRES,
        source="matmul_fused_cluster_k.cu",
        tile=cluster_k.SPACE,
        constraint=fused_tiles.usable_clusters,
        prefer=fused_tiles.tiles_of("cluster_k"),
        slower=lambda w: fused_tiles.slower(w, "cluster_k"),
    )
    def cluster_k(self, t: Tile) -> list[Launch]:
        """For a small c: CTAs of a cluster multiply parts of k, and add their sums through distributed shared memory."""
        return self.divided_products(t)

    @variant(
        requires=REQUIRES,
        source="matmul_fused_multicast.cu",
        tile=multicast.SPACE,
        constraint=fused_tiles.usable_multicast,
        prefer=fused_tiles.tiles_of("multicast"),
        slower=lambda w: fused_tiles.slower(w, "multicast"),
    )
    def multicast(self, t: Tile) -> list[Launch]:
        """For up to some hundred rows of a: tiles with any multiple of 8 of them, and both operands loaded for a cluster."""
        return self.loaded_by_clusters(t)
