"""Types from mangled names: by hand, and compared with the compiler's types for the same signature."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.isa.parameter_types import parameter_types
from ptxkit.isa.parser import parse


def shown(mangled):
    types = parameter_types(mangled)
    return None if types is None else [t.dtype or t.kind for t in types]


@pytest.mark.parametrize(
    ("mangled", "types"),
    [
        ("_Z5saxpyfPKfPfi", ["f4", "pointer", "pointer", "i4"]),
        ("_Z5emptyv", []),
        ("_Z6l2normILi256ELi4EEvPKfPfiif", ["pointer", "pointer", "i4", "i4", "f4"]),
        ("_Z1kIfEvPKT_PS0_S0_", ["pointer", "pointer", "f4"]),
        ("_ZN2ns4deep1kILb1EdEEvT0_PS2_", ["f8", "pointer"]),
        ("_ZN2ns1kEPfj", ["pointer", "u4"]),
        ("_Z1k6float4PK6float4S_", ["class", "pointer", "class"]),
        ("_Z1k1VIfLi4EES0_PS0_", ["class", "class", "pointer"]),
        ("_Z1kN2ns1AEPS0_S0_", ["class", "pointer", "class"]),
        ("_Z1kPFviEi", ["pointer", "i4"]),
        ("_Z1kRA4_f", ["pointer"]),
        ("_Z1kbahstlmxy", ["?", "i1", "u1", "i2", "u2", "i8", "u8", "i8", "u8"]),
        ("_Z1k6__half13__nv_bfloat16", ["f2", "bfloat16"]),
        ("_ZN12_GLOBAL__N_11kEi", ["i4"]),
        ("_ZL1ki", ["i4"]),
        ("saxpy", None),
        ("_Z1kIJifEEvDpT_", None),
        ("_Z1kDTcl1fEE", None),
        ("_Z9", None),
        ("_Z1kS9_", None),
        ("_Z1kNE", None),
        ("_Z1kNStE", None),
    ],
)
def test_types(mangled, types):
    assert shown(mangled) == types


@given(st.text("_ZNKSTPRFAILEvifdms0123456789kab", max_size=30))
def test_any_text_is_read_or_refused(text):
    types = parameter_types("_Z" + text)
    assert types is None or all(t.kind for t in types)


SIGNATURES = {
    "a(const float* x, float* y, int n)": ["pointer", "pointer", "i4"],
    "b(size_t n, long long m, unsigned char c, bool f)": ["u8", "i8", "u1", "?"],
    "c(ns::Pair p, const ns::Pair* q, ns::Box<float, 3> box, ns::Box<float, 3>* r, ns::Box<double, 3> s)":
        ["class", "pointer", "class", "pointer", "class"],
    "d(ns::Color c, void (*f)(int, float*), double d, const ns::Pair* const* pp)": ["class", "pointer", "f8", "pointer"],
    "e(float (*rows)[4], unsigned u, ns::Color* c, ns::Pair a, ns::Pair b)": ["pointer", "u4", "pointer", "class", "class"],
}  # fmt: skip
TEMPLATES = {
    "f(const T* x, T a, ns::Box<T, N> b, U u, T* y, const U* v, ns::Box<T, N>* c)":
        ["pointer", "f4", "class", "i2", "pointer", "pointer", "pointer"],
}  # fmt: skip


def test_the_compilers_own_names():
    source = "#include <cstddef>\nnamespace ns { struct Pair { float a; int b; }; enum Color { RED }; "
    source += "template <class T, int N> struct Box { T v[N]; }; }\n"
    source += "".join(f"__global__ void {s} {{}}\nnamespace ns {{ __global__ void {s} {{}} }}\n" for s in SIGNATURES)
    source += "".join(f"template <class T, int N, class U> __global__ void {s} {{}}\n" for s in TEMPLATES)
    source += "namespace ns { " + source.splitlines()[-1] + " }\n"
    names = [prefix + f"{s[0]}<float, 2, short>" for s in TEMPLATES for prefix in ("", "ns::")]
    image = compile_source(source, target="sm_90a", instantiate=names)
    entries = parse(image.ptx).entries
    wanted = {s[0]: types for s, types in {**SIGNATURES, **TEMPLATES}.items()}
    assert len(entries) == 2 * len(wanted)
    from ptxkit.isa.mangled import base_name

    for name, function in entries.items():
        types = wanted[base_name(name)]
        assert shown(name) == types, name
        assert len(function.params) == len(types)
