"""LLVM functions that find the memory that the lanes of a warp access, and load from it or store to it.

An access has a record of 64-bit integers: see :class:`Record`. ``locate_SPACE`` checks the addresses of the lanes in ``%mask``
and writes where they are in the memory of the host; it returns false where numpy's checks are needed, such as for a fault. The
functions that load and store use what it has written, and so do those that count traffic
(:mod:`ptxkit.emulator.native.traffic_code`). :mod:`ptxkit.emulator.native.access_code` calls all of them.
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
    ARRANGED = 3 * LANES + 5  # how the lanes' addresses follow each other, see Arranged
    ORIGIN = 3 * LANES + 6  # where the element of lane 0 is or would be, unless they are scattered
    SIZE = 3 * LANES + 7


class Arranged(IntEnum):
    """How the addresses of the lanes follow each other."""

    SCATTERED = 0
    CONTIGUOUS = 1
    SAME = 2


WIDTHS = (8, 16, 32, 64)
"""Bits of the elements that are loaded and stored."""

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

define internal i1 @locate_global(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i1 %store) noinline {
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

define internal i1 @locate_shared(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %cta) noinline {
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
; notes that the bytes of local memory for which marks are at %p are written, or returns whether all of them have been
define internal i1 @marked(ptr %p, i64 %size, i1 %store) noinline {
entry:
  br label %byte
byte:
  %k = phi i64 [0, %entry], [%k1, %next]
  %q = getelementptr i8, ptr %p, i64 %k
  br i1 %store, label %define, label %test
define:
  store i8 0, ptr %q
  br label %next
test:
  %v = load i8, ptr %q
  %clean = icmp eq i8 %v, 0
  br i1 %clean, label %next, label %no
next:
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %size
  br i1 %more, label %byte, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @locate_local(ptr %C, ptr %R, i32 %mask, i64 %size, i64 %first, i1 %store) noinline {
entry:
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
  %beyond = sub i64 %undefined, %memory
  br i1 %go, label %lane, label %done
done:
  ret i1 %good
lane:
  %m = phi i32 [%mask, %entry], [%m1, %next]
  %empty = icmp eq i32 %m, 0
  br i1 %empty, label %done, label %look
look:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %hp = getelementptr i64, ptr %hosts, i64 %l64
  %h = load i64, ptr %hp
  %pi = add i64 %h, %beyond
  %p = inttoptr i64 %pi to ptr
  %clean = call i1 @marked(ptr %p, i64 %size, i1 %store)
  br i1 %clean, label %next, label %no
next:
  br label %lane
no:
  ret i1 false
}

define internal i1 @locate_any(
    ptr %C, ptr %R, i32 %mask, i64 %size, i64 %number, i64 %cta, i64 %first, i1 %store) noinline {
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
  %ok.g = call i1 @locate_global(ptr %C, ptr %R, i32 %g, i64 %size, i64 %number, i1 %store)
  br i1 %ok.g, label %shared, label %fail
shared:
  %is.s = icmp ne i32 %s, 0
  br i1 %is.s, label %shared1, label %local
shared1:
  %ok.s = call i1 @locate_shared(ptr %C, ptr %R, i32 %s, i64 %size, i64 %cta)
  br i1 %ok.s, label %local, label %fail
local:
  %is.l = icmp ne i32 %l, 0
  br i1 %is.l, label %local1, label %done
local1:
  %ok.l = call i1 @locate_local(ptr %C, ptr %R, i32 %l, i64 %size, i64 %first, i1 %store)
  br i1 %ok.l, label %done, label %fail
done:
  ret i1 true
}

; writes how the addresses of the lanes in %mask follow each other, if elements have %step bytes
define internal void @arrange(ptr %R, i32 %mask, i64 %step) noinline {
  %mv = bitcast i32 %mask to <32 x i1>
  %hosts = getelementptr i64, ptr %R, i64 {HOST}
  %h = load <32 x i64>, ptr %hosts, align 8
  %l = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %l64 = zext i32 %l to i64
  %fp = getelementptr i64, ptr %hosts, i64 %l64
  %f = load i64, ptr %fp
  %before = mul i64 %l64, %step
  %origin = sub i64 %f, %before
  %o = call <32 x i64> @splat64(i64 %origin)
  %sv = call <32 x i64> @splat64(i64 %step)
  %steps = mul <32 x i64> %sv, <LANE_NUMBERS>
  %run = add <32 x i64> %o, %steps
  %ne = icmp ne <32 x i64> %run, %h
  %ne1 = and <32 x i1> %ne, %mv
  %nem = bitcast <32 x i1> %ne1 to i32
  %contiguous = icmp eq i32 %nem, 0
  %fv = call <32 x i64> @splat64(i64 %f)
  %differ = icmp ne <32 x i64> %fv, %h
  %differ1 = and <32 x i1> %differ, %mv
  %differm = bitcast <32 x i1> %differ1 to i32
  %same = icmp eq i32 %differm, 0
  %k0 = select i1 %same, i64 {SAME}, i64 {SCATTERED}
  %k1 = select i1 %contiguous, i64 {CONTIGUOUS}, i64 %k0
  %w = select i1 %contiguous, i64 %origin, i64 %f
  %kp = getelementptr i64, ptr %R, i64 {ARRANGED}
  store i64 %k1, ptr %kp
  %op = getelementptr i64, ptr %R, i64 {ORIGIN}
  store i64 %w, ptr %op
  ret void
}
"""

