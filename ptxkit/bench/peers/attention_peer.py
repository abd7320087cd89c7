"""The implementations among which torch's scaled_dot_product_attention selects one, each on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ptxkit.bench.peers.tensors import Torch
from ptxkit.bench.peers.torch_ops import TorchOp
from ptxkit.bench.peers.torch_peer import TorchPeer
from ptxkit.workload.workload import Workload


class FlashAttentionPeer(TorchPeer):
    """The FlashAttention-2 that torch contains."""

    name = "flash_attention"
    summary = "PyTorch, scaled_dot_product_attention by FlashAttention"
    backend: ClassVar[str] = "FLASH_ATTENTION"  # of torch.nn.attention.SDPBackend

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        return workload.name == "attention" and super().offers(workload)

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
