"""LLVM functions by which machine code calls the machine code of another function."""

from __future__ import annotations

from ptxkit.emulator.native.context import MAX_LEVELS, NOWHERE, Field, Level, Request, Status

_TEXT = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; begins a call for the active lanes; false where the scheduler has to perform it
define internal i1 @begin_call(ptr %C, i64 %callee, i64 %caller_bytes, i64 %bytes, i32 %entry_block, i64 %block) noinline {
entry:
  %level = call i64 @field(ptr %C, i64 {LEVEL})
  %next = add i64 %level, 1
  %deep = icmp uge i64 %next, {MAX_LEVELS}
  %code = call ptr @array(ptr %C, i64 {CODE})
  %cp = getelementptr i64, ptr %code, i64 %callee
  %c = load i64, ptr %cp
  %without = icmp eq i64 %c, 0
  %base0 = call i64 @field(ptr %C, i64 {LOCAL_BASE})
  %base = add i64 %base0, %caller_bytes
  %end = add i64 %base, %bytes
  %depth = call i64 @field(ptr %C, i64 {LOCAL_BYTES})
  %over = icmp ugt i64 %end, %depth
  %n1 = or i1 %deep, %without
  %n2 = or i1 %n1, %over
  br i1 %n2, label %no, label %find
no:
  ret i1 false
find:
  %storages = call ptr @array(ptr %C, i64 {STORAGE})
  %so = mul i64 %callee, {MAX_LEVELS}
  %so1 = add i64 %so, %next
  %sp = getelementptr i64, ptr %storages, i64 %so1
  %s0 = load i64, ptr %sp
  %missing = icmp eq i64 %s0, 0
  br i1 %missing, label %ask, label %begin
ask:
  %callback = call ptr @array(ptr %C, i64 {CALLBACK})
  %callee32 = trunc i64 %callee to i32
  %next32 = trunc i64 %next to i32
  %answer = call i32 %callback(i32 {STORAGE_REQUEST}, i32 %callee32, i32 %next32)
  %refused = icmp ne i32 %answer, 0
  br i1 %refused, label %no, label %begin
begin:
  %levels = call ptr @array(ptr %C, i64 {LEVELS})
  %ro = mul i64 %next, {L_SIZE}
  %r = getelementptr i64, ptr %levels, i64 %ro
  %f0 = getelementptr i64, ptr %r, i64 {L_FUNCTION}
  store i64 %callee, ptr %f0
  %f1 = getelementptr i64, ptr %r, i64 {L_BLOCK}
  store i64 %block, ptr %f1
  %f2 = getelementptr i64, ptr %r, i64 {L_LOCAL_BASE}
  store i64 %base, ptr %f2
  %calls = call i64 @field(ptr %C, i64 {CALLS})
  %calls1 = add i64 %calls, 1
  call void @set_field(ptr %C, i64 {CALLS}, i64 %calls1)
  %f3 = getelementptr i64, ptr %r, i64 {L_STAMP}
  store i64 %calls1, ptr %f3
  %f4 = getelementptr i64, ptr %r, i64 {L_STANDING}
  %standing = load ptr, ptr %f4
  %rows = call i64 @field(ptr %C, i64 {ROWS})
  %nbytes = mul i64 %rows, 128
  call void @llvm.memset.p0.i64(ptr %standing, i8 -1, i64 %nbytes, i1 false)
  %count = call i64 @field(ptr %C, i64 {ACTIVE_ROWS})
  %active_row = call ptr @array(ptr %C, i64 {ACTIVE_ROW})
  %active_mask = call ptr @array(ptr %C, i64 {ACTIVE_MASK})
  %row_of = call ptr @array(ptr %C, i64 {ROW})
  %undefined = call i64 @field(ptr %C, i64 {UNDEFINED})
  %followed0 = icmp ne i64 %undefined, 0
  %has = icmp ne i64 %bytes, 0
  %followed = and i1 %followed0, %has
  %e0 = insertelement <32 x i32> poison, i32 %entry_block, i32 0
  %e = shufflevector <32 x i32> %e0, <32 x i32> poison, <32 x i32> zeroinitializer
  br label %row
row:
  %i = phi i64 [0, %begin], [%i1, %rowed]
  %ap = getelementptr i32, ptr %active_row, i64 %i
  %a = load i32, ptr %ap
  %a64 = zext i32 %a to i64
  %mp = getelementptr i32, ptr %active_mask, i64 %i
  %m = load i32, ptr %mp
  %mv = bitcast i32 %m to <32 x i1>
  %p = getelementptr <32 x i32>, ptr %standing, i64 %a64
  %new = select <32 x i1> %mv, <32 x i32> %e, <32 x i32> splat (i32 -1)
  store <32 x i32> %new, ptr %p, align 4
  %i1 = add i64 %i, 1
  br i1 %followed, label %marks, label %rowed
marks:
  %wp = getelementptr i32, ptr %row_of, i64 %a64
  %w = load i32, ptr %wp
  %w64 = zext i32 %w to i64
  %first = mul i64 %w64, 32
  br label %lane
lane:
  %left = phi i32 [%m, %marks], [%left1, %mark]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %rowed, label %mark
mark:
  %l = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %below = sub i32 %left, 1
  %left1 = and i32 %left, %below
  %l64 = zext i32 %l to i64
  %thread = add i64 %first, %l64
  %to = mul i64 %thread, %depth
  %to1 = add i64 %to, %base
  %to2 = add i64 %to1, %undefined
  %tp = inttoptr i64 %to2 to ptr
  call void @llvm.memset.p0.i64(ptr %tp, i8 -1, i64 %bytes, i1 false)
  br label %lane
rowed:
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %row, label %done
done:
  ret i1 true
}

