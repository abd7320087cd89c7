"""Translates a function to the records that machine code executes (:mod:`ptxkit.emulator.native.records`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ptxkit.emulator.instructions.barriers import BarrierGate
from ptxkit.emulator.instructions.branches import Branch, Call, FallThrough, Return
from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.native.call_targets import Callee, call_words, callee_of, targets_of
from ptxkit.emulator.native.forms import Form
from ptxkit.emulator.native.gates import U32, gate_form, shuffle_operands
from ptxkit.emulator.native.instruction_words import Instructions
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.records import ALL_OF_CTAS, BlockRecord, FunctionRecord, Kind
from ptxkit.emulator.native.segments import Segment, segments
from ptxkit.emulator.native.words import Words
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.isa.model import Register


@dataclass(frozen=True)
class Translation:
    """The records of a function.

    Attributes:
        words: the records, which begin with that of the function.
        segments: by number.
        blocks: the blocks that it has.
    """

    words: Words
    segments: tuple[Segment, ...]
    blocks: frozenset[int]

    @property
    def forms(self) -> Mapping[str, Form]:
        """What has to be compiled for it."""
        return self.words.forms


def translate(
    runs: Sequence[StraightRun], places: Places, callees: Mapping[int, Callee] = MappingProxyType({})
) -> Translation:
    """Translate some blocks of a function; control leaves the machine code for all others.

    Args:
        callees: entry of a function that machine code may call -> its number and places.
    """
    first = min(run.block.index for run in runs)
    count = max(run.block.index for run in runs) + 1 - first
    words = Words()
    head = words.reserve(FunctionRecord.BLOCKS + count)
    words.put(head + FunctionRecord.FIRST, first)
    words.put(head + FunctionRecord.COUNT, count)
    words.put(head + FunctionRecord.ROW_BYTES, places.row_bytes)
    numbered: list[Segment] = []
    writer = _Blocks(words, places, callees, numbered)
    for run in runs:
        words.point(head + FunctionRecord.BLOCKS + run.block.index - first, writer.block(run))
    return Translation(words, tuple(numbered), frozenset(run.block.index for run in runs))


class _Blocks:
    """Writes the records of blocks.

    Args:
        numbered: receives the segments.
    """

    def __init__(
        self, words: Words, places: Places, callees: Mapping[int, Callee], numbered: list[Segment]
    ) -> None:
        self.words = words
        self.places = places
        self.callees = callees
        self.numbered = numbered

    def block(self, run: StraightRun) -> int:
        """Write the record of a block; returns its position."""
        words, block = self.words, run.block
        parts = segments(run, self.places)
        at = words.reserve(BlockRecord.SIZE + len(parts))
        words.put(at + BlockRecord.INDEX, block.index)
        words.put(at + BlockRecord.INSTRUCTIONS, len(block.instructions))
        words.put(at + BlockRecord.NEXT, block.next)
        words.put(at + BlockRecord.NUMBER, block.terminator.number)
        words.put(at + BlockRecord.RECONVERGES, int(block.reconverges is not None))
        words.put(at + BlockRecord.SEGMENTS, len(parts))
        words.put(at + BlockRecord.KIND, self._terminator(at, block))
        if isinstance(block.gate, BarrierGate):
            words.put(at + BlockRecord.GATE, ALL_OF_CTAS)
        elif block.gate is not None:
            words.point(at + BlockRecord.GATE, self._gate(run))
        for n, segment in enumerate(parts):
            words.point(at + BlockRecord.SIZE + n, self._segment(segment, block))
        return at

    def _segment(self, segment: Segment, block: BasicBlock) -> int:
        number = len(self.numbered)
        self.numbered.append(segment)
        at = self.words.reserve(1)
        self.words.put(at, number)
        writer = Instructions(self.words, self.places)
        for typed, code in zip(segment.instructions, segment.code or (), strict=False):
            writer.add(typed, code, block.gate is not None)
        writer.end()
        return at

    def _gate(self, run: StraightRun) -> int:
        gate = run.block.gate
        members = gate.members if isinstance(gate, WarpGate) else None
        writer = Instructions(self.words, self.places)
        own = None if members is None else writer.source(members, U32)
        others = [writer.source(o, U32) for o in shuffle_operands(run)]
        return writer.put(gate_form(run, own, others), run.block.instructions[0][0])

    def _terminator(self, at: int, block: BasicBlock) -> Kind:
        """Write the words of a terminator; returns what it is."""
        words, places, terminator = self.words, self.places, block.terminator
        if isinstance(terminator, FallThrough):
            return Kind.FALL_THROUGH
        if isinstance(terminator, Branch):
            words.put(at + BlockRecord.TARGET, terminator.target)
            if terminator.predicate is None:
                return Kind.JUMP
            k = places.code.register_index[terminator.predicate.register.name]
            words.put(at + BlockRecord.PLACE, places.offsets[k])
            words.put(at + BlockRecord.NEGATED, int(terminator.predicate.negated))
            return Kind.BRANCH
        if isinstance(terminator, Return):
            return Kind.RETURN if terminator.predicate is None and not terminator.results else Kind.OTHER
        if isinstance(terminator, Call):
            return self._call(at, terminator)
        return Kind.OTHER

    def _call(self, at: int, call: Call) -> Kind:
        words, places = self.words, self.places
        if call.predicate is None and call.builtin is not None:
            return Kind.DRIVER
        if targets := targets_of(call, places, self.callees):
            assert isinstance(call.callee, Register)
            words.put(at + BlockRecord.PLACE, places.offsets[places.code.register_index[call.callee.name]])
            words.put(at + BlockRecord.COUNT, len(targets))
            table = words.reserve(2 * len(targets))
            words.point(at + BlockRecord.CALLS, table)
            words.point(at + BlockRecord.TARGETS, table + len(targets))
            for n, (address, callee) in enumerate(targets):
                words.put(table + n, address)
                if callee is not None:
                    words.point(table + len(targets) + n, words.add(call_words(call, places, *callee)))
            return Kind.CALL_REGISTER
        found = callee_of(call, places, self.callees)
        if found is None:
            return Kind.OTHER
        words.point(at + BlockRecord.TARGETS, words.add(call_words(call, places, *found)))
        return Kind.CALL
