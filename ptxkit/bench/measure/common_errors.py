"""Finds errors that many elements have in common, which roundings do not have: an offset, a missing bias, a wrong scale.

Roundings to nearest are independent: the mean of the errors of n elements is about 1 / sqrt(n) of one of them, however
large the tolerance of single elements is. An intermediate result that many elements use, such as the sum of a row, is rounded
once for all of them: it contributes a few half units to the mean.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FEWEST = 64
"""Elements of a group from which the standard deviation of their errors is known well enough."""
SPREADS = 8.0
"""Permitted mean, in standard deviations of a mean of independent errors: 5.7 are the largest among 10 ** 8 groups, and the
deviation of 64 errors is itself known to about a tenth."""
SHARED = 4.0
"""Permitted mean beyond that, in half units: an intermediate result that is rounded four times for all elements of a group."""
BLOCK = 1 << 22
"""Elements of a block of rows, which bounds the memory for sums in float64."""

Floats = npt.NDArray[np.float64]
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
        rows, columns = actual.shape
        step = max(1, BLOCK // columns)
        parts = [slice(first, first + step) for first in range(0, rows, step)]
        largest = max(float(np.max(np.abs(_finite(expected[part])), initial=0.0)) for part in parts)
        squares = sum(float(np.square(_finite(expected[part]) / (largest or 1.0)).sum()) for part in parts)
        self.typical = largest * float(np.sqrt(squares / actual.size))
        of_rows: dict[tuple[int, int], list[Floats]] = {power: [] for power in self.POWERS}
        of_columns = {power: np.zeros(columns) for power in self.POWERS}
        for part in parts if self.typical else []:
            r = expected[part].astype(np.float64)
            e = actual[part].astype(np.float64) - r
            there = np.isfinite(e)
            e, r = np.where(there, e, 0.0) / self.typical, np.where(there, r, 0.0) / self.typical
            for power in self.POWERS:
                term = e ** power[0] * r ** power[1] if any(power) else there.astype(np.float64)
                of_rows[power].append(term.sum(1))
                of_columns[power] += term.sum(0)
        self._of: dict[Axis, dict[tuple[int, int], Floats]] = {"column": of_columns}
        if self.typical:
            self._of["row"] = {power: np.concatenate(found) for power, found in of_rows.items()}
            self._of["all elements"] = {power: found.sum(keepdims=True) for power, found in of_columns.items()}

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


def _finite(values: npt.NDArray[Any]) -> Floats:
    """The values in float64, with 0 for infinity and NaN."""
    wide = values.astype(np.float64)
    return np.where(np.isfinite(wide), wide, 0.0)
