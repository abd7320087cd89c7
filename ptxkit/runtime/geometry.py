"""The geometry of a launch: grid, block, cluster and dynamic shared memory, checked against the limits of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.arguments import FLAG, check
from ptxkit.errors import LaunchError, UsageError
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.targets.launch import geometry_refusal

if TYPE_CHECKING:
    from ptxkit.isa.model import Function

Dim = tuple[int, int, int]


class Geometry:
    """Grid, block, cluster and shared memory of a launch, checked.

    Raises:
        UsageError: grid or block is missing.
        LaunchError: a limit is exceeded, or the kernel was compiled for another block or cluster.
    """

    __slots__ = ("block", "cluster", "cooperative", "grid", "shared")

    def __init__(
        self,
        kernel: str,
        function: Function,
        grid: Any,
        block: Any,
        shared: int,
        cluster: Any,
        cooperative: bool,
        device: DeviceFacts,
    ) -> None:
        missing = [f"{name}=" for name, value in (("grid", grid), ("block", block)) if value is None]
        if missing:
            raise UsageError(f"{kernel}: {' and '.join(missing)} must be given: an int, or (x, y, z)")
        self.grid = dim3(grid, f"{kernel}: grid")
        self.block = dim3(block, f"{kernel}: block")
        self.cluster = None if cluster is None else dim3(cluster, f"{kernel}: cluster")
        self.shared = int(shared) if isinstance(shared, np.integer) else shared
        check(f"{kernel}: cooperative", cooperative, FLAG, LaunchError)
        self.cooperative = bool(cooperative)
        reason = geometry_refusal(self.grid, self.block, self.cluster, function.directives, device)
        if reason is not None:
            raise LaunchError(f"{kernel}: {reason}")
        if isinstance(shared, bool) or not isinstance(shared, (int, np.integer)) or shared < 0:
            raise LaunchError(f"{kernel}: shared must be a number of bytes of at least 0, not {shared!r}")


def dim3(value: Any, what: str) -> Dim:
    """An int or up to three of them as (x, y, z).

    Raises:
        LaunchError: it is something else, or a number is below 1.
    """
    parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    numbers = [int(p) for p in parts if isinstance(p, (int, np.integer)) and not isinstance(p, bool)]
    if len(numbers) != len(parts) or not 1 <= len(parts) <= 3:
        raise LaunchError(f"{what} must be one to three whole numbers, not {value!r}")
    if min(numbers) < 1:
        raise LaunchError(f"{what} must be at least 1 everywhere, not {value!r}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z
