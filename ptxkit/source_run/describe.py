"""The text of a description for a kernel of a source file: ``ptxkit new NAME --from FILE:KERNEL``.

Parameters become sizes, inputs and outputs by their types and constness; grid, block, shared memory, lengths of arrays and
values come from the host code of the source, as far as :mod:`.host_values` can translate it. What is not known has a value to
begin with and the mark ``TODO``.
"""

from __future__ import annotations

import keyword
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ptxkit.compiler.host_code.device_part import HostLaunch
from ptxkit.compiler.shared_alignment import names_used
from ptxkit.errors import UsageError
from ptxkit.runtime.parameters import Parameter
from ptxkit.runtime.source_names import at_commas
from ptxkit.source_run.element_types import element_type as declared_type
from ptxkit.source_run.entries import EXAMPLE_BLOCK, EXAMPLE_ELEMENTS, CompiledFile, CompileOptions, Entry, compile_file
from ptxkit.source_run.host_example import launch_of, launches_of, plain_name, shown
from ptxkit.source_run.host_values import HostText, number_of, pointer_name
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.workload import Workload

UNKNOWN = "TODO"
ONE_SIZE = EXAMPLE_ELEMENTS
SEVERAL_SIZES = 64  # of each; arrays may have the product of all
HINTS = (
    r"cudaFuncSetAttribute|cudaFuncSetCacheConfig|cudaLaunchKernelEx|cudaLaunchCooperativeKernel|cudaLaunchAttribute|"
    r"cuTensorMapEncode\w*|__cluster_dims__|cudaMemcpyToSymbol"
)
"""Lines of the source that say more of a launch than ``<<<...>>>``."""


@dataclass
class _Array:
    """An array of the kernel.

    Attributes:
        name, dtype: numpy's or ml_dtypes' name. elements: their number, an expression.
        read, written: whether it is an input, an output, or both. note: what is not known.
    """

    name: str
    dtype: str
    elements: str
    read: bool
    written: bool
    note: str = ""


@dataclass
class _Parts:
    """What the description consists of.

    Attributes:
        sizes: name -> (default, note). arrays: in the order of the parameters. scalars: name -> (expression, note).
        arguments: one expression for each parameter, with a note or "".
    """

    sizes: dict[str, tuple[str, str]] = field(default_factory=dict)
    arrays: list[_Array] = field(default_factory=list)
    scalars: dict[str, tuple[str, str]] = field(default_factory=dict)
    arguments: list[tuple[str, str]] = field(default_factory=list)


def description(path: Path, kernel: str, name: str, title: str, naming: str, directory: Path) -> str:
    """The text of ``NAME.py`` for a kernel of a file.

    Args:
        path: the ``.cu`` or ``.ptx`` file.
        kernel: its kernel, ``"scale"`` or ``"scale<float, 256>"``; "" for the only one.
        name: of the description. title: of its class. naming: a line that sets the name, or "".
        directory: where the description is written; the source is named relative to it.

    Raises:
        UsageError: no such file or kernel, or several and none is named, or one that ptxkit cannot launch.
        CompileError: the file does not compile.
    """
    options = CompileOptions(instantiate=(kernel,) if "<" in kernel else ())
    file = compile_file(path, None, options)
    if not kernel and len(file.entries) > 1:
        names = ", ".join(entry.name for entry in file.entries)
        raise UsageError(
            f"{path} has {len(file.entries)} kernels: {names}; name one: --from '{path}:{file.entries[0].name}'"
        )
    entry = file.entry(kernel)
    if entry.unsuitable:
        raise UsageError(f"{path}: {entry.unsuitable}")
    launch = launch_of(entry.name, launches_of(path))
    return _Writer(file, entry, launch).text(name, title, naming, directory)


