"""ptxkit: the workbench for CUDA kernels at the PTX level.

Everything public is a name of this module, imported when it is first used, so that ``import ptxkit`` itself costs nothing::

    module = ptxkit.compile("saxpy.cu", defines={"THREADS": 256})
    saxpy = module["saxpy"]
    saxpy(np.float32(2), x, y, np.int32(n), grid=ptxkit.cdiv(n, 256), block=256)
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from ptxkit import errors as errors
    from ptxkit.debugger.api import debug as debug
    from ptxkit.emulator.settings import EmulatorSettings as EmulatorSettings
    from ptxkit.runtime.api import compile as compile
    from ptxkit.runtime.buffers import DeviceArray as DeviceArray
    from ptxkit.runtime.device import Device as Device
    from ptxkit.runtime.device import device as device
    from ptxkit.runtime.tensor_map.description import TensorMap as TensorMap
    from ptxkit.runtime.tensor_map.im2col import Im2col as Im2col
    from ptxkit.runtime.texture.description import Surface as Surface
    from ptxkit.runtime.texture.description import Texture as Texture
    from ptxkit.workload.inputs import uniform as uniform
    from ptxkit.workload.launch import Launch as Launch
    from ptxkit.workload.launch import Tile as Tile
    from ptxkit.workload.launch import Tolerance as Tolerance
    from ptxkit.workload.launch import Work as Work
    from ptxkit.workload.launch import cdiv as cdiv
    from ptxkit.workload.parallel import by_rows as by_rows
    from ptxkit.workload.variant import variant as variant
    from ptxkit.workload.workload import Workload as Workload

_HOMES = {
    "Device": "ptxkit.runtime.device",
    "DeviceArray": "ptxkit.runtime.buffers",
    "EmulatorSettings": "ptxkit.emulator.settings",
    "Im2col": "ptxkit.runtime.tensor_map.im2col",
    "Launch": "ptxkit.workload.launch",
    "Surface": "ptxkit.runtime.texture.description",
    "TensorMap": "ptxkit.runtime.tensor_map.description",
    "Texture": "ptxkit.runtime.texture.description",
    "Tile": "ptxkit.workload.launch",
    "Tolerance": "ptxkit.workload.launch",
    "Work": "ptxkit.workload.launch",
    "Workload": "ptxkit.workload.workload",
    "by_rows": "ptxkit.workload.parallel",
    "cdiv": "ptxkit.workload.launch",
    "compile": "ptxkit.runtime.api",
    "debug": "ptxkit.debugger.api",
    "device": "ptxkit.runtime.device",
    "uniform": "ptxkit.workload.inputs",
    "variant": "ptxkit.workload.variant",
}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("errors", "torch"):
        return importlib.import_module(f"ptxkit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'ptxkit' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "errors", "torch"})
