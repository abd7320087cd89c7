"""two_stage_pipeline: y = gelu(x) * gate through shared memory: the next tile is copied while this one is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxkit import Launch, Tile, variant
from ptxkit.kernels.pipelines.gate import Gate, resident

TILE = {
    "THREADS": [512, 256, 128, 1024],  # threads of a CTA
    "QUADS": [4, 2, 1],  # a tile is THREADS * QUADS times 16 bytes of each array
    "CTAS": [1, 2, 4, 8],  # resident CTAs of an SM
}


def shared_bytes(t: Tile, arrays: int) -> int:
    """Dynamic shared memory of a CTA with ``arrays`` tiles, in bytes."""
    return int(16 * t.THREADS * t.QUADS * arrays)


def usable(arrays: int) -> Callable[[Any, Tile], bool | str]:
    """A constraint."""
    return lambda w, t: resident(w, t, shared_bytes(t, arrays), t.THREADS)


class TwoStagePipeline(Gate):
    """gelu(x) * gate with one buffer, with two, and with two that TMA loads and stores."""

    source = "two_stage_pipeline.cu"

    def launch(self, kernel: str, t: Tile, arrays: int) -> list[Launch]:
        """A launch of a kernel with ``arrays`` tiles in shared memory."""
        grid = self.ctas(t.THREADS * t.QUADS, t.CTAS)
        args = ("x", "gate", "y", self.n // 4)
        template = (t.THREADS, t.QUADS)
        return [Launch(kernel, grid, t.THREADS, args, shared=shared_bytes(t, arrays), template=template)]

    @variant(requires=("sm_80",), tile=TILE, constraint=usable(2))
    def serial(self, t: Tile) -> list[Launch]:
        """One buffer: copy, wait, compute. Nothing overlaps within a CTA."""
        return self.launch("serial", t, 2)

    @variant(requires=("sm_80",), tile=TILE, constraint=usable(4))
    def two_stage(self, t: Tile) -> list[Launch]:
        """Two buffers and cp.async groups."""
        return self.launch("two_stage", t, 4)

    @variant(requires=("tma",), tile=TILE, constraint=usable(6))
    def bulk(self, t: Tile) -> list[Launch]:
        """Two buffers that TMA loads and stores, with one mbarrier each."""
        return self.launch("bulk", t, 6)
