"""swiglu_backward in f32, f16 and bf16."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.swiglu_backward import SwigluBackward
from ptxkit.workload import execute

VARIANTS = ["unfused", "fused", "vectorized"]


def check(case, variant):
    result = execute.run(case, SwigluBackward.variant(variant))
    assert result.verdict.verified, f"{variant} {result.tile}: {result.verdict.worst}"
    return result


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 2049), (257, 8)])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_shape(device, variant, dtype, rows, cols):
    check(execute.Case(SwigluBackward(rows=rows, cols=cols, dtype=dtype), device, seed=cols), variant)


def test_extreme_gates_in_all_variants(device):
    values = np.array(
        [0, -0.0, 1e-30, 1, -1, 10, -10, -87, 200, -200, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32
    )
    gate, up = np.meshgrid(values, np.array([0.5, -2, 1e4], np.float32))
    inputs = {"dy": np.ones_like(gate), "gate": gate, "up": up}
    case = execute.Case(SwigluBackward(*gate.shape), device, inputs=inputs)
    for variant in VARIANTS:
        check(case, variant)


def test_work_is_what_is_counted(device):
    case = execute.Case(SwigluBackward(rows=2, cols=4096), device)
    counters = check(case, "vectorized").counters
    if counters is None:
        pytest.skip("this device does not count")
    work = case.workload.work()
    assert (counters.flops, counters.global_bytes) == (work.flops, work.bytes)


def test_more_than_a_grid_can_hold_is_refused():
    with pytest.raises(UsageError, match="more CTAs than a grid can have"):
        SwigluBackward(rows=2**31 - 1, cols=2**10)
