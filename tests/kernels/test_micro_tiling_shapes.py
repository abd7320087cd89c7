"""micro_tiling_matmul at shapes for which no tile of the first steps was made: clusters that divide k, few rows, few columns,
and rows of any length."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from ptxkit import Tile
from ptxkit.compiler.paths import kernels_dir
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import few_rows
from ptxkit.kernels.gemm.micro_choice import PARTIAL, fits, ranked, slower, taken
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute, registry
from ptxkit.workload.choice import choose
from ptxkit.workload.resolve import resolve
from ptxkit.workload.tile_space import ObservedTile
from ptxkit.workload.workload import Workload

MATMUL = registry.get("micro_tiling_matmul")
SM_90A = reference_facts("sm_90a").target


def tile(bm, bn, bk, tm, tn, wm, wn, stages, ctas=1, **more):
    return dict(BM=bm, BN=bn, BK=bk, TM=tm, TN=tn, WM=wm, WN=wn, STAGES=stages, CTAS=ctas, **more)


def launched(name, m, n, k, given, **settings):
    """The verdict of one launch, in which copies complete as late as is legal and races of warps are reported."""
    device = EmulatedDevice(
        settings=EmulatorSettings(**{"completion": "latest-legal", "racecheck": "warps", **settings})
    )
    w = MATMUL.make([m, n, k], {})
    variant = w.variant(name)
    prepared = execute.prepare(execute.Case(w, device), variant, tile=given)
    prepared.case.reset()
    prepared.launch()
    return prepared.case.verify(variant, smallest_store=prepared.build.smallest_store)


SQUARE = tile(64, 128, 16, 8, 8, 32, 64, 3, 2)
LOW = tile(32, 256, 16, 8, 8, 32, 64, 4, 2)
LOWEST = tile(16, 256, 16, 4, 8, 16, 64, 2, 2)
NARROW = tile(256, 16, 16, 8, 4, 64, 16, 2, 2)
WIDE = tile(64, 256, 16, 8, 16, 64, 64, 5, 2)
DEEP = tile(256, 128, 32, 8, 16, 32, 128, 4)
BROAD = tile(64, 192, 16, 8, 12, 32, 96, 2, 2)
TALL_96 = tile(128, 96, 16, 4, 12, 32, 48, 2)
LOW_96 = tile(96, 128, 16, 4, 8, 32, 32, 2)
TINY = tile(32, 64, 16, 4, 8, 32, 32, 2, 4)  # consumers are half of a warpgroup


@pytest.mark.parametrize(
    ("m", "n", "k", "given"),
    [
        (70, 132, 100, SQUARE | {"PARTS": 3}),
        (70, 131, 99, SQUARE | {"PARTS": 3}),
        (70, 130, 98, SQUARE | {"PARTS": 1}),
        (33, 260, 148, LOW | {"PARTS": 5}),
        (1, 1, 1, LOW | {"PARTS": 1}),
        (20, 132, 100, LOWEST | {"PARTS": 2}),
        (17, 259, 131, LOWEST | {"PARTS": 8}),
        (17, 258, 132, LOWEST | {"PARTS": 2}),  # rows of a are vectors, of which 16 rows are fewer than the threads
        (61, 260, 99, WIDE | {"PARTS": 3}),  # sums take the place of the ring; rows of b are vectors
        (257, 7, 100, NARROW | {"PARTS": 2}),
        (20, 133, 98, DEEP | {"PARTS": 1}),
        (257, 30, 66, DEEP | {"PARTS": 2}),
        (130, 97, 34, TALL_96 | {"PARTS": 1}),
        (97, 131, 35, LOW_96 | {"PARTS": 2}),
        (70, 131, 41, TINY | {"PARTS": 3}),
        (33, 66, 42, TINY | {"PARTS": 1}),
        (40, 68, 24, TINY | {"PARTS": 1}),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "x".join(str(v) for v in value.values()),
)
def test_clusters_divide_k(m, n, k, given):
    verdict = launched("step10_cluster_k", m, n, k, given)
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize("name", ["step9_stream_k", "step11_partial_sums"])
@pytest.mark.parametrize(
    ("sms", "m", "n", "k", "waves"),
    [
        (1, 70, 259, 51, 1),  # 6 tiles for 2 CTAs: some are shared
        (2, 68, 518, 50, 4),  # 10 tiles for 4 CTAs: all are shared
        (4, 64, 63, 501, 1),  # 8 CTAs share one tile
        (3, 3, 641, 2, 1),  # less than a step of k
        (1, 33, 388, 35, 1),  # rows of c are vectors, those of a are not
    ],
)
def test_rows_of_any_length_are_shared_by_steps_of_k(monkeypatch, name, sms, m, n, k, waves):
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    verdict = launched(name, m, n, k, SQUARE | {"MIN_STEPS": 2, "SHARED_WAVES": waves})
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize(
    ("sms", "m", "n", "k", "given"),
    [
        (1, 33, 577, 17, BROAD | {"COPY": 1}),  # 4 tiles for 2 CTAs
        (1, 70, 195, 18, BROAD),
        (1, 129, 65, 17, TALL_96),  # 2 tiles for a CTA
        (1, 193, 60, 20, LOW_96),
        (1, 70, 129, 19, TINY),  # 9 tiles for 4 CTAs
        (1, 65, 132, 20, SQUARE),
        (1, 65, 132, 19, SQUARE),  # rows of c are vectors, those of a are not
    ],
)
def test_whole_tiles_of_persistent_ctas(monkeypatch, sms, m, n, k, given):
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    verdict = launched("step9_stream_k", m, n, k, given | {"SHARED_WAVES": 0})
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize("waves", [0, 1])
def test_flags_are_cleared_only_where_tiles_are_divided(waves):
    w = MATMUL.make([640, 1280, 160], {})
    given = w.variant("step9_stream_k").select_tile(w, SM_90A, SQUARE | {"SHARED_WAVES": waves})
    kernels = [launch.kernel for launch in w.variant("step9_stream_k").launches(w, given)]
    assert ("matmul_stream_k_clear" in kernels) == (waves == 1)


SMALL = tile(64, 64, 16, 4, 8, 32, 32, 5, 3)
SMALLEST = tile(32, 64, 32, 4, 4, 16, 32, 4, 4)
NARROW_SMALL = tile(128, 16, 32, 4, 4, 32, 16, 5, 2)
SHARED = {"MIN_STEPS": 2, "SHARED_WAVES": 1}


@pytest.mark.parametrize(
    ("name", "k", "multiplied", "given"),
    [
        ("step10_cluster_k", 17, 24, SQUARE | {"PARTS": 1}),
        ("step10_cluster_k", 39, 40, SMALLEST | {"PARTS": 1}),
        ("step10_cluster_k", 49, 56, SQUARE | {"PARTS": 2}),  # the second part has the last step, and the sums are added
        ("step9_stream_k", 20, 24, SQUARE | {"SHARED_WAVES": 0}),
        ("step14_two_launches", 72, 72, SMALLEST | {"SHARED_WAVES": 1, "MIN_STEPS": 2}),
    ],
)
def test_the_last_step_multiplies_only_chunks_that_k_has(name, k, multiplied, given):
    case = execute.Case(MATMUL.make([5, 7, k], {}), EmulatedDevice())
    counters = execute.run(case, case.workload.variant(name), tile=given).counters
    assert counters.flops == given["BM"] * given["BN"] * (2 * multiplied + given.get("PARTS", 1) - 1)


@pytest.mark.parametrize("name", ["step11_partial_sums", "step14_two_launches"])
@pytest.mark.parametrize(
    ("sms", "m", "n", "k", "given"),
    [
        (4, 61, 64, 390, SMALL),  # 12 parts of a tile, more than the 8 vectors of a thread
        (3, 31, 63, 801, SMALLEST),  # 12 parts for 4 vectors
        (9, 31, 64, 1730, SMALLEST),  # 27 parts
        (3, 120, 15, 802, NARROW_SMALL),  # 6 parts for 4 vectors
        (1, 65, 66, 100, SMALL),  # 4 tiles for 3 CTAs, of two parts
        (2, 60, 200, 161, SQUARE),  # 2 tiles for 4 CTAs
    ],
)
def test_parts_are_added_by_their_ctas_or_by_a_second_launch(monkeypatch, name, sms, m, n, k, given):
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=sms))
    verdict = launched(name, m, n, k, given | SHARED)
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize(
    ("name", "cooperative"), [("step11_partial_sums", True), ("step14_two_launches", False), ("step9_stream_k", False)]
)
def test_a_launch_whose_ctas_wait_for_those_before_and_after_them_is_cooperative(name, cooperative):
    workload = MATMUL.make([8, 8, 7868], {})
    launches = workload.variant(name).launches(workload, workload.variant(name).select_tile(workload, SM_90A))
    assert any(launch.cooperative for launch in launches) == cooperative


@pytest.mark.parametrize("name", ["step9_stream_k", "step11_partial_sums", "step14_two_launches"])
def test_the_launches_beside_a_product_are_in_its_program(name):
    workload = MATMUL.make([8, 8, 7868], {})
    resolved = resolve(workload, workload.variant(name), SM_90A)
    assert (len(resolved.launches), len(resolved.programs)) == (2, 1)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("step9_stream_k", {"MIN_STEPS": 2, "SHARED_WAVES": 2}),
        ("step10_cluster_k", {"PARTS": 2}),
        ("step11_partial_sums", SHARED),
    ],
)
@pytest.mark.parametrize(("m", "n", "k"), [(40, 67, 51), (3, 68, 33), (65, 129, 36)])
def test_operands_whose_rows_are_not_aligned_are_copied_first(name, given, m, n, k):
    verdict = launched(name, m, n, k, SQUARE | given | {"COPY": 1})
    assert verdict.verified, verdict.worst


def test_only_rows_that_are_not_aligned_are_copied():
    copied = [
        w.variant("step10_cluster_k").launches(w, SQUARE | {"PARTS": 1, "COPY": 1})[0].args[0]
        for w in (MATMUL.make([8, n, k], {}) for n, k in ((8, 9), (9, 8)))
    ]
    assert copied == ["a", "b"]
    with pytest.raises(UsageError, match="COPY=1 is for rows that TMA cannot read"):
        launched("step9_stream_k", 8, 8, 8, SQUARE | {"COPY": 1})


@pytest.mark.parametrize(
    ("m", "n", "k", "given"),
    [
        (1, 36, 301, {"ROWS": 1, "ACROSS": 4, "BATCH": 2, "PARTS": 1, "THREADS": 1024}),
        (2, 20, 44, {"ROWS": 2, "ACROSS": 4, "BATCH": 2, "PARTS": 2, "THREADS": 512}),
        (1, 132, 44, {"ROWS": 1, "ACROSS": 32, "BATCH": 4, "PARTS": 2}),
        (3, 131, 45, {"ROWS": 2, "ACROSS": 8, "BATCH": 2, "PARTS": 4, "SHIFT": 1}),
        (3, 131, 45, {"ROWS": 3, "ACROSS": 32, "BATCH": 2, "PARTS": 2, "SHIFT": 0}),
        (3, 70, 45, {"ROWS": 3, "ACROSS": 16, "BATCH": 1, "PARTS": 1, "SHIFT": 1}),
        (4, 61, 64, {"ROWS": 4, "ACROSS": 4, "BATCH": 2, "PARTS": 1, "SHIFT": 1}),
        (1, 62, 75, {"ROWS": 1, "ACROSS": 16, "BATCH": 1, "PARTS": 2, "THREADS": 1024, "SHIFT": 1}),
        (2, 2, 39, {"ROWS": 2, "ACROSS": 8, "BATCH": 2, "PARTS": 1, "SHIFT": 1}),
        (2, 2, 39, {"ROWS": 2, "ACROSS": 8, "BATCH": 2, "PARTS": 1, "SHIFT": 0}),
        (5, 35, 38, {"ROWS": 8, "ACROSS": 8, "BATCH": 2, "PARTS": 1}),
        (2, 27, 32, {"ROWS": 2, "ACROSS": 8, "BATCH": 1, "PARTS": 1, "SHIFT": 0}),  # a lane's last column is past the end of b
        (5, 4, 300, {"ROWS": 4, "ACROSS": 16, "BATCH": 1, "PARTS": 8, "THREADS": 128}),
        (1, 5600, 5, {"ROWS": 1, "ACROSS": 8, "BATCH": 1, "PARTS": 1}),  # strips of 24 columns by threads for 32
        (3, 2201, 6, {"ROWS": 3, "ACROSS": 8, "BATCH": 1, "PARTS": 1, "SHIFT": 1}),  # of 28, of shifted vectors
        (2, 2203, 6, {"ROWS": 2, "ACROSS": 16, "BATCH": 1, "PARTS": 2, "SHIFT": 0}),  # of 64, of single elements
        (17, 66, 67, {"ROWS": 16, "ACROSS": 16, "BATCH": 1, "PARTS": 1, "THREADS": 512}),
        (1, 1, 1, {"ROWS": 8, "PARTS": 1}),
    ],
    ids=str,
)
def test_few_rows(m, n, k, given):
    verdict = launched("step12_few_rows", m, n, k, given)
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize(
    ("m", "n", "across", "shift", "columns"),
    [
        (1, 3072, 8, 0, 24),  # 96 strips of 32 columns for 132 SMs
        (1, 4096, 8, 0, 32),
        (1, 5600, 8, 0, 24),  # 175 strips of 32 columns
        (1, 2800, 8, 0, 24),
        (1, 2112, 8, 0, 16),  # not less than half
        (1, 2048, 8, 0, 32),  # fewer than half of the SMs
        (3, 30001, 32, 1, 124),  # single elements, and vectors with shifted sums
        (3, 30001, 32, 0, 128),
    ],
)
def test_strips_of_few_rows_are_as_many_as_leave_no_sm_with_fewer(m, n, across, shift, columns):
    w = MATMUL.make([m, n, 512], {})
    given = Tile({"ROWS": m, "ACROSS": across, "SHIFT": shift, "PARTS": 1})
    assert few_rows.strip_columns(w, given) == columns


def test_vectors_of_few_rows_that_begin_in_another_row_add_nothing_of_it():
    """An infinite element of b makes its own column infinite, and no column that shares a vector with it."""
    w = MATMUL.make([1, 30, 13], {})
    case = execute.Case(w, EmulatedDevice())
    case.inputs["b"][5, [0, 29]] = np.inf
    prepared = execute.prepare(
        case, w.variant("step12_few_rows"), tile={"ROWS": 1, "ACROSS": 8, "PARTS": 1, "SHIFT": 1}
    )
    case.reset()
    prepared.launch()
    assert np.isinf(case.outputs()["c"][0]).nonzero()[0].tolist() == [0, 29]


@pytest.mark.parametrize(
    ("m", "n", "k", "given"),
    [
        (133, 1, 99, {"ROWS": 4, "COLUMNS": 1, "PARTS": 2}),
        (7, 2, 31, {"ROWS": 2, "COLUMNS": 2, "PARTS": 1}),
        (70, 1, 300, {"ROWS": 1, "COLUMNS": 1, "PARTS": 3}),
        (33, 2, 132, {"ROWS": 2, "COLUMNS": 2, "PARTS": 2}),
        (70, 3, 300, {"ROWS": 8, "COLUMNS": 4, "PARTS": 3}),
        (70, 20, 70, {"ROWS": 4, "COLUMNS": 8, "PARTS": 1, "THREADS": 128}),
        (9, 17, 65, {"ROWS": 2, "COLUMNS": 16, "PARTS": 3}),
    ],
    ids=str,
)
def test_few_columns(m, n, k, given):
    verdict = launched("step13_few_columns", m, n, k, given)
    assert verdict.verified, verdict.worst


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("step10_cluster_k", SQUARE | {"PARTS": 4}),
        ("step12_few_rows", {"PARTS": 4}),
        ("step13_few_columns", {"PARTS": 4}),
    ],
)
def test_every_launch_adds_in_the_same_order(name, given):
    """Sums of the CTAs of a cluster arrive in other orders with another seed."""
    w = MATMUL.make([5, 60, 256], {})
    found = []
    for seed in (1, 2):
        case = execute.Case(w, EmulatedDevice(settings=EmulatorSettings(completion="random", completion_seed=seed)))
        prepared = execute.prepare(case, w.variant(name), tile=given)
        case.reset()
        prepared.launch()
        found.append(case.outputs()["c"])
    assert np.array_equal(*found)


def test_what_is_not_possible_is_said():
    w = MATMUL.make([64, 64, 64], {})
    for name, given, words in (
        ("step10_cluster_k", SQUARE | {"PARTS": 8}, "fewer than PARTS=8"),
        ("step12_few_rows", {"ROWS": 16, "BATCH": 4, "THREADS": 512}, "need 148 registers"),
        ("step12_few_rows", {"ROWS": 4, "SHIFT": 1}, "rows of b that are no multiples"),
        ("step13_few_columns", {"ROWS": 2, "COLUMNS": 1, "PARTS": 5}, "fewer than PARTS=5"),
    ):
        with pytest.raises(UsageError, match=words):
            w.variant(name).select_tile(w, SM_90A, given)


@pytest.mark.parametrize("given", [SQUARE, BROAD], ids=["square", "broad"])
def test_copies_of_rows_of_any_length_go_past_the_registers(given):
    """BROAD is the largest tile that threads fill, but for one row of LARGE_32, whose producers spill, as those of WIDE do."""
    w = MATMUL.make([64, 65, 64], {})
    for name in ("step9_stream_k", "step10_cluster_k"):
        launch = w.variant(name).launches(w, w.variant(name).select_tile(w, SM_90A, given))[-1]
        source = kernels_dir() / str(w.variant(name).source_of(w, launch))
        assert_sass(f"{source}:{launch.entry}@sm_90a", has="LDGSTS", spills=0)


@pytest.mark.parametrize(
    ("m", "n", "k", "step"),
    [
        (1, 3072, 768, "step12_few_rows"),
        (5, 1021, 1021, "step12_few_rows"),
        (16, 4096, 4096, "step14_two_launches"),
        (16, 16, 65536, "step14_two_launches"),
        (1500, 700, 240, "step10_cluster_k"),
        (4096, 1, 4096, "step13_few_columns"),
        (300, 1024, 1024, "step10_cluster_k"),
        (1025, 1024, 1024, "step9_stream_k"),
        (4096, 4096, 4096, "step9_stream_k"),
    ],
)
def test_the_choice_where_it_was_measured_to_be_right(m, n, k, step):
    choice = choose(MATMUL.make([m, n, k], {}), target=SM_90A)
    assert choice.variant == step, str(choice)


def test_the_fitted_model_chooses_among_measured_tiles_nearly_the_fastest(monkeypatch):
    """With the coefficients in the package and the times to which they were fitted."""
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "scripts"))
    script = importlib.import_module("fit_f32_products")
    files = sorted((root / "tests/workload/data").glob("f32-*-h200.jsonl.gz"))
    cases = script.merged([importlib.import_module("choice_files").read(path) for path in files])
    error, regret = script.loss(cases, script.fitted())
    assert len(cases) >= 55 and error < 0.1 and regret < 0.05


@hypothesis.given(st.tuples(*[st.integers(1, 1 << 13)] * 3))
def test_any_size_has_a_tile_that_the_chosen_step_offers(sizes):
    """Tiles are preferences: one with a value that the step does not declare would be left out without a word."""
    w = MATMUL.make(list(sizes), {})
    offered = ranked(w)
    assert offered
    for _, step, tile in offered:
        declared = w.variant(step).tile
        assert all(value in declared[name] for name, value in tile.items()), (step, tile)
    first = taken(w)
    assert dict(first.tile).items() <= dict(w.variant(first.variant).select_tile(w, SM_90A)).items()


def test_tiles_of_two_warps_are_for_one_wave_of_four_ctas_for_each_sm():
    considered = {m: [t for _, _, t in ranked(MATMUL.make([m, 1332, 128], {})) if is_tiny(t)] for m in (512, 776, 840)}
    assert {m: bool(tiles) for m, tiles in considered.items()} == {512: False, 776: True, 840: False}


def is_tiny(t):
    return (t.get("BM"), t.get("BN"), t.get("WM")) == (32, 64, 32)


@pytest.mark.parametrize("step", ["step9_stream_k", "step10_cluster_k", "step11_partial_sums", "step14_two_launches"])
def test_tiles_of_an_odd_number_of_warps_are_refused(step):
    w = MATMUL.make([97, 99, 67], {})
    with pytest.raises(UsageError, match="96 threads are not a multiple of 64"):
        w.variant(step).select_tile(w, SM_90A, tile(96, 96, 32, 8, 12, 32, 96, 3))


def test_tiles_of_two_warps_multiply_aligned_copies():
    tiles = [t for _, _, t in ranked(MATMUL.make([777, 1333, 129], {})) if is_tiny(t)]
    assert tiles and all(t["COPY"] == 1 for t in tiles)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts", "bk"),
    [
        (1000, 2001, 999, 1, 32),
        (1000, 2000, 1000, 1, 16),  # TMA fills the stages
        (700, 1501, 401, 2, 16),  # 13 steps of 32 for two CTAs
        (1021, 1021, 1021, 2, 32),
        (1300, 801, 33, 1, 16),  # two steps
    ],
)
def test_threads_fill_deep_stages_where_shares_of_k_have_several(m, n, k, parts, bk):
    of_parts = [t for _, step, t in ranked(MATMUL.make([m, n, k], {})) if step == "step10_cluster_k" and t["PARTS"] == parts]
    square = [t for t in of_parts if (t["BM"], t["BN"], t["TM"]) == (64, 128, 8) and not t.get("COPY", 0)]
    assert [t["BK"] for t in square] == [bk]


def test_many_strips_of_single_elements_are_read_by_the_widest_and_no_clusters():
    """With fewer strips than SMs, clusters and narrower strips are considered."""
    found = {n: ranked(MATMUL.make([3, n, 700], {})) for n in (999, 30001)}
    tiles = {n: [t for _, s, t in of if s == "step12_few_rows" and not t["SHIFT"]] for n, of in found.items()}
    assert all((t["ACROSS"], t["PARTS"]) == (32, 1) for t in tiles[30001]) and tiles[30001]
    assert any(t["ACROSS"] == 16 for t in tiles[999]) and any(t["PARTS"] > 1 for t in tiles[999])


@pytest.mark.parametrize("sizes", [(300, 301, 301), (3000, 3001, 3001), (2000, 515, 8190)])
def test_large_tiles_of_several_rows_of_tiles_multiply_aligned_copies(sizes):
    """The producer of step 10 spills registers with such a tile (see above)."""
    large = [t for _, _, t in ranked(MATMUL.make(list(sizes), {})) if t.get("TM", 0) * t.get("TN", 0) >= 8 * 16]
    assert large and all(t["COPY"] == 1 for t in large)


@pytest.mark.parametrize(
    ("m", "n", "k", "bm", "bn", "copy"),
    [
        (2004, 341, 360, 64, 96, 0),
        (426, 841, 246, 64, 96, 0),  # half a wave for each of two parts of k
        (1023, 1025, 513, 128, 32, 1),
        (128, 30522, 768, 128, 256, 0),
    ],
)
def test_tiles_of_one_wave_are_taken_where_they_were_measured_to_be_right(m, n, k, bm, bn, copy):
    w = MATMUL.make([m, n, k], {})
    found = taken(w)
    assert (found.tile["BM"], found.tile["BN"], found.tile.get("COPY", 0)) == (bm, bn, copy)


@pytest.mark.parametrize(
    ("m", "n", "k", "bn", "tn"),
    [
        (2004, 344, 360, 96, 4),  # TMA fills the stages
        (2200, 401, 360, 96, 4),  # more than a wave
        (426, 841, 38, 96, 4),  # two steps for two parts of k
        (129, 30522, 768, 256, 16),  # two rows of tiles
    ],
)
def test_tiles_of_one_wave_are_not_considered_elsewhere(m, n, k, bn, tn):
    found = ranked(MATMUL.make([m, n, k], {}))
    assert not any((t.get("BN"), t.get("BK"), t.get("TN")) == (bn, 32, tn) for _, _, t in found)


def test_sums_that_are_added_one_by_one_take_longer():
    """A chain adds vectors where rows of c are aligned."""

    def predicted(n):
        found = ranked(MATMUL.make([2291, n, 310], {}))
        chains = (us for us, step, t in found if step == "step9_stream_k" and t["SHARED_WAVES"] == 2 and t["BN"] == 256)
        return min(chains)

    assert predicted(1935) > 1.1 * predicted(1936)


def test_objections_leave_the_fastest_step():
    w = MATMUL.make([300, 1024, 1024], {})
    steps = {step for _, step, _ in ranked(w)}
    assert [step for step in steps if slower(w, step) is None] == [taken(w).variant]


@pytest.mark.parametrize("m", [1, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 300])
def test_every_size_has_a_tile_that_divides_a_long_k(m):
    for n in range(1, 300):
        w = MATMUL.make([m, n, 20_000], {})
        assert any(fits(w, t) for t in PARTIAL), (m, n)


@pytest.mark.parametrize("step", ["step9_stream_k", "step10_cluster_k"])
def test_a_refusal_of_the_warps_depends_on_no_other_parameter(step):
    """A sweep passes over all tiles that share what a refusal has read, here the values of COPY and of ten others."""
    workload = MATMUL(m=128, n=128, k=128).on(reference_facts("sm_90a"))
    chosen = MATMUL.variant(step)
    first = {name: values[0] for name, values in chosen.tile.items()}
    tile = ObservedTile(Tile(first | {"TM": 8, "TN": 16, "WM": 16, "WN": 16}))
    assert "lanes" in chosen.constraint(workload, tile)
    assert tile.read <= {"BM", "BN", "TM", "TN", "WM", "WN"}
