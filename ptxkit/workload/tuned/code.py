"""The machine code that a record was measured with, and whether today's is the same.

Two hashes tell: ``inputs`` of what is compiled (sources, headers, options, compiler) is computed without compiling; if it
differs, ``code``, of the machine code with the geometry of the launches, decides, for which the programs are compiled through
the cache. An edit of a comment, or the same source in another directory, changes the first and not the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ptxkit.errors import PtxkitError

if TYPE_CHECKING:
    from ptxkit.targets import Target
    from ptxkit.workload.launch import Launch


class Program(Protocol):
    """A unit of compilation, see :class:`ptxkit.workload.resolve.Program`."""

    def request(self, target: Target) -> tuple[str | Path, dict[str, Any]]:
        """The arguments of :func:`ptxkit.compiler.nvrtc.compile_source`."""


class Resolved(Protocol):
    """A variant with its tile, see :class:`ptxkit.workload.resolve.ResolvedVariant`."""

    @property
    def target(self) -> Target:
        """The target of the programs."""

    @property
    def programs(self) -> Sequence[Program]:
        """The distinct programs."""

    @property
    def launches(self) -> Sequence[Launch]:
        """The launches in order."""


def inputs_hash(resolved: Resolved) -> str:
    """Hash of everything that determines the machine code and the launches; compiles nothing.

    Raises:
        PtxkitError: a source or the compiler is missing.
    """
    from ptxkit.compiler.nvrtc import source_key

    keys = []
    for program in resolved.programs:
        source, how = program.request(resolved.target)
        keys.append(source_key(source, **how))
    return _hash([keys, _geometry(resolved.launches)])


def code_hash(resolved: Resolved) -> str:
    """Hash of the machine code of all programs, compiled or from the cache, and of the launches.

    Raises:
        PtxkitError: a program cannot be compiled here.
    """
    from ptxkit.compiler.elf import machine_code
    from ptxkit.compiler.nvrtc import compile_source

    codes = []
    for program in resolved.programs:
        source, how = program.request(resolved.target)
        image = compile_source(source, **how)
        codes.append((machine_code(image.cubin) if image.cubin else image.ptx.encode()).hex())
    return _hash([codes, _geometry(resolved.launches)])


def changed(inputs: str, code: str, resolved: Resolved) -> str:
    """Why a record with these hashes does not apply any more; "" if it does.

    Records without hashes are not compared, see :attr:`ptxkit.workload.tuned.record.Record.incomplete`.

    Args:
        resolved: the recorded variant with the recorded tile at the recorded sizes.
    """
    try:
        if inputs_hash(resolved) == inputs or code_hash(resolved) == code:
            return ""
    except PtxkitError as error:
        return f"it does not compile here: {str(error).splitlines()[0]}"
    return "its machine code has changed since"


def _geometry(launches: Sequence[Launch]) -> list[Any]:
    return [
        (
            launch.entry,
            launch.grid,
            launch.block,
            launch.shared,
            launch.cluster,
            launch.cooperative,
            [repr(argument) for argument in launch.args],
        )
        for launch in launches
    ]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]

