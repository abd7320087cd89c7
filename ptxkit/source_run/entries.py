"""The kernels of a source file, with their parameters and a command line that runs each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ptxkit.compiler.image import Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.compiler.templates import templates
from ptxkit.errors import CompileError, UsageError
from ptxkit.isa.mangled import base_name
from ptxkit.isa.model import Function, Module
from ptxkit.runtime.emulated import ptx_name
from ptxkit.runtime.parameters import Parameter, parameters_of
from ptxkit.runtime.parsed_modules import parsed
from ptxkit.runtime.source_names import parameter_declarations, source_text
from ptxkit.source_run.grammar import ELEMENT_TYPES
from ptxkit.targets import TARGETS, Target
from ptxkit.workload.inputs import dtype_of

EXAMPLE_ELEMENTS = 1024
EXAMPLE_BLOCK = 256


@dataclass(frozen=True)
class CompileOptions:
    """The options for the compilation of a ``.cu`` file.

    Attributes:
        instantiate: templates to instantiate, as name expressions: ``"k<float, 4>"``.
        defines: macros.
        include_dirs: searched for headers.
        options: further NVRTC options.
    """

    instantiate: tuple[str, ...] = ()
    defines: Mapping[str, str | None] = field(default_factory=dict)
    include_dirs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One kernel of a file.

    Attributes:
        name: its readable name; unique in its file.
        mangled: its name in the PTX.
        function: its PTX.
        parameters: in order.
        declarations: the parameters as the source declares them, or their types as far as they are known.
        handles: the parameters that are handles of textures or surfaces, which no value of ``--arg`` stands for.
    """

    name: str
    mangled: str
    function: Function
    parameters: tuple[Parameter, ...]
    declarations: tuple[str, ...]
    handles: tuple[str, ...] = ()

    @property
    def unsuitable(self) -> str:
        """Why ``ptxkit run`` cannot run the kernel; "" if it can."""
        if not self.handles:
            return ""
        return (
            f"{self.name} takes a handle of a texture or surface ({', '.join(self.handles)}), which ptxkit run cannot create; "
            "launch it from Python or a description with ptxkit.Texture or ptxkit.Surface"
        )

    @property
    def required_block(self) -> tuple[int, int, int] | None:
        """The block that ``.reqntid`` (``__block_size__``) demands."""
        found = self.function.directives.get("reqntid")
        if found is None:
            return None
        x, y, z = (int(n) for n in found)
        return x, y, z

    def key(self, parameter: Parameter) -> str:
        """The key of a parameter in ``--arg``: its name where it is known, else its position."""
        return parameter.name or f"#{parameter.index}"

    def example(self, parameter: Parameter) -> str:
        """An example value for the parameter, for a suggested command line."""
        return f"{self.key(parameter)}={_example(parameter, self.declarations[parameter.index])}"


