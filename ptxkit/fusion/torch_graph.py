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
from ptxkit.fusion.aten import CONSTANTS, FREE, POINTWISE, translated
from ptxkit.fusion.aten_call import Call, Named, Unknown
from ptxkit.fusion.captured_memory import CapturedMemory
from ptxkit.fusion.graph import Graph, GraphBuilder
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
        self.memory = CapturedMemory(self.builder)
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
                outputs = [found for item in flat if isinstance(found := self._value(item), str)]
        outputs += self.memory.written_inputs()
        computed = {name for operation in self.builder.operations for name in operation.outputs}
        wanted = [name for name in dict.fromkeys(outputs) if name in computed]
        return self.builder.graph(wanted, self._remarks(), self.memory.overwritten, unread_views=False)

    def _remarks(self) -> Iterator[str]:
        if self.unknown:
            names = ", ".join(self.unknown)
            yield f"Of {names} only the shapes are known: bytes are counted, no flops, and nothing is fused with them."
        if self.writing:
            names = ", ".join(self.writing)
            yield f"What {names} writes to a view or to several tensors is not in what later operations read."

    def _input(self, node: Any) -> str | None:
        value = node.meta.get("val")
        if not hasattr(value, "dtype"):
            return None
        self.memory.place(node.name, value)
        return Named(self.builder.input(node.name, *_facts(value)))

    def _call(self, node: Any) -> Any:
        if node.target is operator.getitem:
            source = self._value(node.args[0])
            return source[node.args[1]] if isinstance(source, tuple) else source
        value = node.meta.get("val")
        several = isinstance(value, (tuple, list))
        results = list(value) if several else [value]
        tensors = [result for result in results if hasattr(result, "dtype")]
        if not tensors:
            schema = getattr(node.target, "_schema", None)
            if schema is not None and any(p.alias_info is not None and p.alias_info.is_write for p in schema.arguments):
                self.writing[str(node.target).removesuffix(".default")] = None
            return None  # sizes, symbols, assertions
        call = self._described(node, tensors)
        if not several and (not call.tensors or call.word in CONSTANTS):
            self.memory.place(node.name, value)
            return Named(self.builder.input(node.name, *_facts(value)))  # constants, such as arange and full
        found = self._translated(call, tensors)
        names = found if isinstance(found, tuple) else (found,)
        for name, tensor in zip(names, tensors, strict=True):
            self.memory.place(name, tensor)
        for target in call.written:
            if several or not self.memory.write(target, found):
                self.writing[call.target] = None
        if not several:
            return Named(found)
        made = iter(names)
        return tuple(Named(next(made)) if hasattr(result, "dtype") else None for result in results)

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
        targets = [arguments[name] for name in written if isinstance(arguments.get(name), Named)]
        # a tensor that is only written, and its default
        outs = {p.name for p in schema.arguments if p.kwarg_only and p.name in written} if schema else set()
        arguments, defaults = ({n: v for n, v in d.items() if n not in outs} for d in (arguments, defaults))
        call = Call(word, node.name, arguments, defaults, target)
        call.written = targets
        storages = {_storage(item.meta["val"]) for item in node.all_input_nodes if hasattr(item.meta.get("val"), "dtype")}
        call.view = not written and all(_storage(result) in storages for result in results)
        call.results = [_facts(result) for result in results]
        tagged = torch.Tag.pointwise in getattr(node.target, "tags", ()) or word in POINTWISE
        call.pointwise = tagged and len(results) == 1
        return call

    def _value(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._value(item) for item in value]
        found = self.values.get(value) if hasattr(value, "op") else value
        if isinstance(found, tuple):
            return tuple(self._latest(item) for item in found)
        return self._latest(found)

    def _latest(self, found: Any) -> Any:
        return Named(self.memory.latest(found)) if isinstance(found, Named) else found

    def _translated(self, call: Call, results: list[Any]) -> Any:
        before = len(self.builder.operations)
        with suppress(Unknown, UsageError):
            found = translated(call, self)
            names = found if isinstance(found, tuple) else (found,)
            launched = any(o.rules.family != "view" for o in self.builder.operations[before:])
            same = [(list(self.shape(name)), self.dtype(name)) for name in names] == call.results
            free = call.word in FREE or any(self.attended(name) for name in call.tensors)
            if same and (launched or call.view or call.written or free):
                if not (launched and call.view):
                    return found
            elif same and len(names) == 1:
                return self.part(call, "copy", "copy", found)  # torch copies what a view could be
        self.builder.keep(before)
        if call.view:
            return self._strided(call, results)
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

    def _strided(self, call: Call, results: list[Any]) -> Any:
        """Views as torch has them in memory."""
        found = []
        for i, (result, (_, dtype)) in enumerate(zip(results, call.results, strict=True)):
            name = call.name if len(results) == 1 else f"{call.name}_{i}"
            source = call.tensors[i] if len(call.tensors) == len(results) else call.tensors[0]
            owner, attributes = self.memory.strided(source, result, dtype)
            try:
                found.append(self.builder.operation("strided", owner, name=name, **attributes))
            except UsageError as error:
                raise UsageError(f"{call.target}: {error}; describe the graph in JSON instead") from None
        return found[0] if len(found) == 1 else tuple(found)

    # what a translation needs, see ptxkit.fusion.aten_call.Values

    def add(self, call: Call, kind: str, *inputs: str, **attributes: Any) -> Any:
        return self.builder.operation(kind, *inputs, name=call.name, **attributes)

    def part(self, call: Call, suffix: str, kind: str, *inputs: str, **attributes: Any) -> Any:
        return self.builder.operation(kind, *inputs, name=f"{call.name}_{suffix}", **attributes)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.builder.shape(tensor)

    def dtype(self, tensor: str) -> str:
        return self.builder.tensor(tensor).dtype

    def constant(self, call: Call) -> str:
        return self.builder.input(f"{call.name}_value", [1], call.dtype)

    def attended(self, tensor: str) -> bool:
        turned, rank = self.memory.writer(tensor), len(self.shape(tensor))
        if turned is None or turned.kind != "permute" or rank < 3:
            return False
        source = self.memory.writer(turned.inputs[0])
        axes = [*range(rank - 3), rank - 2, rank - 3, rank - 1]
        return source is not None and source.kind == "attention" and list(turned.attributes["axes"]) == axes


def _storage(value: Any) -> Any:
    """What the tensors that share memory have in common."""
    return value.untyped_storage()._cdata


def _facts(value: Any) -> tuple[list[int], str]:
    """Shape and dtype of a torch tensor; a number counts as one element."""
    try:
        shape = [int(extent) for extent in value.shape]
    except Exception as error:  # torch raises its own kinds for sizes that depend on data
        raise UsageError(f"a tensor has the shape {tuple(value.shape)}, which depends on the values of another") from error
    dtype = str(value.dtype).removeprefix("torch.")
    return shape or [1], SPELLINGS.get(dtype, dtype)
