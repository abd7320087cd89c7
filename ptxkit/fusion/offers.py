"""What computes a group: a bundled kernel with the sizes of the group, or a formula for ``ptxkit new --expression``."""

from __future__ import annotations

import keyword
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.expression.operations import OPERATIONS, REDUCTIONS
from ptxkit.expression.syntax import RESERVED, parse
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import Operation
from ptxkit.workload import registry

LONGEST = 1000  # characters of a formula, in which a value that is used twice is written twice
ACTIVATIONS = ("gelu", "silu", "relu")
INFIX = {o.word: sign for sign, o in OPERATIONS.items() if not sign.isalpha()}


@dataclass(frozen=True)
class Offer:
    """What computes a group.

    Attributes:
        command: that runs it, or writes it.
        kernel: name of the bundled kernel; "" for a formula.
        sizes: sizes and options of the bundled kernel.
        formula: for ``ptxkit new --expression``; "" for a bundled kernel.
    """

    command: str
    kernel: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    formula: str = ""


Sizes = tuple[str, dict[str, Any], dict[str, Any]]  # name, positional sizes, options


def offer(group: Group) -> Offer | None:
    """The bundled kernel that computes a group, else a formula, else None."""
    for match in PATTERNS:
        found = match(group)
        if found is not None and _registered(found):
            name, sizes, options = found
            words = [name, *map(str, sizes.values())]
            for option, value in options.items():
                words += ["--option", f"{option}={str(value).lower() if isinstance(value, bool) else value}"]
            return Offer("ptxkit run " + " ".join(words), name, sizes | options)
    return _formula_offer(group)


def _registered(found: Sizes) -> bool:
    """Whether a kernel exists and takes these sizes and options."""
    name, sizes, options = found
    if name not in registry.names():
        return False
    try:
        registry.get(name)(**sizes, **options)
    except UsageError:  # DescriptionError, too: a size or dtype that the kernel does not support
        return False
    return True


def _kinds(group: Group) -> list[str]:
    return [operation.kind for operation in group.operations]


def _matrix(group: Group, name: str) -> dict[str, Any]:
    shape = group.graph.shape(name)
    return {"rows": math.prod(shape[:-1]), "cols": shape[-1]}


def _dtype(group: Group, name: str) -> str:
    return group.graph.tensors[name].dtype


def _chained(group: Group) -> bool:
    """Whether each operation but the first one reads the result of the one before it as its first or second input."""
    return all(
        before.outputs[0] in map(group.graph.memory, after.inputs)
        for before, after in zip(group.operations, group.operations[1:], strict=False)
    )


def _norm(group: Group) -> Sizes | None:
    kinds, first = _kinds(group), group.operations[0]
    if not _chained(group) or len(kinds) > 2:
        return None
    sizes, dtype = _matrix(group, first.inputs[0]), {"dtype": _dtype(group, first.inputs[0])}
    if kinds[0] == "layernorm" and len(first.inputs) == 3 and (len(kinds) == 1 or kinds[1] in ("gelu", "relu")):
        return "layernorm", sizes, {"activation": kinds[1] if len(kinds) > 1 else "none"} | dtype
    if kinds == ["layernorm", "quantize_rows"] and len(first.inputs) == 3:
        return "layernorm_quantize", sizes, dtype
    if kinds == ["rmsnorm"] and len(first.inputs) == 2:
        return "rmsnorm", sizes, dtype
    if kinds in (["softmax"], ["softmax", "dropout"]):
        return "softmax", sizes, ({"p": 0.1} if len(kinds) > 1 else {}) | dtype
    if kinds == ["l2norm"] and dtype["dtype"] == "f32":
        return "fused_l2norm", sizes, {}
    return None


def _masked_softmax(group: Group) -> Sizes | None:
    operations = group.operations
    if _kinds(group) != ["multiply", "add", "softmax"] or not _chained(group):
        return None
    scores, mask = operations[0].inputs[0], operations[1].inputs[-1]
    if "value" not in operations[0].attributes or group.graph.shape(scores) != group.graph.shape(mask):
        return None
    options = {"scale": operations[0].attributes["value"], "dtype": _dtype(group, scores)}
    return "scale_mask_softmax", _matrix(group, scores), options


def _full(group: Group, operation: Operation) -> bool:
    """Whether all inputs of an operation have the shape of its result."""
    graph = group.graph
    return all(graph.shape(name) == graph.shape(operation.outputs[0]) for name in operation.inputs)


def _elementwise(group: Group) -> Sizes | None:
    operations, kinds = group.operations, _kinds(group)
    if not _chained(group):
        return None
    first = operations[0]
    dtype, n = _dtype(group, first.inputs[0]), {"n": group.graph.tensors[first.outputs[0]].elements}
    if kinds == ["silu", "multiply"] and _full(group, operations[1]):
        return "swiglu", _matrix(group, first.inputs[0]), {"dtype": dtype}
    if kinds == ["add", "dropout", "add"] and len(group.graph.shape(first.inputs[1])) == 1:
        return "bias_dropout_residual", _matrix(group, first.inputs[0]), {"dtype": dtype}
    if (
        len(kinds) == 2
        and kinds[0] == "add"
        and kinds[1] in ACTIVATIONS
        and _full(group, first)
        and len(first.inputs) == 2
    ):
        return "add_activation", n, {"activation": kinds[1], "dtype": dtype}
    if kinds == ["add", "multiply", "exp"] and operations[1].attributes.get("value") == 2 and dtype == "f32":
        return ("add_mul_exp", n, {}) if _full(group, first) and len(first.inputs) == 2 else None
    if kinds == ["quantize"] and dtype == "f32":
        return "quantize_int8", n, {}
    return None


