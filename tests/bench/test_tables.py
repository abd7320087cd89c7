"""Results as tables."""

from __future__ import annotations

from dataclasses import replace

from ptxkit_bench_samples import make_results

from ptxkit.bench.report import tables
from ptxkit.bench.results.results import Accuracy


def cells(results):
    table = tables.case_table(results.cases[0], results.roofs and results.roofs.copy_gbs)
    return {row[0]: row for row in table.rows}


def test_ratios_are_of_the_same_run(results):
    fused = cells(results)["fused"]
    assert "25 us" in fused
    assert "4x" in fused  # 100 us unfused
    assert "1.6x" in fused  # 40 us torch


def test_wrong_alarmed_and_skipped_rows_are_said():
    table = tables.case_table(make_results(alarms=("cold: too fast",)).cases[0], 4250.0)
    assert "fused: ALARM: cold: too fast" in table.notes


def test_less_accurate_peers_are_said():
    case = make_results().cases[0]
    rows = (*case.rows[:-1], replace(case.rows[-1], less_accurate="3 of 10 elements of y exceed the tolerance"))
    table = tables.case_table(replace(case, rows=rows), 4250.0)
    assert "torch: less accurate: 3 of 10 elements of y exceed the tolerance" in table.notes


def test_markdown_is_a_table_of_its_own(results):
    table = tables.case_table(results.cases[0], 4250.0)
    lines = tables.render(table, "markdown").splitlines()
    assert lines[0].startswith("**saxpy n=1000")
    assert lines[2].startswith("|")


def test_comparison_says_whether_the_code_changed():
    before, after = make_results(), make_results(fused=30.0, cubin="c2")
    rows = {(r[1], r[2]): r for r in tables.compare_table(before, after).rows}
    assert rows["fused", "cold"][7:] == ["slower", "same PTX, other cubin"]
    assert rows["unfused", "cold"][7:] == ["same", "same cubin"]
    assert rows["torch", "cold"][8] == "same version"
    before, after = (make_results(cubin=cubin, code="m") for cubin in ("c1", "c2"))  # a comment was written
    assert {r[8] for r in tables.compare_table(before, after).rows if r[1] == "fused"} == {"same code"}


def test_comparison_of_other_machines_says_so():
    table = tables.compare_table(make_results(), make_results(gpu="NVIDIA B200"))
    assert table.notes == ["not the same machine: gpu NVIDIA H200 and NVIDIA B200"]


def test_variants_against_their_baseline(results):
    rows = {row[0]: row for row in tables.variants_table(results.cases[0]).rows}
    assert rows["fused"][2].startswith("faster (-75.0%")


def test_traffic_ratio_is_over_the_minimum(results):
    assert tables.traffic(results.cases[0], results.cases[0].rows[1].counted) == 1.0


def test_bit_for_bit_is_said_where_it_holds(results):
    same = [
        replace(row, accuracy=Accuracy(100, 1e-6, 1e-7, 1.0, outputs_sha256="o")) for row in results.cases[0].rows[:2]
    ]
    table = tables.variants_table(replace(results.cases[0], rows=same))
    assert table.rows[1][3] == "identical, bit for bit"


def test_a_comparison_is_a_table_a_target_where_people_read_it():
    before = make_results()
    other = replace(before.cases[0], sizes={"n": 2000})
    both = replace(before, cases=(*before.cases, other))
    table = replace(tables.compare_table(both, both), notes=["said once"])
    first, second = tables.by_case(table)
    assert (first.title, second.title) == ("saxpy n=1000", "saxpy n=2000")
    assert list(first.notes) == [] and list(second.notes) == ["said once"]
    assert first.rows[0][:2] == ["unfused", "cold"] and first.keys == 2
    empty = replace(table, rows=[])
    assert tables.by_case(empty) == [empty]


def test_a_table_fits_the_terminal_and_markdown_stays_whole(results):
    table = tables.case_table(results.cases[0], 4250.0)
    body = tables.render(replace(table, notes=()), "table", 80).split("\n")[2:]
    assert max(map(len, body)) <= 80
    assert tables.render(table, "markdown", 80) == tables.render(table, "markdown")


def test_variants_without_the_baseline_are_compared_with_the_first_that_ran(results):
    unfused, fused, peer = results.cases[0].rows
    failed = replace(unfused, cold=None, counted=None, error="out of memory")
    table = tables.variants_table(replace(results.cases[0], rows=(failed, fused, peer)))
    assert (table.headers[2], table.notes) == ("compared with fused", ["unfused: out of memory"])
    assert [row[0] for row in table.rows] == ["fused", "torch"]
    nothing = tables.variants_table(replace(results.cases[0], rows=()))
    assert "nothing was run" in tables.render(nothing, "table")


def test_a_target_without_any_figure_is_its_reasons_alone(results):
    rows = [replace(row, cold=None, hot=None, counted=None, error="no time") for row in results.cases[0].rows]
    table = tables.case_table(replace(results.cases[0], rows=rows), 4250.0)
    for kind in ("table", "markdown"):
        title, *notes = tables.render(table, kind).split("\n\n")
        assert "saxpy n=1000" in title and "cold" not in title + "".join(notes)
        assert "fused: error: no time" in notes[0]
