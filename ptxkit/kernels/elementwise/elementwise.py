"""Common parts of the descriptions of element-wise kernels: element types, tile parameters, and the preferred tiles by
size.

Their kernels use ``cu/ptxkit/elementwise/elementwise.cuh`` and have the template arguments ``THREADS, VECTORS,
CACHE, STRIDE`` last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit import Launch, Tile, Workload, cdiv
from ptxkit.kernels.measured import H200_FACTS, keep_input_bytes, measured, resident_bytes

FRAMEWORK = (128, 1, 0, False)
"""Template arguments of the launches of an unfused chain: 128 threads with one 128-bit access per array, which is how
PyTorch launches its element-wise kernels."""

SCALAR_THREADS = 256  # threads of a CTA in kernels with one element per thread

ELEMENTS = {"f32": ("float", 4), "f16": ("f16", 2), "bf16": ("bf16", 2), "s8": ("signed char", 1)}
"""PTX type -> (its name in the sources, bytes)."""

TILE: Mapping[str, list[int]] = {
    "THREADS": [256, 128, 512, 1024],  # threads of a CTA
    "VECTORS": [1, 2, 4, 8],  # 128-bit accesses of each input that a thread has in flight
    "CACHE": [0, 1, 2, 3, 4],  # Cache of cu/ptxkit/elementwise/elementwise.cuh: keep, stream, once, output, input
    # CTAs of the grid, each computing several tiles; 0: one CTA per tile
    "CTAS": [0, *(H200_FACTS.sms * ctas_per_sm for ctas_per_sm in (2, 4, 8, 16))],
}


def stays_in_l2(w: Workload) -> bool:
    """Whether all arrays stay in L2 from one launch to the next."""
    return w.work().bytes <= resident_bytes(w.device)


def activation(name: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The activation of a name in float64: gelu by the tanh formula, silu, relu or none. gelu(-inf) and silu(-inf) are NaN."""
    with np.errstate(all="ignore"):
        exponent = -2 * np.sqrt(2 / np.pi) * (x + 0.044715 * (x * x * x)) if name == "gelu" else -x
        if name in ("gelu", "silu"):  # 0.5 x (1 + tanh u) as x / (1 + exp(-2 u)), without cancellation
            return np.asarray(x / (1 + np.exp(exponent)))
        return np.maximum(x, 0) if name == "relu" else x


