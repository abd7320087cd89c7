"""Tensor memory: 128 lanes by 512 columns of 32 bits on each SM, which CTAs allocate in columns. PTX ISA, "Tensor
Memory".

The CTAs of a wave are distributed over as many SMs as the machine has, one after the other, as hardware distributes
the CTAs of a grid; those that share an SM share its tensor memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.memory.allocations import POISON
from ptxkit.emulator.simt.asynchronous import Pending
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.tcgen05.accesses import COLUMNS, LANES, Accesses, Region
from ptxkit.errors import MemoryFault, TrapError

POISONED = np.uint32(int.from_bytes(bytes([POISON]) * 4, "little"))
UNDEFINED = np.uint32(0xFFFFFFFF)
UNIT = 32
"""Columns are allocated in multiples of this number."""
PARTITION = 32
"""Number of lanes that a warp can access."""
PARTITIONS = LANES // PARTITION


@dataclass(frozen=True)
class Columns:
    """An allocation of columns.

    Attributes:
        cta: index in the wave of the CTA that it belongs to.
        group: CTAs that allocated together, 1 or 2.
        where: the instruction.
    """

    cta: int
    start: int
    count: int
    group: int
    where: Where


class _Leaks(Pending):
    """Checks at the end of a wave that all columns were deallocated."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.memory: TensorMemory | None = None

    def finish(self) -> None:
        if self.memory is not None:
            self.memory.require_empty()


_LEAKS: Mechanism[_Leaks] = Mechanism("tensor memory", _Leaks)


class TensorMemory:
    """The tensor memory of the SMs that a wave's CTAs are on.

    Attributes:
        words: (SMs, 128, 512) uint32.
        sm: (CTAs,) index of each CTA's SM.
        tracked: accesses in flight are followed: unless completion is eager, and where races are checked.
        accesses: the accesses in flight.
        shadow: the uninitialised bits of the same columns; None if they are not tracked.
    """

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        ctas, size = wave.shape[0], wave.launch.cluster_size
        sms = min(ctas, max(wave.launch.sms // size * size, size))
        self.words: NDArray[np.uint32] = np.zeros((sms, LANES, COLUMNS), np.uint32)
        self.sm: NDArray[np.int64] = np.arange(ctas, dtype=np.int64) % sms
        self.owner: NDArray[np.int32] = np.zeros((sms, COLUMNS), np.int32)  # 0: free; else 1 + the CTA
        self.tracked = not wave.queue.eager or any(races.compares for races in wave.races)
        self.accesses = Accesses(sms)
        self.shadow: TensorMemory | None = None
        self._allocations: dict[tuple[int, int], Columns] = {}
        self._groups: dict[int, tuple[int, Where]] = {}
        wave.queue.of(_LEAKS).memory = self

    # -- allocations -------------------------------------------------------------------------------------------------

    def free_range(self, ctas: list[int], count: int) -> int | None:
        """First of ``count`` adjacent columns that are free on the SMs of all of ``ctas``; None if there are none."""
        taken = (self.owner[self.sm[ctas]] != 0).any(0).reshape(-1, UNIT).any(1)
        units = count // UNIT
        for start in range(COLUMNS // UNIT - units + 1):
            if not taken[start : start + units].any():
                return start * UNIT
        return None

    def allocate(self, ctas: list[int], start: int, count: int, where: Where) -> None:
        """Allocate columns for each of ``ctas``; their contents are uninitialised."""
        for cta in ctas:
            sm = self.sm[cta]
            self.owner[sm, start : start + count] = cta + 1
            self.words[sm, :, start : start + count] = POISONED
            if self.shadow is not None:
                self.shadow.words[sm, :, start : start + count] = UNDEFINED
            self._allocations[cta, start] = Columns(cta, start, count, len(ctas), where)

    def allocation(self, cta: int, start: int) -> Columns | None:
        """The allocation of ``cta`` that begins at column ``start``."""
        return self._allocations.get((cta, start))

    def release(self, columns: Columns) -> None:
        """Free the columns of an allocation."""
        self.owner[self.sm[columns.cta], columns.start : columns.start + columns.count] = 0
        del self._allocations[columns.cta, columns.start]

    def held(self, cta: int) -> list[Columns]:
        """The allocations of the CTAs on the SM of ``cta``."""
        return [a for a in self._allocations.values() if self.sm[a.cta] == self.sm[cta]]

    def require_empty(self) -> None:
        """Check that no columns are allocated; called when all threads have exited.

        Raises:
            MemoryFault: columns are still allocated.
        """
        for a in self._allocations.values():
            raise MemoryFault(
                f"{a.where}: CTA {self.wave.cta_coordinates(a.cta)} exits with {a.count} columns of tensor memory that it "
                "has allocated here; tcgen05.dealloc has to free them"
            )

    def follow(self, wave: WaveState) -> None:
        """Begin to track uninitialised bits; ``wave`` executes instructions on them."""
        if self.shadow is None:
            self.shadow = TensorMemory(wave)
            self.shadow.words[:] = UNDEFINED
            self.shadow.owner, self.shadow._allocations = self.owner, self._allocations
            wave.provide(TensorMemory, self.shadow)

    # -- use ---------------------------------------------------------------------------------------------------------

    def use_group(self, cta: int, group: int, where: Where) -> None:
        """Check that all tcgen05 instructions of a kernel have the same cta_group.

        Raises:
            TrapError: ``cta`` has executed an instruction with the other cta_group.
        """
        first = self._groups.setdefault(cta, (group, where))
        if first[0] != group:
            raise TrapError(
                f"{where}: CTA {self.wave.cta_coordinates(cta)} has executed {first[1]}; all tcgen05 instructions of a kernel "
                "must have the same .cta_group"
            )

    def require_columns(self, cta: int, low: int, count: int, where: Where, who: str, verb: str) -> None:
        """Check that the columns are allocated by ``cta``.

        Raises:
            MemoryFault: they are not.
        """
        high = low + count
        end = min(max(high, 0), COLUMNS)
        owner = self.owner[self.sm[cta], min(max(low, 0), COLUMNS) : end]
        if low >= 0 and high <= COLUMNS and (owner == cta + 1).all():
            return
        if low < 0 or high > COLUMNS:
            why = f"tensor memory has columns 0 to {COLUMNS - 1}"
        else:
            k = int(np.argmax(owner != cta + 1))
            other = int(owner[k]) - 1
            why = (
                f"column {low + k} belongs to CTA {self.wave.cta_coordinates(other)} on the same SM"
                if other >= 0
                else f"column {low + k} is not allocated"
            )
        raise MemoryFault(f"{where}: {who} {verb} columns {low} to {high - 1} of tensor memory; {why}")

    def regions(self, cta: int, bands: Iterable[int], low: int, high: int) -> tuple[Region, ...]:
        """The cells of these lanes and columns in the tensor memory of a CTA."""
        return (Region(int(self.sm[cta]), tuple(bands), low, high),)


def address(value: int) -> tuple[int, int]:
    """Lane and column of a tensor memory address. PTX ISA, "Tensor Memory Addressing"."""
    return value >> 16, value & 0xFFFF
