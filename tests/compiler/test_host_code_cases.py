"""Sources with host code that are easy to take apart wrongly: each kernel must give 2x + 1, or the source be refused."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler.host_code.compile import compile_device_part, extracted
from ptxkit.compiler.nvrtc import compile_request, compile_source
from ptxkit.compiler.request import request
from ptxkit.errors import CompileError

KERNEL = """__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = VALUE;
}
int main() { std::cout << 1; k<<<1, 32>>>(nullptr, nullptr, 0); }
"""
HD = "#ifdef __CUDACC__\n#define HD __host__ __device__\n#else\n#define HD\n#endif\n"
OPS = "OP(two, 2.0f)\nOP(one, 1.0f)\n"
HOST = "#include <iostream>\nstatic void host_NAME() { std::cout << 1; }\n"
ACCEPTED = {
    "class with several constructors of the host": (
        "Reader::twice(x[i]) + 1",
        (
            "class Reader {\n    std::string name;\n    std::map<std::string, std::string> values;\npublic:\n"
            "    explicit Reader(const std::string& n) : name(n) {}\n    explicit Reader(FILE* file) {}\n"
            "    Reader(std::vector<Unknown>& v, Missing m) {}\n    Reader(Missing m) {}\n    int error(Missing m) const;\n"
            "    static __device__ float twice(float v) { return 2 * v; }\n};\n"
        ),
        {},
    ),
    "constants of constants": (
        "TWO * x[i] + ONE",
        "const float ONE = 1.0f;\nstatic const double HALF = ONE / 2;\nconst float TWO = 1.0 / HALF;\n",
        {},
    ),
    "function for both that uses the host": (
        "f(x[i])",
        (
            "#define BOTH __host__ __device__ inline\nBOTH int count(const std::vector<int>& v) { return v.size(); }\n"
            "BOTH float f(float v) { return 2 * v + 1; }\n"
        ),
        {},
    ),
    "statements from a file": (
        "F(x[i])",
        '__device__ float F(float v) {\n#include "step.inc"\nreturn v; }\n',
        {
            "step.inc": "v = v * 2.0f;\nv = v + 1.0f;\n",
        },
    ),
    "expression from a file": (
        "F(x[i])",
        '__device__ float F(float v) { return\n#include "e.inc"\n; }\n',
        {
            "e.inc": "2.0f * v + 1.0f\n",
        },
    ),
    "types of libraries of the host": (
        "F(x[i])",
        '#include "handles.cuh"\n__device__ float F(float v) { return 2.0f * v + 1.0f; }\n',
        {
            "handles.cuh": "#include <cublasLt.h>\nusing handle_t = cublasLtHandle_t;\nusing state_t = cusparseStatus_t;\n"
            "struct Context { cublasLtMatmulDesc_t description; state_t state; };\n"
            "__device__ inline bool given(Context c) { return c.description != nullptr; }\n",
        },
    ),
    "headers of systems and of torch": (
        "F(x[i])",
        (
            "#include <dlfcn.h>\n#include <arpa/inet.h>\n#include <torch/script.h>\n#include <sys/socket.h>\n"
            "__device__ float F(float v) { return 2.0f * v + 1.0f; }\n"
        ),
        {},
    ),
    "lambdas that are marked for the device": (
        "each(x[i], [=] __device__ (float v) { return v + (n >= 0); })",
        (
            "template <typename F> __device__ float each(float x, F f) { return f(x) + x; }\n"
            "__device__ float more(float x) { return each(x, [] __host__ __device__ (float v) { return v; }); }\n"
        ),
        {},
    ),
    "initialisers from a file": (
        "T[0] * x[i] + T[1]",
        '__constant__ float T[] = {\n#include "t.inc"\n};\n',
        {
            "t.inc": "2, 1\n",
        },
    ),
    "functions from a macro in a file": (
        "two() * x[i] + one()",
        '#define OP(name, v) __device__ float name() { return v; }\n#include "ops.def"\n#undef OP\n',
        {
            "ops.def": "OP(two, 2.0f)\nOP(one, 1.0f)\n",
        },
    ),
    "one file for device code and host code": (
        "two() * x[i] + one()",
        (
            'const char* names[] = {\n#define OP(name, v) #name,\n#include "ops.def"\n#undef OP\n};\n'
            '#define OP(name, v) __device__ float name() { return v; }\n#include "ops.def"\n#undef OP\n'
            'void list() {\n#define OP(name, v) std::cout << #name;\n#include "ops.def"\n}\n'
        ),
        {
            "ops.def": "OP(two, 2.0f)\nOP(one, 1.0f)\n",
        },
    ),
    "specialisation with a conditional qualifier": (
        "f<2>(x[i])",
        HD
        + (
            "template <int M> __device__ float f(float v) { return -v; }\n"
            "template <> HD inline float f<2>(float v) { return 2 * v + 1; }\n"
        ),
        {},
    ),
    "overload with a conditional qualifier": (
        "f(x[i])",
        HD + "__device__ float f(double v) { return -v; }\nHD inline float f(float v) { return 2 * v + 1; }\n",
        {},
    ),
    "static and other member functions told apart by their results": (
        "A<2>{}.f() * x[i] + A<-1>{1}.g(0)",
        (
            "#include <type_traits>\ntemplate <int b> struct A {\n    int v = 7;\n"
            "    template <int B = b> HDS static constexpr std::enable_if_t<(B > 0), int> f() { return B; }\n"
            "    template <int B = b> HDS std::enable_if_t<(B == -1), int> f() const { return v; }\n"
            "    template <int B = b> HDS static auto g(int n) -> std::enable_if_t<(B > 0), int> { return B + n; }\n"
            "    template <int B = b> HDS auto g(int n) const -> std::enable_if_t<(B == -1), int> { return v + n; }\n};\n"
        ).replace("HDS", "__host__ __device__"),
        {},
    ),
    "a macro for device code and host code": (
        "two() * x[i] + one()",
        (
            "#define OP(name, v) __device__ float name() { return v; } \\\n    void host_##name() { std::cout << v; }\n"
            "#define BOTH(a, b) OP(a, 2.0f) OP(b, 1.0f)\nBOTH(two,\n     one)\n"
        ),
        {},
    ),
    "a header in brackets that lies beside the source": (
        "2 * x[i] + ONE",
        "#include <only_here.cuh>\n",
        {"only_here.cuh": "#define ONE 1.0f\n"},
    ),
    "a library's header with host functions": (
        "cute::twice(x[i]) + 1",
        "#include <cute/mixed.hpp>\n",
        {
            "include/cute/mixed.hpp": (
                "#pragma once\n#include <iostream>\n#define CUTE_HOST_DEVICE __host__ __device__\nnamespace cute {\n"
                "CUTE_HOST_DEVICE float twice(float v) { return 2 * v; }\n"
                "static inline __host__ void show() { std::cout << 1; }\n}\n"
            )
        },
    ),
    "conditional __constant__": (
        "t[0] * x[i] + t[1]",
        "#if defined __CUDACC__\n#define C __constant__\n#else\n#define C\n#endif\nC float t[2] = {2, 1};\n",
        {},
    ),
    "condition on nvcc": (
        "f(x[i])",
        (
            "#if defined(__NVCC__) && __cplusplus >= 201402L\n#define HD __host__ __device__\n#else\n#define HD\n"
            "#endif\nHD float f(float v) { return 2 * v + 1; }\n"
        ),
        {},
    ),
    "undecided condition": (
        "f(x[i])",
        (
            "#if CUTLASS_MAJOR > 99\n#define HD\n#else\n#define HD __device__\n#endif\n"
            "HD float f(float v) { return 2 * v + 1; }\n"
        ),
        {},
    ),
    "conditional qualifier in a header": (
        "f(x[i])",
        '#include "h.cuh"\n',
        {
            "h.cuh": "#pragma once\n#include <vector>\n#ifdef __CUDACC__\n#define HD __host__ __device__\n#else\n"
            "#define HD\n#endif\nHD inline float f(float v) { return 2 * v + 1; }\nstd::vector<int> h();\n",
        },
    ),
    "member outside its class": (
        "V(2.f).f(x[i])",
        HD
        + (
            "struct V { float a; HD V(float q); HD float f(float v) const; };\nHD inline V::V(float q) : a(q) {}\n"
            "HD inline float V::f(float v) const { return a * v + 1; }\n"
        ),
        {},
    ),
    "two headers of the same name": (
        "pa() * x[i] + pb()",
        '#include "a/p.h"\n#include "b/p.h"\n',
        {
            "a/p.h": '#pragma once\n#include "cfg.h"\n__device__ inline float pa() { return VAL; }\n',
            "b/p.h": '#pragma once\n#include "cfg.h"\n__device__ inline float pb() { return VAL; }\n',
            "a/cfg.h": "#include <iostream>\nstatic void host_a() { std::cout << 1; }\n#undef VAL\n#define VAL 2.0f\n",
            "b/cfg.h": "#include <iostream>\nstatic void host_b() { std::cout << 1; }\n#undef VAL\n#define VAL 1.0f\n",
        },
    ),
    "macro defined in a host function": (
        "SCALE * x[i] + 1",
        "#define SCALE 5\nvoid h() {\n#undef SCALE\n#define SCALE 2\n}\n",
        {},
    ),
    "split head of a host function": (
        "2 * x[i] + 1",
        "#ifdef D\nvoid h(double* a) {\n#else\nvoid h(float* a) {\n#endif\nif (a) std::cout << 1; }\n",
        {},
    ),
    "split brace in a device function": (
        "f(x[i])",
        (
            "__device__ float f(float v) {\n#if __CUDA_ARCH__ >= 700\nif (v == v) {\n#else\nif (true) {\n#endif\n"
            "v = 2 * v + 1; }\nreturn v; }\n"
        ),
        {},
    ),
    "macros for braces": (
        "q::f(x[i])",
        (
            "#define BEGIN namespace q {\n#define END }\nBEGIN\n"
            "__device__ float f(float v) { return 2 * v + 1; }\nvoid h() { std::cout << 1; }\nEND\n"
        ),
        {},
    ),
    "class with members for both": (
        "Lin(0).f(x[i])",
        (
            "#include <vector>\n#include <string>\nclass Lin {\npublic:\n  Lin(float a) : a(a) {}\n"
            '  __device__ Lin(int) : a(2) {}\n  std::string name() const { return "lin"; }\n'
            "  static std::vector<int> make(int n) { return {n}; }\n  float a;\n"
            "  __device__ float f(float v) const { return a * v + 1; }\n};\n"
        ),
        {},
    ),
    "friend of the host": (
        "A{{2, 1}}.f(x[i])",
        (
            "struct A { float d[2]; __device__ float f(float v) const { return d[0] * v + d[1]; }\n"
            " friend std::ostream& operator<<(std::ostream& o, const A& a) { return o; } };\n"
        ),
        {},
    ),
    "all of a class on one line": (
        "A{2}.f(x[i])",
        (
            "struct A { float d; __device__ float f(float v) { return d * v + 1; } friend std::ostream& "
            'operator<<(std::ostream& o, const A& a) { return o; } std::string s() const { return ""; } };\n'
        ),
        {},
    ),
    "class with data of the host": (
        "(sizeof((Net*)nullptr) == 8 ? 2 : 3) * x[i] + 1",
        "#include <vector>\nstruct Net { std::vector<int> layers; float a = 2; };\n",
        {},
    ),
    "virtual function of the host": (
        "W::z(x[i])",
        (
            "struct W { static __device__ float z(float v) { return 2 * v + 1; }\n virtual ~W() {}\n"
            " virtual void save(std::ostream& o) const = 0; };\n"
        ),
        {},
    ),
    "specialisation of a template of the host": (
        "V{2}.a * x[i] + 1",
        "struct V { float a; };\nnamespace std { template <> struct hash<V> { size_t operator()(V v) const; }; }\n",
        {},
    ),
    "constexpr members": (
        "L(1).g(x[i])",
        (
            "constexpr float two() { return 2; }\nstruct L { float b; constexpr L(float q) : b(q) {}\n"
            " constexpr float g(float v) const { return two() * v + b; } };\n"
        ),
        {},
    ),
    "header with a byte order mark": (
        "2 * x[i] + one",
        '#include "g.h"\n',
        {
            "g.h": "\ufeff#pragma once\nstatic const int one = 1;\nvoid h();\n",
        },
    ),
    "header whose name is a macro": (
        "2 * x[i] + one()",
        '#define HDR "g.h"\n#include HDR\n',
        {
            "g.h": "__device__ float one() { return 1; }\n#include <iostream>\n"
            "static void host_NAME() { std::cout << 1; }\n",
        },
    ),
    "a header that two headers include, once": (
        "b(x[i])",
        '#include "common.cuh"\n#include "b.cuh"\n',
        {
            "types.h": "#pragma once\nstruct T { float v; };\n",
            "common.cuh": '#pragma once\n#include "types.h"\n#include "b.cuh"\n',
            "b.cuh": (
                '#pragma once\n#include "types.h"\n#include <vector>\n'
                "__device__ inline float b(float v) { T t{2 * v + 1}; return t.v; }\n"
            ),
        },
    ),
    "names of std without their headers": (
        "f<2>(std::max(x[i], std::numeric_limits<float>::lowest()))",
        (
            "#include <vector>\ntemplate <int N> __device__ std::enable_if_t<(N > 1), float> f(float v)\n"
            "{ std::pair<float, float> p(N, 1); return p.first * v + p.second; }\n"
        ),
        {},
    ),
    "types of the host in an alias and in parameters": (
        "2 * x[i] + 1",
        (
            "#include <functional>\n#include <unordered_map>\n"
            "using Call = std::function<void(int)>;\nusing Table = std::unordered_map<int, Call>;\nextern Table table;\n"
            "struct Register { Register(Call f) { table[0] = f; } };\n"
        ),
        {},
    ),
    "types and functions of torch": (
        "twice(at::Half(1.0f)) * x[i] + (WARP_SHFL(1.0f, 0) > 0 ? 1.0f : 2.0f)",
        (
            "#include <ATen/ATen.h>\n#include <ATen/cuda/DeviceUtils.cuh>\n"
            "__device__ float twice(c10::Half v) { return 2 * static_cast<float>(v); }\n"
        ),
        {},
    ),
    "programmatic dependent launch": (
        "wait(x[i])",
        "__device__ float wait(float v) { cudaGridDependencySynchronize(); return 2 * v + 1; }\n",
        {},
    ),
    "a lambda in a device function": (
        "f(x[i])",
        (
            "__device__ constexpr auto line = [](float v) { return 2 * v + 1; };\n"
            "__device__ float f(float v) { return line(v); }\n"
        ),
        {},
    ),
}
REFUSED = {
    "function for both that uses the host is called": (
        "count(*(std::vector<int>*)x) + x[i]",
        "__host__ __device__ inline int count(const std::vector<int>& v) { return v.size(); }\n",
        "std::vector",
    ),
    "constant that the host computes": ("ONE * x[i]", "float one();\nconst float ONE = one();\n", "ONE|one"),
    "typo in a specialisation": (
        "Tr<float>::a * x[i] + 1",
        (
            "template <typename T> struct Tr { static constexpr float a = 9; };\n"
            "template <> struct Tr<float> { static constexpr float a = undefined_thing; };\n"
        ),
        r"k\.cu:3.*undefined_thing",
    ),
    "macro of a missing header": (
        "Tr<float>::a * x[i] + 1",
        (
            '#include "my_consts.h"\ntemplate <typename T> struct Tr { static constexpr float a = 9; };\n'
            "template <> struct Tr<float> { static constexpr float a = MY_TWO; };\n"
        ),
        r"MY_TWO.*my_consts\.h",
    ),
    "constructor of the host": (
        "[&]{ P p; return p.a * x[i]; }()",
        "struct P { float a; P() : a(2) {} };\n",
        "constructor.*host function",
    ),
    "conversion by the host": (
        "P(x[i]).v",
        "struct P { float v; P(float a) : v(3) {} __device__ P(double a) : v(2 * a + 1) {} };\n",
        "host function",
    ),
    "assignment by the host": (
        "[&]{ T a{2}, b{3}; b = a; return b.a; }()",
        "struct T { float a; T& operator=(const T& o) { a = 7; return *this; } };\n",
        "host function",
    ),
    "better overload of the host": (
        "f(x[i])",
        "__device__ float f(double v) { return 2 * v + 1; }\nfloat f(float v) { return 7; }\n",
        "host function",
    ),
    "nearer function of the host": (
        "B::f(x[i])",
        (
            "__device__ float s(float v) { return 1; }\nnamespace B { inline float s(float v) { return 9; }\n"
            "__device__ float f(float v) { return s(v); } }\n"
        ),
        "host function",
    ),
    "nearer variable of the host": (
        "B::f(x[i])",
        "__device__ float s = 2;\nnamespace B { float s = 7; __device__ float f(float v) { return s * v; } }\n",
        "variable s in line 3",
    ),
    "nearer type of the host": (
        "B::f(x[i])",
        (
            "typedef float R;\n"
            "namespace B { typedef std::vector<int> R; __device__ float f(float v) { R r = 2; return r * v; } }\n"
        ),
        "no suitable constructor",
    ),
    "static assertion": (
        "x[i]",
        'static_assert(sizeof(float) == 8, "no");\n',
        "static assertion failed",
    ),
}


def write(directory, before, value, files=None):
    """The source k.cu with its headers. Returns its path."""
    for name, text in (files or {}).items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    source = directory / "k.cu"
    source.write_text("#include <iostream>\n" + before + KERNEL.replace("VALUE", value))
    return source


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_kernel_is_right(case, tmp_path):
    value, before, files = ACCEPTED[case]
    kernel = ptxkit.compile(write(tmp_path, before, value, files), device="emulator")["k"]
    x = np.linspace(-2, 5, 40, dtype=np.float32)
    y = np.zeros_like(x)
    kernel(x, y, np.int32(40), grid=2, block=32)
    np.testing.assert_allclose(y, 2 * x + 1, rtol=1e-6)


@pytest.mark.parametrize("case", REFUSED)
def test_what_nvcc_refuses_is_refused(case, tmp_path):
    value, before, message = REFUSED[case]
    with pytest.raises(CompileError, match=message):
        compile_source(write(tmp_path, before, value), target="sm_90a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "__global__ void k(float* x) { if (x) {\nint main() { return 0; }\n",
            r"k\.cu:1:29: error: this '{' is not closed.*1 more",
        ),
        ("__global__ void k(float* x) {}\nint main() { if (1) {\n", r"k\.cu:2:12: error: this '{' is not closed"),
        ("int main() { } }\n__global__ void k(float* x) {}\n", r"k\.cu:1:16: error: this '}' closes nothing"),
    ],
)
def test_braces_that_do_not_match_are_named(text, message):
    with pytest.raises(CompileError, match=message):
        compile_source(text, target="sm_90a", name="k.cu")


def test_an_error_names_the_line_of_the_host_function():
    text = "float h(float v) { return v; }\n__global__ void k(float* x) { *x = h(*x); }\nint main() {}\n"
    with pytest.raises(CompileError, match=r"k\.cu:2.*function h in line 1 was left out as host code"):
        compile_source(text, target="sm_90a", name="k.cu")


def test_an_error_names_the_line_of_the_host_variable():
    text = "float scale = 2;\n__global__ void k(float* x) { *x = scale; }\nint main() {}\n"
    with pytest.raises(CompileError, match=r'"scale" is undefined.*variable scale in line 1 was left out'):
        compile_source(text, target="sm_90a", name="k.cu")


def found_in(source):
    wanted = request(source, "sm_90a", None, {}, (), (), (), True)
    found = extracted(wanted)
    compile_device_part(wanted, found, compile_request)
    return found


def test_host_code_of_headers_is_listed(tmp_path):
    header = (
        "#pragma once\n#include <vector>\ninline std::vector<float> hv() { return {}; }\n"
        "__device__ float f(float v) { return v; }\n"
    )
    listed = [str(one) for one in found_in(write(tmp_path, '#include "h.cuh"\n', "f(x[i])", {"h.cuh": header})).dropped]
    assert "h.cuh: line 3: function hv: a host function" in listed


def test_libraries_that_device_code_does_not_use_are_listed(tmp_path):
    listed = [str(one) for one in found_in(write(tmp_path, "#include <thrust/device_vector.h>\n", "x[i]")).dropped]
    assert "line 2: include thrust/device_vector.h: not used by the device code" in listed


def test_what_is_left_includes_no_header_that_it_does_not_need(tmp_path):
    before = '#include <stdio.h>\n#include <cmath>\n#include <cuda_runtime.h>\n#include "helper_cuda.h"\n'
    text = found_in(write(tmp_path, before, "2 * x[i] + 1")).text
    assert [line for line in text.splitlines() if line.startswith("#include")] == ["#include <cuda_runtime.h>"]


def test_a_head_in_conditions_is_left_out_in_all_branches(tmp_path):
    before = "#ifdef D\nvoid h(double* a) {\n#else\nvoid h(float* a) {\n#endif\n}\n"
    lines = found_in(write(tmp_path, before, "x[i]")).text.splitlines()
    assert [line.strip() for line in lines[1:7]] == ["#ifdef D", "", "#else", "", "#endif", ""]


@pytest.mark.parametrize(
    ("before", "files"),
    [
        ('#define KERNEL(name) extern "C" __global__ void name\nKERNEL(q)(const float* in, int count) {}\n', {}),
        ("#define ARGS const float* in, int count\n__global__ void q(ARGS) {}\n", {}),
        (
            '#include "d.cuh"\n',
            {"d.cuh": "#include <cstdio>\n__global__ void q(const float* in, int count) {}\nvoid h();\n"},
        ),
    ],
    ids=["macro for the head", "macro for the parameters", "header"],
)
def test_names_of_parameters_are_known(before, files, tmp_path):
    module = ptxkit.compile(write(tmp_path, before, "x[i]", files), device="emulator")
    assert [p.name for p in module["q"].parameters] == ["in", "count"]


def test_macros_of_standard_headers_are_those_of_a_host():
    text = """#include <cinttypes>
