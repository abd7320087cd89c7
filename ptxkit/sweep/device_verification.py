"""Verification on the device: the same comparison with the float64 reference as on the host, in about a millisecond.

The result is only whether all elements are within the tolerance. The host compares outputs of other types than float32, bf16
and f16, and those whose tolerance limits the root mean square of the errors, and finds the wrong elements for the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.workload.verify import allowed_errors

if TYPE_CHECKING:
    from ptxkit.workload.execute import Case
    from ptxkit.workload.variant import Variant

SOURCE = """
struct float32 {
    float value;
    __device__ double number() const { return value; }
};
struct bfloat16 {
    unsigned short bits;
    __device__ double number() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};
struct float16 {
    unsigned short bits;
    __device__ double number() const {
        const unsigned exponent = bits >> 10 & 31, mantissa = bits & 1023;
        const unsigned wide = exponent == 31 ? 255 << 23 | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13;
        const double size = exponent ? __uint_as_float(wide) : mantissa * (1.0 / (1 << 24));  // 0: subnormal
        return bits >> 15 ? -size : size;
    }
};

// Counts elements whose distance from the expected value is not within what is allowed for each; NaN is outside.
template <class Element>
__global__ void count_outside(const void* output, const double* expected, const double* allowed,
                              unsigned long long n, unsigned long long* outside) {
    const Element* actual = static_cast<const Element*>(output);
    unsigned long long found = 0;
    for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull)
        found += !(fabs(actual[i].number() - expected[i]) <= allowed[i]);
    if (found) atomicAdd(outside, found);
}
"""
ELEMENTS = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
"""Name of a dtype -> the type of :data:`SOURCE` that reads it."""
CTAS = 1024


class DeviceVerification:
    """Compares the outputs of a case on its device.

    Args:
        device: a device that runs kernels. case: whose outputs. variant: whose tolerance applies.
    """

    def __init__(self, device: Any, case: Case, variant: Variant) -> None:
        self.case = case
        case.check_names()
        rule = case.data.tolerance_rule(variant)
        kinds = {name: ELEMENTS.get(dtype.name) for name, (_, dtype) in case.output_specs.items()}
        self.launches: list[Any] = []
        for name, value in case.expected.items():
            tolerance, _ = rule.resolved(case.output_specs[name][1], value, name)
            if kinds[name] is None or tolerance.rms:
                return
        from ptxkit.compiler.nvrtc import compile_source
        from ptxkit.targets import lowest_target

        target = device.target or lowest_target(())
        names = {name: f"count_outside<{kind}>" for name, kind in kinds.items()}
        image = compile_source(
            SOURCE, target=target, name="count_outside.cu", instantiate=tuple(dict.fromkeys(names.values()))
        )
        kernels = device.load(image, SOURCE)
        self.outside = device.empty(1, np.uint64, "elements outside the tolerance")
        for name, value in case.expected.items():
            wanted = device.upload(np.ascontiguousarray(value, dtype=np.float64), f"expected {name}")
            errors = allowed_errors(case.output_specs[name][1], value, rule, name)
            allowed = device.upload(errors, f"allowed errors of {name}")
            arguments = (case.array(name), wanted, allowed, np.uint64(value.size), self.outside)
            self.launches.append(kernels[names[name]].prepare(*arguments, grid=CTAS, block=256))

    def within_tolerance(self) -> bool:
        """Whether every element is within the tolerance; False also for outputs that only the host can compare."""
        if not self.launches:
            return False
        self.outside.fill(0)
        for launch in self.launches:
            launch()
        return int(self.outside.numpy()[0]) == 0
