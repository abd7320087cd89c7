"""The subject of an inspection, from its text form.

Examples are ``fused_l2norm:vectorized@sm_90a,VECTORS=4`` and ``mine.cu:saxpy<256>@sm_80,-use_fast_math``.

The part before ``@`` is a kernel of ``ptxkit list`` with a variant, or a ``.cu``, ``.ptx``, cubin or fatbin with a kernel's
name; what follows it are settings: a target, ``NAME=VALUE`` (a size, option or tile parameter of a kernel, a macro for a
``.cu``), or a compiler option that begins with ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ptxkit.compiler.elf import Cubin
from ptxkit.compiler.image import Image
from ptxkit.compiler.sources import split_entry
from ptxkit.errors import CompileError, UnavailableError, UsageError
from ptxkit.inspect.containers import read_cubin
from ptxkit.inspect.disassembly import sass
from ptxkit.inspect.model import SassFunction
from ptxkit.inspect.residency import Occupancy, default_block, occupancy
from ptxkit.inspect.sources import SourceFile, source_files
from ptxkit.isa.mangled import base_name
from ptxkit.targets import TARGETS, Target
from ptxkit.triton import PREFIX

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.workload.build import Build
    from ptxkit.workload.launch import Launch
    from ptxkit.workload.resolve import ResolvedVariant
    from ptxkit.workload.workload import Workload

_SUFFIXES = ("cu", "cuh", "ptx", "cubin", "fatbin", "bin", "o", "a", "so", "exe")


@dataclass(frozen=True)
class Settings:
    """The settings of a subject: how it is compiled, and the launch for which its occupancy is computed.

    Attributes:
        target: None takes the lowest target of a variant, the target that a file names, else sm_90a.
        kernel: sizes and options of a kernel. tile: tile parameters of a variant to fix.
        defines: macros, for a ``.cu``.
        options: NVRTC options, for a ``.cu``.
        block, shared_bytes, cluster: threads of a CTA, dynamic shared memory, CTAs of a cluster, for occupancy; None takes
            the values of a variant's launch or of a kernel's directives.
    """

    target: Target | None = None
    kernel: Mapping[str, str] = field(default_factory=dict)
    tile: Mapping[str, str] = field(default_factory=dict)
    defines: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    block: int | None = None
    shared_bytes: int | None = None
    cluster: int | None = None


@dataclass(frozen=True)
class Subject:
    """One kernel to inspect, compiled and disassembled.

    Attributes:
        title: its name in the output: ``"fused_l2norm:vectorized"``, ``"mine.cu:saxpy"``.
        kernel: readable name of the kernel.
        function: its SASS.
        image: the compiled image; None for a cubin.
        tile: the chosen tile, as text; ``""`` when there is none.
        block: threads of a CTA.
        block_known: whether ``block`` comes from a launch, a directive or the user; if not, it is 256.
        dynamic_shared_bytes, cluster: of the launch; 0 and 1 without one.
        sources: source files by their path in the line table.
        build: the compiled variant; None for a file.
        launched: a launch of the kernel of a source file, which is counted for the heat map; None without one.
    """

    title: str
    kernel: str
    function: SassFunction
    image: Image | None = None
    tile: str = ""
    block: int = 256
    block_known: bool = False
    dynamic_shared_bytes: int = 0
    cluster: int = 1
    sources: Mapping[str, SourceFile] = field(default_factory=dict)
    build: Build | None = None
    launched: Build | None = None

    @property
    def occupancy(self) -> Occupancy:
        """The occupancy of its launch."""
        return occupancy(
            self.function,
            block=self.block,
            dynamic_shared_bytes=self.dynamic_shared_bytes,
            cluster=self.cluster,
        )


def subjects(
    words: str, settings: Settings = Settings(), say: Callable[[str], None] = lambda what: None
) -> tuple[Subject, ...]:
    """Compile, if necessary, and disassemble what ``words`` name: one kernel, or several where the words do not select one.

    Args:
        say: is called with a progress message before each long step.

    Raises:
        UsageError: no such kernel, variant, file or entry (the nearest are named), or a setting that does not apply.
        CompileError: a source does not compile.
        UnavailableError: a target or tool that is not available.
    """
    if words.startswith(PREFIX):
        return _of_triton(words, settings, say)
    name, settings = _with_settings(words, settings)
    path, entry = _as_file(name)
    if path is None or path.suffix == ".py":
        return _of_workload(name, settings, say)
    if settings.tile:
        raise UsageError(f"{path} has no tile parameters; a macro is set with --define {next(iter(settings.tile))}=...")
    if settings.kernel:
        raise UsageError(
            f"{path} has no options, which only kernels with a description have; a macro is set with --define"
        )
    if path.suffix in (".cu", ".cuh", ".ptx"):
        return _of_source(path, entry, settings)
    return _of_binary(path, entry, settings)


def _with_settings(words: str, settings: Settings, macros: Mapping[str, str] | None = None) -> tuple[str, Settings]:
    """The name of a subject, and the settings with those that follow it; ``macros`` are of a file whose settings are macros."""
    name, listed = _at_settings(words)
    if macros is not None:
        settings = replace(settings, defines=macros)
    if not listed:
        return name, settings
    path, _ = _as_file(name)
    pairs: dict[str, str] = {}
    for word in re.split(r",(?![^<]*>)", listed):
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            settings = replace(settings, options=(*settings.options, word))
        elif equals and key:
            pairs[key] = value
        else:
            settings = replace(settings, target=_target(word))
    if macros is None and (path is None or path.suffix == ".py"):
        return name, replace(settings, tile={**settings.tile, **pairs})
    return name, replace(settings, defines={**settings.defines, **pairs})


def _target(word: str) -> Target:
    try:
        return Target.parse(word)
    except UsageError as error:  # the same exit code as for --arch
        raise UnavailableError(str(error)) from None


def _at_settings(words: str) -> tuple[str, str]:
    """The parts before and after the ``@`` that begins the settings; a directory may have ``@`` in its name."""
    if "@" not in words or Path(words).is_file():
        return words, ""
    places = [at for at, character in enumerate(words) if character == "@"]
    for at in (*places, len(words)):
        path, _ = _as_file(words[:at])
        if path is not None and path.is_file():
            return words[:at], words[at + 1 :]
    named = [at for at in places if split_entry(words[:at], (*_SUFFIXES, "py"))[0] is not None]
    at = named[-1] if named else places[0]
    return words[:at], words[at + 1 :]


def _as_file(name: str) -> tuple[Path | None, str]:
    """(path, entry) when ``name`` is a file, else (None, "")."""
    if Path(name).is_file():
        return Path(name), ""
    path, entry = split_entry(name, (*_SUFFIXES, "py"))
    if path is not None:
        return path, entry
    head, _, entry = name.partition(":")
    if "/" in head:
        return Path(head), entry
    return None, ""


def _of_source(path: Path, entry: str, settings: Settings) -> tuple[Subject, ...]:
    from ptxkit.compiler.assemble import assemble
    from ptxkit.compiler.nvrtc import compile_source

    if path.suffix == ".ptx":
        if settings.defines or settings.options:
            raise UsageError(f"{path} is PTX, which takes neither macros nor compiler options")
        image = assemble(path, target=settings.target)
    else:
        image = compile_source(
            path,
            target=settings.target or TARGETS["sm_90a"],
            defines=settings.defines,
            instantiate=(entry,) if "<" in entry else (),
            options=settings.options,
        )
    if not image.functions:
        raise UsageError(f"{path} has no kernels; a template is named with its arguments: '{path}:name<256>'")
    try:
        names = [image.entry(entry)] if entry else list(image.functions)
    except CompileError as error:
        raise UsageError(str(error)) from None
    disassembled = sass(image)
    shown = image.distinct_names(names)
    sources = source_files(disassembled.values())
    return tuple(
        _with_launch(
            Subject(f"{path.name}:{shown[n]}", shown[n], disassembled[n], image, sources=sources),
            settings,
        )
        for n in names
    )


def _of_triton(words: str, settings: Settings, say: Callable[[str], None]) -> tuple[Subject, ...]:
    """A function of Triton: types, constants and options are macros in the settings."""
    from ptxkit.triton.build import compile_function, signature_of
    from ptxkit.triton.module import find, split_words

    name, settings = _with_settings(words.removeprefix(PREFIX), replace(settings, defines={}), settings.defines)
    for given, what in ((settings.tile, "--tile"), (settings.kernel, "--option"), (settings.options, "a compiler option")):
        if given:
            raise UsageError(f"{what} is not for functions of Triton; give types, constants and options by --define NAME=VALUE")
    named = split_words(PREFIX + name)
    assert named is not None
    say(f"compiling {name}")
    function = find(*named)
    launch = function.launches[0] if function.launches else None
    signature = signature_of(function, launch, settings.defines)
    kernel = compile_function(function, signature, settings.target or TARGETS["sm_90a"])
    disassembled = sass(kernel.image)
    subject = Subject(
        function.title,
        kernel.entry,
        disassembled[kernel.entry],
        kernel.image,
        tile=", ".join(f"{n}={_shown(v)}" for n, v in {**signature.constants, **signature.options}.items()),
        block=kernel.threads,
        block_known=True,
        dynamic_shared_bytes=kernel.shared,
        cluster=prod(kernel.cluster or (1,)),
        sources=source_files(disassembled.values()),
    )
    return (_with_launch(subject, settings),)


def _shown(value: object) -> str:
    """The value of a constant of Triton: a function by its name."""
    return str(getattr(value, "__name__", value))


def _of_binary(path: Path, entry: str, settings: Settings) -> tuple[Subject, ...]:
    if settings.defines or settings.options:
        raise UsageError(f"{path} is compiled already; macros and compiler options have no effect on it")
    cubin = read_cubin(path, settings.target)
    disassembled = sass(cubin)
    names = [_entry(entry, cubin, path)] if entry else list(disassembled)
    sources = source_files(disassembled.values(), path.absolute().parent, path.stat().st_mtime)
    return tuple(
        _with_launch(Subject(f"{path.name}:{base_name(n)}", base_name(n), disassembled[n], sources=sources), settings)
        for n in names
    )


def _entry(name: str, cubin: Cubin, path: Path) -> str:
    if name in cubin.texts:
        return name
    matches = [text for text in cubin.texts if base_name(text) == name.split("<")[0]]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{path} has {len(matches)} kernels {name!r}; name one of {', '.join(matches)}")
    from difflib import get_close_matches

    bases = {base_name(text): text for text in cubin.texts}
    near = get_close_matches(name, dict.fromkeys([*bases, *cubin.texts]), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(bases)}"
    raise UsageError(f"{path} has no kernel {name!r}; {hint}")


def _with_launch(subject: Subject, settings: Settings) -> Subject:
    bounds = subject.function.bounds
    x, y, z = bounds.cluster or (1, 1, 1)
    return replace(
        subject,
        block=settings.block or (subject.block if subject.block_known else default_block(subject.function)),
        block_known=bool(settings.block or subject.block_known or bounds.block or bounds.max_threads),
        dynamic_shared_bytes=(subject.dynamic_shared_bytes if settings.shared_bytes is None else settings.shared_bytes),
        cluster=settings.cluster or (subject.cluster if subject.cluster > 1 else x * y * z),
    )


def _of_workload(name: str, settings: Settings, say: Callable[[str], None]) -> tuple[Subject, ...]:
    workload_class, variant_name = _find_workload(name)
    if settings.defines or settings.options:
        raise UsageError(
            f"{name} is built by its description; macros and compiler options are for files: cu/kernels/{name}.cu"
        )
    from ptxkit.workload.ahead import compile_ahead
    from ptxkit.workload.resolve import resolve, unavailable
    from ptxkit.workload.workload import suggestion

    fields = workload_class.fields()
    workload = workload_class.of({**settings.kernel, **{n: v for n, v in settings.tile.items() if n in fields}})
    settings = replace(settings, tile={n: v for n, v in settings.tile.items() if n not in fields})
    if variant_name:
        resolved = resolve(workload, workload.variant(variant_name), settings.target, settings.tile)
        compile_ahead([resolved], say)
        return built_subjects(resolved, settings)
    known = {parameter for variant in workload_class.variants().values() for parameter in variant.tile}
    for parameter in settings.tile:
        if parameter not in known:
            others = suggestion(parameter, [*fields, *sorted(known)])
            raise UsageError(f"{name} has no size, option or tile parameter {parameter!r}; {others}")
    variants = [
        variant
        for variant in workload_class.variants().values()
        if not unavailable(variant, settings.target, workload) and set(settings.tile) <= set(variant.tile)
    ]
    found_variants = [resolve(workload, variant, settings.target, settings.tile) for variant in variants]
    compile_ahead(found_variants, say)
    found: dict[tuple[str, str, bytes | None], Subject] = {}
    for resolved in found_variants:
        for subject in built_subjects(resolved, settings):
            image = subject.image
            found.setdefault((subject.title, subject.kernel, image.cubin if image else None), subject)
    if not found:
        raise UsageError(_none_found(name, settings.target, settings.tile))
    return tuple(found.values())


def _none_found(name: str, target: Target | None, tile: Mapping[str, str]) -> str:
    text = f"no variant of {name} can be compiled" + (f" for {target}" if target else "")
    return f"{text} with tile parameters {', '.join(tile)}" if tile else text


def _find_workload(name: str) -> tuple[type[Workload], str]:
    from ptxkit.workload import registry

    path, variant = split_entry(name, ("py",))
    if path is not None:
        return registry.load_file(path), variant
    head, _, variant = name.partition(":")
    return registry.get(head), variant


def resolved_variants(
    words: str, sizes: Sequence[str], settings: Settings, device: Device, say: Callable[[str], None]
) -> tuple[Workload, list[ResolvedVariant]]:
    """The variants that ``words`` name, resolved for a launch on ``device`` and compiled, and their workload.

    Args:
        sizes: in the order of ``ptxkit list``; none for those among the settings, or else the emulator's.

    Raises:
        UsageError: a file without a description, which has no launch; no such kernel, variant, size, option or tile parameter.
    """
    from ptxkit.workload.ahead import compile_ahead
    from ptxkit.workload.resolve import resolve, unavailable

    if words.startswith(PREFIX):
        raise UsageError(
            f"{words} has no timeline; write its PTX with --ptx --output FILE.ptx, and give that file with --arg and --grid"
        )
    name, settings = _with_settings(words, settings)
    path, _ = _as_file(name)
    if path is not None and path.suffix != ".py":
        raise UsageError(
            f"{path} has no description with a launch, which a timeline needs; give one as to `ptxkit run`: "
            "--arg NAME=VALUE, --grid and --block"
        )
    kind, variant_name = _find_workload(name)
    if settings.defines or settings.options:
        raise UsageError(
            f"{name} is built by its description; macros and compiler options are for files: cu/kernels/{name}.cu"
        )
    fields = kind.fields()
    given = {**settings.kernel, **{n: v for n, v in settings.tile.items() if n in fields}}
    tile = {n: v for n, v in settings.tile.items() if n not in fields}
    named = [n for n in given if n in kind.size_names()]
    if sizes and named:
        raise UsageError(f"the size {named[0]} is given twice, by its name and by its place")
    workload = kind.of(given) if named else kind.make(list(sizes), given, small=not sizes)
    variants = [workload.variant(variant_name)] if variant_name else list(kind.variants().values())
    chosen = [
        v
        for v in variants
        if variant_name or (not unavailable(v, settings.target, workload) and set(tile) <= set(v.tile))
    ]
    found = [resolve(workload, v, settings.target, tile, device=device) for v in chosen]
    if not found:
        raise UsageError(_none_found(name, settings.target, tile))
    compile_ahead(found, say)
    return workload, found


def built_subjects(resolved: ResolvedVariant, settings: Settings) -> tuple[Subject, ...]:
    """The kernels of a variant, one for each launch."""
    from ptxkit.workload.build import compiled

    built = compiled(resolved)
    disassembled = {id(image): sass(image) for image in built.images}
    images = {image.key: image for image in built.images}
    made = []
    for step in built.steps:
        image = images[step.image.key]
        function = disassembled[id(image)][step.entry]
        made.append(
            _with_launch(
                Subject(
                    title=f"{built.workload.name}:{built.variant.name}",
                    kernel=step.launch.entry,
                    function=function,
                    image=image,
                    tile=str(built.tile),
                    block=_product(step.launch, "block"),
                    block_known=True,
                    dynamic_shared_bytes=step.launch.shared,
                    cluster=_product(step.launch, "cluster"),
                    sources=source_files([function]),
                    build=built,
                ),
                settings,
            )
        )
    return tuple(made)


def _product(launch: Launch, what: str) -> int:
    value: Sequence[int] | int = getattr(launch, what) or 1
    if isinstance(value, int):
        return value
    x, y, z = (*value, 1, 1)[:3]
    return x * y * z
