"""Tensors, operations, and the graph that they form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.fusion.kinds import KINDS, Kind, permutation
from ptxkit.fusion.layout import Digit, View
from ptxkit.fusion.tensors import MOST, Tensor
from ptxkit.workload.blame import short
from ptxkit.workload.workload import suggestion


@dataclass(frozen=True)
class Operation:
    """An operation of a graph, which is one launch if nothing is fused.

    Attributes:
        name: unique in the graph.
        kind: a key of :data:`ptxkit.fusion.kinds.KINDS`.
        inputs, outputs: names of tensors.
        attributes: what the kind's rules need besides shapes, such as ``causal`` of attention.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rules(self) -> Kind:
        """The rules of its kind."""
        return KINDS[self.kind]


@dataclass(frozen=True)
class Graph:
    """Operations in an order in which they can be executed, and their tensors.

    Attributes:
        name: what the report calls it.
        tensors: by name.
        operations: each uses only inputs of the graph and results of earlier operations.
        outputs: tensors that are needed after the graph, and therefore must be written.
        repeat: how often the graph is executed, such as the number of equal layers of a model.
        remarks: what a reader of the report has to know about the graph, as sentences.
        overwritten: operation -> tensors in whose memory it writes its result, which other operations must read before.
    """

    name: str
    tensors: Mapping[str, Tensor]
    operations: tuple[Operation, ...]
    outputs: frozenset[str]
    repeat: int = 1
    remarks: tuple[str, ...] = ()
    overwritten: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check a graph that was not made by a builder.

        Raises:
            UsageError: an operation reads what no earlier one writes, has an unknown kind or attribute, or results of other
                shapes than its kind makes; the message names it.
        """
        _checked_repeat(self.name, self.repeat)
        made = {name for operation in self.operations for name in operation.outputs}
        known, seen = set(self.tensors) - made, set[str]()
        for operation in self.operations:
            what = f"operation {operation.name!r} ({operation.kind})"
            if operation.name in seen:
                raise UsageError(f"there are two operations {operation.name!r}; names must differ")
            if operation.kind not in KINDS:
                raise UsageError(f"operation {operation.name!r}: no kind {operation.kind!r}; see docs/fusion.md")
            for name in operation.inputs:
                if name not in known:
                    raise UsageError(f"{what} reads {name!r}, which no earlier operation writes")
            try:
                operation.rules.check(len(operation.inputs), operation.attributes)
                shaped = operation.rules.results([self.tensors[n] for n in operation.inputs], operation.attributes)
            except UsageError as error:
                raise UsageError(f"{what}: {error}") from None
            stated = [self.tensors.get(name) for name in operation.outputs]
            if shaped != [(tensor.shape, tensor.dtype) if tensor else None for tensor in stated]:
                raise UsageError(f"{what} has results of the shapes and types {shaped}, and the graph states others")
            if taken := known & set(operation.outputs):
                raise UsageError(f"{what} writes {min(taken)!r}, which exists already")
            known |= set(operation.outputs)
            seen.add(operation.name)
        if missing := sorted(self.outputs - known):
            raise UsageError(f"output {missing[0]!r} is no tensor of graph {self.name!r}")
        if not self.launches:
            raise UsageError(f"graph {self.name!r} has no operation that launches a kernel")

    @cached_property
    def producers(self) -> dict[str, Operation]:
        """Tensor -> the operation that writes it; inputs of the graph are missing."""
        return {name: operation for operation in self.operations for name in operation.outputs}

    @cached_property
    def readers(self) -> dict[str, list[Operation]]:
        """Tensor -> the operations that read its memory, also through views."""
        found: dict[str, list[Operation]] = {name: [] for name in self.tensors}
        for operation in self.launches:
            for name in dict.fromkeys(map(self.memory, operation.inputs)):
                found[name].append(operation)
        return found

    @cached_property
    def order(self) -> dict[str, int]:
        """Operation -> its position."""
        return {operation.name: i for i, operation in enumerate(self.operations)}

    @cached_property
    def views(self) -> dict[str, str]:
        """Tensor that is a view -> the tensor whose memory it is."""
        found: dict[str, str] = {}
        for operation in self.operations:
            if operation.rules.family == "view":
                source = operation.inputs[0]
                found |= {name: found.get(source, source) for name in operation.outputs}
        return found

    def memory(self, name: str) -> str:
        """The tensor whose memory a tensor is: itself, or what it is a view of."""
        return self.views.get(name, name)

    @cached_property
    def launches(self) -> tuple[Operation, ...]:
        """The operations without those that only make views, which launch nothing."""
        return tuple(operation for operation in self.operations if operation.rules.family != "view")

    @cached_property
    def layouts(self) -> dict[str, View | None]:
        """Tensor -> where its elements lie in :meth:`memory`; None for views whose elements lie in no regular order."""
        found: dict[str, View | None] = {}
        for name, tensor in self.tensors.items():
            if name not in self.views:
                found[name] = View.whole(name, tensor.shape)
        for operation in self.operations:
            if operation.rules.family == "view":
                found |= self._viewed(operation, found[operation.inputs[0]])
        return found

    def _viewed(self, operation: Operation, source: View | None) -> dict[str, View | None]:
        if source is None:
            return dict.fromkeys(operation.outputs)
        if operation.kind == "permute":
            return {operation.outputs[0]: source.permuted(permutation(len(source.axes), operation.attributes))}
        if operation.kind == "reshape":
            return {operation.outputs[0]: source.reshaped(self.shape(operation.outputs[0]))}
        if operation.kind == "expand":
            return {operation.outputs[0]: source.expanded(self.shape(operation.outputs[0]))}
        if operation.kind == "strided":
            given, shape = operation.attributes, self.shape(operation.outputs[0])
            known = given.get("strides") is not None
            found = source.strided(shape, given["strides"], given.get("offset", 0)) if known else None
            return {operation.outputs[0]: found}
        axis = operation.attributes.get("axis", -1) % len(source.axes)
        start, parts = 0, dict[str, View | None]()
        for name in operation.outputs:
            size = self.shape(name)[axis]
            parts[name] = source.part(axis, start, size)
            start += size
        return parts

    def own_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor without the axes along which a view only repeats its elements."""
        layout = self.layouts[name]
        return self.shape(name) if layout is None else layout.own_shape

    def whole_rows(self, name: str) -> bool:
        """Whether a tensor has all elements of its memory in their order, and the same rows."""
        memory, layout = self.memory(name), self.layouts[name]
        last = [shape[-1:] for shape in (self.shape(name), self.shape(memory))]
        return layout is not None and layout.order == self.whole_order(memory) and last[0] == last[1]

    def whole_order(self, memory: str) -> tuple[Digit, ...]:
        """The digits of a tensor in its own memory."""
        return View.whole(memory, self.shape(memory)).order

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.tensors[name].shape

    def flops(self, operation: Operation) -> float:
        """Floating-point operations of an operation; integer multiply-adds of s8 products count likewise."""
        inputs, outputs = self._tensors(operation)
        return operation.rules.flops(inputs, outputs, operation.attributes)

    def bytes_read(self, operation: Operation, i: int) -> float:
        """Bytes of input ``i`` that an operation reads: the whole tensor, except for kinds such as ``gather``."""
        inputs, outputs = self._tensors(operation)
        return operation.rules.read(i, inputs, outputs, operation.attributes)

    def _tensors(self, operation: Operation) -> tuple[list[Tensor], list[Tensor]]:
        return [self.tensors[n] for n in operation.inputs], [self.tensors[n] for n in operation.outputs]


