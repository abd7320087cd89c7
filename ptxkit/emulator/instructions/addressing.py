"""cvta, isspacep, mapa, getctarank, alloca and prefetches. PTX ISA, "Data Movement and Conversion Instructions"."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.allocations import GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT
from ptxkit.emulator.simt.step import PRED, U32, U64, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.isa.model import Immediate, Symbol
from ptxkit.isa.types import TYPES

_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


@effect(
    "cvta{.to}.<space>.<t>",
    space="global const param param::entry local shared shared::cta shared::cluster",
    t="u32 u64",
)
def _cvta(b: Binding) -> Step:
    destination, source = b.operands
    t = TYPES[b.form["t"]]
    window = _WINDOWS.get(b.form["space"].partition("::")[0], 0)
    if window and t.bits == 32:
        raise b.fail("32-bit generic addresses do not exist here")
    shift = np.uint64(window if not b.form.has("to") else -window & 0xFFFF_FFFF_FFFF_FFFF)
    if not window:
        return Step(lambda a: a, ((source, t),), ((destination, t),), pure=True)
    return Step(lambda a: a + shift, ((source, t),), ((destination, t),), pure=True)


@effect("isspacep.<space>", space="global const local shared shared::cta shared::cluster param param::entry")
def _isspacep(b: Binding) -> Step:
    destination, source = b.operands
    space = b.form["space"]

    def test(x: Group, a: Lanes) -> Lanes:
        match space:
            case "global":  # kernel parameters lie in its window
                p = x.wave.launch.param_allocation
                return (a >= np.uint64(GLOBAL_BASE)) | ((a - np.uint64(p.base)) < np.uint64(max(p.nbytes, 1)))
            case "local":
                return (a - np.uint64(LOCAL_WINDOW)) < np.uint64(WINDOW_BYTES)
            case "shared" | "shared::cta":
                offset = a - np.uint64(SHARED_WINDOW)
                own = x.select(x.wave.cluster_rank[:, None, None]).astype(np.uint64)
                return ((offset >> np.uint64(CLUSTER_RANK_SHIFT)) == own) & (offset < np.uint64(WINDOW_BYTES))
            case "shared::cluster":
                return (a - np.uint64(SHARED_WINDOW)) < np.uint64(WINDOW_BYTES)
            case _:
                p = x.wave.launch.param_allocation
                inside = (a - np.uint64(p.base)) < np.uint64(max(p.nbytes, 1))
                if space.startswith("param"):
                    return inside
                found = np.zeros(a.shape, np.bool_)
                for base, nbytes in x.wave.launch.code.const_ranges:
                    found |= (a - np.uint64(base)) < np.uint64(nbytes)
                return found

    return Step(test, ((source, U64),), ((destination, PRED),))


@effect("mapa{.<space>}.<t>", space="shared::cluster", t="u32 u64")
def _mapa(b: Binding) -> Step:
    destination, source, rank = b.operands
    t = TYPES[b.form["t"]]
    generic = not b.form["space"]
    offset = 0
    if not isinstance(source, Symbol | Immediate) and b.register_type(source) is None:
        source, offset = b.address(source)
    low = t.dtype.type((1 << CLUSTER_RANK_SHIFT) - 1)
    window = np.uint64(SHARED_WINDOW) if generic else t.dtype.type(0)

    def call(a: Lanes, r: Lanes) -> Lanes:
        local = ((a - window) if generic else a) & low
        return local + t.dtype.type(offset) + (r.astype(t.dtype) << t.dtype.type(CLUSTER_RANK_SHIFT)) + window

    return Step(call, ((source, t), (rank, U32)), ((destination, t),), pure=True)


@effect("getctarank{.<space>}.<t>", space="shared::cluster", t="u32 u64")
def _getctarank(b: Binding) -> Step:
    destination, source = b.operands
    t = TYPES[b.form["t"]]
    window = np.uint64(SHARED_WINDOW) if not b.form["space"] else t.dtype.type(0)

    def call(a: Lanes) -> Lanes:
        return ((a - window) >> t.dtype.type(CLUSTER_RANK_SHIFT)).astype(np.uint32)

    return Step(call, ((source, t),), ((destination, U32),), pure=True)


@effect("prefetch{.<space>}.<level>", space="global local", level="L1 L2 L2::evict_last L2::evict_normal")
@effect("prefetchu.L1")
@effect("prefetch{.<space>}.tensormap", space="const param")
@effect("applypriority{.global}.L2::evict_normal")
@effect("discard{.global}.L2")
def _hint(b: Binding) -> Step:
    """Prefetches and similar hints to the caches have no effect on results."""
    return Step(lambda x: None)


@effect(
    "createpolicy.fractional.<primary>{.<secondary>}.b64",
    primary="L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged",
    secondary="L2::evict_first L2::evict_unchanged",
)
@effect(
    "createpolicy.range{.global}.<primary>{.<secondary>}.b64",
    primary="L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged",
    secondary="L2::evict_first L2::evict_unchanged",
)
@effect("createpolicy.cvt.L2.b64")
def _policy(b: Binding) -> Step:
    """A cache policy has no effect, so that every policy is the value 0."""
    return Step(lambda x: np.zeros((1, 1, 1), np.uint64), (), ((b.operands[0], U64),))
