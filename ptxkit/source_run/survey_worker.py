"""The program of a process that compiles the files of a survey one after another, so that a crash ends one file only.

A request is a line of JSON on stdin: ``file``, ``target`` (or null), ``include_dirs``, ``defines`` (name -> value or null),
``options`` and ``limit_s``. The answer is a line of JSON on stdout: see :func:`answer`. The first line that it writes is
``"ready"``.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ptxkit.compiler.assemble import assemble
from ptxkit.compiler.host_code.compile import Extraction, extracted
from ptxkit.compiler.host_code.headers import LIBRARIES
from ptxkit.compiler.image import Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.compiler.request import request
from ptxkit.compiler.templates import templates
from ptxkit.errors import CompileError, PtxkitError, UnavailableError, UsageError
from ptxkit.isa.parser import parse
from ptxkit.source_run.survey_macros import hint_of_macro
from ptxkit.source_run.survey_parts import reason_of_part
from ptxkit.source_run.survey_reasons import (
    DIALECT,
    HOST_CODE,
    MACRO,
    MISSING_HEADER,
    NOT_TEXT,
    OTHER,
    UNAVAILABLE,
    UNDECLARED,
    Reason,
    reason_of,
)

DEFAULT_TARGET = "sm_90a"
GRACE_S = 10
"""Seconds after the time limit at which this process ends by itself, if the one that started it is gone."""


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Compile one file.

    Args:
        asked: the request.

    Returns:
        ``verdict`` (a name of :class:`ptxkit.source_run.survey.Verdict`), ``kernels``, ``templates`` (kernel templates that
        the source defines), ``left_out``, ``from_cache``, ``target``, ``seconds``, and of a failure ``error`` (one line),
        ``reason``, ``hint``, ``headers`` and ``exit_code``.
    """
    begin = time.perf_counter()
    path = Path(asked["file"])
    try:
        found = _ptx(path, asked) if path.suffix == ".ptx" else _cuda(path, asked)
    except PtxkitError as error:
        found = _failure(error, path)
    except (OSError, MemoryError, RecursionError, ValueError) as error:
        found = {
            "error": f"{type(error).__name__}: {error}".strip(),
            "reason": OTHER,
            "hint": "look at the file: ptxkit cannot process it",
            "exit_code": 9,
        }
    return {"verdict": "fails", "kernels": 0, **found, "seconds": time.perf_counter() - begin}


def _failure(error: PtxkitError, path: Path, part: Extraction | None = None) -> dict[str, Any]:
    """The answer for a file that fails.

    Args:
        part: of the source, if it could be parsed.
    """
    log = (error.log if isinstance(error, CompileError) else "") or str(error)
    if isinstance(error, UnavailableError):
        reason = Reason(UNAVAILABLE, "install what the error names (ptxkit doctor)")
    elif isinstance(error, UsageError):
        reason = Reason(NOT_TEXT, "correct what the error names: a source is UTF-8 text without NUL bytes")
    else:
        reason = reason_of(f"{log}\n{error}")
        if reason.name in (UNDECLARED, MISSING_HEADER) and path.suffix == ".cu":
            reason = reason_of_part(path) or reason
        reason = _with_macro(reason, log, part)
    return {
        "error": _one_line(str(error)),
        "reason": reason.name,
        "hint": reason.hint,
        "headers": list(reason.headers),
        "exit_code": int(error.exit_code),
    }


def _with_macro(reason: Reason, log: str, part: Extraction | None) -> Reason:
    """A reason, with the macro that declares the name, if there is one."""
    if part is None or reason.name not in (UNDECLARED, DIALECT, HOST_CODE, OTHER):
        return reason
    source = part.part.source
    hint = hint_of_macro(log, source.path, source.text, part.headers.find)
    return Reason(MACRO, hint) if hint else reason


def _one_line(text: str) -> str:
    """The first line of a message, without what is said of host code after it, which the hint repeats."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return re.sub(r"; (headers that were not found|\w[\w ]* in line \d+ ).*", "", first)


def _ptx(path: Path, asked: dict[str, Any]) -> dict[str, Any]:
    image = assemble(path, target=asked["target"] or None)
    module = parse(image.ptx, path.name)
    is_empty = not module.entries and not module.functions and not module.variables
    return {
        **_described(image, image.target),
        "kernels": len(module.entries),
        "verdict": "no_device_code" if is_empty else "untouched",
    }


def _cuda(path: Path, asked: dict[str, Any]) -> dict[str, Any]:
    target = asked["target"] or DEFAULT_TARGET
    given = {key: asked[key] for key in ("defines", "options", "include_dirs")}
    try:
        image = compile_source(path, target=target, **given)
    except UnavailableError:
        raise
    except CompileError as error:
        part = _part(path, target, given)
        if _has_device_code(part):
            return _failure(error, path, part)
        return {"verdict": "no_device_code", "target": target}
    found = {**_described(image, target), "verdict": "without_host_code" if image.left_out else "untouched"}
    if not image.functions:
        found["templates"] = len(templates(path.read_text(encoding="utf-8", errors="replace")))
        if not found["templates"] and not _has_device_code(_part(path, target, given)):
            found["verdict"] = "no_device_code"
    return found


def _described(image: Image, target: str) -> dict[str, Any]:
    return {
        "kernels": len(image.functions),
        "left_out": image.left_out,
        "from_cache": image.from_cache,
        "target": target,
    }


def _part(path: Path, target: str, given: dict[str, Any]) -> Extraction | None:
    """A source with its headers, without host code; None where it cannot be parsed, because its braces do not match."""
    wanted = request(path, target, None, given["defines"], (), given["options"], given["include_dirs"], True)
    try:
        return extracted(wanted)
    except PtxkitError:
        return None


def _has_device_code(found: Extraction | None) -> bool:
    """Whether a source has device code; where a header is missing or its braces do not match, it counts as having some."""
    # headers of libraries such as CUTLASS have templates, which host code launches
    return (
        found is None or found.has_device_code or any(not name.startswith(LIBRARIES) for name in found.not_found)
    )


def _serve() -> None:
    """Answer requests until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the compilers may print
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.alarm(math.ceil(asked["limit_s"]) + GRACE_S)
        found = answer(asked)
        signal.alarm(0)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