def _checked_repeat(name: str, repeat: Any) -> int:
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= MOST:
        raise UsageError(f"graph {short(name)}: repeat must be a positive number up to 2^60, not {short(repeat)}")
    return repeat


class GraphBuilder:
    """Builds a graph operation by operation; the shapes of results follow from the kinds.

    A method for each kind adds an operation and returns the name of its result, or a tuple of names where there are several::

        g = GraphBuilder("mlp")
        x = g.input("x", (4096, 4096), "bf16")
        h = g.linear(x, g.input("w", (14336, 4096), "bf16"))
        y = g.gelu(h, name="activation")
        graph = g.graph(outputs=[y])
    """

    def __init__(self, name: str = "graph", repeat: int = 1) -> None:
        self.name = name
        self.repeat = _checked_repeat(name, repeat)
        self._tensors: dict[str, Tensor] = {}
        self._operations: list[Operation] = []

    def input(self, name: str, shape: Sequence[int], dtype: str) -> str:
        """Add an input of the graph, such as activations or weights.

        Raises:
            UsageError: the name is taken, or the shape or the dtype is none.
        """
        self._add(Tensor.checked(name, shape, dtype))
        return name

    def operation(
        self, kind: str, /, *inputs: str, name: str = "", outputs: Sequence[str] = (), **attributes: Any
    ) -> Any:
        """Add an operation.

        Args:
            kind: a key of :data:`ptxkit.fusion.kinds.KINDS`.
            inputs: names of tensors that exist.
            name: of the operation; by default the kind, with a number where it occurs again.
            outputs: names of the results; by default those of the operation.
            attributes: of the kind.

        Returns:
            The name of the result; a tuple where the kind has several.

        Raises:
            UsageError: an unknown kind, tensor or attribute, or shapes that do not fit; the message names the operation.
        """
        name = name or self._unused(kind)
        if any(operation.name == name for operation in self._operations):
            raise UsageError(f"there are two operations {name!r}; names must differ")
        if kind not in KINDS:
            raise UsageError(f"operation {name!r}: no kind {kind!r}; {suggestion(kind, KINDS)}")
        rules = KINDS[kind]
        for tensor in inputs:
            if tensor not in self._tensors:
                known = suggestion(tensor, self._tensors)
                raise UsageError(f"operation {name!r} reads {tensor!r}, which no earlier operation writes; {known}")
        try:
            rules.check(len(inputs), attributes)
            found = rules.results([self._tensors[n] for n in inputs], attributes)
            results = list(outputs)
            if not results:
                # the single result of an operation has its name; several have a number
                results = [name] if len(found) == 1 else [f"{name}.{i}" for i in range(len(found))]
            if len(results) != len(found):
                raise UsageError(f"has {len(found)} results; {len(results)} are named")
            made = [Tensor.checked(result, *shaped) for result, shaped in zip(results, found, strict=True)]
        except UsageError as error:
            raise UsageError(f"operation {name!r} ({kind}): {error}") from None
        for tensor_ in made:
            self._add(tensor_)
        self._operations.append(Operation(name, kind, tuple(inputs), tuple(results), attributes))
        return results[0] if len(results) == 1 else tuple(results)

    def __getattr__(self, kind: str) -> Any:
        if kind.startswith("_") or kind not in KINDS:
            raise AttributeError(f"GraphBuilder has no kind {kind!r}; {suggestion(kind, KINDS)}")

        def added(*inputs: str, **given: Any) -> Any:
            return self.operation(kind, *inputs, **given)

        return added

    def graph(
        self,
        outputs: Iterable[str] = (),
        remarks: Iterable[str] = (),
        overwritten: Mapping[str, Sequence[str]] | None = None,
        *,
        unread_views: bool = True,
    ) -> Graph:
        """The graph.

        Args:
            outputs: tensors that are needed after the graph, besides results that no operation reads.
            remarks, overwritten: see :class:`Graph`.
            unread_views: whether views that no operation reads are needed, too.

        Raises:
            UsageError: there is no operation, or an output that is no tensor.
        """
        wanted = list(outputs)
        for name in wanted:
            if name not in self._tensors:
                raise UsageError(
                    f"output {name!r} is no tensor of graph {self.name!r}; {suggestion(name, self._tensors)}"
                )
        read = {name for operation in self._operations for name in operation.inputs}
        ends = [o for o in self._operations if unread_views or o.rules.family != "view"]
        unread = {name for operation in ends for name in operation.outputs if name not in read}
        needed = frozenset(wanted) | unread
        made = tuple(self._operations)
        return Graph(self.name, dict(self._tensors), made, needed, self.repeat, tuple(remarks), overwritten or {})

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that were added."""
        return tuple(self._operations)

    def keep(self, count: int) -> None:
        """Remove all operations but the first ``count``, with their results."""
        for operation in self._operations[count:]:
            for name in operation.outputs:
                del self._tensors[name]
        del self._operations[count:]

    def tensor(self, name: str) -> Tensor:
        """A tensor that was added."""
        return self._tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that was added."""
        return self._tensors[name].shape

    def _add(self, tensor: Tensor) -> None:
        if tensor.name in self._tensors:
            raise UsageError(f"there are two tensors {tensor.name!r}; names must differ")
        self._tensors[tensor.name] = tensor

    def _unused(self, kind: str) -> str:
        taken = {operation.name for operation in self._operations} | set(self._tensors)
        return next(n for i in range(1, len(taken) + 2) if (n := kind if i == 1 else f"{kind}_{i}") not in taken)
