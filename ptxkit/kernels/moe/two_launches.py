"""Quantization of a product's results by a second launch, instead of an exchange of magnitudes within the product.

The scale of a token follows from all of its results, which many CTAs compute. Either these exchange the largest magnitudes and
keep their sums until all have arrived, or the product stores its results, and another launch reads a row, finds its largest
magnitude, and quantizes it. :func:`predicted` gives the time of either beside the product, by terms that follow from times on
an H200 with 128 to 4096 tokens (docs/moe.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptxkit import Launch, Tolerance, cdiv
from ptxkit.kernels.measured import measured
from ptxkit.kernels.moe.product import NULL, SOURCE, TYPES, Product
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.workload.tolerance import Sums

TILE = 128  # weights and tokens of a tile
THREADS = {128: 1024, 256: 4096}
"""Threads of a CTA that quantizes a row -> its longest rows. Longer ones have :data:`LONG_ROW_THREADS`: on an H200, 200 rows of
10240 take 16.7, 15.6 and 16.8 us with their product for 256, 512 and 1024 threads, and 1023 rows of 1040 take 10.2, 9.6 and
10.7 us for 128, 256 and 512."""
LONG_ROW_THREADS = 512
GROUPS = 4  # of 16 elements that a thread keeps in registers, at most
WIDE = {"s8": "f32", "e4m3": "bf16"}
"""The type in which the product stores its results. Sums of s8 are exact, and f32 rounds only their products with the scales.
Sums of e4m3 have 13 bits in wgmma (docs/gemm.md), of which bf16 keeps 8; the quantized results have 4."""
BYTES = {"f32": 4, "bf16": 2}
CU_TYPES = {"f32": "float", "bf16": "ptxkit::bf16", "s32": "int"}


@dataclass(frozen=True)
class Terms:
    """Predicted times in microseconds beside the product: of the exchange, and of a second launch."""

    exchange_us: float
    second_us: float


def predicted(w: Any) -> Terms:
    """The terms for the results of w, (m, n): the second launch reads the wider results, which the product has stored, and
    stores the quantized ones; neither is hidden by products."""
    return terms_of(w.device, w.dtype, cdiv(w.m, TILE), cdiv(w.n, TILE), w.m * w.n, WIDE[w.dtype])


def terms_of(device: DeviceFacts, dtype: str, blocks: float, across: int, results: int, wide: str) -> Terms:
    """The terms for ``blocks`` of tokens with ``across`` tiles each, and for the number of results and their type between the
    launches."""
    rates = measured(device)
    of_tile, of_column = rates.magnitudes_us[dtype]
    exchange = (of_tile + of_column * across) * blocks * across / device.sms
    moved = results * (2 * BYTES[wide] + 1)
    scale = device.sms / rates.sms
    second = rates.swapped.launch_us + rates.swapped.latency_us + moved / (rates.copy_gbs * 1e3 * scale)
    return Terms(exchange, second)


def slower_two(w: Any) -> str:
    """``slower`` of the variant."""
    return "step4_fitted, which has two launches as well, took less time at nearly all sizes measured on an H200 (docs/moe.md)"


def product(w: Any) -> Product:
    """The product with wider results, in the temporary ``wide``."""
    return Product(w.device, w.dtype, WIDE[w.dtype], w.m, w.n, w.k, out="wide")


def quantize_launch(w: Any, wide: str, kind: str) -> Launch:
    """The launch of ``quantize_wide``: from the results ``wide``, of type ``kind``, to ``out``, with the tokens' scales.

    Sums of s8 become results with the scales of tokens and weights.
    """
    threads = next((count for count, most in THREADS.items() if w.n <= most), LONG_ROW_THREADS)
    groups = min(GROUPS, cdiv(w.n, 16 * threads))
    own = w.output == "token"
    template = (TYPES[w.dtype], CU_TYPES[kind], threads, groups, own)
    scales = ("a_scales", "b_scales") if kind == "s32" else (NULL, NULL)
    args = (wide, "out", "scales", *scales, w.n)
    return Launch("quantize_wide", w.m, threads, args, source=SOURCE, template=template)


def usable(w: Any) -> bool | str:
    """Whether the results have scales of their own, or why the variant is not for them."""
    return w.output == "token" or f"only output=token has scales that follow from the results, not output={w.output}"


def tolerance(w: Any) -> Mapping[str, Tolerance]:
    """That of the description for s8, whose results are stored in f32 or as sums. Those of e4m3 are rounded to bf16, as is the
    magnitude that the scale follows from: by 2^-8 together, at most an eighth of a quantization step."""
    if w.dtype == "s8":
        return dict(w.tolerance)
    sums = Sums(w.k, stated=True, unit="e4m3", narrow="float8_e4m3fn")
    typical = sums.error("float32")
    found = {"out": Tolerance(relative=sums.relative, ulp=0.5 + 1 / 8, typical=typical)}
    if w.output == "token":
        found["scales"] = Tolerance(relative=2**-8 + sums.relative, typical=typical)
    return found
