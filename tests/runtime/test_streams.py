"""Streams and graphs of the emulator: order, and launches that nothing puts in order."""

from __future__ import annotations

import gc
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import ptxkit
from ptxkit.emulator import Machine
from ptxkit.emulator.memory.allocations import Allocation
from ptxkit.emulator.memory.footprint import Footprint
from ptxkit.errors import LaunchError, RaceError, UsageError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.runtime.emulated_streams import Event, StreamOrder

SOURCE = """
#include <cuda/std/cstdint>
extern "C" __global__ void twice(const float* x, float* y, int first, int n) {
    int i = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < first + n) y[i] = 2 * x[i];
}
extern "C" __global__ void strided(float* y, int offset, int n) {
    int i = 2 * threadIdx.x + offset;
    if (i < n) y[i] = i;
}
extern "C" __global__ void count(int* c) { atomicAdd(c, 1); }
extern "C" __global__ void bulk(const float* x, float* y) {
    __shared__ alignas(16) float s[256];
    s[threadIdx.x] = 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(s));
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" :: "l"(y), "r"(at) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
extern "C" __global__ void copied(const float* x, float* y) {
    __shared__ alignas(16) float s[4];
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(s));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16; cp.async.wait_all;" :: "r"(at), "l"(x) : "memory");
    if (y) y[0] = s[0];
}
"""
N = np.int32(256)
ZERO = np.int32(0)


@pytest.fixture(scope="module")
def device():
    return EmulatedDevice(Machine(capacity=128 << 20))


@pytest.fixture(scope="module")
def kernels(device):
    return ptxkit.compile(SOURCE, device=device)


@pytest.fixture
def arrays(device):
    found = [device.upload(np.ones(256, np.float32), name) for name in "xyz"]
    device.synchronize()
    return found


@pytest.fixture
def streams(device):
    return device.stream("a"), device.stream("b")


@pytest.fixture(autouse=True)
def checked(device):
    with device.settings(racecheck="warps"):
        yield
    device.synchronize()


def test_launches_on_one_stream_keep_their_order(kernels, arrays, streams):
    x, y, z = arrays
    for source, to in ((x, y), (y, z), (z, x)):
        kernels["twice"](source, to, ZERO, N, grid=1, block=256, stream=streams[0])
    assert x.numpy().tolist() == [8] * 256


def test_a_read_without_an_event_is_reported(kernels, arrays, streams):
    x, y, z = arrays
    kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=streams[0])
    with pytest.raises(RaceError, match="read-after-write: twice on stream b reads 1,024 bytes of 'y'") as raised:
        kernels["twice"](y, z, ZERO, N, grid=1, block=256, stream=streams[1])
    (hazard,) = raised.value.hazards
    assert (hazard.earlier_stream, hazard.later_stream, hazard.start) == ("a", "b", 0)


@pytest.mark.parametrize("order", ["event", "stream", "host event", "host stream", "device", "copy"])
def test_everything_that_puts_launches_in_order_is_followed(device, kernels, arrays, streams, order):
    x, y, z = arrays
    kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=streams[0])
    {
        "event": lambda: streams[1].wait(streams[0].record()),
        "stream": lambda: streams[1].wait(streams[0]),
        "host event": lambda: streams[0].record().sync(),
        "host stream": lambda: streams[0].sync(),
        "device": device.synchronize,
        "copy": y.numpy,
    }[order]()
    kernels["twice"](y, z, ZERO, N, grid=1, block=256, stream=streams[1])


def test_an_event_holds_only_what_came_before_it(kernels, arrays, streams):
    x, y, z = arrays
    event = streams[0].record()
    kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=streams[0])
    streams[1].wait(event)
    with pytest.raises(RaceError):
        kernels["twice"](y, z, ZERO, N, grid=1, block=256, stream=streams[1])


@pytest.mark.parametrize(
    ("source", "to", "what"),
    [(0, 2, None), (2, 1, "write-after-write"), (2, 0, "write-after-read"), (1, 2, "read-after-write")],
)
def test_what_each_launch_does_decides(kernels, arrays, streams, source, to, what):
    """The first launch reads x and writes y."""
    kernels["twice"](arrays[0], arrays[1], ZERO, N, grid=1, block=256, stream=streams[0])
    if what is None:
        kernels["twice"](arrays[source], arrays[to], ZERO, N, grid=1, block=256, stream=streams[1])
    else:
        with pytest.raises(RaceError, match=what):
            kernels["twice"](arrays[source], arrays[to], ZERO, N, grid=1, block=256, stream=streams[1])


