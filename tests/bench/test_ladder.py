"""The sizes of a ladder, and its table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.cases import ladder
from ptxkit.bench.report.ladder import ladder_table
from ptxkit.errors import UsageError
from ptxkit.workload import registry

MIB = 1 << 20


def test_powers_of_two_surround_the_cache():
    kernel = registry.get("saxpy")
    generated = [w for w in ladder(kernel, 50 * MIB) if w.n & (w.n - 1) == 0]
    footprints = [w.bytes_needed() / (50 * MIB) for w in generated]
    assert len([f for f in footprints if f < 1]) >= 3 and len([f for f in footprints if f > 1]) >= 3
    assert footprints == sorted(footprints)


def test_the_sizes_of_the_benchmarks_are_steps_of_the_ladder():
    kernel = registry.get("softmax")
    sizes = [w.sizes for w in ladder(kernel, 50 * MIB)]
    assert all(kernel(**case).sizes in sizes for case in kernel.benchmarks)


@pytest.mark.parametrize("steps", [1, 4])
def test_in_the_emulator_the_ladder_ends_at_its_default_size(steps):
    kernel = registry.get("saxpy")
    found = [w.n for w in ladder(kernel, 50 * MIB, steps=steps, small=True)]
    last = kernel.emulator_sizes["n"]
    assert found == [last >> i for i in reversed(range(steps))]


def test_sizes_that_the_constraints_refuse_are_left_out():
    kernel = registry.get("matmul_mma")
    names = kernel.size_names()
    assert ladder(kernel, 50 * MIB, along=names[0], small=True)


def test_an_option_applies_to_every_size():
    assert {w.dtype for w in ladder(registry.get("softmax"), 50 * MIB, {"dtype": "f16"}, "rows")} == {"f16"}


def test_a_size_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="no size 'm'"):
        ladder(registry.get("saxpy"), 50 * MIB, along="m")


def test_times_have_bandwidths_and_ratios_their_spread():
    table = ladder_table(make_results(target="sm_90a"), 50 * MIB, "NVIDIA H200")
    cells = {row[3]: row for row in table.rows}["fused"]
    assert cells[:3] == ["n=1000", "12 kB", "L2"]
    assert cells[4:7] == ["25 us", "± 0.2%", f"{1200 / 25e3:.0f}"]
    assert cells[10:12] == ["1.25x", "± 0.3%"]  # cold over hot: 25 us, 20 us
    assert cells[13:15] == ["4x", "± 0.2%"]  # over the unfused variant: 100 us, 25 us
    assert len(cells) == len(table.headers)


def test_a_case_larger_than_the_cache_is_in_device_memory():
    table = ladder_table(make_results(), 1000, "a GPU")
    assert {row[2] for row in table.rows} == {"DRAM"}


def test_counts_have_no_time():
    table = ladder_table(make_results(roofs=None), 50 * MIB, "NVIDIA H200")
    assert not any("cold" in header or "GB/s" in header for header in table.headers)
    assert all(len(row) == len(table.headers) for row in table.rows)
    assert any("nothing was timed" in note for note in table.notes)


def test_failures_are_notes():
    results = make_results()
    rows = [replace(r, verified=False, worst="y[0]") if r.name == "fused" else r for r in results.cases[0].rows]
    table = ladder_table(replace(results, cases=(replace(results.cases[0], rows=rows),)), 50 * MIB, "a GPU")
    assert "n=1000 fused: WRONG: y[0]" in table.notes
