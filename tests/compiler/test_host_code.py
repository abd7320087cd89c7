"""Sources with host code: what is left out, what stays, and that the rest runs."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler import toolkit
from ptxkit.compiler.host_code.device_part import device_part
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import CompileError

WHOLE = """#include <cstdio>
#include <iostream>
#include <vector>
#include <algorithm>
#include "helper_cuda.h"
#define CHECK(x) do { if (x) exit(1); } while (0)
#define HD __host__ __device__ __forceinline__
using namespace std;
const int N = 1 << 20;
float* h_a;
std::vector<float> host_data;
__constant__ float table[4] = {1, 2, 3, 4};
struct __align__(8) Pair { float a, b; };
struct Params { int n; float a; Params() : n(0), a(0) { std::cout << "x"; } };
namespace detail {
HD float square(float x) { return x * x; }
inline void host_helper(int n) { printf("%d\\n", n); }
}
template <typename T, int BLOCK>
__global__ void __launch_bounds__(BLOCK) scale(const T* __restrict__ x, T* y, uint n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = detail::square(x[i]) + std::min(x[i], T(3)) + table[i % 4] * float(M_PI > 3);
}
template <typename T> void launch(T* x) { scale<T, 256><<<4, 256, 0, 0>>>(x, x, 10); }
template void launch<float>(float*);
static void run(int n);
#ifdef FOO
void foo() {}
#else
void bar() { CHECK(cudaMalloc(&h_a, 10)); }
#endif
extern "C" void single(float* x) { launch(x); }
extern "C" {
void c_api(float* x) { launch(x); }
}
class Timer { cudaEvent_t a; public: void start() { cudaEventRecord(a); } };
int main(int argc, char** argv) {
    scale<float, 256><<<dim3(4), 256>>>(h_a, h_a, N);
    return 0;
}
"""


def test_a_whole_program_compiles_and_its_kernel_is_right():
    image = compile_source(WHOLE, target="sm_90a", name="whole.cu")
    assert list(image.names) == ["scale<float, 256>"], "the instance that main launches"
    assert "left out as host code" in image.log
    x = np.linspace(-2, 5, 300, dtype=np.float32)
    y = np.zeros_like(x)
    kernel = ptxkit.compile(WHOLE)["scale<float, 256>"]
    kernel(x, y, np.uint32(300), grid=2, block=256)
    expected = x * x + np.minimum(x, 3) + np.array([1, 2, 3, 4], np.float32)[np.arange(300) % 4]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_lines_keep_their_numbers_and_device_code_stays():
    part = device_part(WHOLE)
    before, after = WHOLE.split("\n"), part.text.split("\n")
    assert len(before) == len(after)
    deleted = ("struct Params", "class Timer")  # classes with member functions of the host
    for number, line in enumerate(after):
        assert line.strip() in ("", before[number].strip(), "}") or line.startswith(deleted)
    kept = part.text
    for word in ("scale", "square", "table", "struct __align__(8) Pair", "const int N", "#else", "using namespace std"):
        assert word in kept
    dropped = {d.name.split("<")[0] for d in part.dropped}
    functions = {"host_helper", "launch", "run", "foo", "bar", "single", "c_api", "main", "Params", "start"}
    assert dropped == {"h_a", "host_data", *functions}


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("__device__ int counter;", True),
        ("static __device__ __noinline__ float f(float x) { return x; }", True),
        ("constexpr int square(int x) { return x * x; }", True),
        ("template <int N> struct S { enum { value = N }; };", True),
        ("typedef float real;", True),
        ("using real = float;", True),
        ("enum class E { A, B };", True),
        ("extern __constant__ float c[];", True),
        ("template __global__ void k<float>(float*);", True),
        ("MY_KERNEL void k2(int* p) { *p = 1; }", True),
        ("int helper(int a) { return a; }", False),
        ("static int* pointer = nullptr;", False),
        ("void declared(float*, int);", False),
        ("template <typename T> T twice(T x) { return x + x; }", False),
        ("template int twice<int>(int);", False),
        ('extern "C" int entry() { return 0; }', False),
        ("Timer::Timer() { start(); }", False),
        ("REGISTER(scale, 3)", False),
    ],
)
def test_pieces(line, stays):
    macros = "#define MY_KERNEL __global__\n#define REGISTER(f, n) void f##_op() { call(f, n); }\n"
    text = f"{macros}template <typename T> __global__ void k(T* p) {{}}\n{line}\n"
    assert (line in device_part(text).text) == stays


COMMENTED = {
    "line": "__global__ // a kernel\nvoid k1(float* x) { x[0] = 1; }",
    "continued": "__global__ // a kernel \\\n whose comment goes on\nvoid k1(float* x) { x[0] = 1; }",
    "extern C": 'extern "C" {\n__global__ /* { */ void k1(float* x) { x[0] = 1; }\n}',
    "namespace": "namespace n { __constant__ /* t */ float t[2]; __global__ /**/ void k1(float* x) { x[0] = t[1]; } }",
    "member": "struct A { int v; __host__ __device__ /* // */ int get() const { return v; } };\n"
    "__global__ void k1(A a, int* x) { x[0] = a.get() + 1'000'000; } // it's",
    "string": "__device__ const char* s = \"/*\"; __global__ void k1(char* x) { x[0] = s[0] + '\"'; } // \"*/",
}


@pytest.mark.parametrize("text", COMMENTED.values(), ids=COMMENTED.keys())
def test_comments_may_stand_after_specifiers(text):
    image = compile_source(f"{text}\n{KERNEL}int main() {{ k<<<1, 1>>>(nullptr); }}\n", target="sm_90a", name="k.cu")
    assert image.entry("k1") and image.entry("k")
    assert image.log == "k.cu: note: left out as host code: 1 function"


KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"
HARD = {
    "crlf": f"#include <iostream>\r\n{KERNEL}int main() {{\r\n return 0; }}\r\n",
    "utf8": f'// größe\nconst char* s = "}}{{ü";\n{KERNEL}// ü\nint main() {{ puts("{{ü"); }}\n',
    "if0": f"#if 0\nthis is }} garbage {{\n#endif\n{KERNEL}int main() {{}}\n",
    "lines": "__global__\nvoid\n__launch_bounds__(256, 2)\nk(float* x)\n{ x[0] = 1; }\nint main() {}\n",
    "raw": f'#include <string>\nconst std::string s = R"(__global__ void f() {{ )";\n{KERNEL}int main() {{}}\n',
    "macros": "#define K(f, op) __global__ void f(float* x) { x[0] = x[0] op 1; }\nK(a, +)\nK(b, *)\nint main() {}\n",
    "class": f"#include <vector>\nstruct H {{ std::vector<int> v; H(int n) : v(n) {{}} }};\n{KERNEL}int main() {{ H h(3); }}\n",
    "thrust": f"#include <thrust/device_vector.h>\n{KERNEL}int main() {{ thrust::device_vector<int> v(9); }}\n",
    "cub": "#include <cub/cub.cuh>\n__global__ void k(int* x) {\n    typedef cub::BlockReduce<int, 128> Reduce;\n"
    "    __shared__ typename Reduce::TempStorage storage;\n    int s = Reduce(storage).Sum(x[threadIdx.x]);\n"
    "    if (!threadIdx.x) x[0] = s;\n}\nint main() {}\n",
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_programs_that_are_hard_to_parse(text):
    image = compile_source(text, target="sm_90a", name="k.cu")
    assert image.functions and "left out as host code" in image.log


def test_host_code_of_own_headers_is_left_out_too(tmp_path):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "common.h").write_text(
        "#include <string>\n#define DEV __device__ inline\n"
        "inline std::string name() { return std::string(); }\nDEV float half_of(float x) { return x / 2; }\n"
    )
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "k.cu"
    source.write_text(
        '#include "common.h"\nDEV float f(float x) { return half_of(x); }\n'
        "__global__ void k(float* y) { *y = f(*y); }\nint main() { k<<<1, 1>>>(0); }\n"
    )
    image = compile_source(source, target="sm_90a")
    assert list(image.functions) and "left out as host code" in image.log


def test_names_of_missing_headers_come_from_the_cuda_headers():
    text = (
        "#include <torch/extension.h>\n__global__ void k(half* x, __nv_bfloat16* y, uint32_t n) {\n"
        "    if (n) y[0] = __float2bfloat16(__half2float(x[0]));\n}\n"
    )
    assert list(compile_source(text + "int main() {}\n", target="sm_90a").functions)


def test_an_error_in_device_code_is_reported_with_its_line():
    text = (
        "#include <iostream>\nint main() { return 0; }\n__global__ void k(float* x) {\n    x[0] = undefined_thing;\n}\n"
    )
    with pytest.raises(CompileError, match=r"k\.cu:4.*undefined_thing"):
        compile_source(text, target="sm_90a", name="k.cu")


def test_a_missing_header_for_device_code_is_named_with_its_wheel(monkeypatch):
    monkeypatch.setattr(toolkit, "headers", lambda found=toolkit.headers()[:2]: found)  # without the wheel of cuRAND
    text = "#include <curand_kernel.h>\n__global__ void k(curandState* s) { curand_init(1, 0, 0, s); }\nint main() {}\n"
    with pytest.raises(CompileError, match=r"curand_kernel\.h.*pip install nvidia-curand"):
        compile_source(text, target="sm_90a")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("#include <curand_kernel.h>\n__global__ void k() {}\n", "pip install nvidia-curand"),
        ("#include <crt/no_such_header.h>\n__global__ void k() {}\n", "pip install nvidia-cuda-crt"),
        ("__global__ void c() {}\n__global__ void k() { c<<<1, 1>>>(); }\n", "launch the kernel from the host"),
    ],
)
def test_an_error_says_what_to_do_without_the_device_runtime_and_wheels(text, fix, monkeypatch):
    monkeypatch.setattr(toolkit, "headers", lambda found=toolkit.headers()[:2]: found)  # without the wheel of cuRAND
    with pytest.raises(CompileError, match=fix):
        compile_source(text, target="sm_90a")


def test_a_header_that_is_only_missing_is_an_error():
    with pytest.raises(CompileError, match="nowhere"):
        compile_source('#include "nowhere.cuh"\n__global__ void k(float* x) { x[0] = 1; }\n', target="sm_90a")


def test_a_source_without_host_code_is_compiled_as_it_is():
    text = "__global__ void k(float* x) { x[0] = 1; }\n"
    image = compile_source(text, target="sm_90a")
    assert "left out" not in image.log
    with pytest.raises(CompileError, match="identifier"):
        compile_source("__global__ void k(float* x) { x[0] = y; }\n", target="sm_90a")


def test_a_marked_lambda_alone_is_no_host_code_and_keeps_its_line():
    text = "__global__ void k(float* x) {\n    auto f = [] __device__ (float v) { return 2 * v; };\n    *x = f(*x);\n}\n"
    image = compile_source(text, target="sm_90a", name="k.cu")
    assert not image.left_out
    with pytest.raises(CompileError, match=r"k.cu:2:\d+: error: .*absent"):
        compile_source(text.replace("2 * v", "absent"), target="sm_90a", name="k.cu")


def test_headers_of_nvtx_are_left_out_where_they_are_installed(tmp_path, monkeypatch):
    (tmp_path / "nvtx3").mkdir()
    (tmp_path / "nvtx3" / "nvToolsExtCudaRt.h").write_text("#include <dlfcn.h>\n")
    own = [*toolkit.headers(), toolkit.Tool("CUDA headers", tmp_path, "13.0")]
    monkeypatch.setattr(toolkit, "headers", lambda: own)
    text = "#include <nvtx3/nvToolsExtCudaRt.h>\n__global__ void k(int* x) { *x = 1; }\nint main() { nvtxRangePop(); }\n"
    assert compile_source(text, target="sm_90a", name="k.cu").left_out == "1 include, 1 function"


LAUNCHED = """template <typename T> struct Max { __device__ T operator()(T a, T b) const { return a > b ? a : b; } };
__device__ int next(int v) { return v + 1; }
template <typename T, template <typename> class Op> __global__ void fold(T* x) { x[0] = Op<T>()(x[0], x[1]); }
template <auto F> __global__ void apply(int* x) { x[0] = F(x[0]); }
template <int N> __global__ void fill(int* x) { x[0] = N; }
template <typename T> void forward(T* x) { fold<T, Max><<<1, 1>>>(x); }
#define TILE 16
enum Plain { P0, P1 };
namespace n {
enum class Mode { slow, fast };
constexpr int WIDTH = 8;
template <Mode M, int N> __global__ void run(int* x) { x[0] = int(M) + N; }
void launch() { run<Mode::fast, 2 * WIDTH><<<1, 1>>>(nullptr); run<Mode::slow, sizeof(int)><<<1, 1>>>(nullptr); }
}
"""
OF_THE_NAMESPACE = {"n::run<n::Mode::fast, 2 * n::WIDTH>", "n::run<n::Mode::slow, sizeof(int)>"}


@pytest.mark.parametrize(
    ("launch", "instances"),
    [
        ("fold<float, Max><<<1, 1>>>(nullptr); apply<next><<<1, 1>>>(nullptr);", {"fold<float, Max>", "apply<next>"}),
        ("(fill<3>)<<<1, 1>>>(nullptr); (fill<(4)>)<<<1, 1>>>(nullptr);", {"fill<3>", "fill<(4)>"}),
        ("const int next = 3; fill<next><<<1, 1>>>(nullptr); fill<5><<<1, 1>>>(nullptr);", {"fill<5>"}),  # hides the function
        ("forward<float>(nullptr);", set()),
        ("fill<P1><<<1, 1>>>(nullptr); fill<TILE / 2><<<1, 1>>>(nullptr);", {"fill<P1>", "fill<16 / 2>"}),
        ("fill<n::WIDTH><<<1, 1>>>(nullptr); fill<-n::WIDTH><<<1, 1>>>(nullptr);", {"fill<n::WIDTH>", "fill<-n::WIDTH>"}),
        ("fold<Max<int>, Max><<<1, 1>>>(nullptr); fill<5><<<1, 1>>>(nullptr);", {"fill<5>"}),  # it does not compile
        ("const int local = 3; fill<2 * local><<<1, 1>>>(nullptr); fill<n::none><<<1, 1>>>(nullptr);", set()),
    ],
)
def test_templates_are_instantiated_as_host_code_launches_them(launch, instances):
    image = compile_source(f"{LAUNCHED}int main() {{ {launch} }}\n", target="sm_90a")
    assert set(image.names) - OF_THE_NAMESPACE == instances
    if "Max<int>" not in launch and "const int" not in launch:
        assert set(image.names) >= OF_THE_NAMESPACE
