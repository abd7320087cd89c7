"""Distinguishes a deadlock from a long loop: a wave is deadlocked when its complete state repeats.

The threads of a wave influence each other only through memory, barriers and collectives. Consider two points in time between
which no memory was written and nothing was printed, every thread that can run has run, and every thread that sleeps has
timed out once. If all program counters, live registers and local memory are the same at both, the wave repeats this sequence
forever. A loop that counts or follows a pointer has a different state in each iteration and is never reported as a deadlock.
Registers that depend on a clock (:mod:`ptxkit.emulator.engine.timed`) are not compared, if they decide no more than how long
threads sleep; a loop that a clock can end is never reported either.

The state is compared with a copy taken when the number of steps without a change was a power of two (Brent's algorithm), so
that cycles of any length are found. Nothing is copied or compared before ``MIN_STEADY`` such steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ptxkit.emulator.arrays import Bytes, Lanes, Mask
from ptxkit.emulator.engine.schedule import Schedule
from ptxkit.emulator.engine.timed import Timed
from ptxkit.emulator.simt.threads import Frame, Group, Registers

MIN_STEADY = 1024
"""Steps without a change of memory after which states are compared."""

STRIDE = 8
"""The state is compared after this many steps of each group; a multiple of the period of a cycle is a period, too."""

Placed: TypeAlias = tuple[str, int, int, int, int, int, bool]
"""The place of a group: the wait that it is in, block, call depth, number of lanes, first lane, ``resume``, failed wait."""


@dataclass
class _State:
    """A copy of the state that determines how a wave continues.

    Attributes:
        shape: the place of each group; it is compared first, because that is quick.
        serials: serial number of each group's frame, in the order of ``shape``.
        masks: the lanes of each group.
        frames: the registers of each frame of these groups, by serial number.
        local: local memory.
    """

    shape: list[Placed]
    serials: list[int]
    masks: list[Mask]
    frames: dict[int, tuple[Frame, Registers]]
    local: Bytes


class Progress:
    """Follows one wave.

    Attributes:
        fair: the state has repeated once; from now on the groups are executed round-robin until something changes.
        timed: follows the blocks of loops that read a clock, which are executed one by one then; None while no clock is read.
    """

    def __init__(self, wave: Schedule) -> None:
        self.wave = wave
        self.fair = False
        self.timed: Timed | None = None
        self._clock_reads = wave.clock_reads
        self._kept: _State | None = None
        self._kept_at = 0
        self._next = MIN_STEADY
        self._stride = STRIDE
        self._timed_out = False
        self._differed = (0, 0)

    def changed(self) -> None:
        """Memory has changed since the last step, or text was printed: begin a new comparison."""
        self.fair = False
        self.timed = None
        self._kept = None
        self._next = MIN_STEADY
        self._clock_reads = self.wave.clock_reads

    def reason(self) -> str:
        """Why the wave is deadlocked, for the message."""
        text = "every thread waits in a loop whose registers and memory no longer change"
        return text if self.timed is None else f"{text}, except for the time, which decides only how long it sleeps"

    def deadlocked(self, steps: int, block: int) -> bool:
        """Whether the wave is deadlocked; called after each step, from ``MIN_STEADY`` steps without a change on.

        Args:
            steps: number of steps since the last change.
            block: the index of the block that was executed, where the wave executes the blocks one by one.
        """
        if self.wave.clock_reads != self._clock_reads and not self._follow(steps, block):
            return False
        kept = self._kept
        if kept is not None and not (steps - self._kept_at) % self._stride and self._same(kept):
            return self._repeated(steps)
        if steps >= self._next:
            self._keep(steps)
            self._next = steps * 2 - (0 if self.timed is None else self.timed.began)
        return False

    def _follow(self, steps: int, block: int) -> bool:
        """Follow a wave that reads clocks; whether the states may be compared. After some steps without success, stop it."""
        if self.timed is None:
            self._kept, self.fair = None, False
            if steps >= self._next:
                self.timed = Timed(self.wave, steps)
            return False
        if self.timed.executed(block):
            self._kept, self.fair, self._next = None, False, steps
        if self.timed.ends(steps):
            self.timed, self._kept, self.fair, self._next = None, None, False, steps * 2
            return False
        return self._kept is not None or self.timed.settled(steps)

    def _keep(self, steps: int) -> None:
        self._kept, self._kept_at, self._timed_out = self._state(), steps, False
        self._stride = STRIDE * max(1, len(self.wave.ready))

    def _repeated(self, steps: int) -> bool:
        """The state equals the copy. Whether it cannot change any more: each group was executed, nothing is left to force."""
        if not self.fair:
            # the order of the scheduler may have kept some groups from being executed
            self.fair = True
            self._keep(steps)
            return False
        if steps - self._kept_at < 2 * len(self.wave.ready):
            return False
        if self.wave.force():
            self.changed()
            return False
        if not self._timed_out and self.wave.time_out():
            self._timed_out = True
            return False
        return True

    # -- states ------------------------------------------------------------------------------------------------------

    def _state(self) -> _State:
        wave = self.wave
        placed = _placed(wave)
        frames: dict[int, tuple[Frame, Registers]] = {}
        for _, group in placed:
            frame: Frame | None = group.frame
            while frame is not None and frame.serial not in frames:
                in_place = frame.native is not None  # machine code writes to the arrays that the frame has
                registers = [
                    r.copy() if r is not None and (own or in_place) else r
                    for r, own in zip(frame.registers, frame.owned, strict=True)
                ]
                frames[frame.serial] = frame, registers
                frame = frame.parent
        serials, masks = [g.frame.serial for _, g in placed], [g.full_mask().copy() for _, g in placed]
        return _State([s for s, _ in placed], serials, masks, frames, wave.local.copy())

    def _same(self, kept: _State) -> bool:
        placed = _placed(self.wave)
        if [s for s, _ in placed] != kept.shape:
            return False
        partner: dict[int, int] = {}
        for (_, group), serial in zip(placed, kept.serials, strict=True):
            if not self._same_frames(group.frame, kept.frames[serial][0], kept, partner):
                return False
        if any((g.full_mask() != m).any() for (_, g), m in zip(placed, kept.masks, strict=True)):
            return False
        local = self.wave.local
        return local.shape == kept.local.shape and bool((local == kept.local).all())

    def _same_frames(self, now: Frame | None, before: Frame | None, kept: _State, partner: dict[int, int]) -> bool:
        """Whether a frame and its callers have the same registers as the copy; it may be another call of the function."""
        while now is not None and before is not None:
            if now.serial in partner:
                return partner[now.serial] == before.serial
            partner[now.serial] = before.serial
            same = now.function is before.function and now.back == before.back and now.local_base == before.local_base
            if (
                not same
                or now.bindings != before.bindings
                or not self._same_registers(now, kept.frames[before.serial][1])
            ):
                return False
            now, before = now.parent, before.parent
        return now is before

    def _same_registers(self, frame: Frame, before: Registers) -> bool:
        depth, k = self._differed
        registers = frame.registers
        timed = 0 if self.timed is None else self.timed.of(frame.function)
        if depth == frame.depth and k < len(registers) and not timed >> k & 1 and not _equal(registers[k], before[k]):
            return False  # in most cases the counter of a loop differs first
        for k, (a, b) in enumerate(zip(registers, before, strict=True)):
            if not timed >> k & 1 and not _equal(a, b):
                self._differed = frame.depth, k
                return False
        return True


def _placed(wave: Schedule) -> list[tuple[Placed, Group]]:
    """The groups with their places, sorted by place so that equal states give equal lists."""
    found = [(("ready", *_place(g, key[1]), key[2], g.yielded > 0), g) for key, g in wave.ready.items()]
    found += [(("parked", *_place(g, block), 0, False), g) for (_, block), g in wave.waiting.items()]
    for s in wave.synchronisers:
        found += [((type(s).__name__, *_place(g, block), 0, False), g) for g, block in s.waiting()]
    found.sort(key=lambda f: f[0])
    return found


def _place(group: Group, block: int) -> tuple[int, int, int, int]:
    """The place of a group. Groups at the same block and call depth have different first lanes, so that places are unique."""
    mask = group.full_mask()
    return block, group.frame.depth, group.lanes, int(mask.argmax())


def _equal(a: Lanes | None, b: Lanes | None) -> bool:
    if a is b:
        return True
    if a is None or b is None or a.dtype != b.dtype:
        return False
    bits = f"u{a.dtype.itemsize}"
    return bool((a.view(bits) == b.view(bits)).all())