_ELEMENTS = """
; loads the element at byte %offset of what each lane accesses
define void @ptxkit_load_{BITS}(ptr %R, i32 %mask, i64 %offset, ptr %to) noinline {
entry:
  %kp = getelementptr i64, ptr %R, i64 {ARRANGED}
  %kind = load i64, ptr %kp
  %op = getelementptr i64, ptr %R, i64 {ORIGIN}
  %origin = load i64, ptr %op
  %start = add i64 %origin, %offset
  %sp = inttoptr i64 %start to ptr
  switch i64 %kind, label %scattered [ i64 {CONTIGUOUS}, label %block i64 {SAME}, label %single ]
block:
  %all = icmp eq i32 %mask, -1
  br i1 %all, label %whole, label %scattered
whole:
  %bv = load <32 x i{BITS}>, ptr %sp, align 1
  store <32 x i{BITS}> %bv, ptr %to, align 1
  br label %loaded
single:
  %c = load i{BITS}, ptr %sp, align 1
  %c0 = insertelement <32 x i{BITS}> poison, i{BITS} %c, i32 0
  %cv = shufflevector <32 x i{BITS}> %c0, <32 x i{BITS}> poison, <32 x i32> zeroinitializer
  store <32 x i{BITS}> %cv, ptr %to, align 1
  br label %loaded
scattered:
  %m = phi i32 [%mask, %entry], [%mask, %block], [%m1, %scattered]
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %hosts = getelementptr i64, ptr %R, i64 {HOST}
  %hp = getelementptr i64, ptr %hosts, i64 %l64
  %h = load i64, ptr %hp
  %hi = add i64 %h, %offset
  %hq = inttoptr i64 %hi to ptr
  %v = load i{BITS}, ptr %hq, align 1
  %tp = getelementptr i{BITS}, ptr %to, i64 %l64
  store i{BITS} %v, ptr %tp
  %more = icmp ne i32 %m1, 0
  br i1 %more, label %scattered, label %loaded
loaded:
  %mp = getelementptr i64, ptr %R, i64 {MARKED}
  %marked = load i64, ptr %mp
  %is = icmp ne i64 %marked, 0
  br i1 %is, label %count, label %done
count:
  %cm = phi i32 [%mask, %loaded], [%cm1, %count]
  %cl = call i32 @llvm.cttz.i32(i32 %cm, i1 true)
  %cbelow = sub i32 %cm, 1
  %cm1 = and i32 %cm, %cbelow
  %cl64 = zext i32 %cl to i64
  %svp = getelementptr i64, ptr %R, i64 {SENTINELS}
  %slp = getelementptr i64, ptr %svp, i64 %cl64
  %s = load i64, ptr %slp
  %has = icmp sge i64 %s, 0
  %pattern = mul i64 %s, 72340172838076673
  %short = {NARROW}
  %ep = getelementptr i{BITS}, ptr %to, i64 %cl64
  %e = load i{BITS}, ptr %ep
  %eq = icmp eq i{BITS} %e, %short
  %eq1 = and i1 %eq, %has
  %n64 = zext i1 %eq1 to i64
  %up = getelementptr i64, ptr %R, i64 {UNWRITTEN_COUNT}
  %old = load i64, ptr %up
  %new = add i64 %old, %n64
  store i64 %new, ptr %up
  %again = icmp ne i32 %cm1, 0
  br i1 %again, label %count, label %done
done:
  ret void
}

; stores the element at byte %offset of what each lane accesses; of lanes with the same address the highest wins
define void @ptxkit_store_{BITS}(ptr %R, i32 %mask, i64 %offset, ptr %from) noinline {
entry:
  %kp = getelementptr i64, ptr %R, i64 {ARRANGED}
  %kind = load i64, ptr %kp
  %run = icmp eq i64 %kind, {CONTIGUOUS}
  %all = icmp eq i32 %mask, -1
  %is = and i1 %run, %all
  br i1 %is, label %block, label %scattered
block:
  %op = getelementptr i64, ptr %R, i64 {ORIGIN}
  %origin = load i64, ptr %op
  %start = add i64 %origin, %offset
  %sp = inttoptr i64 %start to ptr
  %bv = load <32 x i{BITS}>, ptr %from, align 1
  store <32 x i{BITS}> %bv, ptr %sp, align 1
  ret void
scattered:
  %m = phi i32 [%mask, %entry], [%m1, %scattered]
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %fp = getelementptr i{BITS}, ptr %from, i64 %l64
  %v = load i{BITS}, ptr %fp
  %hosts = getelementptr i64, ptr %R, i64 {HOST}
  %hp = getelementptr i64, ptr %hosts, i64 %l64
  %h = load i64, ptr %hp
  %hi = add i64 %h, %offset
  %hq = inttoptr i64 %hi to ptr
  store i{BITS} %v, ptr %hq, align 1
  %more = icmp ne i32 %m1, 0
  br i1 %more, label %scattered, label %done
done:
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
        "ARRANGED": names["ARRANGED"],
        "ORIGIN": names["ORIGIN"],
        **{a.name: int(a) for a in Arranged},
        "SHARED_WINDOW": SHARED_WINDOW,
        "LOCAL_WINDOW": LOCAL_WINDOW,
        "WINDOW_BYTES": WINDOW_BYTES,
        "HOST_OF": int(Field.HOST),
    }
    fields = {f.name: int(f) for f in Field if f.name != "HOST"}
    return {**fields, **records}


def _numbers() -> str:
    return f"<{', '.join(f'i64 {k}' for k in range(LANES))}>"


def memory_code() -> str:
    """The text of these functions."""
    parts = [_TEXT, _LOCAL]
    for bits in WIDTHS:
        narrow = f"trunc i64 %pattern to i{bits}" if bits < 64 else "add i64 %pattern, 0"
        parts.append(_ELEMENTS.replace("{NARROW}", narrow).replace("{BITS}", str(bits)))
    text = "\n".join(parts).replace("{BEGIN}", _BEGIN).replace("<LANE_NUMBERS>", _numbers())
    for name, value in _names().items():
        text = text.replace("{" + name + "}", str(value))
    return text


def declarations() -> str:
    """Declarations of these functions, for code that calls them."""
    lines = []
    for bits in WIDTHS:
        lines.append(f"declare void @ptxkit_load_{bits}(ptr, i32, i64, ptr)")
        lines.append(f"declare void @ptxkit_store_{bits}(ptr, i32, i64, ptr)")
    return "\n".join(lines) + "\n"
