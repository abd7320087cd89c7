"""Predictions against what was measured and what the emulator counts."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ptxkit.bench.results import expectations
from ptxkit.fusion.cost import Group, cost
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.model_validation import GRAPHS, NOT_COMPARED, comparisons, rank_correlation
from ptxkit.testing import assert_verified
from ptxkit.workload import registry

H200 = machine_for("H200")


def test_predicted_speedups_are_ordered_as_the_measured_ones():
    found = list(comparisons(expectations.load(expectations.path_for("NVIDIA H200")), H200))
    assert len(found) >= 30
    assert rank_correlation([(c.predicted, c.measured) for c in found]) >= 0.9


def test_every_pair_that_was_measured_is_compared_or_excepted_with_a_reason():
    recorded = expectations.load(expectations.path_for("NVIDIA H200"))["cases"]
    names = {case.split()[0] for case, found in recorded.items() if "unfused" in found["rows"]}
    assert names <= set(GRAPHS) | set(NOT_COMPARED)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("add_gelu", {"n": 65536}),
        ("add_mul_exp", {"n": 65536}),
        ("swiglu", {"rows": 16, "cols": 4096}),
        ("quantize_int8", {"n": 65536}),
        ("fused_l2norm", {"rows": 32, "cols": 1024}),
        ("softmax", {"rows": 32, "cols": 1024}),
    ],
)
def test_predicted_bytes_are_those_that_the_emulator_counts(name, sizes):
    """Of the bundled kernels without weights, which every CTA reads again; a sector with a statistic is read by each warp."""
    workload = registry.get(name)(**sizes)
    graph = GRAPHS[name](workload.sizes | workload.options)
    predicted = {
        "unfused": sum(cost(Group.of(graph, [operation]), H200).bytes for operation in graph.launches),
        "fused": cost(Group.of(graph, graph.launches), H200).bytes,
    }
    results = assert_verified(workload, variants=("unfused", "fused"), device="emulator")
    for variant, result in results.items():
        sectors = result.counters.global_load_sectors + result.counters.global_store_sectors
        assert 32 * sectors == pytest.approx(predicted[variant], rel=0.1 if variant == "unfused" else 0.001)


def test_rank_correlation_of_equal_and_opposite_orders():
    assert rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert rank_correlation([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)


def test_the_tables_of_the_page_are_those_of_the_script():
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "fusion_tables.py"))
    page = script["PAGE"].read_text(encoding="utf-8")
    assert script["replaced"](page) == page
