"""wgmma instructions in flight, for late completion.

From its issue until a ``wgmma.wait_group`` covers it, an instruction's accumulator registers hold tags: NaNs that name the
instruction. Shared memory is read at the wait. If the accumulator of an instruction holds tags, its value is the result of the
instruction that they name. Compilers may therefore copy accumulators in flight, but a program that computes with them gets
NaNs.

The tensor cores read elements of A and metadata in registers while they multiply: an H200 gives wrong results if metadata is
replaced in flight. A program that has written such a register before the wait is an error.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Elements, Index, Lanes, Mask, Words
from ptxkit.emulator.simt.asynchronous import Groups, Operation, OrderedGroups
from ptxkit.emulator.simt.mechanism import Mechanism
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.tensor_core import fragments, warpgroups
from ptxkit.emulator.tensor_core.collective import WARPGROUP
from ptxkit.emulator.tensor_core.multiplication import Inputs, Multiplication
from ptxkit.emulator.tensor_core.warpgroups import Warpgroups
from ptxkit.errors import TrapError

MECHANISM: Mechanism[Groups] = Mechanism(
    "wgmma",
    OrderedGroups,
    "a wgmma of the warpgroup of {}",
    "wait for it (wgmma.wait_group), and let the others know by __syncthreads() or an mbarrier",
    span=WARPGROUP,
)
TAG = 0xFFC0_0000
"""A tag is this, the instruction's serial number in bits 7 to 21, and the register's number: a NaN as f32 and as f16."""
SERIALS = 1 << 15


class InFlight:
    """The instructions of a wave that have been issued and not waited for, by serial number."""

    def __init__(self, wave: WaveState) -> None:
        self.serial = 0
        self.flying: dict[int, Issued] = {}


class Issued:
    """One instruction in flight, for E warpgroups."""

    def __init__(
        self, what: Multiplication, x: Group, groups: Warpgroups, given: Inputs, scale: Mask, words: Words | None
    ) -> None:
        self.what = what
        self.wave = x.wave
        self.frame = x.frame
        self.groups = groups
        self.given = given
        state = x.wave.part(InFlight)
        self.flying = state.flying
        self.before: list[tuple[Issued, Index, Index]] = []
        self.c = what.initial(words, scale)
        if words is not None:
            self._follow(words.reshape(groups.count, WARPGROUP, what.count, 32), scale)
        self.d: Lanes = np.zeros(self.c.shape, self.c.dtype)
        self.left = groups.count
        self.inputs = self._held(x)
        state.serial = self.serial = (state.serial + 1) % SERIALS
        self.flying[self.serial] = self
        x.wave.queue.submit(Operation(groups.owner, self.perform), MECHANISM)

    def _follow(self, words: Words, scale: Mask) -> None:
        """Find the instructions in flight whose tags the accumulators hold."""
        first = words[:, 0, 0, 0]
        last = words[:, -1, -1, -1]
        tagged = ((first & np.uint32(0xFFC0_007F)) == TAG) & (last == first + np.uint32(self.what.count - 1)) & scale
        for tag in np.unique(first[tagged]):
            earlier = self.flying.get(int(tag) >> 7 & SERIALS - 1)
            mine = np.flatnonzero(tagged & (first == tag))
            if earlier is None or earlier.what.count != self.what.count:
                continue
            theirs = np.array([np.flatnonzero(earlier.groups.owner == self.groups.owner[e])[0] for e in mine])
            self.before.append((earlier, mine, theirs))

    def _held(self, x: Group) -> dict[str, Words]:
        """The registers that the instruction reads until it is complete: name -> (E, warps of a warpgroup, 32) uint32."""
        held = {}
        for name in self.what.input_registers:
            value = x.fetch(self.frame.function.register_index[name])
            if value is not None:
                held[name] = fragments.gather(x.shape, (value,), np.uint32)[self.groups.rows].reshape(-1, WARPGROUP, 32)
        return held

    def _require_inputs(self, chosen: Index) -> None:
        """Check that the registers in ``inputs`` have not been written.

        Raises:
            TrapError: one of them has another value.
        """
        wave = self.wave
        for name, before in self.inputs.items():
            value = self.frame.registers[self.frame.function.register_index[name]]
            if value is None:
                continue
            words = np.broadcast_to(value, wave.shape)
            for e in chosen:
                c, w = int(self.groups.cta[e]), int(self.groups.warp[e])
                changed = words[c, w : w + WARPGROUP].astype(value.dtype, copy=False).view(np.uint32) != before[e]
                if changed.any():
                    thread = wave.thread_coordinates(w * 32 + int(np.argmax(changed)))
                    raise TrapError(
                        f"{self.what.where}: register {name}, which this wgmma.mma_async reads until it is complete, is "
                        f"written before wgmma.wait_group covers the instruction, by thread {thread} of CTA "
                        f"{wave.cta_coordinates(c)}; wait for the instruction first, or write to another register"
                    )

    def tags(self, x: Group) -> tuple[Lanes, ...]:
        """Values of the accumulator registers until the program waits for the product."""
        value = np.uint32(TAG | self.serial << 7) + np.arange(self.what.count, dtype=np.uint32)
        tag = np.broadcast_to(value[None, :, None], (len(self.groups.cta) * WARPGROUP, self.what.count, 32))
        return self.groups.spread(x, np.ascontiguousarray(tag), self.what.d_type)

    def perform(self, which: Elements) -> None:
        """Compute the elements ``which``, and replace their tags in all registers by the results."""
        self._require_inputs(np.arange(self.groups.count)[which])
        for earlier, mine, theirs in self.before:
            self.c[mine] = earlier.d[theirs]
        self.d[which] = self.what.product(self.wave, self.given.select(which), self.c[which])
        chosen = np.arange(self.groups.count)[which]
        self._deliver(chosen)
        self.left -= len(chosen)
        if self.left == 0:
            del self.flying[self.serial]

    def _deliver(self, chosen: Index) -> None:
        """Replace the tags of the elements ``chosen`` in all registers, any of which may hold a copy of an accumulator."""
        c, w = self.groups.cta[chosen], self.groups.warp[chosen]
        shape, first = self.wave.shape, self.groups.owner[chosen]
        warps = w[:, None] + np.arange(WARPGROUP)
        picked: Words | None = None
        tag, count = np.uint32(TAG | self.serial << 7), np.uint32(self.what.count)
        frame = self.frame
        for k, value in enumerate(frame.registers):
            if value is None or value.dtype.itemsize != 4 or value.shape != shape:
                continue
            numbers = value.reshape(-1).take(first).view(np.uint32) ^ tag
            hit = numbers < count
            if not np.count_nonzero(hit):
                continue
            if picked is None:
                picked = self.what.registers_of(self.d[chosen]).reshape(len(chosen), WARPGROUP, self.what.count, 32)
            new = value.copy()
            e = np.flatnonzero(hit)
            new.view(np.uint32)[c[e][:, None], warps[e]] = picked[
                e[:, None], np.arange(WARPGROUP), numbers[e][:, None].astype(np.int64)
            ]
            frame.registers[k] = new


class Issue:
    """Executes wgmma.mma_async: at once, or when it is waited for.

    Attributes:
        what: the operands and the shape of the product.
    """

    def __init__(self, what: Multiplication) -> None:
        self.what = what

    def __call__(self, x: Group, *lanes: Lanes) -> tuple[Lanes, ...]:
        """Execute the instruction or submit it to the queue; returns the accumulator registers."""
        what = self.what
        groups = warpgroups.of(x, what.where)
        warpgroups.require_fence(x, groups, what.where)
        c_lanes, (b_lanes, scale_lanes, *a_lanes) = lanes[: what.count], lanes[what.count :]
        places = None if what.expand is None else what.places(x, groups, a_lanes.pop(0))
        descriptors = groups.uniform(x, b_lanes, "B's descriptor", what.where)
        scale = groups.uniform(x, scale_lanes, "scale-d", what.where)
        what.b.check(x, groups, descriptors, what.where)
        if what.a is None:
            a = what.fragment_a(x, groups, tuple(a_lanes))
        else:
            a = groups.uniform(x, a_lanes[0], "A's descriptor", what.where)
            what.a.check(x, groups, a, what.where)
        for races in x.wave.races:
            for operand, bits in ((what.a, a), (what.b, descriptors)):
                if operand is not None:
                    chunks = operand.chunks(x.wave, groups.cta, bits)
                    races.operations.multiplied(MECHANISM, what.where, groups.owner, chunks)
        given = Inputs(groups.cta, groups.owner, a, places, descriptors)
        x.tally.add(what.number, what.flops, 2 * what.m * what.n * what.kept * groups.count)
        words = fragments.gather(x.shape, c_lanes, np.uint32)[groups.rows] if scale.any() else None
        if not x.wave.queue.eager:
            return Issued(what, x, groups, given, scale, words).tags(x)
        d = what.product(x.wave, given, what.initial(words, scale))
        return groups.spread(x, what.registers_of(d), what.d_type)
