"""The kernels of a source file, with their parameters and a command line that runs each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path

from ptxkit.compiler.host_code.device_part import HostLaunch
from ptxkit.compiler.image import Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.compiler.templates import launched_instance, templates
from ptxkit.emulator.memory.layout import callees
from ptxkit.errors import CompileError, UsageError
from ptxkit.isa.comments import without_comments
from ptxkit.isa.mangled import base_name
from ptxkit.isa.model import Function, Immediate, Module, symbols_in
from ptxkit.runtime.emulated import ptx_name
from ptxkit.runtime.parameters import Parameter, parameters_of
from ptxkit.runtime.parsed_modules import parsed
from ptxkit.runtime.source_names import parameter_declarations, source_text
from ptxkit.source_run.element_types import components, element_type
from ptxkit.source_run.host_example import HostExample, example_of, launch_of, launches_of
from ptxkit.targets import TARGETS, Target
from ptxkit.targets.launch import required_cluster
from ptxkit.workload.inputs import dtype_of

EXAMPLE_ELEMENTS = 1024
EXAMPLE_BLOCK = 256
EXAMPLE_SHARED = 4 * EXAMPLE_ELEMENTS
SPARE = 4
"""Elements of an array for each that the sizes of a kernel need, because there are arrays such as (rows, 3 * columns)."""


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

    @property
    def cluster(self) -> tuple[int, int, int]:
        """The cluster that ``.reqnctapercluster`` (``__cluster_dims__``) demands, else one CTA."""
        return required_cluster(self.function.directives) or (1, 1, 1)

    @property
    def example_block(self) -> tuple[int, int, int]:
        """A block for a suggested command line: the required one, or 256 threads, or fewer where the kernel is bounded."""
        if self.required_block is not None:
            return self.required_block
        bound = self.function.directives.get("maxntid")
        most = prod(int(n) for n in bound) if bound else EXAMPLE_BLOCK
        return (min(EXAMPLE_BLOCK, most, EXAMPLE_ELEMENTS // prod(self.cluster)), 1, 1)

    def example_grid(self, ctas: int) -> tuple[int, int, int]:
        """The largest grid of at most so many CTAs in whole clusters, but of at least one cluster."""
        x, y, z = self.cluster
        return (x * max(1, ctas // (x * y * z)), y, z)

    def key(self, parameter: Parameter) -> str:
        """The key of a parameter in ``--arg``: its name where it is known, else its position."""
        return parameter.name or f"#{parameter.index}"

    def example(self, parameter: Parameter) -> str:
        """An example value for the parameter, for a suggested command line."""
        value = _example(parameter, self.declarations[parameter.index], self._stride, self.example_number)
        return f"{self.key(parameter)}={value}"

    @property
    def example_number(self) -> int:
        """The value of whole numbers in examples: they are mostly sizes, whose product is the length of an array."""
        count = sum(p.kind == "int" and p.size >= 2 for p in self.parameters)
        number = EXAMPLE_ELEMENTS
        while count > 1 and number > 1 and SPARE * number**count > EXAMPLE_ELEMENTS:
            number //= 2
        return number

    @property
    def elements(self) -> tuple[tuple[str, str], ...]:
        """By parameter, the type of the elements that a pointer points to in examples, and how they begin."""
        return tuple(_elements(self.declarations[p.index]) for p in self.parameters)

    @property
    def _stride(self) -> int:
        """The largest number of bytes between elements that the kernel computes addresses with."""
        return stride_of(self.function)


@dataclass(frozen=True)
class Template:
    """A kernel template without an instance.

    Attributes:
        name, parameters: as the source declares it: ``"scale"`` and ``"typename T, int N"``.
        instance: an instance as the host code launches it, or ``"scale<...>"``.
    """

    name: str
    parameters: str
    instance: str

    @property
    def text(self) -> str:
        """The template, and the option that makes an instance."""
        return f"{self.name}<{self.parameters}>: --instantiate {shlex.quote(self.instance)}"


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

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """The kernel templates of the source that have no instance."""
        if self.prefix or self.path.suffix != ".cu":
            return ()
        text = self.path.read_text(encoding="utf-8", errors="replace")
        known = {base_name(mangled).partition("<")[0] for mangled in self.image.functions}
        return tuple(
            Template(name, parameters, launched_instance(text, name))
            for name, parameters in dict(templates(text)).items()
            if name not in known
        )

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

    @cached_property
    def _launches(self) -> list[HostLaunch]:
        return launches_of(self.path) if not self.prefix else []

    def launch(self, entry: Entry) -> HostExample | None:
        """The launch of a kernel in the host code of the source."""
        found = launch_of(entry.name, self._launches)
        source = source_text(replace(self.image, expanded="")) if found is not None else None
        if found is None or source is None:
            return None
        for declaration in entry.declarations:  # a structure whose size is not known otherwise
            name = re.search(r"(\w+)\s*\*", declaration)
            if name is not None and not element_type(declaration):
                source = re.sub(rf"\bsizeof\s*\(\s*(?:struct\s+)?{name[1]}\s*\)", str(stride_of(entry.function)), source)
        return example_of(found, entry.parameters, entry.elements, source)

    @property
    def has_main(self) -> bool:
        """Whether the source is a program: it has a function ``main``, which is host code."""
        source = source_text(replace(self.image, expanded="")) if self.path.suffix == ".cu" and not self.prefix else None
        return source is not None and re.search(r"\bmain\s*\([^;{]*\)\s*\{", without_comments(source)) is not None

    def examples(self, entry: Entry) -> list[str]:
        """``NAME=VALUE`` for each parameter: as the host code has it if all of the launch is known, else one that fits."""
        launch = self.launch(entry)
        if launch is None or launch.values is None:
            return [entry.example(p) for p in entry.parameters]
        return [f"{entry.key(p)}={value}" for p, value in zip(entry.parameters, launch.values, strict=True)]

    def _has_dynamic_shared(self, entry: Entry) -> bool:
        """Whether a kernel, or a function that it can call, uses an ``extern __shared__`` array."""
        unsized = {v.name for v in self.module.variables.values() if v.space == "shared" and not v.bytes}
        instructions = (i for f in callees(self.module, entry.function) for i in f.instructions) if unsized else ()
        return any(unsized.intersection(symbols_in(operand)) for i in instructions for operand in i.operands)

    def command(self, entry: Entry, arguments: Sequence[str] = (), grid: str = "", block: str = "") -> str:
        """A command line that runs ``entry``: with these arguments, grid and block, and examples for missing arguments."""
        given = {argument.partition("=")[0]: argument for argument in arguments}
        launch = None if arguments or grid or block else self.launch(entry)
        threads, shared = prod(entry.example_block), ""
        if launch is not None and launch.block:  # the kernel may be written for this block alone
            block, shared = launch.block, launch.shared
            threads = prod(map(int, block.split(",")))
        if launch is not None and launch.values is not None:
            grid = launch.grid
            given = {argument.partition("=")[0]: argument for argument in self.examples(entry)}
        values = [given.get(entry.key(p)) or given.get(f"#{p.index}") or entry.example(p) for p in entry.parameters]
        grid = grid or dim_text(entry.example_grid(EXAMPLE_ELEMENTS // threads))
        block = block or ("" if entry.required_block else dim_text(entry.example_block))
        name = f":{entry.name}" if len(self.entries) > 1 or "<" in entry.name or self.prefix else ""
        words = ["ptxkit", "run", f"{self.path_text}{name}"]
        for value in values:
            words += ["--arg", value]
        words += ["--grid", grid, *(["--block", block] if block else [])]
        if not shared and not self.prefix and self._has_dynamic_shared(entry):
            shared = str(EXAMPLE_SHARED)
        words += ["--shared", shared] if shared else []
        return shlex.join(words)


def dim_text(dim: tuple[int, int, int]) -> str:
    """A grid or a block as ``--grid`` and ``--block`` take it."""
    x, y, z = dim
    return f"{x},{y},{z}" if z > 1 else f"{x},{y}" if y > 1 else str(x)


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
def _elements(declaration: str) -> tuple[str, str]:
    dtype = element_type(declaration) or "float32"
    random = "integers" if "int" in dtype or dtype == "bool" else "uniform"
    return dtype, random if "const" in declaration else "zeros"


def stride_of(function: Function) -> int:
    """The largest number of bytes by which a kernel multiplies an index to an address, up to 64 KiB; 0 if it does not."""
    found = [0]
    for i in function.instructions:
        last = [o.value for o in i.operands if isinstance(o, Immediate) and isinstance(o.value, int)]
        wide = "wide" in i.modifiers or i.modifiers[-1:] in (("s64",), ("u64",))
        if last and wide and i.name in ("mul", "mad"):
            found.append(last[0])
        elif last and i.name == "shl" and i.modifiers[-1:] == ("b64",) and last[-1] < 16:
            found.append(1 << last[-1])
    return max(n for n in found if 0 <= n <= 1 << 16)


def _example(parameter: Parameter, declaration: str, stride: int, number: int) -> str:
    if parameter.kind in ("pointer", "word"):
        dtype, begin = _elements(declaration)
        size = dtype_of(dtype).itemsize
        is_known = element_type(declaration) or "*" not in declaration
        each = components(declaration) if is_known else max(1, -(-stride // size))
        if begin == "integers" and size >= 2:
            begin = f"integers({number})"  # they may be indices
        return f"{dtype}[{EXAMPLE_ELEMENTS * each}]:{begin}"
    if parameter.kind == "float":
        return "1.0"
    if parameter.kind == "struct":
        wrapped = element_type(declaration)  # a class that wraps one number, such as __half
        if wrapped and dtype_of(wrapped).itemsize == parameter.size:
            return f"{wrapped}(1.0)"
        return f"bytes({'00' * parameter.size})"
    if parameter.dtype is not None and parameter.dtype.kind == "b":
        return "true"
    return str(number if parameter.size >= 2 else 1)
