"""ffn_sublayer and linear_layernorm_gelu in all variants: types, ragged sizes, tiles, late completion, races, cancellation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.isa.parser import parse
from ptxkit.kernels.ffn import ffn_sublayer
from ptxkit.kernels.ffn.ffn_sublayer import FfnSublayer
from ptxkit.kernels.ffn.linear_layernorm_gelu import LinearLayernormGelu
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build

SUBLAYER = [("ffn_sublayer", name) for name in FfnSublayer.variants()]
LINEAR = [("linear_layernorm_gelu", name) for name in LinearLayernormGelu.variants()]
FOLDED = [name for name in FfnSublayer.variants() if name.startswith("folded")]
SIZES = [(1, 8, 8), (70, 200, 264)]


def check(device, kernel, variant, rows, hidden, features, tile=None, **options):
    workload = registry.get(kernel).make([rows, hidden, features], options)
    case = execute.Case(workload, device, seed=rows + hidden + features)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize(("rows", "hidden", "features"), SIZES)
@pytest.mark.parametrize(("kernel", "variant"), SUBLAYER + LINEAR)
def test_any_size(device, kernel, variant, rows, hidden, features):
    check(device, kernel, variant, rows, hidden, features)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), SUBLAYER + LINEAR)
def test_f16(device, kernel, variant):
    check(device, kernel, variant, 33, 136, 72, dtype="f16")


@pytest.mark.parametrize("variant", FOLDED)
def test_weights_may_be_folded_in_each_call(device, variant):
    check(device, "ffn_sublayer", variant, 5, 136, 72, weights="plain")


def test_folded_weights_are_those_of_numpy(device):
    workload = FfnSublayer(rows=1, hidden=328, features=40, weights="plain")
    case = execute.Case(workload, device, seed=1)
    execute.run(case, workload.variant("folded"))
    expected = ffn_sublayer.folded(*(case.inputs[name] for name in ("w", "gamma", "beta", "bias")))
    for name, values in expected.items():
        found = case.array(name).numpy().astype(np.float64)
        np.testing.assert_allclose(found, values.astype(np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_large_means_cancel_in_the_folded_product(device):
    """Below the documented limit all variants are right. Far beyond it, the row kernels are, and the folded product is not."""
    workload = FfnSublayer(rows=8, hidden=1024, features=16, dtype="f16")
    limit = ffn_sublayer.most_offset(workload)
    for offset, variants in ((limit, ("folded",)), (64 * limit, ("row_kernels",))):
        given = replace(workload, offset=offset).inputs(np.random.default_rng(0))
        for variant in variants:
            case = execute.Case(workload, device, inputs=given)
            assert execute.run(case, workload.variant(variant)).verdict.verified, (offset, variant)
    case = execute.Case(workload, device, inputs=given)
    assert not execute.run(case, workload.variant("folded")).verdict.verified


@pytest.mark.parametrize("variant", FOLDED)
def test_folded_products_refuse_large_means(variant):
    workload = FfnSublayer(hidden=8192, offset=100)
    with pytest.raises(UsageError, match=r"cancels where \|offset\| > 96 with hidden=8192 in bf16; use row_kernels"):
        workload.variant(variant).select_tile(workload, Target.parse("sm_90a"))


@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_one_outlier_that_is_the_pivot(device, mean):
    """The variance that observers sum relative to an outlier is still accurate enough."""
    workload = FfnSublayer(rows=3, hidden=1024, features=16)
    given = workload.inputs(np.random.default_rng(0))
    x = given["x"].astype(np.float32) + np.float32(mean)
    x[1, 0], x[2, 960] = 1000, -1000
    case = execute.Case(workload, device, inputs={**given, "x": x.astype(given["x"].dtype)})
    assert execute.run(case, workload.variant("folded_one_launch")).verdict.verified


@pytest.mark.parametrize(("kernel", "variant"), SUBLAYER + LINEAR)
def test_a_row_that_is_not_a_number_leaves_the_others_as_they_are(device, kernel, variant):
    """Clusters exchange statistics and sums of several rows, and products multiply them together."""
    workload = registry.get(kernel).make([9, 72, 40])
    given = workload.inputs(np.random.default_rng(6))
    given["x"][5, 3] = np.float32(np.nan)
    case = execute.Case(workload, device, inputs=given)
    assert execute.run(case, workload.variant(variant), explicit=True).verdict.verified
    assert np.isnan(case.outputs()["out"].astype(np.float32)).all(axis=1).tolist() == [row == 5 for row in range(9)]


LATE = [step for step in SUBLAYER + LINEAR if step[1] not in ("unfused", "row_kernels", "folded")]


@pytest.mark.parametrize(("kernel", "variant"), LATE)
def test_no_step_relies_on_copies_that_happen_to_be_early(few_ctas, kernel, variant):
    """Asynchronous operations complete as late as the program's waits allow, with several tiles per CTA."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, kernel, variant, 130, 136, 264)


