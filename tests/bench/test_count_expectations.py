"""Recording the counts of the emulator, and which of them new results are compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.results import count_expectations as counts
from ptxkit.bench.results import expectations
from ptxkit.errors import UsageError

KEY = "saxpy n=1000"


def emulated(nvrtc="13.0", seed=0, row=None, **counted):
    """Results of the emulator; ``row`` and ``counted`` change the variant ``fused``."""
    results = make_results(roofs=None, device_kind="emulator", environment={"nvrtc": nvrtc})
    (case,) = results.cases
    rows = [
        replace(r, **(row or {}), counted=replace(r.counted, by_class={"float32": 1000}, **counted))
        if r.name == "fused"
        else r
        for r in case.rows
        if r.kind == "variant"
    ]
    return replace(results, cases=(replace(case, rows=rows, seed=seed),))


@pytest.fixture
def known():
    return counts.updated(None, emulated(), "sm_90a")


def test_the_file_is_called_after_the_target(tmp_path):
    assert counts.path_for("sm_90a", tmp_path).name == "emulator-sm_90a.json"


def test_recorded_then_compared(tmp_path, known):
    path = tmp_path / "x.json"
    expectations.save(path, known)
    found = counts.check(counts.load(path), emulated())
    assert (found.compared, found.differences, found.notes) == (2, (), ())


@pytest.mark.parametrize("name", [*counts.OF_KERNEL, *counts.OF_COMPILER])
def test_more_of_any_count_is_found_under_the_same_compiler(known, name):
    before = getattr(emulated().cases[0].row("fused").counted, name)
    (found,) = counts.check(known, emulated(**{name: before + 1})).differences
    assert (found.row, found.name, found.expected, found.found) == ("fused", name.replace("_", " "), before, before + 1)
    assert found.more


@pytest.mark.parametrize(("name", "compared"), [("load_bytes", True), ("flops", True), ("instructions", False)])
def test_under_another_compiler_only_the_kernels_own_counts_are_compared(known, name, compared):
    found = counts.check(known, emulated(nvrtc="13.5", **{name: 10**6}))
    assert bool(found.differences) is compared
    assert (found.compared, found.of_kernel_only, found.versions) == (2, 2, ("13.0",))


@pytest.mark.parametrize(
    ("nvrtc", "load_bytes", "differs"), [("13.0", 800_001, True), ("13.5", 800_800, False), ("13.5", 800_801, True)]
)
def test_another_compiler_may_change_a_thousandth_of_the_bytes(nvrtc, load_bytes, differs):
    known = counts.updated(None, emulated(load_bytes=800_000), "sm_90a")
    assert bool(counts.check(known, emulated(nvrtc=nvrtc, load_bytes=load_bytes)).differences) is differs


def test_fewer_bytes_are_no_regression(known):
    (found,) = counts.check(known, emulated(load_bytes=4)).differences
    assert not found.more


def test_one_more_launch_is_a_regression(known):
    (found,) = counts.check(known, emulated(row={"launches": 2})).differences
    assert (found.name, found.more) == ("launches", True)


def test_other_classes_of_instructions_are_named(known):
    changed = emulated(instructions=1010)
    case = changed.cases[0]
    rows = [replace(r, counted=replace(r.counted, by_class={"float32": 990, "move": 20})) for r in case.rows]
    found = counts.check(known, replace(changed, cases=(replace(case, rows=rows),))).differences
    assert [str(d) for d in found if d.row == "fused"] == [
        "instructions: 1,010, expected 1,000 (+1.0%); float32 -10, move +20"
    ]


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (emulated(seed=3), "--seed 0"),
        (emulated(row={"tile": {"THREADS": 64}}), "THREADS=128"),
        (emulated(row={"target": "sm_80"}), "sm_90a"),
    ],
)
def test_what_has_another_seed_tile_or_target_is_not_compared(known, results, reason):
    found = counts.check(known, results)
    assert not found.differences and any(reason in note for note in found.notes)


def test_cases_and_variants_without_counts_are_named(known):
    del known["cases"][KEY]["rows"]["fused"]
    assert counts.check(known, emulated()).notes == (f"{KEY} fused: no expectations found",)
    assert counts.check({**known, "cases": {}}, emulated()).notes == (f"{KEY}: no expectations found",)


def alone(seed=0):
    """Results of the variant ``fused`` alone."""
    (case,) = emulated(seed=seed).cases
    return replace(emulated(), cases=(replace(case, rows=[r for r in case.rows if r.name == "fused"]),))


def test_an_update_keeps_what_was_not_run_with_its_own_seed(known):
    rows = counts.updated(known, alone(seed=1), "sm_90a")["cases"][KEY]["rows"]
    assert {name: row["seed"] for name, row in rows.items()} == {"fused": 1, "unfused": 0}


def test_an_update_leaves_out_variants_that_no_longer_exist(known):
    value = counts.updated(known, alone(), "sm_90a", [(KEY, "unfused")])
    assert set(value["cases"][KEY]["rows"]) == {"fused"}


def test_the_description_of_a_user_is_recorded_relative_to_the_project(tmp_path):
    results = alone()
    made = replace(results, cases=(replace(results.cases[0], description=str(tmp_path / "kernels/mine.py")),))
    assert counts.updated(None, made, "sm_90a", base=tmp_path)["cases"][KEY]["description"] == "kernels/mine.py"
    elsewhere = counts.updated(None, made, "sm_90a", base=tmp_path / "other")["cases"][KEY]["description"]
    assert elsewhere == str(tmp_path / "kernels/mine.py")


def test_a_file_with_one_seed_for_a_case_is_read(tmp_path, known):
    (case,) = known["cases"].values()
    rows = {name: {k: v for k, v in row.items() if k != "seed"} for name, row in case["rows"].items()}
    path = tmp_path / "x.json"
    expectations.save(path, {**known, "schema": counts.EARLIER, "cases": {KEY: {**case, "seed": 3, "rows": rows}}})
    found = counts.parsed(counts.load(path)).cases[KEY].rows
    assert {row.seed for row in found.values()} == {3}


def test_wrong_results_are_not_recorded():
    value = counts.updated(None, emulated(row={"verified": False}), "sm_90a")
    assert set(value["cases"][KEY]["rows"]) == {"unfused"}


def test_times_of_a_gpu_are_refused():
    with pytest.raises(UsageError, match="in the emulator"):
        counts.updated(None, make_results(), "sm_90a")
