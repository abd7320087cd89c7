"""Judges the results of peers: right as those of ptxkit's kernels must be, less accurate, or wrong.

A library rounds where a fused kernel does not: between operations, and, as cuBLAS and torch do by default, the parts of a sum
that several CTAs compute. Such an error is in proportion to what was rounded, not to the result, which is smaller where terms
cancel. A result with such errors is what users of the library get: it is compared, and the report states by how much it exceeds
the tolerance of ptxkit's own kernels. Other errors, such as a wrong element, a permuted result or a missing scale, are larger,
or are common to many elements (:mod:`ptxkit.bench.measure.common_errors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ptxkit.bench.measure.common_errors import SHARED, common_error
from ptxkit.workload.data import Data, is_array
from ptxkit.workload.element_errors import Format
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.parallel import blocks, in_threads
from ptxkit.workload.tolerance import Rule
from ptxkit.workload.verify import Verdict, compare, compare_all, largest_excess, together

HALF_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""By 16-bit type, the largest error of one rounding relative to the rounded number."""
SIGNIFICAND_F32 = 23
OF_FLOAT32 = 2.0 ** -(SIGNIFICAND_F32 + 1)
ROUNDINGS = 16.0
"""The permitted error, in half units of the result and of the typical magnitude around it. One rounding of a normally
distributed number has a standard deviation of about half of a half unit of the typical one; 5.7 times that of 32 roundings,
which is the largest among 10 ** 8 elements, is 16."""
ROUNDINGS_RMS = 6.0
"""The permitted root mean square of the errors, in half units of that of the reference: twice that of 32 roundings. It finds a
wrong scale or a missing term that changes all elements by less than single ones may differ."""
OF_WIDER = 0.25
"""Factor of both for outputs in f32 or f64, such as statistics of rows: few intermediate results of theirs are rounded to 16
bits."""


def judged(
    outputs: Mapping[str, np.ndarray[Any, Any]],
    expected: Mapping[str, Any],
    data: Data,
    stated: Tolerance | Mapping[str, Tolerance] | None = None,
) -> Verdict:
    """The verdict on the outputs of a peer; :attr:`Verdict.less_accurate` says by how much they exceed the kernel's tolerance.

    Args:
        expected: the references to compare with, by the names of the outputs.
        data: of the kernel, whose tolerance comes first.
        stated: the peer's own tolerance of all outputs, or of those that it names, instead of that of libraries.
    """
    strict = data.tolerance_rule()
    exact = {name: compare(name, outputs[name], expected[name], strict, described=False) for name in expected}
    first = together(exact.values())
    if first.verified:
        return first
    if isinstance(stated, Tolerance):
        wide = data.tolerance_rule(own=stated)
    else:
        wide = widened(strict, {name: outputs[name].dtype for name in expected}, expected, data.inputs.values())
        wide = replace(wide, outputs={**wide.outputs, **(stated or {})})
    kinds = _kinds(data.inputs.values())
    own = [] if isinstance(stated, Tolerance) else [name for name in expected if name not in (stated or {})]

    def of_library(found: Mapping[str, np.ndarray[Any, Any]]) -> Verdict:
        verdict = compare_all(found, expected, wide)
        if not verdict.verified:
            return verdict
        common = (_common(name, found[name], np.asarray(expected[name]), kinds, strict) for name in own)
        why = next(filter(None, common), "")
        return replace(verdict, verified=False, worst=why, explanation=why) if why else verdict

    second = of_library(outputs)
    if not second.verified and own:
        near = without_errors_of_terms({name: outputs[name] for name in own}, expected, data)
        second = of_library({**outputs, **near}) if near else second
    return replace(second, less_accurate=_excess(exact, outputs, expected, strict)) if second.verified else second


def widened(
    strict: Rule, dtypes: Mapping[str, np.dtype[Any]], expected: Mapping[str, Any], inputs: Iterable[Any]
) -> Rule:
    """The rule for results that a library has rounded between operations, of kernels with the rule ``strict``.

    Outputs that must be equal to the reference, and integers, keep their tolerance.
    """
    kinds = _kinds(inputs)
    found = {}
    for name, dtype in dtypes.items():
        reference = np.asarray(expected[name])
        own, _ = strict.resolved(dtype, reference, name)
        form = Format.of(dtype)
        if form is None or own == Tolerance():
            found[name] = own
            continue
        found[name] = _of_output(own, form, half_unit([*kinds, dtype]), reference)
    return Rule(None, "that of libraries, which round between operations", None, found, strict.known)


