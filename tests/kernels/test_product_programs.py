"""The programs that products by wgmma share, the margin for others, and the measured exceptions of a GPU."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ptxkit.bench.shapes.grid import grid
from ptxkit.kernels.gemm import fused_tiles, programs, steps, wgmma_tiles
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.kernels.gemm.programs import Option, SharedPrograms
from ptxkit.kernels.measured import fitted_products
from ptxkit.targets import Target
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload.choice import choose

SM_90A = Target.parse("sm_90a")
H200 = facts_of(find_gpu("NVIDIA H200"))
KERNELS = {"matmul_wgmma": MatmulWgmma, "matmul_fused": MatmulFused}


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


def test_without_a_shared_program_the_fastest_is_taken():
    options = [option(3.0, "a"), option(2.0, "b", "copies")]
    assert SharedPrograms(frozenset({"copies"}), 0.5).best(options).predicted_us == 2.0


def test_the_grid_needs_few_programs():
    """38 products of bf16 need 32 if each takes the program that is predicted to be the fastest."""
    found = {
        repr(program)
        for shape in grid(0).of_families(["product_bf16"]).shapes
        for program in choose(shape.workload.on(H200), target=SM_90A).chosen.resolved.programs
    }
    assert len(found) <= 24


@pytest.mark.parametrize(("sizes", "block"), [((3001, 3001, 3001), (128, 192)), ((4096, 4099, 4096), (256, 128))])
def test_large_unaligned_products_take_no_small_tile_of_another_size(sizes, block):
    """The model of steps 11 and 12 predicts the same time for a shared tile of 64 x 128."""
    choice = choose(MatmulWgmma(*sizes).on(H200), target=SM_90A)
    assert (choice.tile["BM"], choice.tile["BN"]) == block


def exceptions():
    return sorted(programs.product_programs().exceptions.items())


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


def test_the_programs_of_the_file_have_declared_tiles():
    """So that a renamed parameter, or a value that was removed, does not leave programs that no tile has."""
    for kernel, shared in programs.product_programs().shared.items():
        variants = KERNELS[kernel].variants()
        for name in shared.programs - {programs.COPIES}:
            of, *values = name.split()
            (space, names), *_ = (
                (variants[variant].tile, names)
                for variant, (template, names) in programs.TEMPLATES.items()
                if template == of and variant in variants
            )
            tile = dict(value.split("=") for value in values)
            assert set(tile) - {"PAIRS", "STAGED", "STORES"} == set(names)
            assert all(int(tile[parameter]) in space[parameter] for parameter in names), name


@pytest.fixture
def script(monkeypatch):
    path = Path(__file__).parents[2] / "scripts"
    monkeypatch.syspath_prepend(str(path))
    spec = importlib.util.spec_from_file_location("choose_programs", path / "choose_programs.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "choose_programs", module)
    spec.loader.exec_module(module)
    return module


def made_cases(script, rates, grid_of=()):
    """Cases whose times equal the predictions; those of ``grid_of`` without times."""
    cases = []
    for mnk in ((5, 4096, 4096), (48, 2304, 2304), (300, 4096, 4096)):
        empty = script.case_of("made", MatmulWgmma(*mnk).on(H200), ())
        rows = [
            {"variant": o.variant, "tile": o.tile, "us": float(us)}
            for o, us in zip(empty.options, script.predictions(empty, rates), strict=True)
        ]
        cases.append(script.case_of("made", empty.workload, rows))
    return [*cases, *(script.case_of("0", MatmulWgmma(*mnk).on(H200), ()) for mnk in grid_of)]


def test_regrets_follow_from_the_programs_and_the_margin(script):
    choices = script.Choices(made_cases(script, rates := fitted_products()), rates)
    every = range(len(choices.programs))
    assert choices.regrets(every, 0.0).max() == pytest.approx(0)
    assert choices.regrets((), 0.2).max() == pytest.approx(0)  # without shared programs the fastest is taken
    for program in every:
        assert choices.regrets({program}, 0.1).max() <= 0.1 + 1e-9


def test_the_search_finds_programs_for_several_sizes(script, monkeypatch):
    """Three sizes of the grid, each with another fastest program, by one program within a margin without limits."""
    monkeypatch.setattr(script, "STEPS", 400)
    monkeypatch.setattr(script, "EXCESS", 10.0)
    grid_of = [(5, 4096, 4096), (40, 2304, 2304), (300, 4096, 4096)]
    choices = script.Choices(made_cases(script, rates := fitted_products(), grid_of), rates)
    assert choices.most_needed((), 0.0) == 3
    found = choices.search(2, 10.0, 1)
    assert choices.most_needed(found, 10.0) == 1
    assert choices.cost(found, 10.0, 1) < choices.cost((), 10.0, 1)
