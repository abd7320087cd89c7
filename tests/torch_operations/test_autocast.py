"""Under autocast, operations take the types that torch gives to operations of the same kind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt

X = torch.randn(4, 16)


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda: pt.layernorm(X.bfloat16(), torch.ones(16), torch.zeros(16)), torch.float32),
        (lambda: pt.softmax(X.bfloat16()), torch.float32),
        (lambda: pt.matmul(X, X.t()), torch.bfloat16),
        (lambda: pt.linear(X, X, torch.zeros(4, dtype=torch.bfloat16), "gelu"), torch.bfloat16),
        (lambda: pt.add_gelu(X.bfloat16(), X), torch.float32),
        (lambda: pt.add_gelu(X.bfloat16(), X.bfloat16()), torch.bfloat16),
        (lambda: pt.attention(*[torch.randn(3, 2, 64)] * 3), torch.bfloat16),
    ],
)
def test_types_under_autocast(call, dtype):
    with torch.autocast("cpu", torch.bfloat16):
        assert call().dtype == dtype


def test_gradients_have_the_types_of_the_arguments():
    x, weight = X.clone().requires_grad_(), X.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        pt.matmul(x, weight.t()).sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
