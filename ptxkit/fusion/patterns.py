"""Exact matching of a group of operations with the formula of a kernel.

A formula is a tree of :class:`Op` and :class:`In`. It matches a group if the group has exactly its operations with its
attributes, reads exactly its inputs, each contiguous and different from the others, and writes exactly its results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import Graph, Operation
from ptxkit.fusion.kinds import DEFAULTS
from ptxkit.fusion.layout import View, row_major

COMMUTATIVE = ("add", "multiply")
CLOSE = 1e-6  # relative difference of constants that count as equal: a rounding to f32


@dataclass(frozen=True)
class In:
    """An input of a formula."""

    name: str


@dataclass(frozen=True)
class Swapped:
    """A matrix of which the last two axes are exchanged, without a copy."""

    of: Op | In


@dataclass(frozen=True)
class Result:
    """A result of an operation that has several.

    Attributes:
        of: the operation. index: of the result.
        column: whether it is seen with a further axis of one element, to be broadcast along rows.
    """

    of: Op
    index: int
    column: bool = False


@dataclass(frozen=True)
class Param:
    """An attribute that may have any value, which becomes an option of the kernel."""

    name: str


Node: TypeAlias = "Op | In | Swapped | Result"
HINTS = ("dtype", "indices", "experts", "approximate")  # attributes that do not change which kernel computes an operation


@dataclass(frozen=True, eq=False)
class Op:
    """An operation of a formula.

    Attributes:
        kind: of the operation. inputs: its operands.
        attributes: numbers that it must have, or :class:`Param`; those that are missing must have their defaults.
    """

    kind: str
    inputs: tuple[Node, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def op(kind: str, *inputs: Node, **attributes: Any) -> Op:
    """An operation of a formula."""
    return Op(kind, inputs, attributes)


@dataclass(frozen=True)
class Bound:
    """A tensor of a graph that stands for an input or a result of a formula."""

    view: View
    shape: tuple[int, ...]
    dtype: str

    @property
    def matrix(self) -> tuple[int, int]:
        """Number of rows, and their length."""
        return math.prod(self.shape[:-1]), self.shape[-1] if self.shape else 1

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Match:
    """A formula and a group that match.

    Attributes:
        inputs: by the names in the formula. results: in the order of the roots of the formula.
        params: attributes by the names in the formula. inside: types of the results that stay in the kernel.
    """

    inputs: Mapping[str, Bound]
    results: tuple[Bound, ...]
    params: Mapping[str, Any]
    inside: frozenset[str]


@dataclass(frozen=True)
class _State:
    inputs: Mapping[str, Bound]
    operations: Mapping[int, Operation]  # id of a node -> what it matches
    params: Mapping[str, Any]


def matches(group: Group, roots: Sequence[Op]) -> Iterator[Match]:
    """Every way in which a group is a formula with these results; usually one or none."""
    graph, written = group.graph, group.writes()
    if any(size != graph.tensors[name].bytes for name, size in written.items()):
        return
    writers = [operation for operation in group.operations if set(operation.outputs) & set(written)]
    if len(writers) != len(roots) or sum(len(operation.outputs) for operation in writers) != len(written):
        return
    for order in itertools.permutations(writers):
        states = [_State({}, {}, {})]
        for root, writer in zip(roots, order, strict=True):
            states = [after for state in states for after in _operation(group, root, writer, state)]
        for state in states:
            if _exactly(group, state):
                results = [_bound(group, name) for operation in order for name in operation.outputs]
                inside = {graph.tensors[name].dtype for name in group.results - set(written)}
                found = tuple(bound for bound in results if bound is not None)
                yield Match(state.inputs, found, state.params, frozenset(inside))


def candidates(graph: Graph, roots: Sequence[Op]) -> Iterator[Group]:
    """The groups of a graph that have the operations of a formula; :func:`matches` says whether they are exactly it."""
    anywhere = Group.of(graph, graph.launches)
    states = [_State({}, {}, {})]
    for root in roots:
        writers = [operation for operation in graph.launches if operation.kind == root.kind]
        states = [
            after
            for before in states
            for writer in writers
            for after in _operation(anywhere, root, writer, before, inputs_anywhere=True)
        ]
    found = {frozenset(operation.name for operation in state.operations.values()): state for state in states}
    for state in found.values():
        yield Group.of(graph, state.operations.values())


def _exactly(group: Group, state: _State) -> bool:
    """Whether the formula has all operations of the group, each once, and inputs that are different arrays."""
    names = [operation.name for operation in state.operations.values()]
    views = [(bound.view.memory, bound.view.offset, bound.view.order) for bound in state.inputs.values()]
    return sorted(names) == sorted(group.names) and len(set(views)) == len(views)


def _bound(group: Group, name: str) -> Bound | None:
    view, tensor = group.graph.layouts[name], group.graph.tensors[name]
    return None if view is None else Bound(view, tensor.shape, tensor.dtype)


def _operand(
    group: Group, node: Node, name: str, state: _State, *, inputs_anywhere: bool = False
) -> Iterator[_State]:
    """The states in which a tensor is an operand of a formula.

    Args:
        inputs_anywhere: whether results of the group may be inputs of the formula.
    """
    graph = group.graph
    bound = _bound(group, name)
    if bound is None:
        return
    if isinstance(node, Swapped):
        rank = len(bound.shape)
        if rank < 2:
            return
        axes = [*range(rank - 2), rank - 1, rank - 2]
        bound = Bound(bound.view.permuted(axes), tuple(bound.shape[axis] for axis in axes), bound.dtype)
        node = node.of
    memory = graph.memory(name)
    if isinstance(node, In):
        if memory in group.results and not inputs_anywhere:
            return
        known = state.inputs.get(node.name)
        if known is None or (known.view, known.shape) == (bound.view, bound.shape):
            yield replace(state, inputs={**state.inputs, node.name: bound})
        return
    writer = graph.producers.get(memory)
    index, column = (node.index, node.column) if isinstance(node, Result) else (0, False)
    if writer is None or writer.name not in group.names or writer.outputs[index : index + 1] != (memory,):
        return
    shape = (*graph.shape(memory), 1) if column else graph.shape(memory)
    if bound.view.order != View.whole(memory, shape).order or bound.view.axes[-1:] != row_major(shape)[-1:]:
        return  # another order of the elements, or other rows
    if column and bound.shape != shape:
        return
    node = node.of if isinstance(node, Result) else node
    yield from _operation(group, node, writer, state, inputs_anywhere=inputs_anywhere)


def _operation(
    group: Group, node: Op, operation: Operation, state: _State, *, inputs_anywhere: bool = False
) -> Iterator[_State]:
    """The states in which an operation is one of a formula."""
    if (known := state.operations.get(id(node))) is not None:
        if known is operation:
            yield state
        return
    if operation.kind != node.kind or len(operation.inputs) != len(node.inputs):
        return
    params = _params(node, operation, state.params)
    if params is None:
        return
    start = replace(state, operations={**state.operations, id(node): operation}, params=params)
    orders = [operation.inputs]
    if operation.kind in COMMUTATIVE and len(operation.inputs) == 2:
        orders.append(operation.inputs[::-1])
    for names in orders:
        states = [start]
        for child, name in zip(node.inputs, names, strict=True):
            states = [
                after
                for before in states
                for after in _operand(group, child, name, before, inputs_anywhere=inputs_anywhere)
            ]
        yield from states


def _params(node: Op, operation: Operation, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The parameters with those of an operation; None if its attributes are not those of the formula."""
    has = {**DEFAULTS.get(node.kind, {}), **{k: v for k, v in operation.attributes.items() if k not in HINTS}}
    wanted = {**DEFAULTS.get(node.kind, {}), **node.attributes}
    found = dict(known)
    if has.keys() != wanted.keys():
        return None
    for name, value in wanted.items():
        if isinstance(value, Param):
            if found.setdefault(value.name, has[name]) != has[name]:
                return None
        elif isinstance(value, float) and isinstance(has[name], (int, float)):
            if not math.isclose(value, has[name], rel_tol=CLOSE):
                return None
        elif value != has[name]:
            return None
    return found
