"""Each operation gives the results and gradients of torch in float64, and passes torch's own checks of operations."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch_operations.cases import BY_NAME, CASES

import ptxkit.torch as pt
from ptxkit.torch.table import OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore:Input #. requires gradient")


def error(found, expected):
    """The largest error, relative to the largest magnitude."""
    scale = expected.abs().max().clamp_min(1e-30)
    return ((found.double().cpu() - expected).abs().max() / scale).item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_and_gradients_are_those_of_torch(where, case):
    tensors = case.tensors(where)
    y = case.ours(*tensors)
    wide = [t.detach().double().cpu().requires_grad_(t.requires_grad) for t in tensors]
    expected = case.theirs(*wide)
    assert y.shape == expected.shape
    assert y.is_contiguous()
    assert y.device.type == where
    assert error(y, expected) <= case.tolerance
    if case.differentiable:
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
        found = torch.autograd.grad(y, tensors, dy.to(where))
        for gradient, other in zip(found, torch.autograd.grad(expected, wide, dy.double()), strict=True):
            assert gradient.shape == other.shape
            assert error(gradient, other) <= case.tolerance


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.dtype == torch.float32 and c.differentiable], ids=lambda case: case.name
)
def test_gradcheck(case):
    """In float32, which the kernels compute in: with finite differences of 2^-7 their error is about 1e-3."""
    tensors = (
        [t.detach()[..., :5].requires_grad_() for t in case.tensors()]
        if case.name[:3] not in ("mat", "lin")
        else case.tensors()
    )
    assert torch.autograd.gradcheck(case.ours, tensors, eps=2**-7, atol=1e-2, rtol=1e-2, fast_mode=True, nondet_tol=0)


CALLS = {
    "layernorm": ("layernorm", ("none", 1e-5, True)),
    "layernorm_inference": ("layernorm", ("gelu", 1e-5, False)),
    "rmsnorm": ("rmsnorm", (1e-6, True)),
    "l2norm": ("l2norm", (1e-12,)),
    "softmax": ("softmax", (0.0, None)),
    "softmax_dropout": ("softmax", (0.5, torch.tensor(7))),
    "scale_mask_softmax": ("scale_mask_softmax", (0.3,)),
    "add_gelu": ("add_gelu", ()),
    "add_silu": ("add_activation", ("silu",)),
    "add_mul_exp": ("add_mul_exp", ()),
    "saxpy": ("saxpy", (2.5,)),
    "swiglu": ("swiglu", ()),
    "bias_residual": ("bias_dropout_residual", (0.5, torch.tensor(7))),
    "swiglu_ffn": ("swiglu_ffn", ()),
    "linear_layernorm_gelu": ("linear_layernorm_gelu", (1e-5,)),
    "ffn_sublayer": ("ffn_sublayer", (1e-5,)),
    "attention": ("attention", (True, True)),
    "attention_scores": ("attention_scores", ("none",)),
    "quantize_int8": ("quantize_int8", (0.02, 3.0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(where, name):
    operation, rest = CALLS[name]
    given = {"layernorm_inference": "layernorm", "softmax_dropout": "softmax"}.get(name, name)
    # an inference call has no derivative
    tensors = BY_NAME[given].tensors(where, requires_grad=not name.endswith("inference"))
    torch.library.opcheck(OPERATIONS[operation].registered, (*tensors, *rest))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "softmax", "swiglu", "add_activation", "attention"])
def test_opcheck_of_a_backward_operation(where, name):
    calls = {
        "layernorm": lambda x, v, s: (x, x, v, v, s, s, "gelu"),
        "rmsnorm": lambda x, v, s: (x, x, v, s),
        "softmax": lambda x, v, s: (x, x, 1.0),
        "swiglu": lambda x, v, s: (x, x, x),
        "add_activation": lambda x, v, s: (x, x, x, "relu"),
        "attention": lambda q, lse, _: (q, q, q, q, q, lse, False),
    }
    shapes = ((2, 24), (24,), (2,)) if name != "attention" else ((5, 2, 64), (2, 5), ())
    dtype = torch.float32 if name != "attention" else torch.bfloat16
    first, second, third = (torch.rand(shape, device=where) + 0.5 for shape in shapes)
    args = calls[name](first.to(dtype), second, third)
    # the sums of dq are added by atomics, in any order
    checks = ("test_schema", "test_faketensor", "test_autograd_registration") if name == "attention" else None
    options = {} if checks is None else {"test_utils": checks}
    torch.library.opcheck(OPERATIONS[f"{name}_backward"].registered, args, **options)


def test_each_operation_has_a_function_with_its_arguments():
    import inspect

    from ptxkit.torch import functions

    internal = {"matmul_nt", "matmul_f32"}  # of matmul and linear
    internal |= {f"linear_{parts}" for parts in ("gelu", "bias", "activation", "residual", "bias_residual")}
    for name, operation in OPERATIONS.items():
        if name in internal:
            continue
        assert name in pt.__all__
        parameters = list(inspect.signature(getattr(functions, name)).parameters)
        expected = [*(t.name for t in operation.tensors), *(o.name for o in operation.options)]
        expected += ["seed"] if operation.random is not None else []
        assert sorted(parameters) == sorted(expected), name
        assert getattr(functions, name).__doc__


def test_dropout_draws_the_same_mask_in_the_backward_pass(where):
    x, bias, residual = BY_NAME["bias_residual"].tensors(where)
    out = pt.bias_dropout_residual(x, bias, residual, 0.5, seed=11)
    kept = (out != residual).double() * 2
    found = torch.autograd.grad(out.sum(), (x, bias, residual))
    assert torch.equal(found[0].double(), kept)
    assert torch.allclose(found[1].double(), kept.sum((0, 1)))
    assert torch.equal(found[2], torch.ones_like(residual))
    assert 0 < kept.mean() < 2


def test_the_gradient_of_softmax_with_dropout(where):
    (x,) = BY_NAME["softmax"].tensors(where)
    y = pt.softmax(x, 0.5, seed=3)
    dy = torch.arange(y.numel(), dtype=torch.float32, device=where).view(y.shape)
    expected = torch.autograd.grad(torch.softmax(x, -1) * (y != 0) * 2, x, dy)[0]
    assert torch.allclose(torch.autograd.grad(y, x, dy)[0], expected, rtol=1e-4, atol=1e-4)


def test_random_numbers_come_from_the_generator_of_torch(where):
    (x,) = BY_NAME["softmax"].tensors(where)
    torch.manual_seed(5)
    first, second = pt.softmax(x, 0.5), pt.softmax(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(pt.softmax(x, 0.5), first)
    assert not torch.equal(first, second)


def test_a_checkpoint_draws_the_same_random_numbers_again():
    from torch.utils.checkpoint import checkpoint

    x, bias, residual = BY_NAME["bias_residual"].tensors()
    found = []
    for call in (pt.bias_dropout_residual, lambda *t: checkpoint(pt.bias_dropout_residual, *t, use_reentrant=False)):
        torch.manual_seed(2)
        found.append(torch.autograd.grad(call(x, bias, residual, 0.5).square().sum(), x)[0])
    assert torch.equal(*found)


def test_without_dropout_no_random_number_is_drawn():
    (x,) = BY_NAME["softmax"].tensors()
    state = torch.get_rng_state()
    pt.softmax(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_quantized_layernorm_is_layernorm(where):
    x = torch.randn(3, 100, device=where)
    q, scales = pt.layernorm_quantize(x)
    assert (q.dtype, scales.shape) == (torch.int8, (3,))
    expected = torch.nn.functional.layer_norm(x, (100,))
    assert torch.allclose(q * scales[:, None], expected, atol=scales.max().item() / 1.99)


def test_attention_of_e4m3_is_attention(where):
    q, k, v = (t.to(torch.float8_e4m3fn) for t in BY_NAME["attention"].tensors(where, requires_grad=False))
    ones = [torch.ones(heads, device=where) for heads in (4, 2, 2)]
    expected = pt.attention(*(t.to(torch.bfloat16) for t in (q, k, v)))
    assert torch.allclose(pt.attention_e4m3(q, k, v, *ones).float(), expected.float(), atol=0.15)
