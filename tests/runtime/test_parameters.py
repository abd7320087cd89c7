"""The parameters of a kernel, from PTX, mangled names, their uses and the source text."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.isa.parser import parse
from ptxkit.runtime.parameters import parameters_of
from ptxkit.runtime.source_names import parameter_names

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k({params})
{{
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>;
    {body}
    ret;
}}
"""


def of(params, body=""):
    return parameters_of(parse(PTX.format(params=params, body=body)).functions["k"])


def compiled(source, kernel):
    function = next(f for n, f in parse(compile_source(source, target="sm_90a").ptx).entries.items() if kernel in n)
    return parameters_of(function, source)


def test_offsets_and_sizes_follow_the_alignment():
    found = of(".param .u8 a, .param .f64 b, .param .align 4 .b8 c[6], .param .u16 d, .param .align 64 .b8 e[128]")
    assert [(p.offset, p.size) for p in found] == [(0, 1), (8, 8), (16, 6), (22, 2), (64, 128)]
    assert [p.kind for p in found] == ["int", "float", "struct", "int", "struct"]
    assert [p.name for p in found] == list("abcde")


@pytest.mark.parametrize(
    ("declared", "kind", "dtype", "known"),
    [
        (".u32", "int", "i4", False),
        (".s32", "int", "i4", True),
        (".b32", "bits", None, False),
        (".b16", "bits", None, False),
        (".f32", "float", "f4", True),
        (".f64", "float", "f8", True),
        (".s64", "int", "i8", True),
        (".u64", "int", "i8", False),
        (".u64 .ptr .global .align 16", "pointer", None, True),
        (".b64 .ptr", "pointer", None, True),
    ],
)
def test_kinds_by_the_signature_alone(declared, kind, dtype, known):
    (p,) = of(f".param {declared} a")
    assert (p.kind, p.dtype, p.signed_known) == (kind, None if dtype is None else np.dtype(dtype), known)


X = "ld.param.u64 %d1, [x];"
N = "ld.param.u64 %d2, [n];"


@pytest.mark.parametrize(
    ("body", "x", "n"),
    [
        (f"{X} cvta.to.global.u64 %d3, %d1;", "pointer", "int"),
        (f"{X} ld.f32 %f1, [%d1+4];", "pointer", "int"),
        (f"{X} mul.wide.u32 %d4, %r1, 4; add.s64 %d3, %d1, %d4; st.global.f32 [%d3], %f1;", "pointer", "int"),
        (f"{X} mad.wide.u32 %d3, %r1, 4, %d1; red.global.add.f32 [%d3], %f1;", "pointer", "int"),
        (f"{X} mov.b64 %d3, %d1; L: ld.global.f32 %f1, [%d4]; add.s64 %d4, %d3, 4; @%p bra L;", "pointer", "int"),
        (f"{X} {N} add.s64 %d3, %d1, %d2; ld.global.f32 %f1, [%d3];", "word", "word"),
        (f"{X} {N} tex.1d.v4.f32.s32 {{%f1, %f1, %f1, %f1}}, [%d1, {{%r1}}];", "int", "int"),
        (f"{X} {N} shl.b64 %d4, %d2, 2; add.s64 %d3, %d1, %d4; ld.global.f32 %f1, [%d3];", "pointer", "int"),
        (f"{X} {N} setp.gt.u64 %p, %d1, %d2;", "int", "int"),
        (f"{X} {N} add.s64 %d3, %d1, %d2; ld.global.f32 %f1, [%d3]; ld.global.f32 %f1, [%d1];", "pointer", "word"),
        ("ld.param.u64 %d1, [x+0]; cp.async.cg.shared.global [%r1], [%d1], 16;", "pointer", "int"),
    ],
)
def test_what_the_code_uses_as_an_address_is_a_pointer(body, x, n):
    found = of(".param .u64 x, .param .u64 n", body)
    assert [p.kind for p in found] == [x, n]


@pytest.mark.parametrize("declared", [".s64", ".b64", ".u64"])
def test_an_address_is_a_pointer_however_it_is_declared(declared):
    body = f"ld.param{declared} %d1, [x]; ld.param{declared} %d2, [n]; st.global.u32 [%d1], %r1;"
    found = of(f".param {declared} x, .param {declared} n", body)
    assert [p.kind for p in found] == ["pointer", "bits" if declared == ".b64" else "int"]


def test_an_address_handed_to_a_function_may_be_one():
    callee = ".func g(.param .b64 a) { .reg .b64 %q; ld.param.b64 %q, [a]; st.global.u32 [%q], 1; ret; }\n"
    body = "ld.param.u64 %d1, [x]; { .param .b64 a; st.param.b64 [a], %d1; call.uni g, (a); }"
    text = PTX.format(params=".param .u64 x", body=body).replace(".visible", callee + ".visible")
    (p,) = parameters_of(parse(text).functions["k"])
    assert p.kind == "word"


