"""What computes a group: a bundled kernel with the sizes of the group, or a formula for ``ptxkit new --expression``."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ptxkit.bench.results.results import BASELINE
from ptxkit.errors import UsageError
from ptxkit.expression.operations import OPERATIONS, REDUCTIONS
from ptxkit.expression.syntax import RESERVED, parse
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import Graph, Operation
from ptxkit.fusion.kernels import groups, uses
from ptxkit.fusion.kinds import DEFAULTS
from ptxkit.fusion.layout import View
from ptxkit.fusion.use import Use
from ptxkit.targets.target import Target, missing
from ptxkit.workload import registry

TANH = "with gelu by tanh, which differs from gelu by erf by at most 0.0005"
STATED = ("dtype", "activation", "output", "scale")  # options that are stated where they have their defaults, too
LONGEST = 1000  # characters of a formula, in which a value that is used twice is written twice
LARGEST = 1e30  # of the constants in a formula, far enough below the largest number of f32
INFIX = {o.word: sign for sign, o in OPERATIONS.items() if not sign.isalpha()}


@dataclass(frozen=True)
class Offer:
    """What computes a group.

    Attributes:
        command: that runs it, or writes it.
        kernel: name of the bundled kernel; "" for a formula.
        sizes: sizes and options of the bundled kernel.
        formula: for ``ptxkit new --expression``; "" for a bundled kernel.
        note: how constant inputs must be stored for the kernel, and how its result may differ; "" for neither.
    """

    command: str
    kernel: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    formula: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The command, with the note."""
        return f"{self.command} ({self.note})" if self.note else self.command


def offer(group: Group, target: Target | None = None) -> Offer | None:
    """The bundled kernel that computes a group exactly, else a formula, else None.

    Args:
        target: that the kernel must have a fused variant for; None for any.
    """
    return _with_remark(group, _bundled_offer(group, target) or _formula_offer(group))


def _with_remark(group: Group, found: Offer | None) -> Offer | None:
    """The offer with a note where its gelu is another formula than that of the group."""
    exact = any(o.kind == "gelu" and o.attributes.get("approximate", "tanh") != "tanh" for o in group.operations)
    if found is None or not exact:
        return found
    return replace(found, note="; ".join(note for note in (found.note, TANH) if note))


def bundled(graph: Graph, target: Target | None = None) -> list[tuple[Group, Offer]]:
    """The largest groups of several operations of a graph that bundled kernels compute, in one launch or in several.

    Args:
        target: see :func:`offer`.
    """
    found = [(group, offered) for group in groups(graph) if (offered := _with_remark(group, _bundled_offer(group, target)))]
    largest = [(group, offered) for group, offered in found if not any(group.names < other.names for other, _ in found)]
    return sorted(largest, key=lambda pair: graph.order[pair[0].operations[0].name])


def _bundled_offer(group: Group, target: Target | None) -> Offer | None:
    for use in uses(group):
        if _permitted(use, target):
            words = [use.kernel, *map(str, use.sizes.values())]
            kernel = registry.get(use.kernel)
            stated = {k: v for k, v in use.options.items() if v != getattr(kernel, k) or (k in STATED and v != "none")}
            for option, value in stated.items():
                words += ["--option", f"{option}={str(value).lower() if isinstance(value, bool) else value}"]
            return Offer("ptxkit run " + " ".join(words), use.kernel, {**use.sizes, **stated}, note=use.note)
    return None


def _permitted(use: Use, target: Target | None) -> bool:
    """Whether the kernel exists, takes these sizes and options, and has a fused variant for the target."""
    if use.kernel not in registry.names():
        return False
    try:
        registry.get(use.kernel)(**use.sizes, **use.options)
    except UsageError:  # DescriptionError, too: a size or dtype that the kernel does not support
        return False
    return target is None or bool(fused_variants(use.kernel, target))


def fused_variants(kernel: str, target: Target) -> list[str]:
    """The names of the variants of a kernel that a target has, without its unfused baseline."""
    variants = registry.get(kernel).variants().values()
    return [v.name for v in variants if v.name != BASELINE and missing(v.requires, target) is None]


def _formula_offer(group: Group) -> Offer | None:
    """A formula for ``ptxkit new --expression``, where all operations can be written in one."""
    writes = list(group.writes())
    graph = group.graph
    if len(writes) != 1 or group.families - {"elementwise", "row"} or not group.operations:
        return None
    shape = graph.shape(writes[0])
    if not shape or group.writes()[writes[0]] != graph.tensors[writes[0]].bytes:
        return None
    dtypes = {graph.tensors[name].dtype for name in (*group.reads(), *group.results)}
    if len(dtypes) != 1 or not dtypes & {"f32", "f16", "bf16"}:
        return None
    writer = _Formula(group, shape)
    try:
        text = writer.value(writes[0])
        parse(text, columns=tuple(writer.columns), arrays=tuple(writer.arrays))
    except (_Unwritable, UsageError):
        return None
    words = [f"--expression {shlex.quote(text)}"]
    words += [f"--column {name}" for name in writer.columns] + [f"--array {name}" for name in writer.arrays]
    name = "_".join(dict.fromkeys(re.sub(r"\W", "_", operation.kind) for operation in group.operations))[:40]
    return Offer(f"ptxkit new fused_{name} {' '.join(words)}", formula=text)


