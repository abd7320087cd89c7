"""The arithmetic of linear filters, bit for bit as an H200 computes it (docs/emulator.md, "Textures and surfaces").

The weights of the 2, 4 or 8 texels are whole numbers of 1/256 that add up to 1. Floats are aligned to the largest of the texels
that have a weight, with four bits more than their type has, and the sum is rounded once, to the nearest and away from zero in
the middle. Unsigned integers of 8 bits are widened to 16 before they are weighed, signed ones after it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.texture.addressing import FRACTION

Weights = NDArray[np.int64]
Values = NDArray[np.float64]


def rounded(product: Weights) -> Weights:
    """Products of two weights in units of 1/256, rounded to the nearest, up in the middle."""
    return (product + FRACTION // 2) >> 8


def weights(fractions: list[Weights], whole: Weights | int = FRACTION) -> list[Weights]:
    """The weights of the texels around positions, with x as the fastest axis: (2, n), (4, n), or twice (4, n).

    With three axes the texels of the lower and of the higher z are weighed, and later summed, on their own.

    Args:
        fractions: the weight of the higher neighbour along x, y and z.
        whole: what all weights add up to.
    """
    x = fractions[0]
    right = rounded(x * whole)
    left = whole - right
    if len(fractions) == 1:
        return [np.stack([left, right])]
    y = fractions[1]
    if len(fractions) == 2:
        bottom_left = rounded(left * (FRACTION - y))
        top_right = rounded(right * y)
        return [np.stack([bottom_left, right - top_right, left - bottom_left, top_right])]
    z = fractions[2]
    return [weights([x, y], part)[0] for part in (FRACTION - z, z)]


def floats(slices: list[tuple[Values, Weights]], dtype: np.dtype) -> NDArray[np.float32]:
    """Weighed sums of float16 or float32 texels.

    Args:
        slices: texels and weights (k, ...) that are aligned with each other before they are summed.
    """
    digits, least = (24, -126) if dtype.itemsize == 4 else (11, -24)
    total = np.zeros(slices[0][0].shape[1:])
    above, below, invalid = (np.zeros(total.shape, np.bool_) for _ in range(3))
    for texels, weight in slices:
        used = weight > 0
        finite = np.where(used & np.isfinite(texels), texels, 0.0)
        if dtype.itemsize == 4:
            finite = np.where(np.abs(finite) < 2.0**least, 0.0, finite)
        _, exponent = np.frexp(np.abs(finite).max(axis=0))
        unit = np.ldexp(1.0, exponent - digits - 4)
        total = total + (np.trunc(finite / unit) * weight).sum(axis=0) * unit / FRACTION
        above |= (used & (texels == np.inf)).any(axis=0)
        below |= (used & (texels == -np.inf)).any(axis=0)
        invalid |= (used & np.isnan(texels)).any(axis=0)
    out = _nearest(total, digits, least)
    out[above], out[below] = np.inf, -np.inf
    bits = out.view(np.uint32)
    bits[invalid | (above & below)] = 0x7FFFFFFF if dtype.itemsize == 4 else 0x7FFFE000
    return out


def _nearest(total: Values, digits: int, least: int) -> NDArray[np.float32]:
    """Sums rounded to ``digits`` bits, away from zero in the middle; below the range they are 0, or subnormal for float16."""
    fraction, exponent = np.frexp(total)
    place = exponent - digits
    if digits == 11:
        place = np.maximum(place, least)
    scaled = np.ldexp(fraction, exponent - place)
    result = np.ldexp(np.trunc(scaled + np.copysign(0.5, scaled)), place)
    if digits == 24:
        result = np.where(np.abs(result) < 2.0**least, 0.0, result)
    with np.errstate(over="ignore"):
        return result.astype(np.float32)


def integers(slices: list[tuple[NDArray[np.int64], Weights]], dtype: np.dtype) -> NDArray[np.int64]:
    """Weighed sums of integers of 8 or 16 bits, as integers of 16 bits that stand for the same fraction of 1."""
    scale = 257 if dtype == np.uint8 else 1
    total = sum((texels * scale * weight).sum(axis=0) for texels, weight in slices)
    if dtype != np.int8:
        return rounded(total)
    # 256 of 127 becomes 32767: the sum, and 1/128 and 1/16384 of it, of which the last bits are dropped
    return total + ((total >> 4) + (total >> 12) + 4 >> 3)


def fraction_of_one(texels: NDArray[np.int64], dtype: np.dtype) -> NDArray[np.float32]:
    """Integers as floats from 0 or -1 to 1, correctly rounded."""
    most = np.iinfo(dtype).max
    return np.maximum(texels / most, -1.0).astype(np.float32)
