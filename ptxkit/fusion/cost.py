"""The predicted time of a launch that computes a group of operations: bytes, flops, roofs.

The model has four terms. A launch costs a constant. Tensors that come from outside the graph, or are too large for L2, are
read and written at the bandwidth of a copy; results of earlier launches that are small enough are read and written at the
rate of L2. Products run at a fraction of the peak rate of their type, other operations at a fraction of the peak of f32. The
launch takes the longer of the times for memory and for arithmetic. Nothing else is modelled: no latency, no partial waves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ptxkit.fusion.graph import Graph, Operation
from ptxkit.fusion.layout import View, union
from ptxkit.fusion.machine import Machine
from ptxkit.targets.achievable import PRODUCT, VECTOR

PRODUCTS = ("contraction", "attention")


@dataclass(frozen=True)
class Group:
    """Operations that share a launch.

    Attributes:
        operations: in the order of the graph.
    """

    graph: Graph = field(repr=False, compare=False, hash=False)
    operations: tuple[Operation, ...]

    @classmethod
    def of(cls, graph: Graph, operations: Collection[Operation]) -> Group:
        """The group of these operations."""
        return cls(graph, tuple(sorted(operations, key=lambda o: graph.order[o.name])))

    def __or__(self, other: Group) -> Group:
        return Group.of(self.graph, {o.name: o for o in (*self.operations, *other.operations)}.values())

    @property
    def name(self) -> str:
        """``"layernorm + gelu"``."""
        return " + ".join(operation.name for operation in self.operations)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the operations."""
        return frozenset(operation.name for operation in self.operations)

    @cached_property
    def families(self) -> frozenset[str]:
        """The families of the operations."""
        return frozenset(operation.rules.family for operation in self.operations)

    @cached_property
    def products(self) -> tuple[Operation, ...]:
        """The matrix products and attentions among the operations."""
        return tuple(operation for operation in self.operations if operation.rules.family in PRODUCTS)

    @cached_property
    def rows(self) -> tuple[Operation, ...]:
        """The row operations."""
        return tuple(operation for operation in self.operations if operation.rules.family == "row")

    @cached_property
    def results(self) -> frozenset[str]:
        """The tensors that the operations compute, without views."""
        return frozenset(name for operation in self.operations for name in operation.outputs)

    def reads(self) -> Mapping[str, float]:
        """Tensor from outside the group -> bytes that are read: those of all different elements that its views have."""
        return self._reads

    @cached_property
    def _reads(self) -> dict[str, float]:
        inside, found = self.results, dict[str, _Regions]()
        for operation in self.operations:
            for i, name in enumerate(operation.inputs):
                memory = self.graph.memory(name)
                if memory not in inside:
                    found.setdefault(memory, _Regions(self.graph, memory)).read(operation, i)
        return {memory: regions.bytes for memory, regions in found.items()}

    def writes(self) -> Mapping[str, float]:
        """Tensor that something outside the group needs -> bytes that are written: those of the elements that it needs."""
        return self._writes

    @cached_property
    def _writes(self) -> dict[str, float]:
        graph, mine = self.graph, self.names
        found: dict[str, _Regions] = {}

        def needed(name: str) -> None:
            memory = graph.memory(name)
            if memory in self.results:
                found.setdefault(memory, _Regions(graph, memory)).add(name)

        for name in graph.outputs:
            needed(name)
        for memory in self.results:
            for operation in graph.readers[memory]:
                if operation.name not in mine:
                    for name in operation.inputs:
                        needed(name)
        return {memory: found[memory].bytes for memory in sorted(found)}

    def unit(self) -> str:
        """The type whose peak rate bounds the group: of its products' operands, else f32."""
        for operation in self.products:
            return self.graph.tensors[operation.inputs[0]].dtype
        return "f32"


