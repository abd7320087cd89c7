"""Graphs from files: JSON, or Python that builds one or has a torch module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptxkit.errors import DescriptionError, PtxkitError, UnavailableError, UsageError
from ptxkit.files import read_text
from ptxkit.fusion.graph import Graph, GraphBuilder
from ptxkit.workload.blame import mistake, place, short
from ptxkit.workload.helper_modules import beside
from ptxkit.workload.workload import suggestion

TENSOR_KEYS = ("shape", "dtype")
OPERATION_KEYS = ("name", "kind", "inputs", "outputs", "attributes")
GRAPH_KEYS = ("name", "inputs", "operations", "outputs", "repeat")


def read_graph(path: str | Path) -> Graph:
    """The graph of a ``.json`` file, or of a ``.py`` file (see :func:`from_python`).

    Raises:
        UsageError: no such file, or no graph; the message names the file and the operation or tensor, or the line.
        UnavailableError: a torch module, but torch is not installed.
    """
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"{path} is a directory; give a .json or .py file")
    if not file.is_file():
        raise UsageError(f"there is no file {path}")
    if file.suffix == ".json":
        try:
            return from_json(_parsed(file), file.name)
        except UsageError as error:
            text = str(error).removeprefix(f"{file.name}: ")
            raise UsageError(text if text.startswith(str(file)) else f"{file}: {text}") from None
    if file.suffix == ".py":
        return from_python(file)
    raise UsageError(f"{path} is no graph; give a .json or .py file, or --model")


def _parsed(file: Path) -> Any:
    text = read_text(file)
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, file))
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}:{error.lineno}: not JSON: {error.msg}") from None
    except ValueError:  # of Python's limit for the digits of an integer
        raise UsageError(f"{file}: there is an integer of thousands of digits") from None
    except RecursionError:
        raise UsageError(f"{file}: nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]], file: Path) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise UsageError(f"{file}: {twice!r} occurs twice in an object")
    return found


def from_json(value: Any, name: str = "graph") -> Graph:
    """The graph of JSON values.

    ``inputs`` maps names to ``{"shape": [...], "dtype": "bf16"}``; ``operations`` is a list of objects with ``kind``,
    ``inputs`` and optionally ``name``, ``outputs`` and ``attributes``, each after those whose results it reads.

    Raises:
        UsageError: something is missing, unknown or does not fit; the message names it.
    """
    graph = _object(value, "the graph", GRAPH_KEYS, ("inputs", "operations"))
    title = graph.get("name", name)
    if not isinstance(title, str) or not title.strip():
        raise UsageError(f"{name}: the name of the graph must be a text, not {short(title)}")
    builder = GraphBuilder(title, graph.get("repeat", 1))
    if not isinstance(graph["inputs"], Mapping):
        raise UsageError(f"{name}: inputs must be an object of name and tensor")
    for tensor, facts in graph["inputs"].items():
        known = _object(facts, f"input {tensor!r}", TENSOR_KEYS, TENSOR_KEYS)
        builder.input(tensor, known["shape"], known["dtype"])
    operations = graph["operations"]
    if not isinstance(operations, list):
        raise UsageError(f"{name}: operations must be a list")
    for i, each in enumerate(operations):
        where = f"operation {i + 1}"
        operation = _object(each, where, OPERATION_KEYS, ("kind", "inputs"))
        attributes = operation.get("attributes", {})
        if not isinstance(attributes, Mapping) or {"name", "outputs"} & set(attributes):
            raise UsageError(f"{where}: attributes must be an object, without name and outputs")
        stated = operation.get("name", "")
        if not isinstance(stated, str) or not isinstance(operation["kind"], str):
            raise UsageError(f"{where}: name and kind must be texts")
        inputs, outputs = (_texts(operation.get(key, []), f"{where}: {key}") for key in ("inputs", "outputs"))
        builder.operation(operation["kind"], *inputs, name=stated, outputs=outputs, **attributes)
    return builder.graph(_texts(graph.get("outputs", []), f"{name}: outputs"))


def _object(value: Any, what: str, keys: tuple[str, ...], needed: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} must be an object, not {short(value)}")
    for key in value:
        if key not in keys:
            raise UsageError(f"{what} has the unknown key {key!r}; {suggestion(str(key), keys)}")
    for key in needed:
        if key not in value:
            raise UsageError(f"{what} lacks {key!r}")
    return value


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{what} must be a list of names, not {short(value)}")
    return value


def from_python(file: Path) -> Graph:
    """The graph of a Python file that defines one of these.

    - ``graph``: a :class:`Graph`, or a function without parameters that returns one
    - ``module`` and ``inputs``: a torch module and a tuple of example inputs, or functions that return them; the module is
      captured by ``torch.export``

    Raises:
        UsageError: the file defines neither.
        DescriptionError: the file, or a function in it, raises an exception; the message has its line.
        UnavailableError: a torch module, but torch is not installed.
    """
    text = read_text(file)
    names: dict[str, Any] = {"__name__": f"_ptxkit_{file.stem}", "__file__": str(file.resolve())}

    def called(value: Any, plain: type) -> Any:
        return value() if callable(value) and not isinstance(value, plain) else value

    try:
        with beside(file.resolve()):
            exec(compile(text, str(file.resolve()), "exec", dont_inherit=True), names)
            if "graph" in names:
                found = called(names["graph"], Graph)
            elif "module" in names and "inputs" in names:
                from ptxkit.fusion.torch_graph import captured

                found = captured(names["module"], names["inputs"], file.stem)
            else:
                raise UsageError(f"{file} defines neither graph, nor module and inputs")
    except (UsageError, DescriptionError) as error:
        raise type(error)(_located(error, file)) from None
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise DescriptionError(f"{place(error, file.resolve())}: {mistake(error)}") from error
        raise UnavailableError(f"{place(error, file.resolve())}: torch is not installed; pip install torch") from None
    except (PtxkitError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise DescriptionError(f"{place(error, file.resolve())}: {mistake(error)}") from error
    if not isinstance(found, Graph):
        raise UsageError(f"{file}: graph must be a Graph, such as GraphBuilder.graph() returns, not {short(found)}")
    return found


def _located(error: Exception, file: Path) -> str:
    """The message with the line of the user's file, where the error came from there."""
    where = place(error, file.resolve())
    return str(error) if str(error).startswith(str(file)) else f"{where}: {error}"
