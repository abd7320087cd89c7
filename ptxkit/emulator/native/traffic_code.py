"""LLVM functions that count the traffic of a warp's addresses.

The counts are those of :mod:`ptxkit.emulator.memory.traffic`, computed for one warp at a time. What was counted for an
instruction is remembered (:class:`Memory`), since most repeat the same pattern of addresses at another place.
"""

from __future__ import annotations

from enum import IntEnum

from ptxkit.emulator.native.helpers import with_fields
from ptxkit.emulator.native.memory_code import Arranged
from ptxkit.emulator.native.text import LANES


class Memory(IntEnum):
    """Positions in what is remembered of the last access of an instruction to a state space."""

    OFFSETS = 0  # of the addresses of the lanes from that of the first active lane
    KEY = LANES  # the active lanes, and above them the lowest bits of the first address
    FIRST = LANES + 1  # sectors, or wavefronts
    SECOND = LANES + 2  # bank conflicts
    LEAST = LANES + 3  # of the offsets
    MOST = LANES + 4
    ODD = LANES + 5  # the offsets, combined by "or"
    ARRANGED = LANES + 6  # how the addresses follow each other
    BEFORE = LANES + 7  # bytes from the element of lane 0 to that of the first active lane, if they are contiguous; else 0
    SIZE = LANES + 8


_SECTORS_IF_KNOWN = """  %new = icmp eq ptr %M, null
  br i1 %new, label %compute, label %known
known:
  %op = getelementptr i64, ptr %M, i64 {M_FIRST}
  %old = load i64, ptr %op
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %old, i64 0, i64 0)
  ret void"""
"""After a call of ``@recall``: counts the sectors that are remembered and returns; the block ``compute`` follows."""
_WAVEFRONTS_IF_KNOWN = """  %new = icmp eq ptr %M, null
  br i1 %new, label %compute, label %known
known:
  %op = getelementptr i64, ptr %M, i64 {M_FIRST}
  %old = load i64, ptr %op
  %op1 = getelementptr i64, ptr %M, i64 {M_SECOND}
  %old1 = load i64, ptr %op1
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 %old, i64 %old1)
  ret void"""
"""The same for wavefronts and bank conflicts of shared memory."""

