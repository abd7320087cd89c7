"""Classes with members of types of the host, of which device code uses the rest."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler.host_code.opaque_types import CLASSES, TEMPLATES, opaque_types
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import CompileError

SOLVER = """#include <iostream>
#include <map>
#include <string>
#include <vector>
class Solver {
    std::string name;
    std::vector<int> sizes;
    std::map<std::string, std::vector<float>> named;
public:
    int last;
    explicit Solver(int n) : sizes(n), last(n) { std::cout << name; }
    struct View { int* p; __device__ int& operator[](int i) { return p[i]; } };
    static __device__ int twice(int v) { return 2 * v; }
    static constexpr int OFFSET = 3;
};
class Failure : public std::runtime_error {
public:
    explicit Failure(const std::string& what) : std::runtime_error(what) {}
};
__global__ void k(int* values, int* sizes, const Solver* solver) {
    Solver::View v{values};
    v[threadIdx.x] = Solver::twice(v[threadIdx.x]) + Solver::OFFSET;
    sizes[0] = sizeof(Solver);
    sizes[1] = int((const char*)&solver->last - (const char*)solver);
}
int main() { Solver solver(3); throw Failure("no"); }
"""


def test_the_rest_of_a_class_with_members_of_the_host_is_device_code(tmp_path):
    (tmp_path / "solver.cu").write_text(SOLVER)
    module = ptxkit.compile(tmp_path / "solver.cu", device="emulator")
    values, sizes = np.arange(32, dtype=np.int32), np.zeros(2, np.int32)
    module["k"](values, sizes, np.zeros(112, np.uint8), grid=1, block=32)
    np.testing.assert_array_equal(values, 2 * np.arange(32) + 3)
    np.testing.assert_array_equal(sizes, [112, 104])  # 32 + 24 + 48 + 4, aligned to 8


@pytest.mark.parametrize("use", ["std::vector<int> other;", "std::string s; s += 'c';", "Solver s;"])
def test_device_code_cannot_make_one(use):
    with pytest.raises(CompileError, match="host"):
        compile_source(SOLVER.replace("sizes[0] = sizeof(Solver);", use), target="sm_90a")


def test_other_template_arguments_have_no_size():
    text = "".join(opaque_types({"map", "vector"}))
    assert "class map<T0, T1> { void* opaque[6];" in text and "class map;" in text
    assert "class vector<bool> { void* opaque[5];" in text


@pytest.mark.skipif(shutil.which("g++") is None, reason="GCC is not installed")
def test_the_sizes_are_those_of_the_host_compiler(tmp_path):
    lines = [f"static_assert(sizeof(std::{name}) == {size});" for name, size in CLASSES.items() if size]
    for name, (count, size) in TEMPLATES.items():
        argument = "void()" if name == "function" else "int"
        if size and name != "basic_string":
            lines.append(f"static_assert(sizeof(std::{name}<{', '.join([argument] * count)}>) == {size});")
    lines.append("static_assert(sizeof(std::basic_string<char>) == 32 && sizeof(std::vector<bool>) == 40);")
    (tmp_path / "sizes.cpp").write_text("\n".join(["#include <bits/stdc++.h>", *lines]) + "\n")
    subprocess.run(["g++", "-std=c++17", "-fsyntax-only", tmp_path / "sizes.cpp"], check=True)


@pytest.mark.parametrize(
    "statement", ["x[0] = INFINITY + M_PI;", "uint n = 3; x[n] = 1;", '__asm__("exit;");']
)
def test_names_that_nvcc_knows_without_an_include_need_no_host_code(statement):
    image = compile_source(f"__global__ void k(float* x) {{ {statement} }}\n", target="sm_90a")
    assert list(image.functions) and not image.left_out
    with pytest.raises(CompileError, match="nowhere") as caught:
        compile_source(f"__global__ void k(float* x) {{ {statement} nowhere(); }}\n", target="sm_90a")
    assert "(and" not in str(caught.value)  # the other names are no errors
