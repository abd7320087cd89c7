"""Segments: the parts of a straight run, each of machine code for one lane after the other, or of instructions for numpy.

All lanes execute a segment before the next one. Where lanes of a segment both load and store, one lane's store could precede
another's load, so that a store ends the segment that it is in, and begins one if loads precede it. If a lane needs numpy's
checks, such as the message of a fault, the segment is executed by numpy for its warp and the ones after it: registers that the
segment both reads and writes are restored before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.register_sets import RegisterSets, register_sets
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.accesses import Access, Accesses, access_of
from ptxkit.emulator.native.context import Field
from ptxkit.emulator.native.operands import LANES, Places, can_translate_operands, guarded, width
from ptxkit.emulator.native.scalar import Emit, emitter, packing
from ptxkit.emulator.native.text import Text
from ptxkit.isa.model import Negated, Operand, Predicate, Symbol
from ptxkit.isa.types import TYPES, PtxType

MOST = 96  # instructions of a segment, so that LLVM's time stays in proportion


@dataclass(frozen=True)
class Segment:
    """A part of a straight run.

    Attributes:
        block: index of the block. first: number of the first instruction, within the run.
        code: what writes each instruction; None for a segment that numpy executes.
    """

    block: int
    first: int
    instructions: tuple[TypedInstruction, ...]
    code: tuple[Emit | Access, ...] | None

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The loads and stores of memory."""
        return tuple(c for c in self.code or () if isinstance(c, Access) and c.at < 0)


def segments(run: StraightRun, places: Places) -> list[Segment]:
    """Divide a run."""
    found: list[Segment] = []
    pending: list[tuple[TypedInstruction, Emit | Access | None]] = []
    first = 0

    def flush(end: int) -> None:
        nonlocal first
        if pending:
            code = tuple(c for _, c in pending if c is not None)
            instructions = tuple(i for i, _ in pending)
            found.append(
                Segment(run.block.index, first, instructions, code if len(code) == len(instructions) else None)
            )
        pending.clear()
        first = end

    for n, typed in enumerate(run.instructions):
        code = _code(typed, places)
        if pending:
            loads = any(isinstance(c, Access) and not c.store for _, c in pending)
            stores = any(isinstance(c, Access) and c.store for _, c in pending)
            other = (code is None) != (pending[-1][1] is None)
            if other or len(pending) >= MOST or (isinstance(code, Access) and (stores or (code.store and loads))):
                flush(n)
        pending.append((typed, code))
    flush(len(run.instructions))
    return found


def _code(typed: TypedInstruction, places: Places) -> Emit | Access | None:
    if typed.instruction.predicate is not None and places.register(typed.instruction.predicate.register) is None:
        return None
    if (access := access_of(typed, places)) is not None:
        return access
    step = typed.step
    if step is None or not step.pure or not can_translate_operands(typed, places):
        return None
    if typed.instruction.name == "mov":
        sources, destinations = ([width(t) for _, t in side] for side in (step.sources, step.destinations))
        if len(sources) > 1 or len(destinations) > 1:
            return packing(sources, destinations)
    return emitter(typed.instruction.opcode)