class _Writer:
    """Writes a description."""

    def __init__(self, file: CompiledFile, entry: Entry, launch: HostLaunch | None) -> None:
        self.file, self.entry, self.launch = file, entry, launch
        self.line = launch.line if launch is not None else 0
        arguments = launch.arguments if launch is not None else ()
        self.passed = arguments if len(arguments) == len(entry.parameters) else ("",) * len(entry.parameters)
        source = file.path.read_text(encoding="utf-8", errors="replace") if file.path.suffix == ".cu" else ""
        plain = HostText.of(source)
        self.names = self._distinct_names()
        known: dict[str, str] = {}
        for p, given in zip(entry.parameters, self.passed, strict=True):
            if self._is_size(p) and re.fullmatch(r"[A-Za-z_]\w*", given):
                known.setdefault(given, f"self.{self.names[p.index]}")
        self.literals, self.host = plain, HostText(plain.text, known)
        self.parts = self._read()

    # what the parameters become

    def _distinct_names(self) -> tuple[str, ...]:
        found: list[str] = []
        for p in self.entry.parameters:
            name = p.name.strip("_") or f"argument_{p.index}"
            while keyword.iskeyword(name) or hasattr(Workload, name) or name in (*found, "np", "rng", "self"):
                name += "_"
            found.append(name)
        return tuple(found)

    def _is_size(self, p: Parameter) -> bool:
        is_integer = p.dtype is not None and p.dtype.kind in "iu" and p.size >= 4
        return (p.kind == "int" and is_integer) or p.kind == "bits"

    def _read(self) -> _Parts:
        parts = _Parts()
        sizes = [p for p in self.entry.parameters if self._is_size(p)]
        start = ONE_SIZE if len(sizes) < 2 else SEVERAL_SIZES
        for p in sizes:
            value = self.literals.value(self.passed[p.index], self.line)
            number = number_of(value)
            if number is not None and number >= 1:
                parts.sizes[self.names[p.index]] = (str(number), "")
            else:
                parts.sizes[self.names[p.index]] = (str(start), f"{UNKNOWN}: not found in the host code")
        for p in self.entry.parameters:
            self._add(p, parts)
        return parts

    def _add(self, p: Parameter, parts: _Parts) -> None:
        name, declared = self.names[p.index], self.entry.declarations[p.index]
        given = self.passed[p.index]
        if self._is_size(p):
            parts.arguments.append((f"self.{name}", ""))
        elif p.kind in ("pointer", "word"):
            parts.arrays.append(self._array(p, name, declared, given, parts))
            parts.arguments.append((f'"{name}"', ""))
        elif p.kind == "float":
            assert p.dtype is not None
            value = self.literals.value(given, self.line)
            note = "" if value else f"{UNKNOWN}: the value"
            parts.scalars[name] = (f"np.{p.dtype.name}({value or '1.0'})", note)
            parts.arguments.append((f'"{name}"', ""))
        elif p.kind == "struct":
            parts.arguments.append((f"bytes({p.size})", f"{UNKNOWN}: {_struct_hint(declared, p)}"))
        else:
            value = given if given in ("true", "false") else self.literals.value(given, self.line)
            parts.arguments.append(
                ({"true": "True", "false": "False"}.get(value, value) or "1", "" if value else UNKNOWN)
            )

    def _array(self, p: Parameter, name: str, declared: str, given: str, parts: _Parts) -> _Array:
        dtype = declared_type(declared)
        notes = [] if dtype else [f"the type of {declared}"]
        dtype = dtype or "float32"
        variable = pointer_name(given)
        allocated = self.host.allocation(variable, self.line) if variable else ""
        elements = _simplified(allocated, dtype_of(dtype).itemsize)
        if not elements:
            notes.append("the number of elements")
            elements = " * ".join(f"self.{size}" for size in self._shape_sizes(parts)) or str(EXAMPLE_ELEMENTS)
        is_const = re.search(r"\bconst\b[^*]*\*", declared) is not None or p.cpp.startswith("const ")
        copied = bool(variable) and self.host.is_written(variable)
        unknown = not is_const and not copied and not declared.strip()
        if unknown:
            notes.append("whether the kernel reads or writes it")
        note = f"{UNKNOWN}: {', '.join(notes)}" if notes else ""
        return _Array(name, dtype, elements, is_const or copied or unknown, not is_const, note)

    def _shape_sizes(self, parts: _Parts) -> list[str]:
        """The sizes whose product is surely enough for an array, if it is not too large; else the two largest."""
        sizes = {name: int(default) for name, (default, _) in parts.sizes.items()}
        if math.prod(sizes.values()) <= 1 << 22:
            return list(sizes)
        return sorted(sizes, key=lambda name: -sizes[name])[:2]

    # the text

    def text(self, name: str, title: str, naming: str, directory: Path) -> str:
        """The description."""
        entry, file = self.entry, self.file
        source = Path(os.path.relpath(file.path.resolve(), directory.resolve())).as_posix()
        outputs = [a.name for a in self.parts.arrays if a.written]
        shown = ", ".join(outputs) or "nothing that is known"
        lines = [f'"""{name}: {entry.name} of {file.path.name}, which writes {shown}.', ""]
        lines += ["Made of the kernel's parameters and of the host code around it. Lines with TODO hold a guess."]
        lines += [f"Without a reference, the kernel runs unverified: {file.command(entry)}", '"""', ""]
        if "\\" in "".join(lines):
            lines[0] = f"r{lines[0]}"
        lines += ["import numpy as np", "", f"from ptxkit import {self._imports()}", "", ""]
        lines += [f"class {title}(Workload):"]
        lines += [naming.rstrip("\n")] if naming else []
        lines += [f"    source = {_quoted(source)}"]
        lines += [_noted(f"    {size}: int = {default}", note) for size, (default, note) in self.parts.sizes.items()]
        lines += ["", "    def inputs(self, rng):", *self._inputs()]
        lines += ["", "    def outputs(self):", *self._outputs()]
        lines += ["", *self._reference(outputs)]
        lines += ["", "    def work(self):", *self._work()]
        lines += ["", *self._variant()]
        return "\n".join(lines) + "\n"

    def _imports(self) -> str:
        names = ["Launch", "Work", "Workload", "variant"]
        if any(a.read and _is_float(a.dtype) for a in self.parts.arrays):
            names.append("uniform")
        if "cdiv(" in self._grid()[0]:
            names.append("cdiv")
        return ", ".join(sorted(names))

    def _inputs(self) -> list[str]:
        lines = ["        return {"]
        for array in self.parts.arrays:
            if not array.read:
                continue
            if _is_float(array.dtype):
                value = f'uniform(rng, {array.elements}, "{array.dtype}")'
            elif array.dtype == "bool":
                value = f"rng.integers(0, 2, {array.elements}).astype(np.bool_)"
            else:
                value = f"rng.integers(0, 100, {array.elements}).astype(np.{array.dtype})"
            lines.append(_noted(f'            "{array.name}": {value},', array.note))
        for name, (value, note) in self.parts.scalars.items():
            lines.append(_noted(f'            "{name}": {value},', note))
        return [*lines, "        }"] if len(lines) > 1 else ["        return {}"]

    def _outputs(self) -> list[str]:
        written = [a for a in self.parts.arrays if a.written]
        lines = ["        return {"]
        for a in written:
            note = "" if a.read else a.note
            if not a.read:
                more = "return it from inputs(), too, if the kernel reads it first"
                note = f"{note}; {more}" if note else f"{UNKNOWN}: {more}"
            lines.append(_noted(f'            "{a.name}": ({a.elements}, "{a.dtype}"),', note))
        return (
            [*lines, "        }"]
            if written
            else ["        return {}  # TODO: name -> (shape, dtype) of what the kernel writes"]
        )

    def _reference(self, outputs: Sequence[str]) -> list[str]:
        given = [*(a.name for a in self.parts.arrays if a.read), *self.parts.scalars]
        returned = ", ".join(f"'{name}': ..." for name in outputs) or "'NAME': ..."
        message = (
            f"fill in reference(): return {{{returned}}}, computed from the inputs in float64 with numpy; the command at the "
            "top of the file runs the kernel unverified"
        )
        return [
            f"    def reference({', '.join(['self', *given])}):",
            f"        # {UNKNOWN}: the expected outputs",
            "        raise NotImplementedError(",
            *(f"            {_quoted(part)}" for part in _wrapped(message)),
            "        )",
        ]

    def _work(self) -> list[str]:
        terms = [
            f"{dtype_of(a.dtype).itemsize * (int(a.read) + int(a.written))} * {_factor(a.elements)}"
            for a in self.parts.arrays
        ]
        return [
            f"        # {UNKNOWN}: the floating-point operations; the bytes are those of each array, read or written once",
            f"        return Work(flops=0, bytes={' + '.join(terms) or '0'})",
        ]

    def _block(self) -> tuple[str, str]:
        if (required := self.entry.required_block) is not None:
            return _tuple(required), ""
        given = self.launch.block if self.launch is not None else ""
        if found := self.host.extent(given, self.line) if given else "":
            return found, ""
        largest = self.entry.function.directives.get("maxntid")
        start = _tuple([int(n) for n in largest]) if largest else str(EXAMPLE_BLOCK)
        return start, _unknown(given)

    def _grid(self) -> tuple[str, str]:
        given = self.launch.grid if self.launch is not None else ""
        if found := self.host.extent(given, self.line) if given else "":
            return found, ""
        threads = re.match(r"\d+$", self._block()[0])
        first = next((a.elements for a in self.parts.arrays if a.written), "")
        cluster = math.prod(self.entry.cluster)
        if first and threads and cluster == 1:
            return f"cdiv({first}, {threads[0]})", _unknown(given)
        if first and threads and cluster == self.entry.cluster[0]:
            return f"cdiv({first}, {threads[0]} * {cluster}) * {cluster}", _unknown(given)
        return _tuple(self.entry.example_grid(1)), _unknown(given)

    def _variant(self) -> list[str]:
        kernel, template = self._named()
        given = self.launch.shared if self.launch is not None else ""
        shared = self.host.value(given, self.line) if given else ""
        (grid, grid_note), (block, block_note) = self._grid(), self._block()
        lines = self._hints()
        lines += ["    @variant", "    def original(self):"]
        lines += [_noted(f"        grid = {grid}", grid_note), _noted(f"        block = {block}", block_note)]
        if any(note for _, note in self.parts.arguments):
            lines += ["        arguments = ("]
            lines += [_noted(f"            {value},", note) for value, note in self.parts.arguments]
            lines += ["        )"]
        else:
            values = [value for value, _ in self.parts.arguments]
            lines += [f"        arguments = ({', '.join(values)}{',' if len(values) == 1 else ''})"]
        more = f", template={template}" if template else ""
        if shared and shared != "0":
            more += f", shared={shared}"
        elif given and not shared:
            more += ", shared=0"
            lines += [f"        # {_unknown(given)} (bytes of dynamic shared memory)"]
        elif self._needs_shared() and not given:
            more += ", shared=0"
            lines += [f"        # {UNKNOWN}: the kernel has an extern __shared__ array; set its bytes"]
        return [*lines, f"        return [Launch({_quoted(kernel)}, grid, block, arguments{more})]"]

    def _needs_shared(self) -> bool:
        module = self.file.module
        used = names_used(module, self.entry.function)
        return any(v.space == "shared" and v.bytes == 0 and v.name in used for v in module.variables.values())

    def _named(self) -> tuple[str, str]:
        """The kernel and its template arguments as a tuple of Python."""
        instance = re.fullmatch(r"([\w:]+)\s*<(.*)>", self.entry.name, re.DOTALL)
        if instance is None or self.file.path.suffix == ".ptx":
            return self.entry.name, ""
        words = [word.strip() for word in at_commas(instance[2])]
        values = [word if re.fullmatch(r"-?\d+", word) else _quoted(word) for word in words]
        return instance[1], f"({', '.join(values)}{',' if len(values) == 1 else ''})"

    def _hints(self) -> list[str]:
        lines = []
        if self.launch is not None:
            lines.append(f"    # the launch in line {self.line} of {self.file.path.name}: {shown(self.launch)}")
        elif self.file.path.suffix == ".cu":
            lines.append(f"    # {self.file.path.name} has no launch of the kernel")
        own = plain_name(self.entry.name)
        others = {plain_name(entry.name) for entry in self.file.entries} - {own}
        for number, text in self.host.lines(HINTS):
            words = set(re.findall(r"\w+", text))
            if own in words or not words & others:
                lines.append(f"    # line {number}: {text}")
        return lines


