"""swiglu_ffn and sparse_swiglu_ffn in all their steps: types, ragged sizes, late completion, races, and the compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.inspect.disassembly import sass
from ptxkit.kernels.gemm import sparse, wgmma_tiles
from ptxkit.kernels.gemm.sparse_swiglu_ffn import SparseSwigluFfn
from ptxkit.kernels.gemm.swiglu_ffn import SwigluFfn
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of

STEPS = [(kernel, name) for kernel in (SwigluFfn, SparseSwigluFfn) for name in kernel.variants()]
FUSED = [step for step in STEPS if not step[1].startswith("unfused")]
FASTEST = [(SwigluFfn, "step3_multicast"), (SparseSwigluFfn, "step4_multicast")]


RAGGED = [shape for shape in wgmma_tiles.SHAPES if shape["BN"] % 64]


@pytest.mark.parametrize("shape", RAGGED, ids=[f"{shape['BM']}x{shape['BN']}" for shape in RAGGED])
def test_tiles_of_the_second_product_have_any_columns(device, monkeypatch, shape):
    """Boxes of 32 columns store those that are no multiple of 64; with boxes of 64, most results were in other columns."""
    tile = {**shape, "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUP": 16}
    monkeypatch.setattr(wgmma_tiles, "preferred", lambda w: iter([tile]))
    check(device, SwigluFfn, "step3_multicast", 70, 64, 144)


def check(device, kernel, variant, tokens, hidden, ffn, tile=None, **options):
    workload = kernel(tokens=tokens, hidden=hidden, ffn=ffn, **options)
    case = execute.Case(workload, device, seed=tokens + hidden + ffn)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), STEPS)
def test_one_token(device, kernel, variant):
    check(device, kernel, variant, 1, 16, 48)


@pytest.mark.parametrize(
    ("kernel", "variant"),
    [s if s in FASTEST or s[1] == "step1_mma_sp" else pytest.param(*s, marks=pytest.mark.slow) for s in STEPS],
)
def test_any_size(device, kernel, variant):
    check(device, kernel, variant, 133, 112, 176, dtype="f16")


@pytest.mark.parametrize(
    ("kernel", "variant"),
    [*FASTEST, (SparseSwigluFfn, "step1_mma_sp")],
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_gate_and_up_of_each_element_meet(device, kernel, variant):
    """Each column of h has its own gate and up, and y selects columns of h: products of 16-bit numbers that are exact."""
    tokens, hidden, ffn = 70, 64, 144
    rng = np.random.default_rng(0)
    workload = kernel(tokens=tokens, hidden=hidden, ffn=ffn)
    kind = dtype_of("bf16")
    x = np.zeros((tokens, hidden), np.float32)
    x[np.arange(tokens), 4 * rng.integers(0, hidden // 4, tokens)] = 1
    gate = np.zeros((ffn, hidden), np.float32)
    gate[:, ::4] = 64 + 8 * rng.integers(0, 8, (ffn, hidden // 4))  # silu(64) is 64
    up = np.zeros((ffn, hidden), np.float32)
    up[:, ::4] = rng.integers(-2, 3, (ffn, hidden // 4))
    down = np.zeros((hidden, ffn), np.float32)
    down[np.arange(hidden), 4 * rng.integers(0, ffn // 4, hidden)] = 1
    given = {"x": x.astype(kind)}
    for name, weights in (("gate", gate), ("up", up), ("down", down)):
        given[name] = weights.astype(kind)
        if kernel is SparseSwigluFfn:
            given[f"{name}_values"], given[f"{name}_metadata"] = sparse.compress(given[name])
    case = execute.Case(workload, device, inputs=given)
    execute.prepare(case, workload.variant(variant)).launch()
    np.testing.assert_array_equal(case.outputs()["y"].astype(np.float64), (x @ gate.T) * (x @ up.T) @ down.T)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), FUSED)
def test_no_step_relies_on_copies_that_happen_to_be_early(few_ctas, kernel, variant):
    """Asynchronous operations complete as late as the program's waits allow, with several tiles per CTA."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, kernel, variant, 140, 80, 288)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), FASTEST)
def test_no_races_over_several_tiles(few_ctas, kernel, variant):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    check(device, kernel, variant, 140, 352, 288)  # more steps than stages


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), FASTEST)
def test_nothing_uninitialised_is_used(kernel, variant):
    settings = EmulatorSettings(initcheck=True, completion="latest-legal", trap=("nan",))
    check(EmulatedDevice(settings=settings), kernel, variant, 70, 96, 208)


