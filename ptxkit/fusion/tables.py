"""The fusion report as text: tables for a terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ptxkit.bench.report.tables import Format, Table, render
from ptxkit.fusion.analysis import Candidate, Report, Total
from ptxkit.fusion.cost import Cost
from ptxkit.quantities import quantity, time_text

NOTE = (
    "Times are predictions: bytes over bandwidth, flops over peak rate, and a constant for each launch. "
    "`ptxkit run` and `ptxkit bench` verify and measure."
)


def text(report: Report, kind: Format, width: int | None = None) -> str:
    """The whole report."""
    return "\n\n".join(render(_in_lines(table), kind, width) for table in tables(report))


def _in_lines(table: Table) -> Table:
    """The table with line breaks and other control characters, which names may have, as escape sequences."""

    def line(text: str) -> str:
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

    rows = [[line(cell) for cell in row] for row in table.rows]
    return replace(table, title=line(table.title), rows=rows)


def tables(report: Report) -> Iterator[Table]:
    """The tables of a report: operations, neighbours, groups, bundled kernels, totals."""
    graph, machine = report.graph, report.machine
    title = (
        f"{graph.name}; {machine.gpu.name}: {machine.bandwidth_gbs:.0f} GB/s ({machine.source}), "
        f"{machine.launch_us:g} us for each launch"
    )
    rows = [
        [group.name, group.operations[0].kind, shapes(group.operations[0].outputs, report), *numbers(cost)]
        for group, cost in report.operations
    ]
    headers = ["operation", "kind", "result", "flops", "bytes", "flop/B", "bound", "time"]
    yield Table(title, headers, rows, graph.remarks, keys=1)
    yield Table(
        "Neighbours, each pair by itself",
        ["pair", "verdict", "score", "saves", "reason"],
        [[c.group.name, c.verdict, f"{c.score.total:.2f}", saving(c), explained(c)] for c in report.pairs],
        texts=True,
    )
    found = [
        [
            c.group.name,
            verdict(c),
            f"{c.score.total:.2f}",
            saving(c),
            f"{c.speedup:.2f}x",
            registers(c),
            c.offer.text if c.offer else "no bundled kernel, and no formula",
        ]
        for c in report.groups
    ]
    if found:
        headers = ["group", "verdict", "score", "saves", "predicted", "registers", "computed by"]
        yield Table("Launches that are best merged", headers, found, texts=True)
    else:
        yield Table("", [], [], ["No operations of this graph are worth merging on this GPU."])
    if report.bundled:
        rows = [[group.name, offered.text] for group, offered in report.bundled]
        title = "Bundled kernels for other groups of operations, in one launch or several"
        yield Table(title, ["group", "computed by"], rows, texts=True)
    before, after = report.before, report.after
    totals = [total("unfused", before, before), total("fused", after, before)]
    times = f", {graph.repeat} times" if graph.repeat > 1 else ""
    yield Table(f"Total{times}", ["", "launches", "bytes", "predicted", ""], totals, [NOTE])


def shapes(names: tuple[str, ...], report: Report) -> str:
    """``"4096 x 4096 bf16"``."""
    tensors = [report.graph.tensors[name] for name in names]
    first = f"{' x '.join(map(str, tensors[0].shape)) or '1'} {tensors[0].dtype}"
    return first if len(tensors) == 1 else f"{first}, ..."


def numbers(cost: Cost) -> list[str]:
    """Flops, bytes, intensity, bound and time of a launch."""
    return [
        quantity(cost.flops),
        quantity(cost.bytes, "B"),
        f"{cost.intensity:.3g}",
        cost.bound,
        time_text(cost.time_us),
    ]


def verdict(candidate: Candidate) -> str:
    """The verdict, with the condition of an IF."""
    return f"IF {candidate.judgement.condition}" if candidate.verdict == "IF" else candidate.verdict


def saving(candidate: Candidate) -> str:
    """``"16.8 MB, 1 launch, 4.9 us"``."""
    launches = f"{candidate.saved_launches} launch{'es' if candidate.saved_launches > 1 else ''}"
    return f"{quantity(candidate.saved_bytes, 'B')}, {launches}, {time_text(candidate.saved_us)}"


def registers(candidate: Candidate) -> str:
    """Registers of the compiled kernel with its occupancy, or about how many a kernel would need."""
    facts = candidate.compiled
    if facts is None:
        return f"about {candidate.registers}"
    return f"{facts.registers} ({facts.variant}: {facts.shared_bytes:,} B shared, occupancy {facts.occupancy:.0%})"


def explained(candidate: Candidate) -> str:
    """The reason; for an IF with the condition, and whether it holds."""
    if candidate.verdict != "IF":
        return candidate.reason
    holds = "which holds here" if candidate.judgement.met else "which does not hold here"
    return f"{candidate.reason}; fuse if {candidate.judgement.condition}, {holds}"


def total(name: str, one: Total, before: Total) -> list[str]:
    """A row of the totals."""
    ratio = f"{before.time_us / one.time_us:.2f}x" if one is not before else ""
    return [name, f"{one.launches:,}", quantity(one.bytes, "B"), time_text(one.time_us), ratio]
