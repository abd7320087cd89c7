"""Finds accesses to tensor memory that conflict with accesses that may not be complete.

PTX ISA, "Memory Consistency Model for 5th generation of TensorCore operations". Two asynchronous instructions are
ordered where they form a pipeline (mma after mma, cp or shift; shift after mma), or where the program has waited for
the first one:

- for mma, cp and shift by ``tcgen05.commit`` and the mbarrier's phase;
- for ld and st by ``tcgen05.wait::ld`` and ``tcgen05.wait::st``.

An access that conflicts with one that is not complete is an error here, which names both instructions. Cells are 16
lanes of one column: what the narrowest layouts use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import RaceError
from ptxkit.targets.sm import TENSOR_MEMORY_COLUMNS, TENSOR_MEMORY_LANES

LANES, COLUMNS = TENSOR_MEMORY_LANES, TENSOR_MEMORY_COLUMNS
"""Size of the tensor memory of an SM."""
BAND = 16
BANDS = LANES // BAND

Kind = Literal["write", "read", "load", "store"]
"""Writes and reads are those of mma, cp and shift; loads and stores those of tcgen05.ld and tcgen05.st."""

_FIX = {
    "write": "let a thread wait for the mbarrier of its tcgen05.commit first",
    "read": "let a thread wait for the mbarrier of its tcgen05.commit first",
    "load": "put tcgen05.wait::ld after the load",
    "store": "put tcgen05.wait::st after the store",
}
_VERB = {"write": "writes", "read": "reads", "load": "reads", "store": "writes"}


@dataclass(frozen=True)
class Region:
    """Cells of one SM's tensor memory.

    Attributes:
        sm: index of the SM in the wave.
        bands: groups of 16 lanes.
        low, high: columns.
    """

    sm: int
    bands: tuple[int, ...]
    low: int
    high: int


@dataclass(eq=False)
class Access:
    """One access in flight.

    Attributes:
        number: the number that stands for it in the cells.
        kind: see :data:`Kind`.
        where: its instruction.
        who: the text that names the thread or warp that issued it.
    """

    number: int
    kind: Kind
    where: Where
    who: str
    regions: tuple[Region, ...]


class Accesses:
    """The accesses in flight of a wave.

    Args:
        sms: how many SMs the wave's CTAs are on.
    """

    def __init__(self, sms: int) -> None:
        kinds: tuple[Kind, ...] = ("write", "read", "load", "store")
        self._cells: dict[Kind, NDArray[np.int32]] = {k: np.zeros((sms, BANDS, COLUMNS), np.int32) for k in kinds}
        self._open: dict[int, Access] = {}
        self._issued = 0

    def begin(self, kind: Kind, where: Where, who: str, regions: tuple[Region, ...]) -> Access:
        """An access has been issued."""
        self._issued += 1
        access = Access(self._issued, kind, where, who, regions)
        self._open[access.number] = access
        for r in regions:
            self._cells[kind][r.sm, r.bands, r.low : r.high] = access.number
        return access

    def end(self, access: Access) -> None:
        """The access is complete."""
        del self._open[access.number]
        for r in access.regions:
            cells = self._cells[access.kind][r.sm, r.bands, r.low : r.high]
            if (cells == access.number).any():
                self._cells[access.kind][r.sm, r.bands, r.low : r.high] = np.where(cells == access.number, 0, cells)

    def require(self, kinds: tuple[Kind, ...], where: Where, who: str, verb: str, regions: tuple[Region, ...]) -> None:
        """Check that no access of these kinds to the regions is in flight.

        Raises:
            RaceError: there is one.
        """
        if not self._open:
            return
        for r in regions:
            for kind in kinds:
                cells = self._cells[kind][r.sm, r.bands, r.low : r.high]
                if cells.any():
                    raise RaceError(self._message(cells, kind, where, who, verb, r))

    def _message(self, cells: Lanes, kind: Kind, where: Where, who: str, verb: str, r: Region) -> str:
        column = r.low + int(np.argmax(cells.any(0)))
        earlier = self._open[int(cells[cells != 0][0])]
        return (
            f"{where}: {who} {verb} tensor memory from column {column} on, which {earlier.where} of {earlier.who} "
            f"{_VERB[kind]}; that is not known to be complete: {_FIX[kind]}"
        )