TILES = [
    (SparseSwigluFfn, {"BM": 200, "CLUSTER_N": 2}),  # 200 sums a thread; parts of x and boxes of h have 40 rows
    (SparseSwigluFfn, {"BM": 176, "CLUSTER_N": 1, "BOXES": 2}),
    (SparseSwigluFfn, {"BM": 128, "CLUSTER_M": 2, "CLUSTER_N": 2, "GROUP": 1}),
    (SparseSwigluFfn, {"BM": 64, "BN": 128, "CONSUMERS": 1, "REGISTERS": 0}),
    (SwigluFfn, {"BM": 128, "BN": 256, "CONSUMERS": 2, "REGISTERS": 240, "CLUSTER_M": 2, "CLUSTER_N": 2, "STAGES": 4}),
    (SwigluFfn, {"BM": 256, "BN": 128, "CONSUMERS": 2, "REGISTERS": 240, "CLUSTER_M": 2, "STAGES": 4}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "tile"), TILES, ids=str)
def test_every_shape_of_tile(few_ctas, kernel, tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, kernel, dict(FASTEST)[kernel], 300, 80, 208, tile)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), STEPS)
def test_wgmma_is_asynchronous_and_nothing_spills(kernel, variant):
    workload = kernel(tokens=8192, hidden=6144, ffn=24576)
    for step in build(workload, workload.variant(variant), Target.parse("sm_90a")).steps:
        assert "serialized" not in step.image.log  # "wgmma.mma_async instructions are serialized due to ..."
        if step.launch.source != "swiglu.cu":
            assert_sass(sass(step.image)[step.image.entry(step.launch.entry)], spills=0)


@pytest.mark.slow
def test_the_sparse_steps_use_the_sparse_instructions():
    assert_sass("sparse_swiglu_ffn:step1_mma_sp@sm_80", has=["HMMA.SP.16832", "LDSM.16.M88.4", "LDGSTS"], spills=0)
    workload = SparseSwigluFfn()
    steps = build(workload, workload.variant("step4_multicast"), Target.parse("sm_90a")).steps
    assert_sass(steps[0].image, has=["HGMMA.SP", "UTMALDG.2D.MULTICAST", "UTMASTG"])


def test_the_intermediate_is_stored_once_in_16_bits():
    """Bytes of device memory that the launches store: h and y."""
    workload = SparseSwigluFfn(tokens=64, hidden=128, ffn=128)
    device = EmulatedDevice()
    case = execute.Case(workload, device)
    result = execute.run(case, workload.variant("step1_mma_sp"))
    assert result.counters.written_bytes == 2 * 64 * (128 + 128)


def test_half_of_the_flops_are_executed():
    work = SparseSwigluFfn(tokens=256, hidden=256, ffn=256).work()
    assert (work.flops, work.executed) == (6 * 256**3, 3 * 256**3)
    assert SwigluFfn(tokens=256, hidden=256, ffn=256).work().executed == work.flops
    case = execute.Case(SparseSwigluFfn(tokens=256, hidden=256, ffn=256), EmulatedDevice())
    result = execute.run(case, case.workload.variant("step4_multicast"))
    assert result.counters.flops_by_type["tensor.bf16"] == work.executed


@pytest.mark.parametrize(
    ("kernel", "sizes", "message"),
    [
        (SwigluFfn, {"hidden": 20}, "hidden must be a multiple of 8"),
        (SparseSwigluFfn, {"ffn": 24}, "ffn must be a multiple of 16"),
        (SparseSwigluFfn, {"tokens": 0}, "tokens"),
    ],
)
def test_rows_are_multiples_of_16_bytes(kernel, sizes, message):
    with pytest.raises(UsageError, match=message):
        kernel(**{"tokens": 8, "hidden": 32, "ffn": 32, **sizes})


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ({"BM": 200, "BN": 128}, "is not 64 columns of gate and of up for each of 2 consumers"),
        ({"BM": 200, "REGISTERS": 0}, "holds 200 sums of 200 x 256, more than 128"),
        ({"BM": 64, "BN": 128, "CONSUMERS": 1, "REGISTERS": 240}, "one consumer has enough registers"),
        ({"BM": 200, "STAGES": 8}, "bytes of shared memory, more than 232448"),
    ],
)
def test_tiles_that_cannot_be_are_refused(tile, message):
    workload = SparseSwigluFfn()
    with pytest.raises(UsageError, match=message):
        workload.variant("step4_multicast").select_tile(workload, Target.parse("sm_90a"), tile)
