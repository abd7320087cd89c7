"""The Triton kernels give the same results as the kernels, in Triton's interpreter; skipped where Triton is not installed.

The interpreter has to be chosen before Triton is imported, so this file runs itself in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest

from ptxkit.bench.peers import triton_ops
from ptxkit.workload import registry
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.launch import Tolerance, array_spec
from ptxkit.workload.tolerance import Rule
from ptxkit.workload.verify import compare

CASES = [
    ("saxpy", [3000], {}),
    ("add_mul_exp", [3000], {}),
    ("quantize_int8", [3000], {"zero_point": -7}),
    ("add_gelu", [3000], {"dtype": "bf16"}),
    ("add_activation", [3000], {"activation": "silu"}),
    ("add_activation", [3000], {"activation": "relu", "dtype": "f16"}),
    ("swiglu", [7, 33], {}),
    ("two_stage_pipeline", [132], {}),
    ("memory_bound", [3000], {}),
    ("compute_bound", [300], {"intensity": 4.0}),
    ("bias_dropout_residual", [7, 36], {}),
    ("bias_dropout_residual", [7, 33], {"p": 0.5}),
    ("fused_l2norm", [7, 33], {}),
    ("layernorm", [7, 33], {"activation": "relu"}),
    ("layernorm", [5, 257], {"training": True, "dtype": "f16"}),
    ("rmsnorm", [7, 33], {"training": True}),
    ("softmax", [7, 33], {}),
    ("softmax", [7, 36], {"p": 0.25}),
    ("softmax", [7, 33], {"p": 0.25}),
    ("scale_mask_softmax", [33, 3], {"masked": 0.7}),
    ("scale_mask_softmax", [7, 128], {}),
    ("layernorm_quantize", [7, 33], {}),
    ("moe_routed", [5, 32, 16, 4, 2], {}),
    ("moe_routed", [40, 48, 32, 3, 3], {}),
    ("moe_routed", [7, 32, 48, 40, 3], {"renormalize": False}),
]
ATTENTION = [
    ([3, 2, 70, 140, 64], {"causal": True, "kv_heads": 1, "lengths": "random", "dtype": "f16"}),
    ([1, 2, 70, 150, 64], {"dtype": "f16"}),
    ([1, 1, 150, 9, 64], {"causal": True, "dtype": "f16"}),
]
GRADIENTS = ["layernorm_backward", "rmsnorm_backward"]
LONG = ["fused_l2norm", "layernorm", "rmsnorm", "softmax", "scale_mask_softmax", "layernorm_quantize"]

installed = all(importlib.util.find_spec(package) for package in ("torch", "triton"))


def test_every_memory_bound_kernel_has_a_definition():
    bundled = {name for name in registry.names() if registry.get(name).make().work().intensity < 8}
    # examples of instructions; operations on integers without arithmetic; and a latency
    without = {"inline_ptx", "sparse_compress", "pointer_chase"}
    assert {n for n in bundled if triton_ops.find(registry.get(n).make()) is None} == without


def test_gradients_of_long_rows_are_not_offered():
    for name in GRADIENTS:
        assert triton_ops.find(registry.get(name).make([4, 16384]))
        assert triton_ops.find(registry.get(name).make([4, 16385])) is None


@pytest.mark.parametrize("cols", [1, 3, 64, 100, 1024, 4096, 30000, 32768])
@pytest.mark.parametrize("rows", [1, 40, 16384])
def test_configurations_hold_rows_in_registers(rows, cols):
    workload = registry.get("softmax").make([rows, cols])
    configs = triton_ops.whole_rows(workload)
    assert 1 <= len(configs) <= 8
    for config in configs:
        assert config["BLOCK"] >= cols
        assert config["BLOCK"] & (config["BLOCK"] - 1) == 0
        assert 1 <= config["num_warps"] <= 32
        assert config["BLOCK"] * config["ROWS"] <= 64 * 32 * config["num_warps"]


def test_two_definitions_of_one_kernel_are_refused():
    with pytest.raises(ValueError, match="two definitions of softmax"):
        triton_ops.op("softmax")(triton_ops.softmax)


@pytest.mark.skipif(not installed, reason="needs Triton and torch")
def test_kernels_agree_with_the_references():
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def poisoned(shape, dtype):
    """An array that no kernel has written."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).fill(0xCD)
    return array


def check(name, sizes, options, config_index=0):
    """Interpret one kernel and compare all its outputs."""
    import torch

    def tensor(value):
        if value.dtype == dtype_of("bf16"):
            return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(value)

    workload = registry.get(name).make(sizes, options)
    inputs = workload.inputs(np.random.default_rng(3))
    expected = workload.reference(**inputs)
    program = triton_ops.find(workload)(workload)
    first = next(v for v in inputs.values() if np.ndim(v))
    specs = {n: array_spec(s) for n, s in workload.outputs().items()}
    specs = specs or dict.fromkeys(expected, (first.shape, first.dtype))
    outputs = {n: poisoned(*spec) for n, spec in specs.items()}
    named = {n: tensor(v) if np.ndim(v) else np.asarray(v).item() for n, v in inputs.items()}
    named |= {f"out:{n}": tensor(v) for n, v in outputs.items()}
    named |= {f"tmp:{n}": tensor(poisoned(*array_spec(spec))) for n, spec in program.scratch.items()}
    config = program.configs[config_index]
    for each in program.launches:
        arguments = [named[a] if isinstance(a, str) else a for a in each.arguments]
        each.kernel[each.grid(config)](*arguments, **each.constants, **config)
    tolerance = program.tolerance or workload.tolerance
    if isinstance(tolerance, Mapping):
        tolerance = Rule(outputs=tolerance)
    if name == "saxpy":
        tolerance = Tolerance(ulp=4)  # the interpreter has no fma
    for output, value in expected.items():
        verdict = compare(output, outputs[output], value, tolerance)
        print(f"{name} {sizes} {options} {dict(config)}: {output} {verdict}")
        assert verdict.verified, verdict.worst


def interpreter_loops():
    """Whether the interpreter can take the end of a loop from an argument: newer numpy refuses how it does that."""
    try:
        return int(np.array([1])) == 1
    except TypeError:
        return False


def main():
    loops = interpreter_loops()
    for name, sizes, options in CASES:
        if loops or not name.endswith("_bound"):
            for index in (0, -1):
                check(name, sizes, options, index)
    triton_ops.LONGEST_BLOCK = 64
    triton_ops.parts_of_rows = lambda w: ({"BLOCK": 64, "num_warps": 4},)
    if loops:
        for name in LONG:
            check(name, [3, 150], {})
        check("softmax", [3, 150], {"p": 0.25})
        check("layernorm", [3, 150], {"activation": "none", "training": True})
        for sizes, options in ATTENTION:
            check("attention", sizes, options)
            check("attention", sizes, options, -1)
        for name in GRADIENTS:
            check(name, [150, 33], {})
            check(name, [150, 64], {"dtype": "bf16"}, -1)
        check("layernorm_backward", [150, 33], {"activation": "gelu"})
        check("layernorm_backward", [150, 64], {"activation": "relu", "dtype": "bf16"}, -1)


if __name__ == "__main__":
    main()
