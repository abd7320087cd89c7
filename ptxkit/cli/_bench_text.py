"""The text of ``ptxkit bench``: tables, and notes below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.report.tables import Table
    from ptxkit.bench.results.results import Results


def rendered(found: Sequence[Table], kind: Any) -> str:
    """Tables as text, as wide as the terminal."""
    from ptxkit.bench.report.tables import render
    from ptxkit.cli._text import terminal_width

    return "\n\n".join(render(table, kind, terminal_width()) for table in found)


def results_text(results: Results, kind: Any, notes: Sequence[str] = ()) -> str:
    """Everything that was found, a few tables for each case.

    Args:
        kind: ``"table"``, ``"markdown"`` or ``"csv"``. notes: further lines on the run; CSV has none.
    """
    if kind == "csv":
        from ptxkit.bench.report.csv_text import results_csv

        return results_csv(results)
    from ptxkit.bench.report import details, tables

    roof = results.roofs.copy_gbs if results.roofs else None
    found = [
        table
        for case in results.cases
        for table in (
            tables.case_table(case, roof),
            details.traffic_table(case),
            details.kernels_table(case),
            details.accuracy_table(case),
        )
        if table is not None
    ]
    absent = (f"{name}: not available, {reason}" for name, reason in results.absent.items())
    return "\n\n".join([rendered(found, kind), "\n".join([_how(results), *notes, *absent])])


def _how(results: Results) -> str:
    """How the values were obtained."""
    from ptxkit.bench.report.roofline import peaks

    roofs = results.roofs
    if roofs is None:
        return "Counts are exact, of PTX instructions; the emulator has no times. traffic ratio: bytes moved over the minimum."
    rates = "; ".join(f"{units} {value:.4g} TFLOP/s" for units, value in peaks(roofs))
    return (
        f"{results.device}: copy {roofs.copy_gbs:.0f} GB/s, in L2 {roofs.l2_gbs:.0f} GB/s; {rates}; all measured in this run. "
        "± is half the interquartile range. How: docs/benchmarking.md."
    )


def compared_text(before: Results, after: Results, kind: Any, *, distances: bool = False) -> str:
    """Two results compared, a table for each case.

    Args:
        distances: whether to add the ratios to the peers, before and now; not in CSV, which has the times.

    Raises:
        UsageError: they have no time and no count in common.
    """
    from ptxkit.bench.report import tables
    from ptxkit.errors import UsageError

    times = tables.compare_table(before, after)
    if not times.rows:
        raise UsageError(f"nothing in common: one has {_contents(before)}, the other {_contents(after)}")
    if kind == "csv":
        from ptxkit.bench.report.csv_text import compare_csv

        return compare_csv(before, after)
    further = tables.distance_table(before, after) if distances else None
    found = [table for table in (times, further) if table is not None]
    return rendered([part for table in found for part in tables.by_case(table)], kind)


def _contents(results: Results) -> str:
    """A short description of results: ``times of saxpy n=1000 and 2 more``."""
    keys = [case.key for case in results.cases]
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{'times' if results.roofs else 'counts'} of {keys[0]}{more}" if keys else "no cases"


def listed(plan: Plan, peers: Sequence[Any]) -> dict[str, str]:
    """A line of ``bench list``."""
    w = plan.workload
    sizes = " ".join(f"{k}={v}" for k, v in {**w.sizes, **_changed(plan)}.items())
    offering = " ".join(peer.name for peer in peers if peer.offers(w))
    return {"kernel": w.name, "sizes": sizes, "variants": " ".join(w.variants()), "peers": offering or "-"}


def _changed(plan: Plan) -> dict[str, Any]:
    """Options that are not the defaults."""
    defaults = type(plan.workload)()
    return {k: v for k, v in plan.workload.options.items() if v != getattr(defaults, k)}
