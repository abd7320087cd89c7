"""Conditions of the preprocessor, as the extraction of device code decides them."""

from __future__ import annotations

import pytest

from ptxkit.compiler.host_code.preprocessor import preprocess


def active(text, **macros):
    """The words that are left of a text."""
    return preprocess("k.cu", text, lambda name, quoted, path: None, macros).text.split()


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("1", True),
        ("0x10 == 16 && 010 == 8 && 0b11 == 3", True),
        ("UNKNOWN", False),
        ("!defined(UNKNOWN) || UNKNOWN", True),
        ("defined A && A >= 700", True),
        ("A / 0", None),
        ("0 && CUDA_VERSION", False),
        ("1 || CUDA_VERSION", True),
        ("CUDA_VERSION > 12000", None),
        ("(A & 0x2) ? 0 : 1", True),
        ("1'000 == 1000uL", True),
        ("-1 < 0 and not 0", True),
        ("1 << 2 == 4", True),
        ("F(3) == 6", True),
        ("__has_include(<x.h>)", None),
    ],
)
def test_conditions(condition, holds):
    text = f"#define F(x) (2 * x)\n#if {condition}\nyes\n#else\nno\n#endif\n"
    assert active(text, A="900") == {True: ["yes"], False: ["no"], None: ["yes", "no"]}[holds]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#define C(a, b) a##b\nC(x, 1)", "x1"),
        ("#define S(a) #a\nS(q  r)", '"q r"'),
        ("#define V(f, ...) f(__VA_ARGS__)\nV(g, 1, 2)", "g(1,2)"),
        ("#define V(f, ...) f(0 __VA_OPT__(,) __VA_ARGS__)\nV(g)V(g, 1)", "g(0 ) g(0 , 1)"),
        ("#define F F + 1\nF", "F + 1"),
        ("#define A B\n#define B(x) x!\nA(2)", "2!"),
        ("#define F(x) x\nF F(3)", "F 3"),
        ("#define L 1 + \\\n 2\nL", "1 + 2"),
        ('const char* s = R"(\n#define X 1\n)"; X', 'const char* s = R"( #define X 1 )"; X'),
        ("#define F(x) [x]\nF((1, 2))", "[(1, 2)]"),
    ],
)
def test_macros(text, words):
    assert active(text) == words.split()


def test_a_place_in_an_expansion_is_that_of_the_call():
    unit = preprocess("k.cu", "#define F(x) int x;\nabc F(y) z", lambda *_: None, {})
    at = unit.text.index("int")
    assert [(a, b) for _, a, b in unit.places(at, at + 3)] == [(24, 28)]
