"""Divergence analysis: an estimate, from SASS, of the code that only some threads of a warp execute.

The estimate may miss divergence, so that what it reports is almost always real.

Every register is classified as *uniform* (the same in all lanes of a warp), *aligned* (the thread's index, or what has the
lane in its low five bits), *varying*, or *exchanged* (it came through a shuffle: after a whole reduction it is uniform again,
which this analysis cannot detect). A comparison of an aligned value that can only change between warps, such as
``threadIdx.x < 128`` or ``threadIdx.x / 32 == 0``, is uniform. A loaded value counts as uniform when its address
does. Values that differ because lanes took different paths are not detected, and threadIdx.y and .z count as uniform, as
they are where a CTA's first dimension is a multiple of 32.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from ptxkit.inspect.blocks import dominators
from ptxkit.inspect.model import Block, SassFunction, SassInstruction

UNIFORM, ALIGNED, VARYING, EXCHANGED = 0, 1, 2, 3  # where two values merge, the higher level applies
_Levels: TypeAlias = dict[str, int]
_VARYING_SOURCES = ("SR_LANEID", "SR_LANEMASK", "SR_EQMASK", "SR_LTMASK", "SR_LEMASK", "SR_GTMASK", "SR_GEMASK")
_IMMEDIATE = re.compile(r"(?<![\w.])(-?0x[0-9a-f]+)(?![\w.])")


def divergent_regions(function: SassFunction) -> dict[int, SassInstruction]:
    """Block index -> the branch (or conditional EXIT) that may have split the warps that reach the block.

    A block is in the region of a branch when it can be reached from it before the point where all its paths meet again.
    """
    blocks = function.blocks
    varying = varying_guards(function)
    ends = {b.index: b.instructions[-1] for b in blocks}
    branches = {n: i for n, i in ends.items() if i.address in varying and i.opcode in ("BRA", "EXIT", "RET", "BRX")}
    if not branches:
        return {}
    meeting = _meeting_points(blocks)
    found: dict[int, SassInstruction] = {}
    for index, branch in branches.items():
        for block in _reached(blocks, index, meeting[index]):
            found.setdefault(block, branch)
    return found


def _reached(blocks: tuple[Block, ...], start: int, end: int | None) -> set[int]:
    seen: set[int] = set()
    open_ends = [s for s in blocks[start].successors if s != end]
    while open_ends:
        node = open_ends.pop()
        if node not in seen:
            seen.add(node)
            open_ends += [s for s in blocks[node].successors if s != end]
    return seen


def _meeting_points(blocks: tuple[Block, ...]) -> list[int | None]:
    """For every block, the nearest one that all its paths to the end pass (its immediate postdominator), or None."""
    end = len(blocks)
    reverse: list[list[int]] = [[] for _ in range(end + 1)]
    for block in blocks:
        leaves = block.instructions[-1].opcode in ("EXIT", "RET", "KILL")
        for successor in (*block.successors, *([end] if leaves or not block.successors else [])):
            reverse[successor].append(block.index)
    after = dominators(reverse, [end])
    points: list[int | None] = []
    for block in blocks:
        candidates = (after[block.index] or set()) - {block.index, end}
        # The nearest is the one that all the other candidates postdominate.
        points.append(max(candidates, key=lambda c: len(after[c] or ()), default=None))
    return points


def varying_guards(function: SassFunction) -> frozenset[int]:
    """Addresses of the instructions that only some lanes of a warp may execute, because their predicate varies."""
    found = set()
    for block, levels in zip(function.blocks, _levels(function), strict=True):
        for instruction in block.instructions:
            guards = [instruction.predicate.lstrip("@!")]
            if instruction.opcode == "BRA":  # BRA P1, label has a second condition
                guards += [r for r in instruction.reads if r.startswith("P")]
            if any(levels.get(guard, UNIFORM) == VARYING for guard in guards):
                found.add(instruction.address)
            _apply(instruction, levels)
    return frozenset(found)


def _levels(function: SassFunction) -> list[_Levels]:
    """The levels of registers at the start of each block: the least fixed point of the data-flow equations."""
    blocks = function.blocks
    at: list[_Levels] = [{} for _ in blocks]
    waiting = list(range(len(blocks)))
    while waiting:
        index = waiting.pop(0)
        current = dict(at[index])
        for instruction in blocks[index].instructions:
            _apply(instruction, current)
        for successor in blocks[index].successors:
            merged = at[successor]
            changed = False
            for register, level in current.items():
                if level > merged.get(register, UNIFORM):
                    merged[register], changed = level, True
            if changed and successor not in waiting:
                waiting.append(successor)
    return at


def _apply(instruction: SassInstruction, levels: _Levels) -> None:
    """The levels after an instruction."""
    if not instruction.writes or instruction.opcode == "CALL":  # its writes are only possible ones
        return
    level = _result(instruction, levels)
    guard = instruction.predicate.lstrip("@!")
    if guard and levels.get(guard, UNIFORM) >= VARYING:
        level = max(level, levels[guard])
    for register in instruction.writes:
        if register.startswith("U"):
            continue
        old = levels.get(register, UNIFORM) if guard else UNIFORM
        levels[register] = max(level, old)


def _result(instruction: SassInstruction, levels: _Levels) -> int:
    opcode, operands = instruction.opcode, instruction.operands
    reads = [r for r in instruction.reads if not r.startswith("U") and r != instruction.predicate.lstrip("@!")]
    most = max((levels.get(r, UNIFORM) for r in reads), default=UNIFORM)
    if opcode == "S2R":
        return ALIGNED if "SR_TID.X" in operands or operands.endswith("SR_TID") else _special(operands)
    if opcode in ("VOTE", "VOTEU", "REDUX", "R2UR"):
        return UNIFORM
    if opcode in ("ELECT", "MATCH", "ATOM", "ATOMG", "ATOMS"):
        return VARYING
    if opcode == "SHFL":
        # SHFL.IDX pred, dest, value, lane, mask: all lanes read the same value when the lane is a constant.
        lane = operands.split(",")[3].strip()
        return UNIFORM if "IDX" in instruction.modifiers and re.fullmatch(r"RZ|0x[0-9a-f]+", lane) else EXCHANGED
    if most != ALIGNED:
        return most
    return _of_aligned(instruction)


def _special(operands: str) -> int:
    return VARYING if any(name in operands for name in _VARYING_SOURCES) else UNIFORM


def _of_aligned(instruction: SassInstruction) -> int:
    """The result of an instruction whose inputs are aligned or uniform, one of them aligned."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    numbers = [int(text, 16) for text in _IMMEDIATE.findall(instruction.operands)]
    if opcode == "MOV" or (opcode == "IMAD" and "MOV" in modifiers):
        return ALIGNED
    if opcode == "SHF" and "R" in modifiers and numbers:
        return UNIFORM if numbers[0] >= 5 else VARYING
    if opcode == "LOP3" and len(numbers) == 2 and numbers[1] == 0xC0:  # lookup table 0xc0: and
        low = numbers[0] & 31
        return UNIFORM if low == 0 else ALIGNED if low == 31 else VARYING
    if opcode == "ISETP" and len(numbers) == 1:
        first_of_warp = numbers[0] % 32 == 0 and bool({"LT", "GE"} & set(modifiers))
        last_of_warp = numbers[0] % 32 == 31 and bool({"GT", "LE"} & set(modifiers))
        return UNIFORM if first_of_warp or last_of_warp else VARYING
    return VARYING
