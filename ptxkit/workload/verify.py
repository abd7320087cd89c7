"""Compares outputs with the float64 reference: absolute, relative and ulp errors, including NaN and infinity.

Every element is compared. :mod:`ptxkit.workload.element_errors` computes the errors of single elements, and
:mod:`ptxkit.workload.tolerance` defines the permitted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ptxkit.errors import DescriptionError
from ptxkit.workload import mismatch
from ptxkit.workload.element_errors import (
    Block,
    Format,
    Squares,
    compared,
    exact_errors,
    float_errors,
    permitted,
    widen,
)
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.parallel import blocks, in_threads
from ptxkit.workload.tolerance import Rule, as_rule

Array = npt.NDArray[Any]
Found = TypeVar("Found")

BLOCK = 1 << 18
"""Elements of a block. A block takes some 30 operations of numpy, between which threads wait for each other: with blocks of
2^16 elements, 16 threads take as long as one."""
THREADS = 8
"""Maximum number of threads, for the same reason."""


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
        less_accurate: of a peer's verified results that exceed the kernel's tolerance, by how much; else "".
    """

    verified: bool
    max_abs_error: float
    max_rel_error: float
    max_ulp_error: float
    elements: int
    mismatches: int
    worst: str = ""
    explanation: str = ""
    less_accurate: str = ""

    @classmethod
    def refused(cls, worst: str, elements: int = 0, mismatches: int = 0) -> Verdict:
        """The verdict for a result that is wrong for another reason than the value of an output."""
        return cls(False, np.inf, np.inf, np.inf, elements, mismatches, worst, worst)


def compare(
    name: str,
    actual: npt.NDArray[Any],
    expected: npt.ArrayLike,
    tolerance: Tolerance | Rule | None = None,
    poison: mismatch.Sentinel | None = None,
    smallest_store: int = 1,
    described: bool = True,
) -> Verdict:
    """Compare one output with its reference.

    Args:
        name: name of the output, for messages.
        actual: the output of the kernel.
        expected: the reference, of the same shape; float64 for floating-point outputs.
        tolerance: a tolerance or a rule; None for the default of the output's dtype without sums.
        poison: the contents of the output before the launch, with which unwritten elements are counted.
        smallest_store: bytes of the kernel's smallest write; elements of more bytes may be written in part.
        described: whether elements outside the tolerance are described, which takes longer than the comparison.

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
    form = Format.of(actual.dtype)
    if form is None and allowed == Tolerance():
        _check_integers(name, actual.dtype, reference)
    typical = rule.typical(name, reference) if allowed.typical else None

    flat, wanted = actual.reshape(-1), reference.reshape(-1)

    def of_block(block: slice) -> Block:

        def around(inside: npt.NDArray[np.intp]) -> npt.NDArray[np.float64] | float:
            return typical.at(block.start + inside) if typical is not None else 0.0

        least = typical.least(block) if typical is not None else 0.0
        return compared(flat[block], wanted[block], form, allowed, around, least)

    every = blocks(flat.size, flat.size, BLOCK)
    parts = in_threads(of_block, every, THREADS)
    largest = np.max([part.largest for part in parts], axis=0, initial=0.0) if parts else np.zeros(3)
    abs_error, rel_error, ulp_error = map(float, largest)
    if all(part.wrong is None for part in parts):
        rms = sum((part.squares for part in parts), Squares()).ratio
        if allowed.rms and not rms <= allowed.rms:
            worst = f"the root mean square error of {name} is {rms:.3g} of that of the reference, more than {allowed.rms:.3g}"
            text = f"{worst}\n  tolerance: {allowed}: {origin}"
            return Verdict(False, abs_error, rel_error, ulp_error, actual.size, 0, worst, text)
        return Verdict(True, abs_error, rel_error, ulp_error, actual.size, 0)
    if not described:
        mismatches = sum(int(np.count_nonzero(part.wrong)) for part in parts if part.wrong is not None)
        return Verdict(False, abs_error, rel_error, ulp_error, actual.size, mismatches)
    wrong = np.zeros(flat.size, np.bool_)
    for block, part in zip(every, parts, strict=True):
        if part.wrong is not None:
            wrong[block] = part.wrong
    wrong_output = _WrongOutput(
        name, actual, reference, wrong.reshape(actual.shape), f"{allowed}: {origin}", poison, smallest_store
    )
    mismatches = int(np.count_nonzero(wrong))
    return Verdict(
        False, abs_error, rel_error, ulp_error, actual.size, mismatches, wrong_output.first, wrong_output.text
    )


def check_real(what: str, dtype: np.dtype[Any]) -> None:
    """Raise DescriptionError for complex numbers, strings, objects and structures, which are not compared."""
    if dtype.kind not in "biuf" and Format.of(dtype) is None:
        raise DescriptionError(
            f"{what} has dtype {dtype}; outputs are compared as real numbers"
            + (": give complex numbers as float arrays with a last axis of 2" if dtype.kind == "c" else "")
        )


def _check_integers(name: str, dtype: np.dtype[Any], reference: npt.NDArray[Any]) -> None:
    """Raise DescriptionError if the reference of an integer output is of a floating-point type that rounds its values.

    A wrong integer could then be equal to the rounded reference, and the correct one could differ from it.
    """
    form = Format.of(reference.dtype)
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
    smallest_store: int

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
        held = "; ".join(mismatch.explanations(self.actual, self.expected, self.wrong, self.poison, self.smallest_store))
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
    form = Format.of(actual.dtype)
    a, e = flat[::step], reference[::step]
    errors, _ = float_errors(a, e, form, Tolerance()) if form else exact_errors(a, e, Tolerance())
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
    smallest_store: int = 1,
) -> Verdict:
    """Compare all outputs; the errors are the largest of all outputs, and ``worst`` describes the first wrong output.

    Args:
        poisons: output name -> its contents before the launch, for poisoned outputs.
        smallest_store: bytes of the kernels' smallest write; elements of more bytes may be written in part.
    """
    before = poisons or {}
    return together(
        compare(name, actual[name], expected[name], tolerance, before.get(name), smallest_store) for name in expected
    )


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on several outputs, from that on each; see :func:`compare_all`."""
    every = list(verdicts)
    return Verdict(
        verified=all(v.verified for v in every),
        max_abs_error=max((v.max_abs_error for v in every), default=0.0),
        max_rel_error=max((v.max_rel_error for v in every), default=0.0),
        max_ulp_error=max((v.max_ulp_error for v in every), default=0.0),
        elements=sum(v.elements for v in every),
        mismatches=sum(v.mismatches for v in every),
        worst=next((v.worst for v in every if v.worst), ""),
        explanation="\n".join(v.explanation for v in every if v.explanation),
    )


