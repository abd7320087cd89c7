"""The errors of single elements, in blocks: absolute, relative and in ulp, and which of them a tolerance permits.

NaN is equal to NaN only, and infinity to the same infinity only. The reference is first rounded to the output's dtype, so that
for 1e39 a float32 must be infinite. Relative errors refer to ``max(|reference|, smallest normal number)``, and one ulp is the
distance of neighbouring numbers of the dtype at the reference. :mod:`ptxkit.workload.tolerance` defines the permitted errors.

:func:`compared` computes the same for blocks of finite numbers, in arrays that each thread uses again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.workload.launch import Tolerance
from ptxkit.workload.parallel import Scratch
from ptxkit.workload.tolerance import BASES

Doubles = npt.NDArray[np.float64]

EXPONENTS = {8: (np.int64, 0x7FF0_0000_0000_0000), 4: (np.int32, 0x7F80_0000)}
"""The bits of the exponent by the bytes of a type, as integers of this type."""


@dataclass(frozen=True)
class Squares:
    """Sums of squares of errors and of the reference, over its finite numbers."""

    errors: float = 0.0
    reference: float = 0.0

    @classmethod
    def of(cls, errors: Doubles, expected: npt.NDArray[Any]) -> Squares:
        values = expected.astype(np.float64)
        finite = np.isfinite(values)
        return cls(float(np.square(errors[finite]).sum()), float(np.square(values[finite]).sum()))

    def __add__(self, other: Squares) -> Squares:
        return Squares(self.errors + other.errors, self.reference + other.reference)

    @property
    def ratio(self) -> float:
        """The root mean square of the errors over that of the reference."""
        if not self.errors:
            return 0.0
        return (self.errors / self.reference) ** 0.5 if self.reference else float("inf")


@dataclass(frozen=True)
class Format:
    """Properties of a floating-point dtype."""

    mantissa_bits: int
    smallest_normal: float
    largest: float

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Format | None:
        """The format of ``dtype``; None if it is not a floating-point type."""
        info: Any
        if dtype.char in "efd":
            info = np.finfo(dtype)
        elif dtype.name in BASES:  # np.finfo does not support the types of ml_dtypes
            import ml_dtypes

            info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        else:
            return None
        return cls(int(info.nmant), float(info.smallest_normal), float(info.max))

    def ulp(self, magnitude: Doubles) -> Doubles:
        """Distance of neighbouring numbers at ``magnitude``, which is finite and at least 0."""
        powers = np.maximum(magnitude, self.smallest_normal)
        _to_powers_of_two(powers)
        powers *= 2.0**-self.mantissa_bits
        return powers


def widen(values: npt.NDArray[Any], to: npt.NDArray[Any]) -> None:
    """Convert numbers exactly to float32 or float64, into an array of the same shape that is contiguous.

    The conversions of ml_dtypes hold the interpreter's lock, so that threads would wait for each other.
    """
    name = values.dtype.name
    if name == "bfloat16":
        half = to if to.dtype == np.float32 else np.empty(to.shape, np.float32)
        bits = half.view(np.uint32)
        np.copyto(bits, values.view(np.uint16))
        np.left_shift(bits, 16, out=bits)
        if half is not to:
            with np.errstate(invalid="ignore"):  # of NaN that signal
                np.copyto(to, half)
    elif values.itemsize == 1 and name in BASES:
        np.take(_numbers(values.dtype, to.dtype), values.view(np.uint8), out=to, mode="clip")
    else:
        np.copyto(to, values, casting="unsafe")


@lru_cache
def _numbers(dtype: np.dtype[Any], to: np.dtype[Any]) -> npt.NDArray[Any]:
    """The 256 numbers of a type of one byte, in the order of their bits."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(to)


def _to_powers_of_two(values: npt.NDArray[Any]) -> None:
    """Replace positive normal numbers by the largest powers of two that are not larger, by clearing their significands."""
    kind, exponent = EXPONENTS[values.itemsize]
    bits = values.view(kind)
    np.bitwise_and(bits, exponent, out=bits)


def permitted(
    allowed: Tolerance,
    magnitude: Doubles,
    ulp: Callable[[Any], Any],
    around: Doubles | float,
) -> Doubles:
    """The permitted error of each element: see :class:`Tolerance`.

    Args:
        magnitude: ``|reference|``. ulp: the distance of neighbouring numbers at a magnitude. around: the typical magnitude.
    """
    of_sums = allowed.typical * around
    rounding = np.maximum(allowed.absolute + allowed.relative * magnitude, allowed.ulp * ulp(magnitude + of_sums))
    result: Doubles = rounding + of_sums
    return result


def float_errors(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    form: Format,
    allowed: Tolerance,
    around: Doubles | float = 0.0,
) -> tuple[tuple[Doubles, ...], npt.NDArray[np.bool_]]:
    with np.errstate(all="ignore"):
        a = actual.astype(np.float64)
        e = expected.astype(np.float64)
        rounded = e.astype(actual.dtype).astype(np.float64)
        special = ~(np.isfinite(a) & np.isfinite(rounded))
        absolute = np.abs(a - e)
        magnitude = np.abs(e)
        if special.any():
            same = (a == rounded) | (np.isnan(a) & np.isnan(rounded))
            absolute[special] = np.where(same[special], 0.0, np.inf)
            magnitude[special] = 0.0
        relative = absolute / np.maximum(magnitude, form.smallest_normal)
        ulps = absolute / form.ulp(magnitude)
        wrong = ~(absolute <= permitted(allowed, magnitude, form.ulp, around))
    return (absolute, relative, ulps), wrong


