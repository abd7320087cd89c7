"""wgmma: warpgroup-level matrix multiply-accumulate with operands in shared memory. PTX ISA, "wgmma.mma_async" ff."""

from __future__ import annotations

from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.emulator.simt.step import Binding, Gated, Step
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.tensor_core import warpgroups
from ptxkit.emulator.tensor_core.collective import WARPGROUP, acts_together, collective
from ptxkit.emulator.tensor_core.in_flight import MECHANISM, Issue
from ptxkit.emulator.tensor_core.multiplication import Multiplication
from ptxkit.isa.model import Immediate
from ptxkit.targets.wgmma import FLOAT_COLUMNS, INTEGER_COLUMNS

acts_together(WARPGROUP, "wgmma")

_FLOAT = " ".join(f"m64n{n}k{{k}}" for n in FLOAT_COLUMNS)
_INTEGER = " ".join(f"m64n{n}k{{k}}" for n in INTEGER_COLUMNS)


@blocking("wgmma.mma_async.sync.aligned.<shape>.<d>.<a>.<b>", shape=_FLOAT.format(k=16), d="f16 f32", a="f16", b="f16")
@blocking("wgmma.mma_async.sync.aligned.<shape>.<d>.<a>.<b>", shape=_FLOAT.format(k=16), d="f32", a="bf16", b="bf16")
@blocking("wgmma.mma_async.sync.aligned.<shape>.<d>.<a>.<b>", shape=_FLOAT.format(k=8), d="f32", a="tf32", b="tf32")
@blocking(
    "wgmma.mma_async.sync.aligned.<shape>.<d>.<a>.<b>",
    shape=_FLOAT.format(k=32),
    d="f16 f32",
    a="e4m3 e5m2",
    b="e4m3 e5m2",
)
@blocking(
    "wgmma.mma_async.sync.aligned.<shape>{.satfinite}.<d>.<a>.<b>",
    shape=_INTEGER.format(k=32),
    d="s32",
    a="s8 u8",
    b="s8 u8",
)
@blocking(
    "wgmma.mma_async.sync.aligned.<shape>.<d>.<a>.<b>.<op>.popc",
    shape=_INTEGER.format(k=256),
    d="s32",
    a="b1",
    b="b1",
    op="and",
)
@blocking(
    "wgmma.mma_async.<sp>.sync.aligned.<shape>.<d>.<a>.<b>",
    sp="sp",
    shape=_FLOAT.format(k=32),
    d="f16 f32",
    a="f16",
    b="f16",
)
@blocking(
    "wgmma.mma_async.<sp>.sync.aligned.<shape>.<d>.<a>.<b>",
    sp="sp",
    shape=_FLOAT.format(k=32),
    d="f32",
    a="bf16",
    b="bf16",
)
@blocking(
    "wgmma.mma_async.<sp>.sync.aligned.<shape>.<d>.<a>.<b>",
    sp="sp",
    shape=_FLOAT.format(k=16),
    d="f32",
    a="tf32",
    b="tf32",
)
@blocking(
    "wgmma.mma_async.<sp>.sync.aligned.<shape>.<d>.<a>.<b>",
    sp="sp",
    shape=_FLOAT.format(k=64),
    d="f16 f32",
    a="e4m3 e5m2",
    b="e4m3 e5m2",
)
@blocking(
    "wgmma.mma_async.<sp>.sync.aligned.<shape>{.satfinite}.<d>.<a>.<b>",
    sp="sp",
    shape=_INTEGER.format(k=64),
    d="s32",
    a="s8 u8",
    b="s8 u8",
)
def _wgmma(b: Binding) -> Step | Gated:
    what = Multiplication(b)
    return collective(b, Step(Issue(what), what.sources, what.outs), WARPGROUP)


@blocking("wgmma.fence.sync.aligned")
def _fence(b: Binding) -> Step | Gated:
    where = b.where
    return collective(b, Step(lambda x: warpgroups.fence(x, where)), WARPGROUP)


@blocking("wgmma.commit_group.sync.aligned")
def _commit(b: Binding) -> Step | Gated:
    return collective(b, Step(lambda x: x.wave.queue.commit(x, MECHANISM)), WARPGROUP)


@blocking("wgmma.wait_group.sync.aligned")
def _wait(b: Binding) -> Gated:
    (operand,) = b.operands
    if not isinstance(operand, Immediate) or not isinstance(operand.value, int) or operand.value < 0:
        raise b.fail(f"{operand} where a number of groups is expected")
    newest = operand.value
    # a block of its own: results appear in registers, which a straight run would hold in local variables
    return Gated(WarpGate(b.where, None, WARPGROUP), Step(lambda x: x.wave.queue.wait(x, MECHANISM, newest)))
