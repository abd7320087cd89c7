"""The machine code of a function: its segments, and the branches between its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ptxkit.emulator.instructions.branches import Branch, Call, FallThrough, Return
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.native.context import PENDING, Field, Request, Status
from ptxkit.emulator.native.gates import GateCode
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.runtime import common
from ptxkit.emulator.native.segments import Segment, SegmentCode, segments
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.isa.model import Register, Symbol

_FRAME = """
define internal i32 @by_numpy(ptr %C, i32 %segment, i32 %first) noinline {
  %f = call ptr @array(ptr %C, i64 {CALLBACK})
  %r = call i32 %f(i32 {SEGMENT}, i32 %segment, i32 %first)
  ret i32 %r
}

define internal i32 @by_driver(ptr %C, i32 %block) noinline {
  %f = call ptr @array(ptr %C, i64 {CALLBACK})
  %r = call i32 %f(i32 {BUILTIN}, i32 %block, i32 0)
  ret i32 %r
}

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
"""


@dataclass(frozen=True)
class Translation:
    """The text of a function's machine code.

    Attributes:
        text: LLVM's; the function to call is ``run``.
        segments: by number.
        blocks: the blocks that it has.
    """

    text: str
    segments: tuple[Segment, ...]
    blocks: frozenset[int]


def translate(
    runs: Sequence[StraightRun], places: Places, callees: Mapping[int, tuple[int, Places]] = MappingProxyType({})
) -> Translation:
    """Translate some blocks of a function; control leaves the machine code for all others.

    Args:
        callees: entry of a function that machine code may call -> its number and places.
    """
    inside = {run.block.index: run for run in runs}
    parts: list[str] = []
    numbered: list[Segment] = []
    first: dict[int, list[int]] = {}
    for run in runs:
        first[run.block.index] = []
        if run.block.gate is not None:
            parts.append(GateCode(run, places).text())
        if isinstance(run.block.terminator, Call) and (targets := targets_of(run.block.terminator, places, callees)):
            table = ", ".join(f"i64 {address}" for address, _ in targets)
            parts.append(f"@targets{run.block.index} = internal constant [{len(targets)} x i64] [{table}]\n")
        for segment in segments(run, places):
            number = len(numbered)
            numbered.append(segment)
            first[run.block.index].append(number)
            if segment.code is not None:
                parts.append(SegmentCode(segment, number, run, places).text())
    frame = _FRAME
    for name in (*Field, Request.SEGMENT, Request.BUILTIN):
        frame = frame.replace("{" + name.name + "}", str(int(name)))
    main = _main(inside, first, numbered, places, callees)
    text = "\n".join([common(), frame, *parts, main])
    return Translation(text, tuple(numbered), frozenset(inside))


def _main(
    inside: Mapping[int, StraightRun],
    first: Mapping[int, list[int]],
    numbered: Sequence[Segment],
    places: Places,
    callees: Mapping[int, tuple[int, Places]],
) -> str:
    cases = " ".join(f"i32 {b}, label %b{b}" for b in inside)
    lines = [
        "define i32 @run(ptr %C) {",
        "entry:",
        f"  %limit64 = call i64 @field(ptr %C, i64 {int(Field.LIMIT)})",
        "  %limit = trunc i64 %limit64 to i32",
        "  br label %dispatch",
        "dispatch:",
        "  %block = call i32 @ptxkit_next_lanes(ptr %C)",
        "  %late = icmp ugt i32 %block, %limit",
        "  br i1 %late, label %stopped, label %choose",
        "choose:",
        f"  switch i32 %block, label %stopped [ {cases} i32 -1, label %nobody ]",
        "nobody:",
        f"  ret i32 {int(Status.RETURNED)}",
        "stopped:",
        f"  ret i32 {int(Status.STOPPED)}",
        "failed:",
        f"  ret i32 {int(Status.FAILED)}",
    ]
    ends: set[int] = set()
    for b, run in inside.items():
        lines += _block(run.block, first[b], numbered, places, ends, callees)
    for target in sorted(ends):
        lines += _go(target, target in inside)
    return "\n".join([*lines, "}", ""])


def _block(
    block: BasicBlock,
    numbers: Sequence[int],
    numbered: Sequence[Segment],
    places: Places,
    ends: set[int],
    callees: Mapping[int, tuple[int, Places]],
) -> list[str]:
    b, terminator = block.index, block.terminator
    passed = []
    if block.gate is not None:
        passed = [f"  %pass{b} = call i1 @gate{b}(ptr %C)", f"  br i1 %pass{b}, label %in{b}, label %stop{b}", f"in{b}:"]
    lines = [
        f"b{b}:",
        *passed,
        f"  %enter{b} = call i1 @enter(ptr %C, i64 {b}, i64 {len(block.instructions)})",
        f"  br i1 %enter{b}, label %b{b}s0, label %stop{b}",
        f"stop{b}:",
        f"  call void @ptxkit_move_lanes(ptr %C, i32 {b}, i32 {b})",
        f"  ret i32 {int(Status.STOPPED)}",
    ]
    for k, number in enumerate(numbers):
        call = f"@segment{number}(ptr %C)"
        if numbered[number].code is None:
            call = f"@by_numpy(ptr %C, i32 {number}, i32 0)"
        lines += [
            f"b{b}s{k}:",
            f"  %a{b}_{k} = call i32 {call}",
            f"  switch i32 %a{b}_{k}, label %failed [ i32 0, label %b{b}s{k + 1} i32 2, label %end{b} ]",
        ]
    lines.append(f"b{b}s{len(numbers)}:")
    if isinstance(terminator, FallThrough):
        ends.add(block.next)
        lines.append(f"  br label %go{block.next}")
    elif isinstance(terminator, Branch) and terminator.predicate is None:
        ends.add(terminator.target)
        lines += [
            f"  %w{b} = call i64 @field(ptr %C, i64 {int(Field.ACTIVE_ROWS)})",
            f"  call void @add_to(ptr %C, i64 {int(Field.BRANCHES)}, i64 {terminator.number}, i64 %w{b})",
            f"  br label %go{terminator.target}",
        ]
    elif isinstance(terminator, Branch) and terminator.predicate is not None:
        ends |= {block.next, terminator.target}
        k = places.code.register_index[terminator.predicate.register.name]
        negated = "true" if terminator.predicate.negated else "false"
        arguments = f"i64 {places.offsets[k]}, i64 {places.row_bytes}, i1 {negated}, i64 {terminator.number}"
        lines += [
            f"  %d{b} = call i32 @ptxkit_decide(ptr %C, {arguments})",
            f"  switch i32 %d{b}, label %mixed{b} [ i32 0, label %go{block.next} i32 1, label %go{terminator.target} ]",
            f"mixed{b}:",
        ]
        if block.reconverges is not None:
            lines += [
                f"  call void @set_field(ptr %C, i64 {int(Field.BLOCK)}, i64 {b})",
                f"  ret i32 {int(Status.DIVERGED)}",
            ]
        else:
            lines += [
                f"  call void @ptxkit_move_lanes(ptr %C, i32 {terminator.target}, i32 {block.next})",
                "  br label %dispatch",
            ]
    elif isinstance(terminator, Call) and terminator.predicate is None and terminator.builtin is not None:
        ends.add(block.next)
        lines += [
            f"  %d{b} = call i32 @by_driver(ptr %C, i32 {b})",
            f"  switch i32 %d{b}, label %failed [ i32 0, label %go{block.next} ]",
        ]
    elif isinstance(terminator, Call) and (targets := targets_of(terminator, places, callees)):
        lines += _call_one_of(block, terminator, places, targets)
    elif isinstance(terminator, Call) and (callee := callee_of(terminator, places, callees)) is not None:
        lines += _call(block, terminator, places, *callee)
    elif isinstance(terminator, Return) and terminator.predicate is None and not terminator.results:
        lines += [
            f"  %l{b} = call i64 @field(ptr %C, i64 {int(Field.LEVEL)})",
            f"  %outer{b} = icmp eq i64 %l{b}, 0",
            f"  br i1 %outer{b}, label %end{b}, label %return{b}",
            f"return{b}:",
            "  call void @ptxkit_move_lanes(ptr %C, i32 -1, i32 -1)",
            "  br label %dispatch",
        ]
    else:
        lines.append(f"  br label %end{b}")
    return [
        *lines,
        f"end{b}:",
        f"  call void @set_field(ptr %C, i64 {int(Field.BLOCK)}, i64 {b})",
        f"  ret i32 {int(Status.TERMINATOR)}",
    ]


def callee_of(
    call: Call, places: Places, callees: Mapping[int, tuple[int, Places]]
) -> tuple[int, Places] | None:
    """The number and places of the function that a call without predicate names, if machine code can perform the call."""
    if call.predicate is not None or not isinstance(call.callee, Symbol) or len(call.entries) != 1:
        return None
    (code,) = call.entries.values()
    return _callable(call, code, places, callees)


MOST_TARGETS = 64
"""Functions among which machine code chooses for a call through a register."""


def targets_of(
    call: Call, places: Places, callees: Mapping[int, tuple[int, Places]]
) -> list[tuple[int, tuple[int, Places] | None]]:
    """The functions that a call through a register may call, in the order of their blocks: address, number and places.

    Number and places are None for a function that machine code cannot call. Empty for other calls.
    """
    k = places.register(call.callee)
    if call.predicate is not None or k is None or places.bits(k) != 64 or len(call.entries) > MOST_TARGETS:
        return []
    found = sorted(call.entries.items(), key=lambda item: item[1].entry)
    return [(address, _callable(call, code, places, callees)) for address, code in found]


def _callable(
    call: Call, code: FunctionCode, places: Places, callees: Mapping[int, tuple[int, Places]]
) -> tuple[int, Places] | None:
    """The number and places of a function, if machine code can pass it the operands of a call."""
    operands = (*call.site.arguments, *call.site.returns)
    function = code.function
    formal = (*function.params, *function.returns)
    plain = all(isinstance(o, Symbol) and o.name in places.frame for o in operands)
    if code.undefined or not plain or any(v.space == "reg" for v in formal) or len(formal) != len(operands):
        return None
    return callees.get(code.entry)


def _call(block: BasicBlock, call: Call, places: Places, number: int, callee: Places) -> list[str]:
    """The active lanes call a function."""
    b = block.index
    move = f"  call void @ptxkit_move_lanes(ptr %C, i32 {block.next}, i32 {block.next})"
    return _perform(block, str(b), call, places, number, callee, (), (move,), "dispatch")


def _call_one_of(
    block: BasicBlock, call: Call, places: Places, targets: Sequence[tuple[int, tuple[int, Places] | None]]
) -> list[str]:
    """The active lanes call functions through a register: one function after the other, the one with the first block first.

    Where machine code cannot perform a call, the scheduler performs it, and those of the lanes that are pending.
    """
    assert isinstance(call.callee, Register)
    b, k = block.index, places.code.register_index[call.callee.name]
    usable = [(n, target) for n, (_, target) in enumerate(targets) if target is not None]
    cases = " ".join(f"i64 {n}, label %target{b}_{n}" for n, _ in usable)
    arguments = f"i64 {places.offsets[k]}, i64 {places.row_bytes}, ptr @targets{b}, i64 {len(targets)}"
    lines = [
        f"  br label %pick{b}",
        f"pick{b}:",
        f"  %pick{b}_0 = call i64 @ptxkit_pick(ptr %C, {arguments})",
    ]
    if block.reconverges is not None:
        lines += [
            f"  %mixed{b}_0 = trunc i64 %pick{b}_0 to i1",
            f"  br i1 %mixed{b}_0, label %end{b}, label %same{b}",
            f"same{b}:",
        ]
    lines += [f"  %pick{b}_1 = ashr i64 %pick{b}_0, 1", f"  switch i64 %pick{b}_1, label %end{b} [ {cases} ]"]
    for n, (number, callee) in usable:
        before = (
            f"target{b}_{n}:",
            f"  call void @ptxkit_move_lanes(ptr %C, i32 {block.next}, i32 {PENDING - (1 << 32)})",
            "  call void @ptxkit_narrow(ptr %C)",
        )
        lines += _perform(block, f"{b}_{n}", call, places, number, callee, before, (), f"rest{b}_{n}")
        lines += [
            f"rest{b}_{n}:",
            f"  %pending{b}_{n} = call i64 @ptxkit_lanes_at(ptr %C, i32 {PENDING - (1 << 32)})",
            f"  %none{b}_{n} = icmp eq i64 %pending{b}_{n}, 0",
            f"  br i1 %none{b}_{n}, label %dispatch, label %pick{b}",
        ]
    return lines


def _perform(
    block: BasicBlock,
    name: str,
    call: Call,
    places: Places,
    number: int,
    callee: Places,
    before: Sequence[str],
    move: Sequence[str],
    after: str,
) -> list[str]:
    """The active lanes call a function.

    Args:
        name: distinguishes the values. before: what is done first. move: lets the lanes stand at the block after the call.
        after: the label to go to when they have returned.
    """
    i, code = block.index, callee.code
    b = name
    arguments = f"i64 {number}, i64 {places.code.frame_bytes}, i64 {code.frame_bytes}, i32 {code.entry}, i64 {i}"
    lines = [
        *before,
        f"  %c{b} = call i1 @ptxkit_begin_call(ptr %C, {arguments})",
        f"  br i1 %c{b}, label %call{b}, label %end{i}",
        f"call{b}:",
        f"  %mine{b} = call ptr @array(ptr %C, i64 {int(Field.FRAME)})",
        f"  %theirs{b} = call ptr @ptxkit_call_constants(ptr %C)",
        f"  %base{b} = call i64 @field(ptr %C, i64 {int(Field.LOCAL_BASE)})",
    ]
    function = code.function
    actual = dict(zip((v.name for v in function.params), call.site.arguments, strict=True))
    actual |= dict(zip((v.name for v in function.returns), call.site.returns, strict=True))
    for name, n in callee.frame.items():
        offset = code.frame_offsets.get(name)
        if offset is not None:
            lines.append(f"  %k{b}_{n} = add i64 %base{b}, {places.code.frame_bytes + offset}")
        else:
            given = actual[name]
            assert isinstance(given, Symbol)
            lines += [
                f"  %p{b}_{n} = getelementptr i64, ptr %mine{b}, i64 {places.frame[given.name]}",
                f"  %v{b}_{n} = load i64, ptr %p{b}_{n}",
                f"  %k{b}_{n} = add i64 %v{b}_{n}, {given.offset}",
            ]
        lines += [
            f"  %q{b}_{n} = getelementptr i64, ptr %theirs{b}, i64 {n}",
            f"  store i64 %k{b}_{n}, ptr %q{b}_{n}",
        ]
    return [
        *lines,
        *move,
        f"  %s{b} = call i32 @ptxkit_run_call(ptr %C, i64 {number})",
        f"  %r{b} = icmp eq i32 %s{b}, {int(Status.RETURNED)}",
        f"  br i1 %r{b}, label %{after}, label %unwind{b}",
        f"unwind{b}:",
        f"  ret i32 %s{b}",
    ]


def _go(target: int, is_inside: bool) -> list[str]:
    """All active lanes go on to a block."""
    return [
        f"go{target}:",
        f"  %o{target} = call i64 @field(ptr %C, i64 {int(Field.OTHERS)})",
        f"  %alone{target} = icmp eq i64 %o{target}, 0",
        f"  %early{target} = icmp ule i32 {target}, %limit",
        f"  %direct{target} = and i1 %alone{target}, %early{target}",
        f"  br i1 %direct{target}, label %{f'b{target}' if is_inside else f'leave{target}'}, label %leave{target}",
        f"leave{target}:",
        f"  call void @ptxkit_move_lanes(ptr %C, i32 {target}, i32 {target})",
        f"  br i1 %alone{target}, label %stopped, label %dispatch",
    ]
