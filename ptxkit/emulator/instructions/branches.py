"""Terminators of basic blocks: branches, calls, returns, exits, traps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ptxkit.emulator.arrays import Mask, distinct
from ptxkit.emulator.instructions.builtins import BUILTINS, NOT_PROVIDED
from ptxkit.emulator.simt.blocks import BasicBlock, Linkable, Terminator
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.step import Binding
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import CallSite, Group
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import FaultError, TrapError, UnsupportedError
from ptxkit.isa.model import Function, Operand, ParameterList, Predicate, Register, Symbol
from ptxkit.isa.specials import GRID_WORKSPACE, NO_GRID_WORKSPACE


class FallThrough(Terminator):
    """No instruction: the next block begins at a label, or with an instruction that can block."""

    def __init__(self) -> None:
        super().__init__(None)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        group.wave.go(group, block.next)


class Branch(Terminator):
    """bra."""

    def __init__(self, where: Where, predicate: Predicate | None, number: int, label: str) -> None:
        super().__init__(where, predicate, number)
        self.label = label
        self.target = -1

    def link(self, labels: Mapping[str, int], program: Linkable) -> None:
        if self.label not in labels:
            raise UnsupportedError(f"{self.where}: no label {self.label} in this function")
        self.target = labels[self.label]

    def successors(self, following: int) -> tuple[int, ...]:
        return (self.target,) if self.predicate is None else (self.target, following)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        wave = group.wave
        if predicate is None:
            group.tally.branch(self.number, group.warps, 0)
            wave.go(group, self.target)
            return
        taken, other = wave.split(group, predicate)
        warps = group.warps
        if taken is not None:
            group.tally.lanes(taken, self.number)
        if taken is None or other is None:
            group.tally.branch(self.number, warps, 0)
        else:
            group.tally.branch(self.number, warps, max(0, taken.warps + other.warps - warps))
            if block.reconverges is not None:
                wave.divergence.opened(taken, other, group.frame.serial, block.index, block.reconverges)
        # the lower block is executed first, since it usually leads to the other one
        if other is not None:
            wave.go(other, block.next)
        if taken is not None:
            wave.go(taken, self.target)


class IndirectBranch(Terminator):
    """brx.idx: a jump through a table of labels."""

    def __init__(self, b: Binding, index: Operand | None, labels: tuple[str, ...]) -> None:
        super().__init__(b.where, b.instruction.predicate, b.index)
        self.index = index
        self.labels = labels
        self.targets: tuple[int, ...] = ()

    def link(self, labels: Mapping[str, int], program: Linkable) -> None:
        self.targets = tuple(labels[name] for name in self.labels)

    def successors(self, following: int) -> tuple[int, ...]:
        return (*self.targets, following) if self.predicate is not None else self.targets

    def reads(self) -> tuple[Operand | Predicate | None, ...]:
        return (self.index,)

    def decides(self) -> tuple[Operand | None, ...]:
        return (self.index,)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        left = self.guarded(group, block, predicate)
        if left is None:
            return
        wave = group.wave
        values = operand_lanes(left, self.index, np.dtype("u4"))
        active = np.broadcast_to(values, left.shape)[left.active()]
        different = distinct(active)
        if different[-1] >= len(self.targets):
            raise FaultError(f"{self.where}: index {different[-1]} is outside its {len(self.targets)} targets")
        group.tally.branch(self.number, left.warps, left.warps if len(different) > 1 else 0)
        rest: Group | None = left
        for value in different:
            if rest is None:
                break
            lanes = operand_lanes(rest, self.index, np.dtype("u4")) == value
            taken, rest = wave.split(rest, lanes)
            if taken is not None and rest is not None and block.reconverges is not None:
                wave.divergence.opened(taken, rest, group.frame.serial, block.index, block.reconverges)
            if taken is not None:
                wave.go(taken, self.targets[int(value)])


class Exit(Terminator):
    """exit, and ret in a kernel."""

    ends = True

    def successors(self, following: int) -> tuple[int, ...]:
        return () if self.predicate is None else (following,)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        left = self.guarded(group, block, predicate)
        if left is not None:
            left.wave.exit(left)


class Return(Terminator):
    """ret in a device function, and the end of its body.

    Args:
        function: the function that returns; ``ret`` reads its result registers.
    """

    ends = True

    def __init__(
        self, function: Function, where: Where | None, predicate: Predicate | None = None, number: int = -1
    ) -> None:
        super().__init__(where, predicate, number)
        self.results = tuple(Register(v.name) for v in function.returns if v.space == "reg")

    def reads(self) -> tuple[Operand | Predicate | None, ...]:
        return self.results

    def successors(self, following: int) -> tuple[int, ...]:
        return () if self.predicate is None else (following,)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        left = self.guarded(group, block, predicate)
        if left is not None:
            left.wave.leave(left)


class Trap(Terminator):
    """trap and brkpt."""

    ends = True

    def successors(self, following: int) -> tuple[int, ...]:
        return () if self.predicate is None else (following,)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        left = self.guarded(group, block, predicate)
        if left is not None:
            cta, thread = left.first(left.active())
            left.wave.flush_output()
            text = f"{self.where}: executed by thread {thread} of CTA {cta}"
            launch = left.wave.launch
            if not launch.cooperative and launch.code.specials >= GRID_WORKSPACE:
                text += f"; {NO_GRID_WORKSPACE}"
            raise TrapError(text)


class Call(Terminator):
    """call, direct or through a register."""

    def __init__(self, b: Binding) -> None:
        super().__init__(b.where, b.instruction.predicate, b.index)
        operands = list(b.operands)
        returns = _items(operands)
        if not operands or not isinstance(operands[0], Symbol | Register):
            raise b.fail("call without a function")
        self.callee = operands.pop(0)
        self.site = CallSite(_items(operands), returns, b.where)
        self.builtin: Callable[[Group, CallSite], None] | None = None
        self.calls = True
        self.entries: dict[int, FunctionCode] = {}

    @property
    def splits(self) -> bool:
        return self.predicate is not None or isinstance(self.callee, Register)

    def link(self, labels: Mapping[str, int], program: Linkable) -> None:
        layout = program.layout
        if isinstance(self.callee, Symbol):
            name = self.callee.name
            function = program.module.functions.get(name)
            if function is None or function.declared_only:
                self.builtin = BUILTINS.get(name)
                if self.builtin is None:
                    why = NOT_PROVIDED.get(name) or "declared without a body, and the emulator does not provide it"
                    raise UnsupportedError(f"{self.where}: {name} is {why}")
                self.calls = False
                return
            self.entries[layout.functions[name]] = program.functions[name]
        else:
            self.entries = {layout.functions[n]: c for n, c in program.functions.items() if not c.function.is_entry}

    def reads(self) -> tuple[Operand | Predicate | None, ...]:
        return tuple(o for o in (self.callee, *self.site.arguments) if isinstance(o, Register))

    def writes(self) -> tuple[Operand | None, ...]:
        if self.predicate is not None or self.builtin is not None:
            return ()
        return tuple(o for o in self.site.returns if isinstance(o, Register))

    def decides(self) -> tuple[Operand | None, ...]:
        return (self.callee,)

    def execute(self, group: Group, block: BasicBlock, predicate: Mask | None) -> None:
        left = self.guarded(group, block, predicate)
        if left is None:
            return
        wave = left.wave
        if self.builtin is not None:
            self.builtin(left, self.site)
            wave.go(left, block.next)
            return
        if isinstance(self.callee, Symbol):
            (code,) = self.entries.values()
            wave.call(left, code, self.site, block.next)
            return
        rest: Group | None = left
        while rest is not None:
            addresses = operand_lanes(rest, self.callee, np.dtype("u8"))
            address = int(np.broadcast_to(addresses, rest.shape)[rest.active()][0])
            found = self.entries.get(address)
            if found is None:
                raise FaultError(f"{self.where}: calls {address:#x}, which is no function")
            taken, rest = wave.split(rest, addresses == np.uint64(address))
            if taken is not None and rest is not None and block.reconverges is not None:
                wave.divergence.opened(taken, rest, group.frame.serial, block.index, block.reconverges)
            if taken is not None:
                wave.call(taken, found, self.site, block.next)


def _items(operands: list[Operand | None]) -> tuple[Operand | None, ...]:
    """The operands of a parameter list in parentheses at the front of a call, which is removed; () without one."""
    if operands and isinstance(operands[0], ParameterList):
        found = operands.pop(0)
        assert isinstance(found, ParameterList)
        return found.items
    return ()


@effect("bra{.uni}")
def _bra(b: Binding) -> Terminator:
    target = b.operands[0] if b.operands else None
    if not isinstance(target, Symbol):
        raise b.fail(f"expected a label, found {target}")
    return Branch(b.where, b.instruction.predicate, b.index, target.name)


@effect("brx.idx{.uni}")
def _brx(b: Binding) -> Terminator:
    index, table = b.operands
    labels = b.function.branch_targets.get(table.name) if isinstance(table, Symbol) else None
    if labels is None:
        raise b.fail(f"no .branchtargets list named {table}")
    return IndirectBranch(b, index, labels)


@effect("call{.uni}")
def _call(b: Binding) -> Terminator:
    return Call(b)


@effect("ret{.uni}")
def _ret(b: Binding) -> Terminator:
    if b.function.is_entry:
        return Exit(b.where, b.instruction.predicate, b.index)
    return Return(b.function, b.where, b.instruction.predicate, b.index)


@effect("exit")
def _exit(b: Binding) -> Terminator:
    return Exit(b.where, b.instruction.predicate, b.index)


@effect("trap")
@effect("brkpt")
def _trap(b: Binding) -> Terminator:
    return Trap(b.where, b.instruction.predicate, b.index)
