"""The inputs of one compilation of CUDA C++, which together with the contents of headers determine its result."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.compiler.paths import include_dir
from ptxkit.compiler.sources import read_source
from ptxkit.errors import UsageError
from ptxkit.targets import Target
from ptxkit.targets.sm import TENSOR_MEMORY_COLUMNS


@dataclass(frozen=True)
class Request:
    """All inputs of a compilation except the contents of headers.

    Attributes:
        text: the source.
        name: absolute path of the source file, or the name of a source text.
        directory: where ``#include "..."`` of the source looks first.
        target: the GPU target.
        include_dirs: the rest of the include path, in order.
        options: NVRTC's options except target and include path.
        names: name expressions to instantiate.
        headers: (name as included, text) of headers in memory, which go before files.
    """

    text: str
    name: str
    directory: str
    target: Target
    include_dirs: tuple[str, ...]
    options: tuple[str, ...]
    names: tuple[str, ...]
    headers: tuple[tuple[str, str], ...] = ()


def request(
    source: str | os.PathLike[str],
    target: Target | str,
    name: str | None,
    defines: Mapping[str, object],
    instantiate: Sequence[str],
    options: Sequence[str],
    include_dirs: Sequence[str | os.PathLike[str]],
    lineinfo: bool,
    headers: Mapping[str, str] | None = None,
) -> Request:
    """The request for the arguments of :func:`ptxkit.compiler.nvrtc.compile_source`; see there.

    Raises:
        UsageError: no such file or target, or a path that ptxas cannot take.
    """
    text, shown, directory = read_source(source, name, "source.cu")
    if '"' in shown:
        raise UsageError(
            f"cannot compile {shown}: ptxas takes no double quote in the path of a source; rename the file"
        )
    include = [str(Path(d).absolute()) for d in include_dirs]
    include.append(str(include_dir()))
    include += [str(tool.path) for tool in toolkit.headers()]
    flags = ["--no-cache", "--no-display-error-number", "--ptxas-options=-v"]
    if lineinfo and not {"-G", "--device-debug"} & set(options):  # -G generates line tables itself
        flags.append("-lineinfo")
    parsed = Target.parse(target)
    flags += [_define(key, value) for key, value in {**target_macros(parsed), **defines}.items()]
    return Request(
        text=text,
        name=shown,
        directory=directory,
        target=parsed,
        include_dirs=tuple(include),
        options=(*flags, *options),
        names=tuple(dict.fromkeys(instantiate)),
        headers=tuple(sorted((headers or {}).items())),
    )


def target_macros(target: Target) -> dict[str, int]:
    """The macros of ``cu/ptxkit/target.cuh``, which every compilation defines: limits of the target's SM."""
    limits = target.limits
    return {
        "PTXKIT_REGISTERS_PER_SM": limits.registers,
        "PTXKIT_SHARED_BYTES_PER_CTA": limits.shared_bytes_per_cta,
        "PTXKIT_TENSOR_MEMORY_COLUMNS": TENSOR_MEMORY_COLUMNS,
        "PTXKIT_THREADS_PER_CTA": limits.threads_per_cta,
        "PTXKIT_THREADS_PER_SM": limits.threads,
    }


def defined_macros(options: Sequence[str]) -> dict[str, str]:
    """What ``-D`` and ``--define-macro`` define, in one word or in two."""
    found: dict[str, str] = {}
    previous = ""
    for option in options:
        joined = f"{previous}={option}" if previous in ("-D", "--define-macro") else option
        previous = option
        if match := re.match(r"(?:-D|--define-macro=)=?(\w+)(?:=(.*))?$", joined, re.DOTALL):
            found[match[1]] = "1" if match[2] is None else match[2]
    return found


def _define(key: str, value: object) -> str:
    if value is None:
        return f"-D{key}"
    return f"-D{key}={int(value) if isinstance(value, bool) else value}"
