"""The product of one expert by the kernels of matmul_fused, and the launch that quantizes its results.

matmul_fused has more shapes of tiles than the products of ``cu/kernels/moe_int8.cu``: any multiple of 8 rows, clusters that
load both operands, parts of k. Its choice among them follows from a model of their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptxkit import Launch, Tile, Tolerance, cdiv
from ptxkit.errors import UsageError
from ptxkit.kernels.borrowed import borrowed
from ptxkit.kernels.gemm import fused_tiles, stream_model
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import measured
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe import two_launches

BESIDE_US = 6.0
"""How much longer ``moe_product_wgmma`` takes than the model of step 8 of matmul_wgmma predicts for its tiles, with the launch
before it and without the exchange of magnitudes: the median of 18 sizes on an H200 (docs/moe.md)."""


def product(w: Any) -> MatmulFused:
    """The product: of e4m3 with the scales, in bf16; of s8 the sums, unless the results are bf16."""
    scaled = w.dtype == "e4m3" or w.output == "bf16"
    found = MatmulFused(m=w.m, n=w.n, k=w.k, dtype=w.dtype, scale="rows_columns" if scaled else "none")
    return found.on(w.device)


def usable(w: Any, _: Tile | None = None) -> bool | str:
    """The constraint of the variant."""
    try:
        product(w)
    except UsageError as error:
        return str(error)
    return True


def temporaries(w: Any) -> Mapping[str, Any]:
    """The arrays that the variant has beside those of the others."""
    if usable(w) is not True:
        return {}
    made = product(w)
    found = {name: of for name, of in made.temporaries().items() if name == "partials"}
    return found if w.output == "bf16" else {**found, "results": ((w.m, w.n), made.output_kind)}


def launches(w: Any, variant: str = "", tile: Mapping[str, Any] | None = None) -> list[Launch]:
    """The product, and for quantized results the launch that quantizes them.

    Args:
        variant: of matmul_fused; "" for the one that it chooses. tile: None for the one that the variant prefers.
    """
    made = product(w)
    c = "out" if w.output == "bf16" else "results"
    names = {"row_scales": "a_scales", "column_scales": "b_scales", "c": c}
    multiply = borrowed(made, variant or fused_tiles.choice(made).taken.variant, names, tile)
    return multiply if w.output == "bf16" else [*multiply, two_launches.quantize_launch(w, c, made.output_kind)]


def tolerance(w: Any) -> Mapping[str, Tolerance]:
    """That of two launches, and of results in bf16 the one of matmul_fused."""
    return {"out": product(w).tolerance["c"]} if w.output == "bf16" else two_launches.tolerance(w)  # type: ignore[index]


def slower(w: Any) -> str | None:
    """``slower`` of the variant: None unless step 2 is predicted to be faster, which has no second launch for the results."""
    if w.output == "bf16":
        return None
    terms = two_launches.predicted(w)
    one = one_launch_us(w)
    if one is None:
        return None
    one += terms.exchange_us if w.output == "token" else 0.0
    two = fused_tiles.choice(product(w)).taken.predicted_us + terms.second_us
    return None if two <= one else f"predicted to take {two:.3g} us, and step2_wgmma {one:.3g} us"


def one_launch_us(w: Any) -> float | None:
    """The predicted time of step 2 without the exchange of magnitudes; None if it has no tile."""
    tiles = map(whole, moe.wgmma_tiles(w.product, w.m))
    tile = next((t for t in tiles if w.product.usable_wgmma(t) is True), None)
    if tile is None:
        return None
    rates = measured(w.device)
    return BESIDE_US + stream_model.predicted_us(rates.products, stream_work(w.product, tile), w.device.sms / rates.sms)


def whole(values: Mapping[str, int]) -> Tile:
    """A tile of ``moe_product_wgmma`` from the parameters that a preference has."""
    return Tile({**{name: of[0] for name, of in moe.WGMMA_TILE.items()}, **values})


def stream_work(p: moe.Product, t: Tile) -> StreamWork:
    """What a launch of ``moe_product_wgmma`` does, for the model of products by wgmma.

    An instruction multiplies 32 bytes of a row in the same time, whatever the type is.
    """
    alternating = 2 if t.PING_PONG else 1  # tiles that a CTA computes at a time
    slots, tiles = p.device.sms // t.CLUSTER * t.CLUSTER, p.most_blocks(t.BT) * p.columns(t)
    of_cta = cdiv(tiles, slots * alternating) * alternating
    ctas = min(tiles, slots)
    return StreamWork(
        memory_bytes=(p.rows + p.n) * p.k + p.rows * p.n,
        split=0.0,
        steps=of_cta * cdiv(p.k, moe.DEPTH),
        rows=t.BT,
        columns=t.BW,
        delivered=t.BT / t.CLUSTER + t.BW,
        sms=ctas,
        idle=1 - ctas / p.device.sms,
        others=t.CLUSTER - 1,
        stages=p.stages(t),
        units=t.BW / 64,
        wgmma_columns=t.BT,
        ends=t.BW * t.BT * of_cta / alternating,  # of alternating warpgroups, those of one are hidden
        exchanged=0,
        scattered=0.0,
        waves=0,
        clustered=t.CLUSTER > 1,
    )
