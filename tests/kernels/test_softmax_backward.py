"""softmax_backward: short and long rows in every type, and the scale."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.rows.softmax_backward import SoftmaxBackward
from ptxkit.workload import execute

VARIANTS = ["unfused", "fused", "vectorized"]


def check(case, variant):
    result = execute.run(case, SoftmaxBackward.variant(variant))
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 33), (65, 8), (2, 1024), (5, 2049)])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_shape(device, variant, dtype, rows, cols):
    check(execute.Case(SoftmaxBackward(rows=rows, cols=cols, dtype=dtype, scale=0.5), device, seed=cols), variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_in_a_cluster(device, variant):
    check(execute.Case(SoftmaxBackward(rows=2, cols=40_000), device), variant)


def test_fused_is_bit_identical_to_unfused(device):
    case = execute.Case(SoftmaxBackward(rows=7, cols=333), device)
    outputs = []
    for variant in ("unfused", "fused"):
        check(case, variant)
        outputs.append(case.outputs()["dx"])
    np.testing.assert_array_equal(*outputs)


def test_rows_without_a_gradient_stay_so(device):
    y = np.zeros((2, 40), np.float32)  # as scale_mask_softmax gives for rows that are masked
    case = execute.Case(SoftmaxBackward(rows=2, cols=40), device, inputs={"y": y, "dy": y + 1, "scale": np.float32(1)})
    check(case, "vectorized")
    assert not case.outputs()["dx"].any()


def test_a_scale_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="scale must be finite"):
        SoftmaxBackward(scale=float("inf"))
