"""The graph of a kernel's basic blocks: where control enters, dominators, and Graphviz text."""

from __future__ import annotations

from collections.abc import Sequence

from ptxkit.inspect.model import SassFunction, is_conditional


def entries(function: SassFunction) -> list[int]:
    """Indices of the blocks where control enters: the start of the kernel and of each function it calls."""
    addresses = {0, *function.callees}
    return [block.index for block in function.blocks if block.address in addresses]


def dominators(graph: Sequence[Sequence[int]], roots: Sequence[int]) -> list[set[int] | None]:
    """For every node, the nodes on every path to it from a root, itself included; None for nodes that no root reaches.

    Args:
        graph: successors of each node.
        roots: where paths begin.
    """
    predecessors: list[list[int]] = [[] for _ in graph]
    for node, following in enumerate(graph):
        for successor in following:
            predecessors[successor].append(node)
    order = _reverse_postorder(graph, roots)
    found: list[set[int] | None] = [None] * len(graph)
    changed = True
    while changed:
        changed = False
        for node in order:
            incoming = [d for p in predecessors[node] if (d := found[p]) is not None]
            before = set.intersection(*incoming) if incoming and node not in roots else set()
            now = before | {node}
            if now != found[node]:
                found[node], changed = now, True
    return found


def _reverse_postorder(graph: Sequence[Sequence[int]], roots: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    order: list[int] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(graph[root]))]
        while stack:
            node, rest = stack[-1]
            successor = next((s for s in rest if s not in seen), None)
            if successor is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(successor)
                stack.append((successor, iter(graph[successor])))
    return order[::-1]


def dot(function: SassFunction, title: str = "") -> str:
    """The control-flow graph in Graphviz's language: one node per block, with addresses, stall cycles and source lines."""
    heading = f"{title or function.name}  {function.target}"
    out = [
        "digraph cfg {",
        f'  label="{_escaped(heading)}"; labelloc=t; fontname="monospace";',
        '  node [shape=box, fontname="monospace", fontsize=10]; edge [fontname="monospace", fontsize=9];',
    ]
    for block in function.blocks:
        lines = sorted({i.source.line for i in block.instructions if i.source})
        where = f"lines {lines[0]}-{lines[-1]}" if len(lines) > 1 else f"line {lines[0]}" if lines else "no lines"
        head = f"{block.label or hex(block.address)}   {where}   {block.stall_cycles} stall cycles"
        text = [head, *(f"{i.address:04x}  {i}" for i in block.instructions)]
        out.append(f'  b{block.index} [label="' + "".join(f"{_escaped(t)}\\l" for t in text) + '"];')
        last = block.instructions[-1]
        for successor in block.successors:
            straight_on = function.blocks[successor].address == last.address + 16
            style = "" if straight_on else ' [label="taken"]' if is_conditional(last) else ""
            out.append(f"  b{block.index} -> b{successor}{style};")
    return "\n".join([*out, "}"]) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
