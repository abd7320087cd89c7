"""Modules have the parameters of torch's, and compute the same."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch import nn

import ptxkit.torch as pt
from ptxkit.errors import UsageError


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: pt.LayerNorm(24), lambda: nn.LayerNorm(24)),
        (lambda: pt.LayerNorm((24,), eps=1e-3, bias=False), lambda: nn.LayerNorm((24,), eps=1e-3, bias=False)),
        (lambda: pt.LayerNorm(24, elementwise_affine=False), lambda: nn.LayerNorm(24, elementwise_affine=False)),
        (lambda: pt.LayerNorm(24, activation="relu"), lambda: nn.LayerNorm(24)),
        (lambda: pt.RMSNorm(24), lambda: nn.RMSNorm(24)),
        (
            lambda: pt.RMSNorm(24, eps=1e-3, elementwise_affine=False),
            lambda: nn.RMSNorm(24, 1e-3, elementwise_affine=False),
        ),
        (lambda: pt.Linear(24, 16), lambda: nn.Linear(24, 16)),
        (lambda: pt.Linear(24, 16, bias=False), lambda: nn.Linear(24, 16, bias=False)),
    ],
)
def test_a_module_is_that_of_torch(ours, theirs):
    one, other = ours(), theirs()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    one.load_state_dict(other.state_dict())
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 3, 24, requires_grad=True)
    expected = other(x)
    if getattr(one, "activation", "none") == "relu":
        expected = expected.relu()
    assert torch.allclose(one(x), expected, atol=1e-5)
    one(x).sum().backward()
    expected.sum().backward()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-4)


def test_the_feed_forward_layer_of_a_transformer():
    theirs = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
    ours = pt.FFN(16, 32)
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if k.startswith("linear")})
    x = torch.randn(3, 16)
    expected = theirs.linear2(nn.functional.gelu(theirs.linear1(x), approximate="tanh"))
    assert torch.allclose(ours(x), expected, atol=1e-5)


def test_a_gated_layer():
    layer = pt.SwiGLU(16, 32)
    x = torch.randn(3, 16)
    gate, up, down = (layer.get_parameter(f"{name}_proj.weight") for name in ("gate", "up", "down"))
    expected = (nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ down.t()
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_several_normalized_dimensions_are_refused():
    with pytest.raises(UsageError, match=r"LayerNorm: normalized_shape must be one dimension, the last, not \(3, 4\)"):
        pt.LayerNorm((3, 4))


def test_a_description_of_a_module_names_its_activation():
    assert "activation=gelu" in repr(pt.LayerNorm(8, activation="gelu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rmsnorm_without_eps_is_that_of_torch(dtype):
    x = (torch.randn(4, 16) * 1e-3).to(dtype)
    expected = torch.nn.RMSNorm(16)(x.float())
    assert torch.allclose(pt.RMSNorm(16, dtype=dtype)(x).float(), expected, rtol=0.01, atol=1e-3)


def test_rmsnorm_without_eps_under_autocast():
    x = (torch.randn(4, 16) * 1e-3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(pt.RMSNorm(16)(x), torch.nn.RMSNorm(16)(x.float()), atol=1e-5)


@pytest.mark.parametrize("module", [pt.LayerNorm, pt.RMSNorm])
def test_a_shape_may_be_an_integer_of_numpy(module):
    numpy = pytest.importorskip("numpy")
    assert module(numpy.int64(16)).normalized_shape == (16,)


def test_integers_are_refused_by_rmsnorm():
    with pytest.raises(UsageError, match=r"rmsnorm: x has the type torch.int32"):
        pt.RMSNorm(4)(torch.ones(2, 4, dtype=torch.int32))


@pytest.mark.parametrize("make", [lambda: pt.LayerNorm(8, activation="tanh"), lambda: pt.Linear(8, 8, activation="x")])
def test_an_activation_that_is_not_there_is_refused_by_the_constructor(make):
    with pytest.raises(UsageError, match="activation must be one of none, "):
        make()


def test_the_representation_shows_the_activation():
    assert "activation=gelu" in repr(pt.Linear(8, 8, activation="gelu"))
    assert "activation=gelu" in repr(pt.FFN(8, 16))
