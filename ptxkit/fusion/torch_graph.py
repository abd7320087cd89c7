"""Graphs captured from torch modules by ``torch.export``: the operations of ATen as kinds."""

from __future__ import annotations

import io
import logging
import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.fusion.aten import CONSTANTS, POINTWISE, translated
from ptxkit.fusion.aten_call import Call, Named, Unknown
from ptxkit.fusion.graph import Graph, GraphBuilder, Operation
from ptxkit.fusion.tensors import SPELLINGS


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
        with _quiet():
            program = torch.export.export(made.eval(), tuple(examples))
    except Exception as error:  # torch raises many kinds of exceptions for modules that it cannot capture
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"torch.export cannot capture the module: {type(error).__name__}: {first}") from error
    return _Capture(program, name).graph()


@contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what torch.export logs and writes to stderr about an error that it then raises."""
    before, written = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(written):
            yield
    finally:
        logging.disable(before)
    sys.stderr.write(written.getvalue())  # no error: what the module itself writes


class _Capture:
    """Translates an exported program, node by node."""

    def __init__(self, program: Any, name: str) -> None:
        self.program, self.builder = program, GraphBuilder(name)
        self.values: dict[Any, Any] = {}  # node -> names of tensors, or None for what is no tensor
        self.unknown: dict[str, None] = {}  # operations of which only the shapes are known, in their order
        self.writing: dict[str, None] = {}  # operations that write to views, in their order

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
        wanted = [name for name in dict.fromkeys(outputs) if name in computed]
        return self.builder.graph(wanted, self._remarks(), unread_views=False)

    def _remarks(self) -> Iterator[str]:
        if self.unknown:
            names = ", ".join(self.unknown)
            yield f"Of {names} only the shapes are known: bytes are counted, no flops, and nothing is fused with them."
        if self.writing:
            names = ", ".join(self.writing)
            yield f"What {names} writes to a view is not in the tensor that later operations read."

    def _input(self, node: Any) -> str | None:
        value = node.meta.get("val")
        return None if not hasattr(value, "dtype") else Named(self.builder.input(node.name, *_facts(value)))

    def _call(self, node: Any) -> Any:
        if node.target is operator.getitem:
            source = self.values[node.args[0]]
            return source[node.args[1]] if isinstance(source, tuple) else source
        value = node.meta.get("val")
        several = isinstance(value, (tuple, list))
        results = list(value) if several else [value]
        tensors = [result for result in results if hasattr(result, "dtype")]
        if not tensors:
            return None  # sizes, symbols, assertions
        call = self._described(node, tensors)
        if not several and (not call.tensors or call.word in CONSTANTS):
            return Named(self.builder.input(node.name, *_facts(value)))  # constants, such as arange and full
        found = self._translated(call)
        if not several:
            return Named(found)
        names = iter(found if isinstance(found, tuple) else (found,))
        return tuple(Named(next(names)) if hasattr(result, "dtype") else None for result in results)

    def _described(self, node: Any, results: list[Any]) -> Call:
        """The call of a node, with the names of tensors in place of nodes."""
        import torch

        schema = getattr(node.target, "_schema", None)
        if schema is None:  # a function of torch that is no operation, such as those of vmap
            target = getattr(node.target, "__name__", str(node.target))
            word, defaults, written = target, {f"argument{i}": None for i in range(len(node.args))}, []
        else:
            target = str(node.target).removesuffix(".default")
            word = str(node.target).split(".")[1].strip("_")  # in-place and internal forms compute the same
            defaults = {p.name: p.default_value if p.has_default_value() else None for p in schema.arguments}
            written = [p.name for p in schema.arguments if p.alias_info is not None and p.alias_info.is_write]
        given = dict(zip(defaults, node.args, strict=False)) | dict(node.kwargs)
        arguments = {name: self._value(value) for name, value in given.items()}
        if any(self._is_view(arguments[name]) for name in written if name in arguments):
            self.writing[target] = None
        call = Call(word, node.name, arguments, defaults, target)
        call.results = [_facts(result) for result in results]
        tagged = torch.Tag.pointwise in getattr(node.target, "tags", ()) or word in POINTWISE
        call.pointwise = tagged and len(results) == 1
        return call

    def _value(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._value(item) for item in value]
        return self.values.get(value) if hasattr(value, "op") else value

    def _is_view(self, value: Any) -> bool:
        """Whether a tensor is a view. What is written to another one is read as the result of the operation."""
        writer = self._writer(value)
        return writer is not None and writer.rules.family == "view"

    def _writer(self, value: Any) -> Operation | None:
        """The operation whose result a tensor is; None for an input."""
        return next((o for o in self.builder.operations if value in o.outputs), None)

    def _translated(self, call: Call) -> Any:
        before = len(self.builder.operations)
        with suppress(Unknown, UsageError):
            found = translated(call, self)
            names = found if isinstance(found, tuple) else (found,)
            if [list(self.shape(name)) for name in names] == [shape for shape, _ in call.results]:
                return found
        self.builder.keep(before)
        if call.pointwise:
            with suppress(UsageError):
                return self.builder.operation(
                    "pointwise", *call.tensors, name=call.name, function=call.word, dtype=call.dtype
                )
        self.unknown[call.target] = None
        shapes, dtypes = zip(*call.results, strict=True)
        tensors = list(dict.fromkeys(call.tensors))
        try:
            return self.builder.operation("other", *tensors, name=call.name, shapes=shapes, dtypes=dtypes, what=call.word)
        except UsageError as error:
            raise UsageError(f"{call.target}: {error}; describe the graph in JSON instead") from None

    # what a translation needs, see ptxkit.fusion.aten_call.Values

    def add(self, call: Call, kind: str, *inputs: str, **attributes: Any) -> Any:
        return self.builder.operation(kind, *inputs, name=call.name, **attributes)

    def part(self, call: Call, suffix: str, kind: str, *inputs: str, **attributes: Any) -> Any:
        return self.builder.operation(kind, *inputs, name=f"{call.name}_{suffix}", **attributes)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.builder.shape(tensor)

    def dtype(self, tensor: str) -> str:
        return self.builder.tensor(tensor).dtype

    def permuted(self, tensor: str) -> bool:
        writer = self._writer(tensor)
        return writer is not None and writer.kind == "permute"


def _facts(value: Any) -> tuple[list[int], str]:
    """Shape and dtype of a torch tensor; a number counts as one element."""
    try:
        shape = [int(extent) for extent in value.shape]
    except Exception as error:  # torch raises its own kinds for sizes that depend on data
        raise UsageError(f"a tensor has the shape {tuple(value.shape)}, which depends on the values of another") from error
    dtype = str(value.dtype).removeprefix("torch.")
    return shape or [1], SPELLINGS.get(dtype, dtype)
