"""Example arguments of a kernel as its host code passes them: the launch, sizes of arrays and values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptxkit.compiler.host_code.compile import extracted
from ptxkit.compiler.host_code.device_part import HostLaunch
from ptxkit.compiler.request import request
from ptxkit.errors import PtxkitError
from ptxkit.runtime.parameters import Parameter
from ptxkit.source_run.host_values import HostText, number_of, pointer_name
from ptxkit.workload.inputs import dtype_of

MOST_BYTES = 1 << 30  # of the arrays of an example
NULL = ("nullptr", "NULL", "0")


@dataclass(frozen=True)
class HostExample:
    """A launch of the host code.

    Attributes:
        shown: how it is written there. line: where.
        values: of ``--arg``, by parameter; None where one of them, the grid or the block has no translation.
        grid, block, shared: values of the options; "" where they have no translation, and for no dynamic shared memory.
    """

    shown: str
    line: int
    values: tuple[str, ...] | None
    grid: str = ""
    block: str = ""
    shared: str = ""


def plain_name(name: str) -> str:
    """The name of a kernel without namespaces, template arguments and parameter types."""
    return re.split(r"[<(]", name)[0].rpartition("::")[2]


def launches_of(path: Path) -> list[HostLaunch]:
    """The launches in the host code of a ``.cu`` file; none where it cannot be parsed."""
    if path.suffix != ".cu":
        return []
    try:
        return extracted(request(path, "sm_90a", None, {}, (), (), (), True)).part.launches
    except PtxkitError:  # without tree-sitter, and for sources that only NVRTC understands, there are no hints
        return []


def launch_of(kernel: str, launches: Sequence[HostLaunch]) -> HostLaunch | None:
    """The launch of a kernel, one with the same template arguments if there is such."""
    plain = plain_name(kernel)
    named = [launch for launch in launches if plain_name(launch.kernel) == plain]
    same = [launch for launch in named if re.sub(r"\s", "", launch.kernel) == re.sub(r"\s", "", kernel)]
    return next(iter(same or named), None)


def shown(launch: HostLaunch) -> str:
    """A launch as the host code writes it."""
    configuration = ", ".join(filter(None, (launch.grid, launch.block, launch.shared)))
    return " ".join(f"{launch.kernel}<<<{configuration}>>>({', '.join(launch.arguments)})".split())


def example_of(
    launch: HostLaunch, parameters: Sequence[Parameter], elements: Sequence[tuple[str, str]], source: str
) -> HostExample:
    """What a launch passes.

    Args:
        elements: by parameter, the type of the elements that a pointer points to, and how they begin, such as ``"uniform"``.
        source: the text of the file.
    """
    host, text = HostText.of(source), shown(launch)
    grid, block = (_dimensions(host.extent(given, launch.line)) for given in (launch.grid, launch.block))
    shared = number_of(host.value(launch.shared, launch.line)) if launch.shared else 0
    unknown = HostExample(text, launch.line, None, grid, block, str(shared) if shared else "")
    if len(launch.arguments) != len(parameters) or not grid or not block or shared is None:
        return unknown
    values, room = [], MOST_BYTES
    for p, given, (dtype, begin) in zip(parameters, launch.arguments, elements, strict=True):
        is_array = p.kind in ("pointer", "word")
        found = _array(host, given, launch.line, dtype, begin) if is_array else _number(host, given, launch.line, p)
        values.append(found)
        if size := re.fullmatch(r"\w+\[(\d+)\]:\w+", found):
            room -= int(size[1]) * dtype_of(dtype).itemsize
    if not all(values) or room < 0:
        return unknown
    return replace(unknown, values=tuple(values))


def _dimensions(expression: str) -> str:
    """``(4, 2)`` of numbers -> ``4,2``; "" for others."""
    parts = expression[1:-1].split(",") if "," in expression else [expression]
    numbers = [number_of(part.strip()) for part in parts]
    return ",".join(map(str, numbers)) if all(n is not None and n >= 1 for n in numbers) else ""


def _array(host: HostText, given: str, line: int, dtype: str, begin: str) -> str:
    if given in NULL:
        return "null"
    variable = pointer_name(given)
    allocated = number_of(host.allocation(variable, line)) if variable else None
    count = 0 if allocated is None else allocated // dtype_of(dtype).itemsize
    return f"{dtype}[{count}]:{begin}" if count else ""


def _number(host: HostText, given: str, line: int, p: Parameter) -> str:
    if p.kind == "struct":
        return ""
    if given in ("true", "false"):
        return given
    value = host.value(given, line)
    if p.kind == "float":
        return value if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value, re.IGNORECASE) else ""
    number = number_of(value)
    return "" if number is None else str(number)
