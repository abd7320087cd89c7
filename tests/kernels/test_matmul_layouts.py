"""matmul_wgmma with operands in any layout: sizes, types, tiles, steps, what is refused, and the compiled code."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.kernels.gemm.product import Layout
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

LAYOUTS = get_args(Layout)
OTHERS = [layout for layout in LAYOUTS if layout != "tn"]
ALONG_K = {"step16_direct", "step17_shifted", "step18_row_classes", "step19_short_k", "step20_dot"}
"""The steps that read rows of both operands along k, in no other layout than tn."""
ELSEWHERE = {"step10_split_k", "step12_aligned_copy", "ptx"}
STEPS = [name for name in MatmulWgmma.variants() if name not in ALONG_K | ELSEWHERE]
LAST = "step8_tma_store"
SM_90A = Target.parse("sm_90a")


def check(device, m, n, k, variant=LAST, tile=None, **options):
    """Compare a variant with numpy, on random numbers, and exactly on integers whose sums bf16 holds."""
    workload = MatmulWgmma(m=m, n=n, k=k, **options)
    rng = np.random.default_rng(m + n + k)
    given = workload.inputs(rng)
    whole = {name: np.where(rng.random(x.shape) < 16 / k, 2, 0).astype(x.dtype) for name, x in given.items()}
    for inputs in (given, whole):
        case = execute.Case(workload, device, inputs=inputs)
        result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
        assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    if np.abs(case.expected["c"]).max() <= 256:
        np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), case.expected["c"])


def strict(**checks):
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", **checks))


def in_turn(things):
    """Pairs of a thing and a layout: each thing with one layout in every run, with all of them in the slow tests."""
    return [
        pytest.param(thing, layout, marks=[] if place == index % len(OTHERS) else pytest.mark.slow)
        for index, thing in enumerate(things)
        for place, layout in enumerate(OTHERS)
    ]


@pytest.mark.parametrize(("variant", "layout"), in_turn(STEPS))
def test_every_step_takes_every_layout(variant, layout):
    """Except those of ``ALONG_K``, whose refusals tests of their own show."""
    check(strict(), 136, 72, 104, variant, layout=layout)


STEPS_OF_ANY_ROWS = tuple(name for name in MatmulWgmma.variants() if name[4:6] in ("11", "12", "13", "14", "15", "19"))
SMALL = {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3}
FEW = {"CONSUMERS": 1, "ROWS": 1, "COLUMNS": 64, "SHARING": 1, "B_SHARING": 1, "CTAS_PER_SM": 1, "DIVIDED": 1}
DIVIDED = {"CONSUMERS": 1, "ROWS": 1, "COLUMNS": 64, "PARTS": 3}
SHARED = {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 40, "A_SHARING": 2, "B_SHARING": 2}
PARTS_OF_MATRICES = [  # variant, tile, sizes, leading dimensions and other options
    ("step1_tma", None, (70, 152, 250), {"lda": 288, "ldb": 272, "ldc": 160, "beta": 0.5}),
    (LAST, SMALL, (70, 152, 250), {"lda": 288, "ldb": 272, "ldc": 160, "epilogue": "bias_gelu"}),
    (LAST, SMALL, (72, 152, 250), {"lda": 80, "ldb": 152, "ldc": 168, "layout": "nt", "beta": 0.5}),
    ("step9_swapped", {"TOKENS": 64, "CONSUMERS": 1, "PARTS": 2}, (70, 152, 250), {"lda": 256, "ldb": 272, "ldc": 160}),
    ("step10_split_k", {**SMALL, "PARTS": 2}, (70, 152, 250), {"lda": 288, "ldb": 256, "ldc": 160}),
    ("step11_unaligned", SMALL, (70, 147, 250), {"lda": 255, "ldb": 251, "ldc": 168}),
    ("step12_aligned_copy", SMALL, (70, 147, 250), {"lda": 255, "ldb": 256, "ldc": 161}),
    ("step13_stream_k", FEW, (70, 147, 250), {"lda": 255, "ldb": 250, "ldc": 161}),
    ("step13_stream_k", FEW, (70, 148, 250), {"lda": 77, "ldb": 151, "ldc": 149, "layout": "nt"}),
    ("step14_cluster_k", DIVIDED, (70, 148, 250), {"lda": 77, "ldb": 151, "ldc": 149, "layout": "nt"}),
    ("step15_multicast", SHARED, (70, 147, 250), {"lda": 255, "ldb": 250, "ldc": 161}),
]


@pytest.mark.parametrize(("variant", "tile", "sizes", "options"), PARTS_OF_MATRICES, ids=str)
def test_parts_of_larger_matrices(variant, tile, sizes, options):
    """What lies beside a and b is not multiplied, and what lies beside c stays as it is."""
    workload = MatmulWgmma(*sizes, **options)
    case = execute.Case(workload, strict(racecheck="warps"), seed=3)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    n = workload.n
    np.testing.assert_array_equal(case.outputs()["c"][:, n:].view(np.uint16), case.inputs["c"][:, n:].view(np.uint16))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"lda": 63}, "lda must be at least 64, the length of a row"),
        ({"layout": "nt", "ldb": 71}, "ldb must be at least 72, the length of a row"),
        ({"ldc": 71}, "ldc must be at least 72"),
    ],
)
def test_leading_dimensions_below_the_length_of_a_row_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        MatmulWgmma(m=64, n=72, k=64, **options)


@pytest.mark.parametrize(
    ("sizes", "options", "reason"),
    [
        ((64, 72, 64), {"lda": 67}, "rows of a have 134 bytes in memory, no multiple of 16"),
        ((64, 72, 64), {"ldc": 73}, "rows of c have 146 bytes in memory, no multiple of 16"),
        ((64, 68, 64), {"ldc": 72}, "rows of c have 136 bytes, no multiple of 16"),
    ],
)
def test_rows_that_tma_cannot_copy_are_named(sizes, options, reason):
    """A store by TMA would write the last 16 bytes of a row as a whole."""
    workload = MatmulWgmma(*sizes, **options)
    with pytest.raises(UsageError, match=f"{reason}, as TMA requires: steps 11 to 19"):
        workload.variant(LAST).select_tile(workload, SM_90A)
    assert choose(workload, target=SM_90A).variant in STEPS_OF_ANY_ROWS


def sizes(layout):
    """Sizes in which only the lengths of rows in memory are multiples of 8 elements."""
    m = st.integers(1, 24).map(lambda x: 8 * x) if layout[0] == "n" else st.integers(1, 190)
    k = st.integers(1, 190) if layout == "nt" else st.integers(1, 24).map(lambda x: 8 * x)
    return st.tuples(m, st.integers(1, 24).map(lambda x: 8 * x), k)


CALLS = st.sampled_from(LAYOUTS).flatmap(
    lambda layout: st.tuples(st.just(layout), st.sampled_from(["bf16", "f16"]), sizes(layout))
)


@settings(max_examples=8, deadline=None)
@given(CALLS)
@example(("nt", "bf16", (8, 8, 1)))
@example(("nt", "f16", (72, 136, 129)))
@example(("tt", "f16", (1, 8, 8)))
def test_any_size_that_tma_can_read(call):
    layout, dtype, (m, n, k) = call
    check(strict(), m, n, k, layout=layout, dtype=dtype)


TILES = [
    {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3},
    {"BM": 256, "BN": 128, "CONSUMERS": 2},
    {"BM": 256, "BN": 192, "STAGES": 3},
    {"CLUSTER_M": 2, "GROUP": 1},
    {"CLUSTER_N": 2, "GROUP": 4},
    {"BN": 128, "CLUSTER_M": 2, "CLUSTER_N": 2},
]


@pytest.mark.parametrize(("tile", "layout"), in_turn(TILES), ids=str)
def test_every_shape_of_tile(few_ctas, tile, layout):
    check(strict(), 264, 392, 264, tile=tile, layout=layout)


@pytest.mark.parametrize(
    "layout", ["nt", pytest.param("nn", marks=pytest.mark.slow), pytest.param("tt", marks=pytest.mark.slow)]
)
def test_no_warp_reads_what_another_one_is_writing(few_ctas, layout):
    check(strict(racecheck="warps"), 264, 264, 328, tile={"CLUSTER_M": 2}, layout=layout)


@pytest.mark.parametrize("layout", OTHERS)
def test_epilogues(device, layout):
    options = {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu", "dtype": "f16"}
    workload = MatmulWgmma(m=96, n=104, k=40, layout=layout, **options)
    case = execute.Case(workload, device, seed=1)
    result = execute.run(case, workload.variant(LAST))
    assert result.verdict.verified, result.verdict.worst


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tma_reads_rows_of_multiples_of_16_bytes(layout):
    lengths = {"n"} | {"m" if layout[0] == "n" else "k"} | ({"k"} if layout[1] == "n" else set())
    for name in ("m", "n", "k"):
        workload = MatmulWgmma(**{"m": 8, "n": 8, "k": 8, name: 12, "layout": layout})
        refusal = workload.variant(LAST).refusal(workload)
        assert (refusal is not None and "24 bytes in memory" in refusal) == (name in lengths)


@pytest.mark.parametrize(
    ("layout", "tile", "reason"),
    [
        ("nn", {"BM": 64, "CLUSTER_N": 2}, "each of 2 CTAs copies 32 rows of a"),
        ("tt", {"BN": 64, "CLUSTER_M": 4}, "each of 4 CTAs copies 16 rows of b"),
        ("tt", {"BN": 192, "CLUSTER_M": 2}, "each of 2 CTAs copies 96 rows of b"),
    ],
)
def test_a_cluster_shares_whole_boxes(layout, tile, reason):
    workload = MatmulWgmma(layout=layout)
    with pytest.raises(UsageError, match=reason):
        workload.variant(LAST).select_tile(workload, Target.parse("sm_90a"), tile)


@pytest.mark.parametrize("layout", OTHERS)
def test_the_ptx_kernel_refuses_other_layouts(layout):
    workload = MatmulWgmma(layout=layout)
    assert "layout tn" in workload.variant("ptx").refusal(workload)


SASS = [
    ({}, {"alpha": 2.0, "beta": 0.5, "epilogue": "bias_gelu"}),
    ({"BM": 256, "BN": 192, "STAGES": 3}, {"alpha": 2.0, "dtype": "f16"}),
]


@pytest.mark.parametrize("layout", OTHERS)
@pytest.mark.parametrize(("tile", "options"), SASS, ids=str)
def test_wgmma_is_asynchronous_and_nothing_spills(layout, tile, options):
    workload = MatmulWgmma(layout=layout, **options)
    (step,) = build(workload, workload.variant(LAST), Target.parse("sm_90a"), tile).steps
    assert_sass(step.image, has=["HGMMA", "UTMALDG", "UTMASTG"], spills=0)
    assert "serialized" not in step.image.log  # "wgmma.mma_async instructions are serialized due to ..."
