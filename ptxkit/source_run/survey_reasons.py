"""Why a source does not compile, as a short reason that many sources share, and what the user can do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ptxkit.compiler.advice import LAUNCHES, TEXTURES
from ptxkit.compiler.advice import LINKING as UNRESOLVED
from ptxkit.compiler.host_code.headers import wheel_of

LINKING = "separate compilation"
MISSING_HEADER = "missing header"
PART = "part of another source"
UNDECLARED = "undeclared name"
DIALECT = "host compiler's dialect"
MACRO = "macro of the build"
HOST_CODE = "host code in device code"
PLATFORM = "another platform"
NOT_TEXT = "not readable"
TIME_LIMIT = "time limit"
CRASH = "crash"
UNAVAILABLE = "not available here"
OTHER = "other error"

PLATFORMS = {
    "hip/": "AMD's HIP",
    "rocwmma/": "AMD's HIP",
    "rocprim/": "AMD's HIP",
    "musa": "Moore Threads' MUSA",
    "mudnn": "Moore Threads' MUSA",
    "mublas": "Moore Threads' MUSA",
    "sycl/": "SYCL",
    "CL/": "OpenCL",
}
"""The beginning of a header's name -> the platform whose sources include it."""

_NOT_OPENED = re.compile(r'cannot open source file "([^"]+)"')
_NOT_FOUND = re.compile(r"headers that were not found: ([^(\n]+?) \(")
_UNDECLARED = re.compile(r'identifier "([^"]+)" is undefined|name followed by "::" must be a class or namespace name')
_HOST_NAME = re.compile(r"(\w[\w ]*?) (\w+) in (line \d+[^;\n]*) was left out as host code")


@dataclass(frozen=True)
class Reason:
    """Why a file does not compile.

    Attributes:
        name: one of the few names that a summary counts, such as ``"missing header"``.
        hint: what to do, one line.
        headers: the headers that are missing; their directories may be found in the folders that are surveyed.
    """

    name: str
    hint: str
    headers: tuple[str, ...] = ()


def missing_headers(log: str) -> tuple[str, ...]:
    """The headers that a log of errors names as missing, in the order of the log."""
    listed = [name.strip() for match in _NOT_FOUND.finditer(log) for name in match[1].split(",")]
    names = [*_NOT_OPENED.findall(log), *(name for name in listed if name and name != "...")]
    return tuple(dict.fromkeys(names))


def reason_of(log: str) -> Reason:
    """The reason and the hint for a log of errors; the first rule of the table that fits decides.

    Args:
        log: the diagnostics with the notes of :mod:`ptxkit.compiler.host_code.compile`.
    """
    for pattern, make in _RULES:
        if match := re.search(pattern, log):
            return make(match, log)
    return Reason(OTHER, "correct the place that the error names (ptxkit run FILE shows all errors)")


def _headers(_: re.Match[str], log: str) -> Reason:
    return with_directories(Reason(MISSING_HEADER, "", missing_headers(log)), {})


def with_directories(reason: Reason, files: Mapping[str, Sequence[PurePath]]) -> Reason:
    """A reason whose hint says where the headers that are missing can be found.

    Args:
        reason: any; one without missing headers is returned as it is.
        files: file name -> paths of the headers in the folders that are surveyed.
    """
    if not reason.headers:
        return reason
    advice: dict[str, None] = {}
    unknown = []
    for header in reason.headers:
        if platform := next((name for start, name in PLATFORMS.items() if header.startswith(start)), ""):
            return Reason(PLATFORM, f"compile it with the tools of {platform}, for which it is written ({header})")
    for header in reason.headers:
        wanted = PurePath(header).parts
        found = [p for p in files.get(wanted[-1], ()) if p.parts[-len(wanted) :] == wanted]
        if found:
            nearest = min(found, key=lambda p: (len(p.parts), str(p)))
            advice[f"--include {PurePath(*nearest.parts[: -len(wanted)])}"] = None
        elif wheel := wheel_of(header):
            advice[f"pip install {wheel}"] = None
        else:
            unknown.append(header)
    if unknown:
        more = ", ..." if len(unknown) > 3 else ""
        advice[f"give the directory of {', '.join(unknown[:3])}{more} with --include"] = None
    return Reason(reason.name, "; ".join(advice), reason.headers)


def _fixed(name: str, hint: str) -> Callable[[re.Match[str], str], Reason]:
    return lambda match, log: Reason(name, hint)


def _host_name(match: re.Match[str], log: str) -> Reason:
    if named := _HOST_NAME.search(log):
        what = f"{named[1]} {named[2]} in {named[3]}"
    else:
        what = "the function that the error names"
    return Reason(HOST_CODE, f"mark {what} __device__, or do not use it in device code")


