"""Segments: the parts of a straight run, each of machine code for one warp after the other, or of instructions for numpy.

All warps execute a segment before the next one. A warp executes each instruction for all of its lanes, active or not, and
writes registers for the active ones at the end of the segment. If a lane needs numpy's checks, such as the message of a fault,
numpy executes the whole segment for its warp and the ones after it. What the warp has stored before is stored once more, so
that a segment ends where an access follows a load and a store after that: the load would give another value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.register_sets import RegisterSets, register_sets
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.accesses import Access, Accesses, access_of
from ptxkit.emulator.native.collectives import Collective, collective
from ptxkit.emulator.native.context import Field
from ptxkit.emulator.native.operands import Places, can_translate_operands, guarded, width
from ptxkit.emulator.native.scalar import Emit, emitter, packing
from ptxkit.emulator.native.text import LANES, Text, constant, ints
from ptxkit.isa.model import Negated, Operand, Predicate, Symbol
from ptxkit.isa.types import TYPES, PtxType

MOST = 96  # instructions of a segment, so that LLVM's time stays in proportion


Code = Emit | Access | Collective
"""What writes the machine code of an instruction."""


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
    code: tuple[Code, ...] | None

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The loads and stores of memory."""
        return tuple(c for c in self.code or () if isinstance(c, Access) and c.at < 0)


def segments(run: StraightRun, places: Places) -> list[Segment]:
    """Divide a run."""
    found: list[Segment] = []
    pending: list[tuple[TypedInstruction, Code | None]] = []
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
            other = (code is None) != (pending[-1][1] is None)
            if other or len(pending) >= MOST or (isinstance(code, Access) and _stores_after_load(pending)):
                flush(n)
        pending.append((typed, code))
    flush(len(run.instructions))
    return found


def _stores_after_load(pending: Sequence[tuple[TypedInstruction, Code | None]]) -> bool:
    """Whether a store follows a load: executed once more, the load may give what the store has written."""
    accesses = [c for _, c in pending if isinstance(c, Access) and c.at < 0]
    loads = [n for n, c in enumerate(accesses) if not c.store]
    return bool(loads) and any(c.store for c in accesses[loads[0] :])


def _code(typed: TypedInstruction, places: Places) -> Code | None:
    if typed.instruction.predicate is not None and places.register(typed.instruction.predicate.register) is None:
        return None
    if (access := access_of(typed, places)) is not None:
        return access
    step = typed.step
    if step is not None and not step.pure:
        return collective(typed, places)
    if step is None or not can_translate_operands(typed, places):
        return None
    if typed.instruction.name == "mov":
        sources, destinations = ([width(t) for _, t in side] for side in (step.sources, step.destinations))
        if len(sources) > 1 or len(destinations) > 1:
            return packing(sources, destinations)
    return emitter(typed.instruction.opcode if typed.form is None else typed.form.opcode)


