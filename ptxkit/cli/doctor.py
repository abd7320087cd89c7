"""``ptxkit doctor``: checks the installation, and names the command that fixes each problem."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import PtxkitError, UnavailableError

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.runtime.device import Device

PROBE = """
extern "C" __global__ void probe(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""

PIP = f"{sys.executable} -m pip install"

OPTIONAL_TOOLS = {
    "nvJitLink",
    "nvdisasm",
    "cuobjdump",
}  # for .ptx on a GPU and for SASS; the emulator needs none of them

CUTLASS = "nvidia-cutlass==4.2.0.0"  # as in pyproject.toml; optional, since no other kernel needs it

OPTIONAL = {  # package -> (what needs it, what installs it)
    "torch": ("peer of the benchmarks", f"{PIP} torch"),
    "triton": ("peer of the benchmarks", f"{PIP} triton"),
    "cupy": ("peer of the benchmarks", f"{PIP} cupy-cuda13x"),
    "scikit-learn": ("guided search of sweeps", f"{PIP} 'ptxkit[sweep]'"),
    "matplotlib": ("rooflines and heat maps as pictures", f"{PIP} 'ptxkit[plot]'"),
}


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was checked.
        state: "ok", "missing" (ptxkit does not fully work here) or "absent" (optional).
        detail: what was found.
        fix: the command, or the action, that changes a state other than ok.
    """

    name: str
    state: str
    detail: str
    fix: str = ""


DETAIL = 26  # the column at which details begin


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(as_json: bool) -> int:
    """Check the installation.

    Each problem is shown with the command that fixes it.

    Exits with 0 when kernels can be compiled and run in the emulator, whether or not there is a GPU.
    """
    from ptxkit.cli._text import print_json

    checks = []
    for check in all_checks():
        checks.append(check)
        if not as_json:
            show(check)
    broken = [c for c in checks if c.state == "missing"]
    if as_json:
        print_json({"schema": "ptxkit.doctor/2", "ok": not broken, "checks": [as_values(c) for c in checks]})
    elif broken:
        click.echo(f"\n{len(broken)} to fix: " + ", ".join(c.name for c in broken))
    else:
        click.echo("\nEverything required is installed.")
    return UnavailableError.exit_code if broken else 0


def as_values(check: Check) -> dict[str, str]:
    """A check as JSON values."""
    return {"name": check.name, "state": check.state, "detail": check.detail, "fix": check.fix}


def show(check: Check) -> None:
    """Print one check, with its fix on a line of its own."""
    from ptxkit.cli._text import terminal_width
    from ptxkit.columns import hanging

    mark, color = {"ok": ("ok", "green"), "missing": ("MISSING", "red"), "absent": ("-", "yellow")}[check.state]
    width = terminal_width()
    click.echo(hanging(f"{click.style(f'{mark:<8}', fg=color)} {check.name:<16} {check.detail}", DETAIL, width))
    if check.fix:
        click.echo(hanging(f"{'':<{DETAIL}}-> {check.fix}", DETAIL + 3, width))


def all_checks() -> Iterator[Check]:
    """Every check, each after those it depends on."""
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield attempt("kernels", f"{PIP} --force-reinstall ptxkit", kernels)
    yield from tools()
    images: list[Image] = []
    yield attempt("compiler", f"{PIP} 'nvidia-cuda-nvrtc>=13,<14'", lambda: compiler(images))
    if images:
        yield attempt("emulator", "this is a bug in ptxkit", lambda: emulator(images[0]))
    else:
        yield Check("emulator", "missing", "has nothing to run until the compiler works")
    yield attempt("cache", "set PTXKIT_CACHE_DIR to a writable directory", cache)
    yield attempt("CUTLASS", f"{PIP} '{CUTLASS}'", cutlass, optional=True)
    yield attempt("gpu", "install NVIDIA's driver where there is a GPU; the emulator needs neither", gpu, optional=True)
    for package, (purpose, fix) in OPTIONAL.items():
        yield optional(package, purpose, fix)


def attempt(name: str, fix: str, find: Callable[[], str], *, optional: bool = False) -> Check:
    """A check that calls ``find``; its detail is what that returns or, for something missing, the error that it raises."""
    try:
        return Check(name, "ok", find())
    except (PtxkitError, ImportError, OSError) as error:
        detail = str(error).split("\n", 1)[0].partition("; run: ")[0]  # the fix names the command
        return Check(name, "absent" if optional else "missing", detail, fix)


def kernels() -> str:
    """The bundled sources and descriptions."""
    from ptxkit.compiler.paths import kernels_dir
    from ptxkit.workload import registry

    if not kernels_dir().is_dir():
        raise UnavailableError(f"{kernels_dir()} does not exist")
    with stdout_set_aside():
        return f"{len(registry.names())} in {kernels_dir()}"


def tools() -> Iterator[Check]:
    """Libraries, headers and programs that come as packages."""
    from ptxkit.compiler.toolkit import survey

    for name, (tool, package) in survey().items():
        if tool is None:
            limit = ">=13,<13.2" if package == "nvidia-cuda-cccl" else ">=13,<14"
            state = "absent" if name in OPTIONAL_TOOLS else "missing"
            yield Check(name, state, "not installed", f"{PIP} '{package}{limit}'")
        else:
            yield Check(name, "ok", f"{tool.version}, {tool.path}")


def compiler(images: list[Image]) -> str:
    """Compile the probe, without the cache; leaves the image in ``images``."""
    from ptxkit.compiler.nvrtc import compile_source

    start = time.perf_counter()
    images.append(compile_source(PROBE, target="sm_90a", name="probe.cu", cache=False))
    return f"compiled a kernel for {images[0].target} in {1e3 * (time.perf_counter() - start):.0f} ms"


def emulator(image: Image) -> str:
    """Run the probe in the emulator."""
    from ptxkit.runtime.device import emulating_device

    return probe(emulating_device(), image)


def gpu() -> str:
    """Run the probe on the GPU."""
    from ptxkit.compiler.nvrtc import compile_source
    from ptxkit.runtime.device import gpu_present, timed_device

    if not gpu_present():
        raise UnavailableError("no GPU or no NVIDIA driver was found")
    device = timed_device()
    assert device.target is not None
    return probe(device, compile_source(PROBE, target=device.target, name="probe.cu"))


def probe(there: Device, image: Image) -> str:
    """Double 1000 numbers on a device; returns a description of the device."""
    import numpy as np

    x = np.arange(1000, dtype=np.float32)
    given, doubled = there.upload(x), there.upload(np.zeros_like(x))
    there.load(image)["probe"](given, doubled, np.int32(x.size), grid=8, block=128)
    there.synchronize()
    if not np.array_equal(doubled.numpy(), 2 * x):
        raise UnavailableError(f"{there.name} computes a wrong result")
    target = f" ({there.target.name})" if there.target else ""
    return f"{there.name}{target}, ran a kernel and verified it"


def cutlass() -> str:
    """CUTLASS: its version and its C++ headers must be compatible."""
    from ptxkit.cutlass import package

    package.check()
    return f"{package.VERSION}, for cutlass_gemm and the peer cutlass"


def cache() -> str:
    """The compile cache, and whether it is writable."""
    from ptxkit.cli._text import number_of
    from ptxkit.compiler.cache import default_cache
    from ptxkit.quantities import quantity

    held = default_cache().info()
    if not held.writable:
        raise UnavailableError(f"{held.directory} cannot be written; every run compiles again")
    size = f"{quantity(held.size_bytes, 'B')} of {quantity(held.limit_bytes, 'B')}"
    return f"{held.directory}, {number_of(held.entries, 'image')}, {size}"


def optional(package: str, purpose: str, fix: str) -> Check:
    """An optional package."""
    from importlib.metadata import PackageNotFoundError

    try:
        return Check(package, "ok", version(package))
    except PackageNotFoundError:
        return Check(package, "absent", f"not installed ({purpose})", fix)


def version(package: str) -> str:
    """The installed version of a package."""
    from importlib.metadata import version as installed

    return installed(package)
