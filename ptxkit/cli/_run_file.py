"""``ptxkit run ./k.cu``: kernels of a source file without a description, listed, or run with arguments from flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ptxkit.cli._options import WholeNumber
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.bench.measure.time_limit import TimeLimit
    from ptxkit.runtime.device import Device
    from ptxkit.source_run.call import Call, Geometry
    from ptxkit.source_run.entries import CompiledFile, CompileOptions
    from ptxkit.targets import Target
    from ptxkit.workload.tolerance import Rule

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class FileOptions:
    """The options of ``ptxkit run`` for source files; the fields have the names of click's parameters."""

    arguments: tuple[str, ...] = ()
    grid: str | None = None
    block: str | None = None
    cluster_dims: str | None = None
    shared: int | None = None
    cooperative: bool = False
    instantiate: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    compiler_options: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    tolerance: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> FileOptions:
        """From click's parameters, among which there may be others."""
        return cls(**{field.name: given[field.name] for field in fields(cls)})

    @property
    def launches(self) -> bool:
        """Whether any option describes a launch; without one the kernels are listed."""
        launch = (
            self.arguments,
            self.grid,
            self.block,
            self.cluster_dims,
            self.shared,
            self.saved,
            self.expected,
            self.tolerance,
        )
        return self.cooperative or any(value not in (None, ()) for value in launch)

    def refuse(self, kernel: str) -> None:
        """Raise UsageError if one of these options is given for a kernel that has a description."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise UsageError(
                    f"{FLAGS[field.name]} is for source files, such as ./k.cu; the description of {kernel} gives its launches"
                )


FLAGS = {
    "arguments": "--arg",
    "grid": "--grid",
    "block": "--block",
    "cluster_dims": "--cluster-dims",
    "shared": "--shared",
    "cooperative": "--cooperative",
    "instantiate": "--instantiate",
    "defines": "--define",
    "include_dirs": "--include",
    "compiler_options": "--compiler-option",
    "saved": "--output",
    "expected": "--expect",
    "tolerance": "--tolerance",
}
"""Field of :class:`FileOptions` -> its option on the command line."""

_OPTIONS = (
    click.option(
        "--arg",
        "arguments",
        multiple=True,
        metavar="NAME=VALUE",
        help="Pass an argument to a kernel of a source file: x=float32[1024]:uniform, y=f16[128x64]:zeros, n=1024, x=data.npy.",
    ),
    click.option("--grid", metavar="X[,Y[,Z]]", help="Launch this many CTAs of a source file's kernel."),
    click.option("--block", metavar="X[,Y[,Z]]", help="Launch CTAs of this many threads."),
    click.option(
        "--cluster-dims", metavar="X[,Y[,Z]]", help="Launch thread block clusters of this many CTAs, as __cluster_dims__."
    ),
    click.option(
        "--shared",
        type=WholeNumber(min=0),
        metavar="BYTES",
        help="Allocate this much dynamic shared memory for each CTA.",
    ),
    click.option("--cooperative", is_flag=True, help="Launch with all CTAs resident at once, as grid.sync() requires."),
    click.option(
        "--instantiate",
        "--template",
        "instantiate",
        multiple=True,
        metavar="'NAME<ARGS>'",
        help="Instantiate a kernel template of a .cu file, such as 'k<float, 4>'.",
    ),
    click.option(
        "-D", "--define", "defines", multiple=True, metavar="NAME[=VALUE]", help="Define a macro for a .cu file."
    ),
    click.option(
        "-I", "--include", "include_dirs", multiple=True, metavar="DIR", help="Search DIR for headers of a .cu file."
    ),
    click.option(
        "--compiler-option",
        "compiler_options",
        multiple=True,
        metavar="OPTION",
        help="Pass an option to NVRTC for a .cu file, such as -use_fast_math.",
    ),
    click.option(
        "--output", "saved", multiple=True, metavar="NAME=FILE.npy", help="Write an array to a file after the launch."
    ),
    click.option(
        "--expect",
        "expected",
        multiple=True,
        metavar="NAME=FILE.npy",
        help="Compare an array with a file after the launch, with the default tolerance of its type.",
    ),
    click.option(
        "--tolerance",
        metavar="PART=NUMBER[,...]",
        help="Compare with this tolerance instead: relative=1e-3,absolute=1e-6, or sums=4096 for sums of 4096 terms, or "
        "exact.",
    ),
)


def file_options(command: Command) -> Command:
    """Add the options for source files to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def names_source_file(words: str) -> bool:
    """Whether ``words`` are the path of a .cu or .ptx file, with or without an entry, or name a function of Triton."""
    from ptxkit.compiler.sources import split_entry

    return is_triton(words) or split_entry(words)[0] is not None


