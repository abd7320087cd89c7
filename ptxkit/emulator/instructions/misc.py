"""Fences, nanosleep, and instructions that only affect scheduling on hardware."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.emulator.simt.step import U32, Binding, Gated, Step
from ptxkit.emulator.simt.table import blocking, effect
from ptxkit.emulator.simt.threads import Group

_SPACES = "global shared::cta shared::cluster"


@effect("membar.<level>", level="cta gl sys")
@effect("fence{.<sem>}.<scope>", sem="sc acq_rel acquire release", scope="cta cluster gpu sys")
@effect("fence.acquire.sync_restrict::shared::cluster.cluster")
@effect("fence.release.sync_restrict::shared::cta.cluster")
def _fence(b: Binding) -> Step:
    """Memory fences. Emulated memory is sequentially consistent, so that only the race check needs them."""
    within_cta = "cta" in (b.form.get("level"), b.form.get("scope"))

    def fence(x: Group) -> None:
        for races in x.wave.races:
            races.fence(x, within_cta)

    return Step(fence)


@effect("fence.mbarrier_init.release.cluster")
def _initialisation_fence(b: Binding) -> Step:
    """The fence releases the mbarrier.init of its thread, and no other accesses."""

    def fence(x: Group) -> None:
        for races in x.wave.races:
            races.fence_initialisations(x)

    return Step(fence)


@effect("fence.proxy.alias")
@effect("membar.proxy.alias")
@effect("fence.proxy.tensormap::generic.release.<scope>", scope="cta cluster gpu sys")
@effect("fence.proxy.tensormap::generic.acquire.<scope>", scope="cta cluster gpu sys")
def _other_fence(b: Binding) -> Step:
    """Proxy fences without an effect, because all proxies access the same memory."""
    return Step(lambda x: None)


@effect("fence.proxy.async{.<space>}", space=_SPACES)
@effect("membar.proxy.async")
@effect("fence.proxy.async::generic.acquire.<space>.cluster", space="sync_restrict::shared::cluster")
@effect("fence.proxy.async::generic.release.<space>.cluster", space="sync_restrict::shared::cta")
def _proxy_fence(b: Binding) -> Step:
    """fence.proxy.async makes the writes of threads visible to the async proxy."""
    space = b.form.get("space", "").removeprefix("sync_restrict::")

    def fence(x: Group) -> None:
        if space == "global":
            return
        for writes in x.wave.generic_writes:
            writes.fence(x, space)
        for races in x.wave.races:
            races.proxy_fence(x)

    return Step(fence)


@effect("nanosleep.u32")
def _nanosleep(b: Binding) -> Step:
    def sleep(x: Group, duration: Lanes) -> None:
        x.wave.ticks += int(np.max(duration))
        x.wave.spin()

    return Step(sleep, ((b.operands[0], U32),))


@effect("griddepcontrol.<what>", what="launch_dependents wait")
def _griddepcontrol(b: Binding) -> Step:
    """Grids are executed one after the other, so that the grid on which this one depends is complete."""
    return Step(lambda x: None)


@blocking("setmaxnreg.<how>.sync.aligned.u32", how="inc dec")
def _setmaxnreg(b: Binding) -> Gated:
    count = getattr(b.operands[0], "value", None)
    if not isinstance(count, int) or not 24 <= count <= 256 or count % 8:
        raise b.fail(f"the register count must be a constant multiple of 8 from 24 to 256, found {b.operands[0]}")
    return Gated(WarpGate(b.where, None))


@effect("pmevent{.mask}")
def _pmevent(b: Binding) -> Step:
    return Step(lambda x: None)
