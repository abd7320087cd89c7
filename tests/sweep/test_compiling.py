"""What a compile of one tile says."""

from __future__ import annotations

import pytest

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.sweep.compiling import compile_tile, machine_code
from ptxkit.sweep.problem import Problem, explore

SOURCE = (
    'extern "C" __global__ void k(float* y, int n) {\n    for (int i = threadIdx.x; i < n; i += 32) y[i] *= 2.0f;\n}\n'
)
PROBLEM = Problem("saxpy", "vectorized", {"n": 4096}, {}, "sm_90a")


def code(text):
    return machine_code(compile_source(text, target="sm_90a", name="k.cu", cache=False).cubin)


def test_a_comment_changes_no_machine_code():
    assert code(SOURCE) == code("// one line more\n\n" + SOURCE)


@pytest.mark.parametrize("change", [("2.0f", "3.0f"), ("i += 32", "i += 64"), ("void k(", "void l(")])
def test_what_is_computed_does(change):
    assert code(SOURCE) != code(SOURCE.replace(*change))


def test_tiles_differ_and_are_recognized():
    tiles = explore(PROBLEM).tiles
    found = [compile_tile(PROBLEM, tile) for tile in tiles]
    assert [c.error for c in found] == [""] * len(tiles)
    assert len({c.fingerprint for c in found}) == len(tiles)
    assert [c.threads for c in found] == [tile.THREADS for tile in tiles]
    assert compile_tile(PROBLEM, tiles[0]).fingerprint == found[0].fingerprint