#include <cstdio>
__global__ void k(uint64_t* x) {
    static_assert(FLT_DIG == 6 && DBL_MAX_EXP == 1024 && M_PI_4 * 4 == M_PI && M_LN10 > M_2_SQRTPI);
    printf("%" PRIu64 " %" PRId32 " %" PRIxPTR "\\n", x[0], int32_t(-1), uintptr_t(255));
    x[1] = CUDART_INF_F == HUGE_VALF;
}
int main() { fprintf(stderr, "%" PRIu64 "\\n", uint64_t(1)); }
"""
    printed = []
    device = ptxkit.device("emulator")
    x = np.array([1 << 40, 0], np.uint64)
    with device.settings(write_output=printed.append):
        ptxkit.compile(text, device=device)["k"](x, grid=1, block=1)
    assert "".join(printed) == "1099511627776 -1 ff\n" and x[1] == 1


def test_instances_by_types_of_cuda_are_those_that_the_host_launches():
    text = """#include <cuda_bf16.h>
template <typename T, typename V> __global__ void k(T* x, V v) {}
int main() { k<__nv_bfloat16, float4><<<1, 1>>>(nullptr, float4()); k<size_t, uchar2><<<1, 1>>>(nullptr, uchar2()); }
"""
    names = compile_source(text, target="sm_90a").names
    assert set(names) == {"k<__nv_bfloat16, float4>", "k<size_t, uchar2>"}


@pytest.mark.parametrize("name", ["Half", "BFloat16"])
def test_numbers_of_torch_are_computed_with_as_there(name):
    text = """#include <ATen/ATen.h>