def _biased_product(group: Group) -> Sizes | None:
    """A product with bias and GELU: the epilogue of the bundled products adds both."""
    kinds, product = _kinds(group), group.operations[0]
    if kinds[0] != "linear" or not _chained(group):
        return None
    rest = kinds[1:] if len(product.inputs) == 2 else ["add", *kinds[1:]]
    if rest != ["add", "gelu"]:
        return None
    if len(product.inputs) == 2 and len(group.graph.shape(group.operations[1].inputs[-1])) != 1:
        return None
    x, w = product.inputs[:2]
    dtype = _dtype(group, x)
    sizes = {"m": _matrix(group, x)["rows"], "n": group.graph.shape(w)[0], "k": group.graph.shape(w)[1]}
    name, options = ("matmul_wgmma", {}) if dtype == "bf16" else ("matmul_mma", {"dtype": dtype})
    return name, sizes, {"epilogue": "bias_gelu"} | options


def _attention(group: Group) -> Sizes | None:
    kinds, operations, graph = _kinds(group), group.operations, group.graph
    if kinds[0] == "matmul" and kinds[-1] == "matmul" and "softmax" in kinds and len(kinds) <= 4:
        if len(kinds) == 4 and "value" not in operations[1].attributes:
            return None
        q, keys = graph.shape(operations[0].inputs[0]), graph.shape(operations[0].outputs[0])[-1]
        dtype, causal = _dtype(group, operations[0].inputs[0]), False
    elif kinds == ["attention"]:
        q, keys = graph.shape(operations[0].inputs[0]), graph.shape(operations[0].inputs[1])[-2]
        dtype, causal = _dtype(group, operations[0].inputs[0]), bool(operations[0].attributes.get("causal"))
    else:
        return None
    if len(q) not in (3, 4):
        return None
    sizes = {"batch": q[0] if len(q) == 4 else 1, "heads": q[-3], "q": q[-2], "k": keys, "d": q[-1]}
    options: dict[str, Any] = {"causal": True} if causal else {}
    if kinds == ["attention"] and (shared := graph.shape(operations[0].inputs[1])[-3]) != q[-3]:
        options["kv_heads"] = shared
    return "attention", sizes, options | {"dtype": dtype}


PATTERNS: tuple[Callable[[Group], Sizes | None], ...] = (
    _norm,
    _masked_softmax,
    _elementwise,
    _biased_product,
    _attention,
)
"""Functions that recognise the operations of a bundled kernel, and return its name, sizes and options."""


def _formula_offer(group: Group) -> Offer | None:
    """A formula for ``ptxkit new --expression``, where all operations can be written in one."""
    writes = list(group.writes())
    graph = group.graph
    if len(writes) != 1 or group.families - {"elementwise", "row"} or not group.operations:
        return None
    shape = graph.shape(writes[0])
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
        self._names: dict[str, str] = {}
        self._inside = {o.outputs[0]: o for o in group.operations}

    def value(self, name: str) -> str:
        memory = self.graph.memory(name)
        if memory != name and (memory in self._inside or self.graph.shape(memory) != self.graph.shape(name)):
            raise _Unwritable  # another shape of a value
        operation = self._inside.get(name)
        text = self._input(name) if operation is None else self._operation(operation)
        if len(text) > LONGEST:
            raise _Unwritable
        return text

    def _input(self, name: str) -> str:
        if name in self._names:
            return self._names[name]
        shape = self.graph.shape(name)
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
        elif len(self.shape) > 1 and shape in ((self.shape[-1],), (1, self.shape[-1])):
            self.columns.append(word)
        else:
            raise _Unwritable
        self._names[name] = word
        return word

    def _operation(self, operation: Operation) -> str:
        kind, operands = operation.kind, [self.value(name) for name in operation.inputs]
        if "value" in operation.attributes:
            operands.append(repr(operation.attributes["value"]))
        if kind in INFIX and len(operands) == 2:
            return f"({operands[0]} {INFIX[kind]} {operands[1]})"
        x, *rest = operands
        weights = "".join(f" {sign} {w}" for sign, w in zip("*+", rest, strict=False))
        if kind == "layernorm":
            centred = f"({x} - mean({x}))"
            return f"({centred} * rsqrt(mean(square({centred})) + 1e-5){weights})"
        if kind == "rmsnorm":
            return f"({x} * rsqrt(mean(square({x})) + 1e-6){weights})"
        if kind == "l2norm":
            return f"({x} / norm({x}))"
        if kind == "softmax":
            return f"(exp({x} - max({x})) / sum(exp({x} - max({x}))))"
        if kind == "variance":
            return f"mean(square({x} - mean({x})))"
        if kind == "fma" and len(operands) == 3:
            return f"({operands[0]} * {operands[1]} + {operands[2]})"
        if kind in REDUCTIONS or kind == "dropout" or kind in {o.word for o in OPERATIONS.values()} - set(INFIX):
            return f"{kind}({', '.join(operands)})"
        raise _Unwritable
