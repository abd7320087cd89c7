"""Compiles the device part of a source with host code.

What the parser cannot decide, the compiler does: a class whose member functions use types of the host, a constant of such a
type, a header that is meant for both. Where the compiler reports an error in a piece that is no device code, the piece is
left out, and the rest compiled again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.compiler.advice import TEXTURES
from ptxkit.compiler.diagnostics import Diagnostic, failure
from ptxkit.compiler.host_code import standards, thrust
from ptxkit.compiler.host_code.device_part import NOT_COMPILED, DevicePart, Dropped, Piece, device_part, summary
from ptxkit.compiler.host_code.headers import (
    NOT_FOUND,
    OF_THE_HOST,
    ON_DEMAND,
    PRELUDE,
    PRELUDE_NAME,
    PRELUDE_NAMES,
    Headers,
    library_type,
    wheel_of,
)
from ptxkit.compiler.host_code.opaque_types import CLASSES, TEMPLATES
from ptxkit.compiler.image import Image, shorten
from ptxkit.compiler.paths import include_dir
from ptxkit.compiler.request import Request, defined_macros
from ptxkit.errors import CompileError

HOST_FUNCTION = "explicitly marked as a __host__ function is not allowed"
STATIC_OVERLOAD = "static and nonstatic member functions with same parameter types cannot be overloaded"
ANNOTATED_LAMBDA = "annotation on lambda is not allowed in JIT mode"
DYNAMIC = "dynamic initialization is not supported for a __device__ variable"
ROUNDS = 24  # compilations, each of which leaves out what the errors of the one before are about
OF_THRUST = (
    "of Thrust, device code can use types, iterators, and algorithms with the policy thrust::seq or thrust::device, which the "
    "calling thread executes; containers such as thrust::device_vector are for host code"
)
_HOST_SIGN = re.compile(r"<<<|\bint\s+main\s*\(|\bcudaMalloc|#\s*include\s*<(?:iostream>|vector>|string>|thrust/)")
_ANNOTATED_LAMBDA = re.compile(r"(?<=\])(\s*)((?:__(?:host|device)__\s*)+)(?=[({])")
_ERROR = re.compile(
    r"^(?:(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error|"
    r"(?P<path>[^\n]*?):(?P<number>\d+)(?::(?P<column>\d+))?: error)"
    r"(?P<message>[^\n]*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Extraction:
    """A source whose host code was left out.

    Attributes:
        part: the source with its headers. headers: where these come from.
    """

    part: DevicePart
    headers: Headers

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Everything that was left out: of the source, then of its headers, each in the order of the lines."""
        found = dict.fromkeys((*self.part.dropped, *self.headers.dropped(self.part)))
        return tuple(sorted(found, key=lambda d: (d.file, d.line)))

    @property
    def text(self) -> str:
        """The device code of the source."""
        return self.part.text_of(self.part.source, self.headers.names(self.part, self.part.source, {}))

    @property
    def has_host_code(self) -> bool:
        """Whether the source itself has host code, headers of the host, or lambdas that are marked for the device, which NVRTC
        refuses; a header that is only missing is none."""
        known = any(dropped.reason == OF_THE_HOST for dropped in self.headers.dropped(self.part))
        lambdas = any(_ANNOTATED_LAMBDA.search(inclusion.text) for inclusion in self.part.unit.inclusions)
        return self.part.is_changed or bool(self.headers.standard) or known or lambdas

    @property
    def has_device_code(self) -> bool:
        """Whether the source, or a header of its own, has a function or variable for the device."""
        return any(piece.device for piece in self.part.pieces)

    def may_supply(self, error: CompileError) -> bool:
        """Whether an error is about names that nvcc's host compiler knows without an include, or that a header here defines."""
        log = error.log or str(error)
        names = {name for name in _UNKNOWN.findall(log) if name}
        on_demand = any(re.fullmatch(pattern, name) for name in names for pattern, _ in ON_DEMAND)
        known = on_demand or bool(names & PRELUDE_NAMES) or 'namespace "std" has no member' in log or DYNAMIC in log
        return known or standards.may_help(log)

    def explains(self, error: CompileError) -> bool:
        """Whether an error is only about a header that is left out here, or about a lambda that is marked for the device."""
        if ANNOTATED_LAMBDA in (error.log or str(error)):
            return True
        names = re.findall(r'cannot open source file "([^"]+)"', error.log or str(error))
        return bool(names) and all(d.name != names[0] or d.reason != NOT_FOUND for d in self.dropped)

    @property
    def not_found(self) -> tuple[str, ...]:
        """The headers that were not found, and that are not known to be of the host."""
        dropped = self.headers.dropped(self.part)
        return tuple(dict.fromkeys(d.name for d in dropped if d.what == "include" and d.reason == NOT_FOUND))

    @property
    def left_out(self) -> str:
        """What was left out, in numbers: ``"3 functions, 2 includes"``; "" where nothing was."""
        return summary(self.dropped)

    @property
    def note(self) -> str:
        """One line on what was left out."""
        return f"left out as host code: {self.left_out}" if self.dropped else ""

    def files(self) -> tuple[str, dict[str, str], dict[str, list[int]]]:
        """The device code of the source, name -> that of each header, and name -> the identities of its inclusions.

        A header has its path as its name, so that two headers with the same name differ. One that is included several times
        with different results has several names.
        """
        texts: dict[str, str] = {}
        holders: dict[str, list[int]] = {}
        virtual: dict[int, str] = {}
        source, *entered = self.part.unit.inclusions
        # a header with "#pragma once" has one inclusion, which headers that come after it in this order may name, too
        virtual.update({id(inclusion): inclusion.path for inclusion in entered if inclusion.is_once})
        for inclusion in reversed(entered):  # a header after those that it includes
            text = self.part.text_of(inclusion, self.headers.names(self.part, inclusion, virtual))
            name, number = inclusion.path, 1
            while texts.get(name, text) != text:
                number += 1
                name = f"{inclusion.path} ({number})"
            texts[name] = text
            virtual[id(inclusion)] = name
            holders.setdefault(name, []).append(id(inclusion))
        text = self.part.text_of(source, self.headers.names(self.part, source, virtual))
        return text, texts, holders


