"""The cost of register-bank conflicts: a model of how the arithmetic of a loop reads its operands.

Since Volta the register file of an SM sub-partition has two banks, of even and of odd registers, each of which delivers one
register of a warp a cycle (Z. Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018, the
section on register banks: an FFMA takes two cycles there, so only three operands in one bank conflict; R. Huerta et al.,
"Analyzing Modern NVIDIA GPU Cores", 2025). The operands of an instruction are read within three cycles, and what the
instruction before it has marked ``.reuse`` in the same slot comes from the operand cache and is not read. Where a
sub-partition starts an FFMA each cycle, that is two reads a cycle for three operands.

Measured on an H200, with loops of FFMA whose registers were patched in the cubin: operands that all lie in one bank take
3.00 cycles, two in one bank 2.00, one register three times 1.01. Over 138 patterns, random registers among them, the model's
mean error is 0.02 cycles; with random registers and reuse it predicts 0.1 cycles too few (scripts/measure_register_banks.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ptxkit.inspect.classes import group_of
from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.inspect.natural_loops import Loop, loops
from ptxkit.targets.sm import REGISTER_BANKS, WARP

WINDOW = 3  # cycles within which the operands of one instruction are read
LOOP_WEIGHT = 2
_SLOTS = (24, 32, 64)  # the first bit of the register number in each operand slot, 8 bits long
# Instruction forms (bits 9 to 11) in which the last slot holds the second operand, and the second slot holds the last operand,
# which is an immediate, a constant or a uniform register.
_LAST_IS_NO_REGISTER = (2, 3, 7)
_FMA = ("fp32", "fp16")
_ALU = ("integer", "move", "convert")
# These opcodes belong to the groups above, but wait in a queue after they issue, as memory accesses do: the reads of their
# operands do not delay the issue of other instructions.
_QUEUED = re.compile(r"S2U?R|CS2U?R|R2UR|POPC|FLO|BREV|F2[FI]|I2F|[FI]2I|U\w+")


@dataclass(frozen=True)
class BankConflicts:
    """The cost of a loop's operand reads.

    Attributes:
        loop: the loop with the most arithmetic of its own (nested loops left out), where each level of nesting counts double.
        arithmetic: its instructions (nested loops left out, here and below) whose operand reads are modelled.
        delayed: those that must wait for a bank. first: the first of those, or None.
        lost_slots: issue slots lost to bank conflicts in one iteration.
        slots: issue slots of one iteration without conflicts.
    """

    loop: Loop
    arithmetic: int
    delayed: int
    first: SassInstruction | None
    lost_slots: int
    slots: int

    @property
    def share(self) -> float:
        """The lost share of the issue slots of an iteration."""
        return self.lost_slots / (self.slots + self.lost_slots)


def register_banks(function: SassFunction) -> BankConflicts | None:
    """The bank conflicts of a kernel's hottest loop.

    None without a loop that has arithmetic, before Volta, or where nvdisasm does not list what each instruction reads.
    """
    if function.target.cc < 70 or not any(i.reads for i in function.instructions):
        return None
    found = loops(function)
    bodies = [(loop, _own(loop, found, function)) for loop in found]
    # SASS does not show trip counts; the body of an inner loop is assumed to execute twice per iteration of the outer loop
    hottest = max(bodies, key=lambda one: LOOP_WEIGHT ** one[0].depth * sum(map(_is_arithmetic, one[1])), default=None)
    if hottest is None or not any(map(_is_arithmetic, hottest[1])):
        return None
    loop, body = hottest
    limits = function.target.limits
    fma_cycles = WARP * limits.subpartitions // limits.fp32_per_clock
    waits = bank_stalls(body, fma_cycles)
    delayed = [i for i, wait in zip(body, waits, strict=True) if wait]
    arithmetic = sum(map(_is_arithmetic, body))
    first = delayed[0] if delayed else None
    return BankConflicts(loop, arithmetic, len(delayed), first, sum(waits), _slots(body, fma_cycles))


def _own(loop: Loop, found: Sequence[Loop], function: SassFunction) -> list[SassInstruction]:
    """A loop's instructions without those of nested loops, such as a loop that waits for a barrier."""
    inner = [set(other.blocks) for other in found if set(other.blocks) < set(loop.blocks)]
    mine = [index for index in loop.blocks if not any(index in blocks for blocks in inner)]
    return [i for index in mine for i in function.blocks[index].instructions]