; the constants of the call that has begun
define internal ptr @call_constants(ptr %C) noinline {
  %level = call i64 @field(ptr %C, i64 {LEVEL})
  %next = add i64 %level, 1
  %levels = call ptr @array(ptr %C, i64 {LEVELS})
  %ro = mul i64 %next, {L_SIZE}
  %r = getelementptr i64, ptr %levels, i64 %ro
  %f5 = getelementptr i64, ptr %r, i64 {L_CONSTANTS}
  %p = load ptr, ptr %f5
  ret ptr %p
}

; executes the call that has begun; the caller's lanes stand at the block after it
define internal i32 @run_call(ptr %C, i64 %callee) noinline {
entry:
  %level = call i64 @field(ptr %C, i64 {LEVEL})
  %blocks = call i64 @field(ptr %C, i64 {BLOCKS})
  %registers = call i64 @field(ptr %C, i64 {REGISTERS})
  %frame = call i64 @field(ptr %C, i64 {FRAME})
  %base = call i64 @field(ptr %C, i64 {LOCAL_BASE})
  %limit = call i64 @field(ptr %C, i64 {LIMIT})
  %next = add i64 %level, 1
  %levels = call ptr @array(ptr %C, i64 {LEVELS})
  %ro = mul i64 %next, {L_SIZE}
  %r = getelementptr i64, ptr %levels, i64 %ro
  %f2 = getelementptr i64, ptr %r, i64 {L_LOCAL_BASE}
  %base1 = load i64, ptr %f2
  %f4 = getelementptr i64, ptr %r, i64 {L_STANDING}
  %blocks1 = load i64, ptr %f4
  %f5 = getelementptr i64, ptr %r, i64 {L_CONSTANTS}
  %frame1 = load i64, ptr %f5
  %storages = call ptr @array(ptr %C, i64 {STORAGE})
  %so = mul i64 %callee, {MAX_LEVELS}
  %so1 = add i64 %so, %next
  %sp = getelementptr i64, ptr %storages, i64 %so1
  %registers1 = load i64, ptr %sp
  call void @set_field(ptr %C, i64 {LEVEL}, i64 %next)
  call void @set_field(ptr %C, i64 {BLOCKS}, i64 %blocks1)
  call void @set_field(ptr %C, i64 {REGISTERS}, i64 %registers1)
  call void @set_field(ptr %C, i64 {FRAME}, i64 %frame1)
  call void @set_field(ptr %C, i64 {LOCAL_BASE}, i64 %base1)
  call void @set_field(ptr %C, i64 {LIMIT}, i64 {EVERYWHERE})
  %code = call ptr @array(ptr %C, i64 {CODE})
  %cp = getelementptr ptr, ptr %code, i64 %callee
  %c = load ptr, ptr %cp
  %status = call i32 @ptxkit_run(ptr %C, ptr %c)
  %over = icmp eq i32 %status, {RETURNED}
  br i1 %over, label %restore, label %done
restore:
  call void @set_field(ptr %C, i64 {LEVEL}, i64 %level)
  call void @set_field(ptr %C, i64 {BLOCKS}, i64 %blocks)
  call void @set_field(ptr %C, i64 {REGISTERS}, i64 %registers)
  call void @set_field(ptr %C, i64 {FRAME}, i64 %frame)
  call void @set_field(ptr %C, i64 {LOCAL_BASE}, i64 %base)
  call void @set_field(ptr %C, i64 {LIMIT}, i64 %limit)
  br label %done
done:
  ret i32 %status
}
"""


def call_code() -> str:
    """The text of these functions."""
    text = _TEXT
    values = {
        "MAX_LEVELS": MAX_LEVELS,
        "STORAGE_REQUEST": int(Request.STORAGE),
        "EVERYWHERE": NOWHERE,
        "RETURNED": int(Status.RETURNED),
        **{f"L_{level.name}": int(level) for level in Level},
        **{field.name: int(field) for field in Field},
    }
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text