def _number(value: float) -> str:
    """A number as a formula has it: 1e-6 instead of 1e-06."""
    return re.sub(r"e([+-])0+", r"e\1", repr(value))


class _Unwritable(Exception):
    """A value cannot be written as a formula."""


class _Formula:
    """Writes values of a group as formulas.

    Attributes:
        columns, arrays: the names of inputs with one value for each column, and for each element.
    """

    def __init__(self, group: Group, shape: tuple[int, ...]) -> None:
        self.graph, self.shape = group.graph, shape
        self.columns: list[str] = []
        self.arrays: list[str] = []
        self._names: dict[View, str] = {}
        self._inside = {o.outputs[0]: o for o in group.operations}

    def value(self, name: str) -> str:
        memory = self.graph.memory(name)
        if memory != name and memory in self._inside:
            raise _Unwritable  # another shape of a value
        operation = self._inside.get(name)
        text = self._input(name) if operation is None else self._operation(operation)
        if len(text) > LONGEST:
            raise _Unwritable
        return text

    def _input(self, name: str) -> str:
        layout, shape = self.graph.layouts[name], self.graph.shape(name)
        if layout is None or not layout.contiguous:
            raise _Unwritable  # a transposed array, or a part of its rows, which the kernel of a formula cannot read
        layout = View(layout.memory, layout.offset, (layout.order,))  # whatever the shape
        if layout in self._names:
            return self._names[layout]
        if any(layout.memory == other.memory for other in self._names):
            raise _Unwritable  # parts that overlap, or follow each other
        word = re.sub(r"\W", "_", name)
        if (
            not re.match(r"[A-Za-z]", word)
            or keyword.iskeyword(word)
            or word in RESERVED
            or word in REDUCTIONS
            or word in OPERATIONS
        ):
            word = f"in_{word}"
        if word in self._names.values():
            raise _Unwritable
        if shape == self.shape:
            self.arrays.append(word)
        elif len(self.shape) > 1 and shape[-1:] == self.shape[-1:] and self.graph.tensors[name].elements == shape[-1]:
            self.columns.append(word)
        else:
            raise _Unwritable
        self._names[layout] = word
        return word

    def _operation(self, operation: Operation) -> str:
        kind, operands = operation.kind, [self.value(name) for name in operation.inputs]
        if "value" in operation.attributes:
            value = operation.attributes["value"]
            # results of finite numbers would be infinite, which `ptxkit new` refuses
            if abs(value) > LARGEST or (kind == "divide" and abs(value) < 1 / LARGEST):
                raise _Unwritable
            operands.append(_number(value))
        if kind in INFIX and len(operands) == 2:
            return f"({operands[0]} {INFIX[kind]} {operands[1]})"
        if operation.rules.family == "row" and self.graph.shape(operation.inputs[0])[-1:] != self.shape[-1:]:
            raise _Unwritable  # rows of another length
        x, *rest = operands
        given = {**DEFAULTS.get(kind, {}), **operation.attributes}
        weights = "".join(f" {sign} {w}" for sign, w in zip("*+", rest, strict=False))
        if kind == "layernorm":
            centred = f"({x} - mean({x}))"
            return f"({centred} * rsqrt(mean(square({centred})) + {_number(given['eps'])}){weights})"
        if kind == "rmsnorm":
            return f"({x} * rsqrt(mean(square({x})) + {_number(given['eps'])}){weights})"
        if kind == "l2norm":
            return f"({x} / sqrt(sum(square({x})) + {_number(given['eps'])}))"
        if kind == "dropout" and given["p"] != DEFAULTS["dropout"]["p"]:
            raise _Unwritable  # the probability is an option of the kernel that is written
        if kind == "softmax":
            return f"(exp({x} - max({x})) / sum(exp({x} - max({x}))))"
        if kind == "variance":
            return f"mean(square({x} - {rest[0] if rest else f'mean({x})'}))"
        if kind == "fma" and len(operands) == 3:
            return f"({operands[0]} * {operands[1]} + {operands[2]})"
        if kind in REDUCTIONS or kind == "dropout" or kind in {o.word for o in OPERATIONS.values()} - set(INFIX):
            return f"{kind}({', '.join(operands)})"
        raise _Unwritable
