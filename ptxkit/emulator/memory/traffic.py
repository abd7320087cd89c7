"""Sectors and shared-memory wavefronts of a warp's addresses, relative ones, so that results can be memoised."""

from __future__ import annotations

from typing import Any

import numpy as np

SECTOR = 32
_NOBODY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def sectors(addresses: Any, size: int, mask: Any, shape: tuple[int, int, int]) -> int:
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
        if steps.size and steps.max() <= 1:  # unsigned: a step down is huge
            return (int(np.count_nonzero(steps)) + int(s.shape[0] * s.shape[1])) * repeat
        s = np.sort(s, axis=-1)
        return (int(np.count_nonzero(s[..., 1:] != s[..., :-1])) + int(s.shape[0] * s.shape[1])) * repeat
    s = np.where(mask, addresses >> np.uint64(5), _NOBODY)
    s = np.sort(s, axis=-1)
    distinct = s[..., 1:] != s[..., :-1]
    distinct &= s[..., 1:] != _NOBODY
    return int(np.count_nonzero(distinct)) + int(np.count_nonzero(s[..., 0] != _NOBODY))


def wavefronts(addresses: Any, size: int, mask: Any, shape: tuple[int, int, int]) -> tuple[int, int]:
    """Passes over the 32 banks, and how many of them are beyond the least: (wavefronts, conflicts), summed over warps.

    Accesses of 8 bytes are made in two half warps, of 16 bytes in four quarter warps; within each, lanes that read the same
    word share it, and different words of one bank take a pass each.
    """
    repeat = 1
    if mask is None:
        for have, want in zip(addresses.shape[:2], shape[:2], strict=True):
            repeat *= 1 if have == want else want
        a = np.broadcast_to(addresses, (*addresses.shape[:2], 32))
        active: Any = np.ones(a.shape, np.bool_)
    else:
        a = np.broadcast_to(addresses, shape)
        active = np.broadcast_to(mask, shape)
    phases = max(1, size // 4)
    unit = max(4, size)
    units = (a // np.uint64(unit)).reshape(-1, 32 // phases)
    active = active.reshape(-1, 32 // phases)
    keys = np.where(active, units, _NOBODY)
    keys = np.sort(keys, axis=-1)
    distinct: Any = np.ones(keys.shape, np.bool_)
    distinct[:, 1:] = keys[:, 1:] != keys[:, :-1]
    distinct &= keys != _NOBODY
    banks = 32 // phases
    rows, _ = np.nonzero(distinct)
    bank = (keys[distinct] % np.uint64(banks)).astype(np.int64)
    per_bank = np.bincount(rows * banks + bank, minlength=len(keys) * banks).reshape(len(keys), banks)
    passes = per_bank.max(axis=1)
    total = int(passes.sum())
    least = int(np.count_nonzero(passes))
    return total * repeat, (total - least) * repeat
