"""Messages for driver errors, with a scripted driver instead of a GPU."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver")
from cuda.bindings import driver as bindings

from ptxkit.errors import FaultError, LaunchError, MemoryFault, TrapError, UnavailableError
from ptxkit.isa.outline import outline
from ptxkit.isa.parser import parse
from ptxkit.runtime.arguments import Slot, bind
from ptxkit.runtime.geometry import Geometry
from ptxkit.runtime.gpu import context, driver
from ptxkit.runtime.gpu.context import own_target
from ptxkit.runtime.gpu.device import GpuDevice
from ptxkit.runtime.gpu.kernels import _config, stream_pointer
from ptxkit.runtime.parameters import parameters_of
from ptxkit.targets.gpus import reference_facts

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n"
FUNCTION = parse(PTX).functions["k"]
FACTS = replace(reference_facts("sm_90a"), name="NVIDIA Test")
KERNEL = SimpleNamespace(
    name="k",
    readable="k",
    handle=ctypes.c_void_p(77),
    function=FUNCTION,
    parameters=(),
    resources=SimpleNamespace(shared_bytes=0, registers=16, barriers=1),
    device=FACTS,
)


@pytest.fixture(autouse=True)
def lost(monkeypatch):
    """The messages with which contexts were lost; the process of the tests is not marked as one without a GPU."""
    messages = []
    monkeypatch.setattr(context, "lose_context", messages.append)
    return messages


class ScriptedDriver:
    """Returns the next code of ``script[function]``, or success."""

    def __init__(self):
        self.script = {}
        self.calls = []
        self.library = self
        self.clusters = 4  # that there is room for

    def __getattr__(self, name):
        return lambda *arguments: self.call(name, *arguments)

    def call(self, name, *arguments, wait=False):
        self.calls.append(name)
        if name == "cuMemGetInfo_v2":
            arguments[0]._obj.value = 1 << 30
        if name == "cuOccupancyMaxActiveClusters":
            arguments[0]._obj.value = self.clusters
        codes = self.script.get(name)
        return codes.pop(0) if codes else 0

    def message(self, code):
        return f"CUDA_ERROR_{code}"


@pytest.fixture
def gpu():
    device = object.__new__(GpuDevice)
    device.name, device.index, device.lost, device.driver = "NVIDIA Test", 0, None, ScriptedDriver()
    device._context, device.stream_handle = ctypes.c_void_p(1), 2
    device._recent, device._modules, device._handles, device._shared_limits, device._clusters = {}, {}, {}, {}, set()
    device.retired, device._plain, device._not_cooperative = [], True, set()
    device.core = SimpleNamespace(properties=SimpleNamespace(max_shared_memory_per_block_optin=232_448))
    return device


def prepared(gpu, name="k", **options):
    kernel = SimpleNamespace(**{**vars(KERNEL), "readable": name})
    geometry = Geometry(
        name, FUNCTION, options.get("cluster") or 1, 32, options.get("shared", 0), options.get("cluster"), False, FACTS
    )
    return gpu.prepare(kernel, bind(name, (), (), gpu), geometry, None)


@pytest.mark.parametrize(
    ("code", "kind"), [(700, MemoryFault), (716, MemoryFault), (719, TrapError), (710, TrapError), (702, FaultError)]
)
def test_a_fault_names_the_kernel_and_the_way_to_find_the_line(gpu, code, kind):
    prepared(gpu)()
    gpu.driver.script["cuCtxSynchronize"] = [code]
    with pytest.raises(kind) as caught:
        gpu.synchronize()
    assert str(caught.value) == (
        f"k failed on NVIDIA Test: CUDA_ERROR_{code}; run it with --device emulator, which finds the line"
    )


def test_after_a_fault_everything_says_that_the_context_is_lost(gpu):
    launch = prepared(gpu)
    launch()
    gpu.driver.script["cuCtxSynchronize"] = [700]
    with pytest.raises(FaultError):
        gpu.synchronize()
    gpu.driver.script["cuLaunchKernelEx"] = [700]
    uses = [
        launch, gpu.synchronize, lambda: prepared(gpu), lambda: gpu.empty(4, np.float32), lambda: gpu.upload(np.zeros(4)),
        lambda: gpu.memory_bytes, lambda: gpu.fill(0, 1, 0), lambda: gpu.load(SimpleNamespace(ptx="", key="")),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(FaultError, match="context was lost when k failed on NVIDIA Test.*; start a new process"):
            use()


def test_arrays_are_let_go_of_quietly_after_a_fault(gpu):
    array = gpu.empty(4, np.float32)
    gpu.lost = "k failed"
    gpu.driver.calls.clear()
    array.free()
    assert gpu.driver.calls == []


def test_of_several_kernels_none_is_blamed_alone(gpu):
    for name in ("a", "b", "b"):
        prepared(gpu, name)()
    gpu.driver.script["cuCtxSynchronize"] = [700]
    with pytest.raises(FaultError, match="^one of a, b failed"):
        gpu.synchronize()


def test_kernels_that_ended_well_are_not_blamed(gpu):
    prepared(gpu, "well")()
    gpu.synchronize()
    prepared(gpu, "ill")()
    gpu.driver.script["cuCtxSynchronize"] = [719]
    with pytest.raises(FaultError, match="^ill failed"):
        gpu.synchronize()


def test_an_unbound_launch_stores_its_values_where_the_driver_reads_them(gpu):
    """Addresses side by side with values side by side are one assignment; the float's value comes first."""
    ptx = PTX.replace("k()", "k(.param .u64 .ptr.global p, .param .u64 .ptr.global q, .param .f32 f)")
    function = parse(ptx).functions["k"]
    parameters = parameters_of(function, "", {}, ptx)
    kernel = SimpleNamespace(**{**vars(KERNEL), "function": function, "parameters": parameters})
    array = np.dtype(np.float32), (4,)
    slots = Slot(1, *array), Slot(2, *array), Slot(0, np.dtype(np.float32))
    seen, places = [], set()

    def launch(config, handle, pointers, extra):
        p, q, f = pointers._obj
        values = [ctypes.c_uint64.from_address(at).value for at in (p, q)]
        seen.append((config._obj.stream, *values, ctypes.c_float.from_address(f).value))
        places.add(p)
        return 0

    gpu.driver.cuLaunchKernelEx = launch
    bound = bind("k", parameters, slots, gpu)
    unbound = gpu.unbound(kernel, bound, Geometry("k", function, 1, 32, 0, None, False, FACTS))
    unbound((0.5, 0x1000, 0x1800), 7)
    thread = threading.Thread(target=unbound, args=((1.5, 0x2000, 0x2800), 8))
    thread.start()
    thread.join()
    unbound((2.5, 0x3000, 0x3800), 0)
    assert seen == [(7, 0x1000, 0x1800, 0.5), (8, 0x2000, 0x2800, 1.5), (None, 0x3000, 0x3800, 2.5)]
    assert len(places) == 2  # another thread may run between the stores and the call, so that each has its own memory


