"""Tests that need a GPU: faults, streams, other libraries' arrays, threads, graphs, time."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import ptxkit
from ptxkit.errors import LaunchError, PtxkitError

pytestmark = pytest.mark.gpu

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void wait_and_set(int* y, long long cycles, int value) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    *y = value;
}
extern "C" __global__ void ranks(int* y) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) y[blockIdx.x] = rank;
}
extern "C" __global__ void illegal(int* p) { p[1ll << 40] = 1; }
extern "C" __global__ void misaligned(char* p) { *(int*)(p + 1) = 1; }
extern "C" __global__ void trapped(int* p) { if (p) asm volatile("trap;"); }
extern "C" __global__ void well(int* p) { p[0] = 7; }
"""
CYCLES = 20_000_000  # about 10 ms
f32 = np.float32


@pytest.fixture
def gpu():
    return ptxkit.device("gpu")


@pytest.fixture
def module(gpu):
    return ptxkit.compile(SOURCE, device=gpu)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_the_facts_of_the_gpu(gpu):
    assert gpu.kind == "gpu" and gpu.name
    assert gpu.target.cc == int("".join(map(str, gpu.core.compute_capability)))
    assert 1 << 30 < gpu.memory_bytes < 1 << 40
    assert ptxkit.device("auto") is gpu


def test_facts_and_sensors(gpu):
    facts = gpu.facts()
    assert facts.name == gpu.name and facts.multiprocessors > 1 and facts.l2_bytes > 1 << 20
    assert facts.compute_capability == f"{gpu.target.cc // 10}.{gpu.target.cc % 10}"
    assert int(facts.cuda_driver.split(".")[0]) >= 13
    assert int(facts.kernel_driver.split(".")[0]) >= 580
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", facts.uuid)
    sensors = gpu.sensors()
    assert 10 < sensors.temperature_c < 110
    assert 5 < sensors.power_w < 2000
    assert 0 < sensors.sm_clock_mhz < 4000 and sensors.memory_clock_mhz > 0


def test_torch_tensors(gpu, module, torch):
    x, y = torch.rand(1000, device="cuda"), torch.rand(1000, device="cuda")
    wanted = 2 * x + y
    module["saxpy"](f32(2), x, y, 1000, grid=4, block=256)
    torch.testing.assert_close(y, wanted)  # torch's stream waits for that of ptxkit


def test_torch_tensors_on_the_host_are_taken_like_numpy_arrays(module, torch):
    x, y = torch.ones(32), torch.zeros(32)
    module["saxpy"](f32(2), x, y, 32, grid=1, block=32)
    assert (y == 2).all()


def test_torch_tensors_that_cannot_be_taken(module, torch):
    y = torch.zeros(32, device="cuda")
    for wrong in (torch.zeros(8, 8, device="cuda").t()[:4], torch.zeros(8, 8).t()[:4]):
        with pytest.raises(LaunchError, match=r"saxpy: argument 2 'x' \(const float\*\) is not C-contiguous"):
            module["saxpy"](f32(2), wrong, y, 32, grid=1, block=32)


def test_cupy_arrays(module):
    cupy = pytest.importorskip("cupy")
    x, y = cupy.arange(32, dtype=f32), cupy.zeros(32, f32)
    module["saxpy"](f32(2), x, y, 32, grid=1, block=32)
    assert cupy.asnumpy(y).tolist() == [2 * i for i in range(32)]


def test_device_arrays_are_torchs_and_cupys_too(gpu, torch):
    array = gpu.upload(np.arange(12, dtype=f32).reshape(3, 4))
    tensor = torch.as_tensor(array, device="cuda")
    assert tensor.data_ptr() == array.address and tensor.shape == (3, 4)
    assert tensor.sum().item() == 66
    cupy = pytest.importorskip("cupy")
    assert float(cupy.asarray(array).sum()) == 66


def test_order_with_the_default_stream_of_other_libraries(gpu, module, torch):
    """A tensor that torch is still writing is waited for, and torch waits for what a kernel is still writing."""
    y = torch.zeros(1, dtype=torch.int32, device="cuda")
    launch = module["wait_and_set"].prepare(y, CYCLES, 5, grid=1, block=1)
    for _ in range(3):
        torch.cuda._sleep(CYCLES)
        y.fill_(3)
        launch()
        assert (y + 1).item() == 6


def test_a_stream_of_torchs(gpu, module, torch):
    """Numpy arrays are copied back after the kernel has ended, on whatever stream it ran."""
    stream = torch.cuda.Stream()
    y = np.zeros(1, np.int32)
    module["wait_and_set"](y, CYCLES, 5, grid=1, block=1, stream=stream)
    assert y[0] == 5
    on_device = gpu.upload(y)
    module["wait_and_set"](on_device, CYCLES, 6, grid=1, block=1, stream=stream)
    assert on_device.numpy()[0] == 6