@dataclass(frozen=True)
class CompiledFile:
    """A source file, compiled.

    Attributes:
        path: as the user wrote it.
        image: PTX, cubin and resources.
        compile_options: the options that it was compiled with.
        prefix: what stands before the path on the command line: ``"triton:"``, else ``""``.
        declared: name -> declaration of the parameters of the only kernel, where its source does not tell them.
    """

    path: Path
    image: Image
    compile_options: CompileOptions = CompileOptions()
    prefix: str = ""
    declared: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def module(self) -> Module:
        """The PTX."""
        return parsed(self.image.ptx, ptx_name(self.image.source_name))

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Its kernels, in their order."""
        functions = self.module.entries
        names = self.image.distinct_names(functions)
        text = None if self.declared else source_text(self.image)
        found = []
        for name in functions:
            parameters = parameters_of(functions[name], text, self.image.macros, self.image.ptx)
            if len(self.declared) == len(parameters):
                given = zip(parameters, self.declared, strict=True)
                parameters = tuple(replace(p, name=known) for p, known in given)
                found.append(Entry(names[name], name, functions[name], parameters, tuple(self.declared.values())))
                continue
            declared = parameter_declarations(base_name(name), len(parameters), text) if text else None
            declarations = tuple(
                declared[p.index]
                if declared and (not p.cpp or _HANDLE.search(declared[p.index]))
                else f"{p.cpp or p.wants} {p.name}".rstrip()
                for p in parameters
            )
            handles = tuple(p.name or f"#{p.index}" for p in parameters if _HANDLE.search(declarations[p.index]))
            found.append(Entry(names[name], name, functions[name], parameters, declarations, handles))
        return tuple(found)

    def entry(self, name: str) -> Entry:
        """The kernel called ``name``; the only one, or the only one that was instantiated, for ``""``.

        Raises:
            UsageError: no such kernel, or several and none is selected.
        """
        if name:
            try:
                mangled = self.image.entry(name)
            except CompileError as error:
                raise UsageError(str(error)) from None
            return next(entry for entry in self.entries if entry.mangled == mangled)
        asked = [entry for entry in self.entries if entry.mangled in self.image.names.values()]
        for chosen in (self.entries, asked):
            if len(chosen) == 1:
                return chosen[0]
        names = ", ".join(entry.name for entry in self.entries)
        example = shlex.quote(f"{self.path_text}:{self.entries[0].name}")
        raise UsageError(f"{self.path} has {len(self.entries)} kernels: {names}; name one: ptxkit run {example}")

    @property
    def path_text(self) -> str:
        """The path in a form that ``ptxkit run`` recognises as a path."""
        path = str(self.path)
        return self.prefix + path if self.prefix or self.path.is_absolute() or "/" in path else f"./{path}"

    def command(self, entry: Entry, arguments: Sequence[str] = (), grid: str = "", block: str = "") -> str:
        """A command line that runs ``entry``: with these arguments, grid and block, and examples for missing arguments."""
        given = {argument.partition("=")[0]: argument for argument in arguments}
        values = [given.get(entry.key(p)) or given.get(f"#{p.index}") or entry.example(p) for p in entry.parameters]
        required = entry.required_block
        block = block or ("" if required else str(EXAMPLE_BLOCK))
        name = f":{entry.name}" if len(self.entries) > 1 or "<" in entry.name or self.prefix else ""
        words = ["ptxkit", "run", f"{self.path_text}{name}"]
        for value in values:
            words += ["--arg", value]
        words += ["--grid", grid or str(EXAMPLE_ELEMENTS // EXAMPLE_BLOCK), *(["--block", block] if block else [])]
        return shlex.join(words)


def compile_file(path: Path, target: Target | None, given: CompileOptions = CompileOptions()) -> CompiledFile:
    """Compile a ``.cu`` or assemble a ``.ptx``.

    Args:
        path: the file.
        target: None takes the PTX's own, and sm_90a for CUDA C++.
        given: the options for a ``.cu``.

    Raises:
        UsageError: options for a ``.ptx``, no kernels. CompileError: it does not compile.
    """
    if path.suffix == ".ptx":
        if given != CompileOptions():
            raise UsageError(f"{path} is PTX, which takes no --instantiate, --define, --include or --compiler-option")
        from ptxkit.compiler.assemble import assemble

        image = assemble(path, target=target)
    else:
        image = compile_source(
            path,
            target=target or TARGETS["sm_90a"],
            defines=given.defines,
            instantiate=given.instantiate,
            options=given.options,
            include_dirs=given.include_dirs,
        )
    if not image.functions:
        raise UsageError(f"{path} has no kernels{_template_hint(path)}")
    return CompiledFile(path, image, given)


def _template_hint(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    found = templates(text)
    if not found:
        return "; a kernel is a __global__ function, in PTX a .entry"
    listed = ", ".join(f"{name}<{parameters}>" for name, parameters in found)
    return f" until a template is instantiated, as in --instantiate '{found[0][0]}<...>'; it has {listed}"


_HANDLE = re.compile(r"\b(cuda(Texture|Surface)Object_t|CU(tex|surf)Object)\b")
_VECTOR = re.compile(r"(?P<base>char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong|float|double)[1-4]")
_WORDS = {
    "unsigned char": "uint8",
    "signed char": "int8",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "unsigned long long": "uint64",
    "long long": "int64",
    "longlong": "int64",
    "ulonglong": "uint64",
    "__half2": "float16",
    "half2": "float16",
    "__nv_bfloat162": "bfloat16",
}


def element_type(declaration: str) -> str:
    """The element type that a pointer's declaration names, ``"const float *x"`` -> ``"float32"``; ``""`` if unknown."""
    text = re.sub(r"\b(const|volatile|__restrict__|__restrict|restrict|struct)\b", " ", declaration)
    text = " ".join(re.split(r"[*&\[]", text)[0].split())
    if match := _VECTOR.fullmatch(text):
        text = match["base"]
    return _WORDS.get(text, ELEMENT_TYPES.get(text, ""))


def _example(parameter: Parameter, declaration: str) -> str:
    if parameter.kind in ("pointer", "word"):
        dtype = element_type(declaration) or "float32"
        random = "integers" if "int" in dtype or dtype == "bool" else "uniform"
        return f"{dtype}[{EXAMPLE_ELEMENTS}]:{random if 'const' in declaration else 'zeros'}"
    if parameter.kind == "float":
        return "1.0"
    if parameter.kind == "struct":
        number = element_type(declaration)  # a class that wraps one number, such as __half
        if number and dtype_of(number).itemsize == parameter.size:
            return f"{number}(1.0)"
        return f"bytes({'00' * parameter.size})"
    if parameter.dtype is not None and parameter.dtype.kind == "b":
        return "true"
    return str(EXAMPLE_ELEMENTS if parameter.size >= 2 else 1)
