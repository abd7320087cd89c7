"""Errors in a user's description, reported as one line with the place in the file instead of a traceback through ptxkit.

An error in a bundled description is a bug of ptxkit and keeps its traceback.
"""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptxkit.errors import DescriptionError, PtxkitError, UsageError
from ptxkit.workload.launch import Work, array_spec

ARRAYS = ("outputs", "temporaries")
RETURNS: Mapping[str, type] = {"inputs": Mapping, "reference": Mapping, "work": Work, **dict.fromkeys(ARRAYS, Mapping)}
METHODS = (*RETURNS, "constraints")
_PLACED = re.compile(r"\S+\.py:\d+: ")


def guarded(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method of a description, one of :data:`METHODS`, that raises DescriptionError for exceptions and for a result of the
    wrong type."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with blamed(method):
            result: Any = method(*args, **kwargs)
            if name == "constraints" and not isinstance(result, str):
                return list(result)
        if name == "constraints":
            raise DescriptionError(
                f"{_start(method)}: constraints() must return a list of complaints, not {short(result)}"
            )
        right = isinstance(result, RETURNS[name])
        if not right:
            wanted = "a Work" if name == "work" else "a dict"
            raise DescriptionError(f"{_start(method)}: {name}() must return {wanted}, not {short(result)}")
        for array, spec in result.items() if name in ARRAYS else ():
            try:
                array_spec(spec)
            except PtxkitError as error:
                raise DescriptionError(f"{_start(method)}: {name}(): {array}: {error}") from None
        return result

    return call


@contextmanager
def blamed(function: Callable[..., Any]) -> Iterator[None]:
    """A context in which an exception from a user's ``function`` becomes a DescriptionError with its line."""
    is_bundled = getattr(function, "__module__", "").startswith("ptxkit.")
    try:
        yield
    except UsageError as error:
        if is_bundled or type(error) not in (UsageError, DescriptionError) or is_placed(error):
            raise
        raise type(error)(f"{place(error, _file(function), _start(function))}: {error}") from error
    except (PtxkitError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if is_bundled:
            raise
        raise DescriptionError(f"{place(error, _file(function), _start(function))}: {mistake(error)}") from error


def mistake(error: BaseException) -> str:
    """The message for an exception; a SystemExit comes from ``sys.exit``, which a description must not call."""
    if isinstance(error, SystemExit):
        return f"ends the program with SystemExit({error.code!r}); a description must not exit"
    try:
        lines = str(error).split("\n")
    except Exception:  # noqa: BLE001  # of an exception class whose __str__ fails
        lines = ["its text cannot be made, because its __str__ raises an exception"]
    text = " ".join(line.strip() for line in lines if line.strip())
    hint = "; the inputs must stay as they are: compute on a copy" if "read-only" in text else ""
    return f"{type(error).__name__}: {text}{hint}"


def place(error: BaseException, file: Path, otherwise: str = "") -> str:
    """``mine.py:12``, the innermost line of ``file`` in the traceback of the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f"{file.name}:{lines[-1]}" if lines else otherwise or file.name


def is_placed(error: BaseException) -> bool:
    """Whether the message of an error begins with a place in a Python file."""
    return _PLACED.match(str(error)) is not None


def at(description: type, name: str) -> str:
    """``"mine.py:12: "``, the place of a method or attribute of a user's description; "" for a bundled or generated one."""
    for cls in description.__mro__:
        if cls.__module__.startswith("ptxkit.") or cls is object:
            return ""
        if name not in cls.__dict__ and name not in inspect.get_annotations(cls):
            continue
        value = cls.__dict__.get(name)
        function = value.fget if isinstance(value, property) else getattr(value, "function", value)
        if inspect.isfunction(function):
            return f"{_start(function)}: "
        return _line_of_attribute(cls, name)
    return ""


def _line_of_attribute(cls: type, name: str) -> str:
    """The place of ``name = value`` or ``name: type`` in the source of a class; "" if that cannot be read."""
    try:
        lines, first = inspect.getsourcelines(cls)
        file = inspect.getsourcefile(cls) or ""
    except (OSError, TypeError):
        return ""
    found = (n for n, line in enumerate(lines) if re.match(rf"\s+{re.escape(name)}\s*[:=]", line))
    return f"{Path(file).name}:{first + next(found, 0)}: "


def short(value: object) -> str:
    """The ``repr`` of a value; its type where that has more than 80 characters or several lines, or cannot be made."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # of an object of the user, or of an integer with thousands of digits
        text = ""
    kind = type(value).__name__
    return text if 0 < len(text) <= 80 and "\n" not in text else f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"


def _file(function: Callable[..., Any]) -> Path:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Path(code.co_filename if code else "")


def _start(function: Callable[..., Any]) -> str:
    """``mine.py:10``, the first line of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else getattr(function, "__module__", "")
