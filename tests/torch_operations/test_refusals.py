"""Errors name the argument; what is not implemented is refused by name."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt
from ptxkit.errors import UnavailableError, UsageError

X, V = torch.randn(4, 12), torch.randn(12)
Q = torch.randn(5, 2, 64, dtype=torch.bfloat16)

WRONG = [
    (lambda: pt.layernorm([1.0], V, V), "layernorm: x must be a tensor, not list"),
    (
        lambda: pt.layernorm(X, V[:3], V),
        r"layernorm: weight has the shape \(3,\), which does not agree with cols=12 of x",
    ),
    (lambda: pt.layernorm(X, V, X), r"layernorm: bias has the shape \(4, 12\), but must be \(cols,\)"),
    (
        lambda: pt.layernorm(X.double(), V, V),
        "layernorm: x has the type torch.float64, but must have one of torch.float32, ",
    ),
    (lambda: pt.layernorm(X, V.half(), V), "layernorm: weight has the type torch.float16, but x has torch.float32"),
    (lambda: pt.layernorm(X, V.to("meta"), V), "layernorm: weight is on meta, but x is on cpu"),
    (lambda: pt.layernorm(X, V, V, "tanh"), "layernorm: option activation must be one of none, relu, gelu, not 'tanh'"),
    (lambda: pt.layernorm(X, V, V, "none", -1.0), "eps must be finite and at least 0"),
    (lambda: pt.layernorm(X, V, V, "none", "small"), "layernorm: option eps must be float, not 'small'"),
    (lambda: pt.layernorm(torch.tensor(1.0), V, V), r"layernorm: x has the shape \(\), but must be \(..., cols\)"),
    (
        lambda: pt.layernorm(X.to_sparse(), V, V),
        "layernorm: x is a tensor with the layout torch.sparse_coo; pass x.to_dense",
    ),
    (
        lambda: pt.swiglu(X, X[:2]),
        r"swiglu: up has the shape \(2, 12\), which does not agree with the leading dimensions \(4,\)",
    ),
    (
        lambda: pt.add_gelu(X, V),
        r"add_gelu: y has the shape \(12,\), which does not agree with the leading dimensions \(4, 12\)",
    ),
    (lambda: pt.softmax(X, 1.0), "p must be at least 0 and below 1"),
    (lambda: pt.softmax(X, 0.5, -1), "softmax: seed must be a whole number from 0 to"),
    (lambda: pt.softmax(X, 0.5, 1.5), "softmax: seed must be a whole number, not 1.5"),
    (lambda: pt.linear(X, X, [1.0]), "linear: bias must be a tensor, not list"),
    (lambda: pt.quantize_int8(X, 0.0), "the magnitude of scale must be between"),
    (lambda: pt.l2norm(X.half()), "l2norm: x has the type torch.float16, but must have torch.float32"),
    (lambda: pt.matmul(X, V), r"matmul: b has the shape \(12,\), but must be a matrix"),
    (lambda: pt.matmul(X, X), r"matmul: a has the shape \(4, 12\), but must be \(..., 4\)"),
    (lambda: pt.matmul(X.half(), X.t()), "matmul: a has the type torch.float16, but the other operand torch.float32"),
    (lambda: pt.linear(X, X, V), r"linear: bias has the shape \(12,\), but must be \(4,\)"),
    (lambda: pt.linear(X, X, residual=X), r"linear: residual has the shape \(4, 12\), but must be \(4, 4\)"),
    (lambda: pt.linear(X, X, residual=X.new_ones(4, 4).bfloat16()), "linear: residual has the type torch.bfloat16, but weight"),
    (lambda: pt.linear(X, X, activation="tanh"), "linear: activation must be one of none, relu, gelu, silu, not 'tanh'"),
    (
        lambda: pt.attention(Q, Q, Q[:, :1]),
        "attention: value has the shape .* which does not agree with kv_heads=2 of key",
    ),
    (lambda: pt.attention(Q[..., :32], Q[..., :32], Q[..., :32]), "d must be one of 64, 128, 256"),
    (lambda: pt.attention(Q.float(), Q, Q), "attention: query has the type torch.float32"),
    (lambda: pt.attention(Q, Q[:, :0], Q[:, :0]), "attention: key has no heads, and query has 2"),
    (lambda: pt.attention_scores(Q, Q, torch.zeros(3, 3)), "option mask must be one of none, causal, not an array"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=range(len(WRONG)))
def test_errors_name_the_argument(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_device_without_kernels():
    from ptxkit.torch.plan import device_of

    with pytest.raises(
        UnavailableError, match="kernels run on tensors of cuda, and of cpu in the emulator, not of mps"
    ):
        device_of(torch.device("mps"))


def test_meta_tensors_have_shapes_alone():
    assert pt.layernorm(X.to("meta"), V.to("meta"), V.to("meta")).shape == X.shape


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("vmap", lambda: torch.func.vmap(pt.softmax)(X)),
        ("grad", lambda: torch.func.grad(lambda x: pt.softmax(x).sum())(X)),
        ("jvp", lambda: torch.func.jvp(pt.softmax, (X,), (X,))),
    ],
)
def test_transforms_are_refused(name, call):
    with pytest.raises(NotImplementedError, match=f"ptxkit.torch.softmax does not support torch.func.{name}"):
        call()


def test_vmap_of_the_registered_operation_is_refused():
    with pytest.raises(NotImplementedError, match=r"ptxkit.torch.swiglu does not support torch.func.vmap"):
        torch.func.vmap(torch.ops.ptxkit.swiglu)(X, X)


def test_forward_mode_is_refused():
    from torch.autograd import forward_ad

    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="softmax has no forward-mode derivative"):
        pt.softmax(forward_ad.make_dual(X, X))


@pytest.mark.parametrize("operation", [pt.softmax, pt.layernorm])
def test_the_derivative_of_a_derivative_is_refused(operation):
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(operation(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="_backward has no derivative: derivatives of derivatives"):
        first.sum().backward()


def test_an_operation_without_derivative_says_so():
    q = Q.clone().requires_grad_()
    with pytest.raises(
        NotImplementedError, match=r"ptxkit.torch.attention_scores has no derivative; detach its result"
    ):
        pt.attention_scores(q, q).sum().backward()


@pytest.mark.parametrize("dispatched", [False, True])
def test_an_operation_without_derivative_for_these_sizes_says_so(dispatched):
    q = torch.randn(5, 1, 256, dtype=torch.bfloat16, requires_grad=True)
    result = torch.ops.ptxkit.attention(q, q, q, False, True)[0] if dispatched else pt.attention(q, q, q)
    with pytest.raises(NotImplementedError, match=r"attention has no derivative for these.*64, 128\); detach its result"):
        result.sum().backward()


def test_an_operation_called_for_inference_has_no_derivative():
    x = X.clone().requires_grad_()
    y, *_ = torch.ops.ptxkit.layernorm(x, V, V, "none", 1e-5, False)
    with pytest.raises(RuntimeError, match="pass training=True"):
        y.sum().backward()


@pytest.mark.parametrize("seed", [2**63, torch.tensor([1, 2]), torch.tensor(1.5), "one"], ids=str)
def test_a_seed_is_one_integer(seed):
    with pytest.raises(UsageError, match="softmax: seed must be a whole number"):
        pt.softmax(X, 0.5, seed)


def test_a_seed_may_be_an_integer_of_numpy():
    numpy = pytest.importorskip("numpy")
    assert torch.equal(pt.softmax(X, 0.5, numpy.int64(3)), pt.softmax(X, 0.5, 3))


@pytest.mark.parametrize("a", [10**400, 10**40, 1e300, -1e39])
def test_a_factor_must_be_representable(a):
    with pytest.raises(UsageError, match=r"saxpy: .*a must be (representable in float32|at most 3\.40282e\+38)"):
        pt.saxpy(a, X, X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pt.attention(Q, Q, Q, torch.tensor([True, False])),
            "attention: option causal must be a number, not an",
        ),
        (lambda: pt.rmsnorm(X, None, torch.tensor(1.0, requires_grad=True)), "option eps is a number without a deriv"),
        (lambda: pt.softmax(torch.nested.nested_tensor([X, X])), "softmax: x is a nested tensor"),
        (
            lambda: pt.operation(3),
            "operation: description must be a .py file, the name of a kernel or a Workload class",
        ),
        (lambda: pt.operation(None), "operation: description must be"),
        (lambda: pt.operation(b"x.py"), "operation: description must be"),
        (lambda: pt.operation("softmax", backward=3), "operation: backward must be a function"),
    ],
)
def test_values_of_another_kind(call, message):
    with pytest.raises(UsageError, match=message):
        call()
