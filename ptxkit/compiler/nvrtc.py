"""Compiling CUDA C++ with NVRTC: one call gives the PTX and the cubin, on any machine, GPU or not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.compiler import child, toolkit
from ptxkit.compiler.advice import advised
from ptxkit.compiler.image import Image, entry_names, shorten
from ptxkit.compiler.nvrtc_process import NvrtcError, compile_program, version
from ptxkit.compiler.request import Request, defined_macros, request
from ptxkit.compiler.sources import is_path
from ptxkit.errors import CompileError, PtxkitError, UnavailableError
from ptxkit.isa.mangled import base_name
from ptxkit.targets import Target

if TYPE_CHECKING:
    from ptxkit.compiler.diagnostics import Diagnostic, SourceText
    from ptxkit.compiler.host_code.headers import Headers


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
    """Compile CUDA C++ for one target, or load the result from the cache.

    Host code of the source is left out (:mod:`ptxkit.compiler.host_code`); the image's ``log`` says so.

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
        return shortened(without_host_code(wanted, compile_request))
    from ptxkit.compiler.host_code import kept
    from ptxkit.compiler.incremental import cached_compile

    if (known := kept.find(wanted)) is not None:
        return shortened(known)
    files = kept.Files()
    image = without_host_code(wanted, lambda one: cached_compile(one, compile_request, files.note), files.note_entered)
    if image.expanded:
        kept.store(wanted, image, files)
    return shortened(image)


def without_host_code(
    wanted: Request, build: Callable[[Request], Image], note: Callable[[Headers], object] = lambda headers: None
) -> Image:
    """Compile a source, or only its device part where it has host code.

    A source that has no signs of host code is first compiled as it is. If that fails, and leaving out what a parser takes for
    host code helps, that counts; otherwise the first failure is reported, which concerns the whole source.

    Args:
        build: compiles. note: is given the headers of a source whose host code was left out.
    """
    from ptxkit.compiler.host_code.compile import compile_device_part, extracted, may_have_host_code

    failure: CompileError | None = None
    if not may_have_host_code(wanted.text):
        try:
            return build(wanted)
        except CompileError as error:
            failure = error
    found, supplied = None, False
    try:
        found = extracted(wanted)
        supplied = failure is not None and found.may_supply(failure)
        if failure is not None and not found.has_host_code and not supplied:
            raise failure
        image = compile_device_part(wanted, found, build)
        note(found.headers)
    except (CompileError, UnavailableError) as error:
        if failure is not None and not (found is not None and error is not failure and (supplied or found.explains(failure))):
            raise advised(failure) from None
        if isinstance(error, CompileError):
            raise advised(error) from None
        raise error from None
    image = replace(image, expanded=found.part.unit.text, left_out=found.left_out)
    if not found.note:
        return image
    remark = f"{Path(wanted.name).name}: note: {found.note}"
    return replace(image, log=f"{image.log}\n{remark}".lstrip("\n"))


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


def source_key(
    source: str | os.PathLike[str],
    *,
    target: Target | str,
    name: str | None = None,
    defines: Mapping[str, object] | None = None,
    instantiate: Sequence[str] = (),
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str] | None = None,
) -> str:
    """Hash of everything that determines the image of :func:`compile_source`: sources, headers, options and compiler.

    Raises:
        UsageError, UnavailableError: as :func:`compile_source`.
    """
    if is_path(source) and str(source).endswith(".ptx"):
        from ptxkit.compiler.assemble import key_of as ptx_key

        return ptx_key(source, target=target, name=name)
    from ptxkit.compiler.incremental import key_of

    return key_of(request(source, target, name, defines or {}, instantiate, options, include_dirs, True, headers))


def shortened(image: Image) -> Image:
    # The cache holds absolute paths, because later runs may have another working directory.
    return replace(image, log=shorten(image.log)) if image.log else image