_TEXT = """
declare i64 @llvm.cttz.i64(i64, i1)

; number of different keys of the lanes in %mask
define internal i64 @different(ptr %keys, i32 %mask) noinline {
entry:
  %list = alloca [32 x i64]
  br label %lane
lane:
  %m = phi i32 [%mask, %entry], [%m1, %next]
  %n = phi i64 [0, %entry], [%n2, %next]
  %end = icmp eq i32 %m, 0
  br i1 %end, label %done, label %look
look:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %kp = getelementptr i64, ptr %keys, i64 %l64
  %k = load i64, ptr %kp
  br label %compare
compare:
  %j = phi i64 [%n, %look], [%j1, %again]
  %over = icmp eq i64 %j, 0
  br i1 %over, label %new, label %again
again:
  %j1 = sub i64 %j, 1
  %lp = getelementptr i64, ptr %list, i64 %j1
  %lv = load i64, ptr %lp
  %same = icmp eq i64 %lv, %k
  br i1 %same, label %next, label %compare
new:
  %np = getelementptr i64, ptr %list, i64 %n
  store i64 %k, ptr %np
  %n1 = add i64 %n, 1
  br label %next
next:
  %n2 = phi i64 [%n, %again], [%n1, %new]
  br label %lane
done:
  ret i64 %n
}

define internal void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %units, i64 %fronts, i64 %conflicts) alwaysinline {
  %a = call ptr @array(ptr %C, i64 {TRAFFIC})
  %p = getelementptr <4 x i64>, ptr %a, i64 %slot
  %n = call i32 @llvm.ctpop.i32(i32 %mask)
  %n64 = zext i32 %n to i64
  %v0 = insertelement <4 x i64> poison, i64 %n64, i32 0
  %v1 = insertelement <4 x i64> %v0, i64 %units, i32 1
  %v2 = insertelement <4 x i64> %v1, i64 %fronts, i32 2
  %v3 = insertelement <4 x i64> %v2, i64 %conflicts, i32 3
  %old = load <4 x i64>, ptr %p, align 8
  %new = add <4 x i64> %old, %v3
  store <4 x i64> %new, ptr %p, align 8
  ret void
}

; what is remembered of a slot, if the lanes' addresses differ from the remembered ones by a constant, else null
define internal ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %low) noinline {
  %M = call ptr @memory_of(ptr %C, i64 %slot)
  %first = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %f64 = zext i32 %first to i64
  %op = getelementptr i64, ptr %addresses, i64 %f64
  %origin = load i64, ptr %op
  %align = and i64 %origin, %low
  %m64 = zext i32 %mask to i64
  %high = shl i64 %align, 32
  %key = or i64 %m64, %high
  %kp = getelementptr i64, ptr %M, i64 {M_KEY}
  %k = load i64, ptr %kp
  %also = icmp eq i64 %k, %key
  br i1 %also, label %compare, label %new
compare:
  %v = load <32 x i64>, ptr %addresses, align 8
  %o0 = insertelement <32 x i64> poison, i64 %origin, i32 0
  %o = shufflevector <32 x i64> %o0, <32 x i64> poison, <32 x i32> zeroinitializer
  %offsets = sub <32 x i64> %v, %o
  %known = load <32 x i64>, ptr %M, align 8
  %ne = icmp ne <32 x i64> %offsets, %known
  %bits = bitcast <32 x i1> %ne to i32
  %bad = and i32 %bits, %mask
  %same = icmp eq i32 %bad, 0
  br i1 %same, label %found, label %new
found:
  ret ptr %M
new:
  ret ptr null
}

; remembers the addresses of a slot with their counts
define internal void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %low, i64 %step,
                            i64 %first_count, i64 %second_count) noinline {
entry:
  %M = call ptr @memory_of(ptr %C, i64 %slot)
  %first = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %f64 = zext i32 %first to i64
  %op = getelementptr i64, ptr %addresses, i64 %f64
  %origin = load i64, ptr %op
  %align = and i64 %origin, %low
  %m64 = zext i32 %mask to i64
  %high = shl i64 %align, 32
  %key = or i64 %m64, %high
  %kp = getelementptr i64, ptr %M, i64 {M_KEY}
  store i64 %key, ptr %kp
  %ap = getelementptr i64, ptr %M, i64 {M_FIRST}
  store i64 %first_count, ptr %ap
  %bp = getelementptr i64, ptr %M, i64 {M_SECOND}
  store i64 %second_count, ptr %bp
  br label %lane
lane:
  %m = phi i32 [%mask, %entry], [%m1, %lane]
  %least = phi i64 [0, %entry], [%least1, %lane]
  %most = phi i64 [0, %entry], [%most1, %lane]
  %odd = phi i64 [0, %entry], [%odd1, %lane]
  %apart = phi i64 [0, %entry], [%apart1, %lane]
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %vp = getelementptr i64, ptr %addresses, i64 %l64
  %v = load i64, ptr %vp
  %o = sub i64 %v, %origin
  %mp = getelementptr i64, ptr %M, i64 %l64
  store i64 %o, ptr %mp
  %is.less = icmp slt i64 %o, %least
  %least1 = select i1 %is.less, i64 %o, i64 %least
  %is.more = icmp sgt i64 %o, %most
  %most1 = select i1 %is.more, i64 %o, i64 %most
  %odd1 = or i64 %odd, %o
  %steps = sub i64 %l64, %f64
  %run = mul i64 %steps, %step
  %difference = xor i64 %run, %o
  %apart1 = or i64 %apart, %difference
  %more = icmp ne i32 %m1, 0
  br i1 %more, label %lane, label %done
done:
  %lp = getelementptr i64, ptr %M, i64 {M_LEAST}
  store i64 %least1, ptr %lp
  %hp = getelementptr i64, ptr %M, i64 {M_MOST}
  store i64 %most1, ptr %hp
  %dp = getelementptr i64, ptr %M, i64 {M_ODD}
  store i64 %odd1, ptr %dp
  %contiguous = icmp eq i64 %apart1, 0
  %same = icmp eq i64 %odd1, 0
  %k0 = select i1 %same, i64 {SAME}, i64 {SCATTERED}
  %k1 = select i1 %contiguous, i64 {CONTIGUOUS}, i64 %k0
  %kp1 = getelementptr i64, ptr %M, i64 {M_ARRANGED}
  store i64 %k1, ptr %kp1
  %skip = mul i64 %f64, %step
  %before = select i1 %contiguous, i64 %skip, i64 0
  %ep = getelementptr i64, ptr %M, i64 {M_BEFORE}
  store i64 %before, ptr %ep
  ret void
}

define internal ptr @memory_of(ptr %C, i64 %slot) alwaysinline {
  %a = call ptr @array(ptr %C, i64 {MEMORY})
  %record = getelementptr [{M_SIZE} x i64], ptr %a, i64 %slot
  ret ptr %record
}

define internal void @count_global(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %step) noinline {
entry:
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %count, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 31, i64 %step, i64 0, i64 0)
  ret void
count:
  %M = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 31)
{SECTORS_IF_KNOWN}
compute:
  %keys = alloca <32 x i64>
  %v = load <32 x i64>, ptr %addresses, align 8
  %k = lshr <32 x i64> %v, splat (i64 5)
  store <32 x i64> %k, ptr %keys
  %n = call i64 @different(ptr %keys, i32 %mask)
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 31, i64 %step, i64 %n, i64 0)
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %n, i64 0, i64 0)
  ret void
}

; %addresses are byte offsets in the local memory of the threads; the size is that of a lane's access in words
define internal void @count_local(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %words, i64 %step) noinline {
entry:
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %count, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  ret void
count:
  %bytes = mul i64 %words, 4
  %low = sub i64 %bytes, 1
  %M = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %low)
{SECTORS_IF_KNOWN}
compute:
  %keys = alloca [32 x i64]
  %shift = call i64 @llvm.cttz.i64(i64 %bytes, i1 true)
  br label %lane
lane:
  %l = phi i64 [0, %compute], [%l1, %lane]
  %p = getelementptr i64, ptr %addresses, i64 %l
  %a = load i64, ptr %p
  %line = lshr i64 %a, %shift
  %line4 = mul i64 %line, 4
  %eighth = lshr i64 %l, 3
  %key = add i64 %line4, %eighth
  %q = getelementptr i64, ptr %keys, i64 %l
  store i64 %key, ptr %q
  %l1 = add i64 %l, 1
  %more = icmp ult i64 %l1, 32
  br i1 %more, label %lane, label %done
done:
  %n = call i64 @different(ptr %keys, i32 %mask)
  %units = mul i64 %n, %words
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %low, i64 %step, i64 %units, i64 0)
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %units, i64 0, i64 0)
  ret void
}

; passes over the banks for the lanes in %mask, which share a phase
define internal i64 @passes(ptr %words, i32 %mask, i64 %banks) noinline {
entry:
  %counts = alloca [32 x i64]
  %lists = alloca [1024 x i64]
  store <32 x i64> zeroinitializer, ptr %counts, align 8
  %last = sub i64 %banks, 1
  br label %lane
lane:
  %m = phi i32 [%mask, %entry], [%m1, %next]
  %most = phi i64 [0, %entry], [%most2, %next]
  %end = icmp eq i32 %m, 0
  br i1 %end, label %done, label %look
look:
  %l = call i32 @llvm.cttz.i32(i32 %m, i1 true)
  %below = sub i32 %m, 1
  %m1 = and i32 %m, %below
  %l64 = zext i32 %l to i64
  %wp = getelementptr i64, ptr %words, i64 %l64
  %w = load i64, ptr %wp
  %bank = and i64 %w, %last
  %cp = getelementptr i64, ptr %counts, i64 %bank
  %c = load i64, ptr %cp
  %start = mul i64 %bank, 32
  br label %compare
compare:
  %j = phi i64 [%c, %look], [%j1, %again]
  %over = icmp eq i64 %j, 0
  br i1 %over, label %new, label %again
again:
  %j1 = sub i64 %j, 1
  %at = add i64 %start, %j1
  %lp = getelementptr i64, ptr %lists, i64 %at
  %lv = load i64, ptr %lp
  %same = icmp eq i64 %lv, %w
  br i1 %same, label %next, label %compare
new:
  %to = add i64 %start, %c
  %np = getelementptr i64, ptr %lists, i64 %to
  store i64 %w, ptr %np
  %c1 = add i64 %c, 1
  store i64 %c1, ptr %cp
  %larger = icmp ugt i64 %c1, %most
  %most1 = select i1 %larger, i64 %c1, i64 %most
  br label %next
next:
  %most2 = phi i64 [%most, %again], [%most1, %new]
  br label %lane
done:
  ret i64 %most
}

define internal void @count_shared(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %shift, i1 %load, i64 %step) noinline {
entry:
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %count, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 3, i64 %step, i64 0, i64 0)
  ret void
count:
  %M = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 3)
{WAVEFRONTS_IF_KNOWN}
compute:
  %words = alloca <32 x i64>
  %v = load <32 x i64>, ptr %addresses, align 8
  %s0 = insertelement <32 x i64> poison, i64 %shift, i32 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %k = lshr <32 x i64> %v, %s
  store <32 x i64> %k, ptr %words
  %log = sub i64 %shift, 2
  %banks = lshr i64 32, %log
  %wide = icmp ugt i64 %log, 0
  %try = and i1 %wide, %load
  br i1 %try, label %pairs, label %phase
pairs:
  %even = shufflevector <32 x i64> %k, <32 x i64> poison, <16 x i32> <EVEN>
  %odd = shufflevector <32 x i64> %k, <32 x i64> poison, <16 x i32> <ODD>
  %eq = icmp eq <16 x i64> %even, %odd
  %mv = bitcast i32 %mask to <32 x i1>
  %me = shufflevector <32 x i1> %mv, <32 x i1> poison, <16 x i32> <EVEN>
  %mo = shufflevector <32 x i1> %mv, <32 x i1> poison, <16 x i32> <ODD>
  %both = and <16 x i1> %me, %mo
  %ne = xor <16 x i1> %eq, splat (i1 true)
  %bad = and <16 x i1> %both, %ne
  %bits = bitcast <16 x i1> %bad to i16
  %paired = icmp eq i16 %bits, 0
  %twice = zext i1 %paired to i64
  br label %phase
phase:
  %more = phi i64 [0, %compute], [%twice, %pairs]
  %width = shl i64 %banks, %more
  br label %each
each:
  %from = phi i64 [0, %phase], [%from1, %each]
  %total = phi i64 [0, %phase], [%total1, %each]
  %used = phi i64 [0, %phase], [%used1, %each]
  %short = icmp ult i64 %width, 32
  %one = shl i64 1, %width
  %ones = sub i64 %one, 1
  %full = select i1 %short, i64 %ones, i64 4294967295
  %window = shl i64 %full, %from
  %w32 = trunc i64 %window to i32
  %pm = and i32 %mask, %w32
  %p = call i64 @passes(ptr %words, i32 %pm, i64 %banks)
  %total1 = add i64 %total, %p
  %any = icmp ne i64 %p, 0
  %any64 = zext i1 %any to i64
  %used1 = add i64 %used, %any64
  %from1 = add i64 %from, %width
  %go = icmp ult i64 %from1, 32
  br i1 %go, label %each, label %done
done:
  %conflicts = sub i64 %total1, %used1
  call void @learn(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 3, i64 %step, i64 %total1, i64 %conflicts)
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 %total1, i64 %conflicts)
  ret void
}
"""


def with_memory(text: str) -> str:
    """Text with the positions of :class:`Memory` for ``{M_KEY}`` and the like, those of the context, and the blocks that
    count what is remembered."""
    text = text.replace("{SECTORS_IF_KNOWN}", _SECTORS_IF_KNOWN).replace("{WAVEFRONTS_IF_KNOWN}", _WAVEFRONTS_IF_KNOWN)
    for name in Memory:
        text = text.replace("{M_" + name.name + "}", str(int(name)))
    for kind in Arranged:
        text = text.replace("{" + kind.name + "}", str(int(kind)))
    return with_fields(text)


def traffic_code() -> str:
    """The text of these functions."""
    even = ", ".join(f"i32 {2 * k}" for k in range(16))
    odd = ", ".join(f"i32 {2 * k + 1}" for k in range(16))
    return with_memory(_TEXT).replace("<EVEN>", f"<{even}>").replace("<ODD>", f"<{odd}>")
