"""Tiles of products: padding, bytes in flight, the margin before a preferred tile is replaced, and GPUs nobody measured."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

from ptxkit import Launch, Work, Workload, variant
from ptxkit.errors import DescriptionError
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry, tiling
from ptxkit.workload.cost import Model, fitted
from ptxkit.workload.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]
H200 = facts_of(find_gpu("NVIDIA H200"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Product(Workload):
    """A product whose CTAs keep as many bytes in flight as their stages say."""

    source = "matmul_mma.cu"
    m: int = 4096
    n: int = 4096
    k: int = 4096

    def inputs(self, rng):
        return {}

    def reference(self):
        return {}

    def work(self):
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return Work(flops=2 * self.m * self.n * self.k, bytes=2 * elements, unit="bf16")

    @variant(tile={"BM": [256, 64], "BN": [128], "STAGES": [4, 1]}, requires=("wgmma",), blocks=("BM", "BN"))
    def blocked(self, t):
        grid = -(-self.m // t.BM) * -(-self.n // t.BN)
        return [Launch("product", grid, 128, ("a", "b", "c"), shared=2 * (t.BM + t.BN) * 64 * t.STAGES)]


def terms(workload, **tile):
    bound = workload.on(H200)
    resolved = resolve(bound, bound.variant("blocked"), H200.target, tile)
    return Model(resolved.workload, resolved.variant, resolved.target, resolved.tile, resolved.launches).terms()


def test_padding_costs_arithmetic_and_epilogue():
    few = Product(m=16)
    large, small = terms(few, BM=256, STAGES=4), terms(few, BM=64, STAGES=4)
    assert large.arithmetic == pytest.approx(4 * small.arithmetic) and large.epilogue == pytest.approx(4 * small.epilogue)
    assert large.memory == small.memory


def test_bytes_in_flight_limit_the_intake():
    deep, shallow = terms(Product(m=64), BM=64, STAGES=4), terms(Product(m=64), BM=64, STAGES=1)
    assert shallow.intake == pytest.approx(4 * deep.intake)
    assert shallow.bound == "intake" and shallow.total > deep.total


def test_the_model_replaces_a_tile_beyond_its_margin_and_says_so():
    few = Product(m=16).on(H200)
    resolved = resolve(few, few.variant("blocked"), H200.target)
    assert (resolved.tile.BM, resolved.tile.STAGES) == (64, 4)
    assert resolved.tile_note.endswith("times as fast as with the preferred BM=256")
    many = Product(m=4096).on(H200)
    assert resolve(many, many.variant("blocked"), H200.target).tile.BM == 256


def test_fixed_parameters_are_kept():
    few = Product(m=16).on(H200)
    assert resolve(few, few.variant("blocked"), H200.target, {"BM": "256"}).tile.BM == 256


def test_blocks_that_are_no_tile_parameters_are_refused():
    with pytest.raises(DescriptionError, match="blocks takes the names of two tile parameters"):
        variant(tile={"BM": [64]}, blocks=("BM", "BN"))


def blocked():
    for name in registry.names():
        kernel = registry.get(name)
        for one in kernel.variants().values():
            if one.blocks:
                yield kernel, one


@pytest.mark.parametrize("kernel, one", list(blocked()), ids=lambda value: getattr(value, "name", ""))
def test_tiles_that_somebody_tuned_are_kept(kernel, one):
    """The sizes of the benchmarks were tuned by sweeps on an H200, of which the model knows nothing."""
    for case in kernel.benchmarks:
        workload = kernel(**case).on(H200)
        if one.refusal(workload) is None:
            assert tiling.faster(workload, one, H200.target, one.select_tile(workload, H200.target)) is None, case


@pytest.mark.parametrize("number", [1, 2])
def test_the_model_halves_the_regret_of_measured_cases_at_least(number):
    fit = script("fit_choice")
    cases = fit.cases_of(ROOT / "tests" / "workload" / "data" / f"choices-{number}-h200.jsonl.gz")
    pairs = [pair for case in cases if (pair := fit.regret(case, fitted())) is not None]
    with_model, preferred = (statistics.mean(values) for values in zip(*pairs, strict=True))
    assert len(pairs) >= 5
    assert with_model < 0.12 and with_model <= preferred
    if number == 1:  # measured before there was a model
        assert with_model < 0.5 * preferred


ELSEWHERE = [
    ("NVIDIA A100-SXM4-80GB", 3),
    ("NVIDIA H100 PCIe", 0),
    ("NVIDIA GeForce RTX 4090", 5),
    ("NVIDIA L4", 3),
    ("NVIDIA B200", 5),
]


@pytest.mark.parametrize("gpu, place", ELSEWHERE, ids=[name for name, _ in ELSEWHERE])
def test_choices_for_gpus_that_nobody_measured_are_verified_in_the_emulator(gpu, place):
    elsewhere = script("choices_elsewhere")
    kernel, fields = elsewhere.CASES[place]
    choice = elsewhere.choice_on(find_gpu(gpu), kernel, fields)
    assert choice.gpu == gpu
    assert elsewhere.verified(choice) == "verified"


def test_tiles_follow_from_the_facts_of_a_gpu():
    elsewhere = script("choices_elsewhere")
    found = {gpu: elsewhere.choice_on(find_gpu(gpu), *elsewhere.CASES[3]).tile for gpu in elsewhere.ELSEWHERE}
    assert len({tuple(tile.items()) for tile in found.values()}) >= 4