#include <torch/extension.h>
template <typename T> __global__ void k(const T* x, T* y, float* wide, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    T sum = x[i] + x[i] * 2 - x[i] / T(4);
    sum += static_cast<T>(x[i] * 0.5f);
    y[i] = sum > T(0) ? -sum : sum;
    wide[i] = x[i] + 1.0f / 3;
    static_assert(sizeof(x[i] * 1.0) == 8 && sizeof(x[i] * 1) == 2);
    if (x[i] == x[0] && x[i] < 0.5) gpuAtomicAdd(&y[n], T(1));
}
void launch(at::Tensor x) { k<at::NAME><<<1, 32>>>(x.data_ptr<at::NAME>(), x.data_ptr<at::NAME>(), nullptr, 1); }
""".replace("NAME", name)
    dtype = np.dtype("float16" if name == "Half" else "bfloat16")
    x = np.linspace(-1, 1, 32).astype(dtype)
    y, wide = np.zeros(33, dtype), np.zeros(32, np.float32)
    ptxkit.compile(text, device="emulator")[f"k<at::{name}>"](x, y, wide, np.int32(32), grid=1, block=32)
    total = x + x * dtype.type(2) - x / dtype.type(4)
    total = total + (x.astype(np.float32) * np.float32(0.5)).astype(dtype)
    want = np.where(total > 0, -total, total)
    assert (y[:32].view(np.uint16) == want.astype(dtype).view(np.uint16)).all() and y[32] == 1
    assert (wide == x.astype(np.float32) + np.float32(1) / np.float32(3)).all()


def test_views_of_tensors_are_passed_by_value():
    text = """#include <torch/extension.h>