def test_c_plus_plus_names_tell_types_and_the_source_tells_names():
    source = """
    #include <cuda_bf16.h>
    #include <cuda_fp16.h>
    struct Pair { float a; int b; };
    enum Mode { ON, OFF };
    // __global__ void k(int wrong) {
    __global__ void k(const float* __restrict__ x, float *y, int n, unsigned m, long long big,
                      bool flag, __half h, __nv_bfloat16 b, Pair pair /* a comma, here */, Mode mode, double (&rows)[4]) {
        y[0] = x[0] + n + m + big + flag + float(h) + float(b) + pair.a + mode + rows[1];
    }
    """
    found = compiled(source, "k")
    assert [p.name for p in found] == "x y n m big flag h b pair mode rows".split()
    assert [p.kind for p in found] == "pointer pointer int int int int float float struct int pointer".split()
    assert [str(p.dtype) for p in found[2:8]] == "int32 uint32 int64 bool float16 bfloat16".split()
    assert found[0].label == "argument 1 'x' (const float*)"
    assert found[8].label == "argument 9 'pair' (Pair of 8 bytes)"
    assert all(p.signed_known for p in found[:9])


EXTERN_C = (
    'extern "C" __global__ void k(float* y, long long n, int* unused, float a) { if (threadIdx.x < n) y[0] = a; }'
)


def test_extern_c_has_the_types_of_its_source():
    assert [(p.name, p.kind, p.signed_known, p.cpp) for p in compiled(EXTERN_C, "k")] == [
        ("y", "pointer", True, "float*"), ("n", "int", True, "long long"), ("unused", "pointer", True, "int*"),
        ("a", "float", True, "float"),
    ]  # fmt: skip


def test_extern_c_without_its_source_leaves_the_code_to_tell():
    image = compile_source(EXTERN_C, target="sm_90a")
    found = parameters_of(parse(image.ptx).functions["k"])
    assert [(p.kind, p.signed_known) for p in found] == [
        ("pointer", True),
        ("int", False),
        ("int", False),
        ("float", True),
    ]


DEBUGGED = """
typedef float real; struct Pair { int a, b; };
extern "C" __global__ void k(const real* __restrict__ x, volatile double* y, unsigned char n, const Pair pair,
                             void* raw, int** rows) {
  if (threadIdx.x < n + pair.a) y[0] = x[0] + *(char*)raw + rows[0][0];
}"""


@pytest.mark.parametrize("as_source", [False, True])
def test_extern_c_has_the_types_of_its_debugging_information(as_source):
    """A .ptx that was compiled with -G; the source of a .ptx file is its own text."""
    image = compile_source(DEBUGGED, target="sm_90a", options=["-G"])
    function = parse(image.ptx).functions["k"]
    found = parameters_of(function, image.ptx if as_source else None, None, image.ptx)
    assert [(p.name, p.kind, p.cpp) for p in found] == [
        ("x", "pointer", "const float*"), ("y", "pointer", "double*"), ("n", "int", "unsigned char"),
        ("pair", "struct", ""), ("raw", "pointer", "void*"), ("rows", "pointer", "int**"),
    ]  # fmt: skip


def test_debugging_information_that_is_cut_off_or_of_another_kernel_is_not_believed():
    image = compile_source(DEBUGGED, target="sm_90a", options=["-G"])
    function = parse(image.ptx).functions["k"]
    at = image.ptx.index(".debug_info")
    for ptx in (image.ptx[: at + 500] + "\n}", image.ptx.replace(".debug_abbrev", ".debug_other")):
        assert [p.name for p in parameters_of(function, None, None, ptx)] == [""] * 6
    short = parse(PTX.format(params=".param .u64 k_param_0", body="")).functions["k"]
    assert [p.name for p in parameters_of(short, None, None, image.ptx)] == [""]


def test_a_name_that_does_not_fit_the_signature_is_not_believed():
    text = PTX.format(params=".param .u64 a, .param .f32 b", body="").replace("entry k", "entry _Z1kii")
    assert [p.kind for p in parameters_of(parse(text).functions["_Z1kii"])] == ["int", "float"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("void k(int a, float* b) { }", ("a", "b")),
        ("void k(int a, float* b);  void g() { k(1, 2); }", None),
        ("void k(int a, float* b); __global__ void k(int n, float* y) {}", ("n", "y")),
        ("void k(int a) {}", None),
        ("void k(Box<int, 3> a, int v[4]) {}", ("a", "v")),
        ("void k(void (*f)(int, int), int b = g(1, 2)) {}", ("f", "b")),
        ("void k(int, const float&) {}", ("", "")),
        ("void\nk(\n  int a,  // first\n  T *__restrict__ b)\n{", ("a", "b")),
        ("void kk(int a, int b) {}", None),
        ("k(", None),
        ("__global__ void k(float (*rows)[16], const int (&four)[4]) {}", ("rows", "four")),
    ],
)
def test_names_in_a_source_text(source, names):
    assert parameter_names("k", 2, source) == names


def test_a_comment_that_goes_on_in_the_next_line_may_stand_before_the_body():
    assert parameter_names("k", 2, "__global__ void k(int* x, int n) // a \\\n b {\n{ x[0] = n; }") == ("x", "n")
