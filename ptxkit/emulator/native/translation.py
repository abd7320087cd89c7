"""The machine code of a function: its segments, and the branches between its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptxkit.emulator.instructions.branches import Branch, FallThrough
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.native.context import Field, Status
from ptxkit.emulator.native.helpers import helpers
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.scalar import declarations
from ptxkit.emulator.native.segments import Segment, SegmentCode, segments
from ptxkit.emulator.simt.blocks import BasicBlock

_FRAME = """
define internal i32 @by_numpy(ptr %C, i32 %segment, i32 %first) noinline {
  %f = call ptr @array(ptr %C, i64 {CALLBACK})
  %r = call i32 %f(i32 %segment, i32 %first)
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


def translate(runs: Sequence[StraightRun], places: Places) -> Translation:
    """Translate some blocks of a function; control leaves the machine code for all others."""
    inside = {run.block.index: run for run in runs}
    parts: list[str] = []
    numbered: list[Segment] = []
    first: dict[int, list[int]] = {}
    for run in runs:
        first[run.block.index] = []
        for segment in segments(run, places):
            number = len(numbered)
            numbered.append(segment)
            first[run.block.index].append(number)
            if segment.code is not None:
                parts.append(SegmentCode(segment, number, run, places).text())
    frame = _FRAME
    for field in Field:
        frame = frame.replace("{" + field.name + "}", str(int(field)))
    main = _main(inside, first, numbered, places)
    text = "\n".join([declarations(), helpers(), frame, *parts, main])
    return Translation(text, tuple(numbered), frozenset(inside))


def _main(
    inside: Mapping[int, StraightRun], first: Mapping[int, list[int]], numbered: Sequence[Segment], places: Places
) -> str:
    cases = " ".join(f"i32 {b}, label %b{b}" for b in inside)
    lines = [
        "define i32 @run(ptr %C) {",
        "entry:",
        f"  %limit64 = call i64 @field(ptr %C, i64 {int(Field.LIMIT)})",
        "  %limit = trunc i64 %limit64 to i32",
        "  br label %dispatch",
        "dispatch:",
        "  %block = call i32 @next_lanes(ptr %C)",
        "  %late = icmp ugt i32 %block, %limit",
        "  br i1 %late, label %stopped, label %choose",
        "choose:",
        f"  switch i32 %block, label %stopped [ {cases} ]",
        "stopped:",
        f"  ret i32 {int(Status.STOPPED)}",
        "failed:",
        f"  ret i32 {int(Status.FAILED)}",
    ]
    ends: set[int] = set()
    for b, run in inside.items():
        lines += _block(run.block, first[b], numbered, places, ends)
    for target in sorted(ends):
        lines += _go(target, target in inside)
    return "\n".join([*lines, "}", ""])


def _block(
    block: BasicBlock, numbers: Sequence[int], numbered: Sequence[Segment], places: Places, ends: set[int]
) -> list[str]:
    b, terminator = block.index, block.terminator
    lines = [
        f"b{b}:",
        f"  %enter{b} = call i1 @enter(ptr %C, i64 {b}, i64 {len(block.instructions)})",
        f"  br i1 %enter{b}, label %b{b}s0, label %stop{b}",
        f"stop{b}:",
        f"  call void @move_lanes(ptr %C, i32 {b}, i32 {b})",
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
            f"  %d{b} = call i32 @decide(ptr %C, {arguments})",
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
                f"  call void @move_lanes(ptr %C, i32 {terminator.target}, i32 {block.next})",
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
        f"  call void @move_lanes(ptr %C, i32 {target}, i32 {target})",
        f"  br i1 %alone{target}, label %stopped, label %dispatch",
    ]
