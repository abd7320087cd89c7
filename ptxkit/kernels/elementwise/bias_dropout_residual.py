"""bias_dropout_residual: out = residual + dropout(x + bias), with random numbers that depend on the seed and the element."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, cdiv, uniform, variant
from ptxkit.kernels.elementwise import columns
from ptxkit.kernels.elementwise.elementwise import ELEMENTS, SCALAR_THREADS, framework, scalar, width
from ptxkit.kernels.elementwise.philox import random_words
from ptxkit.targets import missing

CHAIN_THREADS = 128  # threads of a CTA in the unfused launches


TILE: Mapping[str, list[Any]] = {
    **columns.ROW_TILE,
    "AHEAD": [False, True],  # generate random words, and request the arrays, before the previous grid has ended
}


def preferred(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles by size; with AHEAD where at most half of the threads that are resident at a time have a vector each, so that there
    is room for the next grid beside this one."""
    resident = w.device.sms * w.device.target.limits.threads
    ahead = w.rows * w.cols // width(w.dtype) <= resident // 2 and missing(("griddepcontrol",), w.device.target) is None
    for tile in columns.preferred(w):
        yield tile | {"AHEAD": ahead and "CACHE" not in tile}


class BiasDropoutResidual(Workload):
    """residual + dropout(x + bias): two reads and one write, and no mask in memory."""

    source = "bias_dropout_residual.cu"
    rows: int = 16384
    cols: int = 4096
    p: float = 0.1  # probability of an element to be dropped
    seed: int = field(default=1234, kw_only=True)
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    emulator_sizes = {"rows": 16, "cols": 4096}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shape = (self.rows, self.cols)
        return {
            "x": uniform(rng, shape, self.dtype),
            "bias": uniform(rng, self.cols, self.dtype),
            "residual": uniform(rng, shape, self.dtype),
            "threshold": np.uint32(self.p * 2**32),
            "scale": np.float32(1 / (1 - self.p)),
            "seed": np.uint64(self.seed),
        }

    def reference(
        self,
        x: np.ndarray[Any, Any],
        bias: np.ndarray[Any, Any],
        residual: np.ndarray[Any, Any],
        threshold: np.uint32,
        scale: np.float32,
        seed: np.uint64,
    ) -> dict[str, Any]:
        words = random_words(x.size, int(seed)).reshape(x.shape)
        return self._sum(x=x, residual=residual, words=words, bias=bias, threshold=threshold, scale=np.float64(scale))

    @by_rows("x", "residual", "words")
    def _sum(
        self,
        x: np.ndarray[Any, Any],
        residual: np.ndarray[Any, Any],
        words: np.ndarray[Any, Any],
        bias: np.ndarray[Any, Any],
        threshold: np.uint32,
        scale: np.float64,
    ) -> dict[str, Any]:
        """The reference, from the random words of all elements."""
        with np.errstate(all="ignore"):
            value = (x.astype(np.float64) + bias.astype(np.float64)) * scale
            return {"out": np.where(words >= threshold, value, 0) + residual.astype(np.float64)}

    def outputs(self) -> Mapping[str, Any]:
        return {"out": ((self.rows, self.cols), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        shape = (self.rows, self.cols)
        return {"biased": (shape, self.dtype), "dropped": (shape, self.dtype), "mask": (shape, "u8")}

    def work(self) -> Work:
        n = self.rows * self.cols
        return Work(flops=3 * n, bytes=ELEMENTS[self.dtype][1] * (3 * n + self.cols))

    def constraints(self) -> Iterable[str]:
        if not 0 <= self.p < 1:
            yield f"p must be at least 0 and below 1, not {self.p}"
        if not 0 <= self.seed < 2**64:
            yield f"seed must be an unsigned 64-bit number, not {self.seed}"
        if max(columns.ctas(self, CHAIN_THREADS, 1), cdiv(self.rows * self.cols, SCALAR_THREADS)) >= 2**31:
            yield "more CTAs than a grid can have"

    @property
    def tolerance(self) -> Tolerance | None:  # type: ignore[override]  # depends on the options here
        """In f16 and bf16 the unfused chain also rounds x + bias and its product with the scale; a residual of the opposite
        sign may cancel everything except these rounding errors."""
        if self.dtype == "f32":
            return None
        unit = 2.0**-10 if self.dtype == "f16" else 2.0**-7
        return Tolerance(relative=2 * unit, absolute=2 * unit / (1 - self.p))

    @property
    def type(self) -> tuple[str]:
        """The first template argument."""
        return (ELEMENTS[self.dtype][0],)

    @variant
    def unfused(self) -> list[Launch]:
        """Three launches, with both intermediate results and the mask in device memory."""
        n, threads = self.rows * self.cols, CHAIN_THREADS
        bias_args = ("x", "bias", "biased", self.rows, self.cols)
        dropout_args = ("biased", "dropped", "mask", n, "threshold", "scale", "seed")
        across = (*self.type, threads, columns.lanes(self, threads), 1)
        return [
            Launch("add_bias", columns.ctas(self, threads, 1), threads, bias_args, template=across),
            Launch(
                "dropout",
                cdiv(n, threads * width(self.dtype)),
                threads,
                dropout_args,
                template=(*self.type, threads, 1),
            ),
            framework("add", n, self.dtype, ("dropped", "residual", "out", n), self.type),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One launch, one element per thread."""
        args = ("x", "bias", "residual", "out", self.rows, self.cols, "threshold", "scale", "seed")
        return [scalar("bias_dropout_residual_fused", self.rows * self.cols, args, self.type)]

    @variant(tile=TILE, constraint=columns.usable(inputs=2), prefer=preferred)
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses; all random words are used, and each thread loads its bias once."""
        args = ("x", "bias", "residual", "out", self.rows, self.cols, "threshold", "scale", "seed")
        return [columns.launch("bias_dropout_residual_vectorized", self, t, args, self.type, (t.AHEAD,))]
