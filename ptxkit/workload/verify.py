"""Comparing outputs with the float64 reference: absolute, relative and ulp errors, NaN and infinity included.

NaN agrees with NaN only, infinity with the same infinity only; the reference is first rounded to the output's dtype, so that
1e39 asks for infinity of a float32. Relative errors refer to ``max(|reference|, smallest normal number)``, and one ulp is the
distance of neighbouring numbers of the dtype at the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.errors import DescriptionError
from ptxkit.workload.launch import Tolerance

CHUNK = 1 << 18  # elements compared at a time: the float64 temporaries stay in the cache

DEFAULT_TOLERANCES = {
    "float64": Tolerance(relative=1e-12, absolute=1e-14),
    "float32": Tolerance(relative=1e-5, absolute=1e-6),
    "float16": Tolerance(relative=2e-3, absolute=1e-4),
    "bfloat16": Tolerance(relative=1.6e-2, absolute=1e-3),
    "float8_e4m3fn": Tolerance(ulp=1),
    "float8_e5m2": Tolerance(ulp=1),
}
"""By dtype name; everything else, integers above all, must agree exactly."""


@dataclass(frozen=True)
class Verdict:
    """How one or several outputs compare with their reference.

    Attributes:
        verified: every element is within tolerance.
        max_abs_error, max_rel_error, max_ulp_error: over all elements; infinite where one side is NaN or infinite and
            the other is not.
        elements: how many were compared. mismatches: how many were outside the tolerance.
        worst: the first element outside, in words; "" when verified.
    """

    verified: bool
    max_abs_error: float
    max_rel_error: float
    max_ulp_error: float
    elements: int
    mismatches: int
    worst: str = ""


@dataclass(frozen=True)
class _Format:
    """What is needed of a floating-point dtype."""

    mantissa_bits: int
    smallest_normal: float

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> _Format | None:
        """The format of ``dtype``, or None when it is not a floating-point type."""
        info: Any
        if dtype.char in "efd":
            info = np.finfo(dtype)
        elif dtype.name in DEFAULT_TOLERANCES:  # np.finfo knows none of ml_dtypes' types
            import ml_dtypes

            info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        else:
            return None
        return cls(int(info.nmant), float(info.smallest_normal))

    def ulp(self, magnitude: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Distance of neighbouring numbers at ``magnitude`` (finite, at least 0)."""
        exponent = np.frexp(np.maximum(magnitude, self.smallest_normal))[1] - 1
        distance: npt.NDArray[np.float64] = np.ldexp(1.0, exponent - self.mantissa_bits)
        return distance


def compare(
    name: str, actual: npt.NDArray[Any], expected: npt.ArrayLike, tolerance: Tolerance | None = None
) -> Verdict:
    """Compare one output with its reference.

    Args:
        name: of the output, for messages.
        actual: what the kernel wrote.
        expected: the reference, of the same shape; float64 for floating-point outputs.
        tolerance: None takes the default of the output's dtype.

    Raises:
        DescriptionError: the shapes differ.
    """
    reference = np.asarray(expected)
    if reference.shape != actual.shape:
        raise DescriptionError(f"the reference of {name} has shape {reference.shape}, the output {actual.shape}")
    allowed = tolerance or DEFAULT_TOLERANCES.get(actual.dtype.name, Tolerance())
    form = _Format.of(actual.dtype)

    def part(chunk: tuple[int, Any, Any]) -> tuple[npt.NDArray[np.float64], int, int]:
        start, a, e = chunk
        errors, wrong = _float_errors(a, e, form, allowed) if form else _exact_errors(a, e, allowed)
        count = int(np.count_nonzero(wrong))
        return np.array([error.max() for error in errors]), count, start + int(np.argmax(wrong)) if count else -1

    chunks = _chunks(actual.reshape(-1), reference.reshape(-1))
    if actual.size <= CHUNK:
        parts = [part(chunk) for chunk in chunks]
    else:  # numpy computes outside the interpreter's lock
        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(part, chunks))
    largest = np.max([p[0] for p in parts], axis=0, initial=0.0) if parts else np.zeros(3)
    mismatches = sum(p[1] for p in parts)
    worst = next((_describe(name, actual, reference, p[2]) for p in parts if p[1]), "")
    abs_error, rel_error, ulp_error = map(float, largest)
    return Verdict(not mismatches, abs_error, rel_error, ulp_error, actual.size, mismatches, worst)


PERCENTILES = (50.0, 90.0, 99.0, 99.9)
PROFILED = (
    1 << 20
)  # elements, evenly spread, that percentiles are taken of: sorting all would take longer than the rest


def error_percentiles(actual: npt.NDArray[Any], expected: npt.ArrayLike) -> dict[str, dict[str, float]]:
    """Percentiles of the absolute and relative error and of the error in ulp, over up to 2^20 elements spread evenly.

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
    actual: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.ArrayLike], tolerance: Tolerance | None = None
) -> Verdict:
    """Compare all outputs; the errors are the largest of any, ``worst`` is of the first wrong one."""
    verdicts = [compare(name, actual[name], expected[name], tolerance) for name in expected]
    return Verdict(
        verified=all(v.verified for v in verdicts),
        max_abs_error=max((v.max_abs_error for v in verdicts), default=0.0),
        max_rel_error=max((v.max_rel_error for v in verdicts), default=0.0),
        max_ulp_error=max((v.max_ulp_error for v in verdicts), default=0.0),
        elements=sum(v.elements for v in verdicts),
        mismatches=sum(v.mismatches for v in verdicts),
        worst=next((v.worst for v in verdicts if v.worst), ""),
    )


def _chunks(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> Iterator[tuple[int, Any, Any]]:
    for start in range(0, actual.size, CHUNK):
        yield start, actual[start : start + CHUNK], expected[start : start + CHUNK]


def _float_errors(
    actual: npt.NDArray[Any], expected: npt.NDArray[Any], form: _Format, allowed: Tolerance
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
        wrong = ~((absolute <= allowed.absolute + allowed.relative * magnitude) | (ulps <= allowed.ulp))
    return (absolute, relative, ulps), wrong


def _exact_errors(
    actual: npt.NDArray[Any], expected: npt.NDArray[Any], allowed: Tolerance
) -> tuple[tuple[npt.NDArray[np.float64], ...], npt.NDArray[np.bool_]]:
    """Integers and booleans: an ulp is 1, and without a tolerance they must be equal."""
    absolute = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    magnitude = np.abs(expected.astype(np.float64))
    different = actual != expected
    within = (absolute <= allowed.absolute + allowed.relative * magnitude) | (absolute <= allowed.ulp)
    tolerant = allowed != Tolerance()
    return (absolute, absolute / np.maximum(magnitude, 1.0), absolute), different & ~(within & tolerant)


def _describe(name: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any], flat: int) -> str:
    index = np.unravel_index(flat, actual.shape)
    where = f"{name}[{', '.join(str(int(i)) for i in index)}]" if index else name
    is_text = f"{float(actual[index]):.9g}" if actual.dtype.kind not in "iub" else str(actual[index])
    return f"{where} is {is_text}, the reference says {expected[index]}"
