"""Assembling PTX text with nvJitLink: a cubin for a GPU whose driver is older than the PTX, or none for the emulator."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptxkit.compiler import child, toolkit
from ptxkit.compiler.image import FunctionResources, Image, entry_names, shorten
from ptxkit.compiler.sources import read_source
from ptxkit.errors import CompileError, PtxSyntaxError, UnavailableError
from ptxkit.isa.comments import without_comments
from ptxkit.targets import TARGETS, Target

_VERSION = re.compile(r"^\s*\.version\s+(\d+\.\d+)", re.MULTILINE)


@dataclass(frozen=True)
class _Header:
    """``.version`` and ``.target`` of a PTX text, with the lines they stand on."""

    version: str
    version_line: int
    target: Target
    target_line: int


def assemble(
    ptx: str | os.PathLike[str],
    *,
    target: Target | str | None = None,
    name: str | None = None,
    lineinfo: bool = True,
    cache: bool = True,
    cubin: bool = True,
) -> Image:
    """Assemble PTX for a target.

    Args:
        ptx: a path, or PTX text (a string with a newline or ``{`` in it).
        target: what to assemble for; must be able to run the text's ``.target``. None takes that one, and sm_90a for PTX
            of an older target than all that are supported.
        name: what to call the text in messages.
        lineinfo: keep PTX lines in the cubin.
        cache: look in the disk cache, and write to it.
        cubin: False only checks the header of the text, which suffices for the emulator.

    Returns:
        The image. Without a cubin all resources are zero. PTX that is older than nvJitLink takes gets no cubin: the
        emulator executes it, and on a GPU the driver compiles the text.

    Raises:
        CompileError: nvJitLink refuses the text, or the target cannot run it.
        PtxSyntaxError: ``.version`` or ``.target`` is missing.
        UsageError: no such file or target.
        UnavailableError: nvJitLink is not installed, or too old to know the target.
    """
    text, shown, _ = read_source(ptx, name, "source.ptx")
    header = _header(text, shown)
    if target is None:
        wanted = header.target if header.target.name in TARGETS else TARGETS["sm_90a"]
    else:
        wanted = Target.parse(target)
    source = (shown,) if Path(shown).is_absolute() else ()
    if not cubin or is_for_the_driver(header.version):
        functions = dict.fromkeys(entry_names(text), FunctionResources())
        return Image(wanted.name, text, None, functions=functions, source_name=Path(shown).name, sources=source)
    if not wanted.accepts(header.target):
        raise CompileError(
            shorten(f"{shown}:{header.target_line}: error: .target {header.target} cannot be assembled for {wanted}")
        )
    options = [f"-arch={wanted}", "-Xptxas=-v", "-no-cache", *(["-lineinfo"] if lineinfo else [])]
    image = _cached(text, shown, wanted, header, options) if cache else _build(text, shown, wanted, header, options)
    return replace(image, sources=source, log=shorten(image.log))


def _cached(text: str, name: str, target: Target, header: _Header, options: list[str]) -> Image:
    from ptxkit.compiler import cache as disk
    from ptxkit.compiler import image_cache

    cache = disk.default_cache()
    key = image_cache.content_key("nvjitlink", toolkit.nvjitlink_identity(), text, name, options)
    image = image_cache.load(cache, key)
    if image is None:
        image = replace(_build(text, name, target, header, options), key=key)
        image_cache.store(cache, image)
    return image


def _build(text: str, name: str, target: Target, header: _Header, options: list[str]) -> Image:
    from ptxkit.compiler import diagnostics, ptxas, resources

    cubin, log = run_nvjitlink("PTX", [(text.encode(), name)], target, options)
    sources = diagnostics.SourceText({name: text})
    shown = Path(name).name
    if cubin is None:
        found = [_clearer(d, header, target) for d in ptxas.read(log, text, header.target, sources, file=name)]
        raise diagnostics.failure(found, shown, log)
    _check_alignment(text, name, cubin)
    functions = resources.read(log, entry_names(text))
    image = Image(target.name, text, cubin, functions=functions, source_name=shown)
    warnings = ptxas.read(log, text, header.target, sources, file=name, demangle=image.readable)
    warnings += ptxas.spills(functions, image.readable, text, file=name)
    return replace(image, log=diagnostics.render(warnings))


def key_of(ptx: str | os.PathLike[str], *, target: Target | str, name: str | None = None) -> str:
    """Hash of everything that determines the cubin of :func:`assemble`; assembles nothing."""
    from ptxkit.compiler import image_cache

    text, _, _ = read_source(ptx, name, "source.ptx")
    return image_cache.content_key("nvjitlink", toolkit.nvjitlink_identity(), text, Target.parse(target).name)


_KEEPS_ALIGNMENT = (13, 1)
"""The first version of nvJitLink that does not drop the alignment of dynamic shared memory."""


def _check_alignment(text: str, name: str, cubin: bytes) -> None:
    """Compare the addresses of dynamic shared memory with the PTX, if this nvJitLink may have placed it wrongly.

    Raises:
        CompileError: an array is misaligned.
    """
    version = toolkit.nvjitlink().version
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= _KEEPS_ALIGNMENT:
        return
    from ptxkit.compiler import shared_alignment

    found = shared_alignment.misplaced(text, cubin, name)
    if found is not None:
        raise CompileError(
            shorten(
                f"{name}:{found.line}: error: nvJitLink {version} drops the .align {found.align} of '{found.name}' after the "
                f"{found.offset} bytes of static shared memory of {found.kernel}, so that the array would be misaligned; run: "
                f"pip install -U 'nvidia-nvjitlink>={'.'.join(map(str, _KEEPS_ALIGNMENT))}', or pad the static "
                f"shared memory to a multiple of {found.align} bytes"
            )
        )


def _clearer(found: Any, header: _Header, target: Target) -> Any:
    """The diagnostic with the fix added, for errors of ptxas that only state the problem."""
    if match := re.search(r"Unsupported \.version (\S+); current version is '([\d.]+)'", found.message):
        message = (
            f".version {match[1]} is newer than nvJitLink {toolkit.nvjitlink().version} knows ({match[2]}); "
            f"lower it, or run: pip install -U nvidia-nvjitlink"
        )
        return replace(found, message=message, line=header.version_line, column=1)
    if f"; the target is {header.target};" in found.message and header.target != target:
        where = f"the text is for this target because of .target {header.target} in line {header.target_line}"
        return replace(found, notes=(*found.notes, where))
    return found


def is_for_the_driver(version: str) -> bool:
    """Whether PTX of a ``.version`` is older than nvJitLink takes, which compiles for separate linking (``-c``) only."""
    return tuple(int(part) for part in version.split(".")) < (3, 1)


def text_for_the_driver(ptx: str) -> bytes:
    """PTX as the driver takes it, if it is too old for nvJitLink; b"" otherwise."""
    version = _VERSION.search(without_comments(ptx))
    return ptx.encode() + b"\0" if version is not None and is_for_the_driver(version[1]) else b""


def written_target(text: str, name: str) -> Target:
    """The target that a PTX text names.

    Raises:
        PtxSyntaxError: it names none, or one that does not exist.
    """
    return _header(text, name).target


def _header(text: str, name: str) -> _Header:
    bare = without_comments(text)
    version = _VERSION.search(bare)
    target = re.search(r"^\s*\.target\s+(\w+)", bare, re.MULTILINE)
    if version is None or target is None:
        directive = ".version" if version is None else ".target"
        raise PtxSyntaxError(shorten(f"{name}:1:1: error: there is no {directive} directive, so this is not PTX"))
    line = bare.count("\n", 0, target.start(1)) + 1
    return _Header(version[1], bare.count("\n", 0, version.start(1)) + 1, _written_target(target[1], name, line), line)


def _written_target(written: str, name: str, line: int) -> Target:
    if known := TARGETS.get(written):
        return known
    older = re.fullmatch(r"sm_(\d+)", written)  # sm_52, sm_70: not a supported target, but newer targets run its PTX
    if older and int(older[1]) < min(t.cc for t in TARGETS.values()):
        return Target(written, int(older[1]))
    raise PtxSyntaxError(
        shorten(f"{name}:{line}: error: there is no target {written}; targets are {', '.join(TARGETS)}")
    )


def run_nvjitlink(
    kind: str, inputs: Sequence[tuple[bytes, str]], target: Target, options: Sequence[str]
) -> tuple[bytes | None, str]:
    """(output or None, log) of nvJitLink, which runs in a child process: PTX written by hand can crash it.

    Args:
        kind: of the inputs: ``"PTX"`` or ``"LTOIR"``. inputs: data and name of each.
        target: of the output. options: with the target. The output is a cubin, or PTX with ``-ptx``.

    Raises:
        CompileError: nvJitLink crashes. UnavailableError: it is not installed, or too old to know the target.
    """
    tool = toolkit.nvjitlink()
    name = inputs[0][1]
    what = "it assembled this text" if kind == "PTX" else "it linked these sources"
    shown = [(data, n.encode("utf-8", "surrogateescape").decode(errors="replace")) for data, n in inputs]
    request = {"libraries": [str(tool.path)], "kind": kind, "inputs": shown, "options": list(options)}
    try:
        answer = child.answer("link_process.py", request)
    except child.ChildCrashError as crash:
        raise CompileError(
            shorten(
                f"{name}: error: nvJitLink {tool.version} ended with {crash} when {what} for {target}; remove "
                "instructions to find the one that it cannot assemble, or run: pip install -U nvidia-nvjitlink"
            )
        ) from None
    if "unavailable" in answer:
        raise UnavailableError(
            f"cuda.bindings cannot be imported ({answer['unavailable']}); run: pip install 'cuda-python>=13,<14'"
        )
    if "unknown_target" in answer:
        raise toolkit.unknown_target(tool, target.name, "nvidia-nvjitlink")
    return answer["output"], answer["log"]
