"""Whether two neighbouring groups can share a launch, and the reason.

The rules follow from what a CTA holds. An element-wise operation needs an element, a row operation a row, a matrix product a
tile of rows of one operand and a tile of columns of the other, and its result is complete only after the whole inner
dimension. Operations share a launch if what the first one leaves in registers or shared memory is what the second one needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ptxkit.fusion.cost import Group, ideal_bound
from ptxkit.fusion.graph import Graph, Operation
from ptxkit.fusion.layout import joined
from ptxkit.fusion.machine import Machine
from ptxkit.fusion.placement import conflict

Verdict = Literal["FUSE", "IF", "DO NOT FUSE"]
Complexity = Literal["low", "moderate", "high"]
SEVERITY: dict[Verdict, int] = {"FUSE": 0, "IF": 1, "DO NOT FUSE": 2}
DIFFICULTY: dict[Complexity, int] = {"low": 0, "moderate": 1, "high": 2}
TILE_COLUMNS = 256  # the widest tile of a product on the tensor cores
TILE_ROWS = 128
OPERAND_ROWS = 64  # of the smallest tile of a warpgroup's product
SIBLINGS = ("linear", "grouped_linear", "routed_linear")  # products that one with both weights side by side can replace
HEAD = 256  # the most elements of a head for which scores and results of a tile fit in the registers


@dataclass(frozen=True)
class Judgement:
    """Whether two groups can share a launch.

    Attributes:
        verdict: FUSE, IF (when ``condition`` holds), or DO NOT FUSE.
        reason: why, as a sentence without a full stop.
        condition: of IF. met: whether it holds for these sizes.
        complexity: of the fused kernel.
    """

    verdict: Verdict
    reason: str
    complexity: Complexity
    condition: str = ""
    met: bool = True

    @property
    def possible(self) -> bool:
        """Whether the groups can share a launch at these sizes."""
        return self.verdict == "FUSE" or (self.verdict == "IF" and self.met)


def worst(judgements: list[Judgement]) -> Judgement:
    """The strictest of several judgements, with the highest complexity of all."""
    strictest = max(judgements, key=lambda j: (SEVERITY[j.verdict], not j.met, DIFFICULTY[j.complexity]))
    complexity = max((j.complexity for j in judgements), key=DIFFICULTY.__getitem__)
    return Judgement(strictest.verdict, strictest.reason, complexity, strictest.condition, strictest.met)


def edges(first: Group, second: Group) -> Iterator[tuple[Operation, str, Operation, str]]:
    """(writer, its result, reader, the reader's input) for everything that the second group reads of the first."""
    graph = first.graph
    mine = {name: operation for operation in first.operations for name in operation.outputs}
    for reader in second.operations:
        for name in dict.fromkeys(reader.inputs):
            if (memory := graph.memory(name)) in mine:
                yield mine[memory], memory, reader, name


def judge(first: Group, second: Group, machine: Machine) -> Judgement:
    """Whether the second group can be computed in the launch of the first one, whose results it reads."""
    if first.products and (ahead := _before_products(second)) and any(edges(first, ahead)):
        rest = Group.of(first.graph, [o for o in second.operations if o.name not in ahead.names])
        return worst([judge(first, ahead, machine), judge(first | ahead, rest, machine)])
    found = [_edge(first, second, *edge, machine) for edge in edges(first, second)]
    assert found, "the second group reads nothing of the first one"
    judgement = worst(found)
    if judgement.verdict != "DO NOT FUSE" and (reason := conflict(first | second)):
        return Judgement("DO NOT FUSE", reason, "high")
    return judgement


def _before_products(group: Group) -> Group | None:
    """The operations of a group that its products wait for, which can be the epilogue of a product before; None without any."""
    graph = group.graph
    waiting = [name for product in group.products for name in product.inputs]
    found = dict[str, Operation]()
    while waiting:
        writer = graph.producers.get(graph.memory(waiting.pop()))
        if writer is not None and writer.name in group.names - found.keys() and writer not in group.products:
            found[writer.name] = writer
            waiting += writer.inputs
    return Group.of(graph, found.values()) if found else None


def judge_siblings(first: Group, second: Group) -> Judgement | None:
    """Whether products with the same first operand, and their epilogues, can be one product; None where they are not such."""
    graph, products = first.graph, (*first.products, *second.products)
    if not first.products or not second.products or (first.families | second.families) - {"contraction", "elementwise"}:
        return None
    if len({operation.kind for operation in products}) > 1 or products[0].kind not in SIBLINGS:
        return None
    if len({_operand(graph, operation.inputs[0]) for operation in products}) > 1:
        return None  # parts, or another order, of the same tensor
    if products[0].kind == "routed_linear" and len({operation.inputs[2:4] for operation in products}) > 1:
        return None  # other experts, or other scales of the rows
    if any(graph.memory(name) in graph.producers for operation in products for name in _constants(operation)):
        return None  # weights that are results cannot be stored side by side in advance
    return Judgement(
        "FUSE", "both multiply the same rows: with their weights side by side they are one product", "moderate"
    )


def _constants(operation: Operation) -> tuple[str, ...]:
    """The inputs of a product that belong to its columns: weights, their scales, and the bias."""
    inputs = operation.inputs
    return (inputs[1], *inputs[4:]) if operation.kind == "routed_linear" else inputs[1:]


def _edge(
    first: Group, second: Group, writer: Operation, memory: str, reader: Operation, name: str, machine: Machine
) -> Judgement:
    graph = first.graph
    ahead, behind = writer.rules.family, reader.rules.family
    if "other" in (ahead, behind):
        unknown = writer if ahead == "other" else reader
        return Judgement("DO NOT FUSE", f"only the shapes of {unknown.name} are known", "high")
    if first.products and second.products:
        if (siblings := judge_siblings(first, second)) is not None:
            return siblings
        return _two_products(graph, reader, memory, name, machine)
    if behind == "movement":
        return _to_movement(first, reader)
    if ahead == "movement" and first.families == {"movement"}:
        return Judgement(
            "FUSE", "the reader can load from the source of the copy, which then needs not be made", "moderate"
        )
    if reader.kind == "routed_linear" and reader.inputs.index(name) == 2:
        return Judgement(
            "DO NOT FUSE",
            f"{reader.name} needs the rows sorted by expert: a CTA multiplies rows of tokens whose experts other CTAs choose",
            "high",
        )
    again = _repeated(graph, name, reader)
    if again and behind not in ("contraction", "attention"):
        return again
    if behind in ("contraction", "attention"):
        return _prologue(first, writer, reader, name, second, machine)
    if behind == "row" and first.products:
        return _row_after_product(first, reader, machine)
    if behind == "row":
        return _rows(first, second, graph, reader, machine)
    return _to_elements(first, second, graph, memory, name, reader, machine)


def _to_movement(first: Group, reader: Operation) -> Judgement:
    if first.products and reader.kind == "split":
        return Judgement(
            "DO NOT FUSE",
            "a split copies without computing: its readers can load the parts from the product's result by its strides",
            "low",
        )
    if reader.kind == "gather" and first.families != {"movement"}:
        return Judgement(
            "DO NOT FUSE", f"{reader.name} takes rows from anywhere in the result, which other CTAs compute", "high"
        )
    return Judgement("FUSE", "the results can be stored where the copy would put them", "moderate")


def _to_elements(
    first: Group, second: Group, graph: Graph, memory: str, name: str, reader: Operation, machine: Machine
) -> Judgement:
    if first.products:
        if second.rows:
            return _row_after_product(first, second.rows[0], machine)
        if len({graph.layouts[n] for o in second.operations for n in o.inputs if graph.memory(n) == memory}) > 1:
            weights = [graph.memory(n) for product in first.products for n in product.inputs[1:]]
            return Judgement(
                "IF",
                f"an epilogue that combines parts of {memory}, which lie in different tiles",
                "moderate",
                "the weights of the elements that are combined are stored beside each other",
                first.families <= {"contraction", "elementwise"} and not any(n in graph.producers for n in weights),
            )
        return Judgement("FUSE", "an epilogue: the sums of the product are still in registers", "low")
    if first.rows or second.rows:
        return _rows(first, second, graph, reader, machine)
    return Judgement("FUSE", "element by element: the intermediate result stays in a register", "low")


def _repeated(graph: Graph, name: str, reader: Operation) -> Judgement | None:
    """A refusal where a reader uses elements more than once, and not as statistics of rows."""
    shape = graph.shape(reader.outputs[0] if reader.rules.family == "elementwise" else name)
    made, wanted = math.prod(graph.own_shape(name)), math.prod(shape)
    if made >= wanted or _statistic(graph.own_shape(name), shape):
        return None
    return Judgement(
        "DO NOT FUSE",
        f"{reader.name} uses each element of {graph.memory(name)} {wanted / made:g} times, and would compute it as often",
        "low",
    )


def _statistic(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether a tensor has one element for each row of a result: it is broadcast along the last axes only."""
    padded = (1,) * (len(result) - len(shape)) + shape
    if any(mine not in (1, theirs) for mine, theirs in zip(padded, result, strict=True)):
        return False  # within an axis, elements repeat
    along = [mine != theirs for mine, theirs in zip(padded, result, strict=True) if theirs > 1]
    return along == sorted(along)


def _operand(graph: Graph, name: str) -> tuple[object, ...]:
    """The elements of an operand of a product in their order, whatever the division of its rows into axes."""
    layout = graph.layouts[name]
    if layout is None:
        return (name,)
    rows = joined([digit for axis in layout.axes[:-1] for digit in axis])
    return layout.memory, layout.offset, rows, layout.axes[-1:]


def _along_rows(graph: Graph, name: str) -> bool:
    """Whether the rows of a tensor lie in rows of the memory, one element after the other."""
    layout = graph.layouts[name]
    if layout is None:
        return False
    last, length = layout.axes[-1], graph.shape(name)[-1]
    stored = graph.shape(layout.memory)[-1:]
    # a part of a row, or several ones that make one; not elements of different rows
    return length == 1 or (last == ((length, 1),) and bool(stored) and (stored[0] % length == 0 or length < stored[0]))


def _space(graph: Graph, group: Group) -> tuple[int, int]:
    """Number of rows, and their length, of the row operations of a group; else of its largest tensor."""
    operations = group.rows or group.operations
    shapes = [graph.shape(name) for o in operations for name in (*o.inputs[:1], *o.outputs)]
    shape = max(shapes, key=math.prod)
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def _rows(first: Group, second: Group, graph: Graph, reader: Operation, machine: Machine) -> Judgement:
    ours, theirs = _space(graph, first), _space(graph, second)
    if first.rows and second.rows and ours != theirs:
        return Judgement(
            "DO NOT FUSE",
            f"rows of {ours[1]} and of {theirs[1]} elements: no CTA holds the same elements in both",
            "high",
        )
    if not first.rows:
        whole = "the matrix" if reader.kind == "column_sum" else "its rows"
        return Judgement("FUSE", f"computed while {reader.name} loads {whole}", "low")
    held = 4 * ours[1] <= machine.row_bytes
    if not second.rows:
        kept = "the row is still on chip when its statistics are known"
        again = f"a row of {ours[1]} elements does not fit on chip: it is read a second time, when its statistics are known"
        return Judgement("FUSE", kept if held else again, "low")
    if not held:
        reason = f"rows of {ours[1]} elements do not fit on chip: {reader.name} would compute what it reads again"
        return Judgement("DO NOT FUSE", reason, "high")
    return Judgement("FUSE", "both need whole rows, which stay on chip", "low")


def _row_after_product(first: Group, row: Operation, machine: Machine) -> Judgement:
    graph, product = first.graph, first.products[-1]
    columns = graph.shape(row.inputs[0])[-1]
    wide = graph.shape(product.outputs[0])[-1]
    if row.kind == "column_sum" or not _along_rows(graph, row.inputs[0]):
        return Judgement(
            "DO NOT FUSE",
            f"{row.name} needs elements of many rows of the product, which many CTAs compute",
            "high",
        )
    if columns <= TILE_COLUMNS and wide % columns == 0:
        return Judgement("FUSE", f"a tile of the product holds whole rows of {columns} elements", "moderate")
    tiles = math.ceil(columns / TILE_COLUMNS)
    reasons = [
        f"a row of {columns} elements is spread over {tiles} tiles, so no CTA holds what {row.name} reduces",
        "a CTA that computed whole rows would need accumulators for them in its registers, and lose the product's tiles",
    ]
    bound = ideal_bound(Group.of(graph, first.products), machine)
    if bound != "memory":
        reasons.insert(0, f"{product.name} is bound by the tensor cores ({bound}), {row.name} by memory")
        return Judgement("DO NOT FUSE", "; ".join(reasons), "high")
    if tiles <= machine.target.limits.portable_cluster and product.rules.family == "contraction":
        return Judgement(
            "IF",
            f"a cluster of {tiles} CTAs holds whole rows and can exchange their sums through distributed shared memory",
            "high",
            "the product has few rows, so that it is bound by memory",
        )
    return Judgement("DO NOT FUSE", "; ".join(reasons), "high")


def _prologue(
    first: Group, writer: Operation, reader: Operation, name: str, second: Group, machine: Machine
) -> Judgement:
    graph = first.graph
    index = reader.inputs.index(name)
    if reader.rules.family == "contraction" and index >= 2:
        what = "the bias is added" if reader.kind == "linear" else "the sums are scaled"
        return Judgement("FUSE", f"{what} in the epilogue", "low")
    result = graph.shape(reader.outputs[0])
    if reader.rules.family == "attention":
        queries = graph.shape(reader.inputs[0])[-2]
        again = 1 if index == 0 else math.ceil(queries / TILE_ROWS)
        what = ("queries", "keys and values", "keys and values", "mask")[index]
        again = 1 if index == 3 else again  # each element of a mask is used once for each head
        if first.rows and graph.shape(first.rows[0].inputs[0])[-1] > HEAD:
            length = graph.shape(first.rows[0].inputs[0])[-1]
            return Judgement(
                "DO NOT FUSE",
                f"{writer.name} needs rows of {length} elements, attention loads those of one head",
                "high",
            )
    else:
        width, height = result[-1], math.prod(result[:-1])
        again = math.ceil(width / TILE_COLUMNS) if index == 0 else math.ceil(height / TILE_ROWS)
        what = "rows" if index == 0 else "columns"
    if first.rows and not _along_rows(graph, name):
        return Judgement(
            "DO NOT FUSE",
            f"{reader.name} does not multiply along the rows of {writer.name}: each tile would need the statistics of all rows",
            "high",
        )
    if first.rows and reader.kind == "matmul" and index == 1 and not reader.attributes.get("transpose_b"):
        return Judgement(
            "DO NOT FUSE", f"each tile of {reader.name} needs the statistics of all rows of {writer.name}", "high"
        )
    if first.rows and reader.rules.family == "contraction":
        return _normalized_operand(first, writer, second, again, what, machine)
    if again > 1:
        few = ideal_bound(Group.of(graph, second.products), machine) == "memory"
        return Judgement(
            "IF",
            f"{writer.name} would be computed again by each of the {again} tiles that load the same {what}",
            "moderate",
            "the product is bound by memory, so that this arithmetic is hidden",
            few,
        )
    return Judgement("FUSE", f"computed once, while the product loads its {what}", "moderate")


def _normalized_operand(
    first: Group, writer: Operation, second: Group, again: int, what: str, machine: Machine
) -> Judgement:
    """A row operation before a product, which needs the statistics of whole rows before it multiplies."""
    graph, row = first.graph, first.rows[-1]
    source = graph.tensors[row.inputs[0]]
    rows = min(OPERAND_ROWS, source.elements // source.shape[-1])
    needed = rows * source.shape[-1] * source.bytes / source.elements
    held = needed <= machine.target.limits.shared_bytes_per_cta
    if not held and "norm" not in row.kind:
        return Judgement(
            "DO NOT FUSE",
            f"{row.name} must know whole rows before the product begins, and {rows} rows of {source.shape[-1]} elements do "
            "not fit in shared memory",
            "high",
        )
    if again == 1 and held:
        return Judgement("FUSE", f"computed once, while the product loads its {what}", "moderate")
    few = ideal_bound(Group.of(graph, second.products), machine) == "memory"
    beside = f"each of the {again} tiles beside each other loads the same {what} and would compute {writer.name} again"
    whole = f"a CTA holds {rows} rows of {source.shape[-1]} elements until {writer.name} is computed"
    folded = ", or the normalization is folded into the weights" if "norm" in row.kind else ""
    return Judgement(
        "IF",
        beside if again > 1 else whole,
        "moderate",
        f"the batch is small, so that the product is bound by reading its weights{folded}",
        few and held,
    )


def _two_products(graph: Graph, reader: Operation, memory: str, name: str, machine: Machine) -> Judgement:
    if reader.rules.family not in ("contraction", "attention"):
        return Judgement(
            "DO NOT FUSE",
            f"{reader.name} belongs to the epilogue of another product; a CTA computes tiles of one",
            "high",
        )
    if reader.rules.family == "attention":
        return Judgement("DO NOT FUSE", f"a CTA of {reader.name} reads what many CTAs of the product compute", "high")
    columns = graph.shape(name)[-1]
    first_operand = graph.memory(reader.inputs[0]) == memory
    along = _along_rows(graph, name)
    if columns <= TILE_COLUMNS and reader.rules.family == "contraction" and first_operand and along:
        weights = 2 * columns * graph.shape(reader.outputs[0])[-1]
        return Judgement(
            "IF",
            f"a tile holds whole rows of {columns} elements, and can be an operand of the next product",
            "high",
            "the weights of the second product fit in shared memory beside the tile",
            weights <= machine.target.limits.shared_bytes_per_cta // 2,
        )
    return Judgement(
        "DO NOT FUSE",
        f"a tile of {reader.name} needs whole rows of {columns} elements, which many CTAs compute",
        "high",
    )
