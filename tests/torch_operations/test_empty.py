"""Tensors without elements: sums over nothing are 0, and what is added to them remains."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt
from ptxkit.errors import UsageError

BF = torch.bfloat16
X, WEIGHT, NONE = torch.zeros(2, 0, dtype=BF), torch.zeros(16, 0, dtype=BF), torch.zeros(0, dtype=BF)


def gelu(x):
    return torch.nn.functional.gelu(x.float(), approximate="tanh")


def test_linear_of_nothing_is_the_bias():
    bias = torch.randn(16, dtype=BF, requires_grad=True)
    y = pt.linear(X, WEIGHT, bias, "gelu")
    assert torch.equal(y, gelu(bias).to(BF).expand(2, 16))
    (found,) = torch.autograd.grad(y.sum(), bias)
    (expected,) = torch.autograd.grad(gelu(bias).sum() * 2, bias)
    assert torch.allclose(found.float(), expected.float(), atol=0.02)


@pytest.mark.parametrize("activation", ["none", "gelu", "silu"])
@pytest.mark.parametrize(("n", "k"), [(7, 8), (8, 3), (2, 1), (7, 0)])
def test_no_rows_of_any_length(n, k, activation):
    """Some of the kernels of a product take rows of a multiple of 16 bytes only, which does not matter without rows."""
    x, weight, bias = (torch.randn(shape, dtype=BF, requires_grad=True) for shape in ((3, 0, k), (n, k), (n,)))
    for given in ((weight,), (weight, bias)):
        y = pt.linear(x, *given, activation=activation)
        assert y.shape == (3, 0, n)
        assert not any(grad.any() for grad in torch.autograd.grad(y, given, torch.zeros_like(y)))


def test_a_sublayer_of_nothing_keeps_bias_and_residual():
    bias, residual = torch.randn(16, dtype=BF), torch.randn(2, 16, dtype=BF)
    y = pt.ffn_sublayer(X, WEIGHT, bias, NONE, NONE, residual)
    assert torch.equal(y, (residual.float() + gelu(bias)).to(BF))


def test_a_normalized_product_of_nothing_is_that_of_the_bias():
    bias, gamma, beta = torch.randn(3, 16).to(BF)
    y = pt.linear_layernorm_gelu(X, WEIGHT, bias, gamma, beta)
    expected = gelu(torch.nn.functional.layer_norm(bias.float(), (16,), gamma.float(), beta.float()))
    assert torch.allclose(y.float(), expected.expand(2, 16), atol=0.02)


def test_options_are_checked_without_elements():
    with pytest.raises(UsageError, match="p must be at least 0 and below 1"):
        pt.softmax(torch.zeros(0, 4), 2.0)


def test_the_gradient_of_l2norm_without_columns():
    x = torch.zeros(3, 0, requires_grad=True)
    pt.l2norm(x).sum().backward()
    assert x.grad.shape == (3, 0)


def test_the_gradient_of_a_bias_of_one_row():
    x, bias = torch.randn(8), torch.zeros(8, requires_grad=True)
    pt.bias_dropout_residual(x, bias, x, 0.0).sum().backward()
    assert torch.equal(bias.grad, torch.ones(8))
