"""Loops of SASS: the natural loops of the control-flow graph and their bodies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ptxkit.inspect.blocks import dominators, entries
from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.isa.model import Loc


@dataclass(frozen=True)
class Loop:
    """A natural loop: a header, and all blocks that can reach it again without leaving the loop.

    Attributes:
        header: index of the block at which control enters it.
        blocks: indices of its blocks, in order, those of inner loops included.
        depth: 1 for an outermost loop.
        instructions: of all its blocks, in order of address.
        stall_cycles: the sum of stall cycles over its blocks: the minimum time of one iteration that executes every block once.
        source: source position of the branch that closes the loop.
    """

    header: int
    blocks: tuple[int, ...]
    depth: int
    instructions: tuple[SassInstruction, ...]
    stall_cycles: int
    source: Loc | None

    @property
    def address(self) -> int:
        """Address of the first instruction."""
        return self.instructions[0].address

    @property
    def own_lines(self) -> tuple[int, int] | None:
        """First and last source line of the file that the loop is in, or None."""
        file = self.source.file if self.source else None
        lines = [i.source.line for i in self.instructions if i.source and i.source.file == file]
        return (min(lines), max(lines)) if lines else None


def loops(function: SassFunction) -> tuple[Loop, ...]:
    """The natural loops of a function, by the address of their header; loops that share a header count as one.

    A back edge is an edge to a block that dominates its origin. Jumps into the middle of a cycle, which ptxas does not emit for
    structured code, make no loop here.
    """
    graph = [block.successors for block in function.blocks]
    predecessors: list[list[int]] = [[] for _ in graph]
    for node, following in enumerate(graph):
        for successor in following:
            predecessors[successor].append(node)
    dominated_by = dominators(graph, entries(function))
    latches: dict[int, list[int]] = {}
    for node, following in enumerate(graph):
        for successor in following:
            dominating = dominated_by[node]
            if dominating is not None and successor in dominating:
                latches.setdefault(successor, []).append(node)
    bodies = {header: _body(header, ends, predecessors) for header, ends in latches.items()}
    made = []
    for header, body in sorted(bodies.items()):
        depth = sum(header in other for other in bodies.values())
        chosen = tuple(sorted(body))
        instructions = tuple(i for index in chosen for i in function.blocks[index].instructions)
        cycles = sum(function.blocks[index].stall_cycles for index in chosen)
        made.append(Loop(header, chosen, depth, instructions, cycles, _place(function, header, latches[header])))
    return tuple(made)


def depth_of(function: SassFunction) -> dict[int, int]:
    """Address of an instruction in a loop -> how many loops it is in."""
    found: Counter[int] = Counter()
    for loop in loops(function):
        found.update(i.address for i in loop.instructions)
    return dict(found)


def _body(header: int, ends: list[int], predecessors: list[list[int]]) -> set[int]:
    body, open_ends = {header}, list(ends)
    while open_ends:
        node = open_ends.pop()
        if node not in body:
            body.add(node)
            open_ends += predecessors[node]
    return body


def _place(function: SassFunction, header: int, ends: list[int]) -> Loc | None:
    closing = function.blocks[ends[-1]].instructions[-1].source
    return closing or function.blocks[header].instructions[0].source
