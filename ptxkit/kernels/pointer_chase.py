"""pointer_chase: the latency of a load from L1, L2, device memory, shared memory, and shared memory of another CTA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Work, Workload, cdiv, variant

LINE_WORDS = 32  # 32-bit words of a line of 128 bytes
LINE_BYTES = 4 * LINE_WORDS
LINK_THREADS = 256
MOST_LINES = 1 << 24
WARP = 32


def fits_in_shared(w: PointerChase, t: Tile) -> bool | str:
    """The chain must fit in the shared memory of a CTA."""
    most = w.device.target.limits.shared_bytes_per_cta // LINE_BYTES
    return w.lines <= most or f"requires lines <= {most}: the chain is in shared memory"


class PointerChase(Workload):
    """A chain of dependent loads: the time of a step is the latency of a load.

    The chain visits all lines of 128 bytes in a random order. Where the lines fit in L1 (256 of them are 32 KB), global_ca
    reads from L1 and global_cg from L2. Where they have many times the size of L2, both read from device memory: the launch
    before writes to all lines, and as many of them as fit in L2 are read from there.
    """

    source = "pointer_chase.cu"
    lines: int = 256
    steps: int = 100_000
    emulator_sizes = {"lines": 64, "steps": 1000}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        order = rng.permutation(self.lines).astype(np.uint32)  # one cycle through all lines
        following = np.empty(self.lines, np.uint32)
        following[order] = np.roll(order, -1)
        return {"next": np.repeat(following[:, None], LINE_WORDS, 1)}

    def outputs(self) -> Mapping[str, Any]:
        return {"end": (1, "u32")}

    def temporaries(self) -> Mapping[str, Any]:
        return {"table": (self.lines * LINE_WORDS // 2, "u64")}

    def reference(self, next: np.ndarray[Any, Any]) -> dict[str, Any]:
        following = next[:, 0]
        at, left, walked = 0, self.steps, 0
        while left:
            at, left, walked = int(following[at]), left - 1, walked + 1
            if at == 0:  # a whole cycle
                left, walked = left % walked, 0
        return {"end": np.array([at], np.uint32)}

    def work(self) -> Work:
        return Work(flops=0, bytes=4 * self.steps)

    def constraints(self) -> Iterable[str]:
        if self.lines > MOST_LINES:
            yield f"lines must be at most {MOST_LINES}, which are {MOST_LINES * LINE_BYTES >> 30} GiB"

    def linked(self, chase: str) -> list[Launch]:
        """The launch that writes the addresses, and the one that follows them."""
        link = Launch(
            "chase_link",
            cdiv(self.lines, LINK_THREADS),
            LINK_THREADS,
            ("next", "table", self.lines),
            template=(LINK_THREADS,),
        )
        return [link, Launch("chase_global", 1, WARP, ("table", "end", self.steps), template=(chase,))]

    @variant
    def global_cg(self) -> list[Launch]:
        """ld.global.cg, which L1 does not cache."""
        return self.linked("false")

    @variant
    def global_ca(self) -> list[Launch]:
        """ld.global.ca: L1 where the lines fit there."""
        return self.linked("true")

    @variant(tile={"CTAS": [2]}, constraint=fits_in_shared, requires=["sm_90"])
    def remote_shared(self, t: Tile) -> list[Launch]:
        """ld.shared::cluster from the other CTA of a cluster."""
        return [self.in_shared("chase_remote", t.CTAS)]

    @variant(tile={"CTAS": [1]}, constraint=fits_in_shared)
    def shared(self, t: Tile) -> list[Launch]:
        """ld.shared."""
        return [self.in_shared("chase_shared", t.CTAS)]

    def in_shared(self, kernel: str, ctas: int) -> Launch:
        """The launch of a kernel with the chain in the shared memory of each CTA."""
        arguments = ("next", "end", self.lines, self.steps)
        shared = LINE_BYTES * self.lines
        return Launch(kernel, ctas, WARP, arguments, shared=shared, cluster=ctas if ctas > 1 else None)
