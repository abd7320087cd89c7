"""Tiles and launches of swiglu_ffn_multicast.cu: a gated layer with up to some hundred tokens, limited by reading the weights.

Both products have the model of :mod:`ptxkit.kernels.gemm.stream_model`, the first one with the rows of gate and up as its b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ptxkit import Launch, TensorMap, Tile
from ptxkit.kernels.gemm import multicast, swapped, wgmma_tiles
from ptxkit.kernels.gemm.matmul_wgmma import BK, K_MAJOR, MatmulWgmma
from ptxkit.kernels.gemm.multicast import MulticastTile
from ptxkit.kernels.per_device import cached_per_device

SOURCE = "swiglu_ffn_multicast.cu"
SPACE = {**multicast.SPACE, "CTAS_PER_SM": [1, 2, 3, 4]}
MATRICES = 2  # gate and up, of which a tile has the same rows
MOST_WAVES = 8
WHOLE_TOKENS = 128  # that a tile can have whatever its rows of weights are, because of the registers
OTHERWISE = {**multicast.ALONE, "CONSUMERS": 3, "ROWS": 1, "TOKENS": 128}
"""The tile for sizes that have no candidates."""


def candidates(w: MatmulWgmma) -> Iterator[dict[str, int]]:
    """The tiles to consider for a product with the rows of gate and of up as those of b.

    Where a tile can have all tokens, CTAs share no weights: the ring that streams them would wait for other CTAs. An H200 took
    125 us for 128 tokens (hidden 3584, ffn 18944) with a tile of all, and 137 us with two of 64, whose CTAs share weights.
    """
    whole = w.m <= WHOLE_TOKENS
    yield from (t for t in multicast.candidates(w, most_waves=MOST_WAVES) if not (whole and t["B_SHARING"] > 1))


def preferred(w: MatmulWgmma) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: multicast.predicted_us(w, t)) or [OTHERWISE]


def gated(w: MatmulWgmma, t: Mapping[str, int], cu: str, names: tuple[str, str, str, str]) -> Launch:
    """A launch of ``gated_multicast``.

    Args:
        w: the product with the rows of gate and of up as those of b. cu: the type of the elements in C++.
        names: of x, gate, up and h.
    """
    x, gate, up, h = names
    of_x, of_both = multicast.loaded_rows(t)
    boxes = (TensorMap(name, box=(of_both // MATRICES, BK), swizzle="128B") for name in (gate, up))
    return Launch(
        "gated_multicast",
        multicast.clusters(w, t) * multicast.cluster(t),
        multicast.threads(t),
        (
            TensorMap(x, box=(of_x, BK), swizzle="128B"),
            *(*boxes, h, w.m, w.n // MATRICES),
            *multicast.arguments(w, t),
        ),
        shared=multicast.shared_bytes(w, t),
        cluster=multicast.cluster(t) if multicast.cluster(t) > 1 else None,
        source=SOURCE,
        template=(MulticastTile.of(t), cu),
    )


@dataclass(frozen=True)
class Second:
    """A launch for the second product: its predicted time, the kernel, and the tile."""

    predicted_us: float
    kernel: Literal["early_multicast", "early_swapped", "product"]
    tile: Mapping[str, int] = field(compare=False)


def options(w: MatmulWgmma) -> Iterator[Second]:
    """The launches to consider for the second product. ``product`` has large tiles, and loads no weights early."""
    large = next(wgmma_tiles.preferred(w))
    yield Second(wgmma_tiles.predicted_us(w, large), "product", large)
    for t in multicast.candidates(w, most_waves=MOST_WAVES):
        yield Second(multicast.predicted_us(w, t), "early_multicast", t)
    if w.m <= swapped.MOST_ROWS:
        for t in swapped.candidates(w):
            if swapped.usable(w, t) is True:
                yield Second(swapped.predicted_us(w, t), "early_swapped", t)


@cached_per_device
def second(w: MatmulWgmma) -> Second:
    """The launch that is taken for the second product."""
    return min(options(w), key=lambda option: option.predicted_us)


def early(w: MatmulWgmma, taken: Second, cu: str, names: tuple[str, str, str]) -> Launch:
    """A launch of ``early_multicast`` or ``early_swapped``, which loads weights before the previous grid is complete.

    The previous grid must have waited for those before it when this one starts, and not write b.

    Args:
        cu: the type of the elements in C++. names: of a, b and c.
    """
    a, b, c = names
    t = Tile(dict(taken.tile))
    if taken.kernel == "early_swapped":
        boxes = K_MAJOR.boxes(a, b, *swapped.copied_rows(t))
        launch = swapped.product_launch(taken.kernel, w, t, boxes, (c, w.m, w.n, w.k), (cu,))
        return replace(launch, source=SOURCE)
    return Launch(
        taken.kernel,
        multicast.clusters(w, t) * multicast.cluster(t),
        multicast.threads(t),
        (*K_MAJOR.boxes(a, b, *multicast.loaded_rows(t)), c, w.m, w.n, *multicast.arguments(w, t)),
        shared=multicast.shared_bytes(w, t),
        cluster=multicast.cluster(t) if multicast.cluster(t) > 1 else None,
        source=SOURCE,
        template=(MulticastTile.of(t), cu),
    )
