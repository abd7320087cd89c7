"""Step 5 of swiglu_ffn: one token, as dot products with rows of the weights."""

from __future__ import annotations

import pytest
from ptxkit_exact_products import strict

from ptxkit import Tile
from ptxkit.kernels.gemm.swiglu_ffn import SwigluFfn
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

SM_90A = Target.parse("sm_90a")
VARIANT = "step5_dot"


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({"tokens": 1, "hidden": 8, "ffn": 8}, {"PARTS": 8}),  # parts without a vector
        ({"tokens": 1, "hidden": 1032, "ffn": 72, "dtype": "f16"}, {"PARTS": 2}),  # a second batch of the first part alone
        ({"tokens": 3, "hidden": 72, "ffn": 136}, {"TOKENS": 2}),  # a row of x beyond the last
    ],
    ids=str,
)
def test_layers_of_any_size_without_races(sizes, tile):
    case = execute.Case(SwigluFfn(**sizes), strict(racecheck="warps"), seed=3)
    tile = {"TOKENS": 1, "BATCH": 4, "PARTS": 1, **tile}
    result = execute.run(case, case.workload.variant(VARIANT), None, tile, explicit=True)
    assert result.verdict.verified, result.verdict.worst


@pytest.mark.parametrize(("tokens", "chosen"), [(1, True), (2, False)])
def test_it_is_chosen_for_one_token(tokens, chosen):
    layer = SwigluFfn(tokens=tokens, hidden=3584, ffn=18944)
    assert (choose(layer, target=SM_90A).variant == VARIANT) == chosen


def test_down_is_loaded_before_h_is_complete_and_nothing_spills():
    layer = SwigluFfn(tokens=1, hidden=4096, ffn=4096)
    tile = Tile({"TOKENS": 1, "BATCH": 4, "PARTS": 1})
    image = build(layer, layer.variant(VARIANT), SM_90A, tile).steps[-1].image
    (text,) = (entry for entry in image.ptx.split(".entry")[1:] if "early_dot" in entry.split("(")[0])
    assert text.index("ld.global.L1::no_allocate") < text.index("griddepcontrol.wait")
    assert_sass(image, has=["LDG.E.NA.128"], spills=0)


def test_the_second_launch_begins_after_the_end_of_what_precedes_the_first_one():
    """Which may write down, and the second launch loads down before its own wait."""
    layer = SwigluFfn(tokens=1, hidden=4096, ffn=4096)
    tile = Tile({"TOKENS": 1, "BATCH": 4, "PARTS": 1})
    ptx = build(layer, layer.variant(VARIANT), SM_90A, tile).steps[0].image.ptx
    (text,) = (entry for entry in ptx.split(".entry")[1:] if "gated_dot" in entry.split("(")[0])
    assert text.index("griddepcontrol.wait") < text.index("griddepcontrol.launch_dependents")
