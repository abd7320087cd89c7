"""LLVM functions that machine code calls: which lanes are next, where an address is, and the traffic of a warp's addresses.

The counts are those of :mod:`ptxkit.emulator.memory.traffic`, computed for one warp at a time.
"""

from __future__ import annotations

from ptxkit.emulator.native.context import NOWHERE, Field

_ACCESSORS = """
define internal i64 @field(ptr %C, i64 %k) alwaysinline {
  %p = getelementptr i64, ptr %C, i64 %k
  %v = load i64, ptr %p
  ret i64 %v
}

define internal void @set_field(ptr %C, i64 %k, i64 %v) alwaysinline {
  %p = getelementptr i64, ptr %C, i64 %k
  store i64 %v, ptr %p
  ret void
}

define internal ptr @array(ptr %C, i64 %k) alwaysinline {
  %p = getelementptr i64, ptr %C, i64 %k
  %v = load ptr, ptr %p
  ret ptr %v
}

define internal void @add_to(ptr %C, i64 %k, i64 %index, i64 %amount) alwaysinline {
  %a = call ptr @array(ptr %C, i64 %k)
  %p = getelementptr i64, ptr %a, i64 %index
  %old = load i64, ptr %p
  %new = add i64 %old, %amount
  store i64 %new, ptr %p
  ret void
}
"""

