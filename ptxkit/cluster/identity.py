"""What must be equal on a client and its workers: versions, the files of the package, and the description of the kernel."""

from __future__ import annotations

import ast
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ptxkit.errors import PtxkitError

DEVICE_CODE = (".cu", ".cuh", ".h", ".ptx")
_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)


def identity(*kernels: str) -> dict[str, str]:
    """What this process would compile and measure with.

    Args:
        kernels: names or absolute paths of descriptions; without any, ``description`` is left out.

    Returns:
        ``ptxkit``: version, and hash of the package's files; ``nvrtc`` and ``python``: versions; ``description``: hash of the
        files of the descriptions, or why one cannot be read.
    """
    found = {"ptxkit": _package(), "nvrtc": _nvrtc(), "python": ".".join(platform.python_version_tuple()[:2])}
    if kernels:
        found["description"] = _description(kernels)
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
        suffixes = (".py",) if name == "py" else DEVICE_CODE
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


def _description(kernels: Sequence[str]) -> str:
    """Hash of descriptions, of their device code, and of the modules and headers beside them, or why one cannot be read."""
    try:
        waiting = [_described(kernel) for kernel in kernels]
        files: dict[Path, bytes] = {}
        while waiting:
            path = waiting.pop()
            if path not in files and path.is_file():
                files[path] = path.read_bytes()
                waiting += _beside(path, files[path])
    except (PtxkitError, OSError, SyntaxError) as error:
        return f"({error})"
    digest = blake2b(digest_size=4)
    for path in sorted(files):
        digest.update(f"{path.name}\0".encode())
        digest.update(blake2b(files[path]).digest())
    return digest.hexdigest()


def _described(kernel: str) -> Path:
    """The file of a description. One that is given by its path is not imported: a worker lives longer than its modules.

    Raises:
        UsageError: there is no such kernel. OSError: the file cannot be read.
    """
    from ptxkit.workload import registry

    if kernel.endswith(".py"):
        return Path(kernel).resolve(strict=True)
    return Path(str(sys.modules[registry.get(kernel).__module__].__file__)).resolve()


def _beside(path: Path, content: bytes) -> list[Path]:
    """The files that a Python file names or imports from its own directory, or that device code includes by a relative path."""
    if path.suffix != ".py":
        return [(path.parent / name.decode(errors="replace")).resolve() for name in _INCLUDE.findall(content)]
    names = set()
    sources = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(DEVICE_CODE):
            sources.append(path.parent / node.value)
    modules = [path.parent / f"{name}.py" for name in names]
    packages = [path.parent / name for name in names if (path.parent / name / "__init__.py").is_file()]
    return [*sources, *modules, *(file for package in packages for file in package.rglob("*.py"))]
