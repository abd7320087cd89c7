"""The uninitialised bits of a register in each lane, and the origin of the uninitialised value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes, Mask


@dataclass(frozen=True)
class Shadow:
    """The undefined bits of a value. A value that is wholly defined has no Shadow; None stands for it.

    Attributes:
        bits: lane array of an unsigned type, or of bool for a predicate; bits that are undefined are set. For 128-bit values
            all bits stand for all of the value.
        origin: number of the :class:`~ptxkit.emulator.initcheck.origins.Origin` of each lane; 0 where no bit is set.
    """

    bits: Lanes
    origin: NDArray[np.int32]

    @property
    def lanes(self) -> Mask:
        """The lanes that have an undefined bit."""
        return self.bits != 0
