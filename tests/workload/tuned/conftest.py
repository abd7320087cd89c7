"""A directory of winners of the test's own, and records that apply on the emulator."""

from __future__ import annotations

from functools import partial

import pytest

from ptxkit.runtime.device import device
from ptxkit.sweep.winners import record_of
from ptxkit.workload.resolve import as_recorded, target_for
from ptxkit.workload.tuned import store


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(store, "_said", set())
    return tmp_path / "config"


@pytest.fixture
def recorded():
    """Records a tile of a variant at the sizes of a workload for the emulator, and returns the record."""

    def make(workload, variant, tile, scope="tile", **more):
        emulator = device("emulator")
        target = target_for(workload.variant(variant), None)
        bound = workload.on(emulator.facts_for(target))
        resolved = partial(as_recorded, target)(bound, variant, tile)
        times = {"time_us": 2.0, "spread_us": 0.1, "samples": 40, "at": "2026-11-26T10:00:00+00:00", **more}
        record = record_of(resolved, scope, times, {"driver": "580.95.05", "uuid": "GPU-1"})
        store.record(emulator.name, record)
        return record

    return make
