"""The details of benchmark results besides the times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxkit.bench.report import details
from ptxkit.bench.results.results import Accuracy, Counted

MEASURED = {
    "dram_read_bytes": 8e6,
    "dram_write_bytes": 4e6,
    "dram_bytes": 12e6,
    "l2_hit_percent": 51.25,
    "occupancy_percent": 87.5,
    "registers": 30.0,
}


def column(table, header):
    at = table.headers.index(header)
    return {row[0]: row[at] for row in table.rows}


@pytest.fixture
def case(results):
    (case,) = results.cases
    unfused, fused, torch = case.rows
    more = Counted(2000, 600, 1600, 800, 50, 25, 0, 0.25)
    unfused = replace(unfused, counted=more, measured={**MEASURED, "dram_bytes": 36e6})
    return replace(case, rows=[unfused, replace(fused, measured=MEASURED), torch])


def test_traffic_is_counted_and_measured_and_fusion_saves_it(case):
    table = details.traffic_table(case)
    assert column(table, "loaded") == {"unfused": "1.6 kB", "fused": "800 B"}
    assert column(table, "counted, x unfused")["fused"] == "2.00x"
    assert column(table, "DRAM, x unfused")["fused"] == "3.00x"
    assert column(table, "DRAM read")["fused"] == "8 MB"
    assert column(table, "DRAM written")["fused"] == "4 MB"
    assert column(table, "L2 hits")["fused"] == "51.2%"
    assert column(table, "occupancy")["fused"] == "87.5%"
    assert column(table, "registers")["fused"] == "30"


def test_what_no_profiler_measured_has_no_column(results):
    table = details.traffic_table(results.cases[0])
    assert "loaded" in table.headers and "DRAM read" not in table.headers


def test_nothing_counted_and_nothing_measured_is_no_table(results):
    (case,) = results.cases
    assert details.traffic_table(replace(case, rows=[replace(r, counted=None) for r in case.rows])) is None


def test_accuracy_is_of_the_worst_output(results):
    (case,) = results.cases
    points = {
        "y": {"abs": {"50": 1e-9, "99.9": 2e-8}, "rel": {"50": 1e-8, "99.9": 1e-7}, "ulp": {"50": 0.25, "99.9": 0.5}},
        "z": {"abs": {"50": 3e-9, "99.9": 1e-8}, "rel": {"50": 1e-9, "99.9": 1e-8}, "ulp": {"50": 0.125, "99.9": 0.75}},
    }
    rows = [replace(r, accuracy=Accuracy(10, 4e-8, 2e-7, 1.5, points)) for r in case.rows[:1]]
    table = details.accuracy_table(replace(case, rows=rows))
    assert table.rows[0] == ["unfused", "3e-09 / 2e-08 / 4e-08", "1e-08 / 1e-07 / 2e-07", "0.25 / 0.75 / 1.5"]
