"""Modules beside a user's description, which it may import as a script imports the modules of its own directory.

A finder looks for them before the directories of ``sys.path``, so that the current directory does not matter. It does not
hide modules of the standard library, and no directory without ``__init__.py``, since a checkout beside a description often has
the name of an installed package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ptxkit.errors import DescriptionError


class _Finder:
    """A ``sys.meta_path`` finder for the directories of the descriptions that have been loaded, the latest first."""

    def __init__(self) -> None:
        self.directories: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        if path is not None or name in sys.stdlib_module_names or name == "ptxkit":
            return None
        for directory in self.directories:
            found = PathFinder.find_spec(name, [directory])
            if found is not None and found.origin is not None:
                return found
        return None


_FINDER = _Finder()


@contextmanager
def beside(file: Path) -> Iterator[None]:
    """A context for the import of a description; its directory stays known, because methods may import modules, too.

    Raises:
        DescriptionError: the directory has a module that an earlier description has imported from its own directory; both
            cannot be imported under one name by one process.
    """
    directory = str(file.parent)
    before = set(sys.modules)
    others = [d for d in _FINDER.directories if d != directory]
    _FINDER.directories = [directory, *others]
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if "." in name or not isinstance(origin, str) or _home(Path(origin)) not in others:
            continue
        own = PathFinder.find_spec(name, [directory])
        if own is not None and own.origin not in (None, origin):
            raise DescriptionError(
                f"{file.name}: {name} is {own.origin} here, but another description has imported {origin} under this name; "
                "use one process for each, or rename one of them"
            )
    try:
        yield
    except BaseException:
        _FINDER.directories = others
        for name in set(sys.modules) - before:
            origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
            if isinstance(origin, str) and _home(Path(origin)) == directory:
                del sys.modules[name]  # a later attempt imports the corrected file
        raise


def _home(origin: Path) -> str:
    """The directory from which a top-level module with this file is imported."""
    return str(origin.parent.parent if origin.name == "__init__.py" else origin.parent)
