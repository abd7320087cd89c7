"""LLVM functions that find the memory that the lanes of a warp access, and load from it or store to it.

An access has a record of 64-bit integers: see :class:`Record`. ``locate_SPACE`` checks the addresses of the lanes in ``%mask``
and writes where they are in the memory of the host; it returns false where numpy's checks are needed, such as for a fault. The
functions that load and store use what it has written, and so do those that count traffic.
"""

from __future__ import annotations

from enum import IntEnum

from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.native.context import Field
from ptxkit.emulator.native.text import LANES


class Record(IntEnum):
    """Positions in the record of an access."""

    ADDRESSES = 0  # of each lane; offsets in shared and local memory
    HOST = LANES  # where they are in the memory of the host
    SENTINELS = 2 * LANES  # the byte that marks memory of each lane as unwritten; -1 for none
    GLOBAL = 3 * LANES  # lanes whose address is in global memory
    SHARED = 3 * LANES + 1
    LOCAL = 3 * LANES + 2
    MARKED = 3 * LANES + 3  # whether a lane has a sentinel
    UNWRITTEN = 3 * LANES + 4  # number of loaded elements that are the sentinel
    SIZE = 3 * LANES + 5


WIDTHS = (8, 16, 32, 64)
"""Bits of the elements that are loaded and stored."""

SIZES = (1, 2, 4, 8, 16, 32)
"""Bytes that a lane accesses."""

_BEGIN = """
  %mv = bitcast i32 %mask to <32 x i1>
  %a = load <32 x i64>, ptr %R, align 8
  %hosts = getelementptr i64, ptr %R, i64 {HOST}
  %least = sub i64 %size, 1
  %least.v0 = insertelement <32 x i64> poison, i64 %least, i32 0
  %least.v = shufflevector <32 x i64> %least.v0, <32 x i64> poison, <32 x i32> zeroinitializer
  %low = and <32 x i64> %a, %least.v
  %odd = icmp ne <32 x i64> %low, zeroinitializer
"""

