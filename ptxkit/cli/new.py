"""``ptxkit new``: writes a kernel and its description as a starting point."""

from __future__ import annotations

import ast
import importlib.machinery
import keyword
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from ptxkit.errors import UsageError
from ptxkit.expression.names import CPP_WORDS
from ptxkit.files import write_new

DESCRIPTION = '''"""{name}: y = a*x + y, one read of x and y and one write of y."""

import numpy as np

from ptxkit import Launch, Work, Workload, cdiv, variant


class {title}(Workload):
{naming}    source = "{name}.cu"
    n: int = 1 << 20  # the sizes of `ptxkit run ./{name}.py N`, with their defaults
    emulator_sizes = {{"n": 100_000}}  # the default sizes in the emulator

    def inputs(self, rng):
        x, y = (rng.uniform(-1, 1, self.n).astype(np.float32) for _ in range(2))
        return {{"a": np.float32(2), "x": x, "y": y}}

    def reference(self, a, x, y):
        return {{"y": np.float64(a) * x + y}}

    def work(self):
        return Work(flops=2 * self.n, bytes=12 * self.n)  # the minimum that any version must compute and move

    @variant(tile={{"THREADS": [256, 128, 512]}})  # the values for --tile; the first is the default
    def simple(self, t):
        grid = cdiv(self.n, t.THREADS)
        return [Launch("{name}", grid, t.THREADS, ("a", "x", "y", self.n), template=(t.THREADS,))]
'''

KERNEL = """// {name}: y = a*x + y, one element per thread.

template <int THREADS>
__global__ void __launch_bounds__(THREADS) {name}(float a, const float* __restrict__ x, float* __restrict__ y, int n)
{{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= n) return;
    // One inline PTX instruction as a starting point; it computes y[i] = fmaf(a, x[i], y[i]).
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(x[i]), "f"(y[i]));
    y[i] = sum;
}}
"""


PEERS = frozenset({"torch", "triton", "cupy", "jax"})
"""Modules of peers, which a later installation brings."""


@click.command()
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Write to this directory (default: the current one).",
)
@click.option(
    "--from",
    "origin",
    metavar="FILE[:KERNEL]",
    help="Describe a kernel of this .cu or .ptx file instead of writing one: its parameters, and its launch in the host code.",
)
@click.option(
    "--expression",
    metavar="FORMULA",
    help="Write the kernels of a formula, such as 'gelu(x + bias) * y', with a test: element by element, with sum, mean, max, "
    "min and norm along rows.",
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME", help="Take NAME as an array with one value per column."
)
@click.option(
    "--array", "arrays", multiple=True, metavar="NAME", help="Take NAME as an array with one value per element."
)
@click.option(
    "--scalar", "scalars", multiple=True, metavar="NAME[=VALUE]", help="Take NAME as a number (default: 0.5)."
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="NAME=LOW:HIGH",
    help="Draw the random values of an array from this range (default: -1:1, or 0.5:1.5 for divisors and logarithms).",
)
def command(
    name: str,
    directory: Path,
    origin: str | None,
    expression: str | None,
    columns: tuple[str, ...],
    arrays: tuple[str, ...],
    scalars: tuple[str, ...],
    ranges: tuple[str, ...],
) -> None:
    """Write a new kernel, NAME.cu, and its description, NAME.py.

    They can be run and verified without changes.

    With --expression, the kernel computes a formula in three variants: unfused (one launch for each operation), fused and
    vectorized; and test_NAME.py tests them. In a formula, bias, weight, gamma and beta have one value per column, and alpha,
    scale, zero_point and eps are numbers, unless an option says otherwise; other names have one value per element.

    With --from, only NAME.py is written: a description of a kernel that exists, with its sizes, arrays and launch. Its
    reference() must be filled in, and lines that hold a guess are marked with TODO.
    """
    check_name(name)
    from ptxkit.workload.workload import snake_case

    title = "".join(word.capitalize() for word in name.split("_"))
    # The class Conv2d of conv_2d needs its name written down, because Conv2d alone would give conv2d.
    naming = "" if snake_case(title) == name else f'    name = "{name}"\n'
    notes: list[str] = []
    if origin is not None:
        if expression is not None:
            raise UsageError("--from describes a kernel that exists, and --expression writes one; give one of them")
        refuse_without_expression({"--column": columns, "--array": arrays, "--scalar": scalars, "--range": ranges})
        where = directory / f"{name}.py"
        refuse_existing([where])  # before anything is compiled
        files = {where: describe(origin, name, title, naming, directory)}
        notes.append("fill in reference(), and look at the lines with TODO; until then the kernel is not verified")
    elif expression is not None:
        from ptxkit.expression.files import generate

        texts = generate(expression, name, title, naming, columns, arrays, scalars, ranges, notes.append)
        files = {directory / file: text for file, text in texts.items()}
    else:
        refuse_without_expression({"--column": columns, "--array": arrays, "--scalar": scalars, "--range": ranges})
        files = {
            directory / f"{name}.cu": KERNEL.format(name=name),
            directory / f"{name}.py": DESCRIPTION.format(name=name, title=title, naming=naming),
        }
    where = directory / f"{name}.py"
    refuse_hidden(title, files[where], name)
    write_pair(files)
    shown = where if where.is_absolute() else f"./{where}"
    for note in notes:
        click.echo(note, err=True)
    click.echo(f"wrote {_listed([str(path) for path in files])}; now: ptxkit run {shlex.quote(str(shown))}")


