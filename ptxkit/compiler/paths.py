"""Where the bundled kernel sources are: ``cu/`` and ``ptx/`` of a checkout, or their copies inside an installed wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ptxkit.errors import UnavailableError

_PACKAGE = Path(__file__).resolve().parent.parent


def include_dir() -> Path:
    """The directory that is on every include path: it holds the bundled headers as ``ptxkit/...``."""
    return _data_dir("cu")


def kernels_dir() -> Path:
    """The directory of the bundled CUDA C++ kernels."""
    return include_dir() / "kernels"


def ptx_dir() -> Path:
    """The directory of the bundled hand-written PTX kernels."""
    return _data_dir("ptx")


@cache
def _data_dir(name: str) -> Path:
    # A wheel carries the copies; a checkout has the originals next to the package, distinguished from an unrelated directory in
    # site-packages by the project file.
    candidates = [_PACKAGE / "_data" / name]
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        candidates.insert(0, _PACKAGE.parent / name)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise UnavailableError(f"ptxkit's own {name}/ directory is missing from {_PACKAGE}; reinstall ptxkit")
