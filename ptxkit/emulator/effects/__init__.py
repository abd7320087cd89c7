"""Instructions that touch memory, other threads or special state. Importing this fills the table."""

from ptxkit.emulator.effects import (
    access,
    addressing,
    async_copy,
    atomics,
    bulk,
    cluster,
    matrix,
    mbarrier,
    misc,
    spelling,
    tensor,
    tensor_maps,
    warp,
)

__all__ = [
    "access",
    "addressing",
    "async_copy",
    "atomics",
    "bulk",
    "cluster",
    "matrix",
    "mbarrier",
    "misc",
    "spelling",
    "tensor",
    "tensor_maps",
    "warp",
]
