"""The properties of a GPU and the readings of its sensors, which results store with every measured time."""

from __future__ import annotations

import ctypes
import re
from ctypes import byref, c_int, c_uint, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from ptxkit.runtime.abilities import GpuFacts, Sensors
from ptxkit.runtime.gpu.context import GpuContext

# nvml.h: nvmlClockType_t, nvmlTemperatureSensors_t, nvmlClocksEventReason*
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0
MODULE_VERSION = Path("/proc/driver/nvidia/version")
_THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def facts(device: GpuContext) -> GpuFacts:
    """The facts of a GPU."""
    properties = device.properties
    version = c_int()
    device.driver.call("cuDriverGetVersion", byref(version))
    major, minor = device.core.compute_capability
    return GpuFacts(
        name=device.name,
        compute_capability=f"{major}.{minor}",
        cuda_driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
        kernel_driver=kernel_driver(),
        multiprocessors=int(properties.multiprocessor_count),
        clock_mhz=int(properties.clock_rate) // 1000,
        memory_clock_mhz=int(properties.memory_clock_rate) // 1000,
        l2_bytes=int(properties.l2_cache_size),
        memory_bytes=device.memory_bytes,
        shared_bytes=int(properties.max_shared_memory_per_block_optin),
        uuid=f"GPU-{device.core.uuid}".replace("GPU-GPU-", "GPU-"),
    )


def kernel_driver() -> str:
    """Version of the kernel driver, ``"580.95.05"``: from the management library, else from the kernel module."""
    library = _nvml()
    version = ctypes.create_string_buffer(80)  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
    if library is not None and library.nvmlSystemGetDriverVersion(version, c_uint(len(version))) == 0:
        return version.value.decode()
    try:
        said = MODULE_VERSION.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", said.partition("\n")[0])
    return found[0] if found else "unknown"


def sensors(device: GpuContext) -> Sensors:
    """The sensors, read through NVML; all None without NVML. Takes about 0.1 ms."""
    library = _nvml()
    handle = c_void_p()
    bus = str(device.core.pci_bus_id).encode()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(bus, byref(handle)):
        return Sensors()
    reasons = ctypes.c_ulonglong()
    library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, byref(reasons))
    power = _read(library.nvmlDeviceGetPowerUsage, handle)
    return Sensors(
        sm_clock_mhz=_read(library.nvmlDeviceGetClockInfo, handle, c_int(_CLOCK_SM)),
        memory_clock_mhz=_read(library.nvmlDeviceGetClockInfo, handle, c_int(_CLOCK_MEMORY)),
        power_w=None if power is None else power / 1000,
        temperature_c=_read(library.nvmlDeviceGetTemperature, handle, c_int(_TEMPERATURE_GPU)),
        throttled=tuple(words for bit, words in _THROTTLE.items() if reasons.value & bit),
    )


def _read(function: Any, *arguments: Any) -> int | None:
    value = c_uint()
    return None if function(*arguments, byref(value)) else value.value


@lru_cache(maxsize=1)
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
