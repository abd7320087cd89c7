"""Scale factors of block-scaled tcgen05.mma."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Lanes


@dataclass(frozen=True)
class Scales:
    """Scale factors of A's rows and of B's rows.

    Attributes:
        a, b: (U, M, S) and (U, N, S) uint8.
        t: ``"ue8m0"`` or ``"ue4m3"``.
        width: columns of A that one applies to; those that a sparse A leaves out included.
    """

    a: Lanes
    b: Lanes
    t: str
    width: int

    @classmethod
    def of(
        cls,
        kind: str,
        known: tuple[tuple[str, int], ...],
        a: Lanes | None,
        b: Lanes | None,
        t: str | None,
        block: int | None,
        shape: tuple[int, int, int, int],
        sparse: bool,
    ) -> Scales:
        """Scale factors as a kind has them.

        Args:
            kind: its name.
            known: types and blocks that it has.
            a, b: the factors of A and of B.
            t, block: type and elements of K that one applies to; None where the kind has one only.
            shape: U, M, N, K.
            sparse: A is an expanded sparse matrix.

        Raises:
            ValueError: a type, a block or a shape that does not fit.
        """
        possible = [s for s in known if t in (None, s[0]) and block in (None, s[1])]
        if len(possible) != 1:
            choices = ", ".join(f"{name} of {size}" for name, size in known)
            raise ValueError(f"scale factors of type {t} for blocks of {block}; kind {kind} has {choices}")
        t, block = possible[0]
        width = 2 * block if sparse else block
        u, m, n, k = shape
        if k % width:
            raise ValueError(f"K is {k}; with blocks of {block} it is a multiple of {width}")
        for name, rows, given in (("A", m, a), ("B", n, b)):
            if given is None or given.shape != (u, rows, k // width):
                found = None if given is None else given.shape[1:]
                raise ValueError(f"scale factors of {name} have shape {found}; expected {(rows, k // width)}")
        return cls(np.asarray(a, np.uint8), np.asarray(b, np.uint8), t, width)

    @property
    def not_numbers(self) -> Lanes:
        """(U, M, N) bool: where a scale factor of A's or of B's row is NaN."""
        nan = 0xFF if self.t == "ue8m0" else 0x7F
        rows, columns = (((s & nan) == nan).any(2) for s in (self.a, self.b))
        return rows[:, :, None] | columns[:, None, :]
