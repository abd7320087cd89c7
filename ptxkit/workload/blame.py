"""Errors in a user's description, reported as one line with the place in the file instead of a traceback through ptxkit.

An error in a bundled description is a bug of ptxkit and keeps its traceback.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptxkit.errors import DescriptionError, PtxkitError
from ptxkit.workload.launch import Work, array_spec

ARRAYS = ("outputs", "temporaries")
RETURNS: Mapping[str, type] = {"inputs": Mapping, "reference": Mapping, "work": Work, **dict.fromkeys(ARRAYS, Mapping)}
METHODS = (*RETURNS, "constraints")


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
            raise DescriptionError(f"{_start(method)}: constraints() must return a list of complaints, not {_short(result)}")
        right = isinstance(result, RETURNS[name])
        if not right:
            wanted = "a Work" if name == "work" else "a dict"
            raise DescriptionError(f"{_start(method)}: {name}() must return {wanted}, not {_short(result)}")
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
    try:
        yield
    except (PtxkitError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if getattr(function, "__module__", "").startswith("ptxkit."):
            raise
        code = getattr(inspect.unwrap(function), "__code__", None)
        file = Path(code.co_filename if code else "")
        raise DescriptionError(f"{place(error, file, _start(function))}: {mistake(error)}") from error


def mistake(error: BaseException) -> str:
    """The message for an exception; a SystemExit comes from ``sys.exit``, which a description must not call."""
    if isinstance(error, SystemExit):
        return f"ends the program with SystemExit({error.code!r}); a description must not exit"
    hint = "; the inputs must stay as they are: compute on a copy" if "read-only" in str(error) else ""
    return f"{type(error).__name__}: {error}{hint}"


def place(error: BaseException, file: Path, otherwise: str = "") -> str:
    """``mine.py:12``, the innermost line of ``file`` in the traceback of the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f"{file.name}:{lines[-1]}" if lines else otherwise or file.name


def _short(value: object) -> str:
    """The ``repr`` of a value, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


def _start(function: Callable[..., Any]) -> str:
    """``mine.py:10``, the first line of a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else getattr(function, "__module__", "")
