"""rmsnorm_backward: dx and dgamma of rmsnorm, from x, dy, gamma and what the forward kernel kept."""

from __future__ import annotations

from typing import ClassVar

from ptxkit import Launch, Tile, variant
from ptxkit.kernels.rows import backward


class RmsnormBackward(backward.Gradients):
    """Gradients of rmsnorm: one read of x and dy and one write of dx, with sums over rows beside."""

    source = "rmsnorm_backward.cu"
    norm: ClassVar[str] = "rmsnorm"
    centered: ClassVar[bool] = False
    eps: ClassVar[float] = 1e-6

    @variant
    def unfused(self) -> list[Launch]:
        """Seven launches: normalized, weighted, product, its mean, combined, product, its sum over rows."""
        return backward.unfused(self)

    @variant
    def fused(self) -> list[Launch]:
        """Two launches: dx with one CTA a row, sums over rows with 32 columns a CTA; bit for bit what unfused gives."""
        return backward.fused(self)

    @variant(tile=backward.TILE, constraint=backward.usable, prefer=backward.preferred)
    def vectorized(self, t: Tile) -> list[Launch]:
        """One reading for all: CTAs that stay, rows copied ahead, partial sums in registers; then those are added up."""
        return backward.vectorized(self, t)

    @variant(
        tile=backward.TILE_PIPELINED, constraint=backward.usable, prefer=backward.preferred_pipelined, requires=("tma",)
    )
    def pipelined(self, t: Tile) -> list[Launch]:
        """The same, with rows copied ahead by the TMA unit."""
        return backward.vectorized(self, t)
