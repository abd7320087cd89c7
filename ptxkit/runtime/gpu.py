"""A GPU through the CUDA driver API: cuda.core for the device, streams, events and buffers, the driver itself for launches.

Only cubins are loaded: the driver may be older than the NVRTC that made the PTX.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.compiler.image import FunctionResources
from ptxkit.compiler.targets import TARGETS, Target
from ptxkit.errors import CompileError, FaultError, LaunchError, UnavailableError
from ptxkit.isa.parser import parse
from ptxkit.runtime.arguments import Bound, buffer_size
from ptxkit.runtime.buffers import DeviceArray, contiguous
from ptxkit.runtime.device import Measurement
from ptxkit.runtime.driver import (
    FUNCTION_MAX_DYNAMIC_SHARED,
    FUNCTION_NON_PORTABLE_CLUSTER,
    INVALID_VALUE,
    Driver,
    launch_config,
)
from ptxkit.runtime.kernel import Geometry, Kernel, LoadedModule
from ptxkit.runtime.parameters import Parameter, parameters_of

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image

FLUSH_SOURCE = """
// Reads `words` 16-byte words, so that nothing else stays in L2. Reading leaves clean lines; memset would leave dirty ones,
// whose write-back falls into the time of the next kernel.
extern "C" __global__ void flush_l2(const uint4* data, unsigned long long words, unsigned* never) {
    unsigned found = 0;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
        uint4 v = __ldcg(data + i);
        found |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (found == 0x9e3779b9u) *never = found;
}
"""
FLUSH_FACTOR = 4  # times the L2's size: two are needed, more forgive a hashed or partitioned L2
PORTABLE_CLUSTER = 8


class GpuDevice:
    """One GPU, on a stream of its own.

    Attributes:
        target: its architecture with the ``a`` suffix where there is one.
        properties: cuda.core's.
    """

    kind = "gpu"

    def __init__(self, index: int = 0) -> None:
        from cuda.core import Device

        devices = Device.get_all_devices() if hasattr(Device, "get_all_devices") else [Device(0)]
        if not 0 <= index < len(devices):
            raise UnavailableError(f"there is no GPU {index}; there are {len(devices)}, numbered from 0")
        self.core = Device(index)
        self.core.set_current()
        self.driver = Driver()
        self.name: str = self.core.name
        self.target: Target | None = own_target(self.core.compute_capability)
        self.stream = self.core.create_stream()
        self.stream_handle = int(self.stream.handle)
        self.lost: str | None = None
        self._launched = ""
        self._modules: dict[str, LoadedModule] = {}
        self._buffers: dict[int, Any] = {}
        self._flush: tuple[Any, ...] | None = None
        self._limits: dict[str, int] = {}

    @property
    def properties(self) -> Any:
        """cuda.core's device properties."""
        return self.core.properties

    @property
    def architecture(self) -> str:
        """Name of the target."""
        assert self.target is not None
        return self.target.name

    @property
    def memory_bytes(self) -> int:
        """Free device memory, less a little that the driver needs."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)))
        return max(0, free.value - (256 << 20))

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""
        return int(self.properties.l2_cache_size)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _check(self, code: int) -> None:
        if code:
            self._fail(code)

    def _fail(self, code: int) -> None:
        """Raise for a driver error. One that a kernel caused ends the context: all that follows fails with the same story."""
        self._usable()
        text = self.driver.message(int(code))
        if self.lost is None:
            culprit = f"{self._launched} failed" if self._launched else "a kernel failed"
            self.lost = f"{culprit} on {self.name}: {text}"
        raise FaultError(f"{self.lost}; run it with --device emulator, which finds the line")

    def _usable(self) -> None:
        if self.lost is not None:
            raise FaultError(f"the GPU's context was lost when {self.lost}; start a new process")

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, name: str) -> int:
        """Address of new memory; the contents are whatever was there."""
        self._usable()
        if nbytes > self.memory_bytes:
            what = f"'{name}'" if name else "an array"
            raise UnavailableError(
                f"{what} of {nbytes:,} bytes does not fit: {self.name} has {self.memory_bytes:,} bytes free; use smaller sizes"
            )
        address = ctypes.c_uint64()
        code = self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        if code == 2:  # CUDA_ERROR_OUT_OF_MEMORY, although it seemed to fit: fragmented, or another process
            raise UnavailableError(f"{self.name} is out of memory for {nbytes:,} bytes; use smaller sizes")
        self._check(code)
        return address.value

    def free(self, address: int) -> None:
        """Give memory back; after a fault the context's memory is gone anyway."""
        if self.lost is None:
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(address), wait=True)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to the device, behind what was launched before."""
        self._usable()
        self.synchronize()
        self._check(
            self.driver.call(
                "cuMemcpyHtoD_v2",
                ctypes.c_uint64(address),
                ctypes.c_void_p(data.ctypes.data),
                ctypes.c_size_t(data.nbytes),
                wait=True,
            )
        )

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy from the device, behind what was launched before."""
        self.synchronize()
        self._check(
            self.driver.call(
                "cuMemcpyDtoH_v2",
                ctypes.c_void_p(out.ctypes.data),
                ctypes.c_uint64(address),
                ctypes.c_size_t(out.nbytes),
                wait=True,
            )
        )

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set every byte, on the stream."""
        self._usable()
        self._check(
            self.driver.call(
                "cuMemsetD8Async",
                ctypes.c_uint64(address),
                ctypes.c_ubyte(value),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream_handle),
            )
        )

    def upload(self, array: Any, name: str = "") -> DeviceArray:
        """A copy of a C-contiguous array."""
        data = contiguous(array, name or "the array")
        out = DeviceArray(self, data.shape, data.dtype, name)
        out.copy_from(data)
        return out

    def empty(self, shape: int | tuple[int, ...], dtype: Any, name: str = "") -> DeviceArray:
        """An uninitialised array."""
        return DeviceArray(self, shape, dtype, name)

    def foreign(self, value: Any, what: str) -> int | None:
        """Address of an object in device memory, by DLPack or ``__cuda_array_interface__``.

        Raises:
            LaunchError: it is in host memory, or not C-contiguous.
        """
        if not hasattr(value, "__cuda_array_interface__") and not hasattr(value, "__dlpack__"):
            return None
        from cuda.core.utils import StridedMemoryView

        try:
            view = StridedMemoryView.from_any_interface(value, stream_ptr=self.stream_handle)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            raise LaunchError(f"{what}: {error}") from None
        if not view.is_device_accessible:
            raise LaunchError(f"{what} is in host memory; move it to the GPU or pass a numpy array")
        if view.strides is not None and not _is_contiguous(view.shape, view.strides):
            raise LaunchError(
                f"{what} is not C-contiguous (shape {view.shape}, strides {view.strides}); make it contiguous"
            )
        return int(view.ptr)

    # -- kernels -----------------------------------------------------------------------------------------------------

    def load(self, image: Image) -> LoadedModule:
        """The image's kernels, from its cubin.

        Raises:
            CompileError: the image was not assembled, or not for this GPU.
        """
        self._usable()
        key = image.key or str(id(image))
        if key in self._modules:
            return self._modules[key]
        if image.cubin is None:
            raise CompileError(
                f"{image.source_name}: this image holds no machine code; compile it for {self.architecture}"
            )
        handle = ctypes.c_void_p()
        code = self.driver.call("cuModuleLoadData", ctypes.byref(handle), image.cubin)
        if code:
            raise CompileError(
                f"{image.source_name}: the cubin for {image.target} does not load on {self.name} ({self.architecture}): "
                f"{self.driver.message(code)}"
            )
        module = parse(image.ptx, image.source_name or "<ptx>")

        def make(name: str) -> Kernel:
            function = ctypes.c_void_p()
            self._check(self.driver.call("cuModuleGetFunction", ctypes.byref(function), handle, name.encode()))
            parameters = parameters_of(module.functions[name])
            self._compare_layout(name, function, parameters)
            resources = image.functions.get(name, FunctionResources())
            return Kernel(self, name, image.readable(name), module.functions[name], parameters, resources, function)

        self._modules[key] = LoadedModule(image, make, tuple(module.entries))
        return self._modules[key]

    def _compare_layout(self, name: str, function: Any, parameters: tuple[Parameter, ...]) -> None:
        """The driver's offsets and sizes must be the signature's."""
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        theirs: list[tuple[int, int]] = []
        while True:
            code = self.driver.call(
                "cuFuncGetParamInfo", function, ctypes.c_size_t(len(theirs)), ctypes.byref(offset), ctypes.byref(size)
            )
            if code == INVALID_VALUE:
                break
            self._check(code)
            theirs.append((offset.value, size.value))
        ours = [(p.offset, p.size) for p in parameters]
        if ours != theirs:
            raise LaunchError(f"{name}: the driver lays the parameters out as {theirs}, the signature says {ours}")

    def prepare(self, kernel: Kernel, bound: Bound, geometry: Geometry, stream: Any) -> Callable[[], None]:
        """A callable that launches once on the stream; its host cost is one driver call."""
        self._usable()
        where = self.stream_handle if stream is None else stream_pointer(stream)
        self._allow(kernel, geometry)
        config = launch_config(
            geometry.grid, geometry.block, geometry.shared, where, geometry.cluster, geometry.cooperative
        )
        buffer = (ctypes.c_char * max(1, buffer_size(kernel.parameters))).from_buffer_copy(bytes(bound.buffer) or b"\0")
        base = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * max(1, len(kernel.parameters)))(*(base + p.offset for p in kernel.parameters))
        call = partial(self.driver.library.cuLaunchKernelEx, ctypes.byref(config), kernel.handle, pointers, None)
        keep = (buffer, pointers, config, bound.keep)
        name = kernel.readable

        def fire(call: Any = call, device: GpuDevice = self, keep: Any = keep) -> None:
            device._launched = name
            code = call()
            if code:
                device._refused(name, code, geometry)

        return fire

    def _allow(self, kernel: Kernel, geometry: Geometry) -> None:
        limit = int(self.properties.max_shared_memory_per_block_optin)
        static = kernel.resources.shared_bytes
        if geometry.shared + static > limit:
            raise LaunchError(
                f"{kernel.readable}: {geometry.shared:,} bytes of dynamic and {static:,} of static shared memory; "
                f"{self.name} gives a CTA {limit:,}"
            )
        done = self._limits.get(kernel.name, 48 << 10)
        if geometry.shared > done:
            self._check(
                self.driver.call("cuFuncSetAttribute", kernel.handle, FUNCTION_MAX_DYNAMIC_SHARED, geometry.shared)
            )
            self._limits[kernel.name] = geometry.shared
        if geometry.cluster is not None and int(np.prod(geometry.cluster)) > PORTABLE_CLUSTER:
            self._check(self.driver.call("cuFuncSetAttribute", kernel.handle, FUNCTION_NON_PORTABLE_CLUSTER, 1))

    def _refused(self, name: str, code: int, geometry: Geometry) -> None:
        """A launch that the driver did not take. Errors of earlier kernels surface here too."""
        sticky = self.driver.call("cuStreamQuery", ctypes.c_void_p(self.stream_handle))
        if sticky not in (0, 600):  # 600: CUDA_ERROR_NOT_READY
            self._fail(sticky)
        raise LaunchError(
            f"{name}: {self.driver.message(code)} (grid {geometry.grid}, block {geometry.block}, {geometry.shared:,} bytes of "
            f"shared memory, cluster {geometry.cluster}{', cooperative' if geometry.cooperative else ''})"
        )

    def synchronize(self) -> None:
        """Wait for the stream.

        Raises:
            FaultError: a kernel failed; the process can use this GPU no more.
        """
        self._usable()
        self._check(self.driver.call("cuStreamSynchronize", ctypes.c_void_p(self.stream_handle), wait=True))

    # -- time --------------------------------------------------------------------------------------------------------

    def measure(self, launch: Callable[[], None], samples: int) -> Measurement:
        """Microseconds of device time of each of ``samples`` calls, none of whose data is in the L2 cache.

        The flush before each sample also keeps the stream busy while the host queues the launches, so gaps between them are the
        device's own.
        """
        flush = self._flusher()
        pairs = []
        for _ in range(samples):
            flush()
            start = self._event()
            launch()
            pairs.append((start, self._event()))
        self.synchronize()
        return Measurement(times_us=tuple(self._elapsed_us(a, b) for a, b in pairs))

    def measure_copy(self, nbytes: int, samples: int) -> list[float]:
        """Microseconds of device-to-device copies, after two that are not counted."""
        source, destination = (
            self.empty(nbytes, np.uint8, "copy source"),
            self.empty(nbytes, np.uint8, "copy destination"),
        )
        source.fill(1)

        def copy() -> None:
            self._check(
                self.driver.call(
                    "cuMemcpyDtoDAsync_v2",
                    ctypes.c_uint64(destination.address),
                    ctypes.c_uint64(source.address),
                    ctypes.c_size_t(nbytes),
                    ctypes.c_void_p(self.stream_handle),
                )
            )

        self.measure(copy, 2)
        return list(self.measure(copy, samples).times_us)

    def graph(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What ``launches`` queues on this device's stream, as a CUDA graph: a callable that runs it once."""
        from cuda.bindings import driver as cu

        stream = cu.CUstream(self.stream_handle)
        _ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            launches()
        finally:
            graph = _ok(cu.cuStreamEndCapture(stream))
        executable = _ok(cu.cuGraphInstantiate(graph, 0))
        handle = ctypes.c_void_p(int(executable))
        where = ctypes.c_void_p(self.stream_handle)
        call = partial(self.driver.library.cuGraphLaunch, handle, where)

        def fire(keep: Any = (graph, executable)) -> None:
            self._check(call())

        return fire

    def time_back_to_back(self, launch: Callable[[], None], samples: int) -> list[float]:
        """Microseconds of each call with its data wherever the call before left it: the hot figure."""
        self._flusher()()  # keeps the stream busy while the host runs ahead
        events = [self._event()]
        for _ in range(samples):
            launch()
            events.append(self._event())
        self.synchronize()
        return [self._elapsed_us(a, b) for a, b in pairwise(events)]

    def _event(self) -> Any:
        from cuda.core import EventOptions

        # cuda.core 1.2.0 calls it enable_timing, later ones timing_enabled; it is the first field in both
        return self.stream.record(options=EventOptions(True))

    def _elapsed_us(self, start: Any, end: Any) -> float:
        return float(end - start) * 1e3

    def _flusher(self) -> Callable[[], None]:
        if self._flush is None:
            from ptxkit.compiler.nvrtc import compile_source

            nbytes = FLUSH_FACTOR * self.l2_bytes
            data, never = self.empty(nbytes, np.uint8, "L2 flush"), self.empty(1, np.uint32, "never written")
            data.fill(0)
            image = compile_source(FLUSH_SOURCE, target=self.architecture, name="flush_l2.cu")
            launch = self.load(image)["flush_l2"].prepare(
                data, np.uint64(nbytes // 16), never, grid=8 * int(self.properties.multiprocessor_count), block=256
            )
            self._flush = (launch, data, never)
        fire: Callable[[], None] = self._flush[0].fire

        def flush() -> None:
            launched = self._launched
            fire()
            self._launched = launched

        return flush


def own_target(capability: Any) -> Target:
    """The target of a compute capability, architecture-specific where there is such a form.

    Raises:
        UnavailableError: newer than ptxkit knows.
    """
    major, minor = capability
    base = f"sm_{major}{minor}"
    for name in (f"{base}a", base):
        if name in TARGETS:
            return TARGETS[name]
    raise UnavailableError(f"ptxkit does not know {base} yet; it knows {', '.join(TARGETS)}")


def stream_pointer(stream: Any) -> int:
    """Handle of an object with ``__cuda_stream__``, a cuda.core stream, or a plain integer handle.

    Raises:
        LaunchError: none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    if hasattr(stream, "cuda_stream"):  # torch
        return int(stream.cuda_stream)
    raise LaunchError(
        f"stream is a {type(stream).__name__}; pass an object with __cuda_stream__ or the handle as an integer"
    )


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def _ok(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise FaultError(f"CUDA graph: {result[0]}")
    return result[1] if len(result) == 2 else result[1:]