_TEXT = """
declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.cttz.i32(i32, i1)

; the lowest block at which a lane stands; its lanes become the active ones
define i32 @ptxkit_next_lanes(ptr %C) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ROWS})
  %blocks = call ptr @array(ptr %C, i64 {BLOCKS})
  br label %find
find:
  %r = phi i64 [0, %entry], [%r1, %find]
  %low = phi i32 [{NOWHERE}, %entry], [%low1, %find]
  %p = getelementptr <32 x i32>, ptr %blocks, i64 %r
  %v = load <32 x i32>, ptr %p, align 4
  %m = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %v)
  %less = icmp ult i32 %m, %low
  %low1 = select i1 %less, i32 %m, i32 %low
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rows
  br i1 %more, label %find, label %chosen
chosen:
  %n = call i64 @ptxkit_lanes_at(ptr %C, i32 %low1)
  ret i32 %low1
}

; the lanes that stand at a block become the active ones; returns the number of their warps
define i64 @ptxkit_lanes_at(ptr %C, i32 %low1) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ROWS})
  %blocks = call ptr @array(ptr %C, i64 {BLOCKS})
  %active_row = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %active_mask = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %at = insertelement <32 x i32> poison, i32 %low1, i32 0
  %all = shufflevector <32 x i32> %at, <32 x i32> poison, <32 x i32> zeroinitializer
  br label %mark
mark:
  %s = phi i64 [0, %entry], [%s1, %marked]
  %n = phi i64 [0, %entry], [%n2, %marked]
  %lanes = phi i64 [0, %entry], [%lanes1, %marked]
  %others = phi i64 [0, %entry], [%others1, %marked]
  %q = getelementptr <32 x i32>, ptr %blocks, i64 %s
  %w = load <32 x i32>, ptr %q, align 4
  %here = icmp eq <32 x i32> %w, %all
  %mask = bitcast <32 x i1> %here to i32
  %is = icmp ne <32 x i32> %w, splat (i32 {NOWHERE})
  %ismask = bitcast <32 x i1> %is to i32
  %rest = xor i32 %ismask, %mask
  %rest64 = zext i32 %rest to i64
  %others1 = or i64 %others, %rest64
  %count = call i32 @llvm.ctpop.i32(i32 %mask)
  %count64 = zext i32 %count to i64
  %lanes1 = add i64 %lanes, %count64
  %none = icmp eq i32 %mask, 0
  br i1 %none, label %marked, label %keep
keep:
  %s32 = trunc i64 %s to i32
  %ap = getelementptr i32, ptr %active_row, i64 %n
  store i32 %s32, ptr %ap
  %am = getelementptr i32, ptr %active_mask, i64 %n
  store i32 %mask, ptr %am
  %n1 = add i64 %n, 1
  br label %marked
marked:
  %n2 = phi i64 [%n, %mark], [%n1, %keep]
  %s1 = add i64 %s, 1
  %go = icmp ult i64 %s1, %rows
  br i1 %go, label %mark, label %done
done:
  call void @set_field(ptr %C, i64 {ACTIVE_ROWS}, i64 %n2)
  call void @set_field(ptr %C, i64 {LANES}, i64 %lanes1)
  call void @set_field(ptr %C, i64 {OTHERS}, i64 %others1)
  ret i64 %n2
}

; the active lanes stand at block %taken where their bit in TAKEN is set, else at %other
define void @ptxkit_move_lanes(ptr %C, i32 %taken, i32 %other) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %blocks = call ptr @array(ptr %C, i64 {BLOCKS})
  %active_row = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %active_mask = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %takens = call ptr @array(ptr %C, i64 {TAKEN})
  %a0 = insertelement <32 x i32> poison, i32 %taken, i32 0
  %a = shufflevector <32 x i32> %a0, <32 x i32> poison, <32 x i32> zeroinitializer
  %b0 = insertelement <32 x i32> poison, i32 %other, i32 0
  %b = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  br label %row
row:
  %i = phi i64 [0, %entry], [%i1, %row]
  %rp = getelementptr i32, ptr %active_row, i64 %i
  %r32 = load i32, ptr %rp
  %r = zext i32 %r32 to i64
  %mp = getelementptr i32, ptr %active_mask, i64 %i
  %m = load i32, ptr %mp
  %tp = getelementptr i32, ptr %takens, i64 %i
  %t = load i32, ptr %tp
  %mv = bitcast i32 %m to <32 x i1>
  %tv = bitcast i32 %t to <32 x i1>
  %p = getelementptr <32 x i32>, ptr %blocks, i64 %r
  %old = load <32 x i32>, ptr %p, align 4
  %to = select <32 x i1> %tv, <32 x i32> %a, <32 x i32> %b
  %new = select <32 x i1> %mv, <32 x i32> %to, <32 x i32> %old
  store <32 x i32> %new, ptr %p, align 4
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rows
  br i1 %more, label %row, label %done
done:
  ret void
}

; sets TAKEN for the predicate at byte %offset of the registers of a row; 0: no active lane takes the branch, 1: all, 2: some
define i32 @ptxkit_decide(ptr %C, i64 %offset, i64 %row_bytes, i1 %negated, i64 %number) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %row = call ptr @array(ptr %C, i64 {ROW})
  %active_row = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %active_mask = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %takens = call ptr @array(ptr %C, i64 {TAKEN})
  %registers = call ptr @array(ptr %C, i64 {REGISTERS})
  %flip = sext i1 %negated to i32
  br label %each
each:
  %i = phi i64 [0, %entry], [%i1, %each]
  %lanes = phi i32 [0, %entry], [%lanes1, %each]
  %mixed = phi i64 [0, %entry], [%mixed1, %each]
  %rp = getelementptr i32, ptr %active_row, i64 %i
  %r32 = load i32, ptr %rp
  %r = zext i32 %r32 to i64
  %wp = getelementptr i32, ptr %row, i64 %r
  %w32 = load i32, ptr %wp
  %w = zext i32 %w32 to i64
  %mp = getelementptr i32, ptr %active_mask, i64 %i
  %m = load i32, ptr %mp
  %o = mul i64 %w, %row_bytes
  %o1 = add i64 %o, %offset
  %p = getelementptr i8, ptr %registers, i64 %o1
  %v = load <32 x i8>, ptr %p, align 1
  %is = icmp ne <32 x i8> %v, zeroinitializer
  %bits = bitcast <32 x i1> %is to i32
  %bits1 = xor i32 %bits, %flip
  %t = and i32 %bits1, %m
  %tp = getelementptr i32, ptr %takens, i64 %i
  store i32 %t, ptr %tp
  %n = call i32 @llvm.ctpop.i32(i32 %t)
  %lanes1 = add i32 %lanes, %n
  %some = icmp ne i32 %t, 0
  %less = icmp ne i32 %t, %m
  %both = and i1 %some, %less
  %both64 = zext i1 %both to i64
  %mixed1 = add i64 %mixed, %both64
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rows
  br i1 %more, label %each, label %done
done:
  %taken = zext i32 %lanes1 to i64
  call void @add_to(ptr %C, i64 {PREDICATED}, i64 %number, i64 %taken)
  %active = call i64 @field(ptr %C, i64 {LANES})
  %all = icmp eq i64 %taken, %active
  %none = icmp eq i64 %taken, 0
  %x = select i1 %all, i32 1, i32 2
  %y = select i1 %none, i32 0, i32 %x
  call void @add_to(ptr %C, i64 {BRANCHES}, i64 %number, i64 %rows)
  call void @add_to(ptr %C, i64 {DIVERGENT}, i64 %number, i64 %mixed1)
  ret i32 %y
}

; the number of the allocation that holds an address; -1 if there is none
define internal i64 @find(ptr %C, i64 %address, i64 %size, ptr %hint) noinline {
entry:
  %n = call i64 @field(ptr %C, i64 {ALLOCATIONS})
  %bases = call ptr @array(ptr %C, i64 {BASE})
  %ends = call ptr @array(ptr %C, i64 {END})
  br label %loop
loop:
  %low = phi i64 [0, %entry], [%low1, %half]
  %high = phi i64 [%n, %entry], [%high1, %half]
  %open = icmp ult i64 %low, %high
  br i1 %open, label %half, label %found
half:
  %sum = add i64 %low, %high
  %mid = lshr i64 %sum, 1
  %p = getelementptr i64, ptr %bases, i64 %mid
  %b = load i64, ptr %p
  %right = icmp ule i64 %b, %address
  %mid1 = add i64 %mid, 1
  %low1 = select i1 %right, i64 %mid1, i64 %low
  %high1 = select i1 %right, i64 %high, i64 %mid
  br label %loop
found:
  %any = icmp ugt i64 %low, 0
  br i1 %any, label %check, label %fail
check:
  %k = sub i64 %low, 1
  %ep = getelementptr i64, ptr %ends, i64 %k
  %e = load i64, ptr %ep
  %last = add i64 %address, %size
  %fits = icmp ule i64 %last, %e
  br i1 %fits, label %good, label %fail
good:
  store i64 %k, ptr %hint
  ret i64 %k
fail:
  ret i64 -1
}

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

; the remembered counts of a slot if the lanes' addresses differ from the remembered ones by a constant, else null; the record
; is the offsets from the first lane, the mask with %align, and two counts
define internal ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %low) noinline {
  %a = call ptr @array(ptr %C, i64 {MEMORY})
  %record = getelementptr [36 x i64], ptr %a, i64 %slot
  %first = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %f64 = zext i32 %first to i64
  %op = getelementptr i64, ptr %addresses, i64 %f64
  %origin = load i64, ptr %op
  %align = and i64 %origin, %low
  %m64 = zext i32 %mask to i64
  %high = shl i64 %align, 32
  %key = or i64 %m64, %high
  %v = load <32 x i64>, ptr %addresses, align 8
  %o0 = insertelement <32 x i64> poison, i64 %origin, i32 0
  %o = shufflevector <32 x i64> %o0, <32 x i64> poison, <32 x i32> zeroinitializer
  %offsets = sub <32 x i64> %v, %o
  %known = load <32 x i64>, ptr %record, align 8
  %ne = icmp ne <32 x i64> %offsets, %known
  %bits = bitcast <32 x i1> %ne to i32
  %bad = and i32 %bits, %mask
  %same = icmp eq i32 %bad, 0
  %kp = getelementptr i64, ptr %record, i64 32
  %k = load i64, ptr %kp
  %also = icmp eq i64 %k, %key
  %hit = and i1 %same, %also
  br i1 %hit, label %found, label %new
found:
  ret ptr %kp
new:
  store <32 x i64> %offsets, ptr %record, align 8
  store i64 %key, ptr %kp
  ret ptr null
}

define internal ptr @counts_of(ptr %C, i64 %slot) alwaysinline {
  %a = call ptr @array(ptr %C, i64 {MEMORY})
  %record = getelementptr [36 x i64], ptr %a, i64 %slot
  %p = getelementptr i64, ptr %record, i64 33
  ret ptr %p
}

define void @ptxkit_count_global(ptr %C, ptr %addresses, i32 %mask, i64 %slot) noinline {
entry:
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %count, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  ret void
count:
  %kept = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 31)
  %new = icmp eq ptr %kept, null
  %store = call ptr @counts_of(ptr %C, i64 %slot)
  br i1 %new, label %compute, label %known
known:
  %old = load i64, ptr %store
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %old, i64 0, i64 0)
  ret void
compute:
  %keys = alloca <32 x i64>
  %v = load <32 x i64>, ptr %addresses, align 8
  %k = lshr <32 x i64> %v, splat (i64 5)
  store <32 x i64> %k, ptr %keys
  %n = call i64 @different(ptr %keys, i32 %mask)
  store i64 %n, ptr %store
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 %n, i64 0, i64 0)
  ret void
}

; %addresses are byte offsets in the local memory of the threads
define void @ptxkit_count_local(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %words) noinline {
entry:
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %count, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  ret void
count:
  %keys = alloca [32 x i64]
  %bytes = mul i64 %words, 4
  br label %lane
lane:
  %l = phi i64 [0, %count], [%l1, %lane]
  %p = getelementptr i64, ptr %addresses, i64 %l
  %a = load i64, ptr %p
  %line = udiv i64 %a, %bytes
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

define void @ptxkit_count_shared(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 %shift, i1 %load) noinline {
entry:
  %is = call i64 @field(ptr %C, i64 {COUNTING})
  %on = icmp ne i64 %is, 0
  br i1 %on, label %count, label %plain
plain:
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 0, i64 0)
  ret void
count:
  %kept = call ptr @recall(ptr %C, ptr %addresses, i32 %mask, i64 %slot, i64 3)
  %new = icmp eq ptr %kept, null
  %store = call ptr @counts_of(ptr %C, i64 %slot)
  %store1 = getelementptr i64, ptr %store, i64 1
  br i1 %new, label %compute, label %known
known:
  %old = load i64, ptr %store
  %old1 = load i64, ptr %store1
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 %old, i64 %old1)
  ret void
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
  store i64 %total1, ptr %store
  store i64 %conflicts, ptr %store1
  call void @traffic(ptr %C, i64 %slot, i32 %mask, i64 0, i64 %total1, i64 %conflicts)
  ret void
}
"""


