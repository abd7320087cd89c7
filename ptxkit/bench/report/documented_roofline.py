"""The roofline of a GPU as its data sheet documents it, with the intensities that the emulator counts: nothing is timed.

Two intensities of each variant are placed under the roofs. The counted one has the floating-point operations and the bytes of
global memory that the variant's threads and asynchronous copies execute and request, as the emulator counts them; caches may
serve a part of these bytes. The minimum one is that of the work itself, which loads and stores every array once. The rate that
the memory roof permits therefore lies between the two, depending on how much the caches serve. See
:mod:`ptxkit.bench.report.roofline` for the model and its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ptxkit.bench.report.csv_text import written
from ptxkit.bench.report.tables import Table
from ptxkit.bench.results.ceiling import Ceiling, bound
from ptxkit.bench.results.results import CaseResult, Results
from ptxkit.quantities import optional, quantity
from ptxkit.targets.gpus import Gpu

SCHEMA = "ptxkit.roofline/1"
UNTIMED = (
    "Nothing was timed: the roofs are those of the data sheet (ptxkit/targets/gpus.py), the intensities are counts of the "
    "emulator."
)


@dataclass(frozen=True)
class Place:
    """An intensity under the documented roofs.

    Attributes:
        flops, bytes: operations and bytes. intensity: their ratio, in flops per byte.
        bound: ``"memory"`` or the type whose peak rate is the roof; "" where no rate of the type is documented.
        roof_tflops: TFLOP/s that the roofs permit at this intensity; None without a roof.
    """

    flops: int
    bytes: int
    intensity: float
    bound: str
    roof_tflops: float | None


@dataclass(frozen=True)
class Placed:
    """A variant's two intensities.

    Attributes:
        case: key of the case. row: name of the variant. target: what it was compiled for. unit: type of its operands.
        counted: by the emulator; None where it counted no operations or no bytes.
        minimum: of the work; None where the work has no operations or no bytes.
    """

    case: str
    row: str
    target: str
    unit: str
    counted: Place | None
    minimum: Place | None


def placed(results: Results, gpu: Gpu) -> Iterator[Placed]:
    """Every variant that was counted, under the documented roofs of a GPU."""
    for case in results.cases:
        for row in case.rows:
            if row.kind == "variant" and row.counted is not None and row.verified is not False:
                c = row.counted
                yield Placed(
                    case.key,
                    row.name,
                    row.target,
                    case.unit,
                    _place(c.flops, c.moved_bytes, case.unit, gpu),
                    _place(case.executed, case.bytes, case.unit, gpu),
                )


def _place(flops: int, nbytes: int, unit: str, gpu: Gpu) -> Place | None:
    if not flops or not nbytes:
        return None
    found = _ceiling(flops, nbytes, unit, gpu)
    if found is None:
        return Place(flops, nbytes, flops / nbytes, "", None)
    return Place(flops, nbytes, flops / nbytes, found.bound, flops / found.time_us / 1e6)


def _ceiling(flops: int, nbytes: int, unit: str, gpu: Gpu) -> Ceiling | None:
    peak = gpu.peak_tflops.get(unit)
    return bound(
        flops,
        nbytes,
        unit,
        (gpu.bandwidth_gbs, "documented"),
        None if peak is None else (peak, "documented"),
    )


def table(results: Results, gpu: Gpu) -> Table:
    """A line for each variant: both intensities, and what bounds each."""
    rows = [
        [
            place.case,
            place.row,
            optional(place.counted.flops if place.counted else None, ",d"),
            quantity(place.counted.bytes, "B") if place.counted else "-",
            *_cells(place.counted),
            *_cells(place.minimum),
        ]
        for place in placed(results, gpu)
    ]
    headers = ["", "", "flops", "bytes", "flop/B", "bound by", "roof", "minimum flop/B", "bound by", "roof"]
    return Table(head(results, gpu), headers, rows, notes(results, gpu), keys=2)


def _cells(place: Place | None) -> tuple[str, str, str]:
    if place is None:
        return "-", "-", "-"
    return f"{place.intensity:.3g}", place.bound or "-", optional(place.roof_tflops, ".3g", " TFLOP/s")


def head(results: Results, gpu: Gpu) -> str:
    """The GPU, the target, and the documented roofs of the types of the results, each with its ridge."""
    rates = "; ".join(
        f"{unit} {gpu.peak_tflops[unit]:.4g} TFLOP/s (ridge at {gpu.peak_tflops[unit] * 1e3 / gpu.bandwidth_gbs:.3g} flop/B)"
        for unit in _units(results.cases)
        if unit in gpu.peak_tflops
    )
    memory = f"memory {gpu.bandwidth_gbs:.4g} GB/s"
    return f"{gpu.name}, code for {results.target}, documented roofs: {'; '.join(filter(None, [memory, rates]))}"


def notes(results: Results, gpu: Gpu) -> list[str]:
    """What was not run, which rates are unknown, what the columns mean, and that nothing was timed."""
    found = [
        f"{case.kernel} {row.name}: {row.skipped or row.error}"
        for case in results.cases
        for row in case.rows
        if row.skipped or row.error
    ]
    found += [f"{name}: not available, {reason}" for name, reason in results.absent.items()]
    if missing := [unit for unit in _units(results.cases) if unit not in gpu.peak_tflops]:
        found.append(f"bound unknown for {', '.join(missing)}: the data sheet of {gpu.name} states no peak rate")
    return [
        *found,
        "flops, bytes: executed and requested by threads and asynchronous copies; caches may serve a part of the bytes.",
        "minimum: every array loaded and stored once. roof: the rate that bandwidth and peak rate permit at an intensity.",
        UNTIMED,
    ]


def _units(cases: Sequence[CaseResult]) -> list[str]:
    return list(dict.fromkeys(case.unit for case in cases if case.flops))


def csv(results: Results, gpu: Gpu) -> str:
    """A line for each variant, with bare numbers: flops per byte, TFLOP/s."""
    names = ("flops", "bytes", "intensity", "bound", "roof_tflops")
    header = [
        "case",
        "candidate",
        "target",
        "unit",
        *(f"{of}_{name}" for of in ("counted", "minimum") for name in names),
    ]
    lines = [
        [p.case, p.row, p.target, p.unit]
        + [getattr(place, name, None) for place in (p.counted, p.minimum) for name in names]
        for p in placed(results, gpu)
    ]
    return written(header, lines)


def to_json(results: Results, gpu: Gpu) -> dict[str, Any]:
    """The object of schema ``ptxkit.roofline/1``; rates in TFLOP/s, the bandwidth in GB/s."""
    return {
        "schema": SCHEMA,
        "gpu": gpu.name,
        "target": results.target,
        "bandwidth_gbs": gpu.bandwidth_gbs,
        "peak_tflops": dict(gpu.peak_tflops),
        "source": "documented",
        "timed": False,
        "variants": [asdict(p) for p in placed(results, gpu)],
        "not_run": [
            {"case": case.key, "row": row.name, "reason": row.skipped or row.error}
            for case in results.cases
            for row in case.rows
            if row.skipped or row.error
        ],
    }
