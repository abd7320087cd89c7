"""The exit codes of every command: the one table that errors, help texts and documents take them from."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What a command exits with. Each member has the sentence that tables and help texts show as its ``meaning``."""

    meaning: str

    DONE = 0, "done; every variant that was run is verified"
    WRONG = (
        1,
        "a wrong result, or a regression: a variant became slower, counts more than expected, or could not be timed",
    )
    USAGE = (
        2,
        (
            "usage: unknown kernel or option, bad size, a path that does not exist or is a directory, a mistake in a kernel "
            "description"
        ),
    )
    UNAVAILABLE = 3, "not available here: device, target, tool, package, memory or expectations"
    NOT_COMPILED = 4, "a source does not compile, or has PTX that the emulator does not implement"
    FAULT = 5, "a kernel faulted: memory, deadlock, race, trap"
    NOTHING_VERIFIED = 6, "nothing was verified: every variant was skipped"
    FILE_ACCESS = 7, "a file, a directory or stdout cannot be read or written: full, or without permission"
    TIME_LIMIT = 8, "a time limit (`--timeout`) passed"
    INTERNAL = 9, "another failure: of ptxkit itself or of a package that it calls"
    INTERRUPTED = 130, "interrupted (Ctrl-C); what was measured by then is kept"
    BROKEN_PIPE = 141, "the reader of stdout has closed it"
    TERMINATED = 143, "terminated (SIGTERM); what was measured by then is kept"

    def __new__(cls, value: int, meaning: str = "") -> ExitCode:
        """A member with its meaning."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


SEVERITY = (
    ExitCode.INTERNAL,
    ExitCode.FAULT,
    ExitCode.TIME_LIMIT,
    ExitCode.WRONG,
    ExitCode.NOT_COMPILED,
    ExitCode.USAGE,
    ExitCode.UNAVAILABLE,
    ExitCode.NOTHING_VERIFIED,
    ExitCode.DONE,
)
"""The order in which one code is chosen where variants failed for different reasons: the first that applies."""


def most_severe(codes: Iterable[int]) -> ExitCode:
    """The code to exit with when several apply: the first of :data:`SEVERITY`; ``DONE`` for none."""
    return min((ExitCode(code) for code in codes), key=_rank, default=ExitCode.DONE)


def _rank(code: ExitCode) -> int:
    return SEVERITY.index(code) if code in SEVERITY else -1


def markdown_rows() -> list[str]:
    """The rows of the table in documents."""
    return [f"| {code.value} | {code.meaning} |" for code in ExitCode]
