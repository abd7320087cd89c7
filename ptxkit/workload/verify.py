"""Compares outputs with the float64 reference: absolute, relative and ulp errors, including NaN and infinity.

NaN is equal to NaN only, and infinity to the same infinity only. The reference is first rounded to the output's dtype, so that
for 1e39 a float32 must be infinite. Relative errors refer to ``max(|reference|, smallest normal number)``, and one ulp is the
distance of neighbouring numbers of the dtype at the reference. :mod:`ptxkit.workload.tolerance` defines the permitted errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.errors import DescriptionError
from ptxkit.workload import mismatch
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.tolerance import BASES, Rule, Typical, as_rule

CHUNK = 1 << 18  # elements compared at a time, so that the float64 temporaries stay in the cache


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one or several outputs with their reference.

    Attributes:
        verified: all elements are within the tolerance.
        max_abs_error, max_rel_error, max_ulp_error: over all elements; infinite if one side is NaN or infinite and the other
            is not.
        elements: number of compared elements. mismatches: number of elements outside the tolerance.
        worst: a description of the first element outside the tolerance; "" if verified.
        explanation: a description of all wrong elements in several lines, of which ``worst`` is the first; "" if verified.
    """

    verified: bool
    max_abs_error: float
    max_rel_error: float
    max_ulp_error: float
    elements: int
    mismatches: int
    worst: str = ""
    explanation: str = ""

    @classmethod
    def refused(cls, worst: str, elements: int = 0, mismatches: int = 0) -> Verdict:
        """The verdict for a result that is wrong for another reason than the value of an output."""
        return cls(False, np.inf, np.inf, np.inf, elements, mismatches, worst, worst)


@dataclass(frozen=True)
class _Squares:
    """Sums of squares of errors and of the reference, over its finite numbers."""

    errors: float = 0.0
    reference: float = 0.0

    @classmethod
    def of(cls, errors: npt.NDArray[np.float64], expected: npt.NDArray[Any]) -> _Squares:
        values = expected.astype(np.float64)
        finite = np.isfinite(values)
        return cls(float(np.square(errors[finite]).sum()), float(np.square(values[finite]).sum()))

    def __add__(self, other: _Squares) -> _Squares:
        return _Squares(self.errors + other.errors, self.reference + other.reference)

    @property
    def ratio(self) -> float:
        """The root mean square of the errors over that of the reference."""
        if not self.errors:
            return 0.0
        return (self.errors / self.reference) ** 0.5 if self.reference else float("inf")


