"""The fusion report as one HTML page without other files: totals, the graph before and after, the roofline, the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ptxkit.bench.report.tables import Table
from ptxkit.fusion.analysis import Candidate, Report
from ptxkit.fusion.cost import Cost, Group
from ptxkit.fusion.tables import explained, tables
from ptxkit.quantities import quantity, time_text
from ptxkit.targets.achievable import PRODUCT, VECTOR

BOX, LINE, GAP_X, GAP_Y, MARGIN = 190, 15, 18, 30, 12  # pixels of the drawn graph
WIDTH, HEIGHT = 640, 380  # of the roofline
LONGEST_NAME = 27  # characters that fit into a box


def page(report: Report) -> str:
    """The page as text."""
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    before, after = report.before, report.after
    title = escape(report.graph.name)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>Fusion report: {title}</title><style>{style}</style></head><body>',
        f"<h1>Fusion report: {title}</h1>",
        _assumptions(report),
        '<div class="totals">',
        _fact("launches", f"{before.launches:,}", f"{after.launches:,}"),
        _fact("bytes", quantity(before.bytes, "B"), quantity(after.bytes, "B")),
        _fact("predicted time", time_text(before.time_us), time_text(after.time_us)),
        "</div>",
        '<div class="graphs">',
        _figure("Before: a launch for each operation", _graph([(g, c, None) for g, c in report.operations])),
        _figure("After: merged launches", _graph(report.plan)),
        "</div>",
        _figure("Roofline: a ring for each operation, a disc for each merged launch", _roofline(report)),
        *(_table(table) for table in tables(report)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _assumptions(report: Report) -> str:
    machine = report.machine
    bandwidth = f"{machine.bandwidth_gbs:.0f} GB/s ({machine.source})"
    text = f"{machine.gpu.name}, {bandwidth}, {machine.launch_us:g} us for each launch. Predicted, not measured."
    return f"<p>{escape(text)}</p>"


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def _fact(name: str, before: str, after: str) -> str:
    return f"<div><b>{escape(name)}</b><span>{escape(before)}</span> &rarr; <span>{escape(after)}</span></div>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(header)}</th>" for header in table.headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    rows = (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        if table.rows
        else ""
    )
    return title + rows + notes


Node = tuple[Group, Cost, Candidate | None]


def _graph(nodes: Sequence[Node]) -> str:
    """The groups as boxes in layers: a group is drawn below all groups whose results it reads."""
    home = {name: i for i, (group, _, _) in enumerate(nodes) for name in group.results}
    above = [sorted({home[n] for n in group.reads() if n in home} - {i}) for i, (group, _, _) in enumerate(nodes)]
    depth = [0] * len(nodes)
    for _ in nodes:  # a merged group may precede one that it reads in the order of the graph
        depth = [max((depth[j] + 1 for j in sources), default=0) for sources in above]
    layers: dict[int, list[int]] = {}
    for i, d in enumerate(depth):
        layers.setdefault(d, []).append(i)
    heights = [LINE * (len(group.operations) + 1) + 12 for group, _, _ in nodes]
    widest = max(len(layer) for layer in layers.values())
    total_width = 2 * MARGIN + widest * (BOX + GAP_X) - GAP_X
    place: dict[int, tuple[float, float]] = {}
    y = float(MARGIN)
    for d in sorted(layers):
        row = layers[d]
        left = (total_width - (len(row) * (BOX + GAP_X) - GAP_X)) / 2
        for k, i in enumerate(row):
            place[i] = (left + k * (BOX + GAP_X), y)
        y += max(heights[i] for i in row) + GAP_Y
    total_height = y - GAP_Y + MARGIN
    drawn = [
        f'<svg viewBox="0 0 {total_width:g} {total_height:g}" width="{total_width:g}" height="{total_height:g}" role="img">'
    ]
    for i, sources in enumerate(above):
        for j in sources:
            x1, y1 = place[j][0] + BOX / 2, place[j][1] + heights[j]
            x2, y2 = place[i][0] + BOX / 2, place[i][1]
            middle = (y1 + y2) / 2
            drawn.append(f'<path class="edge" d="M{x1:g} {y1:g} C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"/>')
    for i, (group, cost, candidate) in enumerate(nodes):
        x, top = place[i]
        kind = "merged" if candidate is not None else "memory" if cost.bound in ("memory", "launch") else "compute"
        hint = escape(f"{group.name}: {explained(candidate)}" if candidate else group.name)
        drawn.append(
            f'<g class="{kind}"><title>{hint}</title><rect x="{x:g}" y="{top:g}" width="{BOX}" height="{heights[i]}" rx="5"/>'
        )
        for k, operation in enumerate(group.operations):
            name = operation.name if len(operation.name) <= LONGEST_NAME else operation.name[: LONGEST_NAME - 3] + "..."
            drawn.append(f'<text x="{x + 8:g}" y="{top + LINE * (k + 1):g}">{escape(name)}</text>')
        facts = f"{time_text(cost.time_us)}, {quantity(cost.bytes, 'B')}, {cost.bound}"
        drawn.append(f'<text class="dim" x="{x + 8:g}" y="{top + heights[i] - 8:g}">{escape(facts)}</text></g>')
    return "".join([*drawn, "</svg>"])


def _roofline(report: Report) -> str:
    """Attainable rate over intensity on logarithmic axes; a ring for each operation, a disc for each merged launch."""
    machine = report.machine
    before = [(g.name, c) for g, c in report.operations if c.flops and c.bytes]
    after = [(g.name, c) for g, c, candidate in report.plan if candidate and c.flops and c.bytes]
    points = [*before, *after]
    if not points:
        return "<p>No operation computes anything.</p>"
    units = sorted({cost.unit for _, cost in points})
    # f32 stands for the operations on the CUDA cores: as in the prediction, they run at another fraction of the peak
    parts = {unit: VECTOR if unit == "f32" else PRODUCT for unit in units}
    roofs = {unit: part * peak for unit, part in parts.items() if (peak := machine.peak(unit)) is not None}
    tera = machine.bandwidth_gbs / 1e3
    intensities = [cost.intensity for _, cost in points] + [peak / tera for peak in roofs.values()]
    low_x, high_x = _decades(intensities)
    rates = [_rate(cost) for _, cost in points] + list(roofs.values()) + [tera * low_x]
    low_y, high_y = _decades(rates)
    left, right, bottom, top = 60, WIDTH - 16, HEIGHT - 40, 16

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low_x) / math.log(high_x / low_x)
        up = math.log(min(max(y, low_y), high_y) / low_y) / math.log(high_y / low_y)
        return left + across * (right - left), bottom - up * (bottom - top)

    drawn = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">']
    for power in range(round(math.log10(low_x)), round(math.log10(high_x)) + 1):
        x, _ = at(10.0**power, low_y)
        drawn.append(f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{top}" y2="{bottom}"/>')
        drawn.append(f'<text class="dim" text-anchor="middle" x="{x:g}" y="{bottom + 16}">{10.0**power:g}</text>')
    for power in range(round(math.log10(low_y)), round(math.log10(high_y)) + 1):
        _, y = at(low_x, 10.0**power)
        drawn.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:g}" y2="{y:g}"/>')
        drawn.append(f'<text class="dim" text-anchor="end" x="{left - 6}" y="{y + 4:g}">{10.0**power:g}</text>')
    drawn.append(
        f'<text class="dim" text-anchor="middle" x="{(left + right) / 2:g}" y="{HEIGHT - 6}">flops per byte</text>'
    )
    drawn.append(
        f'<text class="dim" transform="translate(14 {(top + bottom) / 2:g}) rotate(-90)" text-anchor="middle">TFLOP/s</text>'
    )
    steepest = max(roofs.values(), default=tera * high_x)
    corner = min(high_x, steepest / tera)
    drawn.append(_line(at(low_x, tera * low_x), at(corner, tera * corner)))
    for unit, peak in roofs.items():
        start = min(max(peak / tera, low_x), high_x)
        drawn.append(_line(at(start, peak), at(high_x, peak)))
        x, y = at(high_x, peak)
        label = f"{unit}, {parts[unit]:.0%} of the documented peak"
        drawn.append(f'<text class="dim" text-anchor="end" x="{x - 4:g}" y="{y - 5:g}">{label}</text>')
    for points_of, kind in ((before, "ring"), (after, "disc")):
        for name, cost in points_of:
            x, y = at(cost.intensity, _rate(cost))
            hint = escape(f"{name}: {cost.intensity:.3g} flop/B, {_rate(cost):.3g} TFLOP/s")
            drawn.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="5"><title>{hint}</title></circle>')
    return "".join([*drawn, "</svg>"])


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line class="roof" x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"/>'


def _rate(cost: Cost) -> float:
    return cost.flops / cost.time_us / 1e6


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)
