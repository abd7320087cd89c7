"""The report of ``ptxkit bench shapes``: speeds over the best peers by family, the worst cases, counts without a GPU. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxkit.bench.report.csv_text import written
from ptxkit.bench.report.tables import Table, traffic
from ptxkit.bench.results.judge import judge
from ptxkit.bench.results.results import CaseResult, Results, Row
from ptxkit.bench.results.statistics import quantile
from ptxkit.bench.shapes.grid import FAMILIES, Grid, family_of
from ptxkit.errors import UsageError
from ptxkit.exit_codes import ExitCode
from ptxkit.figures import drawn_to
from ptxkit.quantities import optional, quantity, time_text

WHAT = "speeds over the best peer"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORST = 10
NO_RIVAL = 10.0
"""The speed above which a case is left out of geometric means: no peer is then written for speed, and a single such case would
dominate a mean of many. Cases in which ptxkit is slow always count."""


@dataclass(frozen=True)
class Compared:
    """A case with a time of a variant and of a peer.

    Attributes:
        case: the result. mine, peer: the fastest variant and the fastest peer that are right.
        chosen: the row of the chosen variant, where it has a time.
    """

    case: CaseResult
    mine: Row
    peer: Row
    chosen: Row | None

    @property
    def family(self) -> str:
        """The family of the case."""
        return family_of(self.case.kernel, self.case.options)

    @property
    def ratio(self) -> float:
        """The time of the peer over that of the variant, with cold caches: above 1 the variant is faster."""
        return _median(self.peer) / _median(self.mine)

    @property
    def word(self) -> str:
        """``"faster"``, ``"slower"``, ``"same"`` or ``"ambiguous"``: the variant compared with the peer."""
        assert self.peer.cold is not None
        assert self.mine.cold is not None
        return judge(self.peer.cold, self.mine.cold).word

    @property
    def regret(self) -> float | None:
        """How much longer the chosen variant takes than the fastest, as a fraction; None where it has no time."""
        return None if self.chosen is None else _median(self.chosen) / _median(self.mine) - 1


def compared(results: Results) -> list[Compared]:
    """The cases in which a variant and a peer have cold times."""
    found = []
    for case in results.cases:
        mine, peer, chosen = case.best("variant", "cold"), case.best("peer", "cold"), case.row(case.chosen)
        if mine is not None and peer is not None:
            found.append(Compared(case, mine, peer, chosen if chosen is not None and chosen.cold else None))
    return found


def shapes_tables(results: Results, left_out: Sequence[str] = ()) -> list[Table]:
    """The tables of a sample: speeds by family and the worst cases, or on a device without times counts."""
    if results.roofs is None:
        return [_counted_cases(results), _counted_families(results, left_out)]
    found = compared(results)
    first = _worst(sorted(found, key=lambda c: c.ratio)[:WORST]) if found else _alone(results)
    return [first, _families(results, found, left_out)]


def _families(results: Results, found: Sequence[Compared], left_out: Sequence[str]) -> Table:
    headers = [
        "",
        "cases",
        "geometric mean",
        *(f"{100 * q:.0f}%" for q in QUANTILES),
        "faster",
        "same",
        "slower",
        "regret",
    ]
    rows = [_family(family, members) for family, members in _by_family(found, lambda c: c.family)]
    if len(rows) > 1:
        rows.append(_family("all", found))
    notes = [
        "Times are cold. Numbers are the time of the fastest peer over that of the fastest variant: above 1 ptxkit is faster.",
        "5% to 95%: quantiles over the cases.",
        *_without_rival(found),
        "faster, slower: by more than three times the noise of both; same: the others.",
        "regret: of the chosen variant against the fastest measured one, geometric mean; 0 if only the chosen one is measured.",
    ]
    if (count := len(results.cases) - len(found)) > 0:
        notes.append(f"{count} of {len(results.cases)} cases have no time of a variant and a peer:")
        paired = {id(c.case) for c in found}
        notes += [f"  {_name(case)}: {_why_not(case)}" for case in results.cases if id(case) not in paired]
    notes += _less_accurate(results)
    notes += _faults(results)
    notes += _spent(results)
    return Table(
        f"By family, on {results.device} ({results.target})", headers, rows, [*notes, *_absent(results, left_out)]
    )


def _spent(results: Results) -> list[str]:
    """What took how long, the longest first; nothing where it was not recorded. Peers: their preparation."""
    spent = dict(results.seconds)
    for case in results.cases:
        for step, seconds in case.seconds.items():
            spent[step] = spent.get(step, 0.0) + seconds
    ordered = sorted(spent.items(), key=lambda one: -one[1])
    steps = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in ordered if seconds >= 0.5)
    return [f"Of {sum(spent.values()):.0f} s: {steps}."] if steps else []


def _without_rival(found: Sequence[Compared]) -> list[str]:
    """The cases that geometric means leave out."""
    left = [c for c in found if c.ratio > NO_RIVAL]
    if not left:
        return []
    return [
        f"Geometric means leave out {len(left)} of {len(found)} cases, more than {NO_RIVAL:g} times as fast as every peer:",
        *(f"  {_name(c.case)}: {c.ratio:.1f}x" for c in left),
    ]


def _mean(found: Sequence[Compared]) -> str:
    """The geometric mean of the cases with a rival."""
    ratios = [c.ratio for c in found if c.ratio <= NO_RIVAL]
    return f"{geometric_mean(ratios):.3f}x" if ratios else "-"


def _family(name: str, found: Sequence[Compared]) -> list[str]:
    ratios = [c.ratio for c in found]
    words = [c.word for c in found]
    regrets = [1 + r for c in found if (r := c.regret) is not None]
    counts = (words.count("faster"), words.count("same") + words.count("ambiguous"), words.count("slower"))
    return [
        name,
        str(len(found)),
        _mean(found),
        *(f"{quantile(ratios, q):.2f}" for q in QUANTILES),
        *map(str, counts),
        f"{100 * (geometric_mean(regrets) - 1):.1f}%" if regrets else "-",
    ]


def _worst(found: Sequence[Compared]) -> Table:
    rows = [
        [
            _name(c.case),
            c.mine.name,
            time_text(_median(c.mine)),
            c.peer.name,
            time_text(_median(c.peer)),
            f"{c.ratio:.3f}x",
            c.word,
        ]
        for c in found
    ]
    return Table(f"The {len(rows)} cases with the lowest speed", ["", "variant", "", "peer", "", "speed", ""], rows)


def _alone(results: Results) -> Table:
    """The fastest variant of each case, where no peer was measured."""
    best = [(case, row) for case in results.cases if (row := case.best("variant", "cold")) is not None]
    rows = [[_name(c), r.name, time_text(_median(r)), optional(r.roof_fraction, ".1%")] for c, r in best]
    return Table("No case has the time of a peer", ["", "variant", "", "of roof"], rows)


def _counted_families(results: Results, left_out: Sequence[str]) -> Table:
    ratios = [(family_of(case.kernel, case.options), r) for case in results.cases if (r := _ratio(case)) is not None]
    rows = [
        [family, str(len(members)), *_spread([r for _, r in members])]
        for family, members in _by_family(ratios, lambda p: p[0])
    ]
    notes = [
        "Nothing was timed: the emulator counts the bytes of the chosen variants. traffic ratio: bytes moved over the minimum.",
        "The sizes are smaller than those of the grid, with the same remainders (docs/shapes.md).",
    ]
    headers = ["", "cases", "traffic ratio, geometric mean", "lowest", "highest"]
    return Table(
        f"By family, on {results.device} ({results.target})", headers, rows, [*notes, *_absent(results, left_out)]
    )


def _spread(ratios: Sequence[float]) -> list[str]:
    return [f"{value:.2f}x" for value in (geometric_mean(ratios), min(ratios), max(ratios))]


def _counted_cases(results: Results) -> Table:
    rows = []
    for case in results.cases:
        for row in case.rows:
            if (c := row.counted) is not None:
                moved = [
                    quantity(case.bytes, "B"),
                    quantity(c.moved_bytes, "B"),
                    optional(traffic(case, c), ".2f", "x"),
                ]
                family = family_of(case.kernel, case.options)
                rows.append([_name(case), family, row.name, "verified" if row.verified else "WRONG", *moved])
    return Table("", ["", "family", "variant", "", "minimum", "moved", "traffic ratio"], rows)


def _absent(results: Results, left_out: Sequence[str]) -> list[str]:
    return [
        *(f"{name}: not available, {why}" for name, why in results.absent.items()),
        *(f"left out: {t}" for t in left_out),
    ]


def _less_accurate(results: Results) -> list[str]:
    """The peers whose results have the roundings of libraries, a line for each case and error."""
    found = []
    for case in results.cases:
        by_text: dict[str, list[str]] = {}
        for row in case.rows:
            if row.less_accurate:
                by_text.setdefault(row.less_accurate, []).append(row.name)
        found += [f"  {_name(case)}: {', '.join(names)}: {text}" for text, names in by_text.items()]
    return ["Less accurate results of peers (docs/benchmarking.md):", *found] if found else []


def _faults(results: Results) -> list[str]:
    """The peers whose kernels failed, without which the others of their cases were measured."""
    found = [(case, row) for case in results.cases for row in case.rows if row.kind == "peer"]
    lines = [f"  {_name(case)}: {row.name}: {row.error}" for case, row in found if row.exit_code == ExitCode.FAULT]
    return ["Peers whose kernels failed:", *lines] if lines else []


def _why_not(case: CaseResult) -> str:
    if case.best("variant", "cold") is None:
        return (
            next((r.error or r.skipped or r.worst for r in case.rows if r.kind == "variant"), "no variant") or "no time"
        )
    peers = [row for row in case.rows if row.kind == "peer"]
    reasons = (f"{row.name}: {row.error or row.skipped or row.worst or 'no time'}" for row in peers)
    return "; ".join(reasons) or "none of the peers of this run computes it"


def shapes_csv(results: Results) -> str:
    """A line for each case: what was chosen, the fastest variant and peer with their cold medians, and the counts."""
    pairs = {id(c.case): c for c in compared(results)}
    header = [
        *("family", "case", "chosen", "variant", "cold_median_us", "peer", "peer_cold_median_us"),
        *("speed", "minimum_bytes", "moved_bytes"),
    ]
    lines: list[list[Any]] = []
    for case in results.cases:
        pair, mine = pairs.get(id(case)), case.best("variant", "cold") or case.row(case.chosen)
        peer = pair.peer if pair else case.best("peer", "cold")
        lines.append(
            [
                *(family_of(case.kernel, case.options), case.key, case.chosen),
                *_named_time(mine),
                *_named_time(peer),
                pair.ratio if pair else None,
                case.bytes,
                mine.counted.moved_bytes if mine and mine.counted else None,
            ]
        )
    return written(header, lines)


def _named_time(row: Row | None) -> tuple[str | None, float | None]:
    return (row.name if row else None), (row.cold.median_us if row and row.cold else None)


def list_tables(of: Grid) -> list[Table]:
    """The cases of a grid, and what kernels refuse."""
    cases = [
        [
            s.family,
            s.origin,
            s.workload.name,
            _fields({**s.workload.sizes, **_changed(s.workload)}),
            quantity(s.workload.work().bytes, "B"),
            quantity(s.workload.work().flops, "flop"),
        ]
        for s in of.shapes
    ]
    counts = ((family, len(members)) for family, members in _by_family(of.shapes, lambda s: s.family))
    notes = [f"{len(of.shapes)} cases: {', '.join(f'{family} {count}' for family, count in counts)}."]
    tables = [Table("", ["family", "origin", "kernel", "sizes", "bytes", "work"], cases, notes, texts=True)]
    if of.refused:
        rows = [[r.draft.family, r.draft.origin, r.draft.kernel, _fields(r.draft.fields), r.reason] for r in of.refused]
        title = f"{len(rows)} drafts that the constraints of their kernels refuse"
        tables.append(Table(title, ["family", "origin", "kernel", "sizes", "reason"], rows, texts=True))
    return tables


def draw(results: Results, path: str | Path) -> None:
    """Draw the speeds of all compared cases, sorted within each family, to a file whose suffix gives the format.

    Raises:
        UsageError: no case has times of a variant and a peer, another suffix, or a file that cannot be written.
        UnavailableError: matplotlib is not installed.
    """
    found = compared(results)
    if not found:
        raise UsageError("no case has times of a variant and a peer; there is nothing to draw")
    with drawn_to(path, WHAT, (12, 5)) as figure:
        axes, place = figure.subplots(), 0
        for family, members in _by_family(found, lambda c: c.family):
            ratios = sorted(c.ratio for c in members)
            label = f"{family} ({_mean(members)})"
            axes.plot(range(place, place + len(ratios)), ratios, "o", ms=4, label=label)
            place += len(ratios) + 1
        axes.axhline(1, color="0.35", lw=1)
        axes.set(yscale="log", xticks=[], ylabel="time of the fastest peer over that of the variant, cold")
        axes.set_title(f"{results.device}, run of {results.created}")
        axes.grid(which="both", axis="y", lw=0.3)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def geometric_mean(values: Iterable[float]) -> float:
    """The exponential of the mean of the logarithms of at least one value above 0."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _by_family(found: Sequence[Any], family: Callable[[Any], str]) -> list[tuple[str, list[Any]]]:
    """The families that occur, in their order, with their members."""
    groups: dict[str, list[Any]] = {}
    for one in found:
        groups.setdefault(family(one), []).append(one)
    return sorted(groups.items(), key=lambda item: FAMILIES.index(item[0]) if item[0] in FAMILIES else len(FAMILIES))


def _ratio(case: CaseResult) -> float | None:
    row = case.row(case.chosen)
    return traffic(case, row.counted) if row else None


def _median(row: Row) -> float:
    assert row.cold is not None
    return row.cold.median_us


def _changed(workload: Any) -> dict[str, Any]:
    defaults = type(workload)()
    return {k: v for k, v in workload.options.items() if v != getattr(defaults, k)}


def _fields(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _name(case: CaseResult) -> str:
    shown = {name: value for name, value in case.options.items() if name in ("dtype", "causal", "kv_heads")}
    return f"{case.kernel} {_fields({**case.sizes, **shown})}"
