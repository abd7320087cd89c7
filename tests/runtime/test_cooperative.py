"""Cooperative launches: grids that synchronise as a whole, refused launches, and tiles of several warps."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler import compile_source
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import LaunchError, TrapError
from ptxkit.runtime.emulated import EmulatedDevice

SOURCE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// each step every thread takes its value from the thread of the next CTA
extern "C" __global__ void rotate(int* y, int steps) {
    cg::grid_group grid = cg::this_grid();
    unsigned long long rank = grid.thread_rank(), size = grid.size();
    for (int i = 0; i < steps; ++i) {
        int next = y[(rank + blockDim.x) % size];
        grid.sync();
        y[rank] = next + 1;
        grid.sync();
    }
}
extern "C" __global__ void halves(int* y) {  // arrive, independent work, wait
    cg::grid_group grid = cg::this_grid();
    y[grid.thread_rank()] = grid.thread_rank();
    auto token = grid.barrier_arrive();
    int mine = 10 * grid.block_rank();
    grid.barrier_wait(static_cast<decltype(token)&&>(token));
    int other = y[grid.size() - 1 - grid.thread_rank()];
    grid.sync();
    y[grid.thread_rank()] = other + mine;
}
extern "C" __global__ void valid(int* y) { y[threadIdx.x] = cg::this_grid().is_valid(); }
extern "C" __global__ void fails(int* y) { y[0] = cg::this_grid().is_valid(); asm volatile("trap;"); }
extern "C" __global__ void wide(int* y, int steps) {
    extern __shared__ int s[];
    for (int i = 0; i < steps; ++i) { s[threadIdx.x] = i; cg::this_grid().sync(); }
    y[blockIdx.x * blockDim.x + threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void clustered(int* y) {
    cg::cluster_group cluster = cg::this_cluster();
    cg::grid_group grid = cg::this_grid();
    y[grid.thread_rank()] = cluster.block_rank();
    grid.sync();
    int other = y[grid.size() - 1 - grid.thread_rank()];
    cluster.sync();
    grid.sync();
    y[grid.thread_rank()] = 10 * other + cluster.num_blocks();
}
extern "C" __global__ void tiles(int* y) {
    __shared__ cg::block_tile_memory<256> memory;
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<64>(block);
    int v = tile.shfl((int)threadIdx.x, 3);
    tile.sync();
    int all = tile.any(threadIdx.x == 70);
    y[threadIdx.x] = 1000 * all + v + tile.meta_group_rank();
}
extern "C" __global__ void reserved(int* y) {
    int begin, end, cap;
    asm("mov.u32 %0, %%reserved_smem_offset_begin;" : "=r"(begin));
    asm("mov.u32 %0, %%reserved_smem_offset_end;" : "=r"(end));
    asm("mov.u32 %0, %%reserved_smem_offset_cap;" : "=r"(cap));
    y[0] = begin; y[1] = end; y[2] = cap;
}
"""


@pytest.fixture(scope="module")
def image():
    return compile_source(SOURCE, target="sm_90a", name="grid.cu")


@pytest.fixture
def kernels(image, device):
    return device.load(image)


