"""How tensor cores add floating-point products: the terms are aligned to the largest one, truncated, and added as integers.

PTX does not define order, rounding and precision of the sums. The behaviour of hardware has been measured: Fasi, Higham,
Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021); Xie, Wang, Yang, Yang, "MMA-Sim" (arXiv 2511.10909),
which reports bitwise agreement. This module implements their model:

1. Products are exact. With e the largest exponent among the products (the sum of their factors' exponents) and the accumulator,
   every term is truncated toward zero to a multiple of 2 ** (e - fraction).
2. The terms are added exactly.
3. The sum is truncated to float32 (to 13 bits of fraction where ``short``), or rounded to nearest as float16.

An instruction adds its terms in groups of ``terms``, one group after the other. If no term is truncated, as for integers of
moderate size, the result is computed as a float64 matrix product, which is then exact and several times as fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptxkit.emulator.arrays import Lanes

_ELEMENTS = (
    1 << 15
)  # elements of the result at a time, so that the arrays of the loop along K stay in the host's L2 cache
_SPREAD = 8  # binary orders of magnitude per term: the largest determines the exponent of a sum of up to 2**7 powers
_LOWEST = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "e2m3": 0, "e3m2": -2, "e2m1": 0}
"""Exponent of the smallest normal value, which is also used for subnormal values."""


@dataclass(frozen=True)
class Accumulation:
    """The parameters of one generation of tensor cores.

    Attributes:
        fraction: bits kept below the largest exponent.
        terms: products added at a time.
        short: float32 results have 13 bits of fraction.
        floor: the lowest exponent that terms are aligned to; the exponent of an accumulator that is zero.
    """

    fraction: int
    terms: int
    short: bool = False
    floor: int = -126

    def dot(self, a: Lanes, b: Lanes, c: Lanes, t: str, other: str) -> Lanes:
        """``c + a @ b``.

        Args:
            a: (U, m, k) float32, values of type ``t``.
            b: (U, k, n) float32, values of type ``other``.
            c: (U, m, n) float32 or float16: the type of the result.
        """
        return self.scaled(a, b, c, t, other)

    def scaled(
        self, a: Lanes, b: Lanes, c: Lanes, t: str, other: str, scale: Lanes | None = None, lowered: int = 0
    ) -> Lanes:
        """``c * 2**-lowered + a @ b * 2**scale``, exactly scaled; ``scale`` is (U, m, n) int32, or None for zeros."""
        k = a.shape[-1]
        out = c
        for start in range(0, k, self.terms):
            stop = min(start + self.terms, k)
            out = self._group(a[..., start:stop], b[..., start:stop, :], out, t, other, scale, lowered)
        return out

    def _group(self, a: Lanes, b: Lanes, c: Lanes, t: str, other: str, scale: Lanes | None, lowered: int) -> Lanes:
        left, right = _Factor(a, t), _Factor(b, other)
        finite = left.finite and right.finite and bool(np.isfinite(c).all())
        plain = scale is None and not lowered
        whole = finite and plain and self._nothing_is_cut_off(left, right, c)
        out = np.empty_like(c)
        step = max(1, _ELEMENTS // (c.shape[-1] * c.shape[-2]))
        for u in range(0, len(c), step):
            s = slice(u, u + step)
            if whole:
                exact = _exact(a[s], b[s], c[s])
            else:
                part = None if scale is None else scale[s]
                exact = self._aligned(left.part(s), right.part(s), c[s], part, lowered)
            out[s] = self._rounded(exact, c.dtype)
        if not finite:
            exact = _exact(a, b, c)
            bad = ~np.isfinite(exact)
            out[bad] = self._rounded(exact[bad], c.dtype)
        return out

    def _nothing_is_cut_off(self, left: _Factor, right: _Factor, c: Lanes) -> bool:
        """Whether every term is known to be a multiple of the smallest unit that is kept."""
        size = float(np.abs(c).max())
        high = left.highest + right.highest
        if size:
            high = max(high, int(np.frexp(size)[1]) - 1)
        unit = high - self.fraction
        lows = left.lowest_bit(), right.lowest_bit()
        slack = sum(lows) - unit
        if slack < 0:
            return False
        lows = lows[0] - slack // 2, lows[1] - (slack - slack // 2)
        return multiples(left.values, lows[0]) and multiples(right.values, lows[1]) and multiples(c, unit)

    def _aligned(
        self, left: _Factor, right: _Factor, c: Lanes, raised: Lanes | None, lowered: int
    ) -> NDArray[np.float64]:
        """Steps 1 and 2; ``raised`` are the exponents of the products' scale, or None."""
        wide = c.astype(np.float64)
        own = exponents_of(c, self.floor)
        if lowered:
            wide *= 2.0**-lowered
            own = np.maximum(own - lowered, self.floor)
        largest = _largest(left, right)
        if raised is not None:
            largest += raised
        shift = self.fraction - np.maximum(largest, own)
        total = np.trunc(wide * powers(shift))
        # products with exponents beyond -120 and 120 are zero or negligible
        up = shift if raised is None else np.clip(shift + raised, -120, 120)
        exponents = left.highest + right.highest, left.smallest + right.smallest
        narrow = exponents[0] < 127 and exponents[1] > -126 and up.min() > -126 and up.max() < 127
        kind: np.dtype = np.dtype(np.float32 if narrow else np.float64)
        a: Lanes = left.values.astype(kind, copy=False)
        b: Lanes = right.values.astype(kind, copy=False)
        scale: Lanes = ((up + 127) << 23).view(np.float32) if narrow else powers(up)
        few = c.shape[-1] < 32
        if few:  # for short rows numpy is faster if the axis of matrices is the inner one
            a, b = (
                np.ascontiguousarray(a.transpose(2, 1, 0))[:, :, None],
                np.ascontiguousarray(b.transpose(1, 2, 0))[:, None],
            )
            scale = np.ascontiguousarray(scale.transpose(1, 2, 0))
        else:
            a, b = a.transpose(2, 0, 1)[..., None], b.transpose(1, 0, 2)[:, :, None]
        product, term = np.empty(scale.shape, kind), np.empty(scale.shape, np.int32)
        # a term has fraction + 2 bits, so that this many terms fit an int32 sum
        room = 1 << 31 - self.fraction - 2
        for start in range(0, len(a), room):
            some: NDArray[np.int32] = np.zeros(scale.shape, np.int32)
            for left_k, right_k in zip(a[start : start + room], b[start : start + room], strict=True):
                np.multiply(left_k, right_k, out=product)
                np.multiply(product, scale, out=product)
                np.copyto(term, product, casting="unsafe")  # truncates
                np.add(some, term, out=some)
            total += some.transpose(2, 0, 1) if few else some
        return total * powers(-shift)

    def _rounded(self, exact: NDArray[np.float64], dtype: DTypeLike) -> Lanes:
        if dtype == np.float16:
            return to_f16_nearest(exact)
        return to_f32_toward_zero(exact, 13 if self.short else 23)


