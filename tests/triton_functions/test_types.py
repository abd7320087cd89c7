"""Types of parameters in the words of Triton's signatures. Needs no Triton."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.triton.types import ELEMENTS, ArgumentType, number_type, parse_type, pointer_to


@given(st.builds(ArgumentType, st.sampled_from(sorted(ELEMENTS)), st.booleans(), st.booleans()))
def test_words_are_read_back(kind):
    assert parse_type(kind.word + ":16" * kind.divisible) == kind


@pytest.mark.parametrize("text", ["1024", "None", "True", "add", "x + 1", "*", "", "fp32 ", "float32"])
def test_values_are_no_types(text):
    assert parse_type(text) is None


@pytest.mark.parametrize("text, message", [("*float", "no element type"), ("*fp32:8", "only :16"), ("i32:3", "only :16")])
def test_forms_of_types_that_triton_does_not_have(text, message):
    with pytest.raises(UsageError, match=message):
        parse_type(text)


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_numbers_have_the_smallest_type_that_triton_gives_them(number):
    found = number_type(number)
    if number == 1:
        assert found is None
        assert number_type(number, specialize=False).element == "i32"
        return
    expected = "i32" if -(1 << 31) <= number < 1 << 31 else "i64" if number < 1 << 63 else "u64"
    assert found == ArgumentType(expected, divisible=number % 16 == 0)


def test_other_arguments():
    assert number_type(True) == ArgumentType("i1")
    assert number_type(1.0) == ArgumentType("fp32")
    assert number_type(16, "i64") == ArgumentType("i64")
    assert pointer_to("bfloat16") == ArgumentType("bf16", True, True)
    for refused in (1 << 64, "text", object()):
        with pytest.raises(UsageError):
            number_type(refused)
    with pytest.raises(UsageError, match="complex64"):
        pointer_to("complex64")
