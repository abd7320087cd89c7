"""Finds the CUDA components that ptxkit uses, in Python packages only.

NVRTC, nvJitLink, the headers and the disassemblers come from PyPI wheels (``site-packages/nvidia/...``) or from a conda
environment. A toolkit under ``/usr/local``, on ``PATH`` or named by ``CUDA_HOME`` is never used, so that a kernel
that compiles on one machine compiles on every machine. The search takes a few directory listings; a run from the compile
cache loads no library.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ptxkit.errors import UnavailableError
from ptxkit.targets.target import is_older_than_all


@dataclass(frozen=True)
class Tool:
    """One library, header directory or program.

    Attributes:
        name: what it is: ``"NVRTC"``.
        path: the file or directory.
        version: version of its package (``"13.5.37"``), or from the file names.
    """

    name: str
    path: Path
    version: str


@dataclass(frozen=True)
class _Wanted:
    """The location of one tool: file name patterns below ``nvidia/*/`` of site-packages, and below the conda prefix."""

    name: str
    package: str  # on PyPI
    pattern: str  # relative to site-packages/nvidia/<toolkit>
    conda: str  # relative to sys.prefix


_LIBNVRTC = _Wanted("NVRTC", "nvidia-cuda-nvrtc", "lib/libnvrtc.so.[0-9]*", "lib/libnvrtc.so.[0-9]*")
_NVJITLINK = _Wanted("nvJitLink", "nvidia-nvjitlink", "lib/libnvJitLink.so.[0-9]*", "lib/libnvJitLink.so.[0-9]*")
_NVDISASM = _Wanted("nvdisasm", "nvidia-cuda-nvdisasm", "bin/nvdisasm", "bin/nvdisasm")
_CUOBJDUMP = _Wanted("cuobjdump", "nvidia-cuda-cuobjdump", "bin/cuobjdump", "bin/cuobjdump")
_RUNTIME_HEADERS = _Wanted(
    "CUDA headers", "nvidia-cuda-runtime", "include/cuda_runtime.h", "targets/*/include/cuda_runtime.h"
)
_CRT_HEADERS = _Wanted("CUDA crt headers", "nvidia-cuda-crt", "include/crt", "targets/*/include/crt")
_CCCL_HEADERS = _Wanted("CCCL headers", "nvidia-cuda-cccl", "include/cccl", "targets/*/include/cccl")


def nvrtc() -> Tool:
    """The NVRTC library.

    Raises:
        UnavailableError: it is not installed; the message names the command that installs it. All functions here raise it.
    """
    return _require(_LIBNVRTC)


def nvjitlink() -> Tool:
    """The nvJitLink library, which assembles PTX."""
    return _require(_NVJITLINK)


def nvdisasm() -> Tool:
    """The SASS disassembler."""
    return _require(_NVDISASM)


def cuobjdump() -> Tool:
    """The cubin reader."""
    return _require(_CUOBJDUMP)


def headers() -> tuple[Tool, ...]:
    """The installed header directories in search order: runtime, then CCCL, then those of the other wheels. May be empty.

    The wheels of one environment share a directory. If some of them are in another one of ``sys.path``, so are their headers,
    such as ``crt/mma.h`` and ``curand_kernel.h``.
    """
    found = []
    for wanted in (_RUNTIME_HEADERS, _CCCL_HEADERS):
        tool = _find(wanted)
        if tool is not None:
            directory = tool.path.parent if wanted is _RUNTIME_HEADERS else tool.path
            found.append(Tool(wanted.name, directory, tool.version))
    known = {tool.path for tool in found}
    for site in _site_directories():
        directory = site / "nvidia" / "cu13" / "include"
        if found and directory.is_dir() and directory not in known:
            found.append(Tool("CUDA headers", directory, found[0].version))
    return tuple(found)


def survey() -> dict[str, tuple[Tool | None, str]]:
    """Everything ``ptxkit doctor`` shows: name -> (what was found or None, the PyPI package that brings it)."""
    wanted = (_LIBNVRTC, _NVJITLINK, _NVDISASM, _CUOBJDUMP, _RUNTIME_HEADERS, _CRT_HEADERS, _CCCL_HEADERS)
    return {w.name: (_find(w), w.package) for w in wanted}


@cache
def nvrtc_identity() -> str:
    """The identity of NVRTC in a cache key: its version and the sizes of its two libraries. Loads nothing."""
    tool = nvrtc()
    real = tool.path.resolve()
    sizes = [f"{p.name}:{p.stat().st_size}" for p in sorted(real.parent.glob("libnvrtc*.so*")) if not p.is_symlink()]
    return " ".join([tool.version, *sizes])


@cache
def nvjitlink_identity() -> str:
    """The identity of nvJitLink in a cache key. Loads nothing."""
    tool = nvjitlink()
    return f"{tool.version} {tool.path.name}:{tool.path.stat().st_size}"


def unknown_target(tool: Tool, target: str, package: str) -> UnavailableError:
    """The error to raise when a compiler does not know a target: it is too old for it, or the target has been removed."""
    if is_older_than_all(target):
        return UnavailableError(
            f"{tool.name} {tool.version} does not support {target} any more; choose a newer target, such as --arch sm_90a"
        )
    return UnavailableError(f"{tool.name} {tool.version} does not know {target}; run: pip install -U {package}")


def companions(tool: Tool) -> list[Path]:
    """Libraries to load before this one: NVRTC 13.0 opens its builtins by bare name, which works once they are loaded."""
    return sorted(tool.path.parent.glob("libnvrtc-builtins.so.*")) if "nvrtc" in tool.path.name else []


def preload(tool: Tool) -> None:
    """Load this library and those that it opens by name, so that nothing else is searched for.

    Raises:
        UnavailableError: the file cannot be loaded here.
    """
    import ctypes

    for path in (*companions(tool), tool.path):
        try:
            ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        except OSError as error:
            raise UnavailableError(f"{tool.name} at {path} cannot be loaded: {error}") from error


def _require(wanted: _Wanted) -> Tool:
    tool = _find(wanted)
    if tool is None:
        raise UnavailableError(f"{wanted.name} is not installed; run: pip install '{wanted.package}>=13,<14'")
    return tool


@cache
def _find(wanted: _Wanted) -> Tool | None:
    for site in _site_directories():
        # cu13 is the toolkit's major version; wheels of a torch for an older CUDA install other directories next to it.
        for path in sorted((site / "nvidia").glob(f"cu13/{wanted.pattern}")):
            return Tool(wanted.name, path, _package_version(site, wanted.package) or _version_in(path))
    prefix = Path(sys.prefix)
    if (prefix / "conda-meta").is_dir():
        for path in sorted(prefix.glob(wanted.conda)):
            return Tool(wanted.name, path, _version_in(path))
    return None


@cache
def _site_directories() -> tuple[Path, ...]:
    """Directories of ``sys.path`` that hold NVIDIA's namespace package, in order."""
    return tuple(Path(entry) for entry in dict.fromkeys(sys.path) if entry and (Path(entry) / "nvidia").is_dir())


def _package_version(site: Path, package: str) -> str:
    # The directory name of the installed distribution holds the version: quicker than importlib.metadata.
    stem = package.replace("-", "_")
    for path in site.glob(f"{stem}-*.dist-info"):
        return path.name.removeprefix(f"{stem}-").removesuffix(".dist-info")
    return ""


def _version_in(path: Path) -> str:
    match = re.search(r"\.so\.([\d.]+)$", path.resolve().name)
    return match[1] if match else "unknown"
