"""Strides, offsets, leading dimensions, sizes of 0, and which arguments require gradients."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import ptxkit.torch as pt

W, B = torch.linspace(0.5, 1.5, 12), torch.linspace(-1, 1, 12)


def expected(x):
    return F.layer_norm(x, (12,), W, B)


LAYOUTS = {
    "transposed": lambda: torch.randn(12, 5).t(),
    "permuted": lambda: torch.randn(12, 2, 3).permute(2, 1, 0),
    "every second row": lambda: torch.randn(10, 12)[::2],
    "every second column": lambda: torch.randn(5, 24)[:, ::2],
    "expanded": lambda: torch.randn(1, 12).expand(5, 12),
    "one element everywhere": lambda: torch.ones(()).expand(5, 12),
    "an offset of whole rows": lambda: torch.randn(6, 12)[1:],
    "an offset of one element": lambda: torch.randn(61)[1:].view(5, 12),
    "flipped": lambda: torch.randn(5, 12).flip(0),
    "negated lazily": lambda: torch.randn(5, 12, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides_and_offsets(layout):
    x = LAYOUTS[layout]()
    found = pt.layernorm(x, W, B)
    assert found.is_contiguous()
    assert torch.allclose(found, expected(x), atol=1e-5)


@pytest.mark.parametrize("layout", ["transposed", "expanded", "an offset of one element"])
def test_any_strides_of_a_gradient(layout):
    x = torch.randn(5, 12, requires_grad=True)
    dy = LAYOUTS[layout]()
    (found,) = torch.autograd.grad(pt.layernorm(x, W, B), x, dy)
    assert torch.allclose(found, torch.autograd.grad(expected(x), x, dy)[0], atol=1e-5)


def test_an_input_that_a_kernel_updates_is_not_changed():
    x, y = torch.randn(7), torch.randn(7)
    before = y.clone()
    assert torch.allclose(pt.saxpy(2.0, x, y), 2 * x + y)
    assert torch.equal(y, before)


@settings(max_examples=12)
@given(leading=st.lists(st.integers(1, 3), max_size=3), cols=st.integers(1, 20))
def test_any_leading_dimensions(leading, cols):
    x, weight = torch.randn(*leading, cols), torch.randn(cols)
    assert torch.allclose(pt.rmsnorm(x, weight), F.rms_norm(x, (cols,), weight, 1e-6), atol=1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_element_wise_operations_take_any_shape(shape):
    x, y = torch.randn(shape), torch.randn(shape)
    assert torch.allclose(pt.add_gelu(x, y), F.gelu(x + y, approximate="tanh"), atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 12), (2, 0, 12), (3, 0)])
def test_tensors_without_elements(shape):
    x = torch.randn(shape, requires_grad=True)
    weight, bias = (torch.randn(shape[-1], requires_grad=True) for _ in range(2))
    y = pt.layernorm(x, weight, bias)
    found = torch.autograd.grad(y.sum(), (x, weight, bias))
    assert y.shape == x.shape
    assert [g.shape for g in found] == [t.shape for t in (x, weight, bias)]
    assert not any(g.any() for g in found)


def test_a_product_over_nothing_is_zero():
    assert torch.equal(pt.matmul(torch.ones(3, 0), torch.ones(0, 4)), torch.zeros(3, 4))


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]
)
def test_any_arguments_may_require_a_gradient(wanted):
    tensors = [t.detach().requires_grad_(w) for t, w in zip((torch.randn(4, 12), W, B), wanted, strict=True)]
    needed = [t for t in tensors if t.requires_grad]
    dy = torch.randn(4, 12)
    found = torch.autograd.grad(pt.layernorm(*tensors), needed, dy)
    x, w, b = tensors
    for ours, theirs in zip(found, torch.autograd.grad(F.layer_norm(x, (12,), w, b), needed, dy), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_results_that_need_no_gradient_have_none():
    x = torch.randn(4, 12, requires_grad=True)
    with torch.no_grad():
        assert not pt.layernorm(x, W, B).requires_grad
    with torch.inference_mode():
        assert torch.allclose(pt.layernorm(x, W, B), expected(x), atol=1e-5)
    assert not pt.quantize_int8(x, 0.1).requires_grad


def test_weights_may_be_left_out():
    x = torch.randn(4, 12)
    assert torch.allclose(pt.layernorm(x), F.layer_norm(x, (12,)), atol=1e-5)


def test_a_result_may_be_used_twice():
    x = torch.randn(3, 12, requires_grad=True)
    y = pt.softmax(x)
    (y * y).sum().backward()
    other = x.detach().requires_grad_()
    F.softmax(other, -1).square().sum().backward()
    assert torch.allclose(x.grad, other.grad, atol=1e-6)
