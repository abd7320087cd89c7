"""Tensors, operations, and the graph that they form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.fusion.kinds import KINDS, Kind
from ptxkit.fusion.tensors import Tensor
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
    """

    name: str
    tensors: Mapping[str, Tensor]
    operations: tuple[Operation, ...]
    outputs: frozenset[str]
    repeat: int = 1

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

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.tensors[name].shape

    def flops(self, operation: Operation) -> float:
        """Floating-point operations of an operation; integer multiply-adds of s8 products count likewise."""
        inputs, outputs = self._tensors(operation)
        return operation.rules.flops(inputs, outputs, operation.attributes)

    def bytes_read(self, operation: Operation, name: str) -> float:
        """Bytes of one of its inputs that an operation reads: the whole tensor, except for kinds such as ``gather``."""
        inputs, outputs = self._tensors(operation)
        index = operation.inputs.index(name)
        return operation.rules.read(index, inputs, outputs, operation.attributes)

    def _tensors(self, operation: Operation) -> tuple[list[Tensor], list[Tensor]]:
        return [self.tensors[n] for n in operation.inputs], [self.tensors[n] for n in operation.outputs]


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
        if isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:
            raise UsageError(f"graph {name!r}: repeat must be a positive number, not {repeat!r}")
        self.name = name
        self.repeat = repeat
        self._tensors: dict[str, Tensor] = {}
        self._operations: list[Operation] = []

    def input(self, name: str, shape: Sequence[int], dtype: str) -> str:
        """Add an input of the graph, such as activations or weights.

        Raises:
            UsageError: the name is taken, or the shape or the dtype is none.
        """
        self._add(Tensor.checked(name, shape, dtype))
        return name

    def operation(self, kind: str, *inputs: str, name: str = "", outputs: Sequence[str] = (), **attributes: Any) -> Any:
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
        except UsageError as error:
            raise UsageError(f"operation {name!r} ({kind}): {error}") from None
        results = list(outputs)
        if not results:
            # the single result of an operation has its name; several have a number
            results = [name] if len(found) == 1 else [f"{name}.{i}" for i in range(len(found))]
        if len(results) != len(found):
            raise UsageError(f"operation {name!r} ({kind}) has {len(found)} results; {len(results)} are named")
        for result, (shape, dtype) in zip(results, found, strict=True):
            self._add(Tensor.checked(result, shape, dtype))
        self._operations.append(Operation(name, kind, tuple(inputs), tuple(results), attributes))
        return results[0] if len(results) == 1 else tuple(results)

    def __getattr__(self, kind: str) -> Any:
        if kind.startswith("_") or kind not in KINDS:
            raise AttributeError(f"GraphBuilder has no kind {kind!r}; {suggestion(kind, KINDS)}")

        def added(*inputs: str, **given: Any) -> Any:
            return self.operation(kind, *inputs, **given)

        return added

    def graph(self, outputs: Iterable[str] = ()) -> Graph:
        """The graph.

        Args:
            outputs: tensors that are needed after the graph, besides results that no operation reads.

        Raises:
            UsageError: there is no operation, or an output that is no tensor.
        """
        if not any(operation.rules.family != "view" for operation in self._operations):
            raise UsageError(f"graph {self.name!r} has no operation that launches a kernel")
        wanted = list(outputs)
        for name in wanted:
            if name not in self._tensors:
                raise UsageError(
                    f"output {name!r} is no tensor of graph {self.name!r}; {suggestion(name, self._tensors)}"
                )
        read = {name for operation in self._operations for name in operation.inputs}
        unread = {name for operation in self._operations for name in operation.outputs if name not in read}
        return Graph(self.name, dict(self._tensors), tuple(self._operations), frozenset(wanted) | unread, self.repeat)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations that were added."""
        return tuple(self._operations)

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
