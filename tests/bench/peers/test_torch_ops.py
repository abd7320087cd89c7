"""The torch peers compute the same results as the kernels. Runs torch on the CPU; skipped if torch is not installed."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit import Work, Workload, uniform, variant
from ptxkit.bench.peers import torch_ops
from ptxkit.bench.peers.compile_peer import CompilePeer, _copied
from ptxkit.bench.peers.cublas import column_major
from ptxkit.bench.peers.cublas_peer import CublasPeer
from ptxkit.kernels.gemm.product import Gemm
from ptxkit.workload import registry
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.verify import compare

CASES = [
    ("saxpy", [1000], {}),
    ("add_mul_exp", [1000], {}),
    ("quantize_int8", [1000], {}),
    ("add_gelu", [1000], {}),
    ("add_gelu", [1000], {"dtype": "bf16"}),
    ("add_activation", [1000], {"activation": "silu"}),
    ("add_activation", [1000], {"activation": "relu", "dtype": "f16"}),
    ("swiglu", [7, 33], {"dtype": "bf16"}),
    ("add_activation_backward", [1000], {}),
    ("add_activation_backward", [1000], {"activation": "relu"}),
    ("add_activation_backward", [1000], {"activation": "silu", "dtype": "f16"}),
    ("swiglu_backward", [7, 33], {}),
    ("softmax_backward", [7, 33], {}),
    ("softmax_backward", [7, 33], {"scale": 0.5}),
    ("two_stage_pipeline", [132], {}),
    ("warp_specialized", [132], {}),
    ("layernorm_backward", [7, 33], {}),
    ("layernorm_backward", [7, 33], {"activation": "gelu"}),
    ("layernorm_backward", [7, 33], {"activation": "relu", "dtype": "bf16"}),
    ("rmsnorm_backward", [7, 33], {}),
    ("rmsnorm_backward", [7, 33], {"dtype": "f16"}),
    ("bias_dropout_residual", [7, 33], {"p": 0.0}),
    ("memory_bound", [1000], {}),
    ("fused_l2norm", [7, 33], {}),
    ("layernorm", [7, 33], {}),
    ("layernorm", [7, 33], {"activation": "relu", "training": True}),
    ("layernorm", [7, 33], {"activation": "none", "dtype": "f16"}),
    ("rmsnorm", [7, 33], {}),
    ("rmsnorm", [7, 33], {"training": True}),
    ("softmax", [7, 33], {}),
    ("softmax", [7, 33], {"dtype": "f16"}),
    ("scale_mask_softmax", [7, 33], {}),
    ("layernorm_quantize", [7, 33], {}),
    ("attention_scores", [2, 4, 37, 50, 64], {"kv_heads": 2, "mask": "causal"}),
    ("attention_scores", [2, 2, 40, 33, 64], {"mask": "array", "mask_shape": "batch", "dtype": "f16"}),
    ("sparse_compress", [7, 64], {}),
    ("sparse_compress", [7, 64], {"dtype": "f16"}),
    ("moe_int8", [20, 32, 48], {}),
    ("moe_int8", [3, 32, 48], {}),
    ("moe_int8", [20, 32, 48], {"output": "given"}),
    ("moe_int8", [20, 32, 48], {"output": "bf16"}),
    ("swiglu_ffn", [7, 24, 40], {}),
    ("sparse_swiglu_ffn", [7, 32, 48], {"dtype": "f16"}),
]


def tensors(torch, inputs):
    """Inputs as CPU tensors; bf16 elements are converted by their bits."""

    def tensor(value):
        if value.dtype == dtype_of("bf16"):
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        if value.dtype == dtype_of("e4m3"):
            return torch.from_numpy(value.view(np.uint8)).view(torch.float8_e4m3fn)
        return torch.from_numpy(value)

    return {name: tensor(v) if np.ndim(v) else np.asarray(v).item() for name, v in inputs.items()}


def outputs(torch, workload, inputs, compiled=False):
    """The results of the definition, as numpy arrays by name."""
    found = torch_ops.find(workload)
    function = found.define(workload, torch)
    arguments = tensors(torch, {name: inputs[name] for name in found.takes(function)})
    if compiled:
        function = torch.compile(function, backend="eager", fullgraph=True, dynamic=False)
    results = function(*arguments.values())
    results = results if isinstance(results, tuple) else (results,)
    bits = {torch.bfloat16: lambda t: t.view(torch.int16).numpy().view(dtype_of("bf16"))}
    arrays = [bits.get(r.dtype, lambda t: t.numpy())(r) for r in results]
    return found, dict(zip(found.outputs, arrays, strict=False))


@pytest.mark.parametrize("name, sizes, options", CASES, ids=lambda v: str(v))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "traced"])
def test_definition_agrees_with_the_reference(name, sizes, options, compiled):
    torch = pytest.importorskip("torch")
    workload = registry.get(name).make(sizes, options)
    inputs = workload.inputs(np.random.default_rng(5))
    expected = workload.reference(**inputs)
    found, actual = outputs(torch, workload, inputs, compiled)
    assert set(actual) == set(expected)
    assert not found.random(workload)
    for output, value in expected.items():
        verdict = compare(output, actual[output], value, found.tolerance_of(workload) or workload.tolerance)
        assert verdict.verified, verdict.worst


@pytest.mark.parametrize("kernel", ["attention", "attention_e4m3"])
@pytest.mark.parametrize("options", [{}, {"causal": True, "kv_heads": 2}], ids=["full", "causal"])
def test_attention_agrees_with_the_reference(kernel, options):
    torch = pytest.importorskip("torch")
    workload = registry.get(kernel)(batch=2, heads=4, q=37, k=50, d=64, **options)
    inputs = workload.inputs(np.random.default_rng(5))
    _, actual = outputs(torch, workload, inputs)
    verdict = compare("o", actual["o"], workload.reference(**inputs)["o"], workload.tolerance["o"])
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize("name, where", [("softmax", "y"), ("bias_dropout_residual", "out")])
def test_dropout_is_torchs_own(name, where):
    torch = pytest.importorskip("torch")
    workload = registry.get(name).make([64, 128], {"p": 0.5})
    inputs = workload.inputs(np.random.default_rng(5))
    found, actual = outputs(torch, workload, inputs)
    assert found.random(workload)
    kept = registry.get(name).make([64, 128], {"p": 0.0})
    whole = kept.reference(**kept.inputs(np.random.default_rng(5)))[where]
    rest = inputs.get("residual", 0)
    dropped = np.isclose(actual[where], rest, atol=1e-7)
    assert 0.45 < dropped.mean() < 0.55
    np.testing.assert_allclose(actual[where][~dropped], (2 * (whole - rest) + rest)[~dropped], rtol=1e-4, atol=1e-5)


def test_every_memory_bound_kernel_has_a_definition():
    # examples of instructions, a chain of arbitrary length, and a latency, of which frameworks have no operation
    without = {"inline_ptx", "compute_bound", "pointer_chase"}
    memory_bound = {
        name for name in registry.names() if registry.get(name).make().work().intensity < 8 and name not in without
    }
    assert memory_bound
    assert {name for name in memory_bound if torch_ops.find(registry.get(name).make()) is None} == set()


def test_a_row_that_may_be_masked_as_a_whole_is_not_offered():
    kernel = registry.get("scale_mask_softmax")
    assert torch_ops.find(kernel.make([128, 256])) is not None
    assert torch_ops.find(kernel.make([128, 2])) is None
    assert torch_ops.find(kernel.make([128, 256], {"masked": 1.0})) is None


@pytest.mark.parametrize(
    "options, offered",
    [
        ({"mask": "array"}, True),
        ({"mask": "array", "masked": 1.0}, False),
        ({"mask": "array", "k": 8}, False),
        ({"mask": "causal"}, True),
        ({"mask": "causal", "k": 4095}, False),
        ({"k": 4095}, True),
    ],
)
def test_scores_of_which_a_row_may_be_masked_as_a_whole_are_not_offered(options, offered):
    kernel = registry.get("attention_scores")
    assert (torch_ops.find(kernel(**options)) is not None) is offered


def test_a_kernel_of_the_same_name_elsewhere_is_another():
    softmax = registry.get("softmax")

    class Softmax(softmax):
        """A kernel that a user describes."""

    assert Softmax().name == "softmax"
    assert torch_ops.find(Softmax()) is None

    class Own(softmax):
        """A kernel with a definition in torch."""

        def torch(self, x):
            return x * self.rows

    found = torch_ops.find(Own())
    assert found.outputs == ("y",)
    assert found.define(Own(), None)(2) == 2 * Own().rows


class Product(Workload):
    """A matrix product that a user describes."""

    m: int = 5
    n: int = 7
    k: int = 11
    dtype: Literal["f32", "bf16"] = "f32"
    columns: bool = True

    def inputs(self, rng):
        b = (self.n, self.k) if self.columns else (self.k, self.n)
        return {"a": uniform(rng, (self.m, self.k), self.dtype), "b": uniform(rng, b, self.dtype)}

    def reference(self, a, b):
        b = b.astype(np.float64)
        return {"c": a.astype(np.float64) @ (b.T if self.columns else b)}

    def outputs(self):
        return {"c": ((self.m, self.n), self.dtype)}

    def work(self):
        return Work(2 * self.m * self.n * self.k, 4)

    def gemm(self):
        return Gemm(self.m, self.n, self.k, b_transposed=self.columns)

    @variant
    def only(self):
        """A function that this test does not run."""
        return []


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("columns", [False, True])
def test_a_product_is_known_by_its_gemm_method(dtype, columns):
    torch = pytest.importorskip("torch")
    workload = Product(dtype=dtype, columns=columns)
    inputs = workload.inputs(np.random.default_rng(5))
    _, actual = outputs(torch, workload, inputs)
    verdict = compare("c", actual["c"], workload.reference(**inputs)["c"])
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.5},
        {"beta": 2.0},
        {"epilogue": "bias_gelu", "beta": 0.5},
        {"layout": "nn"},
        {"layout": "nt", "dtype": "f16"},
        {"layout": "tt", "epilogue": "bias_gelu"},
    ],
    ids=str,
)
def test_epilogues_of_products(options):
    torch = pytest.importorskip("torch")
    workload = registry.get("matmul_wgmma").make([16, 24, 32], options)
    inputs = workload.inputs(np.random.default_rng(5))
    found, actual = outputs(torch, workload, inputs)
    verdict = compare("c", actual["c"], workload.reference(**inputs)["c"], found.tolerance_of(workload) or workload.tolerance)
    assert verdict.verified, verdict.worst
    assert CublasPeer().offers(workload) == (workload.gemm().plain)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans())
def test_cublas_is_given_the_transposed_product(m, n, k, a_transposed, b_transposed):
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 9, (k, m) if a_transposed else (m, k))
    b = rng.integers(-9, 9, (n, k) if b_transposed else (k, n))
    gemm = Gemm(m, n, k, a_transposed=a_transposed, b_transposed=b_transposed)
    transa, transb, rows, cols, depth, lda, ldb, ldc = column_major(gemm)

    def operand(memory, transposed, shape, leading):
        """A column-major matrix, in the form that cuBLAS reads."""
        stored = shape[::-1] if transposed else shape
        assert leading == stored[0]
        matrix = memory.reshape(-1).reshape(stored[::-1]).T
        return matrix.T if transposed else matrix

    found = operand(b, transa, (rows, depth), lda) @ operand(a, transb, (depth, cols), ldb)
    assert ldc == rows
    expected = (a.T if a_transposed else a) @ (b.T if b_transposed else b)
    np.testing.assert_array_equal(found.T.reshape(-1).reshape(m, n), expected)  # column-major c' is row-major c


def test_cublas_offers_products_of_its_types():
    assert CublasPeer().offers(Product())
    assert CublasPeer().offers(Product(dtype="bf16"))
    assert not CublasPeer().offers(registry.get("softmax").make())


def test_a_compiled_function_has_a_code_object_of_its_own():
    function = torch_ops.chain(type("W", (), {"fmas": 3}), None)
    first, second = _copied(function), _copied(function)
    assert first(1.0, 2.0, 3.0) == second(1.0, 2.0, 3.0) == function(1.0, 2.0, 3.0) == 29.0
    assert len({id(f.__code__) for f in (function, first, second)}) == 3
    assert _copied(np.sin) is np.sin


@pytest.mark.parametrize("name", ["torch._inductor.select_algorithm", "torch._subclasses.fake_tensor"])
def test_what_torch_prints_while_it_tunes_or_refuses_sizes_is_not_shown(capsys, name):
    logger = logging.getLogger(name)
    before = logger.level
    with CompilePeer().warming_up():
        print("candidates", file=sys.stderr)
        assert not logger.isEnabledFor(logging.ERROR)
    assert capsys.readouterr().err == ""
    assert logger.level == before


def test_two_definitions_of_one_kernel_are_refused():
    with pytest.raises(ValueError, match="two definitions of softmax"):
        torch_ops.op("softmax", "y")(lambda w, torch: lambda x: x)
