"""A whole sweep with a simulated measuring process."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ptxkit.errors import UnavailableError
from ptxkit.sweep import measuring, search
from ptxkit.sweep.compiling import Compiled
from ptxkit.sweep.journal import Entry, Journal, read
from ptxkit.sweep.problem import Problem, explore
from ptxkit.sweep.run import COMPILED_AHEAD, Sweep

PROBLEM = Problem("saxpy", "vectorized", {"n": 4096}, {}, "sm_90a")
GPU = "pretended GPU"


def serve(pipe, problem, seed):
    """512 threads hang, 256 are the fastest, 128 nearly as fast; the best time that the process receives is returned as
    the spread."""
    pipe.send("ready")
    while True:
        what, argument, given = pipe.recv()
        if what == "leaders":
            times = {128: 10.5, 256: 10.0}
            rows = [{"median_us": times[t["THREADS"]], "spread_us": 0.0, "samples": 50} for t in argument]
            pipe.send([{"cold": row, "verified": True, "error": "", "worst": ""} for row in rows])
        elif argument["THREADS"] == 512:
            pipe.send(measuring.BUILT)
            time.sleep(60)
        else:
            told = given[0] if given[0] < float("inf") else 0.0
            pipe.send(measuring.Measured("ok", "", 10.0 + (argument["THREADS"] == 128) / 4, told, 10, prepare_s=0.5))


def shaky(pipe, problem, seed):
    """Exits when the best configurations are measured again."""
    pipe.send("ready")
    while True:
        what, argument, _ = pipe.recv()
        if what == "leaders":
            os._exit(1)
        pipe.send(measuring.Measured("ok", "", 10.0 + argument["THREADS"] / 1e4, 0.0, 10))


def warming(pipe, problem, seed):
    """All configurations have the same time, but the GPU is a fifth slower when the best are measured again."""
    pipe.send("ready")
    while True:
        what, argument, _ = pipe.recv()
        if what == "leaders":
            rows = [{"median_us": 12.0 + t["THREADS"] / 1e4, "spread_us": 0.0, "samples": 50} for t in argument]
            pipe.send([{"cold": row, "verified": True, "error": "", "worst": ""} for row in rows])
        else:
            pipe.send(measuring.Measured("ok", "", 10.0 + argument["THREADS"] / 1e4, 0.0, 10))


def unready(pipe, problem, seed):
    os._exit(1)


def sweep(journal, **options):
    tiles = explore(PROBLEM).tiles
    made = search.exhaustive(tiles)
    return Sweep(PROBLEM, made, Journal(journal, PROBLEM, GPU), len(tiles), timed=True, workers=1, **options)


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(measuring, "serve", serve)


def test_every_tile_has_an_entry_and_the_leaders_are_measured_again(tmp_path, pretended):
    swept = sweep(tmp_path / "j.jsonl", timeout_s=1.0)
    entries = swept.run()
    found = {e.tile["THREADS"]: e for e in entries}
    assert {t: e.status for t, e in found.items()} == {128: "ok", 256: "ok", 512: "timeout"}
    assert (found[256].time_us, found[256].samples) == (10.0, 50)
    assert found[128].time_us == 10.5
    assert entries[0] is found[256]
    assert swept.measured == 3
    assert {"start", "explored", "leaders", "search"} <= set(swept.spent)
    kept = read(tmp_path / "j.jsonl")
    assert {e.tile["THREADS"]: e.status for e in kept.entries} == {128: "ok", 256: "ok", 512: "timeout"}
    assert all(e.prepare_s == 0.5 for e in kept.entries if e.status == "ok")
    assert len(kept.leaders) == 2


def test_the_process_receives_the_best_time_so_far(tmp_path, pretended):
    sweep(tmp_path / "j.jsonl", timeout_s=1.0).run()
    told = [e.spread_us for e in read(tmp_path / "j.jsonl").entries if e.status == "ok"]
    assert told[0] == 0.0  # nothing yet
    assert told[1] in (10.0, 10.25)


def test_the_same_sweep_again_measures_only_what_hung(tmp_path, pretended):
    sweep(tmp_path / "j.jsonl", timeout_s=1.0).run()
    again = sweep(tmp_path / "j.jsonl", timeout_s=1.0)
    again.run()
    assert (again.reused, again.measured) == (2, 1)


def test_what_runs_alike_is_measured_once(tmp_path, pretended, monkeypatch):
    """Two tiles with the same machine code are in progress, one of which waits for the other."""
    swept = sweep(tmp_path / "j.jsonl")
    tiles = [t for t in explore(PROBLEM).tiles if t.THREADS != 512]
    swept.search, swept.evaluations = search.exhaustive(tiles), 2
    place = swept._place
    monkeypatch.setattr(swept, "_place", lambda tile, c, pending: place(tile, replace(c, fingerprint="same"), pending))
    entries = swept.run()
    assert {e.tile["THREADS"] for e in entries} == {128, 256}
    assert len({e.time_us for e in read(tmp_path / "j.jsonl").entries}) == 1
    assert (swept.measured, swept.reused) == (1, 1)


@pytest.mark.parametrize(
    ("ahead", "timed", "slots", "measurers", "most"),
    [
        (search.UNLIMITED, True, 64, 4, (COMPILED_AHEAD, 8)),  # all can be compiled before a GPU measures
        (search.UNLIMITED, True, 512, 4, (1536, 8)),
        (search.UNLIMITED, False, 64, 1, (192, 8)),  # the compiling processes measure
        (16, True, 64, 1, (16, 8)),
        (16, True, 64, 4, (64, 32)),
        (16, True, 640, 40, (120, 56)),  # an eighth of the evaluations, but some for each GPU
        (16, True, 4, 4, (12, 6)),
    ],
)
def test_as_many_tiles_are_in_flight_as_the_search_and_the_processes_can_have(tmp_path, ahead, timed, slots, measurers, most):
    swept = sweep(tmp_path / "j.jsonl")
    swept.search, swept.evaluations, swept.timed = SimpleNamespace(ahead=ahead, batch=8), 1000, timed
    swept._executor = SimpleNamespace(slots=slots, measurers=measurers)
    assert swept._in_flight() == most


def test_a_search_goes_on_with_what_it_knew(tmp_path, pretended):
    path = tmp_path / "j.jsonl"
    first = sweep(path, timeout_s=1.0)
    first.evaluations = 1
    (known,) = first.run()
    again = sweep(path, timeout_s=1.0)
    again.search = search.shuffled([t for t in explore(PROBLEM).tiles if t != known.key] + [known.key], 0)
    again.evaluations = 1
    (entry,) = again.run()
    assert entry.tile == known.tile
    assert (again.reused, again.measured) == (1, 0)


def test_other_machine_code_is_measured_again(tmp_path, pretended):
    path = tmp_path / "j.jsonl"
    sweep(path, timeout_s=1.0).run()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("tile", {}).get("THREADS") == 128:
            line["fingerprint"] = "of another source"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = sweep(path, timeout_s=1.0)
    again.run()
    assert (again.reused, again.measured) == (1, 2)


def test_a_death_among_the_leaders_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "serve", shaky)
    swept = sweep(tmp_path / "j.jsonl")
    assert [e.tile["THREADS"] for e in swept.run()] == [128, 256, 512]
    assert "the measuring process died" in swept.trouble


def test_a_tile_that_was_not_measured_again_is_not_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "serve", warming)
    monkeypatch.setattr("ptxkit.sweep.run.LEADERS", 2)
    entries = sweep(tmp_path / "j.jsonl").run()
    assert [(e.tile["THREADS"], e.samples) for e in entries] == [(128, 50), (256, 50), (512, 10)]
    assert entries[0].time_us > entries[2].time_us


def test_no_gpu_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "serve", unready)
    with pytest.raises(UnavailableError, match="measuring cannot start"):
        sweep(tmp_path / "j.jsonl").run()


class Ending:
    """An executor that can execute nothing any more when it is to measure the tile of 128 threads; the others are measured."""

    slots, measurers = 3, 1

    def start(self):
        return None

    def compile(self, tile):
        return done(Compiled(fingerprint=str(tile["THREADS"])))

    def measure(self, tile, compiled, best):
        return done(UnavailableError("no worker is left") if tile["THREADS"] == 128 else Entry(tile, "ok", time_us=1.0))

    def report(self):
        return ""

    def abort(self):
        pass

    end = abort


def done(result):
    future = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def test_what_is_measured_when_the_workers_end_is_kept(tmp_path):
    swept = sweep(tmp_path / "j", executor=Ending())
    with pytest.raises(UnavailableError, match="no worker is left"):
        swept.run()
    assert sorted(e.tile["THREADS"] for e in read(tmp_path / "j").entries) == [256, 512]