def _with_fields(text: str) -> str:
    for field in Field:
        text = text.replace("{" + field.name + "}", str(int(field)))
    even = ", ".join(f"i32 {2 * k}" for k in range(16))
    odd = ", ".join(f"i32 {2 * k + 1}" for k in range(16))
    text = text.replace("<EVEN>", f"<{even}>").replace("<ODD>", f"<{odd}>")
    return text.replace("{NOWHERE}", str(NOWHERE - (1 << 32)))


def accessors() -> str:
    """The text of the functions that read and write fields of the context, which every module has."""
    return _with_fields(_ACCESSORS)


def helpers() -> str:
    """The text of the other functions, which are compiled once."""
    return _with_fields(_TEXT)


def declarations() -> str:
    """Declarations of these functions, for code that calls them."""
    return """
declare i32 @llvm.ctpop.i32(i32)
declare i32 @ptxkit_next_lanes(ptr)
declare i64 @ptxkit_lanes_at(ptr, i32)
declare void @ptxkit_move_lanes(ptr, i32, i32)
declare i32 @ptxkit_decide(ptr, i64, i64, i1, i64)
declare void @ptxkit_count_global(ptr, ptr, i32, i64)
declare void @ptxkit_count_local(ptr, ptr, i32, i64, i64)
declare void @ptxkit_count_shared(ptr, ptr, i32, i64, i64, i1)
"""