def allowed_errors(
    dtype: np.dtype[Any], expected: npt.NDArray[Any], tolerance: Tolerance | Rule | None, name: str = ""
) -> npt.NDArray[np.float64]:
    """The largest permitted absolute error of each element of a floating-point output; 0 for infinity and NaN.

    Args:
        name: of the output, where a rule has tolerances of single outputs.

    Raises:
        DescriptionError: ``dtype`` is not a floating-point type.
    """
    found = np.empty(expected.size)

    def of_block(block: slice, permitted_errors: Array) -> None:
        found[block] = permitted_errors

    _each_permitted(dtype, expected, tolerance, name, of_block)
    return found.reshape(expected.shape)


def largest_excess(name: str, actual: Array, expected: Array, tolerance: Tolerance | Rule | None) -> float:
    """The largest error of a floating-point output over the permitted one, where both are finite and the latter is not 0.

    Raises:
        DescriptionError: the output is not of a floating-point type.
    """
    flat, wanted = actual.reshape(-1), expected.reshape(-1)

    def of_block(block: slice, permitted_errors: Array) -> float:
        ratio = np.empty(permitted_errors.shape)
        widen(flat[block], ratio)
        ratio -= wanted[block]
        np.abs(ratio, out=ratio)
        ratio /= permitted_errors
        return float(ratio.max(initial=0.0, where=np.isfinite(ratio)))

    return max(_each_permitted(actual.dtype, expected, tolerance, name, of_block), default=0.0)


def _each_permitted(
    dtype: np.dtype[Any],
    expected: Array,
    tolerance: Tolerance | Rule | None,
    name: str,
    function: Callable[[slice, Array], Found],
) -> list[Found]:
    """``function`` of each block of elements and their permitted errors, in threads: see :func:`allowed_errors`."""
    form = Format.of(dtype)
    if form is None:
        raise DescriptionError(f"{dtype} is not a floating-point type")
    rule = as_rule(tolerance)
    allowed, _ = rule.resolved(dtype, expected, name)
    typical = rule.typical(name, expected) if allowed.typical else None
    wanted = expected.reshape(-1)

    def of_block(block: slice) -> Found:
        with np.errstate(all="ignore"):
            magnitude = np.abs(wanted[block].astype(np.float64))
            magnitude[~np.isfinite(magnitude)] = 0.0
            around = typical.at(np.arange(block.start, block.stop)) if typical is not None else 0.0
            return function(block, permitted(allowed, magnitude, form.ulp, around))

    return in_threads(of_block, blocks(wanted.size, wanted.size))
