"""Recorded tiles apply to exactly these sizes and options, on this GPU."""

from __future__ import annotations

import pytest

from ptxkit.errors import UsageError
from ptxkit.runtime.device import device
from ptxkit.workload import execute, registry, tuned
from ptxkit.workload.resolve import resolve

NORM = registry.get("fused_l2norm")


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path))


def test_recorded_then_found():
    w = NORM.make([64, 1024], {})
    tuned.record(w, "vectorized", "GPU 1", {"THREADS": 512}, {"time_us": 1.0})
    tuned.record(w, "vectorized", "GPU 1", {"THREADS": 256}, {"time_us": 0.9})
    assert tuned.tile_for(w, "vectorized", "GPU 1") == {"THREADS": 256}
    assert tuned.tile_for(w, "vectorized", "GPU 2") == {}
    assert tuned.tile_for(w, "fused", "GPU 1") == {}
    assert tuned.tile_for(NORM.make([65, 1024], {}), "vectorized", "GPU 1") == {}
    assert tuned.tile_for(NORM.make([64, 1024], {"eps": 1e-3}), "vectorized", "GPU 1") == {}


def test_run_takes_it_and_says_so():
    w = NORM.make([16, 1024], {})
    emulator = device("emulator")
    tuned.record(w, "vectorized", emulator.name, {"THREADS": 512}, {})
    prepared = execute.prepare(execute.Case(w, emulator), w.variant("vectorized"))
    assert prepared.build.resolved.tuned
    assert prepared.build.tile.THREADS == 512
    assert (
        execute.prepare(execute.Case(w, emulator), w.variant("vectorized"), tile={"THREADS": 128}).build.tile.THREADS
        == 128
    )


@pytest.mark.parametrize("tile", [{"QUADS": 4}, {"THREADS": 100}])
def test_a_recorded_tile_that_the_variant_no_longer_offers_is_left_out(tile):
    w, emulator = NORM.make([64, 1024], {}), device("emulator")
    tuned.record(w, "vectorized", emulator.name, tile, {})
    resolved = resolve(w, NORM.variant("vectorized"), device=emulator)
    assert resolved.tile == resolve(w, NORM.variant("vectorized")).tile
    assert not resolved.tuned


def test_a_damaged_file_is_said(tmp_path):
    w = NORM.make([16, 1024], {})
    tuned.path_for("X").parent.mkdir()
    tuned.path_for("X").write_text("{")
    with pytest.raises(UsageError, match="--apply"):
        tuned.tile_for(w, "vectorized", "X")
