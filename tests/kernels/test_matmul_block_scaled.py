"""matmul_block_scaled: both formats, ragged sizes, quantization bit for bit, and completion as late as is legal."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm.matmul_block_scaled import FORMATS, MatmulBlockScaled, dequantized
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import missing
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute
from ptxkit.workload.workload import Workload

VARIANTS = list(MatmulBlockScaled.variants())


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


def check(device, variant, m, n, k, tile=None, spread=0, **options):
    """Run a variant on random numbers, whose magnitude varies along k by ``spread`` powers of two."""
    workload = MatmulBlockScaled.make([m, n, k], options)
    given = workload.inputs(np.random.default_rng(m + n + k))
    powers = np.exp2(np.linspace(-spread, 0, k)).astype(np.float32)
    inputs = {name: (x.astype(np.float32) * powers).astype(x.dtype) for name, x in given.items()}
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant(variant), None, tile, explicit=True)
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 32), (129, 136, 416), (40, 264, 1184)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_size(blackwell, variant, m, n, k, format):
    check(blackwell, variant, m, n, k, format=format)


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_of_different_magnitude(blackwell, format):
    check(blackwell, "step1_single_issuer", 64, 64, 512, spread=8, format=format)


@pytest.mark.parametrize("tile", [{"STAGES": 3}, {"STAGES": 6, "GROUP": 1}], ids=str)
def test_tiles(blackwell, tile):
    check(blackwell, "step2_specialized", 300, 392, 320, tile)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_relies_on_early_completion(few_ctas, variant, format):
    """Asynchronous operations complete as late as is legal, and nothing races."""
    settings = EmulatorSettings(completion="latest-legal", racecheck=True, counting=False)
    check(EmulatedDevice(settings=settings), variant, 300, 264, 544, format=format)


def test_the_reference_quantizes_by_the_rules_of_the_formats():
    """One block: the scale factor and the elements by hand."""
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = [1000.0, -3.0, 449.0, 0.1]  # 1000 / 448 is rounded up to 4
    expected = [1000 / 4, -3 / 4, 449 / 4, 0.1 / 4]
    e4m3 = np.array(expected, np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(dequantized(x, FORMATS["mxf8"])[0, :4], 4 * e4m3)
    x = np.zeros((1, 16), np.float32)
    x[0, :5] = [6.0, 2.4, 2.5, -5.1, 0.2]  # the scale factor is 1; 2.5 is between 2 and 3, of which 2 is even
    np.testing.assert_array_equal(dequantized(x, FORMATS["nvf4"])[0, :5], [6, 2, 2, -6, 0])


@pytest.mark.parametrize(("sizes", "complaint"), [((8, 12, 32), "n must be"), ((8, 16, 48), "k must be")])
def test_rows_are_multiples_of_16_bytes(sizes, complaint):
    with pytest.raises(UsageError, match=complaint):
        MatmulBlockScaled.make(sizes, {})
