"""The text form of tolerances: what it means, and that anything else is one clear line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.source_run.tolerance import PARTS, parse_tolerance
from ptxkit.workload.launch import Tolerance


@given(st.dictionaries(st.sampled_from(PARTS), st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 2.5, 1e30]), min_size=1))
def test_parts_are_those_of_a_tolerance(parts):
    text = ", ".join(f"{name}={value!r}" for name, value in parts.items())
    assert parse_tolerance(text).given == Tolerance(**parts)


def test_exact_and_sums():
    assert parse_tolerance("exact").given == Tolerance()
    rule = parse_tolerance("sums=4096")
    assert rule.given is None and rule.sums.length == 4096


@given(st.text())
def test_other_text_is_a_usage_error(text):
    try:
        parse_tolerance(text)
    except UsageError as error:
        assert "--tolerance" in str(error)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "takes PART=NUMBER"),
        ("1e-3", "takes PART=NUMBER"),
        ("relative=", "takes PART=NUMBER"),
        ("relativ=1", "did you mean 'relative'"),
        ("relative=1,relative=2", "given twice"),
        ("relative=one", "takes a number, not 'one'"),
        ("relative=nan", "must be a number of at least 0"),
        ("absolute=-1", "must be a number of at least 0"),
        ("ulp=inf", "must be a number of at least 0"),
        ("sums=0", "of at least 1"),
        ("sums=1.5", "whole number"),
        ("sums=8,relative=1", "leave them out"),
    ],
)
def test_mistakes(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        parse_tolerance(text)
