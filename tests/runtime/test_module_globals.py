"""``module.globals``: variables of a module, read and written by name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ptxkit
from ptxkit.errors import UsageError

NUMBERS = itertools.count()

SOURCE = """
struct Pair { int first; float second; };
__device__ int table[2][4];
__constant__ float factors[4] = {1, 2, 3, 4};
__device__ double scalar = 3.5;
__device__ Pair pair = {7, 0.5f};
namespace one { __device__ int shared_name = 1; __device__ int own = 11; }
namespace two { __device__ int shared_name = 2; }
extern "C" __global__ void k(float* y) {
    int i = threadIdx.x;
    y[i] = table[1][i] * factors[i] + (float)scalar + pair.first + pair.second + one::shared_name + two::shared_name + one::own;
    table[0][i] = 10 * i;
}
"""


@pytest.fixture
def module(device):
    # a text of its own for each test: the device keeps a module and the values of its variables
    return ptxkit.compile(f"{SOURCE}// {next(NUMBERS)}\n", device=device)


def test_variables_have_their_initial_values(module):
    assert module.globals["scalar"].numpy() == 3.5 and module.globals["scalar"].shape == ()
    assert module.globals["factors"].view(np.float32).numpy().tolist() == [1, 2, 3, 4]
    assert module.globals["table"].nbytes == 32
    pair = module.globals["pair"].view([("first", "i4"), ("second", "f4")], ()).numpy()
    assert (pair["first"], pair["second"]) == (7, 0.5)


def test_what_is_written_the_kernel_reads_and_back(module):
    table = module.globals["table"].view(np.int32, (2, 4))
    table.copy_from(np.arange(8, dtype=np.int32).reshape(2, 4))
    module.globals["factors"] = np.full(4, 2, np.float32)
    module.globals["scalar"] = 100
    module.globals["one::shared_name"].copy_from(np.int32(1000))
    y = np.zeros(4, np.float32)
    module["k"](y, grid=1, block=4)
    np.testing.assert_array_equal(y, np.arange(4, 8) * 2 + 100 + 7.5 + 1000 + 2 + 11)
    np.testing.assert_array_equal(table.numpy(), [[0, 10, 20, 30], [4, 5, 6, 7]])


def test_a_variable_outlives_the_names_of_its_module(device):
    table = ptxkit.compile(SOURCE + "// kept\n", device=device).globals["own"]
    assert table.numpy() == 11


def test_names(module):
    assert module.globals["own"].numpy() == module.globals["one::own"].numpy() == 11
    assert module.globals["two::shared_name"].numpy() == 2
    assert "table" in module.globals and "tabel" not in module.globals and 3 not in module.globals
    assert len(list(module.globals)) == len(module.globals) == 7
    assert all(name in module.globals for name in module.globals)


def test_a_wrong_name_is_refused(module):
    with pytest.raises(UsageError, match="there is no variable 'tabel' .*; did you mean 'table'"):
        module.globals["tabel"]
    with pytest.raises(
        UsageError, match="several variables are called 'shared_name': one::shared_name, two::shared_name"
    ):
        module.globals["shared_name"]
    with pytest.raises(UsageError, match="there is no variable 'xyzzy'.*it has: table, factors"):
        module.globals["xyzzy"]


def test_a_value_of_another_size_is_refused(module):
    with pytest.raises(UsageError, match="4 bytes do not fill"):
        module.globals["scalar"].copy_from(np.float32(1))


def test_freeing_a_variable_leaves_it(module):
    module.globals["own"].free()
    assert module.globals["own"].numpy() == 11


def test_what_does_not_fit_a_variable_is_refused(module):
    for name, value, message in (
        ("factors", np.zeros(3, np.float32), "12 bytes do not fill"),
        ("factors", 3, "bytes do not fill"),
        ("missing", 3, "there is no variable 'missing'"),
    ):
        with pytest.raises(UsageError, match=message):
            module.globals[name] = value


def test_the_namespaces_of_inline_and_static_names():
    source = """namespace lib { namespace detail { static __device__ int total = 3; template <int N> __device__ int of = N; }
    inline namespace v2 { __global__ void add(int* y) { *y = detail::total += detail::of<4> + detail::of<5>; } } }"""
    module = ptxkit.compile(source, device="emulator")
    module["lib::add"](y := np.zeros(1, np.int32), grid=1, block=1)
    assert y[0] == module.globals["lib::detail::total"].numpy() == 12
    with pytest.raises(UsageError, match="several variables are called 'of': _ZN3lib6detail2ofILi4EEE, "):
        module.globals["of"]
