"""The forms of tcgen05.mma. PTX ISA, "TensorCore 5th Generation of MMA Instructions"."""

from __future__ import annotations

from ptxkit.emulator.simt.step import Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.tensor_core.tcgen05.multiplication import Multiplication

_GROUPS = "cta_group::1 cta_group::2"
_COLLECTOR = " ".join(f"collector::a::{op}" for op in ("fill", "use", "lastuse", "discard"))
_PLAIN = "kind::f16 kind::tf32 kind::f8f6f4 kind::i8"


@effect(
    "tcgen05.mma.<group>.<kind>{.ashift}{.<collector>}",
    group=_GROUPS,
    kind=_PLAIN,
    collector=_COLLECTOR,
)
def _mma(b: Binding) -> Step:
    what = Multiplication(b)
    return Step(what, what.sources)