_TEXT = """
; the lanes in %mask for which %at and the bytes after it fit into %length bytes, as the complement
define internal i32 @outside(<32 x i64> %at, i64 %length, i64 %size, <32 x i1> %mv) alwaysinline {
  %room = sub i64 %length, %size
  %fits = icmp uge i64 %length, %size
  %r0 = insertelement <32 x i64> poison, i64 %room, i32 0
  %r = shufflevector <32 x i64> %r0, <32 x i64> poison, <32 x i32> zeroinitializer
  %bad = icmp ugt <32 x i64> %at, %r
  %b = and <32 x i1> %bad, %mv
  %m = bitcast <32 x i1> %b to i32
  %all = bitcast <32 x i1> %mv to i32
  %o = select i1 %fits, i32 %m, i32 %all
  ret i32 %o
}

define internal <32 x i64> @splat64(i64 %x) alwaysinline {
  %v0 = insertelement <32 x i64> poison, i64 %x, i32 0
  %v = shufflevector <32 x i64> %v0, <32 x i64> poison, <32 x i32> zeroinitializer
  ret <32 x i64> %v
}

define internal void @put64(ptr %p, <32 x i64> %new, <32 x i1> %mv) alwaysinline {
  %old = load <32 x i64>, ptr %p, align 8
  %v = select <32 x i1> %mv, <32 x i64> %new, <32 x i64> %old
  store <32 x i64> %v, ptr %p, align 8
  ret void
}

define i1 @ptxkit_locate_global(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i1 %store) noinline {
entry:
  {BEGIN}
  %odd1 = and <32 x i1> %odd, %mv
  %oddm = bitcast <32 x i1> %odd1 to i32
  %aligned = icmp eq i32 %oddm, 0
  %n = call i64 @field(ptr %C, i64 {ALLOCATIONS})
  %any = icmp ne i64 %n, 0
  %good = and i1 %aligned, %any
  %mask64 = zext i32 %mask to i64
  %gp = getelementptr i64, ptr %R, i64 {GLOBAL}
  store i64 %mask64, ptr %gp
  br i1 %good, label %guess, label %fail
fail:
  ret i1 false
guess:
  %bases = call ptr @array(ptr %C, i64 {BASE})
  %ends = call ptr @array(ptr %C, i64 {END})
  %all = call ptr @array(ptr %C, i64 {HOST_OF})
  %sentinels = call ptr @array(ptr %C, i64 {SENTINEL})
  %nos = call ptr @array(ptr %C, i64 {NO_STORES})
  %hints = call ptr @array(ptr %C, i64 {HINTS})
  %hint = getelementptr i64, ptr %hints, i64 %number
  %h0 = load i64, ptr %hint
  br label %try
try:
  %h = phi i64 [%h0, %guess], [%h1, %again]
  %second = phi i1 [false, %guess], [true, %again]
  %bp = getelementptr i64, ptr %bases, i64 %h
  %base = load i64, ptr %bp
  %ep = getelementptr i64, ptr %ends, i64 %h
  %end = load i64, ptr %ep
  %length = sub i64 %end, %base
  %bv = call <32 x i64> @splat64(i64 %base)
  %off = sub <32 x i64> %a, %bv
  %out = call i32 @outside(<32 x i64> %off, i64 %length, i64 %size, <32 x i1> %mv)
  %hit = icmp eq i32 %out, 0
  br i1 %hit, label %one, label %miss
one:
  %np = getelementptr i64, ptr %nos, i64 %h
  %no = load i64, ptr %np
  %refused = icmp ne i64 %no, 0
  %refuse = and i1 %refused, %store
  br i1 %refuse, label %fail, label %place
place:
  %hp = getelementptr i64, ptr %all, i64 %h
  %host = load i64, ptr %hp
  %hv = call <32 x i64> @splat64(i64 %host)
  %where = add <32 x i64> %off, %hv
  call void @put64(ptr %hosts, <32 x i64> %where, <32 x i1> %mv)
  %sp = getelementptr i64, ptr %sentinels, i64 %h
  %s = load i64, ptr %sp
  %has = icmp sge i64 %s, 0
  %mp = getelementptr i64, ptr %R, i64 {MARKED}
  %has64 = zext i1 %has to i64
  store i64 %has64, ptr %mp
  br i1 %has, label %mark, label %done
mark:
  %sv = call <32 x i64> @splat64(i64 %s)
  %svp = getelementptr i64, ptr %R, i64 {SENTINELS}
  store <32 x i64> %sv, ptr %svp, align 8
  br label %done
done:
  ret i1 true
miss:
  br i1 %second, label %each, label %search
search:
  %l0 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l064 = zext i32 %l0 to i64
  %ap0 = getelementptr i64, ptr %R, i64 %l064
  %a0 = load i64, ptr %ap0
  %h1 = call i64 @find(ptr %C, i64 %a0, i64 %size, ptr %hint)
  %none = icmp slt i64 %h1, 0
  br i1 %none, label %fail, label %again
again:
  br label %try
each:
  %mp2 = getelementptr i64, ptr %R, i64 {MARKED}
  store i64 0, ptr %mp2
  br label %lane
lane:
  %m = phi i32 [%mask, %each], [%m1, %kept]
  %empty = icmp eq i32 %m, 0
  br i1 %empty, label %done, label %look
look:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %ap = getelementptr i64, ptr %R, i64 %l64
  %al = load i64, ptr %ap
  %k = call i64 @find(ptr %C, i64 %al, i64 %size, ptr %hint)
  %lost = icmp slt i64 %k, 0
  br i1 %lost, label %fail, label %check
check:
  %np2 = getelementptr i64, ptr %nos, i64 %k
  %no2 = load i64, ptr %np2
  %refused2 = icmp ne i64 %no2, 0
  %refuse2 = and i1 %refused2, %store
  br i1 %refuse2, label %fail, label %keep
keep:
  %bp2 = getelementptr i64, ptr %bases, i64 %k
  %b2 = load i64, ptr %bp2
  %hp2 = getelementptr i64, ptr %all, i64 %k
  %host2 = load i64, ptr %hp2
  %o2 = sub i64 %al, %b2
  %w2 = add i64 %o2, %host2
  %wp2 = getelementptr i64, ptr %hosts, i64 %l64
  store i64 %w2, ptr %wp2
  %sp2 = getelementptr i64, ptr %sentinels, i64 %k
  %s2 = load i64, ptr %sp2
  %svp2 = getelementptr i64, ptr %R, i64 {SENTINELS}
  %slp = getelementptr i64, ptr %svp2, i64 %l64
  store i64 %s2, ptr %slp
  %has2 = icmp sge i64 %s2, 0
  br i1 %has2, label %flag, label %kept
flag:
  store i64 1, ptr %mp2
  br label %kept
kept:
  br label %lane
}

define i1 @ptxkit_locate_shared(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %cta) noinline {
entry:
  {BEGIN}
  %w = call <32 x i64> @splat64(i64 {SHARED_WINDOW})
  %in = sub <32 x i64> %a, %w
  %is = icmp ult <32 x i64> %in, splat (i64 {WINDOW_BYTES})
  %at = select <32 x i1> %is, <32 x i64> %in, <32 x i64> %a
  call void @put64(ptr %R, <32 x i64> %at, <32 x i1> %mv)
  %begin = call i64 @field(ptr %C, i64 {SHARED_BEGIN})
  %end = call i64 @field(ptr %C, i64 {SHARED_END})
  %bv = call <32 x i64> @splat64(i64 %begin)
  %off = sub <32 x i64> %at, %bv
  %length = sub i64 %end, %begin
  %out = call i32 @outside(<32 x i64> %off, i64 %length, i64 %size, <32 x i1> %mv)
  %odd1 = and <32 x i1> %odd, %mv
  %oddm = bitcast <32 x i1> %odd1 to i32
  %bad = or i32 %out, %oddm
  %good = icmp eq i32 %bad, 0
  %mask64 = zext i32 %mask to i64
  %gp = getelementptr i64, ptr %R, i64 {SHARED_MASK}
  store i64 %mask64, ptr %gp
  %stride = call i64 @field(ptr %C, i64 {SHARED_STRIDE})
  %memory = call i64 @field(ptr %C, i64 {SHARED})
  %skip = mul i64 %cta, %stride
  %start = add i64 %memory, %skip
  %sv = call <32 x i64> @splat64(i64 %start)
  %where = add <32 x i64> %at, %sv
  call void @put64(ptr %hosts, <32 x i64> %where, <32 x i1> %mv)
  ret i1 %good
}
"""