template <typename T> __global__ void k(
    const torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> x, at::PackedTensorAccessor64<T, 1> y) {
    const int row = threadIdx.x;
    T sum = 0;
    for (int c = 0; c < x.size(1); c++) sum += x[row][c];
    y[row] = sum + y[row] * 0;
}
void launch(torch::Tensor x) { k<float><<<1, 4>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(), x); }
"""
    device = ptxkit.device("emulator")
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    given, out = device.upload(x), device.upload(np.zeros(8, np.float32))
    view = np.zeros((), [("data", "u8"), ("sizes", "i4", 2), ("strides", "i4", 2)])
    view["data"], view["sizes"], view["strides"] = given.address, (4, 5), (5, 1)
    result = np.zeros((), [("data", "u8"), ("sizes", "i8", 1), ("strides", "i8", 1)])
    result["data"], result["sizes"], result["strides"] = out.address, 4, 2
    ptxkit.compile(text, device=device)["k<float>"](view, result, grid=1, block=4)
    assert (out.numpy()[::2] == x.sum(1)).all()


def test_initialisers_of_members_of_host_types_are_left_out():
    """The layout of the class stays, and so do the initialisers that compile."""
    source = """#include <iostream>
#include <memory>
#include <string>
#include <vector>
struct Model {
    std::string name = "m"; std::vector<int> sizes = {1, 2}; std::unique_ptr<float[]> data; std::ostream* out = &std::cout;
    float scale = 2.f; int dims[3]{1, 2, 3};
    __device__ float scaled() const { return scale * dims[1]; }
    struct View { float* p; int n = 4; };
};
__global__ void k(const Model* m, float* y, Model::View v) { *y = m->scaled() + sizeof(Model) + Model::View{y}.n + v.n; }
int main() { Model m; std::cout << m.name; }
"""
    image = compile_source(source, target="sm_90a")
    assert image.log == "source.cu: note: left out as host code: 3 includes, 3 members, 1 function"
    raw = np.zeros(96, np.uint8)
    raw[72:76].view(np.float32)[0] = 3
    raw[80:84].view(np.int32)[0] = 5
    y = np.zeros(1, np.float32)
    ptxkit.compile(source, device="emulator")["k"](raw, y, bytes(8) + b"\7" + bytes(7), grid=1, block=1)
    assert y[0] == 3 * 5 + 88 + 4 + 7
