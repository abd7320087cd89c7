"""The environment variables of ptxkit: this table is the one place that names them, :func:`read` the one that reads them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from difflib import get_close_matches

PREFIX = "PTXKIT_"


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    Attributes:
        name: as it is set.
        meaning: what it sets, as the documentation says it.
        default: what holds where it is not set, in words.
    """

    name: str
    meaning: str
    default: str


CACHE_DIR = Variable("PTXKIT_CACHE_DIR", "Directory of the compile cache.", "`~/.cache/ptxkit/images`")
CACHE_LIMIT = Variable(
    "PTXKIT_CACHE_LIMIT", "Size of the compile cache: bytes, or with a unit as in `500M` and `2G`.", "`1G`"
)
CONFIG_DIR = Variable(
    "PTXKIT_CONFIG_DIR",
    "Directory of the winners that `ptxkit run --tune` and `sweep tiles --apply` record.",
    "`~/.config/ptxkit`",
)
STATE_DIR = Variable(
    "PTXKIT_STATE_DIR", "Directory of the journals from which a sweep continues.", "`~/.local/state/ptxkit`"
)
EMULATOR_THREADS = Variable(
    "PTXKIT_EMULATOR_THREADS", "Number of threads of the emulator.", "the processors that the process may use"
)
TEST_SCRATCH = Variable(
    "PTXKIT_TEST_SCRATCH", "Directory of ptxkit's own test run; set by the tests.", "a temporary directory"
)

VARIABLES = (CACHE_DIR, CACHE_LIMIT, CONFIG_DIR, STATE_DIR, EMULATOR_THREADS, TEST_SCRATCH)

_reported: set[str] = set()


def read(variable: Variable) -> str:
    """The value of a variable, ``""`` where it is not set; warns once of each name that is not in the table."""
    for complaint in complaints():
        warnings.warn(complaint, stacklevel=2)
    return os.environ.get(variable.name, "")


def complaints() -> list[str]:
    """What :func:`unknown` has found since the last call, for a caller that shows it."""
    new = [complaint for complaint in unknown() if complaint not in _reported]
    _reported.update(new)
    return new


def unknown() -> list[str]:
    """One line for each variable that begins like ptxkit's and is none of them."""
    known = [variable.name for variable in VARIABLES]
    found = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.75)
            fix = f"did you mean {near[0]}?" if near else f"the variables are {', '.join(known[:-1])}"
            found.append(f"{name} is set, which is no variable of ptxkit; {fix}")
    return found


def table() -> str:
    """The variables as the Markdown table of docs/environment.md."""
    rows = [f"| `{v.name}` | {v.meaning} | {v.default} |" for v in VARIABLES]
    return "\n".join(["| Variable | Meaning | Default |", "|---|---|---|", *rows])
