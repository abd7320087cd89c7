"""Machine code for atomics: the LLVM functions that all of them call, and their forms.

A form computes the new values lane after lane, as
:func:`ptxkit.emulator.instructions.atomic_operations.apply_in_order` does. It
holds the lock of atomics unless the address is in shared memory, which belongs to the wave.
"""

from __future__ import annotations

from enum import IntFlag
from functools import cache

from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, WINDOW_BYTES
from ptxkit.emulator.memory.atomic_lock import BY_PYTHON
from ptxkit.emulator.native.context import SPACES, Field
from ptxkit.emulator.native.forms import Destination, Form, FormText, Source, made, narrow
from ptxkit.emulator.native.memory_code import Record
from ptxkit.emulator.native.records import InstructionRecord
from ptxkit.emulator.native.scalar import HOST_NAN, QUIET
from ptxkit.emulator.native.text import LANES, Text, ints
from ptxkit.emulator.native.traffic_code import with_memory


class How(IntFlag):
    """How the traffic of an atomic is counted."""

    COMBINED = 1  # one lane accesses memory for all
    INCREMENTS = 2  # in shared memory, the lanes of a word share a wavefront
    SWAPS = 4  # in shared memory, each pass takes two wavefronts


MACHINE_CODE = 1
"""In the word of the lock: machine code holds it."""

ATTEMPTS = 1 << 16
"""To take the lock, before Python performs the atomic and waits for it."""

