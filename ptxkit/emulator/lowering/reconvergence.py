"""Where the lanes of a warp that a branch separates come together again: its immediate post-dominator.

Lanes that have reached this block will not execute what lies between the branch and it any more. So when some of them are
there, and others of their warp stand at a barrier or collective in between, these wait for lanes that have passed them by.
A thread that ends on the way is no such lane: the end of a kernel, and blocks that only lead there, are not a place to meet.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxkit.emulator.simt.blocks import BasicBlock

RETURN = -1
"""The end of a function, as a place where its callers' lanes meet."""


def find_reconvergence(blocks: Sequence[BasicBlock], is_entry: bool, callees_converge: bool) -> None:
    """Set :attr:`BasicBlock.reconverges` for the blocks of one function.

    Args:
        callees_converge: some function that may be called has instructions that lanes execute together.
    """
    first = blocks[0].index
    n = len(blocks)
    converges = [b.converges or (callees_converge and b.terminator.calls) for b in blocks]
    if not any(converges):
        return
    leads_to_end = _leading_to_end(blocks, first) if is_entry else [False] * n
    end = n  # a node after all blocks
    targets: list[list[int]] = []
    for k, b in enumerate(blocks):
        found = {s - first for s in b.successors if first <= s < first + n}
        found = {end if leads_to_end[t] else t for t in found}
        if b.terminator.ends:
            found.add(end)
        targets.append([end] if leads_to_end[k] else sorted(found))
    after = _post_dominators(targets, end)
    for k, b in enumerate(blocks):
        splits = len(targets[k]) > 1 or b.terminator.splits or (b.gate is not None and _guarded(b))
        if not splits:
            continue
        others = after[k] & ~(1 << k)
        chain = [p for p in range(n + 1) if others >> p & 1]
        if not chain:
            continue  # no way leads to the end
        meet = max(chain, key=lambda p: after[p].bit_count())
        if meet == end and is_entry:
            continue
        if (_guarded(b) and converges[k]) or _between(targets, converges, targets[k], meet):
            b.reconverges = RETURN if meet == end else first + meet


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
    """For each block the set, as bits, of those that every way from it to the end passes."""
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
    """Whether lanes may have to execute something together on a way from ``start`` to ``meet``."""
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
