"""The last steps of ptxkit's matrix products, as a peer of CUTLASS's kernels and of the slower products of ptxkit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import ptxkit
from ptxkit.bench.peers.alternatives import Alternatives, Candidate, last_steps_of, same_product
from ptxkit.workload.workload import Workload

PRODUCTS = ("matmul_wgmma", "matmul_mma", "micro_tiling_matmul")  # fastest first
LAST = 3  # number of last steps of each that may be the fastest


class PtxkitGemmPeer(Alternatives):
    """For ``cutlass_gemm``, the last steps of all products; for a product of ptxkit, those of the products that are faster."""

    name = "ptxkit_gemm"
    summary = "ptxkit's own matrix products, the fastest of their last steps"

    def version(self) -> str:
        """See :meth:`Peer.version`."""
        return f"ptxkit {ptxkit.__version__}"

    def candidates(self, workload: Workload) -> Iterable[Candidate]:
        """See :meth:`Alternatives.candidates`."""
        if workload.name in PRODUCTS:
            others = PRODUCTS[: PRODUCTS.index(workload.name)]
        else:
            others = PRODUCTS if workload.name == "cutlass_gemm" else ()
        return chain.from_iterable(last_steps_of(same_product(workload, name), LAST) for name in others)
