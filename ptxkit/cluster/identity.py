"""What must be equal on a client and its workers: versions, the files of the package, and the description of the kernel."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ptxkit.errors import PtxkitError


def identity(kernel: str | None = None) -> dict[str, str]:
    """What this process would compile and measure with.

    Args:
        kernel: a name or the absolute path of a description; None leaves ``description`` out.

    Returns:
        ``ptxkit``: version, and hash of the package's files; ``nvrtc`` and ``python``: versions; ``description``: hash of the
        files of the description, or why it cannot be read.
    """
    found = {"ptxkit": _package(), "nvrtc": _nvrtc(), "python": ".".join(platform.python_version_tuple()[:2])}
    if kernel is not None:
        found["description"] = _description(kernel)
    return found


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """How another process differs, in words; "" if it does not."""
    texts = [
        f"{what} {there.get(what, 'unknown')} there, {value} here"
        for what, value in here.items()
        if there.get(what) != value
    ]
    return "; ".join(texts)


@cache
def _package() -> str:
    """Version of ptxkit, and a hash of its Python files and of its device code."""
    from ptxkit.compiler.paths import include_dir, kernels_dir, ptx_dir

    try:
        number = version("ptxkit")
    except PackageNotFoundError:
        number = "?"
    package = Path(__file__).parents[1]
    return f"{number}+{_hash({'py': package, 'include': include_dir(), 'kernels': kernels_dir(), 'ptx': ptx_dir()})}"


def _hash(roots: Mapping[str, Path]) -> str:
    digest = blake2b(digest_size=4)
    for name, root in roots.items():
        suffixes = (".py",) if name == "py" else (".cu", ".cuh", ".h", ".ptx")
        for path in sorted(p for p in root.rglob("*") if p.suffix in suffixes and p.is_file()):
            digest.update(f"{name}/{path.relative_to(root)}\0".encode())
            digest.update(blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


@cache
def _nvrtc() -> str:
    from ptxkit.compiler.nvrtc import nvrtc_version

    try:
        return nvrtc_version()
    except PtxkitError as error:
        return f"({error})"


def _description(kernel: str) -> str:
    """Hash of a description in a file, of its device code, and of the modules beside it that it has imported."""
    from ptxkit.workload import registry

    try:
        found = registry.find(kernel)
        module = sys.modules[found.__module__]
        described = Path(str(module.__file__)).resolve()
        files = {described}
        if isinstance(found.source, str):
            files.add(described.parent / found.source)
        if kernel.endswith(".py"):
            loaded = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
            files |= {path for name in loaded if name and (path := Path(name).resolve()).parent == described.parent}
        digest = blake2b(digest_size=4)
        for path in sorted(files):
            digest.update(f"{path.name}\0".encode())
            digest.update(path.read_bytes() if path.is_file() else b"")
        return digest.hexdigest()
    except (PtxkitError, OSError) as error:
        return f"({error})"
