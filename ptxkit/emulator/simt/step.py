"""The bound form of an instruction: a Step with typed operands. Functions of the instruction table make it from a Binding.

An ``@effect`` function is called once per instruction, with a :class:`Binding`, and returns a :class:`Step`. Its ``call`` runs
every time: it gets the :class:`~ptxkit.emulator.simt.threads.Group` that executes and one lane array per source, and returns
one lane array, a tuple of them for several destinations, or None for none. A ``@blocking`` function returns a :class:`Gated`
step: its gate decides who may execute it now and who has to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Address, Function, Immediate, Instruction, Operand, Pair, Register, Symbol, Vector
from ptxkit.isa.types import TYPES, PtxType

U32, U64, S32, PRED = TYPES["u32"], TYPES["u64"], TYPES["s32"], TYPES["pred"]
B8, B16, B32, B64 = TYPES["b8"], TYPES["b16"], TYPES["b32"], TYPES["b64"]

Typed = tuple[Operand | None, PtxType]


@dataclass
class Step:
    """A bound instruction.

    Attributes:
        call: see the module's text; a pure step gets no group.
        sources, destinations: operands, and the types as which they are read or written; the result for None is discarded.
        pure: ``call`` takes the lane arrays alone.
    """

    call: Callable[..., Results]
    sources: tuple[Typed, ...] = ()
    destinations: tuple[Typed, ...] = ()
    pure: bool = False


def result_tuple(found: Results) -> tuple[Lanes | None, ...]:
    """The results of a step as a tuple, with one entry for each destination."""
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


class Gate:
    """Stands before a blocking instruction.

    Attributes:
        reads: operands whose values decide whether threads pass.
        converges: lanes of a warp execute the instruction together, all or those that a mask names.
        aligned: all lanes of a warp that have not exited execute the instruction together.
    """

    reads: tuple[Operand | None, ...] = ()
    converges: bool = False
    aligned: bool = False

    def enter(self, group: Group, block: int) -> Group | None:
        """Let ``group``, which stands at ``block``, try to pass: the part that may execute now, or None.

        Threads that have to wait are registered with the wave here, for example by ``wave.park``.
        """
        raise NotImplementedError

    def note(self, group: Group) -> str:
        """For the deadlock report: what ``group``, which is parked here, waits for; "" where the instruction says it."""
        return ""


@dataclass
class Gated:
    """A blocking instruction: its gate, and the step for threads that have passed it (None if there is nothing more to do)."""

    gate: Gate
    step: Step | None = None


@dataclass
class Binding:
    """The instruction and its environment, for the function of the instruction table that binds it.

    Attributes:
        instruction, form: the instruction, and the parts of its opcode.
        index: number of the instruction in the program, the key of its counters.
        layout: where the variables that the entry can reach were placed.
        target: compute capability as a number (90), for instructions that depend on it.
        position: of the instruction in its function.
        labels: label -> position in the function.
    """

    instruction: Instruction
    form: Form
    index: int
    where: Where
    function: Function
    layout: Layout
    target: int
    position: int
    labels: frozenset[int]

    @property
    def operands(self) -> tuple[Operand | None, ...]:
        """The instruction's operands."""
        return self.instruction.operands

    def fail(self, why: str) -> UnsupportedError:
        """The error for a form that matches a pattern but cannot be executed."""
        return UnsupportedError(f"{self.where}: {why}")

    def elements(self, operand: Operand | None) -> tuple[Operand | None, ...]:
        """The scalars of a vector operand, or the operand alone."""
        return operand.items if isinstance(operand, Vector) else (operand,)

    def pair(self, operand: Operand | None) -> tuple[Operand | None, Operand | None]:
        """Both halves of ``d|p``; the second is None when there is no ``|``."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def address(self, operand: Operand | None) -> tuple[Operand, int]:
        """Base and byte offset of ``[...]``; an absolute address has the immediate as its base.

        Raises:
            UnsupportedError: not an address operand.
        """
        if not isinstance(operand, Address):
            raise self.fail(f"expected an address in brackets, found {operand}")
        if operand.base is None:
            return Immediate(operand.offset), 0
        if isinstance(operand.base, Symbol):
            return Symbol(operand.base.name, operand.base.offset + operand.offset), 0
        return operand.base, operand.offset

    def register_type(self, operand: Operand | None) -> PtxType | None:
        """Declared type of a register operand."""
        return self.function.registers.get(operand.name) if isinstance(operand, Register) else None