def test_halves_and_interleaved_elements_of_one_array_do_not_conflict(kernels, arrays, streams):
    x, y, _ = arrays
    half = np.int32(128)
    kernels["twice"](x, y, ZERO, half, grid=1, block=128, stream=streams[0])
    kernels["twice"](x, y, half, half, grid=1, block=128, stream=streams[1])
    y.numpy()
    kernels["strided"](y, np.int32(0), N, grid=1, block=128, stream=streams[0])
    kernels["strided"](y, np.int32(1), N, grid=1, block=128, stream=streams[1])


def test_atomics_of_two_launches_do_not_conflict_but_a_read_does(device, kernels, arrays, streams):
    c = device.upload(np.zeros(256, np.int32), "c")
    kernels["count"](c, grid=1, block=32, stream=streams[0])
    kernels["count"](c, grid=1, block=32, stream=streams[1])
    with pytest.raises(RaceError, match="read-after-write"):
        kernels["twice"](c.view(np.float32), arrays[1], ZERO, N, grid=1, block=256, stream=streams[0])
    assert c.numpy()[0] == 64


def test_asynchronous_copies_are_followed(kernels, arrays, streams):
    x, y, z = arrays
    kernels["bulk"](x, y, grid=1, block=256, stream=streams[0])
    with pytest.raises(RaceError, match="read-after-write: copied on stream b reads 16 bytes of 'y'"):
        kernels["copied"](y, z, grid=1, block=1, stream=streams[1])


def test_the_devices_own_stream_is_one_of_them(device, kernels, arrays, streams):
    x, y, z = arrays
    kernels["twice"](x, y, ZERO, N, grid=1, block=256)
    with pytest.raises(RaceError, match="which twice on stream own has written"):
        kernels["twice"](y, z, ZERO, N, grid=1, block=256, stream=streams[1])
    device.synchronize()
    z.fill(0)
    with pytest.raises(RaceError, match="which a fill on stream own has written"):
        kernels["twice"](z, y, ZERO, N, grid=1, block=256, stream=streams[1])


def test_without_the_race_check_nothing_is_compared(device, kernels, arrays, streams):
    x, y, z = arrays
    with device.settings(racecheck=False):
        kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=streams[0])
        kernels["twice"](y, z, ZERO, N, grid=1, block=256, stream=streams[1])


def test_streams_and_events_of_another_device_are_refused(device, kernels, arrays, streams):
    other = EmulatedDevice(Machine(capacity=128 << 20)).stream()
    for wrong in (0, other, "a"):
        with pytest.raises(LaunchError, match=r"twice: stream= is a stream of this device"):
            kernels["twice"](*arrays[:2], ZERO, N, grid=1, block=256, stream=wrong)
    for wrong in (other, other.record(), None):
        with pytest.raises(UsageError, match="of its own device"):
            streams[0].wait(wrong)


@given(
    st.lists(
        st.tuples(st.sampled_from(["launch", "wait", "host", "all"]), st.integers(0, 2), st.integers(0, 2)), max_size=12
    )
)
def test_races_are_those_of_the_happens_before_graph(steps):
    """Every launch writes the same byte; two race unless a path of stream order, events and host waits leads to the later."""
    order = StreamOrder()
    made = [order.make() for _ in range(3)]
    byte = Allocation(1 << 47, 16, "a")
    before: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}  # of each stream: launches that come before its next
    host: set[int] = set()
    for number, (kind, one, other) in enumerate(steps):
        if kind == "wait":
            made[one].wait(made[other].record())
            before[one] |= before[other] | host
        elif kind == "host":
            made[one].sync()
            host |= before[one]
        elif kind == "all":
            order.synchronized()
            host |= set().union(*before.values())
        else:
            earlier = {n for n, (k, *_) in enumerate(steps[:number]) if k == "launch"}
            footprint = Footprint()
            footprint.span(byte, 0, 1, "write")
            try:
                order.launched(made[one], "k", footprint)
                raced = False
            except RaceError:
                raced = True
            assert raced == bool(earlier - before[one] - host)
            before[one] |= host | {number}


