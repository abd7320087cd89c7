"""The operands of a wgmma.mma_async instruction, and the computation of its product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Addresses, Elements, Index, Lanes, Mask, Words
from ptxkit.emulator.simt.step import B32, PRED, U64, Binding, Typed
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.tensor_core import fragments, numerics, sparse
from ptxkit.emulator.tensor_core.collective import WARPGROUP
from ptxkit.emulator.tensor_core.mma import (
    Expansion,
    accumulator_words,
    fragment_registers,
    register_type,
    registers,
    shape_of,
)
from ptxkit.emulator.tensor_core.shared_operand import SharedOperand
from ptxkit.emulator.tensor_core.warpgroups import Warpgroups
from ptxkit.isa.model import Immediate, Operand, Register, Vector


@dataclass(frozen=True)
class Inputs:
    """The operands of E warpgroups that execute one instruction.

    Attributes:
        cta: (E,) the CTA whose shared memory holds the operands.
        owner: (E,) wave-wide index of the first thread of the warpgroup.
        a: A's elements, (E, m, kept) float32, or its descriptors, (E,).
        places: (E, m, kept), the columns of a sparse A's elements; None for a dense one.
        b: (E,) descriptors of B.
    """

    cta: Index
    owner: Index
    a: Lanes
    places: Index | None
    b: Addresses

    def select(self, which: Elements) -> Inputs:
        """The inputs of some of the warpgroups."""
        places = None if self.places is None else self.places[which]
        return Inputs(self.cta[which], self.owner[which], self.a[which], places, self.b[which])


class Multiplication:
    """One decoded matrix instruction.

    Attributes:
        m, n, k: the shape.
        kept: elements of a row of A that are stored: k, or half of them for a sparse A.
        a: A in shared memory; None when it is in registers.
        b: B.
        ta, td: type of A's elements and of the accumulator.
        count: accumulator registers of a thread.
        input_registers: names of the registers that hold elements of A, or metadata.
    """

    def __init__(self, b: Binding) -> None:
        form = b.form
        self.where, self.number = b.where, b.index
        self.m, self.n, self.k = m, n, k = shape_of(form["shape"])
        self.ta, self.td = form["a"], form["d"]
        self.compute = numerics.arithmetic(
            b, "wgmma", self.ta, form["b"], form.get("op") or "mul", form.has("satfinite")
        )
        operands = list(b.operands)
        compressed = form.has("sp")
        expected = 6 if compressed else 4
        in_registers = len(operands) > 1 and isinstance(operands[1], Vector)
        floating = self.ta not in numerics.INTEGERS
        transposable = self.ta in ("f16", "bf16")
        expected += 2 * floating + transposable * (1 if in_registers else 2)
        if len(operands) != expected:
            raise b.fail(f"{len(operands)} operands; this form takes {expected}")
        self.kept = k // 2 if compressed else k
        metadata, selector = (operands.pop(3), operands.pop(3)) if compressed else (None, None)
        self.expand = Expansion(b, self.ta, k, selector, False) if compressed else None
        signs = [self._immediate(b, o, (1, -1)) for o in operands[4:6]] if floating else [1, 1]
        majors = [self._immediate(b, o, (0, 1)) for o in operands[6:]]
        self.count = fragment_registers(m // 4, n, self.td)
        self.outs = registers(b, operands[0], self.count, self.td, "d")
        self.a = (
            None
            if in_registers
            else SharedOperand("A", self.ta, m, self.kept, bool(majors and majors[0]), signs[0] < 0)
        )
        self.a_sign = signs[0]
        self.a_registers = registers(b, operands[1], 4, self.ta, "a") if in_registers else ((operands[1], U64),)
        self.b = SharedOperand("B", form["b"], n, k, bool(majors and majors[-1]), signs[1] < 0)
        extra: tuple[Typed, ...] = ((metadata, B32),) if compressed else ()
        self.sources = (*self.outs, (operands[2], U64), (operands[3], PRED), *extra, *self.a_registers)
        read = (metadata, *(o for o, _ in self.a_registers if in_registers))
        self.input_registers = tuple(o.name for o in read if isinstance(o, Register))
        self.table_a = fragments.multiplicand_a(16, self.kept // numerics.per_word(self.ta)).reshape(-1)
        self.table_d = fragments.accumulator(16, n, self.td == "f16")
        self.inverse_d = fragments.accumulator_inverse(16, n, self.td == "f16")
        self.d_type = register_type(self.td).dtype
        self.flops = f"flops.tensor.{self.ta}"

    @staticmethod
    def _immediate(b: Binding, operand: Operand | None, allowed: tuple[int, int]) -> int:
        value = operand.value if isinstance(operand, Immediate) else None
        if value not in allowed:
            raise b.fail(f"{operand} where {allowed[0]} or {allowed[1]} is expected")
        return int(value)

    def fragment_a(self, x: Group, groups: Warpgroups, lanes: tuple[Lanes, ...]) -> Lanes:
        """A from registers, (E, m, k) float32."""
        words = fragments.gather(x.shape, lanes, np.uint32)[groups.rows].take(self.table_a, axis=1)
        values = numerics.decode(words, self.ta).reshape(groups.count, self.m, self.kept)
        return -values if self.a_sign < 0 else values

    def places(self, x: Group, groups: Warpgroups, metadata: Words) -> Index:
        """(E, m, kept): the columns of a sparse A's elements, from the metadata register."""
        assert self.expand is not None
        words = fragments.gather(x.shape, (metadata,), np.uint32)[groups.rows]
        return self.expand.columns(words, None).reshape(groups.count, self.m, self.kept)

    def accumulators(self, words: Words) -> Lanes:
        """(E, m, n) in the accumulator's type, from the registers of the active warps, (4 E, registers * 32)."""
        picked = words.take(self.table_d.reshape(-1), axis=1)
        if self.td == "f16":
            picked = picked.view(np.float16)
        return picked.view(self.d_type if self.td != "f16" else np.float16).reshape(-1, self.m, self.n)

    def registers_of(self, d: Lanes) -> Words:
        """The accumulator registers of the active warps, (4 E, registers, 32), from matrices, (E, m, n)."""
        words = accumulator_words(d, self.td).reshape(len(d) * WARPGROUP, -1)
        return words.take(self.inverse_d, axis=1)

    def product(self, wave: WaveState, given: Inputs, c: Lanes) -> Lanes:
        """(E, m, n): the new accumulators from the old ones, ``c``."""
        a, count = given.a, len(given.cta)
        if self.a is not None:
            tiles, which = self.a.load(wave, given.cta, a)
            a = tiles if len(tiles) == count and (which[:-1] < which[1:]).all() else tiles[which]
        stored = None
        if given.places is not None:
            a, stored = sparse.expand(a, given.places), sparse.kept(given.places)
        b, which = self.b.load(wave, given.cta, given.b)
        shared = count // len(b)
        if shared * len(b) == count and (which.reshape(-1, shared) == np.arange(len(b))[:, None]).all():
            # consecutive warpgroups with the same B are computed as one product: the rows of their A are concatenated
            a, c = a.reshape(len(b), -1, self.k), c.reshape(len(b), -1, self.n)
            stored = None if stored is None else stored.reshape(a.shape)
        else:
            b = b[which]
        d = sparse.product(self.compute, a, stored, b.transpose(0, 2, 1), c).reshape(count, self.m, self.n)
        for hooks in wave.arithmetic if self.ta not in numerics.INTEGERS else ():
            of = which if len(b) != count else np.arange(count)
            before, rows = c.reshape(d.shape), a.reshape(count, self.m, self.k)
            for e in range(count):
                hooks.produced(wave, self.where, int(given.owner[e]), d[e], (rows[e], b[of[e]], before[e]))
        return d

    def initial(self, words: Words | None, scale: Mask) -> Lanes:
        """(E, m, n): the accumulators, zero where ``scale``, (E,) bool, is false."""
        if words is None:
            zero: DTypeLike = np.float16 if self.td == "f16" else self.d_type
            return np.zeros((len(scale), self.m, self.n), zero)
        c = self.accumulators(words)
        return c if scale.all() else np.where(scale[:, None, None], c, c.dtype.type(0))
