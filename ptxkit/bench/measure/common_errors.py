"""Finds errors that many elements have in common, which roundings do not have: an offset, a missing bias, a wrong scale.

Roundings to nearest are independent: the mean of the errors of n elements is about 1 / sqrt(n) of one of them, however
large the tolerance of single elements is. An intermediate result that many elements use, such as the sum of a row, is rounded
once for all of them: it contributes a few half units to the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ptxkit.workload.element_errors import widen
from ptxkit.workload.parallel import Scratch, in_threads

FEWEST = 64
"""Elements of a group from which the standard deviation of their errors is known well enough."""
SPREADS = 8.0
"""Permitted mean, in standard deviations of a mean of independent errors: 5.7 are the largest among 10 ** 8 groups, and the
deviation of 64 errors is itself known to about a tenth."""
SHARED = 4.0
"""Permitted mean beyond that, in half units: an intermediate result that is rounded four times for all elements of a group."""
BLOCK = 1 << 17
"""Elements of a block, whose float64 arrays stay in the cache of a core."""

Floats = npt.NDArray[np.float64]
_scratch = Scratch(4)
Axis = Literal["all elements", "row", "column"]


def common_error(
    name: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any], shared: float, factor: float, offset: float
) -> str:
    """What the errors of an output have in common, in words; "" if they may be independent roundings.

    Args:
        name: of the output. actual, expected: the output and its reference.
        shared: the permitted common error, relative to the typical magnitude. factor: further relative error of all elements.
        offset: further absolute error of all elements.
    """
    columns = actual.shape[-1] if actual.ndim else 1
    if actual.size < FEWEST:
        return ""
    sums = _Sums(actual.reshape(-1, columns), expected.reshape(-1, columns))
    if not sums.typical:
        return ""
    shared += offset / sums.typical
    for axis in ("all elements", "row", "column"):
        found = sums.offset(axis, shared) or sums.factor(axis, shared, factor)
        if found:
            return f"the errors of {name} are not independent, as roundings are: {found}"
    return ""


class _Sums:
    """Sums over rows, columns and all elements of a matrix, of powers of the errors e and of the reference r.

    Attributes:
        typical: the root mean square of the reference; errors and the reference are divided by it.
    """

    POWERS = ((0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (2, 2), (1, 3), (0, 4))  # of e and of r

    def __init__(self, actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
        blocks = list(_blocks(*actual.shape))
        largest = max(in_threads(lambda block: float(np.abs(_finite(expected[block])).max()), blocks))
        scale = 1 / (largest or 1.0)  # squares of very large and very small numbers are not representable
        squares = in_threads(lambda block: float(np.square(_finite(expected[block]) * scale).sum()), blocks)
        self.typical = largest * float(np.sqrt(sum(squares) / actual.size))
        self._of: dict[Axis, dict[tuple[int, int], Floats]] = {}
        if not self.typical:
            return
        of_rows, of_columns = (np.zeros((len(self.POWERS), length)) for length in actual.shape)
        sums = in_threads(lambda block: self._of_block(actual[block], expected[block]), blocks)
        for (rows, columns), (by_row, by_column) in zip(blocks, sums, strict=True):
            of_rows[:, rows] += by_row
            of_columns[:, columns] += by_column
        of_all = of_columns.sum(1, keepdims=True)
        found: tuple[tuple[Axis, Floats], ...] = (("column", of_columns), ("row", of_rows), ("all elements", of_all))
        self._of = {axis: dict(zip(self.POWERS, sums, strict=True)) for axis, sums in found}

    def _of_block(self, actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """The sums of all powers over the rows and over the columns of a block."""
        e, r, er, term = (flat.reshape(actual.shape) for flat in _scratch.of(actual.size))
        by_row, by_column = (np.empty((len(self.POWERS), length)) for length in actual.shape)

        def add(power: tuple[int, int], values: npt.NDArray[Any]) -> None:
            at = self.POWERS.index(power)
            np.sum(values, axis=1, out=by_row[at])
            np.sum(values, axis=0, out=by_column[at])

        np.copyto(r, expected, casting="unsafe")
        widen(actual, e)
        with np.errstate(invalid="ignore"):
            e -= r
        there = np.isfinite(e)
        if not there.all():
            e[~there] = r[~there] = 0.0
        e /= self.typical
        r /= self.typical
        add((0, 0), there)
        add((1, 0), e)
        add((0, 1), r)
        add((2, 0), np.multiply(e, e, out=term))
        np.multiply(e, r, out=er)
        add((1, 1), er)
        add((2, 2), np.multiply(er, er, out=term))
        r *= r
        add((0, 2), r)
        add((1, 3), np.multiply(er, r, out=term))
        add((0, 4), np.multiply(r, r, out=term))
        return by_row, by_column

    def offset(self, axis: Axis, shared: float) -> str:
        """The largest mean error of a group that exceeds the permitted one, in words; "" if there is none."""
        s = self._of[axis]
        n = np.maximum(s[0, 0], 1.0)
        mean = s[1, 0] / n
        deviation = np.sqrt(np.maximum(s[2, 0] / n - mean**2, 0.0) / n)
        permitted = SPREADS * deviation + shared * np.maximum(1.0, np.sqrt(s[0, 2] / n))
        at = self._worst(axis, np.abs(mean) / permitted, shared)
        if at is None:
            return ""
        return f"{_group(axis, at)} a mean error of {mean[at]:.3g} of the typical magnitude, more than {permitted[at]:.3g}"

    def factor(self, axis: Axis, shared: float, own: float) -> str:
        """The same for the factor by which the elements of a group differ from the reference."""
        s = self._of[axis]
        squares = np.maximum(s[0, 2], 1e-300)
        slope = s[1, 1] / squares
        rest = np.maximum(s[2, 2] - 2 * slope * s[1, 3] + slope**2 * s[0, 4], 0.0)
        magnitude = np.sqrt(squares / np.maximum(s[0, 0], 1.0))
        permitted = SPREADS * np.sqrt(rest) / squares + np.maximum(own, shared * np.maximum(1.0, 1.0 / magnitude))
        at = self._worst(axis, np.abs(slope) / permitted, shared)
        if at is None:
            return ""
        return f"{_group(axis, at)} a common factor of 1 {slope[at]:+.3g}, which may differ from 1 by {permitted[at]:.3g}"

    def _worst(self, axis: Axis, ratio: Floats, shared: float) -> int | None:
        """The group with the largest ratio above 1 among those with enough elements that differ from each other.

        Equal elements have equal roundings, which are then not independent.
        """
        s = self._of[axis]
        n = np.maximum(s[0, 0], 1.0)
        varies = s[0, 2] / n - (s[0, 1] / n) ** 2 > shared**2 * s[0, 2] / n
        ratio = np.where(varies & (s[0, 0] >= FEWEST), ratio, 0.0)
        at = int(np.argmax(ratio))
        return at if ratio[at] > 1.0 else None


def _group(axis: Axis, at: int) -> str:
    """The group as the subject of a sentence with its verb."""
    return "all elements have" if axis == "all elements" else f"those of {axis} {at} have"


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of the blocks of a matrix."""
    width = min(columns, BLOCK)
    height = max(1, BLOCK // width)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, min(row + height, rows)), slice(column, min(column + width, columns))


def _finite(values: npt.NDArray[Any]) -> Floats:
    """The values in float64, with 0 for infinity and NaN, in an array that the thread uses again."""
    found: Floats = _scratch.of(values.size)[0].reshape(values.shape)
    np.copyto(found, values, casting="unsafe")
    there = np.isfinite(found)
    if not there.all():
        found[~there] = 0.0
    return found
