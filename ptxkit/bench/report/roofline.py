"""The roofline of a run: attainable rate over arithmetic intensity, with the roofs of that run and a point for each variant.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009.
A variant's intensity is its flops over the bytes it moves, as the emulator counts both; where it was not counted, the work's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxkit.bench.report.tables import traffic
from ptxkit.bench.results.ceiling import Roofs, Source, ceiling
from ptxkit.bench.results.results import BASELINE, CaseResult, Mode, Results, Row
from ptxkit.columns import plain
from ptxkit.errors import UsageError
from ptxkit.figures import drawn_to
from ptxkit.quantities import optional

WHAT = "a roofline"
MARKERS = "os^Dv"  # one more after every ten colours
NAMED = 8  # with at most this many cases, the name of the best variant is drawn beside its point


@dataclass(frozen=True)
class Point:
    """A variant under the roofs.

    Attributes:
        case: its key. row: the variant's name.
        intensity: flops per byte moved. rate: TFLOP/s.
        roof: TFLOP/s attainable at that intensity; None where no peak rate of the type is measured or documented, because
            nothing can be said then of what bounds the variant.
        bound: ``"memory"`` or the type whose peak is the roof; "" without a roof. source: of the roof.
    """

    case: str
    row: str
    intensity: float
    rate: float
    roof: float | None
    bound: str
    source: Source = "measured"

    @property
    def fraction(self) -> float | None:
        """Rate over the roof; None without a roof."""
        return None if self.roof is None else self.rate / self.roof

    @property
    def bound_text(self) -> str:
        """``"memory"``, ``"bf16"``, ``"s8 (documented)"``; ``"-"`` without a roof."""
        return f"{self.bound} (documented)" if self.source == "documented" else self.bound or "-"


def points(results: Results, mode: Mode = "cold") -> Iterator[Point]:
    """Every variant that has a time and some flops.

    Raises:
        UsageError: the results have no times.
    """
    roofs = _roofs(results)
    for case in results.cases:
        for row in case.rows:
            timed = row.timed(mode)
            if row.kind == "variant" and timed and case.flops and not row.alarms and row.verified is not False:
                intensity = moved_intensity(case, row)
                rate = case.flops / timed.median_us / 1e6
                if math.isinf(intensity):  # it moves nothing, so it has no place on the axis of intensities
                    continue
                found = ceiling(case.executed, case.flops / intensity, case.unit, roofs, _bandwidth(case, roofs, mode))
                if found is None:
                    yield Point(case.key, row.name, intensity, rate, None, "")
                else:
                    roof = case.flops / found.time_us / 1e6
                    yield Point(case.key, row.name, intensity, rate, roof, found.bound, found.source)


def moved_intensity(case: CaseResult, row: Row) -> float:
    """Flops of the work over the bytes that the variant moves; infinite where there are none."""
    if row.measured and row.measured.get("dram_bytes"):
        return case.flops / row.measured["dram_bytes"]
    if row.counted is None or not row.counted.flops:
        return case.intensity
    over = traffic(case, row.counted)
    return case.intensity / over if over else case.intensity


def _bandwidth(case: CaseResult, roofs: Roofs, mode: Mode) -> float:
    return roofs.l2_gbs if mode == "hot" and case.lives_in == "L2" else roofs.copy_gbs


def _roofs(results: Results) -> Roofs:
    if results.roofs is None:
        raise UsageError(
            "these results are counts of the emulator; a roofline needs times, from a GPU. For documented roofs without times: "
            "ptxkit bench roofline --arch TARGET KERNEL"
        )
    return results.roofs


def ridge(roofs: Roofs, peak: float) -> float:
    """The intensity, in flops per byte, at which the memory roof meets a given peak in TFLOP/s."""
    return peak * 1e3 / roofs.copy_gbs


def peaks(roofs: Roofs, needed: Collection[str] = ()) -> list[tuple[str, float]]:
    """Types and their peak rate, those with the same one together: ``[("f32", 62.8), ("bf16, f16", 960.0)]``.

    Args:
        needed: types whose documented peak is listed, too, where none was measured.
    """
    types: dict[tuple[float, Source], list[str]] = {}
    for unit in dict.fromkeys((*roofs.peak_tflops, *needed)):
        if (peak := roofs.peak(unit)) is not None:
            types.setdefault(peak, []).append(unit)
    note = {"measured": "", "documented": " (documented)"}
    return [(", ".join(names) + note[source], value) for (value, source), names in types.items()]


def without_peak(results: Results, roofs: Roofs) -> list[str]:
    """The types of the results' flops whose peak rate is neither measured nor documented."""
    return [unit for unit in dict.fromkeys(c.unit for c in results.cases if c.flops) if roofs.peak(unit) is None]


