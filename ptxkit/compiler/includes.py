"""Which headers a source may include, without a preprocessor.

NVRTC cannot list the headers that it read, so ``#include`` lines are searched for them. Preprocessor conditions are
ignored: the result is every header that *may* be included, so that a cache key may cover more headers than necessary,
but never fewer. The result also has the paths that were searched and do not exist, because a file created there later
would be included instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ptxkit.compiler.cache import digest

# Anywhere in a line, so that comments before it do no harm; matches inside comments and strings only add headers.
_SPACE = r"[ \t]*(?:/\*[^*\n]*\*/[ \t]*)*"
_HEADER = r"(?:\"([^\"\n]+)\"|<([^>\n]+)>)"
_DIRECTIVE = re.compile(
    rf"(?:#|%:){_SPACE}include(_next)?\b{_SPACE}(?:{_HEADER}|([A-Za-z_]\w*)(?:\(([^()\n]*)\))?)|__has_include(_next)?\s*\(\s*{_HEADER}"
)
# NAME <header>, or NAME(x) <directory/x>
_MACRO_VALUE = re.compile(
    r"(?:#|%:)[ \t]*define[ \t]+(\w+)(?:\((\w+)\))?[ \t]+(?:\"([^\"\n]+)\"|<([^>\n]+)>)[ \t]*$", re.MULTILINE
)


@dataclass
class Closure:
    """What one source may include.

    Attributes:
        headers: path -> digest of its contents, in the order they were found.
        absent: paths that were searched and do not exist.
        unresolved: ``#include MACRO`` in files outside ``trusted`` whose value could not be found: the closure is not complete.
    """

    headers: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    unresolved: set[str] = field(default_factory=set)


def closure(
    text: str, directory: str, search: Iterable[str], defines: str = "", trusted: Iterable[str] = ()
) -> Closure:
    """Follow every include of a source.

    Args:
        text: the source.
        directory: the source's own directory, which is searched first for quoted names.
        search: the include path, in order.
        defines: further text in which ``#define NAME <header>`` counts (from ``-D`` options).
        trusted: directories of the CUDA headers. They are scanned like other headers, but an ``#include MACRO`` in them
            that cannot be resolved does not make the closure incomplete: the version of NVRTC in the cache key decides
            it.
    """
    return _Scan(tuple(search), tuple(f"{d}/" for d in trusted)).run(text, directory, defines)


class _Scan:
    def __init__(self, search: tuple[str, ...], trusted: tuple[str, ...]) -> None:
        self._search = search
        self._trusted = trusted
        self._found = Closure()
        self._macros: dict[str, set[tuple[str, str, bool]]] = {}  # macro -> (its parameter, header, quoted)
        self._by_macro: list[tuple[str, str, str, bool]] = []  # (macro, argument, directory, trusted)

    def run(self, text: str, directory: str, defines: str) -> Closure:
        self._remember(_lines_of(defines))
        self._read(_lines_of(text), directory, is_trusted=False)
        while self._by_macro:  # last, because a macro may be defined after its use
            macro, argument, where, is_trusted = self._by_macro.pop()
            if macro not in self._macros and not is_trusted:
                self._found.unresolved.add(macro)
            for parameter, header, quoted in self._macros.get(macro, ()):
                name = re.sub(rf"\b{parameter}\b", argument.strip(), header) if parameter else header
                self._look_up(name, where if quoted else None, every=False)
        return self._found

    def _read(self, lines: _Lines, directory: str, is_trusted: bool) -> None:
        self._remember(lines)
        for following, quoted, angled, macro, argument, has_next, has_quoted, has_angled in lines.directives:
            if macro:
                self._by_macro.append((macro, argument or "", directory, is_trusted))
                continue
            name = quoted or angled or has_quoted or has_angled
            start = directory if quoted or has_quoted else None
            self._look_up(name, start, every=bool(following or has_next))

    def _remember(self, lines: _Lines) -> None:
        for name, parameter, quoted, angled in lines.macros:
            self._macros.setdefault(name, set()).add((parameter, quoted or angled, bool(quoted)))

    def _look_up(self, name: str, directory: str | None, every: bool) -> None:
        """Take the first header of that name on the include path, or all of them for ``include_next``."""
        places = self._search if directory is None else (directory, *self._search)
        for place in ("",) if name.startswith("/") else places:
            path = f"{place}/{name}" if place else name
            if (path in self._found.headers or self._enter(path)) and not every:
                return

    def _enter(self, path: str) -> bool:
        if path in self._found.absent:
            return False
        is_trusted = path.startswith(self._trusted)
        try:
            contents, lines = (_read_once if is_trusted else _read)(path)
        except OSError:
            self._found.absent.add(path)
            return False
        self._found.headers[path] = contents
        self._read(lines, path.rpartition("/")[0], is_trusted)
        return True


@dataclass(frozen=True)
class _Lines:
    """The lines of a file that count: the groups of each match of ``_DIRECTIVE``, and of ``_MACRO_VALUE``."""

    directives: tuple[tuple[str, ...], ...]
    macros: tuple[tuple[str, ...], ...]


def _lines_of(text: str) -> _Lines:
    if "\\\n" in text:
        text = text.replace("\\\n", "")
    return _Lines(tuple(m.groups() for m in _DIRECTIVE.finditer(text)), tuple(_MACRO_VALUE.findall(text)))


def _read(path: str) -> tuple[str, _Lines]:
    """The digest of a file, and its lines that count."""
    data = Path(path).read_bytes()
    return digest(data), _lines_of(data.decode(errors="replace"))


_read_once = lru_cache(maxsize=8192)(_read)
"""The same for the CUDA headers, which do not change while a process runs; a source with host code is scanned many times."""
