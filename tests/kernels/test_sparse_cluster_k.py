"""sparse_cluster_k.cu: 2:4 sparse products and gated layers with few rows, at awkward sizes, in every shape of cluster."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit import Tile
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import sparse_cluster_k, sparse_tiles
from ptxkit.kernels.gemm.matmul_sparse import MatmulSparse
from ptxkit.kernels.gemm.sparse_compress import TYPES, row_multiple
from ptxkit.kernels.gemm.sparse_swiglu_ffn import SparseSwigluFfn
from ptxkit.kernels.measured import SPARSE_FILE, fitted_products
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.targets.wgmma import FLOAT_COLUMNS
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build

ROOT = Path(__file__).parents[2]
SM_90A = Target.parse("sm_90a")
PRODUCT, LAYER = "step6_cluster_k", "step5_cluster_k"
LATE = EmulatorSettings(completion="latest-legal", initcheck=True, trap=("nan",))


def tile(**changed):
    return {**sparse_cluster_k.ALONE, "CONSUMERS": 1, "ROWS": 1, "TOKENS": 8, **changed}


def check(workload, taken, settings=LATE):
    name = PRODUCT if isinstance(workload, MatmulSparse) else LAYER
    case = execute.Case(workload, EmulatedDevice(settings=settings), seed=3)
    result = execute.run(case, workload.variant(name), None, taken, explicit=True)
    assert result.verdict.verified, f"{result.tile}: {result.verdict.worst}"


PRODUCTS = [
    ({"m": 1, "n": 8, "k": 32, "dtype": "e4m3"}, tile()),  # fewer elements than a copy of anything
    ({"m": 3, "n": 72, "k": 528}, tile(PARTS=3)),  # parts of 2, 2 and 1 steps, the last of them with an end
    ({"m": 40, "n": 200, "k": 672, "dtype": "e4m3"}, tile(TOKENS=24, PARTS=2, ROWS=2)),
    ({"m": 70, "n": 264, "k": 1104, "dtype": "f16"}, tile(TOKENS=40, B_SHARING=2, ROWS=2)),
    ({"m": 70, "n": 264, "k": 592}, tile(TOKENS=32, A_SHARING=2, B_SHARING=2, PARTS=2, ROWS=2)),
    ({"m": 150, "n": 264, "k": 528}, tile(TOKENS=200, CONSUMERS=2)),
    ({"m": 60, "n": 392, "k": 544, "dtype": "e4m3"}, tile(TOKENS=64, A_SHARING=2, CONSUMERS=3, PARTS=2)),
    ({"m": 9, "n": 264, "k": 304, "weights": "dense"}, tile(TOKENS=16, ROWS=4, CTAS_PER_SM=2)),  # three steps, two stages
]


@pytest.mark.parametrize(("sizes", "taken"), PRODUCTS, ids=str)
def test_products_of_any_size(sizes, taken):
    check(MatmulSparse(**sizes), taken)


LAYERS = [
    ({"tokens": 3, "hidden": 144, "ffn": 208}, tile(ROWS=2)),
    ({"tokens": 19, "hidden": 272, "ffn": 80}, tile(ROWS=2, TOKENS=24, PARTS=2)),
    ({"tokens": 19, "hidden": 272, "ffn": 144, "dtype": "f16"}, tile(ROWS=4, TOKENS=16, B_SHARING=2, A_SHARING=2, PARTS=2)),
]


@pytest.mark.parametrize(("sizes", "taken"), LAYERS, ids=str)
def test_layers_of_any_size(sizes, taken):
    check(SparseSwigluFfn(**sizes), taken)


def test_no_races_where_a_cluster_divides_k():
    taken = tile(TOKENS=8, B_SHARING=2, ROWS=2, PARTS=2)
    check(MatmulSparse(m=9, n=72, k=272, dtype="f16"), taken, EmulatorSettings(racecheck="lanes"))


def test_no_races_in_both_launches_of_a_layer():
    """The second launch loads weights before the first one is complete, and its results only then."""
    check(SparseSwigluFfn(tokens=3, hidden=16, ffn=144), tile(ROWS=2), EmulatorSettings(racecheck="lanes"))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_sources_wrap_the_instructions_of_all_columns(dtype):
    call = "{ float d[N / 2]; wgmma_sparse<0>(d, a, a, words, true, T()); x[N] = d[0]; }".replace("T", TYPES[dtype])
    calls = "\n".join(call.replace("N", str(n)) for n in FLOAT_COLUMNS)
    source = (
        '#include "ptxkit/ptx/wgmma.cuh"\n#include "ptxkit/ptx/wgmma_sparse_columns.cuh"\nusing namespace ptxkit;\n'
        f"__global__ void k(unsigned long long a, unsigned words, float* x) {{ {calls} wgmma_commit_group(); }}\n"
    )
    compiled = compile_source(source, target="sm_90a").ptx
    assert all(f".m64n{n}k" in compiled for n in FLOAT_COLUMNS)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(TYPES)),
    *(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 2000), st.sampled_from([132, 114, 20])),
)
def test_the_kernel_accepts_what_the_model_prefers(dtype, m, n, k, sms):
    facts = replace(reference_facts("sm_90a"), sms=sms)
    product = MatmulSparse(m=m, n=8 * n, k=row_multiple(dtype) * k, dtype=dtype).on(facts)
    layer = SparseSwigluFfn(tokens=m, hidden=16 * k, ffn=16 * (n // 2 + 1)).on(facts)
    for workload, variant in ((product, PRODUCT), (layer, LAYER)):
        found = next(iter(workload.variant(variant).tiles(workload)))
        assert workload.variant(variant).constraint(workload, Tile(found)) is True, found
    assert sparse_cluster_k.usable(layer.down_product, next(sparse_cluster_k.preferred(layer.down_product))) is True


@pytest.mark.parametrize(
    ("taken", "message"),
    [
        (tile(CONSUMERS=3, ROWS=2), "384 rows of b in a tile are more than the 256 of a box of a tensor map"),
        (tile(A_SHARING=4, PARTS=4), "16 CTAs are more than the 8"),
        (tile(PARTS=8), "k=512 has 4 steps of 256 bytes, fewer than PARTS=8"),
        (tile(ROWS=4, TOKENS=128), "256 sums of 256 x 128 need more than the registers"),
        (tile(A_SHARING=2), "8 rows of a are no whole patterns of 8 rows for each of 2 CTAs"),
        (tile(B_SHARING=2), "64 rows of b are no whole blocks of 64 rows for each of 2 CTAs"),
    ],
)
def test_tiles_that_cannot_be_are_refused(taken, message):
    workload = MatmulSparse(m=64, n=512, k=512).on(reference_facts("sm_90a"))
    with pytest.raises(UsageError, match=message):
        workload.variant(PRODUCT).select_tile(workload, SM_90A, taken)


def test_a_layer_has_as_many_rows_of_gate_as_of_up():
    workload = SparseSwigluFfn(tokens=8, hidden=64, ffn=64).on(reference_facts("sm_90a"))
    with pytest.raises(UsageError, match="ROWS=1 are no equal parts for gate and up"):
        workload.variant(LAYER).select_tile(workload, SM_90A, tile())


@pytest.mark.parametrize(("workload", "name"), [(MatmulSparse(m=8), PRODUCT), (SparseSwigluFfn(tokens=200), LAYER)], ids=str)
def test_wgmma_is_sparse_and_asynchronous_and_nothing_spills(workload, name):
    for step in build(workload, workload.variant(name), SM_90A).steps:
        assert "serialized" not in step.image.log
        assert_sass(step.image, has="HGMMA.SP", spills=0)


def test_the_fitted_models_choose_among_measured_tiles_nearly_the_fastest(monkeypatch):
    """With the coefficients in the package and the times to which they were fitted."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("fit_sparse")
    files = sorted((ROOT / "tests/workload/data").glob("sparse-*-h200.jsonl.gz"))
    rows = [row for path in files for row in script.read(path)[1]]
    regrets = importlib.import_module("fit_products").Search(rows, fitted_products(SPARSE_FILE)).regrets()
    assert len(regrets) >= 23 and np.mean(regrets) < 0.03