def text(results: Results, mode: Mode = "cold", bars: int = 40, width: int | None = None) -> str:
    """A line for each variant: intensity, rate, and a bar for its fraction of the roof.

    Args:
        bars: columns of the longest bar. width: of the terminal that it must fit, or None.
    """
    roofs = _roofs(results)
    bars = bars if width is None else max(10, min(bars, width // 5))
    rows = []
    for p in sorted(points(results, mode), key=lambda p: (p.case, p.intensity)):
        filled = min(bars, round(bars * (p.fraction or 0)))
        bar = "-" if p.fraction is None else "█" * filled + "·" * (bars - filled)
        of_roof = optional(p.fraction, ".1%")
        rows.append([p.case, p.row, f"{p.intensity:.3g}", f"{p.rate:.3g}", p.bound_text, of_roof, bar])
    units = [case.unit for case in results.cases if case.flops]
    ridges = [
        f"{names} {peak:.4g} TFLOP/s (ridge at {ridge(roofs, peak):.3g} flop/B)" for names, peak in peaks(roofs, units)
    ]
    head = f"{results.device}, {mode}: copy {roofs.copy_gbs:.0f} GB/s, L2 {roofs.l2_gbs:.0f} GB/s, {', '.join(ridges)}"
    headers = ["", "", "flop/B", "TFLOP/s", "bound by", "of roof", ""]
    align = ("left", "left", "right", "right", "right", "right", "right")
    missing = without_peak(results, roofs)
    note = f"\n\nbound unknown for {', '.join(missing)}: no peak rate was measured or is documented" if missing else ""
    return f"{head}\n\n{plain(rows, headers, align, width)}{note}"


def draw(results: Results, path: str | Path, mode: Mode = "cold") -> None:
    """Draw it to a file; the format follows from its suffix.

    Raises:
        UsageError: no times, another suffix, or a file that cannot be written.
        UnavailableError: matplotlib is not here.
    """
    shown = list(points(results, mode))
    if not shown:
        raise UsageError(f"no variant of these results has a {mode} time and flops")
    with drawn_to(path, WHAT, (12, 6)) as figure:
        _plot(figure.subplots(), results, shown, mode)


def _plot(axes: Any, results: Results, shown: list[Point], mode: Mode) -> None:
    roofs = _roofs(results)
    intensities = [p.intensity for p in shown]
    ridges = [ridge(roofs, peak) for peak in roofs.peak_tflops.values()]
    low, high = min([*intensities, 1]) / 4, max([*intensities, *ridges]) * 4
    units = [case.unit for case in results.cases if case.flops]
    top = max((peak for _, peak in peaks(roofs, units)), default=high * roofs.copy_gbs / 1e3)
    memory = [("copy", roofs.copy_gbs, "-")]
    if mode == "hot":
        memory.append(("L2 copy", roofs.l2_gbs, "--"))
    for name, bandwidth, style in memory:
        end = min(high, top * 1e3 / bandwidth)
        axes.plot([low, end], [low * bandwidth / 1e3, end * bandwidth / 1e3], style, color="0.35", lw=1.2)
        below = {"textcoords": "offset points", "va": "top", "color": "0.35", "fontsize": 8}
        axes.annotate(f"{name} {bandwidth:.0f} GB/s", (low, low * bandwidth / 1e3), (8, 2), **below)
    for unit, peak in peaks(roofs, units):
        axes.plot([ridge(roofs, peak), high], [peak, peak], color="0.35", lw=1.2)
        axes.annotate(f"{unit} {peak:.4g} TFLOP/s", (high, peak), ha="right", va="bottom", color="0.35", fontsize=8)
    for number, key in enumerate(dict.fromkeys(p.case for p in shown)):
        mine = [p for p in shown if p.case == key]
        color, marker = f"C{number % 10}", MARKERS[number // 10 % len(MARKERS)]
        axes.plot(
            [p.intensity for p in mine], [p.rate for p in mine], marker, color=color, ms=5, label=_short(results, key)
        )
        base = next((p for p in mine if p.row == BASELINE), None)
        best = max(mine, key=lambda p: p.rate)
        if base is not None and best is not base:
            arrow = {"arrowstyle": "->", "color": color, "lw": 1.2}
            axes.annotate("", (best.intensity, best.rate), (base.intensity, base.rate), arrowprops=arrow)
        if len({p.case for p in shown}) > NAMED:
            continue
        axes.annotate(
            best.row, (best.intensity, best.rate), (4, 4), textcoords="offset points", fontsize=7, color=color
        )
    moved = any(row.counted or row.measured for case in results.cases for row in case.rows)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="arithmetic intensity, flop per byte " + ("moved" if moved else "of the work (nothing was counted)"),
        ylabel="TFLOP/s",
        title=f"{results.device}, {mode}; roofs measured in the run of {results.created}",
    )
    axes.grid(which="both", lw=0.3)
    axes.legend(
        fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0
    )  # beside the roofs, not on them


def _short(results: Results, key: str) -> str:
    """A case's name without the options that are the same in every case of its kernel."""
    case = results.case(key)
    assert case is not None
    alike = [t.options for t in results.cases if t.kernel == case.kernel]
    shown = {k: v for k, v in case.options.items() if any(other.get(k) != v for other in alike)}
    return " ".join([case.kernel, *(f"{k}={v}" for k, v in {**case.sizes, **shown}.items())])
