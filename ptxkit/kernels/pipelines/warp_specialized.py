"""warp_specialized: y = gelu(x) * gate with producer warps that copy and consumer warps that compute."""

from __future__ import annotations

from typing import Any

from ptxkit import Launch, Tile, variant
from ptxkit.kernels.pipelines.gate import Gate, resident

TILE = {
    "CONSUMERS": [512, 256, 128],  # threads that compute
    "QUADS": [2, 4, 1],  # a tile is CONSUMERS * QUADS times 16 bytes of each array
    "CTAS": [1, 2, 4, 8],  # resident CTAs of an SM
}


def shared_bytes(t: Tile) -> int:
    """Dynamic shared memory of a CTA in bytes: two arrays per stage."""
    return int(32 * t.CONSUMERS * t.QUADS * t.get("STAGES", 1))


def threads(t: Tile) -> int:
    """Threads of a CTA."""
    return int(t.CONSUMERS + t.get("PRODUCERS", 0))


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of every variant."""
    return resident(w, t, shared_bytes(t), threads(t))


class WarpSpecialized(Gate):
    """gelu(x) * gate without overlap, and with producer and consumer warps that use named barriers or mbarriers."""

    source = "warp_specialized.cu"

    def launch(self, kernel: str, t: Tile, *more: str) -> list[Launch]:
        """A launch of a kernel with the template arguments CONSUMERS, QUADS and ``more``."""
        grid = self.ctas(t.CONSUMERS * t.QUADS, t.CTAS)
        args = ("x", "gate", "y", self.n // 4)
        template = tuple(t[name] for name in ("CONSUMERS", "QUADS", *more))
        return [Launch(kernel, grid, threads(t), args, shared=shared_bytes(t), template=template)]

    @variant(requires=("sm_80",), tile=TILE, constraint=usable)
    def serial(self, t: Tile) -> list[Launch]:
        """All warps copy, then all compute. Nothing overlaps within a CTA."""
        return self.launch("serial", t)

    @variant(requires=("sm_80",), tile={**TILE, "PRODUCERS": [128, 64, 32], "STAGES": [3, 2, 4]}, constraint=usable)
    def named_barriers(self, t: Tile) -> list[Launch]:
        """Producer warps and consumer warps, two named barriers per buffer."""
        return self.launch("named_barriers", t, "PRODUCERS", "STAGES")

    @variant(requires=("tma",), tile={**TILE, "PRODUCERS": [32], "STAGES": [4, 2, 3]}, constraint=usable)
    def mbarriers(self, t: Tile) -> list[Launch]:
        """One producer thread with TMA, two mbarriers per buffer."""
        return self.launch("mbarriers", t, "STAGES")
