"""One compilation by NVRTC; as a program, the child process that compiles with options that NVRTC does not reset.

The library is called through ctypes, because the import of ``cuda.bindings`` takes longer than most compilations.

The request of ``child.py`` has the arguments of :func:`compile_program`, with the path of the library. The answer is what that
returns, or ``failed`` (the text of an :class:`NvrtcError`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class NvrtcError(Exception):
    """A function of NVRTC failed for another reason than the source; the text is the name of its status."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile one program."""
    try:
        return compile_program(**request)
    except NvrtcError as error:
        return {"failed": str(error)}


def compile_program(
    *,
    library: str,
    text: bytes,
    name: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    expressions: Sequence[str],
    options: Sequence[bytes],
) -> dict[str, Any]:
    """Compile one program.

    Args:
        library: path of NVRTC, whose companions are loaded.
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
    nvrtc, program = ctypes.CDLL(library), ctypes.c_void_p()
    texts, names = (_strings([header[k] for header in headers]) for k in (0, 1))
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, len(headers), texts, names))
    try:
        for expression in expressions:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        status = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
        result: dict[str, Any] = {
            "log": _text(nvrtc, "ProgramLog", program),
            "ptx": _text(nvrtc, "PTX", program),
            "error": "" if status == 0 else _name(nvrtc, status),
        }
        if not result["error"]:
            result |= {"names": {e: _lowered(nvrtc, program, e) for e in expressions}}
            result |= {what.lower(): _bytes(nvrtc, what, program) for what in ("CUBIN", "LTOIR")}
        return result
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def version(library: str) -> tuple[int, int]:
    """Major and minor version of the library at a path."""
    nvrtc, major, minor = ctypes.CDLL(library), ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _strings(given: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    """An array of pointers to null-terminated strings."""
    return (ctypes.c_char_p * len(given))(*given)


def _name(nvrtc: ctypes.CDLL, status: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return bytes(nvrtc.nvrtcGetErrorString(status)).decode()


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise NvrtcError(_name(nvrtc, status))


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, expression: str) -> str:
    found = ctypes.c_char_p()
    _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(found)))
    return (found.value or b"").decode()


def _bytes(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    status = getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    if status != 0 or size.value == 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    return _bytes(nvrtc, what, program).rstrip(b"\0").decode(errors="replace")
