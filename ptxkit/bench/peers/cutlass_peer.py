"""CUTLASS, for kernels that are matrix products: the fastest of several schedules."""

from __future__ import annotations

from collections.abc import Iterable

from ptxkit.bench.peers.alternatives import Alternatives, Candidate, same_product, variants_of
from ptxkit.cutlass import package
from ptxkit.errors import UnavailableError
from ptxkit.kernels.gemm.product import gemm_of
from ptxkit.workload.launch import array_spec
from ptxkit.workload.workload import Workload

KERNEL = "cutlass_gemm"
TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class CutlassPeer(Alternatives):
    """A kernel of CUTLASS: multistage, cooperative, pingpong or stream-K, or for f32 on the CUDA cores."""

    name = "cutlass"
    summary = "CUTLASS, the fastest of its schedules"

    def absent(self) -> str | None:
        """See :meth:`Peer.absent`."""
        try:
            package.check()
        except UnavailableError as error:
            return str(error)
        return None

    def version(self) -> str:
        """See :meth:`Peer.version`."""
        return f"CUTLASS {package.VERSION}"

    def candidates(self, workload: Workload) -> Iterable[Candidate]:
        """See :meth:`Alternatives.candidates`."""
        gemm = gemm_of(workload)
        declared = workload.outputs().get(gemm.c) if gemm else None
        if (
            gemm is None
            or declared is None
            or workload.name == KERNEL
            or gemm.bias
            or gemm.compute != "f32"
            or gemm.operands
        ):
            return ()
        dtype = TYPES.get(array_spec(declared)[1].name)
        if dtype is None:
            return ()
        layout = ("n" if gemm.a_transposed else "t") + ("n" if gemm.b_transposed else "t")
        epilogue = "linear" if gemm.activation == "none" else gemm.activation
        options = {"dtype": dtype, "layout": layout, "epilogue": epilogue, "alpha": gemm.alpha}
        return variants_of(same_product(workload, KERNEL, **options))