def _struct_hint(declared: str, p: Parameter) -> str:
    if "CUtensorMap" in declared or "CUtensorMap" in p.cpp:
        return 'a tensor map: TensorMap("ARRAY", box=(ROWS, COLUMNS)) of ptxkit'
    return f"the {p.size} bytes of {declared}"


def _unknown(given: str) -> str:
    text = " ".join(given.split())
    return f"{UNKNOWN}: in the host code {text}" if text else f"{UNKNOWN}: not found in the host code"


def _noted(line: str, note: str) -> str:
    return f"{line}  # {note}" if note else line


def _simplified(allocated: str, itemsize: int) -> str:
    """The number of elements of so many bytes."""
    if not allocated:
        return ""
    if (number := number_of(allocated)) is not None:
        return str(number // itemsize)
    parts = allocated.split(" * ")
    if str(itemsize) in parts and not re.search(r"[-+/%<>]", allocated.replace("//", "/")):
        parts.remove(str(itemsize))
        return " * ".join(parts)
    return f"({allocated}) // {itemsize}" if itemsize > 1 else allocated


def _factor(expression: str) -> str:
    return expression if re.fullmatch(r"[\w.]+( \* [\w.]+)*", expression) else f"({expression})"


def _tuple(values: Sequence[int]) -> str:
    x, y, z = values
    return str(x) if y == z == 1 else f"({x}, {y}, {z})"


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wrapped(text: str, width: int = 90) -> list[str]:
    """The text in parts of whole words; all but the last end with a blank."""
    parts = [""]
    for word in text.split(" "):
        if parts[-1] and len(parts[-1]) + len(word) > width:
            parts.append("")
        parts[-1] += f"{word} "
    return [*parts[:-1], parts[-1].rstrip()]
