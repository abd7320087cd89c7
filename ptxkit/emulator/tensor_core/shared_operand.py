"""Multiplicands of wgmma in shared memory: checks of bounds and proxy fences, and their elements."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Addresses, Index, Lanes
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core import numerics
from ptxkit.emulator.tensor_core.warpgroups import Warpgroups
from ptxkit.emulator.tensor_core.wgmma_descriptors import Descriptor, tile
from ptxkit.errors import MemoryFault


class SharedOperand:
    """A multiplicand in shared memory.

    Args:
        name: ``"A"`` or ``"B"``.
        t: element type.
        extent: rows of A or columns of B.
        k: elements along K.
        mn_major: ``imm-trans`` is 1.
        negated: ``imm-scale`` is -1.
    """

    def __init__(self, name: str, t: str, extent: int, k: int, mn_major: bool, negated: bool) -> None:
        self.name = name
        self.t = t
        self.extent = extent
        self.k = k
        self.mn_major = mn_major
        self.negated = negated
        self.k_bytes = k * numerics.BITS[t] // 8

    def check(self, x: Group, groups: Warpgroups, descriptors: Addresses, where: Where) -> None:
        """Every tile must lie in the CTA's shared memory, visible to the async proxy.

        Raises:
            MemoryFault: a tile is outside of shared memory, or not visible.
        """
        end = SHARED_BASE + x.wave.launch.shared_bytes
        for bits in {int(d) for d in descriptors} if descriptors.size > 1 else {int(descriptors[0])}:
            found = tile(bits, self.extent, self.k_bytes, self.mn_major)
            if found.low < SHARED_BASE or found.high > end:
                e = int(np.flatnonzero(descriptors == np.uint64(bits))[0])
                cta = x.wave.cta_coordinates(int(groups.cta[e]))
                thread = x.wave.thread_coordinates(int(groups.warp[e]) * 32)
                why = (
                    f"reaches {found.high - end} bytes past the end of the CTA's {end - SHARED_BASE:,} bytes of shared memory"
                    if found.high > end
                    else "starts below the CTA's shared memory"
                )
                raise MemoryFault(
                    f"{where}: {self.name} of the warpgroup of thread {thread} of CTA {cta} {why}; "
                    f"descriptor {bits:#018x}: {Descriptor.parse(bits)}"
                )
            for writes in x.wave.generic_writes:
                having = np.flatnonzero(descriptors == np.uint64(bits))
                rows = self._chunks(bits) + (groups.cta[having] * (x.wave.shared_stride >> 4))[:, None]
                unseen = writes.unseen_rows(rows)
                if unseen.any():
                    e = int(having[np.argmax(unseen)])
                    cta = x.wave.cta_coordinates(int(groups.cta[e]))
                    thread = x.wave.thread_coordinates(int(groups.warp[e]) * 32)
                    raise MemoryFault(
                        f"{where}: {self.name} of the warpgroup of thread {thread} of CTA {cta}: "
                        f"{writes.reason(rows[int(np.argmax(unseen))])}"
                    )

    def load(self, wave: WaveState, cta: Index, descriptors: Addresses) -> tuple[Lanes, Index]:
        """The distinct tiles, (U, extent, k) float32, and each element's tile number. MN-major tiles are transposed views."""
        stride = wave.shared_stride >> 4
        kinds, kind = np.unique(descriptors, return_inverse=True) if descriptors.size > 1 else (descriptors, None)
        if kind is None or len(kinds) == 1:
            homes, which = np.unique(cta, return_inverse=True)
            chunks = self._chunks(kinds[0]) + (homes * stride)[:, None]
        else:
            _, first, which = np.unique(cta * len(kinds) + kind, return_index=True, return_inverse=True)
            tables = np.stack([self._chunks(d) for d in kinds])
            chunks = tables[kind[first]] + (cta[first] * stride)[:, None]
        # complex128 is used as a type of 16 bytes, so that take() copies them as one element
        words = wave.shared.view(np.complex128).take(chunks).view(np.uint32)
        values = numerics.decode(words, self.t)
        if self.mn_major:
            values = values.reshape(-1, self.k, self.extent).transpose(0, 2, 1)
        else:
            values = values.reshape(-1, self.extent, self.k)
        return (-values if self.negated else values), which

    def chunks(self, wave: WaveState, cta: Index, descriptors: Addresses) -> Index:
        """(E, n): indices of the 16-byte units of each element's tile in the wave's shared memory."""
        tables = np.stack([self._chunks(d) for d in descriptors])
        return tables + (cta * (wave.shared_stride >> 4))[:, None]

    def _chunks(self, bits: int) -> Index:
        return tile(int(bits), self.extent, self.k_bytes, self.mn_major).chunks.reshape(-1)
