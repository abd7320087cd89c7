"""The command lines that `ptxkit run FILE` proposes for a program: as its host code launches the kernels, if that is known."""

from __future__ import annotations

import shlex

import pytest

from ptxkit.source_run.entries import compile_file

PROGRAM = """#include <cstdio>
#define CHECK(x) do { if (x) exit(1); } while (0)
struct Point { float x, y; int id; };
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + (b ? b[i] : 1.f);
}
__global__ void move(Point* p, float4* v, float step, bool back) {
    extern __shared__ float buffer[];
    int i = threadIdx.y * blockDim.x + threadIdx.x;
    buffer[i] = step;
    p[i].x += back ? -buffer[i] : v[i].w;
}
__global__ void unknown(Point* p, const float4* v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { p[i].id = i; p[i].y = v[i].z; }
}
int main(int argc, char** argv) {
    const int n = 1000;
    size_t bytes = n * sizeof(float);
    float *a, *c; Point* p; float4* v;
    CHECK(cudaMalloc((void**)&a, bytes));
    CHECK(cudaMalloc(&c, bytes));
    cudaMalloc(&p, 64 * sizeof(Point));
    cudaMallocManaged(&v, 64 * sizeof(float4));
    int block = 128, grid = (n + block - 1) / block;
    add<<<grid, block>>>(a, nullptr, c, n);
    dim3 threads(16, 4);
    move<<<1, threads, 64 * sizeof(float)>>>(p, v, 0.5f, true);
    unknown<<<4, 256>>>(p, v, atoi(argv[1]));
}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.cu"
    path.write_text(PROGRAM)
    return compile_file(path, None)


def commands(file):
    return {entry.name: shlex.split(file.command(entry))[3:] for entry in file.entries}


def test_the_host_codes_launch_is_the_example(file):
    found = commands(file)
    assert " ".join(found["add"]) == (
        "--arg a=float32[1000]:uniform --arg b=null --arg c=float32[1000]:zeros --arg n=1000 --grid 8 --block 128"
    )
    assert " ".join(found["move"]) == (  # a Point has at most 16 bytes, the largest distance of elements
        "--arg p=float32[256]:zeros --arg v=float32[256]:zeros --arg step=0.5 --arg back=true --grid 1 --block 16,4 "
        "--shared 256"
    )


def test_a_launch_that_is_not_known_is_shown_and_the_example_is_large_enough(file):
    """The elements are as large as the kernel's addresses say, and vectors have several numbers."""
    entry = file.entry("unknown")
    launch = file.launch(entry)
    assert launch.values is None and launch.shown == "unknown<<<4, 256>>>(p, v, atoi(argv[1]))" and launch.line == 30
    assert " ".join(commands(file)["unknown"]) == (
        "--arg p=float32[4096]:zeros --arg v=float32[4096]:uniform --arg n=1024 --grid 4 --block 256"
    )
    assert file.has_main


def test_the_block_and_the_shared_memory_of_a_launch_are_proposed_also_where_its_arguments_are_not_known(tmp_path):
    """A kernel is often written for one block: its shared memory has room for no other."""
    path = tmp_path / "k.cu"
    path.write_text(
        "__global__ void k(float* y, int n) { extern __shared__ float s[]; s[threadIdx.x] = n; y[0] = s[0]; }\n"
        "int main(int argc, char** argv) { float* y; k<<<9, dim3(8, 4), 32 * sizeof(float)>>>(y, atoi(argv[1])); }"
    )
    (found,) = commands(compile_file(path, None)).values()
    assert " ".join(found) == "--arg y=float32[1024]:zeros --arg n=1024 --grid 32 --block 8,4 --shared 128"


def test_given_arguments_are_not_mixed_with_those_of_the_host_code(file):
    entry = file.entry("add")
    assert "--arg n=7" in file.command(entry, ["n=7"]) and "1000" not in file.command(entry, ["n=7"])


@pytest.mark.parametrize(
    ("attributes", "launch"),
    [
        ("", "--grid 4 --block 256"),
        ("__launch_bounds__(96)", "--grid 10 --block 96"),  # at most one thread for each of 1024 elements
        ("__block_size__((64, 2, 1))", "--grid 8"),
        ("__cluster_dims__(8, 1, 1)", "--grid 8 --block 128"),
        ("__cluster_dims__(1, 3, 1)", "--grid 1,3 --block 256"),
    ],
)
def test_the_proposed_launch_respects_the_bounds_of_the_kernel(attributes, launch, tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(f"__global__ void {attributes} k(int* y) {{ y[0] = 1; }}")
    (found,) = commands(compile_file(path, None)).values()
    assert " ".join(found) == f"--arg y=int32[1024]:zeros {launch}"


@pytest.mark.parametrize(
    ("parameters", "values"),
    [
        ("int n", "1024"),
        ("int rows, int cols", "16"),  # 4 * 16 * 16 elements
        ("int b, int t, long c, unsigned char flags", "4"),
        ("int b, int t, int h, int d, int m, int n, int o, int p, int q", "1"),
    ],
)
def test_arrays_have_room_for_the_product_of_the_sizes_of_an_example(parameters, values, tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(f"__global__ void k(const int* x, float* y, {parameters}) {{ y[x[0]] = 1; }}")
    entry = compile_file(path, None).entry("k")
    first, *sizes = (entry.example(p).partition("=")[2] for p in entry.parameters if p.name not in ("y", "flags"))
    assert first == f"int32[1024]:integers({values})"  # indices within the sizes
    assert set(sizes) == {values}


def test_a_kernel_with_dynamic_shared_memory_is_given_some(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(
        "__device__ float f(int i) { extern __shared__ float s[]; s[i] = i; __syncwarp(); return s[0]; }\n"
        "__global__ void a(float* y) { y[0] = f(threadIdx.x); }\n__global__ void b(float* y) { y[0] = 1; }"
    )
    found = commands(compile_file(path, None))
    assert found["a"][-2:] == ["--shared", "4096"] and "--shared" not in found["b"]
