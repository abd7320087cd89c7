"""The implementations among which torch's scaled_dot_product_attention selects one, each on its own, and flex_attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from ptxkit.bench.peers import torch_ops
from ptxkit.bench.peers.compile_peer import CompilePeer
from ptxkit.bench.peers.tensors import Torch
from ptxkit.bench.peers.torch_ops import TorchOp, attention_gradients
from ptxkit.bench.peers.torch_peer import TorchPeer
from ptxkit.kernels.attention.attention import Attention
from ptxkit.kernels.attention.attention_backward import AttentionBackward
from ptxkit.workload.workload import Workload


class FlashAttentionPeer(TorchPeer):
    """The FlashAttention-2 that torch contains."""

    name = "flash_attention"
    summary = "PyTorch, scaled_dot_product_attention by FlashAttention"
    backend: ClassVar[str] = "FLASH_ATTENTION"  # of torch.nn.attention.SDPBackend

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        if isinstance(workload, AttentionBackward) and workload.shared_heads != workload.heads:
            return False  # the operators have no option for heads that share keys
        return workload.name in ("attention", "attention_backward") and super().offers(workload)

    def written(self, workload: Workload, definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """See :meth:`TorchPeer.written`. Gradients have an operator of their own for each implementation."""
        if workload.name == "attention_backward":
            return attention_gradients(workload, torch.module, self.backend)
        return super().written(workload, definition, torch)

    def made(self, function: Callable[..., Any], definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """See :meth:`TorchPeer.made`."""
        attention = torch.module.nn.attention
        backend = getattr(attention.SDPBackend, self.backend)

        def selected(*arguments: Any) -> Any:
            with attention.sdpa_kernel(backend):
                return function(*arguments)

        return selected


class CudnnAttentionPeer(FlashAttentionPeer):
    """The attention of cuDNN, through torch."""

    name = "cudnn_attention"
    summary = "PyTorch, scaled_dot_product_attention by cuDNN"
    backend = "CUDNN_ATTENTION"


class EfficientAttentionPeer(FlashAttentionPeer):
    """The memory-efficient attention of xFormers that torch contains."""

    name = "efficient_attention"
    summary = "PyTorch, scaled_dot_product_attention by memory-efficient attention"
    backend = "EFFICIENT_ATTENTION"

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`. Heads that share keys are for the other implementations only."""
        forward = isinstance(workload, Attention) and workload.shared_heads == workload.heads
        return forward and super().offers(workload)


class MathAttentionPeer(FlashAttentionPeer):
    """The product, the softmax and the second product one after the other."""

    name = "math_attention"
    summary = "PyTorch, scaled_dot_product_attention by separate operations"
    backend = "MATH"

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        return isinstance(workload, Attention) and super().offers(workload)


class FlexAttentionPeer(CompilePeer):
    """torch's flex_attention: a Triton template that torch.compile completes with the mask."""

    name = "flex_attention"
    summary = "PyTorch, flex_attention through torch.compile"

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        return isinstance(workload, Attention) and super().offers(workload)

    def written(self, workload: Workload, definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """See :meth:`TorchPeer.written`. The table of blocks that a causal mask leaves out is made once, before the calls."""
        with torch.current():
            return torch_ops.flexible_attention(workload, f"cuda:{torch.device.index}")

    def made(self, function: Callable[..., Any], definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """See :meth:`TorchPeer.made`. The mode that tries several configurations of the template."""
        return super().made(function, replace(definition, mode="max-autotune-no-cudagraphs"), torch)
