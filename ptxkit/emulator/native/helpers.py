"""LLVM functions that machine code calls: which lanes are next, which of them take a branch, and where an address is."""

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
declare i64 @llvm.vector.reduce.umin.v32i64(<32 x i64>)
declare i32 @llvm.ctpop.i32(i32)
declare i32 @llvm.cttz.i32(i32, i1)

; the lowest block at which a lane stands; its lanes become the active ones
define internal i32 @next_lanes(ptr %C) noinline {
entry:
  %ordered = call i1 @in_order(ptr %C)
  br i1 %ordered, label %yields, label %begin
yields:
  %first = call i32 @next_in_order(ptr %C)
  ret i32 %first
begin:
  %rows = call i64 @field(ptr %C, i64 {ROWS})
  %blocks = call ptr @array(ptr %C, i64 {BLOCKS})
  br label %find
find:
  %r = phi i64 [0, %begin], [%r1, %find]
  %low = phi i32 [{NOWHERE}, %begin], [%low1, %find]
  %p = getelementptr <32 x i32>, ptr %blocks, i64 %r
  %v = load <32 x i32>, ptr %p, align 4
  %m = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %v)
  %less = icmp ult i32 %m, %low
  %low1 = select i1 %less, i32 %m, i32 %low
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rows
  br i1 %more, label %find, label %chosen
chosen:
  %n = call i64 @lanes_at(ptr %C, i32 %low1)
  ret i32 %low1
}

; whether lanes of the outermost function, which is being executed, have yielded to others
define internal i1 @in_order(ptr %C) alwaysinline {
  %yielding = call i64 @field(ptr %C, i64 {YIELDING})
  %level = call i64 @field(ptr %C, i64 {LEVEL})
  %is = icmp ne i64 %yielding, 0
  %outer = icmp eq i64 %level, 0
  %both = and i1 %is, %outer
  ret i1 %both
}

; as next_lanes, where lanes have yielded: those with the lowest number are next, of these the ones at the lowest block
define internal i32 @next_in_order(ptr %C) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ROWS})
  %blocks = call ptr @array(ptr %C, i64 {BLOCKS})
  %yields = call ptr @array(ptr %C, i64 {YIELDS})
  br label %find
find:
  %r = phi i64 [0, %entry], [%r1, %find]
  %low = phi i64 [-1, %entry], [%low1, %find]
  %any = phi i64 [0, %entry], [%any1, %find]
  %p = getelementptr <32 x i32>, ptr %blocks, i64 %r
  %v = load <32 x i32>, ptr %p, align 4
  %yp = getelementptr <32 x i32>, ptr %yields, i64 %r
  %y = load <32 x i32>, ptr %yp, align 4
  %nowhere = icmp eq <32 x i32> %v, splat (i32 {NOWHERE})
  %v64 = zext <32 x i32> %v to <32 x i64>
  %y64 = zext <32 x i32> %y to <32 x i64>
  %yh = shl <32 x i64> %y64, splat (i64 32)
  %key = or <32 x i64> %yh, %v64
  %keys = select <32 x i1> %nowhere, <32 x i64> splat (i64 -1), <32 x i64> %key
  %m = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %keys)
  %less = icmp ult i64 %m, %low
  %low1 = select i1 %less, i64 %m, i64 %low
  %some = icmp ne <32 x i32> %y, zeroinitializer
  %here = xor <32 x i1> %nowhere, splat (i1 true)
  %both = and <32 x i1> %some, %here
  %bits = bitcast <32 x i1> %both to i32
  %bits64 = zext i32 %bits to i64
  %any1 = or i64 %any, %bits64
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rows
  br i1 %more, label %find, label %chosen
chosen:
  %block = trunc i64 %low1 to i32
  %number = lshr i64 %low1, 32
  call void @set_field(ptr %C, i64 {YIELDED}, i64 %number)
  call void @set_field(ptr %C, i64 {YIELDING}, i64 %any1)
  %n = call i64 @lanes_at(ptr %C, i32 %block)
  ret i32 %block
}

; the lanes that stand at a block become the active ones; returns the number of their warps
define internal i64 @lanes_at(ptr %C, i32 %low1) noinline {
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
define internal void @move_lanes(ptr %C, i32 %taken, i32 %other) noinline {
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
  %ordered = call i1 @in_order(ptr %C)
  %yields = call ptr @array(ptr %C, i64 {YIELDS})
  %number64 = call i64 @field(ptr %C, i64 {YIELDED})
  %number = trunc i64 %number64 to i32
  %y0 = insertelement <32 x i32> poison, i32 %number, i32 0
  %y = shufflevector <32 x i32> %y0, <32 x i32> poison, <32 x i32> zeroinitializer
  br label %row
row:
  %i = phi i64 [0, %entry], [%i1, %moved]
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
  br i1 %ordered, label %note, label %moved
note:
  %yp = getelementptr <32 x i32>, ptr %yields, i64 %r
  %before = load <32 x i32>, ptr %yp, align 4
  %after = select <32 x i1> %mv, <32 x i32> %y, <32 x i32> %before
  store <32 x i32> %after, ptr %yp, align 4
  br label %moved
moved:
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rows
  br i1 %more, label %row, label %done
done:
  ret void
}

; sets TAKEN for the predicate at byte %offset of the registers of a row; 0: no active lane takes the branch, 1: all, 2: some
define internal i32 @decide(ptr %C, i64 %offset, i64 %row_bytes, i1 %negated, i64 %number) noinline {
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
"""


def with_fields(text: str) -> str:
    """Text with the positions of the context's fields for their names in braces."""
    for field in Field:
        text = text.replace("{" + field.name + "}", str(int(field)))
    return text.replace("{NOWHERE}", str(NOWHERE - (1 << 32)))


def accessors() -> str:
    """The text of the functions that read and write fields of the context, which every module has."""
    return with_fields(_ACCESSORS)


def helpers() -> str:
    """The text of the other functions, which are compiled once."""
    return with_fields(_TEXT)