def may_have_host_code(text: str) -> bool:
    """Whether a text has signs of host code, so that compiling it as it is would be a waste of time."""
    return bool(_HOST_SIGN.search(text))


def extracted(request: Request) -> Extraction:
    """The device part of a source and its headers, as far as a parser can tell.

    Raises:
        UnavailableError: tree-sitter is not installed.
        CompileError: a brace is not closed, or closes nothing.
    """
    own = (str(include_dir()), *(str(tool.path) for tool in toolkit.headers()))
    headers = Headers(request.include_dirs, own, request.directory, request.name)
    part = device_part(request.text, request.name, headers.find, predefined(request), PRELUDE)
    _check_braces(part, request)
    return Extraction(part, headers)


def predefined(request: Request) -> dict[str, str]:
    """The macros that NVRTC defines, and those of the options. ``__NVCC__`` stands for ``__CUDACC__`` in conditions."""
    major, minor = toolkit.nvrtc().version.split(".")[:2]
    standard = next((m[1] for o in request.options if (m := re.fullmatch(r"-{1,2}std=c\+\+(\d\d)", o))), "17")
    own = {
        "__CUDACC__": "1",
        "__CUDACC_RTC__": "1",
        "__NVCC__": "1",
        "__CUDA_ARCH__": f"{request.target.cc}0",
        "__CUDACC_VER_MAJOR__": major,
        "__CUDACC_VER_MINOR__": minor,
        "CUDART_VERSION": f"{int(major) * 1000 + int(minor) * 10}",
        "__cplusplus": {"11": "201103L", "14": "201402L", "20": "202002L", "23": "202302L"}.get(standard, "201703L"),
        "__LP64__": "1",
        "__EDG__": "1",
        "__STDC__": "1",
    }
    # what text stands for these does not matter to the parser
    taken_away = {m[1] for o in request.options if (m := re.match(r"(?:-U|--undefine-macro=)(\w+)$", o))}
    given = {name: value for name, value in defined_macros(request.options).items() if name not in taken_away}
    return {**{name: value for name, value in own.items() if name not in taken_away}, **given}


def _check_braces(part: DevicePart, request: Request) -> None:
    """Refuse a source whose braces do not match: nothing after the place could be told apart."""
    unit = part.unit
    if not unit.is_certain or not (unit.open_braces or unit.extra_brace):
        return
    if unit.extra_brace is not None:
        (inclusion, at), what = unit.extra_brace, "this '}' closes nothing"
    else:
        count = len(unit.open_braces)
        others = f", and {count - 1} more after it" if count > 1 else ""
        (inclusion, at), what = unit.open_braces[0], f"this '{{' is not closed before the end of the file{others}"
    line = inclusion.line(at)
    column = at - inclusion.text.rfind("\n", 0, at)
    found = Diagnostic("error", what, inclusion.path, line, column, inclusion.text.splitlines()[line - 1])
    raise failure([found], Path(request.name).name, what)


