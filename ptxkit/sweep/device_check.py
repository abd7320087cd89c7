"""Verification on the device: the same comparison with the float64 reference as on the host, in about a millisecond.

The result is only whether all elements are within the tolerance. The host compares outputs that are not float32, and
finds the wrong elements for the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.workload.verify import allowed_errors

if TYPE_CHECKING:
    from ptxkit.workload.execute import Case
    from ptxkit.workload.variant import Variant

SOURCE = """
// Counts elements whose distance from the expected value is not within what is allowed for each; NaN is outside.
extern "C" __global__ void count_outside(const float* actual, const double* expected, const double* allowed,
                                         unsigned long long n, unsigned long long* outside) {
    unsigned long long found = 0;
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull)
        found += !(fabs(actual[i] - expected[i]) <= allowed[i]);
    if (found) atomicAdd(outside, found);
}
"""
CTAS = 1024


class DeviceChecks:
    """Compares the outputs of a case on its device.

    Args:
        device: a device that runs kernels. case: whose outputs. variant: whose tolerance applies.
    """

    def __init__(self, device: Any, case: Case, variant: Variant) -> None:
        self.case = case
        case.check_names()
        rule = case.data.tolerance_rule(variant)
        plain = all(dtype == np.float32 for _, dtype in case.output_specs.values())
        self.launches: list[Any] = []
        if not plain:
            return
        from ptxkit.compiler.nvrtc import compile_source
        from ptxkit.targets import lowest_target

        target = device.target or lowest_target(())
        kernel = device.load(compile_source(SOURCE, target=target, name="count_outside.cu"), SOURCE)["count_outside"]
        self.outside = device.empty(1, np.uint64, "elements outside the tolerance")
        for name, value in case.expected.items():
            wanted = device.upload(np.ascontiguousarray(value, dtype=np.float64), f"expected {name}")
            errors = allowed_errors(np.dtype(np.float32), value, rule, name)
            allowed = device.upload(errors, f"allowed errors of {name}")
            arguments = (case.array(name), wanted, allowed, np.uint64(value.size), self.outside)
            self.launches.append(kernel.prepare(*arguments, grid=CTAS, block=256))

    def all_right(self) -> bool:
        """Whether every element is within the tolerance; False also for outputs that only the host can compare."""
        if not self.launches:
            return False
        self.outside.fill(0)
        for launch in self.launches:
            launch()
        return int(self.outside.numpy()[0]) == 0
