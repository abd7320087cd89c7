"""Finds the block where the lanes that a branch separates meet again: the immediate post-dominator of the branch.

Lanes that have reached this block will not execute the instructions between the branch and it any more. If other lanes of their
warp wait for them at a barrier or collective in between, they wait forever. Threads that exit need not be waited for, so that
the end of a kernel, and blocks that only lead to it, are not regarded as blocks where lanes meet.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxkit.emulator.simt.blocks import BasicBlock

RETURN = -1
"""Stands for the return from a function, where lanes of its caller meet again."""


def find_reconvergence(blocks: Sequence[BasicBlock], is_entry: bool, callees_converge: bool) -> None:
    """Set :attr:`BasicBlock.reconverges` for the blocks of one function.

    Args:
        callees_converge: a function that may be called contains barriers or collectives.
    """
    first = blocks[0].index
    n = len(blocks)
    converges = [b.converges or (callees_converge and b.terminator.calls) for b in blocks]
    if not any(converges):
        return
    end = n  # a node after all blocks
    targets = _targets(blocks, is_entry)
    after = _post_dominators(targets, end)
    for k, b in enumerate(blocks):
        splits = len(targets[k]) > 1 or b.terminator.splits or (b.gate is not None and _guarded(b))
        if not splits:
            continue
        others = after[k] & ~(1 << k)
        chain = [p for p in range(n + 1) if others >> p & 1]
        if not chain:
            continue  # no path leads to the end
        meet = max(chain, key=lambda p: after[p].bit_count())
        if meet == end and is_entry:
            continue
        if (_guarded(b) and converges[k]) or _between(targets, converges, targets[k], meet):
            b.reconverges = RETURN if meet == end else first + meet


def divergent_regions(blocks: Sequence[BasicBlock], is_entry: bool) -> list[int]:
    """For each block that can separate lanes, the bit set of the blocks (from 0) that they may execute before they meet again.

    0 for blocks that do not separate lanes, and for those of which all but one way leads to the end only.
    """
    end = len(blocks)
    targets = _targets(blocks, is_entry)
    after = _post_dominators(targets, end)
    regions = []
    for k, b in enumerate(blocks):
        region = 0
        if len(targets[k]) > 1 or b.terminator.splits:
            others = after[k] & ~(1 << k)
            chain = [p for p in range(end + 1) if others >> p & 1]
            meet = max(chain, key=lambda p: after[p].bit_count()) if chain else end
            ways = [_reached(targets, t, {meet, end}) for t in targets[k]]
            together = sum(1 for way in ways if way)
            if meet != end or together > 1 or len(ways) == 1:
                for way in ways:
                    region |= way
        regions.append(region)
    return regions


def decided_blocks(blocks: Sequence[BasicBlock]) -> list[int | None]:
    """For each block that ends with a choice, the bit set of the blocks (from 0) that one may execute before all ways meet.

    0 for a block without a choice; None where the ways meet at the end of the function only, or never.
    """
    end = len(blocks)
    targets = _targets(blocks, is_entry=False)
    after = _post_dominators(targets, end)
    found: list[int | None] = []
    for k in range(end):
        if len(targets[k]) < 2:
            found.append(0)
            continue
        chain = [p for p in range(end) if after[k] >> p & 1 and p != k]
        region = 0 if chain else None
        if region is not None:
            meet = max(chain, key=lambda p: after[p].bit_count())
            for t in targets[k]:
                region |= _reached(targets, t, {meet, end})
        found.append(region)
    return found


def _reached(targets: Sequence[Sequence[int]], start: int, stops: set[int]) -> int:
    """The bit set of the blocks on the ways from ``start`` on, up to ``stops``."""
    todo, seen = [start], 0
    while todo:
        k = todo.pop()
        if k in stops or seen >> k & 1:
            continue
        seen |= 1 << k
        todo += targets[k]
    return seen


def _targets(blocks: Sequence[BasicBlock], is_entry: bool) -> list[list[int]]:
    """The successors of each block, from 0; the number of blocks stands for the end, and for blocks that only lead to it."""
    first, end = blocks[0].index, len(blocks)
    leads_to_end = _leading_to_end(blocks, first) if is_entry else [False] * end
    targets: list[list[int]] = []
    for k, b in enumerate(blocks):
        found = {s - first for s in b.successors if first <= s < first + end}
        found = {end if leads_to_end[t] else t for t in found}
        if b.terminator.ends:
            found.add(end)
        targets.append([end] if leads_to_end[k] else sorted(found))
    return targets


def _guarded(b: BasicBlock) -> bool:
    return bool(b.instructions) and b.instructions[0][1].predicate is not None


def _leading_to_end(blocks: Sequence[BasicBlock], first: int) -> list[bool]:
    """Blocks that do nothing but end the thread."""
    found = [False] * len(blocks)
    for k in range(len(blocks) - 1, -1, -1):
        b = blocks[k]
        t = b.terminator
        if t.predicate is not None or len(b.instructions) > (t.where is not None):
            continue
        found[k] = t.ends or (len(b.successors) == 1 and first <= b.successors[0] and found[b.successors[0] - first])
    return found


def _post_dominators(targets: Sequence[Sequence[int]], end: int) -> list[int]:
    """For each block, the bit set of the blocks that every path from it to the end contains."""
    everything = (1 << (end + 1)) - 1
    after = [everything] * end + [1 << end]
    changed = True
    while changed:
        changed = False
        for k in range(end - 1, -1, -1):
            common = everything
            for t in targets[k]:
                common &= after[t]
            now = common | 1 << k
            if now != after[k]:
                after[k], changed = now, True
    return [a if a != everything else 0 for a in after]


def _between(targets: Sequence[Sequence[int]], converges: Sequence[bool], start: Sequence[int], meet: int) -> bool:
    """Whether a path from ``start`` to ``meet`` contains a barrier or collective."""
    todo, seen = list(start), {meet, len(converges)}
    while todo:
        k = todo.pop()
        if k in seen:
            continue
        seen.add(k)
        if converges[k]:
            return True
        todo += targets[k]
    return False
