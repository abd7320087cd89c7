"""Liveness analysis: the registers that are live at the end of each block, as bit sets in Python integers."""

from __future__ import annotations

from collections.abc import Sequence


def live_out(
    uses: Sequence[int],
    defs: Sequence[int],
    successors: Sequence[Sequence[int]],
    tail_uses: Sequence[int],
    tail_defs: Sequence[int],
) -> list[int]:
    """Registers whose value is needed after each block's straight run, by backward iteration to the fixed point.

    Args:
        uses: per block, registers read before they are written in its run.
        defs: per block, registers that its run always writes.
        successors: per block, the blocks that control can reach next.
        tail_uses: per block, registers that its terminator reads.
        tail_defs: per block, registers that its terminator always writes after it has read its own.

    Returns:
        A bit set for each block; it includes the registers that the terminator reads.
    """
    n = len(uses)
    out = [tail_uses[b] for b in range(n)]
    live_in = [0] * n
    changed = True
    while changed:
        changed = False
        for b in range(n - 1, -1, -1):
            o = 0
            for s in successors[b]:
                o |= live_in[s]
            o = tail_uses[b] | (o & ~tail_defs[b])
            i = uses[b] | (o & ~defs[b])
            if o != out[b] or i != live_in[b]:
                out[b], live_in[b] = o, i
                changed = True
    return out