def _undeclared(match: re.Match[str], log: str) -> Reason:
    if missing := missing_headers(log):
        return with_directories(Reason(MISSING_HEADER, "", missing), {})
    name = match[1] or ""
    if not name:
        return Reason(UNDECLARED, "include the header that declares the namespace or class that the error names")
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        return Reason(
            UNDECLARED, f"define the macro as the build does: --define {name}=VALUE; or include its header"
        )
    return Reason(
        UNDECLARED, f"include the header that declares {name}, or the source that this one is included by"
    )


def _target(match: re.Match[str], log: str) -> Reason:
    return Reason("target", f"compile for a target that has the instruction: --arch {match[1]}")


_RULES: tuple[tuple[str, Callable[[re.Match[str], str], Reason]], ...] = (
    (
        r"static and nonstatic member functions with same parameter types",
        _fixed(
            DIALECT,
            "give the overloads different parameters: nvcc accepts them as its host compiler does, NVRTC follows the standard",
        ),
    ),
    (r'cannot open source file "', _headers),
    (
        r"this '\}' closes nothing|this '\{' is not closed",
        _fixed("braces", "correct the brace, or define the macro that holds one"),
    ),
    (r"compile for (sm_\w+) \(--arch", _target),
    (r"needs (sm_\w+).*; the target is", _target),
    (
        r"cannot be assembled for",
        _fixed("target", "leave --arch out: PTX is then assembled for the target that it names"),
    ),
    (
        LAUNCHES.pattern,
        _fixed("dynamic parallelism", LAUNCHES.fix),
    ),
    (
        UNRESOLVED.pattern,
        _fixed(LINKING, UNRESOLVED.fix),
    ),
    (
        TEXTURES.pattern,
        _fixed("texture reference", TEXTURES.fix),
    ),
    (
        r"is a host function, which device code cannot call|was left out as host code|considered a host function",
        _host_name,
    ),
    (_UNDECLARED.pattern, _undeclared),
    (
        r"dynamic initialization is not supported for a",
        _fixed("initialiser", "declare the constant constexpr, and those that its value is computed from"),
    ),
    (
        r"#error directive",
        _fixed("#error", "meet the condition that the message names, mostly with --define or --arch"),
    ),
    (
        r"static assertion failed",
        _fixed("static assertion", "meet the condition that the message names, mostly with --define"),
    ),
    (
        r"requires PTX ISA \.version",
        _fixed("PTX version", "raise .version to the one that the error names"),
    ),
    (
        r"Unsupported \.version|is newer than nvJitLink",
        _fixed("PTX version", "lower .version, or run: pip install -U nvidia-nvjitlink"),
    ),
    (
        r"no \.(version|target) directive",
        _fixed(
            "no PTX", "the file has no header of a PTX module; begin it with .version, .target and .address_size 64"
        ),
    ),
    (
        (
            r"Not a name of any known instruction|PTX line \d+|asm operand|invalid constraint|Parsing error near|"
            r"[Aa]rguments mismatch for instruction"
        ),
        _fixed("instruction", "correct the instruction that the error names"),
    ),
    (
        r"concept|requires clause|consteval|C\+\+20|C\+\+23",
        _fixed("C++ standard", "compile it with a later standard: --compiler-option --std=c++20"),
    ),
    (
        r"uses too much shared data|too many resources|exceeds? .*(shared|register)",
        _fixed("resources", "compile for a target with larger limits (--arch), or use less shared memory"),
    ),
)
"""Pattern of a log -> its reason; the order decides, since one cause leads to many messages."""


@dataclass(frozen=True)
class Failure:
    """A failure that is not the source's: how the process of a file ended.

    Attributes:
        reason: the reason. message: one line.
    """

    reason: Reason
    message: str


def timed_out(limit_s: float) -> Failure:
    """The failure of a file whose compilation took longer than ``limit_s`` seconds."""
    hint = "give it more time with --timeout"
    return Failure(Reason(TIME_LIMIT, hint), f"not compiled within {limit_s:g} s, the limit of --timeout")


def crashed(how: str) -> Failure:
    """The failure of a file at which the process that compiled it ended.

    Args:
        how: as :func:`ptxkit.compiler.child.how_it_ended` says it.
    """
    hint = "run: pip install -U nvidia-cuda-nvrtc nvidia-nvjitlink; or take parts of the source away to find what crashes it"
    return Failure(Reason(CRASH, hint), f"the compiler ended with {how}")
