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
    spelling,
    warp,
)
from ptxkit.emulator.sync import mbarrier_instructions
from ptxkit.emulator.tensor_core import forms, ldmatrix, ldmatrix_b8, mma, mma_kinds, tcgen05, volta, wgmma, wmma
from ptxkit.emulator.tma import bulk, tensor, tensor_maps
from ptxkit.emulator.tma import spelling as tensor_spelling

__all__ = [
    "addressing",
    "arithmetic",
    "async_store",
    "atomics",
    "barriers",
    "bulk",
    "cluster_launch",
    "cp_async",
    "forms",
    "ldmatrix",
    "ldmatrix_b8",
    "load_store",
    "mbarrier_instructions",
    "misc",
    "mma",
    "mma_kinds",
    "spelling",
    "tcgen05",
    "tensor",
    "tensor_maps",
    "tensor_spelling",
    "volta",
    "warp",
    "wgmma",
    "wmma",
]