_TEXT = """
; takes the lock of atomics; false if others hold it for long
define i1 @ptxkit_take(ptr %C) noinline {
entry:
  %w = call ptr @array(ptr %C, i64 {LOCK})
  br label %try
try:
  %n = phi i64 [0, %entry], [%n1, %again]
  %r = cmpxchg ptr %w, i64 0, i64 {MACHINE_CODE} acquire monotonic, align 8
  %won = extractvalue { i64, i1 } %r, 1
  br i1 %won, label %yes, label %again
again:
  %n1 = add i64 %n, 1
  %more = icmp ult i64 %n1, {ATTEMPTS}
  br i1 %more, label %try, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define void @ptxkit_release(ptr %C) noinline {
  %w = call ptr @array(ptr %C, i64 {LOCK})
  store atomic i64 0, ptr %w release, align 8
  ret void
}

; for Python: takes the lock at %w, or releases it
define void @ptxkit_lock(ptr %w, i64 %take) noinline {
  %is = icmp ne i64 %take, 0
  br i1 %is, label %try, label %release
try:
  %r = cmpxchg ptr %w, i64 0, i64 {BY_PYTHON} acquire monotonic, align 8
  %was = extractvalue { i64, i1 } %r, 0
  %other = icmp eq i64 %was, {MACHINE_CODE}
  br i1 %other, label %try, label %done
release:
  store atomic i64 0, ptr %w release, align 8
  br label %done
done:
  ret void
}

; passes over the sectors of global memory for the lanes in %mask, of which those with one address are in different passes
define internal void @count_sector_passes(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %step) noinline {
entry:
  %keys = alloca [32 x i64], align 64
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %look, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  ret void
look:
  %M = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 31)
{SECTORS_IF_KNOWN}
compute:
  %v = load <32 x i64>, ptr %addresses, align 8
  br label %lane
lane:
  %m = phi i32 [%mask, %compute], [%m1, %lane]
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %ap = getelementptr i64, ptr %addresses, i64 %l64
  %a = load i64, ptr %ap
  %av = call <32 x i64> @splat64(i64 %a)
  %eq = icmp eq <32 x i64> %v, %av
  %eqm = bitcast <32 x i1> %eq to i32
  %one = shl i32 1, %l
  %earlier = sub i32 %one, 1
  %e1 = and i32 %eqm, %earlier
  %e2 = and i32 %e1, %mask
  %rank = call i32 @llvm.ctpop.i32(i32 %e2)
  %rank64 = zext i32 %rank to i64
  %sector = and i64 %a, -32
  %key = or i64 %sector, %rank64
  %kp = getelementptr i64, ptr %keys, i64 %l64
  store i64 %key, ptr %kp
  %more = icmp ne i32 %m1, 0
  br i1 %more, label %lane, label %done
done:
  %n = call i64 @different(ptr %keys, i32 %mask)
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 31, i64 %step, i64 %n, i64 0)
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %n, i64 0, i64 0)
  ret void
}

; passes over the banks for the lanes in %mask, each of which needs a pass of its own
define internal i64 @bank_passes(ptr %words, i32 %mask, i64 %banks) noinline {
entry:
  %counts = alloca [32 x i64], align 64
  store <32 x i64> zeroinitializer, ptr %counts, align 8
  %last = sub i64 %banks, 1
  br label %lane
lane:
  %m = phi i32 [%mask, %entry], [%m1, %count]
  %most = phi i64 [0, %entry], [%most1, %count]
  %end = icmp eq i32 %m, 0
  br i1 %end, label %done, label %count
count:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %wp = getelementptr i64, ptr %words, i64 %l64
  %w = load i64, ptr %wp
  %bank = and i64 %w, %last
  %cp = getelementptr i64, ptr %counts, i64 %bank
  %c = load i64, ptr %cp
  %c1 = add i64 %c, 1
  store i64 %c1, ptr %cp
  %larger = icmp ugt i64 %c1, %most
  %most1 = select i1 %larger, i64 %c1, i64 %most
  br label %lane
done:
  ret i64 %most
}

; as count_shared, for atomics: lanes with the same word do not share a pass. %twice: 1 where each pass takes two wavefronts
define internal void @count_bank_passes(
    ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %shift, i64 %twice, i64 %step) noinline {
entry:
  %words = alloca [32 x i64], align 64
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %look, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  ret void
look:
  %M = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 3)
{WAVEFRONTS_IF_KNOWN}
compute:
  %v = load <32 x i64>, ptr %addresses, align 8
  %s = call <32 x i64> @splat64(i64 %shift)
  %k = lshr <32 x i64> %v, %s
  store <32 x i64> %k, ptr %words, align 8
  %log = sub i64 %shift, 2
  %width = lshr i64 32, %log
  br label %each
each:
  %from = phi i64 [0, %compute], [%from1, %each]
  %total = phi i64 [0, %compute], [%total1, %each]
  %used = phi i64 [0, %compute], [%used1, %each]
  %one = shl i64 1, %width
  %ones = sub i64 %one, 1
  %window = shl i64 %ones, %from
  %w32 = trunc i64 %window to i32
  %pm = and i32 %mask, %w32
  %p = call i64 @bank_passes(ptr %words, i32 %pm, i64 %width)
  %total1 = add i64 %total, %p
  %any = icmp ne i64 %p, 0
  %any64 = zext i1 %any to i64
  %used1 = add i64 %used, %any64
  %from1 = add i64 %from, %width
  %go = icmp ult i64 %from1, 32
  br i1 %go, label %each, label %done
done:
  %conflicts = sub i64 %total1, %used1
  %fronts = shl i64 %total1, %twice
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 3, i64 %step, i64 %fronts, i64 %conflicts)
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 %fronts, i64 %conflicts)
  ret void
}

; finds the memory that atomics of the lanes in %mask (at least one) update, whose addresses are in %R, and counts the traffic;
; false where numpy has to perform them
define i1 @ptxkit_atomic(
    ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i64 %cta, i64 %first, i64 %space, i64 %how) noinline {
entry:
  %gp = getelementptr i64, ptr %R, i64 {R_GLOBAL}
  store i64 0, ptr %gp
  %sp = getelementptr i64, ptr %R, i64 {R_SHARED}
  store i64 0, ptr %sp
  %mp = getelementptr i64, ptr %R, i64 {R_MARKED}
  store i64 0, ptr %mp
  %a = load <32 x i64>, ptr %R, align 8
  %l1 = sub <32 x i64> %a, splat (i64 {LOCAL_WINDOW})
  %l2 = icmp ult <32 x i64> %l1, splat (i64 {WINDOW_BYTES})
  %l3 = bitcast <32 x i1> %l2 to i32
  %l = and i32 %l3, %mask
  %local = icmp ne i32 %l, 0
  br i1 %local, label %fail, label %find
fail:
  ret i1 false
find:
  %found = call i1 @locate(
      ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i64 %cta, i64 %first, i1 true, i64 %space)
  br i1 %found, label %count, label %fail
count:
  %slot = mul i64 %number, {SPACES}
  %c0 = and i64 %how, {COMBINED}
  %combined = icmp ne i64 %c0, 0
  %g = load i64, ptr %gp
  %gm = trunc i64 %g to i32
  %gs = add i64 %slot, {GLOBAL_SPACE}
  %is.g = icmp ne i64 %g, 0
  br i1 %is.g, label %global, label %shared
global:
  br i1 %combined, label %global1, label %global2
global1:
  call void @count_global(ptr %C, ptr %R, i32 %gm, i64 %gs, i64 %size)
  br label %shared
global2:
  call void @count_sector_passes(ptr %C, ptr %R, i32 %gm, i64 %gs, i64 %size)
  br label %shared
shared:
  %s = load i64, ptr %sp
  %sm = trunc i64 %s to i32
  %ss = add i64 %slot, {SHARED_SPACE}
  %shift = call i64 @llvm.cttz.i64(i64 %size, i1 true)
  %is.s = icmp ne i64 %s, 0
  br i1 %is.s, label %shared0, label %done
shared0:
  br i1 %combined, label %shared1, label %shared2
shared1:
  call void @traffic(ptr %C, i64 %ss, i32 %sm, i64 0, i64 1, i64 0)
  br label %done
shared2:
  %i0 = and i64 %how, {INCREMENTS}
  %increments = icmp ne i64 %i0, 0
  br i1 %increments, label %shared3, label %shared4
shared3:
  call void @count_shared(ptr %C, ptr %R, i32 %sm, i64 %ss, i64 %shift, i1 false, i64 %size)
  br label %done
shared4:
  %w0 = and i64 %how, {SWAPS}
  %w1 = icmp ne i64 %w0, 0
  %twice = zext i1 %w1 to i64
  call void @count_bank_passes(ptr %C, ptr %R, i32 %sm, i64 %ss, i64 %shift, i64 %twice, i64 %size)
  br label %done
done:
  ret i1 true
}

; counts the old values, %words words of 32 bits for each lane, that nothing has written
define void @ptxkit_unwritten(ptr %C, ptr %R, i64 %number, ptr %values, i64 %words) noinline {
entry:
  %gp = getelementptr i64, ptr %R, i64 {R_GLOBAL}
  %g = load i64, ptr %gp
  %mask = trunc i64 %g to i32
  br label %lane
lane:
  %m = phi i32 [%mask, %entry], [%m1, %next]
  %n = phi i64 [0, %entry], [%n1, %next]
  %end = icmp eq i32 %m, 0
  br i1 %end, label %done, label %look
look:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %all = getelementptr i64, ptr %R, i64 {R_SENTINELS}
  %sp = getelementptr i64, ptr %all, i64 %l64
  %s = load i64, ptr %sp
  %has = icmp sge i64 %s, 0
  %pattern0 = mul i64 %s, 16843009
  %pattern = trunc i64 %pattern0 to i32
  %at = mul i64 %l64, %words
  br label %word
word:
  %k = phi i64 [0, %look], [%k1, %word]
  %n0 = phi i64 [%n, %look], [%n1, %word]
  %position = add i64 %at, %k
  %vp = getelementptr i32, ptr %values, i64 %position
  %v = load i32, ptr %vp
  %eq = icmp eq i32 %v, %pattern
  %eq1 = and i1 %eq, %has
  %one = zext i1 %eq1 to i64
  %n1 = add i64 %n0, %one
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %words
  br i1 %more, label %word, label %next
next:
  br label %lane
done:
  call void @add_to(ptr %C, i64 {UNWRITTEN}, i64 %number, i64 %n)
  ret void
}
"""


