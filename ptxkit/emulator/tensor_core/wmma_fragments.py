"""The fragments of wmma: which lane holds which elements, and where the elements lie in memory.

PTX does not define which lane holds which element. Here a fragment of 16x16x16 consists of the fragments of two
mma.m16n8k16, as on hardware since sm_80; the other shapes consist of the same blocks. An f16 multiplicand has more registers
than its matrix needs, and the additional ones repeat the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Addresses, Index, Lanes
from ptxkit.emulator.instructions.load_store import site_for
from ptxkit.emulator.simt.step import U32, U64, Binding, Typed
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core import fragments, numerics
from ptxkit.emulator.tensor_core.mma import shape_of
from ptxkit.isa.model import Immediate, Operand, Vector

_BYTES = {"f32": 4, "s32": 4, "f64": 8, "f16": 2, "bf16": 2, "tf32": 4}


def _stack(tables: Sequence[Index]) -> Index:
    """The table of a fragment whose blocks lie one below the other in the matrix, each in registers of its own."""
    return np.concatenate([t + n * t.size for n, t in enumerate(tables)])


@lru_cache
def table(role: str, shape: tuple[int, int, int], t: str) -> Index:
    """Positions of a fragment's words: A as (m, words), B as (n, words), the accumulator as (m, n) or (m, n / 2)."""
    m, n, k = shape
    block = min(m, 16)
    if role == "a":
        return _stack([fragments.multiplicand_a(block, k // numerics.per_word(t))] * (m // block))
    if role == "b":
        return _stack([fragments.multiplicand_b(k // numerics.per_word(t))] * (n // 8))
    return _stack([fragments.accumulator(block, n, t == "f16")] * (m // block))


def register_count(role: str, shape: tuple[int, int, int], t: str) -> int:
    """Registers of a fragment."""
    if role in "ab" and t == "f16":
        return 8
    return int(table(role, shape, t).size) // 32


class FragmentMemory:
    """The memory of a fragment: every lane accesses ``len(sites)`` units of ``size`` bytes.

    A register whose elements are adjacent in memory is one unit; otherwise each of its elements is a unit.
    """

    def __init__(self, b: Binding, role: str, write: bool) -> None:
        form = b.form
        self.shape = m, n, k = shape_of(form["shape"])
        self.t = form["t"]
        self.role = role
        per_word = 2 if self.t == "f16" else 1 if self.t in _BYTES and self.t != "bf16" else numerics.per_word(self.t)
        bits = 8 * _BYTES[self.t] if self.t in _BYTES else numerics.BITS[self.t]
        rows, columns = {"a": (m, k), "b": (n, k), "c": (m, n)}[role]
        # the fragment of B is that of the transposed matrix: its words run along K as well
        along = (form["layout"] == "row") != (role == "b")
        default = columns if along else rows
        self.registers = int(table(role, self.shape, self.t).size) // 32
        places = fragments.inverse(table(role, self.shape, self.t))
        row, word = places // (columns // per_word), places % (columns // per_word)
        self.units = 1 if along else per_word
        self.size = max(bits * per_word // self.units // 8, 1)
        # byte offset of register r, unit u: major * stride + minor, both in bits
        minor = [word * per_word * bits if along else row * bits for _ in range(self.units)]
        major = [row if along else word * per_word + u for u in range(self.units)]
        self.major = np.stack(major, axis=1).reshape(-1, 1, 1, 32).astype(np.uint64)
        self.minor = np.stack(minor, axis=1).reshape(-1, 1, 1, 32).astype(np.uint64) // np.uint64(8)
        self.bits = bits
        address, *rest = [o for o in b.operands if not isinstance(o, Vector)]
        self.operand, offset = b.address(address)
        self.stride: Operand | None = rest[0] if rest else Immediate(default)
        dtype = np.dtype(f"u{self.size}")
        self.number = b.index
        # the address pattern of each unit is cached under a number that no instruction has
        self.numbers = [-(1 << 32) - 64 * b.index - u for u in range(len(self.major))]
        self.sites = [
            site_for(replace(b, index=n), form["space"], self.operand, offset, dtype, 1, write) for n in self.numbers
        ]
        t = b.register_type(self.operand)
        self.sources: tuple[Typed, ...] = (
            (self.operand, U32 if t is not None and t.bits == 32 else U64),
            (self.stride, U32),
        )

    def addresses(self, x: Group, base: Lanes, stride: Lanes, u: int) -> Addresses:
        """(C, W, 32) addresses of one unit of every lane."""
        step = stride.astype(np.uint64) * np.uint64(self.bits) // np.uint64(8)
        return widen(base) + self.major[u] * step + self.minor[u]

    def load(self, x: Group, base: Lanes, stride: Lanes) -> list[Lanes]:
        """The registers, as uint32 or uint64 lane arrays."""
        loaded = []
        for u, site in enumerate(self.sites):
            unit = site.load(x, self.addresses(x, base, stride, u))
            assert not isinstance(unit, tuple)
            loaded.append(unit)
        self._count(x)
        if self.units == 1:
            return loaded
        out = []
        for r in range(self.registers):
            parts = loaded[r * self.units : (r + 1) * self.units]
            word = parts[0].astype(np.uint32)
            for u, p in enumerate(parts[1:], 1):
                word = word | (p.astype(np.uint32) << np.uint32(8 * self.size * u))
            out.append(word)
        return out

    def store(self, x: Group, base: Lanes, stride: Lanes, lanes: Sequence[Lanes]) -> None:
        """Store registers, as :meth:`load` returns them."""
        for u, site in enumerate(self.sites):
            register, part = divmod(u, self.units)
            value = lanes[register]
            value = value.view(f"u{value.dtype.itemsize}")
            if self.units > 1:
                value = (value >> np.uint32(8 * self.size * part)).astype(f"u{self.size}")
            site.store(x, self.addresses(x, base, stride, u), (value,))
        self._count(x)

    def _count(self, x: Group) -> None:
        """Move the counts of the units to the instruction."""
        for number in self.numbers:
            for space, rows in x.tally.memory.items():
                row = rows.pop(number, None)
                if row is not None:
                    x.tally.access(self.number, space, *row)
