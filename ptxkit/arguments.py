"""Checks of the arguments of public functions: a value of a wrong type is one UsageError that names it and what it takes.

Without them Python's own TypeError would come from the code that first uses the value, in words that do not name the argument.
A :class:`Rule` says what an argument takes, :func:`takes` applies rules to a function, and :func:`check` to one value.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ptxkit.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Rule:
    """What an argument takes.

    Attributes:
        wants: in words, after "takes".
        allows: whether a value is right.
    """

    wants: str
    allows: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        """Either of two."""
        return Rule(f"{self.wants} or {other.wants}", lambda value: self.allows(value) or other.allows(value))


def is_whole(value: object) -> bool:
    """Whether a value is an integer of Python or numpy, and no bool."""
    return type(value) is int or (
        hasattr(type(value), "__index__") and not isinstance(value, bool) and not _is_array(value)
    )


def _is_array(value: object) -> bool:
    return getattr(value, "ndim", 0) != 0


def whole(least: int | None = None, most: int | None = None) -> Rule:
    """A whole number within limits."""
    limits = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"

    def allows(value: Any) -> bool:
        if not is_whole(value):
            return False
        number = operator.index(value)
        return (least is None or number >= least) and (most is None or number <= most)

    return Rule(f"a whole number{limits}", allows)


def instance(kind: type | tuple[type, ...], wants: str) -> Rule:
    """An object of a class."""
    return Rule(wants, lambda value: isinstance(value, kind))


NOTHING = Rule("None", lambda value: value is None)
TEXT = instance(str, "a string")
WHOLE = whole()
FLAG = Rule(
    "True or False", lambda value: type(value).__name__ in ("bool", "bool_")
)  # Python's, and numpy's of both names
CALLABLE = Rule("a function without arguments", callable)
MAPPING = instance(Mapping, "a dict")
SEQUENCE = Rule(
    "a list or tuple", lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
)
STRINGS = Rule(
    "a string or several of them",
    lambda value: (
        isinstance(value, str)
        or (
            isinstance(value, Iterable)
            and not isinstance(value, (bytes, Mapping, type))
            and (not isinstance(value, Collection) or all(isinstance(item, str) for item in value))
        )
    ),
)
NUMBER = Rule(
    "a number of at least 0",
    lambda value: not isinstance(value, bool) and not _is_array(value) and _real(value) and 0 <= value < float("inf"),
)
COORDINATES = Rule(
    "a whole number or (x, y, z)", lambda value: all(map(is_whole, _parts(value))) and 1 <= len(_parts(value)) <= 3
)
SHAPE = Rule(
    "a whole number of at least 0 or a tuple of them",
    lambda value: all(is_whole(n) and 0 <= operator.index(n) < 2**63 for n in _parts(value)),
)


def _real(value: object) -> bool:
    return hasattr(type(value), "__float__") and not isinstance(value, (str, bytes))


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def check(name: str, value: object, rule: Rule, error: type[UsageError] = UsageError) -> None:
    """Raise ``error`` unless the rule allows a value."""
    if not rule.allows(value):
        raise error(f"{name} takes {rule.wants}, not {shown(value)}")


def takes(**rules: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function by their names; omitted ones are not checked."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        title = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True  # of pytest: an assertion's error is shown at the call
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                rule = rules.get(name)
                if rule is not None and not rule.allows(value):
                    raise UsageError(f"{title}: {name} takes {rule.wants}, not {shown(value)}")
            return function(*args, **kwargs)

        return checked

    return decorate


def shown(value: object) -> str:
    """A value in a message: as Python writes it where that is short, else its type."""
    text = repr(value) if isinstance(value, (str, bytes, int, float, bool, type(None), type)) or _small(value) else ""
    if 0 < len(text) <= 60 and "\n" not in text:
        return text
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _small(value: object) -> bool:
    return isinstance(value, (list, tuple, dict)) and len(value) <= 4 and not any(map(_is_array, value))
