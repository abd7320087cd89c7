"""Linking several CUDA sources into one image, with optimisation at link time.

Each source is compiled to relocatable code for the linker (NVRTC's ``-dlto``). nvJitLink links them to one PTX text, which is
then assembled as any other: the emulator and a GPU execute the same code, and functions and variables that another source
defines are inlined. Source: "nvJitLink", section "Link Time Optimization", of the CUDA documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ptxkit.compiler.assemble import assemble, run_nvjitlink
from ptxkit.compiler.image import Image, shorten
from ptxkit.compiler.nvrtc import compile_request, shortened, without_host_code
from ptxkit.compiler.request import Request, request
from ptxkit.errors import CompileError, UsageError
from ptxkit.isa.comments import without_comments
from ptxkit.isa.mangled import base_name
from ptxkit.isa.parser import parse
from ptxkit.isa.specials import DRIVER_FUNCTIONS
from ptxkit.targets import Target

OPTIONS = ("-dlto", "--relocatable-device-code=true")
_TWICE = re.compile(r"([^\n]+?): link error: error: Linking globals named '([^']+)': symbol multiply defined")


def link_sources(
    sources: Sequence[str | os.PathLike[str]],
    *,
    target: Target | str,
    defines: Mapping[str, object] | None = None,
    instantiate: Sequence[str] = (),
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    cubin: bool = True,
) -> Image:
    """Compile CUDA sources and link them.

    Args:
        sources: paths of ``.cu`` files, or texts; two at least.
        target, defines, options, include_dirs: as for :func:`ptxkit.compiler.nvrtc.compile_source`; for each source.
        instantiate: name expressions; each is given to the sources that name its template.
        cubin: False only links, which suffices for the emulator.

    Returns:
        The image, with the kernels of all sources. Neither the compilations nor the linking are cached; the cubin is.

    Raises:
        CompileError: a source does not compile; a function or variable is defined nowhere, or twice.
        UsageError: no such file or target; a source is PTX. UnavailableError: NVRTC or nvJitLink is not installed.
    """
    parsed = Target.parse(target)
    requests = [
        request(source, parsed, f"source{i}.cu" if _is_text(source) else None, defines or {}, (), options, include_dirs, True)
        for i, source in enumerate(sources)
    ]
    wanted = _instances(requests, instantiate)
    images = [
        shortened(without_host_code(replace(one, options=(*one.options, *OPTIONS), names=names), compile_request))
        for one, names in zip(requests, wanted, strict=True)
    ]
    shown = " + ".join(Path(one.name).name for one in requests)
    ptx = _linked(requests, images, parsed)
    image = assemble(ptx, target=parsed, name=f"{shown}.ptx", cubin=cubin)
    names = {expression: mangled for one in images for expression, mangled in one.names.items()}
    return replace(
        image,
        names=names,
        log="\n".join(filter(None, (*(one.log for one in images), image.log))),
        source_name=shown,
        sources=tuple(one.name for one in requests if Path(one.name).is_absolute()),
        macros=images[0].macros,
        expanded="\n".join(one.expanded or r.text for one, r in zip(images, requests, strict=True)),
        left_out="; ".join(filter(None, (one.left_out for one in images))),
    )


def _is_text(source: str | os.PathLike[str]) -> bool:
    from ptxkit.compiler.sources import is_path

    return not is_path(source)


def _instances(requests: Sequence[Request], instantiate: Sequence[str]) -> list[tuple[str, ...]]:
    """The name expressions for each source: those whose template it names, with its headers or without.

    Raises:
        UsageError: no source names a template.
    """
    found: list[list[str]] = [[] for _ in requests]
    for expression in instantiate:
        plain = re.split(r"[<(]", expression)[0].rpartition("::")[2].strip()
        holders = [i for i, one in enumerate(requests) if re.search(rf"\b{re.escape(plain)}\b", without_comments(one.text))]
        if not holders:
            raise UsageError(f"instantiate: no source names {plain}, the template of {expression!r}")
        defining = [i for i in holders if re.search(rf"\btemplate\b[^;{{}}]*\b{re.escape(plain)}\s*\(", requests[i].text)]
        found[(defining or holders)[0]].append(expression)
    return [tuple(names) for names in found]


def _linked(requests: Sequence[Request], images: Sequence[Image], target: Target) -> str:
    """The PTX of all sources."""
    names = _distinct([Path(one.name).name for one in requests])
    inputs = [(image.ltoir, name) for image, name in zip(images, names, strict=True)]
    output, log = run_nvjitlink("LTOIR", inputs, target, [f"-arch={target}", "-lto", "-ptx", "-lineinfo", "-no-cache"])
    if output is None:
        raise _failure(log, names)
    ptx = output.rstrip(b"\0").decode(errors="replace")
    _check_defined(ptx, " + ".join(names))
    return ptx


def _check_defined(ptx: str, shown: str) -> None:
    """Raise CompileError if the linked text lacks the definition of a function or variable; ptxas names the first only."""
    module = parse(ptx, f"{shown}.ptx")
    functions = (f.name for f in module.functions.values() if f.declared_only and f.name not in DRIVER_FUNCTIONS)
    variables = (v.name for v in module.variables.values() if v.linkage == "extern" and v.space != "shared")
    missing = [base_name(name) for name in (*functions, *variables)]
    if missing:
        listed = ", ".join(missing)
        raise CompileError(f"{shown}: error: no source defines {listed}; add the source that does to the list")


def _distinct(names: Sequence[str]) -> list[str]:
    """The names of the sources for messages of the linker, which must tell files with the same name apart."""
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _failure(log: str, names: Sequence[str]) -> CompileError:
    """The error of the linker, with readable names and what to do."""
    errors = [
        f"{match[1].strip()}: error: {base_name(match[2])} is defined by another source, too; make one static, or remove it"
        for match in _TWICE.finditer(log)
    ]
    if not errors:
        lines = [line.strip() for line in log.splitlines() if "error" in line.lower()]
        errors = [f"{' + '.join(names)}: error: linking failed: {(lines or [log.strip() or 'without a message'])[0]}"]
    errors = list(dict.fromkeys(errors))
    more = len(errors) - 1
    suffix = f" (and {more} more error{'s' if more > 1 else ''})" if more else ""
    return CompileError(shorten(errors[0] + suffix), shorten("\n".join(errors)))