class _Factor:
    """A multiplicand and its extent in binary orders of magnitude.

    Attributes:
        values: (U, rows, columns) float32.
        exponents: of the values, int32; those of zeros are far below all others.
        highest, smallest: the largest and smallest exponent; 0 if all values are zero.
    """

    def __init__(self, values: Lanes, t: str) -> None:
        self.values = np.ascontiguousarray(values)
        raw = (self.values.view(np.int32) >> 23) & 255
        top, low = int(raw.max()), int(raw.min())
        self.finite = top != 255
        self.zeros = low == 0
        raw -= 127
        if low - 127 < _LOWEST[t]:
            np.maximum(raw, _LOWEST[t], out=raw)
        self.highest, self.smallest = max(top - 127, _LOWEST[t]), max(low - 127, _LOWEST[t])
        if self.zeros:
            zero = self.values == 0
            raw[zero] = -1000
            self.zeros = bool(zero.any())
            kept = raw[~zero]
            self.highest, self.smallest = (int(kept.max()), int(kept.min())) if kept.size else (0, 0)
        self.exponents = raw

    def lowest_bit(self) -> int:
        """Exponent of the lowest bit that is set in a sample of the values."""
        flat = self.values.reshape(-1)
        bits = flat[:: max(1, flat.size // 256)].view(np.uint32)
        mantissa = bits & np.uint32(0x7FFFFF)
        exponent = (bits >> np.uint32(23)).view(np.int32) & 255
        mantissa |= (exponent != 0).astype(np.uint32) << np.uint32(23)
        # the exponent field of a power of two in float32 is its logarithm
        lowest = (mantissa & (~mantissa + np.uint32(1))).astype(np.float32).view(np.int32) >> 23
        return int((lowest - 277 + np.maximum(exponent, 1)).min(where=mantissa != 0, initial=120))

    def part(self, chosen: slice) -> _Factor:
        """A selection of the matrices, with unchanged extents."""
        other = object.__new__(_Factor)
        other.__dict__.update(self.__dict__)
        other.values, other.exponents = self.values[chosen], self.exponents[chosen]
        return other

    def spread(self) -> NDArray[np.float64]:
        """2 ** (8 (exponent - highest)) as float64, zero for zeros."""
        spread = powers(np.maximum((self.exponents - self.highest) * _SPREAD, -1000))
        if self.zeros:
            spread[self.values == 0] = 0
        return spread


def multiples(values: Lanes, exponent: int) -> bool:
    """Whether all values are multiples of 2 ** exponent; may be False although they are."""
    if not -100 < exponent < 100:
        return False
    scaled = values.astype(np.float32, copy=False) * np.float32(2.0**-exponent)
    return bool((np.rint(scaled) == scaled).all())


def _exact(a: Lanes, b: Lanes, c: Lanes) -> NDArray[np.float64]:
    """``c + a @ b`` in float64."""
    total = np.matmul(a.astype(np.float64), b.astype(np.float64))
    total += c
    return total


def _largest(left: _Factor, right: _Factor) -> NDArray[np.int32]:
    """(U, m, n): the largest exponent among the products of each row and column; -900 where all are zero."""
    if (left.highest - left.smallest + right.highest - right.smallest) * _SPREAD < 1000 and left.values.shape[-1] < 128:
        # the exponent of a sum of powers of 2 ** 8 is that of its largest term, so that a matrix product finds the largest term
        sums = np.matmul(left.spread(), right.spread())
        found = (sums.view(np.int64) >> 52).astype(np.int32)
        found -= 1023
        found >>= 3
        found += left.highest + right.highest
        found[sums == 0] = -900
    else:
        found = left.exponents[:, :, 0, None] + right.exponents[:, None, 0]
        for k in range(1, left.values.shape[-1]):
            np.maximum(found, left.exponents[:, :, k, None] + right.exponents[:, None, k], out=found)
    return np.maximum(found, -900, out=found)


def exponents_of(values: Lanes, zero: int) -> NDArray[np.int32]:
    """Exponents of float32 or float16 values; subnormal ones have that of the smallest normal, zeros ``zero``."""
    if values.dtype == np.float32:
        raw = (values.view(np.int32) >> 23) & 255
        lowest = _LOWEST["bf16"]
    else:
        raw = ((values.view(np.int16) >> 10) & 31).astype(np.int32)
        lowest = _LOWEST["f16"]
    np.maximum(raw, 1, out=raw)
    raw += lowest - 1
    if zero != lowest:
        raw[values == 0] = zero
    return raw


def powers(exponents: NDArray[np.int32]) -> NDArray[np.float64]:
    """2 ** exponents, for exponents from -1022 to 1023."""
    return ((exponents.astype(np.int64) + 1023) << 52).view(np.float64)


def to_f32_toward_zero(exact: NDArray[np.float64], fraction: int = 23) -> NDArray[np.float32]:
    """Truncates float64 to float32 with ``fraction`` bits of fraction; values beyond the range of float32 become infinite."""
    kept = np.uint64((1 << 64) - (1 << 52 - fraction))
    short = (exact.view(np.uint64) & kept).view(np.float64)
    out = short.astype(np.float32)
    nan = np.isnan(out)
    if nan.any():
        out[nan] = np.uint32(0x7FFFFFFF).view(np.float32)
    # the conversion has rounded subnormal results to nearest: truncate them instead
    small = np.abs(short) < 2.0**-126
    small &= short != 0
    if small.any():
        away = small & (np.abs(out.astype(np.float64)) > np.abs(exact))
        out[away] = np.nextafter(out[away], np.float32(0))
    return out


def to_f16_nearest(exact: NDArray[np.float64]) -> NDArray[np.float16]:
    """float64 rounded to float16 once; a sum that becomes zero is +0, also a negative one (seen on an H200)."""
    out = exact.astype(np.float16)
    out += np.float16(0)  # -0 + 0 is +0
    nan = np.isnan(out)
    if nan.any():
        out[nan] = np.uint16(0x7FFF).view(np.float16)
    return out


@dataclass(frozen=True)
class Unpacked(Accumulation):
    """mma.sync with 8-bit floating-point types on targets where ptxas converts them to f16.

    ptxas for sm_90, sm_100, sm_103 and sm_110 converts both factors to f16, multiplies the elements in the lower halves of all
    registers, accumulates the products of the upper halves on the result, and adds the accumulator last, rounding to nearest.
    Seen in SASS: F2FP.F16.E4M3.UNPACK_B, HMMA.16816, FADD (for sm_120 it is one QMMA.16832); the same bits on an H200, and in
    what was recorded on a B200.
    """

    def dot(self, a: Lanes, b: Lanes, c: Lanes, t: str, other: str) -> Lanes:
        """See :meth:`Accumulation.dot`."""
        k = np.arange(a.shape[-1])
        # a register holds four elements of a row, two in its upper half; of a sparse operand these stand for a group of four
        upper = k // 4 % 2 == 1 if len(k) > 32 else k % 4 >= 2
        sums = np.zeros_like(c)
        for half in (~upper, upper):
            sums = self.scaled(a[..., half], b[..., half, :], sums, "f16", "f16")
        with np.errstate(over="ignore", invalid="ignore"):
            total = c + sums
        nan = np.isnan(total)
        if nan.any():
            total.view(np.uint32 if c.dtype == np.float32 else np.uint16)[nan] = (
                0x7FFFFFFF if c.dtype == np.float32 else 0x7FFF
            )
        return total


def accumulation(instruction: str, t: str, target: int) -> Accumulation:
    """The model for an instruction (``"mma"`` or ``"wgmma"``) on element type ``t``.

    Args:
        target: compute capability as a number (90).
    """
    narrow = t in ("e4m3", "e5m2")
    if target >= 90:
        if instruction == "wgmma" and narrow:
            return Accumulation(13, 64, short=True)
        return Unpacked(25, 64) if narrow and target < 120 else Accumulation(25, 64)
    if target >= 80:
        if narrow:
            return Accumulation(13, 16, short=True)
        return Accumulation(24, 4 if t == "tf32" else 8)
    return Accumulation(24, 8) if target >= 75 else Accumulation(23, 4)
