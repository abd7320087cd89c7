"""What the kernels of a linear layer with layer normalization share: launches of other kernels, and the choice of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, cdiv
from ptxkit.kernels.borrowed import borrowed, renamed
from ptxkit.kernels.elementwise import columns
from ptxkit.kernels.elementwise.elementwise import framework
from ptxkit.kernels.gemm import matmul_mma, matmul_wgmma, multicast, steps, swapped, wgmma_tiles
from ptxkit.kernels.gemm.matmul import LARGE
from ptxkit.kernels.gemm.matmul_mma import MatmulMma, MmaTile
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.kernels.measured import gemm_tiles
from ptxkit.kernels.rows.layernorm import Layernorm
from ptxkit.workload.inputs import scaled_uniform

Dtype = Literal["bf16", "f16"]
MMA = ("sm_80",)
WGMMA = ("sm_90a",)
MMA_TILE, WGMMA_TILE, SWAPPED_TILE = matmul_mma.TILE, matmul_wgmma.TILE, swapped.SPACE
MULTICAST_TILE = multicast.SPACE
PRODUCTS = (8, 9, 15)
"""The steps of matmul_wgmma whose products the layers have, with an epilogue of their own or with the bias."""
UNIT = {"bf16": 2.0**-9, "f16": 2.0**-12}
"""Largest relative error of a rounding to the type, for 8 and 11 significant bits."""
CHAIN_THREADS = 128  # threads of a CTA that adds a bias in the unfused chain


def slower_than_two(w: Any) -> str:
    """``slower`` of the variants with one launch."""
    return "two launches took less time at all sizes measured on an H200 (docs/ffn.md)"


def cu_type(w: Any) -> str:
    """The element type in C++."""
    return f"ptxkit::{w.dtype}"


def tolerance(w: Any) -> Tolerance:
    """Roundings to the 16-bit type: of the normalized rows, or of the weights times gamma, and of intermediate results. The
    first ones add up, with random signs, to about a half of a unit of the typical sum; the largest of 67 million such sums
    is 5.7 times that. The others are relative to values that the residual, or beta, may cancel."""
    unit = UNIT[w.dtype]
    return Tolerance(relative=4 * unit, absolute=8 * unit)


def unfused_tolerance(w: Any) -> Tolerance:
    """Three roundings more than :func:`tolerance`: of the product, of its sum with the bias, and of the activation, each of a
    number below 8, which is 8 standard deviations. The residual may cancel these numbers, but not their errors."""
    return _with_roundings(w, 3)


def library_tolerance(w: Any) -> Tolerance:
    """That of libraries, which add the bias within the product: one rounding less than :func:`unfused_tolerance`."""
    return _with_roundings(w, 2)


def _with_roundings(w: Any, count: int) -> Tolerance:
    """:func:`tolerance` with the roundings of this many intermediate results below 8."""
    fused = tolerance(w)
    return replace(fused, absolute=fused.absolute + count * 8 * UNIT[w.dtype])


def weights(rng: np.random.Generator, features: int, hidden: int, dtype: str) -> np.ndarray[Any, Any]:
    """Weights (features, hidden) with which a sum of products with numbers of variance 1 has variance 1."""
    return scaled_uniform(rng, (features, hidden), dtype, np.float32(np.sqrt(3 / hidden)))


def wide(w: Any) -> type[np.float32] | type[np.float64]:
    """The type of the reference: float64; float32, whose error is far below the tolerance, for large products."""
    return np.float32 if w.rows * w.hidden * w.features >= LARGE else np.float64


def check_sizes(w: Any) -> Iterator[str]:
    """Complaints about sizes, or an eps, that no variant can compute."""
    for name in ("hidden", "features"):
        if getattr(w, name) % 8:
            yield f"{name} must be a multiple of 8, so that rows are multiples of 16 bytes"
    if max(w.rows * w.hidden, w.features * w.hidden, w.rows * w.features) >= 2**36:
        yield "the arrays are too large"
    if not 0 <= w.eps < float("inf"):
        yield f"eps must be finite and at least 0, not {w.eps}"


PRESETS = tuple(
    {"rows": rows, "hidden": hidden, "features": hidden}
    for hidden in (1024, 4096, 8192)
    for rows in (1, 32, 128, 1024, 16384)
)
"""The sizes of the benchmarks."""


def layernorm(
    w: Any, cols: int, variant: str, names: Mapping[str, str], activation: Literal["none", "gelu"] = "none"
) -> list[Launch]:
    """The launches of a variant of ``layernorm`` on rows of ``cols`` columns: of x, gamma and beta to y, if not renamed."""
    of_rows = Layernorm(rows=w.rows, cols=cols, activation=activation, dtype=w.dtype, eps=w.eps).on(w.device)
    tile = None
    if variant == "vectorized":  # a request would read rows from memory that the launch before is writing
        tile, _ = of_rows.variant(variant).select(of_rows, w.device.target, {"PREFETCH_L2": False})
    return borrowed(of_rows, variant, names, tile)


def product(w: Any, a: str, b: str, c: str) -> list[Launch]:
    """c = a b^T with results in the element type, by mma.sync."""
    plain = MatmulMma(m=w.rows, n=w.features, k=w.hidden, dtype=w.dtype).on(w.device)
    return borrowed(plain, "step5_coalesced", {"a": a, "b": b, "c": c})


def add_bias(w: Any, x: str, out: str) -> Launch:
    """out = x + bias, rows of w.features."""
    across = Layernorm(rows=w.rows, cols=w.features, dtype=w.dtype).on(w.device)  # its rows and columns
    template = (cu_type(w), CHAIN_THREADS, columns.lanes(across, CHAIN_THREADS), 1)
    return Launch(
        "add_bias",
        columns.ctas(across, CHAIN_THREADS, 1),
        CHAIN_THREADS,
        (x, "bias", out, w.rows, w.features),
        template=template,
        source="bias_dropout_residual.cu",
    )


def elementwise(w: Any, kernel: str, *arrays: str) -> Launch:
    """``add`` or ``gelu`` of the unfused chain of add_gelu.cu, over rows x features elements."""
    n = w.rows * w.features
    return replace(framework(kernel, n, w.dtype, (*arrays, n), (cu_type(w),)), source="add_gelu.cu")


# Products with an epilogue of their own


def usable_mma(w: Any, t: Tile) -> bool | str:
    """The constraint of a product by mma.sync."""
    return matmul_mma.usable(w, t)


def preferred_mma(w: Any) -> Iterator[Mapping[str, Any]]:
    """Tiles by size: those of matmul_mma."""
    yield from gemm_tiles(w.device, "matmul_mma:step5_coalesced", w.rows, w.features)


def mma_launch(kernel: str, w: Any, t: Tile, args: tuple[object, ...]) -> Launch:
    """A launch of a kernel around ``mma_product`` of cu/ptxkit/gemm/mma_product.cuh."""
    return Launch(
        kernel,
        cdiv(w.rows, t.BM) * cdiv(w.features, t.BN),
        32 * matmul_mma.warps(t),
        (*args, w.rows, w.features, w.hidden),
        shared=matmul_mma.shared_bytes(t, coalesced=True),
        template=(cu_type(w), MmaTile(**t)),
    )


def usable_wgmma(w: Any, t: Tile, beside: int = 0) -> bool | str:
    """The constraint of a product by wgmma, with shared memory ``beside`` that of the product."""
    if beside and t.CONSUMERS > 2:
        return f"{t.CONSUMERS} consumers leave too few registers for the warps that observe the rows"
    return matmul_wgmma.can_run(w, t, simple=False, beside=beside)


def preferred_wgmma(w: Any) -> Iterator[Mapping[str, Any]]:
    """Tiles by size: those of matmul_wgmma."""
    yield from wgmma_tiles.preferred(of_rows(w))


def of_rows(w: Any, epilogue: Literal["none", "bias"] = "none") -> MatmulWgmma:
    """The product x w^T, with the bias in its epilogue."""
    return MatmulWgmma(m=w.rows, n=w.features, k=w.hidden, dtype=w.dtype, epilogue=epilogue).on(w.device)


def usable_swapped(w: Any, t: Tile) -> bool | str:
    """The constraint of the product with swapped operands."""
    return swapped.usable(of_rows(w), t)


def preferred_swapped(w: Any) -> Iterator[Mapping[str, Any]]:
    """Tiles by size: those of step 9 of matmul_wgmma."""
    yield from swapped.preferred(of_rows(w))


def slower_swapped(w: Any) -> str | None:
    """Why the other products are faster, or not clearly slower (:func:`ptxkit.kernels.gemm.steps.swapped_slower`)."""
    return steps.swapped_slower(of_rows(w))


def swapped_us(w: Any) -> float | None:
    """The predicted time of the product with swapped operands; None for so many rows that it is not considered."""
    return steps.times(of_rows(w)).get(9)


def swapped_launches(w: Any, t: Tile, names: Mapping[str, str]) -> list[Launch]:
    """Launches of step 9 of matmul_wgmma, x w^T + bias, with other names for a, b and c."""
    made = swapped.launches(of_rows(w, "bias"), matmul_wgmma.K_MAJOR, t)
    return [replace(renamed(launch, names), source=swapped.SOURCE) for launch in made]


def slower_product(step: int) -> Callable[[Any], str | None]:
    """``slower`` of a variant with the product of a step of :data:`PRODUCTS`: None if it is predicted to be the fastest."""

    def slower(w: Any) -> str | None:
        found = product_times(w)
        fastest = min(found, key=found.__getitem__)
        if fastest == step:
            return None
        mine = f"its product is predicted to take {found[step]:.3g} us" if step in found else "its product has no tile"
        return f"{mine}, and step {fastest} of matmul_wgmma {found[fastest]:.3g} us"

    return slower


def product_times(w: Any) -> dict[int, float]:
    """Step of :data:`PRODUCTS` -> predicted microseconds, of those that may be the fastest."""
    return {step: us for step, us in steps.times(of_rows(w)).items() if step in PRODUCTS}


def usable_multicast(w: Any, t: Tile) -> bool | str:
    """The constraint of the product whose clusters load both operands."""
    return multicast.usable(of_rows(w), t)


def preferred_multicast(w: Any) -> Iterator[Mapping[str, Any]]:
    """Tiles by size: those of step 15 of matmul_wgmma."""
    yield from steps.preferred(15)(of_rows(w))


def multicast_launches(w: Any, t: Tile, names: Mapping[str, str]) -> list[Launch]:
    """Launches of step 15 of matmul_wgmma, x w^T + bias, with other names for a, b and c."""
    made = matmul_wgmma.loaded_by_clusters(of_rows(w, "bias"), t)
    return [replace(renamed(launch, names), source=multicast.SOURCE) for launch in made]


def swapped_launch(kernel: str, w: Any, t: Tile, maps: tuple[str, str], args: tuple[object, ...]) -> Launch:
    """A launch of a kernel around ``swapped_product`` of cu/ptxkit/gemm/swapped_product.cuh; ``maps``: names of x and w."""
    operands = matmul_wgmma.K_MAJOR
    boxes = operands.boxes(*maps, *swapped.copied_rows(t))
    sizes = (w.rows, w.features, w.hidden)
    return swapped.product_launch(kernel, of_rows(w), t, boxes, (*args, *sizes), (cu_type(w), operands))


def multicast_launch(kernel: str, w: Any, t: Tile, maps: tuple[str, str], args: tuple[object, ...]) -> Launch:
    """A launch of a kernel around the product of cu/ptxkit/gemm/multicast_product.cuh; ``maps``: names of x and w."""
    product = of_rows(w)
    boxes = matmul_wgmma.K_MAJOR.boxes(*maps, *multicast.loaded_rows(t))
    ctas = multicast.cluster(t)
    return Launch(
        kernel,
        multicast.clusters(product, t) * ctas,
        multicast.threads(t),
        (*boxes, *args, w.rows, w.features, *multicast.arguments(product, t)),
        shared=multicast.shared_bytes(product, t),
        cluster=ctas if ctas > 1 else None,
        template=(multicast.MulticastTile.of(t), cu_type(w)),
    )


def wgmma_launch(
    kernel: str, w: Any, t: Tile, maps: tuple[str, str, str], args: tuple[object, ...], beside: int = 0
) -> Launch:
    """A launch of a kernel around ``wgmma_product`` of cu/ptxkit/gemm/wgmma_product.cuh."""
    return matmul_wgmma.product_launch(
        kernel,
        w,
        (w.rows, w.features),
        matmul_wgmma.full(t),
        maps,
        (*args, w.rows, w.features, w.hidden),
        (cu_type(w),),
        beside=beside,
    )
