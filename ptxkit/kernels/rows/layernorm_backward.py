"""layernorm_backward: dx, dgamma and dbeta of layernorm, from x, dy, gamma and what the forward kernel kept."""

from __future__ import annotations

from typing import ClassVar

from ptxkit import Launch, Tile, variant
from ptxkit.kernels.rows import backward


class LayernormBackward(backward.Gradients):
    """Gradients of layernorm: one read of x and dy and one write of dx, with sums over rows beside."""

    source = "layernorm_backward.cu"
    norm: ClassVar[str] = "layernorm"
    centered: ClassVar[bool] = True
    eps: ClassVar[float] = 1e-5

    @variant
    def unfused(self) -> list[Launch]:
        """Nine launches: normalized, weighted, product, its mean, weighted's mean, combined, product, two sums over rows."""
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