def exact_errors(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    allowed: Tolerance,
    around: Doubles | float = 0.0,
) -> tuple[tuple[Doubles, ...], npt.NDArray[np.bool_]]:
    """Errors of integers and booleans: an ulp is 1, and without a tolerance they must be equal."""
    different = actual != expected
    with np.errstate(all="ignore"):  # a reference may be infinite or NaN
        absolute = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        magnitude = np.abs(expected.astype(np.float64))
        within = (absolute <= permitted(allowed, magnitude, np.ones_like, around)) & np.isfinite(absolute)
        relative = absolute / np.maximum(magnitude, 1.0)
    tolerant = allowed != Tolerance()
    return (absolute, relative, absolute), different & ~(within & tolerant)


@dataclass(frozen=True)
class Block:
    """The result of comparing a block.

    Attributes:
        largest: the largest absolute, relative and ulp error.
        wrong: which elements are outside the tolerance; None if none is.
        squares: for the root mean square, where the tolerance limits it.
    """

    largest: Doubles
    wrong: npt.NDArray[np.bool_] | None
    squares: Squares


def compared(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    form: Format | None,
    allowed: Tolerance,
    around: Callable[[npt.NDArray[np.intp]], Doubles | float],
    least: float = 0.0,
) -> Block:
    """Compare a block of an output with its reference; both have one axis and at least one element.

    Args:
        form: of the output's dtype; None for integers. around: indices in the block -> typical magnitudes there.
        least: a lower bound of them.
    """
    if form is None and not allowed.rms:
        return _exact(actual, expected, allowed, around)
    found = _finite(actual, expected, form, allowed, around, least) if form else None
    if found is not None:
        return found
    typical = around(np.arange(actual.size)) if allowed.typical else 0.0
    errors, wrong = (
        float_errors(actual, expected, form, allowed, typical) if form else exact_errors(actual, expected, allowed, typical)
    )
    squares = Squares.of(errors[0], expected) if allowed.rms else Squares()
    return Block(np.array([error.max() for error in errors]), wrong if wrong.any() else None, squares)


def _exact(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    allowed: Tolerance,
    around: Callable[[npt.NDArray[np.intp]], Doubles | float],
) -> Block:
    """:func:`compared` for integers and booleans, whose errors are only computed where they are not 0."""
    places = np.flatnonzero(actual != expected)
    if not places.size:
        return Block(np.zeros(3), None, Squares())
    typical = around(places) if allowed.typical else 0.0
    errors, outside = exact_errors(actual[places], expected[places], allowed, typical)
    wrong = None
    if outside.any():
        wrong = np.zeros(actual.size, np.bool_)
        wrong[places[outside]] = True
    return Block(np.array([error.max() for error in errors]), wrong, Squares())


_scratch = Scratch(4)


def _finite(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    form: Format,
    allowed: Tolerance,
    around: Callable[[npt.NDArray[np.intp]], Doubles | float],
    least: float,
) -> Block | None:
    """:func:`compared` for finite outputs whose references are finite in their dtype; None for others.

    All elements are compared first with the tolerance whose part for sums is that of the lowest typical magnitude. It is never
    larger than the whole tolerance, which is only computed for the elements that are outside of it. Outputs of 16 bits and less
    with references in float32 are compared in float32, which takes half the time and changes errors by 2^-22 of them or less.
    """
    narrow = expected.dtype == np.float32 and actual.dtype.itemsize <= 2 and not allowed.rms
    found = _compared_in(np.float32, actual, expected, form, allowed, around, least) if narrow else None
    if found is None or not np.isfinite(found.largest).all():  # a relative error may be too large for float32
        found = _compared_in(np.float64, actual, expected, form, allowed, around, least)
    return found


def _compared_in(
    kind: type[np.float32] | type[np.float64],
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    form: Format,
    allowed: Tolerance,
    around: Callable[[npt.NDArray[np.intp]], Doubles | float],
    least: float,
) -> Block | None:
    """:func:`_finite` with errors of this type."""
    absolute, magnitude, scale, quotient = (array.view(kind)[: actual.size] for array in _scratch.of(actual.size))
    with np.errstate(all="ignore"):
        wide = expected
        if expected.dtype != kind:
            np.copyto(quotient, expected, casting="unsafe")
            wide = quotient
        np.abs(wide, out=magnitude)
        if not magnitude.max() <= form.largest:
            return None
        widen(actual, absolute)
        np.subtract(absolute, wide, out=absolute)
        np.abs(absolute, out=absolute)
        largest = absolute.max()
        if not largest < np.inf:
            return None
        np.maximum(magnitude, form.smallest_normal, out=scale)
        relative = np.divide(absolute, scale, out=quotient).max()
        _to_powers_of_two(scale)
        ulps = np.divide(absolute, scale, out=quotient).max() * 2.0**form.mantissa_bits
        np.multiply(magnitude, allowed.relative, out=quotient)
        quotient += allowed.absolute
        if allowed.ulp:
            scale *= allowed.ulp * 2.0**-form.mantissa_bits
            np.maximum(quotient, scale, out=quotient)
        quotient += allowed.typical * least
        beyond = np.flatnonzero(~(absolute <= quotient))
        wrong = None
        if beyond.size:
            typical = around(beyond) if allowed.typical else 0.0
            largest_permitted = permitted(allowed, magnitude[beyond].astype(np.float64), form.ulp, typical)
            outside = ~(absolute[beyond] <= largest_permitted)
            if outside.any():
                wrong = np.zeros(actual.size, np.bool_)
                wrong[beyond[outside]] = True
        squares = Squares(float(absolute @ absolute), float(magnitude @ magnitude)) if allowed.rms else Squares()
    return Block(np.array([largest, relative, ulps]), wrong, squares)
