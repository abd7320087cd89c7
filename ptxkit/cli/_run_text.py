"""The text of ``ptxkit run``: progress, the plan, the table."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxkit.cli._text import count, styled, table
from ptxkit.exit_codes import ExitCode
from ptxkit.quantities import optional, quantity, time_text
from ptxkit.runtime import registry

if TYPE_CHECKING:
    from ptxkit.bench.results.run_report import RunReport, VariantReport
    from ptxkit.workload.launch import Work

Row = list[str]


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows progress on one line of stderr where that is a terminal; the line is cleared at the end."""
    shown = sys.stderr.isatty()
    last = 0  # columns of the current text; it is overwritten with blanks, which works on every terminal

    def write(text: str) -> None:
        nonlocal last
        try:
            sys.stderr.write(f"\r{text:<{last}}{chr(8) * max(0, last - len(text))}")
            sys.stderr.flush()
        except OSError:
            return
        last = len(text)

    def say(what: str) -> None:
        if shown:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # 0 where the terminal's width is unknown
            write(f"{what} ..."[: columns - 1])  # a line that wraps could not be cleared

    try:
        yield say
    finally:
        if shown:
            write("")


def report_text(report: RunReport) -> str:
    """The header, a row a variant, and notes."""
    counted = not registry.measures_time(report.device_kind)
    headers, row = (COUNTED_HEADERS, counted_row) if counted else (TIMED_HEADERS, timed_row)
    ran = [v for v in report.variants if v.skipped is None]
    lines = [*header(report.kernel, report.sizes, report.device_name, report.target, report.work), ""]
    done = any(v.error is None for v in ran)  # failures are reported on stderr; rows of dashes would add nothing
    if done:
        lines.append(table([row(report, v) for v in ran], headers))
    notes = [f"{v.name}: skipped, {v.skipped}" for v in report.variants if v.skipped is not None]
    notes += [f"{v.name}: {tile_text(v)}" for v in ran if v.tile]
    notes += [f"{v.name}: compiled for {v.target}" for v in ran if v.target not in ("", report.target)]
    notes += [note for v in ran for note in misaligned(v)]
    if counted and done:
        notes.append("Counts are exact, of PTX instructions; the emulator has no times.")
        if report.iterations is not None:
            notes.append("ITERATIONS do not apply to exact counts: every variant ran once.")
    elif report.roof_gbs:
        notes.append(
            f"Roof: {report.roof_gbs:.0f} GB/s, a device-to-device copy measured in this run. Times with a cold L2."
        )
    return "\n".join([*lines, "", *notes]).rstrip()


def tile_text(variant: VariantReport) -> str:
    """``"THREADS=256"``, and why it is not the default tile."""
    tile = " ".join(f"{name}={value}" for name, value in variant.tile.items())
    return f"{tile} ({variant.tile_note})" if variant.tile_note else tile


def misaligned(variant: VariantReport) -> Iterator[str]:
    """Advice about bulk copies to shared memory that is not aligned to 128 bytes."""
    counters = variant.counters
    if counters is not None and counters.async_misaligned_bytes:
        share = counters.async_misaligned_bytes / counters.async_bytes["global_to_shared"]
        yield (
            f"{variant.name}: {share:.0%} of the bytes copied to shared memory go, by cp.async.bulk, to less than 128-byte "
            "alignment, which costs up to a fifth of the pace: declare the destination __align__(128)"
        )


def header(kernel: str, sizes: Mapping[str, int], device: str, target: str, work: Work) -> list[str]:
    """The header: kernel, sizes and device, and the minimum work of the problem."""
    size_text = " ".join(f"{name}={value}" for name, value in sizes.items())
    return [
        f"{styled(kernel, bold=True)}  {size_text}  on {device} ({target})",
        f"work: {quantity(work.flops, 'flop')}, {quantity(work.bytes, 'B')}, {work.intensity:.3g} flop/B",
    ]


def verdict(variant: VariantReport) -> Row:
    """The cells about launches, the verdict, and the largest error."""
    if variant.error is not None:
        kinds: dict[int, str] = {
            ExitCode.NOT_COMPILED: "does not compile",
            ExitCode.FAULT: "fault",
            ExitCode.TIME_LIMIT: "time limit",
        }
        return [str(variant.launches or "-"), styled(kinds.get(variant.error.exit_code, "failed"), fg="red"), "-"]
    word = styled("verified", fg="green") if variant.verified else styled("WRONG", fg="red")
    error = variant.max_rel_error
    return [str(variant.launches), word, "-" if error is None else f"{error:.2g}"]


TIMED_HEADERS = ["variant", "launches", "", "max rel error", "time", "", "GB/s", "of roof", "speed-up", "flop/B"]


def timed_row(report: RunReport, variant: VariantReport) -> Row:
    """A variant with its time."""
    row = [variant.name, *verdict(variant)]
    if variant.time_us is None:
        return row + ["-"] * 6
    return [
        *row,
        time_text(variant.time_us.median),
        f"± {100 * variant.time_us.relative_spread:.1f}%",
        optional(variant.bandwidth_gbs, ".0f"),
        optional(variant.roof_fraction, ".1%"),
        optional(variant.speedup, ".2f", "x"),
        f"{report.work.intensity:.3g}",
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


def counted_row(report: RunReport, variant: VariantReport) -> Row:
    """A variant with its counts; the intensity is computed from the counted operations and bytes."""
    row = [variant.name, *verdict(variant)]
    counters = variant.counters
    if counters is None:
        return row + ["-"] * 6
    moved = counters.global_bytes
    return [
        *row,
        count(counters.instructions),
        quantity(counters.read_bytes, "B"),
        quantity(counters.written_bytes, "B"),
        count(counters.global_sectors),
        count(counters.shared_bank_conflicts),
        f"{counters.flops / moved:.3g}" if moved else "-",
    ]


def plan_text(plan: Mapping[str, Any]) -> str:
    """What a dry run would launch."""
    device = plan["device"]
    size_text = " ".join(f"{name}={value}" for name, value in plan["sizes"].items())
    lines = [
        f"{styled(plan['kernel'], bold=True)}  {size_text}  on {device['name']} ({device['target']})",
        f"device memory: {quantity(plan['bytes_needed'], 'B')}",
        "",
    ]
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