def atomic_code() -> str:
    """The text of these functions."""
    values: dict[str, int] = {f"R_{r.name}": int(r) for r in Record}
    values |= {f"{name.upper()}_SPACE": n for n, name in enumerate(SPACES)} | {h.name or "": int(h) for h in How}
    values |= {"LOCAL_WINDOW": LOCAL_WINDOW, "WINDOW_BYTES": WINDOW_BYTES, "SPACES": len(SPACES)}
    values |= {"MACHINE_CODE": MACHINE_CODE, "BY_PYTHON": BY_PYTHON, "ATTEMPTS": ATTEMPTS}
    text = _TEXT
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return with_memory(text)


LOCK = "ptxkit_lock"
"""The function by which Python takes and releases the lock of atomics."""


def declarations() -> str:
    """Declarations of these functions, for code that calls them."""
    return f"""declare i1 @ptxkit_take(ptr)
declare void @ptxkit_release(ptr)
declare void @{LOCK}(ptr, i64)
declare i1 @ptxkit_atomic(ptr, ptr, i32, i64, i64, i64, i64, i64, i64)
declare void @ptxkit_unwritten(ptr, ptr, i64, ptr, i64)
declare i32 @llvm.cttz.i32(i32, i1)
"""


# -- forms -------------------------------------------------------------------------------------------------------------------