def test_a_graph_launches_what_was_captured_in_order(device, kernels, arrays):
    x, y, _ = arrays
    there = kernels["twice"].prepare(x, y, ZERO, N, grid=1, block=256)
    back = kernels["twice"].prepare(y, x, ZERO, N, grid=1, block=256)

    def both():
        there()
        back()

    graph = device.graph(both)
    assert x.numpy()[0] == 1  # nothing was executed
    graph()
    graph()
    assert x.numpy()[0] == 16


def test_a_graph_that_is_called_during_a_capture_adds_its_launches(device, kernels, arrays):
    x, y, z = arrays
    first = device.graph(kernels["twice"].prepare(x, y, ZERO, N, grid=1, block=256))
    second = kernels["twice"].prepare(y, z, ZERO, N, grid=1, block=256)
    graph = device.graph(lambda: (first(), second()))
    assert y.numpy()[0] == 1  # nothing was executed
    graph()
    assert (y.numpy()[0], z.numpy()[0]) == (2, 4)


def test_the_host_waits_for_a_measurement(device, kernels, arrays, streams):
    x, y, z = arrays
    a, b = streams
    device.measure(kernels["twice"].prepare(x, y, ZERO, N, grid=1, block=256, stream=a), 1)
    kernels["twice"](y, z, ZERO, N, grid=1, block=256, stream=b)  # no race


def test_launches_that_events_put_in_order_are_not_kept(device, kernels, arrays, streams):
    x, y, z = arrays
    a, b = streams
    for _ in range(4):
        kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=a)
        b.wait(a)
        kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=b)
        a.wait(b)
    assert len(a.order._launched) == 1
    with pytest.raises(RaceError, match="has written"):
        kernels["twice"](y, z, ZERO, N, grid=1, block=256)  # the device's own stream has waited for nothing


@pytest.mark.parametrize(
    ("kind", "later", "left"),
    [
        ("write", "write", 0),
        ("write", "read", 4),
        ("write", "atomic", 4),
        ("read", "write", 0),
        ("read", "atomic", 4),
        ("atomic", "atomic", 0),
        ("atomic", "read", 4),
    ],
)
def test_a_footprint_forgets_what_a_later_launch_conflicts_with_as_well(kind, later, left):
    array = Machine(capacity=1 << 20).memory.allocate(4, "x")
    before, after = Footprint(), Footprint()
    before.span(array, 0, 4, kind)
    after.span(array, 0, 4, later)
    before.forget(after)
    assert sum(int(marks.sum()) for marks in before.marks.values()) == left


@pytest.mark.parametrize(
    ("inside", "complaint"),
    [
        (lambda device, launch, stream: device.synchronize(), "a graph holds launches only"),
        (lambda device, launch, stream: stream.sync(), "a graph holds launches only"),
        (lambda device, launch, stream: stream.record(), "a graph holds launches only"),
        (lambda device, launch, stream: stream.wait(stream), "a graph holds launches only"),
        (lambda device, launch, stream: Event(stream.order, {}).sync(), "a graph holds launches only"),
        (lambda device, launch, stream: stream.wait(Event(stream.order, {})), "a graph holds launches only"),
        (lambda device, launch, stream: device.measure(launch, 1), "a graph holds launches only"),
        (lambda device, launch, stream: launch(stream=stream), "captured on the device's own stream"),
        (lambda device, launch, stream: device.graph(launch), "cannot be captured"),
        (lambda device, launch, stream: None, "nothing was launched"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(device, kernels, arrays, streams, inside, complaint):
    def launch(stream=None):
        kernels["twice"].prepare(*arrays[:2], ZERO, N, grid=1, block=256, stream=stream)()

    with pytest.raises(LaunchError, match=complaint):
        device.graph(lambda: inside(device, launch, streams[0]))
    device.synchronize()  # the capture is over


def test_what_launches_touched_in_freed_arrays_is_forgotten(device, kernels):
    """The marks have the size of the arrays, whose memory would never come back."""
    first, x = device.stream(), device.upload(np.zeros(256, np.float32))
    with device.settings(racecheck=True):
        gone, kept = device.empty(256, np.float32, "gone"), device.empty(256, np.float32, "kept")
        for y in (gone, kept):
            kernels["twice"](x, y, ZERO, N, grid=1, block=256, stream=first)
        memory = weakref.ref(device.machine.memory.owner(gone.address).data)
        del y, gone
        gc.collect()
        assert memory() is None
        with pytest.raises(RaceError, match="'kept'"):
            kernels["twice"](x, kept, ZERO, N, grid=1, block=256, stream=device.stream())
    device.synchronize()
