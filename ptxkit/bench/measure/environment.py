"""Versions of the software that results depend on."""

from __future__ import annotations

import platform
import sys
from typing import Any

import ptxkit
from ptxkit.compiler.nvrtc import nvrtc_version
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.runtime.abilities import is_timed


def environment(device: Any) -> dict[str, str]:
    """Name -> version of compiler, libraries and drivers, and of packages of peers that are imported."""
    found = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "nvrtc": nvrtc_version(),
        "ptxkit": ptxkit.__version__,
    }
    for package in ("numpy", "cuda-bindings", "cuda-core"):
        found[package] = _version(package)
    if is_timed(device):
        facts = device.facts()
        found |= {"gpu": device.name, "cuda_driver": facts.cuda_driver, "kernel_driver": facts.kernel_driver}
        found["gpu_uuid"] = facts.uuid
    for module in ("torch", "triton", "cupy"):
        if module in sys.modules:
            found[module] = str(getattr(sys.modules[module], "__version__", "unknown"))
    return found


def _version(package: str) -> str:
    import importlib.metadata  # imports the parsers of e-mail and URLs, which most commands do not need

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def require_gpu(device: Any, what: str, chosen: bool = True) -> None:
    """Raise an error if the device cannot measure times.

    Args:
        what: the feature that needs times; first words of the message.
        chosen: the caller named the device, instead of taking the default one.

    Raises:
        UsageError: the named device has no times. UnavailableError: no device of this machine has times.
    """
    if not is_timed(device):
        raise (UsageError if chosen else UnavailableError)(f"{what} needs a GPU; the emulator has no times")
