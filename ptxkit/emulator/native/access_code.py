"""The LLVM function that performs what all loads and stores of a warp have in common: checks of addresses, places, and traffic.

An access that repeats the pattern of addresses of the last one of its instruction, within one allocation or the shared memory
of the CTA, is checked by its lowest and highest address alone.
"""

from __future__ import annotations

from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.native.context import SPACES
from ptxkit.emulator.native.memory_code import Record
from ptxkit.emulator.native.text import LANES
from ptxkit.emulator.native.traffic_code import with_memory

_TEXT = """
; finds the memory that the lanes in %mask (at least one) access, whose addresses are in %R, and counts the traffic; false
; where numpy has to perform the access. %step: bytes of an element. %space: number of the state space, or ANY
define i1 @ptxkit_access(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %step, i64 %number, i64 %cta, i64 %first,
                         i1 %store, i64 %space) noinline {
entry:
  %gp = getelementptr i64, ptr %R, i64 {R_GLOBAL}
  store i64 0, ptr %gp
  %sp = getelementptr i64, ptr %R, i64 {R_SHARED}
  store i64 0, ptr %sp
  %lp = getelementptr i64, ptr %R, i64 {R_LOCAL}
  store i64 0, ptr %lp
  %mp = getelementptr i64, ptr %R, i64 {R_MARKED}
  store i64 0, ptr %mp
  %up = getelementptr i64, ptr %R, i64 {R_UNWRITTEN}
  store i64 0, ptr %up
  %l = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l64 = zext i32 %l to i64
  %op = getelementptr i64, ptr %R, i64 %l64
  %origin = load i64, ptr %op
  %inshared = sub i64 %origin, {SHARED_WINDOW}
  %isshared = icmp ult i64 %inshared, {WINDOW_BYTES}
  %inlocal = sub i64 %origin, {LOCAL_WINDOW}
  %islocal = icmp ult i64 %inlocal, {WINDOW_BYTES}
  %any = icmp eq i64 %space, {ANY}
  %s0 = select i1 %isshared, i64 {SHARED_SPACE}, i64 {GLOBAL_SPACE}
  %s1 = select i1 %islocal, i64 {LOCAL_SPACE}, i64 %s0
  %s = select i1 %any, i64 %s1, i64 %space
  %slot0 = mul i64 %number, {SPACES}
  %slot = add i64 %slot0, %s
  switch i64 %s, label %slow [ i64 {GLOBAL_SPACE}, label %global i64 {SHARED_SPACE}, label %shared ]
global:
  %M0 = call ptr @recall(ptr %C, ptr %R, i32 %mask, i64 %slot, i64 31)
  %new0 = icmp eq ptr %M0, null
  br i1 %new0, label %slow, label %where0
where0:
  %hints = call ptr @array(ptr %C, i64 {HINTS})
  %hintp = getelementptr i64, ptr %hints, i64 %number
  %h = load i64, ptr %hintp
  %bases = call ptr @array(ptr %C, i64 {BASE})
  %bp = getelementptr i64, ptr %bases, i64 %h
  %base = load i64, ptr %bp
  %ends = call ptr @array(ptr %C, i64 {END})
  %ep = getelementptr i64, ptr %ends, i64 %h
  %end = load i64, ptr %ep
  %sentinels = call ptr @array(ptr %C, i64 {SENTINEL})
  %tp = getelementptr i64, ptr %sentinels, i64 %h
  %sentinel = load i64, ptr %tp
  %written = icmp slt i64 %sentinel, 0
  %nos = call ptr @array(ptr %C, i64 {NO_STORES})
  %np = getelementptr i64, ptr %nos, i64 %h
  %no = load i64, ptr %np
  %may = icmp eq i64 %no, 0
  %usable = and i1 %written, %may
  %hosts = call ptr @array(ptr %C, i64 {HOST})
  %hp = getelementptr i64, ptr %hosts, i64 %h
  %hb = load i64, ptr %hp
  %beyond0 = sub i64 %hb, %base
  br i1 %usable, label %check, label %slow
shared:
  %M1 = call ptr @recall(ptr %C, ptr %R, i32 %mask, i64 %slot, i64 3)
  %new1 = icmp eq ptr %M1, null
  br i1 %new1, label %slow, label %where1
where1:
  %at = select i1 %isshared, i64 %inshared, i64 %origin
  %sbegin = call i64 @field(ptr %C, i64 {SHARED_BEGIN})
  %send = call i64 @field(ptr %C, i64 {SHARED_END})
  %stride = call i64 @field(ptr %C, i64 {SHARED_STRIDE})
  %memory = call i64 @field(ptr %C, i64 {SHARED})
  %skip = mul i64 %cta, %stride
  %beyond1 = add i64 %memory, %skip
  br label %check
check:
  %M = phi ptr [%M0, %where0], [%M1, %where1]
  %from = phi i64 [%base, %where0], [%sbegin, %where1]
  %to = phi i64 [%end, %where0], [%send, %where1]
  %place = phi i64 [%origin, %where0], [%at, %where1]
  %beyond = phi i64 [%beyond0, %where0], [%beyond1, %where1]
  %leastp = getelementptr i64, ptr %M, i64 {M_LEAST}
  %least = load i64, ptr %leastp
  %mostp = getelementptr i64, ptr %M, i64 {M_MOST}
  %most = load i64, ptr %mostp
  %oddp = getelementptr i64, ptr %M, i64 {M_ODD}
  %odd = load i64, ptr %oddp
  %low = add i64 %place, %least
  %last = add i64 %place, %most
  %high = add i64 %last, %size
  %c1 = icmp ule i64 %low, %place
  %c2 = icmp uge i64 %low, %from
  %c3 = icmp uge i64 %last, %place
  %c4 = icmp ugt i64 %high, %last
  %c5 = icmp ule i64 %high, %to
  %ones = sub i64 %size, 1
  %bits = or i64 %place, %odd
  %wrong = and i64 %bits, %ones
  %c6 = icmp eq i64 %wrong, 0
  %d1 = and i1 %c1, %c2
  %d2 = and i1 %c3, %c4
  %d3 = and i1 %c5, %c6
  %d4 = and i1 %d1, %d2
  %fits = and i1 %d3, %d4
  br i1 %fits, label %quick, label %slow
quick:
  %f1p = getelementptr i64, ptr %M, i64 {M_FIRST}
  %f1 = load i64, ptr %f1p
  %f2p = getelementptr i64, ptr %M, i64 {M_SECOND}
  %f2 = load i64, ptr %f2p
  %isglobal = icmp eq i64 %s, {GLOBAL_SPACE}
  %units = select i1 %isglobal, i64 %f1, i64 0
  %fronts = select i1 %isglobal, i64 0, i64 %f1
  %conflicts = select i1 %isglobal, i64 0, i64 %f2
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %units, i64 %fronts, i64 %conflicts)
  %host = add i64 %place, %beyond
  %kindp = getelementptr i64, ptr %M, i64 {M_ARRANGED}
  %kind = load i64, ptr %kindp
  %beforep = getelementptr i64, ptr %M, i64 {M_BEFORE}
  %before = load i64, ptr %beforep
  %start = sub i64 %host, %before
  %akp = getelementptr i64, ptr %R, i64 {R_ARRANGED}
  store i64 %kind, ptr %akp
  %aop = getelementptr i64, ptr %R, i64 {R_ORIGIN}
  store i64 %start, ptr %aop
  %whole = icmp eq i32 %mask, -1
  %run = icmp eq i64 %kind, {CONTIGUOUS}
  %e1 = and i1 %whole, %run
  %one = icmp eq i64 %kind, {SAME}
  %loads = xor i1 %store, true
  %e2 = and i1 %one, %loads
  %enough = or i1 %e1, %e2
  br i1 %enough, label %changed, label %each
each:
  %hv = call <32 x i64> @splat64(i64 %host)
  %offsets = load <32 x i64>, ptr %M, align 8
  %placed = add <32 x i64> %hv, %offsets
  %hostp = getelementptr i64, ptr %R, i64 {R_HOST}
  store <32 x i64> %placed, ptr %hostp, align 8
  br label %changed
slow:
  %found = call i1 @locate(
      ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i64 %cta, i64 %first, i1 %store, i64 %space)
  br i1 %found, label %counts, label %fail
fail:
  ret i1 false
counts:
  call void @count(ptr %C, ptr %R, i64 %size, i64 %number, i1 %store, i64 %step)
  call void @arrange(ptr %R, i32 %mask, i64 %step)
  br label %changed
changed:
  %sm = load i64, ptr %lp
  %m64 = zext i32 %mask to i64
  %onlylocal = icmp eq i64 %sm, %m64
  %elsewhere = xor i1 %onlylocal, true
  %stored = and i1 %store, %elsewhere
  br i1 %stored, label %note, label %good
good:
  ret i1 true
note:
  call void @set_field(ptr %C, i64 {STORED}, i64 1)
  br label %good
}

define internal i1 @locate(
    ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i64 %cta, i64 %first, i1 %store, i64 %space) noinline {
  switch i64 %space, label %any [
    i64 {GLOBAL_SPACE}, label %global i64 {SHARED_SPACE}, label %shared i64 {LOCAL_SPACE}, label %local ]
global:
  %a = call i1 @locate_global(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i1 %store)
  ret i1 %a
shared:
  %b = call i1 @locate_shared(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %cta)
  ret i1 %b
local:
  %c = call i1 @locate_local(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %first, i1 %store)
  ret i1 %c
any:
  %d = call i1 @locate_any(
      ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i64 %cta, i64 %first, i1 %store)
  ret i1 %d
}

define internal void @count(ptr %C, ptr %R, i64 %size, i64 %number, i1 %store, i64 %step) noinline {
  %small = icmp ult i64 %size, 4
  %bytes = select i1 %small, i64 4, i64 %size
  %slot = mul i64 %number, {SPACES}
  %gp = getelementptr i64, ptr %R, i64 {R_GLOBAL}
  %g = load i64, ptr %gp
  %is.g = icmp ne i64 %g, 0
  br i1 %is.g, label %global, label %shared
global:
  %gm = trunc i64 %g to i32
  %gs = add i64 %slot, {GLOBAL_SPACE}
  call void @count_global(ptr %C, ptr %R, i32 %gm, i64 %gs, i64 %step)
  br label %shared
shared:
  %sp = getelementptr i64, ptr %R, i64 {R_SHARED}
  %s = load i64, ptr %sp
  %is.s = icmp ne i64 %s, 0
  br i1 %is.s, label %shared1, label %local
shared1:
  %sm = trunc i64 %s to i32
  %ss = add i64 %slot, {SHARED_SPACE}
  %shift = call i64 @llvm.cttz.i64(i64 %bytes, i1 true)
  %load = xor i1 %store, true
  call void @count_shared(ptr %C, ptr %R, i32 %sm, i64 %ss, i64 %shift, i1 %load, i64 %step)
  br label %local
local:
  %lp = getelementptr i64, ptr %R, i64 {R_LOCAL}
  %l = load i64, ptr %lp
  %is.l = icmp ne i64 %l, 0
  br i1 %is.l, label %local1, label %done
local1:
  %lm = trunc i64 %l to i32
  %ls = add i64 %slot, {LOCAL_SPACE}
  %words = lshr i64 %bytes, 2
  call void @count_local(ptr %C, ptr %R, i32 %lm, i64 %ls, i64 %words, i64 %step)
  br label %done
done:
  ret void
}
"""


def access_code() -> str:
    """The text of these functions."""
    text = _TEXT
    values = {f"R_{r.name}": int(r) for r in Record} | {f"{name.upper()}_SPACE": n for n, name in enumerate(SPACES)}
    values |= {"SHARED_WINDOW": SHARED_WINDOW, "LOCAL_WINDOW": LOCAL_WINDOW, "WINDOW_BYTES": WINDOW_BYTES}
    values |= {"ANY": len(SPACES), "SPACES": len(SPACES)}
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    assert LANES == 32
    return with_memory(text)


def declarations() -> str:
    """Declarations of these functions, for code that calls them."""
    return "declare i1 @ptxkit_access(ptr, ptr, i32, i64, i64, i64, i64, i64, i1, i64)\n"