def test_an_unbound_launch_that_fails_says_so(gpu):
    unbound = gpu.unbound(KERNEL, bind("k", (), (), gpu), Geometry("k", FUNCTION, 1, 32, 0, None, False, FACTS))
    gpu.driver.script["cuLaunchKernelEx"] = [700]
    with pytest.raises(MemoryFault, match="^k failed"):
        unbound((), 0)


def test_an_earlier_kernels_fault_at_a_launch_is_a_fault(gpu):
    prepared(gpu, "ill")()
    gpu.driver.script["cuLaunchKernelEx"] = [700]
    with pytest.raises(MemoryFault, match="^one of ill, next failed"):
        prepared(gpu, "next")()


@pytest.mark.parametrize(("code", "clusters"), [(912, 4), (0, 0)])
def test_a_cluster_without_room_is_refused_before_its_launch(gpu, code, clusters):
    gpu.driver.script["cuOccupancyMaxActiveClusters"], gpu.driver.clusters = [code], clusters
    with pytest.raises(
        LaunchError, match="^k: NVIDIA Test has no room for a cluster of 16 CTAs with 32 threads and 4,096 bytes"
    ):
        prepared(gpu, cluster=16, shared=4096)
    assert "cuLaunchKernelEx" not in gpu.driver.calls


def test_room_for_a_cluster_is_looked_for_once(gpu):
    for cluster in (2, 2, 4, None, 1):
        prepared(gpu, cluster=cluster)()
    assert gpu.driver.calls.count("cuOccupancyMaxActiveClusters") == 2


def test_a_launch_that_the_driver_refuses_loses_nothing(gpu):
    gpu.driver.script["cuLaunchKernelEx"] = [701]
    with pytest.raises(LaunchError, match=r"k: CUDA_ERROR_701 \(grid \(1, 1, 1\), block \(32, 1, 1\)"):
        prepared(gpu)()
    assert gpu.lost is None
    prepared(gpu)()


