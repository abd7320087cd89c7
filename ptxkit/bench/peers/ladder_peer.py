"""The last steps of ptxkit's matrix products, as a peer of the kernels that CUTLASS generates, and of each other."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import ptxkit
from ptxkit.bench.peers.alternatives import Alternatives, Candidate, last_steps_of, same_product
from ptxkit.workload.workload import Workload

LADDERS = ("matmul_wgmma", "matmul_mma", "micro_tiling_matmul")  # fastest first
LAST = 3  # number of last steps of each that may be the fastest


class LadderPeer(Alternatives):
    """The fastest of the hand-written steps for a kernel of CUTLASS; for a hand-written kernel, those that are faster."""

    name = "ladder"
    summary = "ptxkit's own matrix products, the fastest of their last steps"

    def version(self) -> str:
        """See :meth:`Peer.version`."""
        return f"ptxkit {ptxkit.__version__}"

    def candidates(self, workload: Workload) -> Iterable[Candidate]:
        """See :meth:`Alternatives.candidates`."""
        if workload.name in LADDERS:
            others = LADDERS[: LADDERS.index(workload.name)]
        else:
            others = LADDERS if workload.name == "cutlass_gemm" else ()
        return chain.from_iterable(last_steps_of(same_product(workload, name), LAST) for name in others)
