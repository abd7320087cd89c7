"""Sectors and shared-memory wavefronts of a warp's addresses. The addresses are relative, so that results can be cached."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Addresses, Index, Mask, Shape

SECTOR = 32
_INACTIVE = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def sectors(addresses: Addresses, size: int, mask: Mask | None, shape: Shape) -> int:
    """32-byte sectors touched, summed over warps.

    Args:
        addresses: byte addresses, broadcastable to ``shape``; naturally aligned to ``size``.
        size: bytes each lane accesses, a power of two up to 32.
        mask: lanes that take part, in ``shape``, or None for all.
        shape: (rows, warps, 32).
    """
    if mask is None:
        repeat = 1
        for have, want in zip(addresses.shape, shape, strict=True):
            repeat *= 1 if have == want else want
        if addresses.shape[2] == 1:
            return int(addresses.size) * (repeat // 32)
        s = addresses >> np.uint64(5)
        steps = s[..., 1:] - s[..., :-1]
        if steps.size and steps.max() <= 1:  # a descending step is a huge unsigned number
            return (int(np.count_nonzero(steps)) + int(s.shape[0] * s.shape[1])) * repeat
        s = np.sort(s, axis=-1)
        return (int(np.count_nonzero(s[..., 1:] != s[..., :-1])) + int(s.shape[0] * s.shape[1])) * repeat
    s = np.where(mask, addresses >> np.uint64(5), _INACTIVE)
    s = np.sort(s, axis=-1)
    distinct = s[..., 1:] != s[..., :-1]
    distinct &= s[..., 1:] != _INACTIVE
    return int(np.count_nonzero(distinct)) + int(np.count_nonzero(s[..., 0] != _INACTIVE))


def local_sectors(offsets: Index, size: int, mask: Mask | None, shape: Shape) -> int:
    """32-byte sectors of local memory touched, summed over warps.

    Consecutive words of a thread's local memory lie 128 bytes apart, and those of the lanes of a warp side by side (CUDA C++
    Programming Guide, "Local Memory"): a word that 8 neighbouring lanes access at one offset is a sector.

    Args:
        offsets: byte offsets in the threads' local memory, int64, broadcastable to ``shape``; aligned to ``size``.
        size: bytes each lane accesses.
        mask, shape: as in :func:`sectors`.
    """
    words = max(1, size // 4)
    lines = np.broadcast_to(offsets // (4 * words), (*offsets.shape[:2], 32))
    spread = (lines * 4 + np.arange(32) // 8).astype(np.uint64) * np.uint64(SECTOR)
    return sectors(spread, SECTOR, mask, shape) * words


def atomic_sectors(addresses: Addresses, size: int, mask: Mask | None, shape: Shape) -> int:
    """32-byte sectors that atomics touch, summed over warps.

    Lanes of a warp that update the same address are processed in separate passes, and the sectors of each pass are counted:
    32 lanes that update one word touch 32 sectors (measured on an H200 as ``l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum``
    and ``..._atom.sum``).
    """
    a = np.broadcast_to(addresses, shape)
    keys = np.where(np.broadcast_to(True if mask is None else mask, shape), a, _INACTIVE)
    keys = np.sort(keys.reshape(-1, 32), axis=-1)
    lane = np.arange(32)
    first = np.ones(keys.shape, np.bool_)
    first[:, 1:] = keys[:, 1:] != keys[:, :-1]
    rank = (lane - np.maximum.accumulate(np.where(first, lane, 0), axis=-1)).astype(np.uint64)
    # the low five bits, the position in the sector, are replaced by the number of the pass
    passes = np.where(keys == _INACTIVE, _INACTIVE, (keys & ~np.uint64(31)) | rank)
    passes = np.sort(passes, axis=-1)
    first[:, 1:] = passes[:, 1:] != passes[:, :-1]
    return int(np.count_nonzero(first & (passes != _INACTIVE)))


def wavefronts(addresses: Addresses, size: int, mask: Mask | None, shape: Shape, load: bool = False) -> tuple[int, int]:
    """Passes over the 32 banks, and how many of them are beyond the minimum: (wavefronts, conflicts), summed over warps.

    Accesses of 8 bytes are performed by half warps, accesses of 16 bytes by quarter warps. Within each, lanes that read the
    same word share a pass, and different words of the same bank need separate passes. A load whose lanes 2i and 2i + 1 have the
    same address for all i needs half as many: one pass for 8 bytes, two for 16 (measured on an H200; not so for stores).
    """
    keys, phases, repeat = _words_by_phase(addresses, size, mask, shape)
    if not load or phases == 1:
        return _shared_passes(keys, phases, repeat)
    lanes = keys.reshape(-1, 32)
    even, odd = lanes[:, ::2], lanes[:, 1::2]
    paired = ((even == odd) | (even == _INACTIVE) | (odd == _INACTIVE)).all(axis=1)
    total = [0, 0]
    for some, width in ((lanes[paired], 64 // phases), (lanes[~paired], 32 // phases)):
        if len(some):
            passes, conflicts = _shared_passes(some.reshape(-1, width), phases, repeat)
            total[0] += passes
            total[1] += conflicts
    return total[0], total[1]


def _shared_passes(keys: Addresses, phases: int, repeat: int) -> tuple[int, int]:
    """The passes of accesses for which lanes with the same word share a pass."""
    keys = np.sort(keys, axis=-1)
    distinct: Mask = np.ones(keys.shape, np.bool_)
    distinct[:, 1:] = keys[:, 1:] != keys[:, :-1]
    return _passes(keys, distinct & (keys != _INACTIVE), phases, repeat)


def atomic_wavefronts(addresses: Addresses, size: int, mask: Mask | None, shape: Shape) -> tuple[int, int]:
    """:func:`wavefronts` for atomics: each of the lanes that access the same word needs a pass."""
    keys, phases, repeat = _words_by_phase(addresses, size, mask, shape)
    return _passes(keys, keys != _INACTIVE, phases, repeat)


def _words_by_phase(addresses: Addresses, size: int, mask: Mask | None, shape: Shape) -> tuple[Addresses, int, int]:
    """The words that lanes access, a row for each phase; phases of a warp; the number of warps of ``shape`` for each row."""
    repeat = 1
    if mask is None:
        for have, want in zip(addresses.shape[:2], shape[:2], strict=True):
            repeat *= 1 if have == want else want
        a = np.broadcast_to(addresses, (*addresses.shape[:2], 32))
        active: Mask = np.ones(a.shape, np.bool_)
    else:
        a = np.broadcast_to(addresses, shape)
        active = np.broadcast_to(mask, shape)
    phases = max(1, size // 4)
    words = (a // np.uint64(max(4, size))).reshape(-1, 32 // phases)
    return np.where(active.reshape(words.shape), words, _INACTIVE), phases, repeat


def _passes(words: Addresses, counted: Mask, phases: int, repeat: int) -> tuple[int, int]:
    """The passes for ``counted`` words, and the passes beyond one for each phase."""
    banks = 32 // phases
    rows, _ = np.nonzero(counted)
    bank = (words[counted] % np.uint64(banks)).astype(np.int64)
    per_bank = np.bincount(rows * banks + bank, minlength=len(words) * banks).reshape(len(words), banks)
    passes = per_bank.max(axis=1)
    total = int(passes.sum())
    return total * repeat, (total - int(np.count_nonzero(passes))) * repeat