@pytest.mark.parametrize("code", [driver.INVALID_CONTEXT, driver.INVALID_HANDLE])
def test_another_threads_first_launch_enters_the_context(gpu, code):
    launch = prepared(gpu)
    gpu.driver.script["cuLaunchKernelEx"] = [code]
    gpu.driver.calls.clear()
    launch()
    assert gpu.driver.calls == ["cuLaunchKernelEx", "cuCtxSetCurrent", "cuLaunchKernelEx"]


def test_other_driver_errors_keep_the_context_usable(gpu):
    gpu.driver.script["cuMemcpyHtoD_v2"] = [1]
    with pytest.raises(FaultError, match="^NVIDIA Test: CUDA_ERROR_1$"):
        gpu.upload(np.zeros(4))
    gpu.driver.script["cuMemAlloc_v2"] = [driver.OUT_OF_MEMORY]
    with pytest.raises(UnavailableError, match="out of memory; use smaller sizes"):
        gpu.empty(4, np.float32)
    assert gpu.lost is None


def test_an_allocation_beyond_free_memory_is_refused_before_the_driver_call(gpu):
    with pytest.raises(UnavailableError, match="'x' of 8,000,000,000 bytes does not fit: NVIDIA Test has"):
        gpu.empty(1_000_000_000, np.float64, "x")
    assert "cuMemAlloc_v2" not in gpu.driver.calls


def test_shared_memory_beyond_the_default_is_asked_for_once_and_counts_the_static(gpu):
    KERNEL.resources.shared_bytes = 0
    prepared(gpu, shared=48 << 10)
    assert "cuFuncSetAttribute" not in gpu.driver.calls
    for _ in range(2):
        prepared(gpu, shared=100_000)
    assert gpu.driver.calls.count("cuFuncSetAttribute") == 1
    KERNEL.resources.shared_bytes = 20_000
    gpu._shared_limits.clear()
    prepared(gpu, shared=40_000)
    assert gpu.driver.calls.count("cuFuncSetAttribute") == 2
    KERNEL.resources.shared_bytes = 0
    with pytest.raises(LaunchError, match="k: 300,000 bytes of dynamic .* NVIDIA Test gives a CTA 232,448"):
        prepared(gpu, shared=300_000)


def test_an_unloaded_image_is_loaded_anew(gpu):
    image = SimpleNamespace(
        key="one",
        cubin=b"cubin",
        source_name="k.ptx",
        ptx=PTX,
        target="sm_90a",
        sources=(),
        names={},
        macros={},
        expanded="",
    )
    first = gpu.load(image)
    assert gpu.load(image) is first
    gpu._shared_limits[77] = 100_000  # the driver may give the handle away again
    gpu.unload(image)
    gpu.unload(image)
    assert gpu.driver.calls.count("cuModuleUnload") == 1
    assert gpu.driver.calls.index("cuCtxSynchronize") < gpu.driver.calls.index("cuModuleUnload")
    assert not gpu._shared_limits
    assert gpu.load(image) is not first
    gpu.lost = "a kernel failed"
    gpu.unload(image)
    assert gpu.driver.calls.count("cuModuleUnload") == 1


def test_targets_of_gpus():
    assert own_target((9, 0)).name == "sm_90a"
    assert own_target((8, 6)).name == "sm_86"
    with pytest.raises(UnavailableError, match="does not know sm_990 yet"):
        own_target((99, 0))


def test_streams():
    method, tuple_ = SimpleNamespace(__cuda_stream__=lambda: (0, 5)), SimpleNamespace(__cuda_stream__=(0, 6))
    assert [stream_pointer(s) for s in (4, method, tuple_, SimpleNamespace(cuda_stream=7))] == [4, 5, 6, 7]
    for wrong in (None, True, "0", 1.0):
        with pytest.raises(LaunchError, match="__cuda_stream__"):
            stream_pointer(wrong)


