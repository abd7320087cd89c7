"""Formulas have Python's precedence; an invalid formula is reported in one line that names the place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.expression.formulas import statements
from ptxkit.expression.syntax import Kind, parse
from ptxkit.kernels.elementwise.elementwise import activation


def evaluated(text, **inputs):
    lines, result = statements(parse(text), "numpy")
    scope = {"np": np, "activation": activation, **inputs}
    exec("\n".join(lines), scope)
    return eval(result, scope)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x + y * 2 ** 3", lambda x, y: x + y * 8),
        ("(x + y) * 2", lambda x, y: (x + y) * 2),
        ("x - (y - 1)", lambda x, y: x - (y - 1)),
        ("x / y / 2", lambda x, y: x / y / 2),
        ("x / (y / 2)", lambda x, y: x / (y / 2)),
        ("-x ** 2 + y", lambda x, y: -(x**2) + y),
        ("x ** 5 * y ** -2", lambda x, y: x**5 / y**2),
        ("x ** 0.5 - y ** -0.5", lambda x, y: np.sqrt(x) - 1 / np.sqrt(y)),
        ("clamp(x, 0.25, y)", lambda x, y: np.minimum(np.maximum(x, 0.25), y)),
        ("x if x > y else y * 3", lambda x, y: np.where(x > y, x, y * 3)),
        ("(x > y) * 2 + (x <= 0.5)", lambda x, y: (x > y) * 2.0 + (x <= 0.5)),
        ("where(x == y, 1, max(x, min(y, 0.5)))", lambda x, y: np.where(x == y, 1, np.maximum(x, np.minimum(y, 0.5)))),
        ("x / norm(x) + mean(y) - sum(x * y)", lambda x, y: x / np.linalg.norm(x, axis=1, keepdims=True)
         + y.mean(1, keepdims=True) - (x * y).sum(1, keepdims=True)),
        ("exp(x - max(x)) + min(y)", lambda x, y: np.exp(x - x.max(1, keepdims=True)) + y.min(1, keepdims=True)),
        ("silu(x) + sigmoid(y) + relu(x - 1)", lambda x, y: x / (1 + np.exp(-x)) + 1 / (1 + np.exp(-y)) + np.maximum(x - 1, 0)),
        ("x * (2 * 3 + 1) + 0 * y", lambda x, y: 7 * x + 0 * y),
    ],
)  # fmt: skip
def test_a_formula_means_what_python_says(text, expected):
    x, y = np.random.default_rng(0).uniform(0.1, 2, (2, 3, 5))
    np.testing.assert_allclose(evaluated(text, x=x, y=y), expected(x, y), rtol=1e-12)


numbers = st.sampled_from(["0.5", "2", "3"])
names = st.sampled_from(["x", "y", "z"])


def larger(parts):
    pairs = st.tuples(parts, st.sampled_from("+-*/"), parts)
    return st.one_of(
        pairs.map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        pairs.map(lambda p: f"{p[0]} {p[1]} {p[2]}"),
        parts.map(lambda p: f"-({p})"),
        st.tuples(parts, parts, parts).map(lambda p: f"where({p[0]} < {p[1]}, {p[2]}, {p[0]})"),
        st.tuples(parts, parts).map(lambda p: f"max({p[0]}, {p[1]})"),
    )


formulas = st.recursive(names, lambda parts: larger(st.one_of(parts, numbers)), max_leaves=12)


@given(formulas)
def test_printing_keeps_the_meaning(formula):
    text = f"x - ({formula})"
    scope = {"x": np.float64(0.7), "y": np.float64(1.3), "z": np.float64(-0.4)}
    with np.errstate(all="ignore"):
        expected = eval(text, {"where": np.where, "max": np.fmax, **scope})
        np.testing.assert_allclose(evaluated(text, **scope), expected, rtol=1e-9, equal_nan=True)


@given(st.text(alphabet="xyb+-*/().,<>=!0123456789 eifls", max_size=30) | st.text(max_size=12))
def test_any_text_is_an_expression_or_one_line(text):
    try:
        parse(text)
    except UsageError as error:
        assert str(error).count("\n") == 0
        assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an expression"),
        ("x + (y", "not an expression at column"),
        ("x = y", "not an expression"),
        ("x", "no operation"),
        ("gelu(3)", "no operation"),
        ("bias * 2", "no input has a value for each element"),
        ("alpha + 1", "no input has a value for each element"),
        ("gleu(x)", "did you mean 'gelu'"),
        ("x @ y", "'x @ y' at column 1 is not supported"),
        ("x and y", "is not supported"),
        ("x[0] + 1", "'x[0]' at column 1 is not supported"),
        ("x.sum() + 1", "is not supported"),
        ("f'{x}' + 1", "is not supported"),
        ("'a' + x", "is not a number"),
        ("True + x", "is not a number"),
        ("1j * x", "is not a number"),
        ("x + 1e39", "does not fit in a float"),
        ("x + 1e-50", "does not fit in a float"),
        ("x + exp(1000)", "does not fit in a float"),
        ("x + 1 / 0", "'1 / 0' at column 5 divides by zero"),
        ("y / (x - x * 0 - 0) / (2 - 2)", "divides by zero"),
        ("x + class", "'class' at column 5 is a keyword of Python; choose another name"),
        ("lambda * x", "'lambda' at column 1 is a keyword of Python"),
        ("x + y # z", "'#' at column 7 begins a comment"),
        ("x ** y", "has an exponent that is not a number"),
        ("x ** 0.3", "has an exponent other than"),
        ("x ** 17", "has an exponent other than"),
        ("a < b < c", "chains comparisons"),
        ("gelu(x, y)", "has 2 arguments; gelu takes 1"),
        ("max(x, y, z)", "has 3 arguments; max takes 1 or 2"),
        ("where(x, y)", "has 2 arguments; where takes 3"),
        ("gelu(x=1)", "is not supported"),
        ("gelu(*x)", "starred"),
        ("sum(bias) * x", "reduces a value that does not depend on both row and column"),
        ("sum(sum(x)) * x", "reduces a value that does not depend on both row and column"),
        ("dropout(bias) + x", "applies dropout to a value that does not depend on the element"),
        ("out + x", "'out' at column 1 cannot name an input"),
        ("gelu + x", "'gelu' at column 1 cannot name an input"),
        ("_x + y", "cannot name an input"),
        ("x + é", "cannot name an input"),
        ("(" * 300 + "x" + ")" * 300, "nested too deeply"),
        ("+".join(f"x{n}" for n in range(300)), "more than 200 operations"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(text, message):
    with pytest.raises(UsageError) as error:
        parse(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_kinds_follow_names_and_options():
    inputs = parse("x * weight + bias * eps").inputs
    assert inputs == {"x": Kind.ELEMENT, "weight": Kind.COLUMN, "bias": Kind.COLUMN, "eps": Kind.SCALAR}
    inputs = parse("x * weight + bias * eps", columns=("x",), scalars=("weight",), arrays=("bias", "eps")).inputs
    assert inputs == {"x": Kind.COLUMN, "weight": Kind.SCALAR, "bias": Kind.ELEMENT, "eps": Kind.ELEMENT}


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"columns": ("y",)}, "--column y: the expression has no input of this name"),
        ({"columns": ("x",), "scalars": ("x",)}, "x is given as both --column and --scalar"),
    ],
)
def test_options_that_do_not_fit_are_refused(given_, message):
    with pytest.raises(UsageError, match=message):
        parse("x + 1", **given_)


def test_equal_values_are_computed_once_but_dropouts_differ():
    assert sum(v.computed for v in parse("exp(x + y) * exp(x + y)").values) == 3
    assert len(parse("dropout(x) + dropout(x)").dropouts) == 2
