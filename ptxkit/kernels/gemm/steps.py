"""Which of the last steps of matmul_wgmma is taken, and with which tile.

All steps have one model (:mod:`ptxkit.kernels.gemm.stream_model`) with coefficients of their own. The step and the tile with
the smallest predicted time are taken, or those of a shared program that are nearly as fast, or a measured exception
(:mod:`ptxkit.kernels.gemm.programs`). Steps 14 to 20 are left out until there are times of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxkit.kernels.gemm import (
    cluster_k,
    direct,
    dot,
    multicast,
    programs,
    row_classes,
    shifted,
    short_k,
    stream_k,
    swapped,
    unaligned,
    wgmma_tiles,
)
from ptxkit.kernels.gemm.programs import COPIES, COPIES_OF_CLASSES, Choice, Option
from ptxkit.kernels.measured import measured
from ptxkit.kernels.per_device import cached_per_device

CLEARLY = 0.95
"""The share of the predicted time of step 8 below which step 9 is taken by kernels that have no others. The mean error of the
choice is 3%. Where ``linear_layernorm_gelu`` and ``ffn_sublayer`` were measured on an H200, step 9 was slower than step 8 for
128 rows of 4096 and of 8192, where this share is 1.00 and 0.97, and faster for 32 rows of 1024, where it is 0.92."""

MULTICAST_WAVES = 3
"""Of step 15. With 2308 x 8192 x 3072, 384 tiles of 256 x 200 took 159 us, and the fastest of step 8, in five waves, 172 us."""

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

Tiles = Iterator[tuple[Mapping[str, Any], float]]  # with their predicted microseconds

NAMES = {
    8: "step8_tma_store",
    9: "step9_swapped",
    10: "step10_split_k",
    11: "step11_unaligned",
    12: "step12_aligned_copy",
    13: "step13_stream_k",
    14: "step14_cluster_k",
    15: "step15_multicast",
    16: "step16_direct",
    17: "step17_shifted",
    18: "step18_row_classes",
    19: "step19_short_k",
    20: "step20_dot",
}


def _small(w: Matmul) -> bool:
    """Whether step 19 has tiles. The model of alternating consumers has no times of such products, and predicts too little."""
    return short_k.was_timed(w) and any(short_k.candidates(w))


def _whole(w: Matmul) -> Tiles:
    if unaligned.needed(w) is None:
        alternating = () if _small(w) else unaligned.alternating(w)
        yield from ((t, wgmma_tiles.predicted_us(w, t)) for t in (*wgmma_tiles.candidates(w), *alternating))


def _swapped(w: Matmul) -> Tiles:
    if unaligned.needed(w) is None and w.m <= swapped.MOST_ROWS:
        yield from ((t, swapped.predicted_us(w, t)) for t in swapped.candidates(w) if swapped.usable(w, t) is True)


def _split(w: Matmul) -> Tiles:
    if unaligned.needed(w) is None:
        yield from ((t, wgmma_tiles.predicted_us(w, t, t["PARTS"])) for t in wgmma_tiles.split_candidates(w))


def _copied(w: Matmul) -> Tiles:
    if unaligned.needed(w) is not None:
        tiles = (t for t in unaligned.candidates(w) if not (t.get("PING_PONG") and _small(w)))
        yield from ((t, unaligned.predicted_us(w, t)) for t in tiles)


def _shares(w: Matmul) -> Tiles:
    yield from ((t, stream_k.predicted_us(w, t)) for t in stream_k.candidates(w) if stream_k.usable(w, t) is True)


def _clusters(w: Matmul) -> Tiles:
    if measured(w.device).cluster_k is not None:
        yield from ((t, cluster_k.predicted_us(w, t)) for t in cluster_k.candidates(w))


def _multicast_timed(w: Matmul) -> bool:
    """Whether there are times of such products: of operands that are contiguous along k, or that TMA reads."""
    contiguous = w.a_layout == "row" and w.b_layout == "column"
    return multicast.was_timed(w) and (contiguous or unaligned.needed(w) is None)


def _multicast(w: Matmul) -> Tiles:
    if _multicast_timed(w):
        tiles = multicast.candidates(w, most_waves=MULTICAST_WAVES, many_sums=True)
        yield from ((t, multicast.predicted_us(w, t)) for t in tiles)


def _direct(w: Matmul) -> Tiles:
    if direct.was_timed(w):
        yield from ((t, direct.predicted_us(w, t)) for t in direct.candidates(w))


def _shifted(w: Matmul) -> Tiles:
    # Step 19 was faster at all 8 products that have times of both, and for which it has tiles.
    if shifted.was_timed(w) and not _small(w):
        yield from ((t, shifted.predicted_us(w, t)) for t in shifted.candidates(w))


def _classes(w: Matmul) -> Tiles:
    if row_classes.was_timed(w):
        yield from ((t, row_classes.predicted_us(w, t)) for t in row_classes.candidates(w))


def _short(w: Matmul) -> Tiles:
    if short_k.was_timed(w):
        yield from ((t, short_k.predicted_us(w, t)) for t in short_k.candidates(w))


def _dots(w: Matmul) -> Tiles:
    if dot.was_timed(w):
        yield from ((t, dot.predicted_us(w, t)) for t in dot.candidates(w))


TILES: Mapping[int, Callable[[Matmul], Tiles]] = {
    8: _whole,
    9: _swapped,
    10: _split,
    12: _copied,
    13: _shares,
    14: _clusters,
    15: _multicast,
    16: _direct,
    17: _shifted,
    18: _classes,
    19: _short,
    20: _dots,
}
COPYING = (12, 13, 14, 15)
"""The steps before which operands are copied that TMA cannot read."""
ASKED_FOR: Mapping[int, Callable[[Any], Iterator[Mapping[str, Any]]]] = {
    8: wgmma_tiles.preferred,
    9: swapped.preferred,
    10: wgmma_tiles.split_preferred,
    11: unaligned.filled,
    12: unaligned.preferred,
    13: stream_k.preferred,
    14: cluster_k.preferred,
    15: multicast.preferred,
    16: direct.preferred,
    17: shifted.preferred,
    18: row_classes.preferred,
    19: short_k.preferred,
    20: dot.preferred,
}
"""The tiles of a step for products for which it is not considered."""


def options(w: Matmul, step: int) -> Iterator[Option]:
    """The tiles of a step that may be the fastest; none if the step is not for such products."""
    copies, beside = copying(w, step)
    for tile, predicted_us in TILES[step](w):
        program = programs.program(NAMES[step], tile, **flags(w, step))
        yield Option(NAMES[step], tile, predicted_us + beside, (program, *copies))


def copying(w: Matmul, step: int) -> tuple[tuple[str, ...], float]:
    """The program that copies operands before a step, and its predicted time; none, and 0, for operands that TMA reads."""
    if step == 18:
        return (COPIES_OF_CLASSES,), row_classes.copy_us(w)
    return ((COPIES,), unaligned.copies_us(w)) if step in COPYING and unaligned.copies(w) else ((), 0.0)


def flags(w: Matmul, step: int) -> dict[str, object]:
    """Template arguments of a step that depend on the rows of c."""
    if step == 15:
        return {"STORES": multicast.stores(w)}
    if step == 18:
        return {"TRANSPOSED": int(row_classes.transposed(w))}
    if step == 12 and not unaligned.stores_by_tma(w):
        return {"STORE": "SHIFTED"}
    return {"PAIRS": unaligned.stores_pairs(w)} if step in (13, 14) else {}


@cached_per_device
def choice(w: Matmul) -> Choice:
    """The step and the tile that are taken, and the predicted times of all steps."""
    return Choice.of(w, (option for step in TILES for option in options(w, step)))


def times(w: Matmul) -> dict[int, float]:
    """Step -> predicted microseconds of its fastest tile, of the steps from 8 on that may be the fastest."""
    found = choice(w).times
    return {step: found[name] for step, name in NAMES.items() if name in found}


def preferred(step: int) -> Callable[[Matmul], Iterator[Mapping[str, Any]]]:
    """The tiles of a step: that which is taken first, then the others by their predicted times."""

    def tiles(w: Matmul) -> Iterator[Mapping[str, Any]]:
        found = choice(w)
        if NAMES[step] in found.times:
            yield from found.tiles(NAMES[step], lambda: options(w, step))
        else:
            yield from ASKED_FOR[step](w)

    return tiles


def slower(w: Matmul, step: int) -> str | None:
    """Why another step is taken instead of this one; None if this one is."""
    taken, found = choice(w).taken, times(w)
    fastest = next(other for other, name in NAMES.items() if name == taken.variant)
    if fastest == step:
        return None
    entry = measured(w.device)
    unmeasured = {
        14: entry.cluster_k is None,
        15: not _multicast_timed(w),
        16: direct.considered(w) and entry.direct is None,
        17: shifted.considered(w) and entry.shifted is None,
        18: row_classes.considered(w) and entry.row_classes is None,
        19: short_k.considered(w) and entry.short_k is None,
        20: dot.considered(w) and entry.dot is None,
    }
    if unmeasured.get(step):
        return "no times of it were measured"
    if step not in found:
        return f"step {fastest} is for products of these sizes"
    return programs.objection(found[step], f"step {fastest}", taken.predicted_us)


def swapped_slower(w: Matmul) -> str | None:
    """Why step 8 is faster than step 9, or not clearly slower, for kernels that have no others."""
    found = times(w)
    if 9 not in found:
        return f"for more than {swapped.MOST_ROWS} rows of a, larger tiles are faster"
    if found[9] <= CLEARLY * found[8]:
        return None
    compared = f"predicted to take {found[9]:.3g} us, and step 8 {found[8]:.3g} us"
    return compared if found[9] > found[8] else f"{compared}, a difference within the model's error"
