"""The gate before instructions that the lanes of a warp execute together: collectives with a member mask, aligned instructions.

PTX ISA, "shfl.sync": a thread waits "until all non-exited threads corresponding to membermask have executed shfl.sync with the
same qualifiers and same membermask value". That need not be the same instruction: the lanes of both sides of a branch may meet.
An aligned instruction is executed by all threads of the warp that have not exited, at the same place.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes, Mask, Words
from ptxkit.emulator.instructions.member_masks import MemberMasks
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.step import U32, Gate, Step, result_tuple
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where, lanes_text
from ptxkit.errors import TrapError
from ptxkit.isa.model import Immediate, Negated, Operand, Register, SpecialRegister

FULL = 0xFFFFFFFF
BIT = (np.uint64(1) << np.arange(32, dtype=np.uint64)).astype(np.uint32)


class ActiveGate(Gate):
    """Lets every lane pass: the instruction is executed by the lanes that arrive together. It begins a block of its own."""

    def enter(self, group: Group, block: int) -> Group | None:
        return group


class WarpGate(Gate):
    """Lets a lane pass when every lane that its member mask names has arrived, in its warp.

    Args:
        members: operand with the member mask; None if all lanes of the span that have not exited must arrive at this
            instruction.
        span: number of warps that execute the instruction together, 4 for a warpgroup.
        step: the effect of the instruction, for lanes that meet at different instructions.
    """

    converges = True

    def __init__(self, where: Where, members: Operand | None, span: int = 1, step: Step | None = None) -> None:
        self.where = where
        self.members = members
        self.span = span
        self.step = step
        self.reads = (members,)
        self.aligned = members is None and span == 1

    def enter(self, group: Group, block: int) -> Group | None:
        wave = group.wave
        whole = group.mask is None and (self.span == 1 or not group.rows)
        whole = whole or (self.span == 1 and group.lanes == wave.live_lanes)
        again = group.resume == 2  # lanes have exited, possibly without executing the instruction
        if whole and not again and not wave.waiting and not wave.divergence.open and self._all_named(group):
            return group  # the group has whole warps, and thus every lane that a mask can name
        other = wave.parked(group, block)
        if other is not None:
            group = wave.join(other, group)
        here = group.full_mask()
        if self.members is not None:
            return self._with_members(group, block, here)
        done = self._complete(group, here)
        if self.aligned and wave.divergence.open:
            wave.divergence.check(here, block)
        passed, left = wave.split(group, group.select(done) if group.rows else done)
        if left is not None:
            if self.aligned:
                wave.divergence.crossing(left.full_mask(), left.frame.serial, block)
            wave.park(left, block)
        return passed

    def _all_named(self, group: Group) -> bool:
        """Whether every member mask names all lanes of the warp."""
        if self.members is None:
            return True
        if isinstance(self.members, Immediate):
            return int(self.members.value) & FULL == FULL
        lanes = operand_lanes(group, self.members, U32.dtype)
        return lanes.size == 1 and int(lanes.flat[0]) == FULL

    def _complete(self, group: Group, here: Mask) -> Mask:
        """The lanes whose whole warp, or warpgroup, has arrived."""
        wave = group.wave
        missing = ~here if wave.live is None else wave.live & ~here
        if self.span == 1:
            return here & ~missing.any(-1, keepdims=True)
        n, w, _ = wave.shape
        rows = np.pad(missing.any(-1), ((0, 0), (0, -w % self.span))).reshape(n, -1, self.span).any(-1)
        return ~np.repeat(rows, self.span, 1)[:, :w, None] & here

    def note(self, group: Group) -> str:
        """The member mask of the first warp's first lane, and the lanes that it names and that are not here."""
        if self.members is None:
            return ""
        wave, here = group.wave, group.full_mask()
        masks = self.named(group, here)
        c, w, lane = (int(k[0]) for k in np.nonzero(here))
        mask = int(masks[c, w, lane])
        missing = (mask & BIT != 0) & ~(here[c, w] & (masks[c, w] == mask))
        if wave.live is not None:
            missing &= wave.live[c, w]
        waits = f", waits for {lanes_text(missing)}" if missing.any() else ""  # none is missing where a limit ends the launch
        return f", with the mask {mask:#010x}{waits}"

    # -- member masks ------------------------------------------------------------------------------------------------

    def named(self, group: Group, here: Mask) -> Words:
        """The mask of each lane of ``group``, wave shape, 0 for other lanes.

        Raises:
            TrapError: a lane is not in its own mask.
        """
        masks = np.zeros(here.shape, np.uint32)
        np.copyto(masks, wave_wide(group, operand_lanes(group, self.members, U32.dtype)), where=here)
        alone = here & ((masks & BIT) == 0)
        if alone.any():
            c, w, lane = (int(k[0]) for k in np.nonzero(alone))
            group.wave.flush_output()
            raise TrapError(
                f"{self.where}: lane {lane} of warp {w} of CTA {group.wave.cta_coordinates(c)} executes it with the mask "
                f"{int(masks[c, w, lane]):#010x}, which does not name this lane"
            )
        return masks

    def _with_members(self, group: Group, block: int, here: Mask) -> Group | None:
        wave = group.wave
        masks = self.named(group, here)
        done = ready(wave.live, masks)
        places = [(g, b) for (_, b), g in wave.waiting.items() if self._meets(wave.gate_at(b))]
        if places and not (done | ~here).all():
            group_left = self._meet(group, block, masks, done, places)
            if group_left is None:
                return None
            group, here = group_left, group_left.full_mask()
            done = done & here
        if done.any():
            if wave.divergence.open:
                wave.divergence.check(done, block, masks)
            self.compare_masks(wave, done, masks, [(group, block), *places])
        passed, left = wave.split(group, group.select(done) if group.rows else done)
        if left is not None:
            there = left.full_mask()
            wave.part(MemberMasks).waits(np.where(there, masks, np.uint32(0)), self.where)
            wave.park(left, block)
        return passed

    def compare_masks(self, wave: WaveState, done: Mask, masks: Words, places: list[tuple[Group, int]]) -> None:
        """The lanes ``done`` pass with their masks; record lanes that wait for them at one of ``places`` with another mask."""
        found = wave.part(MemberMasks)
        found.released(done)
        for g, b in places:
            gate = wave.gate_at(b)
            assert isinstance(gate, WarpGate)
            there = g.full_mask() & ~done
            if there.any():
                found.passed(done, masks, self.where, gate.named(g, there), gate.where)

    def _meets(self, gate: object) -> bool:
        return (
            isinstance(gate, WarpGate)
            and gate.members is not None
            and gate.step is not None
            and self.step is not None
            and gate.where.instruction.opcode == self.where.instruction.opcode
        )

    def _meet(
        self, group: Group, block: int, masks: Words, done: Mask, places: list[tuple[Group, int]]
    ) -> Group | None:
        """Execute lanes whose masks are complete only with lanes at other instructions; returns the rest of ``group``."""
        wave = group.wave
        everyone = masks.copy()
        for g, b in places:
            gate = wave.gate_at(b)
            assert isinstance(gate, WarpGate)
            there = g.full_mask()
            everyone = np.where(there, gate.named(g, there), everyone)
        together = ready(wave.live, everyone) & ~done & (everyone != 0)
        # lanes that wait at other instructions did not suffice for a complete mask without ``group``, so every complete
        # mask includes lanes of it
        if not together.any():
            return group
        if wave.divergence.open:
            wave.divergence.check(together, block, everyone)
        for g, b in places:
            wave.parked(g, b)
        parts: list[tuple[Group, int]] = []
        rest: Group | None = None
        for g, b in [(group, block), *places]:
            part, left = wave.split(g, g.select(together))
            if part is not None:
                parts.append((part, b))
            if left is not None and g is group:
                rest = left
            elif left is not None:
                wave.park(left, b)
        execute_together(parts)
        return rest


