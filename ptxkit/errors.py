"""The hierarchy of the errors that ptxkit raises, each with its exit code (:class:`ptxkit.exit_codes.ExitCode`).

::

    PtxkitError                      exit code 9
    |-- UsageError                   2   bad argument: unknown kernel, size, option, launch argument
    |   |-- LaunchError              2   the arguments, grid or shared memory do not fit the kernel
    |   `-- DescriptionError         2   a kernel description is incomplete or contradicts itself
    |-- UnavailableError             3   no such device, target, tool or optional package here
    |-- CompileError                 4   NVRTC, ptxas or the linker refused the source
    |   |-- MissingKernelError       2   the source has no kernel, or several kernels, with the name that is given
    |   |-- PtxSyntaxError           4   the PTX text cannot be parsed
    |   `-- UnsupportedError         4   valid PTX that the emulator does not implement (lists every form)
    |-- FaultError                   5   a kernel failed while it ran
    |   |-- MemoryFault              5   out of bounds, misaligned, null or use-after-free access
    |   |-- DeadlockError            5   no thread can make progress; names what each thread waits for
    |   |-- InstructionLimitError    5   stopped by ``--max-instructions``; names where its threads are
    |   |-- RaceError                5   unordered conflicting accesses to shared memory (``--racecheck``)
    |   |-- UninitialisedError       5   an uninitialised value reaches memory, an address or a branch
    |   |-- ArithmeticTrap           5   the first division by zero, NaN or infinity (``--trap``)
    |   `-- TrapError                5   trap, a failed device assert, or an undefined operation
    |-- FileAccessError              7   a disk is full, or a file may not be read or written
    |-- TimeLimitError               8   a kernel did not finish within its time limit
    `-- VerificationError            1   a result differs from the reference

A message is one line that names the place and the fix. ``exit_code`` is what the command line exits with.
A traceback that is not one of these is a bug in ptxkit.
"""

from __future__ import annotations

import re

from ptxkit.exit_codes import ExitCode

_LONG_WORD = re.compile(r"\S{300,}")
_LONG_QUOTE = re.compile(r"""(?<!\w)(?:'[^'\n]{300,}'|"[^"\n]{300,}")(?!\w)""")


def shortened(message: str) -> str:
    """A message in which words and quoted texts of 300 characters and more, which a user gave, have their middle left out."""
    return _LONG_WORD.sub(_ends, _LONG_QUOTE.sub(_ends, message))


def _ends(found: re.Match[str]) -> str:
    text = found[0]
    return f"{text[:60]}...({len(text):,} characters)...{text[-40:]}"


class PtxkitError(Exception):
    """The base class of the errors that ptxkit raises. As text, very long names and paths in its message are shortened."""

    exit_code: int = ExitCode.INTERNAL

    def __str__(self) -> str:
        return shortened(super().__str__())


class UsageError(PtxkitError):
    """An argument, option or name that cannot be used as given."""

    exit_code = ExitCode.USAGE


class LaunchError(UsageError):
    """Launch arguments, grid, block or shared memory that do not fit the kernel."""


class DescriptionError(UsageError):
    """A kernel description that is incomplete or contradicts itself."""


class UnavailableError(PtxkitError):
    """A device, target, tool or optional package that is not available; the message says how to get it."""

    exit_code = ExitCode.UNAVAILABLE


class CompileError(PtxkitError):
    """NVRTC, ptxas or the linker refused the source.

    ``log`` holds the whole diagnostic text, already mapped to source lines.
    """

    exit_code = ExitCode.NOT_COMPILED

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class MissingKernelError(CompileError):
    """A name that no kernel of a source has, or that several have. The source compiles, so that the name must be corrected."""

    exit_code = ExitCode.USAGE


class PtxSyntaxError(CompileError):
    """PTX text that cannot be parsed; the message starts with file:line:column."""


class UnsupportedError(CompileError):
    """Valid PTX that the emulator does not implement; the message lists every such form, with its first place.

    Attributes:
        places: a line for each such instruction.
    """

    places: tuple[str, ...] = ()


class FaultError(PtxkitError):
    """A kernel failed while it ran."""

    exit_code = ExitCode.FAULT


class MemoryFault(FaultError):
    """An out-of-bounds, misaligned, null or freed address was accessed."""


class DeadlockError(FaultError):
    """No thread can make progress; the message names where each thread waits."""


class InstructionLimitError(FaultError):
    """A launch executed more instructions than ``max_instructions``; the message names where its threads are."""


class RaceError(FaultError):
    """Conflicting accesses to shared memory without synchronisation between them, or to global memory by launches on different
    streams; ``hazards`` has one entry per pair."""

    def __init__(self, message: str, hazards: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.hazards = hazards


class UninitialisedError(FaultError):
    """An address, a branch, an atomic or what is written to global memory depends on a value that was never initialised."""


class ArithmeticTrap(FaultError):
    """An integer was divided by zero, or a NaN or infinity was computed, in a launch with that trap enabled."""


class TrapError(FaultError):
    """The kernel executed trap, failed a device assert, or executed an operation whose behaviour is undefined."""


class FileAccessError(PtxkitError):
    """A file, a directory or stdout cannot be read or written: the disk is full, or permission is missing."""

    exit_code = ExitCode.FILE_ACCESS


class TimeLimitError(PtxkitError):
    """A kernel did not finish within its time limit."""

    exit_code = ExitCode.TIME_LIMIT


class VerificationError(PtxkitError):
    """A result differs from its reference."""

    exit_code = ExitCode.WRONG
