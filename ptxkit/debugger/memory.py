"""Memory as one thread of a wave addresses it: global, shared, local and parameters, read without counting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.debugger.places import Lane
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE
from ptxkit.errors import MemoryFault, UsageError

if TYPE_CHECKING:
    from ptxkit.emulator.engine.wave import Wave


@dataclass(frozen=True)
class Location:
    """An address in a state space: ``"global"``, ``"shared"`` or ``"local"``; constants and parameters are global here."""

    space: str
    address: int

    def __str__(self) -> str:
        return f"{self.address:#x}" if self.space == "global" else f"@{self.space} {self.address:#x}"


def located(address: int, space: str = "") -> Location:
    """The location of an address; a generic one (space ``""``) names its space by the window that it lies in."""
    if space in ("const", "param", "global"):
        return Location("global", address)
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        return Location("shared", address - SHARED_WINDOW)
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
        return Location("local", address - LOCAL_WINDOW)
    return Location(space or "global", address)


def read(wave: Wave, lane: Lane, where: Location, nbytes: int) -> bytes:
    """``nbytes`` at ``where``, as ``lane`` addresses it.

    Raises:
        UsageError: not inside the memory that the thread can address.
    """
    if nbytes < 0:
        raise UsageError(f"cannot read {nbytes} bytes")
    if where.space == "shared":
        return _shared(wave, lane, where.address, nbytes)
    if where.space == "local":
        depth = wave.local.shape[1]
        if where.address < 0 or where.address + nbytes > depth:
            raise UsageError(
                f"{nbytes} bytes at local address {where.address:#x} are outside the thread's {depth} bytes"
            )
        row = (lane.cta * wave.shape[1] + lane.warp) * 32 + lane.lane
        return bytes(wave.local[row, where.address : where.address + nbytes])
    try:
        return bytes(wave.launch.machine.memory.slice(where.address, nbytes))
    except MemoryFault as fault:
        raise UsageError(f"cannot read {fault}") from None


def _shared(wave: Wave, lane: Lane, address: int, nbytes: int) -> bytes:
    cta, offset = lane.cta, address
    size = wave.launch.cluster_size
    if wave.ranked and size > 1:
        rank, offset = address >> CLUSTER_RANK_SHIFT, address & ((1 << CLUSTER_RANK_SHIFT) - 1)
        cta = lane.cta // size * size + rank
        if rank >= size:
            raise UsageError(f"shared address {address:#x} names CTA rank {rank} of a cluster of {size}")
    total = wave.launch.shared_bytes
    if offset < SHARED_BASE or offset + nbytes > SHARED_BASE + total:
        raise UsageError(
            f"{nbytes} bytes at shared address {offset:#x} are outside the CTA's {total:,} bytes from {SHARED_BASE:#x} on"
        )
    start = cta * wave.shared_stride + offset
    return bytes(wave.shared[start : start + nbytes])
