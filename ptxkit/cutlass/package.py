"""The package ``nvidia-cutlass``: the directory of its headers, and the checks of its version and of CUDA's C++ headers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.errors import UnavailableError

VERSION = "4.2.0.0"
"""The version that :mod:`ptxkit.cutlass.headers` and :mod:`ptxkit.cutlass.emit` were written for."""
CCCL_LIMIT = (13, 2)
"""The first version of the CUDA C++ core libraries with which CUTLASS 4.2 does not compile."""
INSTALL = f"run: pip install 'nvidia-cutlass=={VERSION}'"


@cache
def include_dirs() -> tuple[str, ...]:
    """CUTLASS's include directories, and the one from which it includes ``cccl/cuda/std/...``, after all checks.

    Raises:
        UnavailableError: nvidia-cutlass is not installed or of another version, or the CCCL headers are too new.
    """
    check()
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(
            f"nvidia-cutlass {VERSION} lacks its module cutlass_library; {INSTALL} --force-reinstall"
        )
    source = Path(spec.submodule_search_locations[0]) / "source"
    cccl = _cccl()
    return (
        str(source / "include"),
        str(source / "tools" / "util" / "include"),
        *([str(cccl.path.parent)] if cccl else []),
    )


def check() -> None:
    """Raise UnavailableError with a message of one line unless CUTLASS can be used."""
    try:
        version = importlib.metadata.version("nvidia-cutlass")
    except importlib.metadata.PackageNotFoundError:
        raise UnavailableError(f"CUTLASS is not installed; {INSTALL}") from None
    check_version(version)
    cccl = _cccl()
    check_cccl(cccl.version if cccl else "")


def _cccl() -> toolkit.Tool | None:
    return next((tool for tool in toolkit.headers() if "CCCL" in tool.name), None)


def check_version(version: str) -> None:
    """Raise UnavailableError for a version other than the one that the patches of the headers are for."""
    if version != VERSION:
        raise UnavailableError(
            f"nvidia-cutlass {version} is installed, but the NVRTC patches of its headers are for {VERSION}; {INSTALL}"
        )


def check_cccl(version: str) -> None:
    """Raise UnavailableError for CCCL headers that CUTLASS does not compile with, where "" stands for missing headers."""
    fix = "run: pip install 'nvidia-cuda-cccl>=13.0,<13.2'"
    if not version:
        raise UnavailableError(f"CUTLASS needs the CUDA C++ core libraries' headers; {fix}")
    parts = version.split(".")
    if all(part.isdecimal() for part in parts[:2]) and tuple(map(int, parts[:2])) >= CCCL_LIMIT:
        raise UnavailableError(f"CUTLASS {VERSION} does not compile with nvidia-cuda-cccl {version}; {fix}")
