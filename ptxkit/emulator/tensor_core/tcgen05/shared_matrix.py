"""Matrices in shared memory for tcgen05.mma and tcgen05.cp: checks of bounds and proxy fences, and their elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import BITS
from ptxkit.emulator.tensor_core.tcgen05.matrix_descriptors import (
    ATOM_32,
    Descriptor,
    Tile,
    k_major,
    mn_major,
    refusal,
)
from ptxkit.errors import MemoryFault, TrapError


@dataclass(frozen=True)
class SharedMatrix:
    """A multiplicand in shared memory, or the part of it that one CTA has.

    Attributes:
        name: ``"A"`` or ``"B"``.
        t: element type.
        extent: rows of A, or columns of B.
        k: elements of a row along K.
        padded: elements of fewer than 8 bits lie in units of 16, each followed by padding to 16 bytes.
        mn_major: the bit for it in the instruction descriptor.
    """

    name: str
    t: str
    extent: int
    k: int
    padded: bool
    mn_major: bool

    @property
    def slot(self) -> int:
        """Average number of bits that an element occupies."""
        return 8 if self.padded else BITS[self.t]

    def refusal(self, bits: int, target: int) -> str:
        """Why a descriptor is invalid for this matrix; "" if it is valid."""
        why = refusal(bits, target)
        swizzle = Descriptor.parse(bits).swizzle
        if why or not self.mn_major:
            return why
        if Descriptor.parse(bits).absolute:
            return "bit 52 (absolute leading dimension) is set, which K-major matrices alone have"
        if (self.slot == 32) != (swizzle == ATOM_32):
            return (
                f"bits 61 to 63 are {swizzle}; an MN-major matrix of {self.t} has "
                f"{'1 (128-byte swizzle of 32-byte units)' if self.slot == 32 else 'another swizzle than 1'}"
            )
        return ""

    def tile(self, bits: int) -> Tile:
        """The 16-byte chunks of the matrix."""
        if self.mn_major:
            return mn_major(bits, self.extent, 128 // self.slot, self.k)
        return k_major(bits, self.extent, self.k * self.slot // 8)

    def check(self, wave: WaveState, cta: int, bits: int, target: int, where: Where, who: str) -> None:
        """Check that the descriptor is valid, and that the matrix is in the CTA's shared memory and visible to the async proxy.

        Raises:
            TrapError, MemoryFault: it does not.
        """
        why = self.refusal(bits, target)
        if why:
            raise TrapError(f"{where}: {who}: the descriptor {bits:#018x} of {self.name}: {why}")
        require_visible(wave, cta, self.tile(bits), f"{self.name}, given by {bits:#018x}", bits, where, who)

    def chunks(self, wave: WaveState, cta: int, bits: int) -> NDArray[np.int64]:
        """Indices of the 16-byte units of the matrix in the wave's shared memory."""
        return self.tile(bits).chunks.reshape(-1) + cta * (wave.shared_stride >> 4)

    def load(self, wave: WaveState, cta: int, bits: int) -> Lanes:
        """Load the elements: (extent, k) unsigned codes."""
        found = self.tile(bits)
        # complex128 is used as a type of 16 bytes, so that take() copies them as one element
        units = wave.shared.view(np.complex128).take(found.chunks + cta * (wave.shared_stride >> 4)).view(np.uint8)
        codes = elements(units, BITS[self.t], self.padded)
        return codes[:, : self.extent].T if self.mn_major else codes


def require_visible(wave: WaveState, cta: int, found: Tile, what: str, bits: int, where: Where, who: str) -> None:
    """Check that a tile is in the CTA's shared memory, and visible to the async proxy.

    Raises:
        MemoryFault: it does not.
    """
    end = SHARED_BASE + wave.launch.shared_bytes
    if found.low < SHARED_BASE or found.high > end:
        why = (
            f"reaches {found.high - end} bytes past the end of the CTA's {end - SHARED_BASE:,} bytes of shared memory"
            if found.high > end
            else "starts below the CTA's shared memory"
        )
        raise MemoryFault(f"{where}: {who}: {what} in CTA {wave.cta_coordinates(cta)}, {why}; {Descriptor.parse(bits)}")
    for writes in wave.generic_writes:
        rows = found.chunks.reshape(1, -1) + cta * (wave.shared_stride >> 4)
        if writes.unseen_rows(rows).any():
            raise MemoryFault(f"{where}: {who}: {what} in CTA {wave.cta_coordinates(cta)}: {writes.reason(rows[0])}")


def elements(units: Lanes, bits: int, padded: bool) -> Lanes:
    """(rows, elements) codes from (rows, bytes) uint8, a multiple of 16 bytes, low bits first.

    Args:
        bits: of an element.
        padded: 16 bytes hold 16 elements of fewer than 8 bits, in the low bytes.
    """
    units = np.ascontiguousarray(units)
    if bits >= 8:
        return units.view(f"u{bits // 8}")
    groups = units.reshape(len(units), -1, 16)
    used = groups[..., : 2 * bits] if padded else groups
    if bits == 4:
        codes = np.stack((used & 15, used >> 4), axis=-1)
    else:
        three = used.reshape(*used.shape[:-1], -1, 3).astype(np.uint32)
        word = three[..., 0] | three[..., 1] << 8 | three[..., 2] << 16
        codes = (word[..., None] >> np.arange(0, 24, 6, dtype=np.uint32) & 63).astype(np.uint8)
    return codes.reshape(len(units), -1)
