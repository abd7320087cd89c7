"""The initialisation check of one wave: follows undefined values and reports the first use that matters.

As Valgrind's memcheck does, it lets a program copy an undefined value and compute with it, because compilers do both. An error
is what depends on one: an address, a value that is written to global memory, the operand of an atomic, a branch, the predicate
of an instruction with a side effect.

Registers and local memory are followed in every launch of a kernel that may read one before it is written, which is worked out
when the kernel is bound; most kernels have none and cost nothing. Shared and global memory are followed on request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Addresses, Index, Lanes, Mask
from ptxkit.emulator.initcheck.memory import LOCK, Mirror
from ptxkit.emulator.initcheck.origins import EXTENDED, Origins
from ptxkit.emulator.initcheck.shadow import every, origins, resized, shadow
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, label
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE
from ptxkit.emulator.simt.blocks import BasicBlock
from ptxkit.emulator.simt.instrumented import Instrumented, unsigned
from ptxkit.emulator.simt.threads import Frame, Group, WaveState
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import Where, named
from ptxkit.errors import UninitialisedError


class InitCheck:
    """See the module's text.

    Args:
        tracks_memory: follow shared and global memory, too.
        has_stack: the kernel or a function that it calls has local memory.

    Attributes:
        registers: undefined bits of the registers of the block that is executed, by register.
        block: the block that is executed.
        register_index: name -> number of the registers of the function that is executed.
        stored_undefined: marks what the instruction that is executed writes to global memory; called when it has been executed.
    """

    def __init__(self, wave: WaveState, tracks_memory: bool, has_stack: bool) -> None:
        self.wave = wave
        self.tracks_memory = tracks_memory
        self.has_stack = has_stack
        self.mirror = Mirror(wave, tracks_memory)
        self.origins = Origins(wave)
        self.registers: dict[int, Shadow] = {}
        self.register_index: dict[str, int] = {}
        self.stored_undefined: Callable[[], None] | None = None
        self.block: BasicBlock | None = None

    def wants(self, frame: Frame, block: BasicBlock) -> bool:
        """Whether the block may read or write something undefined."""
        if self.tracks_memory or frame.undefined_bits & block.registers:
            return True
        return self.has_stack and block.accesses_local

    def local_marks(self) -> NDArray[np.uint8]:
        """The undefined bits of local memory, as the wave has it."""
        return self.mirror.fitted()

    # -- registers ---------------------------------------------------------------------------------------------------

    def entered(self, frame: Frame) -> None:
        """A function is called: the registers that it may read before it writes them are undefined."""
        function = frame.function
        names = list(function.register_index)
        for k in function.undefined:
            dtype = unsigned(function.register_types[k])
            bits = every(np.ones(self.wave.shape, np.bool_), dtype)
            number = self.origins.register(names[k])
            frame.undefined[k] = Shadow(bits, np.full(self.wave.shape, number, np.int32))
            frame.undefined_bits |= 1 << k

    def called(self, x: Group, start: int, nbytes: int) -> None:
        """The threads of ``x`` have a new piece of stack."""
        if nbytes:
            self.mirror.group(x)
            self.mirror.local[x.thread[x.active()], start : start + nbytes] = 0xFF

    def passed(self, x: Group, source: Frame, register: int, target: Frame, into: int) -> None:
        """A call or a return has copied a register of the frame ``source`` into one of ``target`` for ``x``."""
        s = source.undefined.get(register)
        if s is not None:
            bits = resized(x.select(s.bits), unsigned(target.function.register_types[into]))
            s = shadow(bits, x.select(s.origin))
        self._put(target, into, s, x)

    def written(self, x: Group, register: int, undefined: Shadow | None = None) -> None:
        """Something other than generated code has written a register for ``x``."""
        s = None
        if undefined is not None:
            bits = resized(x.select(undefined.bits), unsigned(x.frame.function.register_types[register]))
            s = shadow(bits, x.select(undefined.origin))
        self._put(x.frame, register, s, x)

    def lost(self, x: Group, register: int, lanes: Mask, where: Where) -> None:
        """``where`` has written a register with no value in the ``lanes`` (wave shape) of ``x``."""
        whole = x.frame.undefined.get(register)
        bits = every(x.select(lanes), unsigned(x.frame.function.register_types[register]))
        new = shadow(bits, np.full((1, 1, 1), self.origins.result(where), np.int32))
        old = None if whole is None else shadow(x.select(whole.bits), x.select(whole.origin))
        if old is not None and new is not None:
            new = shadow(old.bits | new.bits, origins([new, old]))
        self._put(x.frame, register, new, x)

    def returned(self, threads: Index, start: int, nbytes: int) -> None:
        """A function of the driver's has written a result to the stack."""
        if self.mirror.local.shape[1] >= start + nbytes:
            self.mirror.local[threads, start : start + nbytes] = 0

    def begin(self, x: Group, block: BasicBlock) -> None:
        """``block`` is about to be executed by ``x``."""
        self.block = block
        self.register_index = x.frame.function.register_index
        self.registers = {
            k: Shadow(x.select(s.bits), x.select(s.origin)) for k, s in x.frame.undefined.items() if s is not None
        }

    def end(self, x: Group, block: BasicBlock) -> None:
        """The block has been executed: put the registers back, for the lanes of ``x``."""
        frame = x.frame
        for k in set(frame.undefined) | set(self.registers):
            if not block.registers >> k & 1:
                continue
            self._put(frame, k, self.registers.get(k), x)

    def _put(self, frame: Frame, k: int, s: Shadow | None, x: Group) -> None:
        whole = frame.undefined.get(k)
        if s is None and whole is None:
            return
        shape = self.wave.shape
        dtype = unsigned(frame.function.register_types[k])
        # copies, since registers that were moved share their arrays
        bits = np.zeros(shape, dtype) if whole is None else whole.bits.copy()
        origin = np.zeros(shape, np.int32) if whole is None else whole.origin.copy()
        for array, value in ((bits, None if s is None else s.bits), (origin, None if s is None else s.origin)):
            new = np.broadcast_to(array.dtype.type(0) if value is None else value, x.shape)
            if x.rows:
                rows = array[x.c, x.w][:, None]
                np.copyto(rows, new, where=x.active())
                array[x.c, x.w] = rows[:, 0]
            else:
                np.copyto(array, new, where=x.active())
        if bits.any():
            frame.undefined[k] = Shadow(bits, origin)
            frame.undefined_bits |= 1 << k
        else:
            frame.undefined.pop(k, None)
            frame.undefined_bits &= ~(1 << k)

    def sources(self, w: Instrumented) -> list[Shadow | None]:
        """Undefined bits of the sources, as the instruction reads them."""
        out: list[Shadow | None] = []
        for s in w.sources:
            found = None if s.register is None else self.registers.get(s.register)
            if found is not None:
                found = shadow(resized(found.bits, unsigned(s.type)), found.origin)
            out.append(found)
        return out

    # -- instructions ------------------------------------------------------------------------------------------------

    def after(self, w: Instrumented, found: list[Shadow | None] | None, guard: Mask | None) -> None:
        """Its results are in the registers, under ``guard`` (lanes, or None)."""
        if self.stored_undefined is not None:
            self.stored_undefined()
            self.stored_undefined = None
        for k, d in enumerate(w.destinations):
            if d.register is None:
                continue
            new = None if found is None else found[k]
            if new is not None:
                wider = w.name == "ld" and d.register_type.bits > d.type.bits
                whence = new.origin | np.int32(EXTENDED) if wider else new.origin
                new = shadow(resized(new.bits, unsigned(d.register_type), d.type.kind == "s"), whence)
            if guard is not None:
                new = self._merged(new, self.registers.get(d.register), guard, unsigned(d.register_type))
                new = self._depending(new, w, unsigned(d.register_type))
            if new is None:
                self.registers.pop(d.register, None)
            else:
                self.registers[d.register] = new

    def _depending(self, new: Shadow | None, w: Instrumented, dtype: np.dtype) -> Shadow | None:
        """A result that is there or not by an undefined predicate is undefined."""
        by = None if w.guard is None else self.registers.get(w.guard)
        if by is None:
            return new
        bits = every(by.lanes, dtype)
        return shadow(bits if new is None else bits | new.bits, origins([new, by]))

    @staticmethod
    def _merged(new: Shadow | None, old: Shadow | None, guard: Mask, dtype: np.dtype) -> Shadow | None:
        if new is None and old is None:
            return None
        zero, none = np.zeros((1, 1, 1), dtype), np.zeros((1, 1, 1), np.int32)
        bits = np.where(guard, zero if new is None else new.bits, zero if old is None else old.bits)
        return shadow(bits, np.where(guard, none if new is None else new.origin, none if old is None else old.origin))

    # -- reports -----------------------------------------------------------------------------------------------------

    def guard(self, w: Instrumented, x: Group) -> None:
        """Whether an instruction with a side effect is executed must not depend on an undefined predicate."""
        if w.guard is not None:
            self.require(w, x, self.registers.get(w.guard), "is executed or not depending on")

    def require(self, w: Instrumented, x: Group, s: Shadow | None, what: str) -> None:
        """Raise if an active lane's value is undefined."""
        if s is None:
            return
        bad = np.broadcast_to(s.lanes, x.shape) & x.active()
        if bad.any():
            self.fail(w.where, x, bad, s.origin, what)

    def register(self, where: Where, x: Group, k: int | None, what: str) -> None:
        """The same for a register between blocks."""
        found = None if k is None else x.frame.undefined.get(k)
        if found is None:
            return
        bits, origin = x.select(found.bits), x.select(found.origin)
        bad = np.broadcast_to(bits != 0, x.shape) & x.active()
        if bad.any():
            self.fail(where, x, bad, origin, what)

    def fail(self, where: Where, x: Group, bad: Mask, origin: NDArray[np.int32], what: str) -> NoReturn:
        """Raise for the first lane in ``bad``."""
        i = tuple(int(v[0]) for v in np.nonzero(bad))
        source = self._origin(x, origin, i)
        first, thread = x.first(bad)
        x.wave.flush_output()
        raise UninitialisedError(
            f"{named(where)}: thread {thread} of CTA {first} {what} an uninitialised value: {source}"
        )

    def source_of(self, x: Group, s: Shadow, lane: tuple[int, ...]) -> str:
        """The text that describes where the undefined value of a lane of ``x`` comes from."""
        return self._origin(x, s.origin, lane)

    def _origin(self, x: Group, origin: NDArray[np.int32], i: tuple[int, ...]) -> str:
        cta = int(x.c[i[0]]) if x.rows else i[0]
        warp = int(x.w[i[0]]) if x.rows else i[1]
        return self.origins.describe(int(np.broadcast_to(origin, x.shape)[i]), cta, warp, i[2])

    def stored(self, w: Instrumented, x: Group, base: int, count: int) -> NoReturn:
        """A bulk operation has written undefined bytes to the allocation at ``base``."""
        cta, thread = x.first(x.active())
        a = self.mirror.memory.real.owner(base)
        name = "an allocation" if a is None else label(a.name, a.nbytes)
        x.wave.flush_output()
        raise UninitialisedError(
            f"{named(w.where)}: thread {thread} of CTA {cta} copies {count:,} bytes of uninitialised shared memory to global "
            f"memory, {name}"
        )

    # -- memory ------------------------------------------------------------------------------------------------------

    def follows(self, w: Instrumented, x: Group, base: Lanes) -> bool:
        """Whether the memory that an instruction accesses is followed."""
        if self.tracks_memory:
            return True
        where = w.space
        if where == "":
            if not self.has_stack:
                return False
            address = np.broadcast_to(base, x.shape)[x.active()].astype(np.uint64)
            return bool(((address - np.uint64(LOCAL_WINDOW)) < np.uint64(WINDOW_BYTES)).any())
        return where in ("local", "param")

    def define(self, x: Group, addresses: Addresses, nbytes: int) -> None:
        """Memory at these addresses counts as initialised."""
        with LOCK:
            for address in np.unique(np.broadcast_to(addresses, x.shape)[x.active()]).tolist():
                a = self.mirror.memory.real.owner(address)
                if a is not None:
                    a.initialise(address - a.base, nbytes)
                elif address < SHARED_WINDOW + WINDOW_BYTES:
                    at = address % (1 << CLUSTER_RANK_SHIFT)
                    stride = self.wave.shared_stride
                    if SHARED_BASE <= at < stride:
                        self.mirror.shared.reshape(-1, stride)[:, at : at + nbytes] = 0
