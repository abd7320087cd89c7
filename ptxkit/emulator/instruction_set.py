"""All instructions that the emulator executes: importing this module fills the instruction table."""

from ptxkit.emulator.instructions import (
    addressing,
    arithmetic,
    async_store,
    atomics,
    barriers,
    cluster_launch,
    cp_async,
    load_store,
    misc,
    multimem,
    warp,
)
from ptxkit.emulator.sync import mbarrier_instructions
from ptxkit.emulator.tensor_core import ldmatrix, ldmatrix_b8, mma, mma_kinds, tcgen05, volta, wgmma, wmma
from ptxkit.emulator.texture import fetch, query, surface
from ptxkit.emulator.tma import bulk, tensor, tensor_maps

__all__ = [
    "addressing",
    "arithmetic",
    "async_store",
    "atomics",
    "barriers",
    "bulk",
    "cluster_launch",
    "cp_async",
    "fetch",
    "ldmatrix",
    "ldmatrix_b8",
    "load_store",
    "mbarrier_instructions",
    "misc",
    "mma",
    "mma_kinds",
    "multimem",
    "query",
    "surface",
    "tcgen05",
    "tensor",
    "tensor_maps",
    "volta",
    "warp",
    "wgmma",
    "wmma",
]
