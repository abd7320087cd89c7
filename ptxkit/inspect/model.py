"""SASS as values: a :class:`SassFunction` holds :class:`SassInstruction`, as PTX does in :mod:`ptxkit.isa.model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ptxkit.compiler.image import FunctionResources
from ptxkit.inspect.elf import LaunchBounds
from ptxkit.isa.model import Loc
from ptxkit.targets import Target

if TYPE_CHECKING:
    from ptxkit.inspect.blocks import Block
    from ptxkit.inspect.control import Control


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
        source: CUDA C++ position, with the chain of calls it was inlined at; None when the cubin does not say.
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
class SassFunction:
    """The code of one kernel, with the functions that it calls and that were not inlined.

    Attributes:
        name: mangled.
        target: what it was made for.
        instructions: in order of their addresses, without the padding behind the last.
        labels: name -> address; called functions are labels too.
        callees: names of called functions within, by address.
        resources: registers, shared and local memory, spills.
        spills_known: whether the spills are: older cubins do not tell them from other accesses to local memory.
        bounds: what its directives ask of a launch.
        ptx: text that ``ptx_line`` counts in; ``""`` when it is not known.
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
        from ptxkit.inspect.blocks import blocks

        return blocks(self)

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
        measured = [i for i in self.instructions if i.opcode != "CALL"]  # nvdisasm counts all that a callee may touch
        best = max(measured, key=lambda i: i.live.get("R", 0), default=None)
        return best if best is not None and best.live.get("R", 0) else None