def _request(
    request: Request, found: Extraction, names: tuple[str, ...], options: set[str]
) -> tuple[Request, dict[str, list[int]]]:
    """What to compile, and file -> the identities of its inclusions."""
    text, texts, holders = found.files()
    text, texts = _without_annotations(text), {name: _without_annotations(one) for name, one in texts.items()}
    found.headers.preinclude(found.part)
    if thrust.is_needed(found.part):
        options = {*options, *thrust.options(request.options)}
    memory = {**found.headers.memory, **texts, **dict(request.headers)}
    holders[request.name] = [id(found.part.source)]
    wanted = replace(
        request,
        text=text,
        headers=tuple(sorted(memory.items())),
        include_dirs=(*request.include_dirs, *found.headers.roots),
        options=(*request.options, f"--pre-include={PRELUDE_NAME}", *sorted(options)),
        names=names,
    )
    return wanted, {**holders, **{shorten(name): ids for name, ids in holders.items()}}


def _without_annotations(text: str) -> str:
    """A text with blanks in place of ``__device__`` and ``__host__`` behind the captures of lambdas.

    NVRTC refuses these words there, and takes lambdas of device functions as device code without them.
    """
    return _ANNOTATED_LAMBDA.sub(lambda match: match[1] + re.sub(r"\S", " ", match[2]), text)


def compile_device_part(request: Request, found: Extraction, build: Callable[[Request], Image]) -> Image:
    """Compile the device part of a source, leaving out more until it compiles or only device code is wrong.

    Without name expressions in the request, the templates that the host code launches with numbers, types, names of namespace
    scope and expressions of these as arguments are instantiated, except for instances that do not exist outside of it.

    Args:
        found: of :func:`extracted`. What the compiler shows to be host code is left out of it, too.

    Raises:
        CompileError: the device code does not compile. The error is that of the first compilation with all headers.
    """
    tried: set[str] = set()
    first: CompileError | None = None
    may_choose = not standards.is_given(request.options)
    choices = [request.names] if request.names else [*found.part.instances(), ()]
    names = choices.pop(0)
    for _ in range(ROUNDS):
        wanted, holders = _request(request, found, names, standards.applied(tried))
        try:
            return standards.noted(build(wanted), request.name, tried)
        except CompileError as error:
            if _add_headers(found.headers, error) or _open_libraries(found.headers, holders, error):
                continue
            if option := _helpful_option(error, request.options, tried, holders):
                tried.add(option)
                continue
            if DYNAMIC in (error.log or str(error)) and found.part.make_constants():
                continue
            first = first or error
            if _leave_out(found.part, holders, error):
                continue
            log = error.log or str(error)
            if may_choose and standards.may_help(log) and (option := standards.newer(tried)):
                tried.add(option)
                continue
            existing = _existing(names, error, found.part)
            if not request.names and existing != names:
                names = existing
                continue
            if not choices:
                raise _explained(_relevant(first, error), found) from None
            names = choices.pop(0)  # an instance that the host code names may be what does not compile
    assert first is not None
    raise _explained(first, found)


def _existing(names: tuple[str, ...], error: CompileError, part: DevicePart) -> tuple[str, ...]:
    """The names without those that name no instance; one that is launched within a namespace gets that in front first."""
    log = f"{error}\n{error.log}"
    outside = part.qualified_instances()
    kept = [n if f"cannot instantiate {n!r}" not in log else outside.get(n, "") for n in names]
    return tuple(dict.fromkeys(filter(None, kept)))


def _leave_out(part: DevicePart, holders: dict[str, list[int]], error: CompileError) -> bool:
    """Leave out the pieces with errors. Returns whether that was possible for one.

    A class is only left out, with all that it holds, if nothing smaller can be: its other errors may be consequences.
    """
    found: list[tuple[Piece, str]] = []
    for file, line, column, message in _places(error):
        piece = part.find(holders.get(file, ()), line, column)
        if piece is not None and all(piece is not known for known, _ in found):
            found.append((piece, message))
    overloaded = [part.overload(piece) for piece, message in found if STATIC_OVERLOAD in message]
    if any(overloaded):
        return True
    for gentle in (True, False):
        changed = False
        for piece, message in found:
            if (piece.kind in ("class", "data")) != gentle:
                changed |= part.leave_out(piece, message)
        if changed:
            return True
    return False


def _relevant(first: CompileError, last: CompileError) -> CompileError:
    """The last error if it is one that was there from the beginning; otherwise it is a consequence of what was left out."""
    known = {(file, line, message) for file, line, _, message in _places(first)}
    return last if any((file, line, message) in known for file, line, _, message in _places(last)) else first


def _add_headers(headers: Headers, error: CompileError) -> bool:
    """Include the headers that define unknown names. Returns whether there were such."""
    names = set(_UNKNOWN.findall(error.log or str(error)))
    missing = {header for name in names for pattern, header in ON_DEMAND if re.fullmatch(pattern, name)}
    wanted = [*(f"#include <{header}>\n" for header in sorted(missing)), *filter(None, map(library_type, sorted(names)))]
    wanted += headers.of_std(re.findall(r'namespace "std" has no member "(\w+)"', error.log or str(error)))
    if "(<compare> must be included)" in (error.log or str(error)):
        wanted.append("#include <compare>\n")
    lines = [line for line in wanted if line not in headers.memory[PRELUDE_NAME]]
    headers.memory[PRELUDE_NAME] += "".join(lines)
    supplied = [headers.supply(name) for name in re.findall(r'cannot open source file "([^"]+)"', error.log or str(error))]
    return bool(lines) or any(supplied)


