"""One compilation by NVRTC; as a program, the child process that compiles with options that NVRTC does not reset.

The request of ``child.py`` has the arguments of :func:`compile_program`. The answer is what that returns, or ``unavailable``
(why ``cuda.bindings`` cannot be imported), or ``failed`` (the text of an :class:`NvrtcError`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NvrtcError(Exception):
    """A function of NVRTC failed for another reason than the source; the text is the name of its status."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile one program."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        return {"unavailable": str(error)}
    try:
        return compile_program(nvrtc, **request)
    except NvrtcError as error:
        return {"failed": str(error)}


def compile_program(
    nvrtc: Any,
    *,
    text: bytes,
    name: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    expressions: Sequence[str],
    options: Sequence[bytes],
) -> dict[str, Any]:
    """Compile one program.

    Args:
        nvrtc: the module ``cuda.bindings.nvrtc``.
        text: CUDA C++.
        name: of the source, in messages and line tables.
        headers: (text, name as included) of headers that need no file.
        expressions: name expressions of the instantiations.
        options: all options, with the architecture and the include directories.

    Returns:
        ``log`` and ``ptx`` (str; the PTX may be there after a failure of ptxas, too), ``error`` (name of the status, or ""
        on success), and on success ``cubin`` and ``ltoir`` (bytes; with ``-dlto`` only the second has some,
        otherwise the first) and ``names`` (expression -> mangled name).

    Raises:
        NvrtcError: NVRTC failed for another reason than the source or the options.
    """
    columns = [list(column) for column in zip(*headers, strict=True)] or [[], []]
    program = _check(nvrtc.nvrtcCreateProgram(text, name, len(headers), *columns))
    try:
        for expression in expressions:
            _check(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), list(options))
        result: dict[str, Any] = {
            "log": _text(nvrtc, "ProgramLog", program),
            "ptx": _text(nvrtc, "PTX", program),
            "error": "" if int(status) == 0 else str(status),
        }
        if not result["error"]:
            names = {e: _check(nvrtc.nvrtcGetLoweredName(program, e.encode())).decode() for e in expressions}
            result |= {"names": names}
            result |= {what.lower(): _bytes(nvrtc, what, program) for what in ("CUBIN", "LTOIR")}
        return result
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise NvrtcError(status.name)
    return values[0] if values else None


def _bytes(nvrtc: Any, what: str, program: Any) -> bytes:
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    if int(status) != 0 or size == 0:
        return b""
    buffer = bytes(size)  # the bindings write into it; nothing else has seen it yet
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer


def _text(nvrtc: Any, what: str, program: Any) -> str:
    return _bytes(nvrtc, what, program).rstrip(b"\0").decode(errors="replace")
