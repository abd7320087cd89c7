"""Parsed modules as bytes, from which functions are read one by one when they are used.

The bytes hold the pickled head of the module, and for each function its pickled head and, compressed, its body. Reading a
module takes the time of its heads; the body of a function is read when one of its attributes is first used. A launch thus
reads the kernel that it starts and the functions that this kernel calls.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any

from ptxkit.isa import model
from ptxkit.isa.collection import without_collection
from ptxkit.isa.model import Function, Module

_BODY = ("registers", "instructions", "labels", "branch_targets", "prototypes")
"""The attributes of a function that are read when one of them is used."""
_PROTOCOL = 5
_LENGTH = struct.Struct("<Q")


class StoredFunction(Function):
    """A function whose body is read when it is used."""

    __slots__ = ("_body", "_symbols")
    _body: bytes
    _symbols: frozenset[str]

    def symbols(self) -> frozenset[str]:
        """See :meth:`Function.symbols`; reads no body."""
        return self._symbols

    def __getattr__(self, name: str) -> Any:
        # called only for slots without a value
        if name not in _BODY:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        with without_collection():
            values = _read(zlib.decompress(self._body))
        for attribute, value in zip(_BODY, values, strict=True):
            object.__setattr__(self, attribute, value)
        return object.__getattribute__(self, name)


def to_bytes(module: Module) -> bytes:
    """The bytes that :func:`from_bytes` reads. The text and the path of the module are not part of them."""
    bodies = []
    heads = []
    with without_collection():
        for function in module.functions.values():
            body = tuple(getattr(function, name) for name in _BODY)
            bodies.append(zlib.compress(_written(body), 1))
            head = {f.name: getattr(function, f.name) for f in fields(Function) if f.name not in _BODY}
            heads.append({**head, "_symbols": tuple(function.symbols())})
        names, lengths = list(module.functions), [len(body) for body in bodies]
        first = _written((replace(module, functions={}, text="", path=""), names, heads, lengths))
    return b"".join([_LENGTH.pack(len(first)), first, *bodies])


def from_bytes(data: bytes, text: str, path: str) -> Module:
    """The module that :func:`to_bytes` wrote.

    Args:
        text: the PTX. path: where it came from, for messages.

    Raises:
        ValueError: these are not such bytes.
    """
    try:
        (size,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + size
        head, names, heads, lengths = _read(data[_LENGTH.size : at])
        functions: dict[str, Function] = {}
        for name, attributes, length in zip(names, heads, lengths, strict=True):
            functions[name] = _function(attributes, data[at : at + length])
            at += length
        module = replace(head, functions=functions, text=text, path=path)
    except (pickle.UnpicklingError, struct.error, EOFError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise ValueError(f"no stored module: {error}") from error
    if at != len(data) or not isinstance(module, Module):
        raise ValueError("no stored module: wrong length")
    return module


def _function(attributes: Mapping[str, Any], body: bytes) -> Function:
    function = object.__new__(StoredFunction)
    for name, value in attributes.items():
        object.__setattr__(function, name, value)
    object.__setattr__(function, "_symbols", frozenset(attributes["_symbols"]))
    object.__setattr__(function, "_body", body)
    return function


def _reducer(kind: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    """How to pickle a class of the model: as a call with its values, which is read several times faster than a state."""
    names = [f.name for f in fields(kind)]
    values: Callable[[Any], Any] = attrgetter(*names)
    if len(names) == 1:
        return lambda one: (kind, (values(one),))
    return lambda one: (kind, values(one))


_REDUCERS = copyreg.dispatch_table | {
    kind: _reducer(kind)
    for kind in vars(model).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == model.__name__
}


def _written(value: Any) -> bytes:
    out = io.BytesIO()
    pickler = pickle.Pickler(out, _PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return out.getvalue()


class _Reader(pickle.Unpickler):
    """Reads values of the model alone: other bytes cannot make it call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("ptxkit.isa.model", "ptxkit.isa.types") and not name.startswith("_"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a module")


def _read(data: bytes) -> Any:
    return _Reader(io.BytesIO(data)).load()