class SegmentCode:
    """The LLVM function of a segment.

    Args:
        number: of the segment, by which a callback names it.
        run: the straight run that it is part of.
    """

    def __init__(self, segment: Segment, number: int, run: StraightRun, places: Places) -> None:
        self.segment = segment
        self.number = number
        self.places = places
        self.t = Text()
        self.sets: RegisterSets = register_sets(segment.instructions, run.block, places.code)
        self.gated = run.block.gate is not None
        self.accesses = Accesses(self.t, "slow")
        self.values: dict[int, str] = {}  # of the registers
        self.active = ""  # the active lanes of the warp

    def text(self) -> str:
        """The text of the function."""
        t, segment = self.t, self.segment
        head = [f"define internal i32 @segment{self.number}(ptr %C) noinline {{", "entry:"]
        for access in segment.accesses:
            head += Accesses.allocas(access)
        for code in segment.code or ():
            head += code.allocas if isinstance(code, Collective) else ()
        head += ["  %index = alloca i64"]
        counted = [n for n, i in enumerate(segment.instructions) if guarded(i.instruction) and not self.gated]
        for n in counted:
            head.append(f"  %lanes{n} = alloca i64")
            t.put(f"store i64 0, ptr %lanes{n}")
        t.put("store i64 0, ptr %index")
        self._rows(counted)
        return "\n".join([*head, *t.lines, "}", ""])

    def _stored(self, k: int) -> int:
        """Bits of a register in memory."""
        return max(8, self.places.bits(k))

    def _rows(self, counted: list[int]) -> None:
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
        t.put(f"%mask = add i32 {self._item('%masks', '%i')}, 0")
        row = t.value(f"zext i32 {self._item('%rows', number)} to i64")
        t.put(f"%cta = zext i32 {self._item('%ctas', number)} to i64")
        t.put(f"%base = getelementptr i8, ptr %registers, i64 {t.value(f'mul i64 {row}, {self.places.row_bytes}')}")
        t.put(f"%first = mul i64 {row}, {LANES}")
        self.active = t.lanes("%mask")
        for access in accesses:
            self.accesses.begin_row(access)
        totals = {n: self._instruction(n, typed) for n, typed in enumerate(self.segment.instructions)}
        for k in members(self.sets.written):
            self._to_row(k)
        for access in accesses:
            self.accesses.end_row(access)
        for n in counted:
            more = t.value(f"zext i32 {t.value(f'call i32 @llvm.ctpop.i32(i32 {totals[n]})')} to i64")
            old = t.value(f"load i64, ptr %lanes{n}")
            t.put(f"store i64 {t.value(f'add i64 {old}, {more}')}, ptr %lanes{n}")
        following = t.value("add i64 %i, 1")
        t.put(f"store i64 {following}, ptr %index")
        t.put(f"br i1 {t.value(f'icmp ult i64 {following}, %count')}, label %row, label %done")
        t.label("done")
        self._counts(counted)
        t.put("ret i32 0")
        if accesses:
            self._slow(counted)

    def _counts(self, counted: list[int]) -> None:
        for n in counted:
            total = self.t.value(f"load i64, ptr %lanes{n}")
            number = self.segment.instructions[n].number
            self.t.put(f"call void @add_to(ptr %C, i64 {int(Field.PREDICATED)}, i64 {number}, i64 {total})")

    def _slow(self, counted: list[int]) -> None:
        """numpy executes the segment for this warp, whose registers are still the old ones, and those after it."""
        t = self.t
        t.label("slow")
        self._counts(counted)
        first = t.value("trunc i64 %i to i32")
        t.put(f"%answer = call i32 @by_numpy(ptr %C, i32 {self.number}, i32 {first})")
        t.put("ret i32 %answer")

    def _item(self, array: str, index: str) -> str:
        return self.t.value(f"load i32, ptr {self.t.value(f'getelementptr i32, ptr {array}, i64 {index}')}")

    # -- registers ---------------------------------------------------------------------------------------------------

    def _from_row(self, k: int) -> str:
        t = self.t
        value = t.load(ints(self._stored(k)), t.at("%base", self.places.offsets[k]))
        return t.value(f"icmp ne {ints(8)} {value}, zeroinitializer") if self.places.bits(k) == 1 else value

    def _to_row(self, k: int) -> None:
        """Write a register for the active lanes."""
        t, bits, value = self.t, self._stored(k), self.values[k]
        place = t.at("%base", self.places.offsets[k])
        if self.places.bits(k) == 1:
            value = t.value(f"zext {ints(1)} {value} to {ints(8)}")
        t.store(ints(bits), t.select(self.active, bits, value, t.load(ints(bits), place)), place)

    def _get(self, k: int) -> str:
        if k not in self.values:
            self.values[k] = self._from_row(k)
        return self.values[k]

    # -- instructions ------------------------------------------------------------------------------------------------

    def _instruction(self, n: int, typed: TypedInstruction) -> str:
        """Execute an instruction; returns its lanes as an i32."""
        t, step = self.t, typed.step
        assert step is not None
        assert self.segment.code is not None
        code = self.segment.code[n]
        guard = "" if self.gated else self._guard(typed.instruction.predicate)
        mask = "%mask" if not guard else t.value(f"and i32 %mask, {t.mask(guard)}")
        if isinstance(code, Access):
            self._access(code, mask, guard)
        else:
            values = [self._read(o, kind) for o, kind in step.sources]
            results = code.emit(t, values, mask) if isinstance(code, Collective) else code(t, values)
            for (o, kind), value in zip(step.destinations, results, strict=False):
                self._write(o, kind, value, guard)
        return mask

    def _guard(self, predicate: Predicate | None) -> str:
        if predicate is None:
            return ""
        k = self.places.register(predicate.register)
        assert k is not None
        value = self._get(k)
        return self.t.value(f"xor {ints(1)} {value}, {constant(1, 1)}") if predicate.negated else value

    def _read(self, o: Operand | None, kind: PtxType) -> str:
        if isinstance(o, Negated):
            return self.t.value(f"xor {ints(1)} {self._read(o.operand, kind)}, {constant(1, 1)}")
        k = self.places.register(o)
        if k is not None:
            return self.t.resized(self._get(k), self.places.bits(k), width(kind))
        if isinstance(o, Symbol) and o.name in self.places.frame:
            return self.t.everywhere(self._frame_address(o), 64)
        found = self.places.constant(o, kind)
        assert found is not None
        return found

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
        self.values[k] = self.t.select(guard, bits, value, self._get(k)) if guard else value

    def _access(self, access: Access, mask: str, guard: str) -> None:
        t = self.t
        bits = width(access.type)
        if access.at >= 0:
            start = t.array(Field.PARAMETERS)
            for n, o in enumerate(access.elements):
                value = t.load(f"i{bits}", t.at(start, access.at + n * bits // 8))
                self._write(o, access.type, t.everywhere(value, bits), guard)
            return
        k = self.places.register(access.base)
        if k is not None:
            address = t.resized(self._get(k), self.places.bits(k), 64)
        else:
            address = self._read(access.base, TYPES["u64"])
        address = t.value(f"add {ints(64)} {address}, {constant(access.offset, 64)}")
        values = [self._read(o, access.type) if access.store else "" for o in access.elements]
        if not guard:
            self.accesses.locate(access, address, mask)
            for n, o in enumerate(access.elements):
                if access.store:
                    self.accesses.store(access, n, mask, values[n])
                else:
                    self._write(o, access.type, self.accesses.load(access, n, mask))
            return
        self._guarded_access(access, mask, guard, address, values)

    def _guarded_access(self, access: Access, mask: str, guard: str, address: str, values: list[str]) -> None:
        """An access that is left out if no lane takes part."""
        t, bits = self.t, width(access.type)
        old = [self._old(o) for o in access.elements] if not access.store else []
        begin, perform, skip = (t.name(n) for n in ("begin", "perform", "skip"))
        t.put(f"br label %{begin}")
        t.label(begin)
        t.put(f"br i1 {t.value(f'icmp ne i32 {mask}, 0')}, label %{perform}, label %{skip}")
        t.label(perform)
        self.accesses.locate(access, address, mask)
        made = []
        for n in range(len(access.elements)):
            if access.store:
                self.accesses.store(access, n, mask, values[n])
            else:
                made.append(self.accesses.load(access, n, mask))
        last = t.name("last")
        t.put(f"br label %{last}")
        t.label(last)
        t.put(f"br label %{skip}")
        t.label(skip)
        for o, value, before in zip(access.elements, made, old, strict=False):
            if before:
                got = t.value(f"phi {ints(bits)} [{value}, %{last}], [zeroinitializer, %{begin}]")
                self._write(o, access.type, got, guard)

    def _old(self, o: Operand | None) -> str:
        """The value of a register before the access, which has to be read before the branch."""
        k = self.places.register(o)
        return "" if k is None else self._get(k)


def instructions_of(found: Sequence[Segment]) -> int:
    """How many instructions of some segments have machine code."""
    return sum(len(s.instructions) for s in found if s.code is not None)
