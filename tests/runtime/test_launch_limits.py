"""The emulator refuses launches that no GPU of the target can execute."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.compiler import assemble, compile_source
from ptxkit.emulator import Machine
from ptxkit.errors import CompileError, LaunchError
from ptxkit.runtime.emulated import EmulatedDevice

MANY_REGISTERS = """
extern "C" __global__ void hungry(float* y, int n) {
    float v[100];
    #pragma unroll
    for (int k = 0; k < 100; k++) v[k] = y[threadIdx.x + k];
    #pragma unroll 1
    for (int i = 0; i < n; i++) {
        #pragma unroll
        for (int k = 0; k < 100; k++) v[k] = v[k] * v[(k + 1) % 100] + 1.0f;
    }
    #pragma unroll
    for (int k = 0; k < 100; k++) y[threadIdx.x + k] = v[k];
}
"""
BOUNDED = MANY_REGISTERS.replace("void hungry", "void __launch_bounds__(1024) hungry")
SHARED = """
extern "C" __global__ void fill(int* y, int count) {
    extern __shared__ int s[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) s[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) *y = s[count - 1];
}
"""
TWO_KERNELS = """
__shared__ int first[10000], second[10000];
extern "C" __global__ void one(int* y) { first[threadIdx.x] = 1; __syncthreads(); *y = first[0]; }
extern "C" __global__ void two(int* y) { second[threadIdx.x] = 2; __syncthreads(); *y = second[0]; }
"""


@pytest.fixture
def emulator():
    return EmulatedDevice(Machine(capacity=1 << 28))


def loaded(device, source, target="sm_90a", ptx_only=False):
    image = compile_source(source, target=target)
    return device.load(assemble(image.ptx, target=target, cubin=False) if ptx_only else image)


@pytest.mark.parametrize("ptx_only", [False, True])
def test_more_registers_than_a_cta_can_have(emulator, ptx_only):
    kernel = loaded(emulator, MANY_REGISTERS, ptx_only=ptx_only)["hungry"]
    y = np.ones(2048, np.float32)
    with pytest.raises(LaunchError, match=r"hungry: 1024 threads of \d+ registers are allocated .* gives a CTA 65,536"):
        kernel(y, 1, grid=1, block=1024)
    with pytest.raises(LaunchError, match="1024 threads of"):
        kernel.prepare(emulator.upload(y), np.int32(1), grid=1, block=1024)
    kernel(y, 1, grid=1, block=256)


@pytest.mark.parametrize("ptx_only", [False, True])
def test_launch_bounds_keep_the_registers_below_the_limit(emulator, ptx_only):
    kernel = loaded(emulator, BOUNDED, ptx_only=ptx_only)["hungry"]
    kernel(np.ones(2048, np.float32), 1, grid=1, block=1024)


def test_ptx_that_cannot_be_assembled_is_refused_where_its_registers_matter(emulator):
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { .reg .b32 r; mov.u32 r, 1.5; ret; }"
    kernel = emulator.load(assemble(text, cubin=False))["k"]
    with pytest.raises(CompileError):
        kernel(grid=1, block=1024)


@pytest.mark.parametrize(
    ("target", "kib", "most"),
    [
        ("sm_75", 64, 65536),
        ("sm_80", 163, 166912),
        ("sm_86", 99, 101376),
        ("sm_90a", 227, 232448),
        ("sm_107a", 327, 334848),
    ],
)
def test_shared_memory_of_the_target(emulator, target, kib, most, require_target):
    require_target(target)
    kernel, y = loaded(emulator, SHARED, target)["fill"], np.zeros(1, np.int32)
    kernel(y, kib * 256, grid=1, block=128, shared=kib << 10)
    assert y[0] == kib * 256 - 1
    message = f"fill: {most + 1:,} bytes of dynamic and 0 of static shared memory; {target} gives a CTA {most:,}"
    with pytest.raises(LaunchError, match=message):
        kernel(y, 1, grid=1, block=128, shared=most + 1)


def test_a_kernel_has_the_static_shared_memory_that_it_names(emulator):
    """Two arrays of 40 KB each are more than a kernel may have; each kernel here has one of them."""
    module, y = loaded(emulator, TWO_KERNELS, ptx_only=True), np.zeros(1, np.int32)
    for name, value in (("one", 1), ("two", 2)):
        module[name](y, grid=1, block=32)
        assert y[0] == value


def test_static_shared_memory_beyond_48_kib(emulator):
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.shared .b8 s[49156];\n"
        ".visible .entry k() { .reg .b32 r; mov.u32 r, s; st.shared.u32 [r], r; ret; }"
    )
    with pytest.raises(CompileError, match="too much shared data"):
        assemble(text, cache=False)
    kernel = emulator.load(assemble(text, cubin=False))["k"]
    with pytest.raises(LaunchError, match="49,156 bytes of static shared memory; a kernel may have 49,152"):
        kernel(grid=1, block=1)


def test_a_cooperative_grid_is_resident_as_a_whole():
    device = EmulatedDevice(Machine(capacity=1 << 28, sms=3))
    kernel, y = loaded(device, BOUNDED)["hungry"], np.ones(2048, np.float32)
    kernel(y, 0, grid=3, block=1024, cooperative=True)
    with pytest.raises(
        LaunchError, match="a cooperative grid of 4 CTAs; the 3 SMs of sm_90a hold 3 CTAs of this kernel"
    ):
        kernel(y, 0, grid=4, block=1024, cooperative=True)
    kernel(y, 0, grid=4, block=1024)


@pytest.mark.parametrize(("version", "size", "most"), [("8.0", 4356, "4,352"), ("8.1", 32768, "32,764")])
def test_more_parameters_than_the_ptx_version_allows(emulator, version, size, most):
    text = (
        f".version {version}\n.target sm_80\n.address_size 64\n"
        f".visible .entry k(.param .align 4 .b8 p[{size}]) {{ ret; }}"
    )
    with pytest.raises(CompileError, match="too much parameter space"):
        assemble(text, cache=False)
    kernel = emulator.load(assemble(text, cubin=False))["k"]
    with pytest.raises(LaunchError, match=f"{size:,} bytes of kernel parameters; PTX {version} allows {most}"):
        kernel(bytes(size), grid=1, block=1)


@pytest.mark.parametrize(("target", "limit"), [("sm_75", "sm_75 gives a CTA 65,536"), (None, "sm_90a gives a CTA 232,448")])
def test_ptx_of_an_architecture_without_gpus_runs_within_the_limits_of_its_target(emulator, target, limit):
    text = ".version 8.0\n.target sm_52\n.address_size 64\n.visible .entry k() { ret; }"
    kernel = emulator.load(assemble(text, target=target, cubin=False))["k"]
    kernel(grid=1, block=32)
    with pytest.raises(LaunchError, match=limit):
        kernel(grid=1, block=32, shared=232449)
