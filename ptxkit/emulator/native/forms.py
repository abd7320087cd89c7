"""The LLVM functions that execute instructions, one for each form: an opcode with the widths of its operands.

A form gets the record of an instruction (:class:`~ptxkit.emulator.native.records.InstructionRecord`), the registers of a warp
and the lanes that take part; it returns false where numpy has to execute the instruction, and has then changed nothing. An
operand has two words in the record: a mask and an offset. It is at ``(registers & mask) + offset``, so that the mask is -1 for
a register and 0 for a constant, whose offset is its address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

from ptxkit.emulator.native.context import SPACES, Field
from ptxkit.emulator.native.memory_code import Record
from ptxkit.emulator.native.records import InstructionRecord
from ptxkit.emulator.native.text import LANES, Text, constant, ints

PART = 8
"""Lanes that a form executes at a time: LLVM takes a time proportional to the width of the vectors."""

HEAD = "define i1 @NAME(ptr %C, ptr %X, ptr %base, i32 %mask, i64 %cta, i64 %first) {"


@dataclass(frozen=True)
class Form:
    """A form.

    Attributes:
        name: identifies the text. text: LLVM's.
    """

    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """An operand that is read: the width of its register or constant, the width as which it is read, and ``!``."""

    have: int
    want: int
    negated: bool = False


@dataclass(frozen=True)
class Destination:
    """An operand that is written: the width of its register, that of the result, and whether this is extended with its sign."""

    have: int
    want: int
    signed: bool = False


def narrow(text: str) -> str:
    """Text for the lanes of a warp as text for :data:`PART` lanes."""
    return re.sub(rf"\.v{LANES}(?=[if])", f".v{PART}", text.replace(f"<{LANES} x ", f"<{PART} x "))


def made(lines: Sequence[str]) -> Form:
    """The form that consists of some lines."""
    body = "\n".join([HEAD, "entry:", *lines, "}", ""])
    name = f"form_{blake2b(body.encode(), digest_size=12).hexdigest()}"
    return Form(name, body.replace("@NAME(", f"@{name}("))


class FormText(Text):
    """The lines of a form."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = ""  # distinguishes the names of several loops

    def begin_parts(self, before: str = "entry") -> None:
        """Begin a loop over the parts of the warp that have active lanes.

        Args:
            before: the label of the block that is left.
        """
        m = self.mark = "" if before == "entry" else f".{before}"
        self.put(f"br label %part{m}")
        self.label(f"part{m}")
        self.put(f"%k{m} = phi i64 [0, %{before}], [%k1{m}, %next{m}]")
        self.put(f"%left{m} = phi i32 [%mask, %{before}], [%left1{m}, %next{m}]")
        self.put(f"%some{m} = trunc i32 %left{m} to i{PART}")
        self.put(f"%none{m} = icmp eq i{PART} %some{m}, 0")
        self.put(f"br i1 %none{m}, label %next{m}, label %lanes{m}")
        self.label(f"lanes{m}")
        self.put(f"%active{m} = bitcast i{PART} %some{m} to {ints(1)}")

    def end_parts(self) -> None:
        """End the loop."""
        m = self.mark
        self.put(f"br label %next{m}")
        self.label(f"next{m}")
        self.put(f"%k1{m} = add i64 %k{m}, 1")
        self.put(f"%left1{m} = lshr i32 %left{m}, {PART}")
        self.put(f"%more{m} = icmp ne i32 %left1{m}, 0")
        self.put(f"br i1 %more{m}, label %part{m}, label %done{m}")
        self.label(f"done{m}")

    def word(self, position: int) -> str:
        """A word of the record, after its header."""
        return self.value(f"load i64, ptr {self.at('%X', 8 * (InstructionRecord.OPERANDS + position))}")

    def pointer(self, position: int) -> str:
        """Where the operand is whose two words are at ``position``."""
        own = self.value(f"and i64 {self.value('ptrtoint ptr %base to i64')}, {self.word(position)}")
        return self.value(f"inttoptr i64 {self.value(f'add i64 {own}, {self.word(position + 1)}')} to ptr")

    def part(self, pointer: str, bits: int) -> str:
        """The lanes of the part that is executed, of an operand."""
        return self.at(pointer, self.value(f"mul i64 %k{self.mark}, {PART * max(8, bits) // 8}"))

    def read(self, source: Source, pointer: str) -> str:
        """The value of an operand."""
        if source.want == 1:
            value = self.value(f"icmp ne {ints(8)} {self.load(ints(8), pointer)}, zeroinitializer")
            return self.value(f"xor {ints(1)} {value}, {constant(1, 1)}") if source.negated else value
        return self.resized(self.load(ints(source.have), pointer), source.have, source.want)

    def write(self, to: Destination, pointer: str, value: str) -> None:
        """Write a result for the active lanes."""
        if to.have == 1:
            value, bits = self.value(f"zext {ints(1)} {value} to {ints(8)}"), 8
        else:
            value, bits = self.resized(value, to.want, to.have, to.signed), to.have
        self.store(ints(bits), self.select(f"%active{self.mark}", bits, value, self.load(ints(bits), pointer)), pointer)