def describe(origin: str, name: str, title: str, naming: str, directory: Path) -> str:
    """The description of a kernel that exists.

    Args:
        origin: ``FILE`` or ``FILE:KERNEL``. name, title, naming: of the description. directory: where it will be.

    Raises:
        UsageError: no such file or kernel, or several kernels and none is named. CompileError: the file does not compile.
    """
    from ptxkit.cli._output import stdout_set_aside
    from ptxkit.cli._run_file import existing, is_triton, names_source_file
    from ptxkit.source_run.describe import description

    if is_triton(origin) or not names_source_file(origin):
        raise UsageError(f"--from takes a .cu or .ptx file, with :KERNEL or without, not {origin!r}")
    with stdout_set_aside():
        path, kernel = existing(origin)
        text = description(path, kernel, name, title, naming, directory)
    try:
        text.encode()
    except UnicodeEncodeError:  # the commands in the description name the file
        raise UsageError(f"the path {origin} is not UTF-8 and cannot be written in {name}.py; rename it") from None
    return text


def refuse_without_expression(given: dict[str, tuple[str, ...]]) -> None:
    """Raise UsageError for an option that has a meaning only with ``--expression``."""
    for option, values in given.items():
        if values:
            raise UsageError(f"{option} {values[0]}: only with --expression")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def check_name(name: str) -> None:
    """Raise UsageError unless the name is valid for a file, a kernel and a class."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise UsageError(f"{name!r} cannot name a kernel; use lower-case letters, digits and _, such as my_kernel")
    if keyword.iskeyword(name) or name in CPP_WORDS:
        raise UsageError(f"{name!r} is a keyword; choose another name, such as my_{name}")
    if name in sys.stdlib_module_names or name in PEERS or _is_installed(name):
        raise UsageError(f"{name}.py would hide the Python module {name}; choose another name, such as my_{name}")


def refuse_hidden(title: str, description: str, name: str) -> None:
    """Raise UsageError if the class of a description has the name of something that the description imports."""
    imports = (node for node in ast.walk(ast.parse(description)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    if title in {alias.asname or alias.name for node in imports for alias in node.names}:
        raise UsageError(
            f"the class {title} would hide the {title} that {name}.py imports; choose another name, such as my_{name}"
        )


def _is_installed(name: str) -> bool:
    """Whether Python finds a module of this name elsewhere than in the current directory."""
    elsewhere = [path for path in sys.path if path and Path(path).resolve() != Path.cwd()]
    return importlib.machinery.PathFinder.find_spec(name, elsewhere) is not None


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise UsageError if one of these files exists."""
    for path in paths:
        if path.exists():
            raise UsageError(f"{path} exists already; choose another name or another --directory")


def write_pair(pair: dict[Path, str]) -> None:
    """Write all files or none; never overwrite an existing file."""
    refuse_existing(pair)
    write_new(pair)