@dataclass(frozen=True)
class _Format:
    """Properties of a floating-point dtype."""

    mantissa_bits: int
    smallest_normal: float

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> _Format | None:
        """The format of ``dtype``; None if it is not a floating-point type."""
        info: Any
        if dtype.char in "efd":
            info = np.finfo(dtype)
        elif dtype.name in BASES:  # np.finfo does not support the types of ml_dtypes
            import ml_dtypes

            info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        else:
            return None
        return cls(int(info.nmant), float(info.smallest_normal))

    def ulp(self, magnitude: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Distance of neighbouring numbers at ``magnitude``, which is finite and at least 0."""
        exponent = np.frexp(np.maximum(magnitude, self.smallest_normal))[1] - 1
        distance: npt.NDArray[np.float64] = np.ldexp(1.0, exponent - self.mantissa_bits)
        return distance


def compare(
    name: str,
    actual: npt.NDArray[Any],
    expected: npt.ArrayLike,
    tolerance: Tolerance | Rule | None = None,
    poison: mismatch.Sentinel | None = None,
) -> Verdict:
    """Compare one output with its reference.

    Args:
        name: name of the output, for messages.
        actual: the output of the kernel.
        expected: the reference, of the same shape; float64 for floating-point outputs.
        tolerance: a tolerance or a rule; None for the default of the output's dtype without sums.
        poison: the contents of the output before the launch, with which unwritten elements are counted.

    Raises:
        DescriptionError: the shapes differ, or one of the arrays does not contain real numbers.
    """
    reference = np.asarray(expected)
    if reference.shape != actual.shape:
        raise DescriptionError(f"the reference of {name} has shape {reference.shape}, the output {actual.shape}")
    for what, array in (("reference", reference), ("output", actual)):
        check_real(f"the {what} {name}", array.dtype)
    dtype = actual.dtype
    if dtype == np.bool_:  # compared as bytes, because a byte other than 0 and 1 is not a bool
        actual, reference = actual.view(np.uint8), reference.astype(np.bool_).view(np.uint8)
    rule = as_rule(tolerance)
    allowed, origin = rule.resolved(dtype, reference, name)
    form = _Format.of(actual.dtype)
    if form is None and allowed == Tolerance():
        _check_integers(name, actual.dtype, reference)
    typical = rule.typical(name, reference) if allowed.typical else None

    def part(chunk: tuple[int, Any, Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_] | None, _Squares]:
        start, a, e = chunk
        around = typical.of(start, start + a.size) if typical else 0.0
        errors, wrong = _float_errors(a, e, form, allowed, around) if form else _exact_errors(a, e, allowed, around)
        squares = _Squares.of(errors[0], e) if allowed.rms else _Squares()
        return np.array([error.max() for error in errors]), wrong if wrong.any() else None, squares

    step = max(1, CHUNK // typical.columns) * typical.columns if typical and typical.columns else CHUNK
    chunks = list(_chunks(actual.reshape(-1), reference.reshape(-1), step))
    if actual.size <= CHUNK:
        parts = [part(chunk) for chunk in chunks]
    else:  # numpy releases the interpreter's lock
        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(part, chunks))
    largest = np.max([p[0] for p in parts], axis=0, initial=0.0) if parts else np.zeros(3)
    abs_error, rel_error, ulp_error = map(float, largest)
    marks = [mark for _, mark, _ in parts]
    if all(mark is None for mark in marks):
        rms = sum((squares for _, _, squares in parts), _Squares()).ratio
        if allowed.rms and not rms <= allowed.rms:
            worst = f"the root mean square error of {name} is {rms:.3g} of that of the reference, more than {allowed.rms:.3g}"
            text = f"{worst}\n  tolerance: {allowed}: {origin}"
            return Verdict(False, abs_error, rel_error, ulp_error, actual.size, 0, worst, text)
        return Verdict(True, abs_error, rel_error, ulp_error, actual.size, 0)
    wrong = np.concatenate([np.zeros(c[1].size, np.bool_) if m is None else m for c, m in zip(chunks, marks)])
    wrong_output = _WrongOutput(name, actual, reference, wrong.reshape(actual.shape), f"{allowed}: {origin}", poison)
    mismatches = int(np.count_nonzero(wrong))
    return Verdict(
        False, abs_error, rel_error, ulp_error, actual.size, mismatches, wrong_output.first, wrong_output.text
    )


def check_real(what: str, dtype: np.dtype[Any]) -> None:
    """Raise DescriptionError for complex numbers, strings, objects and structures, which are not compared."""
    if dtype.kind not in "biuf" and _Format.of(dtype) is None:
        raise DescriptionError(
            f"{what} has dtype {dtype}; outputs are compared as real numbers"
            + (": give complex numbers as float arrays with a last axis of 2" if dtype.kind == "c" else "")
        )


def _check_integers(name: str, dtype: np.dtype[Any], reference: npt.NDArray[Any]) -> None:
    """Raise DescriptionError if the reference of an integer output is of a floating-point type that rounds its values.

    A wrong integer could then be equal to the rounded reference, and the correct one could differ from it.
    """
    form = _Format.of(reference.dtype)
    if form is None or not reference.size:
        return
    with np.errstate(all="ignore"):
        magnitude = np.abs(reference)
        largest = float(np.max(magnitude, initial=0, where=np.isfinite(magnitude)))
    if largest > 2.0 ** (form.mantissa_bits + 1):
        raise DescriptionError(
            f"the reference of {name} is {reference.dtype}, which holds integers exactly up to 2^{form.mantissa_bits + 1}, and "
            f"has {largest:.4g}; the output is {dtype}: return integers, or state a tolerance"
        )


@dataclass(frozen=True)
class _WrongOutput:
    """The description of a wrong output."""

    name: str
    actual: npt.NDArray[Any]
    expected: npt.NDArray[Any]
    wrong: npt.NDArray[np.bool_]
    tolerance: str
    poison: mismatch.Sentinel | None

    @property
    def first(self) -> str:
        return mismatch.comparison(self.name, self.actual, self.expected, int(np.argmax(self.wrong)))

    @property
    def text(self) -> str:
        count = int(np.count_nonzero(self.wrong))
        lines = [f"{self.first}; {count:,} of {self.wrong.size:,} elements of {self.name} are wrong"]
        if count > 1:
            lines.append(f"  worst: {mismatch.comparison(self.name, self.actual, self.expected, self._worst())}")
        lines.append(f"  where: {mismatch.places(self.wrong)}")
        held = "; ".join(mismatch.explanations(self.actual, self.expected, self.wrong, self.poison))
        lines += [f"  what they hold: {held}"] if held else []
        lines.append(f"  tolerance: {self.tolerance}")
        return "\n".join(lines)

    def _worst(self) -> int:
        flat = np.flatnonzero(self.wrong)
        with np.errstate(all="ignore"):
            error = np.abs(
                self.actual.reshape(-1)[flat].astype(np.float64) - self.expected.reshape(-1)[flat].astype(np.float64)
            )
        error[np.isnan(error)] = np.inf
        return int(flat[np.argmax(error)])


PERCENTILES = (50.0, 90.0, 99.0, 99.9)
PROFILED = (
    1 << 20
)  # maximum number of elements, evenly spaced, for percentiles: sorting all would take longer than the comparison


def error_percentiles(actual: npt.NDArray[Any], expected: npt.ArrayLike) -> dict[str, dict[str, float]]:
    """Percentiles of the absolute, relative and ulp errors over up to 2^20 evenly spaced elements.

    Returns:
        ``{"abs": {"50": ..., "99.9": ...}, "rel": ..., "ulp": ...}``; empty for an empty array.
    """
    flat, reference = actual.reshape(-1), np.asarray(expected).reshape(-1)
    if not flat.size:
        return {}
    step = max(1, flat.size // PROFILED)
    form = _Format.of(actual.dtype)
    a, e = flat[::step], reference[::step]
    errors, _ = _float_errors(a, e, form, Tolerance()) if form else _exact_errors(a, e, Tolerance())
    found = {}
    for name, error in zip(("abs", "rel", "ulp"), errors, strict=True):
        points = np.percentile(error, PERCENTILES, method="higher")
        found[name] = {f"{p:g}": float(v) for p, v in zip(PERCENTILES, points, strict=True)}
    return found


def compare_all(
    actual: Mapping[str, npt.NDArray[Any]],
    expected: Mapping[str, npt.ArrayLike],
    tolerance: Tolerance | Rule | None = None,
    poisons: Mapping[str, mismatch.Sentinel] | None = None,
) -> Verdict:
    """Compare all outputs; the errors are the largest of all outputs, and ``worst`` describes the first wrong output.

    Args:
        poisons: output name -> its contents before the launch, for poisoned outputs.
    """
    before = poisons or {}
    verdicts = [compare(name, actual[name], expected[name], tolerance, before.get(name)) for name in expected]
    return Verdict(
        verified=all(v.verified for v in verdicts),
        max_abs_error=max((v.max_abs_error for v in verdicts), default=0.0),
        max_rel_error=max((v.max_rel_error for v in verdicts), default=0.0),
        max_ulp_error=max((v.max_ulp_error for v in verdicts), default=0.0),
        elements=sum(v.elements for v in verdicts),
        mismatches=sum(v.mismatches for v in verdicts),
        worst=next((v.worst for v in verdicts if v.worst), ""),
        explanation="\n".join(v.explanation for v in verdicts if v.explanation),
    )


def _chunks(actual: npt.NDArray[Any], expected: npt.NDArray[Any], step: int) -> Iterator[tuple[int, Any, Any]]:
    for start in range(0, actual.size, step):
        yield start, actual[start : start + step], expected[start : start + step]


def allowed_errors(
    dtype: np.dtype[Any], expected: npt.NDArray[Any], tolerance: Tolerance | Rule | None, name: str = ""
) -> npt.NDArray[np.float64]:
    """The largest permitted absolute error of each element of a floating-point output; 0 for infinity and NaN.

    Args:
        name: of the output, where a rule has tolerances of single outputs.

    Raises:
        DescriptionError: ``dtype`` is not a floating-point type.
    """
    form = _Format.of(dtype)
    if form is None:
        raise DescriptionError(f"{dtype} is not a floating-point type")
    allowed, _ = as_rule(tolerance).resolved(dtype, expected, name)
    with np.errstate(all="ignore"):
        magnitude = np.abs(expected.reshape(-1).astype(np.float64))
        magnitude[~np.isfinite(magnitude)] = 0.0
        around = Typical(expected).of(0, expected.size) if allowed.typical else 0.0
        largest = _permitted(allowed, magnitude, form.ulp, around)
    return largest.reshape(expected.shape)


def _permitted(
    allowed: Tolerance,
    magnitude: npt.NDArray[np.float64],
    ulp: Callable[[Any], Any],
    around: npt.NDArray[np.float64] | float,
) -> npt.NDArray[np.float64]:
    """The permitted error of each element: see :class:`Tolerance`.

    Args:
        magnitude: ``|reference|``. ulp: the distance of neighbouring numbers at a magnitude. around: the typical magnitude.
    """
    of_sums = allowed.typical * around
    rounding = np.maximum(allowed.absolute + allowed.relative * magnitude, allowed.ulp * ulp(magnitude + of_sums))
    result: npt.NDArray[np.float64] = rounding + of_sums
    return result


def _float_errors(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    form: _Format,
    allowed: Tolerance,
    around: npt.NDArray[np.float64] | float = 0.0,
) -> tuple[tuple[npt.NDArray[np.float64], ...], npt.NDArray[np.bool_]]:
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
        wrong = ~(absolute <= _permitted(allowed, magnitude, form.ulp, around))
    return (absolute, relative, ulps), wrong


def _exact_errors(
    actual: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    allowed: Tolerance,
    around: npt.NDArray[np.float64] | float = 0.0,
) -> tuple[tuple[npt.NDArray[np.float64], ...], npt.NDArray[np.bool_]]:
    """Errors of integers and booleans: an ulp is 1, and without a tolerance they must be equal."""
    different = actual != expected
    with np.errstate(all="ignore"):  # a reference may be infinite or NaN
        absolute = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        magnitude = np.abs(expected.astype(np.float64))
        within = (absolute <= _permitted(allowed, magnitude, np.ones_like, around)) & np.isfinite(absolute)
        relative = absolute / np.maximum(magnitude, 1.0)
    tolerant = allowed != Tolerance()
    return (absolute, relative, absolute), different & ~(within & tolerant)
