"""The scheduling fields that ptxas puts in every 128-bit instruction, decoded.

Since Volta each instruction carries scheduling information from the compiler in bits 105 to 125:

===========  =====  ==========================================================================================
bits         name   meaning
===========  =====  ==========================================================================================
105-108      stall  cycles before the same warp's next instruction may issue
109          yield  0: the scheduler should prefer another warp; 1: it may continue with this one
110-112      write  scoreboard that is released once the result is written; 7: none
113-115      read   scoreboard that is released once the operands have been read; 7: none
116-121      wait   scoreboards (one bit each) that must be released before this instruction issues
122-125      reuse  operand slots whose register is kept in the operand cache for the next instruction
===========  =====  ==========================================================================================

Sources: S. Gray, maxas wiki, "Control Codes" (the fields, on Maxwell, where they stand in an instruction of their own);
Z. Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018) and "Dissecting the NVidia Turing T4
GPU via Microbenchmarking" (2019) (their place in the 128 bits, the sense of the yield bit); D. Yan, turingas, and cloudcores,
CuAssembler (the same for sm_75 to sm_86, and that some opcodes use the reuse bits for other things). NVIDIA documents none of
it. For sm_75 to sm_120 the tests check it with ptxas's code: nvdisasm prints ``.reuse`` exactly where bits 122-125 say so,
and an instruction that reads the result of a load waits for the load's scoreboard.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_SCOREBOARD = 7
# Opcodes whose bits 122-125 mean something else: branches hold part of their target there (CuAssembler, "CuControlCode").
_NO_REUSE = frozenset({"BRA", "BRX", "JMP", "JMX", "CALL", "RET", "BRXU", "JMXU", "TEXS", "TLDS", "TLD4S"})


@dataclass(frozen=True, slots=True)
class Control:
    """The scheduling fields of one instruction.

    Attributes:
        stall: cycles until the warp's next instruction may issue, 0 to 15.
        prefers_switch: the scheduler is asked to issue another warp's instruction next (the yield bit is 0).
        write_barrier, read_barrier: scoreboard 0 to 5 that this instruction releases, or None.
        wait: scoreboards it waits for.
        reuse: operand slots 0 to 3 whose register is kept for the next instruction.
    """

    stall: int
    prefers_switch: bool
    write_barrier: int | None
    read_barrier: int | None
    wait: tuple[int, ...]
    reuse: tuple[int, ...]

    def __str__(self) -> str:
        """The notation of maxas and CuAssembler, ``B01----:R-:W2:-:S04``: wait, read, write, yield, stall."""
        wait = "".join(str(i) if i in self.wait else "-" for i in range(6))
        read = "-" if self.read_barrier is None else self.read_barrier
        write = "-" if self.write_barrier is None else self.write_barrier
        return f"B{wait}:R{read}:W{write}:{'Y' if self.prefers_switch else '-'}:S{self.stall:02d}"


def decode(encoding: int, opcode: str = "") -> Control:
    """The fields of a 128-bit instruction; given its opcode, ``reuse`` is empty where those bits mean something else."""
    write, read = encoding >> 110 & 7, encoding >> 113 & 7
    wait, reuse = encoding >> 116 & 0x3F, encoding >> 122 & 0xF
    return Control(
        stall=encoding >> 105 & 0xF,
        prefers_switch=not encoding >> 109 & 1,
        write_barrier=None if write == NO_SCOREBOARD else write,
        read_barrier=None if read == NO_SCOREBOARD else read,
        wait=tuple(i for i in range(6) if wait >> i & 1),
        reuse=() if opcode in _NO_REUSE else tuple(i for i in range(4) if reuse >> i & 1),
    )