_LOCAL = """
define i1 @ptxkit_locate_local_{BYTES}(ptr %C, ptr %R, i32 %mask, i64 %first, i1 %store) noinline {
entry:
  %size = add i64 0, {BYTES}
  {BEGIN}
  %w = call <32 x i64> @splat64(i64 {LOCAL_WINDOW})
  %in = sub <32 x i64> %a, %w
  %is = icmp ult <32 x i64> %in, splat (i64 {WINDOW_BYTES})
  %at = select <32 x i1> %is, <32 x i64> %in, <32 x i64> %a
  call void @put64(ptr %R, <32 x i64> %at, <32 x i1> %mv)
  %depth = call i64 @field(ptr %C, i64 {LOCAL_BYTES})
  %out = call i32 @outside(<32 x i64> %at, i64 %depth, i64 %size, <32 x i1> %mv)
  %odd1 = and <32 x i1> %odd, %mv
  %oddm = bitcast <32 x i1> %odd1 to i32
  %bad = or i32 %out, %oddm
  %good = icmp eq i32 %bad, 0
  %mask64 = zext i32 %mask to i64
  %gp = getelementptr i64, ptr %R, i64 {LOCAL_MASK}
  store i64 %mask64, ptr %gp
  %fv = call <32 x i64> @splat64(i64 %first)
  %dv = call <32 x i64> @splat64(i64 %depth)
  %threads = add <32 x i64> %fv, <LANE_NUMBERS>
  %rows = mul <32 x i64> %threads, %dv
  %places = add <32 x i64> %rows, %at
  %memory = call i64 @field(ptr %C, i64 {LOCAL})
  %mev = call <32 x i64> @splat64(i64 %memory)
  %where = add <32 x i64> %places, %mev
  call void @put64(ptr %hosts, <32 x i64> %where, <32 x i1> %mv)
  %undefined = call i64 @field(ptr %C, i64 {UNDEFINED})
  %followed = icmp ne i64 %undefined, 0
  %go = and i1 %followed, %good
  br i1 %go, label %marks, label %done
done:
  ret i1 %good
marks:
  %uv = call <32 x i64> @splat64(i64 %undefined)
  %markers = add <32 x i64> %places, %uv
  %list = alloca [32 x i64]
  store <32 x i64> %markers, ptr %list, align 8
  br label %lane
lane:
  %m = phi i32 [%mask, %marks], [%m1, %next]
  %seen = phi i{BITS} [0, %marks], [%seen1, %next]
  %empty = icmp eq i32 %m, 0
  br i1 %empty, label %over, label %look
look:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %pp = getelementptr ptr, ptr %list, i64 %l64
  %p = load ptr, ptr %pp
  br i1 %store, label %define, label %test
define:
  store i{BITS} 0, ptr %p, align 1
  br label %next
test:
  %v = load i{BITS}, ptr %p, align 1
  br label %next
next:
  %x = phi i{BITS} [0, %define], [%v, %test]
  %seen1 = or i{BITS} %seen, %x
  br label %lane
over:
  %clean = icmp eq i{BITS} %seen, 0
  ret i1 %clean
}

define i1 @ptxkit_locate_any_{BYTES}(ptr %C, ptr %R, i32 %mask, i64 %number, i64 %cta, i64 %first, i1 %store) noinline {
entry:
  %a = load <32 x i64>, ptr %R, align 8
  %s1 = sub <32 x i64> %a, splat (i64 {SHARED_WINDOW})
  %s2 = icmp ult <32 x i64> %s1, splat (i64 {WINDOW_BYTES})
  %s3 = bitcast <32 x i1> %s2 to i32
  %s = and i32 %s3, %mask
  %l1 = sub <32 x i64> %a, splat (i64 {LOCAL_WINDOW})
  %l2 = icmp ult <32 x i64> %l1, splat (i64 {WINDOW_BYTES})
  %l3 = bitcast <32 x i1> %l2 to i32
  %l = and i32 %l3, %mask
  %sl = or i32 %s, %l
  %g = xor i32 %mask, %sl
  %is.g = icmp ne i32 %g, 0
  br i1 %is.g, label %global, label %shared
fail:
  ret i1 false
global:
  %ok.g = call i1 @ptxkit_locate_global(ptr %C, ptr %R, i32 %g, i64 {BYTES}, i64 %number, i1 %store)
  br i1 %ok.g, label %shared, label %fail
shared:
  %is.s = icmp ne i32 %s, 0
  br i1 %is.s, label %shared1, label %local
shared1:
  %ok.s = call i1 @ptxkit_locate_shared(ptr %C, ptr %R, i32 %s, i64 {BYTES}, i64 %cta)
  br i1 %ok.s, label %local, label %fail
local:
  %is.l = icmp ne i32 %l, 0
  br i1 %is.l, label %local1, label %done
local1:
  %ok.l = call i1 @ptxkit_locate_local_{BYTES}(ptr %C, ptr %R, i32 %l, i64 %first, i1 %store)
  br i1 %ok.l, label %done, label %fail
done:
  ret i1 true
}
"""

