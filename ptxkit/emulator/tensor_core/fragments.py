"""Index tables of the elements of a matrix in the registers of a warp, one for each shape and register width.

A fragment is gathered as words (32-bit registers; 64-bit ones for f64): ``words[..., register * 32 + lane]``. A word of a
multiplicand contains adjacent elements along K, low bits first. A table contains the position of the word for every (row, word
along K).

All layouts but m8n8k4.f16's follow one rule (PTX ISA, "Matrix Fragments for mma.*"; CuTe's ``mma_traits_sm80.hpp`` writes it
as shape and stride). With g = lane / 4 and t = lane % 4:

- A: register r holds row g + 8 (r % 2), word t + 4 (r / 2); 8-row matrices have even r only.
- B: register r holds column g, word t + 4 r.
- C and D: register i holds row g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2; as f16 pairs i holds columns 2t and 2t + 1.

A warpgroup's accumulator (PTX ISA, "Register Fragments for wgmma.mma_async.m64n*") is the same for each of its warps, which
hold 16 rows each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptxkit.emulator.arrays import Lanes

Table = NDArray[np.int64]

_LANE = np.arange(32)
_G, _T = _LANE // 4, _LANE % 4


def _frozen(table: Table) -> Table:
    if (table < 0).any():
        raise AssertionError("a fragment table has holes")
    table.setflags(write=False)
    return table


@lru_cache
def multiplicand_a(m: int, words: int) -> Table:
    """(m, words): positions of A's words, for ``words`` words along K."""
    table = np.full((m, words), -1, np.int64)
    halves = m // 8
    for r in range(words // 4 * halves):
        table[_G + 8 * (r % halves), _T + 4 * (r // halves)] = r * 32 + _LANE
    return _frozen(table)


@lru_cache
def multiplicand_b(words: int, n: int = 8) -> Table:
    """(n, words): positions of B's words; row n of the table is column n of B."""
    table = np.full((n, words), -1, np.int64)
    for r in range(words // 4):
        table[_G, _T + 4 * r] = r * 32 + _LANE
    return _frozen(table)


@lru_cache
def accumulator(m: int, n: int, packed: bool) -> Table:
    """(m, n), or (m, n / 2) when ``packed`` as f16 pairs: positions of C's words in one warp; m is 8 or 16."""
    halves = m // 8
    columns = n // 2 if packed else n
    table = np.full((m, columns), -1, np.int64)
    per_word = 1 if packed else 2
    for i in range(halves * per_word * (n // 8)):
        row = _G + 8 * (i // per_word % halves)
        block = i // (per_word * halves)
        column = 4 * block + _T if packed else 8 * block + 2 * _T + i % 2
        table[row, column] = i * 32 + _LANE
    return _frozen(table)


@lru_cache
def accumulator_inverse(m: int, n: int, packed: bool) -> Table:
    """(registers, 32): for every register and lane, the index of its word in the flat matrix."""
    return inverse(accumulator(m, n, packed))


def inverse(table: Table) -> Table:
    """(registers, 32) from a table of positions that covers every register once."""
    out = np.empty(table.size, np.int64)
    out[table.reshape(-1)] = np.arange(table.size)
    return _frozen(out.reshape(-1, 32))


def gather(x_shape: tuple[int, int, int], lanes: Sequence[Lanes], dtype: DTypeLike) -> Lanes:
    """Registers as words: (warps, registers * 32) of ``dtype``, bits unchanged. ``lanes`` broadcast to ``x_shape``."""
    out = np.empty((x_shape[0], x_shape[1], len(lanes), 32), dtype)
    for k, v in enumerate(lanes):
        out[:, :, k] = v.view(dtype) if v.dtype != out.dtype else v
    return out.reshape(x_shape[0] * x_shape[1], len(lanes) * 32)


def scatter(x_shape: tuple[int, int, int], words: Lanes, table: Table, dtype: DTypeLike) -> tuple[Lanes, ...]:
    """Registers from a matrix of words, (warps, anything): one lane array of ``x_shape`` per row of ``table``."""
    picked = words.reshape(words.shape[0], -1).take(table, axis=1).view(dtype)
    return tuple(picked[:, k].reshape(x_shape) for k in range(len(table)))
