"""Types of parameters from the source text: those that are certain, and those that are unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.runtime.source_types import source_types


def shown(declarations, before="", macros=None):
    source = f'{before}\nextern "C" __global__ void k({declarations}) {{ }}\n'
    count = 0 if not declarations else declarations.count(",") + 1
    found = source_types("k", count, source, macros or {})
    return None if found is None else [t.text for t in found]


@pytest.mark.parametrize(
    ("declarations", "types"),
    [
        ("const float* __restrict__ x", ["const float*"]),
        ("float const * const x, float *const* y", ["const float*", "float**"]),
        ("float* const __restrict__ x", ["float*"]),
        ("unsigned n", ["unsigned int"]),
        ("long unsigned int n, long long m, short", ["unsigned long", "long long", "short"]),
        ("unsigned long long", ["unsigned long long"]),
        ("signed char a, unsigned char b, char c", ["signed char", "unsigned char", "char"]),
        (
            "size_t n, uint32_t m, std::int64_t l, uint8_t* p",
            ["unsigned long", "unsigned int", "long", "unsigned char*"],
        ),
        ("half* h, __nv_bfloat16 b, half2 p", ["__half*", "__nv_bfloat16", "__half2"]),
        ("float x[], int y[4], const double z[2][3]", ["float*", "int*", "const double*"]),
        ("const __grid_constant__ float4 v, bool", ["const float4", "bool"]),
        ("[[maybe_unused]] int n", ["int"]),
        ("int n = 3", ["int"]),
        ("void* p", ["void*"]),
        ("Pair p, struct Pair* q, const Box<float> b", ["", "", ""]),
        ("float (*rows)[4]", [""]),
        ("real* x, T y", ["", ""]),
    ],
)
def test_declarations(declarations, types):
    assert shown(declarations) == types


@pytest.mark.parametrize(
    ("before", "macros", "type_"),
    [
        ("using T = float;", {}, "float*"),
        ("typedef const float T;", {}, "const float*"),
        ("typedef unsigned long long T;", {}, "unsigned long long*"),
        ("#define T double", {}, "double*"),
        ("", {"T": "float"}, "float*"),
        ("using U = float; using T = U;", {}, "float*"),
        ("using T = T;", {}, ""),
        ("#ifndef T\n#define T float\n#endif", {}, "float*"),
        ("#ifndef T\n#define T float\n#endif", {"T": "double"}, "double*"),
        ("#ifdef WIDE\nusing T = double;\n#else\nusing T = float;\n#endif", {}, "float*"),
        ("#ifdef WIDE\nusing T = double;\n#else\nusing T = float;\n#endif", {"WIDE": "1"}, "double*"),
        (
            "#if BITS == 64 && !defined(NARROW)\nusing T = double;\n#else\nusing T = float;\n#endif",
            {"BITS": "64"},
            "double*",
        ),
        ("#if BITS == 64\nusing T = double;\n#elif BITS == 16\nusing T = half;\n#endif", {"BITS": "16"}, "__half*"),
        ('#include "types.h"\n#ifdef WIDE\nusing T = double;\n#else\nusing T = float;\n#endif', {}, ""),
        ("#if sizeof(int) == 4\nusing T = double;\n#else\nusing T = float;\n#endif", {}, ""),
        ("#if __CUDA_ARCH__ >= 900\n#define T double\n#else\n#define T float\n#endif", {}, ""),
        ("namespace a { using T = double; }\nusing T = float;", {}, ""),
        ("struct T { double x; };", {}, ""),
        ("// using T = float;\n", {}, ""),
    ],
)
def test_names_of_types(before, macros, type_):
    assert shown("T* x", before, macros) == [type_]


def test_definitions_that_differ_leave_the_type_unknown():
    source = """#if __CUDA_ARCH__ >= 800
    extern "C" __global__ void k(float* x, int n) { }
    #else
    extern "C" __global__ void k(double* x, int n) { }
    #endif"""
    assert [t.text for t in source_types("k", 2, source, {})] == ["", "int"]


def test_no_definition_is_no_answer():
    assert source_types("k", 1, "void g() { k(1); }", {}) is None


@given(st.text('extern"C" void k(float*,int)[]{}<>#if endif&=:;\n', max_size=60))
def test_any_text_is_read(text):
    source_types("k", 1, "void k(" + text + ") { }\n#if " + text, {"A": text})
