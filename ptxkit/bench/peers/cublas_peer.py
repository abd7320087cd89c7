"""cuBLAS, for kernels that are matrix products."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from ptxkit.bench.peers.base import Peer, PeerCall
from ptxkit.bench.peers.cublas import TYPES, Cublas
from ptxkit.kernels.gemm.product import gemm_of
from ptxkit.runtime.gpu.device import GpuDevice
from ptxkit.workload.launch import array_spec
from ptxkit.workload.workload import Workload

DISTRIBUTION = "nvidia-cublas"


class CublasPeer(Peer):
    """cublasGemmEx with its default algorithm; f32 without tf32; products without epilogue."""

    name = "cublas"
    summary = "cuBLAS, cublasGemmEx"

    def __init__(self) -> None:
        super().__init__()
        self._cublas: Cublas | None = None

    def absent(self) -> str | None:
        """See :meth:`Peer.absent`. The wheel has no module of that name, so the distribution is checked."""
        try:
            importlib.metadata.version(DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError:
            return f"cuBLAS is not installed; pip install {DISTRIBUTION}"
        return None

    def version(self) -> str:
        """See :meth:`Peer.version`."""
        return f"cuBLAS {importlib.metadata.version(DISTRIBUTION)}"

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        gemm = gemm_of(workload)
        return gemm is not None and gemm.plain and not gemm.operands and _output(workload) is not None

    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """See :meth:`Peer.prepare`."""
        device: GpuDevice = self.enter(inputs)
        gemm, spec = gemm_of(workload), _output(workload)
        assert gemm is not None
        assert spec is not None
        if self._cublas is None or self._cublas.device is not device:
            self._cublas = Cublas(device)
        c = device.empty(*spec, gemm.c)
        launch = self._cublas.gemm(gemm, inputs[gemm.a], inputs[gemm.b], c)
        return PeerCall(launch=launch, outputs={gemm.c: c}, host_bound=False)


def _output(workload: Workload) -> tuple[tuple[int, ...], Any] | None:
    """Shape and dtype of the product, if cuBLAS supports the type."""
    gemm = gemm_of(workload)
    declared = workload.outputs().get(gemm.c) if gemm else None
    spec = array_spec(declared) if declared else None
    return spec if spec and spec[1].name in TYPES else None