class _Regions:
    """The elements of a memory that operations read or write."""

    def __init__(self, graph: Graph, memory: str) -> None:
        self.graph, self.tensor = graph, graph.tensors[memory]
        self.views: set[View] = set()
        self.partial: dict[tuple[object, ...], float] = {}  # reads whose place is not known, and their bytes

    def read(self, operation: Operation, i: int) -> None:
        """Input ``i`` of an operation."""
        name = operation.inputs[i]
        wanted = self.graph.bytes_read(operation, i)
        if wanted == self.graph.tensors[name].bytes:
            self.add(name)
        else:  # rows that indices select, or weights of the experts that have rows: the same ones for the same indices
            others = (*operation.inputs[:i], *operation.inputs[i + 1 :])
            selection = others if operation.kind == "gather" else ()
            self.partial[(self.graph.layouts[name] or name, operation.kind, selection, wanted)] = wanted

    def add(self, name: str) -> None:
        """All elements of a tensor."""
        layout = self.graph.layouts[name]
        if layout is None:
            self.partial[(name,)] = self.graph.tensors[name].bytes
        else:
            self.views.add(layout)

    @property
    def bytes(self) -> float:
        """Bytes of all different elements."""
        total = self.tensor.elements
        known = union(self.views, total) * self.tensor.bytes / total
        return min(self.tensor.bytes, known + sum(self.partial.values()))


@dataclass(frozen=True)
class Cost:
    """What a launch computes and moves, and the predicted time.

    Attributes:
        flops: of all operations. bytes: read and written, in device memory or L2.
        unit: type of the operands whose peak rate applies. bound: ``"memory"``, ``"launch"``, or the unit.
        time_us: predicted.
    """

    flops: float
    bytes: float
    unit: str
    bound: str
    time_us: float

    @property
    def intensity(self) -> float:
        """Flops per byte; infinite without bytes."""
        return self.flops / self.bytes if self.bytes else float("inf")


def cost(group: Group, machine: Machine) -> Cost:
    """The cost of a group as one launch."""
    graph = group.graph
    reads, writes = group.reads(), group.writes()
    if again := _read_again(group, machine):
        reads = {name: size * (2 if name in again else 1) for name, size in reads.items()}
    near = far = 0.0
    for name, size in (*reads.items(), *writes.items()):
        produced = name in graph.producers
        # what nothing reads later leaves L2 for device memory, whatever its size
        kept = produced and bool(graph.readers[name]) and size <= machine.resident_bytes
        near, far = (near + size, far) if kept else (near, far + size)
    memory_us = far / machine.bandwidth_gbs / 1e3 + near / machine.l2_gbs / 1e3
    unit, products = group.unit(), group.products
    dense = sum(graph.flops(operation) for operation in products)
    others = sum(graph.flops(operation) for operation in group.operations if operation not in products)
    compute_us = 0.0
    if (peak := machine.peak(unit)) is not None and dense:
        compute_us += dense / (PRODUCT * peak) / 1e6
    if (peak := machine.peak("f32")) is not None:
        compute_us += others / (VECTOR * peak) / 1e6
    longest = max(memory_us, compute_us)
    bound = "launch" if longest < machine.launch_us else "memory" if memory_us >= compute_us else unit
    return Cost(dense + others, near + far, unit, bound, machine.launch_us + longest)


def _read_again(group: Group, machine: Machine) -> frozenset[str]:
    """Inputs of row operations that are read twice, because a row in f32 does not fit on chip."""
    graph, found = group.graph, set[str]()
    for operation in group.rows:
        source = operation.inputs[0]
        writes_rows = any(graph.shape(name) == graph.shape(source) for name in operation.outputs)
        if writes_rows and 4 * graph.shape(source)[-1] > machine.row_bytes:
            found |= {graph.memory(name) for name in operation.inputs}
    return frozenset(found)


def ideal_bound(group: Group, machine: Machine) -> str:
    """What bounds a group apart from the launch: ``"memory"``, or a type."""
    found = cost(group, machine)
    if found.bound != "launch":
        return found.bound
    peak = machine.peak(found.unit)
    if peak is None or not group.products:
        return "memory"
    return "memory" if found.bytes / machine.bandwidth_gbs * 1e3 >= found.flops / (PRODUCT * peak) else found.unit
