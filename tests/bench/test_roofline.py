"""The text and the picture of the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.report import roofline
from ptxkit.errors import UsageError


def test_the_roof_is_the_lower_of_the_two(results):
    point = {p.row: p for p in roofline.points(results)}["fused"]
    assert point.intensity == pytest.approx(2000 / 1200)
    assert point.bound == "memory"
    assert point.roof == pytest.approx(2000 / 1200 * 4.250)
    heavy = replace(results.cases[0], flops=10**9, rows=[replace(r, counted=None) for r in results.cases[0].rows])
    assert {p.bound for p in roofline.points(replace(results, cases=(heavy,)))} == {"f32"}


def test_measured_bytes_come_before_counted_ones(results):
    row = replace(results.cases[0].rows[1], measured={"dram_bytes": 4000.0})
    assert roofline.moved_intensity(results.cases[0], row) == 0.5


def test_peers_and_alarms_have_no_point():
    shown = {p.row for p in roofline.points(make_results(alarms=("no",)))}
    assert shown == {"unfused"}


def test_text_has_a_bar_a_variant(results):
    text = roofline.text(results)
    assert "ridge at 14.1 flop/B" in text
    assert text.count("·") > 0


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_drawn(results, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"r.{suffix}"
    roofline.draw(results, file)
    assert file.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")


def test_no_times_no_roofline(results, tmp_path):
    counted = replace(results, roofs=None)
    with pytest.raises(UsageError, match="needs times"):
        roofline.text(counted)
    with pytest.raises(UsageError, match=r"\.svg"):
        roofline.draw(results, tmp_path / "r.gif")


def test_names_leave_out_options_that_are_equal_in_all_cases(results):
    (case,) = results.cases
    two = [replace(case, options={"dtype": d, "eps": 1e-5}) for d in ("f32", "bf16")]
    named = replace(results, cases=two)
    assert [roofline._short(named, t.key) for t in two] == ["saxpy n=1000 dtype=f32", "saxpy n=1000 dtype=bf16"]
    assert roofline._short(replace(results, cases=two[:1]), two[0].key) == "saxpy n=1000"


def test_what_moves_nothing_has_no_place_under_the_roofs(results):
    still = replace(results.cases[0], bytes=0, rows=[replace(r, counted=None) for r in results.cases[0].rows])
    assert list(roofline.points(replace(results, cases=(still,)))) == []


def test_units_with_one_peak_are_named_together(results):
    roofs = replace(results.roofs, peak_tflops={"f32": 60.0, "bf16": 900.0, "f16": 900.0})
    assert roofline.peaks(roofs) == [("f32", 60.0), ("bf16, f16", 900.0)]
    assert "bf16, f16 900 TFLOP/s (ridge at 212 flop/B)" in roofline.text(replace(results, roofs=roofs))
