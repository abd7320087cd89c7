"""Instructions that whole warps or warpgroups execute together (``.sync.aligned``).

PTX does not define the behaviour if a lane is missing; here that is an error. A wait needs a separate basic block. Therefore
only the first such instruction after a label or branch has a gate: after it, the lanes of the warp stay together up to the
next label or branch.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.instructions import branches
from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.emulator.simt.step import Binding, Gated, Step
from ptxkit.emulator.simt.table import lookup
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import TrapError
from ptxkit.isa.model import Instruction

WARPGROUP = 4
_SPANS: dict[str, int] = {}


def acts_together(span: int, *names: str) -> None:
    """Declare that ``span`` whole warps execute the instructions with these names together."""
    _SPANS.update(dict.fromkeys(names, span))


def collective(b: Binding, step: Step | None, span: int = 1) -> Step | Gated:
    """``step`` with a gate that waits for ``span`` whole warps, or without one if they are known to be together."""
    if step is not None and _together(b, span):
        return step
    return Gated(WarpGate(b.where, None, span), step)


def _together(b: Binding, span: int) -> bool:
    instructions, at = b.function.instructions, b.position
    labels = b.labels
    while at not in labels and at > 0:
        at -= 1
        i: Instruction = instructions[at]
        if i.name in _SPANS:
            return i.predicate is None and span <= _SPANS[i.name]
        found = lookup(i.opcode) if i.name != "mov" else None
        if found is not None and (found[0].kind == "blocking" or found[0].group == branches.__name__):
            return False  # after a wait or a branch the threads of a group may continue in several parts
    return False


def require_whole(x: Group, where: Where, span: int = 1) -> None:
    """Fail unless every warp (or warpgroup, for ``span`` 4) takes part with all of its lanes or none.

    Raises:
        TrapError: some lanes have exited, or have taken another path.
    """
    if x.mask is not None:
        present = x.mask.sum(-1)
        bad = (present != 0) & (present != 32)
        if bad.any():
            cta, thread = x.first((bad[..., None] & x.mask) if bad.ndim < x.mask.ndim else bad & x.mask)
            count = int(present[bad].flat[0])
            raise TrapError(
                f"{where}: {count} of 32 lanes execute it in the warp of thread {thread} of CTA {cta}; "
                "all lanes of a warp must, and none may have exited"
            )
    if span > 1:
        warps = np.zeros(x.wave.shape[:2], np.bool_)
        if x.rows:
            warps[x.c, x.w] = True if x.mask is None else x.mask.any((1, 2))
        else:
            warps[:] = True if x.mask is None else x.mask.any(-1)
        n, w = warps.shape
        groups = np.pad(warps, ((0, 0), (0, -w % span))).reshape(n, -1, span)
        bad = groups.any(-1) & ~groups.all(-1)
        if bad.any():
            c, g = (int(k[0]) for k in np.nonzero(bad))
            thread = x.wave.thread_coordinates(g * span * 32)
            raise TrapError(
                f"{where}: executed by {int(groups[c, g].sum())} of the {span} warps of the warpgroup that starts at thread "
                f"{thread} of CTA {x.wave.cta_coordinates(c)}; all {span} must execute it"
            )
