"""LLVM functions for calls through registers, of which the lanes may call different functions."""

from __future__ import annotations

from ptxkit.emulator.native.context import Field

_TEXT = """
; the number in %table of the first address that an active lane calls, times two, plus one if others call another function;
; -2 for none. TAKEN has the lanes that call it
define internal i64 @pick(ptr %C, i64 %offset, i64 %row_bytes, ptr %table, i64 %n) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %row = call ptr @array(ptr %C, i64 {ROW})
  %active_row = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %active_mask = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %takens = call ptr @array(ptr %C, i64 {TAKEN})
  %registers = call ptr @array(ptr %C, i64 {REGISTERS})
  br label %address
address:
  %k = phi i64 [0, %entry], [%k1, %none]
  %tp = getelementptr i64, ptr %table, i64 %k
  %t = load i64, ptr %tp
  %t0 = insertelement <32 x i64> poison, i64 %t, i32 0
  %tv = shufflevector <32 x i64> %t0, <32 x i64> poison, <32 x i32> zeroinitializer
  br label %each
each:
  %i = phi i64 [0, %address], [%i1, %each]
  %some = phi i32 [0, %address], [%some1, %each]
  %left = phi i32 [0, %address], [%left1, %each]
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
  %v = load <32 x i64>, ptr %p, align 1
  %is = icmp eq <32 x i64> %v, %tv
  %bits = bitcast <32 x i1> %is to i32
  %here = and i32 %bits, %m
  %rest = xor i32 %here, %m
  %tk = getelementptr i32, ptr %takens, i64 %i
  store i32 %here, ptr %tk
  %some1 = or i32 %some, %here
  %left1 = or i32 %left, %rest
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rows
  br i1 %more, label %each, label %known
known:
  %any = icmp ne i32 %some1, 0
  br i1 %any, label %found, label %none
none:
  %k1 = add i64 %k, 1
  %again = icmp ult i64 %k1, %n
  br i1 %again, label %address, label %fail
fail:
  ret i64 -2
found:
  %twice = shl i64 %k, 1
  %mixed = icmp ne i32 %left1, 0
  %mixed64 = zext i1 %mixed to i64
  %out = or i64 %twice, %mixed64
  ret i64 %out
}

; of the active lanes, those in TAKEN become the active ones
define internal void @narrow(ptr %C) noinline {
entry:
  %rows = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %active_row = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %active_mask = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %takens = call ptr @array(ptr %C, i64 {TAKEN})
  br label %each
each:
  %i = phi i64 [0, %entry], [%i1, %each]
  %n = phi i64 [0, %entry], [%n1, %each]
  %lanes = phi i64 [0, %entry], [%lanes1, %each]
  %rp = getelementptr i32, ptr %active_row, i64 %i
  %r = load i32, ptr %rp
  %tk = getelementptr i32, ptr %takens, i64 %i
  %t = load i32, ptr %tk
  %np = getelementptr i32, ptr %active_row, i64 %n
  store i32 %r, ptr %np
  %nm = getelementptr i32, ptr %active_mask, i64 %n
  store i32 %t, ptr %nm
  %count = call i32 @llvm.ctpop.i32(i32 %t)
  %count64 = zext i32 %count to i64
  %lanes1 = add i64 %lanes, %count64
  %is = icmp ne i32 %t, 0
  %is64 = zext i1 %is to i64
  %n1 = add i64 %n, %is64
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %rows
  br i1 %more, label %each, label %done
done:
  call void @set_field(ptr %C, i64 {ACTIVE_ROWS}, i64 %n1)
  call void @set_field(ptr %C, i64 {LANES}, i64 %lanes1)
  ret void
}
"""


def target_code() -> str:
    """The text of these functions."""
    text = _TEXT
    for field in Field:
        text = text.replace("{" + field.name + "}", str(int(field)))
    return text
