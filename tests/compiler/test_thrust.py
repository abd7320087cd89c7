"""Thrust's algorithms in device code: one thread executes them, and the results are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler import toolkit
from ptxkit.compiler.host_code import thrust
from ptxkit.compiler.host_code.compile import extracted
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.compiler.request import request
from ptxkit.errors import CompileError

pytestmark = pytest.mark.skipif(
    all(tool.name != "CCCL headers" for tool in toolkit.headers()), reason="the headers of CCCL are not installed"
)

ROWS = """
#include <iostream>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>
#include <stdexcept>
#include <string>

struct Named {
    std::string name;
    int n;
};

struct Failed : std::exception {
    explicit Failed(std::string const text);
    std::string text;
};

struct Square : public thrust::unary_function<int, int> {
    __host__ __device__ int operator()(int a) const { return a * a; }
};

__global__ void rows(int* values, int* keys, int* out, int n)
{
    static_assert(sizeof(Named) == 40, "std::string has the size that it has in nvcc's host compiler");
    int* value = values + threadIdx.x * n;
    int* key = keys + threadIdx.x * n;
    thrust::stable_sort_by_key(thrust::seq, key, key + n, value);
    out[threadIdx.x * 3] = thrust::reduce(thrust::device, value, value + n, value[0], thrust::maximum<int>());
    out[threadIdx.x * 3 + 1] = thrust::unique(thrust::seq, key, key + n) - key;
    auto squares = thrust::make_transform_iterator(thrust::counting_iterator<int>(0), Square());
    out[threadIdx.x * 3 + 2] = thrust::reduce(thrust::seq, squares, squares + n);
    thrust::inclusive_scan(thrust::seq, value, value + n, value);
}

int main()
{
    thrust::device_vector<int> v(100);
    thrust::sort(v.begin(), v.end());
    std::cout << v[0] << std::endl;
}
"""


def test_algorithms_in_device_code_give_numpys_results(tmp_path):
    (tmp_path / "rows.cu").write_text(ROWS)
    module = ptxkit.compile(tmp_path / "rows.cu", device="emulator")
    rng = np.random.default_rng(0)
    values, keys = (rng.integers(0, high, (8, 12), np.int32) for high in (1000, 5))
    sums, ordered, out = values.copy(), keys.copy(), np.zeros((8, 3), np.int32)
    module["rows"](sums, ordered, out, np.int32(12), grid=1, block=8)
    order = np.argsort(keys, axis=1, kind="stable")
    np.testing.assert_array_equal(sums, np.cumsum(np.take_along_axis(values, order, 1), axis=1))
    distinct = [np.unique(row).size for row in keys]
    np.testing.assert_array_equal(out, np.stack([values.max(1), distinct, [sum(i * i for i in range(12))] * 8], axis=1))


@pytest.mark.parametrize(
    ("use", "needed"),
    [
        ("thrust::tuple<int, int> t(1, 2); x[0] = thrust::get<0>(t);", False),
        ("thrust::sort(thrust::seq, x, x + 9);", True),
        ("using namespace thrust; sort(seq, x, x + 9);", True),
        ("x[0] = 1; // thrust::sort", False),
    ],
)
def test_only_device_code_that_uses_more_than_types_takes_the_other_headers(use, needed):
    text = f"#include <thrust/sort.h>\n__global__ void k(int* x) {{ {use} }}\nint main() {{ thrust::sort(0, 0); }}\n"
    found = extracted(request(text, "sm_90a", "k.cu", {}, (), (), (), True, None))
    assert thrust.is_needed(found.part) is needed


def test_the_users_choice_of_a_system_stays():
    assert "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP" in thrust.options([])
    assert thrust.options(["-DTHRUST_DEVICE_SYSTEM=2"]) == ["-default-device"]


def test_containers_are_for_hosts():
    text = "#include <thrust/device_vector.h>\n__global__ void k() { thrust::device_vector<int> v(9); }\n"
    with pytest.raises(CompileError, match="thrust::device_vector are for host code"):
        compile_source(text, target="sm_90a")