def is_triton(words: str) -> bool:
    """Whether ``words`` name a function of Triton: ``triton:FILE.py:FUNCTION``."""
    from ptxkit.triton import PREFIX

    return words.startswith(PREFIX)


def refuse_described(given: Mapping[str, object]) -> None:
    """Raise UsageError for an option that applies only to kernels with a description."""
    instead = {"--tile": "--define or --instantiate", "--option": "--define", "--variant": "FILE:ENTRY"}
    instead["--seeds"] = "--expect and --seed"
    for option, values in given.items():
        if values:
            raise UsageError(f"{option} is for kernels with a description; a source file takes {instead[option]}")


def run_file(
    words: str,
    numbers: tuple[str, ...],
    options: FileOptions,
    device: Device,
    target: Target | None,
    *,
    seed: int,
    as_json: bool,
    dry_run: bool,
    limit: TimeLimit,
) -> int:
    """List the kernels of a source file or run one; the exit code.

    Args:
        words: path and entry.
        numbers: ITERATIONS or nothing.
        options: from the command line.
        device: where to run. target: compile for this target instead of the device's own.
        seed: for random arrays.
        as_json: print JSON. dry_run: print what would be launched.
        limit: on the time of the launches.
    """
    from ptxkit.cli import _run_file_text as texts
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import print_json
    from ptxkit.source_run.entries import compile_file
    from ptxkit.source_run.run import plan_json, run_call

    iterations = _iterations(numbers)
    if is_triton(words):
        call = triton_call(words, options, target or device.target)
        file, tolerance = call.file, tolerance_of(options)
    else:
        path, entry = existing(words)
        how = compile_options(options, entry)
        call_parts = _parsed(options)  # before anything is compiled
        tolerance = tolerance_of(options)
        with progress() as say:
            say(f"compiling {path.name}")
            file = compile_file(path, target or device.target, how)
        if not options.launches:
            chosen = (file.entry(entry),) if entry else file.entries
            print_json(texts.entries_json(file, chosen)) if as_json else click.echo(texts.entries_text(file, chosen))
            texts.complain(file)
            return 0
        call = _call(file, entry, options, *call_parts)
    if dry_run:
        print_json(plan_json(call)) if as_json else click.echo(texts.plan_text(call))
        return 0
    with stdout_set_aside(), progress() as say:
        report = run_call(call, device, seed=seed, iterations=iterations, tolerance=tolerance, limit=limit, say=say)
    print_json(report.to_json()) if as_json else click.echo(texts.report_text(report))
    texts.complain(file, report)
    return report.exit_code


def call_of(words: str, options: FileOptions, target: Target | None) -> Call:
    """The launch that options describe, of a file that is compiled for it.

    Raises:
        UsageError: no such file or kernel, or an argument that is missing or does not fit.
    """
    from ptxkit.source_run.entries import compile_file

    if is_triton(words):
        return triton_call(words, options, target)
    path, entry = existing(words)
    how = compile_options(options, entry)
    parts = _parsed(options)
    return _call(compile_file(path, target, how), entry, options, *parts)


def triton_call(words: str, options: FileOptions, target: Target | None) -> Call:
    """The launch of a function of Triton that options describe, or that its file records.

    Raises:
        UsageError: no such file or function, an option that is for C++, or an argument that is missing or does not fit.
    """
    from ptxkit.cli._progress import progress
    from ptxkit.source_run import triton_call as triton

    for field in ("instantiate", "include_dirs", "compiler_options"):
        if getattr(options, field):
            raise UsageError(f"{FLAGS[field]} is for .cu files; a function of Triton takes types, constants and options by -D")
    arguments, geometry, expected, saved = _parsed(options)
    with stdout_set_aside(), progress() as say:
        say(f"compiling {words}")
        found = triton.compiled(words, triton_defines(options.defines), arguments, target)
    return triton.call_of(found, arguments, geometry, expected, saved)


