"""A user's description as an operation."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt
from ptxkit.errors import DescriptionError, UsageError

SOURCE = """
template <class T>
__global__ void scaled(const T* a, const float* by, T* out, float factor, int m, int k) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < m * k) out[i] = T(float(a[i]) * by[i % k] * factor);
}
__global__ void scaled_half(const float* a, float* out, int n, int stride) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n / stride) out[i] = a[i * stride];
}
"""
DESCRIPTION = '''
import numpy as np
from ptxkit import Launch, Work, Workload, cdiv, uniform, variant


class Scaled(Workload):
    """Rows times a vector."""

    source = "kernels.cu"
    m: int = 1000
    k: int = 100
    {option}

    def inputs(self, rng):
        return {{"a": uniform(rng, (self.m, self.k)), "by": uniform(rng, self.k), "factor": np.float32(3)}}

    def reference(self, a, by, factor):
        return {{"out": a * by * factor}}

    def work(self):
        return Work(flops=2 * self.m * self.k, bytes=8 * self.m * self.k)

    @variant
    def simple(self):
        args = ("a", "by", "out", "factor", self.m, self.k)
        return [Launch("scaled", cdiv(self.m * self.k, 64), 64, args, template=("float",))]
'''
EVERY = '''
import numpy as np
from ptxkit import Launch, Work, Workload, cdiv, uniform, variant


class Every(Workload):
    """Every stride-th element."""

    source = "kernels.cu"
    n: int = 1000
    stride: int = 2

    def constraints(self):
        if self.n % self.stride:
            yield "n must be a multiple of stride"

    def inputs(self, rng):
        return {"a": uniform(rng, self.n)}

    def reference(self, a):
        return {"out": a[:: self.stride].astype(np.float64)}

    def outputs(self):
        return {"out": (self.n // self.stride, "f32")}

    def work(self):
        return Work(flops=0, bytes=8 * self.n)

    @variant
    def simple(self):
        return [Launch("scaled_half", cdiv(self.n, 64), 64, ("a", "out", self.n, self.stride))]
'''


@pytest.fixture
def write(tmp_path):
    (tmp_path / "kernels.cu").write_text(SOURCE)

    def written(text, name="mine.py"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


def test_sizes_follow_from_shapes(write):
    scaled = pt.operation(write(DESCRIPTION.format(option="")))
    a, by = torch.randn(2, 3, 5), torch.randn(5)
    assert torch.allclose(scaled(a, by), a * by * 3)
    assert torch.allclose(scaled(by=by, a=a, factor=0.5), a * by * 0.5)
    assert "Rows times a vector." in scaled.__doc__


def test_it_is_an_operation_of_torch(write):
    scaled = pt.operation(write(DESCRIPTION.format(option="")))
    tensors = torch.randn(3, 5), torch.randn(5)
    torch.library.opcheck(scaled.operation.registered, (*tensors, None))
    compiled = torch.compile(lambda a, by: scaled(a, by, factor=2.0) + 1, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(*tensors), tensors[0] * tensors[1] * 2 + 1)


def test_a_backward_makes_it_differentiable(write):
    def backward(grads, values):
        return {"a": grads["out"] * values["by"] * 3}

    scaled = pt.operation(write(DESCRIPTION.format(option="")), backward=backward)
    a, by = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    scaled(a, by).sum().backward()
    assert torch.allclose(a.grad, (by * 3).expand(3, 5))


def test_without_a_backward_there_is_no_derivative(write):
    scaled = pt.operation(write(DESCRIPTION.format(option="")))
    with pytest.raises(NotImplementedError, match="has no derivative"):
        scaled(torch.randn(3, 5, requires_grad=True), torch.randn(5)).sum().backward()


def test_sizes_that_no_shape_has_are_keywords(write):
    every = pt.operation(write(EVERY))
    a = torch.randn(12)
    assert torch.equal(every(a, stride=3), a[::3])
    assert torch.equal(every(a, stride=4), a[::4])
    with pytest.raises(
        UsageError, match=r"every: the size stride does not follow from the shape of a tensor; pass stride="
    ):
        every(a)
    with pytest.raises(UsageError, match="n must be a multiple of stride"):
        every(a, stride=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(torch.randn(3, 5)), "scaled: the tensor by is missing; it takes a, by"),
        (
            lambda f: f(torch.randn(3, 5), torch.randn(4)),
            r"by has the shape \(4,\), which does not agree with k=5 of a",
        ),
        (
            lambda f: f(torch.randn(3, 5), torch.randn(5), facto=2),
            "scaled has no argument 'facto'; did you mean 'factor'",
        ),
        (lambda f: f(torch.randn(3, 5), torch.randn(5), by=1), "by is given twice"),
        (lambda f: f(torch.randn(3, 5), torch.randn(5), 2.0), "takes 2 tensors by position, a, by, not 3"),
        (
            lambda f: f(torch.randn(3, 5).half(), torch.randn(5)),
            "a has the type torch.float16, but must have torch.float32",
        ),
    ],
)
def test_errors_name_the_argument(write, call, message):
    with pytest.raises(UsageError, match=message):
        call(pt.operation(write(DESCRIPTION.format(option=""))))


def test_one_file_is_one_operation_until_it_changes(write):
    path = write(DESCRIPTION.format(option=""))
    assert pt.operation(path) is pt.operation(str(path))
    first = pt.operation(path)
    import os

    os.utime(path, ns=(1, 1))
    assert pt.operation(path) is not first


@pytest.mark.parametrize(
    ("name", "patterns", "keywords"),
    [
        ("layernorm", ["*rows cols", "cols", "cols"], ["activation", "eps", "training"]),
        ("micro_tiling_matmul", ["*m k", "k n"], []),
        ("matmul_mma", ["*m k", "n k"], ["alpha", "beta", "epilogue"]),
        ("sparse_compress", ["*rows k"], []),
        ("moe_int8", ["*m k", "n k", "*m", "n"], ["output"]),
    ],
)
def test_bundled_kernels_by_name(name, patterns, keywords):
    operation = pt.operation(name).operation
    assert [t.shape for t in operation.tensors] == patterns
    assert [o.name for o in operation.options] == keywords


def test_dimensions_that_are_no_sizes_are_those_of_the_description():
    compress = pt.operation("sparse_compress")
    values, metadata = compress(torch.randn(16, 64).bfloat16())
    assert values.shape == (16, 32)
    assert metadata.dtype == torch.uint32


def test_a_type_is_that_of_the_tensors():
    x = torch.randn(3, 16).half()
    y = pt.operation("softmax")(x)
    assert y.dtype == torch.float16
    assert torch.allclose(y.float(), torch.softmax(x.float(), -1), atol=1e-3)


def test_a_file_that_is_not_there():
    with pytest.raises(UsageError, match="there is no file nothing.py"):
        pt.operation("nothing.py")


def test_a_variant_that_is_not_there(write):
    with pytest.raises(UsageError, match="scaled has no variant 'fast'"):
        pt.operation(write(DESCRIPTION.format(option="")), variant="fast")(torch.randn(3, 5), torch.randn(5))


def test_inputs_without_arrays(write):
    text = EVERY.replace('{"a": uniform(rng, self.n)}', '{"a": np.float32(1)}').replace(
        "a[:: self.stride].astype", "np.float64"
    )
    with pytest.raises(DescriptionError, match="returns no arrays"):
        pt.operation(write(text.replace("np.float64(np.float64)", "np.ones(1)")))


def test_an_option_that_changes_the_shapes_of_inputs_never_mixes_up_sizes():
    """Sizes follow from the shapes with default options: (k, m) of the layout nt would be taken for (m, k)."""
    function = pt.operation("matmul_wgmma", variant="step8_tma_store")
    a, b = (torch.randn(16, 24, dtype=torch.bfloat16) for _ in range(2))
    with pytest.raises(UsageError, match=r"a has the shape \(16, 24\), but must be \(24, 16\)"):
        function(a, b, layout="nt")
    square = [torch.randn(16, 16, dtype=torch.bfloat16) for _ in range(2)]
    expected = square[0].double().t() @ square[1].double()
    assert (function(*square, layout="nt").double() - expected).abs().max() <= 0.02 * expected.abs().max()


def test_a_changed_source_is_compiled_again(write):
    path = write(DESCRIPTION.format(option=""))
    a, by = torch.randn(3, 5), torch.ones(5)
    first = pt.operation(path)
    assert torch.allclose(first(a, by), a * 3)
    source = path.with_name("kernels.cu")
    source.write_text(SOURCE.replace("* factor", "* factor + 1.0f"))
    assert pt.operation(path) is not first
    assert torch.allclose(pt.operation(path)(a, by), a * 3 + 1)


def test_a_changed_header_is_compiled_again(write):
    path = write(DESCRIPTION.format(option=""))
    headers = path.with_name("headers")
    headers.mkdir()
    (headers / "mine.cuh").write_text("#define MORE 0.0f\n")
    source = path.with_name("kernels.cu")
    source.write_text('#include "headers/mine.cuh"\n' + SOURCE.replace("* factor", "* factor + MORE"))
    first = pt.operation(path)
    (headers / "mine.cuh").write_text("#define MORE 10.0f\n")
    assert pt.operation(path) is not first


def test_a_changed_file_keeps_its_name_in_messages(write):
    path = write(DESCRIPTION.format(option=""))
    pt.operation(path)
    path.write_text(DESCRIPTION.format(option="") + "\n")
    with pytest.raises(UsageError, match="^scaled: by has the shape"):
        pt.operation(path)(torch.randn(3, 5), torch.randn(4))


@pytest.mark.parametrize("value", [2.7, 3.0])
def test_sizes_are_not_truncated(write, value):
    with pytest.raises(UsageError, match="every: option stride must be a whole number"):
        pt.operation(write(EVERY))(torch.randn(12), stride=value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "backward must return a dict of gradients by name, not NoneType"),
        ((1, 2), "backward must return a dict of gradients by name, not tuple"),
        ({"b": None}, "backward returned a gradient of 'b'"),
        ({"a": 1.0}, "backward must return tensors or None, not float for a"),
        ({"a": torch.ones(2)}, r"backward returned a gradient of a with the shape \(2,\), but a has \(3, 5\)"),
    ],
)
def test_what_backward_returns_is_checked(write, returned, message):
    scaled = pt.operation(write(DESCRIPTION.format(option="")), backward=lambda grads, values: returned)
    with pytest.raises(UsageError, match=message):
        scaled(torch.randn(3, 5, requires_grad=True), torch.randn(5)).sum().backward()


def test_keywords_of_python_are_no_names(write):
    text = EVERY.replace('"a": uniform', '"in": uniform').replace("reference(self, a)", "reference(self, **a)")
    with pytest.raises(DescriptionError, match="'in' cannot be the name of an argument"):
        pt.operation(write(text))


def test_a_kernel_may_have_the_name_of_a_keyword(write):
    text = DESCRIPTION.format(option="").replace("source =", 'name = "in"\n    source =')
    assert pt.operation(write(text)).operation.registered


def test_bool_arrays_are_refused(write):
    text = EVERY.replace("uniform(rng, self.n)", "uniform(rng, self.n) > 0")
    with pytest.raises(DescriptionError, match="a has bool elements, which operations do not take; declare uint8"):
        pt.operation(write(text))