def _open_libraries(headers: Headers, holders: Mapping[str, list[int]], error: CompileError) -> bool:
    """Leave out the host functions of library headers that NVRTC refuses. Returns whether there were such headers."""
    files = {file for file, _, _, message in _places(error) if HOST_FUNCTION in message and file not in holders}
    opened = [file for file in sorted(files) if headers.open_library(file)]
    return bool(opened)


def _explained(error: CompileError, found: Extraction) -> CompileError:
    """The error, with what was left out of the names in it, and with the headers that were not found."""
    texts = [
        re.sub(_DELETED, "is a host function, which device code cannot call", text) for text in (str(error), error.log)
    ]
    hints = _left_out(error.log or str(error), found)
    if any("/thrust/" in file or '"thrust' in message for file, _, _, message in _places(error)):
        hints.append(OF_THRUST)
    hints += standards.absent(error.log or str(error))
    hints += [
        f"std::{name} is a type of the host, which device code cannot make: use arrays and the types of cuda::std"
        for name in dict.fromkeys(re.findall(r'"std::(\w+)', error.log or str(error)))
        if name in CLASSES or name in TEMPLATES
    ]
    absent = found.not_found
    if absent:
        wheels = [f"pip install {wheel}" for name in absent if (wheel := wheel_of(name))]
        advice = "; ".join(dict.fromkeys(wheels)) or "give their directory with -I"
        more = ", ..." if len(absent) > 6 else ""
        hints.append(f"headers that were not found: {', '.join(absent[:6])}{more} ({advice})")
    notes = "".join(f"\nnote: {hint}" for hint in hints)
    return CompileError("; ".join([texts[0], *hints]), f"{texts[1]}{notes}" if texts[1] else "")


def _left_out(log: str, found: Extraction) -> list[str]:
    """One sentence for each name in a log of errors that was left out as host code."""
    names = {match[1] for match in re.finditer(r'"(?:[\w:]*::)?(~?\w+)["(<]', log)}
    hints = []
    for one in found.dropped:
        name = re.sub(r"<.*", "", one.name).rpartition("::")[2]
        if one.what != "include" and name in names:
            names.discard(name)
            if one.what == "variable" and _TEXTURE.search(_line(found.part, one)):
                hints.append(TEXTURES.fix)
                continue
            place = f"line {one.line} of {one.file}" if one.file else f"line {one.line}"
            advice = "it " + NOT_COMPILED if one.reason == NOT_COMPILED else "mark it __device__ if device code uses it"
            hints.append(f"{one.what} {name} in {place} was left out as host code; {advice}")
    return [*dict.fromkeys(hints)][:4]


def _line(part: DevicePart, one: Dropped) -> str:
    """The line in which something begins that was left out."""
    texts = (inclusion.text for inclusion in part.unit.inclusions if part.file_of(inclusion) == one.file)
    lines = next(texts, "").split("\n")
    return lines[one.line - 1] if one.line <= len(lines) else ""


_TEXTURE = re.compile(r"\b(texture|surface)\s*<")
_DELETED = r"(\(declared at line \d+\) )?cannot be referenced -- it is a deleted function"
_UNKNOWN = re.compile(
    r'(?:identifier|namespace|name followed by "::"[^"]*|type name) "(\w+)"(?: is undefined)?|undefined identifier "(?:\w+)"'
)


def _places(error: CompileError) -> Iterator[tuple[str, int, int, str]]:
    """(file, line, column or 0, message) of the errors in a log."""
    for match in _ERROR.finditer(error.log or str(error)):
        yield (
            match["file"] or match["path"],
            int(match["line"] or match["number"]),
            int(match["column"] or 0),
            match["message"],
        )


def _helpful_option(
    error: CompileError, given: tuple[str, ...], tried: set[str], holders: Mapping[str, list[int]]
) -> str:
    """An option that may help against the errors, and that was not tried before."""
    log = error.log or str(error)
    candidates = []
    library = any("considered a host function" in message and file not in holders for file, _, _, message in _places(error))
    if library or "execution space for the lambda" in log:
        candidates.append(
            "-default-device"
        )  # for constexpr functions of libraries and lambdas; in the user's files no other function is left
    if "__int128" in log:
        candidates.append("--device-int128")
    if not standards.is_given(given) and standards.named(log):
        candidates.append(standards.STANDARDS[0])
    return next((option for option in candidates if option not in tried), "")
