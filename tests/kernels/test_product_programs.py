"""The programs that products by wgmma share, the margin for others, and the measured exceptions of a GPU."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ptxkit import Launch, Tile
from ptxkit.bench.shapes.grid import grid
from ptxkit.compiler.paths import kernels_dir
from ptxkit.kernels import measured as measurements
from ptxkit.kernels.gemm import fused_tiles, micro_choice, multicast, programs, steps, wgmma_tiles
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.kernels.gemm.micro_tiles import micro_tile
from ptxkit.kernels.gemm.programs import Option, SharedPrograms, product_programs
from ptxkit.targets import Target
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload.choice import choose

SM_90A = Target.parse("sm_90a")
H200 = facts_of(find_gpu("NVIDIA H200"))
KERNELS = {"matmul_wgmma": MatmulWgmma, "matmul_fused": MatmulFused}
ONE_CONSUMER = wgmma_tiles.shape(128, 128, 1, 6) | {"CLUSTER_M": 1, "CLUSTER_N": 1, "GROUP": 16}


def option(predicted_us, *needed):
    return Option("step", {}, predicted_us, needed)


@pytest.mark.parametrize(
    ("special_us", "taken"),
    [(95.0, "shared"), (91.0, "shared"), (90.0, "special"), (120.0, "shared")],
)
def test_another_program_is_taken_if_it_gains_more_than_the_margin(special_us, taken):
    shared = SharedPrograms(frozenset({"shared", "copies"}), 0.1)
    options = [option(special_us, "special", "copies"), option(100.0, "shared", "copies"), option(130.0, "shared")]
    assert shared.best(options).programs[0] == taken


@pytest.mark.parametrize(("special_us", "taken"), [(95.0, "shared"), (93.9, "special")])
def test_another_program_of_the_same_variant_is_taken_if_it_gains_enough_time(special_us, taken):
    shared = SharedPrograms(frozenset({"shared"}), 0.1, margin_us=6.0)
    other = Option("another step", {}, 92.0, ("other",))
    assert shared.best([option(special_us, "special"), other, option(100.0, "shared")]).programs[0] == taken


@pytest.mark.parametrize(("special_us", "taken"), [(2.5, "shared"), (2.3, "special")])
def test_another_program_of_a_small_product_is_taken_if_it_gains_the_least_time(special_us, taken):
    shared = SharedPrograms(frozenset({"shared"}), 0.1, least_us=0.6)
    assert shared.best([option(special_us, "special"), option(3.0, "shared")]).programs == (taken,)


@pytest.mark.parametrize(
    ("kernel", "options", "taken"),
    [
        (MatmulFused, {}, "shared"),
        (MatmulFused, {"layout": "nt"}, "special"),
        (MatmulFused, {"scale": "rows_columns"}, "special"),
        (MatmulFused, {"bias": True}, "special"),
        (MatmulFused, {"activation": "gelu"}, "special"),
        (MatmulFused, {"residual": True}, "special"),
        (MatmulFused, {"amax": True}, "special"),
        (MatmulWgmma, {"beta": 1.0}, "shared"),
        (MatmulWgmma, {"epilogue": "bias"}, "special"),
    ],
)
def test_products_whose_programs_no_plain_product_has_take_the_fastest(monkeypatch, kernel, options, taken):
    shared = SharedPrograms(frozenset({"shared"}), 0.1)
    programs_of = replace(product_programs(), shared={(kernel.name, "bf16"): shared}, exceptions={})
    monkeypatch.setattr(programs, "product_programs", lambda: programs_of)
    w = kernel(m=640, n=640, k=640, **options).on(H200)
    assert programs.chosen(w, [option(95.0, "special"), option(100.0, "shared")]).programs == (taken,)


def test_without_a_shared_program_the_fastest_is_taken():
    options = [option(3.0, "a"), option(2.0, "b", "copies")]
    assert SharedPrograms(frozenset({"copies"}), 0.5).best(options).predicted_us == 2.0


@pytest.mark.parametrize(
    ("kernel", "variant"),
    [("matmul_wgmma", "step8_tma_store"), ("matmul_wgmma", "step12_aligned_copy"), ("matmul_fused", "fused")],
)
@pytest.mark.parametrize(("across", "ctas"), [(1, 132), (2, 120)])
def test_a_persistent_grid_has_no_clusters_that_would_wait_for_others(kernel, variant, across, ctas):
    """Of clusters of four, an H200 holds 30."""
    w = KERNELS[kernel](m=8192, n=4096, k=64).on(H200)
    tile = {"BM": 128, "BN": 192, "STAGES": 5, "CLUSTER_M": 2, "CLUSTER_N": across, "BOXES": 1, "PING_PONG": 1}
    (launch,) = w.variant(variant).launches(w, {**Tile(tile), "CONSUMERS": 2, "GROUP": 8, "REGISTERS": 240})
    assert launch.grid[0] == ctas


MOST = {"bf16": 24, "f16": 22, "f32": 18, "e4m3": 16, "s8": 15, "tf32": 13}
"""Programs that a type needs. 38 products of bf16 need 33 if each takes the program that is predicted to be the fastest."""


@pytest.mark.parametrize("dtype", MOST)
def test_the_grid_needs_few_programs(dtype):
    found = {
        repr(program)
        for shape in grid(0).of_families([f"product_{dtype}"]).shapes
        for program in choose(shape.workload.on(H200), target=SM_90A).chosen.resolved.programs
    }
    assert len(found) <= MOST[dtype]


def test_programs_are_named_by_the_templates_that_are_compiled_together():
    launches = [
        Launch("copy", 1, 32, (), template=("float",), source="copy.cu"),
        Launch("clear", 1, 32, (), options=("-O1",)),
        Launch("product", 1, 32, (), template=(16, 2), options=("-O1",)),
        Launch("sum", 1, 32, (), template=(16,), options=("-O1",)),
    ]
    assert programs.of_launches(launches) == ("copy<float>", "product<16, 2> + sum<16>")


def test_the_program_of_copies_is_shared_by_all_sizes():
    shared = SharedPrograms(frozenset({"product"}), 0.1)
    assert shared.has(option(1.0, "product", "align_rows<float>"))
    assert not shared.has(option(1.0, "special", "align_rows"))


def test_a_type_without_a_set_takes_those_of_all_types_of_its_kernel():
    sets = {("matmul_fused", "e4m3"): SharedPrograms(frozenset("ab")), ("matmul_fused", "s8"): SharedPrograms(frozenset("bc"))}
    read = programs.ProductPrograms("", sets, {})
    assert read.of_product(MatmulFused(dtype="bf16")).programs == frozenset("abc")
    assert read.of_product(MatmulFused(dtype="s8")).programs == frozenset("bc")
    assert not read.of_product(MatmulWgmma(dtype="bf16")).programs


@pytest.mark.parametrize(("sizes", "block"), [((3001, 3001, 3001), (128, 192)), ((4096, 4099, 4096), (128, 176))])
def test_large_unaligned_products_take_the_tiles_of_aligned_ones(sizes, block):
    choice = choose(MatmulWgmma(*sizes).on(H200), target=SM_90A)
    assert (choice.tile["BM"], choice.tile["BN"]) == block


def exceptions():
    return sorted(e for e in programs.product_programs().exceptions.items() if e[0][0] in KERNELS)


@pytest.mark.parametrize(("key", "taken"), exceptions()[::5], ids=str)
def test_measured_exceptions_are_taken_on_their_gpu(key, taken):
    kernel, m, n, k, dtype = key
    workload = KERNELS[kernel](m=m, n=n, k=k, dtype=dtype)
    choice = choose(workload.on(H200), target=SM_90A)
    assert choice.variant == taken[0]
    assert taken[1].items() <= choice.tile.items()


def test_exceptions_belong_to_one_gpu_and_to_exact_sizes(monkeypatch):
    workload = MatmulWgmma(m=776, n=1032, k=4104).on(H200)
    slow = max((o for step in steps.TILES for o in steps.options(workload, step)), key=lambda o: o.predicted_us)
    read = programs.product_programs()
    table = {("matmul_wgmma", 776, 1032, 4104, "bf16"): (slow.variant, dict(slow.tile))}
    monkeypatch.setattr(programs, "product_programs", lambda: replace(read, exceptions=table))
    assert choose(workload, target=SM_90A).tile.items() >= slow.tile.items()
    assert choose(replace(workload, dtype="f16"), target=SM_90A).tile.items() >= slow.tile.items()  # which takes as long
    for other in (replace(H200, gpu="NVIDIA H100 PCIe"), replace(H200, sms=78, gpu="")):
        assert not choose(workload.on(other), target=SM_90A).tile.items() >= slow.tile.items()
    assert not choose(MatmulWgmma(m=776, n=1032, k=4112).on(H200), target=SM_90A).tile.items() >= slow.tile.items()


def test_exceptions_are_for_single_products(monkeypatch):
    one, many = (MatmulFused(m=128, n=512, k=512, batch=batch).on(H200) for batch in (1, 3))
    slow = max(fused_tiles.options(many), key=lambda o: o.predicted_us)
    read = programs.product_programs()
    table = {("matmul_fused", 128, 512, 512, "bf16"): (slow.variant, dict(slow.tile))}
    monkeypatch.setattr(programs, "product_programs", lambda: replace(read, exceptions=table))
    assert programs.chosen(one, [*fused_tiles.options(one), slow]).tile == slow.tile
    assert programs.chosen(many, fused_tiles.options(many)).tile != slow.tile


def test_few_rows_of_results_that_tma_cannot_store_take_multicast():
    taken = fused_tiles.choice(MatmulFused(m=30, n=40_001, k=1024, dtype="e4m3").on(H200)).taken
    assert taken.variant == "multicast"


@pytest.mark.parametrize(
    ("dtype", "n", "tile"),
    [
        ("e4m3", 4099, {"BOXES": 2, "CONSUMERS": 1}),  # rows of c that TMA cannot store
        ("s8", 4096, {"BOXES": 1, "CONSUMERS": 1}),  # elements of four bytes, and one store in flight
    ],
)
def test_slow_stores_are_predicted_to_take_longer(dtype, n, tile):
    w = MatmulFused(m=4096, n=n, k=64, dtype=dtype).on(H200)
    t = {"BM": 64, "BN": 128, "STAGES": 6, "CLUSTER_M": 1, "CLUSTER_N": 1, "GROUP": 16, "REGISTERS": 0} | tile
    assert fused_tiles.stream_work(w, t).ends > wgmma_tiles.stream_work(fused_tiles.alike(w), t).ends


@pytest.mark.parametrize("dtype", ["bf16", "s8"])
@pytest.mark.parametrize("batch", [1, 8])
def test_the_model_counts_the_bytes_of_all_products_and_of_their_results(dtype, batch):
    w = MatmulFused(m=100, n=4096, k=1024, dtype=dtype, batch=batch).on(H200)
    assert fused_tiles.stream_work(w, ONE_CONSUMER).memory_bytes == w.work().bytes


@pytest.mark.parametrize(("m", "batch", "waves"), [(1, 132, 1), (1, 133, 2), (129, 66, 1), (129, 67, 2)])
def test_no_tile_has_rows_of_several_products(m, batch, waves):
    w = MatmulFused(m=m, n=128, k=64, batch=batch).on(H200)
    assert fused_tiles.stream_work(w, ONE_CONSUMER).steps == waves


@pytest.mark.parametrize("key", sorted(key for key in product_programs().shared if key[0] in KERNELS), ids=" ".join)
def test_the_programs_of_the_file_have_declared_tiles(key):
    """So that a renamed parameter, or a value that was removed, does not leave programs that no tile has."""
    variants = KERNELS[key[0]].variants()
    for name in product_programs().shared[key].programs:
        of, *values = name.split()
        (space, names), *_ = (
            (variants[variant].tile, names)
            for variant, (template, names) in programs.TEMPLATES.items()
            if template == of and variant in variants
        )
        tile = dict(value.split("=") for value in values)
        declared = set(tile) - ({"PAIRS", "STAGED", "STORE", "STORES", "TRANSPOSED"} - set(names))
        assert declared - set(programs.ALTERNATING) == set(names)
        assert all(int(tile[parameter]) in space[parameter] for parameter in declared), name


def test_the_programs_of_f32_in_the_file_have_tiles_of_the_choice():
    known = (*micro_choice.CHAIN, *micro_choice.CLUSTERS, *micro_choice.PARTIAL)
    tiles = {str(micro_tile(Tile({**t, "GROUP": 8}))) for t in known}
    sources = "".join(path.read_text(encoding="utf-8") for path in kernels_dir().glob("micro_tiling_*.cu"))
    for name in product_programs().shared.get(("micro_tiling_matmul", "f32"), SharedPrograms()).programs:
        for entry in name.split(" + "):
            kernel, _, template = entry.partition("<")
            assert f" {kernel}(" in sources
            values = template.removesuffix(">").split(", ")
            if kernel == "matmul_few_rows":
                assert (int(values[0]), int(values[3])) in micro_choice.ROWS, name
            elif kernel == "matmul_few_columns":
                assert (int(values[0]), int(values[2]), int(values[3])) in micro_choice.COLUMNS, name
            else:
                assert any(template.startswith(tile) for tile in tiles), name


@pytest.fixture
def script(monkeypatch):
    path = Path(__file__).parents[2] / "scripts"
    monkeypatch.syspath_prepend(str(path))
    spec = importlib.util.spec_from_file_location("choose_programs", path / "choose_programs.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "choose_programs", module)
    spec.loader.exec_module(module)
    return module


def made_case(script, *options, dtype="bf16", us=None):
    """A case with options of (predicted time, program), whose tile is the number of the option, and measured times of these."""
    made = tuple(Option("step", {"BM": i}, time, (name,)) for i, (time, name) in enumerate(options))
    times = {script.tile_key("step", {"BM": i}): time for i, time in enumerate(us or ())}
    return script.Case(MatmulWgmma(m=64, n=64, k=64, dtype=dtype), made, times)


def names(times, found):
    return sorted(times.programs[i] for i in found)


def test_a_program_is_found_that_is_nearly_as_fast_in_all_cases(script):
    cases = [made_case(script, (10.0, "a"), (10.5, "c")), made_case(script, (10.0, "b"), (10.5, "c"))]
    times = script.Times(cases, (), ())
    assert names(times, times.with_margins(0.1).fewest()) == ["c"]
    assert names(times, times.with_margins(0.04).fewest()) == ["a", "b"]


def test_another_program_of_the_same_step_that_gains_enough_time_is_needed(script):
    cases = [made_case(script, (100.0, "a"), (103.0, "c")), made_case(script, (100.0, "b"), (103.0, "c"))]
    times = script.Times(cases, (), ())
    assert names(times, times.with_margins(0.1, 4.0).fewest()) == ["c"]
    assert names(times, times.with_margins(0.1, 2.0).fewest()) == ["a", "b"]


def test_another_program_that_gains_less_than_the_least_time_is_not_needed(script):
    cases = [made_case(script, (2.0, "a"), (2.5, "c")), made_case(script, (2.0, "b"), (2.5, "c"))]
    times = script.Times(cases, (), ())
    assert names(times, times.with_margins(0.1, least_us=0.6).fewest()) == ["c"]
    assert names(times, times.with_margins(0.1, least_us=0.4).fewest()) == ["a", "b"]


def test_of_the_same_number_of_programs_those_with_less_loss_are_found(script):
    cases = [made_case(script, (10.0, "a"), (10.1, "near"), (10.4, "far")), made_case(script, (10.2, "far"), (10.0, "near"))]
    times = script.Times(cases, (), ()).with_margins(0.05)
    assert names(times, times.search(1, [times.at["far"]])) == ["near"]
    assert times.losses_of([times.at["near"]]).tolist() == pytest.approx([0.01, 0.0])


def test_other_products_decide_which_programs_are_added(script):
    cases = [made_case(script, (10.0, "a"), (20.0, "b"), (20.0, "c"))]
    others = [made_case(script, (10.0, "b"), (10.9, "c")), made_case(script, (10.0, "b"), (10.9, "c"))]
    times = script.Times(cases, others, ()).with_margins(0.1)
    assert names(times, times.search(2, times.fewest())) == ["a", "b"]


def test_times_that_were_not_measured_are_corrected_predictions(script):
    times = script.Times((), (), [made_case(script, (10.0, "a"), (20.0, "b"), us=[12.0])])
    assert times.us[0, times.at["b"]] == pytest.approx(24.0)


@pytest.mark.parametrize(("shared_us", "taken"), [(10.4, 2), (10.6, 1)])
def test_an_exception_is_the_fastest_measured_tile_or_a_shared_one_within_the_margin(script, shared_us, taken):
    case = made_case(script, (10.0, "a"), (10.5, "special"), (10.5, "b"), us=[12.0, 10.0, shared_us])
    times = script.Times((), (), [case])
    (found,) = script.exceptions(times, SharedPrograms(frozenset("ab"), 0.05)).values()
    assert found["tile"] == {"BM": taken}


@pytest.mark.parametrize(("special_us", "of_grid", "found"), [(10.5, True, 0), (10.3, True, 1), (10.5, False, 1)])
def test_a_special_program_of_the_grid_gains_three_times_the_margin(script, special_us, of_grid, found):
    case = made_case(script, (10.0, "a"), (10.2, "special"), us=[12.0, special_us])
    times = script.Times([made_case(script, (10.0, "a"))] if of_grid else (), (), [case])
    assert len(script.exceptions(times, SharedPrograms(frozenset("a"), 0.05))) == found


@pytest.mark.parametrize("m", [2048, 512])
def test_consumers_compute_tiles_in_turn_also_where_a_cta_has_one(m):
    w = MatmulWgmma(m=m, n=2048, k=1024).on(H200)
    assert list(wgmma_tiles.alternating_candidates(w, simple=True))


@pytest.mark.parametrize(("m", "n", "group"), [(1024, 16384, 8), (1025, 16384, 16), (1408, 16384, 8), (1025, 1024, 8)])
def test_a_row_of_tiles_beyond_a_group_is_a_part_of_it(m, n, group):
    found = wgmma_tiles.alternating_candidates(MatmulWgmma(m=m, n=n, k=1024).on(H200), simple=True)
    assert {t["GROUP"] for t in found if t["CLUSTER_M"] == 1} == {group}


def test_tiles_in_turn_are_not_considered_before_they_were_measured(monkeypatch):
    h200 = measurements.H200
    monkeypatch.setattr(measurements, "MEASURED", {h200.gpu: replace(h200, ping_pong=None)})
    assert not list(wgmma_tiles.alternating_candidates(MatmulWgmma(m=4096, n=4096, k=1024).on(H200), simple=True))


@pytest.mark.parametrize(("dtype", "wide"), [("s8", True), ("tf32", True), ("e4m3", False)])
@pytest.mark.parametrize("variant", ["fused", "multicast"])
def test_the_model_knows_results_of_four_bytes(dtype, wide, variant):
    w = MatmulFused(m=256, n=4096, k=1024, dtype=dtype).on(H200)
    if variant == "fused":
        work = fused_tiles.stream_work(w, next(wgmma_tiles.candidates(fused_tiles.alike(w))))
    else:
        work = multicast.stream_work(w, next(multicast.candidates(w, w.itemsize)), w.itemsize)
    assert work.wide == (work.ends if wide else 0)


@pytest.mark.parametrize(("sharing", "rows"), [(1, 0), (2, 64), (4, 0)])
def test_the_model_knows_rows_of_a_that_a_pair_of_ctas_loads(sharing, rows):
    tile = {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 128, **multicast.ALONE, "A_SHARING": sharing}
    assert multicast.stream_work(MatmulWgmma(m=128, n=4096, k=1024).on(H200), tile).paired == rows


@pytest.mark.parametrize(("n", "columns", "rows"), [(4096, 192, 3), (4096, 160, 5), (4096, 176, 11), (4104, 192, 6)])
def test_the_model_knows_rows_of_boxes(n, columns, rows):
    """Of 128, 64 and 32 bytes; those that begin within a cache line count twice."""
    w = MatmulWgmma(m=128, n=n, k=64).on(H200)
    assert wgmma_tiles.box_rows(w, {"BM": 128, "BN": columns}) == 128 * rows


@pytest.mark.parametrize(("k", "boxes"), [(512, 2), (520, 1)])
def test_consumers_in_turn_have_two_boxes_with_few_steps(k, boxes):
    w = MatmulWgmma(m=4096, n=4096, k=k).on(H200)
    found = [t for t in wgmma_tiles.alternating_candidates(w, simple=True, two_boxes=True) if t["BN"] == 192]
    assert {t["BOXES"] for t in found} == {boxes}
    assert ((4, 1) in {(t["CLUSTER_M"], t["CLUSTER_N"]) for t in found}) == (boxes == 2)


def test_the_model_knows_few_steps():
    entry = measurements.measured(H200)
    assert wgmma_tiles.rates_of(entry, {}, few=True) is entry.few_steps
    assert wgmma_tiles.rates_of(entry, {"PING_PONG": 1}, few=True) is entry.few_steps_ping_pong
    before = replace(entry, few_steps=None, few_steps_ping_pong=None)
    assert wgmma_tiles.rates_of(before, {}, few=True) is entry.products
    assert wgmma_tiles.rates_of(before, {"PING_PONG": 1}, few=True) is entry.ping_pong


@pytest.mark.parametrize(("rows", "ctas"), [(264, 2), (300, 4)])
def test_the_ctas_of_an_sm_begin_together(rows, ctas):
    """264 CTAs are two on each SM of an H200, and 300 are four on some: two end, and two begin."""
    tile = {"CONSUMERS": 1, "ROWS": 1, "TOKENS": 64, "A_SHARING": 1, "B_SHARING": 1, "PARTS": 1, "CTAS_PER_SM": 2}
    work = multicast.stream_work(MatmulWgmma(m=64, n=64 * rows, k=1024).on(H200), tile)
    assert work.steps == ctas * 16


@pytest.mark.parametrize("dtype", ["e4m3", "s8", "tf32"])
def test_a_small_product_takes_no_tile_of_consumers_in_turn(dtype):
    """Their predictions were too small before there were times of such products: docs/shapes.md."""
    chosen = choose(MatmulFused(m=28, n=2960, k=80, dtype=dtype).on(H200), target=SM_90A)
    assert not chosen.tile.get("PING_PONG")