class SegmentCode:
    """The LLVM function of a segment.

    Args:
        number: of the segment, by which a callback names it.
        block_code: the straight run that it is part of.
    """

    def __init__(self, segment: Segment, number: int, run: StraightRun, places: Places) -> None:
        self.segment = segment
        self.number = number
        self.places = places
        self.t = Text()
        self.sets: RegisterSets = register_sets(segment.instructions, run.block, places.code)
        self.gated = run.block.gate is not None
        self.accesses = Accesses(self.t, "slow")

    @property
    def loaded(self) -> list[int]:
        """Registers that lanes read at the beginning."""
        own = 0
        for typed in self.segment.instructions:
            assert typed.step is not None
            operands: list[Operand | Predicate | None] = [o for o, _ in typed.step.sources]
            operands.append(typed.instruction.predicate)
            for o in operands:
                own |= self._bit(o)
        kept = self.sets.loaded & (own | self.sets.written)
        return members(kept)

    def _bit(self, o: Operand | Predicate | None) -> int:
        o = o.register if isinstance(o, Predicate) else o.operand if isinstance(o, Negated) else o
        k = self.places.register(o)
        return 0 if k is None else 1 << k

    def text(self) -> str:
        """The text of the function."""
        t, segment = self.t, self.segment
        assert segment.code is not None
        loaded, written = self.loaded, members(self.sets.written)
        touched = sorted({*loaded, *written})
        undo = [k for k in loaded if k in written] if segment.accesses else []
        head = [f"define internal i32 @segment{self.number}(ptr %C) noinline {{", "entry:"]
        for k in touched:
            head.append(f"  %r{k} = alloca i{self.places.bits(k)}")
        for k in undo:
            head.append(f"  %undo{k} = alloca <{LANES} x i{self._stored(k)}>")
        counted = [n for n, i in enumerate(segment.instructions) if guarded(i.instruction) and not self.gated]
        for n in counted:
            head += [f"  %row_lanes{n} = alloca i64", f"  %all_lanes{n} = alloca i64"]
        for access in segment.accesses:
            head += Accesses.allocas(access)
        head += ["  %left = alloca i32", "  %index = alloca i64"]
        for n in counted:
            t.put(f"store i64 0, ptr %all_lanes{n}")
        t.put("store i64 0, ptr %index")
        self._rows(loaded, written, undo, counted)
        return "\n".join([*head, *t.lines, "}", ""])

    def _stored(self, k: int) -> int:
        """Bits of a register in memory."""
        return max(8, self.places.bits(k))

    def _rows(self, loaded: list[int], written: list[int], undo: list[int], counted: list[int]) -> None:
        t, accesses = self.t, self.segment.accesses
        names = {Field.ACTIVE_ROW: "active", Field.ACTIVE_MASK: "masks", Field.ROW: "rows", Field.CTA: "ctas"}
        for field, name in names.items():
            t.put(f"%{name} = call ptr @array(ptr %C, i64 {int(field)})")
        t.put(f"%registers = call ptr @array(ptr %C, i64 {int(Field.REGISTERS)})")
        t.put(f"%count = call i64 @field(ptr %C, i64 {int(Field.ACTIVE_ROWS)})")
        t.put("br label %row")
        t.label("row")
        t.put("%i = load i64, ptr %index")
        number = t.value(f"zext i32 {self._item('%active', '%i')} to i64")
        mask = self._item("%masks", "%i")
        row = t.value(f"zext i32 {self._item('%rows', number)} to i64")
        t.put(f"%cta = zext i32 {self._item('%ctas', number)} to i64")
        t.put(f"%base = getelementptr i8, ptr %registers, i64 {t.value(f'mul i64 {row}, {self.places.row_bytes}')}")
        t.put(f"%first = mul i64 {row}, {LANES}")
        t.put(f"store i32 {mask}, ptr %left")
        for k in undo:
            kind = f"<{LANES} x i{self._stored(k)}>"
            t.put(f"store {kind} {t.load(kind, t.at('%base', str(self.places.offsets[k])))}, ptr %undo{k}")
        for n in counted:
            t.put(f"store i64 0, ptr %row_lanes{n}")
        for access in accesses:
            self.accesses.begin_row(access)
        t.put("br label %lane")
        t.label("lane")
        t.put("%m = load i32, ptr %left")
        t.put(f"br i1 {t.value('icmp eq i32 %m, 0')}, label %row_end, label %work")
        t.label("work")
        t.put("%lane32 = call i32 @llvm.cttz.i32(i32 %m, i1 true)")
        t.put("%lane64 = zext i32 %lane32 to i64")
        t.put("%bit = shl i32 1, %lane32")
        t.put("%thread = add i64 %first, %lane64")
        t.put(f"store i32 {t.value('xor i32 %m, %bit')}, ptr %left")
        for k in loaded:
            self._set(k, self._from_row(k))
        for n, typed in enumerate(self.segment.instructions):
            self._instruction(n, typed)
        for k in written:
            self._to_row(k)
        t.put("br label %lane")
        t.label("row_end")
        for access in accesses:
            self.accesses.end_row(access)
        for n in counted:
            total = t.value(f"load i64, ptr %all_lanes{n}")
            more = t.value(f"load i64, ptr %row_lanes{n}")
            t.put(f"store i64 {t.value(f'add i64 {total}, {more}')}, ptr %all_lanes{n}")
        following = t.value("add i64 %i, 1")
        t.put(f"store i64 {following}, ptr %index")
        t.put(f"br i1 {t.value(f'icmp ult i64 {following}, %count')}, label %row, label %done")
        t.label("done")
        self._counts(counted)
        t.put("ret i32 0")
        if accesses:
            self._slow(undo, counted)

    def _counts(self, counted: list[int]) -> None:
        for n in counted:
            total = self.t.value(f"load i64, ptr %all_lanes{n}")
            number = self.segment.instructions[n].number
            self.t.put(f"call void @add_to(ptr %C, i64 {int(Field.PREDICATED)}, i64 {number}, i64 {total})")

    def _slow(self, undo: list[int], counted: list[int]) -> None:
        """numpy executes the segment for this warp and those after it."""
        t = self.t
        t.label("slow")
        for k in undo:
            kind = f"<{LANES} x i{self._stored(k)}>"
            t.store(kind, t.value(f"load {kind}, ptr %undo{k}"), t.at("%base", str(self.places.offsets[k])))
        self._counts(counted)
        first = t.value("trunc i64 %i to i32")
        t.put(f"%answer = call i32 @by_numpy(ptr %C, i32 {self.number}, i32 {first})")
        t.put("ret i32 %answer")

    def _item(self, array: str, index: str) -> str:
        return self.t.value(f"load i32, ptr {self.t.value(f'getelementptr i32, ptr {array}, i64 {index}')}")

    # -- registers ---------------------------------------------------------------------------------------------------

    def _place(self, k: int) -> str:
        t, size = self.t, self._stored(k) // 8
        at = t.value(f"add i64 {t.value(f'mul i64 %lane64, {size}')}, {self.places.offsets[k]}")
        return t.at("%base", at)

    def _from_row(self, k: int) -> str:
        value = self.t.load(f"i{self._stored(k)}", self._place(k))
        return self.t.value(f"icmp ne i8 {value}, 0") if self.places.bits(k) == 1 else value

    def _to_row(self, k: int) -> None:
        value = self._get(k)
        if self.places.bits(k) == 1:
            value = self.t.value(f"zext i1 {value} to i8")
        self.t.store(f"i{self._stored(k)}", value, self._place(k))

    def _get(self, k: int) -> str:
        return self.t.value(f"load i{self.places.bits(k)}, ptr %r{k}")

    def _set(self, k: int, value: str) -> None:
        self.t.put(f"store i{self.places.bits(k)} {value}, ptr %r{k}")

    # -- instructions ------------------------------------------------------------------------------------------------

    def _instruction(self, n: int, typed: TypedInstruction) -> None:
        t, step = self.t, typed.step
        assert step is not None
        assert self.segment.code is not None
        code = self.segment.code[n]
        guard = "" if self.gated else self._guard(typed.instruction.predicate)
        if guard:
            old = t.value(f"load i64, ptr %row_lanes{n}")
            more = t.value(f"zext i1 {guard} to i64")
            t.put(f"store i64 {t.value(f'add i64 {old}, {more}')}, ptr %row_lanes{n}")
        if not isinstance(code, Access):
            results = code(t, [self._read(o, kind) for o, kind in step.sources])
            for (o, kind), value in zip(step.destinations, results, strict=False):
                self._write(o, kind, value, guard)
            return
        skip = ""
        if guard:
            perform, skip = t.name("perform"), t.name("skip")
            t.put(f"br i1 {guard}, label %{perform}, label %{skip}")
            t.label(perform)
        self._access(code)
        if skip:
            t.put(f"br label %{skip}")
            t.label(skip)

    def _guard(self, predicate: Predicate | None) -> str:
        if predicate is None:
            return ""
        k = self.places.register(predicate.register)
        assert k is not None
        value = self._get(k)
        return self.t.value(f"xor i1 {value}, true") if predicate.negated else value

    def _read(self, o: Operand | None, kind: PtxType) -> str:
        if isinstance(o, Negated):
            return self.t.value(f"xor i1 {self._read(o.operand, kind)}, true")
        k = self.places.register(o)
        if k is not None:
            return self.t.resized(self._get(k), self.places.bits(k), width(kind))
        if isinstance(o, Symbol) and o.name in self.places.frame:
            return self._frame_address(o)
        constant = self.places.constant(o, kind)
        assert constant is not None
        return constant

    def _frame_address(self, o: Symbol) -> str:
        t = self.t
        p = t.value(f"getelementptr i64, ptr {t.array(Field.FRAME)}, i64 {self.places.frame[o.name]}")
        return t.value(f"add i64 {t.value(f'load i64, ptr {p}')}, {o.offset}")

    def _write(self, o: Operand | None, kind: PtxType, value: str, guard: str = "") -> None:
        k = self.places.register(o)
        if k is None:
            return
        bits = self.places.bits(k)
        value = self.t.resized(value, width(kind), bits, kind.kind == "s")
        self._set(k, self.t.select(guard, f"i{bits}", value, self._get(k)) if guard else value)

    def _access(self, access: Access) -> None:
        t = self.t
        bits = width(access.type)
        if access.at >= 0:
            start = t.array(Field.PARAMETERS)
            for n, o in enumerate(access.elements):
                self._write(o, access.type, t.load(f"i{bits}", t.at(start, str(access.at + n * bits // 8))))
            return
        k = self.places.register(access.base)
        if k is not None:
            address = t.resized(self._get(k), self.places.bits(k), 64)
        else:
            address = self._read(access.base, TYPES["u64"])
        address = t.value(f"add i64 {address}, {access.offset}")
        if not access.store:
            t.put(f"store i64 -1, ptr %sentinel{access.number}")
        place = self.accesses.place(access, address)
        for n, o in enumerate(access.elements):
            at = t.at(place, str(n * bits // 8))
            if access.store:
                t.store(f"i{bits}", self._read(o, access.type), at)
            else:
                value = t.load(f"i{bits}", at)
                self._unwritten(access, value, bits)
                self._write(o, access.type, value)

    def _unwritten(self, access: Access, value: str, bits: int) -> None:
        """Count a value that is what the host has filled memory with."""
        t = self.t
        if "global" not in access.spaces:
            return
        sentinel = t.value(f"load i64, ptr %sentinel{access.number}")
        look, go = t.name("look"), t.name("go")
        t.put(f"br i1 {t.value(f'icmp sge i64 {sentinel}, 0')}, label %{look}, label %{go}")
        t.label(look)
        pattern = t.resized(t.value(f"mul i64 {sentinel}, {0x0101_0101_0101_0101}"), 64, bits)
        more = t.value(f"zext i1 {t.value(f'icmp eq i{bits} {value}, {pattern}')} to i64")
        t.put(f"call void @add_to(ptr %C, i64 {int(Field.UNWRITTEN)}, i64 {access.number}, i64 {more})")
        t.put(f"br label %{go}")
        t.label(go)


def instructions_of(found: Sequence[Segment]) -> int:
    """How many instructions of some segments have machine code."""
    return sum(len(s.instructions) for s in found if s.code is not None)
