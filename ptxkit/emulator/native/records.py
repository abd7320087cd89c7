"""The data that machine code executes: records of 64-bit integers for functions, blocks, segments, instructions and calls."""

from __future__ import annotations

from enum import IntEnum, auto

LEFT_OUT = -1
"""As the place of a predicate: there is none."""


class FunctionRecord(IntEnum):
    """Positions in the record of a function."""

    FIRST = 0  # index of its first block
    COUNT = auto()  # number of its blocks
    ROW_BYTES = auto()  # of the registers of a warp
    BLOCKS = auto()  # from here on, by block: its record; 0 for a block that machine code does not execute


class BlockRecord(IntEnum):
    """Positions in the record of a block."""

    INDEX = 0
    INSTRUCTIONS = auto()  # their number, with the terminator
    GATE = auto()  # the record of its gate; 0 for none, and ALL_OF_CTAS
    KIND = auto()  # of its terminator
    NEXT = auto()
    TARGET = auto()  # of a branch
    NUMBER = auto()  # of the terminator, in the program
    PLACE = auto()  # of the predicate or the called address, in the registers of a warp
    NEGATED = auto()
    RECONVERGES = auto()  # not 0 if the scheduler has to know that lanes part here
    CALLS = auto()  # addresses of functions, for calls through registers; see CallRecord
    TARGETS = auto()  # by function of CALLS, the record of the call; for a call by name its record itself
    COUNT = auto()  # of CALLS
    SEGMENTS = auto()  # number of segments, of each of which the address of the record follows
    SIZE = auto()


ALL_OF_CTAS = 1
"""As the gate of a block: all threads of a CTA that have not exited have to be there."""


class Kind(IntEnum):
    """What the terminator of a block is."""

    OTHER = 0  # what the scheduler performs
    FALL_THROUGH = auto()
    JUMP = auto()
    BRANCH = auto()
    DRIVER = auto()  # a call of a function of the driver
    CALL = auto()
    CALL_REGISTER = auto()
    RETURN = auto()


class CallRecord(IntEnum):
    """Positions in the record of a call."""

    FUNCTION = 0  # number of the callee
    CALLER_BYTES = auto()  # of local memory
    BYTES = auto()
    ENTRY = auto()  # the first block of the callee
    COUNT = auto()  # number of constants, of which each has two words from here on: see OWN in interpreter.py
    CONSTANTS = auto()


class InstructionRecord(IntEnum):
    """Positions in the record of an instruction; the last record of a segment has no form."""

    FORM = 0  # the function that executes it; 0 at the end of a segment
    GUARD = auto()  # where its predicate is, in the registers of a warp; LEFT_OUT for none
    FLIP = auto()  # -1 if the predicate is negated, else 0
    NUMBER = auto()  # in the program
    BYTES = auto()  # of the record
    OPERANDS = auto()  # from here on: two words for each operand, and what else the form reads


def with_records(text: str) -> str:
    """Text with the positions for ``{B_KIND}`` and the like: function F, block B, call L, instruction I, kind K."""
    parts = {"F": FunctionRecord, "B": BlockRecord, "L": CallRecord, "I": InstructionRecord, "K": Kind}
    for prefix, names in parts.items():
        for name in names:
            text = text.replace("{" + f"{prefix}_{name.name}" + "}", str(int(name)))
    return text
