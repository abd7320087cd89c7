"""ptxkit: the workbench for CUDA kernels at the PTX level.

Everything public is a name of this module, imported when it is first used, so that ``import ptxkit`` itself costs nothing::

    module = ptxkit.compile("saxpy.cu", defines={"THREADS": 256})
    saxpy = module["saxpy"]
    saxpy(np.float32(2), x, y, np.int32(n), grid=ptxkit.cdiv(n, 256), block=256)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ptxkit import errors as errors

if TYPE_CHECKING:
    from ptxkit.emulator.settings import EmulatorSettings as EmulatorSettings
    from ptxkit.kernels.inputs import uniform as uniform
    from ptxkit.kernels.launch import Launch as Launch
    from ptxkit.kernels.launch import Tile as Tile
    from ptxkit.kernels.launch import Tolerance as Tolerance
    from ptxkit.kernels.launch import Work as Work
    from ptxkit.kernels.launch import cdiv as cdiv
    from ptxkit.kernels.variant import variant as variant
    from ptxkit.kernels.workload import Workload as Workload
    from ptxkit.runtime.api import compile as compile
    from ptxkit.runtime.buffers import DeviceArray as DeviceArray
    from ptxkit.runtime.device import Device as Device
    from ptxkit.runtime.device import device as device
    from ptxkit.runtime.tensor_map import Im2col as Im2col
    from ptxkit.runtime.tensor_map import TensorMap as TensorMap

_HOMES = {
    "Device": "ptxkit.runtime.device",
    "DeviceArray": "ptxkit.runtime.buffers",
    "EmulatorSettings": "ptxkit.emulator.settings",
    "Im2col": "ptxkit.runtime.tensor_map",
    "Launch": "ptxkit.kernels.launch",
    "TensorMap": "ptxkit.runtime.tensor_map",
    "Tile": "ptxkit.kernels.launch",
    "Tolerance": "ptxkit.kernels.launch",
    "Work": "ptxkit.kernels.launch",
    "Workload": "ptxkit.kernels.workload",
    "cdiv": "ptxkit.kernels.launch",
    "compile": "ptxkit.runtime.api",
    "device": "ptxkit.runtime.device",
    "uniform": "ptxkit.kernels.inputs",
    "variant": "ptxkit.kernels.variant",
}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ptxkit' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
