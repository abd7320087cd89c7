"""Accesses to shared memory: of the executing CTA, or of any CTA of its cluster."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ptxkit.emulator.access.site import Loaded, Site, widen
from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask, Shape
from ptxkit.emulator.memory.allocations import SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE
from ptxkit.emulator.memory.pattern import Pattern
from ptxkit.emulator.memory.traffic import wavefronts
from ptxkit.emulator.simt.threads import Group

_RANK_BITS = np.uint64(0xFF << CLUSTER_RANK_SHIFT)


def exited(cta: str) -> str:
    """The text for an access to the shared memory of a CTA of the cluster that has exited."""
    return f"in the shared memory of CTA {cta}, which has exited; it has to exist until all accesses to it are over"


class SharedSite(Site):
    """Shared memory of the executing CTA, or of its cluster."""

    space = "shared"
    cluster = False

    def _flat(self, x: Group, base: Lanes) -> tuple[Index, Pattern, int]:
        """Element indices in the wave's shared memory, the address pattern, and the index of the lowest element."""
        wave = x.wave
        address = widen(base)
        if wave.ranked and not self.cluster:
            address = self._without_rank(x, address)
        mask = x.covers(address.shape)
        own = self.remember(x, address, mask)
        if wave.ranked and self.cluster:
            return self._remote(x, address, mask, SHARED_BASE + wave.launch.shared_bytes, own)
        origin = int(address.reshape(-1)[own.first]) + self.offset & 0xFFFF_FFFF_FFFF_FFFF
        low, high = origin + own.low, origin + own.high + self.size
        if SHARED_WINDOW <= low < SHARED_WINDOW + WINDOW_BYTES:
            low, high, origin = low - SHARED_WINDOW, high - SHARED_WINDOW, origin - SHARED_WINDOW
        end = SHARED_BASE + wave.launch.shared_bytes
        if low < wave.launch.shared_begin or high > end or (own.bits | origin) & (self.size - 1):
            if self.cluster and high >> CLUSTER_RANK_SHIFT:
                return self._remote(x, address, mask, end, own)
            self._explain(x, address, end)
        key = (x.shape, wave.shared_stride)
        memo = own.in_wave.get(key)
        if memo is None:
            memo = (x.cta * (wave.shared_stride >> self.shift)) + own.indices
            own.in_wave[key] = memo
        return memo, own, low >> self.shift

    def _without_rank(self, x: Group, address: Addresses) -> Addresses:
        """Offsets in the executing CTA's shared memory, without the rank that addresses may contain."""
        own = self.own_rank(x).astype(np.uint64) << np.uint64(CLUSTER_RANK_SHIFT)
        full = address + np.uint64(self.offset & 0xFFFF_FFFF_FFFF_FFFF)
        address = np.where(full & _RANK_BITS == own, address - own, address)
        if not x.rows and len(address) > 1 and (address[1:] == address[:-1]).all():
            return np.ascontiguousarray(address[:1])
        return address

    def own_rank(self, x: Group) -> Index:
        """Rank of the executing CTAs, int64, broadcastable to the group's shape."""
        return x.select(x.wave.cluster_rank[:, None, None])

    def _remote(
        self, x: Group, address: Addresses, mask: Mask | None, end: int, known: Pattern
    ) -> tuple[Index, Pattern, int]:
        """:meth:`_flat` for addresses in CTAs of the cluster."""
        wave = x.wave
        first = int(address.reshape(-1)[known.first])
        key = (x.shape, wave.shared_stride)
        memo = known.in_cluster.get(key)
        if memo is not None:
            index, pattern, origin, low, high = memo
            step = first - origin
            # the same pattern at other offsets of the same CTAs
            if (
                wave.ended is None
                and not step & (self.size - 1)
                and low + step >= SHARED_BASE
                and high + step + self.size <= end
            ):
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
        cta = np.where(active, x.cta - self.own_rank(x) + rank, x.cta)
        if wave.ended is not None and (gone := wave.ended[cta] & active).any():
            self.fail(x, full, gone, lambda a: exited(f"rank {a >> CLUSTER_RANK_SHIFT}"))
        index = (cta * wave.shared_stride + offset) >> self.shift
        index = np.where(active, index, 0) if x.mask is not None else index
        pattern = Pattern(np.ascontiguousarray(full), mask, self.size, x.c)
        pattern.contiguous = False  # the addresses may be contiguous in the window, but the memory of CTAs is not
        elsewhere = np.broadcast_to(rank != self.own_rank(x), x.shape) & active
        pattern.remote = elsewhere if elsewhere.any() else None
        reached = np.broadcast_to(offset, x.shape)[active]
        known.in_cluster[key] = (index, pattern, first, int(reached.min()), int(reached.max()))
        return index, pattern, 0

    def _explain(self, x: Group, address: Addresses, end: int) -> NoReturn:
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
                    + ("" if launch.shared_bytes else "; the launch gives it none (shared=, or --shared BYTES)")
                    if SHARED_BASE <= a < 1 << 63
                    else "below the CTA's shared memory (a null pointer?)"
                ),
            )
        self.fail(
            x, local, np.ones((1, 1, 1), np.bool_), lambda a: "shared and other addresses are mixed in one access"
        )

    def _count(self, x: Group, p: Pattern, index: Index, start: int) -> None:
        """Count an access to the elements ``index + start``, as :meth:`_flat` gives them."""
        passes = conflicts = 0
        lanes = x.lanes
        if p.remote is not None:
            remote = int(np.count_nonzero(p.remote))
            x.tally.access(self.number, "remote", remote * self.nbytes, 0, 0, 0, remote)
            lanes -= remote
            if not lanes:
                return
        if x.tally.traffic:
            # the words that elements of 8 and 16 bits are in depend on the position of the first one in its word
            low = (int(index.reshape(-1)[p.first]) + start) * self.size & 3 if self.size < 4 else 0
            memo = p.banks.get(low)
            if memo is None or memo[1] is not x.mask or memo[2] != x.shape:
                # bank conflicts are not counted: no metric covers accesses of a warp to other CTAs
                local = x.mask if p.remote is None else x.active() & ~p.remote.any(axis=2, keepdims=True)
                addresses = p.offsets + np.uint64((1 << 30) + low)
                memo = p.banks[low] = (self.wavefronts(addresses, local, x.shape), x.mask, x.shape)
            passes, conflicts = memo[0]
        x.tally.access(self.number, self.space, lanes * self.nbytes, 0, passes, conflicts, lanes)

    def wavefronts(self, addresses: Addresses, mask: Mask | None, shape: Shape) -> tuple[int, int]:
        """Wavefronts of one execution, and those beyond the minimum."""
        return wavefronts(addresses, self.size, mask, shape, load=not self.write)

    def load(self, x: Group, base: Lanes) -> Loaded:
        """Lane arrays of the loaded elements."""
        index, p, start = self._flat(x, base)
        for races in x.wave.races:
            races.read(x, self, index, start)
        rows = self.rows(x.wave.shared.view(self.dtype))
        if p.contiguous and p.shape[0] == 1 and not x.rows:
            got = self._block(x, rows, start, p.indices.size).copy()
        else:
            got = rows[start:].take(index.reshape(-1), axis=0)
        self._count(x, p, index, start)
        return self.columns(got, index.shape)

    def _block(self, x: Group, rows: Lanes, start: int, count: int) -> Lanes:
        """A view of ``count`` adjacent rows at the same place of every CTA."""
        ctas = x.shape[0]
        return rows.reshape(ctas, len(rows) // ctas, *rows.shape[1:])[:, start : start + count]

    def store(self, x: Group, base: Lanes, values: tuple[Lanes, ...]) -> None:
        """Write one row per lane; of lanes that address the same element the highest wins."""
        if base.shape[1:] != x.shape[1:]:
            base = np.broadcast_to(base, x.shape)
        index, p, start = self._flat(x, base)
        x.wave.launch.machine.version += 1
        data, unit = self.packed(x, values)
        for races in x.wave.races:
            races.write(x, self, index, start, data)
        shared = x.wave.shared
        rows = self.rows(shared.view(self.dtype)) if unit is None else shared.view(unit)
        if p.contiguous and p.shape[0] == 1 and not x.rows:
            self._block(x, rows, start, p.indices.size)[:] = data.reshape(x.shape[0], -1, *data.shape[3:])
        elif x.mask is None:
            rows[start:][np.broadcast_to(index, x.shape)] = data
        else:
            rows[start:][np.broadcast_to(index, x.shape)[x.mask]] = data[x.mask]
        for writes in x.wave.generic_writes:
            writes.wrote(np.broadcast_to(index, x.shape)[x.active()] + start, self.size, self.where)
        self._count(x, p, index, start)


class ClusterSite(SharedSite):
    """Shared memory where an address may name another CTA of the cluster."""

    cluster = True
