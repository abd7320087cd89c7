"""Shapes of tensors as patterns: from the shapes of its arguments follow the sizes of a kernel, and the shapes of its results.

A pattern names the dimensions of a tensor: ``"n k"`` is a matrix. A name with a star, as in ``"*rows cols"``, stands for any
number of dimensions, none included; its size is their product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ptxkit.errors import UsageError


@dataclass
class Sizes:
    """The sizes that the shapes of arguments determine.

    Attributes:
        values: name of a size -> its value.
        leading: name of a size with a star -> the dimensions of which it is the product.
        origin: name of a size -> the argument that determined it, for messages.
    """

    values: dict[str, Any] = field(default_factory=dict)
    leading: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)


def product(dimensions: Sequence[Any]) -> Any:
    """The product of dimensions, which torch.compile may know as symbols only."""
    result: Any = 1
    for dimension in dimensions:
        result = result * dimension
    return result


def shown(shape: Sequence[Any]) -> str:
    """A shape for messages: ``(2, 3)``."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def described(pattern: str) -> str:
    """A pattern for messages: ``(..., cols)``."""
    return shown(["..." if name.startswith("*") else name for name in pattern.split()])


def match(operation: str, argument: str, pattern: str, shape: Sequence[Any], sizes: Sizes) -> None:
    """Determine sizes from the shape of an argument, and compare it with those that others have determined.

    Raises:
        UsageError: the shape does not have the form of the pattern, or contradicts another argument.
    """
    names = pattern.split()
    star = next((i for i, name in enumerate(names) if name.startswith("*")), None)
    fixed = [name for name in names if not name.startswith("*")]
    more = len(shape) - len(fixed)
    if more < 0 or (star is None and more):
        raise UsageError(f"{operation}: {argument} has the shape {shown(shape)}, but must be {described(pattern)}")
    dimensions = list(shape)
    if star is not None:
        name, leading = names[star][1:], tuple(shape[star : star + more])
        dimensions[star : star + more] = []
        known = sizes.leading.setdefault(name, leading)
        sizes.values.setdefault(name, product(leading))
        _agree(operation, argument, name, shape, sizes, len(known) == len(leading) and all(map(_same, known, leading)))
    for name, value in zip(fixed, dimensions, strict=True):
        known_value = sizes.values.setdefault(name, value)
        _agree(operation, argument, name, shape, sizes, _same(known_value, value))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b)


def _agree(operation: str, argument: str, name: str, shape: Sequence[Any], sizes: Sizes, agrees: bool) -> None:
    if not agrees:
        leading = sizes.leading.get(name)
        expected = f"{name}={sizes.values[name]}" if leading is None else f"the leading dimensions {shown(leading)}"
        raise UsageError(
            f"{operation}: {argument} has the shape {shown(shape)}, which does not agree with {expected} of "
            f"{sizes.origin[name]}"
        )
    sizes.origin.setdefault(name, argument)


def shape_of(pattern: str, sizes: Sizes) -> tuple[Any, ...]:
    """The shape of a result with a pattern."""
    result: list[Any] = []
    for name in pattern.split():
        result += sizes.leading[name[1:]] if name.startswith("*") else [sizes.values[name]]
    return tuple(result)


def flat(pattern: str, sizes: Sizes) -> tuple[int, ...]:
    """The shape in which a kernel sees an array: leading dimensions are one, and ``a*b`` is a product of sizes."""
    names = [name.removeprefix("*").split("*") for name in pattern.split()]
    return tuple(product([sizes.values[name] for name in parts]) for parts in names)
