"""The forms of tcgen05.mma. PTX ISA, "TensorCore 5th Generation of MMA Instructions"."""

from __future__ import annotations

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core.tcgen05.execution import Execution
from ptxkit.emulator.tensor_core.tcgen05.multiplication import Multiplication

_GROUPS = "cta_group::1 cta_group::2"
_OPERATIONS = ("fill", "use", "lastuse", "discard")
_A = " ".join(f"collector::a::{op}" for op in _OPERATIONS)
_B = " ".join(f"collector::b{n}::{op}" for n in range(4) for op in _OPERATIONS)
_PLAIN = "kind::f16 kind::tf32 kind::f8f6f4 kind::i8"


@effect("tcgen05.mma{.sp}.<group>.<kind>{.ashift}{.<collector>}", group=_GROUPS, kind=_PLAIN, collector=_A)
@effect(
    "tcgen05.mma{.sp}.<group>.<kind>.block_scale{.<vector>}{.<collector>}",
    group=_GROUPS,
    kind="kind::mxf8f6f4",
    vector="scale_vec::1X block32",
    collector=_A,
)
@effect(
    "tcgen05.mma{.sp}.<group>.<kind>.block_scale{.<vector>}{.<collector>}",
    group=_GROUPS,
    kind="kind::mxf4",
    vector="scale_vec::2X block32",
    collector=_A,
)
@effect(
    "tcgen05.mma{.sp}.<group>.<kind>.block_scale.<vector>{.<collector>}",
    group=_GROUPS,
    kind="kind::mxf4nvf4",
    vector="scale_vec::2X scale_vec::4X block16 block32",
    collector=_A,
)
@effect("tcgen05.mma.<ws>{.sp}.cta_group::1.<kind>{.<collector>}", ws="ws", kind=_PLAIN, collector=_B)
def _mma(b: Binding) -> Step:
    if b.form.get("ashift") and b.form["collector"] in ("collector::a::use", "collector::a::fill"):
        raise b.fail(f".{b.form['collector']} does not go with .ashift")
    what = Multiplication(b)

    def multiply(x: Group, *lanes: Lanes) -> None:
        for issuers, e, given in what.each(x, lanes):
            Execution(what.form, x, issuers, e, given).issue()
        x.wave.launch.machine.version += 1

    return Step(multiply, what.sources)
