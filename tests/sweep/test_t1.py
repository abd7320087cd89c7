"""T1 files are data: nothing in them is executed."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.sweep import t1


def write(tmp_path, values, conditions=()):
    file = tmp_path / "t1.json"
    parameters = [{"Name": n, "Type": "int", "Values": v} for n, v in values.items()]
    space = {"TuningParameters": parameters, "Conditions": [{"Parameters": [], "Expression": c} for c in conditions]}
    file.write_text(json.dumps({"ConfigurationSpace": space, "KernelSpecification": {}}))
    return file


def test_values_and_conditions(tmp_path):
    space = t1.read(write(tmp_path, {"A": "[1, 2, 4]", "B": "[True, False]"}, ["A * 2 <= 4 and not B", "A in [1, 2]"]))
    assert space.values == {"A": (1, 2, 4), "B": (True, False)}
    assert space.allows({"A": 2, "B": False})
    assert not space.allows({"A": 4, "B": False})


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "A.__class__",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "A ** 9",
        "1 << 99999",
        "C > 1",
        "f'{A}'",
        "'a' * 10 ** 9 == A",
        "A if A else 1",
        "",
        "1 / 0",
        "9223372036854775807 * 9223372036854775807",
    ],
)
def test_what_is_not_arithmetic_is_refused(tmp_path, text):
    with pytest.raises(UsageError):
        t1.read(write(tmp_path, {"A": "[1]"}, [text]))


@pytest.mark.parametrize("values", ["range(3)", "[]", "[[1]]", "open('x')", "[2**k for k in range(3)]", "1"])
def test_values_must_be_literals(tmp_path, values):
    with pytest.raises(UsageError, match="list of literals"):
        t1.read(write(tmp_path, {"A": values}))


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "3",
        "{}",
        '{"ConfigurationSpace": []}',
        '{"ConfigurationSpace": {"TuningParameters": null}}',
        '{"ConfigurationSpace": {"TuningParameters": [1]}}',
        '{"ConfigurationSpace": {"TuningParameters": [{"Name": [], "Values": "[1]"}]}}',
        '{"ConfigurationSpace": {"TuningParameters": [], "Conditions": [{"Expression": 1}]}}',
        "[" * 100_000,
    ],
)
def test_a_file_of_another_kind_is_named_with_what_it_should_hold(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(
        UsageError, match=r"other\.json.*; a T1 file is a JSON object with ConfigurationSpace"
    ) as raised:
        t1.read(file)
    assert "Error" not in str(raised.value)


def test_a_condition_that_cannot_be_used_names_its_file(tmp_path):
    with pytest.raises(UsageError, match=r"t1\.json: the condition 'C > 1' cannot be used"):
        t1.read(write(tmp_path, {"A": "[1]"}, ["C > 1"]))


@given(
    st.integers(-100, 100), st.integers(-100, 100), st.sampled_from(["+", "-", "*", "<", "<=", "==", "!=", ">", ">="])
)
def test_expressions_mean_what_python_means(a, b, op):
    assert t1.evaluate(f"A {op} B", {"A": a, "B": b}) == eval(f"a {op} b")


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        t1.evaluate(text, {"A": 1})


def test_no_file_and_no_t1(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        t1.read(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(UsageError, match="not a T1"):
        t1.read(tmp_path / "x.json")
