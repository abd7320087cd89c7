"""The fields that machine code shares with the wave: one array of 64-bit integers, most of them addresses of other arrays."""

from __future__ import annotations

from enum import IntEnum, auto


class Field(IntEnum):
    """Positions in the context."""

    ROWS = 0  # number of warps
    ROW = auto()  # int32 by warp: its row in the wave
    CTA = auto()  # int32 by warp: its CTA in the wave
    BLOCKS = auto()  # uint32 by warp and lane: the next block; NOWHERE for lanes that do not take part
    ACTIVE_ROWS = auto()  # number of warps with active lanes
    ACTIVE_ROW = auto()  # int32: the active warps
    ACTIVE_MASK = auto()  # uint32: their active lanes
    TAKEN = auto()  # uint32: of the active lanes, those for which the predicate of the branch holds
    LANES = auto()  # number of active lanes
    OTHERS = auto()  # whether lanes stand at other blocks
    REGISTERS = auto()  # the registers, by row of the wave
    SHARED = auto()
    SHARED_STRIDE = auto()  # bytes from one CTA's to the next one's
    SHARED_BEGIN = auto()  # lowest valid address
    SHARED_END = auto()
    LOCAL = auto()
    LOCAL_BYTES = auto()  # of each thread
    UNDEFINED = auto()  # undefined bits of local memory; 0 where it is not followed
    FRAME = auto()  # int64: what variables of the function have as addresses in local memory
    ALLOCATIONS = auto()  # number of allocations
    BASE = auto()  # uint64 by allocation
    END = auto()
    HOST = auto()  # where it is in the memory of the host
    SENTINEL = auto()  # int64: the byte that marks it as unwritten; -1 for none
    NO_STORES = auto()  # int64: not 0 where machine code must not store to it
    HINTS = auto()  # int64 by site: the allocation of its last access
    PARAMETERS = auto()  # the parameter buffer
    STEPS = auto()  # blocks that may still be executed
    LIMIT = auto()  # lanes must not execute a block after this one before others have run
    BLOCK = auto()  # result: the block whose terminator is to be executed
    STORED = auto()  # result: memory was changed
    TICKS = auto()  # result: instructions
    BLOCK_LANES = auto()  # int64 by block
    BLOCK_WARPS = auto()
    PREDICATED = auto()  # int64 by instruction: lanes for which the predicate holds
    BRANCHES = auto()  # int64 by instruction: warps at a branch
    DIVERGENT = auto()  # int64 by instruction
    UNWRITTEN = auto()  # int64 by instruction
    TRAFFIC = auto()  # int64 by site and space: lanes, units, wavefronts, conflicts
    MEMORY = auto()  # int64 by site and space: the addresses of its last access, as offsets, and their counts
    COUNTING = auto()  # whether traffic is counted
    CALLBACK = auto()  # int32 (kind, number, first active row): what Python has to do, see Request
    LOCAL_BASE = auto()  # where the stack frame of the function that is executed begins
    LEVEL = auto()  # calls of machine code by machine code that have not returned
    LEVELS = auto()  # records of these calls, see Level
    CODE = auto()  # by number of a function: its machine code; 0 for none
    STORAGE = auto()  # by number of a function and level: the registers of a call; 0 for none
    CALLS = auto()  # number of calls so far
    LIVE = auto()  # uint32 by warp: the lanes that have not exited
    LIVE_OF_CTA = auto()  # int32 by CTA: their number
    GATES = auto()  # not 0 if no lanes wait for others of their warp, so that machine code may let lanes pass
    LOCK = auto()  # the word of the lock of atomics
    SPUN = auto()  # result: an instruction after which other threads are executed first
    YIELDS = auto()  # uint32 by warp and lane: as Group.yielded, of the lanes of the outermost function
    YIELDING = auto()  # not 0 if a lane has such a number that is not 0
    YIELDED = auto()  # the number that lanes get when they move
    YIELD_COUNT = auto()  # the highest number so far
    MAY_YIELD = auto()  # not 0 if no threads are ready besides the lanes that take part
    SIZE = auto()


NOWHERE = 0xFFFFFFFF

PENDING = 0xFFFFFFFE
"""As the next block of a lane: it has not yet executed the call at the end of its block, which others perform before it."""

SPACES = ("global", "shared", "local")
"""The state spaces of :attr:`Field.TRAFFIC`, in this order."""

LANES, UNITS, WAVEFRONTS, CONFLICTS = range(4)
"""The counts of a site in one space."""


MAX_LEVELS = 1024
"""Calls that machine code nests; deeper ones are performed by the scheduler."""


class Level(IntEnum):
    """Positions in the record of a call by machine code."""

    FUNCTION = 0  # number of the function
    BLOCK = auto()  # the block that ends with the call
    LOCAL_BASE = auto()
    STAMP = auto()  # distinguishes the calls
    STANDING = auto()  # the next block of each lane, as BLOCKS
    CONSTANTS = auto()  # as FRAME
    SIZE = 8


class Request(IntEnum):
    """What machine code asks Python for."""

    SEGMENT = 0  # execute a segment by numpy
    BUILTIN = 1  # execute the function of the driver that a block calls
    STORAGE = 2  # provide the registers of a function at a level


class Status(IntEnum):
    """How machine code ends."""

    STOPPED = 0  # every lane is before its next block
    TERMINATOR = 1  # the active lanes have executed a block except for its terminator
    FAILED = 2  # a callback has raised an exception
    RETURNED = 4  # every lane of a function that machine code has called has returned
    DIVERGED = 3  # the active lanes have executed a block; some of them take its branch, which has been counted