_BLOCK = """\
  %hosts = getelementptr i64, ptr %R, i64 {HOST}
  %h = load <32 x i64>, ptr %hosts, align 8
  %l = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l64 = zext i32 %l to i64
  %fp = getelementptr i64, ptr %hosts, i64 %l64
  %f = load i64, ptr %fp
  %before = mul i64 %l64, {STEP}
  %origin = sub i64 %f, %before
  %o = call <32 x i64> @splat64(i64 %origin)
  %run = add <32 x i64> %o, <LANE_STEPS>
  %ne = icmp ne <32 x i64> %run, %h
  %ne1 = and <32 x i1> %ne, %mv
  %nem = bitcast <32 x i1> %ne1 to i32
  %contiguous = icmp eq i32 %nem, 0
  br i1 %contiguous, label %block, label %scattered
block:
  %start = add i64 %origin, %offset
  %sp = inttoptr i64 %start to ptr
"""
"""The addresses of the lanes, and the block that accesses them as one vector where they follow each other."""

_SCATTERED = """\
scattered:
  %ov = call <32 x i64> @splat64(i64 %offset)
  %places = add <32 x i64> %h, %ov
  %pointers = inttoptr <32 x i64> %places to <32 x ptr>
"""
"""The start of the block that accesses the lanes' addresses one by one."""

