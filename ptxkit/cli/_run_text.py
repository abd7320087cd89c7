"""The text of ``ptxkit run``: progress, the plan, the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxkit.bench.results.results import BASELINE
from ptxkit.cli._text import count, styled, table
from ptxkit.exit_codes import ExitCode
from ptxkit.quantities import optional, quantity, time_text
from ptxkit.runtime import registry

if TYPE_CHECKING:
    from ptxkit.bench.results.results import CaseResult, Results, Row
    from ptxkit.workload.choice import Choice

Cells = list[str]


def report_text(results: Results, choice: Choice | None = None) -> str:
    """The header, a row for each variant, and notes, of which the last is the chosen variant, where there is one."""
    (case,) = results.cases
    counted = not registry.measures_time(results.device_kind)
    headers, row = (COUNTED_HEADERS, counted_row) if counted else (TIMED_HEADERS, timed_row)
    ran = [v for v in case.rows if v.skipped is None]
    lines = [*header(case, results.device, results.target), ""]
    done = any(v.error is None for v in ran)  # failures are on stderr; rows of dashes would add nothing
    if done:
        lines.append(table([row(case, v) for v in ran], headers))
    notes = [f"{v.name}: skipped, {v.skipped}" for v in case.rows if v.skipped is not None]
    notes += [f"{v.name}: {tile_text(v)}" for v in ran if v.tile]
    notes += [f"{v.name}: compiled for {v.target}" for v in ran if v.target not in ("", results.target)]
    notes += [note for v in ran for note in misaligned(v)]
    if counted and done:
        notes.append("Counts are exact, of PTX instructions; the emulator has no times.")
        if results.iterations is not None:
            notes.append("ITERATIONS do not apply to exact counts: every variant ran once.")
    elif results.roofs:
        notes += [roof_text(case), "Times with a cold L2."]
        if case.conditions and any(v.cold and v.cold.dropped for v in ran):
            notes.append(str(case.conditions))
    if choice is not None and done:
        failed = any(v.name == choice.variant and (v.error is not None or v.verified is False) for v in ran)
        notes.append(f"Choice: {choice}{'; but it failed in this run, so name another one by --variant' if failed else ''}.")
    return "\n".join([*lines, "", *notes]).rstrip()


def roof_text(case: CaseResult) -> str:
    """Which roof the column "of roof" refers to."""
    if case.ceiling is not None:
        return f"Roof: {case.ceiling}."
    return f"Roof: none, because no peak rate of {case.unit} is known for this GPU, neither measured nor documented."


def tile_text(row: Row) -> str:
    """``"THREADS=256"``, and why it is not the default tile."""
    tile = " ".join(f"{name}={value}" for name, value in row.tile.items())
    return f"{tile} ({row.tile_note})" if row.tile_note else tile


def misaligned(row: Row) -> Iterator[str]:
    """Advice about bulk copies to shared memory that is not aligned to 128 bytes."""
    counted = row.counted
    if counted is not None and counted.misaligned_bytes:
        share = counted.misaligned_bytes / counted.copied_bytes
        yield (
            f"{row.name}: {share:.0%} of the bytes that cp.async.bulk copies to shared memory have a destination that is not "
            "aligned to 128 bytes, which costs up to a fifth of the bandwidth: declare it __align__(128)"
        )


def header(case: CaseResult, device: str, target: str) -> list[str]:
    """The header: kernel, sizes and device, and the minimum work of the problem."""
    from ptxkit.bench.report.tables import flops_text

    size_text = " ".join(f"{name}={value}" for name, value in case.sizes.items())
    return [
        f"{styled(case.kernel, bold=True)}  {size_text}  on {device} ({target})",
        f"work: {flops_text(case)}, {quantity(case.bytes, 'B')}, {case.intensity:.3g} flop/B",
    ]


def verdict(row: Row) -> Cells:
    """The cells about launches, the verdict, and the largest error."""
    kinds: dict[int, str] = {
        ExitCode.NOT_COMPILED: "does not compile",
        ExitCode.FAULT: "fault",
        ExitCode.TIME_LIMIT: "time limit",
    }
    if row.error is not None and (row.verified is None or row.exit_code in kinds):
        return [str(row.launches or "-"), styled(kinds.get(row.exit_code, "failed"), fg="red"), "-"]
    word = styled("verified", fg="green") if row.verified else styled("WRONG", fg="red")
    return [str(row.launches), word, optional(row.accuracy.max_rel if row.accuracy else None, ".2g")]


TIMED_HEADERS = ["variant", "launches", "", "max rel error", "time", "", "GB/s", "of roof", "speed-up", "flop/B"]


def timed_row(case: CaseResult, row: Row) -> Cells:
    """A variant with its time."""
    cells = [row.name, *verdict(row)]
    if row.cold is None:
        return cells + ["-"] * 6
    return [
        *cells,
        time_text(row.cold.median_us),
        f"± {100 * row.cold.relative_spread:.1f}%",
        optional(row.bandwidth_gbs, ".0f"),
        optional(row.roof_fraction, ".1%"),
        optional(case.ratio(case.row(BASELINE), row, "cold"), ".2f", "x"),
        f"{case.intensity:.3g}",
    ]


COUNTED_HEADERS = [
    "variant",
    "launches",
    "",
    "max rel error",
    "instructions",
    "loaded",
    "stored",
    "sectors",
    "bank conflicts",
    "flop/B",
]


def counted_row(case: CaseResult, row: Row) -> Cells:
    """A variant with its counts; the intensity is computed from the counted operations and bytes."""
    cells = [row.name, *verdict(row)]
    counted = row.counted
    if counted is None:
        return cells + ["-"] * 6
    return [
        *cells,
        count(counted.instructions),
        quantity(counted.load_bytes, "B"),
        quantity(counted.store_bytes, "B"),
        count(counted.load_sectors + counted.store_sectors),
        count(counted.bank_conflicts),
        optional(counted.intensity, ".3g"),
    ]


def plan_text(plan: Mapping[str, Any]) -> str:
    """The launches that a dry run shows."""
    device = plan["device"]
    size_text = " ".join(f"{name}={value}" for name, value in plan["sizes"].items())
    lines = [
        f"{styled(plan['kernel'], bold=True)}  {size_text}  on {device['name']} ({device['target']})",
        f"device memory: {quantity(plan['bytes_needed'], 'B')}",
        "",
    ]
    if "choice" in plan:
        chosen = plan["choice"]
        lines[1] += f"; choice: {chosen['variant']}, {chosen['reason']}"
    for variant in plan["variants"]:
        if variant["skipped"] is not None:
            lines.append(f"{variant['name']}: skipped, {variant['skipped']}")
            continue
        about = " ".join(filter(None, [variant["tile"], f"for {variant['target']}"]))
        lines.append(f"{variant['name']}: {about}")
        for launch in variant["launches"]:
            grid, block = ("x".join(map(str, launch[name])) for name in ("grid", "block"))
            extra = "".join(f", {name} {launch[name]}" for name in ("shared_bytes", "cluster") if launch[name])
            lines.append(f"  {launch['entry']} from {launch['source']}: grid {grid}, block {block}{extra}")
    return "\n".join(lines)