def rotated(grid: int, block: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(grid * block, dtype=np.int32)
    return x.copy(), np.roll(x, -block * steps) + steps


@pytest.mark.parametrize(("grid", "block", "steps"), [(1, 32, 3), (7, 96, 9), (132, 256, 4), (264, 1024, 2)])
def test_a_grid_that_synchronises_in_a_loop(kernels, grid, block, steps):
    """264 CTAs of 1024 threads are several times as many as a wave of an ordinary launch in the emulator."""
    y, expected = rotated(grid, block, steps)
    kernels["rotate"](y, np.int32(steps), grid=grid, block=block, cooperative=True)
    assert (y == expected).all()


@pytest.mark.parametrize("block", [64, (8, 4, 2)])
def test_grids_and_blocks_of_three_dimensions(kernels, block):
    y = np.arange(24 * 64, dtype=np.int32)
    kernels["rotate"](y, np.int32(3), grid=(2, 3, 4), block=block, cooperative=True)
    along_x = block if isinstance(block, int) else block[0]
    assert (y == np.roll(np.arange(24 * 64), -3 * along_x) + 3).all()


def test_launches_one_after_the_other(kernels, device):
    """Each launch has a grid barrier that begins at 0, a prepared launch as well."""
    start, expected = rotated(5, 64, 3)
    y = device.upload(start)
    launch = kernels["rotate"].prepare(y, np.int32(1), grid=5, block=64, cooperative=True)
    for _ in range(3):
        launch()
    device.synchronize()
    assert (y.numpy() == expected).all()


def test_arrival_and_wait(kernels):
    y = np.zeros(8 * 64, np.int32)
    kernels["halves"](y, grid=8, block=64, cooperative=True)
    assert (y == np.arange(512)[::-1] + 10 * (np.arange(512) // 64)).all()


@pytest.mark.parametrize("cooperative", [False, True])
def test_whether_a_grid_can_synchronise(kernels, device, cooperative):
    if device.kind == "gpu" and not cooperative:
        pytest.skip("a GPU keeps the workspace of an earlier cooperative launch of the process")
    y = np.full(32, 7, np.int32)
    kernels["valid"](y, grid=1, block=32, cooperative=cooperative)
    assert (y == cooperative).all()


@pytest.mark.parametrize("cluster", [2, 4])
def test_clusters_within_a_grid(kernels, cluster):
    y = np.zeros(8 * 64, np.int32)
    kernels["clustered"](y, grid=8, block=64, cluster=cluster, cooperative=True)
    assert (y == 10 * ((np.arange(512)[::-1] // 64) % cluster) + cluster).all()


def test_tiles_of_several_warps(kernels):
    """cooperative_groups.h keeps their barriers in the shared memory that the system reserves."""
    y = np.zeros(256, np.int32)
    kernels["tiles"](y, grid=1, block=256)
    tile = np.arange(256) // 64
    assert (y == 1000 * (tile == 1) + 64 * tile + 3 + tile).all()


@pytest.mark.parametrize("settings", [EmulatorSettings(completion="latest-legal"), EmulatorSettings(racecheck="warps")])
def test_in_every_setting(image, settings):
    kernel = EmulatedDevice(settings=settings).load(image)["rotate"]
    y, expected = rotated(9, 64, 3)
    kernel(y, np.int32(3), grid=9, block=64, cooperative=True)
    assert (y == expected).all()


def test_emulated_memory_is_given_back(image):
    emulator = EmulatedDevice()
    kernel, y = emulator.load(image)["rotate"], emulator.upload(np.zeros(64, np.int32))
    kernel(y, np.int32(1), grid=1, block=64, cooperative=True)
    free = emulator.memory_bytes
    kernel(y, np.int32(1), grid=1, block=64, cooperative=True)
    with pytest.raises(TrapError):
        emulator.load(image)["fails"](y, grid=1, block=32, cooperative=True)
    assert emulator.memory_bytes == free


def test_a_grid_sync_without_a_cooperative_launch_says_so(image):
    with pytest.raises(TrapError, match=r"trap: executed by thread .*; .*grid.sync\(\) needs cooperative=True"):
        EmulatedDevice().load(image)["rotate"](np.zeros(64, np.int32), np.int32(1), grid=1, block=64)


def test_another_trap_of_a_cooperative_kernel_says_nothing_of_it(image):
    with pytest.raises(TrapError) as trapped:
        EmulatedDevice().load(image)["fails"](np.zeros(1, np.int32), grid=1, block=1, cooperative=True)
    assert "cooperative" not in str(trapped.value)


def test_a_grid_that_is_not_resident_at_once_is_refused(kernels, device):
    """By shared memory: 200 KB leave room for one CTA on an SM of compute capability 9.0."""
    sms = device.multiprocessors
    y = device.empty(1024 * sms * 64, np.int32)
    kernels["wide"](y, np.int32(2), grid=sms, block=64, shared=200 << 10, cooperative=True)
    device.synchronize()
    text = (
        rf"wide: a cooperative grid of {sms + 1:,} CTAs; the {sms} SMs of .* hold {sms:,} CTAs of this kernel at once"
    )
    with pytest.raises(LaunchError, match=text):
        kernels["wide"](y, np.int32(2), grid=sms + 1, block=64, shared=200 << 10, cooperative=True)
    kernels["wide"](y, np.int32(0), grid=sms + 1, block=64, shared=200 << 10)  # without it there is no limit


@pytest.mark.parametrize(("block", "cluster"), [(1024, None), (512, None), (96, None), (1024, 4)])
def test_the_greatest_grid_fits(kernels, device, block, cluster):
    """Limits by threads, CTA slots and registers: the grid that the message names is accepted, a larger one is not."""
    y = device.empty(1 << 20, np.int32)
    options = {"block": block, "shared": 4 * block, "cooperative": True, "cluster": cluster}
    with pytest.raises(LaunchError, match="CTAs of this kernel at once") as refused:
        kernels["wide"].prepare(y, np.int32(1), grid=1 << 16, **options)()
    greatest = int(str(refused.value).partition(" hold ")[2].split()[0].replace(",", ""))
    assert greatest >= device.multiprocessors // (cluster or 1) * (cluster or 1)
    with pytest.raises(LaunchError, match="CTAs of this kernel at once"):
        kernels["wide"].prepare(y, np.int32(1), grid=greatest + (cluster or 1), **options)()
    if cluster is None:  # clusters lie within GPCs, which may hold fewer of them
        y = device.empty(greatest * block, np.int32)
        kernels["wide"](y, np.int32(2), grid=greatest, **options)
        device.synchronize()
        assert (y.numpy() == 1).all()


def test_the_reserved_shared_memory(kernels):
    y = np.zeros(3, np.int32)
    kernels["reserved"](y, grid=1, block=1)
    assert y.tolist() == [0, 288, 1024]


def test_ptx_alone_may_be_cooperative(device):
    text = """.version 8.7
    .target sm_80
    .address_size 64
    .visible .entry k(.param .u64 p) { .reg .b32 %r<5>; .reg .b64 %rd<5>; ld.param.u64 %rd0, [p];
    mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2; mov.b64 %rd1, {%r1, %r0};
    ld.u32 %r2, [%rd1+4]; st.global.u32 [%rd0], %r2; ret; }
    """
    y = np.full(1, 9, np.int32)
    ptxkit.compile(text, device=device)["k"](y, grid=1, block=1, cooperative=True)
    assert y[0] == 0
