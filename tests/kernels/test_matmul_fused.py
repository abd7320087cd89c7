"""matmul_fused: element types, epilogues, batches, leading dimensions, what is refused, and the compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm.matmul_fused import MatmulFused
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.testing import assert_sass
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.verify import compare_all

SM_90A = Target.parse("sm_90a")
SMALL = {"BM": 64, "BN": 64, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 3}


def strict():
    """An emulator in which asynchronous operations complete as late as the program's waits allow."""
    return EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="warps"))


def run(device, variant, m, n, k, tile=None, change=None, **options):
    """The case, after the outputs have been compared with numpy. ``change``: a function of the inputs."""
    workload = MatmulFused(m=m, n=n, k=k, **options)
    inputs = workload.inputs(np.random.default_rng(m + n + k))
    if change is not None:
        inputs = {name: change(x) for name, x in inputs.items()}
    case = execute.Case(workload, device, inputs=inputs)
    result = execute.run(case, workload.variant(variant), None, tile or SMALL, explicit=True)
    assert result.verdict.verified, f"{variant}: {result.verdict.worst}"
    return case


def small_integers(x):
    """-2, -1, 1 and 2, or one of sixteen, so that all partial sums are exact in 13 bits too."""
    rng = np.random.default_rng(x.size)
    return (rng.integers(1, 3, x.shape) * rng.choice([-1, 0, 0, 0, 1], x.shape)).astype(x.dtype)


@pytest.mark.parametrize(("dtype", "k"), [("bf16", 264), ("tf32", 132), ("e4m3", 528), ("s8", 528)])
def test_each_type_without_races_in_a_ring_that_is_used_again(few_ctas, dtype, k):
    """Five steps along k in three stages, two tiles for each CTA; all sums are integers, and the results exact."""
    change = None if dtype == "s8" else small_integers
    case = run(strict(), "fused", 65, 67, k, change=change, dtype=dtype)
    expected = case.expected["c"]
    if dtype != "s8":
        assert np.abs(expected).max() <= 256
    np.testing.assert_array_equal(case.outputs()["c"].astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("variant", ["fused", "unfused"])
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "s8", "scale": "rows_columns", "bias": True, "activation": "gelu", "residual": True, "amax": True},
        {"dtype": "bf16", "scale": "tensor", "activation": "silu_mul", "residual": True, "amax": True},
    ],
    ids=lambda o: o["dtype"],
)
def test_epilogues_of_batches_in_larger_matrices(device, variant, options):
    """What lies beside c stays as it is, and what lies beside a and b is not multiplied."""
    case = run(device, variant, 9, 70, 48, batch=2, lda=64, ldb=80, ldc=73, **options)
    width = 35 if options["activation"] == "silu_mul" else 70
    rest = case.outputs()["c"][..., width:]
    np.testing.assert_array_equal(rest.view(np.uint16), case.inputs["c"][..., width:].view(np.uint16))


def test_a_tile_that_ends_a_matrix_has_no_elements_of_the_next_one(device):
    """Both operands are MN-major, so that elements of k beyond 75 would be those of the next matrix."""
    run(device, "fused", 72, 72, 75, layout="nt", batch=2, dtype="f16")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"dtype": "e4m3", "scale": "rows"}, lambda c: c * 1.01),
        ({"dtype": "tf32"}, lambda c: c * 1.01),
        ({"dtype": "s8"}, lambda c: c + 1),
    ],
    ids=["e4m3", "tf32", "s8"],
)
def test_a_wrong_result_is_not_verified(options, wrong):
    """One percent more, or one more than an exact integer, in all elements."""
    workload = MatmulFused(m=64, n=64, k=128, **options)
    case = execute.Case(workload, EmulatedDevice(), seed=3)
    rule, expected = case.data.tolerance_rule(workload.variant("fused"), None), case.expected["c"]
    kind = case.outputs()["c"].dtype
    assert compare_all({"c": expected.astype(kind)}, case.expected, rule).verified
    assert not compare_all({"c": wrong(expected).astype(kind)}, case.expected, rule).verified


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "e4m3", "layout": "nn"}, "layout nn needs an operand transposed, which wgmma does for bf16 and f16"),
        ({"n": 67, "activation": "silu_mul"}, "n must be even"),
        ({"k": 12}, "rows of a have 24 bytes in memory, no multiple of 16"),
        ({"lda": 32}, "lda must be at least 64"),
        ({"ldb": 68}, "rows of b have 136 bytes"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
)
def test_what_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        MatmulFused(**{"m": 64, "n": 64, "k": 64, **options})


@pytest.mark.parametrize("options", [{"dtype": "e4m3", "scale": "rows_columns", "bias": True, "amax": True}, {"dtype": "s8"}])
def test_wgmma_is_asynchronous_and_nothing_spills(options):
    workload = MatmulFused(**options)
    (step,) = build(workload, workload.variant("fused"), SM_90A).steps
    assert_sass(step.image, has=["QGMMA" if options["dtype"] == "e4m3" else "IGMMA", "UTMALDG"], spills=0)
    assert "serialized" not in step.image.log
