"""cuSPARSELt through torch: the products that it offers, and its calls of torch, which numpy arrays replace here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxkit.bench.peers import torch_ops
from ptxkit.bench.peers.cublas_peer import CublasPeer
from ptxkit.bench.peers.cusparselt_peer import CusparseltPeer, SparseGatedFfn, SparseProduct
from ptxkit.bench.peers.cutlass_peer import CutlassPeer
from ptxkit.kernels.gemm.matmul_sparse import MatmulSparse
from ptxkit.kernels.gemm.matmul_tcgen05 import MatmulTcgen05
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.kernels.gemm.sparse_swiglu_ffn import SparseSwigluFfn
from ptxkit.kernels.gemm.swiglu_ffn import SwigluFfn


def test_it_offers_products_with_compressed_weights():
    peer = CusparseltPeer()
    assert peer.offers(MatmulSparse())
    assert peer.offers(MatmulSparse(dtype="e4m3"))
    assert not peer.offers(MatmulSparse(weights="dense"))  # the other variants multiply a matrix that has been pruned already
    assert peer.offers(SparseSwigluFfn())
    assert not peer.offers(SwigluFfn())
    assert not peer.offers(MatmulWgmma())


def test_cublas_and_cutlass_offer_no_products_of_8_bit_types():
    for kernel in (MatmulSparse, MatmulTcgen05):
        for peer in (CublasPeer(), CutlassPeer()):
            assert peer.offers(kernel())
            assert not peer.offers(kernel(dtype="e4m3"))


class Array(np.ndarray):
    """A numpy array with those methods of a tensor that the product uses."""

    def data_ptr(self) -> int:
        return self.ctypes.data

    def element_size(self) -> int:
        return self.itemsize

    def t(self) -> Any:
        return self.T


class FakeTorch:
    """The functions of torch, on numpy arrays; ``calls`` records their names and the algorithm."""

    bfloat16 = "bfloat16"

    def __init__(self, searches: bool) -> None:
        self.calls: list[Any] = []
        self._C = SimpleNamespace(_cusparselt=SimpleNamespace(mm_search=self.mm_search) if searches else None)

    def mm_search(self, *args: Any) -> tuple[int, int, int, int]:
        self.calls.append("mm_search")
        return 3, 2, 1, 40

    def _cslt_sparse_mm_search(self, *args: Any) -> int:
        self.calls.append("search")
        return 5

    def _cslt_compress(self, b: Any) -> Any:
        self.calls.append("compress")
        return b.copy()

    def _cslt_sparse_mm(self, b: Any, a: Any, bias: Any, alpha: Any, out: Any, transposed: bool, *algorithm: Any) -> Any:
        assert bias is None and alpha is None and transposed
        self.calls.append(algorithm)
        return (b @ a).T


@pytest.mark.parametrize(
    ("searches", "algorithm", "note"),
    [(True, (3, 2, 1), "alg_id=3 split_k=2 split_k_mode=1"), (False, (5,), "alg_id=5")],
)
def test_it_compresses_each_b_once_and_searches_once(searches, algorithm, note):
    torch = FakeTorch(searches)
    product = SparseProduct(torch)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 8)).astype(np.float32).view(Array)
    first, second = (rng.standard_normal((5, 8)).astype(np.float32).view(Array) for _ in range(2))
    for b in (first, first, second):
        np.testing.assert_allclose(product(a, b), a @ b.T)
    search = "mm_search" if searches else "search"
    assert torch.calls == ["compress", search, algorithm, algorithm, "compress", algorithm]
    assert product.note == note


def test_another_b_in_the_same_memory_is_compressed_again():
    """A captured graph reads the compressed b at the address that it had when the graph was captured."""
    product = SparseProduct(FakeTorch(searches=False))
    a, b = (np.ones(shape, np.float32).view(Array) for shape in ((3, 8), (5, 8)))
    product(a, b)
    ((_, captured),) = product.compressed.values()
    b *= 2
    product.renew()
    np.testing.assert_array_equal(captured, b)


def test_the_products_of_a_gated_layer_are_searched_one_by_one():
    torch = FakeTorch(searches=True)
    torch.nn = SimpleNamespace(functional=SimpleNamespace(silu=lambda x: x / (1 + np.exp(-x))))
    layer = SparseGatedFfn(torch)
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 8), "gate": (12, 8), "up": (12, 8), "down": (8, 12)}
    given = {name: rng.standard_normal(shape).astype(np.float32).view(Array) for name, shape in shapes.items()}
    gate = given["x"] @ given["gate"].T
    h = gate / (1 + np.exp(-gate)) * (given["x"] @ given["up"].T)
    for _ in range(2):
        np.testing.assert_allclose(layer(**given), h @ given["down"].T, rtol=1e-5)
    assert torch.calls.count("compress") == torch.calls.count("mm_search") == 3
    assert layer.note.startswith("gate: alg_id=3") and "down: alg_id=3" in layer.note
    definition = torch_ops.find(SparseSwigluFfn())
    assert isinstance(CusparseltPeer().made(None, definition, SimpleNamespace(module=torch)), SparseGatedFfn)
    product = torch_ops.find(MatmulSparse())
    assert isinstance(CusparseltPeer().made(None, product, SimpleNamespace(module=torch)), SparseProduct)