def triton_defines(pairs: tuple[str, ...]) -> dict[str, str]:
    """Types, constants and options of Triton's compiler from ``-D NAME=VALUE``.

    Raises:
        UsageError: not NAME=VALUE, or a name that is given twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name.isidentifier() and equals and value):
            raise UsageError(f"--define takes NAME=TYPE or NAME=VALUE for a function of Triton, not {pair!r}")
        if name in found:
            raise UsageError(f"--define {name} is given twice")
        found[name] = value
    return found


def existing(words: str) -> tuple[Path, str]:
    """The file and the entry that ``words`` name; UsageError if there is no such file."""
    from ptxkit.compiler.sources import split_entry

    path, entry = split_entry(words)
    assert path is not None  # names_source_file has checked this
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a .cu or .ptx file")
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link that leads to no file")
    if not path.exists():
        from ptxkit.workload.workload import suggestion

        near = [f.name for f in path.parent.glob("*.*") if f.suffix in (".cu", ".ptx")] if path.parent.is_dir() else []
        hint = f"; {suggestion(path.name, near)}" if near else ""
        raise UsageError(f"there is no file {path}{hint}")
    return path, entry


def _iterations(numbers: tuple[str, ...]) -> int | None:
    if len(numbers) > 1:
        raise UsageError(
            f"a source file takes no sizes, so {' '.join(numbers)} has no meaning beside ITERATIONS; give sizes with --arg"
        )
    if not numbers:
        return None
    from ptxkit.cli._kernel import parse_iterations

    return parse_iterations(numbers[0])


def compile_options(options: FileOptions, entry: str = "") -> CompileOptions:
    """The options for the compilation, of the command line.

    Args:
        entry: the kernel that is named; an instance of a template is instantiated.

    Raises:
        UsageError: a macro without a name or given twice, or a directory that does not exist.
    """
    from ptxkit.source_run.entries import CompileOptions

    defines: dict[str, str | None] = {}
    for pair in options.defines:
        name, equals, value = pair.partition("=")
        if not name.isidentifier():
            raise UsageError(f"--define takes NAME or NAME=VALUE, not {pair!r}")
        if name in defines:
            raise UsageError(f"--define {name} is given twice")
        defines[name] = value if equals else None
    for directory in options.include_dirs:
        if not Path(directory).is_dir():
            raise UsageError(f"--include {directory}: there is no such directory")
    named = (entry,) if "<" in entry else ()
    return CompileOptions(
        instantiate=tuple(dict.fromkeys((*options.instantiate, *named))),
        defines=defines,
        include_dirs=options.include_dirs,
        options=options.compiler_options,
    )


def _parsed(options: FileOptions) -> tuple[Any, Geometry, dict[str, str], dict[str, str]]:
    """The call that the options describe: arguments, launch, and the files to compare with and to write."""
    from ptxkit.files import check_writable
    from ptxkit.source_run.call import Geometry
    from ptxkit.source_run.grammar import parse_argument, parse_dim3, parse_files

    arguments = tuple(parse_argument(text) for text in options.arguments)
    geometry = Geometry(
        grid=parse_dim3(options.grid, "--grid") if options.grid is not None else None,
        block=parse_dim3(options.block, "--block") if options.block is not None else None,
        cluster=parse_dim3(options.cluster_dims, "--cluster-dims") if options.cluster_dims is not None else None,
        shared=options.shared or 0,
        cooperative=options.cooperative,
    )
    expected, saved = parse_files(options.expected, "--expect"), parse_files(options.saved, "--output")
    for file in saved.values():
        check_writable(file)
    return arguments, geometry, expected, saved


def tolerance_of(options: FileOptions) -> Rule | None:
    """The tolerance of ``--tolerance``; None without it.

    Raises:
        UsageError: it is given without ``--expect``, or is no tolerance.
    """
    from ptxkit.source_run.tolerance import parse_tolerance

    if options.tolerance is None:
        return None
    if not options.expected:
        raise UsageError("--tolerance is for comparisons; give --expect NAME=FILE.npy, too")
    return parse_tolerance(options.tolerance)


def _call(
    file: CompiledFile, name: str, options: FileOptions, arguments: Any, geometry: Geometry, expected: Any, saved: Any
) -> Call:
    from ptxkit.source_run.call import make_call

    chosen = options.instantiate[0] if not name and len(options.instantiate) == 1 else name
    return make_call(file, file.entry(chosen), arguments, geometry, expected, saved)