def derivative(name: str, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The derivative of :func:`activation` of gelu, silu or relu in float64: for relu 0 at 0, and 1 for NaN, as in
    frameworks."""
    if name == "relu":
        return np.where(x <= 0, 0.0, 1.0)
    limit = 20 if name == "gelu" else 700
    x = np.clip(x, -limit, limit)  # beyond it the derivative is 0 or 1; the clip prevents products of infinity and 0
    root = np.sqrt(8 / np.pi) if name == "gelu" else 1.0
    cubic = 0.044715 if name == "gelu" else 0.0
    u, slope = root * (x + cubic * (x * x * x)), root * (1 + 3 * cubic * (x * x))  # activation(x) = x / (1 + exp(-u))
    result: npt.NDArray[np.float64] = (1 + x * slope / (1 + np.exp(u))) / (1 + np.exp(-u))
    return result


DERIVATIVE_FLOPS = {"relu": 0, "gelu": 14, "silu": 8}
"""Flops of an activation's derivative by name; ex2 and rcp count as one, an fma as two."""

ACTIVATION_FLOPS = {"none": 0, "relu": 1, "gelu": 8, "silu": 5}
"""Flops by name: ex2 and rcp count as one, an fma as two."""


def width(dtype: str) -> int:
    """Elements of a 128-bit vector."""
    return 16 // ELEMENTS[dtype][1]


def usable(elements: Callable[[Any], int], inputs: int, dtype: str = "f32") -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`TILE`.

    Args:
        elements: workload -> number of elements.
        inputs: arrays that the kernel reads.
        dtype: of the elements, when the workload has no ``dtype`` of its own.
    """

    def check(w: Any, t: Tile) -> bool | str:
        registers = w.device.target.limits.registers_of(t.THREADS)
        if 4 * inputs * t.VECTORS + 32 > registers:
            return f"{t.THREADS} threads have {registers} registers each, too few for VECTORS={t.VECTORS}"
        tiles = cdiv(elements(w), t.THREADS * t.VECTORS * width(getattr(w, "dtype", dtype)))
        if tiles < t.CTAS:
            return f"CTAS={t.CTAS} exceeds the number of tiles, {tiles}"
        return True

    return check


def preferred(
    elements: Callable[[Any], int], inputs: int, dtype: str = "f32"
) -> Callable[[Any], Iterator[dict[str, int]]]:
    """Tiles by size, for :data:`TILE`; the arguments are those of :func:`usable`.

    A kernel whose data stays in L2 ends before a second wave of CTAs would start, so one access per thread is best until the
    SMs are full. Arrays several times larger than L2 need many bytes in flight per thread, and CACHE_INPUT, with which written
    lines leave L2 early and at a steady rate. Between the two, kernels that read several arrays take 1 to 6% less time with one
    access of each.
    """

    def choose(w: Workload) -> Iterator[dict[str, int]]:
        shapes = measured(w.device).elementwise
        several = int(inputs > 1)
        vectors = elements(w) // width(getattr(w, "dtype", dtype))
        if stays_in_l2(w):
            # The start of the CTAs takes much of the time of a short launch, and larger CTAs are fewer.
            threads = 128 if vectors <= shapes.small_vectors else shapes.l2_threads[several]
            yield {"THREADS": threads, "VECTORS": 1 if vectors <= shapes.one_access_vectors else 2}
        elif several and w.work().bytes < keep_input_bytes(w.device):
            yield {"THREADS": 256, "VECTORS": 1}
        else:
            yield {"THREADS": 256, "VECTORS": shapes.vectors[several], "CACHE": 4}

    return choose


def launch(
    kernel: str, n: int, dtype: str, args: tuple[object, ...], t: Tile, template: tuple[object, ...] = ()
) -> Launch:
    """The launch of a vectorized kernel over ``n`` elements; ``template`` comes before the tile's arguments."""
    tiles = cdiv(n, t.THREADS * t.VECTORS * width(dtype))
    grid = min(tiles, t.CTAS) if t.CTAS else tiles
    return Launch(kernel, grid, t.THREADS, args, template=(*template, t.THREADS, t.VECTORS, t.CACHE, t.CTAS > 0))


def framework(kernel: str, n: int, dtype: str, args: tuple[object, ...], template: tuple[object, ...] = ()) -> Launch:
    """One launch of an unfused chain over ``n`` elements."""
    threads, vectors, *_ = FRAMEWORK
    return Launch(kernel, cdiv(n, threads * vectors * width(dtype)), threads, args, template=(*template, *FRAMEWORK))


def too_many(n: int) -> Iterator[str]:
    """A message if a launch with one element per thread would need more CTAs for ``n`` elements than a grid can have."""
    if cdiv(n, SCALAR_THREADS) >= 2**31:
        yield "more CTAs than a grid can have"


def slower_than_scalar(w: Any) -> str | None:
    """``slower`` of vectorized variants: the work of a thread is one element, and takes the shortest time, where each SM has at
    most one CTA.

    Measured on an H200: one element per thread takes 7 to 27% less time at 1,000 to 19,000 elements, and 3 to 35% more at
    120,000 to 300,000.
    """
    fitting = w.device.sms * SCALAR_THREADS
    n = w.n if "n" in w.sizes else w.rows * w.cols
    return f"threads with one element each, up to {fitting:,}, need one CTA on each SM" if n <= fitting else None


def scalar(kernel: str, n: int, args: tuple[object, ...], template: tuple[object, ...] = ()) -> Launch:
    """A launch with one element per thread."""
    return Launch(kernel, cdiv(n, SCALAR_THREADS), SCALAR_THREADS, args, template=(*template, SCALAR_THREADS))
