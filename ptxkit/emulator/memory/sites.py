"""One site per memory instruction: finds the bytes its lanes address, checks them, and remembers the address pattern.

Address patterns repeat: the next iteration of a loop, and the next wave, touch the same addresses shifted by a constant. A site
keeps the last pattern relative to its first lane, with what follows from it (extent, element indices, sectors, bank
conflicts), and most executions only compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.engine.binder import Where
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, Allocation
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.memory.traffic import local_sectors, sectors, wavefronts
from ptxkit.errors import MemoryFault

if TYPE_CHECKING:
    from ptxkit.emulator.engine.threads import Group

UNITS: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64), 16: np.dtype(np.complex128)}
"""A type of so many bytes whose values numpy copies as they are: scattering these is several times faster than short rows."""

CLUSTER_RANK_SHIFT = 24
"""From this bit on a shared address holds the CTA's rank in its cluster, as on sm_90. 0 is also what shared::cta needs."""
_RANK_BITS = np.uint64(0xFF << CLUSTER_RANK_SHIFT)


class Pattern:
    """Relative byte offsets of a set of lanes, and what follows from them."""

    __slots__ = (
        "base",
        "bits",
        "c",
        "contiguous",
        "first",
        "high",
        "indices",
        "low",
        "mask",
        "offsets",
        "remote",
        "shape",
        "units",
    )

    def __init__(self, base: Any, mask: Any, size: int, c: Any) -> None:
        self.base = base
        self.mask = mask
        self.c = c
        self.shape = base.shape
        flat = base.reshape(-1)
        self.first = 0 if mask is None else int(np.argmax(np.broadcast_to(mask, base.shape)))
        origin = flat[self.first]
        if mask is not None:
            base = np.where(mask, base, origin)
        self.offsets: NDArray[np.uint64] = base - origin
        signed = self.offsets.view(np.int64)
        self.low = int(signed.min())
        self.high = int(signed.max())
        self.bits = int(np.bitwise_or.reduce(self.offsets, axis=None))
        indices = (signed - self.low) >> (size.bit_length() - 1)
        n = indices.size
        self.contiguous = (
            mask is None
            and n * size == self.high - self.low + size
            and int(signed.reshape(-1)[0]) == self.low
            and bool((indices.reshape(-1) == np.arange(n)).all())
        )
        self.indices = indices
        self.units: dict[Any, Any] = {}
        self.remote: Any = None  # lanes that access shared memory of another CTA, if any do

    def matches(self, base: Any, mask: Any, c: Any) -> bool:
        """Whether ``base`` differs from the remembered addresses by one constant."""
        if mask is not self.mask or base.shape != self.shape or c is not self.c:
            return False
        if base is self.base:
            return True
        offsets = base - base.reshape(-1)[self.first]
        same = offsets == self.offsets
        return bool(same.all()) if mask is None else bool((same | ~mask).all())


