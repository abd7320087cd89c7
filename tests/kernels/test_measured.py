"""Measurements by GPU: the entry of a GPU, the rule for one without an entry, and tiles that every device can use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxkit.kernels import measured as m
from ptxkit.targets import Target
from ptxkit.targets.gpus import GPUS, DeviceFacts, reference_facts
from ptxkit.workload import registry

H200 = reference_facts("sm_90a")


def facts_of(gpu):
    target = Target.parse(f"sm_{gpu.cc}{'a' if gpu.cc >= 90 else ''}")
    return DeviceFacts(gpu.name, target, gpu.sms, gpu.l2_bytes, gpu.name)


def entry_of(gpu, cc):
    return replace(m.H200, gpu=gpu, cc=cc)


def test_a_measured_gpu_has_its_own_entry_whatever_size_of_l2_the_driver_reports():
    facts = replace(H200, l2_bytes=60 << 20)
    assert m.measured(facts) is m.H200
    assert m.resident_bytes(facts) == m.H200.resident_bytes
    assert m.keep_input_bytes(facts) == m.H200.rows.keep_input_bytes


def test_the_emulator_takes_the_entry_of_its_reference_gpu():
    assert m.measured(reference_facts("sm_90a")) is m.H200


@pytest.mark.parametrize(
    ("cc", "expected"), [(75, "A"), (80, "A"), (84, "A"), (85, "B"), (86, "B"), (90, "B"), (100, "C"), (121, "C")]
)
def test_a_gpu_without_an_entry_takes_the_nearest_architecture_the_newer_of_two(monkeypatch, cc, expected):
    entries = {name: entry_of(name, cc) for name, cc in (("A", 80), ("B", 90), ("C", 100))}
    monkeypatch.setattr(m, "MEASURED", entries)
    facts = replace(H200, gpu="another", target=replace(H200.target, name=f"sm_{cc}", cc=cc))
    assert m.measured(facts).gpu == expected


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_bytes_are_the_same_share_of_the_l2_cache(gpu):
    share = m.H200.resident_bytes / m.H200.l2_bytes
    assert m.resident_bytes(facts_of(gpu)) == pytest.approx(share * gpu.l2_bytes, abs=1)


@pytest.mark.parametrize(
    ("sms", "m_rows", "large"), [(132, 256 * 120, True), (132, 256 * 119, False), (66, 256 * 60, True)]
)
def test_large_tiles_need_enough_blocks_for_the_sms(sms, m_rows, large):
    facts = replace(H200, gpu="another", sms=sms)
    first, *_ = m.gemm_tiles(facts, "micro_tiling_matmul:step8_ring", m_rows, 128)
    assert (first["BM"] == 256) is large


def test_every_entry_names_tile_parameters_and_values_that_variants_offer():
    for entry in m.MEASURED.values():
        for what, choices in entry.gemm.items():
            kernel, _, variant = what.partition(":")
            offered = registry.get(kernel).variant(variant).tile
            for tile in (tile for choice in choices for tile in choice.tiles):
                assert all(value in offered[name] for name, value in tile.items()), (what, tile)
        for name in ("layernorm_backward", "rmsnorm_backward"):
            offered = registry.get(name).variant("pipelined").tile
            for gradient in entry.gradients:
                assert all(value in offered[key] for key, value in gradient.tile.items()), gradient
        offered = registry.get("layernorm").variant("persistent").tile
        for persistent in entry.rows.persistent:
            assert all(value in offered[key] for key, value in persistent.tile.items()), persistent
        assert set(entry.rows.chunked) <= set(registry.names())
