"""The permitted error of an output: the tolerance that a description states, or a default that follows from the arithmetic.

The default for a floating-point output has three parts (docs/verification.md derives them):

- ``relative``: a few roundings of the output's type, and instructions such as ``ex2.approx``;
- ``absolute``: the same for results near zero, in proportion to the output's median where that is below 1;
- ``typical``: sums. Rounding errors of a sum of L terms grow with the root of L and with the magnitude of the partial sums, not
  of the result. :class:`Typical` estimates that magnitude.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.workload.launch import Tolerance, Work
from ptxkit.workload.parallel import BLOCK, in_threads

BASES = {
    "float64": Tolerance(relative=1e-12, absolute=1e-14),
    "float32": Tolerance(relative=1e-5, absolute=1e-6),
    "float16": Tolerance(relative=2e-3, absolute=1e-4, ulp=1),
    "bfloat16": Tolerance(relative=1.6e-2, absolute=1e-3, ulp=1),
    "float8_e4m3fn": Tolerance(ulp=0.5 + 2**-4),
    "float8_e5m2": Tolerance(ulp=0.5 + 2**-4),
}
"""The default tolerance by dtype name, for results that are not sums. Values of other types, such as integers, must be
equal to the reference. A value in an 8-bit type is the nearest one of a value that may have been rounded to 16 bits before."""

SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126}
"""Numbers below these may be flushed to zero by ``.ftz`` instructions."""

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Input types whose products are summed on tensor cores."""

SPREADS = 8.0
"""Factor of the root of the length, in roundings of the accumulator: one standard deviation is about half a rounding times the
root of the length, and 5.7 standard deviations are the largest error among 67 million sums."""
TRUNCATED = 1 / 8
"""Further roundings per term on tensor cores, which truncate the partial sum after each 16 terms instead of rounding it."""
FP8_BITS, FP8_STEP = 2.0**-13, 32
"""Tensor cores keep about 13 bits of the partial sums of 8-bit products (sm_89, sm_90), and add 32 products at a time."""
FP8_TRUNCATED = 1 / 2
"""Further roundings per step of 32 products: each step truncates, which loses half a unit on average, always towards zero while
the partial sum keeps its sign."""
FP8_SPREADS = 6.0
"""Factor of the root of the number of steps for sums larger than the typical one, in roundings of the sum: a step also
truncates each of its products to the unit of the partial sum, so that 5.7 standard deviations grow with the sum by up to this
factor."""
FP8_COHERENT = 6.0
"""Further roundings per step where all products have the sign of the sum: a step loses half a unit for each of them."""
FP8_DEVIATION = 1.75
"""Standard deviation of the error after one step, in roundings of the sum's root mean square, at most: the step truncates 32
products and their sum, each by up to a unit, whose mean square is sqrt(33 / 3) units; a unit is 2^-13 of the power of two below
the partial sum, 0.73 of it, and the mean square of the partial sums is half of that of the sums. Products that are multiples of
the unit lose nothing: of uniform e4m3 numbers it is 0.7 for sums of 1,024 terms and 1.2 for 28,672."""
TF32 = 2.0**-8
"""Relative error of a sum of products of float32 inputs, which tensor cores truncate to 11 significant bits: an error
of 2^-10 for each product, times the 5.7 standard deviations that the tolerance allows."""
TF32_TRUNCATED = 2.0**-10
"""Relative error of a sum by the truncation itself, which makes every product smaller: 2^-11 for each factor on average,
divided by its significand between 1 and 2."""

SAMPLES = 1 << 20
SAMPLED_SIDE = 1024

PARTS = 64  # slices of a large matrix that threads take; the sums of columns do not depend on the number of threads
SMALLEST_SIDE = 16  # minimum length of rows and columns from which the magnitude of partial sums is estimated
OF_GEOMETRIC = 1.5  # the mean of normally distributed magnitudes over their geometric mean
ENOUGH = 64
"""Number of elements from which their mean magnitude hardly varies. The mean of n normally distributed magnitudes has a
standard deviation of 0.75 / sqrt(n): the smallest of a million means of 64 elements is half of the typical magnitude, that of
16 elements is a fifth."""


