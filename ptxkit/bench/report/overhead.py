"""The cost of a launch as a table, as CSV and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxkit.bench.report.csv_text import written
from ptxkit.bench.report.tables import Table
from ptxkit.bench.results.overhead import GROUP, Cost
from ptxkit.bench.results.statistics import Summary

SCHEMA = "ptxkit.overhead/1"


def table(device: str, arguments: int, found: Sequence[Cost]) -> Table:
    """One line for each way to launch."""
    notes = [
        f"medians in microseconds for a launch, +- half the interquartile range, of groups of {GROUP} launches",
        "host: the time of the call; device: of a launch in a queue that does not run empty",
    ]
    lines = [[cost.launch, _cell(cost.host), _cell(cost.device)] for cost in found]
    return Table(f"a kernel with {arguments} arguments that does nothing, on {device}", ["", "host", "device"], lines, notes)


def _cell(summary: Summary | None) -> str:
    return "-" if summary is None else f"{summary.median:.2f} \u00b1 {summary.spread:.2f}"


def csv(found: Sequence[Cost]) -> str:
    """Medians and spreads in microseconds."""
    headers = ["launch", "host_us", "host_spread_us", "device_us", "device_spread_us"]
    return written(headers, [[c.launch, *_numbers(c.host), *_numbers(c.device)] for c in found])


def _numbers(summary: Summary | None) -> list[Any]:
    return [None, None] if summary is None else [summary.median, summary.spread]


def to_json(device: Any, arguments: int, rounds: int, found: Sequence[Cost]) -> dict[str, Any]:
    """The object of schema ``ptxkit.overhead/1``."""
    return {
        "schema": SCHEMA,
        "device": {"kind": device.kind, "name": device.name, "target": device.architecture},
        "arguments": arguments,
        "rounds": rounds,
        "launches_in_a_group": GROUP,
        "launches": [
            {
                "launch": cost.launch,
                "host_us": cost.host.median,
                "host_spread_us": cost.host.spread,
                "device_us": None if cost.device is None else cost.device.median,
                "device_spread_us": None if cost.device is None else cost.device.spread,
            }
            for cost in found
        ],
    }
