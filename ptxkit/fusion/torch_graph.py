"""Graphs captured from torch modules by ``torch.export``: the operations of ATen as kinds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.fusion.graph import Graph, GraphBuilder
from ptxkit.fusion.tensors import SPELLINGS

UNARY = {
    "gelu": "gelu",
    "silu": "silu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "neg": "negative",
    "abs": "abs",
    "sin": "sin",
    "cos": "cos",
    "clamp": "clamp",
    "round": "round",
    "dropout": "dropout",
}
BINARY = {"add": "add", "sub": "subtract", "rsub": "subtract", "mul": "multiply", "div": "divide", "where": "where"}
VIEWS = {
    "view",
    "reshape",
    "unsafe_view",
    "unsqueeze",
    "squeeze",
    "flatten",
    "unflatten",
    "expand",
    "alias",
    "detach",
    "select",
    "slice",
}
SAME = {"contiguous", "clone", "to", "to_copy", "dropout"}


def captured(module: Any, inputs: Any, name: str) -> Graph:
    """The graph of a torch module.

    Args:
        module: a ``torch.nn.Module``, or a function that returns one.
        inputs: a tuple of example inputs, or a function that returns one.
        name: of the graph.

    Raises:
        UnavailableError: torch is not installed.
        UsageError: the module cannot be exported, or uses an operation that is not known here.
    """
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"torch is needed to capture a module ({error}); pip install torch") from None
    made = module if isinstance(module, torch.nn.Module) else module() if callable(module) else module
    examples = inputs() if callable(inputs) else inputs
    if not isinstance(made, torch.nn.Module):
        raise UsageError(f"module must be a torch.nn.Module, or a function that returns one, not {type(made).__name__}")
    if isinstance(examples, torch.Tensor):
        examples = (examples,)
    if not isinstance(examples, (tuple, list)):
        raise UsageError(f"inputs must be a tuple of tensors, not {type(examples).__name__}")
    try:
        program = torch.export.export(made.eval(), tuple(examples))
    except Exception as error:  # torch raises many kinds of exceptions for modules that it cannot capture
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"torch.export cannot capture the module: {type(error).__name__}: {first}") from error
    return _Capture(program, name).graph()


class _Capture:
    """Translates an exported program, node by node."""

    def __init__(self, program: Any, name: str) -> None:
        self.program, self.builder = program, GraphBuilder(name)
        self.values: dict[Any, Any] = {}  # node -> names of tensors, or None for what is no tensor

    def graph(self) -> Graph:
        outputs: list[str] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._input(node)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                flat = node.args[0] if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
                outputs = [self.values[item] for item in flat if isinstance(self.values.get(item), str)]
        computed = {name for operation in self.builder.operations for name in operation.outputs}
        return self.builder.graph([name for name in dict.fromkeys(outputs) if name in computed])

    def _input(self, node: Any) -> str | None:
        value = node.meta.get("val")
        return None if not hasattr(value, "dtype") else self.builder.input(node.name, *_facts(value))

    def _call(self, node: Any) -> Any:
        if node.target is operator.getitem:
            source = self.values[node.args[0]]
            return source[node.args[1]] if isinstance(source, tuple) else source
        word = str(node.target).split(".")[1] if str(node.target).count(".") else str(node.target)
        word = word.strip("_")  # in-place and internal forms compute the same
        value = node.meta.get("val")
        if not isinstance(value, (tuple, list)) and not hasattr(value, "dtype"):
            return None  # sizes, symbols, assertions
        tensors = [
            self.values[arg] for arg in node.args if hasattr(arg, "op") and isinstance(self.values.get(arg), str)
        ]
        if word in SAME and tensors and self._same(node, tensors[0]):
            return tensors[0]
        translate: Callable[..., Any] | None = getattr(self, f"_{word}", None) if word.isidentifier() else None
        if word in UNARY:
            return self._add(node, UNARY[word], tensors[0])
        if word in BINARY:
            return self._binary(node, BINARY[word], tensors)
        if word in VIEWS:
            return (
                self._add(node, "reshape", tensors[0], shape=list(value.shape))
                if self._fits(tensors[0], value)
                else self._view(node, tensors[0])
            )
        if translate is not None:
            return translate(node, tensors)
        if not tensors:
            return self.builder.input(node.name, *_facts(value))  # constants, such as arange and full
        raise UsageError(f"the module uses {node.target}, which is not known here; describe the graph in JSON instead")

    def _add(self, node: Any, kind: str, *inputs: str, **attributes: Any) -> Any:
        if (
            kind not in ("reshape", "permute", "chunk", "split", "concat", "gather", "column_sum")
            and "dtype" not in attributes
        ):
            value = node.meta["val"]
            attributes["dtype"] = _facts(value[0] if isinstance(value, (tuple, list)) else value)[1]
        return self.builder.operation(kind, *inputs, name=node.name, **attributes)

    def _same(self, node: Any, source: str) -> bool:
        """Whether a node changes neither values nor layout of its input."""
        if any(source in operation.outputs and operation.kind == "permute" for operation in self.builder.operations):
            return False
        shape, dtype = _facts(node.meta["val"])
        tensor = self.builder.tensor(source)
        return tensor.shape == tuple(shape) and tensor.dtype == SPELLINGS.get(dtype, dtype)

    def _fits(self, source: str, value: Any) -> bool:
        return self.builder.tensor(source).elements == int(value.numel())

    def _view(self, node: Any, source: str) -> str:
        """A view of a part, or with repeated elements: an input of its own, since its memory is read elsewhere anyway."""
        return self.builder.input(node.name, *_facts(node.meta["val"]))

    def _binary(self, node: Any, kind: str, tensors: list[str]) -> Any:
        numbers = [arg for arg in node.args if isinstance(arg, (int, float)) and not isinstance(arg, bool)]
        if len(tensors) == (3 if kind == "where" else 2):
            return self._add(node, kind, *tensors)
        return self._add(node, kind, *tensors, value=numbers[0] if numbers else 0)

    def _pow(self, node: Any, tensors: list[str]) -> Any:
        if len(node.args) > 1 and node.args[1] == 2:
            return self._add(node, "square", tensors[0])
        return self._add(node, "power", *tensors, **({} if len(tensors) > 1 else {"value": float(node.args[1])}))

    def _masked_fill(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "where", *tensors[:2], value=0)

    def _to(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "cast", tensors[0])

    _to_copy = _to

    def _clone(self, node: Any, tensors: list[str]) -> Any:
        return self.builder.operation("copy", tensors[0], name=node.name)

    _contiguous = _clone

    def _linear(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "linear", *tensors)

    def _addmm(self, node: Any, tensors: list[str]) -> Any:
        product = self.builder.operation("matmul", tensors[1], tensors[2], name=f"{node.name}_product")
        return self._add(node, "add", product, tensors[0])

    def _matmul(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "matmul", *tensors)

    _mm = _bmm = _matmul

    def _layer_norm(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "layernorm", *tensors)

    def _rms_norm(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "rmsnorm", *tensors)

    def _softmax(self, node: Any, tensors: list[str]) -> Any:
        axis = node.args[1]
        if axis not in (-1, len(self.builder.shape(tensors[0])) - 1):
            raise UsageError(f"{node.name}: softmax along axis {axis}; only the last axis is known here")
        return self._add(node, "softmax", tensors[0])

    def _reduced(self, node: Any, tensors: list[str], kind: str) -> Any:
        axes = node.args[1] if len(node.args) > 1 else None
        axes = [axes] if isinstance(axes, int) else axes
        last = len(self.builder.shape(tensors[0])) - 1
        if axes is None or list(axes) not in ([-1], [last]):
            raise UsageError(f"{node.name}: {kind} along {axes}; only the last axis is known here")
        kept = self.builder.operation(kind, tensors[0], name=f"{node.name}_kept")
        return self.builder.operation("reshape", kept, name=node.name, shape=list(node.meta["val"].shape) or [1])

    def _sum(self, node: Any, tensors: list[str]) -> Any:
        return self._reduced(node, tensors, "sum")

    def _mean(self, node: Any, tensors: list[str]) -> Any:
        return self._reduced(node, tensors, "mean")

    def _amax(self, node: Any, tensors: list[str]) -> Any:
        return self._reduced(node, tensors, "max")

    def _scaled_dot_product_attention(self, node: Any, tensors: list[str]) -> Any:
        causal = bool(node.kwargs.get("is_causal") or (len(node.args) > 5 and node.args[5]))
        return self._add(node, "attention", *tensors[:3], causal=causal)

    def _transpose(self, node: Any, tensors: list[str]) -> Any:
        axes = list(range(len(self.builder.shape(tensors[0]))))
        a, b = node.args[1:3]
        axes[a], axes[b] = axes[b], axes[a]
        return self._add(node, "permute", tensors[0], axes=axes)

    def _t(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "permute", tensors[0], axes=list(reversed(range(len(self.builder.shape(tensors[0]))))))

    def _permute(self, node: Any, tensors: list[str]) -> Any:
        rank = len(self.builder.shape(tensors[0]))
        return self._add(node, "permute", tensors[0], axes=[axis % rank for axis in node.args[1]])

    def _parts(self, node: Any, tensors: list[str]) -> Any:
        values = node.meta["val"]
        axis = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
        sizes = [int(value.shape[axis]) for value in values]
        found = self.builder.operation("chunk", tensors[0], name=node.name, sizes=sizes, axis=axis)
        return found if isinstance(found, tuple) else (found,)

    _split = _split_with_sizes = _chunk = _parts

    def _cat(self, node: Any, tensors: list[str]) -> Any:
        names = [self.values[item] for item in node.args[0]]
        return self._add(node, "concat", *names, axis=node.args[1] if len(node.args) > 1 else 0)

    def _topk(self, node: Any, tensors: list[str]) -> Any:
        axis = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else -1)
        largest = node.kwargs.get("largest", node.args[3] if len(node.args) > 3 else True)
        if axis not in (-1, len(self.builder.shape(tensors[0])) - 1) or not largest:
            raise UsageError(f"{node.name}: only the largest elements along the last axis are known here")
        given: dict[str, Any] = {"k": int(node.args[1]), "scores": "none", "renormalize": False}
        places, values = self.builder.operation("top_k", tensors[0], name=node.name, **given)
        return values, places

    def _index(self, node: Any, tensors: list[str]) -> Any:
        indices = [self.values[item] for item in node.args[1] if item is not None]
        if len(node.args[1]) != 1 or len(indices) != 1 or not isinstance(indices[0], str):
            raise UsageError(f"{node.name}: only one tensor of indices, of the first axis, is known here")
        return self.builder.operation("gather", tensors[0], indices[0], name=node.name)

    def _embedding(self, node: Any, tensors: list[str]) -> Any:
        return self._add(node, "gather", tensors[0], tensors[1])


def _facts(value: Any) -> tuple[list[int], str]:
    """Shape and dtype of a torch tensor; a number counts as one element."""
    return [int(extent) for extent in value.shape] or [1], str(value.dtype).removeprefix("torch.")