def test_the_launch_structures_are_the_drivers():
    """The same bytes as the structures of cuda.bindings, which are generated from the header."""
    config = driver.launch_config((1, 2, 3), (4, 5, 6), 7, 8, (2, 1, 1), cooperative=True)
    cluster, cooperative = bindings.CUlaunchAttribute(), bindings.CUlaunchAttribute()
    cluster.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = bindings.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 2, 1, 1
    cluster.value = value
    cooperative.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    value = bindings.CUlaunchAttributeValue()
    value.cooperative = 1
    cooperative.value = value
    for ours, theirs in zip(config.attributes[:2], (cluster, cooperative)):
        size = ctypes.sizeof(driver.LaunchAttribute)
        assert bytes(ours)[:4] == ctypes.string_at(theirs.getPtr(), size)[:4]
        assert bytes(ours)[8:20] == ctypes.string_at(theirs.getPtr(), size)[8:20]
    whole = bindings.CUlaunchConfig()
    whole.gridDimX, whole.gridDimY, whole.gridDimZ = 1, 2, 3
    whole.blockDimX, whole.blockDimY, whole.blockDimZ = 4, 5, 6
    whole.sharedMemBytes, whole.hStream, whole.numAttrs = 7, bindings.CUstream(8), 2
    ours, theirs = bytes(config), ctypes.string_at(whole.getPtr(), ctypes.sizeof(config))
    pointer = slice(driver.LaunchConfig.attributes.offset, driver.LaunchConfig.count.offset)
    assert ours[: pointer.start] == theirs[: pointer.start]
    assert ours[pointer.stop : pointer.stop + 4] == theirs[pointer.stop : pointer.stop + 4]


def test_a_kernel_that_waits_for_the_grid_before_is_launched_early():
    number = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    config = driver.launch_config((1, 1, 1), (32, 1, 1), 0, 0, None, cooperative=False, programmatic=True)
    assert config.count == 1
    assert (config.attributes[0].id, config.attributes[0].value[0]) == (int(number), 1)
    assert driver.launch_config((1, 1, 1), (32, 1, 1), 0, 0, None, cooperative=False).count == 0
    text = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { griddepcontrol.wait; ret; }\n"
    geometry = SimpleNamespace(grid=(1, 1, 1), block=(32, 1, 1), shared=0, cluster=None, cooperative=False)
    for read in (parse, outline):
        assert _config(SimpleNamespace(function=read(text).functions["k"]), geometry, 0).count == 1
        assert _config(SimpleNamespace(function=read(PTX).functions["k"]), geometry, 0).count == 0


def test_a_prepared_launch_becomes_a_graph_at_its_first_call(gpu, monkeypatch):
    made = []

    def capture(device, stream, queue, launch_on):
        queue()
        made.append((stream, launch_on))
        return lambda: device.driver.call("cuGraphLaunch")

    monkeypatch.setattr("ptxkit.runtime.gpu.kernels.capture", capture)
    gpu._plain, gpu._side_stream = False, 99
    launch = prepared(gpu)
    assert made == []
    gpu.driver.calls.clear()
    for _ in range(3):
        launch()
    assert made == [(99, 2)]
    assert [c for c in gpu.driver.calls if "Launch" in c] == ["cuLaunchKernelEx", *["cuGraphLaunch"] * 3]
    with gpu.plain_launches():
        launch()
    assert gpu.driver.calls[-1] == "cuLaunchKernelEx"


def test_what_the_driver_makes_no_graph_of_is_launched_plainly(gpu, monkeypatch):
    def refuse(*_):
        raise FaultError("no graph")

    monkeypatch.setattr("ptxkit.runtime.gpu.kernels.capture", refuse)
    gpu._plain, gpu._side_stream = False, 99
    launch = prepared(gpu)
    gpu.driver.calls.clear()
    launch()
    launch()
    assert gpu.driver.calls[-2:] == ["cuLaunchKernelEx"] * 2


def test_graphs_are_destroyed_when_nothing_runs(gpu):
    gone = []
    gpu.retired += [lambda: gone.append(1), lambda: gone.append(2)]
    gpu.synchronize()
    assert sorted(gone) == [1, 2] and gpu.retired == []


LAYOUT = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 a, .param .u32 n) { ret; }\n"


@pytest.mark.parametrize(
    ("known", "refused"), [([(0, 8), (8, 4)], None), ([(0, 8), (16, 4)], r"\(16, 4\)"), ([(0, 8)], r"as \[\(0, 8\)\],")]
)
def test_parameters_are_compared_and_none_is_asked_for_that_the_signature_has_not(gpu, known, refused):
    asked = []

    def info(name, function, index, offset, size):
        asked.append(index.value)
        if index.value >= len(known):
            return driver.INVALID_VALUE
        offset._obj.value, size._obj.value = known[index.value]
        return 0

    gpu.driver.call = info
    parameters = parameters_of(parse(LAYOUT).functions["k"], "")
    if refused:
        with pytest.raises(LaunchError, match=refused):
            gpu._compare_layout("k", None, parameters)
    else:
        gpu._compare_layout("k", None, parameters)
    assert asked == [0, 1]
