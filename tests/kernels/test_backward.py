"""Gradients of layernorm and rmsnorm: the reference is compared with numerical differentiation, the kernels with the
reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptxkit import Tile
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.rows import backward, backward_one_launch
from ptxkit.kernels.rows.backward_one_launch import fitted
from ptxkit.kernels.rows.layernorm import Layernorm, gelu_tanh
from ptxkit.kernels.rows.layernorm_backward import LayernormBackward
from ptxkit.kernels.rows.rmsnorm import Rmsnorm
from ptxkit.kernels.rows.rmsnorm_backward import RmsnormBackward
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import facts_of, find_gpu, reference_facts, target_of
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

ROOT = Path(__file__).resolve().parents[2]
KERNELS = [LayernormBackward, RmsnormBackward]
VARIANTS = ["unfused", "fused", "vectorized", "pipelined", "one_launch"]
ACTIVATIONS = {"relu": lambda z: np.maximum(z, 0), "gelu": gelu_tanh}
EPS = 1e-3
f32 = np.float32


def forward(kernel, x, gamma, beta):
    """y, and the statistics that are stored for training, in float64."""
    centered = x - x.mean(1, keepdims=True) if kernel.centered else x
    rstd = 1 / np.sqrt((centered**2).mean(1) + EPS)
    kept = {"mean": x.mean(1), "rstd": rstd} if kernel.centered else {"rstd": rstd}
    return centered * rstd[:, None] * gamma + (beta if kernel.centered else 0), kept


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_reference_is_what_differences_say(kernel):
    rng = np.random.default_rng(7)
    x, dy = rng.normal(size=(2, 3, 6))
    gamma, beta = rng.normal(size=(2, 6))
    given = {"x": x, "dy": dy, "gamma": gamma, **forward(kernel, x, gamma, beta)[1]}
    gradients = kernel(rows=3, cols=6).reference(**given)
    point = {"dx": x, "dgamma": gamma, "dbeta": beta}
    assert set(gradients) == set(point if kernel.centered else ("dx", "dgamma"))
    step = 1e-6
    for name, gradient in gradients.items():
        for index in np.ndindex(gradient.shape):
            values = []
            for h in (step, -step):
                moved = {k: v.copy() for k, v in point.items()}
                moved[name][index] += h
                values.append((dy * forward(kernel, moved["dx"], moved["dgamma"], moved["dbeta"])[0]).sum())
            difference = (values[0] - values[1]) / (2 * step)
            assert gradient[index] == pytest.approx(difference, rel=1e-6, abs=1e-8), (name, index)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_reference_with_activation_is_what_differences_say(activation):
    rng = np.random.default_rng(8)
    x, dy = rng.normal(size=(2, 3, 6))
    gamma, beta = rng.normal(size=(2, 6))
    kept = forward(LayernormBackward, x, gamma, beta)[1]
    workload = LayernormBackward(rows=3, cols=6, activation=activation)
    gradients = workload.reference(x=x, dy=dy, gamma=gamma, beta=beta, **kept)
    step = 1e-6
    for name, gradient in gradients.items():
        for index in np.ndindex(gradient.shape):
            values = []
            for h in (step, -step):
                moved = {"dx": x.copy(), "dgamma": gamma.copy(), "dbeta": beta.copy()}
                moved[name][index] += h
                y = forward(LayernormBackward, moved["dx"], moved["dgamma"], moved["dbeta"])[0]
                values.append((dy * ACTIVATIONS[activation](y)).sum())
            assert gradient[index] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize(("kernel", "norm"), [(LayernormBackward, Layernorm), (RmsnormBackward, Rmsnorm)])
def test_inputs_are_what_the_forward_kernel_keeps(kernel, norm):
    workload = kernel(rows=5, cols=40)
    inputs = workload.inputs(np.random.default_rng(0))
    options = {"activation": "none"} if kernel.centered else {}
    forth = norm(rows=5, cols=40, training=True, **options)
    beta = {"beta": inputs["gamma"]} if kernel.centered else {}
    kept = forth.reference(inputs["x"], gamma=inputs["gamma"], eps=f32(forth.eps), **beta)
    for name in ("mean", "rstd") if kernel.centered else ("rstd",):
        np.testing.assert_allclose(inputs[name], kept[name], rtol=1e-6, atol=1e-7)


def case_of(device, kernel, rows, cols, dtype="f32", scale=1.0, offset=0.0, **options):
    workload = kernel(rows=rows, cols=cols, dtype=dtype, **options)
    inputs = workload.inputs(np.random.default_rng(rows + cols))
    if scale != 1.0 or offset:
        x = (inputs["x"].astype(np.float64) * scale + offset).astype(dtype_of(dtype))
        wide = x.astype(np.float64)
        if kernel.centered:
            inputs["mean"] = wide.mean(1).astype(f32)
            wide = wide - wide.mean(1, keepdims=True)
        inputs |= {"x": x, "rstd": (1 / np.sqrt((wide**2).mean(1))).astype(f32)}
    return execute.Case(workload, device, inputs=inputs)


def check(case, variant="vectorized", tile=None):
    """Run a variant, assert that it is verified, and return the gradients."""
    result = execute.run(case, case.workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return case.outputs()


SHAPES = [(1, 1), (5, 3), (70, 8), (3, 33), (2, 1000), (1, 4097)]


# Both kernels are instances of the templates in cu/ptxkit/rows: each variant has every width in one of them, and every type.
@pytest.mark.parametrize(
    ("kernel", "variant", "rows", "cols"),
    [(KERNELS[(i + j) % 2], name, *shape) for i, name in enumerate(VARIANTS) for j, shape in enumerate(SHAPES)],
)
def test_any_width(device, kernel, variant, rows, cols):
    check(case_of(device, kernel, rows, cols), variant)


@pytest.mark.parametrize(
    ("kernel", "variant", "cols", "dtype"),
    [
        (KERNELS[(i + j) % 2], name, cols, dtype)
        for i, name in enumerate(VARIANTS)
        for j, (cols, dtype) in enumerate([(264, "f16"), (333, "bf16")])
    ],
)
def test_dtypes(device, kernel, variant, cols, dtype):
    check(case_of(device, kernel, 9, cols, dtype), variant)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("kernel", "cols"), [(RmsnormBackward, 1), (LayernormBackward, 2)])
def test_gradients_that_cancel_for_all_elements(kernel, cols, dtype):
    """Their error is that of the terms; the magnitude of dx follows from eps."""
    for seed in range(4):
        workload = kernel(rows=40, cols=cols, dtype=dtype)
        verdict = execute.run(execute.Case(workload, EmulatedDevice(), seed=seed), workload.variant("fused")).verdict
        assert verdict.verified, verdict.worst


@pytest.mark.parametrize("cols", [260, 12289])
@pytest.mark.parametrize("kernel", KERNELS)
def test_fused_is_unfused_bit_for_bit(device, kernel, cols):
    case = case_of(device, kernel, 7, cols, scale=100.0, offset=3.0)
    unfused, fused = (check(case, name) for name in ("unfused", "fused"))
    for name in unfused:
        np.testing.assert_array_equal(unfused[name].view(np.uint32), fused[name].view(np.uint32))


WITH_ACTIVATIONS = [("gelu", 1, 1, "f32"), ("gelu", 9, 333, "bf16"), ("relu", 40, 8, "f32"), ("gelu", 70, 264, "f16")]


@pytest.mark.parametrize(
    ("variant", "activation", "rows", "cols", "dtype"),
    [(name, *case) for i, name in enumerate(VARIANTS) for j, case in enumerate(WITH_ACTIVATIONS) if (i + j) % 2 == 0],
)
def test_activations(device, variant, activation, rows, cols, dtype):
    check(case_of(device, LayernormBackward, rows, cols, dtype, activation=activation), variant)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("cols", [260, 12289])
def test_fused_is_unfused_bit_for_bit_with_an_activation(device, cols, activation):
    case = case_of(device, LayernormBackward, 5, cols, activation=activation)
    unfused, fused = (check(case, name) for name in ("unfused", "fused"))
    for name in unfused:
        np.testing.assert_array_equal(unfused[name].view(np.uint32), fused[name].view(np.uint32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_derivatives_of_large_and_invalid_arguments(device, variant):
    """gelu has the derivatives 0 and 1 far from 0, and NaN for NaN, without products of infinity and 0."""
    workload = LayernormBackward(rows=2, cols=8, activation="gelu")
    inputs = workload.inputs(np.random.default_rng(0))
    inputs["gamma"][:] = 0
    inputs["beta"][:] = [-1e30, 1e30, -np.inf, np.inf, -11, 11, np.nan, -0.5]
    inputs["dy"][:] = 1
    case = execute.Case(workload, device, inputs=inputs)
    execute.run(case, workload.variant(variant), None, {} if variant in ("unfused", "fused") else None)
    np.testing.assert_allclose(case.outputs()["dbeta"], 2 * np.array([0, 1, 0, 1, 0, 1, np.nan, 0.13263]), atol=1e-5)


@pytest.mark.parametrize("smem_gamma", [False, True])
@pytest.mark.parametrize(("cols", "cluster"), [(240, 1), (1000, 2), (1001, 2)])
def test_producer_warps_with_an_activation(device, cols, cluster, smem_gamma):
    """beta in registers or in shared memory, padded columns included; copies complete as late as is legal."""
    if device.kind == "emulator":
        device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    case = case_of(device, LayernormBackward, 70, cols, activation="gelu")
    tile = {"THREADS": 64, "VECTORS": 2, "CLUSTER": cluster, "PARTIALS": 8, "STAGES": 2}
    check(case, "pipelined", tile | {"SMEM_GAMMA": smem_gamma})


def test_relu_is_not_tested_where_rounding_decides_its_derivative():
    workload = LayernormBackward(rows=64, cols=4096, activation="relu")
    given = workload.inputs(np.random.default_rng(0))
    n = (given["x"].astype(np.float64) - given["mean"][:, None]) * given["rstd"][:, None]
    z = n * given["gamma"] + given["beta"]
    assert (given["dy"][np.abs(z) <= 1e-7] == 0).all()
    assert (given["dy"] == 0).mean() < 1e-4


@pytest.mark.parametrize("scale", [1e-15, 1e15])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_of_any_scale(device, kernel, variant, scale):
    case = case_of(device, kernel, 4, 100, scale=scale)
    case.inputs["dy"] = (case.inputs["dy"] * f32(1 / case.inputs["rstd"].mean())).astype(f32)
    execute.run(case, case.workload.variant(variant))
    got = case.outputs()
    for name, wanted in case.workload.reference(**case.inputs).items():  # sums over rows cancel, in the scale of dy
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max(), err_msg=name)


TILES = [
    (5, {"THREADS": 64, "VECTORS": 1}),  # several rows per warp
    (100, {"THREADS": 256, "VECTORS": 1, "PARTIALS": 132}),  # one row per warp
    (300, {"THREADS": 256, "VECTORS": 1, "CTAS_PER_SM": 1}),  # several warps per row, several rows per CTA
    (1001, {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2}),
    (2800, {"THREADS": 64, "VECTORS": 2, "CLUSTER": 8}),
    (3000, {"THREADS": 64, "VECTORS": 1, "CLUSTER": 2}),  # streamed
    (3001, {"THREADS": 64, "VECTORS": 1, "CLUSTER": 1}),
]


@pytest.mark.parametrize(("cols", "tile"), TILES, ids=lambda v: str(v) if isinstance(v, int) else None)
def test_every_shape_of_tile(device, cols, tile):
    """Of the kernel that also subtracts a mean; the other one has the same tiles of the same templates."""
    check(case_of(device, LayernormBackward, 11, cols), tile=tile)


@pytest.mark.parametrize("cols", [64, 67])
@pytest.mark.parametrize("kernel", KERNELS)
def test_ctas_take_row_after_row(device, kernel, cols):
    """More rows than are computed at a time; the sums are the same in each launch."""
    case = case_of(device, kernel, 700, cols)
    first = check(case, tile={"THREADS": 64, "VECTORS": 1, "PARTIALS": 132})
    again = check(case, tile={"THREADS": 64, "VECTORS": 1, "PARTIALS": 132})
    for name in first:
        np.testing.assert_array_equal(first[name].view(np.uint32), again[name].view(np.uint32))


FETCHED = [  # columns, dtype, THREADS, CLUSTER, rows that a CTA takes at a time
    (900, "f32", 128, 1, 1),
    (901, "f32", 128, 1, 1),  # not copied
    (1800, "f16", 128, 1, 1),
    (500, "f32", 128, 1, 2),  # a group of two warps has a barrier of its own
    (240, "f32", 128, 1, 4),  # of one warp has none
    (400, "bf16", 256, 1, 8),  # two groups a producer warp
    (401, "bf16", 256, 1, 8),
    (800, "f32", 512, 1, 4),  # the producer warps release registers
    (1000, "f32", 64, 2, 1),
    (1001, "f32", 64, 2, 1),
    (2900, "f32", 64, 8, 1),
    (3000, "bf16", 64, 4, 1),
]


COPIES = [(1, 0, True), (3, 2, False)]  # STAGES, MAX_IN_FLIGHT, SMEM_GAMMA


@pytest.mark.parametrize(
    ("kernel", "stages", "in_flight", "kept", "cols", "dtype", "threads", "cluster", "groups"),
    [(KERNELS[n % 2], *COPIES[n // 2 % 2], *fetched) for n, fetched in enumerate(FETCHED)],
    ids=lambda v: v.__name__ if isinstance(v, type) else str(v),
)
def test_warps_of_their_own_fetch_rows(device, kernel, stages, in_flight, kept, cols, dtype, threads, cluster, groups):
    """CTAs execute many iterations, copies complete as late as is legal, and the sums are the same in each launch."""
    if device.kind == "emulator":
        device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    partials = 8 if cluster == 1 else 16
    rows = 33 * groups if cluster == 1 else 40
    case = case_of(device, kernel, rows, cols, dtype)
    tile = {"THREADS": threads, "VECTORS": 2, "CLUSTER": cluster, "PARTIALS": partials}
    tile |= {"STAGES": stages, "MAX_IN_FLIGHT": in_flight, "SMEM_GAMMA": kept}
    first, again = (check(case, "pipelined", tile) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    variant = case.workload.variant("pipelined")
    launch, finish = variant.launches(case.workload, variant.select_tile(case.workload, Target.parse("sm_90a"), tile))
    assert launch.kernel == f"{kernel.norm}_backward_warp_specialized"
    assert launch.block[0] == threads + 32 * (4 if threads >= 512 else min(groups, 4))
    assert launch.grid[0] // cluster < partials
    assert launch.grid[0] // cluster in finish.args  # rows of partial sums


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "cols", [1, 64, 300, 1000, 1024, 2048, 3072, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144]
)
@pytest.mark.parametrize(("name", "rows"), [("vectorized", 512), ("pipelined", 512), ("pipelined", 65536)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_preferred_tile_satisfies_the_constraint(kernel, name, rows, cols, dtype):
    workload = kernel(rows=rows, cols=cols, dtype=dtype)
    variant = workload.variant(name)
    tile = variant.select_tile(workload, Target.parse("sm_90a"))
    assert tile.items() >= next(iter(variant.prefer(workload))).items()


BLOCKS = [  # rows, cols, dtype, tile
    (1600, 33, "f32", {"THREADS": 64, "BLOCK_STAGES": 3}),  # four iterations, two rows in a warp
    (17, 69, "f16", {"THREADS": 64, "BLOCK_STAGES": 2}),  # four rows in a CTA, whose last one has one
    (5, 517, "bf16", {"THREADS": 256, "BLOCK_STAGES": 4}),  # rows of several warps
]


@pytest.mark.parametrize(("rows", "cols", "dtype", "tile"), BLOCKS)
def test_rows_that_begin_between_vectors_move_as_blocks(rows, cols, dtype, tile):
    kernel = KERNELS[rows % 2]
    device = EmulatedDevice(settings=EmulatorSettings(racecheck=True, initcheck=True))
    check(case_of(device, kernel, rows, cols, dtype), "vectorized", {"VECTORS": 1, "CLUSTER": 1, "CTAS_PER_SM": 1, **tile})


def test_blocks_with_an_activation(device):
    case = case_of(device, LayernormBackward, 40, 69, "bf16", activation="gelu")
    check(case, tile={"THREADS": 64, "VECTORS": 2, "CLUSTER": 1, "BLOCK_STAGES": 2})


@pytest.mark.parametrize(("cols", "threads", "message"), [
    (264, 128, "264 columns are whole vectors, so BLOCK_STAGES has no effect"),
    (4097, 128, "BLOCK_STAGES applies to rows in the registers of a CTA"),
])
def test_blocks_that_cannot_be_copied_are_refused(device, cols, threads, message):
    with pytest.raises(UsageError, match=message):
        check(case_of(device, RmsnormBackward, 4, cols, "bf16"), tile={"THREADS": threads, "VECTORS": 1, "BLOCK_STAGES": 2})


ONE_LAUNCH = [  # rows, cols, dtype, tile
    (70, 264, "bf16", {"THREADS": 128, "SPLIT": 2}),  # several rows a CTA, some of them past the last one
    (67, 1021, "f16", {"THREADS": 256, "SPLIT": 4, "SHIFTED": True}),
    (33, 1021, "bf16", {"THREADS": 256, "SHIFTED": False}),
    (9, 4097, "bf16", {"THREADS": 128, "VECTORS": 3, "CLUSTER": 2, "SPLIT": 2, "SHIFTED": True}),
    (40, 2000, "f32", {"THREADS": 128, "VECTORS": 1, "CLUSTER": 4, "SPLIT": 4}),
    (260, 3, "f32", {"THREADS": 128, "SPLIT": 8}),
    (150, 42, "f16", {"THREADS": 128, "SPLIT": 4}),  # two columns a lane of the sums
    (300, 36, "f32", {"THREADS": 256, "SPLIT": 8}),  # four
    (3, 9000, "f16", {"THREADS": 128, "VECTORS": 2, "CLUSTER": 8}),  # three warps, one of each block
    (2, 16900, "f32", {"THREADS": 256, "VECTORS": 2, "CLUSTER": 16}),  # a thread has a vector of columns
]


@pytest.mark.parametrize(("rows", "cols", "dtype", "tile"), ONE_LAUNCH)
def test_clusters_add_up_columns_and_hold_rows(device, rows, cols, dtype, tile):
    kernel = KERNELS[cols % 2]
    check(case_of(device, kernel, rows, cols, dtype), "one_launch", {"VECTORS": 1, "CLUSTER": 1, "SPLIT": 1, **tile})


def test_sums_of_blocks_may_come_after_dx(device, monkeypatch):
    monkeypatch.setattr(backward_one_launch, "dx_first", lambda w, t: True)
    tile = {"THREADS": 128, "VECTORS": 2, "CLUSTER": 2, "SPLIT": 1, "SHIFTED": True}
    check(case_of(device, RmsnormBackward, 5, 2051, "f16"), "one_launch", tile)


VECTOR_SUMS = [  # groups of warps, rows, cols, dtype, options, tile
    (1, 5, 520, "f32", {}, {"THREADS": 128, "VECTORS": 2}),
    (1, 1, 325, "bf16", {}, {"THREADS": 128, "SHIFTED": False}),
    (3, 8, 1021, "f16", {}, {"THREADS": 128, "VECTORS": 2, "SHIFTED": True}),  # a warp is left, and a group has no rows
    (2, 13, 2051, "f32", {}, {"THREADS": 128, "VECTORS": 3, "CLUSTER": 2}),
    (3, 30, 2056, "f16", {}, {"THREADS": 256, "CLUSTER": 2}),
    (2, 5, 264, "bf16", {"activation": "gelu"}, {"THREADS": 128}),
]


@pytest.mark.parametrize(("groups", "rows", "cols", "dtype", "options", "tile"), VECTOR_SUMS)
def test_threads_add_up_vectors_of_columns(device, monkeypatch, groups, rows, cols, dtype, options, tile):
    monkeypatch.setattr(backward_one_launch, "groups", lambda w, t: groups)
    case = case_of(device, LayernormBackward if options else KERNELS[cols % 2], rows, cols, dtype, **options)
    check(case, "one_launch", {"VECTORS": 1, "CLUSTER": 1, "SPLIT": 1, **tile})


@pytest.mark.parametrize(("rows", "cols", "groups", "first"), [
    (2, 106232, 1, True),
    (16, 106232, 2, True),
    (17, 106232, 0, True),
    (65, 106232, 0, False),
    (2, 106233, 0, True),
    (2, 16384, 0, False),  # fewer warps than SMs
    (2, 33792, 1, True),
])
def test_few_long_rows_are_added_up_by_vectors_after_dx(rows, cols, groups, first):
    workload = RmsnormBackward(rows=rows, cols=cols, dtype="f16").on(reference_facts("sm_90a"))
    tile = Tile(backward_one_launch.ordered(workload)[0][1])
    found = backward_one_launch.groups(workload, tile), backward_one_launch.dx_first(workload, tile)
    assert found == (groups, first)


@pytest.mark.parametrize(("rows", "one"), [(2, True), (16, True), (32, True), (300, False)])
def test_few_rows_that_no_clusters_registers_hold_take_one_launch(rows, one):
    """Two launches read them three times."""
    workload = RmsnormBackward(rows=rows, cols=106232, dtype="f16").on(reference_facts("sm_90a"))
    assert (workload.variant("one_launch").slower(workload) is None) is one


def test_one_launch_with_an_activation_in_clusters(device):
    case = case_of(device, LayernormBackward, 40, 700, "bf16", activation="gelu")
    check(case, "one_launch", {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1, "SPLIT": 2})


@pytest.mark.parametrize(("groups", "tile"), [(0, {"SPLIT": 2}), (3, {"SPLIT": 1})])
def test_one_launch_has_no_races_and_reads_nothing_uninitialised(monkeypatch, groups, tile):
    monkeypatch.setattr(backward_one_launch, "groups", lambda w, t: groups)
    settings = EmulatorSettings(racecheck=True, initcheck=True)
    case = case_of(EmulatedDevice(settings=settings), LayernormBackward, 40, 520, "bf16")
    check(case, "one_launch", {"THREADS": 128, "VECTORS": 1, "CLUSTER": 1, **tile})


def test_one_launch_is_objected_to_where_two_are_predicted_to_be_faster():
    slower = RmsnormBackward.variants()["one_launch"].slower
    assert slower(RmsnormBackward(rows=64, cols=4096)) is None
    assert "predicted to take" in slower(RmsnormBackward(rows=16384, cols=4096))


@pytest.mark.parametrize(("rows", "cols", "faster"), [(2500, 2500, True), (2500, 2504, False), (8192, 4543, False)])
def test_one_launch_is_faster_than_two_with_single_columns_that_nothing_prefetches(rows, cols, faster):
    workload = LayernormBackward(rows=rows, cols=cols, dtype="bf16").on(reference_facts("sm_90a"))
    assert (workload.variant("one_launch").slower(workload) is None) is faster


def test_the_file_of_coefficients_is_what_its_times_say(monkeypatch):
    """The variants and tiles that the model takes are near the fastest of the files to which it was fitted."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import fit_gradients

    files = sorted((ROOT / "tests/workload/data").glob("choices-[4-9]-h200.jsonl.gz"))
    regrets = [fit_gradients.regret(case, fitted()) for path in files for case in fit_gradients.cases_of(path)]
    assert len(regrets) == 93 and np.mean(regrets) < 0.04 and np.median(regrets) < 0.01


@pytest.mark.parametrize("cols", [5, 520, 1025])
def test_gpus_with_fewer_sms_have_fewer_partial_sums(cols):
    """Blocks of rows take a number of partial sums for the SMs that there are, which must be one of the declared ones."""
    for sms in (16, 40, 108, 128):
        w = LayernormBackward(rows=4096, cols=cols, dtype="bf16").on(replace(reference_facts("sm_80"), sms=sms))
        tile, _ = w.variant("vectorized").select(w, w.device.target, None)
        if tile.get("BLOCK_STAGES"):
            most = max(tile.CTAS_PER_SM * sms, 8)
            assert most >= tile.PARTIALS


@pytest.mark.parametrize("cols", [2049, 4095])
def test_a_gpu_whose_shared_memory_holds_no_preferred_tile_has_the_tile_of_vectorized(cols):
    gpu = find_gpu("Tesla T4")
    workload = LayernormBackward(rows=30, cols=cols).on(facts_of(gpu))
    chosen = workload.variant("vectorized").select_tile(workload, target_of(gpu))
    second = backward.second_tile(workload)
    assert {name: second[name] for name in backward.TILE} == {name: chosen[name] for name in backward.TILE}
