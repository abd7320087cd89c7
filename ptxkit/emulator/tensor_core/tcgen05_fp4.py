"""Sums of block-scaled e2m1 products: tcgen05.mma of the kinds mxf4 and mxf4nvf4.

The model is the one that :mod:`~ptxkit.emulator.tensor_core.tcgen05_arithmetic` names. With S the largest exponent of a pair of
scale factors and R the largest exponent of a scaled product, both over products that are not zero, and the exponent of C:

- ue8m0: the 16 products of a group are added exactly, and the sum is truncated toward zero to a multiple of 2**(S - 35), or of
  2**(C's exponent - 35) if that is larger and C's exponent is at least the group's own R. A subnormal result is recomputed
  without groups whose sum is less than 2**-174. (In the model this only applies to groups with scale factors below S; the
  sums of other groups are large enough.)
- ue4m3: sums of groups of 4 products are truncated to multiples of 2**(S - 35); if C's exponent is R or more, groups of 16
  products to multiples of 2**(C's exponent - 35) instead.
- C is truncated likewise, all is added exactly, and the sum is rounded toward zero to float32.

A product of two e2m1 has an exponent of 0 to 4 before it is scaled, so R - 39, which the model has too, is never above S - 35.
Of a sparse A's expanded columns a group has twice as many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.tensor_core.accumulation import exponents_of, multiples, powers, to_f32_toward_zero
from ptxkit.emulator.tensor_core.tcgen05_scales import Scales

_BELOW = -5000
"""The exponent of groups without products other than zero."""
_FRACTION = 35
_FLOOR = -174
_SPREAD = 6  # binary orders of magnitude per term: the largest determines the exponent of a sum of up to 2**5 powers


class _Factor:
    """A or B: elements (G, U, rows, width) float32 and scale factors.

    Attributes:
        values: elements, with K divided into groups of 16 stored elements.
        scale: (G, U, rows) float64, the scale factors; finite.
        raw: (G, U, rows) int32, the exponents of their encoding.
        unit: (G, U, rows) int32, the exponents of the lowest bit of their encoding.
    """

    def __init__(self, values: Lanes, bits: Lanes, t: str, group: int, groups_a_scale: int) -> None:
        self.values = np.ascontiguousarray(values.reshape(*values.shape[:2], -1, group).transpose(2, 0, 1, 3))
        each = bits.transpose(2, 0, 1).repeat(groups_a_scale, axis=0)
        if t == "ue8m0":
            self.raw = each.astype(np.int32) - 127
            self.unit = self.raw
            self.scale = powers(self.raw)
            self.scale[each == 255] = 0
        else:
            encoded = (each >> 3 & 15).astype(np.int32)
            self.raw = np.maximum(encoded, 1) - 7
            self.unit = self.raw - 3
            self.scale = ((each & 7) + 8 * (encoded > 0)) * powers(self.unit)
            self.scale[each & 127 == 127] = 0

    def spread(self) -> Lanes:
        """(G, U, rows, width) float32: 2 ** (6 exponent) of the elements, zero for zeros."""
        size = np.abs(self.values)
        return (size >= 0.5) + np.float32(63) * (size >= 2) + np.float32(4096 - 64) * (size >= 4)


def sums(a: Lanes, b: Lanes, c: Lanes, scales: Scales, stored: int) -> Lanes:
    """(U, M, N) float32: ``c + a @ b.T``, scaled.

    Args:
        a, b: (U, M, K) and (U, N, K) float32 values of e2m1.
        c: (U, M, N) float32, finite.
        scales: a scale factor that is NaN counts as zero.
        stored: columns of A for an element that is stored: 2 of a sparse A, else 1.
    """
    group = 16 * stored
    each = scales.width // group
    left, right = (_Factor(v, s, scales.t, group, each) for v, s in ((a, scales.a), (b, scales.b)))
    exact = _without_truncation(left, right, c)
    if exact is not None:
        return to_f32_toward_zero(exact)
    wide = c.astype(np.float64)
    own = exponents_of(c, _BELOW)
    return _powers_of_two(left, right, wide, own) if scales.t == "ue8m0" else _e4m3(left, right, wide, own, stored)


def _without_truncation(left: _Factor, right: _Factor, c: Lanes) -> NDArray[np.float64] | None:
    """The sums in float64 if it is known that no group is truncated, else None."""
    top = int(left.raw.max() + right.raw.max())
    size = float(np.abs(c).max())
    if size:
        top = max(top, int(np.frexp(size)[1]) - 1)
    unit = top - _FRACTION
    if int(left.unit.min() + right.unit.min()) - 2 < unit or unit < -100 or not multiples(c, unit):
        return None
    total = c.astype(np.float64)
    a, b = (v.values * v.scale[..., None] for v in (left, right))
    for one, other in zip(a, b, strict=True):
        total += one @ other.swapaxes(-1, -2)
    return total


class _Groups:
    """Products of A and B in groups of 16.

    Attributes:
        raw: (G, U, M, N) int32, the exponents of pairs of scale factors; far below where all products are zero.
        largest: (G, U, M, N) int32, the group's largest exponent of a scaled product; likewise.
        top: (U, M, N) int32, the largest of ``raw``.
        highest: (U, M, N) int32, the largest of ``largest``.
    """

    def __init__(self, left: _Factor, right: _Factor) -> None:
        found = left.spread() @ right.spread().swapaxes(-1, -2)
        nothing = (found == 0) | (left.scale == 0)[..., :, None] | (right.scale == 0)[..., None, :]
        self.raw = left.raw[..., :, None] + right.raw[..., None, :]
        self.largest = ((found.view(np.int32) >> 23) - 127) // _SPREAD + self.raw
        self.raw[nothing] = _BELOW
        self.largest[nothing] = _BELOW
        self.top, self.highest = self.raw.max(0), self.largest.max(0)


def _powers_of_two(left: _Factor, right: _Factor, c: Lanes, own: Lanes) -> Lanes:
    """Scale factors of type ue8m0."""
    groups = _Groups(left, right)
    present = c != 0
    decides = present & (own >= groups.highest)
    q = np.where(decides, own, groups.top) - _FRACTION
    q[(groups.top == _BELOW) & ~present] = 0
    units = (left.values @ right.values.swapaxes(-1, -2)).astype(np.float64)
    finer = np.maximum(groups.raw, -600)  # nothing there
    for g, unit in enumerate(units):
        coarser = np.where(present & (own >= groups.largest[g]), np.maximum(own - _FRACTION, q), q)
        unit *= powers(finer[g] - coarser)
        np.trunc(unit, out=unit)
        unit *= powers(coarser - q)
    base = np.trunc(c * powers(-q))
    out = to_f32_toward_zero((base + units.sum(0)) * powers(q))
    small = (np.abs(out) < np.float32(2.0**-126)) & (out != 0) & ~decides
    if small.any():
        least = powers(np.maximum(_FLOOR - q, 0))
        rest = to_f32_toward_zero((base + np.where(np.abs(units) < least, 0.0, units).sum(0)) * powers(q))
        out[small] = rest[small]
    return out


def _e4m3(left: _Factor, right: _Factor, c: Lanes, own: Lanes, stored: int) -> Lanes:
    """Scale factors of type ue4m3."""
    groups = _Groups(left, right)
    present = c != 0
    decides = present & (own >= groups.highest)
    q = np.where(decides, own, groups.top) - _FRACTION
    q[(groups.top == _BELOW) & ~present] = 0
    up = powers(-q)
    total = np.trunc(c * up)
    step = 4 * stored
    for g, (a, b) in enumerate(zip(left.values, right.values, strict=True)):
        scale = left.scale[g][..., :, None] * right.scale[g][..., None, :] * up
        columns = b.swapaxes(-1, -2)
        fours = np.zeros(c.shape)
        for k in range(0, a.shape[-1], step):
            fours += np.trunc((a[..., k : k + step] @ columns[..., k : k + step, :]) * scale)
        sixteen = np.trunc((a @ columns) * scale)
        total += np.where(decides, sixteen, fours)
    return to_f32_toward_zero(total * powers(q))
