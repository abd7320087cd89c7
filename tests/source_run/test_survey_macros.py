"""The macro of a build file without which a name is not declared."""

from __future__ import annotations

import pytest

from ptxkit.source_run.survey_macros import hint_of_macro

HEADERS = {
    "all.cuh": '#pragma once\n#include "always.cuh"\n#if defined(HOPPER) || defined(BLACKWELL)\n#include "tma.cuh"\n#endif\n',
    "always.cuh": "#ifndef ALWAYS_H\n#define ALWAYS_H\nstruct plain { int x; };\n"
    "#define LOCAL 1\n#ifdef LOCAL\nint local;\n#endif\n#endif\n",
    "tma.cuh": "namespace tma { __device__ void load(); }\n/* struct hidden { */\n",
}


def find(name, quoted, includer):
    return (name, HEADERS[name]) if name in HEADERS else None


def hint(name, text):
    return hint_of_macro(f'a.cu:1:1: error: identifier "{name}" is undefined', "a.cu", text, find)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tma", '#include "all.cuh"\n', "--define BLACKWELL or --define HOPPER"),
        ("fast", "#ifdef FAST\n__device__ float fast(float x) { return x; }\n#endif\n", "--define FAST"),
        ("slow", "#ifndef FAST\n#else\nstruct slow { int x; };\n#endif\n", "--define FAST"),
        ("third", "#if defined(ONE)\n#elif defined(TWO)\nusing third = int;\n#endif\n", "--define TWO"),
        ("both", "#ifdef A\n#if B && !defined(C)\n#define both 1\n#endif\n#endif\n", "--define A and --define B"),
        ("value", "#if LEVEL > 2\nstatic int value;\n#endif\n", "--define LEVEL"),
    ],
)
def test_a_macro_around_the_declaration_is_named(name, text, expected):
    assert hint(name, text) == f"{expected}, as the build does: with it, {name} is declared"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", '#include "all.cuh"\n'),  # declared without a macro, apart from the guard of the header
        ("local", '#include "all.cuh"\n'),  # a header defines the macro
        ("hidden", '#include "all.cuh"\n'),  # in a comment
        ("absent", '#include "all.cuh"\n#include "nosuch.h"\n'),
        ("used", "#ifdef FAST\nvoid f() { return used(1); }\n#endif\n"),  # used, not declared
        ("host", "#ifdef __linux__\nint host;\n#endif\n"),  # a macro of compilers
        ("off", "#ifdef FAST\n#else\nint off;\n#endif\n"),  # where it is not defined
    ],
)
def test_without_such_a_macro_there_is_no_hint(name, text):
    assert hint(name, text) == ""


def test_a_name_that_has_only_conditional_declarations_decides_first():
    text = "struct a { int x; };\n#ifdef FIRST\nstruct a;\n#endif\n#ifdef SECOND\nstruct b;\n#endif\n"
    log = 'error: namespace "n" has no member "a"\nerror: identifier "n::b" is undefined\n'
    assert hint_of_macro(log, "a.cu", text, find).startswith("--define SECOND,")
