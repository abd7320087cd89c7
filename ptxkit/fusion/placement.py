"""Whether the operations of a launch need the same elements at the same place: views, transposed ones in particular.

Every operation of a launch gets coordinates: labels for the axes of its result, which are carried along the tensors that
operations hand over. A view changes which coordinate selects which digit of the memory (:mod:`.layout`). Two operations fit
into a launch if a CTA that has some of the coordinates needs the same elements of a tensor in both: element by element, or,
where rows are reduced, row by row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import Operation
from ptxkit.fusion.kinds import permutation
from ptxkit.fusion.layout import View, row_major

Digit = tuple[int, int, int]  # label, extent, stride within the label
Axis = tuple[tuple[Digit, ...], int]  # digits, the outermost first, and the first element
Place = tuple[int, int, int, int]  # stride in memory, extent, label, stride within the label


UNUSED = -1
"""The label of a digit of which operations need one value only, as of a view that has every second element."""


class _Irregular(Exception):
    """Elements lie in no regular order, so that coordinates cannot be carried further."""


@dataclass(frozen=True)
class _Map:
    """Which element of a memory belongs to which coordinates.

    Attributes:
        offset: of the first element. places: digits of the memory and of the coordinates that select them.
    """

    offset: int
    places: tuple[Place, ...]

    @classmethod
    def of(cls, offset: int, places: Sequence[Place]) -> _Map:
        """The map with neighbouring places joined, those with the largest stride in memory first."""
        found: list[Place] = []
        for stride, extent, label, within in sorted(places, key=lambda place: -place[0]):
            if found and found[-1][2] == label and found[-1][0] == stride * extent and found[-1][3] == within * extent:
                found[-1] = (stride, extent * found[-1][1], label, within)
            else:
                found.append((stride, extent, label, within))
        return cls(offset, tuple(found))

    def held(self, rows: Sequence[Digit]) -> tuple[Place, ...]:
        """What decides which elements a CTA needs: all places, or with coordinates that select rows those that they select,
        because a CTA holds whole what lies within rows."""
        if not rows:
            return self.places
        found = set[Place]()
        for stride, extent, label, within in self.places:
            for label_2, extent_2, stride_2 in rows:
                low, high = max(within, stride_2), min(within * extent, stride_2 * extent_2)
                if label == label_2 and low < high:
                    found.add((stride * (low // within), high // low, label, low))
        return tuple(sorted(found))

    def selected(self, stride: int, extent: int) -> tuple[Digit, ...]:
        """The digits of the coordinates that select a digit of the memory. Raises _Irregular."""
        found: list[Digit] = []
        while extent > 1:
            for step, count, label, within in self.places:
                if step <= stride < step * count and stride % step == 0 and (step * count) % stride == 0:
                    taken = math.gcd(extent, step * count // stride)
                    if taken == 1:
                        raise _Irregular
                    found.insert(0, (label, taken, within * (stride // step)))
                    stride, extent = stride * taken, extent // taken
                    break
            else:
                raise _Irregular
        return tuple(found)

    def axes(self, shape: Sequence[int]) -> list[Axis]:
        """The coordinates of the axes of the memory's own tensor."""
        found: list[Axis] = []
        for extent, digits in zip(shape, row_major(shape), strict=True):
            stride = digits[0][1] if digits else 1
            inside: list[Digit] = []
            reached = stride
            for step, count, label, within in reversed(self.places):
                low, high = max(step, stride), min(step * count, stride * extent)
                if digits and low < high:
                    if low % step or high % low or low % reached:
                        raise _Irregular
                    if low > reached:
                        inside.insert(0, (UNUSED, low // reached, 1))
                    inside.insert(0, (label, high // low, within * (low // step)))
                    reached = high
            found.append((tuple(inside), self.offset // stride % extent if digits else 0))
        return found


def conflict(group: Group) -> str:
    """Why operations of a group do not fit into a launch: the reason as a sentence; "" if they do."""
    return _Placement(group).conflict()


class _Placement:
    def __init__(self, group: Group) -> None:
        self.group, self.graph = group, group.graph
        self._labels = itertools.count()
        self.coordinates: dict[str, list[Axis]] = {}  # operation -> those of the axes of its first result
        self.inputs: dict[tuple[str, int], list[Axis]] = {}  # operation, index of an input -> those of its axes
        self.rows: list[tuple[Operation, Digit]] = []  # coordinates that select a row that an operation reduces
        self.within: list[tuple[Operation, Digit]] = []  # coordinates within such a row
        self.component: dict[str, int] = {}  # operation -> number of those that hand coordinates to each other
        self.irregular = ""

    def conflict(self) -> str:
        waiting: list[Operation] = []
        started = 0
        for operation in reversed(self.group.operations):
            if operation.name in self.coordinates:
                continue
            self._place(operation, self._fresh(self.graph.shape(operation.outputs[0])))
            waiting.append(operation)
            started += 1
            while waiting:
                reached = waiting.pop()
                self.component[reached.name] = started
                waiting += self._neighbours(reached)
        return self.irregular or self._rows_apart() or self._elements_apart()

    def _fresh(self, shape: Sequence[int]) -> list[Axis]:
        return [(((next(self._labels), extent, 1),) if extent > 1 else (), 0) for extent in shape]

    def _place(self, operation: Operation, axes: list[Axis]) -> None:
        """Give an operation the coordinates of its result, and its inputs those that follow."""
        self.coordinates[operation.name] = axes
        for i, found in self._inputs_of(operation, axes):
            self.inputs[operation.name, i] = found

    def _inputs_of(self, operation: Operation, axes: list[Axis]) -> Iterator[tuple[int, list[Axis]]]:
        graph, family = self.graph, operation.rules.family
        shapes = [graph.shape(name) for name in operation.inputs]
        if family == "elementwise":
            for i, shape in enumerate(shapes):
                yield i, _broadcast(axes, shape)
        elif family == "row":
            inner = self._row_axes(operation, axes, shapes[0])
            yield 0, inner
            for i, shape in enumerate(shapes[1:], 1):
                yield i, _broadcast(inner, shape)
        elif operation.kind == "copy":
            yield 0, axes
        elif operation.kind == "transpose":
            order = permutation(len(axes), operation.attributes)
            yield 0, [axes[order.index(i)] for i in range(len(axes))]

    def _row_axes(self, operation: Operation, axes: list[Axis], shape: Sequence[int]) -> list[Axis]:
        """The coordinates of the first input of a row operation; notes which ones lie within a row."""
        if operation.kind == "column_sum":
            inner = [*self._fresh(shape[:-1]), axes[-1]]
            across, along = inner[-1:], inner[:-1]
        else:
            last = axes[-1]
            whole = operation.kind != "top_k" and math.prod(extent for _, extent, _ in last[0]) == shape[-1]
            inner = [*axes[:-1], last if whole else self._fresh(shape[-1:])[0]]
            across, along = inner[:-1], inner[-1:]
        self.rows += [(operation, digit) for digits, _ in across for digit in digits if digit[0] != UNUSED]
        self.within += [(operation, digit) for digits, _ in along for digit in digits if digit[0] != UNUSED]
        return inner

    def _neighbours(self, operation: Operation) -> Iterator[Operation]:
        """The operations that get their coordinates from one that has them: those that write its inputs or read its result."""
        graph, mine = self.graph, self.group.names
        for i, name in enumerate(operation.inputs):
            writer = graph.producers.get(graph.memory(name))
            if writer is None or writer.name not in mine or writer.name in self.coordinates:
                continue
            if graph.memory(name) == writer.outputs[0] and (found := self._read(operation, i)) is not None:
                try:
                    axes = found.axes(graph.shape(writer.outputs[0]))
                except _Irregular:
                    self._note(operation, graph.memory(name))
                    continue
                self._place(writer, axes)
                yield writer
        memory = operation.outputs[0]
        for reader in graph.readers[memory]:
            if reader.name in mine and reader.name not in self.coordinates:
                for i, name in enumerate(reader.inputs):
                    if graph.memory(name) == memory and self._place_reader(operation, reader, i):
                        yield reader
                        break

    def _place_reader(self, writer: Operation, reader: Operation, i: int) -> bool:
        """Give a reader its coordinates from its input ``i``, where its family permits that."""
        graph, name = self.graph, reader.inputs[i]
        family, layout = reader.rules.family, graph.layouts[name]
        if family not in ("elementwise", "row") and reader.kind not in ("copy", "transpose"):
            return False
        if family == "row" and i:
            return False
        written = self._written(writer)
        if layout is None or written is None:
            self._note(reader, graph.memory(name))
            return False
        try:
            axes = [
                (tuple(digit for extent, stride in axis for digit in self._selecting(written, extent, stride)), 0)
                for axis in layout.axes
            ]
        except _Irregular:
            self._note(reader, graph.memory(name))
            return False
        result = self._fresh(graph.shape(reader.outputs[0]))
        if reader.kind == "transpose":
            result = [axes[axis] for axis in permutation(len(axes), reader.attributes)]
        elif reader.kind == "column_sum":
            result = axes[-1:]
        elif family == "row":
            kept = graph.shape(reader.outputs[0])[-1] != 1
            own = result[-1] if reader.kind == "top_k" else ((), 0)
            result = axes if kept and reader.kind != "top_k" else [*axes[:-1], own]
        else:  # element by element: the axes along which this input is broadcast are new ones
            for k in range(1, len(axes) + 1):
                if axes[-k][0] or len(result[-k][0]) == 0:
                    result[-k] = axes[-k]
        self._place(reader, result)
        return True

    def _selecting(self, written: _Map, extent: int, stride: int) -> tuple[Digit, ...]:
        """The coordinates that select a digit of a result; new ones where elements are repeated. Raises _Irregular."""
        return written.selected(stride, extent) if stride else ((next(self._labels), extent, 1),)

    def _note(self, reader: Operation, memory: str) -> None:
        self.irregular = self.irregular or (
            f"{reader.name} reads another shape of {memory}, in which its elements lie in no regular order"
        )

    def _written(self, operation: Operation) -> _Map | None:
        """The map of an operation's first result."""
        shape = self.graph.shape(operation.outputs[0])
        return self._mapped(View.whole(operation.outputs[0], shape), self.coordinates[operation.name])

    def _read(self, operation: Operation, i: int) -> _Map | None:
        """The map of an input; None where the operation has no coordinates for it."""
        axes = self.inputs.get((operation.name, i))
        layout = self.graph.layouts[operation.inputs[i]]
        if axes is None:
            return None
        found = None if layout is None else self._mapped(layout, axes)
        if found is None and (memory := self.graph.memory(operation.inputs[i])) in self.group.results:
            self._note(operation, memory)
        return found

    @staticmethod
    def _mapped(layout: View, axes: list[Axis]) -> _Map | None:
        """Memory and coordinates digit by digit; None where their digits differ irregularly."""
        offset, places = layout.offset, list[Place]()
        for axis, (labels, start) in zip(layout.axes, axes, strict=True):
            outer, inner = list(axis), list(labels)
            while outer and inner:
                (count, stride), (label, extent, within) = outer.pop(), inner.pop()
                taken = math.gcd(count, extent)
                if taken == 1 or taken != min(count, extent):
                    if start or inner or outer or extent > count:
                        return None
                    taken = extent  # a part of an axis, which begins with the axis
                    places.append((stride, taken, label, within))
                    break
                places.append((stride, taken, label, within))
                if count > taken:
                    outer.append((count // taken, stride * taken))
                if extent > taken:
                    inner.append((label, extent // taken, within * taken))
            if start and axis:
                if len(axis) > 1:
                    return None
                offset += start * axis[0][1]
        # a stride of 0 repeats elements: the coordinates along it select nothing
        return _Map.of(offset, [place for place in places if place[0] and place[2] != UNUSED])

    def _rows_apart(self) -> str:
        """Two operations of which one has within a row what selects the rows of the other."""
        for one, (label, extent, stride) in self.rows:
            for other, (label_2, extent_2, stride_2) in self.within:
                if label == label_2 and stride < stride_2 * extent_2 and stride_2 < stride * extent:
                    if one is other:
                        continue
                    kinds = {o.name: "columns" if o.kind == "column_sum" else "rows" for o in (one, other)}
                    if len(set(kinds.values())) == 1:
                        what = f"{one.name} and {other.name} reduce the same elements along different axes"
                    else:
                        what = f"{one.name} needs whole {kinds[one.name]}, {other.name} whole {kinds[other.name]}"
                    return f"{what}: no CTA holds what both need"
        return ""

    def _elements_apart(self) -> str:
        """A tensor of which a CTA would need other elements in one operation than in another one.

        All operations must need a result of the launch where it is computed. What they read from outside, one operation may
        read in several orders, which is its own affair; of two operations, one must read in no other order than the other.
        """
        inside = self.group.results
        needs: dict[tuple[str, int], dict[str, set[tuple[object, ...]]]] = {}
        for operation in self.group.operations:
            component = self.component[operation.name]
            rows = [digit for one, digit in self.rows if self.component[one.name] == component]
            found: list[tuple[str, tuple[object, ...]]] = []
            for i, name in enumerate(operation.inputs):
                memory, read = self.graph.memory(name), self._read(operation, i)
                if read is not None:
                    found.append((memory, read.held(rows)))
                elif memory not in inside and (operation.name, i) in self.inputs:
                    found.append((memory, (name,)))  # in an order of its own
            if (written := self._written(operation)) is not None:
                found.append((operation.outputs[0], written.held(rows)))
            for memory, order in found:
                needs.setdefault((memory, component), {}).setdefault(operation.name, set()).add(order)
        for (memory, _), orders in needs.items():
            if memory in inside:
                if len(set().union(*orders.values())) > 1:
                    writer = self.graph.producers[memory].name
                    reader = next((n for n, own in orders.items() if n != writer and own != orders.get(writer)), writer)
                    return f"{reader} needs the elements of {memory} in another order than that in which {writer} computes them"
            else:
                for (one, mine), (other, theirs) in itertools.combinations(orders.items(), 2):
                    if not (mine <= theirs or theirs <= mine):
                        return f"{one} and {other} read {memory} in different orders: no CTA holds the elements that both need"
        return self.irregular


def _broadcast(axes: Sequence[Axis], shape: Sequence[int]) -> list[Axis]:
    """The coordinates of an input that is broadcast to a result: those of its axes of more than one element."""
    return [axis if extent > 1 else ((), 0) for axis, extent in zip(axes[len(axes) - len(shape) :], shape, strict=True)]
