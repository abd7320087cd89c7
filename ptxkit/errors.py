"""Every error ptxkit raises on purpose, as one tree.

::

    PtxkitError                      exit code 1
    |-- UsageError                   2   bad argument: unknown kernel, size, option, launch argument
    |   |-- LaunchError              2   the arguments, grid or shared memory do not fit the kernel
    |   `-- DescriptionError         2   a kernel description is incomplete or contradicts itself
    |-- UnavailableError             3   no such device, target, tool or optional package here
    |-- CompileError                 4   NVRTC, ptxas or the linker refused the source
    |   |-- PtxSyntaxError           4   the PTX text cannot be parsed
    |   `-- UnsupportedError         4   valid PTX that the emulator does not implement (lists every form)
    |-- FaultError                   5   a kernel failed while it ran
    |   |-- MemoryFault              5   out of bounds, misaligned, null or use-after-free access
    |   |-- DeadlockError            5   nobody can make progress; says who waits on what
    |   |-- RaceError                5   accesses to shared memory that nothing puts in order (``--racecheck``)
    |   `-- TrapError                5   trap, a failed device assert, or an undefined operation
    `-- VerificationError            1   a result differs from the reference

A message is one line that names the place and the mend. ``exit_code`` is what the command line exits with.
A traceback that is not one of these is a bug in ptxkit.
"""

from __future__ import annotations


class PtxkitError(Exception):
    """Root of everything ptxkit raises on purpose."""

    exit_code = 1


class UsageError(PtxkitError):
    """An argument, option or name that cannot be used as given."""

    exit_code = 2


class LaunchError(UsageError):
    """Launch arguments, grid, block or shared memory that do not fit the kernel."""


class DescriptionError(UsageError):
    """A kernel description that is incomplete or contradicts itself."""


class UnavailableError(PtxkitError):
    """A device, target, tool or optional package that is not there; the message says how to get it."""

    exit_code = 3


class CompileError(PtxkitError):
    """NVRTC, ptxas or the linker refused the source.

    ``log`` holds the whole diagnostic text, already mapped to source lines.
    """

    exit_code = 4

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class PtxSyntaxError(CompileError):
    """PTX text that cannot be parsed; the message starts with file:line:column."""


class UnsupportedError(CompileError):
    """Valid PTX that the emulator does not implement; the message lists every such form."""


class FaultError(PtxkitError):
    """A kernel failed while it ran."""

    exit_code = 5


class MemoryFault(FaultError):
    """An out-of-bounds, misaligned, null or freed address was accessed."""


class DeadlockError(FaultError):
    """No thread can make progress; the message says who waits where."""


class RaceError(FaultError):
    """Accesses to shared memory that nothing puts in order; ``hazards`` has one entry for each pair of instructions."""

    def __init__(self, message: str, hazards: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.hazards = hazards


class TrapError(FaultError):
    """The kernel executed trap, failed a device assert, or did something undefined."""


class VerificationError(PtxkitError):
    """A result differs from its reference."""
