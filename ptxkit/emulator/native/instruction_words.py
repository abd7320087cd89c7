"""Writes the records of instructions."""

from __future__ import annotations

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.accesses import Access
from ptxkit.emulator.native.atomic_code import How, atomic_form
from ptxkit.emulator.native.atomics import Atomic
from ptxkit.emulator.native.collectives import Collective
from ptxkit.emulator.native.exponential import Exponential, exponential_form
from ptxkit.emulator.native.forms import (
    Destination,
    Form,
    Source,
    access_form,
    collective_form,
    frame_form,
    parameter_form,
    pure_form,
)
from ptxkit.emulator.native.operands import Places, width
from ptxkit.emulator.native.records import LEFT_OUT, InstructionRecord
from ptxkit.emulator.native.segments import Code
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.native.words import Words
from ptxkit.isa.model import Negated, Operand, Predicate, Symbol
from ptxkit.isa.types import TYPES, PtxType

REGISTER, ABSOLUTE = -1, 0
"""The first word of an operand; see :mod:`ptxkit.emulator.native.forms`."""


class Instructions:
    """Writes the records of the instructions of a segment, one after the other."""

    def __init__(self, words: Words, places: Places) -> None:
        self.words = words
        self.places = places
        self._operands: list[int | tuple[int, int]] = []  # of the next instruction; (value, bits) for a constant's address
        self._temporaries = 0

    def add(self, typed: TypedInstruction, code: Code, gated: bool) -> None:
        """Write an instruction.

        Args:
            gated: it is behind a gate, which the lanes pass for which its predicate holds.
        """
        self._temporaries = 0
        guard = None if gated else typed.instruction.predicate
        if isinstance(code, Access):
            form = self._access(code)
        else:
            form = self._atomic(code) if isinstance(code, Atomic) else self._computation(typed, code)
        self.put(form, typed.number, guard)

    def put(self, form: Form, number: int, guard: Predicate | None = None) -> int:
        """Write the record of a form with the operands that were named; returns its position."""
        words, operands = self.words, self._operands
        self._operands = []
        at = words.reserve(InstructionRecord.OPERANDS + len(operands))
        words.form(at + InstructionRecord.FORM, form)
        words.put(at + InstructionRecord.GUARD, LEFT_OUT)
        if guard is not None:
            k = self.places.register(guard.register)
            assert k is not None
            words.put(at + InstructionRecord.GUARD, self.places.offsets[k])
            words.put(at + InstructionRecord.FLIP, -1 if guard.negated else 0)
        words.put(at + InstructionRecord.NUMBER, number)
        words.put(at + InstructionRecord.BYTES, 8 * (InstructionRecord.OPERANDS + len(operands)))
        for n, word in enumerate(operands):
            position = at + InstructionRecord.OPERANDS + n
            if isinstance(word, tuple):
                words.constant(position, *word)
            else:
                words.put(position, word)
        return at

    def end(self) -> None:
        """End the segment."""
        self.words.reserve(1)

    # -- instructions ------------------------------------------------------------------------------------------------

    def _computation(self, typed: TypedInstruction, code: Code) -> Form:
        step = typed.step
        assert step is not None
        assert not isinstance(code, Access | Atomic)
        sources = tuple(self.source(o, kind) for o, kind in step.sources)
        destinations = tuple(self._destination(o, kind) for o, kind in step.destinations)
        if isinstance(code, Exponential):
            return exponential_form(code.ftz, sources[0], destinations[0])
        if isinstance(code, Collective):
            return collective_form(code.emit, code.allocas, sources, destinations)
        return pure_form(code, sources, destinations)

    def _access(self, access: Access) -> Form:
        bits = width(access.type)
        if access.at >= 0:
            self._operands.append(access.at)
            return parameter_form(bits, tuple(self._destination(o, access.type) for o in access.elements))
        base = self._address(access)
        elements: tuple[Source | Destination | None, ...]
        if access.store:
            elements = tuple(self.source(o, access.type) for o in access.elements)
        else:
            elements = tuple(self._destination(o, access.type) for o in access.elements)
        return access_form(access.space, base, bits, elements, access.store, access.spins)

    def _atomic(self, atomic: Atomic) -> Form:
        base = self._address(atomic)
        values = tuple(self.source(o, atomic.type) for o in atomic.values)
        to = None if atomic.destination is None else self._destination(atomic.destination, atomic.type)
        how = How(0)
        for flag, holds in (
            (How.COMBINED, atomic.combined),
            (How.INCREMENTS, atomic.increments),
            (How.SWAPS, atomic.op == "cas"),
        ):
            how |= flag if holds else How(0)
        return atomic_form(atomic.op, atomic.type.name, atomic.space, base, values, to, how, atomic.spins)

    def _address(self, access: Access | Atomic) -> int:
        """Name an address and its offset; returns the width of the address."""
        k = self.places.register(access.base)
        base = self.source(access.base, TYPES["u64"] if k is None else self.places.code.register_types[k]).have
        self._operands.append(access.offset)
        return base

    # -- operands ----------------------------------------------------------------------------------------------------

    def source(self, o: Operand | None, kind: PtxType) -> Source:
        """Name an operand that the next instruction reads as a type."""
        if isinstance(o, Negated):
            found = self.source(o.operand, kind)
            return Source(found.have, found.want, not found.negated)
        want, k = width(kind), self.places.register(o)
        if k is not None:
            self._operands += [REGISTER, self.places.offsets[k]]
            return Source(self.places.bits(k), want)
        if isinstance(o, Symbol) and o.name in self.places.frame:
            self._operands += [REGISTER, self._address_of(o)]
            return Source(64, want)
        value = self.places.value(o, kind)
        assert value is not None
        self._operands += [ABSOLUTE, (value, want)]
        return Source(want, want)

    def _address_of(self, o: Symbol) -> int:
        """Let an instruction before the next one write the address of a variable to a temporary place; returns the place."""
        place = self.places.temporary + 8 * LANES * self._temporaries
        self._temporaries += 1
        pending, self._operands = self._operands, [REGISTER, place, self.places.frame[o.name], o.offset]
        self.put(frame_form(), 0)
        self._operands = pending
        return place

    def _destination(self, o: Operand | None, kind: PtxType) -> Destination | None:
        k = self.places.register(o)
        if k is None:
            self._operands += [ABSOLUTE, 0]
            return None
        self._operands += [REGISTER, self.places.offsets[k]]
        return Destination(self.places.bits(k), width(kind), kind.kind == "s")
