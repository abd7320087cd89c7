"""Gates in machine code: lanes pass if all that have to meet are there; the scheduler decides about every other case."""

from __future__ import annotations

from collections.abc import Sequence

from ptxkit.emulator.instructions.barriers import BARRIERS, BarrierGate
from ptxkit.emulator.instructions.warp_gate import ActiveGate, WarpGate
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.native.collectives import shuffle_source
from ptxkit.emulator.native.context import Field
from ptxkit.emulator.native.forms import Form, FormText, Source, made
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.text import LANES, Text, constant, ints
from ptxkit.isa.model import Immediate, Operand, Register
from ptxkit.isa.types import TYPES

WORDS = ints(32)
U32 = TYPES["u32"]


def can_pass(run: StraightRun, places: Places) -> bool:
    """Whether machine code can decide about the gate of a block; also true without one."""
    block, gate = run.block, run.block.gate
    if gate is None:
        return True
    if block.instructions[0][1].predicate is not None:
        return False
    if isinstance(gate, BarrierGate):
        number = gate.number
        return gate.vote is None and gate.count is None and isinstance(number, Immediate) and int(number.value) < BARRIERS
    if not isinstance(gate, WarpGate | ActiveGate) or (isinstance(gate, WarpGate) and gate.span != 1):
        return False
    operands = [gate.members] if isinstance(gate, WarpGate) and gate.members is not None else []
    return all(isinstance(o, Register | Immediate) and places.can_read(o, U32) for o in [*operands, *shuffle_operands(run)])


def shuffle_operands(run: StraightRun) -> list[Operand | None]:
    """The operands of shfl that determine from which lane each lane reads."""
    typed = run.instructions[0] if run.instructions else None
    if typed is None or typed.instruction.name != "shfl" or typed.step is None:
        return []
    return [operand for operand, _ in typed.step.sources[1:3]]


def gate_form(run: StraightRun, members: Source | None, sources: Sequence[Source]) -> Form:
    """A form that says whether the active lanes of a warp may pass the gate of a block; its %cta are the live lanes.

    It fails, too, where a lane of shfl reads from a lane that is not there: its result is undefined, which numpy notes.

    Args:
        members: the operand with the member mask, the first one of the record; None without one.
        sources: the operands of shfl that determine from which lane each lane reads, the next ones.
    """
    t = FormText()
    values = [t.read(s, t.pointer(2 * n)) for n, s in enumerate([*([] if members is None else [members]), *sources])]
    live = t.value("trunc i64 %cta to i32")
    bad = "0"
    if isinstance(run.block.gate, WarpGate):
        bad = _missing(t, None if members is None else values.pop(0), live)
    if sources:
        bad = t.value(f"or i32 {bad}, {_unreadable(t, run, *values)}")
    t.put(f"ret i1 {t.value(f'icmp eq i32 {bad}, 0')}")
    return made(t.lines)


def _missing(t: Text, named: str | None, live: str) -> str:
    """Not 0 if the members of a lane are not the active lanes."""
    if named is None:
        return t.value(f"xor i32 {live}, %mask")
    lives, masks = t.everywhere(live, 32), t.everywhere("%mask", 32)
    here = t.value(f"and {WORDS} {named}, {lives}")
    other = t.mask(t.value(f"icmp ne {WORDS} {here}, {masks}"))
    return t.value(f"and i32 {other}, %mask")


def _unreadable(t: Text, run: StraightRun, lane: str, clamp: str) -> str:
    """For shfl, the active lanes that read from other lanes."""
    form = run.instructions[0].form
    assert form is not None
    source, _ = shuffle_source(t, form["mode"], lane, clamp)
    bits = t.value(f"lshr {WORDS} {t.everywhere('%mask', 32)}, {source}")
    absent = t.value(f"icmp eq {WORDS} {t.value(f'and {WORDS} {bits}, {constant(1, 32)}')}, zeroinitializer")
    return t.value(f"and i32 {t.mask(absent)}, %mask")


_ALL_OF_CTAS = f"""
; whether all lanes of the CTAs of the active warps that have not exited are active
define internal i1 @all_of_ctas(ptr %C) noinline {{
entry:
  %count = call i64 @field(ptr %C, i64 {int(Field.ACTIVE_ROWS)})
  %active = call ptr @array(ptr %C, i64 {int(Field.ACTIVE_ROW)})
  %masks = call ptr @array(ptr %C, i64 {int(Field.ACTIVE_MASK)})
  %ctas = call ptr @array(ptr %C, i64 {int(Field.CTA)})
  %want = call ptr @array(ptr %C, i64 {int(Field.LIVE_OF_CTA)})
  br label %row
row:
  %i = phi i64 [0, %entry], [%i1, %same], [%i1, %first]
  %sum = phi i32 [0, %entry], [%sum1, %same], [0, %first]
  %ap = getelementptr i32, ptr %active, i64 %i
  %a = load i32, ptr %ap
  %a64 = zext i32 %a to i64
  %mp = getelementptr i32, ptr %masks, i64 %i
  %m = load i32, ptr %mp
  %n = call i32 @llvm.ctpop.i32(i32 %m)
  %sum1 = add i32 %sum, %n
  %cp = getelementptr i32, ptr %ctas, i64 %a64
  %c = load i32, ptr %cp
  %c64 = zext i32 %c to i64
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %look, label %last
look:
  %ap2 = getelementptr i32, ptr %active, i64 %i1
  %a2 = load i32, ptr %ap2
  %a264 = zext i32 %a2 to i64
  %cp2 = getelementptr i32, ptr %ctas, i64 %a264
  %c2 = load i32, ptr %cp2
  %also = icmp eq i32 %c, %c2
  br i1 %also, label %same, label %check
same:
  br label %row
check:
  %wp = getelementptr i32, ptr %want, i64 %c64
  %w = load i32, ptr %wp
  %good = icmp eq i32 %w, %sum1
  br i1 %good, label %first, label %no
first:
  br label %row
last:
  %wp2 = getelementptr i32, ptr %want, i64 %c64
  %w2 = load i32, ptr %wp2
  %good2 = icmp eq i32 %w2, %sum1
  ret i1 %good2
no:
  ret i1 false
}}
"""


def gate_code() -> str:
    """The text of the functions that gates call."""
    assert LANES == 32
    return _ALL_OF_CTAS
