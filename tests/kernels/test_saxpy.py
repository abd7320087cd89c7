"""saxpy: the smallest kernel, in place."""

from __future__ import annotations

import pytest

from ptxkit.kernels.elementwise.saxpy import Saxpy
from ptxkit.workload import execute


@pytest.mark.parametrize("n", [1, 3, 4, 257, 1023, 4096])
@pytest.mark.parametrize("variant", ["scalar", "vectorized", "ptx"])
def test_any_length(device, variant, n):
    case = execute.Case(Saxpy(n=n), device, seed=n)
    for _ in range(2):  # y is updated in place, so a second run must start from the original input
        result = execute.run(case, Saxpy.variant(variant))
        assert result.verdict.verified, result.verdict.worst