@cache
def pure_form(
    emit: Callable[[Text, Sequence[str]], list[str]],
    sources: tuple[Source, ...],
    destinations: tuple[Destination | None, ...],
) -> Form:
    """A form whose results for a lane depend on the operands of this lane."""
    t = FormText()
    given = [t.pointer(2 * n) for n in range(len(sources))]
    results = [t.pointer(2 * (len(sources) + n)) if d is not None else "" for n, d in enumerate(destinations)]
    t.begin_parts()
    values = [t.read(s, t.part(p, s.have)) for s, p in zip(sources, given, strict=True)]
    for d, p, value in zip(destinations, results, emit(t, values), strict=False):
        if d is not None:
            t.write(d, t.part(p, d.have), value)
    t.end_parts()
    t.put("ret i1 true")
    return made([narrow(line) for line in t.lines])


def collective_form(
    emit: Callable[[Text, Sequence[str], str], list[str]],
    allocas: Sequence[str],
    sources: Sequence[Source],
    destinations: Sequence[Destination | None],
) -> Form:
    """A form whose results for a lane depend on the operands of other lanes."""
    t = FormText()
    t.lines += allocas
    t.put(f"%active = bitcast i32 %mask to {ints(1)}")
    values = [t.read(s, t.pointer(2 * n)) for n, s in enumerate(sources)]
    for n, (d, value) in enumerate(zip(destinations, emit(t, values, "%mask"), strict=False)):
        if d is not None:
            t.write(d, t.pointer(2 * (len(sources) + n)), value)
    t.put("ret i1 true")
    return made(t.lines)


@cache
def frame_form() -> Form:
    """Writes the address of a variable in local memory, a constant of the frame, to a register: the constant, an offset."""
    t = FormText()
    to, position, offset = t.pointer(0), t.word(2), t.word(3)
    constants = t.array(Field.FRAME)
    base = t.value(f"load i64, ptr {t.value(f'getelementptr i64, ptr {constants}, i64 {position}')}")
    t.store(ints(64), t.everywhere(t.value(f"add i64 {base}, {offset}"), 64), to)
    t.put("ret i1 true")
    return made(t.lines)


