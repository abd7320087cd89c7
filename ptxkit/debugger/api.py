"""``ptxkit.debug``: one launch of a kernel in the debugger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxkit.debugger.session import Session
from ptxkit.debugger.subject import subject_of
from ptxkit.errors import UsageError
from ptxkit.runtime.device import is_emulating
from ptxkit.runtime.geometry import dim3

if TYPE_CHECKING:
    from ptxkit.runtime.kernel import Kernel


def debug(
    kernel: Kernel,
    *args: Any,
    grid: Any,
    block: Any,
    shared: int = 0,
    cluster: Any = None,
    cooperative: bool = False,
    **settings: Any,
) -> Session:
    """A debugging session that launches ``kernel`` as ``kernel(*args, grid=grid, block=block)`` would.

    Args:
        kernel: of a module that was compiled for the emulator, with ``options=("-G",)`` to debug C variables.
        *args: as for the launch; numpy arrays are copied back when the launch is over.
        grid, block, shared, cluster, cooperative: of the launch.
        **settings: of the emulator, such as ``completion="latest-legal"`` or ``racecheck="warps"``.

    Raises:
        UsageError: the kernel is on a GPU, or no such setting.
    """
    device = getattr(kernel, "backend", None)
    if device is None or not is_emulating(device):
        where = getattr(device, "name", type(kernel).__name__)
        raise UsageError(f'debug takes a kernel in the emulator, not on {where}; compile with device="emulator"')
    with device.settings(**settings):
        pass  # report an unknown setting now
    given = [a.copy() if hasattr(a, "flags") and not hasattr(a, "address") else None for a in args]

    def launch() -> None:
        for original, kept in zip(args, given, strict=True):
            if kept is not None and kept.shape and original.flags.writeable:
                original[...] = kept  # a second run starts with the arrays of the first
        kernel(*args, grid=grid, block=block, shared=shared, cluster=cluster, cooperative=cooperative)

    return Session(device, [subject_of(kernel, args)], launch, settings, (dim3(grid, "grid"), dim3(block, "block")))
