"""Lists the instructions at which the threads of a wave are, for messages about deadlocks, endless loops and interruptions."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.engine.schedule import Schedule
from ptxkit.emulator.simt.where import lanes_text

SHOWN = 20
"""The maximum number of groups that a message lists."""


def counted(count: int, what: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{count} {what}{'s' * (count != 1)}"


def warp_text(wave: Schedule, lanes: Mask) -> str:
    """The first warp with a lane in ``lanes`` (wave shape), and how many more there are."""
    warps = np.argwhere(lanes.any(-1))
    c, w = (int(k) for k in warps[0])
    text = f"{lanes_text(lanes[c, w])} of warp {w} of CTA {wave.cta_coordinates(c)}"
    return text + (f" and {counted(len(warps) - 1, 'more warp')}" if len(warps) > 1 else "")


def place(wave: Schedule, block: int) -> str:
    """The first instruction of a block: PTX line, source line, opcode."""
    b = wave.blocks[block]
    while not b.instructions and b.next < len(wave.blocks) and wave.blocks[b.next].function is b.function:
        b = wave.blocks[b.next]
    return str(wave.launch.code.instructions[b.instructions[0][0]][0]) if b.instructions else "end"


def listing(wave: Schedule, counts: bool = False) -> str:
    """One line for each group that waits or runs: the instruction, its threads, and what it waits for.

    Args:
        counts: also say how many thread instructions were executed in its block.
    """
    places = wave.standing()
    places.sort(key=lambda p: p[1])
    lines = []
    for g, b in places[:SHOWN]:
        block = wave.blocks[b]
        note = wave.waits_for(g, block)
        if counts:
            note += f", executed {wave.tally.block_lanes[b] * len(block.instructions):,} thread instructions here"
        lines.append(
            f"{place(wave, b)}: {counted(g.lanes, 'thread')} of {counted(g.warps, 'warp')}, "
            f"{warp_text(wave, g.full_mask())}{note}"
        )
    if len(places) > SHOWN:
        lines.append(f"and at {len(places) - SHOWN} more places")
    exited = wave.shape[0] * wave.launch.threads - wave.live_lanes
    if exited:
        lines.append(f"{counted(exited, 'thread')} {'has' if exited == 1 else 'have'} exited")
    return "\n  ".join(lines)
