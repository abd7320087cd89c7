"""No input hides a name of the generated kernels, or another input."""

from __future__ import annotations

import ast
import re

from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.expression.files import generate
from ptxkit.expression.kernels import source_of, write_source
from ptxkit.expression.names import CLASS_WORDS, CPP_WORDS, cpp_names, identifiers
from ptxkit.expression.operations import DROPOUT, OPERATIONS, REDUCTIONS
from ptxkit.expression.syntax import FUNCTIONS, RESERVED, parse
from ptxkit.workload.workload import Workload

OWN = frozenset({"first", "Row", "to_f32", "Row_", "k"})


@given(st.lists(st.sampled_from([*OWN, *CPP_WORDS, "x", "x_", "x_row", "x_row_", "t3", "N", "int_", "int_2"]), unique=True))
def test_names_are_distinct_and_new(inputs):
    names = cpp_names(inputs, OWN, "mine")
    assert set(names) == set(inputs) and len(set(names.values())) == len(inputs)
    assert not set(names.values()) & (OWN | CPP_WORDS)
    assert names.get("x", "x") == "x"


def test_every_word_of_a_source_gives_way():
    """Inputs that are named as the kernels' own words keep out of their way, whichever these are."""
    own = sorted(
        word
        for word in identifiers(write_source(source_of(parse("a1 * sum(b1) + c1"), "mine")))
        if re.fullmatch(r"[A-Za-z]\w*", word) and "__" not in word and word not in CPP_WORDS
    )
    for word in own:
        try:
            expression = parse(f"{word} * sum(b1) + c1")
        except UsageError:  # of a function or a reserved name
            continue
        assert source_of(expression, "mine").cpp(word) == (word if word in ("a1", "b1", "c1") else f"{word}_"), word


def test_only_words_that_can_be_hidden_count():
    assert identifiers("#include <a.h>\nint b; // c\nb = d.x + D::y + e->z;") == {"int", "b", "d", "D", "e"}


def test_no_number_has_a_name_that_the_class_uses():
    """The names that the body of a class defines or reads, in formulas with and without rows and dropout."""
    for formula in ("x * alpha", "dropout(x) * bias + alpha", "sum(dropout(x) * bias) * alpha"):
        text = generate(formula, "mine", "Mine", "", (), (), (), (), print)["mine.py"]
        (body,) = [node.body for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        outside = [part for node in body for part in _outside_functions(node)]
        used = {node.id for part in outside for node in ast.walk(part) if isinstance(node, ast.Name)}
        used |= {node.name for node in body if isinstance(node, ast.FunctionDef)}
        arguments = {node.arg for part in outside for node in ast.walk(part) if isinstance(node, ast.arg)}
        for name in used - arguments - RESERVED - {"alpha"}:
            assert name in CLASS_WORDS or hasattr(Workload, name), name


def test_no_input_has_a_name_that_the_methods_use_for_something_else():
    """The inputs are parameters of reference() and torch(), where they would hide a function of the same name."""
    unary = [name for name in FUNCTIONS if OPERATIONS.get(name) and OPERATIONS[name].operands == 1]
    sums = " + ".join(f"{name}(first)" for name in (*unary, *REDUCTIONS, DROPOUT))
    text = generate(
        f"{sums} + where(first > 0, first, max(first, 1))", "mine", "Mine", "", (), (), (), ("first=0.5:1.5",), print
    )["mine.py"]
    (body,) = [node.body for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    methods = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    for method in (methods["reference"], methods["torch"]):
        names = [node for node in ast.walk(method) if isinstance(node, ast.Name)]
        own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in ast.walk(method) if isinstance(node, ast.arg)}
        assert {node.id for node in names} - own <= RESERVED | set(FUNCTIONS)


def _outside_functions(node):
    if isinstance(node, ast.FunctionDef):
        return node.decorator_list
    return [node]
