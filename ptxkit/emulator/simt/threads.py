"""Groups of threads at the same instruction, the frames that hold their registers, and the wave that they are part of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Bytes, Index, Lanes, Mask, Shape, Words
from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.memory.allocations import poison
from ptxkit.emulator.simt.asynchronous import Queue
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.hooks import ArithmeticHooks, DivergenceHooks, ProxyHooks, RaceHooks, StackHooks
from ptxkit.emulator.simt.selection import Selection
from ptxkit.emulator.simt.state import LaunchState, MachineState
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Operand, Symbol

P = TypeVar("P")

Registers: TypeAlias = list[Lanes | None]
"""The registers of a frame by number, as lane arrays of the wave; None for a register without a value."""


class Frame:
    """One activation of a function: the registers of every thread that is inside this call.

    Attributes:
        undefined: register -> its uninitialised bits, in the wave's shape; the instrumentation maintains it.
        undefined_bits: bit set of the registers with uninitialised bits.
        native: where machine code has the registers; None where none has been executed (:mod:`ptxkit.emulator.native.wave`).
    """

    __slots__ = (
        "back",
        "bindings",
        "depth",
        "dirty",
        "function",
        "groups",
        "local_base",
        "native",
        "owned",
        "parent",
        "reg_returns",
        "registers",
        "serial",
        "undefined",
        "undefined_bits",
    )

    def __init__(
        self, function: FunctionCode, parent: Frame | None, local_base: int, bindings: dict[str, int], serial: int
    ) -> None:
        self.function = function
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.serial = serial
        self.registers: Registers = [None] * len(function.register_types)
        self.owned: list[bool] = [False] * len(function.register_types)
        self.local_base = local_base
        self.bindings = bindings
        self.dirty = False
        self.groups = 0
        self.back = -1
        self.reg_returns: list[tuple[int, int]] = []
        self.undefined: dict[int, Shadow] = {}
        self.undefined_bits = 0
        self.native: object = None

    def variable(self, symbol: Symbol) -> int:
        """Offset in local memory of a variable of the function, or of a parameter that its caller has placed."""
        offset = self.function.frame_offsets.get(symbol.name)
        if offset is None:
            return self.bindings[symbol.name] + symbol.offset
        return self.local_base + offset + symbol.offset


class Group(Selection):
    """Threads of one frame at one block.

    Attributes:
        yielded: not 0 after a failed wait: all other groups are executed first.
        resume: 0: the group is before the gate of the block, 1: past it, 2: it tries the gate again.
        sub: this is a part of a group, for the execution of one predicated instruction.
    """

    __slots__ = ("frame", "resume", "sub", "tally", "wave", "yielded")

    def __init__(
        self, wave: WaveState, frame: Frame, c: Index | None, w: Index | None, mask: Mask | None, tally: Tally
    ) -> None:
        super().__init__(wave.shape, c, w, mask)
        self.wave = wave
        self.frame = frame
        self.tally = tally
        self.yielded = 0
        self.resume = 0
        self.sub = False

    def fetch(self, index: int) -> Lanes | None:
        """Register ``index`` as this selection sees it; None if it was never written."""
        value = self.frame.registers[index]
        return value if value is None else self.select(value)

    def store(self, index: int, value: Lanes) -> None:
        """Write register ``index`` for the lanes of this group alone."""
        frame = self.frame
        registers = frame.registers
        old = registers[index]
        if not self.rows:
            if self.mask is None:
                registers[index] = value
            elif old is None:
                registers[index] = value  # lanes outside the mask never had a value
            else:
                registers[index] = np.where(self.mask, value, old)
            return
        if not frame.owned[index]:
            if old is None:
                full = poison(value.dtype, self.wave_shape)
            else:
                full = np.empty(self.wave_shape, value.dtype)
                full[:] = old
            registers[index] = old = full
            frame.owned[index] = frame.dirty = True
        assert old is not None
        if self.mask is None:
            old[self.c, self.w] = np.broadcast_to(value, self.shape)[:, 0]
        else:
            rows = old[self.c, self.w][:, None]
            np.copyto(rows, value, where=self.mask)
            old[self.c, self.w] = rows[:, 0]

    def narrow(self, predicate: Mask) -> Group | None:
        """The lanes for which ``predicate`` holds too, for one predicated instruction; None if there are none."""
        if predicate.size == 1:
            return self if predicate.flat[0] else None
        mask = np.broadcast_to(predicate, self.shape) if self.mask is None else predicate & self.mask
        if not mask.any():
            return None
        part = Group.__new__(Group)
        part.wave, part.frame, part.c, part.w, part.rows = self.wave, self.frame, self.c, self.w, self.rows
        part.wave_shape = self.wave_shape
        part.mask, part.shape, part.tally, part.yielded, part.resume = mask, self.shape, self.tally, 0, 0
        part.lanes = int(np.count_nonzero(mask))
        part.warps = self.warps
        part.sub = True
        part.memo = {}
        part._cta, part._warp, part._thread = self._cta, self._warp, self._thread
        return part

    def first(self, bad: Mask) -> tuple[Shape, Shape]:
        """CTA coordinates and thread coordinates of the first lane for which ``bad`` holds."""
        i = tuple(int(k[0]) for k in np.nonzero(np.broadcast_to(bad, self.shape)))
        cta = int(self.c[i[0]]) if self.rows else i[0]
        warp = int(self.w[i[0]]) if self.rows else i[1]
        return self.wave.cta_coordinates(cta), self.wave.thread_coordinates(warp * 32 + i[2])


@dataclass(frozen=True)
class CallSite:
    """The arguments of a call, what receives its results, and the instruction."""

    arguments: tuple[Operand | None, ...]
    returns: tuple[Operand | None, ...]
    where: Where


class WaveState(Protocol):
    """The interface of a wave to instructions: the CTAs that are resident together, and the operations of the scheduler.

    Attributes:
        shape: (CTAs, warps a CTA, 32).
        ctas: linear index in the grid of each CTA.
        cluster_rank: rank of each CTA in its cluster; the CTAs of a cluster are consecutive.
        ranked: addresses in shared memory contain the rank of the CTA.
        shared, shared_stride: shared memory of all CTAs, and bytes from one CTA's to the next one's.
        local: (threads, bytes), local memory.
        live: lanes that have not exited, or None if none has; ``live_lanes`` is their number.
        ended: (CTAs,) which CTAs have no threads left; None while all have, or where none can access another's memory.
        waiting: groups that wait for others of their warps, by serial number of the frame and block.
        ticks: time, which the clock registers show.
        changes: number of printed texts, which change no memory but are progress.
        output: what the kernel has printed.
        lost: lanes in which the result of the collective that is being executed is undefined; wave shape, or None.
    """

    shape: Shape
    ctas: Index
    cluster_rank: Index
    ranked: bool
    shared: Bytes
    shared_stride: int
    local: Bytes
    live: Mask | None
    live_lanes: int
    ended: Mask | None
    waiting: dict[tuple[int, int], Group]
    ticks: int
    changes: int
    output: list[str]
    lost: Mask | None
    queue: Queue
    races: tuple[RaceHooks, ...]
    generic_writes: tuple[ProxyHooks, ...]
    arithmetic: tuple[ArithmeticHooks, ...]

    @property
    def launch(self) -> LaunchState:
        """The launch that the wave belongs to."""

    @property
    def divergence(self) -> DivergenceHooks:
        """Lanes of one warp that branches have separated."""

    @property
    def stack_hooks(self) -> tuple[StackHooks, ...]:
        """The hooks that track the contents of local memory."""

    def part(self, kind: Callable[[WaveState], P]) -> P:
        """The wave's only object of the class ``kind``, made at the first request: the state of one mechanism."""

    def provide(self, kind: Callable[[WaveState], P], part: P) -> None:
        """Let ``part`` be what :meth:`part` gives for ``kind``."""

    def on_memory(self, machine: MachineState, shared: Bytes) -> WaveState:
        """A copy of the wave with other memory, without hooks, and with its own mechanisms."""

    # -- coordinates and values --------------------------------------------------------------------------------------

    def cta_coordinates(self, index: int) -> Shape:
        """Grid coordinates of a CTA of this wave."""

    def thread_coordinates(self, linear: int) -> Shape:
        """Coordinates of a thread in its CTA."""

    def thread_index(self, axis: int) -> Words:
        """%tid along an axis, shape (1, warps, 32)."""

    def special(self, group: Group, name: str) -> Lanes:
        """Lanes of a special register under ``group``'s selection."""

    def shared_address(self, group: Group, offset: int, dtype: DTypeLike) -> Lanes:
        """Address of a byte of shared memory, with the CTA's rank in its cluster."""

    def flush_output(self) -> None:
        """Hand printed text to the launch."""

    # -- moving groups -----------------------------------------------------------------------------------------------

    def new_group(self, frame: Frame, mask: Mask | None) -> Group:
        """A group of the lanes in ``mask`` (wave shape; None means all)."""

    def retire(self, group: Group) -> None:
        """Remove ``group``."""

    def split(self, group: Group, lanes: Mask) -> tuple[Group | None, Group | None]:
        """The lanes of ``group`` for which ``lanes`` (in its selection) holds, and the others; None for an empty part."""

    def join(self, a: Group, b: Group) -> Group:
        """Replace two groups by one with the lanes of both."""

    def go(self, group: Group, block: int) -> None:
        """Make ``group`` ready to execute ``block``."""

    def wake(self, group: Group, block: int, passed: bool) -> None:
        """Make a waiting group ready at ``block``: past its gate if ``passed``, else to try the gate once more."""

    def spin(self) -> None:
        """The wait of the running group has failed: execute all other groups before it."""

    def park(self, group: Group, block: int) -> None:
        """Let ``group`` wait at ``block`` until the other lanes of its warps arrive there."""

    def parked(self, group: Group, block: int) -> Group | None:
        """Remove and return the group that waits at ``block``, where ``group`` has arrived; None if there is none."""

    def undefined_together(
        self, step: Any, where: Where, union: Group, values: list[Lanes], parts: list[tuple[Group, Any]]
    ) -> Shadow | None:
        """Undefined bits of the first result of a collective, wave shape, that groups execute at different instructions.

        Args:
            step: the Step of ``where``, one of the instructions.
            union: all lanes.
            values: of the sources, wave shape.
            parts: each group with its own Step.
        """

    def collected(
        self, group: Group, result: Operand | None, lost: Mask | None, where: Where, undefined: Shadow | None
    ) -> None:
        """A collective outside of generated code has written the register ``result``.

        Args:
            lost: lanes (wave shape) for which it has no value.
            undefined: undefined bits of the result, wave shape.
        """

    def gate_at(self, block: int) -> object:
        """The gate of a block, or None."""

    def after(self, block: int) -> int:
        """The index of the block that follows ``block`` in the PTX."""

    def call(self, group: Group, code: FunctionCode, site: CallSite, back: int) -> None:
        """``group`` calls a function, and continues at block ``back`` after the return."""

    def leave(self, group: Group) -> None:
        """``group`` returns from its function."""

    def exit(self, group: Group) -> None:
        """The threads of ``group`` exit."""


class Synchroniser:
    """A mechanism on which groups wait. The scheduler calls these methods of every synchroniser of a wave."""

    def waiting(self) -> list[tuple[Group, int]]:
        """Every group that waits here, with its block."""
        return []

    def note(self, group: Group, instructions: list[int]) -> str:
        """For deadlock reports: what ``group``, at a block with these instructions, waits for; "" if it waits elsewhere."""
        return ""

    def threads_left(self) -> None:
        """Some threads have exited."""

    def force(self) -> bool:
        """No thread can continue: perform the asynchronous operations that threads wait for. False if there are none."""
        return False

    def time_out(self) -> bool:
        """No thread can continue: end the waits that hardware ends after a time limit. False if there are none."""
        return False

    def deadlocked(self) -> None:
        """The launch is about to end as a deadlock: raise an error that names the mistake, where it is known."""


def merge(values: Lanes, old: Lanes | None, predicate: Mask) -> Lanes:
    """``values`` where ``predicate`` holds, else ``old``; if ``old`` is None, ``values``."""
    if old is None:
        return values
    if predicate.size == 1:
        return values if predicate.flat[0] else old
    return np.where(predicate, values, old)
