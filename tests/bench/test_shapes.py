"""The grid of shapes: deterministic, within its bounds, accepted by its kernels; samples, smaller sizes, and the report."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptxkit_bench_samples import make_results, timed

from ptxkit.bench.report import shapes as report
from ptxkit.bench.results.results import Row
from ptxkit.bench.shapes import grid as of
from ptxkit.bench.shapes.grid import FAMILIES, Draft, Refused, Shape, bounded, grid, is_bounded
from ptxkit.bench.shapes.models import DIMENSIONS
from ptxkit.bench.shapes.planned import planned
from ptxkit.bench.shapes.reduced import KEPT, reduced
from ptxkit.errors import UsageError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import registry

SEEDS = st.integers(0, 2**32)


def test_the_grid_has_at_least_200_different_cases_of_all_families():
    shapes = grid().shapes
    assert len({s.workload for s in shapes}) == len(shapes) >= 200
    assert {s.family for s in shapes} == set(FAMILIES)


def test_every_family_has_models_and_most_have_awkward_and_random_sizes():
    for family in FAMILIES:
        origins = {s.origin for s in grid().shapes if s.family == family}
        assert origins & set(DIMENSIONS), family
        assert origins & {"awkward", "random"}, family


@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_a_seed_gives_the_same_grid_and_others_change_random_cases_alone(seed):
    drafts = list(of.drafts(seed))
    assert drafts == list(of.drafts(seed))
    fixed = [d for d in drafts if d.origin != "random"]
    assert fixed == [d for d in of.drafts(seed + 1) if d.origin != "random"]


@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_cases_are_bounded_and_are_of_the_family_of_their_kernel(seed):
    for shape in grid(seed).shapes:
        assert is_bounded(shape.workload), shape
        assert any(v.refusal(shape.workload) is None for v in shape.workload.variants().values()), shape
        assert of.family_of(shape.workload.name, shape.workload.options) == shape.family


def test_refused_drafts_have_the_reason_of_the_kernel():
    refused = grid().refused
    assert {"product_tf32", "product_s8"} <= {r.draft.family for r in refused}
    for r in refused:
        kernel = registry.get(r.draft.kernel)
        try:
            workload = kernel(**r.draft.fields)
        except UsageError as error:
            assert r.reason in str(error)
        else:
            assert r.reason in [v.refusal(workload) for v in kernel.variants().values()]


def test_a_large_draft_gets_fewer_rows_and_nothing_is_left_of_one_whose_row_is_too_long():
    kernel = {"family": "rows", "origin": "random", "kernel": "softmax"}
    found = bounded(Draft(**kernel, fields={"rows": 1 << 20, "cols": 4096}))
    assert isinstance(found, Shape) and found.workload.cols == 4096 and is_bounded(found.workload)
    assert bounded(Draft(**kernel, fields={"rows": 4, "cols": 1 << 30})) is None
    product = Draft("product_s8", "awkward", "matmul_fused", {"m": 8, "n": 9, "k": 9, "dtype": "s8"})
    assert isinstance(bounded(product), Refused)


@given(SEEDS, st.integers(1, 120))
@settings(max_examples=20, deadline=None)
def test_a_sample_is_balanced_and_repeatable(seed, count):
    sample = grid().sample(count, seed)
    assert sample == grid().sample(count, seed) and len(sample) == count
    by_family = [sum(s.family == family for s in sample) for family in FAMILIES]
    assert max(by_family) - min(by_family) <= 1


def test_a_sample_has_no_more_cases_than_there_are():
    few = grid().of_families(["sparse"])
    assert len(few.sample(10_000)) == len(few.shapes)


def test_an_unknown_family_is_one_line():
    with pytest.raises(UsageError, match="there is no family 'row'; did you mean 'rows'"):
        grid().of_families(["row"])


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), SEEDS)
def test_log_uniform_numbers_are_within_their_limits(low, more, seed):
    assert low <= of.log_uniform(random.Random(seed), low, low + more) <= low + more


def test_primes_are_the_largest_below_powers_of_two():
    assert [of.prime_below(1 << e) for e in (3, 7, 10, 12)] == [7, 127, 1021, 4093]


@pytest.mark.parametrize("family", FAMILIES)
def test_emulated_sizes_are_small_and_keep_remainders(family):
    for shape in grid().of_families([family]).shapes:
        small, large = reduced(shape.workload), shape.workload
        default = type(small).make((), small=True).work()
        assert small.work().flops <= 2 * default.flops and small.work().bytes <= 2 * default.bytes
        for name, size in small.sizes.items():
            assert size == large.sizes[name] or size < KEPT or size % 16 == large.sizes[name] % 16, (shape, small)


def test_plans_name_the_chosen_variant_and_leave_out_what_cannot_run():
    device = EmulatedDevice()
    shapes = grid().of_families(["rows", "elementwise"]).sample(4)
    for every, count in ((False, 1), (True, 0)):
        found = planned(shapes, device, every_variant=every)
        assert not found.left_out and len(found.plans) == 4
        assert all(len(p.variants) == count and p.chosen in p.workload.variants() for p in found.plans)


@pytest.fixture
def sampled():
    """Three cases: two of rows, one of which is slower than its peer, and one without a peer."""
    results = make_results()
    (case,) = results.cases
    variant, peer = (
        Row("vectorized", verified=True, cold=timed(20.0)),
        Row("torch", "peer", verified=True, cold=timed(40.0)),
    )
    slower = replace(variant, cold=timed(80.0))
    base = replace(case, kernel="softmax", sizes={"rows": 1, "cols": 2}, chosen="vectorized")
    cases = (
        replace(base, rows=(variant, peer)),
        replace(
            base, sizes={"rows": 3, "cols": 4}, rows=(slower, replace(slower, name="fused", cold=timed(50.0)), peer)
        ),
        replace(base, kernel="matmul_wgmma", sizes={"m": 1, "n": 8, "k": 8}, rows=(variant,)),
    )
    return replace(results, cases=cases)


def test_the_report_has_means_wins_and_the_regret_by_family(sampled):
    worst, families = report.shapes_tables(sampled)
    assert worst.rows[0][:2] == ["softmax rows=3 cols=4", "fused"] and worst.rows[0][-2:] == ["0.800x", "slower"]
    (row,) = families.rows
    cells = dict(zip(families.headers, row, strict=True))
    assert (cells[""], cells["cases"], cells["faster"], cells["same"], cells["slower"]) == ("rows", "2", "1", "0", "1")
    assert cells["geometric mean"] == "1.265x"  # sqrt(2 * 0.8)
    assert cells["regret"] == "26.5%"  # sqrt(1 * 1.6)
    assert any("matmul_wgmma m=1 n=8 k=8: none of the peers of this run computes it" in note for note in families.notes)


def test_peers_whose_kernels_failed_are_named(sampled):
    case = sampled.cases[0]
    failed = Row("other", kind="peer", error="one of its kernels failed while it was prepared: an error", exit_code=5)
    cases = [replace(case, rows=(*case.rows, failed)), *sampled.cases[1:]]
    notes = report.shapes_tables(replace(sampled, cases=cases))[1].notes
    line = notes[notes.index("Peers whose kernels failed:") + 1]
    assert line.endswith(": other: one of its kernels failed while it was prepared: an error")


def test_the_report_says_what_the_time_was_spent_on(sampled):
    cases = [replace(case, seconds={"samples": 1.0, "torch": 0.1}) for case in sampled.cases]
    _, families = report.shapes_tables(replace(sampled, cases=cases, seconds={"preparation": 90.0}))
    assert "Of 93 s: preparation 90 s, samples 3 s." in families.notes  # and 0.3 s for torch


def test_less_accurate_peers_take_part_and_are_named(sampled):
    first, *others = sampled.cases
    variant, peer = first.rows
    marked = replace(peer, less_accurate="3 of 9 elements of y exceed the tolerance")
    cases = (replace(first, rows=(variant, marked, replace(marked, name="compile"))), *others)
    _, families = report.shapes_tables(replace(sampled, cases=cases))
    assert families.rows[0][1] == "2"
    at = families.notes.index("Less accurate results of peers (docs/benchmarking.md):")
    assert families.notes[at + 1] == "  softmax rows=1 cols=2: torch, compile: 3 of 9 elements of y exceed the tolerance"


def test_means_leave_out_cases_without_a_rival(sampled):
    """20 us against 1 ms: more than ten times. The reverse, 1 ms against 40 us, counts."""
    first, second, _ = sampled.cases
    slow_peer = Row("torch", "peer", verified=True, cold=timed(1000.0))
    (row,) = report.shapes_tables(replace(sampled, cases=(replace(first, rows=(first.rows[0], slow_peer)), second)))[1].rows
    assert row[:3] == ["rows", "2", "0.800x"]
    families = report.shapes_tables(replace(sampled, cases=(replace(first, rows=(first.rows[0], slow_peer)),)))[1]
    assert families.rows[0][:3] == ["rows", "1", "-"]
    assert any(note == "  softmax rows=1 cols=2: 50.0x" for note in families.notes)
    slow = replace(second, rows=(Row("vectorized", verified=True, cold=timed(1000.0)), second.rows[-1]))
    (row,) = report.shapes_tables(replace(sampled, cases=(first, slow)))[1].rows
    assert row[2] == "0.283x"  # sqrt(2 * 0.04)


def test_csv_has_a_line_for_each_case(sampled):
    header, *lines = report.shapes_csv(sampled).splitlines()
    assert len(lines) == 3 and header.startswith("family,case,chosen,variant,cold_median_us,peer")
    assert lines[0].split(",")[0] == "rows" and ",2.0," in lines[0]


def test_speeds_are_drawn(sampled, tmp_path):
    pytest.importorskip("matplotlib", reason="draws a figure")
    report.draw(sampled, tmp_path / "speeds.svg")
    assert "<!-- rows (1.265x) -->" in (tmp_path / "speeds.svg").read_text()
    with pytest.raises(UsageError, match="nothing to draw"):
        report.draw(replace(sampled, cases=sampled.cases[2:]), tmp_path / "none.svg")


def test_without_times_the_report_says_so(sampled):
    counted = make_results().cases[0].rows[1].counted
    (case, *_) = sampled.cases
    case = replace(case, rows=(Row("vectorized", verified=True, counted=counted),))
    cases, families = report.shapes_tables(replace(sampled, roofs=None, cases=(case,)), ["x: too large"])
    assert cases.rows[0][-1] == families.rows[0][2] == "1.00x"
    assert families.notes[0].startswith("Nothing was timed") and families.notes[-1] == "left out: x: too large"


def test_without_peers_the_report_has_the_times_of_variants(sampled):
    alone, families = report.shapes_tables(replace(sampled, cases=sampled.cases[2:]))
    assert [row[:3] for row in alone.rows] == [["matmul_wgmma m=1 n=8 k=8", "vectorized", "20 us"]]
    assert families.rows == [] and any("none of the peers of this run computes it" in note for note in families.notes)
