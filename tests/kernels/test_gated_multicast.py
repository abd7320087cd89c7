"""swiglu_ffn_multicast.cu: gated layers with few tokens, at awkward sizes, in clusters, with each second product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit import Tile
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.isa.parser import parse
from ptxkit.kernels.gemm import gated_multicast, multicast, swapped
from ptxkit.kernels.gemm.gated_multicast import Second
from ptxkit.kernels.gemm.swiglu_ffn import SwigluFfn
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of

SM_90A = Target.parse("sm_90a")
VARIANT = "step4_few_tokens"
LATE = EmulatorSettings(completion="latest-legal", initcheck=True, trap=("nan",))
RACES = EmulatorSettings(racecheck="lanes")


def tile(**changed):
    return {**multicast.ALONE, "CONSUMERS": 1, "ROWS": 1, "TOKENS": 8, **changed}


def check(workload, taken, settings=LATE):
    case = execute.Case(workload, EmulatedDevice(settings=settings), seed=3)
    result = execute.run(case, workload.variant(VARIANT), None, taken, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"


def second(monkeypatch, kernel, taken):
    """Let the second product be by this kernel with this tile."""
    monkeypatch.setattr(gated_multicast, "second", lambda w: Second(1.0, kernel, taken))


LAYERS = [
    ({"tokens": 1, "hidden": 8, "ffn": 8}, tile()),  # fewer elements than a copy of anything
    ({"tokens": 3, "hidden": 200, "ffn": 104}, tile(PARTS=2)),  # gate and up meet in the sums of two CTAs
    ({"tokens": 17, "hidden": 72, "ffn": 136, "dtype": "f16"}, tile(ROWS=2, TOKENS=24)),  # they meet in a thread
    ({"tokens": 33, "hidden": 264, "ffn": 72}, tile(ROWS=2, TOKENS=40, PARTS=2)),
    ({"tokens": 33, "hidden": 136, "ffn": 152, "dtype": "f16"}, tile(TOKENS=24, A_SHARING=2, B_SHARING=2)),
    ({"tokens": 20, "hidden": 264, "ffn": 104}, tile(ROWS=3, TOKENS=16, A_SHARING=2, B_SHARING=2, PARTS=2)),
    ({"tokens": 70, "hidden": 72, "ffn": 136}, tile(CONSUMERS=2, ROWS=2, TOKENS=72)),
    ({"tokens": 3, "hidden": 520, "ffn": 104}, tile(CONSUMERS=3, CTAS_PER_SM=2)),  # a ring is refilled
]


@pytest.mark.parametrize(("sizes", "taken"), LAYERS, ids=str)
def test_layers_of_any_size(sizes, taken):
    check(SwigluFfn(**sizes), taken)


SECOND = [
    ("early_multicast", tile(TOKENS=24, PARTS=2)),
    ("early_multicast", tile(TOKENS=16, A_SHARING=2, B_SHARING=2, ROWS=2)),
    ("early_swapped", {"TOKENS": 16, "CONSUMERS": 1, "ROWS": 1, "PARTS": 2, "SHARING": 2, "CTAS_PER_SM": 2}),
    ("product", {}),
]


@pytest.mark.parametrize(("kernel", "taken"), SECOND, ids=str)
def test_each_second_product(monkeypatch, kernel, taken):
    second(monkeypatch, kernel, taken)
    check(SwigluFfn(tokens=19, hidden=72, ffn=264), tile(TOKENS=24, ROWS=2))


@pytest.mark.parametrize(("kernel", "taken"), [(k, t) for k, t in SECOND if t.get("PARTS") == 2], ids=str)
def test_no_races_in_both_launches(monkeypatch, kernel, taken):
    """The second launch loads weights before the first one is complete, and its results only then."""
    second(monkeypatch, kernel, taken)
    check(SwigluFfn(tokens=3, hidden=8, ffn=136), tile(ROWS=2), RACES)


def test_no_races_where_gate_and_up_meet_in_shared_memory(monkeypatch):
    second(monkeypatch, "early_multicast", tile())
    check(SwigluFfn(tokens=9, hidden=136, ffn=16, dtype="f16"), tile(B_SHARING=2, PARTS=2), RACES)


@pytest.mark.parametrize("taken", [tile(TOKENS=72), tile(ROWS=2, TOKENS=72), tile(CONSUMERS=3, TOKENS=24)], ids=str)
def test_gate_and_up_of_each_element_meet(taken):
    """Each column of h has its own gate and up, and y selects columns of h: products of 16-bit numbers that are exact."""
    tokens, hidden, ffn = 70, 64, 144
    rng = np.random.default_rng(0)
    kind = dtype_of("bf16")
    x = np.zeros((tokens, hidden), np.float32)
    x[np.arange(tokens), rng.integers(0, hidden, tokens)] = 1
    gate = 64 + 8.0 * rng.integers(0, 8, (ffn, hidden))  # silu(64) is 64
    up = rng.integers(-2, 3, (ffn, hidden))
    down = np.zeros((hidden, ffn), np.float32)
    down[np.arange(hidden), rng.integers(0, ffn, hidden)] = 1
    given = {"x": x.astype(kind), "gate": gate.astype(kind), "up": up.astype(kind), "down": down.astype(kind)}
    workload = SwigluFfn(tokens=tokens, hidden=hidden, ffn=ffn)
    case = execute.Case(workload, EmulatedDevice(), inputs=given)
    execute.prepare(case, workload.variant(VARIANT), None, taken).launch()
    np.testing.assert_array_equal(case.outputs()["y"].astype(np.float64), (x @ gate.T) * (x @ up.T) @ down.T)


@settings(max_examples=40, deadline=None)
@given(*(st.integers(1, 5000), st.integers(1, 2500), st.integers(1, 2500), st.sampled_from([132, 114, 20])))
def test_the_kernels_accept_what_the_model_prefers(tokens, hidden, ffn, sms):
    layer = SwigluFfn(tokens=tokens, hidden=8 * hidden, ffn=8 * ffn).on(replace(reference_facts("sm_90a"), sms=sms))
    found = next(iter(layer.variant(VARIANT).tiles(layer)))
    assert multicast.usable(layer.gated_product, Tile(found)) is True, found
    taken = gated_multicast.second(layer.down_product)
    of_second = {"early_multicast": multicast.usable, "early_swapped": swapped.usable}.get(taken.kernel, lambda w, t: True)
    assert of_second(layer.down_product, taken.tile) is True, taken


@pytest.mark.parametrize(
    ("taken", "message"),
    [
        (tile(CONSUMERS=3, ROWS=2), "384 rows of b in a tile are more than the 256 of a box of a tensor map"),
        (tile(A_SHARING=4, PARTS=4), "16 CTAs are more than the 8"),
        (tile(CONSUMERS=2, ROWS=2, TOKENS=256), "256 sums of 128 x 256 need more than the registers"),
    ],
)
def test_tiles_that_cannot_be_are_refused(taken, message):
    workload = SwigluFfn(tokens=64, hidden=1024, ffn=512).on(reference_facts("sm_90a"))
    with pytest.raises(UsageError, match=message):
        workload.variant(VARIANT).select_tile(workload, SM_90A, taken)


@pytest.mark.parametrize("tokens", [16, 128])
def test_wgmma_is_asynchronous_and_nothing_spills(tokens):
    workload = SwigluFfn(tokens=tokens)
    for step in build(workload, workload.variant(VARIANT), SM_90A).steps:
        assert "serialized" not in step.image.log
        assert_sass(step.image, has="HGMMA", spills=0)


@pytest.mark.parametrize("kernel", ["early_multicast", "early_swapped"])
def test_only_weights_are_read_before_the_first_product_is_complete(monkeypatch, kernel):
    """The first launch lets the second one start when all grids before have completed."""
    second(monkeypatch, kernel, dict(next(t for k, t in SECOND if k == kernel)))
    workload = SwigluFfn(tokens=19, hidden=136, ffn=392)
    tiles = workload.variant(VARIANT).select_tile(workload, SM_90A, tile(ROWS=2, TOKENS=24))
    images = [step.image for step in build(workload, workload.variant(VARIANT), SM_90A, tiles).steps]

    def first(image, part, opcode):
        """The position of an opcode in the PTX of a kernel, which has the order of the source."""
        (function,) = [found for entry, found in parse(image.ptx).functions.items() if part in entry]
        return next(i for i, instruction in enumerate(function.instructions) if instruction.opcode.startswith(opcode))

    wait, launch = (first(images[0], "gated_multicast", f"griddepcontrol.{what}") for what in ("wait", "launch"))
    assert wait < launch and wait < first(images[0], "gated_multicast", "cp.async.bulk.tensor")
    assert first(images[1], kernel, "cp.async.bulk.tensor") < first(images[1], kernel, "griddepcontrol.wait")


def test_large_tiles_are_taken_for_many_tokens():
    facts = reference_facts("sm_90a")
    few, many = (SwigluFfn(tokens=tokens).on(facts) for tokens in (16, 8192))
    assert few.variant(VARIANT).slower(few) is None
    why = many.variant(VARIANT).slower(many)
    assert why is not None and why.startswith("predicted to take ") and ", step 3 " in why
