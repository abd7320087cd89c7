"""wmma: fragments loaded from and stored to memory as matrices. PTX ISA, "wmma.load", "wmma.store", "wmma.mma".

PTX leaves it open which lane holds which element. Here the fragments of 16x16x16 are those of two mma.m16n8k16, as they are on
hardware since sm_80; the other shapes are put together from the same blocks. Registers that a fragment has beyond what its
matrix needs (f16 multiplicands) repeat the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.access.generic import widen
from ptxkit.emulator.access.site import Loaded
from ptxkit.emulator.arrays import Addresses, Index, Lanes
from ptxkit.emulator.instructions.load_store import site_for
from ptxkit.emulator.simt.step import U32, U64, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core import fragments, numerics
from ptxkit.emulator.tensor_core.collective import acts_together, collective, require_whole
from ptxkit.emulator.tensor_core.mma import (
    accumulator_words,
    load_accumulator,
    register_type,
    registers,
    shape_of,
)
from ptxkit.isa.model import Immediate, Operand, Vector

acts_together(1, "wmma")

_WIDE = "m16n16k16 m8n32k16 m32n8k16"
_BYTES = {"f32": 4, "s32": 4, "f64": 8, "f16": 2, "bf16": 2, "tf32": 4}


def _stack(tables: Sequence[Index]) -> Index:
    """One table of blocks that stand below each other, each with registers of its own."""
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


class _Matrix:
    """Where the words of a fragment lie in memory: U units of ``size`` bytes a lane.

    A register word whose elements are neighbours in memory is one unit; else every element is.
    """

    def __init__(self, b: Binding, role: str, write: bool) -> None:
        form = b.form
        self.shape = m, n, k = shape_of(form["shape"])
        self.t = form["t"]
        self.role = role
        per_word = 2 if self.t == "f16" else 1 if self.t in _BYTES and self.t != "bf16" else numerics.per_word(self.t)
        bits = 8 * _BYTES[self.t] if self.t in _BYTES else numerics.BITS[self.t]
        rows, columns = {"a": (m, k), "b": (n, k), "c": (m, n)}[role]
        # B's fragment is B transposed, so its words run along K too
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
        # each unit remembers its address pattern under a number of its own, that no instruction has
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
        """The reverse."""
        for u, site in enumerate(self.sites):
            register, part = divmod(u, self.units)
            value = lanes[register]
            value = value.view(f"u{value.dtype.itemsize}")
            if self.units > 1:
                value = (value >> np.uint32(8 * self.size * part)).astype(f"u{self.size}")
            site.store(x, self.addresses(x, base, stride, u), (value,))
        self._count(x)

    def _count(self, x: Group) -> None:
        """The instruction's counts are those of its units."""
        for number in self.numbers:
            for space, rows in x.tally.memory.items():
                row = rows.pop(number, None)
                if row is not None:
                    x.tally.access(self.number, space, *row)


def _load(b: Binding, role: str) -> Step | Gated:
    matrix = _Matrix(b, role, write=False)
    want = register_count(role, matrix.shape, matrix.t)
    outs = registers(b, b.operands[0], want, matrix.t, "the fragment")
    where = b.where

    def load(x: Group, base: Lanes, stride: Lanes) -> Loaded:
        require_whole(x, where)
        lanes = matrix.load(x, base, stride)
        found = [lanes[r % len(lanes)] for r in range(want)]
        found = [v.view(t.dtype) for v, (_, t) in zip(found, outs, strict=True)]
        return tuple(found) if want > 1 else found[0]

    return collective(b, Step(load, matrix.sources, outs))


_SPACES = "global shared shared::cta"


@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a b",
    layout="row col",
    shape=_WIDE,
    space=_SPACES,
    t="f16 bf16 s8 u8",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a b",
    layout="row col",
    shape="m16n16k8",
    space=_SPACES,
    t="tf32",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a b",
    layout="row col",
    shape="m8n8k4",
    space=_SPACES,
    t="f64",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a",
    layout="row",
    shape="m8n8k32",
    space=_SPACES,
    t="s4 u4",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="b",
    layout="col",
    shape="m8n8k32",
    space=_SPACES,
    t="s4 u4",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a",
    layout="row",
    shape="m8n8k128",
    space=_SPACES,
    t="b1",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="b",
    layout="col",
    shape="m8n8k128",
    space=_SPACES,
    t="b1",
)
def _load_multiplicand(b: Binding) -> Step | Gated:
    return _load(b, b.form["role"])


_ACCUMULATORS = (
    (_WIDE, "f16 f32 s32"),
    ("m16n16k8", "f32"),
    ("m8n8k4", "f64"),
    ("m8n8k32 m8n8k128", "s32"),
)


def _load_accumulator(b: Binding) -> Step | Gated:
    return _load(b, "c")


