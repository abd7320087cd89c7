"""A user's description at the sizes of a call: values, derived dimensions, types, and arrays without elements."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt
from ptxkit.errors import DescriptionError, UsageError

SOURCE = """
__global__ void add(const int* a, int* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = a[i] + 1;
}
__global__ void times(const float* a, float* out, float by, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = a[i] * by;
}
__global__ void sum(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = a[i] + (i < n / 2 ? b[i] : 0.0f);
}
"""
DESCRIPTION = '''
import numpy as np
from ptxkit import Launch, Work, Workload, cdiv, uniform, variant


class Sized(Workload):
    """For tests of sizes."""

    source = "kernels.cu"
    n: int = 4096
    {fields}

    def inputs(self, rng):
        return {{{inputs}}}

    def reference(self, a, **others):
        return {{"out": {reference}}}

    {outputs}

    def work(self):
        return Work(flops=0, bytes=8 * self.n)

    @variant
    def simple(self):
        count = {count}
        return [Launch("{kernel}", cdiv(count, 64), 64, {args})]
'''
TIMES = {"kernel": "times", "inputs": '"a": uniform(rng, self.n)', "args": '("a", "out", np.float32(2), count)'}


@pytest.fixture
def described(tmp_path):
    (tmp_path / "kernels.cu").write_text(SOURCE)

    def made(**parts):
        shape = parts.pop("shape", "self.n")
        declared = f'def outputs(self): return {{"out": ({shape}, "f32")}}' if shape else ""
        values = {"fields": "", "reference": "a.astype(np.float64)", "outputs": declared, "count": "self.n"} | parts
        (tmp_path / "sized.py").write_text(DESCRIPTION.format(**values))
        return pt.operation(tmp_path / "sized.py")

    return made


def test_a_value_is_that_of_the_sizes_of_the_call(described):
    times = described(
        kernel="times",
        inputs='"a": uniform(rng, self.n), "by": np.float32(1 / self.n)',
        args='("a", "out", "by", self.n)',
    )
    for n in (100, 8):
        assert torch.allclose(times(torch.ones(n)), torch.full((n,), 1 / n))


def test_a_value_depends_on_sizes_that_are_keywords(described):
    times = described(
        kernel="times",
        fields="m: int = 12",
        inputs='"a": uniform(rng, self.n), "by": np.float32(self.m)',
        args='("a", "out", "by", self.n)',
    )
    assert torch.equal(times(torch.ones(5), m=3), torch.full((5,), 3.0))


def test_a_dimension_that_equals_a_size_for_small_sizes_only(described):
    shape = {"shape": "min(self.n, 64)", "count": "min(self.n, 64)"}
    first = described(**TIMES, **shape, reference="a[:64].astype(np.float64)")
    a = torch.randn(100)
    assert torch.equal(first(a), 2 * a[:64])


def test_a_dimension_that_differs_at_the_sizes_of_the_call_alone(described):
    shape = {"shape": "min(self.n, 5000)", "count": "min(self.n, 5000)"}
    first = described(**TIMES, **shape, reference="a[:5000].astype(np.float64)")
    with pytest.raises(DescriptionError, match=r"output out has the shape \(5000,\) for n=6000, but \(6000,\) follows"):
        first(torch.randn(6000))


def test_integers_are_elements_too(described):
    add = described(
        kernel="add",
        inputs='"a": rng.integers(0, 9, self.n).astype(np.int32)',
        args='("a", "out", count)',
        shape="",
        reference="a + 1",
    )
    a = torch.arange(5, dtype=torch.int32)
    assert torch.equal(add(a), a + 1)


def test_a_size_of_outputs_alone_is_a_keyword(described):
    first = described(**TIMES, fields="m: int = 12", shape="self.m", count="self.m", reference="a[: self.m] * 1.0")
    a = torch.randn(20)
    assert torch.equal(first(a, m=3), 2 * a[:3])
    with pytest.raises(UsageError, match=r"the output out has the shape \(3,\), but its kernel cannot be launched"):
        first(a[:0], m=3)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_derived_dimension_may_be_0(described, n):
    half = described(**TIMES, shape="self.n // 2", count="self.n // 2", reference="a[: self.n // 2] * 1.0")
    a = torch.randn(n)
    assert torch.equal(half(a), 2 * a[: n // 2])


def test_a_derived_dimension_of_an_output_must_be_declared(described):
    with pytest.raises(DescriptionError, match=r"a dimension of the output out is no size.*declare outputs\(\)"):
        described(**TIMES, shape="", count="self.n // 2", reference="a[: self.n // 2] * 1.0")


def test_derived_inputs_without_elements_are_compared(described):
    both = '"a": uniform(rng, self.n), "b": uniform(rng, self.n // 2)'
    add = described(kernel="sum", inputs=both, args='("a", "b", "out", self.n)')
    with pytest.raises(UsageError, match=r"b has the shape \(0,\), but must be \(2,\) for n=5"):
        add(torch.randn(5), torch.randn(0))
    assert add(torch.ones(1), torch.ones(0)) == 1
    assert add(torch.ones(0), torch.ones(0)).shape == (0,)


@pytest.mark.parametrize("name", ["inline_ptx", "matmul_block_scaled", "moe_routed"])
def test_bundled_kernels_of_several_types(name):
    assert pt.operation(name).operation.schema


@pytest.mark.parametrize("value", [2**40, 10**30, -(10**30)])
def test_an_integer_that_a_kernel_cannot_take(described, value):
    times = described(
        kernel="times",
        inputs='"a": uniform(rng, self.n), "by": np.int32(3)',
        args='("a", "out", np.float32(1), self.n)',
    )
    with pytest.raises(UsageError, match="sized: .*by must be (representable in int32|at most 9.22337e.18)"):
        times(torch.ones(4), by=value)
