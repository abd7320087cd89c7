"""Several CUDA sources linked into one image."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler.link import link_sources
from ptxkit.errors import CompileError, UsageError

USER = """
extern __device__ float f(float);
extern __device__ float table[4];
template <class T> __global__ void one(T* x) { x[0] = T(f(3)); }
__global__ void k(float* x) { x[threadIdx.x] = f(x[threadIdx.x]) + table[1]; }
"""
DEFINING = """
#include <iostream>
__device__ float table[4] = {1, 2, 3, 4};
__device__ float f(float x) { return 2 * x; }
static __global__ void hidden(float* x) { x[0] = 5; }
__global__ void second(float* x) { x[0] = f(1); }
int main() { std::cout << 1; }
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("user.cu", USER), ("defining.cu", DEFINING)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_kernel_uses_a_function_and_a_variable_of_another_source(here):
    module = ptxkit.compile(["user.cu", "defining.cu"], device="emulator")
    x = np.arange(4, dtype=np.float32)
    module["k"](x, grid=1, block=4)
    assert x.tolist() == [2, 4, 6, 8]
    module["second"](x, grid=1, block=1)
    assert x[0] == 2


def test_templates_are_instantiated_in_the_source_that_defines_them(here):
    module = ptxkit.compile(["defining.cu", "user.cu"], device="emulator", instantiate=["one<int>"])
    x = np.zeros(1, np.int32)
    module["one<int>"](x, grid=1, block=1)
    assert x.tolist() == [6]


def test_texts_can_be_linked_and_macros_hold_for_each():
    texts = ["extern __device__ int g();\n__global__ void k(int* x) { x[0] = g() + N; }", "__device__ int g() { return N; }"]
    module = ptxkit.compile(texts, device="emulator", defines={"N": 7})
    x = np.zeros(1, np.int32)
    module["k"](x, grid=1, block=1)
    assert x.tolist() == [14]


def test_functions_of_the_driver_need_no_definition(capfd):
    texts = [
        '__device__ void say() { printf("%d\\n", 5); }',
        "extern __device__ void say();\n__global__ void k() { assert(threadIdx.x == 0); free(malloc(8)); say(); }",
    ]
    ptxkit.compile(texts, device="emulator")["k"](grid=1, block=1)
    assert capfd.readouterr().out == "5\n"


def test_the_table_of_functions_of_the_driver_is_that_of_the_emulator():
    from ptxkit.emulator.instructions.builtins import BUILTINS
    from ptxkit.isa.specials import DRIVER_FUNCTIONS

    assert set(BUILTINS) == DRIVER_FUNCTIONS


def test_the_image_has_a_cubin_and_names_its_sources(here):
    image = link_sources(["user.cu", "defining.cu"], target="sm_90a")
    assert image.cubin and image.source_name == "user.cu + defining.cu"
    assert [path.rpartition("/")[2] for path in image.sources] == ["user.cu", "defining.cu"]
    assert {image.readable(name) for name in image.functions} >= {"k", "second"}
    assert "left out as host code" in image.log
    assert all(resources.registers for resources in image.functions.values())


def test_a_list_of_one_source_is_that_source(here):
    (here / "alone.ptx").write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n")
    for name in ("defining.cu", "alone.ptx"):
        assert ptxkit.compile([name], device="emulator")


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        (["user.cu", "user.cu"], CompileError, r"user\.cu \(2\): error: k is defined by another source, too"),
        (["user.cu", "other.cu"], CompileError, "no source defines f, table"),
        (["user.cu", "broken.cu"], CompileError, r"broken\.cu:1"),
        (["user.cu", "absent.cu"], UsageError, "cannot read absent.cu"),
        (["user.cu", "p.ptx"], UsageError, "p.ptx cannot be linked"),
        (["user.cu", ".version 8.0\n.target sm_90\n"], UsageError, "PTX text cannot be linked"),
        ([], UsageError, "the list of sources is empty"),
        (["user.cu", 3], UsageError, "not a int"),
    ],
)
def test_errors_name_the_source_and_the_fix(sources, error, message, here):
    (here / "other.cu").write_text("__global__ void other() {}\n")
    (here / "broken.cu").write_text("__global__ void k2() { nothing; }\n")
    with pytest.raises(error, match=message) as raised:
        ptxkit.compile(sources, device="emulator")
    assert "\n" not in str(raised.value)


def test_an_instance_of_no_template_is_refused(here):
    with pytest.raises(UsageError, match="no source names nowhere"):
        ptxkit.compile(["user.cu", "defining.cu"], device="emulator", instantiate=["nowhere<int>"])
