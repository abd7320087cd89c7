"""Checks arguments given as text with a kernel's parameters: each is given once and has a kind that the parameter takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.runtime.parameters import Parameter
from ptxkit.source_run.arrays import scalar_of, shape_text
from ptxkit.source_run.entries import CompiledFile, Entry, dim_text
from ptxkit.source_run.grammar import (
    ArgumentText,
    ArrayText,
    BytesText,
    Initialiser,
    NullText,
    Number,
    ScalarText,
    Value,
    number_text,
)
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.workload import suggestion

Dim = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """The launch as the user gave it; None and "" for omitted parts.

    Attributes:
        grid: CTAs. block: threads of a CTA. cluster: CTAs of a cluster.
        shared: bytes of dynamic shared memory of a CTA.
        cooperative: all CTAs are resident at once.
    """

    grid: Dim | None = None
    block: Dim | None = None
    cluster: Dim | None = None
    shared: int = 0
    cooperative: bool = False


@dataclass(frozen=True)
class Call:
    """A kernel with the arguments and the geometry of its launch.

    Attributes:
        file, entry: which kernel.
        arrays: array name -> its text, in the order of the parameters.
        values: one for each parameter: the name of an array, or a value.
        texts: one for each parameter: the given text.
        geometry: with grid and block.
        expected: array name -> ``.npy`` file with its expected content.
        saved: array name -> ``.npy`` file to write it to.
        contents: array name -> its content, of arrays that are not described by a text.
    """

    file: CompiledFile
    entry: Entry
    arrays: Mapping[str, ArrayText]
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    geometry: Geometry
    expected: Mapping[str, str] = field(default_factory=dict)
    saved: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """``k.cu:saxpy``."""
        return f"{self.file.path.name}:{self.entry.name}"


def make_call(
    file: CompiledFile,
    entry: Entry,
    arguments: Sequence[ArgumentText],
    geometry: Geometry,
    expected: Mapping[str, str],
    saved: Mapping[str, str],
) -> Call:
    """Check arguments and launch.

    Raises:
        UsageError: an argument for an unknown parameter, given twice, or of the wrong kind; missing arguments, in one line with
            an example of a complete command line; a kernel that takes a handle of a texture.
    """
    if entry.unsuitable:
        raise UsageError(f"{file.path}: {entry.unsuitable}")
    given = _by_position(entry, arguments)
    _check_complete(file, entry, given, geometry)
    arrays: dict[str, ArrayText] = {}
    values: list[Any] = []
    for parameter in entry.parameters:
        text = given[parameter.index]
        value = _value(entry, parameter, text.value, f"--arg {text}")
        if isinstance(value, ArrayText):
            name = entry.key(parameter)
            arrays[name] = value
            value = name
        values.append(value)
    block = geometry.block or entry.required_block
    return Call(
        file,
        entry,
        arrays,
        tuple(values),
        tuple(str(given[p.index].value) for p in entry.parameters),
        Geometry(geometry.grid, block, geometry.cluster, geometry.shared, geometry.cooperative),
        _of_arrays(entry, arrays, expected, "--expect"),
        _of_arrays(entry, arrays, saved, "--output"),
    )


def _position(entry: Entry, argument: ArgumentText) -> int:
    count = len(entry.parameters)
    if argument.position is not None:
        if argument.position < count:
            return argument.position
        plural = "" if count == 1 else "s"
        last = f", which are #0 to #{count - 1}" if count > 1 else ", which is #0" if count else ""
        raise UsageError(f"--arg {argument}: {entry.name} has {count} parameter{plural}{last}")
    for p, variable in zip(entry.parameters, entry.function.params, strict=True):
        if argument.key in (p.name, variable.name):
            return p.index
    names = [p.name for p in entry.parameters if p.name]
    if not count:
        hint = "it has no parameters"
    elif names:
        hint = suggestion(argument.key, names)
    else:
        hint = f"its names are not known, so give positions, #0 to #{count - 1}"
    raise UsageError(f"--arg {argument}: {entry.name} has no parameter {argument.key!r}; {hint}")


def _by_position(entry: Entry, arguments: Iterable[ArgumentText]) -> dict[int, ArgumentText]:
    given: dict[int, ArgumentText] = {}
    for argument in arguments:
        position = _position(entry, argument)
        if position in given:
            key = entry.key(entry.parameters[position])
            raise UsageError(f"--arg {argument}: parameter {key} is given already, as {given[position]}; leave one out")
        given[position] = argument
    return given


def _check_complete(file: CompiledFile, entry: Entry, given: Mapping[int, ArgumentText], geometry: Geometry) -> None:
    missing = [
        f"--arg {entry.key(p)}=... ({entry.declarations[p.index]})" for p in entry.parameters if p.index not in given
    ]
    missing += ["--grid"] * (geometry.grid is None)
    missing += ["--block"] * (geometry.block is None and entry.required_block is None)
    if not missing:
        return
    grid = geometry.grid or _suggested_grid(entry, given.values(), geometry.block or entry.example_block)
    example = file.command(
        entry,
        [f"{entry.key(entry.parameters[n])}={a.value}" for n, a in given.items()],
        dim_text(grid) if grid else "",
        dim_text(geometry.block) if geometry.block else "",
    )
    raise UsageError(f"{file.path}:{entry.name} lacks {', '.join(missing)}; for example: {example}")


def _suggested_grid(entry: Entry, arguments: Iterable[ArgumentText], block: Dim) -> Dim | None:
    """At least one thread for each element of the largest array, in whole clusters."""
    elements = max((prod(a.value.shape) for a in arguments if isinstance(a.value, ArrayText)), default=0)
    ctas = -(-elements // prod(block))
    return entry.example_grid(ctas + prod(entry.cluster) - 1) if elements else None


def _of_arrays(entry: Entry, arrays: Mapping[str, ArrayText], files: Mapping[str, str], option: str) -> dict[str, str]:
    """Array name -> file, from parameter names and positions."""
    found: dict[str, str] = {}
    for key, file in files.items():
        position = int(key[1:]) if key.startswith("#") else None
        named = [p for p in entry.parameters if p.index == position or p.name == key]
        name = entry.key(named[0]) if named else key
        if name not in arrays:
            what = "is passed by value" if named else "is not a parameter"
            raise UsageError(f"{option} {key}={file}: {key} {what}; {suggestion(key, arrays)}")
        if name in found:
            raise UsageError(f"{option} {key}={file}: {name} is given already, as {found[name]}; leave one out")
        other = next((n for n, f in found.items() if Path(f).resolve() == Path(file).resolve()), None)
        if other is not None and option == "--output":
            raise UsageError(f"{option} {key}={file}: {other} is written to that file; name another one")
        found[name] = file
    return found


def _value(entry: Entry, parameter: Parameter, value: Value, what: str) -> Any:
    """The value to pass: an ArrayText, a numpy scalar or bytes."""
    declared = entry.declarations[parameter.index]
    if isinstance(value, ArrayText):
        if _may_be_pointer(parameter):
            return value
        if parameter.kind == "struct":
            raise UsageError(
                f"{what}: {declared} is a structure of {parameter.size} bytes; write {entry.example(parameter)}"
            )
        raise UsageError(f"{what}: {declared} is one number, not an array; write {entry.example(parameter)}")
    if isinstance(value, NullText):
        if not _may_be_pointer(parameter):
            raise UsageError(f"{what}: {declared} is not a pointer; write {entry.example(parameter)}")
        return np.uint64(0)
    if isinstance(value, BytesText):
        if len(value.data) != parameter.size:
            raise UsageError(f"{what}: {declared} has {parameter.size} bytes, not {len(value.data)}")
        if parameter.kind == "struct":
            return value.data
        raise UsageError(f"{what}: {declared} is not a structure; write {entry.example(parameter)}")
    return _scalar(entry, parameter, value, what, declared)


def _may_be_pointer(parameter: Parameter) -> bool:
    """Where its type is unknown, a 64-bit parameter may be a pointer even if the kernel does not use it as an address."""
    return parameter.kind in ("pointer", "word") or (parameter.size == 8 and not parameter.signed_known)


def _scalar(entry: Entry, parameter: Parameter, value: ScalarText, what: str, declared: str) -> Any:
    if parameter.kind == "pointer":
        raise UsageError(f"{what}: {declared} is a pointer; write {entry.example(parameter)}, or null")
    if value.dtype:
        return _typed_scalar(parameter, value, what, declared)
    if parameter.kind == "struct":
        raise UsageError(f"{what}: {declared} has {parameter.size} bytes; write {entry.example(parameter)}")
    if parameter.kind in ("bits", "word"):
        if isinstance(value.value, float):
            raise UsageError(
                f"{what}: the type of {declared} is not known; name it: float{8 * parameter.size}({number_text(value.value)})"
            )
        return _integer_bits(parameter, value.value, what)
    assert parameter.dtype is not None
    if parameter.kind == "int" and not parameter.signed_known and not isinstance(value.value, float):
        return _integer_bits(parameter, value.value, what)
    return scalar_of(value.value, parameter.dtype, what)


def _integer_bits(parameter: Parameter, value: Number, what: str) -> Any:
    """A whole number in the given number of bits, for a parameter that may be signed or unsigned."""
    number = int(value)
    signed = np.dtype(f"i{parameter.size}")
    fits = np.iinfo(signed).min <= number <= np.iinfo(signed).max
    return scalar_of(number, signed if fits else np.dtype(f"u{parameter.size}"), what)


def _typed_scalar(parameter: Parameter, value: ScalarText, what: str, declared: str) -> Any:
    dtype = dtype_of(value.dtype)
    made = scalar_of(value.value, dtype, what)
    known = parameter.dtype
    if dtype.itemsize != parameter.size:
        raise UsageError(f"{what}: {declared} has {parameter.size} bytes and {dtype.name} has {dtype.itemsize}")
    if known is not None and known != dtype and (parameter.signed_known or dtype.kind not in "iu"):
        raise UsageError(f"{what}: {declared} is {known.name}, not {dtype.name}")
    if parameter.kind == "struct":
        return made.tobytes()
    return made.view(np.int64) if parameter.kind == "word" else made


def describe_array(spec: ArrayText) -> str:
    """``float32[128x64]``, or the file's name."""
    return f"{spec.dtype}[{shape_text(spec.shape)}]" if spec.shape else spec.initialiser.file


def is_poison(spec: ArrayText) -> bool:
    """Whether the array starts uninitialised."""
    return spec.initialiser == Initialiser("empty")
