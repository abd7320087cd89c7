"""Compares ptxkit's occupancy calculator with the driver's, on the GPU of this machine.

    python scripts/check_occupancy.py [--configurations 400] [--seed 0]

Compiles kernels of many register counts, sizes of shared memory and numbers of barriers, asks
cuOccupancyMaxActiveBlocksPerMultiprocessor about random CTA sizes and dynamic shared memory, and compares. The registers and
shared memory that are read out of the cubin are compared with cuFuncGetAttribute as well. Exits with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

from cuda.bindings import driver
from tabulate import tabulate

from ptxkit.compiler import Target, compile_source
from ptxkit.inspect.disassembly import sass
from ptxkit.inspect.model import SassFunction
from ptxkit.inspect.residency import occupancy
from ptxkit.targets import TARGETS

KERNEL = """
extern "C" __global__ void {name}(const float* x, float* y, int n) {{
    {shared}
    float v[{live}];
    #pragma unroll
    for (int k = 0; k < {live}; k++) v[k] = x[threadIdx.x + 1024 * k];
    #pragma unroll 1
    for (int i = 0; i < n; i++) {{
        #pragma unroll
        for (int k = 0; k < {live}; k++) v[k] = v[k] * v[(k + 1) % {live}] + 1.0f;
        {barriers}
    }}
    #pragma unroll
    for (int k = 0; k < {live}; k++) y[threadIdx.x + 1024 * k] = v[k];
}}
"""
LIVE = (1, 6, 13, 20, 27, 34, 41, 50, 62, 75, 90, 110, 130, 150, 180, 215)


def source(name: str, live: int, shared: int, barriers: int) -> str:
    """A kernel with about ``live`` registers, ``shared`` bytes and ``barriers`` named barriers."""
    use = "".join(f'asm volatile("barrier.sync {b};" ::: "memory"); ' for b in range(barriers))
    if shared:
        use += "s[threadIdx.x % sizeof s] = v[0]; v[0] += s[(threadIdx.x + 1) % sizeof s];"
    array = f"__shared__ volatile char s[{shared}];" if shared else ""
    return KERNEL.format(name=name, live=live, shared=array, barriers=use)


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a driver call, or an exception when it failed."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(error))
    return values[0] if len(values) == 1 else values


def open_gpu() -> Target:
    """Make a context on GPU 0; its target."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    attribute = driver.CUdevice_attribute
    major = checked(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = checked(driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    target = TARGETS.get(f"sm_{major}{minor}a") or TARGETS[f"sm_{major}{minor}"]
    limits = target.limits
    for name, ours in (
        ("MAX_THREADS_PER_MULTIPROCESSOR", limits.threads),
        ("MAX_BLOCKS_PER_MULTIPROCESSOR", limits.ctas),
        ("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", limits.shared_bytes),
        ("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", limits.shared_bytes_per_cta),
        ("RESERVED_SHARED_MEMORY_PER_BLOCK", limits.reserved_bytes),
        ("MAX_REGISTERS_PER_MULTIPROCESSOR", limits.registers),
    ):
        theirs = checked(driver.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device))
        if ours != theirs:
            sys.exit(f"{name} is {theirs} here; ptxkit.targets says {ours}")
    return target


def compare(module: Any, function: SassFunction, block: int, dynamic: int) -> list[Any] | None:
    """A table row for a launch for which ptxkit and the driver disagree, or None."""
    handle = checked(driver.cuModuleGetFunction(module, function.name.encode()))
    most = function.target.limits.shared_bytes_per_cta - function.resources.shared_bytes
    attribute = driver.CUfunction_attribute
    checked(driver.cuFuncSetAttribute(handle, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most))
    theirs = checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, block, dynamic))
    ours = occupancy(function, block=block, dynamic_shared_bytes=dynamic)
    if theirs == ours.ctas_per_sm:
        return None
    r = function.resources
    return [
        r.registers,
        r.shared_bytes,
        r.barriers,
        block,
        dynamic,
        ours.ctas_per_sm,
        theirs,
        ours.impossible or ours.limits,
    ]


def attributes_differ(module: Any, function: SassFunction) -> list[str]:
    """Attributes of a function for which the driver and ptxkit's reading of the cubin disagree."""
    handle = checked(driver.cuModuleGetFunction(module, function.name.encode()))
    wanted = {
        "NUM_REGS": function.resources.registers,
        "SHARED_SIZE_BYTES": function.resources.shared_bytes,
        "LOCAL_SIZE_BYTES": function.resources.local_bytes,
    }
    found = []
    for name, ours in wanted.items():
        theirs = checked(
            driver.cuFuncGetAttribute(getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}"), handle)
        )
        if theirs != ours:
            found.append(f"{function.name}: {name} is {theirs} to the driver, {ours} to us")
    return found


def main() -> int:
    """Run the comparison; 0 when all agree."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--configurations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    target = open_gpu()
    largest = target.limits.default_shared_bytes
    shapes = [
        (live, rng.choice([0, rng.randrange(1, largest)]), rng.choice([0, 1, 2, 3, 5, 8, 16])) for live in LIVE * 2
    ]
    image = compile_source("".join(source(f"k{n}", *shape) for n, shape in enumerate(shapes)), target=target)
    functions = list(sass(image).values())
    module = checked(driver.cuModuleLoadData(image.cubin))
    complaints = [text for f in functions for text in attributes_differ(module, f)]
    rows = []
    for _ in range(options.configurations):
        function = rng.choice(functions)
        room = target.limits.shared_bytes_per_cta - function.resources.shared_bytes
        dynamic = rng.choice([0, 0, rng.randrange(room + 1), room])
        if row := compare(
            module, function, rng.choice([rng.randrange(1, 1025), 32 * rng.randrange(1, 33)]), dynamic
        ):
            rows.append(row)
    registers = sorted({f.resources.registers for f in functions})
    print(f"{target}: {options.configurations} launches of {len(functions)} kernels, registers {registers}")
    for text in complaints:
        print(text)
    if rows:
        print(
            tabulate(rows, ["registers", "shared", "barriers", "block", "dynamic", "ours", "driver", "our limits"])
        )
    print(f"{len(rows)} launches and {len(complaints)} attributes differ")
    return 1 if rows or complaints else 0


if __name__ == "__main__":
    sys.exit(main())