def without_errors_of_terms(
    outputs: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, Any], data: Data
) -> dict[str, np.ndarray[Any, Any]]:
    """Those outputs that are differences of terms, nearer to the reference by the error of rounded terms that cancel.

    The typical magnitude of a row from which :data:`ROUNDINGS` follows is that of its terms where it is larger than that of the
    results, see :meth:`ptxkit.workload.workload.Workload.rounded_terms`: the error that is not judged is the difference.
    """
    found = {}
    kinds = _kinds(data.inputs.values())
    for name, terms in data.workload.rounded_terms(**data.inputs).items():
        if name not in outputs:
            continue
        actual, reference = outputs[name], np.asarray(expected[name])
        found[name] = near = actual.copy()
        magnitudes = np.broadcast_to(terms, (*actual.shape[:-1], 1))
        permitted = ROUNDINGS * half_unit([*kinds, actual.dtype])
        for rows in blocks(len(actual), actual.size):
            r = reference[rows].astype(np.float64)
            error = actual[rows].astype(np.float64) - r
            beyond = magnitudes[rows] - np.sqrt(np.square(r).mean(-1, keepdims=True))
            left = np.abs(error) - permitted * np.maximum(beyond, 0.0)
            near[rows] = (r + np.sign(error) * np.maximum(left, 0.0)).astype(actual.dtype)
    return found


def _kinds(inputs: Iterable[Any]) -> list[np.dtype[Any]]:
    """The types of the arrays among the inputs."""
    return [value.dtype for value in inputs if is_array(value)]


def _common(
    name: str, actual: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], kinds: list[np.dtype[Any]], strict: Rule
) -> str:
    """What the errors of one output have in common, where intermediate results are rounded to 16 bits; else "".

    Sums of 8-bit products are truncated, which makes all of them smaller. Outputs of 8 bits may be saturated.
    """
    own, _ = strict.resolved(actual.dtype, reference, name)
    form, half = Format.of(actual.dtype), half_unit([*kinds, actual.dtype])
    if form is None or own == Tolerance() or form.mantissa_bits <= 3 or half <= OF_FLOAT32:
        return ""
    truncated = own.relative if any("8_e" in kind.name for kind in kinds) else 0.0
    shared = SHARED * half + own.typical + truncated
    return common_error(name, actual, reference, shared, own.relative, own.absolute + _smallest(form))


def half_unit(dtypes: Iterable[np.dtype[Any]]) -> float:
    """The largest relative error of rounding an intermediate result: to the coarsest 16-bit type among those of a kernel.

    Libraries compute with 8-bit types in bfloat16.
    """
    names = {"bfloat16" if "8_e" in dtype.name else dtype.name for dtype in dtypes}
    return max((HALF_UNITS[name] for name in names & HALF_UNITS.keys()), default=OF_FLOAT32)


def _of_output(own: Tolerance, form: Format, half: float, reference: np.ndarray[Any, Any]) -> Tolerance:
    """The tolerance of one output: see :data:`ROUNDINGS`; numbers below the smallest normal one have errors of whole units."""
    if form.mantissa_bits >= SIGNIFICAND_F32 and half > OF_FLOAT32:
        half *= OF_WIDER
    error = ROUNDINGS * half
    rms = math.hypot(own.rms, ROUNDINGS_RMS * half) if own.rms else max(own.relative, own.typical)
    return Tolerance(
        relative=max(own.relative, error),
        absolute=own.absolute,
        ulp=max(own.ulp, ROUNDINGS / 2 if form.mantissa_bits > 3 else 1.0),
        typical=own.typical + error,
        rms=max(rms, ROUNDINGS_RMS * half, _smallest(form) / (_root_mean_square(reference) or 1.0)),
    )


def _smallest(form: Format) -> float:
    """The smallest positive number of a type."""
    return float(form.smallest_normal * 2.0**-form.mantissa_bits)


def _root_mean_square(reference: np.ndarray[Any, Any]) -> float:
    """Over the finite elements."""
    flat = reference.reshape(-1)

    def of_block(block: slice) -> tuple[float, int]:
        with np.errstate(all="ignore"):
            squares = np.square(flat[block].astype(np.float64))
        finite = np.isfinite(squares)
        return float(squares.sum(where=finite)), int(np.count_nonzero(finite))

    sums = in_threads(of_block, blocks(flat.size, flat.size))
    total, count = (sum(values) for values in zip(*sums, strict=True)) if sums else (0.0, 0)
    return float(np.sqrt(total / count)) if count else 0.0


def _excess(
    verdicts: Mapping[str, Verdict],
    outputs: Mapping[str, np.ndarray[Any, Any]],
    expected: Mapping[str, Any],
    strict: Rule,
) -> str:
    """By how much outputs exceed the tolerance, in words.

    Args:
        verdicts: on each output, with the tolerance of the kernel.
    """
    parts = []
    for name, verdict in verdicts.items():
        if verdict.verified:
            continue
        actual = outputs[name]
        text = f"{verdict.mismatches:,} of {verdict.elements:,} elements of {name} exceed the tolerance of ptxkit's kernels"
        if not verdict.mismatches:
            text = verdict.worst
        elif Format.of(actual.dtype) is None:
            text += f", by up to {verdict.max_abs_error:.3g}"
        else:
            times = largest_excess(name, actual, np.asarray(expected[name]), strict)
            text += f", the largest error is {times:.2g} times the permitted one"
        parts.append(text)
    return "; ".join(parts)
