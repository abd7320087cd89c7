"""Operations take recorded winners first, then the first candidate to which its description does not object."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from ptxkit.runtime.device import device
from ptxkit.sweep.winners import record_of
from ptxkit.torch.plan import chosen
from ptxkit.torch.table import OPERATIONS
from ptxkit.workload import registry
from ptxkit.workload.resolve import as_recorded, target_for
from ptxkit.workload.tuned import store


def test_a_winner_of_tune_precedes_the_other_candidates(monkeypatch, tmp_path):
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path))
    emulator, workload = device("emulator"), registry.get("saxpy")(n=1 << 22)
    candidates = [(workload, workload.variant(name)) for name in ("vectorized", "scalar")]
    assert chosen(candidates, emulator).variant.name == "vectorized"
    target = target_for(candidates[0][1], None)
    bound = workload.on(emulator.facts_for(target))
    resolved = as_recorded(target, bound, "scalar", {"THREADS": 512})
    times = {"time_us": 1.0, "spread_us": 0.0, "samples": 20, "at": "2026-11-26T10:00:00+00:00"}
    store.record(emulator.name, record_of(resolved, "variant", times, {}))
    found = chosen(candidates, emulator)
    assert (found.variant.name, found.tile) == ("scalar", {"THREADS": 512})
    assert chosen(candidates[:1], emulator).variant.name == "vectorized"


@pytest.mark.parametrize("name", ["attention", "attention_backward", "attention_e4m3"])
def test_a_causal_mask_takes_a_step_by_wgmma(name):
    """With 16384 queries the persistent steps are objected to, because their CTAs have unequal shares."""
    workload = registry.get(name)(batch=1, heads=16, q=16384, k=16384, causal=True)
    candidates = [(workload, workload.variant(variant)) for _, variant in OPERATIONS[name].candidates]
    found = chosen(candidates, device("emulator")).variant
    assert found.requires == ("sm_90a",)
    assert "persistent" not in found.name


@pytest.mark.parametrize(("heads", "variant"), [(16, "private_counter"), (8, "step5_persistent")])
def test_attention_takes_tiles_from_a_counter_that_no_other_call_uses(heads, variant):
    """Where there are more tiles of queries than SMs; ``next_tile`` would be shared by calls on several streams."""
    workload = registry.get("attention")(batch=2, heads=heads, q=1024, k=1024)
    candidates = [(workload, workload.variant(name)) for _, name in OPERATIONS["attention"].candidates]
    found = chosen(candidates, device("emulator"))
    assert found.variant.name == variant
    assert not any("next_tile" in launch.args for launch in found.launches)
