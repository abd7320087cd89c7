"""Which of steps 9 to 14 of micro_tiling_matmul computes a product of given sizes, and with which tile.

Each step has a few tiles, all of which were measured on an H200; the parts of k and the strips follow from the size. The tile
and the step with the shortest time by :mod:`~ptxkit.kernels.gemm.micro_model` are taken, or those of a shared program that are
nearly as fast (:mod:`~ptxkit.kernels.gemm.programs`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ptxkit import Tile, cdiv
from ptxkit.kernels.gemm import few_columns, few_rows, micro_cluster_k, programs
from ptxkit.kernels.gemm.micro_model import fitted, predicted_us
from ptxkit.kernels.gemm.micro_tiles import (
    DEEP_BK,
    DEEP_STAGES,
    PARTS,
    F32Product,
    has_deep_steps,
    partial_usable,
    shares,
    stream_usable,
    whole_warpgroups,
)
from ptxkit.kernels.gemm.programs import Option
from ptxkit.kernels.measured import cluster_ctas
from ptxkit.kernels.per_device import cached_per_device


def _tile(rows: str, lanes: str, stages: int, ctas: int) -> dict[str, int]:
    """Tile parameters from BM x BN x BK, and TM x TN of WM x WN."""
    bm, bn, bk = (int(n) for n in rows.split("x"))
    tm, tn, wm, wn = (int(n) for n in lanes.split("x"))
    return {"BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn, "WM": wm, "WN": wn, "STAGES": stages, "CTAS": ctas}


SQUARE = _tile("64x128x16", "8x8x32x64", 3, 2)
TALL_FULL = _tile("128x64x16", "4x8x32x32", 5, 2)
SMALL = _tile("64x64x16", "4x8x32x32", 5, 3)
SMALL_32 = _tile("64x64x32", "4x8x32x32", 4, 2)
WIDE = _tile("64x256x16", "8x16x64x64", 5, 2)
LARGE = _tile("128x256x16", "8x16x64x64", 5, 1)
DEEP = _tile("256x128x32", "8x16x32x128", 4, 1)
LOW_WIDE = _tile("32x256x16", "8x8x32x64", 5, 2)
LOW = _tile("32x128x16", "4x8x16x64", 5, 3)
LOWEST_WIDE = _tile("16x256x16", "4x8x16x64", 6, 2)
LOWEST = _tile("16x128x32", "4x4x16x32", 5, 2)
# Eight warps, two for each scheduler, of which one multiplies while the other waits for operands.
SMALL_FULL = _tile("64x64x16", "4x4x16x32", 5, 2)
SMALL_DEEP = _tile("64x64x32", "4x4x16x32", 4, 2)
LOW_FULL = _tile("32x128x16", "4x4x16x32", 5, 2)
SMALLEST = _tile("32x64x32", "4x4x16x32", 4, 4)  # four warps of 4 x 4 sums a lane
TINY = _tile("32x64x32", "4x8x32x32", 4, 4)  # two warps, which keep the registers of their launch
SQUARE_FULL = _tile("64x128x16", "4x8x32x32", 4, 2)
# Other widths and heights than powers of two, for whole waves.
BROAD = _tile("64x192x16", "8x12x32x96", 4, 2)
MIDDLE = _tile("64x96x16", "4x12x32x48", 4, 2)
TALL_96 = _tile("128x96x16", "4x12x32x48", 4, 1)
LOW_96 = _tile("96x128x16", "4x8x32x32", 5, 1)
# For rows that TMA cannot read, where c is one wave of tiles.
TWELVE = _tile("64x96x32", "4x4x16x32", 4, 1)  # with twelve warps
SLIM = _tile("128x32x32", "4x8x32x32", 4, 2)
LARGE_32 = _tile("128x256x32", "8x16x64x64", 4, 1)  # where c also has one row of tiles
NARROW_SMALL = _tile("128x16x32", "4x4x32x16", 5, 2)
NARROWEST = _tile("256x16x16", "8x4x64x16", 6, 2)

CHAIN = (SQUARE, WIDE, DEEP)
WHOLE = (SQUARE, SQUARE_FULL, SMALL, BROAD, MIDDLE, TALL_96, LOW_96, WIDE, LOWEST_WIDE, SMALL_32)
CLUSTERS = (
    *(SQUARE, SMALL, TALL_FULL, WIDE, DEEP, LOW_WIDE, LOW, LOWEST, NARROW_SMALL, NARROWEST),
    *(SMALL_FULL, LOW_FULL, SMALLEST, SQUARE_FULL, TALL_96, LOW_96, BROAD, LOWEST_WIDE, MIDDLE, SMALL_32, TINY),
    *(TWELVE, SLIM, LARGE_32),
)
PARTIAL = (
    *(SQUARE, WIDE, MIDDLE, SMALL_32, LARGE, LOWEST_WIDE, LOWEST),
    *(NARROW_SMALL, SMALL_FULL, SMALL_DEEP, SMALLEST, BROAD, LOW_96),
)
"""Each was the fastest at some of the sizes that were measured, or is the only one for the smallest results."""
FULL = (SMALL_FULL, SMALL_DEEP, LOW_FULL, SMALLEST)
ROWS = (
    *((1, 2, 1024), (1, 1, 1024), (1, 2, 512), (1, 2, 256), (2, 2, 1024), (2, 2, 512), (2, 2, 256)),
    *((3, 2, 512), (3, 4, 256), (3, 2, 256), (3, 1, 256), (3, 1, 128)),
    *((4, 4, 512), (4, 2, 512), (4, 1, 512), (4, 4, 256), (4, 2, 256), (4, 1, 256), (4, 1, 128), (8, 2, 512), (8, 2, 256)),
)
MANY_STRIPS = (
    *((1, 1, 512), (1, 2, 512), (1, 2, 256), (2, 1, 512), (2, 2, 512), (2, 1, 256), (2, 2, 256)),
    *((3, 1, 512), (3, 1, 256), (4, 1, 256)),
)
"""The same of single elements of b for strips of 128 columns of which each SM has one. With sums of three and four rows, more
loads of a thread are slower."""
COLUMNS = ((2, 4, 256), (4, 2, 256), (4, 4, 128), (4, 4, 256))
"""(ROWS, BATCH, THREADS) of step 13; those of step 12 are (ROWS, BATCH, THREADS)."""

WHOLE_SECTORS = 16  # threads that read neighbouring elements of b one by one: 64 bytes
CHAIN_STEPS = 8  # of a share of step 9 at least; where a tile has fewer, all are whole
FEW_STEPS = 4  # of k, up to which a few tiles of LOWEST are considered for any number of rows
MOST_SCATTERED = 1 << 19  # elements of c that parts of fewer than CHAIN_STEPS steps may store one by one
SEVERAL_PARTS = 4  # of a tile, from which on step 14 may be faster than step 9
NARROW_STRIP = 4  # threads of step 12 that cover a strip of 16 columns, for results with fewer strips of WIDER_STRIP than SMs
WIDER_STRIP = 32


def fits(w: F32Product, t: Mapping[str, int]) -> bool:
    """Whether a tile is neither much larger than c nor, of the low and narrow ones, much smaller."""
    if t is TINY:  # four CTAs for each SM, all of them in one wave
        return bool(3 * w.device.sms < w.grid(t["BM"], t["BN"]) <= t["CTAS"] * w.device.sms)
    if t is TWELVE or t is SLIM or t is LARGE_32:
        tiles = w.grid(t["BM"], t["BN"])
        steps = FEW_STEPS * cdiv(w.device.sms, 2 * tiles)  # of parts of k that make a wave
        within = t["BM"] < 2 * w.m and t["BN"] < 2 * w.n and (t is not LARGE_32 or w.m <= t["BM"])
        return bool(not w.aligned and within and tiles <= t["CTAS"] * w.device.sms and cdiv(w.k, t["BK"]) >= steps)
    low, narrow, few = t["BM"] < SMALL["BM"], t["BN"] < SMALL["BN"], 2 * w.grid(t["BM"], t["BN"]) <= w.device.sms
    if any(t is full for full in FULL):  # of more tiles than SMs, larger ones are faster
        within = t is SMALLEST or (t["BM"] < 2 * w.m and t["BN"] < 2 * w.n)
        return bool(within and w.grid(t["BM"], t["BN"]) <= 2 * w.device.sms)
    return bool(
        (t["BM"] < 2 * w.m or t["BM"] == LOWEST["BM"])
        and (t["BN"] < 2 * w.n or t["BN"] == NARROWEST["BN"])
        and (not low or w.m <= 2 * SMALL["BM"] or (few and t is LOWEST and w.k <= FEW_STEPS * t["BK"]))
        and (not narrow or w.n <= 2 * SMALL["BN"])
    )


def _copies(w: F32Product, t: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """A tile, and where rows are not aligned also the one that multiplies copies of them.

    Large tiles do so always: a scheduler has two of their warps, which do not hide what the producer's copies of elements take.
    For one row of LARGE_32, threads copy b once, which is less than a launch takes that copies it. Tiles of two warps multiply
    copies, too, because only half of a warpgroup fills their ring, and SLIM, because a product needs most copies of elements.
    """
    large, widest = t["TM"] * t["TN"] >= WIDE["TM"] * WIDE["TN"], (t["BN"], t["BK"]) == (LARGE_32["BN"], LARGE_32["BK"])
    if w.aligned:
        yield dict(t)
    elif widest or (not large and whole_warpgroups(Tile(t)) and t["BN"] != SLIM["BN"]):
        yield deep(w, t)
    if not w.aligned:
        yield {**t, "COPY": 1}


def deep(w: F32Product, t: Mapping[str, int]) -> dict[str, int]:
    """A tile whose stages threads fill, with stages of DEEP_BK elements of k where shares of k have several and there is room.

    A warp then copies a whole row of a at a time, and computes addresses half as often. Tiles of few sums a lane, whose
    threads have few registers, would spill some of them; low and narrow ones were not measured. Where k is divided, a ring with
    fewer stages is slower.
    """
    stage, limits = 4 * DEEP_BK * (t["BM"] + t["BN"]), w.device.target.limits
    room = (limits.shared_bytes // t["CTAS"] - limits.reserved_bytes) // stage
    small = min(t["BM"], t["BN"]) < SMALL["BM"] or t["TM"] * t["TN"] < SMALL["TM"] * SMALL["TN"]
    least = t["STAGES"] if t.get("PARTS", 1) > 1 else DEEP_STAGES
    if small or t["BK"] >= DEEP_BK or not has_deep_steps(w, t) or room < least:
        return dict(t)
    return {**t, "BK": DEEP_BK, "STAGES": min(t["STAGES"], room)}


def _chain(w: F32Product) -> Iterator[dict[str, int]]:
    for t in CHAIN:
        many = w.grid(t["BM"], t["BN"]) > w.device.sms * t["CTAS"]
        if cdiv(w.k, t["BK"]) >= CHAIN_STEPS and (many or w.n % 4 == 0):  # to add elements takes longer than vectors
            for waves in (1, 2):
                yield from _copies(w, {**t, "GROUP": 8, "SHARED_WAVES": waves, "MIN_STEPS": CHAIN_STEPS})
    for t in WHOLE:
        if fits(w, t) and w.grid(t["BM"], t["BN"]) > w.device.sms * t["CTAS"]:  # of one wave, step 10 begins earlier
            yield from _copies(w, {**t, "GROUP": 8, "SHARED_WAVES": 0, "MIN_STEPS": CHAIN_STEPS})


def _clusters(w: F32Product) -> Iterator[dict[str, int]]:
    scattered = w.n % 4 != 0 and w.m * w.n > MOST_SCATTERED
    others = fits(w, LOWEST) or fits(w, NARROW_SMALL)  # of as many sums
    for t in CLUSTERS:
        if fits(w, t) and (w.grid(t["BM"], t["BN"]) < 4 * w.device.sms):
            for parts in PARTS:
                if parts > 1 and scattered and cdiv(w.k, t["BK"]) < CHAIN_STEPS * parts:
                    continue
                for one in _copies(w, {**t, "GROUP": 8, "PARTS": parts}):
                    if t is SMALLEST and others and not (w.aligned or one.get("COPY", 0)):
                        continue  # threads that copy elements have too few registers with four CTAs
                    yield one


def _partial(w: F32Product) -> Iterator[dict[str, int]]:
    for t in PARTIAL:
        if fits(w, t) and (t is LARGE or w.grid(t["BM"], t["BN"]) < 2 * w.device.sms * t["CTAS"]):
            for least in (least for least in (2, 4, 8, 16) if least <= cdiv(w.k, t["BK"])):
                yield from _copies(w, {**t, "GROUP": 8, "SHARED_WAVES": 1, "MIN_STEPS": least})


def _two_launches(w: F32Product) -> Iterator[dict[str, int]]:
    for t in _partial(w):
        work = shares(w, Tile(t))
        if work.shares >= SEVERAL_PARTS * work.left:
            yield t


def _rows(w: F32Product) -> Iterator[dict[str, int]]:
    rows = next((rows for rows in sorted(few_rows.SPACE["ROWS"]) if rows >= w.m), 16)
    for shift in (1, 0) if few_rows.may_shift(w, rows) else (0,):
        many = not shift and few_rows.many_strips(w, rows)
        for height, batch, threads in MANY_STRIPS if many else ROWS:
            if height == rows:
                # with sums of four rows to be shifted, a thread has no registers for more vectors of b
                if shift and rows > 2 and batch > 1:
                    continue
                for across in few_rows.SPACE["ACROSS"]:
                    if across == NARROW_STRIP and (w.n % 4 or PARTS[-1] * cdiv(w.n, WIDER_STRIP) >= w.device.sms):
                        continue  # loads of 64 contiguous bytes take longer
                    if w.n % 4 and not shift and across < (few_rows.WIDEST if many else WHOLE_SECTORS):
                        continue
                    for parts in PARTS:
                        shape = {"ROWS": rows, "ACROSS": across, "BATCH": batch, "THREADS": threads}
                        t = {**shape, "PARTS": parts, "SHIFT": shift}
                        clusters = few_rows.strips(w, Tile(t)) * cdiv(w.m, rows)
                        if parts > 1 and many:
                            continue  # a cluster costs more
                        if parts == 1 or clusters * parts <= cluster_ctas(w.device, parts) * few_rows.at_once(w, Tile(t)):
                            yield t  # clusters that wait for others take longer


def _columns(w: F32Product) -> Iterator[dict[str, int]]:
    columns = next((columns for columns in few_columns.SPACE["COLUMNS"] if columns >= w.n), 0)
    for rows, batch, threads in COLUMNS if columns else ():
        t = {"ROWS": rows, "COLUMNS": columns, "BATCH": batch, "THREADS": threads}
        if (few_columns.access(w, Tile(t)) == "VECTORS") == (threads == 256 and (rows, batch) != (4, 4)):
            for parts in PARTS:
                yield {**t, "PARTS": parts}


STEPS: Mapping[str, tuple[Callable[[Any], Iterator[dict[str, int]]], Callable[[Any, Tile], bool | str]]] = {
    "step9_stream_k": (_chain, stream_usable),
    "step10_cluster_k": (_clusters, micro_cluster_k.usable),
    "step12_few_rows": (_rows, few_rows.usable),
    "step13_few_columns": (_columns, few_columns.usable),
    "step14_two_launches": (_two_launches, partial_usable),
}


@lru_cache(maxsize=1024)
def ranked(w: F32Product) -> tuple[tuple[float, str, Tile], ...]:
    """(predicted time, step, tile) of all usable candidates, the fastest first."""
    rates, found = fitted(), []
    for step, (candidates, usable) in STEPS.items():
        for values in candidates(w):
            if usable(w, tile := Tile(values)) is True:
                found.append((predicted_us(w, step, tile, rates), step, tile))
    return tuple(sorted(found, key=lambda one: one[0]))


@cached_per_device
def options(w: Any) -> tuple[Option, ...]:
    """The candidates with their programs, the fastest first."""
    found = ((us, step, t, w.variant(step).launches(w, t)) for us, step, t in ranked(w))
    return tuple(Option(step, t, us, programs.of_launches(launches)) for us, step, t, launches in found)


@cached_per_device
def taken(w: Any) -> Option | None:
    """The step and the tile that are taken; None if no step can compute the product."""
    return programs.chosen(w, options(w)) if options(w) else None


def preferred(step: str) -> Callable[[Any], Iterator[Mapping[str, Any]]]:
    """The tiles of a step: that which is taken first, the others by their predicted times, and those without a prediction."""

    def choose(w: Any) -> Iterator[Mapping[str, Any]]:
        first = taken(w)
        if first is not None and first.variant == step:
            yield first.tile
        yield from (tile for _, name, tile in ranked(w) if name == step)
        yield from DEFAULTS[step]

    return choose


DEFAULTS: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "step9_stream_k": (SQUARE,),
    "step10_cluster_k": ({**SQUARE, "PARTS": 1}, {**SMALL, "PARTS": 1}),
    "step11_partial_sums": (SQUARE, SMALL),
    "step12_few_rows": ({"ROWS": 8, "PARTS": 1},),
    "step13_few_columns": tuple({"ROWS": 4, "COLUMNS": c, "PARTS": 1} for c in few_columns.SPACE["COLUMNS"][::-1]),
    "step14_two_launches": (SQUARE, SMALL),
}


def slower(w: Any, step: str, without: Collection[str] = ()) -> str | None:
    """Why another of these steps is taken; None for that which is, and where none is possible.

    Args:
        without: steps that may not be taken.
    """
    possible = [option for option in options(w) if option.variant not in without]
    first = programs.chosen(w, possible) if without and possible else taken(w)
    if first is None or not possible or first.variant == step:
        return None
    own = next((option.predicted_us for option in possible if option.variant == step), None)
    if own is None:
        return f"{first.variant} is predicted to take {first.predicted_us:.3g} us, {step} more"
    return programs.objection(own, first.variant, first.predicted_us)