SWAPPED = [
    ("bf16", {"TOKENS": 16, "PARTS": 3, "SHARING": 2, "CONSUMERS": 2}),  # multicast rows, parts of hidden
    ("f16", {"TOKENS": 48, "PARTS": 1, "ROWS": 2, "CTAS_PER_SM": 1}),
    ("bf16", {"TOKENS": 8, "PARTS": 8}),  # parts of one step, which all begin before the rows are normalized
]


@pytest.mark.parametrize(("dtype", "tile"), SWAPPED, ids=str)
def test_every_shape_of_swapped_products(dtype, tile):
    """The weights are in the ring before the rows: f16 and bf16, sizes that no tile divides."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))
    check(device, "ffn_sublayer", "row_kernels_swapped", tile["TOKENS"] + 3, 520, 136, tile, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "kernel"), [("row_kernels_swapped", "ffn_product_swapped"), ("row_kernels_early", "ffn_product_early")]
)
def test_only_weights_are_read_before_the_rows_are_normalized(name, kernel):
    """The product starts during the row kernel, which lets it start when all grids before have completed."""
    workload = FfnSublayer(rows=5, hidden=512, features=256)
    variant = workload.variant(name)
    normalize, product = (step.image for step in build(workload, variant, Target.parse("sm_90a")).steps)

    def first(image, part, opcode):
        """The position of an opcode in the PTX of a kernel, which has the order of the source."""
        (function,) = [found for entry, found in parse(image.ptx).functions.items() if part in entry]
        return next(i for i, instruction in enumerate(function.instructions) if instruction.opcode.startswith(opcode))

    assert first(normalize, "ffn_normalize", "griddepcontrol.wait") < first(normalize, "ffn_normalize", "griddepcontrol.launch")
    wait = first(product, kernel, "griddepcontrol.wait")
    assert first(product, kernel, "cp.async.bulk.tensor") < wait < first(product, kernel, "ld.global")


def test_rows_that_no_cluster_holds_in_registers_are_refused_by_name():
    workload = FfnSublayer(rows=1, hidden=1 << 20, features=8)
    for variant in ("folded", "folded_wgmma", "row_kernels_early", "row_kernels_swapped"):
        with pytest.raises(UsageError, match="no cluster holds a row of hidden=1048576 in registers; use row_kernels"):
            workload.variant(variant).select_tile(workload, Target.parse("sm_90a"))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "variant"), [step for step in LATE if step[1] in ("folded_one_launch", "cluster")])
def test_no_races_over_several_tiles(few_ctas, kernel, variant):
    device = EmulatedDevice(settings=EmulatorSettings(racecheck="lanes"))
    check(device, kernel, variant, 200, 584, 264)  # more steps than stages


@pytest.mark.parametrize(("kernel", "variant"), [step for step in LATE if step[1] in ("folded_one_launch", "cluster")])
def test_nothing_uninitialised_is_used(kernel, variant):
    settings = EmulatorSettings(initcheck=True, completion="random", trap=("nan",))
    check(EmulatedDevice(settings=settings), kernel, variant, 70, 200, 96)


TILES = [
    {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "CLUSTER": 8},
    {"BM": 128, "BN": 64, "CONSUMERS": 2, "REGISTERS": 0, "CLUSTER": 8, "BOXES": 2, "STAGES": 2},
    {"BM": 64, "BN": 192, "CONSUMERS": 1, "REGISTERS": 0, "CLUSTER": 2},
]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_shape_of_cluster(few_ctas, tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    features = 328 if tile["CLUSTER"] == 8 else 384  # of 8 CTAs with 64 columns, two have none
    check(device, "linear_layernorm_gelu", "cluster", 130, 72, features, tile)


FEW_ROWS = [
    {"BN": 64, "CONSUMERS": 1, "CLUSTER": 2, "ROWS": 8, "STAGES": 2},
    {"BN": 256, "CONSUMERS": 2, "CLUSTER": 16, "ROWS": 16, "STAGES": 3},
    {"BN": 256, "CONSUMERS": 2, "CLUSTER": 4, "ROWS": 32},  # the sums take more shared memory than the operands
]


@pytest.mark.parametrize("tile", FEW_ROWS, ids=str)
def test_every_shape_of_few_rows(tile):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    check(device, "ffn_sublayer", "cluster", tile["ROWS"] + 3, 328, 264, tile)


def test_a_row_with_a_large_mean_is_normalized_before_the_product(device):
    workload = FfnSublayer(rows=3, hidden=1024, features=16, dtype="f16", offset=1600)
    assert execute.run(execute.Case(workload, device), workload.variant("cluster")).verdict.verified


def test_clusters_for_few_rows_have_a_limit_of_shared_memory():
    workload = FfnSublayer(rows=1, hidden=1 << 20, features=64)
    with pytest.raises(UsageError, match="bytes of shared memory, more than 232448"):
        workload.variant("cluster").select_tile(workload, Target.parse("sm_90a"))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["ffn_sublayer", "linear_layernorm_gelu"])
def test_nothing_spills_and_wgmma_is_asynchronous(kernel):
    for name, variant in registry.get(kernel).variants().items():
        for step in build(registry.get(kernel).make([16384, 4096, 4096]), variant, Target.parse("sm_90a")).steps:
            assert "serialized" not in step.image.log
            if name != "folded_one_launch":  # spills a few registers in its epilogue
                assert_sass(step.image, spills=0)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["row_kernels", "folded"])
def test_portable_steps_run_on_sm_80(variant):
    assert_sass(f"ffn_sublayer:{variant}@sm_80", spills=0)


@pytest.mark.parametrize(
    ("kernel", "sizes", "message"),
    [
        ("ffn_sublayer", {"hidden": 20}, "hidden must be a multiple of 8"),
        ("ffn_sublayer", {"features": 20}, "features must be a multiple of 8"),
        ("linear_layernorm_gelu", {"features": 4}, "features must be a multiple of 8"),
        ("ffn_sublayer", {"rows": 0}, "rows"),
        ("linear_layernorm_gelu", {"eps": -1.0}, "eps must be finite and at least 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(kernel, sizes, message):
    with pytest.raises(UsageError, match=message):
        registry.get(kernel)(**sizes)


def test_rows_that_no_cluster_holds_are_refused():
    workload = LinearLayernormGelu(features=8192)
    with pytest.raises(UsageError, match="8192 features need a cluster of 32 CTAs of 256 columns"):
        workload.variant("cluster").select_tile(workload, Target.parse("sm_90a"))


@pytest.mark.parametrize(
    ("rows", "columns", "chosen"),
    [
        (1, 1024, "cluster"),
        (64, 1024, "row_kernels_multicast"),
        (1, 4096, "row_kernels_swapped"),
        (32, 4096, "row_kernels_multicast"),
        (128, 4096, "row_kernels_multicast"),
        (1, 8192, "row_kernels_swapped"),
        (32, 8192, "row_kernels_multicast"),
        (200, 2048, "folded_wgmma"),
        (2048, 768, "folded_wgmma"),
        (1024, 4096, "folded_wgmma"),
        (16384, 8192, "folded_wgmma"),
    ],
)
def test_the_variant_for_few_rows(rows, columns, chosen):
    """The variants that were measured to be the fastest, or as fast as the fastest, on an H200."""
    workload = FfnSublayer(rows=rows, hidden=columns, features=columns).on(reference_facts("sm_90a"))
    variants = [name for name, v in workload.variants().items() if v.slower is None or v.slower(workload) is None]
    assert variants[-1] == chosen


def test_weights_are_loaded_early_where_folding_is_not_accurate():
    workload = FfnSublayer(rows=100, hidden=1024, features=4096, offset=1e4).on(reference_facts("sm_90a"))
    early = workload.variant("row_kernels_early")
    assert early.slower(workload) is None
    assert "folded_wgmma" in early.slower(FfnSublayer(rows=100, hidden=1024, features=4096).on(workload.device))


@pytest.mark.parametrize(
    ("rows", "hidden", "features", "chosen"),
    [
        (1, 4096, 4096, "row_kernels_multicast"),
        (64, 1024, 1024, "row_kernels_multicast"),
        (90, 8192, 2048, "row_kernels_multicast"),
        (300, 5120, 20480, "row_kernels_multicast"),
        (700, 4096, 4096, "row_kernels_multicast"),
        (1000, 1600, 6400, "row_kernels_multicast"),
        (8192, 768, 3072, "row_kernels_wgmma"),
    ],
)
def test_the_linear_layer_takes_the_fastest_measured_product(rows, hidden, features, chosen):
    workload = LinearLayernormGelu(rows=rows, hidden=hidden, features=features).on(reference_facts("sm_90a"))
    variants = [name for name, v in workload.variants().items() if v.slower is None or v.slower(workload) is None]
    assert variants[-1] == chosen


@pytest.mark.parametrize("kernel", ["linear_layernorm_gelu", "ffn_sublayer"])
def test_any_rows_of_a_multicast_product(kernel):
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))
    tile = {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 24, "A_SHARING": 1, "B_SHARING": 2}
    check(device, kernel, "row_kernels_multicast", 27, 136, 264, tile)