_SAME = """\
other:
  %differ = icmp ne <32 x i64> %o, %h
  %differ1 = and <32 x i1> %differ, %mv
  %differm = bitcast <32 x i1> %differ1 to i32
  %same = icmp eq i32 %differm, 0
  br i1 %same, label %single, label %scattered
single:
  %only = add i64 %origin, %offset
  %onlyp = inttoptr i64 %only to ptr
  %c = load i{BITS}, ptr %onlyp, align 1
  %c0 = insertelement <32 x i{BITS}> poison, i{BITS} %c, i32 0
  %cv = shufflevector <32 x i{BITS}> %c0, <32 x i{BITS}> poison, <32 x i32> zeroinitializer
  br label %loaded
"""
"""The block that loads once where all lanes have the same address."""

_ELEMENTS = """
declare <32 x i{BITS}> @llvm.masked.gather.v32i{BITS}.v32p0(<32 x ptr>, i32, <32 x i1>, <32 x i{BITS}>)
declare void @llvm.masked.scatter.v32i{BITS}.v32p0(<32 x i{BITS}>, <32 x ptr>, i32, <32 x i1>)
declare <32 x i{BITS}> @llvm.masked.load.v32i{BITS}.p0(ptr, i32, <32 x i1>, <32 x i{BITS}>)
declare void @llvm.masked.store.v32i{BITS}.p0(<32 x i{BITS}>, ptr, i32, <32 x i1>)

; loads the element at byte %offset of what each lane accesses
define void @ptxkit_load_{BITS}(ptr %R, i32 %mask, i64 %offset, ptr %to) noinline {
entry:
  %mv = bitcast i32 %mask to <32 x i1>
{BLOCK}  %bv = call <32 x i{BITS}> @llvm.masked.load.v32i{BITS}.p0(
    ptr %sp, i32 1, <32 x i1> %mv, <32 x i{BITS}> zeroinitializer)
  br label %loaded
{SAME}{SCATTERED}  %sv = call <32 x i{BITS}> @llvm.masked.gather.v32i{BITS}.v32p0(
    <32 x ptr> %pointers, i32 1, <32 x i1> %mv, <32 x i{BITS}> zeroinitializer)
  br label %loaded
loaded:
  %v = phi <32 x i{BITS}> [%bv, %block], [%cv, %single], [%sv, %scattered]
  store <32 x i{BITS}> %v, ptr %to, align 1
  %mp = getelementptr i64, ptr %R, i64 {MARKED}
  %marked = load i64, ptr %mp
  %is = icmp ne i64 %marked, 0
  br i1 %is, label %count, label %done
count:
  %svp = getelementptr i64, ptr %R, i64 {SENTINELS}
  %s = load <32 x i64>, ptr %svp, align 8
  %has = icmp sge <32 x i64> %s, zeroinitializer
  %pattern = mul <32 x i64> %s, splat (i64 72340172838076673)
  %short = {NARROW}
  %eq = icmp eq <32 x i{BITS}> %v, %short
  %eq1 = and <32 x i1> %eq, %has
  %eq2 = and <32 x i1> %eq1, %mv
  %eqm = bitcast <32 x i1> %eq2 to i32
  %n = call i32 @llvm.ctpop.i32(i32 %eqm)
  %n64 = zext i32 %n to i64
  %up = getelementptr i64, ptr %R, i64 {UNWRITTEN_COUNT}
  %old = load i64, ptr %up
  %new = add i64 %old, %n64
  store i64 %new, ptr %up
  br label %done
done:
  ret void
}

; stores the element at byte %offset of what each lane accesses; of lanes with the same address the highest wins
define void @ptxkit_store_{BITS}(ptr %R, i32 %mask, i64 %offset, ptr %from) noinline {
entry:
  %mv = bitcast i32 %mask to <32 x i1>
  %v = load <32 x i{BITS}>, ptr %from, align 1
{BLOCK}  call void @llvm.masked.store.v32i{BITS}.p0(<32 x i{BITS}> %v, ptr %sp, i32 1, <32 x i1> %mv)
  ret void
{SCATTERED}  call void @llvm.masked.scatter.v32i{BITS}.v32p0(<32 x i{BITS}> %v, <32 x ptr> %pointers, i32 1, <32 x i1> %mv)
  ret void
}
"""


