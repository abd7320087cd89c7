"""Special registers: their types, and their lanes in a wave."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.simt.threads import WaveState
from ptxkit.isa.types import TYPES, PtxType

TILE_BARRIER_BYTES = 288
"""Reserved shared memory for the barriers of tiles of several warps (CUDA's cooperative_groups/details/memory.h)."""

_U32, _U64, _PRED = TYPES["u32"], TYPES["u64"], TYPES["pred"]
_VECTORS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")

SPECIAL_TYPES: dict[str, PtxType] = {
    **{f"%{v}.{axis}": _U32 for v in _VECTORS for axis in "xyzw"},
    **{
        f"%{n}": _U32
        for n in (
            "laneid",
            "warpid",
            "nwarpid",
            "smid",
            "nsmid",
            "clock",
            "clock_hi",
            "globaltimer_lo",
            "globaltimer_hi",
            "lanemask_eq",
            "lanemask_le",
            "lanemask_lt",
            "lanemask_ge",
            "lanemask_gt",
            "dynamic_smem_size",
            "total_smem_size",
            "aggr_smem_size",
            "cluster_ctarank",
            "cluster_nctarank",
            *(f"envreg{n}" for n in range(32)),
            *(f"pm{n}" for n in range(8)),
            *(f"reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1")),
        )
    },
    **{f"%{n}": _U64 for n in ("clock64", "globaltimer", "gridid", "current_graph_exec")},
    **{f"%pm{n}_64": _U64 for n in range(8)},
    "%is_explicit_cluster": _PRED,
}
"""The special registers that the emulator implements, with their types. The performance monitors (%pm0, ...), whose values the
manual does not define, are 0, and so is the fourth component of a vector."""


def static_lanes(wave: WaveState, name: str) -> Lanes:
    """Lanes of a special register that does not change while the wave runs, broadcastable to the wave's shape."""
    base, _, axis = name[1:].partition(".")
    launch = wave.launch
    if axis == "w":
        return _one(0)
    if axis:
        k = "xyz".index(axis)
        gx, gy, _ = launch.grid
        linear = wave.ctas.astype(np.int64)
        cta = (linear % gx, linear // gx % gy, linear // (gx * gy))
        size = launch.cluster
        match base:
            case "tid":
                return wave.thread_index(k)
            case "ntid":
                return _one(launch.block[k])
            case "ctaid":
                return cta[k].astype(np.uint32)[:, None, None]
            case "nctaid":
                return _one(launch.grid[k])
            case "clusterid":
                return (cta[k] // size[k]).astype(np.uint32)[:, None, None]
            case "nclusterid":
                return _one(launch.grid[k] // size[k])
            case "cluster_ctaid":
                return (cta[k] % size[k]).astype(np.uint32)[:, None, None]
            case _:
                return _one(size[k])
    lane = np.arange(32, dtype=np.uint64)[None, None]
    one = np.uint64(1)
    match base:
        case "laneid":
            return lane.astype(np.uint32)
        case "lanemask_eq":
            return (one << lane).astype(np.uint32)
        case "lanemask_lt":
            return ((one << lane) - one).astype(np.uint32)
        case "lanemask_le":
            return ((one << (lane + one)) - one).astype(np.uint32)
        case "lanemask_gt":
            return (~((one << (lane + one)) - one)).astype(np.uint32)
        case "lanemask_ge":
            return (~((one << lane) - one)).astype(np.uint32)
        case "warpid":
            return np.arange(wave.shape[1], dtype=np.uint32)[None, :, None]
        case "nwarpid":
            return _one(wave.shape[1])
        case "smid":
            return (wave.ctas % launch.sms).astype(np.uint32)[:, None, None]
        case "nsmid":
            return _one(launch.sms)
        case "dynamic_smem_size":
            return _one(launch.dynamic_shared)
        case "total_smem_size" | "aggr_smem_size":
            return _one(launch.shared_bytes)
        case "cluster_ctarank":
            return wave.cluster_rank.astype(np.uint32)[:, None, None]
        case "cluster_nctarank":
            return _one(launch.cluster_size)
        case "gridid":
            return np.full((1, 1, 1), launch.serial, np.uint64)
        case "is_explicit_cluster":
            return np.full((1, 1, 1), launch.explicit_cluster)
        case _ if SPECIAL_TYPES[name] is _U64:  # current_graph_exec, pm<n>_64
            return np.zeros((1, 1, 1), np.uint64)
        case "envreg1":
            return _one(launch.workspace >> 32)
        case "envreg2":
            return _one(launch.workspace & 0xFFFF_FFFF)
        case "reserved_smem_offset_end":  # the part in use: barriers of tiles, see TILE_BARRIER_BYTES
            return _one(TILE_BARRIER_BYTES)
        case "reserved_smem_offset_cap":
            return _one(SHARED_BASE)
        case _:  # reserved memory begins at 0; the remaining envreg<n> are reserved for the driver
            return _one(0)


def _one(value: int) -> Lanes:
    return np.full((1, 1, 1), value, np.uint32)
