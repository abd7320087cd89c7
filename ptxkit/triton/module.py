"""Functions of Triton in a Python file, by name, with the launches that the file makes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ptxkit.compiler.sources import split_entry
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import read_text
from ptxkit.triton import PREFIX, generated
from ptxkit.triton.loading import Blamed, imported
from ptxkit.triton.recorded import Launch, name_of, recording
from ptxkit.workload.helper_modules import beside
from ptxkit.workload.registry import missing_file
from ptxkit.workload.workload import suggestion

EXAMPLE = "launch"
"""The function of a file that ptxkit calls to record a launch."""


@dataclass(frozen=True)
class Function:
    """One function of Triton.

    Attributes:
        path: the file that was named.
        name: the function's.
        jit: Triton's JITFunction.
        given: what the file's decorators fix: types (as text), constants and options of the compiler, by name.
        launches: that the file makes, in order.
        names: the file's own names, among which constants are found that are functions.
    """

    path: Path
    name: str
    jit: Any
    given: Mapping[str, Any] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """``module.py:kernel``."""
        return f"{self.path.name}:{self.name}"


def split_words(words: str) -> tuple[Path, str] | None:
    """``"triton:module.py:kernel"`` as (path, function); None for other words.

    Raises:
        UsageError: the words do not name a Python file.
    """
    if not words.startswith(PREFIX):
        return None
    path, name = split_entry(words.removeprefix(PREFIX), ("py",))
    if path is None:
        raise UsageError(f"{words} names no Python file; write {PREFIX}FILE.py:FUNCTION")
    return path, name


def find(path: Path, name: str = "") -> Function:
    """A function of a file; the only one for ``""``.

    Raises:
        UsageError: no such file or function, or several and none is named.
        UnavailableError: Triton is not installed, or torch, which torch.compile's code imports.
        DescriptionError: the file raises an exception; the message has its line.
    """
    if not path.is_file():
        raise UsageError(missing_file(path))
    if importlib.util.find_spec("triton") is None:
        raise UnavailableError(f"{PREFIX}{path} needs Triton, which is not installed: pip install triton")
    functions = _loaded(path.resolve(), path)
    if not functions:
        raise UsageError(f"{path} has no function with @triton.jit")
    if not name and len(functions) > 1:
        raise UsageError(f"{path} has {len(functions)} functions of Triton: {', '.join(functions)}; name one after a colon")
    if name and name not in functions:
        raise UsageError(f"{path} has no function of Triton {name!r}; {suggestion(name, list(functions))}")
    return functions[name] if name else next(iter(functions.values()))


def _loaded(file: Path, shown: Path) -> dict[str, Function]:
    try:
        text = read_text(file)
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror}") from None
    with recording() as launches:
        if generated.is_wrapper(text):
            module, wrapped = generated.load(file, shown, launches)
        elif generated.is_kernel(text):
            with generated.without_gpu():
                module, wrapped = imported(file, shown), {}
        else:
            module, wrapped = imported(file, shown), {}
            example = getattr(module, EXAMPLE, None)
            if callable(example) and not hasattr(example, "fn"):
                _called(example, file, shown)
    found: dict[str, Function] = {}
    for name, value in {**vars(module), **wrapped}.items():
        jit, given = _unwrapped(value)
        if jit is not None and (jit.fn.__module__ == module.__name__ or name in wrapped or jit.fn.__name__ == name):
            own = tuple(launch for launch in launches if launch.function is jit)
            found.setdefault(name_of(jit), Function(shown, name_of(jit), jit, given, own, vars(module)))
    return found


def _called(example: Any, file: Path, shown: Path) -> None:
    with Blamed(file), beside(file):
        example()


def _unwrapped(value: Any) -> tuple[Any, dict[str, Any]]:
    """The JITFunction inside decorators, and what these fix; None for other objects."""
    from triton.runtime.jit import JITFunction

    given: dict[str, Any] = {}
    for layer in _layers(value):
        if isinstance(layer, JITFunction):
            return layer, given
        given = {**generated.fixed(layer), **given} if generated.is_generated(layer) else {**_first(layer), **given}
    return None, {}


def _layers(value: Any) -> Iterator[Any]:
    """An object and what it wraps in an attribute ``fn``, at most eight layers deep."""
    for _ in range(8):
        yield value
        if isinstance(value, ModuleType | type) or not hasattr(value, "fn"):
            return
        value = value.fn


def _first(layer: Any) -> dict[str, Any]:
    """The first configuration of triton.autotune; nothing for other decorators."""
    configs = getattr(layer, "configs", None)
    return dict(configs[0].all_kwargs()) if configs and hasattr(configs[0], "all_kwargs") else {}
