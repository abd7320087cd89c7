"""Counted intensities below documented roofs: what bounds them, and that no time is stated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.report import documented_roofline as report
from ptxkit.targets.gpus import find_gpu, target_of

GPU = find_gpu("H200")


@pytest.fixture
def counts():
    """Results without times: flops of the work 2000, bytes 1200; counted 600 and 1200."""
    return replace(make_results(), roofs=None, device_kind="emulator", target="sm_90a")


def test_the_counted_and_the_minimum_intensity_have_roofs_of_the_data_sheet(counts):
    (found,) = (p for p in report.placed(counts, GPU) if p.row == "fused")
    assert (found.counted.intensity, found.minimum.intensity) == (0.5, 2000 / 1200)
    assert found.counted.bound == "memory"
    assert found.counted.roof_tflops == pytest.approx(0.5 * GPU.bandwidth_gbs / 1e3)


def test_above_the_ridge_the_peak_rate_is_the_roof(counts):
    heavy = replace(counts.cases[0], flops=10**9)
    found = next(report.placed(replace(counts, cases=(heavy,)), GPU))
    assert (found.minimum.bound, found.minimum.roof_tflops) == ("f32", pytest.approx(GPU.peak_tflops["f32"]))


def test_a_type_without_a_documented_rate_has_no_bound(counts):
    other = replace(counts, cases=(replace(counts.cases[0], unit="e2m1"),))
    assert {(p.counted.bound, p.counted.roof_tflops) for p in report.placed(other, GPU)} == {("", None)}
    assert any("bound unknown for e2m1" in note for note in report.notes(other, GPU))


def test_peers_and_wrong_results_have_no_place(counts):
    case = counts.cases[0]
    wrong = replace(case, rows=[replace(r, verified=False) if r.name == "fused" else r for r in case.rows])
    assert [p.row for p in report.placed(replace(counts, cases=(wrong,)), GPU)] == ["unfused"]


def test_work_without_flops_has_no_intensity(counts):
    rows = [replace(r, counted=r.counted and replace(r.counted, flops=0)) for r in counts.cases[0].rows]
    still = replace(counts, cases=(replace(counts.cases[0], flops=0, rows=rows),))
    assert {(p.counted, p.minimum) for p in report.placed(still, GPU)} == {(None, None)}
    assert "-" in report.table(still, GPU).rows[0]


def test_every_form_says_that_nothing_was_timed(counts):
    assert report.UNTIMED in report.table(counts, GPU).notes
    value = report.to_json(counts, GPU)
    assert value["timed"] is False and value["source"] == "documented"
    header, *lines = report.csv(counts, GPU).splitlines()
    assert not [name for name in header.split(",") if name.endswith("_us")] and len(lines) == 2


@pytest.mark.parametrize(
    ("gpu", "target"), [("H200", "sm_90a"), ("b200", "sm_100a"), ("NVIDIA L40S", "sm_89"), ("T4", "sm_75")]
)
def test_the_target_of_a_gpu_is_the_most_specific_one(gpu, target):
    assert target_of(find_gpu(gpu)).name == target