def _names() -> dict[str, int]:
    names = {r.name: int(r) for r in Record}
    records = {
        "HOST": names["HOST"],
        "SENTINELS": names["SENTINELS"],
        "GLOBAL": names["GLOBAL"],
        "MARKED": names["MARKED"],
        "SHARED_MASK": names["SHARED"],
        "LOCAL_MASK": names["LOCAL"],
        "UNWRITTEN_COUNT": names["UNWRITTEN"],
        "SHARED_WINDOW": SHARED_WINDOW,
        "LOCAL_WINDOW": LOCAL_WINDOW,
        "WINDOW_BYTES": WINDOW_BYTES,
        "HOST_OF": int(Field.HOST),
    }
    fields = {f.name: int(f) for f in Field if f.name != "HOST"}
    return {**fields, **records}


def _numbers(step: int) -> str:
    return f"<{', '.join(f'i64 {k * step}' for k in range(LANES))}>"


def memory_code() -> str:
    """The text of these functions."""
    parts = [_TEXT]
    for size in SIZES:
        local = _LOCAL.replace("{BYTES}", str(size)).replace("{BITS}", str(size * 8))
        parts.append(local.replace("<LANE_NUMBERS>", _numbers(1)))
    for bits in WIDTHS:
        narrow = f"trunc <32 x i64> %pattern to <32 x i{bits}>" if bits < 64 else "add <32 x i64> %pattern, zeroinitializer"
        part = _ELEMENTS.replace("{BLOCK}", _BLOCK).replace("{SCATTERED}", _SCATTERED).replace("{NARROW}", narrow)
        loads, label, stores = part.partition("; stores the element")
        loads = loads.replace("label %block, label %scattered", "label %block, label %other").replace("{SAME}", _SAME)
        part = (loads + label + stores).replace("{BITS}", str(bits)).replace("{STEP}", str(bits // 8))
        parts.append(part.replace("<LANE_STEPS>", _numbers(bits // 8)))
    text = "\n".join(parts).replace("{BEGIN}", _BEGIN)
    for name, value in _names().items():
        text = text.replace("{" + name + "}", str(value))
    return text


def declarations() -> str:
    """Declarations of these functions, for code that calls them."""
    lines = [
        "declare i1 @ptxkit_locate_global(ptr, ptr, i32, i64, i64, i1)",
        "declare i1 @ptxkit_locate_shared(ptr, ptr, i32, i64, i64)",
    ]
    for size in SIZES:
        lines.append(f"declare i1 @ptxkit_locate_local_{size}(ptr, ptr, i32, i64, i1)")
        lines.append(f"declare i1 @ptxkit_locate_any_{size}(ptr, ptr, i32, i64, i64, i64, i1)")
    for bits in WIDTHS:
        lines.append(f"declare void @ptxkit_load_{bits}(ptr, i32, i64, ptr)")
        lines.append(f"declare void @ptxkit_store_{bits}(ptr, i32, i64, ptr)")
    return "\n".join(lines) + "\n"
