"""Verification where the outputs are: the same comparison with the float64 reference as on the host, in a millisecond.

It says yes or no; who wants to know what is wrong, or has outputs that are not float32, compares on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.workload.verify import DEFAULT_TOLERANCES

if TYPE_CHECKING:
    from ptxkit.workload.execute import Case
    from ptxkit.workload.launch import Tolerance

SOURCE = """
// Counts elements that are outside both |actual - expected| <= absolute + relative * |expected| and ulp units in the last place
// of float32 at the expected value; NaN is outside.
extern "C" __global__ void count_outside(const float* actual, const double* expected, unsigned long long n, double absolute,
                                         double relative, double ulp, unsigned long long* outside) {
    unsigned long long found = 0;
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
        const double e = fabs(expected[i]);
        const int exponent = max(static_cast<int>(__double_as_longlong(e) >> 52) - 1023, -126);
        const double unit = __longlong_as_double(static_cast<long long>(exponent - 23 + 1023) << 52);
        const double distance = fabs(actual[i] - expected[i]);
        found += !(distance <= absolute + relative * e || distance <= ulp * unit);
    }
    if (found) atomicAdd(outside, found);
}
"""
CTAS = 1024


class DeviceChecks:
    """Compares the outputs of a case on its device.

    Args:
        device: a device that runs kernels. case: whose outputs. tolerance: None takes float32's default.
    """

    def __init__(self, device: Any, case: Case, tolerance: Tolerance | None) -> None:
        self.case = case
        allowed = tolerance or DEFAULT_TOLERANCES["float32"]
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
            arguments = (case.array(name), wanted, np.uint64(value.size))
            bounds = (np.float64(allowed.absolute), np.float64(allowed.relative), np.float64(allowed.ulp))
            self.launches.append(kernel.prepare(*arguments, *bounds, self.outside, grid=CTAS, block=256))

    def all_right(self) -> bool:
        """Whether every element is within the tolerance; False also where only the host can tell."""
        if not self.launches:
            return False
        self.outside.fill(0)
        for launch in self.launches:
            launch()
        return int(self.outside.numpy()[0]) == 0
