"""Where uninitialised values come from: registers and loads, by number, with the addresses that the lanes read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Addresses, Index, Lanes
from ptxkit.emulator.memory.allocations import GLOBAL_BASE, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, label
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE, plain
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where, named

KEPT = 4096
"""Loads whose addresses are remembered; of earlier ones a message gives the place alone."""

COMPUTED, FIELD, EXTENDED = 1 << 30, 1 << 29, 1 << 28
"""Flags that are added to the number of an origin: the value was computed from the origin's, and not only moved; a field was
cut out of it; it was loaded into a register that is wider than the element in memory."""


def number_of(origin: int) -> int:
    """The number of an origin without the flags."""
    return origin & (EXTENDED - 1)


@dataclass(frozen=True)
class Origin:
    """One execution of a load that found uninitialised bytes, a register that nothing wrote, or a result that is undefined.

    Attributes:
        where: the load or the instruction; None for a register.
        register: name of the register, "" for a load.
        space: state space of the load; "" when the address is generic.
        addresses: of each lane of the selection.
        bits: undefined bits of the element that was loaded, in each lane of the selection.
        size: bytes of that element.
        c, w: CTA and warp of each row of the selection; None for the whole wave.
        is_result: of an instruction that leaves it undefined; not a load.
    """

    where: Where | None
    register: str = ""
    space: str = ""
    addresses: Addresses | None = None
    bits: Lanes | None = None
    size: int = 0
    c: Index | None = None
    w: Index | None = None
    is_result: bool = False


class Origins:
    """The origins of one wave, numbered from 1."""

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self._found: dict[int, Origin] = {}
        self._registers: dict[str, int] = {}
        self._next = 1

    def register(self, name: str) -> int:
        """The number of the origin of a register without a value."""
        if name not in self._registers:
            self._registers[name] = self._add(Origin(None, name))
        return self._registers[name]

    def result(self, where: Where) -> int:
        """The number of the origin of a collective's undefined result, read from a lane that does not take part."""
        return self._add(Origin(where, is_result=True))

    def load(
        self, x: Group, where: Where, space: str, addresses: Addresses | None, bits: Lanes | None = None, size: int = 0
    ) -> int:
        """Number of an execution of a load.

        Args:
            addresses: of the element that is loaded, uint64 lanes; None if that is not known.
            bits: its undefined bits. ``size``: its bytes.
        """
        if addresses is not None:
            addresses = np.broadcast_to(addresses, x.shape)
        c, w = (x.c, x.w) if x.rows else (None, None)
        number = self._add(Origin(where, "", space, addresses, bits, size, c, w))
        old = self._found.get(number - KEPT)
        if old is not None and old.addresses is not None:
            self._found[number - KEPT] = Origin(old.where, "", old.space, size=old.size)
        return number

    def _add(self, origin: Origin) -> int:
        number = self._next
        self._next += 1
        self._found[number] = origin
        return number

    def find(self, number: int) -> Origin | None:
        """The origin with a number, with or without flags."""
        return self._found.get(number_of(number))

    def describe(self, number: int, cta: int, warp: int, lane: int) -> str:
        """The text that describes an origin, for a lane of the wave."""
        origin = self.find(number)
        if origin is None:
            return "a value that was never initialised"
        if origin.where is None:
            return f"register {origin.register}, which nothing has written"
        if origin.is_result:
            return f"the result of {named(origin.where)}, which reads a lane that has exited or that its mask does not name"
        loaded = f"loaded at {named(origin.where)}"
        address = self._address(origin, cta, warp, lane)
        if address is None:
            product = ", or a product of operands that were not" if origin.space == "tensor" else ""
            return f"{f'{origin.space} ' if origin.space else ''}memory that was never initialised{product}, {loaded}"
        return f"{place(self.wave, origin.space, address)}, {loaded}"

    @staticmethod
    def _address(origin: Origin, cta: int, warp: int, lane: int) -> int | None:
        if origin.addresses is None:
            return None
        place: tuple[int, ...] = (cta, warp, lane)
        if origin.c is not None:
            row = np.flatnonzero((origin.c == cta) & (origin.w == warp))
            if not len(row):
                return None
            place = int(row[0]), 0, lane
        return int(origin.addresses[place]) + _first_undefined(origin, place)


def _first_undefined(origin: Origin, place: tuple[int, ...]) -> int:
    """The offset of the first undefined byte in the element that a lane has loaded."""
    if origin.bits is None:
        return 0
    bits = int(np.broadcast_to(origin.bits, origin.addresses.shape)[place]) if origin.addresses is not None else 0
    return ((bits & -bits).bit_length() - 1) // 8 if bits else 0


def place(wave: WaveState, space: str, address: int) -> str:
    """The text that names uninitialised memory at an address, with its variable or allocation."""
    if space == "":
        space = "local" if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES else "global"
        space = "shared" if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES else space
    if space == "shared":
        pending = "" if wave.queue.eager else ", or written by an asynchronous copy that is not waited for"
        return f"{shared_variable(wave, address)} in shared memory, never initialised{pending}"
    if space == "local":
        offset = address - LOCAL_WINDOW if address >= LOCAL_WINDOW else address
        return f"{local_variable(wave, offset)} in local memory, never initialised"
    a = wave.launch.machine.memory.owner(address) if address >= GLOBAL_BASE else None
    if a is None:
        return f"{space} memory at {address:#x}, never initialised"
    return f"byte {address - a.base:,} of {label(a.name, a.nbytes)} in global memory, never initialised"


def shared_variable(wave: WaveState, address: int) -> str:
    """The variable that a shared address lies in, with the offset."""
    address = address - SHARED_WINDOW if address >= SHARED_WINDOW else address
    address &= (1 << CLUSTER_RANK_SHIFT) - 1
    layout = wave.launch.code.layout
    below = [(at, name) for name, at in layout.shared.items() if at <= address]
    if not below:
        return f"byte {address - SHARED_BASE:,}"
    at, name = max(below)
    return f"byte {address - at:,} of '{plain(name)}'"


def local_variable(wave: WaveState, offset: int) -> str:
    """The variable that a local address lies in; a called function's are above those of its callers."""
    function = wave.launch.code.entry
    below = [(at, name) for name, at in function.frame_offsets.items() if at <= offset < function.frame_bytes]
    if not below:
        return f"byte {offset:,} of the thread's stack"
    at, name = max(below)
    if name.startswith("__local_depot"):  # all variables of the function, in the layout of the compiler
        return f"byte {offset - at:,} of the thread's variables"
    return f"byte {offset - at:,} of '{name}'"
