"""layernorm_backward: dx, dgamma and dbeta of activation(layernorm), from x, dy, the weights and the stored statistics."""

from __future__ import annotations

from typing import ClassVar, Literal

from ptxkit import Launch, Tile, variant
from ptxkit.kernels.rows import backward, backward_one_launch


class LayernormBackward(backward.Gradients):
    """Gradients of layernorm and its activation: one read of x and dy and one write of dx, and sums over rows.

    With an activation, dy is first multiplied by its derivative, for which the normalized row is scaled and shifted again.
    """

    source = "layernorm_backward.cu"
    norm: ClassVar[str] = "layernorm"
    centered: ClassVar[bool] = True
    eps: ClassVar[float] = 1e-5
    activation: Literal["none", "relu", "gelu"] = "none"

    @variant
    def unfused(self) -> list[Launch]:
        """Nine launches, with an activation ten, one per operation, through device memory."""
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
