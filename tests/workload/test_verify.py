"""Comparison with the reference."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ptxkit import Tolerance
from ptxkit.errors import DescriptionError
from ptxkit.workload import element_errors
from ptxkit.workload.verify import BLOCK, compare, compare_all

f32 = np.float32
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_the_reference_is_within_half_an_ulp(dtype):
    exact = np.random.default_rng(0).uniform(-3, 3, 1000)
    verdict = compare("y", exact.astype(dtype), exact, Tolerance(ulp=0.5))
    assert verdict.verified
    assert verdict.elements == 1000
    assert dtype is np.float64 or 0.4 < verdict.max_ulp_error <= 0.5


def test_the_error_of_a_sum_may_cost_one_rounding_more():
    """Sums that differ by the permitted error may be rounded to numbers that are that error and a unit apart."""
    e4m3 = ml_dtypes.float8_e4m3fn
    sums = np.random.default_rng(0).normal(0, 2, (64, 64))
    expected = sums.astype(e4m3).astype(np.float64)
    inexact = (sums + 0.4).astype(e4m3)
    within = Tolerance(ulp=1, typical=0.4 / np.abs(expected).mean(axis=1).min())
    assert not compare("y", inexact, expected, Tolerance(ulp=1)).verified
    assert not compare("y", inexact, expected, Tolerance(typical=within.typical)).verified
    assert compare("y", inexact, expected, within).verified
    assert not compare("y", (sums + 1.5).astype(e4m3), expected, within).verified


@given(hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32)), st.integers(1, 5))
def test_n_ulps_away_counts_n(values, n):
    finite = np.abs(values[np.isfinite(values) & (np.abs(values) < 1e38)])
    moved = finite.copy()
    for _ in range(n):
        moved = np.nextafter(moved, f32(np.inf))
    verdict = compare("y", moved, finite.astype(np.float64), Tolerance(ulp=n))
    # Beyond a power of two neighbours are twice as far apart.
    assert verdict.max_ulp_error == 0 if finite.size == 0 else n <= verdict.max_ulp_error <= 2 * n
    assert compare("y", finite, finite.astype(np.float64), Tolerance()).verified


@pytest.mark.parametrize(
    ("actual", "expected", "right"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (np.inf, 1e39, True),  # beyond float32
        (-np.inf, -np.inf, True),
        (np.inf, -np.inf, False),
        (np.nan, np.inf, False),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (3e38, np.inf, False),
        (np.inf, 3e38, False),
        (0.0, -0.0, True),
        (1e-40, 0.0, True),  # within the default absolute tolerance
        (1e-3, 0.0, False),
    ],
)
def test_special_values(actual, expected, right):
    verdict = compare("y", np.array([1, actual], f32), np.array([1, expected]))
    assert verdict.verified is right
    assert verdict.mismatches == (not right)
    assert np.isfinite(verdict.max_abs_error) or not right


def test_wrong_elements_are_counted_without_a_description():
    expected = np.arange(10.0)
    actual = expected.astype(np.float32)
    actual[[3, 7]] += 1
    full, short = (compare("y", actual, expected, Tolerance(), described=described) for described in (True, False))
    assert full.worst and full.explanation
    assert replace(full, worst="", explanation="") == short


def test_the_first_wrong_element_is_described():
    expected = np.arange(12.0).reshape(3, 4)
    actual = expected.astype(f32)
    actual[1, 2] = 7.5
    actual[2, 3] = np.nan
    verdict = compare("out", actual, expected)
    assert verdict.worst == "out[1, 2] is 7.5, the reference says 6.0"
    assert verdict.mismatches == 2
    assert verdict.max_abs_error == np.inf


def test_an_error_beyond_the_first_chunk_is_found():
    expected = np.ones(2 * BLOCK + 10)
    actual = expected.astype(f32)
    actual[BLOCK + 5] = 2
    verdict = compare("y", actual, expected)
    assert verdict.worst.startswith(f"y[{BLOCK + 5}] is 2")
    assert (verdict.max_abs_error, verdict.max_rel_error, verdict.mismatches) == (1, 1, 1)


def test_integers_must_agree_exactly_unless_a_tolerance_says_otherwise():
    actual = np.array([1, -128, 127], np.int8)
    assert compare("q", actual, [1, -128, 127]).verified
    wrong = compare("q", actual, [1, -127, 127])
    assert (wrong.verified, wrong.max_abs_error, wrong.worst) == (False, 1, "q[1] is -128, the reference says -127")
    assert compare("q", actual, [1, -127, 127], Tolerance(ulp=1)).verified


def test_large_integers_are_not_compared_through_float64():
    assert not compare("i", np.array([2**63 - 1], np.int64), np.array([2**63 - 2], np.int64)).verified


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_a_reference_that_rounds_integers_is_refused(dtype):
    right = np.array([2**53 + 1], dtype)
    with pytest.raises(DescriptionError, match="float64, which holds integers exactly up to 2\\^53, .* return integers"):
        compare("i", right, right.astype(np.float64) + 2)
    with pytest.raises(DescriptionError, match="float32, which holds integers exactly up to 2\\^24"):
        compare("i", np.array([2**24 + 1], np.int32), np.array([2**24 + 2], np.float32))
    assert compare("i", np.array([2**53], dtype), np.array([2.0**53])).verified
    assert compare("i", right, right.astype(np.float64), Tolerance(relative=1e-9)).verified
    assert not compare("i", np.array([3], dtype), np.array([np.inf])).verified


def test_shapes_must_agree():
    with pytest.raises(DescriptionError, match=r"reference of y has shape \(3,\), the output \(4,\)"):
        compare("y", np.zeros(4, f32), np.zeros(3))


def test_several_outputs_give_one_verdict():
    expected = {"a": np.ones(3), "b": np.full(2, 2.0)}
    good = {"a": np.ones(3, f32), "b": np.full(2, 2, f32)}
    assert compare_all(good, expected).verified
    verdict = compare_all({**good, "b": np.full(2, 3, f32)}, expected)
    assert not verdict.verified
    assert (verdict.elements, verdict.mismatches, verdict.max_abs_error) == (5, 2, 1)
    assert verdict.worst.startswith("b[0]")


@given(
    st.sampled_from(FLOATS),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1e-3, 0.3]),
    st.builds(
        Tolerance,
        relative=st.sampled_from([0.0, 1e-3, 0.1]),
        absolute=st.sampled_from([0.0, 1e-3]),
        ulp=st.sampled_from([0.0, 0.5, 1.0]),
        typical=st.sampled_from([0.0, 1e-2]),
    ),
)
def test_blocks_of_finite_numbers_are_compared_as_all_others(dtype, seed, error, allowed):
    """The comparison of finite numbers in arrays that are used again, against the one that handles every number."""
    rng = np.random.default_rng(seed)
    expected = rng.normal(0, 1, 500) * 10.0 ** rng.integers(-9, 2, 500) * rng.integers(0, 2, 500)
    actual = (expected * (1 + error * rng.normal(0, 1, 500))).astype(dtype)
    form = element_errors.Format.of(actual.dtype)
    around = rng.uniform(0, 1, 500)
    errors, wrong = element_errors.float_errors(actual, expected, form, allowed, around)
    found = element_errors.compared(actual, expected, form, allowed, lambda inside: around[inside], around.min())
    assert np.array_equal(found.largest, [e.max() for e in errors])
    assert np.array_equal(np.zeros(500, bool) if found.wrong is None else found.wrong, wrong)


@given(
    st.sampled_from([ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1e-3, 0.3]),
    st.sampled_from([Tolerance(relative=1e-3, ulp=0.5), Tolerance(absolute=1e-3, typical=1e-2), Tolerance(ulp=1)]),
)
def test_references_in_float32_give_the_same_verdict(dtype, seed, error, allowed):
    rng = np.random.default_rng(seed)
    expected = (rng.normal(0, 1, 500) * 10.0 ** rng.integers(-9, 2, 500) * rng.integers(0, 2, 500)).astype(np.float32)
    actual = (expected * (1 + error * rng.normal(0, 1, 500))).astype(dtype)
    in_32, in_64 = (compare("y", actual, reference, allowed) for reference in (expected, expected.astype(np.float64)))
    assert (in_32.verified, in_32.mismatches) == (in_64.verified, in_64.mismatches)
    for name in ("max_abs_error", "max_rel_error", "max_ulp_error"):
        assert getattr(in_32, name) == pytest.approx(getattr(in_64, name), rel=2**-22), name


@pytest.mark.parametrize("to", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8"])
def test_every_number_of_a_narrow_type_is_widened_exactly(dtype, to):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    every = np.arange(256**kind.itemsize, dtype=f"u{kind.itemsize}").view(kind).reshape(4, -1)[:, ::3]  # in strides
    found = np.full(every.shape, 7, to)
    element_errors.widen(every, found)
    with np.errstate(invalid="ignore"):  # of NaN that signal
        np.testing.assert_array_equal(found, every.astype(to))


@pytest.mark.parametrize("allowed", [Tolerance(), Tolerance(absolute=1), Tolerance(relative=0.1, typical=0.2)], ids=str)
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_errors_of_integers_are_those_of_the_elements_that_differ(kind, allowed):
    rng = np.random.default_rng(5)
    expected = rng.integers(-127, 127, 1000).astype(kind)
    actual = expected.astype(np.int8)
    actual[::7] += rng.integers(-3, 4, len(actual[::7])).astype(np.int8)
    if kind == np.float64:
        expected[[3, 14]] = np.nan, np.inf
    around = rng.random(1000)
    errors, wrong = element_errors.exact_errors(actual, expected, allowed, around)
    found = element_errors.compared(actual, expected, None, allowed, lambda inside: around[inside])
    np.testing.assert_array_equal(found.largest, [error.max() for error in errors])
    np.testing.assert_array_equal(found.wrong, wrong)
    assert element_errors.compared(actual, actual.astype(kind), None, allowed, lambda inside: around[inside]).wrong is None


def test_a_relative_error_beyond_float32_is_finite():
    actual = np.array([100, 1], ml_dtypes.bfloat16)
    verdict = compare("y", actual, np.array([0, 1], np.float32), Tolerance(absolute=200))
    assert verdict.verified
    assert verdict.max_rel_error == pytest.approx(100 * 2.0**126)


@pytest.mark.parametrize("place", [0, 499, BLOCK - 1, BLOCK, 2 * BLOCK + 499])
@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0])
def test_one_wrong_element_of_a_large_output_is_found(place, value):
    expected = np.ones(2 * BLOCK + 500)
    actual = expected.astype(np.float32)
    actual[place] = value
    verdict = compare("y", actual, expected)
    assert (verdict.verified, verdict.mismatches) == (False, 1)
    assert f"y[{place}]" in verdict.worst
