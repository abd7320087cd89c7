"""A call of an operation of ATen: its arguments by the names of its schema, its results, and what a translation needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

IGNORED = ("memory_format", "layout", "device", "pin_memory", "non_blocking", "copy", "inplace")
"""Arguments that do not change the values of a result."""


class Unknown(Exception):
    """No kind computes what a call computes."""


class Values(Protocol):
    """What a translation needs of the graph that is built; names are those of tensors."""

    def add(self, call: Call, kind: str, *inputs: str, **attributes: Any) -> Any:
        """Add an operation with the name of the call."""

    def part(self, call: Call, suffix: str, kind: str, *inputs: str, **attributes: Any) -> Any:
        """Add an operation before the one that has the name of the call."""

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor."""

    def dtype(self, tensor: str) -> str:
        """Its type."""

    def constant(self, call: Call) -> str:
        """A new tensor of one element."""

    def attended(self, tensor: str) -> bool:
        """Whether it is a result of attention with the tokens before the heads, which is how the kernels write it."""


class Call:
    """A call of an operation, with its arguments by the names of its schema.

    Attributes:
        word: the name of the operation without namespace and overload. target: with them. name: of the result.
        results: shape and dtype of each result.
        pointwise: whether torch says that it is element by element.
        written: the tensor arguments that the call writes.
        view: whether the results are, in torch, memory of a tensor argument that the call does not write.
    """

    def __init__(
        self, word: str, name: str, arguments: Mapping[str, Any], defaults: Mapping[str, Any], target: str
    ) -> None:
        self.word, self.name, self.target = word, name, target
        self._arguments = {**defaults, **arguments}
        self._defaults = dict(defaults)
        self._taken: set[str] = set()
        self.results: list[tuple[list[int], str]] = []
        self.pointwise = False
        self.view = False
        self.written: list[str] = []

    def take(self, name: str, default: Any = None) -> Any:
        """An argument, which counts as considered."""
        self._taken.add(name)
        return self._arguments.get(name, default)

    def tensor(self, name: str) -> str:
        """A tensor argument. Raises Unknown for a number or None."""
        value = self.take(name)
        if not isinstance(value, str):
            raise Unknown
        return value

    def done(self) -> None:
        """Raise Unknown if an argument that was not taken has another value than its default."""
        for name, value in self._arguments.items():
            default = self._defaults.get(name)
            same = value is default or (type(value) is type(default) and value == default)
            if name not in self._taken and name not in IGNORED and not same:
                raise Unknown

    @property
    def tensors(self) -> list[str]:
        """All tensors among the arguments, in their order."""
        found: list[str] = []
        for value in self._arguments.values():
            found += [item for item in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(item, Named)]
        return found

    @property
    def shape(self) -> list[int]:
        """The shape of the first result."""
        return self.results[0][0]

    @property
    def dtype(self) -> str:
        """The dtype of the first result."""
        return self.results[0][1]


class Named(str):
    """The name of a tensor, in contrast to a text argument."""

    __slots__ = ()
