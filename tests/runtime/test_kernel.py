"""Modules, kernels and launches, alike on every device."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import ptxkit
from ptxkit.errors import CompileError, LaunchError, RaceError, UsageError
from ptxkit.runtime.arguments import Slot

SOURCE = """
struct Pair { double a; int b; };
__global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
template <class T, int N> __global__ void scale(T* x, T by) { for (int i = 0; i < N; i++) x[i] *= by; }
__global__ void bounded(int* y) __launch_bounds__(64);
__global__ void __launch_bounds__(64) bounded(int* y) { y[threadIdx.x] = threadIdx.x; }
__global__ void __cluster_dims__(2) paired(int* y) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    y[blockIdx.x] = rank;
}
__global__ void ranks(int* y) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    y[blockIdx.x] = rank;
}
__global__ void dynamic(int* y, int n) {
    extern __shared__ int s[];
    __shared__ int more[5000];
    for (int i = threadIdx.x; i < n; i += blockDim.x) { s[i] = i; more[i % 5000] = i; }
    __syncthreads();
    if (threadIdx.x == 0) y[0] = s[n - 1] + more[0];
}
__global__ void take(Pair p, bool flag, short s, unsigned long long u, const int* null, double* out) {
    out[0] = p.a + p.b + flag + s + u + (null == nullptr);
}
__global__ void indices(int* y) {
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    atomicAdd(y + block * blockDim.x * blockDim.y * blockDim.z + thread, 1);
}
__global__ void copy_raw(void* x, const unsigned char* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) ((float*)x)[i] = ((const float*)y)[i];
}
__global__ void nothing() {}
"""

f32 = np.float32


@pytest.fixture
def module(device):
    return ptxkit.compile(SOURCE, device=device, instantiate=["scale<float, 3>", "scale<double, 2>"])


@pytest.fixture
def saxpy(module):
    return module["saxpy"]


def test_numpy_arrays_go_in_and_what_was_written_comes_back(saxpy):
    x, y = np.arange(1000, dtype=f32), np.ones(1000, f32)
    saxpy(f32(2), x, y, np.int32(1000), grid=ptxkit.cdiv(1000, 256), block=256, shared=0)
    np.testing.assert_array_equal(y, 2 * np.arange(1000) + 1)
    np.testing.assert_array_equal(x, np.arange(1000))


def test_a_read_only_array_is_input_alone(saxpy):
    x, y = np.ones(32, f32), np.ones(32, f32)
    x.flags.writeable = False
    saxpy(f32(2), x, y, 32, grid=1, block=32)
    np.testing.assert_array_equal(y, 3)


def test_a_result_in_a_read_only_array_is_not_lost_without_a_word(saxpy):
    x, y = np.ones(32, f32), np.ones(32, f32)
    y.flags.writeable = False
    with pytest.raises(LaunchError, match="'y' .*is a read-only numpy array, and the kernel has written to it"):
        saxpy(f32(2), x, y, 32, grid=1, block=32)
    np.testing.assert_array_equal(y, 1)


def test_an_array_passed_twice_is_one(saxpy):
    x = np.arange(32, dtype=f32)
    saxpy(f32(2), x, x[:].reshape(4, 8), 32, grid=1, block=32)
    np.testing.assert_array_equal(x, 3 * np.arange(32))


@pytest.mark.parametrize("dtype", ["f4", "u1", "c16", "i4,f4", "S3"])
def test_any_dtype_is_its_memory_where_the_kernel_takes_raw_memory(module, dtype):
    x = np.zeros(24, dtype)
    y = np.frombuffer(np.arange(1, 1 + x.nbytes // 4, dtype=f32).tobytes(), dtype).copy()
    module["copy_raw"](x, y, x.nbytes // 4, grid=4, block=32)
    np.testing.assert_array_equal(np.frombuffer(x.tobytes(), f32), np.arange(1, 1 + x.nbytes // 4))


@pytest.mark.parametrize("place", ["host", "device", "view"])
def test_an_array_of_another_type_than_the_pointer_is_refused_by_name(device, saxpy, place):
    x = np.ones(64)
    given = {"host": x, "device": device.upload(x), "view": x.reshape(8, 8)[2:]}[place]
    y = np.ones(64, f32)
    with pytest.raises(
        LaunchError, match=r"saxpy: argument 2 'x' \(const float\*\) got an array of float64; pass .* float32"
    ):
        saxpy(f32(1), given, y, 32, grid=1, block=32)
    assert (y == 1).all()


def test_device_arrays_stay_on_the_device(device, saxpy):
    x, y = device.upload(np.ones(64, f32)), device.upload(np.zeros((8, 8), f32))
    for _ in range(3):
        saxpy(f32(2), x, y, 64, grid=1, block=64)
    assert y.shape == (8, 8) and y.dtype == f32
    np.testing.assert_array_equal(y.numpy(), np.full((8, 8), 6))


def test_a_prepared_launch_runs_as_often_as_it_is_called(device, saxpy):
    y = device.upload(np.zeros(64, f32))
    launch = saxpy.prepare(f32(1), device.upload(np.ones(64, f32)), y, 64, grid=2, block=32)
    gc.collect()  # only the launch refers to x
    for _ in range(5):
        launch()
    device.synchronize()
    np.testing.assert_array_equal(y.numpy(), 5)


def test_a_prepared_launch_takes_no_numpy_array(device, saxpy):
    with pytest.raises(LaunchError, match=r"'y' \(float\*\) is a numpy array; a prepared launch takes device.upload"):
        saxpy.prepare(f32(1), device.upload(np.ones(4, f32)), np.zeros(4, f32), 4, grid=1, block=32)


def test_an_unbound_launch_gets_its_arrays_and_numbers_when_it_is_called(device, saxpy):
    f32 = np.dtype(np.float32)
    slots = Slot(2, f32), Slot(0, f32, (100,)), Slot(1, f32, (100,))
    launch = saxpy.unbound(*slots, np.int32(100), grid=1, block=128)
    x = device.upload(np.arange(100, dtype=np.float32))
    for factor in (2.0, 3.0):
        y = device.upload(np.ones(100, np.float32))
        launch((x.address, y.address, factor), 0)
        np.testing.assert_array_equal(y.numpy(), factor * np.arange(100) + 1)


@pytest.mark.parametrize(
    ("place", "slot", "message"),
    [
        (1, Slot(0, np.dtype(np.int32), (4,)), r"saxpy: argument 2 'x' \(const float\*\) got an array of int32"),
        (0, Slot(0, np.dtype(np.float64)), r"saxpy: argument 1 'a' \(float32\) got a number of float64"),
        (3, Slot(0, np.dtype(np.int32), (4,)), r"saxpy: argument 4 'n' \(int32\) got an array of int32; pass a number"),
        (2, np.ones(4, np.float32), "a launch with open arguments takes device.upload of it"),
    ],
)
def test_an_unbound_launch_checks_its_slots(saxpy, place, slot, message):
    arguments = [np.float32(1), np.uint64(0), np.uint64(0), np.int32(1)]
    arguments[place] = slot
    with pytest.raises(LaunchError, match=message):
        saxpy.unbound(*arguments, grid=1, block=1)


def test_a_prepared_launch_takes_no_slot(saxpy):
    with pytest.raises(LaunchError, match=r"a prepared launch takes no Slot; unbound\(\) makes a launch that does"):
        saxpy.prepare(Slot(0, np.dtype(np.float32)), np.uint64(0), np.uint64(0), np.int32(1), grid=1, block=1)


def test_arguments_are_named_as_in_the_source(saxpy):
    x = np.zeros(4, f32)
    with pytest.raises(
        LaunchError, match=r"^saxpy: argument 2 'x' \(const float\*\) got a Python float; pass a numpy array"
    ):
        saxpy(f32(2), 1.5, x, 4, grid=1, block=32)
    with pytest.raises(LaunchError, match=r"^saxpy: argument 1 'a' \(float32\) got a numpy float64; pass np.float32"):
        saxpy(np.float64(2), x, x, 4, grid=1, block=32)
    with pytest.raises(LaunchError, match=r"got 3: a \(float32\), x \(const float\*\), y \(float\*\), n \(int32\)"):
        saxpy(f32(2), x, x, grid=1, block=32)


def test_structures_scalars_and_null_arrive(module):
    pair = np.zeros((), np.dtype([("a", "f8"), ("b", "i4")], align=True))
    pair["a"], pair["b"] = 0.5, 2
    out = np.zeros(1)
    module["take"](pair[()], True, np.int16(4), np.uint64(8), np.uint64(0), out, grid=1, block=1)
    assert out[0] == 0.5 + 2 + 1 + 4 + 8 + 1


def test_templates_by_their_name_expressions(module):
    for expression, dtype, count in (("scale<float, 3>", f32, 3), ("scale< double,2 >", np.float64, 2)):
        x = np.ones(4, dtype)
        module[expression](x, dtype(3), grid=1, block=1)
        assert x.tolist() == [3] * count + [1] * (4 - count)


def test_a_kernel_that_is_not_there(module):
    with pytest.raises(CompileError, match="no kernel 'saxpi'; did you mean saxpy"):
        module["saxpi"]
    assert "saxpi" not in module and 3 not in module


def test_a_module_lists_its_kernels_by_readable_names(module):
    assert len(module) == 11 and {"saxpy", "scale<float, 3>", "scale<double, 2>"} < set(module.keys())
    for name in module:
        assert not name.startswith("_Z") and name in module and module[name].name in module


def test_overloads_are_listed_with_the_types_of_their_parameters(device):
    source = "__global__ void k(float* x) { x[0] = 1; }\n__global__ void k(const float* x, int n) {}\n__global__ void one() {}"
    module = ptxkit.compile(source, device=device)
    assert sorted(module) == ["k(const float*, int)", "k(float*)", "one"]
    x = np.zeros(1, f32)
    module["k(float*)"](x, grid=1, block=1)
    assert x[0] == 1 and "k" not in module


@pytest.mark.parametrize(
    ("grid", "block"), [(3, 5), ((2, 3), (4, 2)), ((2, 2, 2), (2, 3, 4)), ((np.int64(2), 1), np.int32(3))]
)
def test_grid_and_block_have_up_to_three_extents(module, grid, block):
    y = np.zeros(4096, np.int32)
    module["indices"](y, grid=grid, block=block)
    launched = int(np.prod(grid)) * int(np.prod(block))
    assert y[:launched].tolist() == [1] * launched and not y[launched:].any()


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        (0, 32, "grid must be at least 1 everywhere, not 0"),
        (1, (32, 0), "block must be at least 1"),
        (-1, 32, "grid must be at least 1"),
        (1.0, 32, "grid must be one to three whole numbers, not 1.0"),
        ((1, 1, 1, 1), 32, "one to three whole numbers"),
        ((), 32, "one to three whole numbers"),
        (1, 2048, "block x is 2,048; the limit is 1,024"),
        (1, (64, 32), "2,048 threads a block; the limit is 1024"),
        (1, (1, 1, 65), "block z is 65; the limit is 64"),
        (2**31, 1, "grid x is 2,147,483,648"),
        ((1, 65536), 1, "grid y is 65,536; the limit is 65,535"),
    ],
)
def test_extents_that_no_kernel_takes(module, grid, block, message):
    with pytest.raises(LaunchError, match=f"nothing: .*{message}"):
        module["nothing"](grid=grid, block=block)


def test_bounds_that_the_kernel_was_compiled_with(module):
    y = np.zeros(64, np.int32)
    module["bounded"](y, grid=1, block=64)
    with pytest.raises(
        LaunchError, match=r"bounded: 65 threads a block; the kernel is bounded to 64 \(__launch_bounds__\)"
    ):
        module["bounded"](y, grid=1, block=65)


@pytest.mark.parametrize("count", [100, 10_000, 50_000])
def test_dynamic_shared_memory(module, count):
    """10,000 ints are less than 48 KB by themselves, but not with the static ones."""
    y = np.zeros(1, np.int32)
    module["dynamic"](y, count, grid=1, block=128, shared=4 * count)
    # the last of those that share an element of `more` wins; with i going up in every thread, that is known for 0 alone
    assert y[0] >= count - 1


@pytest.mark.parametrize("shared", [-1, 1.5, True, "4"])
def test_shared_must_be_a_number_of_bytes(module, shared):
    with pytest.raises(LaunchError, match="nothing: shared must be a number of bytes"):
        module["nothing"](grid=1, block=1, shared=shared)


def test_more_shared_memory_than_there_is(module):
    with pytest.raises(LaunchError, match=r"nothing: 300,000 bytes of .*shared memory"):
        module["nothing"](grid=1, block=1, shared=300_000)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_clusters(device, module, cluster):
    if device.target is not None and device.target.cc < 90:
        pytest.skip("no clusters here")
    y = np.full(16, -1, np.int32)
    module["ranks"](y, grid=16, block=32, cluster=cluster)
    assert y.tolist() == [i % cluster for i in range(16)]


def test_a_kernel_may_come_with_its_cluster(device, module):
    if device.target is not None and device.target.cc < 90:
        pytest.skip("no clusters here")
    y = np.full(4, -1, np.int32)
    module["paired"](y, grid=4, block=32)
    assert y.tolist() == [0, 1, 0, 1]
    module["paired"](y, grid=4, block=32, cluster=2)
    with pytest.raises(LaunchError, match=r"cluster \(4, 1, 1\); the kernel requires \(2, 1, 1\)"):
        module["paired"](y, grid=4, block=32, cluster=4)
    with pytest.raises(LaunchError, match=r"grid \(3, 1, 1\) is not a multiple of the cluster \(2, 1, 1\)"):
        module["paired"](y, grid=3, block=32)


def test_a_cooperative_launch(saxpy):
    y = np.ones(128, f32)
    saxpy(f32(1), y.copy(), y, 128, grid=4, block=32, cooperative=True)
    np.testing.assert_array_equal(y, 2)


def test_one_module_is_loaded_once(device):
    first = ptxkit.compile(SOURCE.replace("nothing", "none_at_all"), device=device)
    assert device.load(first.image) is first


def test_kernels_of_one_name_do_not_share_what_they_may_do(device):
    """Two tiles of a sweep are two modules with one kernel name; each needs its own permission for shared memory."""
    for size in (20_000, 30_000):
        y = np.zeros(1, np.int32)
        text = f"extern __shared__ int s[]; __global__ void k(int* y) {{ s[{size} - 1] = {size}; *y = s[{size} - 1]; }}"
        ptxkit.compile(text, device=device)["k"](y, grid=1, block=1, shared=4 * size)
        assert y[0] == size
    text = text.replace("30000", "15000")
    ptxkit.compile(text, device=device)["k"](y, grid=1, block=1, shared=60_000)
    assert y[0] == 15_000


def test_arrays(device):
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    array = device.upload(x)
    assert (array.size, array.nbytes, array.shape, array.dtype) == (12, 24, (3, 4), np.int16)
    assert array.address % 256 == 0
    np.testing.assert_array_equal(array.numpy(), x)
    array.copy_from(x + 1)
    np.testing.assert_array_equal(array.numpy(), x + 1)
    array.fill(0xCD)
    assert array.numpy().tobytes() == b"\xcd" * 24
    with pytest.raises(UsageError, match="6 bytes do not fill"):
        array.copy_from(x[0, :3])
    with pytest.raises(UsageError, match="not C-contiguous"):
        device.upload(x.T)
    with pytest.raises(UsageError, match="cannot have the shape"):
        device.empty((2, -1), "f4")
    assert device.empty((0, 3), f32).numpy().shape == (0, 3)
    assert device.upload(np.array(5.0)).numpy() == 5


def allocated(device, address):
    """Whether memory is allocated at the address. The amount of free memory is no evidence: other processes use the
    same GPU."""
    if device.kind == "emulator":
        device.empty(1, np.uint8)  # memory of collected arrays is freed at the next allocation
        found = device.machine.memory.find(address)
        return found is not None and found.base == address
    kind = ctypes.c_int()
    memory_type = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, an error for an address that is not allocated
    where = ctypes.c_uint64(address)
    return device.driver.call("cuPointerGetAttribute", ctypes.byref(kind), ctypes.c_int(memory_type), where) == 0


def test_memory_is_freed_when_nothing_refers_to_it(device):
    array = device.empty(16 << 20, np.int32)
    address = array.address
    assert allocated(device, address)
    launch = ptxkit.compile(SOURCE, device=device)["bounded"].prepare(array, grid=1, block=64)
    del array
    gc.collect()
    assert allocated(device, address)  # the launch refers to it
    del launch
    gc.collect()
    assert not allocated(device, address)


def test_more_memory_than_there_is_is_said_before_allocating(device):
    from ptxkit.errors import UnavailableError

    with pytest.raises(UnavailableError, match="bytes"):
        device.empty(1 << 50, np.uint8)


def test_a_race_names_the_kernel_as_its_source_does():
    body = "__shared__ int s[64]; s[threadIdx.x] = 1; y[threadIdx.x] = s[63 - threadIdx.x];"
    source = f"__global__ void racing(int* y) {{ {body} }}"
    emulator = ptxkit.device("emulator")
    kernel = ptxkit.compile(source, device=emulator)["racing"]
    with emulator.settings(racecheck="warps"), pytest.raises(RaceError, match="^racing: "):
        kernel(np.zeros(64, np.int32), grid=1, block=64)
