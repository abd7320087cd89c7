"""Descriptions of kernels of existing files, and what is read out of host code."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ptxkit import cli
from ptxkit.bench.measure.run import Run
from ptxkit.errors import DescriptionError
from ptxkit.runtime.device import device
from ptxkit.source_run.host_values import HostText
from ptxkit.workload import registry

SOURCE = """#include <vector>
#define BLOCK 256
template <typename T, int B>
__global__ void squares(const T* x, T* y, float a, int n)
{
    const int i = blockIdx.x * B + threadIdx.x;
    if (i < n) y[i] = a * x[i] * x[i];
}
__global__ void add(float* x, int rows, int cols)
{
    extern __shared__ float s[];
    s[threadIdx.x] = 1;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) x[i] += s[threadIdx.x];
}
int main()
{
    const int n = 1000;
    float *x, *y;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc((void**)&y, sizeof(float) * n);
    squares<float, 256><<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, 2.5f, n);
    int r = 30, c = 1 << 5;
    cudaMemcpy(x, y, 4000, cudaMemcpyDeviceToDevice);
    cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 4096);
    dim3 grid((r * c + 255) / 256), block(BLOCK);
    add<<<grid, block, BLOCK * sizeof(float)>>>(x, r, c);
}
"""


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(args))
    return stopped.value.code


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole.cu").write_text(SOURCE)
    return tmp_path


def made(here, kernel, name="mine"):
    assert exit_of("new", name, "--from", f"whole.cu:{kernel}") == 0
    return (here / f"{name}.py").read_text()


@pytest.mark.parametrize(
    ("kernel", "sizes", "launch"),
    [
        ("squares<float, 256>", {"n": 1000}, ((4, 1, 1), (256, 1, 1), 0)),
        ("add", {"rows": 30, "cols": 32}, ((4, 1, 1), (256, 1, 1), 1024)),
    ],
)
def test_sizes_and_launch_are_those_of_the_host_code(kernel, sizes, launch, here):
    made(here, kernel)
    workload = registry.load_file(here / "mine.py")()
    assert workload.sizes == sizes
    (found,) = workload.variant("original").launches(workload, {})
    assert (found.grid, found.block, found.shared) == launch


def test_arrays_are_inputs_and_outputs_by_constness_and_copies(here):
    made(here, "squares<float, 256>", "my_one")
    made(here, "add", "my_two")
    one, two = (registry.load_file(here / f"{name}.py")() for name in ("my_one", "my_two"))
    inputs = one.inputs(np.random.default_rng(0))
    assert {name: np.shape(value) for name, value in inputs.items()} == {"x": (1000,), "a": ()}
    assert inputs["a"] == np.float32(2.5)
    assert dict(one.outputs()) == {"y": (1000, "float32")}
    assert list(two.inputs(np.random.default_rng(0))) == ["x"] and list(two.outputs()) == ["x"]


def test_the_reference_must_be_filled_in_and_then_the_kernel_is_verified(here, capsys):
    text = made(here, "squares<float, 256>")
    capsys.readouterr()
    assert exit_of("run", "./mine.py", "--device", "emulator") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "mine.py:" in err and "fill in reference(): return {'y': ...}" in err
    head, _, tail = text.partition("        raise NotImplementedError(")
    (here / "mine.py").write_text(
        head + "        return {'y': np.float64(a) * x * x}\n" + tail.partition("        )\n")[2]
    )
    assert exit_of("run", "./mine.py", "--device", "emulator") == 0
    assert "verified" in capsys.readouterr().out


def test_what_is_not_known_is_marked(here):
    (here / "bare.cu").write_text("__global__ void k(float* x, int n, float a) { if (n) x[threadIdx.x] = a; }\n")
    assert exit_of("new", "bare_k", "--from", "bare.cu") == 0
    marked = [line for line in (here / "bare_k.py").read_text().splitlines() if "# TODO" in line]
    for text in ("n: int = 1024", '"a": np.float32(1.0)', '"x": (self.n, "float32")', "grid = ", "block = 256"):
        assert any(text in line for line in marked), text
    assert registry.load_file(here / "bare_k.py")().sizes == {"n": 1024}


@pytest.mark.parametrize(
    "declaration",
    [
        "const __half* in, double* source, unsigned long long self",
        "const bool* lambda_, bool flag, char c",
        "struct P { int a, b; } p, float* __restrict__ x",
        "",
    ],
)
def test_parameters_of_all_kinds_give_a_description_that_loads(declaration, here):
    text = "#include <cuda_fp16.h>\n"
    if "struct" in declaration:
        text += "struct P { int a, b; };\n"
        declaration = declaration.replace("struct P { int a, b; }", "P")
    (here / "k.cu").write_text(f"{text}__global__ void k({declaration}) {{}}\n")
    assert exit_of("new", "mine", "--from", "k.cu") == 0
    workload = registry.load_file(here / "mine.py")()
    assert Run(workload, device("emulator")).launches()
    with pytest.raises(DescriptionError, match="fill in reference"):
        workload.reference(**workload.inputs(np.random.default_rng(0)))


@pytest.mark.parametrize(("cluster", "grid"), [("8, 1, 1", (8, 1, 1)), ("1, 3, 1", (1, 3, 1))])
def test_the_grid_of_a_kernel_with_clusters_has_whole_clusters(cluster, grid, here, capsys):
    (here / "k.cu").write_text(f"__global__ void __cluster_dims__({cluster}) k(float* x, int n) {{ if (n > 9) x[0] = n; }}\n")
    assert exit_of("new", "mine", "--from", "k.cu") == 0
    assert exit_of("run", "./mine.py", "5", "--dry-run", "--json") == 0
    (variant,) = json.loads(capsys.readouterr().out.partition("mine.py\n")[2])["variants"]
    assert tuple(variant["launches"][0]["grid"]) == grid


def test_a_kernel_of_ptx_has_a_description(here):
    (here / "k.ptx").write_text(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u32 n) { ret; }\n"
    )
    assert exit_of("new", "of_ptx", "--from", "k.ptx") == 0
    assert registry.load_file(here / "of_ptx.py")().source == "k.ptx"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (
            ("--from", "whole.cu"),
            2,
            "whole.cu has 2 kernels: add, squares<float, 256>; name one: --from 'whole.cu:add'",
        ),
        (("--from", "whole.cu:ad"), 2, "no kernel 'ad'"),
        (("--from", "absent.cu"), 2, "no file absent.cu"),
        (("--from", "saxpy"), 2, "--from takes a .cu or .ptx file"),
        (("--from", "whole.cu:add", "--expression", "x + y"), 2, "give one of them"),
        (("--from", "whole.cu:add", "--column", "x"), 2, "only with --expression"),
        (("--from", "bad.cu"), 4, "bad.cu:1"),
        (("--from", "texture.cu"), 2, "texture"),
    ],
)
def test_bad_input_is_reported_and_leaves_no_file(args, code, message, here, capsys):
    (here / "bad.cu").write_text("__global__ void k() { nothing }\n")
    (here / "texture.cu").write_text(
        "__global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex1Dfetch<float>(t, 0); }\n"
    )
    assert exit_of("new", "mine", *args) == code
    assert message in capsys.readouterr().err
    assert not (here / "mine.py").exists()


def test_an_existing_description_is_not_overwritten(here, capsys):
    (here / "mine.py").write_text("precious")
    assert exit_of("new", "mine", "--from", "whole.cu:add") == 2
    assert "exists already" in capsys.readouterr().err and (here / "mine.py").read_text() == "precious"


# host code

HOST = """#define TILE 16
#define SIZE (4 * TILE)
const int m = SIZE, k = 7;
int n = 3;
dim3 threads(TILE, TILE, 2);
dim3 blocks = dim3(n / threads.x, 1);
n = 5;
int late = f(n);
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12", "12"),
        ("0x10u", "16"),
        ("010", "8"),
        ("(int)TILE", "16"),
        ("static_cast<int>(k) + 1", "7 + 1"),
        ("m", "4 * 16"),
        ("n", "3"),
        ("threads.y * threads.z", "16 * 2"),
        ("n * sizeof(double)", "3 * 8"),
        ("1 << 10", "1 << 10"),
        ("1'000", "1000"),
        ("size * 2", "self.size * 2"),
        ("late", ""),
        ("f(3)", ""),
        ("unknown + 1", ""),
        ("a ? b : c", ""),
        ("", ""),
        ("1 +", ""),
    ],
)
def test_numbers_of_host_code(expression, value):
    assert HostText.of(HOST, {"size": "self.size"}).value(expression, 6) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("dim3(2, 3)", "(2, 3)"),
        ("dim3(TILE)", "16"),
        ("{1, 2, 3}", "(1, 2, 3)"),
        ("threads", "(16, 16, 2)"),
        ("blocks", "(3 // 16, 1)"),
        ("256", "256"),
        ("dim3(unknown, 1)", ""),
        ("dim3(1, 2, 3, 4)", ""),
    ],
)
def test_extents_of_host_code(expression, value):
    assert HostText.of(HOST).extent(expression, 6) == value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("int n = 3; n = 5;", ""),
        ("int n = 3; n *= 2;", ""),
        ("int n = 3; n++;", ""),
        ('int n = 3; scanf("%d", &n);', ""),
        ("int n = 3; std::cin >> n;", ""),
        ("int n = 3; } void g(float* x, int n) {", ""),  # another variable
        ("int n = 3; if (argc > 1) n = atoi(argv[1]);", "3"),  # without arguments
        ("for (int n = 3; n < 9; n *= 2) {", "3"),  # in the first iteration
        ("int n = 3; s.n = 5; p->n = 6; m = n; f(n == 5);", "3"),
    ],
)
def test_a_variable_that_changes_before_the_launch_has_no_value(code, value):
    assert HostText.of(f"{code}\nk<<<n, 1>>>();\nn = 7;").value("n", 2) == value


@pytest.mark.parametrize("change", ["b.y = 4;", "b = dim3(7);", "b.x *= 2;"])
def test_a_block_that_changes_before_the_launch_has_no_value(change):
    host = HostText.of(f"dim3 b(32, 2);\nif (b.x == 32) f(a.b.x = 3);\n{change}\nk<<<1, b>>>();")
    assert (host.extent("b", 2), host.extent("b", 4)) == ("(32, 2)", "")


@pytest.mark.parametrize("size", ["sizeof(*y)", "sizeof *y", "sizeof(y[0])"])
def test_the_size_of_an_element_is_that_of_the_type_of_the_pointer(size):
    assert HostText.of("void f(int y); double *x, *y; z = 2 * x;").value(f"3 * {size}") == "3 * 8"


def test_definitions_that_refer_to_themselves_have_no_value():
    assert HostText.of("int a = b; int b = a;").value("a") == ""


def test_the_last_definition_before_the_launch_counts():
    text = HostText.of("int n = 1;\nk<<<n, 1>>>();\n}\nvoid g() { int n = 2;\nk<<<n, 1>>>();")
    assert [text.value("n", line) for line in (2, 5)] == ["1", "2"]
