"""Macros of a build file: a name that a source uses is declared only where a macro is defined, and nothing defines it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ptxkit.isa.comments import without_comments

Find = Callable[[str, bool, str], "tuple[str, str] | str | None"]
"""(name, quoted, path of the including file) -> (path, text) of a header; anything else for one that is not searched."""

MOST_FILES = 400
"""Headers that are searched, those nearest to the source first."""

_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif|define|include)\b[ \t]*(.*)")
_UNDECLARED = re.compile(
    r'identifier "(?:\w+::)*(\w+)" is undefined|has no member "(\w+)"|(?:namespace|class) "[^"]*" has no \w+ "(\w+)"|'
    r'"?(\w+)"? is not a (?:template|type name|class)'
)
_NO_TYPE = "return|typename|else|case|goto|new|delete|throw"

Needed = tuple[frozenset[str], ...]
"""What must hold for a line to be active: of each set, one macro is defined."""


@dataclass(frozen=True)
class _Line:
    """A line that is no directive or a ``#define``, or an ``#include`` (name, quoted), with the conditions around it."""

    text: str
    include: tuple[str, bool] | None
    needed: Needed


def hint_of_macro(log: str, path: str, text: str, find: Find) -> str:
    """What to define so that an undeclared name of a log of errors is declared; "" if no macro is known to do that.

    Args:
        log: of errors. path, text: of the source. find: finds its headers, and those that are included in inactive parts.
    """
    names = list(dict.fromkeys(next(filter(None, match)) for match in _UNDECLARED.findall(log)))
    if not names:
        return ""
    files = _reached(path, text, find)
    defined = {match[1] for _, content, _ in files for match in re.finditer(r"#[ \t]*define[ \t]+(\w+)", content)}
    declared = {name: _conditions(name, files, defined) for name in names[:8]}
    # a declaration without a condition may be of another scope, so that the names that have none decide first
    for is_elsewhere in (False, True):
        for name, (needed, elsewhere) in declared.items():
            if needed and elsewhere == is_elsewhere:
                groups = [" or ".join(f"--define {macro}" for macro in sorted(group)[:3]) for group in needed]
                return f"{' and '.join(groups)}, as the build does: with it, {name} is declared"
    return ""


def _reached(path: str, text: str, find: Find) -> list[tuple[str, str, Needed]]:
    """(path, text without comments, what must hold for it to be included) of a source and its headers."""
    found: dict[str, tuple[str, str, Needed]] = {}
    waiting: deque[tuple[str, str, Needed]] = deque([(path, text, ())])
    while waiting and len(found) < MOST_FILES:
        file, content, needed = waiting.popleft()
        known = found.get(file)
        if known is not None and len(known[2]) <= len(needed):
            continue
        bare = without_comments(content)
        found[file] = file, bare, needed
        for line in _lines(bare):
            if line.include is not None:
                header = find(*line.include, file)
                if isinstance(header, tuple):
                    waiting.append((*header, (*needed, *line.needed)))
    return list(found.values())


def _conditions(name: str, files: Sequence[tuple[str, str, Needed]], defined: set[str]) -> tuple[Needed, bool]:
    """What must be defined in addition for a name to be declared, and whether it is declared without that, too."""
    a_type = rf"(?:\b(?!(?:{_NO_TYPE})\b)\w+|[>&*\]])[ \t&*]+"
    before = rf"(?:\b(?:struct|class|union|enum|namespace|concept|using)\b[^;=({{]*|{a_type})"
    declares = re.compile(rf"{before}\b{name}\b[ \t]*(?=[\[({{=;:<]|$)|#[ \t]*define[ \t]+{name}\b")
    best: Needed = ()
    elsewhere = False
    for _, text, outside in files:
        if name not in text:
            continue
        for line in _lines(text):
            if line.include is not None or name not in line.text or not declares.search(line.text):
                continue
            missing = tuple(dict.fromkeys(group for group in (*outside, *line.needed) if not group & defined))
            elsewhere |= not missing
            if missing and (not best or len(missing) < len(best)):
                best = missing
    return best, elsewhere


def _lines(text: str) -> Iterator[_Line]:
    """The lines of a file with the conditions that they are in."""
    stack: list[tuple[frozenset[str], frozenset[str]]] = []  # (needed here, needed in the branch of #else)
    nothing: frozenset[str] = frozenset()
    for line in text.splitlines():
        match = _DIRECTIVE.match(line)
        keyword, rest = (match[1], match[2].strip()) if match is not None else ("", "")
        needed = tuple(group for group, _ in stack if group)
        if keyword in ("if", "ifdef"):
            stack.append((_named(rest), _negated(rest)))
        elif keyword == "ifndef":
            stack.append((nothing, _named(rest)))
        elif keyword == "elif" and stack:
            stack[-1] = (_named(rest), stack[-1][1] & _negated(rest))
        elif keyword == "else" and stack:
            stack[-1] = (stack[-1][1], nothing)
        elif keyword == "endif" and stack:
            stack.pop()
        elif keyword == "include" and (named := re.match(r'"([^"]+)"|<([^>]+)>', rest)):
            yield _Line(line, (named[1] or named[2], bool(named[1])), needed)
        elif keyword in ("", "define"):
            yield _Line(line, None, needed)


def _named(condition: str) -> frozenset[str]:
    """The macros of a condition that holds where they are defined; without those of compilers, and those that are negated."""
    plain = re.sub(r"!\s*(?:defined\b\s*)?\(?\s*\w+\s*\)?", " ", condition)
    return _macros(plain)


def _negated(condition: str) -> frozenset[str]:
    """The macros of a condition that holds where they are not defined."""
    return _macros(" ".join(re.findall(r"!\s*(?:defined\b)?\s*\(?\s*(\w+)", condition)))


def _macros(text: str) -> frozenset[str]:
    words = re.findall(r"\b[A-Za-z]\w*\b", text)
    return frozenset(word for word in words if word != "defined" and not word.startswith(("CUDA", "CUDART")))