def test_launches_from_another_thread(gpu, module):
    y = gpu.upload(np.zeros(32, f32))
    launch = module["saxpy"].prepare(f32(1), gpu.upload(np.ones(32, f32)), y, 32, grid=1, block=32)
    failures = []

    def work():
        try:
            launch()
            y.copy_from(y.numpy() + f32(1))
            module["saxpy"](f32(1), y, y, 32, grid=1, block=32)
        except PtxkitError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == [] and y.numpy().tolist() == [4] * 32


def test_clusters_of_16(module):
    if ptxkit.device("gpu").target.cc < 90:
        pytest.skip("no clusters here")
    y = np.zeros(32, np.int32)
    module["ranks"](y, grid=32, block=32, cluster=16)
    assert y.tolist() == [*range(16)] * 2


def test_a_cooperative_launch_that_does_not_fit_is_refused_and_loses_nothing(module):
    y = np.zeros(4, f32)
    with pytest.raises(LaunchError, match=r"saxpy: a cooperative grid of 1,048,576 CTAs; the \d+ SMs of"):
        module["saxpy"](f32(1), y, y.copy(), 4, grid=1 << 20, block=1024, cooperative=True)
    module["saxpy"](f32(1), np.ones(4, f32), y, 4, grid=1, block=32)
    assert y.tolist() == [1] * 4


def test_graphs(gpu, module):
    x, y = gpu.upload(np.ones(32, f32)), gpu.upload(np.zeros(32, f32))
    launch = module["saxpy"].prepare(f32(2), x, y, 32, grid=1, block=32)
    graph = gpu.graph(lambda: [launch() for _ in range(10)])
    assert not y.numpy().any()
    for _ in range(3):
        graph()
    assert y.numpy().tolist() == [60] * 32


def test_a_prepared_launch_in_somebody_elses_graph(gpu, module, torch):
    x, y = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")
    stream = torch.cuda.Stream()
    launches = [module["saxpy"].prepare(f32(2), x, y, 32, grid=1, block=32, stream=stream) for _ in range(2)]
    launches[1]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for launch in launches:  # the second is a graph itself at this point
            launch()
    assert (y == 2).all()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (y == 2 + 3 * 4).all()


def test_prepared_launches_come_and_go(gpu, module):
    """Each is a separate graph, which may be freed while the GPU executes it."""
    y = gpu.upload(np.zeros(32, f32))
    x = gpu.upload(np.ones(32, f32))
    for _ in range(500):
        launch = module["saxpy"].prepare(f32(1), x, y, 32, grid=1, block=32)
        launch()
        launch()
    del launch
    assert y.numpy().tolist() == [1000] * 32
    assert len(gpu.retired) <= 1


def test_times_are_those_of_the_device(gpu, module):
    y = gpu.upload(np.zeros(1, np.int32))
    short, long = (module["wait_and_set"].prepare(y, n, 1, grid=1, block=1) for n in (200_000, 2_000_000))
    gpu.measure(short, 3)
    a, b = (np.median(gpu.measure(launch, 9).times_us) for launch in (short, long))
    assert 80 < a < 400  # 200,000 cycles at 0.5 to 2 GHz, and a few microseconds
    assert 8 < b / a < 11
    assert gpu.measure(short, 2).counters is None
    hot = gpu.time_back_to_back(short, 20)
    assert len(hot) == 20 and 0.9 * a < np.median(hot) < 1.1 * a


def test_a_copy_runs_at_a_bandwidth_that_can_be(gpu):
    (t, *more) = gpu.measure_copy(256 << 20, 5)
    assert len(more) == 4
    assert 100 < 2 * (256 << 20) / t / 1e3 < 20_000  # GB/s


CHILD = """
import sys, time
import numpy as np, ptxkit
gpu = ptxkit.device("gpu")
module = ptxkit.compile({source!r}, device=gpu)
p = gpu.upload(np.zeros(64, np.int32))
module["well"](p, grid=1, block=1)
gpu.synchronize()
began = time.perf_counter()
for name in ({name!r}, "well", "well"):
    try:
        module[name](p, grid=1, block=1)
        gpu.synchronize()
        print("nothing")
    except ptxkit.errors.FaultError as error:
        print(type(error).__name__, error)
print("fast" if time.perf_counter() - began < 5 else "slow")
"""


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("illegal", "MemoryFault", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("misaligned", "MemoryFault", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        ("trapped", "TrapError", "CUDA_ERROR_"),
    ],
)
def test_a_fault_and_what_follows(name, kind, code):
    command = [sys.executable, "-c", CHILD.format(source=SOURCE, name=name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    first, second, third, fast = done.stdout.splitlines()
    assert first.startswith(f"{kind} {name} failed on ") and code in first and "--device emulator" in first
    assert second == third and second.startswith("FaultError the GPU's context was lost when") and name in second
    assert fast == "fast"
    assert (done.returncode, done.stderr) == (0, "")