@dataclass(frozen=True)
class Sums:
    """The sums from which outputs are computed.

    Attributes:
        length: number of terms of the longest sum. stated: the description's ``Work`` states it, rather than its flops.
        unit: ``Work.unit``. narrow: the type of 16- or 8-bit floating-point inputs, or "".
    """

    length: int
    stated: bool = False
    unit: str = "f32"
    narrow: str = ""

    @classmethod
    def of(cls, work: Work, elements: int, inputs: Iterable[np.dtype[Any]]) -> Sums:
        """The sums of a workload: the length is stated, or the number of multiply-adds per output element."""
        narrow = next((dtype.name for dtype in inputs if dtype.name in NARROW), "")
        if work.sum_length is not None:
            return cls(work.sum_length, True, work.unit, narrow)
        return cls(max(1, work.flops // (2 * max(1, elements))), False, work.unit, narrow)

    def error(self, dtype: str) -> float:
        """The permitted error of sums, relative to the typical magnitude."""
        if self.length < 2:
            return 0.0
        if "8_e" in self.narrow:
            steps = max(1.0, self.length / FP8_STEP)
            return FP8_BITS * (SPREADS * sqrt(steps) + FP8_TRUNCATED * steps)
        roundings = SPREADS * sqrt(self.length) + (TRUNCATED * self.length if self.narrow else 0.0)
        error = roundings * (2.0**-53 if dtype == "float64" else 2.0**-24)
        return error + TF32 if self.unit == "tf32" else error

    @property
    def deviation(self) -> float:
        """The standard deviation of the errors of sums of 8-bit floating-point products with random signs, at most, relative to
        the root mean square of the sums; 0 for other types."""
        if self.length < 2 or "8_e" not in self.narrow:
            return 0.0
        return FP8_BITS * FP8_DEVIATION * sqrt(max(1.0, self.length / FP8_STEP))

    @property
    def relative(self) -> float:
        """The relative error of sums many times as large as the typical one.

        The partial sums of such a sum have its sign and grow evenly to it, so that every truncation makes it smaller: by a
        half unit of a partial sum, which is half as large as the sum on average. Truncated products of 8-bit types are in the
        unit of the partial sum. A truncated tf32 factor makes every product smaller.
        """
        if self.length < 2:
            return 0.0
        if "8_e" in self.narrow:
            steps = max(1.0, self.length / FP8_STEP)
            return FP8_BITS * (FP8_TRUNCATED * steps / 2 + FP8_SPREADS * sqrt(steps))
        return TF32_TRUNCATED if self.unit == "tf32" else 0.0

    def coherent(self, expected: npt.NDArray[Any]) -> float:
        """The relative error, beyond :attr:`relative`, of sums of 8-bit products of one sign.

        Where the outputs have one sign, so have their products, at most; ``|mean| / mean magnitude`` of the outputs is the
        share of the products that is not cancelled by others.
        """
        if self.length < 2 or "8_e" not in self.narrow:
            return 0.0
        sample = _sample(expected)
        magnitude = float(np.abs(sample).mean()) if sample.size else 0.0
        share = abs(float(sample.mean())) / magnitude if magnitude else 0.0
        return FP8_BITS * FP8_COHERENT * max(1.0, self.length / FP8_STEP) * share

    def __str__(self) -> str:
        return f"sums of {self.length:,} terms" if self.length > 1 else "no sums"


@dataclass(frozen=True)
class Rule:
    """The rule from which the tolerance of a workload's outputs follows.

    Attributes:
        given: a stated tolerance of all outputs; None for the default. origin: who states it, for messages.
        sums: the sums, for the default.
        outputs: stated tolerances of single outputs, by name; they come before ``given``.
        known: references whose typical magnitudes have been computed, by the name of the output; :meth:`typical` adds to it.
            Rules for the same data share one.
    """

    given: Tolerance | None = None
    origin: str = ""
    sums: Sums | None = None
    outputs: Mapping[str, Tolerance] = field(default_factory=dict)
    known: dict[str, tuple[npt.NDArray[Any], Typical]] = field(default_factory=dict, repr=False, compare=False)

    def typical(self, name: str, expected: npt.NDArray[Any]) -> Typical:
        """The typical magnitudes of the reference of an output."""
        array, found = self.known.get(name, (None, None))
        if found is None or array is not expected:
            found = Typical(expected)
            self.known[name] = expected, found
        return found

    def resolved(self, dtype: np.dtype[Any], expected: npt.NDArray[Any], name: str = "") -> tuple[Tolerance, str]:
        """The tolerance of the output ``name``, and a sentence about its origin."""
        given = self.outputs.get(name, self.given)
        if given is not None:
            return given, self.origin or "as given"
        base = BASES.get(dtype.name)
        if base is not None and self.sums is not None:
            base = replace(base, relative=base.relative + self.sums.relative + self.sums.coherent(expected))
        if base is None:
            return Tolerance(), f"{dtype.name} must agree exactly"
        origin = f"the default for {dtype.name}" + (f" and {self.sums}" if self.sums else "")
        if not base.absolute:
            return replace(base, typical=self.sums.error(dtype.name) if self.sums else 0.0), origin
        absolute = max(base.absolute * min(1.0, median_magnitude(expected)), SMALLEST_NORMAL.get(dtype.name, 0.0))
        return replace(base, absolute=absolute, typical=self.sums.error(dtype.name) if self.sums else 0.0), origin


def as_rule(tolerance: Tolerance | Rule | None) -> Rule:
    """A rule unchanged; a tolerance as a rule; None as the default without sums."""
    return tolerance if isinstance(tolerance, Rule) else Rule(tolerance)


def median_magnitude(expected: npt.NDArray[Any]) -> float:
    """The median of ``|expected|`` over finite non-zero numbers, of up to 2^20 elements; 1 if there are none."""
    sample = _magnitudes(expected)
    return float(np.median(sample)) if sample.size else 1.0


def _magnitudes(expected: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The magnitudes of finite non-zero numbers among up to 2^20 evenly spaced elements."""
    magnitudes: npt.NDArray[np.float64] = np.abs(_sample(expected))
    return magnitudes


def _sample(expected: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The finite non-zero numbers among up to 2^20 evenly spaced elements."""
    flat = expected.reshape(-1)
    with np.errstate(all="ignore"):
        sample: npt.NDArray[np.float64] = flat[:: max(1, flat.size // SAMPLES)].astype(np.float64)
    kept: npt.NDArray[np.float64] = sample[np.isfinite(sample) & (sample != 0)]
    return kept


def large_magnitude(expected: npt.NDArray[Any]) -> float:
    """The magnitude that nine of ten finite non-zero numbers do not exceed, of up to 2^20 elements; 1 if there are none."""
    sample = _magnitudes(expected)
    return float(np.quantile(sample, 0.9)) if sample.size else 1.0


class Typical:
    """The typical magnitude of an output around each element.

    It is the smaller of the mean ``|expected|`` of its row and of its column, so that neither scaled rows, nor scaled columns,
    nor single large elements increase the tolerance of others. In a product of a matrix with scaled rows and one with scaled
    columns, the product of the geometric means of row and column over that of the matrix may be larger, and is then used.
    Matrices of fewer than 64 rows, such as the heads of a token, are taken as one, with the rows of all leading axes. Means of
    fewer than 64 elements are raised by what they vary. Of fewer than 16 rows of at least 64 elements, each has one magnitude,
    which is derived from its geometric mean. Other arrays have one magnitude, which nine of ten elements do not exceed.

    Args:
        expected: the reference, of any shape.

    Attributes:
        columns: length of a row, 0 without rows.
    """

    def __init__(self, expected: npt.NDArray[Any]) -> None:
        shape = expected.shape
        if len(shape) > 2 and shape[-2] < ENOUGH:
            shape = (prod(shape[:-1]), shape[-1])
        matrix = len(shape) >= 2 and min(shape[-2:]) >= SMALLEST_SIDE
        rows = len(shape) >= 2 and shape[-1] >= ENOUGH and prod(shape) > 0
        self.columns = shape[-1] if matrix or rows else 0
        self._one = 0.0 if self.columns else large_magnitude(expected)
        if not self.columns:
            return
        self._height = shape[-2]
        groups = list(_groups(expected.reshape(prod(shape[:-2]), *shape[-2:])))
        if matrix:
            self._by_row, self._by_column = _concatenated(in_threads(_means, groups))
            self._row_factor, self._column_factor = _concatenated(in_threads(_scales, groups))
        else:
            self._by_row, self._by_column = np.zeros(prod(shape[:-1])), np.zeros((prod(shape[:-2]), 1))
            logarithms = in_threads(lambda group: _mean_logarithm(group, axis=2), groups)
            self._row_factor = OF_GEOMETRIC * np.exp(np.concatenate(logarithms).reshape(-1))
            self._column_factor = np.ones_like(self._by_column)

    def at(self, elements: npt.NDArray[np.intp]) -> npt.NDArray[np.float64] | float:
        """The magnitudes around elements, given by their indices in the order of memory; one for all without rows."""
        if not self.columns:
            return self._one
        rows, columns = np.divmod(elements, self.columns)
        matrices = rows // self._height
        if self._by_column.shape[1] == 1:  # of rows only
            columns = np.zeros_like(columns)
        means = np.minimum(self._by_row[rows], self._by_column[matrices, columns])
        scaled = self._row_factor[rows] * self._column_factor[matrices, columns]
        typical: npt.NDArray[np.float64] = np.maximum(means, scaled)
        return typical

    def least(self, block: slice) -> float:
        """A lower bound of the magnitudes around the elements of a block, which takes little time."""
        if not self.columns:
            return self._one
        rows = slice(block.start // self.columns, -(-block.stop // self.columns))
        matrices = slice(rows.start // self._height, -(-rows.stop // self._height))
        return float(min(self._by_row[rows].min(initial=np.inf), self._by_column[matrices].min(initial=np.inf)))


def _groups(matrices: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The matrices of an array, as many at a time as have about a block of elements together; at least one."""
    step = max(1, BLOCK // (matrices.shape[1] * matrices.shape[2]))
    for start in range(0, len(matrices), step):
        yield matrices[start : start + step]


def _concatenated(
    pairs: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The first results, of all rows, along one axis, and the second ones, of the columns of each matrix."""
    rows, columns = zip(*pairs, strict=True)
    return np.concatenate(rows).reshape(-1), np.concatenate(columns)


def _means(matrices: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean magnitudes of the rows and of the columns of each matrix; infinity and NaN count as 0."""
    count, height, width = matrices.shape
    by_row = np.empty((count, height))
    step = max(1, BLOCK // (count * width))

    def of_rows(rows: slice) -> npt.NDArray[np.float64]:
        total = np.zeros((count, width))
        for start in range(rows.start, rows.stop, step):
            here = slice(start, min(start + step, rows.stop))
            with np.errstate(all="ignore"):
                part = np.abs(matrices[:, here].astype(np.float64))
            part[~np.isfinite(part)] = 0.0
            by_row[:, here] = part.mean(axis=2)
            total += part.sum(axis=1)
        return total

    totals = in_threads(of_rows, _parts(height, step))
    return by_row * _raised(width), sum(totals[1:], totals[0]) / height * _raised(height)


def _parts(rows: int, step: int) -> list[slice]:
    """Rows in at most :data:`PARTS` slices, of at least ``step`` rows each but the last; at least one slice."""
    length = max(step, -(-rows // PARTS), 1)
    return [slice(start, min(start + length, rows)) for start in range(0, max(rows, 1), length)]


def _raised(count: int) -> float:
    """A factor for the mean of ``count`` magnitudes, with which even the smallest of many means is about the typical one."""
    return 1.0 if count >= ENOUGH else 1 + 4.5 * 0.75 / sqrt(count)


def _scales(matrices: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A factor for each row and each column, whose products are the magnitudes of a matrix with scaled rows and columns.

    They are geometric means, which a few large elements hardly change, over up to 1024 elements of each row and column that are
    finite and not zero.
    """
    _, height, width = matrices.shape
    sampled = matrices[:, :, :: max(1, width // SAMPLED_SIDE)]
    parts = _parts(height, max(1, BLOCK // (len(matrices) * sampled.shape[2])))
    by_row = np.concatenate(in_threads(lambda rows: _mean_logarithm(sampled[:, rows], axis=2), parts), axis=1)
    by_column = _mean_logarithm(matrices[:, :: max(1, height // SAMPLED_SIDE)], axis=1)
    present = np.isfinite(by_row)
    count = np.maximum(present.sum(axis=1, keepdims=True), 1)
    middle = np.where(present, by_row, 0.0).sum(axis=1, keepdims=True) / count
    return np.exp(by_row - middle), np.exp(by_column)


def _mean_logarithm(matrices: npt.NDArray[Any], axis: int) -> npt.NDArray[np.float64]:
    """The mean logarithm of the magnitudes along an axis; minus infinity where all are 0, infinite or NaN."""
    with np.errstate(all="ignore"):
        logarithms = np.log(np.abs(matrices.astype(np.float64)))
        present = np.isfinite(logarithms)
        sums = np.where(present, logarithms, 0.0).sum(axis=axis)
        return np.where(present.any(axis=axis), sums / present.sum(axis=axis), -np.inf)
