"""Compiles the device part of a source with host code.

What the parser cannot decide, the compiler does: a class whose member functions use types of the host, a constant of such a
type, a header that is meant for both. Where the compiler reports an error in a piece that is no device code, the piece is
left out, and the rest compiled again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.compiler.host_code.device_part import DevicePart, Dropped, device_part, summary
from ptxkit.compiler.host_code.headers import OF_THE_HOST, ON_DEMAND, PRELUDE_NAME, WHEELS, Headers, resolved
from ptxkit.compiler.image import Image
from ptxkit.compiler.paths import include_dir
from ptxkit.compiler.request import Request
from ptxkit.errors import CompileError

ROUNDS = 24  # compilations, each of which leaves out what the errors of the one before are about
_HOST_SIGN = re.compile(r"<<<|\bint\s+main\s*\(|\bcudaMalloc|#\s*include\s*<(?:iostream|vector|string)>")
_ERROR = re.compile(
    r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error|^(?P<path>[^\n]*?):(?P<number>\d+)(?::\d+)?: error",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Extraction:
    """A source whose host code was left out.

    Attributes:
        part: the source. headers: its headers.
    """

    part: DevicePart
    headers: Headers

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Everything that was left out, in the order of the lines."""
        return tuple(sorted((*self.part.dropped, *self.headers.dropped), key=lambda d: d.line))

    @property
    def has_host_code(self) -> bool:
        """Whether the source itself has host code or headers of the host; a header that is only missing is none."""
        known = any(dropped.reason == OF_THE_HOST for dropped in self.headers.dropped)
        return bool(self.part.dropped or self.headers.parts or self.headers.standard) or known

    @property
    def note(self) -> str:
        """One line on what was left out."""
        return f"left out as host code: {summary(self.dropped)}" if self.dropped else ""


def may_have_host_code(text: str) -> bool:
    """Whether a text has signs of host code, so that compiling it as it is would be a waste of time."""
    return bool(_HOST_SIGN.search(text))


def extracted(request: Request) -> Extraction:
    """The device part of a source and its headers, as far as a parser can tell.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    own = (str(include_dir()), *(str(tool.path) for tool in toolkit.headers()))
    part = device_part(request.text)
    headers = resolved(part, request.directory, request.include_dirs, own)
    if headers.macros:  # macros of headers may be device qualifiers
        part = device_part(request.text, headers.macros)
    return Extraction(part, headers)


def _request(request: Request, found: Extraction, names: tuple[str, ...], options: set[str]) -> Request:
    headers = found.headers
    memory = {**headers.memory, **{name: part.text for name, part in headers.parts.items()}, **dict(request.headers)}
    return replace(
        request,
        text=found.part.text,
        headers=tuple(sorted(memory.items())),
        options=(*request.options, f"--pre-include={PRELUDE_NAME}", *sorted(options)),
        include_dirs=(*request.include_dirs[:-1], *headers.directories, *request.include_dirs[-1:]),
        names=names,
    )


def compile_device_part(request: Request, found: Extraction, build: Callable[[Request], Image]) -> Image:
    """Compile the device part of a source, leaving out more until it compiles or only device code is wrong.

    Without name expressions in the request, the templates that the host code launches with numbers and built-in types as
    arguments are instantiated.

    Args:
        found: of :func:`extracted`. What the compiler shows to be host code is left out of it, too.

    Raises:
        CompileError: the device code does not compile. The error is that of the first compilation with all headers.
    """
    tried: set[str] = set()
    first: CompileError | None = None
    launched = dict.fromkeys(launch.kernel for launch in found.part.launches if launch.concrete)
    names = request.names or tuple(launched)
    for _ in range(ROUNDS):
        try:
            return build(_request(request, found, names, tried))
        except CompileError as error:
            if _add_headers(found.headers, error):
                continue
            if option := _helpful_option(error, request.options, tried):
                tried.add(option)
                continue
            first = first or _with_hint(error, found)
            removed = [_remove(found, request.name, *place) for place in dict.fromkeys(_places(error))]
            if any(removed):
                continue
            if names == request.names:
                raise first from None
            names = request.names  # an instance that the host code names may be what does not compile
    assert first is not None
    raise first


def _add_headers(headers: Headers, error: CompileError) -> bool:
    """Include the headers that define unknown names. Returns whether there were such."""
    names = set(_UNKNOWN.findall(error.log or str(error)))
    missing = {header for name in names for pattern, header in ON_DEMAND if re.fullmatch(pattern, name)}
    lines = [
        line for header in sorted(missing) if (line := f"#include <{header}>\n") not in headers.memory[PRELUDE_NAME]
    ]
    headers.memory[PRELUDE_NAME] += "".join(lines)
    return bool(lines)


def _with_hint(error: CompileError, found: Extraction) -> CompileError:
    """The error, with the headers that were not found, one of which may define what is missing."""
    absent = [d.name for d in found.headers.dropped if d.what == "include" and "not found" in d.reason]
    wheels = [f"pip install {wheel}" for name in absent for start, wheel in WHEELS.items() if name.startswith(start)]
    if not absent:
        return error
    hint = f"headers that were not found: {', '.join(absent[:6])}{', ...' if len(absent) > 6 else ''}"
    advice = "; ".join(dict.fromkeys(wheels)) or "give their directory with -I"
    text = f"{hint} ({advice})"
    return CompileError(f"{error}; {text}", f"{error.log}\nnote: {text}" if error.log else "")


_UNKNOWN = re.compile(
    r'(?:identifier|namespace|name followed by "::"[^"]*|type name) "(\w+)"(?: is undefined)?|undefined identifier "(?:\w+)"'
)


def _places(error: CompileError) -> Iterator[tuple[str, int]]:
    """(file, line) of the errors in a log."""
    for match in _ERROR.finditer(error.log or str(error)):
        yield match["file"] or match["path"], int(match["line"] or match["number"])


def _remove(found: Extraction, name: str, file: str, line: int) -> bool:
    """Leave out the piece with an error. Returns whether one was left out."""
    reason = "does not compile as device code"
    if Path(file).name == Path(name).name:
        return found.part.drop_at(line, reason)
    for included, part in found.headers.parts.items():
        if Path(file).name == Path(included).name and part.drop_at(line, reason):
            found.headers.dropped.append(part.dropped[-1])
            return True
    return False


def _helpful_option(error: CompileError, given: tuple[str, ...], tried: set[str]) -> str:
    """An option that may help against the errors, and that was not tried before."""
    log = error.log or str(error)
    candidates = []
    if "constexpr" in log and "host function" in log.lower():
        candidates.append("-default-device")
    if "__int128" in log:
        candidates.append("--device-int128")
    if not any("std=" in option for option in given) and re.search(r"concept|requires|consteval|<=>|C\+\+20", log):
        candidates.append("--std=c++20")
    return next((option for option in candidates if option not in tried), "")
