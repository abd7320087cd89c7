"""matmul_tcgen05 in all its steps: ragged sizes, element types, epilogues, tiles, and completion as late as is legal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm.matmul_tcgen05 import MatmulTcgen05
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import missing
from ptxkit.targets.gpus import reference_facts
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.workload import Workload

STEPS = list(MatmulTcgen05.variants())
ELEMENTS = {"bf16": 8, "f16": 8, "tf32": 4, "e4m3": 16}  # in 16 bytes


@pytest.fixture
def blackwell(device):
    """A device that has tcgen05."""
    if device.target is not None and (reason := missing(["tcgen05"], device.target)):
        pytest.skip(reason)
    return device


@pytest.fixture
def few_ctas(monkeypatch):
    """A device on which persistent kernels launch two CTAs."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_100a"), sms=2))


def check(device, variant, m, n, k, tile=None, **options):
    """Run a variant on random numbers, and on integers of which no sum is rounded."""
    workload = MatmulTcgen05.make([m, n, k], options)
    rng = np.random.default_rng(m + n + k)
    given = workload.inputs(rng)
    whole = {name: rng.integers(-1, 2, x.shape).astype(x.dtype) for name, x in given.items()}
    for inputs in (given, whole):
        case = execute.Case(workload, device, inputs=inputs)
        result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
        assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    if not options.keys() - {"dtype"} and k <= 256:  # sums of at most 256, which bf16 holds exactly
        np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), case.expected["c"])


SIZES = [(1, 16, 16), (129, 72, 144), (300, 264, 80)]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("variant", STEPS)
def test_any_size(blackwell, variant, m, n, k):
    check(blackwell, variant, m, n, k)


@pytest.mark.parametrize("variant", ["step3_multistage", STEPS[-1]])
@pytest.mark.parametrize("dtype", ["f16", "tf32", "e4m3"])
def test_element_types(blackwell, variant, dtype):
    check(blackwell, variant, 70, 88, 7 * ELEMENTS[dtype], dtype=dtype)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.5},
        {"beta": 2.0, "dtype": "tf32"},
        {"epilogue": "bias_gelu", "dtype": "e4m3"},
        {"alpha": -1.5, "beta": 0.25, "epilogue": "bias_gelu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["step1_one_stage", STEPS[-1]])
def test_epilogues(blackwell, variant, options):
    check(blackwell, variant, 90, 104, 48, **options)


@pytest.mark.parametrize("variant", STEPS[4:])
def test_a_cta_computes_many_tiles(blackwell, few_ctas, variant):
    check(blackwell, variant, 530, 520, 136)


@pytest.mark.parametrize("variant", STEPS)
def test_no_step_relies_on_early_completion(few_ctas, variant):
    """Asynchronous operations complete as late as is legal, and nothing races."""
    settings = EmulatorSettings(completion="latest-legal", racecheck=True)
    check(EmulatedDevice(settings=settings), variant, 300, 264, 200)


@pytest.mark.parametrize(("dtype", "multiple"), ELEMENTS.items())
def test_rows_are_multiples_of_16_bytes(dtype, multiple):
    with pytest.raises(UsageError, match=f"k must be a multiple of {multiple}"):
        MatmulTcgen05.make([128, 128, 128 + multiple // 2], {"dtype": dtype})


@pytest.mark.parametrize(("dtype", "opcode"), [("bf16", "UTCHMMA"), ("tf32", "UTCHMMA"), ("e4m3", "UTCQMMA")])
def test_products_are_tensor_core_instructions(dtype, opcode):
    workload = MatmulTcgen05.make([256, 256, 256], {"dtype": dtype})
    (step,) = build(workload, workload.variant("step5_two_accumulators")).steps
    assert_sass(step.image, has={opcode: 4, "LDTM": 1, "UTMALDG": 2}, spills=0)
