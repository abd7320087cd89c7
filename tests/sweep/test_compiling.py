"""The result of compiling one tile."""

from __future__ import annotations

import pytest

from ptxkit.compiler import nvrtc
from ptxkit.sweep.compiling import compile_tile
from ptxkit.sweep.problem import Problem, explore
from ptxkit.workload.build import compiled
from ptxkit.workload.resolve import resolve

PROBLEM = Problem("saxpy", "vectorized", {"n": 4096}, {}, "sm_90a")


def test_tiles_differ_and_are_recognized():
    tiles = explore(PROBLEM).tiles
    found = [compile_tile(PROBLEM, tile) for tile in tiles]
    assert [c.error for c in found] == [""] * len(tiles)
    assert len({c.fingerprint for c in found}) == len(tiles)
    assert [c.threads for c in found] == [tile.THREADS for tile in tiles]
    assert compile_tile(PROBLEM, tiles[0]).fingerprint == found[0].fingerprint


@pytest.fixture
def resolved():
    tile = explore(PROBLEM).tiles[0]
    return resolve(PROBLEM.workload, PROBLEM.chosen, PROBLEM.parsed_target, tile), compile_tile(PROBLEM, tile)


def test_what_was_compiled_is_taken_without_its_sources(resolved, monkeypatch):
    variant, found = resolved
    usual = compiled(variant)
    monkeypatch.setattr(nvrtc, "compile_source", lambda *_, **__: pytest.fail("a source was read"))
    again = compiled(variant, images=found.images)
    assert found.loadable
    assert again.images == usual.images and [s.entry for s in again.steps] == [s.entry for s in usual.steps]


def test_what_is_not_in_the_cache_any_more_is_compiled(resolved):
    variant, found = resolved
    for keys in ([], ["0" * 40], [*found.images, *found.images]):
        assert compiled(variant, images=keys).images == compiled(variant).images


def test_an_image_of_other_programs_is_not_taken(resolved):
    variant, _ = resolved
    other = compile_tile(PROBLEM, explore(PROBLEM).tiles[-1])  # has no kernel of this name
    assert compiled(variant, images=other.images).images == compiled(variant).images


HOST_CODE = """
#include <vector>
extern "C" __global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }
int main() { std::vector<float> v(3); k<<<1, 32>>>(v.data(), 3); }
"""
DESCRIPTION = """
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Mine(Workload):
    source = "mine.cu"
    n: int = 32

    def inputs(self, rng):
        return {}

    def reference(self):
        return {"x": np.ones(self.n)}

    def work(self):
        return Work(flops=1, bytes=4 * self.n)

    @variant(tile={"THREADS": [32, 64]})
    def only(self, t):
        return [Launch("k", 1, t.THREADS, ("x", self.n))]
"""


def test_an_image_of_a_source_with_host_code_is_not_all(tmp_path):
    (tmp_path / "mine.cu").write_text(HOST_CODE)
    (tmp_path / "mine.py").write_text(DESCRIPTION)
    found = compile_tile(Problem(str(tmp_path / "mine.py"), "only", {"n": 32}, {}, "sm_90a"), {"THREADS": 32})
    assert not found.error and found.images and not found.loadable