@cache
def atomic_form(
    op: str, kind: str, space: str, base: int, values: tuple[Source, ...], to: Destination | None, how: How, spins: bool
) -> Form:
    """An atomic: the address in a register of ``base`` bits, an offset in bytes, the values, and what gets the old value.

    Args:
        kind: the type of the element in PTX. space: "" for generic addresses. spins: other threads are executed next.
    """
    bits = int(kind[1:])
    t = FormText()
    t.put(f"%R = alloca [{Record.SIZE} x i64], align 64")
    for name in ("%E", "%V0", "%V1"):
        t.put(f"{name} = alloca [{LANES} x i{bits}], align 64")
    t.put(f"br i1 {t.value('icmp eq i32 %mask, 0')}, label %no_lanes, label %begin")
    t.label("no_lanes")
    t.put("ret i1 true")
    t.label("begin")
    address, offset = t.pointer(0), t.word(2)
    given = [t.pointer(3 + 2 * n) for n in range(len(values))]
    result = t.pointer(3 + 2 * len(values)) if to is not None else ""
    number = t.value(f"load i64, ptr {t.at('%X', 8 * InstructionRecord.NUMBER)}")
    t.begin_parts("begin")
    value = t.resized(t.load(ints(base), t.part(address, base)), base, 64, signed=True)  # as widen of access does
    t.store(ints(64), t.value(f"add {ints(64)} {value}, {t.everywhere(offset, 64)}"), t.part("%R", 64))
    for n, (source, p) in enumerate(zip(values, given, strict=True)):
        t.store(ints(bits), t.read(source, t.part(p, source.have)), t.part(f"%V{n}", bits))
    t.end_parts()
    locked = space != "shared"
    if locked:
        t.put(f"br i1 {t.value('call i1 @ptxkit_take(ptr %C)')}, label %take, label %slow")
        t.label("take")
    code = SPACES.index(space) if space else len(SPACES)
    access = f"ptr %C, ptr %R, i32 %mask, i64 {bits // 8}, i64 {number}, i64 %cta, i64 %first, i64 {code}, i64 {int(how)}"
    t.put(f"br i1 {t.value(f'call i1 @ptxkit_atomic({access})')}, label %perform, label %refuse")
    t.label("refuse")
    if locked:
        t.put("call void @ptxkit_release(ptr %C)")
    t.put("br label %slow")
    t.label("slow")
    t.put("ret i1 false")
    t.label("perform")
    _update_each(t, op, kind, len(values))
    if locked:
        t.put("call void @ptxkit_release(ptr %C)")
    _note(t, number, bits, spins)
    if to is not None:
        t.begin_parts("noted")
        t.write(to, t.part(result, to.have), t.load(ints(bits), t.part("%E", bits)))
        t.end_parts()
    t.put("ret i1 true")
    return made([narrow(line) for line in t.lines])


