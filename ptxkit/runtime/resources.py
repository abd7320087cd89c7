"""Registers and shared memory of a launch in the emulator, also for images without machine code."""

from __future__ import annotations

import warnings
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ptxkit.compiler.image import FunctionResources
from ptxkit.errors import UnavailableError
from ptxkit.targets.occupancy import cta_registers

if TYPE_CHECKING:
    from ptxkit.runtime.geometry import Geometry
    from ptxkit.runtime.kernel import Kernel
    from ptxkit.targets import Target


def launch_resources(kernel: Kernel, geometry: Geometry, ptx: str, static_shared: int) -> FunctionResources:
    """The resources that ptxas allocated to the kernel; for an image without machine code, those that can prevent the
    launch.

    The registers of such a kernel can prevent a launch only if the CTA is so large that it could need more registers
    than an SM has, and if no launch bounds limit them. Only then the PTX is assembled, once. If nvJitLink is not
    available, a warning says that the registers are not checked.

    Args:
        ptx: the text that holds the kernel.
        static_shared: bytes of static shared memory, as the emulator lays them out.

    Raises:
        CompileError: ptxas refuses the PTX, so no GPU can run the kernel.
    """
    if kernel.resources.registers:
        return kernel.resources
    limits, directives = kernel.device.target.limits, kernel.function.directives
    most = cta_registers(kernel.device.target, prod(geometry.block), limits.registers_per_thread)
    if most <= limits.registers_per_cta or "maxntid" in directives or "reqntid" in directives:
        return FunctionResources(shared_bytes=static_shared)
    try:
        return _assembled(ptx, kernel.device.target)[kernel.name]
    except UnavailableError as error:
        warnings.warn(f"{kernel.readable}: its registers are not checked: {error}", RuntimeWarning, stacklevel=2)
        return FunctionResources(shared_bytes=static_shared)


@lru_cache(maxsize=16)
def _assembled(ptx: str, target: Target) -> dict[str, FunctionResources]:
    from ptxkit.compiler.assemble import assemble

    return dict(assemble(ptx, target=target).functions)
