"""rmsnorm_backward: dx and dgamma of rmsnorm, from x, dy, gamma and the forward kernel's statistics."""

from __future__ import annotations

from typing import ClassVar

from ptxkit import Launch, Tile, variant
from ptxkit.kernels.rows import backward, backward_one_launch


class RmsnormBackward(backward.Gradients):
    """Gradients of rmsnorm: one read of x and dy and one write of dx, and sums over rows."""

    source = "rmsnorm_backward.cu"
    norm: ClassVar[str] = "rmsnorm"
    centered: ClassVar[bool] = False
    eps: ClassVar[float] = 1e-6

    @variant
    def unfused(self) -> list[Launch]:
        """Seven launches, one per operation, through device memory."""
        return backward.unfused(self)

    @variant
    def fused(self) -> list[Launch]:
        """Two launches: dx with one CTA per row, then sums over rows with 32 columns per CTA; bit-identical to unfused."""
        return backward.fused(self)

    @variant(tile=backward.TILE_VECTORIZED, constraint=backward.usable, prefer=backward.preferred)
    def vectorized(self, t: Tile) -> list[Launch]:
        """One pass: persistent CTAs, prefetched rows, partial sums in registers, which a second launch adds up."""
        return backward.vectorized(self, t)

    @variant(
        tile=backward.TILE_PIPELINED,
        constraint=backward.usable,
        prefer=backward.preferred_pipelined,
        requires=("tma",),
        slower=backward.slower_one_by_one,
    )
    def pipelined(self, t: Tile) -> list[Launch]:
        """As vectorized, with rows that TMA prefetches."""
        return backward.vectorized(self, t)

    @variant(
        tile=backward_one_launch.TILE,
        constraint=backward_one_launch.usable,
        prefer=backward_one_launch.preferred,
        slower=backward_one_launch.slower,
    )
    def one_launch(self, t: Tile) -> list[Launch]:
        """One launch, in which some CTAs compute dx and others the sums over rows, from x and dy in L2."""
        return backward_one_launch.launches(self, t)
