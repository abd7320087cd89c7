"""A call of each operation of ptxkit.torch, with the same computation by torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import ptxkit.torch as pt


def gelu(x):
    return F.gelu(x, approximate="tanh")


def attend(query, key, value, causal):
    """Attention by torch, with heads after tokens."""
    q, k, v = (t.transpose(-3, -2) for t in (query, key, value))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[-3] != k.shape[-3])
    return o.transpose(-3, -2)


@dataclass(frozen=True)
class Case:
    """A call: ``ours(*tensors)`` and ``theirs(*tensors)`` compute the same from tensors of these shapes.

    ``scale`` is the standard deviation of the tensors, ``tolerance`` the permitted error relative to the largest magnitude
    of a result.
    """

    name: str
    ours: Any
    theirs: Any
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    tolerance: float = 1e-5
    differentiable: bool = True

    def tensors(self, where="cpu", seed=0, requires_grad=True):
        generator = torch.Generator().manual_seed(seed)
        made = (self.scale * torch.randn(shape, generator=generator) for shape in self.shapes)
        return [t.to(where, self.dtype).requires_grad_(requires_grad and self.differentiable) for t in made]


X, V = (2, 3, 24), (24,)
HALF = {"dtype": torch.bfloat16, "tolerance": 2e-2}
ATTENTION = ((2, 9, 4, 64), (2, 13, 2, 64), (2, 13, 2, 64))
SAME = ((1, 9, 2, 64),) * 3

CASES = [
    Case("layernorm", pt.layernorm, lambda x, w, b: F.layer_norm(x, V, w, b), (X, V, V)),
    Case(
        "layernorm_gelu",
        lambda x, w, b: pt.layernorm(x, w, b, "gelu"),
        lambda x, w, b: gelu(F.layer_norm(x, V, w, b)),
        (X, V, V),
    ),
    Case("layernorm_16", pt.layernorm, lambda x, w, b: F.layer_norm(x, V, w, b), (X, V, V), **HALF),
    Case("rmsnorm", pt.rmsnorm, lambda x, w: F.rms_norm(x, V, w, 1e-6), (X, V)),
    Case("l2norm", pt.l2norm, lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-12).sqrt(), (X,)),
    Case("softmax", pt.softmax, lambda x: F.softmax(x, -1), (X,)),
    Case("softmax_16", pt.softmax, lambda x: F.softmax(x, -1), (X,), **HALF),
    Case(
        "scale_mask_softmax",
        lambda s, m: pt.scale_mask_softmax(s, m, 0.3),
        lambda s, m: F.softmax(0.3 * s + m, -1),
        (X, X),
    ),
    Case("add_gelu", pt.add_gelu, lambda x, y: gelu(x + y), (X, X)),
    Case("add_silu", lambda x, y: pt.add_activation(x, y, "silu"), lambda x, y: F.silu(x + y), (X, X)),
    Case("add_relu", lambda x, y: pt.add_activation(x, y, "relu"), lambda x, y: F.relu(x + y), (X, X)),
    Case("add_mul_exp", pt.add_mul_exp, lambda x, y: torch.exp((x + y) * 2), (X, X), scale=0.3),
    Case("saxpy", lambda x, y: pt.saxpy(2.5, x, y), lambda x, y: 2.5 * x + y, (X, X)),
    Case("swiglu", pt.swiglu, lambda g, u: F.silu(g) * u, (X, X)),
    Case("bias_residual", lambda x, b, r: pt.bias_dropout_residual(x, b, r, 0.0), lambda x, b, r: x + b + r, (X, V, X)),
    Case("matmul", pt.matmul, lambda a, b: a @ b, ((2, 5, 13), (13, 7))),
    Case("matmul_16", pt.matmul, lambda a, b: a @ b, ((2, 5, 13), (13, 7)), **HALF),
    Case("linear", pt.linear, F.linear, ((2, 5, 16), (8, 16), (8,))),
    Case(
        "linear_gelu",
        lambda x, w, b: pt.linear(x, w, b, "gelu"),
        lambda x, w, b: gelu(F.linear(x, w, b)),
        ((5, 16), (8, 16), (8,)),
        **HALF,
    ),
    Case(
        "linear_gelu_odd",
        lambda x, w, b: pt.linear(x, w, b, "gelu"),
        lambda x, w, b: gelu(F.linear(x, w, b)),
        ((5, 13), (7, 13), (7,)),
        **HALF,
    ),
    Case("linear_16", pt.linear, F.linear, ((2, 5, 13), (7, 13), (7,)), **HALF),
    Case(
        "linear_relu",
        lambda x, w, b: pt.linear(x, w, b, "relu"),
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        ((5, 16), (9, 16), (9,)),
        **HALF,
    ),
    Case(
        "linear_residual",
        lambda x, w, r: pt.linear(x, w, residual=r),
        lambda x, w, r: F.linear(x, w) + r,
        ((2, 5, 16), (9, 16), (2, 5, 9)),
        **HALF,
    ),
    Case(
        "linear_silu_residual",
        lambda x, w, b, r: pt.linear(x, w, b, "silu", r),
        lambda x, w, b, r: F.silu(F.linear(x, w, b)) + r,
        ((2, 5, 16), (8, 16), (8,), (2, 5, 8)),
        **HALF,
    ),
    Case(
        "linear_silu_residual_odd",
        lambda x, w, b, r: pt.linear(x, w, b, "silu", r),
        lambda x, w, b, r: F.silu(F.linear(x, w, b)) + r,
        ((5, 13), (7, 13), (7,), (5, 7)),
        **HALF,
    ),
    Case(
        "linear_silu_residual_f32",
        lambda x, w, b, r: pt.linear(x, w, b, "silu", r),
        lambda x, w, b, r: F.silu(F.linear(x, w, b)) + r,
        ((5, 13), (7, 13), (7,), (5, 7)),
    ),
    Case(
        "swiglu_ffn",
        pt.swiglu_ffn,
        lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
        ((2, 4, 32), (64, 32), (64, 32), (32, 64)),
        scale=0.5,
        **HALF,
    ),
    Case(
        "linear_layernorm_gelu",
        pt.linear_layernorm_gelu,
        lambda x, w, b, g, s: gelu(F.layer_norm(F.linear(x, w, b), (32,), g, s)),
        ((2, 4, 64), (32, 64), (32,), (32,), (32,)),
        **HALF,
    ),
    Case(
        "ffn_sublayer",
        pt.ffn_sublayer,
        lambda x, w, b, g, s, r: r + gelu(F.linear(F.layer_norm(x, (64,), g, s), w, b)),
        ((2, 4, 64), (32, 64), (32,), (64,), (64,), (2, 4, 32)),
        scale=0.5,
        **HALF,
    ),
    Case("attention", pt.attention, lambda q, k, v: attend(q, k, v, False), ATTENTION, **HALF),
    Case(
        "attention_causal",
        lambda q, k, v: pt.attention(q, k, v, causal=True),
        lambda q, k, v: attend(q, k, v, True),
        SAME,
        **HALF,
    ),
    Case(
        "attention_scores",
        pt.attention_scores,
        lambda q, k: F.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 8, -1),
        SAME[:2],
        differentiable=False,
        **HALF,
    ),
    Case(
        "quantize_int8",
        lambda x: pt.quantize_int8(x, 0.02, 3.0),
        lambda x: torch.clamp(torch.round(x.float() / 0.02 + 3.0), -128, 127),
        (X,),
        differentiable=False,
        tolerance=0,
    ),
]
BY_NAME = {case.name: case for case in CASES}