def _store(b: Binding) -> Step | Gated:
    matrix = _Matrix(b, "c", write=True)
    ins = registers(b, b.operands[1], matrix.registers, matrix.t, "the fragment")
    where = b.where

    def store(x: Group, base: Lanes, stride: Lanes, *lanes: Lanes) -> None:
        require_whole(x, where)
        matrix.store(x, base, stride, lanes)

    return collective(b, Step(store, (*matrix.sources, *ins)))


for _shapes, _types in _ACCUMULATORS:
    _pattern = "sync.aligned.<layout>.<shape>{.<space>}.<t>"
    _sets = {"layout": "row col", "shape": _shapes, "space": _SPACES, "t": _types}
    blocking(f"wmma.load.c.{_pattern}", **_sets)(_load_accumulator)
    blocking(f"wmma.store.d.{_pattern}", **_sets)(_store)


def _multiply(b: Binding, ta: str, tb: str, tc: str, td: str, op: str, limit: bool) -> Step | Gated:
    shape = m, n, k = shape_of(b.form["shape"])
    if ta != tb:
        raise b.fail("A and B have the same type")
    if len(b.operands) != 4:
        raise b.fail(f"{len(b.operands)} operands; it takes d, a, b, c")
    counts = [register_count("a", shape, ta), register_count("b", shape, tb), register_count("c", shape, tc)]
    outs = registers(b, b.operands[0], register_count("c", shape, td), td, "d")
    ins = [registers(b, o, c, t, w) for o, c, t, w in zip(b.operands[1:], counts, (ta, tb, tc), "abc", strict=True)]
    tables = [table(r, shape, t) for r, t in zip("abc", (ta, tb, tc), strict=True)]
    inverse = fragments.inverse(table("c", shape, td))
    word: DTypeLike = np.uint64 if ta == "f64" else np.uint32
    c_type = {"f32": np.float32, "s32": np.int32, "f64": np.float64}.get(tc, np.uint32)
    where, number, d_type = b.where, b.index, register_type(td).dtype
    ends = counts[0], counts[0] + counts[1]
    d_numpy = np.dtype({"f16": "f2", "f32": "f4", "s32": "i4", "f64": "f8"}[td])
    compute = numerics.arithmetic(b, "mma", ta, tb, op, limit)

    def multiply(x: Group, *lanes: Lanes) -> tuple[Lanes, ...]:
        require_whole(x, where)
        warps = x.shape[0] * x.shape[1]
        av = fragments.gather(x.shape, lanes[: ends[0]], word).take(tables[0].reshape(-1), axis=1)
        bv = fragments.gather(x.shape, lanes[ends[0] : ends[1]], word).take(tables[1].reshape(-1), axis=1)
        a = numerics.decode(av, ta).reshape(warps, m, k)
        bt = numerics.decode(bv, tb).reshape(warps, n, k).transpose(0, 2, 1)
        c = load_accumulator(fragments.gather(x.shape, lanes[ends[1] :], c_type), tables[2], tc)
        # C is converted to the type of the result ahead of the sum
        d = compute(a, bt, c.astype(d_numpy, copy=False))
        x.tally.add(number, f"flops.tensor.{ta}", 2 * m * n * k * (x.lanes // 32))
        return fragments.scatter(x.shape, accumulator_words(d, td), inverse, d_type)

    return collective(b, Step(multiply, (*ins[0], *ins[1], *ins[2]), outs))


@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<c>", la="row col", lb="row col", shape=_WIDE, d="f16 f32", c="f16 f32"
)
def _mma_f16(b: Binding) -> Step | Gated:
    return _multiply(b, "f16", "f16", b.form["c"], b.form["d"], "mul", False)


@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>",
    la="row col",
    lb="row col",
    shape=_WIDE,
    d="f32",
    a="bf16",
    b="bf16",
    c="f32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>",
    la="row col",
    lb="row col",
    shape="m16n16k8",
    d="f32",
    a="tf32",
    b="tf32",
    c="f32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>{.satfinite}",
    la="row col",
    lb="row col",
    shape=_WIDE,
    d="s32",
    a="s8 u8",
    b="s8 u8",
    c="s32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>{.satfinite}",
    la="row",
    lb="col",
    shape="m8n8k32",
    d="s32",
    a="s4 u4",
    b="s4 u4",
    c="s32",
)
@blocking(
    "wmma.mma.<op>.popc.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>",
    op="and xor",
    la="row",
    lb="col",
    shape="m8n8k128",
    d="s32",
    a="b1",
    b="b1",
    c="s32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>{.<rnd>}",
    la="row col",
    lb="row col",
    shape="m8n8k4",
    d="f64",
    a="f64",
    b="f64",
    c="f64",
    rnd="rn rz rm rp",
)
def _mma(b: Binding) -> Step | Gated:
    form = b.form
    op = form.get("rnd") or ("rn" if form["a"] == "f64" else form.get("op") or "mul")
    return _multiply(b, form["a"], form["b"], form["c"], form["d"], op, form.has("satfinite"))
