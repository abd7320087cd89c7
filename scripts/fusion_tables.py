"""Write the generated tables of docs/fusion.md: the kinds of operations, and predicted against measured speed-ups::

python scripts/fusion_tables.py            rewrite the page
python scripts/fusion_tables.py --check    exit with 1 if the page differs
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ptxkit.bench.results import expectations
from ptxkit.fusion.kinds import KINDS
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.model_validation import NOT_COMPARED, comparisons, rank_correlation

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fusion.md"
GPU = "NVIDIA H200"


def kinds() -> str:
    """The table of kinds, by family."""
    rows = ["| kind | family | inputs | result |", "|---|---|---|---|"]
    for name, kind in KINDS.items():
        least, most = kind.operands
        rows.append(f"| `{name}` | {kind.family} | {least if least == most else f'{least} to {most}'} | {kind.summary} |")
    return "\n".join(rows)


def comparison() -> tuple[str, float, int]:
    """The table of speed-ups, the rank correlation, and the number of cases."""
    found = sorted(comparisons(expectations.load(expectations.path_for(GPU)), machine_for(GPU)), key=lambda c: c.measured)
    rows = ["| case | predicted | measured | predicted / measured |", "|---|---|---|---|"]
    rows += [f"| `{c.case}`, {c.best} | {c.predicted:.2f} | {c.measured:.2f} | {c.error:.2f} |" for c in found]
    return "\n".join(rows), rank_correlation([(c.predicted, c.measured) for c in found]), len(found)


def replaced(page: str) -> str:
    """The page with new tables."""
    table, rho, count = comparison()
    excepted = "; ".join(f"`{name}` ({reason})" for name, reason in NOT_COMPARED.items())
    for mark, text in (("kinds", kinds()), ("comparison", table)):
        page = re.sub(rf"(<!-- {mark} -->\n)(\|[^\n]*\n)*", lambda m, t=text: f"{m[1]}{t}\n", page)
    page = re.sub(r"\(Spearman\) is \S+ over \S+ cases", f"(Spearman) is {rho:.2f} over {count} cases", page)
    return re.sub(r"Not compared:\s.*?\)\.\n", f"Not compared: {excepted}.\n", page, flags=re.DOTALL)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("::", 1)[0].strip() + ".")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page differs")
    given = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = replaced(before)
    if given.check:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