def bank_stalls(instructions: Sequence[SassInstruction], fma_cycles: int) -> list[int]:
    """Cycles that each instruction of a loop's body waits for register banks, in an iteration after the first.

    Args:
        fma_cycles: cycles that the pipe of multiply-adds takes for a warp: 1, or 2 where it has 16 lanes.
    """
    state = _Issue(fma_cycles)
    for instruction in instructions:
        state.issue(instruction)
    return [state.issue(instruction) for instruction in instructions]


def _slots(instructions: Iterable[SassInstruction], fma_cycles: int) -> int:
    """Cycles of an iteration without bank conflicts."""
    state = _Issue(fma_cycles, ideal=True)
    for instruction in instructions:
        state.issue(instruction)
    return state.now


@dataclass
class _Issue:
    """A model that issues one warp's instructions as fast as pipes and banks allow. With several warps the total is similar.

    Attributes:
        now: the cycle of the latest issue.
        free: bank -> its first cycle without a read. idle: pipe -> the first cycle in which it accepts an instruction.
        kept: slot -> register that the latest instruction kept in the operand cache.
    """

    fma_cycles: int
    ideal: bool = False
    now: int = 0
    free: list[int] = field(default_factory=lambda: [0] * REGISTER_BANKS)
    idle: dict[str, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)

    def issue(self, instruction: SassInstruction) -> int:
        """Issue the next instruction; returns the cycles that it waits for its operands."""
        self.now += 1
        if not _is_arithmetic(instruction):
            self.kept = {}
            return 0
        fp32, fma = group_of(instruction) in _FMA, _on_fma_pipe(instruction)
        pipe, cycles = "fma" if fma else "alu", self.fma_cycles if fp32 else 2
        self.now = max(self.now, self.idle.get(pipe, 0))
        wait = 0 if self.ideal else self._read(_registers(instruction) - self._cached(instruction))
        self.now += wait
        self.idle[pipe] = self.now + cycles
        control = instruction.control
        # a stall lets another warp issue, which invalidates the operand cache (measured); ptxas sets no .reuse there
        kept = control.reuse if control.stall <= 1 else ()
        self.kept = {slot: _in_slot(instruction, slot) for slot in kept if slot < len(_SLOTS)}
        return wait

    def _read(self, registers: set[int]) -> int:
        """Reserve the banks from now on; returns the delay in cycles after which all reads fall into the window."""
        wanted = Counter(register % REGISTER_BANKS for register in registers)
        wait = 0
        for bank, reads in wanted.items():
            last = max(self.free[bank], self.now) + reads - 1
            wait = max(wait, last - (self.now + max(WINDOW, reads) - 1))
        for bank, reads in wanted.items():
            self.free[bank] = max(self.free[bank], self.now + wait) + reads
        return wait

    def _cached(self, instruction: SassInstruction) -> set[int]:
        """Registers that are in the operand cache for every slot that reads them."""
        asked = {slot: _in_slot(instruction, slot) for slot in range(len(_SLOTS))}
        missed = {register for slot, register in asked.items() if self.kept.get(slot) != register}
        return {register for slot, register in asked.items() if self.kept.get(slot) == register} - missed


def _is_arithmetic(instruction: SassInstruction) -> bool:
    """Whether the instruction reads its operands from the banks when it issues: arithmetic of fixed latency."""
    return group_of(instruction) in (*_FMA, *_ALU) and not _QUEUED.fullmatch(instruction.opcode)


def _on_fma_pipe(instruction: SassInstruction) -> bool:
    return instruction.opcode == "IMAD" or group_of(instruction) in _FMA


def _registers(instruction: SassInstruction) -> set[int]:
    """Numbers of the general registers that it reads; a register in two slots is read once."""
    return {int(name[1:]) for name in instruction.reads if name[0] == "R"}


def _in_slot(instruction: SassInstruction, slot: int) -> int:
    """The register number in an operand slot; meaningless where the slot contains a constant."""
    last_is_no_register = slot == 1 and instruction.encoding >> 9 & 7 in _LAST_IS_NO_REGISTER
    return instruction.encoding >> _SLOTS[2 if last_is_no_register else slot] & 0xFF