@cache
def parameter_form(bits: int, destinations: tuple[Destination | None, ...]) -> Form:
    """A load from the parameters of a kernel: the byte of the first element, and the results."""
    t = FormText()
    start = t.at(t.array(Field.PARAMETERS), t.word(0))
    values = [t.load(f"i{bits}", t.at(start, n * bits // 8)) for n in range(len(destinations))]
    results = [t.pointer(1 + 2 * n) if d is not None else "" for n, d in enumerate(destinations)]
    t.begin_parts()
    for d, p, value in zip(destinations, results, values, strict=True):
        if d is not None:
            t.write(d, t.part(p, d.have), t.everywhere(value, bits))
    t.end_parts()
    t.put("ret i1 true")
    return made([narrow(line) for line in t.lines])


@cache
def access_form(
    space: str, base: int, bits: int, elements: tuple[Source | Destination | None, ...], store: bool, spins: bool
) -> Form:
    """A load or store: the address in a register of ``base`` bits, an offset in bytes, and the elements.

    Args:
        spins: other threads are executed next.
    """
    t = FormText()
    size, n = bits // 8 * len(elements), len(elements)
    t.put(f"%R = alloca [{Record.SIZE} x i64], align 64")
    for k in range(n):
        t.put(f"%E{k} = alloca [{LANES} x i{bits}], align 64")
    t.put(f"br i1 {t.value('icmp eq i32 %mask, 0')}, label %no_lanes, label %begin")
    t.label("no_lanes")
    t.put("ret i1 true")
    t.label("begin")
    address, offset = t.pointer(0), t.word(2)
    places = [t.pointer(3 + 2 * k) if e is not None else "" for k, e in enumerate(elements)]
    number = t.value(f"load i64, ptr {t.at('%X', 8 * InstructionRecord.NUMBER)}")
    t.begin_parts("begin")
    value = t.resized(t.load(ints(base), t.part(address, base)), base, 64, signed=True)  # as widen of access does
    t.store(ints(64), t.value(f"add {ints(64)} {value}, {t.everywhere(offset, 64)}"), t.part("%R", 64))
    for k, (e, p) in enumerate(zip(elements, places, strict=True)):
        if store and isinstance(e, Source):
            t.store(ints(bits), t.read(e, t.part(p, e.have)), t.part(f"%E{k}", bits))
    t.end_parts()
    t.mark = ""
    code = SPACES.index(space) if space else len(SPACES)
    given = f"ptr %C, ptr %R, i32 %mask, i64 {size}, i64 {bits // 8}, i64 {number}, i64 %cta, i64 %first"
    good = t.value(f"call i1 @ptxkit_access({given}, i1 {str(store).lower()}, i64 {code})")
    t.put(f"br i1 {good}, label %perform, label %slow")
    t.label("slow")
    t.put("ret i1 false")
    t.label("perform")
    if store:
        for k in range(n):
            t.put(f"call void @ptxkit_store_{bits}(ptr %R, i32 %mask, i64 {k * bits // 8}, ptr %E{k})")
    else:
        _loads(t, elements, places, bits, number)
    if spins:
        t.put(f"call void @set_field(ptr %C, i64 {int(Field.SPUN)}, i64 1)")
    t.put("ret i1 true")
    return made([narrow(line) for line in t.lines])


def _loads(
    t: FormText, elements: Sequence[Source | Destination | None], places: Sequence[str], bits: int, number: str
) -> None:
    """Load elements to registers, and count those that nothing has written.

    If all lanes are active, elements are loaded to the registers themselves where these have the same width.
    """
    whole = t.value("icmp eq i32 %mask, -1")
    plain = [isinstance(e, Destination) and e.have == bits for e in elements]
    for k, p in enumerate(places):
        to = t.value(f"select i1 {whole}, ptr {p}, ptr %E{k}") if plain[k] else f"%E{k}"
        t.put(f"call void @ptxkit_load_{bits}(ptr %R, i32 %mask, i64 {k * bits // 8}, ptr {to})")
    if all(plain):
        t.put(f"br i1 {whole}, label %over, label %move")
    else:
        t.put("br label %move")
    t.label("move")
    t.begin_parts("move")
    for k, (e, p) in enumerate(zip(elements, places, strict=True)):
        if isinstance(e, Destination):
            from_ = t.value(f"select i1 {whole}, ptr {p}, ptr %E{k}") if plain[k] else f"%E{k}"
            t.write(e, t.part(p, e.have), t.load(ints(bits), t.part(from_, bits)))
    t.end_parts()
    t.put("br label %over")
    t.label("over")
    marked = t.value(f"load i64, ptr {t.at('%R', 8 * Record.MARKED)}")
    t.put(f"br i1 {t.value(f'icmp ne i64 {marked}, 0')}, label %count, label %counted")
    t.label("count")
    unwritten = t.value(f"load i64, ptr {t.at('%R', 8 * Record.UNWRITTEN)}")
    t.put(f"call void @add_to(ptr %C, i64 {int(Field.UNWRITTEN)}, i64 {number}, i64 {unwritten})")
    t.put("br label %counted")
    t.label("counted")
