"""Compiling CUDA C++ with NVRTC: one call gives the PTX and the cubin, on any machine, GPU or not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.compiler import toolkit
from ptxkit.compiler.image import Image, entry_names, shorten
from ptxkit.compiler.request import Request, request
from ptxkit.compiler.sources import is_path
from ptxkit.errors import CompileError, PtxkitError, UnavailableError
from ptxkit.targets import Target

if TYPE_CHECKING:
    from ptxkit.compiler.diagnostics import Diagnostic, SourceText


def compile_source(
    source: str | os.PathLike[str],
    *,
    target: Target | str,
    name: str | None = None,
    defines: Mapping[str, object] | None = None,
    instantiate: Sequence[str] = (),
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str] | None = None,
    lineinfo: bool = True,
    cache: bool = True,
) -> Image:
    """Compile CUDA C++ for one target, or fetch the result of having done so from the cache.

    Args:
        source: a path to a ``.cu`` file, or source text (a string with a newline or ``{`` in it). A path to a ``.ptx`` file
            goes to :func:`ptxkit.compiler.assemble.assemble`.
        target: ``"sm_90a"`` or a :class:`Target`.
        name: what to call the source in messages; the path by default.
        defines: macros; True and False become 1 and 0, None defines without a value.
        instantiate: NVRTC name expressions, such as ``"l2norm<256, float>"``.
        options: further NVRTC options, as they are.
        include_dirs: searched before the bundled ``cu/`` directory and the CUDA headers.
        headers: name as included -> text, of headers that need no file or take a file's place.
        lineinfo: keep source lines in PTX and cubin.
        cache: look in the disk cache, and write to it.

    Returns:
        The image: cubin, PTX, resources, and the warnings mapped to source lines.

    Raises:
        CompileError: the source does not compile; ``log`` holds every diagnostic.
        UsageError: no such file or target.
        UnavailableError: NVRTC is not installed, or too old to know the target.
    """
    if is_path(source) and str(source).endswith(".ptx"):
        from ptxkit.compiler.assemble import assemble

        return assemble(source, target=target, name=name, lineinfo=lineinfo, cache=cache)
    wanted = request(source, target, name, defines or {}, instantiate, options, include_dirs, lineinfo, headers)
    if not cache:
        return _shortened(compile_request(wanted))
    from ptxkit.compiler.incremental import cached_compile

    return _shortened(cached_compile(wanted, compile_request))


def is_cached(
    source: str | os.PathLike[str],
    *,
    target: Target | str,
    name: str | None = None,
    defines: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str] | None = None,
) -> bool:
    """Whether :func:`compile_source` would find its result in the cache."""
    from ptxkit.compiler.incremental import find

    return find(request(source, target, name, defines or {}, (), options, include_dirs, True, headers)) is not None


def _shortened(image: Image) -> Image:
    # The cache holds absolute paths: the next run may stand elsewhere.
    return replace(image, log=shorten(image.log)) if image.log else image


def _path_bytes(text: str) -> bytes:
    """What may hold a path, whose bytes need not be text in this locale."""
    return text.encode("utf-8", "surrogateescape")


def _macros(options: Sequence[str]) -> dict[str, str]:
    """What ``-D`` and ``--define-macro`` define, in one word or in two."""
    found: dict[str, str] = {}
    previous = ""
    for option in options:
        joined = f"{previous}={option}" if previous in ("-D", "--define-macro") else option
        previous = option
        if match := re.match(r"(?:-D|--define-macro=)=?(\w+)(?:=(.*))?$", joined, re.DOTALL):
            found[match[1]] = "1" if match[2] is None else match[2]
    return found


def compile_request(request: Request) -> Image:
    """Run NVRTC. Neither reads nor writes the cache; ``key`` and ``sources`` are left empty."""
    from ptxkit.compiler.standard_headers import STANDARD_HEADERS

    bindings = _bindings()
    in_memory = {**STANDARD_HEADERS, **dict(request.headers)}
    headers = [(text.encode(), _path_bytes(name)) for name, text in in_memory.items()]
    program = _check(
        bindings.nvrtcCreateProgram(
            request.text.encode(), _path_bytes(request.name), len(headers), *(list(column) for column in zip(*headers))
        )
    )
    try:
        for expression in request.names:
            _check(bindings.nvrtcAddNameExpression(program, expression.encode()))
        options = [f"--gpu-architecture={request.target}", *(f"-I{d}" for d in request.include_dirs), *request.options]
        (status,) = bindings.nvrtcCompileProgram(program, len(options), [_path_bytes(o) for o in options])
        log = _text(bindings, "ProgramLog", program)
        ptx = _text(bindings, "PTX", program)
        if int(status) != 0:
            raise _failure(request, log, ptx, str(status))
        names = {e: _check(bindings.nvrtcGetLoweredName(program, e.encode())).decode() for e in request.names}
        cubin = _bytes(bindings, "CUBIN", program)
    finally:
        bindings.nvrtcDestroyProgram(program)
    return _image(request, log, ptx, cubin, names)


def _image(request: Request, log: str, ptx: str, cubin: bytes, names: dict[str, str]) -> Image:
    from ptxkit.compiler import diagnostics, ptxas, resources

    functions = resources.read(log, entry_names(ptx))
    image = Image(
        str(request.target),
        ptx,
        cubin,
        functions=functions,
        names=names,
        source_name=_shown_name(request),
        macros=_macros(request.options),
    )
    sources = diagnostics.SourceText({request.name: request.text})
    warnings = [
        *_front_end(request, log, sources),
        *ptxas.read(log, ptx, request.target, sources, demangle=image.readable),
        *ptxas.spills(functions, image.readable, ptx),
    ]
    return replace(image, log=diagnostics.render(warnings))


def _failure(request: Request, log: str, ptx: str, status: str) -> PtxkitError:
    from ptxkit.compiler import diagnostics, ptxas

    if "invalid value for --gpu-architecture" in log:
        return toolkit.unknown_target(toolkit.nvrtc(), request.target.name, "nvidia-cuda-nvrtc")
    sources = diagnostics.SourceText({request.name: request.text})
    found = [*_front_end(request, log, sources), *ptxas.read(log, ptx, request.target, sources)]
    return diagnostics.failure(found, _shown_name(request), log or status)


def _front_end(request: Request, log: str, sources: SourceText) -> list[Diagnostic]:
    """NVRTC's diagnostics, without warnings about headers that are not the user's."""
    from ptxkit.compiler import front_end
    from ptxkit.compiler.standard_headers import STANDARD_HEADERS

    foreign = (*STANDARD_HEADERS, *(str(tool.path) for tool in toolkit.headers()))
    found = front_end.read(log, sources, request.names)
    return [d for d in found if d.severity == "error" or not d.file.startswith(foreign)]


def _shown_name(request: Request) -> str:
    return Path(request.name).name


def _bindings() -> Any:
    toolkit.preload(toolkit.nvrtc())
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise UnavailableError(
            f"cuda.bindings is not installed ({error}); run: pip install 'cuda-python>=13,<14'"
        ) from error
    return nvrtc


def nvrtc_version() -> str:
    """``"13.0"``: of the library in use."""
    major, minor = _bindings().nvrtcVersion()[1:]
    return f"{major}.{minor}"


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise CompileError(f"NVRTC failed: {status.name}")
    return values[0] if values else None


def _bytes(bindings: Any, what: str, program: Any) -> bytes:
    status, size = getattr(bindings, f"nvrtcGet{what}Size")(program)
    if int(status) != 0 or size == 0:
        return b""
    buffer = bytes(size)  # the bindings write into it; nothing else has seen it yet
    _check(getattr(bindings, f"nvrtcGet{what}")(program, buffer))
    return buffer


def _text(bindings: Any, what: str, program: Any) -> str:
    return _bytes(bindings, what, program).rstrip(b"\0").decode(errors="replace")
