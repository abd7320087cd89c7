"""Write docs/ptx_forms.md: the instruction forms of PTX that the emulator does not execute, and why.

::

    python scripts/write_forms.py            # writes the page
    python scripts/write_forms.py --check    # exits with 1 where it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from tabulate import tabulate

from ptxkit.emulator.instructions.builtins import NOT_PROVIDED
from ptxkit.emulator.simt.absent import ABSENT

PAGE = Path(__file__).resolve().parents[1] / "docs/ptx_forms.md"

_HEAD = """# Instruction forms that the emulator does not execute

The emulator executes the instruction forms that the PTX ISA manual has listed since version 1.0 and that ptxas takes for
sm_90a or sm_100a, except those of this table. A kernel that contains one is refused before the launch, with the line and the
reason. The table is written by `scripts/write_forms.py` from `ptxkit/emulator/simt/absent.py`; tests compare the forms of the
manual with what ptxas and the emulator take.

"""

_FUNCTIONS = """
Functions of the device runtime that are declared without a body and not provided:

"""


def page() -> str:
    """The text of the page."""
    forms = tabulate(
        [(f"`{a.forms}`", a.reason) for a in ABSENT], headers=("forms", "not emulated, because"), tablefmt="github"
    )
    reasons: dict[str, list[str]] = {}
    for name, reason in NOT_PROVIDED.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    rows = [(", ".join(names), reason) for reason, names in reasons.items()]
    functions = tabulate(rows, headers=("functions", "reason"), tablefmt="github")
    return f"{_HEAD}{forms}\n{_FUNCTIONS}{functions}\n"


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code."""
    text = page()
    if arguments == ["--check"]:
        current = PAGE.read_text() if PAGE.is_file() else ""
        if current != text:
            print(f"{PAGE.name} is not up to date; run python scripts/write_forms.py")
        return int(current != text)
    PAGE.write_text(text)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
