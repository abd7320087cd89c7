"""Sources that need a newer C++ standard than NVRTC's default, and what no standard gives device code."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler import compile_source
from ptxkit.compiler.host_code.standards import absent
from ptxkit.errors import CompileError

ORDERINGS = """
#include <compare>
template <class T, class U> constexpr bool same = false;
template <class T> constexpr bool same<T, T> = true;
template <class T> __device__ int tests(T c) {
    return (c == 0) | (c != 0) << 1 | (c < 0) << 2 | (c <= 0) << 3 | (c > 0) << 4 | (c >= 0) << 5 | (0 == c) << 6 |
        (0 < c) << 7 | (0 >= c) << 8 | ((0 <=> c) > 0) << 9;
}
struct Pair { int a, b; auto operator<=>(const Pair&) const = default; };
struct Weak { int v; __device__ std::weak_ordering operator<=>(Weak o) const { return v / 2 <=> o.v / 2; }
    __device__ bool operator==(Weak o) const { return v / 2 == o.v / 2; } };
static_assert(same<decltype(1 <=> 2), std::strong_ordering>);
static_assert(same<std::common_comparison_category_t<std::strong_ordering, std::weak_ordering>, std::weak_ordering>);
static_assert(same<std::common_comparison_category_t<int, std::weak_ordering>, void>);
static_assert(same<std::compare_three_way_result_t<float>, std::partial_ordering>);
static_assert(std::three_way_comparable<int, std::strong_ordering> && !std::three_way_comparable<float, std::weak_ordering>);
struct None {};
static_assert(!std::three_way_comparable<None> && std::three_way_comparable_with<int, long>);
static_assert(std::is_gteq(3 <=> 3) && std::strong_ordering::equal == std::strong_ordering::equivalent);
static_assert(std::partial_ordering::unordered != std::partial_ordering(std::strong_ordering::less));
extern "C" __global__ void k(int* y, const float* x) {
    int i = threadIdx.x;
    y[i] = tests(i <=> 1);
    y[i + 4] = tests(Weak{i} <=> Weak{2});
    y[i + 8] = tests(x[i] <=> 1.f);
    y[i + 12] = tests(Pair{1, i} <=> Pair{1, 2}) + 1024 * (Pair{1, i} == Pair{1, 2}) + 2048 * (Pair{0, i} < Pair{1, 0});
    y[i + 16] = tests(std::compare_three_way{}(i, 2L));
}
"""


def test_three_way_comparison():
    def tests(less, equal, greater):
        flags = (equal, not equal, less, less or equal, greater, greater or equal, equal, greater, less or equal, less)
        return sum(int(f) << k for k, f in enumerate(flags))

    def of(a, b):
        return tests(a < b, a == b, a > b)

    x = np.arange(4, dtype=np.float32)
    ptxkit.compile(ORDERINGS, device="emulator")["k"](y := np.zeros(20, np.int32), x, grid=1, block=4)
    lanes = range(4)
    assert y[:4].tolist() == [of(i, 1) for i in lanes]
    assert y[4:8].tolist() == [of(i // 2, 1) for i in lanes]
    assert y[8:12].tolist() == [of(v, 1) for v in x.tolist()]
    assert y[12:16].tolist() == [of(i, 2) + 1024 * (i == 2) + 2048 for i in lanes]
    assert y[16:].tolist() == [of(i, 2) for i in lanes]


NEWER = {
    "20": """template <class T> concept Sized = requires(T t) { t.size(); };
    struct Two { __device__ int size() const { return 2; } };
    struct P { int n = 1, m = 3; };
    enum class Op { add, mul };
    __device__ int ap(Op o, int a, int b) { using enum Op; return o == add ? a + b : o == mul ? a * b : 0; }
    template <P p> __device__ int area() { return p.n * p.m; }
    template <class... A> __device__ auto bind(A... a) { return [...b = a](int x) { return (x + ... + b); }; }
    __device__ auto twice(auto a) { return a + a; }
    consteval int square(int x) { return x * x; }
    __device__ int size(Sized auto s) { return s.size(); }
    extern "C" __global__ void k(int* y) {
        auto [a, b] = P{.m = 5};
        auto f = [=]<class T>(T c) { return a + b + c; };
        y[0] = f(2) + ap(Op::mul, 2, 3) + area<P{2, 4}>() + bind(1, 2)(3) + twice(4) + square(3) + size(Two{});
    }""",
    "23": """struct M {
        int d[4];
        __device__ int operator[](int i, int j) const { return d[2 * i + j]; }
        __device__ int first(this const M& self) { return self.d[0]; }
    };
    extern "C" __global__ void k(int* y) {
        M m{{4, 5, 6, 7}};
        auto f = [](int a) static { return a; };
        y[0] = m[1, 0] + f(m.first()) + auto(3);
    }""",
}


@pytest.mark.parametrize(("standard", "result"), [("20", 47), ("23", 13)])
def test_a_source_of_a_newer_standard_compiles_with_it(standard, result):
    module = ptxkit.compile(NEWER[standard], device="emulator")
    module["k"](y := np.zeros(1, np.int32), grid=1, block=1)
    assert y[0] == result
    assert f"note: compiled with --std=c++{standard}, because it does not compile as C++17" in module.image.log


def test_a_standard_that_is_given_stays():
    with pytest.raises(CompileError, match="C\\+\\+20|concept"):
        compile_source(NEWER["20"], target="sm_90a", options=["--std=c++17"])
    assert "note" not in compile_source(NEWER["20"], target="sm_90a", options=["--std=c++20"]).log


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__global__ void k(int* y) { y[0] = y[1] }", r'expected a ";"$'),  # the error of C++17
        ("__global__ void k(int* y) { switch (*y) { case 1 ... 3: *y = 1; } }", "GNU extension.*labels of a case range"),
        ("__global__ void k(int* y) { *y = ({ int q = 1; q; }); }\nint main() {}", "GNU extension.*statement expression"),
        ("__global__ void k(int* y) { *y = *y ?: 3; }", r"GNU extension.*in place of a \?: b"),
        ("__global__ void k(int* y) { *y = __builtin_fabsf(*y); }", "GNU extension.*function of CUDA in place of a builtin"),
        ("#include <coroutine>\n__global__ void k(int* y) { *y = 1; }", "device code cannot have coroutines"),
        ("import std;\n__global__ void k(int* y) { *y = 1; }", "NVRTC cannot import modules"),
        ("texture<float, 2> t;\n__global__ void k(float* y) { *y = tex2D(t, 0, 0); }", "in CUDA 12: take a texture object"),
        ("extern surface<void, 2> s;\n__global__ void k() { surf2Dwrite(1, s, 0, 0); }", r"removed in CUDA 12: [^;]*$"),
    ],
)  # fmt: skip
def test_what_no_standard_has_is_said(source, message):
    with pytest.raises(CompileError, match=message):
        compile_source(source, target="sm_90a")


def test_what_libcudacxx_lacks_is_said():
    where = 'k.cu(2): error: namespace "{}" has no member "{}"\n'
    log = where.format("std", "sort") + where.format("cuda::std::ranges", "no_such")
    assert [hint.partition("has no ")[2] for hint in absent(log)] == [
        "std::sort; use thrust::sort(thrust::seq, ...) of <thrust/sort.h>",
        "std::no_such",
    ]