class Site:
    """What the sites of all spaces share.

    Args:
        where: names the instruction.
        number: its number in the program, for the counters.
        offset: constant byte offset from the address operand.
        dtype, count: element type, and elements per lane (1, 2, 4, 8).
        write: a store, reduction or atomic.
    """

    space = ""
    """What its accesses are counted as: one of :data:`ptxkit.emulator.counters.tally.SPACES`."""

    ordering = ""
    """How a strong access orders others: relaxed, acquire, release or acq_rel; "" for a weak one."""

    def __init__(self, where: Where, number: int, offset: int, dtype: Any, count: int, write: bool) -> None:
        self.where = where
        self.number = number
        self.offset = offset
        self.dtype = np.dtype(dtype)
        self.count = count
        self.size = self.dtype.itemsize * count
        self.shift = self.size.bit_length() - 1
        self.nbytes = self.size  # that a lane moves
        self.write = write

    def remember(self, x: Group, base: Any, mask: Any) -> Pattern:
        """The pattern of ``base``; the worker keeps one per site, so that workers do not overwrite each other's."""
        p = x.tally.patterns.get(self.number)
        if p is None or not p.matches(base, mask, x.c):
            p = x.tally.patterns[self.number] = Pattern(base, mask, self.size, x.c)
        return p

    def rows(self, flat: Any) -> Any:
        """Elements of ``dtype`` as one row per access."""
        if self.count == 1:
            return flat
        n = len(flat) // self.count
        return flat[: n * self.count].reshape(n, self.count)

    def columns(self, rows: Any, shape: tuple[int, ...]) -> Any:
        """Loaded rows as one lane array, or a tuple of them."""
        if self.count == 1:
            return rows.reshape(shape)
        rows = rows.reshape(*shape, self.count)
        return tuple(np.ascontiguousarray(rows[..., k]) for k in range(self.count))

    def stack(self, x: Group, values: tuple[Any, ...]) -> Any:
        """Values to store, one row per lane of the selection."""
        if self.count == 1:
            return np.broadcast_to(values[0], x.shape)
        return np.stack([np.broadcast_to(v, x.shape) for v in values], axis=-1)

    def packed(self, x: Group, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """Values to store, and the type that memory is seen as to take them: None for rows of ``dtype``."""
        data = self.stack(x, values)
        unit = UNITS.get(self.size) if self.count > 1 else None
        return (data, None) if unit is None else (data.view(unit)[..., 0], unit)

    def fail(self, x: Group, addresses: Any, bad: Any, why: Any) -> NoReturn:
        """Raise the fault of the first lane in ``bad``; ``why`` maps its address to words."""
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
        """Words for an address that is not a multiple of the access size."""
        return f"misaligned, {self.size}-byte accesses need a multiple of {self.size}"


class GlobalSite(Site):
    """Global and constant memory, and kernel parameters by address."""

    space = "global"

    def locate(self, x: Group, base: Any, mask: Any) -> tuple[Allocation, int, Pattern]:
        """The allocation that holds every address, the element index of the lowest, and the pattern.

        Raises:
            MemoryFault: out of bounds, misaligned, null or freed.
        """
        p = self.remember(x, base, mask)
        origin = int(base.reshape(-1)[p.first]) + self.offset
        memory = x.wave.launch.machine.memory
        low = origin + p.low
        a = memory.find(low)
        if a is None or origin + p.high + self.size > a.base + a.nbytes or (p.bits | origin) & (self.size - 1):
            self._explain(x, base, memory)
            raise LookupError  # several allocations, all accesses fine
        return a, (low - a.base) >> self.shift, p

    def _explain(self, x: Group, base: Any, memory: Any) -> None:
        addresses = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).astype(np.uint64)
        active = np.broadcast_to(addresses, x.shape)
        bad = (active & np.uint64(self.size - 1)) != 0
        if (bad & x.active()).any():
            self.fail(x, addresses, bad, self.misaligned)
        outside = ~memory.inside(active, self.size) & x.active()
        if outside.any():
            self.fail(x, addresses, outside, lambda address: memory.explain(address, self.size))

    def count_traffic(self, x: Group, p: Pattern, origin: int) -> None:
        """Add this execution to the counters."""
        tally = x.tally
        units = 0
        if tally.traffic:
            key = origin & 31
            memo = p.units.get(key)
            if memo is None or x.mask is not memo[1] or x.shape != memo[2]:
                addresses = p.offsets + np.uint64(origin)
                memo = (sectors(addresses, self.size, x.mask, x.shape), x.mask, x.shape)
                p.units[key] = memo
            units = memo[0]
        tally.access(self.number, self.space, x.lanes * self.size, units, 0, 0, x.lanes)

    def load(self, x: Group, base: Any) -> Any:
        """Lane arrays of the loaded elements, in the shape of ``base``."""
        mask = x.covers(base.shape)
        if self.ordering and x.wave.races is not None:
            x.wave.races.flagged(x, base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF), self.ordering, False)
        if mask is not None and not x.lanes:
            return self.columns(np.zeros((base.size, self.count), self.dtype), base.shape)
        try:
            a, start, p = self.locate(x, base, mask)
        except LookupError:
            return self._load_scattered(x, base, mask)
        rows = self.rows(a.typed(self.dtype))
        if p.contiguous:
            got = rows[start : start + p.indices.size].copy()
        else:
            got = rows[start:].take(p.indices.reshape(-1), axis=0)
        self.count_traffic(x, p, int(base.reshape(-1)[p.first]) + self.offset)
        return self.columns(got, base.shape)

    def store(self, x: Group, base: Any, values: tuple[Any, ...]) -> None:
        """Write one row per lane; of lanes that address the same element the highest wins."""
        if base.shape != x.shape:
            base = np.broadcast_to(base, x.shape)
        if self.ordering and x.wave.races is not None:
            x.wave.races.flagged(x, base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF), self.ordering, True)
        machine = x.wave.launch.machine
        machine.version += 1
        try:
            a, start, p = self.locate(x, base, x.mask)
        except LookupError:
            self._store_scattered(x, base, values)
            return
        data, unit = self.packed(x, values)
        rows = self.rows(a.typed(self.dtype)) if unit is None else a.typed(unit)
        if p.contiguous:
            rows[start : start + p.indices.size] = data.reshape(-1, *data.shape[3:])
        elif x.mask is None:
            rows[start:][p.indices] = data
        else:
            rows[start:][p.indices[x.mask]] = data[x.mask]
        self.count_traffic(x, p, int(base.reshape(-1)[p.first]) + self.offset)

    def _load_scattered(self, x: Group, base: Any, mask: Any) -> Any:
        """Lanes that address several allocations."""
        out = np.zeros((base.size, self.count), self.dtype)
        addresses = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).reshape(-1)
        chosen = np.arange(base.size) if mask is None else np.flatnonzero(np.broadcast_to(mask, base.shape))
        for a, lanes in x.wave.launch.machine.memory.partition(addresses[chosen]):
            at = chosen[lanes]
            rows = a.typed(self.dtype)
            rows = rows[: len(rows) // self.count * self.count].reshape(-1, self.count)
            out[at] = rows[((addresses[at] - np.uint64(a.base)) >> np.uint64(self.shift)).view(np.int64)]
        self._count_scattered(x, base)
        return self.columns(out if self.count > 1 else out[:, 0], base.shape)

    def _store_scattered(self, x: Group, base: Any, values: tuple[Any, ...]) -> None:
        addresses = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).reshape(-1)
        chosen = np.flatnonzero(x.active())
        data = self.stack(x, values).reshape(-1, self.count)
        for a, lanes in x.wave.launch.machine.memory.partition(addresses[chosen]):
            at = chosen[lanes]
            rows = a.typed(self.dtype)
            rows = rows[: len(rows) // self.count * self.count].reshape(-1, self.count)
            rows[((addresses[at] - np.uint64(a.base)) >> np.uint64(self.shift)).view(np.int64)] = data[at]
        self._count_scattered(x, base)

    def _count_scattered(self, x: Group, base: Any) -> None:
        addresses = base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
        units = sectors(addresses, self.size, x.mask, x.shape) if x.tally.traffic else 0
        x.tally.access(self.number, self.space, x.lanes * self.size, units, 0, 0, x.lanes)


class SharedSite(Site):
    """Shared memory of the executing CTA, or of its cluster."""

    space = "shared"
    cluster = False

    def _flat(self, x: Group, base: Any) -> tuple[Any, Pattern, int]:
        """Byte offsets in the wave's shared memory as a pattern, and the lowest element's index."""
        wave = x.wave
        address = base.astype(np.uint64) if base.dtype != np.uint64 else base
        if wave.ranked and not self.cluster:
            address = self._without_rank(x, address)
        mask = x.covers(address.shape)
        own = self.remember(x, address, mask)
        if wave.ranked and self.cluster:
            return self._remote(x, address, mask, SHARED_BASE + wave.launch.shared_bytes, own)
        origin = int(address.reshape(-1)[own.first]) + self.offset
        low, high = origin + own.low, origin + own.high + self.size
        if SHARED_WINDOW <= low < SHARED_WINDOW + WINDOW_BYTES:
            low, high, origin = low - SHARED_WINDOW, high - SHARED_WINDOW, origin - SHARED_WINDOW
        end = SHARED_BASE + wave.launch.shared_bytes
        if low < wave.launch.shared_begin or high > end or (own.bits | origin) & (self.size - 1):
            if self.cluster and high >> CLUSTER_RANK_SHIFT:
                return self._remote(x, address, mask, end, own)
            self._explain(x, address, end)
        key = (x.shape, wave.shared_stride)
        memo = own.units.get(("index", key))
        if memo is None:
            memo = (x.cta * (wave.shared_stride >> self.shift)) + own.indices
            own.units["index", key] = memo
        return memo, own, low >> self.shift

    def _without_rank(self, x: Group, address: Any) -> Any:
        """Addresses of the executing CTA, which may hold its rank, as offsets; the same for all CTAs where they can be."""
        own = self.own_rank(x).astype(np.uint64) << np.uint64(CLUSTER_RANK_SHIFT)
        address = np.where(address & _RANK_BITS == own, address - own, address)
        if not x.rows and len(address) > 1 and (address[1:] == address[:-1]).all():
            return np.ascontiguousarray(address[:1])
        return address

    def own_rank(self, x: Group) -> Any:
        """Rank of the executing CTAs, int64, broadcastable to the group's shape."""
        return x.select(x.wave.cluster_rank[:, None, None])

    def _remote(self, x: Group, address: Any, mask: Any, end: int, known: Pattern) -> tuple[Any, Pattern, int]:
        """The same for addresses that name CTAs of the cluster."""
        wave = x.wave
        first = int(address.reshape(-1)[known.first])
        key = ("remote", x.shape, wave.shared_stride)
        memo = known.units.get(key)
        if memo is not None:
            index, pattern, origin, low, high = memo
            step = first - origin
            # the same pattern further on in the same CTAs
            if not step & (self.size - 1) and low + step >= SHARED_BASE and high + step + self.size <= end:
                start = step >> self.shift
                return (index, pattern, start) if start >= 0 else (np.maximum(index + start, 0), pattern, 0)
        full = address + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
        full = np.where(full >= np.uint64(SHARED_WINDOW), full - np.uint64(SHARED_WINDOW), full)
        rank = (full >> np.uint64(CLUSTER_RANK_SHIFT)).astype(np.int64)
        offset = (full & np.uint64((1 << CLUSTER_RANK_SHIFT) - 1)).astype(np.int64)
        active = x.active()
        bad = (offset < SHARED_BASE) | (offset + self.size > end) | (rank >= wave.launch.cluster_size)
        bad = bad | ((offset & (self.size - 1)) != 0)
        if (bad & active).any():
            self.fail(
                x,
                full,
                bad,
                lambda a: (
                    f"outside the {wave.launch.shared_bytes:,} bytes of shared memory of CTA rank "
                    f"{a >> CLUSTER_RANK_SHIFT} in a cluster of {wave.launch.cluster_size}"
                ),
            )
        cta = x.cta - self.own_rank(x) + rank
        index = (cta * wave.shared_stride + offset) >> self.shift
        index = np.where(active, index, 0) if x.mask is not None else index
        pattern = Pattern(np.ascontiguousarray(full), mask, self.size, x.c)
        pattern.contiguous = False  # in the window's addresses perhaps, but not in one CTA's memory
        elsewhere = np.broadcast_to(rank != self.own_rank(x), x.shape) & active
        pattern.remote = elsewhere if elsewhere.any() else None
        reached = np.broadcast_to(offset, x.shape)[active]
        known.units[key] = (index, pattern, first, int(reached.min()), int(reached.max()))
        return index, pattern, 0

    def _explain(self, x: Group, address: Any, end: int) -> NoReturn:
        full = address + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
        local = np.where(full >= np.uint64(SHARED_WINDOW), full - np.uint64(SHARED_WINDOW), full)
        bad = (local & np.uint64(self.size - 1)) != 0
        if (np.broadcast_to(bad, x.shape) & x.active()).any():
            self.fail(x, local, bad, self.misaligned)
        bad = (local < np.uint64(x.wave.launch.shared_begin)) | (local + np.uint64(self.size) > np.uint64(end))
        launch = x.wave.launch
        if (np.broadcast_to(bad, x.shape) & x.active()).any():
            self.fail(
                x,
                local,
                bad,
                lambda a: (
                    f"{a + self.size - end} bytes past the end of the CTA's {launch.shared_bytes:,} bytes of shared memory"
                    if a >= SHARED_BASE
                    else "below the CTA's shared memory (a null pointer?)"
                ),
            )
        self.fail(
            x, local, np.ones((1, 1, 1), np.bool_), lambda a: "shared and other addresses are mixed in one access"
        )

    def _count(self, x: Group, p: Pattern) -> None:
        passes = conflicts = 0
        lanes = x.lanes
        if p.remote is not None:
            remote = int(np.count_nonzero(p.remote))
            x.tally.access(self.number, "remote", remote * self.nbytes, 0, 0, 0, remote)
            lanes -= remote
            if not lanes:
                return
        if x.tally.traffic:
            memo = p.units.get("banks")
            if memo is None or memo[1] is not x.mask or memo[2] != x.shape:
                # no metric says what the banks do where lanes of a warp reach into another CTA
                local = x.mask if p.remote is None else x.active() & ~p.remote.any(axis=2, keepdims=True)
                addresses = p.offsets + np.uint64(1 << 30)
                memo = (self.wavefronts(addresses, local, x.shape), x.mask, x.shape)
                p.units["banks"] = memo
            passes, conflicts = memo[0]
        x.tally.access(self.number, self.space, lanes * self.nbytes, 0, passes, conflicts, lanes)

    def wavefronts(self, addresses: Any, mask: Any, shape: tuple[int, int, int]) -> tuple[int, int]:
        """Wavefronts of one execution, and those beyond the minimum."""
        return wavefronts(addresses, self.size, mask, shape)

    def load(self, x: Group, base: Any) -> Any:
        """Lane arrays of the loaded elements."""
        index, p, start = self._flat(x, base)
        if x.wave.races is not None:
            x.wave.races.read(x, self, index, start)
        rows = self.rows(x.wave.shared.view(self.dtype))
        if p.contiguous and p.shape[0] == 1 and not x.rows:
            got = self._block(x, rows, start, p.indices.size).copy()
        else:
            got = rows[start:].take(index.reshape(-1), axis=0)
        self._count(x, p)
        return self.columns(got, index.shape)

    def _block(self, x: Group, rows: Any, start: int, count: int) -> Any:
        """The same ``count`` adjacent rows of every CTA, as a view."""
        ctas = x.shape[0]
        return rows.reshape(ctas, len(rows) // ctas, *rows.shape[1:])[:, start : start + count]

    def store(self, x: Group, base: Any, values: tuple[Any, ...]) -> None:
        """Write one row per lane; of lanes that address the same element the highest wins."""
        if base.shape[1:] != x.shape[1:]:
            base = np.broadcast_to(base, x.shape)
        index, p, start = self._flat(x, base)
        x.wave.launch.machine.version += 1
        data, unit = self.packed(x, values)
        if x.wave.races is not None:
            x.wave.races.write(x, self, index, start, data)
        shared = x.wave.shared
        rows = self.rows(shared.view(self.dtype)) if unit is None else shared.view(unit)
        if p.contiguous and p.shape[0] == 1 and not x.rows:
            self._block(x, rows, start, p.indices.size)[:] = data.reshape(x.shape[0], -1, *data.shape[3:])
        elif x.mask is None:
            rows[start:][np.broadcast_to(index, x.shape)] = data
        else:
            rows[start:][np.broadcast_to(index, x.shape)[x.mask]] = data[x.mask]
        if x.wave.generic_writes is not None:
            x.wave.generic_writes.wrote(np.broadcast_to(index, x.shape)[x.active()] + start, self.size)
        self._count(x, p)


class LocalSite(Site):
    """A thread's own stack frame."""

    space = "local"

    def _index(self, x: Group, base: Any) -> Any:
        wave = x.wave
        address = (base + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)).view(np.int64)
        address = np.where(address >= LOCAL_WINDOW, address - LOCAL_WINDOW, address)
        depth = wave.local.shape[1]
        active = x.active() if x.mask is not None else True
        bad = (address < 0) | (address + self.size > depth) | ((address & (self.size - 1)) != 0)
        if bad.any() and (bad & active).any():
            self.fail(
                x,
                address.view(np.uint64),
                bad,
                lambda a: (
                    self.misaligned(a) if a % self.size else f"outside the thread's {depth} bytes of local memory"
                ),
            )
        units = local_sectors(address, self.size, x.mask, x.shape) if x.tally.traffic else 0
        x.tally.access(self.number, self.space, x.lanes * self.size, units, 0, 0, x.lanes)
        index = (x.thread * depth + address) >> self.shift
        return index if x.mask is None else np.where(active, index, 0)

    def load(self, x: Group, base: Any) -> Any:
        """Lane arrays of the loaded elements."""
        index = self._index(x, base)
        rows = self.rows(x.wave.local.reshape(-1).view(self.dtype))
        return self.columns(rows.take(index.reshape(-1), axis=0), index.shape)

    def store(self, x: Group, base: Any, values: tuple[Any, ...]) -> None:
        """Write one row per lane."""
        index = self._index(x, base)
        data, unit = self.packed(x, values)
        local = x.wave.local.reshape(-1)
        rows = self.rows(local.view(self.dtype)) if unit is None else local.view(unit)
        if x.mask is None:
            rows[index] = data
        else:
            rows[index[x.mask]] = data[x.mask]
