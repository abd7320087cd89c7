"""cuSPARSELt through torch, for products with 2:4 sparse matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ptxkit.bench.peers import torch_ops
from ptxkit.bench.peers.base import PeerCall
from ptxkit.bench.peers.tensors import Torch
from ptxkit.bench.peers.torch_ops import TorchOp
from ptxkit.bench.peers.torch_peer import TorchPeer
from ptxkit.errors import UnavailableError
from ptxkit.kernels.gemm.product import gemm_of
from ptxkit.workload.registry import is_bundled
from ptxkit.workload.workload import Workload

GATED = "sparse_swiglu_ffn"


class CusparseltPeer(TorchPeer):
    """``torch._cslt_sparse_mm`` with the algorithm that its search selects; b is compressed once, before it is timed."""

    name = "cusparselt"
    summary = "cuSPARSELt through PyTorch, with its algorithm search"

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        if is_bundled(workload) and workload.name == GATED:
            return True
        gemm = gemm_of(workload)
        return gemm is not None and gemm.sparse == "b" and gemm.b_transposed and gemm.plain and gemm.alpha == 1

    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """See :meth:`Peer.prepare`."""
        torch = self.torch(inputs)
        library = getattr(torch.module.backends, "cusparselt", None)
        if library is None or not library.is_available():
            raise UnavailableError(f"torch {torch.module.__version__} has no cuSPARSELt")
        call = super().prepare(workload, inputs)
        product = self._latest.function if self._latest else None
        if not isinstance(product, (SparseProduct, SparseGatedFfn)):
            return call

        def renew() -> None:
            with torch.current():
                product.renew()

        return replace(call, note=product.note, renew=renew)

    def made(self, function: Callable[..., Any], definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """See :meth:`TorchPeer.made`."""
        if definition.outputs == torch_ops.OPS[GATED].outputs:
            return SparseGatedFfn(torch.module)
        return SparseProduct(torch.module)


class SparseProduct:
    """a b^T with a dense a (m, k) and a 2:4 sparse b (n, k), as dense tensors.

    cuSPARSELt's sparse matrix is the first operand: it computes b a^T, and stores the transpose of it.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.compressed: dict[int, tuple[Any, Any]] = {}  # address of b -> b, and b as cuSPARSELt stores it
        self.algorithm: tuple[Any, ...] | None = None  # alg_id and, where torch's search gives them, how k is split

    def __call__(self, a: Any, b: Any) -> Any:
        """The product. b is compressed when it is first seen, and the algorithm is searched with the first one."""
        address = b.data_ptr()
        if address not in self.compressed:
            self.compressed[address] = b, self.torch._cslt_compress(b)
        common = (self.compressed[address][1], a.t(), None, None, self.output(a), True)
        if self.algorithm is None:
            self.algorithm = self.search(common)
        return self.torch._cslt_sparse_mm(*common, *self.algorithm)

    def renew(self) -> None:
        """Compress each b again, into the same memory, which captured graphs read."""
        for b, compressed in self.compressed.values():
            compressed[...] = self.torch._cslt_compress(b)

    def search(self, common: tuple[Any, ...]) -> tuple[Any, ...]:
        """The fastest algorithm: (alg_id, split_k, its mode), or in earlier versions of torch (alg_id,)."""
        search = getattr(getattr(self.torch._C, "_cusparselt", None), "mm_search", None)
        if search is not None:
            alg_id, split_k, mode, _ = search(*common)
            return alg_id, split_k, mode
        return (self.torch._cslt_sparse_mm_search(*common),)

    def output(self, a: Any) -> Any:
        """Element type of the result: bf16 for 8-bit types; None, which means that of a, for others, which torch demands."""
        return self.torch.bfloat16 if a.element_size() == 1 else None

    @property
    def note(self) -> str:
        """The algorithm, for the table."""
        names = ("alg_id", "split_k", "split_k_mode")
        return " ".join(f"{name}={value}" for name, value in zip(names, self.algorithm or (), strict=False))


class SparseGatedFfn:
    """(silu(x gate^T) * (x up^T)) down^T: three products, each with an algorithm of its own, and torch's silu and product."""

    def __init__(self, torch: Any) -> None:
        self.silu = torch.nn.functional.silu
        self.products = {name: SparseProduct(torch) for name in ("gate", "up", "down")}

    def __call__(self, x: Any, gate: Any, up: Any, down: Any) -> Any:
        """The layer."""
        h = self.silu(self.products["gate"](x, gate)) * self.products["up"](x, up)
        return self.products["down"](h, down)

    def renew(self) -> None:
        """See :meth:`SparseProduct.renew`."""
        for product in self.products.values():
            product.renew()

    @property
    def note(self) -> str:
        """The algorithms, for the table."""
        return ", ".join(f"{name}: {product.note}" for name, product in self.products.items())
