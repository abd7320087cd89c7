"""The data model of SASS: a :class:`SassFunction` contains :class:`SassInstruction`, as :mod:`ptxkit.isa.model` has for PTX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ptxkit.compiler.elf import LaunchBounds
from ptxkit.compiler.image import FunctionResources
from ptxkit.isa.model import Loc
from ptxkit.targets import Target

if TYPE_CHECKING:
    from ptxkit.inspect.control import Control


# Opcodes that may transfer control. BSYNC does not: the reconvergence point that BSSY names directly follows it.
_BRANCHES = frozenset({"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "WARPSYNC", "BREAK"})
_ENDS = frozenset({"EXIT", "RET", "KILL"})
_ALSO_FALL_THROUGH = frozenset({"WARPSYNC", "BREAK"})  # their label is the reconvergence point of the warp


@dataclass(frozen=True, slots=True)
class SassInstruction:
    """One machine instruction.

    Attributes:
        address: in bytes from the start of the kernel's code; 16 apart.
        opcode: without modifiers: ``"LDG"``.
        modifiers: ``("E", "128", "CONSTANT")``.
        operands: as nvdisasm writes them, with labels for branch targets: ``"R4, desc[UR4][R2.64]"``.
        predicate: ``"@!P0"``, or ``""``.
        encoding: its 128 bits.
        source: CUDA C++ position, with the chain of calls it was inlined at; None when the cubin does not name it.
        ptx_line: 1-based line of the PTX, or None.
        live: register file (``"R"``, ``"P"``, ``"UR"``, ``"UP"``) -> registers occupied while it executes.
        reads, writes: registers, single 32-bit ones: a 128-bit load to R4 writes R4, R5, R6, R7.
        targets: labels that a branch may go to.
        is_spill: whether the cubin marks it as a spill or a refill, as ptxas does for sm_90 and newer.
    """

    address: int
    opcode: str
    modifiers: tuple[str, ...]
    operands: str
    predicate: str = ""
    encoding: int = 0
    source: Loc | None = None
    ptx_line: int | None = None
    live: Mapping[str, int] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    is_spill: bool = False

    @property
    def name(self) -> str:
        """Opcode and modifiers: ``"LDG.E.128"``."""
        return ".".join((self.opcode, *self.modifiers))

    @property
    def control(self) -> Control:
        """The scheduling fields, decoded."""
        from ptxkit.inspect.control import decode

        return decode(self.encoding, self.opcode)

    def __str__(self) -> str:
        text = f"{self.name} {self.operands}".rstrip()
        return f"{self.predicate} {text}" if self.predicate else text


@dataclass(frozen=True)
class Block:
    """A basic block: instructions that execute in sequence.

    Attributes:
        index: among the function's blocks.
        instructions: in order; never empty.
        successors: indices of the blocks that may follow.
        label: the label at its start, or ``""``.
    """

    index: int
    instructions: tuple[SassInstruction, ...]
    successors: tuple[int, ...]
    label: str = ""

    @property
    def address(self) -> int:
        """Address of the first instruction."""
        return self.instructions[0].address

    @property
    def stall_cycles(self) -> int:
        """Sum of the instructions' stall cycles: the minimum time of one warp for the block, without waits for scoreboards."""
        return sum(i.control.stall for i in self.instructions)


@dataclass(frozen=True)
class SassFunction:
    """The code of one kernel, with the functions that it calls and that were not inlined.

    Attributes:
        name: mangled.
        target: that it was compiled for.
        instructions: in order of their addresses, without the padding after the last.
        labels: name -> address; called functions are labels too.
        callees: names of called functions within, by address.
        resources: registers, shared and local memory, spills.
        spills_known: whether spills are known: older cubins do not distinguish them from other accesses to local memory.
        bounds: the launch bounds of its directives.
        ptx: the text whose lines ``ptx_line`` numbers; ``""`` when it is not known.
    """

    name: str
    target: Target
    instructions: tuple[SassInstruction, ...]
    labels: Mapping[str, int] = field(default_factory=dict)
    callees: Mapping[int, str] = field(default_factory=dict)
    resources: FunctionResources = field(default_factory=FunctionResources)
    spills_known: bool = True
    bounds: LaunchBounds = field(default_factory=LaunchBounds)
    ptx: str = ""

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The basic blocks in order of their addresses."""
        return _blocks(self)

    @cached_property
    def labels_at(self) -> dict[int, tuple[str, ...]]:
        """Address -> labels there."""
        found: dict[int, tuple[str, ...]] = {}
        for label, address in self.labels.items():
            found[address] = (*found.get(address, ()), label)
        return found

    @cached_property
    def peak(self) -> SassInstruction | None:
        """The first instruction at which the most general-purpose registers are live, or None when that is not known."""
        measured = [
            i for i in self.instructions if i.opcode != "CALL"
        ]  # nvdisasm counts all registers that a callee may use
        best = max(measured, key=lambda i: i.live.get("R", 0), default=None)
        return best if best is not None and best.live.get("R", 0) else None


def _blocks(function: SassFunction) -> tuple[Block, ...]:
    """A function's basic blocks in order of their addresses."""
    instructions = function.instructions
    starts = {0, *function.labels.values()}
    for instruction in instructions:
        if instruction.opcode in _BRANCHES or instruction.opcode in _ENDS:
            starts.add(instruction.address + 16)
    groups: list[list[SassInstruction]] = []
    for instruction in instructions:
        if instruction.address in starts or not groups:
            groups.append([])
        groups[-1].append(instruction)
    index_of = {group[0].address: index for index, group in enumerate(groups)}
    made = []
    for index, group in enumerate(groups):
        label = next(iter(function.labels_at.get(group[0].address, ())), "")
        following = [index_of[a] for a in _following(group[-1], function.labels) if a in index_of]
        made.append(Block(index, tuple(group), tuple(dict.fromkeys(following)), label))
    return tuple(made)


def is_conditional(instruction: SassInstruction) -> bool:
    """Whether a branch may not be taken: by predicate, or by a condition among its operands (``BRA.U UP0, label``)."""
    if instruction.predicate and instruction.predicate != "@PT":
        return True
    return instruction.opcode == "BRA" and "," in instruction.operands


def _following(last: SassInstruction, labels: Mapping[str, int]) -> list[int]:
    after = last.address + 16
    if last.opcode in _ENDS:
        return [after] if is_conditional(last) else []
    if last.opcode not in _BRANCHES:
        return [after]
    taken = [labels[t] for t in last.targets if t in labels]
    straight_on = is_conditional(last) or last.opcode in _ALSO_FALL_THROUGH
    return [after, *taken] if straight_on else taken