def _update_each(t: FormText, op: str, kind: str, count: int) -> None:
    """Update the cell of each lane, one after the other; ``%changed1`` says whether a cell has a new value."""
    bits = int(kind[1:])
    t.put("br label %lane")
    t.label("lane")
    t.put("%m = phi i32 [%mask, %perform], [%m1, %lane]")
    t.put("%changed = phi i1 [false, %perform], [%changed1, %lane]")
    t.put("%l = call i32 @llvm.cttz.i32(i32 %m, i1 true)")
    t.put("%below = sub i32 %m, 1")
    t.put("%m1 = and i32 %m, %below")
    t.put("%l64 = zext i32 %l to i64")
    host = t.value(f"getelementptr i64, ptr {t.at('%R', 8 * Record.HOST)}, i64 %l64")
    cell = t.value(f"inttoptr i64 {t.value(f'load i64, ptr {host}')} to ptr")
    old = t.load(f"i{bits}", cell)
    given = [
        t.value(f"load i{bits}, ptr {t.value(f'getelementptr i{bits}, ptr %V{n}, i64 %l64')}") for n in range(count)
    ]
    new = _new_value(t, op, kind, old, *given)
    t.put(f"store i{bits} {new}, ptr {cell}, align 1")
    t.put(f"store i{bits} {old}, ptr {t.value(f'getelementptr i{bits}, ptr %E, i64 %l64')}")
    t.put(f"%changed1 = or i1 %changed, {t.value(f'icmp ne i{bits} {old}, {new}')}")
    t.put(f"br i1 {t.value('icmp ne i32 %m1, 0')}, label %lane, label %updated")
    t.label("updated")


def _note(t: FormText, number: str, bits: int, spins: bool) -> None:
    """Tell Python what it has to know of the update."""
    if spins:
        t.put(f"call void @set_field(ptr %C, i64 {int(Field.SPUN)}, i64 1)")
    t.put("br i1 %changed1, label %stored, label %same")
    t.label("stored")
    t.put(f"call void @set_field(ptr %C, i64 {int(Field.STORED)}, i64 1)")
    t.put("br label %same")
    t.label("same")
    marked = t.value(f"load i64, ptr {t.at('%R', 8 * Record.MARKED)}")
    t.put(f"br i1 {t.value(f'icmp ne i64 {marked}, 0')}, label %count, label %noted")
    t.label("count")
    t.put(f"call void @ptxkit_unwritten(ptr %C, ptr %R, i64 {number}, ptr %E, i64 {bits // 32})")
    t.put("br label %noted")
    t.label("noted")


def _new_value(t: Text, op: str, kind: str, old: str, value: str, swapped: str = "") -> str:
    """The new value of a cell, for one lane; see :mod:`ptxkit.emulator.instructions.atomic_operations`."""
    bits = int(kind[1:])
    i = f"i{bits}"

    def choose(condition: str, yes: str, no: str) -> str:
        return t.value(f"select i1 {condition}, {i} {yes}, {i} {no}")

    def compare(how: str, a: str, b: str) -> str:
        return t.value(f"icmp {how} {i} {a}, {b}")

    if op == "add" and kind[0] == "f":
        return _float_sum(t, bits, old, value)
    if op in ("add", "and", "or", "xor"):
        return t.value(f"{op} {i} {old}, {value}")
    if op in ("min", "max"):
        sign = "s" if kind[0] == "s" else "u"
        return choose(compare(f"{sign}{'lt' if op == 'min' else 'gt'}", old, value), old, value)
    if op == "inc":
        return choose(compare("uge", old, value), "0", t.value(f"add {i} {old}, 1"))
    if op == "dec":
        over = t.value(f"or i1 {compare('eq', old, '0')}, {compare('ugt', old, value)}")
        return choose(over, value, t.value(f"sub {i} {old}, 1"))
    if op == "cas":
        return choose(compare("eq", old, value), swapped, old)
    assert op == "exch"
    return value


def _float_sum(t: Text, bits: int, old: str, value: str) -> str:
    """A sum; where it is NaN, the first operand that is NaN, made quiet, or the host's default NaN."""
    i, f = f"i{bits}", "float" if bits == 32 else "double"
    a, b = (t.value(f"bitcast {i} {x} to {f}") for x in (old, value))
    total = t.value(f"fadd {f} {a}, {b}")
    nan = str(HOST_NAN[bits])
    for x, number in ((value, b), (old, a)):
        quiet = t.value(f"or {i} {x}, {QUIET[bits]}")
        nan = t.value(f"select i1 {t.value(f'fcmp uno {f} {number}, {number}')}, {i} {quiet}, {i} {nan}")
    out = t.value(f"bitcast {f} {total} to {i}")
    return t.value(f"select i1 {t.value(f'fcmp uno {f} {total}, {total}')}, {i} {nan}, {i} {out}")
