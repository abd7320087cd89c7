"""Function calls and their frames, returns, and the exit of threads."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ptxkit.emulator.arrays import Bytes, Lanes, Mask
from ptxkit.emulator.engine.groups import WaveGroups
from ptxkit.emulator.instrumentation import Instrumentation
from ptxkit.emulator.lowering.literals import constant
from ptxkit.emulator.lowering.reconvergence import RETURN
from ptxkit.emulator.memory.allocations import POISON, poison
from ptxkit.emulator.memory.layout import align_up
from ptxkit.emulator.native.wave import NativeWave
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.hooks import RaceHooks
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.threads import CallSite, Frame, Group, Synchroniser
from ptxkit.emulator.simt.where import named
from ptxkit.errors import FaultError
from ptxkit.isa.mangled import base_name
from ptxkit.isa.model import Immediate, Operand, Register, Symbol
from ptxkit.isa.types import PtxType

STACK_LIMIT = 512 * 1024
"""Bytes of local memory that a thread may use, as on hardware."""


class WaveCalls(WaveGroups):
    """The part of a wave that creates and removes frames.

    Attributes:
        local: (threads, bytes), the local memory; it grows with the depth of calls.
        serial: number of the newest frame.
        synchronisers: objects on which groups wait, in the order in which they were made.
        instrumentation: receives calls and returns; None where nothing is checked.
        native: executes blocks by machine code; None where it cannot, and for the first blocks of the wave.
        ranked: addresses in shared memory contain the rank of the CTA.
        ended: (CTAs,) which CTAs have no threads left; None while all have, or where none can access another's memory.
    """

    local: Bytes
    serial: int
    ranked: bool
    ended: Mask | None
    races: tuple[RaceHooks, ...]
    synchronisers: list[Synchroniser]
    instrumentation: Instrumentation | None
    native: NativeWave | None

    def _frame(
        self,
        code: FunctionCode,
        parent: Frame | None,
        base: int,
        bindings: dict[str, int],
        caller: tuple[Group, CallSite] | None = None,
    ) -> Frame:
        """A frame; ``caller`` has the threads that call the function and the place, None for the kernel."""
        self.serial += 1
        need = base + code.frame_bytes
        if need > self.local.shape[1]:
            if need > STACK_LIMIT:
                self._overflow(code, caller)
            width = align_up(max(need, self.local.shape[1] * 2), 16)
            grown = np.full((self.local.shape[0], width), POISON, np.uint8)
            grown[:, : self.local.shape[1]] = self.local
            self.local = grown
        frame = Frame(code, parent, base, bindings, self.serial)
        if self.instrumentation is not None:
            self.instrumentation.entered(frame)
        return frame

    def _overflow(self, code: FunctionCode, caller: tuple[Group, CallSite] | None) -> NoReturn:
        """The stack of a thread exceeds the limit."""
        name = base_name(code.function.name)
        why = f"stack overflow, a thread needs more than {STACK_LIMIT:,} bytes of local memory"
        if caller is None:
            raise FaultError(f"{name}: {why}")
        group, site = caller
        group.wave.flush_output()
        cta, thread = group.first(group.active())
        depth = group.frame.depth
        raise FaultError(
            f"{named(site.where)}: thread {thread} of CTA {cta} calls {name} from call depth {depth}: {why}"
        )

    def call(self, group: Group, code: FunctionCode, site: CallSite, back: int) -> None:
        """``group`` calls a function, and continues at block ``back`` after the return."""
        caller = group.frame
        base = caller.local_base + caller.function.frame_bytes
        bindings: dict[str, int] = {}
        function = code.function
        frame = self._frame(code, caller, base, bindings, (group, site))
        frame.back = back
        if self.instrumentation is not None:
            self.instrumentation.called(group, base, code.frame_bytes)
        arguments: tuple[Operand | None, ...] = site.arguments
        for formal, actual in zip(function.params, arguments, strict=True):
            if isinstance(actual, Symbol):
                bindings[formal.name] = caller.variable(actual)
            else:
                k = code.register_index[formal.name]
                value = self._argument(group, actual, code.register_types[k])
                frame.registers[k] = value if not group.rows else self._spread(group, value)
                if self.instrumentation is not None and isinstance(actual, Register):
                    self.instrumentation.passed(group, caller, caller.function.register_index[actual.name], frame, k)
        for formal, actual in zip(function.returns, site.returns, strict=True):
            if isinstance(actual, Symbol):
                bindings[formal.name] = caller.variable(actual)
            elif isinstance(actual, Register):
                frame.reg_returns.append(
                    (code.register_index[formal.name], caller.function.register_index[actual.name])
                )
        frame.groups = 1
        group.frame = frame
        self.go(group, code.entry)

    def called(self, caller: Frame, code: FunctionCode, site: CallSite, back: int) -> Frame:
        """The frame of a call that machine code has made, whose parameters are all in local memory."""
        self.serial += 1
        bindings: dict[str, int] = {}
        formal, actual = (*code.function.params, *code.function.returns), (*site.arguments, *site.returns)
        for variable, operand in zip(formal, actual, strict=True):
            assert isinstance(operand, Symbol)
            bindings[variable.name] = caller.variable(operand)
        frame = Frame(code, caller, caller.local_base + caller.function.frame_bytes, bindings, self.serial)
        frame.back = back
        return frame

    @staticmethod
    def _argument(group: Group, operand: Operand | None, t: PtxType) -> Lanes:
        """An argument of a call as lanes of the type ``t`` that its parameter has."""
        return constant(operand, t) if isinstance(operand, Immediate) else operand_lanes(group, operand, t.dtype)

    def _spread(self, group: Group, value: Lanes) -> Lanes:
        full = np.zeros(self.shape, value.dtype)
        full[group.c, group.w] = np.broadcast_to(value, group.shape)[:, 0]
        return full

    def leave(self, group: Group) -> None:
        """``group`` returns from its function."""
        frame = group.frame
        parent = frame.parent
        assert parent is not None
        if self.divergence.open:
            self.divergence.reach(group, frame.serial, RETURN)
        values = [(mine, theirs, group.fetch(mine)) for mine, theirs in frame.reg_returns]
        if frame.native is not None:  # its arrays are used again
            values = [(mine, theirs, None if v is None else v.copy()) for mine, theirs, v in values]
        frame.groups -= 1
        if not frame.groups and self.native is not None:
            self.native.released(frame)
        group.frame = parent
        for mine, theirs, value in values:
            dtype = parent.function.register_types[theirs].dtype
            if value is None:
                value = poison(dtype)
            elif value.dtype != dtype:
                value = value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)
            group.store(theirs, value)
            if self.instrumentation is not None:
                self.instrumentation.passed(group, frame, mine, parent, theirs)
        self.go(group, frame.back)

    def exit(self, group: Group) -> None:
        """The threads of ``group`` exit."""
        self.retire(group)
        if group.lanes == self.live_lanes:
            self.live_lanes = 0
            if self.ranked:
                self._end(np.ones(self.shape[0], np.bool_))
            return
        gone = group.full_mask()
        self.live = ~gone if self.live is None else self.live & ~gone
        self.live_lanes -= group.lanes
        if self.ranked:
            self._end(np.asarray(~self.live.any((1, 2))))
        if self.divergence.open:
            self.divergence.exited(gone)
        for s in self.synchronisers:
            s.threads_left()
        # a group that waits for lanes of its warp does not wait for those that have exited
        for (_, block), waiting in list(self.waiting.items()):
            self.waiting.pop((waiting.frame.serial, block))
            self.wake(waiting, block, passed=False)

    def _end(self, ended: Mask) -> None:
        """The last threads of the CTAs ``ended`` have exited: no thread may access their shared memory from now on."""
        new = ended if self.ended is None else ended & ~self.ended
        if new.any():
            self.ended = ended
            for races in self.races:
                races.ended(new)
