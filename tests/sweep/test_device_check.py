"""A comparison on the device has the same verdict as one on the host."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.runtime.device import device
from ptxkit.sweep.device_check import DeviceChecks
from ptxkit.workload import execute, registry


@pytest.fixture(scope="module")
def case():
    w = registry.get("fused_l2norm").make([16, 1024], {})
    case = execute.Case(w, device("emulator"))
    prepared = execute.prepare(case, w.variant("vectorized"))
    assert prepared.verify().verified
    return case


@pytest.mark.parametrize("change", [None, 1e-3, np.nan, np.inf])
def test_one_wrong_element_is_found(case, change):
    checks = DeviceChecks(case.device, case, case.workload.variant("vectorized"))
    good = case.array("y").numpy()
    bad = good.copy()
    if change is not None:
        bad[7, 513] += change
    case.array("y").copy_from(bad)
    assert checks.all_right() is (change is None)
    assert case.verify(case.workload.variant("vectorized")).verified is (change is None)
    case.array("y").copy_from(good)


def test_other_outputs_are_left_to_the_host():
    w = registry.get("quantize_int8").make([4096], {})
    assert not DeviceChecks(device("emulator"), execute.Case(w, device("emulator")), w.variant("fused")).all_right()
