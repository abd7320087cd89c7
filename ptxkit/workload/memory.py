"""Checks that the arrays of a workload fit in the memory of the device and the host, before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ptxkit.errors import UnavailableError
from ptxkit.runtime.abilities import is_timed

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.workload.workload import Workload

HOST_BYTES_PER_BYTE = 3  # inputs, outputs, and the float64 reference with one float64 copy of the inputs


def check_memory(workload: Workload, device: Device) -> None:
    """Raise UnavailableError when the workload's sizes need more memory than the device or the host has free."""
    needed = workload.bytes_needed()
    on_host = workload.work().bytes if is_timed(device) else needed  # temporaries of a GPU have no copies on the host
    places = [(device.name, needed, device.memory_bytes), ("the host", HOST_BYTES_PER_BYTE * on_host, free_host_bytes())]
    for place, wanted, free in places:
        if free is not None and wanted > free:
            raise UnavailableError(
                f"{workload.name} with {workload.size_text()} needs {_gigabytes(wanted)} on {place}, "
                f"which has {_gigabytes(free)} free; take smaller sizes"
            )


def free_host_bytes() -> int | None:
    """Available memory of the host in bytes; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count < 1e15 else f"{count / 1e12:,.0f} TB"
