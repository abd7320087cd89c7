"""The base class of the matrix products on tensor cores: inputs, reference and work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from ptxkit import Tile, Tolerance, Work, Workload, uniform
from ptxkit.kernels.elementwise.elementwise import activation
from ptxkit.kernels.gemm.product import Gemm, HasLayout
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.products import product

LARGEST_FACTOR = float(np.finfo(np.float32).max)

EPILOGUES = {"alpha": 1, "beta": 2, "bias_gelu": 4, "bias": 8}
"""Bits of ``ptxkit::Epilogue`` in cu/ptxkit/gemm/gemm.cuh."""
LARGE = 1 << 35  # multiply-adds; a float64 product of this size takes ten seconds on one CPU core


class Matmul(HasLayout, Workload):
    """c = gelu(alpha a b^T + beta c + bias): a (m, k), b (n, k), c (m, n), row-major, in bf16; sums in f32.

    A subclass may declare the option ``dtype`` for other 16-bit types, and the option ``layout`` for other layouts of a and b.

    b row-major as (n, k) is what BLAS calls a column-major (k, n) matrix: every operand is contiguous along k. This is the
    layout "tn"; with "n" for a it is stored as (k, m), with "t" for b it is stored as (k, n).
    """

    m: int = 4096
    n: int = 4096
    k: int = 4096
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: Literal["none", "bias_gelu"] = "none"
    emulator_sizes = {"m": 256, "n": 256, "k": 128}
    benchmarks = (
        {"m": 1024, "n": 1024, "k": 1024},
        {"m": 2048, "n": 2048, "k": 2048},
        {},
        {"k": 8192},
        {"m": 16384},
        {"m": 8192, "n": 8192, "k": 8192},
    )
    # The result is rounded to bf16 (2^-9); the error of the f32 sums is proportional to their terms, not to the result.
    tolerance: ClassVar[Tolerance | None] = Tolerance(relative=2**-8, absolute=5e-3)

    def constraints(self) -> Iterable[str]:
        # the sizes that are lengths of rows in memory, and the types of the elements
        lengths = {"n": self.output_kind, "m" if self.a_layout == "column" else "k": self.kind}
        lengths |= {"k": self.kind} if self.b_layout == "column" else {}
        for name, kind in lengths.items():
            elements = 16 // dtype_of(kind).itemsize
            if getattr(self, name) % elements:
                yield f"{name} must be a multiple of {elements}, so that rows are multiples of 16 bytes"
        yield from self.limits()

    def limits(self) -> Iterable[str]:
        """Complaints about sizes and factors that no variant of any kernel can compute."""
        for name, rows, cols in (("a", self.m, self.k), ("b", self.n, self.k), ("c", self.m, self.n)):
            if rows * cols >= 2**40:
                yield f"{name} is too large"
        for name in ("alpha", "beta"):
            if not abs(getattr(self, name)) <= LARGEST_FACTOR:
                yield f"{name} must be a finite number of f32, not {getattr(self, name)}"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        a, b = self.stored(self.m, self.n, self.k)
        given: dict[str, Any] = {"a": uniform(rng, a, self.kind), "b": uniform(rng, b, self.kind)}
        if self.beta:
            given["c"] = uniform(rng, (self.m, self.n), self.output_kind)
        if self.epilogue != "none":
            given["bias"] = uniform(rng, self.n, self.output_kind)
        return given

    def reference(self, a: Any, b: Any, c: Any = None, bias: Any = None) -> dict[str, Any]:
        """The reference in float64; from 2^35 multiply-adds in float32, whose error of 1e-4 is far below the tolerance."""
        wide = np.float32 if self.m * self.n * self.k >= LARGE else np.float64
        result = product(a if self.a_layout == "row" else a.T, b.T if self.b_layout == "row" else b, wide)
        if self.alpha != 1:
            result *= self.alpha
        if c is not None:
            result += self.beta * c.astype(wide)
        if bias is not None:
            result = activation("gelu" if self.epilogue == "bias_gelu" else "none", result + bias.astype(wide))
        return {"c": result}

    def outputs(self) -> Mapping[str, Any]:
        return {"c": ((self.m, self.n), self.output_kind)}

    def work(self) -> Work:
        operands = (self.m + self.n) * self.k * dtype_of(self.kind).itemsize
        results = self.m * self.n * dtype_of(self.output_kind).itemsize * (2 if self.beta else 1)
        return Work(flops=2 * self.m * self.n * self.k, bytes=operands + results, unit=self.unit)

    def gemm(self) -> Gemm | None:
        """The product as libraries compute it."""
        return Gemm(
            *(self.m, self.n, self.k),
            a_transposed=self.a_layout == "column",
            b_transposed=self.b_layout == "column",
            alpha=self.alpha,
            beta=self.beta,
            bias="bias" if self.epilogue != "none" else None,
            activation="gelu" if self.epilogue == "bias_gelu" else "none",
            compute="tf32" if self.unit == "tf32" else "f32",
            operands=self.kind if self.kind != self.output_kind else "",
        )

    @property
    def kind(self) -> str:
        """Element type of a and b."""
        return str(getattr(self, "dtype", "bf16"))

    @property
    def unit(self) -> str:
        """``Work.unit``: what the tensor cores multiply."""
        return self.kind

    @property
    def output_kind(self) -> str:
        """Element type of c and of the bias."""
        return self.kind

    @property
    def epilogue_bits(self) -> int:
        """Template argument EPILOGUE."""
        parts = {"alpha": self.alpha != 1, "beta": self.beta != 0, self.epilogue: self.epilogue != "none"}
        return sum(EPILOGUES[name] for name, there in parts.items() if there)

    @property
    def scalars(self) -> tuple[object, ...]:
        """The arguments c, bias, m, n, k, alpha, beta."""
        bias = "bias" if self.epilogue != "none" else np.uint64(0)
        return ("c", bias, self.m, self.n, self.k, np.float32(self.alpha), np.float32(self.beta))


def without_epilogue(w: Matmul, t: Tile) -> bool | str:
    """The constraint of the kernels written in PTX: c = a b^T in bf16, without an epilogue."""
    if w.kind != "bf16":
        return f"the PTX kernel multiplies bf16, not {w.kind}"
    if (w.a_layout, w.b_layout) != ("row", "column"):
        return "the PTX kernel reads a as (m, k) and b as (n, k): layout tn"
    return not w.epilogue_bits or "the PTX kernel computes a b^T without alpha, beta, bias or activation"
