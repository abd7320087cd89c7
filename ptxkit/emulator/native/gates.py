"""Gates in machine code: lanes pass if all that have to meet are there; the scheduler decides about every other case."""

from __future__ import annotations

from ptxkit.emulator.instructions.barriers import BARRIERS, BarrierGate
from ptxkit.emulator.instructions.warp_gate import ActiveGate, WarpGate
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.native.collectives import shuffle_source
from ptxkit.emulator.native.context import Field
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.text import LANES, Text, constant, ints
from ptxkit.emulator.simt.step import Gate
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
    return all(isinstance(o, Register | Immediate) and places.can_read(o, U32) for o in [*operands, *_sources(run)])


def _sources(run: StraightRun) -> list[Operand | None]:
    """The operands of shfl that determine from which lane each lane reads."""
    typed = run.instructions[0] if run.instructions else None
    if typed is None or typed.instruction.name != "shfl" or typed.step is None:
        return []
    return [operand for operand, _ in typed.step.sources[1:3]]


class GateCode:
    """The LLVM function that says whether all active lanes of all active warps may pass the gate of a block.

    It fails, too, where a lane of shfl reads from a lane that is not there: its result is undefined, which numpy notes.
    """

    def __init__(self, run: StraightRun, places: Places) -> None:
        self.run = run
        self.places = places
        self.t = Text()

    def text(self) -> str:
        """The text of the function."""
        t, block = self.t, self.run.block
        gate = block.gate
        t.label("entry")
        t.put(f"br i1 {t.value(f'icmp ne i64 {t.field(Field.GATES)}, 0')}, label %begin, label %no")
        t.label("begin")
        if isinstance(gate, BarrierGate):
            t.put(f"ret i1 {t.value('call i1 @ptxkit_all_of_ctas(ptr %C)')}")
        else:
            self._rows(gate)
        t.label("no")
        t.put("ret i1 false")
        return "\n".join([f"define internal i1 @gate{block.index}(ptr %C) noinline {{", *t.lines, "}", ""])

    def _rows(self, gate: Gate | None) -> None:
        t = self.t
        count = t.field(Field.ACTIVE_ROWS)
        names = {Field.ACTIVE_ROW: "active", Field.ACTIVE_MASK: "masks", Field.ROW: "rows", Field.LIVE: "lives"}
        for field, name in names.items():
            t.put(f"%{name} = call ptr @array(ptr %C, i64 {int(field)})")
        t.put(f"%registers = call ptr @array(ptr %C, i64 {int(Field.REGISTERS)})")
        t.put("br label %row")
        t.label("row")
        t.put("%i = phi i64 [0, %begin], [%following, %next]")
        number = t.value(f"zext i32 {self._item('%active', '%i')} to i64")
        mask, live = self._item("%masks", "%i"), self._item("%lives", number)
        row = t.value(f"zext i32 {self._item('%rows', number)} to i64")
        t.put(f"%base = getelementptr i8, ptr %registers, i64 {t.value(f'mul i64 {row}, {self.places.row_bytes}')}")
        bad = self._missing(gate.members, mask, live) if isinstance(gate, WarpGate) else "0"
        sources = self._unreadable(mask)
        if sources is not None:
            bad = t.value(f"or i32 {bad}, {sources}")
        t.put(f"br i1 {t.value(f'icmp eq i32 {bad}, 0')}, label %next, label %no")
        t.label("next")
        t.put("%following = add i64 %i, 1")
        t.put(f"br i1 {t.value(f'icmp ult i64 %following, {count}')}, label %row, label %yes")
        t.label("yes")
        t.put("ret i1 true")

    def _missing(self, members: Operand | None, mask: str, live: str) -> str:
        """Not 0 if the members of a lane are not the active lanes."""
        t = self.t
        if members is None:
            return t.value(f"xor i32 {live}, {mask}")
        named = self._lanes(members)
        lives, masks = t.everywhere(live, 32), t.everywhere(mask, 32)
        here = t.value(f"and {WORDS} {named}, {lives}")
        other = t.mask(t.value(f"icmp ne {WORDS} {here}, {masks}"))
        return t.value(f"and i32 {other}, {mask}")

    def _unreadable(self, mask: str) -> str | None:
        """For shfl, the active lanes that read from other lanes."""
        sources, t = _sources(self.run), self.t
        if not sources:
            return None
        form = self.run.instructions[0].form
        assert form is not None
        lane, clamp = (self._lanes(operand) for operand in sources)
        source, _ = shuffle_source(t, form["mode"], lane, clamp)
        bits = t.value(f"lshr {WORDS} {t.everywhere(mask, 32)}, {source}")
        absent = t.value(f"icmp eq {WORDS} {t.value(f'and {WORDS} {bits}, {constant(1, 32)}')}, zeroinitializer")
        return t.value(f"and i32 {t.mask(absent)}, {mask}")

    def _lanes(self, operand: Operand | None) -> str:
        """The value of an operand for all lanes."""
        k = self.places.register(operand)
        if k is None:
            found = self.places.constant(operand, U32)
            assert found is not None
            return found
        bits = self.places.bits(k)
        return self.t.resized(self.t.load(ints(bits), self.t.at("%base", self.places.offsets[k])), bits, 32)

    def _item(self, array: str, index: str) -> str:
        return self.t.value(f"load i32, ptr {self.t.value(f'getelementptr i32, ptr {array}, i64 {index}')}")


_ALL_OF_CTAS = f"""
; whether all lanes of the CTAs of the active warps that have not exited are active
define i1 @ptxkit_all_of_ctas(ptr %C) noinline {{
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


def declarations() -> str:
    """Declarations of these functions, for code that calls them."""
    return "declare i1 @ptxkit_all_of_ctas(ptr)\n"