def _path_bytes(text: str) -> bytes:
    """Text that may contain a path as bytes; the bytes of a path need not be valid text in the current locale."""
    return text.encode("utf-8", "surrogateescape")


def compile_request(request: Request) -> Image:
    """Run NVRTC. Neither reads nor writes the cache; ``key`` and ``sources`` are left empty."""
    from ptxkit.compiler.standard_headers import STANDARD_HEADERS
    from ptxkit.compiler.universal_names import escaped, unescaped

    in_memory = {**STANDARD_HEADERS, **dict(request.headers)}
    options = [f"--gpu-architecture={request.target}", *(f"-I{d}" for d in request.include_dirs), *request.options]
    arguments = {
        "text": escaped(request.text).encode(),
        "name": _path_bytes(request.name),
        "headers": [(escaped(text).encode(), _path_bytes(name)) for name, text in in_memory.items()],
        "expressions": list(request.names),
        "options": [_path_bytes(o) for o in options],
    }
    tool = toolkit.nvrtc()
    arguments["library"] = str(tool.path)
    if stays_in_process(request.options):
        compiled = _compiled_here(tool, arguments)
    else:
        compiled = _compiled_in_child(request, tool, arguments)
    if not all(text.isascii() for text in (request.text, *dict(request.headers).values())):
        compiled["log"] = unescaped(compiled["log"])
    if compiled["error"]:
        raise _failure(request, compiled["log"], compiled["ptx"], compiled["error"])
    image = _image(request, compiled["log"], compiled["ptx"], compiled["cubin"], compiled["names"])
    return replace(image, ltoir=compiled["ltoir"]) if compiled["ltoir"] else image


def stays_in_process(options: Sequence[str]) -> bool:
    """Whether NVRTC forgets these options after the compilation.

    ``-G`` and ``--Ofast-compile`` change the code that NVRTC 13 generates for every later program of the process (seen with
    13.5: other instructions for the same source). Options that are not known to be harmless count as such.
    """
    return all(_HARMLESS.fullmatch(option) for option in options)


_HARMLESS = re.compile(
    r"(-D|-U|-I).*|--(define-macro|undefine-macro|include-path)=.*|--no-cache|--no-display-error-number|-w|"
    r"--pre-include=.*|--ptxas-options=-(v|O\d)|-lineinfo|--generate-line-info|-{1,2}std=c\+\+\d\d|-{1,2}maxrregcount=\d+|"
    r"-{1,2}use_fast_math|--(fmad|ftz|prec-div|prec-sqrt)=(true|false)|--device-int128|-{1,2}default-device"
)
"""Options that were compiled with in one process before another program, whose PTX stayed the same."""


def _compiled_here(tool: toolkit.Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    toolkit.preload(tool)
    try:
        return compile_program(**arguments)
    except NvrtcError as error:
        raise CompileError(f"NVRTC failed: {error}") from None


def _compiled_in_child(request: Request, tool: toolkit.Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    libraries = [str(path) for path in (*toolkit.companions(tool), tool.path)]
    try:
        compiled = child.answer("nvrtc_process.py", {"libraries": libraries, **arguments})
    except child.ChildCrashError as crash:
        raise CompileError(
            shorten(
                f"{request.name}: error: NVRTC {tool.version} ended with {crash} when it compiled this source with "
                f"{' '.join(request.options)}; compile it without the last of these options"
            )
        ) from None
    if "failed" in compiled:
        raise CompileError(f"NVRTC failed: {compiled['failed']}")
    return compiled


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
        macros=defined_macros(request.options),
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
    found = [*_front_end(request, log, sources), *ptxas.read(log, ptx, request.target, sources, demangle=base_name)]
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


def nvrtc_version() -> str:
    """``"13.0"``: of the library in use."""
    tool = toolkit.nvrtc()
    toolkit.preload(tool)
    major, minor = version(str(tool.path))
    return f"{major}.{minor}"
