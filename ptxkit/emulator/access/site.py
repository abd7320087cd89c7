"""Sites: the objects that perform the accesses of one memory instruction. This module has what all state spaces share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Addresses, Lanes, Mask
from ptxkit.emulator.memory.pattern import Pattern
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import MemoryFault

UNITS: dict[int, np.dtype] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64), 16: np.dtype(np.complex128)}
"""Size in bytes -> a numpy type of that size. Scattering such values is several times faster than scattering short rows."""

Loaded: TypeAlias = Lanes | tuple[Lanes, ...]
"""The result of a load: one lane array, or one for each element of a vector."""


def widen(address: Lanes) -> Addresses:
    """Converts addresses to uint64.

    An address of 32 bits and its offset are added modulo 2^32, and compilers generate negative addresses with offsets that
    make them positive again. Addresses in the windows of 32 bits are below 2^31, so that extending the sign gives the same.
    """
    return address.astype(np.uint64 if address.dtype.itemsize == 8 else np.int32, copy=False).astype(np.uint64, copy=False)


def scoped(ordering: str, scope: str) -> str:
    """Memory semantics with their scope, if it lacks the other CTAs of the cluster: ``relaxed.cta``; else ``relaxed``."""
    return f"{ordering}.cta" if ordering and scope == "cta" else ordering


class Site(ABC):
    """Base class of the sites of all state spaces.

    Args:
        where: the instruction and its position, for messages.
        number: its number in the program, for the counters.
        offset: constant byte offset from the address operand.
        dtype, count: element type, and elements per lane (1, 2, 4, 8).
        write: a store, reduction or atomic.
    """

    space = ""
    """The kind of access for the counters: one of :data:`ptxkit.emulator.counters.tally.SPACES`."""

    ordering = ""
    """The semantics of a strong access: relaxed, acquire, release or acq_rel; "" for a weak one. See :func:`scoped`."""

    def __init__(self, where: Where, number: int, offset: int, dtype: DTypeLike, count: int, write: bool) -> None:
        self.where = where
        self.number = number
        self.offset = offset
        self.dtype = np.dtype(dtype)
        self.count = count
        self.size = self.dtype.itemsize * count
        self.shift = self.size.bit_length() - 1
        self.nbytes = self.size  # bytes that a lane accesses
        self.write = write

    @abstractmethod
    def load(self, x: Group, base: Addresses) -> Loaded:
        """Lane arrays of the loaded elements."""

    @abstractmethod
    def store(self, x: Group, base: Addresses, values: tuple[Lanes, ...]) -> None:
        """Write one row per lane."""

    def remember(self, x: Group, base: Addresses, mask: Mask | None) -> Pattern:
        """The address pattern of ``base``. Each worker thread caches one for each site."""
        p = x.tally.patterns.get(self.number)
        if p is None or not p.matches(base, mask, x.c):
            p = x.tally.patterns[self.number] = Pattern(base, mask, self.size, x.c)
        return p

    def rows(self, flat: Lanes) -> Lanes:
        """Elements of ``dtype`` as one row per access."""
        if self.count == 1:
            return flat
        n = len(flat) // self.count
        return flat[: n * self.count].reshape(n, self.count)

    def columns(self, rows: Lanes, shape: tuple[int, ...]) -> Loaded:
        """Loaded rows as one lane array, or a tuple of them."""
        if self.count == 1:
            return rows.reshape(shape)
        rows = rows.reshape(*shape, self.count)
        return tuple(np.ascontiguousarray(rows[..., k]) for k in range(self.count))

    def stack(self, x: Group, values: tuple[Lanes, ...]) -> Lanes:
        """Values to store, one row per lane of the selection."""
        if self.count == 1:
            return np.broadcast_to(values[0], x.shape)
        return np.stack([np.broadcast_to(v, x.shape) for v in values], axis=-1)

    def packed(self, x: Group, values: tuple[Lanes, ...]) -> tuple[Lanes, np.dtype | None]:
        """The values to store, and the type as which memory is viewed for them; None for rows of ``dtype``."""
        data = self.stack(x, values)
        unit = UNITS.get(self.size) if self.count > 1 else None
        return (data, None) if unit is None else (data.view(unit)[..., 0], unit)

    def fail(self, x: Group, addresses: Addresses, bad: Mask, why: Callable[[int], str]) -> NoReturn:
        """Raise the fault of the first lane in ``bad``; ``why`` makes the text from its address."""
        bad = np.broadcast_to(bad, x.shape) & x.active()
        cta, thread = x.first(bad)
        address = int(np.broadcast_to(addresses, x.shape)[bad][0])
        x.wave.flush_output()
        linear = thread[0] + x.wave.launch.block[0] * (thread[1] + x.wave.launch.block[1] * thread[2])
        verb = "writes" if self.write else "reads"
        raise MemoryFault(
            f"{self.where}: lane {linear % 32} of warp {linear // 32} of CTA {cta}, thread {thread}, {verb} {self.size} bytes "
            f"at {address:#x}: {why(address)}; launched {x.wave.launch.describe()}"
        )

    def misaligned(self, address: int) -> str:
        """The text for an address that is not a multiple of the access size."""
        return f"misaligned, {self.size}-byte accesses need a multiple of {self.size}"