def test_large_tiles_are_taken_for_many_rows():
    """An H200 took 12.9 and 9.5 us for 64 rows in steps 5 and 6, and 93 and 96 us for 700 rows of a longer k."""
    facts = reference_facts("sm_90a")
    few, many = (MatmulSparse(m=m, n=n, k=k).on(facts) for m, n, k in ((64, 4096, 4096), (700, 3584, 18944)))
    assert sparse_tiles.slower([(few.sparse_product, few.large_tile)], "step 5") is None
    why = sparse_tiles.slower([(many.sparse_product, many.large_tile)], "step 5")
    assert why is not None and why.startswith("predicted to take ") and ", step 5 " in why
    layers = {tokens: SparseSwigluFfn(tokens=tokens, hidden=4096, ffn=14336).on(facts) for tokens in (900, 2000, 4000)}
    reasons = {tokens: layer.variant(LAYER).slower(layer) for tokens, layer in layers.items()}
    assert reasons[900] is None  # 317 us, step 4 took 360
    assert "step 4" in reasons[2000]
    assert reasons[4000] == "for up to 2048 tokens, not 4000"
    more = MatmulSparse(m=4096).on(facts)
    assert sparse_tiles.slower([(more.sparse_product, more.large_tile)], "step 5") == "for up to 700 rows, not 4096"
