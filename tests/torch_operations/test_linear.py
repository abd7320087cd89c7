"""``linear``: types under autocast, and its bias."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt
from ptxkit.errors import UsageError

X, BIAS = torch.randn(8, 16), torch.randn(8)


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_a_module_under_autocast_returns_the_16_bit_type(activation):
    module = pt.Linear(16, 8, activation=activation)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(X)
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert module.bias.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (BIAS.bfloat16(), "linear: bias has the type torch.bfloat16, but weight has torch.float32"),
        (BIAS.double(), "linear: bias has the type torch.float64, but weight has torch.float32"),
        (BIAS.to("meta"), "linear: bias is on meta, but weight is on cpu"),
        (BIAS.to_sparse(), "linear: bias is a tensor with the layout torch.sparse_coo"),
    ],
)
def test_the_bias_is_checked(bias, message):
    with pytest.raises(UsageError, match=message):
        pt.linear(X, X, bias)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pt.linear(X.int(), X.int()), "linear: x has the type torch.int32, but must have one of torch.float32"),
        (lambda: pt.matmul(X.double(), X.t().double()), "matmul: a has the type torch.float64, but must have one of"),
        (lambda: pt.matmul(X, X.t().to("meta")), "matmul: b is on meta, but a is on cpu"),
        (lambda: pt.matmul(X, X.to_sparse()), "matmul: b is a tensor with the layout torch.sparse_coo"),
    ],
)
def test_errors_name_the_public_function(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_a_backward_pass_under_another_autocast():
    x = X.half().requires_grad_()
    y = pt.linear(x, X.half(), BIAS.half(), "gelu")
    with torch.autocast("cpu", torch.bfloat16):
        y.sum().backward()
    assert x.grad.dtype == torch.float16
