"""Which groups of operations are best merged.

Pairs of groups of which one reads the other, or which read the same operand, are merged as long as a pair can share a launch
and the merge is predicted to save time, the pair that saves most first. Two groups are not merged if a third one lies
between them, because it would need a result of the launch that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ptxkit.fusion.cost import Group, cost
from ptxkit.fusion.graph import Graph, Operation
from ptxkit.fusion.machine import Machine
from ptxkit.fusion.rules import HEAD, Judgement, edges, judge, judge_siblings, worst


@dataclass(frozen=True)
class Merge:
    """Two groups that may be merged.

    Attributes:
        first, second: the groups; the second one reads the first one, or both read the same operand.
        judgement: whether they can share a launch.
        saved_us: predicted time that a merge saves.
    """

    first: Group
    second: Group
    judgement: Judgement
    saved_us: float


def pairs(graph: Graph, machine: Machine) -> list[Merge]:
    """Every pair of neighbouring operations, and of products with the same first operand, judged."""
    singles = [Group.of(graph, [operation]) for operation in graph.launches]
    found = [merge for first, second in _neighbours(singles) if (merge := considered(first, second, machine))]
    return [_unless_apart(singles, merge) for merge in found]


def _unless_apart(singles: list[Group], merge: Merge) -> Merge:
    """The merge, refused where another operation waits for the first one and is waited for by the second one."""
    if not _between(singles, merge.first, merge.second):
        return merge
    reason = f"other operations lie between: they need {merge.first.name}, and {merge.second.name} needs their results"
    return replace(merge, judgement=Judgement("DO NOT FUSE", reason, "high"))


def plan(
    graph: Graph, machine: Machine, accepted: Callable[[Group, Judgement], bool] = lambda group, judgement: True
) -> list[tuple[Group, Judgement | None]]:
    """Groups that cover the graph, in its order, with the judgement of each that has several operations.

    Args:
        accepted: whether a group that is possible and saves time should be one launch.
    """
    groups: dict[frozenset[str], Group] = {}
    judged: dict[frozenset[str], Judgement | None] = {}
    covered: set[str] = set()
    for pattern in attention_patterns(graph):
        if not accepted(pattern, _attention_judgement(pattern)) or covered & pattern.names:
            continue
        groups[pattern.names], judged[pattern.names] = pattern, _attention_judgement(pattern)
        covered |= pattern.names
    for operation in graph.launches:
        if operation.name not in covered:
            group = Group.of(graph, [operation])
            groups[group.names], judged[group.names] = group, None
    merges: dict[tuple[frozenset[str], frozenset[str]], Merge | None] = {}
    while True:
        current = list(groups.values())
        for first, second in _neighbours(current):
            key = (first.names, second.names)
            if key not in merges:
                merges[key] = considered(first, second, machine)
        possible = [
            merge
            for key, merge in merges.items()
            if merge and key[0] in groups and key[1] in groups and merge.judgement.possible and merge.saved_us > 0
        ]
        # what can always be merged goes first: conditions often concern what a group contains
        possible.sort(key=lambda merge: (merge.judgement.verdict != "FUSE", -merge.saved_us))
        for chosen in possible:
            merged = chosen.first | chosen.second
            before = [j for g in (chosen.first, chosen.second) if (j := judged[g.names]) is not None]
            judgement = worst([*before, chosen.judgement])
            if accepted(merged, judgement) and not _between(current, chosen.first, chosen.second):
                break
        else:
            break
        for group in (chosen.first, chosen.second):
            del groups[group.names], judged[group.names]
        groups[merged.names], judged[merged.names] = merged, judgement
    ordered = sorted(groups.values(), key=lambda g: graph.order[g.operations[0].name])
    return [(group, judged[group.names]) for group in ordered]


def considered(first: Group, second: Group, machine: Machine) -> Merge | None:
    """The merge of two neighbours; None where they are none."""
    if any(edges(first, second)):
        judgement: Judgement | None = judge(first, second, machine)
    else:
        judgement = judge_siblings(first, second)
    if judgement is None:
        return None
    apart = cost(first, machine).time_us + cost(second, machine).time_us
    return Merge(first, second, judgement, apart - cost(first | second, machine).time_us)


def _neighbours(groups: list[Group]) -> Iterator[tuple[Group, Group]]:
    """Pairs of which the second group reads the first, then pairs that read the same first operand of a product."""
    home = {name: group for group in groups for name in group.results}
    seen = set[tuple[frozenset[str], frozenset[str]]]()
    readers: dict[str, list[Group]] = {}
    for second in groups:
        for name in second.reads():
            first = home.get(name)
            if first is not None and first is not second and (first.names, second.names) not in seen:
                seen.add((first.names, second.names))
                yield first, second
        for operand in dict.fromkeys(second.graph.memory(operation.inputs[0]) for operation in second.products):
            readers.setdefault(operand, []).append(second)
    for group in readers.values():
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                if (first.names, second.names) not in seen and (second.names, first.names) not in seen:
                    seen.add((first.names, second.names))
                    yield first, second


def _between(groups: list[Group], first: Group, second: Group) -> bool:
    """Whether a path from one of the two groups to the other leads through a third one."""
    home = {name: group for group in groups for name in group.results}
    readers: dict[frozenset[str], dict[frozenset[str], Group]] = {group.names: {} for group in groups}
    for group in groups:
        for name in group.reads():
            if (source := home.get(name)) is not None and source is not group:
                readers[source.names][group.names] = group
    for earlier, later in _overwriting(groups):
        readers[earlier.names][later.names] = later
    return _detour(readers, first, second) or _detour(readers, second, first)


def _overwriting(groups: list[Group]) -> Iterator[tuple[Group, Group]]:
    """(earlier, later) groups of which one reads memory that the other one writes in place."""
    if not groups or not groups[0].graph.overwritten:
        return
    graph = groups[0].graph
    home = {operation.name: group for group in groups for operation in group.operations}
    for writer, tensors in graph.overwritten.items():
        for tensor in tensors:
            for reader in graph.readers[tensor]:
                pair = [home[name] for name in sorted((reader.name, writer), key=graph.order.__getitem__) if name in home]
                if len(pair) == 2 and pair[0] is not pair[1]:
                    yield pair[0], pair[1]


def _detour(readers: dict[frozenset[str], dict[frozenset[str], Group]], start: Group, end: Group) -> bool:
    waiting = [names for names in readers[start.names] if names != end.names]
    seen = set(waiting)
    while waiting:
        names = waiting.pop()
        for reader in readers[names]:
            if reader == end.names:
                return True
            if reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return False


def attention_patterns(graph: Graph) -> list[Group]:
    """Products whose softmax is multiplied again: scores, element-wise operations, softmax, product with the values.

    All of the same elements in the same order: no view between them transposes or divides rows.
    """
    found = []
    for operation in graph.launches:
        if operation.kind != "softmax":
            continue
        above, below = _scores(graph, operation), _values(graph, operation)
        if above is None or below is None:
            continue
        scores = above[-1]
        if graph.shape(scores.inputs[0])[-1] <= HEAD:
            found.append(Group.of(graph, [*above, operation, *below]))
    return found


def _scores(graph: Graph, softmax: Operation) -> list[Operation] | None:
    """From a softmax up to the product that computes the scores, which is the last one; None where there is none."""
    chain, current, name = list[Operation](), softmax, softmax.inputs[0]
    while True:
        memory = graph.memory(name)
        writer = graph.producers.get(memory)
        if writer is None or not graph.whole_rows(name) or not _only_reader(graph, memory, current):
            return None
        chain.append(writer)
        if writer.kind == "matmul":
            return chain
        if writer.rules.family != "elementwise":
            return None
        computed = [n for n in dict.fromkeys(writer.inputs) if graph.shape(n) == graph.shape(memory)]
        computed = [n for n in computed if graph.memory(n) in graph.producers]
        if len(computed) != 1:
            return None  # masks and biases are inputs
        current, name = writer, computed[0]


def _values(graph: Graph, softmax: Operation) -> list[Operation] | None:
    """From a softmax down to the product of the probabilities and the values, which is the last one; None without one."""
    chain, current = list[Operation](), softmax
    while True:
        memory = current.outputs[0]
        readers = graph.readers[memory]
        if len(readers) != 1 or not _only_reader(graph, memory, readers[0]):
            return None
        following = readers[0]
        names = [name for name in following.inputs if graph.memory(name) == memory]
        if not all(graph.whole_rows(name) for name in names):
            return None
        chain.append(following)
        if following.kind == "matmul":
            return chain if names == [following.inputs[0]] else None
        if following.rules.family != "elementwise" or graph.shape(following.outputs[0]) != graph.shape(names[0]):
            return None
        current = following


def _only_reader(graph: Graph, memory: str, reader: Operation) -> bool:
    """Whether nothing else needs a result."""
    return graph.readers[memory] == [reader] and not any(graph.memory(name) == memory for name in graph.outputs)


def _attention_judgement(group: Group) -> Judgement:
    return Judgement(
        "FUSE",
        "softmax is computed tile by tile while the second product adds up, so that no score goes through device memory",
        "high",
    )
