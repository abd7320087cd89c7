"""Basic blocks, loops, and the graph."""

from __future__ import annotations

import pytest

from ptxkit.inspect.blocks import dominators, dot, entries
from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.inspect.natural_loops import loops
from ptxkit.targets import Target


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_blocks_cover_the_code_once_and_all_are_reached(kernels, target):
    for function in kernels(target).values():
        flat = [i for b in function.blocks for i in b.instructions]
        assert flat == list(function.instructions)
        reached, open_ends = set(), entries(function)
        while open_ends:
            node = open_ends.pop()
            if node not in reached:
                reached.add(node)
                open_ends += function.blocks[node].successors
        assert reached == set(range(len(function.blocks))), function.name


@pytest.mark.parametrize("target", ["sm_75", "sm_90a", "sm_100a"])
def test_a_loop_in_a_loop(kernels, target):
    outer, inner = loops(kernels(target)["nested"])
    assert (outer.depth, inner.depth) == (1, 2)
    assert set(inner.blocks) < set(outer.blocks)
    assert outer.own_lines == (47, 52) and inner.own_lines == (51, 51)
    assert any(i.opcode == "BAR" for i in outer.instructions) and not any(
        i.opcode == "BAR" for i in inner.instructions
    )
    assert outer.stall_cycles > inner.stall_cycles > 0
    assert outer.source.line == 47


def test_straight_code_has_no_loop(kernels):
    assert loops(kernels("sm_90a")["hmma"]) == ()
    assert len(loops(kernels("sm_90a")["wide"])) == 1


def test_loops_of_a_called_function_are_found(kernels):
    assert any(loop.source.line == 68 for loop in loops(kernels("sm_90a")["calling"]))


def test_dominators_of_a_diamond_with_a_loop():
    graph = [(1, 2), (3,), (3,), (4, 0), (), (4,)]
    found = dominators(graph, [0])
    assert found[3] == {0, 3} and found[4] == {0, 3, 4} and found[5] is None


def test_the_graph_names_every_block(kernels):
    function = kernels("sm_90a")["nested"]
    text = dot(function, 'a "title"')
    assert text.startswith("digraph cfg {") and text.rstrip().endswith("}") and r"a \"title\"" in text
    for block in function.blocks:
        assert f"  b{block.index} [label=" in text
        assert all(f"b{block.index} -> b{s}" in text for s in block.successors)
    assert text.count('"') % 2 == 0


def function_of(*lines):
    instructions, labels = [], {}
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = 16 * len(instructions)
            continue
        predicate, _, text = line.rpartition("| ")
        name, _, operands = text.partition(" ")
        opcode, *modifiers = name.split(".")
        targets = tuple(w for w in operands.replace(",", " ").split() if w.startswith(".L"))
        address = 16 * len(instructions)
        instructions.append(
            SassInstruction(address, opcode, tuple(modifiers), operands, predicate, targets=targets)
        )
    return SassFunction("made", Target.parse("sm_90a"), tuple(instructions), labels)


def test_conditions_among_the_operands_fall_through():
    function = function_of("BRA.U UP0, .L1", "NOP", ".L1:", "EXIT")
    assert [b.successors for b in function.blocks] == [(1, 2), (2,), ()]
    function = function_of("BRA .L1", "NOP", ".L1:", "@P0| EXIT", "RET")
    assert [b.successors for b in function.blocks] == [(2,), (2,), (3,), ()]
