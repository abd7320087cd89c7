"""Memory of the tensors of a captured graph: which ones are views in torch, and which ones are written in place.

A graph has a new tensor for each result. An operation that writes in place therefore makes the next version of a tensor, which
whatever reads the tensor afterwards reads, also through views that were made before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxkit.fusion.graph import GraphBuilder, Operation
from ptxkit.fusion.kinds import permutation
from ptxkit.fusion.layout import row_major


@dataclass(frozen=True)
class Place:
    """Where torch has a tensor: shape, strides and first element in its storage, all in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, value: Any) -> Place | None:
        """That of a torch tensor; None where it depends on values, as of an element that another tensor selects."""
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        try:
            return cls(tuple(map(int, value.shape)), tuple(map(int, value.stride())), int(value.storage_offset()))
        except GuardOnDataDependentSymNode:
            return None


class CapturedMemory:
    """The versions of tensors, and where torch has them."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._places: dict[str, Place | None] = {}  # of tensors whose memory a launch of torch makes, and of inputs
        self._next: dict[str, str] = {}  # tensor that was written in place -> its next version
        self._earlier: dict[str, list[str]] = {}  # tensor -> the tensors that its memory was before
        self.parts: dict[str, None] = {}  # what was written to a part of a tensor
        self.overwritten: dict[str, tuple[str, ...]] = {}  # operation that writes in place -> tensors whose memory it writes

    def writer(self, name: str) -> Operation | None:
        """The operation whose result a tensor is; None for an input."""
        return next((o for o in reversed(self._builder.operations) if name in o.outputs), None)

    def owner(self, name: str) -> str:
        """The tensor whose memory a tensor is."""
        writer = self.writer(name)
        return name if writer is None or writer.rules.family != "view" else self.owner(writer.inputs[0])

    def place(self, name: str, value: Any) -> None:
        """Note where torch has a tensor."""
        if self.owner(name) not in self._places:  # else strides count in the owner
            self._places[name] = Place.of(value)

    def latest(self, name: str) -> str:
        """The version of a tensor that is read now: views of what was written in place are made again."""
        while name in self._next:
            name = self._next[name]
        writer = self.writer(name)
        if writer is None or writer.rules.family != "view":
            return name
        source = self.latest(writer.inputs[0])
        if source == writer.inputs[0]:
            return name
        again = f"{writer.name}_of_{source}"
        made = self._builder.operation(writer.kind, source, name=again, **writer.attributes)
        for old, new in zip(writer.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            self._next[old] = new
        return self._next[name]

    def write(self, target: str, result: str) -> bool:
        """Note that an operation wrote a result to the memory of a tensor.

        Returns:
            Whether what reads the tensor afterwards reads the result. Not so for a part of a tensor.
        """
        if target == result:
            return True  # nothing is computed, as by dropout in evaluation mode
        owner = self.owner(target)
        writer = self.writer(result)
        before = (*self._earlier.get(owner, ()), owner)
        if writer is not None and before[0] not in self._computed:
            self.overwritten[writer.name] = before
        found = result
        while target != owner:
            view = self.writer(target)
            if view is None or view.kind not in ("reshape", "permute"):
                self.parts[result] = None
                return False
            self._next[target] = found
            target = view.inputs[0]
            found = self._undone(view, found)
        self._next[target] = found
        self._earlier[self.owner(found)] = [*before]
        return True

    def _undone(self, view: Operation, name: str) -> str:
        """The tensor of which a tensor would be this view."""
        shape = self._builder.shape(view.inputs[0])
        again = f"{name}_as_{view.inputs[0]}"
        if view.kind == "reshape":
            undone: str = self._builder.operation("reshape", name, name=again, shape=list(shape))
            return undone
        axes = permutation(len(shape), view.attributes)
        turned: str = self._builder.operation("permute", name, name=again, axes=[axes.index(i) for i in range(len(axes))])
        return turned

    @property
    def _computed(self) -> set[str]:
        return {name for operation in self._builder.operations for name in operation.outputs}

    def written_inputs(self) -> list[str]:
        """The last version of each input that was written in place, and what was written to parts of tensors."""
        changed = [name for name in list(self._next) if self.writer(name) is None]
        return [*(self.latest(name) for name in changed), *self.parts]

    def strided(self, source: str, value: Any, dtype: str) -> tuple[str, dict[str, Any]]:
        """The tensor, and the attributes of ``strided``, that make the view of it that torch has."""
        while source not in self._places and (writer := self.writer(source)) is not None:
            source = writer.inputs[0]
        wanted, shape = Place.of(value), [int(n) for n in value.shape] or [1]
        attributes: dict[str, Any] = {"shape": shape, "dtype": dtype}
        origin = self._places.get(source)
        found = None if origin is None or wanted is None else _relative(wanted, origin)
        if found is not None and value.element_size() * 8 == self._bits(source):
            strides, offset = found
            attributes |= {"strides": strides or [0], "offset": offset}
        return source, attributes

    def _bits(self, name: str) -> float:
        tensor = self._builder.tensor(name)
        return 8 * tensor.bytes / tensor.elements


def _relative(wanted: Place, origin: Place) -> tuple[list[int], int] | None:
    """Strides and offset in the row-major order of another tensor of the same storage; None where there are none."""
    rows = [digits[0][1] if digits else 0 for digits in row_major(origin.shape)]
    if list(origin.strides) == [s if n > 1 else o for s, n, o in zip(rows, origin.shape, origin.strides, strict=True)]:
        inside = wanted.offset - origin.offset
        last = inside + sum((n - 1) * s for n, s in zip(wanted.shape, wanted.strides, strict=True))
        return (list(wanted.strides), inside) if inside >= 0 and last < math.prod(origin.shape) else None
    axes = sorted((s, n, row) for s, n, row in zip(origin.strides, origin.shape, rows, strict=True) if n > 1 and s)[::-1]
    steps = [_divided(stride, axes) for stride in (wanted.offset - origin.offset, *wanted.strides)]
    if None in steps:
        return None
    start, *others = [step for step in steps if step is not None]
    for i, (_, extent, _) in enumerate(axes):
        if start[i] + sum((n - 1) * step[i] for n, step in zip(wanted.shape, others, strict=True)) >= extent:
            return None
    places = [sum(k * row for k, (_, _, row) in zip(step, axes, strict=True)) for step in (start, *others)]
    return places[1:], places[0]


def _divided(distance: int, axes: Sequence[tuple[int, int, int]]) -> list[int] | None:
    """How many elements of each axis, the largest stride first, a distance in memory is; None where it is none."""
    found = list[int]()
    for stride, _, _ in axes:
        steps, distance = divmod(distance, stride) if distance >= 0 else (0, distance)
        found.append(steps)
    return None if distance else found
