"""The text form of ``--tolerance``: ``relative=1e-3,absolute=1e-6``, or ``sums=4096`` for the default of such sums."""

from __future__ import annotations

import re

from ptxkit.errors import DescriptionError, UsageError
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.tolerance import Rule, Sums
from ptxkit.workload.workload import suggestion

PARTS = ("relative", "absolute", "ulp", "typical")
FORM = "PART=NUMBER[,PART=NUMBER], such as relative=1e-3,absolute=1e-6, or sums=4096, or exact"


def parse_tolerance(text: str) -> Rule:
    """The tolerance with which ``--expect`` compares.

    Args:
        text: parts of a :class:`~ptxkit.workload.launch.Tolerance`; or ``sums=K``, the default of each array's type for results
            that are sums of K terms; or ``exact``.

    Raises:
        UsageError: another text; the message says which part is wrong.
    """
    if text.strip() == "exact":
        return Rule(Tolerance(), "--tolerance exact")
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if not (name and equals and number):
            raise UsageError(f"--tolerance takes {FORM}, not {text!r}")
        if name not in (*PARTS, "sums"):
            raise UsageError(f"--tolerance {text}: there is no part {name!r}; {suggestion(name, (*PARTS, 'sums'))}")
        if name in given:
            raise UsageError(f"--tolerance {text}: {name} is given twice")
        given[name] = _number(text, name, number)
    if "sums" in given:
        if len(given) > 1:
            raise UsageError(f"--tolerance {text}: sums choose the other parts; leave them out, or leave sums out")
        return Rule(sums=Sums(int(given["sums"]), stated=True))
    try:
        return Rule(Tolerance(**given), f"--tolerance {text}")
    except DescriptionError as error:
        raise UsageError(f"--tolerance {text}: {error}") from None


def _number(text: str, name: str, number: str) -> float:
    if name == "sums":
        if not re.fullmatch(r"[0-9]{1,15}", number) or int(number) < 1:
            raise UsageError(f"--tolerance {text}: sums takes a whole number of terms of at least 1, not {number!r}")
        return int(number)
    try:
        return float(number)
    except ValueError:
        raise UsageError(f"--tolerance {text}: {name} takes a number, not {number!r}") from None