def ready(live: Mask | None, masks: Words) -> Mask:
    """Lanes whose members have all arrived with the same mask, or exited; ``masks`` are 0 for lanes that do not wait."""
    done = np.zeros(masks.shape, np.bool_)
    c, w = np.nonzero(masks.any(-1))
    waiting = masks[c, w]
    same = waiting[:, :, None] == waiting[:, None, :]
    if live is not None:
        same |= ~live[c, w][:, None]
    there = np.where(same, BIT, np.uint32(0)).sum(-1, dtype=np.uint32)
    done[c, w] = ((waiting & ~there) == 0) & (waiting != 0)
    return done


def execute_together(parts: list[tuple[Group, int]]) -> None:
    """Execute one collective for groups at different instructions of the same kind; each continues after its instruction."""
    wave = parts[0][0].wave
    first = wave.gate_at(parts[0][1])
    assert isinstance(first, WarpGate)
    assert first.step is not None
    mask = np.zeros(wave.shape, np.bool_)
    wide = [np.zeros(wave.shape, t.dtype) for _, t in first.step.sources]
    for g, b in parts:
        gate = wave.gate_at(b)
        assert isinstance(gate, WarpGate)
        assert gate.step is not None
        lanes = g.full_mask()
        mask |= lanes
        for value, (operand, t) in zip(wide, gate.step.sources, strict=True):
            np.copyto(value, wave_wide(g, source_lanes(g, operand, t.dtype)), where=lanes)
    union = wave.new_group(parts[0][0].frame, mask)
    results = first.step.call(union, *(union.select(v) for v in wide))
    lost, wave.lost = wave.lost, None
    steps = [(g, getattr(wave.gate_at(b), "step", None)) for g, b in parts]
    undefined = wave.undefined_together(first.step, first.where, union, wide, steps)
    whole = [None if r is None else wave_wide(union, r) for r in result_tuple(results)]
    wave.retire(union)
    for g, b in parts:
        gate = wave.gate_at(b)
        assert isinstance(gate, WarpGate)
        assert gate.step is not None
        for result, (operand, _) in zip(whole, gate.step.destinations, strict=False):
            if isinstance(operand, Register) and result is not None:
                value = result
                k = g.frame.function.register_index[operand.name]
                dtype = g.frame.function.register_types[k].dtype
                if value.dtype != dtype:
                    value = value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)
                g.store(k, g.select(np.broadcast_to(value, wave.shape)))
        if gate.step.destinations:
            wave.collected(g, gate.step.destinations[0][0], lost, gate.where, undefined)
        wave.go(g, wave.after(b))


def source_lanes(group: Group, operand: Operand | None, dtype: np.dtype) -> Lanes:
    """The lane array of a source operand of a collective."""
    if isinstance(operand, Negated):
        lanes = source_lanes(group, operand.operand, dtype)
        return ~lanes if operand.sign == "!" else -lanes
    if isinstance(operand, SpecialRegister):
        return group.wave.special(group, operand.name).astype(dtype)
    return operand_lanes(group, operand, dtype)


def wave_wide(x: Group, lanes: Lanes) -> Lanes:
    """The lanes of a group in the wave's shape; the values of other lanes are undefined."""
    if not x.rows:
        return lanes
    wide = np.zeros(x.wave.shape, lanes.dtype)
    wide[x.c, x.w] = np.broadcast_to(lanes, x.shape)[:, 0]
    return wide
