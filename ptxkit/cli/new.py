"""``ptxkit new``: writes a kernel and its description as a starting point."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import click

from ptxkit.errors import UsageError

# Names that are valid in Python but not in CUDA C++: keywords and built-in variables.
CPP_WORDS = frozenset(
    """
    alignas alignof auto bool break case catch char concept const consteval constexpr continue decltype default
    delete do double else enum explicit export extern false float for friend goto if inline int long main mutable
    namespace new noexcept not nullptr operator or private protected public register requires return short signed
    sizeof static struct switch template this throw true try typedef typeid typename union unsigned using virtual
    void volatile while threadidx blockidx blockdim griddim warpsize
    """.split()
)

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


@click.command()
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Write to this directory (default: the current one).",
)
def command(name: str, directory: Path) -> None:
    """Write NAME.cu and NAME.py: a kernel and its description, which run and verify without changes."""
    check_name(name)
    from ptxkit.workload.workload import snake_case

    title = "".join(word.capitalize() for word in name.split("_"))
    # The class Conv2d of conv_2d needs its name written down, because Conv2d alone would give conv2d.
    naming = "" if snake_case(title) == name else f'    name = "{name}"\n'
    pair = {
        directory / f"{name}.cu": KERNEL.format(name=name),
        directory / f"{name}.py": DESCRIPTION.format(name=name, title=title, naming=naming),
    }
    write_pair(pair)
    where = directory / f"{name}.py"
    shown = where if where.is_absolute() else f"./{where}"
    click.echo(f"wrote {' and '.join(map(str, pair))}; now: ptxkit run {shown}")


def check_name(name: str) -> None:
    """Raise UsageError unless the name is valid for a file, a kernel and a class."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise UsageError(f"{name!r} cannot name a kernel; use lower-case letters, digits and _, such as my_kernel")
    if keyword.iskeyword(name) or name in CPP_WORDS:
        raise UsageError(f"{name!r} is a keyword; choose another name, such as my_{name}")


def write_pair(pair: dict[Path, str]) -> None:
    """Write all files or none; never overwrite an existing file."""
    for path in pair:
        if path.exists():
            raise UsageError(f"{path} exists already; choose another name or another --directory")
    written = []
    try:
        for path, text in pair.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
