"""The bundled kernels as operations on torch tensors, and kernels of one's own: ``import ptxkit.torch``.

It needs torch 2.11 or newer. ``import ptxkit`` alone does not import torch. docs/torch.md has the examples.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError(
        "ptxkit.torch needs torch, which is not installed here: pip install 'ptxkit[torch]'", name="torch"
    )

from ptxkit.torch.description import operation
from ptxkit.torch.functions import (
    add_activation,
    add_activation_backward,
    add_gelu,
    add_mul_exp,
    attention,
    attention_backward,
    attention_e4m3,
    attention_scores,
    bias_dropout_residual,
    ffn_sublayer,
    l2norm,
    layernorm,
    layernorm_backward,
    layernorm_quantize,
    linear,
    linear_layernorm_gelu,
    matmul,
    quantize_int8,
    rmsnorm,
    rmsnorm_backward,
    saxpy,
    scale_mask_softmax,
    softmax,
    softmax_backward,
    swiglu,
    swiglu_backward,
    swiglu_ffn,
)
from ptxkit.torch.modules import FFN, LayerNorm, Linear, RMSNorm, SwiGLU

__all__ = [
    "FFN",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "SwiGLU",
    "add_activation",
    "add_activation_backward",
    "add_gelu",
    "add_mul_exp",
    "attention",
    "attention_backward",
    "attention_e4m3",
    "attention_scores",
    "bias_dropout_residual",
    "ffn_sublayer",
    "l2norm",
    "layernorm",
    "layernorm_backward",
    "layernorm_quantize",
    "linear",
    "linear_layernorm_gelu",
    "matmul",
    "operation",
    "quantize_int8",
    "rmsnorm",
    "rmsnorm_backward",
    "saxpy",
    "scale_mask_softmax",
    "softmax",
    "softmax_backward",
    "swiglu",
    "swiglu_backward",
    "swiglu_ffn",
]
