"""The LLVM functions that execute the records of a function: its blocks, their segments and terminators.

A segment is executed for one warp after the other, each of its instructions by the function of its form
(:mod:`ptxkit.emulator.native.forms`). If a form says that numpy has to execute an instruction, numpy executes the segment for
this warp and the ones after it.
"""

from __future__ import annotations

from ptxkit.emulator.native.context import PENDING, Request, Status
from ptxkit.emulator.native.helpers import with_fields
from ptxkit.emulator.native.records import ALL_OF_CTAS, LEFT_OUT, with_records

_TEXT = """
define internal i64 @word(ptr %p, i64 %k) alwaysinline {
  %q = getelementptr i64, ptr %p, i64 %k
  %v = load i64, ptr %q
  ret i64 %v
}

define internal i32 @by_python(ptr %C, i32 %request, i32 %number, i32 %first) noinline {
  %f = call ptr @array(ptr %C, i64 {CALLBACK})
  %r = call i32 %f(i32 %request, i32 %number, i32 %first)
  ret i32 %r
}

; counts a block; false if no more blocks may be executed now
define internal i1 @enter(ptr %C, i64 %block, i64 %instructions) noinline {
  %left = call i64 @field(ptr %C, i64 {STEPS})
  %over = icmp eq i64 %left, 0
  br i1 %over, label %stop, label %count
stop:
  ret i1 false
count:
  %less = sub i64 %left, 1
  call void @set_field(ptr %C, i64 {STEPS}, i64 %less)
  %lanes = call i64 @field(ptr %C, i64 {LANES})
  call void @add_to(ptr %C, i64 {BLOCK_LANES}, i64 %block, i64 %lanes)
  %warps = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  call void @add_to(ptr %C, i64 {BLOCK_WARPS}, i64 %block, i64 %warps)
  %ticks = call i64 @field(ptr %C, i64 {TICKS})
  %ticks1 = add i64 %ticks, %instructions
  call void @set_field(ptr %C, i64 {TICKS}, i64 %ticks1)
  ret i1 true
}

; executes a segment for the active warps; 0, or what the callback has answered
define internal i32 @segment(ptr %C, ptr %S, i64 %row_bytes) noinline {
entry:
  %active = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %masks = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %rows = call ptr @array(ptr %C, i64 {ROW})
  %ctas = call ptr @array(ptr %C, i64 {CTA})
  %registers = call ptr @array(ptr %C, i64 {REGISTERS})
  %count = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %number64 = call i64 @word(ptr %S, i64 0)
  %number = trunc i64 %number64 to i32
  %code = getelementptr i64, ptr %S, i64 1
  %form0 = call i64 @word(ptr %code, i64 {I_FORM})
  %without = icmp eq i64 %form0, 0
  br i1 %without, label %slow, label %row
row:
  %i = phi i64 [0, %entry], [%i1, %over]
  %ap = getelementptr i32, ptr %active, i64 %i
  %a = load i32, ptr %ap
  %a64 = zext i32 %a to i64
  %mp = getelementptr i32, ptr %masks, i64 %i
  %mask = load i32, ptr %mp
  %rp = getelementptr i32, ptr %rows, i64 %a64
  %r = load i32, ptr %rp
  %r64 = zext i32 %r to i64
  %cp = getelementptr i32, ptr %ctas, i64 %a64
  %c = load i32, ptr %cp
  %cta = zext i32 %c to i64
  %skip = mul i64 %r64, %row_bytes
  %base = getelementptr i8, ptr %registers, i64 %skip
  %first = mul i64 %r64, 32
  br label %instruction
instruction:
  %X = phi ptr [%code, %row], [%X1, %executed], [%X1g, %counted]
  %form = load ptr, ptr %X
  %end = icmp eq ptr %form, null
  br i1 %end, label %over, label %execute
execute:
  %guard = call i64 @word(ptr %X, i64 {I_GUARD})
  %plain = icmp eq i64 %guard, {LEFT_OUT}
  br i1 %plain, label %always, label %guarded
always:
  %good = call i1 %form(ptr %C, ptr %X, ptr %base, i32 %mask, i64 %cta, i64 %first)
  br i1 %good, label %executed, label %slow
executed:
  %bytes = call i64 @word(ptr %X, i64 {I_BYTES})
  %X1 = getelementptr i8, ptr %X, i64 %bytes
  br label %instruction
guarded:
  %gp = getelementptr i8, ptr %base, i64 %guard
  %g = load <32 x i8>, ptr %gp, align 1
  %gs = icmp ne <32 x i8> %g, zeroinitializer
  %gb = bitcast <32 x i1> %gs to i32
  %flip64 = call i64 @word(ptr %X, i64 {I_FLIP})
  %flip = trunc i64 %flip64 to i32
  %gx = xor i32 %gb, %flip
  %some = and i32 %gx, %mask
  %goodg = call i1 %form(ptr %C, ptr %X, ptr %base, i32 %some, i64 %cta, i64 %first)
  br i1 %goodg, label %counted, label %slow
counted:
  %n = call i32 @llvm.ctpop.i32(i32 %some)
  %n64 = zext i32 %n to i64
  %which = call i64 @word(ptr %X, i64 {I_NUMBER})
  call void @add_to(ptr %C, i64 {PREDICATED}, i64 %which, i64 %n64)
  %bytesg = call i64 @word(ptr %X, i64 {I_BYTES})
  %X1g = getelementptr i8, ptr %X, i64 %bytesg
  br label %instruction
over:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %row, label %done
done:
  ret i32 0
slow:
  %from = phi i64 [0, %entry], [%i, %always], [%i, %guarded]
  %from32 = trunc i64 %from to i32
  %answer = call i32 @by_python(ptr %C, i32 {SEGMENT}, i32 %number, i32 %from32)
  ret i32 %answer
}

; whether all active lanes may pass a gate whose form decides about the lanes of a warp
define internal i1 @passes_gate(ptr %C, ptr %X, i64 %row_bytes) noinline {
entry:
  %active = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %masks = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %rows = call ptr @array(ptr %C, i64 {ROW})
  %lives = call ptr @array(ptr %C, i64 {LIVE})
  %registers = call ptr @array(ptr %C, i64 {REGISTERS})
  %count = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %form = load ptr, ptr %X
  br label %row
row:
  %i = phi i64 [0, %entry], [%i1, %next]
  %ap = getelementptr i32, ptr %active, i64 %i
  %a = load i32, ptr %ap
  %a64 = zext i32 %a to i64
  %mp = getelementptr i32, ptr %masks, i64 %i
  %mask = load i32, ptr %mp
  %rp = getelementptr i32, ptr %rows, i64 %a64
  %r = load i32, ptr %rp
  %r64 = zext i32 %r to i64
  %lp = getelementptr i32, ptr %lives, i64 %a64
  %l = load i32, ptr %lp
  %live = zext i32 %l to i64
  %skip = mul i64 %r64, %row_bytes
  %base = getelementptr i8, ptr %registers, i64 %skip
  %good = call i1 %form(ptr %C, ptr %X, ptr %base, i32 %mask, i64 %live, i64 0)
  br i1 %good, label %next, label %no
next:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %row, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @gate(ptr %C, i64 %gate, i64 %row_bytes) noinline {
  %open = call i64 @field(ptr %C, i64 {GATES})
  %may = icmp ne i64 %open, 0
  br i1 %may, label %look, label %no
no:
  ret i1 false
look:
  %barrier = icmp eq i64 %gate, {ALL_OF_CTAS}
  br i1 %barrier, label %ctas, label %warps
ctas:
  %a = call i1 @all_of_ctas(ptr %C)
  ret i1 %a
warps:
  %X = inttoptr i64 %gate to ptr
  %b = call i1 @passes_gate(ptr %C, ptr %X, i64 %row_bytes)
  ret i1 %b
}

; the active lanes call a function by the record %L, after which they stand at block %back, unless that is %stay; a status, or
; REFUSED where the scheduler has to perform the call
define internal i32 @perform(ptr %C, ptr %L, i64 %block, i32 %back, i1 %stay) noinline {
entry:
  %callee = call i64 @word(ptr %L, i64 {L_FUNCTION})
  %mine_bytes = call i64 @word(ptr %L, i64 {L_CALLER_BYTES})
  %bytes = call i64 @word(ptr %L, i64 {L_BYTES})
  %first64 = call i64 @word(ptr %L, i64 {L_ENTRY})
  %first = trunc i64 %first64 to i32
  %begun = call i1 @begin_call(ptr %C, i64 %callee, i64 %mine_bytes, i64 %bytes, i32 %first, i64 %block)
  br i1 %begun, label %prepare, label %no
no:
  ret i32 {REFUSED}
prepare:
  %mine = call ptr @array(ptr %C, i64 {FRAME})
  %theirs = call ptr @call_constants(ptr %C)
  %base = call i64 @field(ptr %C, i64 {LOCAL_BASE})
  %count = call i64 @word(ptr %L, i64 {L_COUNT})
  %list = getelementptr i64, ptr %L, i64 {L_CONSTANTS}
  br label %constant
constant:
  %k = phi i64 [0, %prepare], [%k1, %put]
  %end = icmp eq i64 %k, %count
  br i1 %end, label %move, label %look
look:
  %at = mul i64 %k, 2
  %at1 = add i64 %at, 1
  %from = call i64 @word(ptr %list, i64 %at)
  %offset = call i64 @word(ptr %list, i64 %at1)
  %own = icmp eq i64 %from, {OWN}
  br i1 %own, label %put, label %given
given:
  %v = call i64 @word(ptr %mine, i64 %from)
  br label %put
put:
  %start = phi i64 [%base, %look], [%v, %given]
  %value = add i64 %start, %offset
  %q = getelementptr i64, ptr %theirs, i64 %k
  store i64 %value, ptr %q
  %k1 = add i64 %k, 1
  br label %constant
move:
  br i1 %stay, label %run, label %step
step:
  call void @move_lanes(ptr %C, i32 %back, i32 %back)
  br label %run
run:
  %s = call i32 @run_call(ptr %C, i64 %callee)
  ret i32 %s
}

; the active lanes call functions through a register: one function after the other, the one with the first block first; a
; status, or REFUSED where the scheduler has to perform the call of the active lanes
define internal i32 @call_register(ptr %C, ptr %B, i64 %block, i32 %next, i64 %row_bytes) noinline {
entry:
  %place = call i64 @word(ptr %B, i64 {B_PLACE})
  %table0 = call i64 @word(ptr %B, i64 {B_CALLS})
  %table = inttoptr i64 %table0 to ptr
  %records0 = call i64 @word(ptr %B, i64 {B_TARGETS})
  %records = inttoptr i64 %records0 to ptr
  %n = call i64 @word(ptr %B, i64 {B_COUNT})
  %parts = call i64 @word(ptr %B, i64 {B_RECONVERGES})
  %tells = icmp ne i64 %parts, 0
  br label %pick
pick:
  %p = call i64 @pick(ptr %C, i64 %place, i64 %row_bytes, ptr %table, i64 %n)
  %none = icmp slt i64 %p, 0
  br i1 %none, label %no, label %found
no:
  ret i32 {REFUSED}
found:
  %mixed = trunc i64 %p to i1
  %told = and i1 %mixed, %tells
  br i1 %told, label %no, label %usable
usable:
  %k = ashr i64 %p, 1
  %l0 = call i64 @word(ptr %records, i64 %k)
  %without = icmp eq i64 %l0, 0
  br i1 %without, label %no, label %go
go:
  %L = inttoptr i64 %l0 to ptr
  call void @move_lanes(ptr %C, i32 %next, i32 {PENDING})
  call void @narrow(ptr %C)
  %s = call i32 @perform(ptr %C, ptr %L, i64 %block, i32 0, i1 true)
  %back = icmp eq i32 %s, {RETURNED}
  br i1 %back, label %rest, label %out
out:
  ret i32 %s
rest:
  %left = call i64 @lanes_at(ptr %C, i32 {PENDING})
  %all = icmp eq i64 %left, 0
  br i1 %all, label %out, label %pick
}

; the active lanes, which have executed an instruction that may wait for others, yield to them; false if the scheduler has to
; know. In that case it ends the block.
define internal i1 @yield(ptr %C, ptr %B) noinline {
  %may = call i64 @field(ptr %C, i64 {MAY_YIELD})
  %level = call i64 @field(ptr %C, i64 {LEVEL})
  %parts = call i64 @word(ptr %B, i64 {B_RECONVERGES})
  %kind = call i64 @word(ptr %B, i64 {B_KIND})
  %c1 = icmp ne i64 %may, 0
  %c2 = icmp eq i64 %level, 0
  %c3 = icmp eq i64 %parts, 0
  %k1 = icmp eq i64 %kind, {K_FALL_THROUGH}
  %k2 = icmp eq i64 %kind, {K_JUMP}
  %k3 = icmp eq i64 %kind, {K_BRANCH}
  %k4 = or i1 %k1, %k2
  %k5 = or i1 %k4, %k3
  %d1 = and i1 %c1, %c2
  %d2 = and i1 %c3, %k5
  %all = and i1 %d1, %d2
  br i1 %all, label %number, label %no
no:
  ret i1 false
number:
  %count = call i64 @field(ptr %C, i64 {YIELD_COUNT})
  %next = add i64 %count, 1
  call void @set_field(ptr %C, i64 {YIELD_COUNT}, i64 %next)
  call void @set_field(ptr %C, i64 {YIELDED}, i64 %next)
  call void @set_field(ptr %C, i64 {YIELDING}, i64 1)
  call void @set_field(ptr %C, i64 {SPUN}, i64 0)
  ret i1 true
}

; executes the function whose record is %F, from where its lanes stand
define i32 @ptxkit_run(ptr %C, ptr %F) noinline {
entry:
  %limit64 = call i64 @field(ptr %C, i64 {LIMIT})
  %limit = trunc i64 %limit64 to i32
  %first64 = call i64 @word(ptr %F, i64 {F_FIRST})
  %first = trunc i64 %first64 to i32
  %count64 = call i64 @word(ptr %F, i64 {F_COUNT})
  %count = trunc i64 %count64 to i32
  %row_bytes = call i64 @word(ptr %F, i64 {F_ROW_BYTES})
  %blocks = getelementptr i64, ptr %F, i64 {F_BLOCKS}
  br label %dispatch
dispatch:
  %lowest = call i32 @next_lanes(ptr %C)
  %no_lanes = icmp eq i32 %lowest, -1
  br i1 %no_lanes, label %returned, label %some
returned:
  ret i32 {RETURNED}
some:
  %late = icmp ugt i32 %lowest, %limit
  br i1 %late, label %stopped, label %choose
stopped:
  ret i32 {STOPPED}
choose:
  %block = phi i32 [%lowest, %some], [%to, %direct]
  %k = sub i32 %block, %first
  %inside = icmp ult i32 %k, %count
  br i1 %inside, label %look, label %outside
look:
  %k64 = zext i32 %k to i64
  %b0 = call i64 @word(ptr %blocks, i64 %k64)
  %missing = icmp eq i64 %b0, 0
  br i1 %missing, label %outside, label %begin
outside:
  call void @move_lanes(ptr %C, i32 %block, i32 %block)
  ret i32 {STOPPED}
begin:
  %B = inttoptr i64 %b0 to ptr
  %b64 = zext i32 %block to i64
  %gate = call i64 @word(ptr %B, i64 {B_GATE})
  %open = icmp eq i64 %gate, 0
  br i1 %open, label %in, label %ask
ask:
  %passed = call i1 @gate(ptr %C, i64 %gate, i64 %row_bytes)
  br i1 %passed, label %in, label %outside
in:
  %size = call i64 @word(ptr %B, i64 {B_INSTRUCTIONS})
  %entered = call i1 @enter(ptr %C, i64 %b64, i64 %size)
  br i1 %entered, label %segments, label %outside
segments:
  %n = call i64 @word(ptr %B, i64 {B_SEGMENTS})
  %list = getelementptr i64, ptr %B, i64 {B_SIZE}
  %next64 = call i64 @word(ptr %B, i64 {B_NEXT})
  %next = trunc i64 %next64 to i32
  %target64 = call i64 @word(ptr %B, i64 {B_TARGET})
  %target = trunc i64 %target64 to i32
  %number = call i64 @word(ptr %B, i64 {B_NUMBER})
  br label %each
each:
  %j = phi i64 [0, %segments], [%j1, %good]
  %end = icmp eq i64 %j, %n
  br i1 %end, label %terminator, label %segment
segment:
  %s0 = call i64 @word(ptr %list, i64 %j)
  %S = inttoptr i64 %s0 to ptr
  %answer = call i32 @segment(ptr %C, ptr %S, i64 %row_bytes)
  switch i32 %answer, label %failed [ i32 0, label %good i32 2, label %leave ]
good:
  %j1 = add i64 %j, 1
  br label %each
failed:
  ret i32 {FAILED}
leave:
  call void @set_field(ptr %C, i64 {BLOCK}, i64 %b64)
  ret i32 {TERMINATOR}
terminator:
  %kind = call i64 @word(ptr %B, i64 {B_KIND})
  %spun = call i64 @field(ptr %C, i64 {SPUN})
  %first_others = icmp ne i64 %spun, 0
  br i1 %first_others, label %yield, label %no_yield
yield:
  %yielded = call i1 @yield(ptr %C, ptr %B)
  br i1 %yielded, label %end_block, label %leave
no_yield:
  call void @set_field(ptr %C, i64 {YIELDED}, i64 0)
  br label %end_block
end_block:
  switch i64 %kind, label %leave [
    i64 {K_FALL_THROUGH}, label %on i64 {K_JUMP}, label %jump i64 {K_BRANCH}, label %branch i64 {K_DRIVER}, label %driver
    i64 {K_CALL}, label %call i64 {K_CALL_REGISTER}, label %calls i64 {K_RETURN}, label %return ]
on:
  br label %go
jump:
  %warps = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  call void @add_to(ptr %C, i64 {BRANCHES}, i64 %number, i64 %warps)
  br label %go
branch:
  %place = call i64 @word(ptr %B, i64 {B_PLACE})
  %negated64 = call i64 @word(ptr %B, i64 {B_NEGATED})
  %negated = trunc i64 %negated64 to i1
  %way = call i32 @decide(ptr %C, i64 %place, i64 %row_bytes, i1 %negated, i64 %number)
  switch i32 %way, label %mixed [ i32 0, label %go i32 1, label %go1 ]
go1:
  br label %go
mixed:
  %parts = call i64 @word(ptr %B, i64 {B_RECONVERGES})
  %tells = icmp ne i64 %parts, 0
  br i1 %tells, label %diverged, label %part
diverged:
  call void @set_field(ptr %C, i64 {BLOCK}, i64 %b64)
  ret i32 {DIVERGED}
part:
  call void @move_lanes(ptr %C, i32 %target, i32 %next)
  br label %dispatch
driver:
  %b32 = trunc i64 %b64 to i32
  %done = call i32 @by_python(ptr %C, i32 {BUILTIN}, i32 %b32, i32 0)
  %fine = icmp eq i32 %done, 0
  br i1 %fine, label %go, label %failed
call:
  %l0 = call i64 @word(ptr %B, i64 {B_TARGETS})
  %L = inttoptr i64 %l0 to ptr
  %called = call i32 @perform(ptr %C, ptr %L, i64 %b64, i32 %next, i1 false)
  br label %back
calls:
  %called1 = call i32 @call_register(ptr %C, ptr %B, i64 %b64, i32 %next, i64 %row_bytes)
  br label %back
back:
  %status = phi i32 [%called, %call], [%called1, %calls]
  switch i32 %status, label %unwind [ i32 {RETURNED}, label %dispatch i32 {REFUSED}, label %leave ]
unwind:
  ret i32 %status
return:
  %level = call i64 @field(ptr %C, i64 {LEVEL})
  %outer = icmp eq i64 %level, 0
  br i1 %outer, label %leave, label %finish
finish:
  call void @move_lanes(ptr %C, i32 -1, i32 -1)
  br label %dispatch
go:
  %to = phi i32 [%next, %on], [%target, %jump], [%next, %branch], [%target, %go1], [%next, %driver]
  %others = call i64 @field(ptr %C, i64 {OTHERS})
  %alone = icmp eq i64 %others, 0
  %early = icmp ule i32 %to, %limit
  %both = and i1 %alone, %early
  br i1 %both, label %direct, label %apart
direct:
  br label %choose
apart:
  call void @move_lanes(ptr %C, i32 %to, i32 %to)
  br i1 %alone, label %stopped, label %dispatch
}
"""

REFUSED = -1
"""Instead of a status: the scheduler has to perform a call."""

OWN = -1
"""As the first word of a constant of a call: the variable is at the offset in the second word behind the caller's stack frame.
Other first words are numbers of constants of the caller, to which the second word is added."""


def interpreter() -> str:
    """The text of these functions."""
    values = {
        "SEGMENT": int(Request.SEGMENT),
        "BUILTIN": int(Request.BUILTIN),
        "PENDING": PENDING - (1 << 32),
        "LEFT_OUT": LEFT_OUT,
        "ALL_OF_CTAS": ALL_OF_CTAS,
        "REFUSED": REFUSED,
        "OWN": OWN,
        **{status.name: int(status) for status in Status},
    }
    text = with_records(_TEXT)
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return with_fields(text)
