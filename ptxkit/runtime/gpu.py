"""A GPU through the CUDA driver API: cuda.core for the device, streams, events and buffers, the driver itself for launches.

Only cubins are loaded: the driver may be older than the NVRTC that made the PTX.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.compiler.image import FunctionResources
from ptxkit.compiler.targets import TARGETS, Target
from ptxkit.errors import CompileError, FaultError, LaunchError, MemoryFault, TrapError, UnavailableError
from ptxkit.isa.parser import parse
from ptxkit.runtime.arguments import Bound, buffer_size
from ptxkit.runtime.buffers import DeviceArray, contiguous
from ptxkit.runtime.device import Measurement
from ptxkit.runtime.driver import (
    FUNCTION_MAX_DYNAMIC_SHARED,
    FUNCTION_NON_PORTABLE_CLUSTER,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Driver,
    LaunchConfig,
    launch_config,
)
from ptxkit.runtime.gpu_graph import capture, capture_check
from ptxkit.runtime.host_arrays import host_array
from ptxkit.runtime.kernel import Geometry, Kernel, LoadedModule
from ptxkit.runtime.parameters import Parameter, parameters_of
from ptxkit.runtime.source_names import source_text

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.isa.model import Function
    from ptxkit.runtime.gpu_facts import Facts, Sensors
    from ptxkit.runtime.gpu_timing import Timing
    from ptxkit.runtime.tensor_map_rules import Encoding

FAULTS: dict[int, type[FaultError]] = {
    700: MemoryFault,  # CUDA_ERROR_ILLEGAL_ADDRESS
    702: FaultError,  # LAUNCH_TIMEOUT
    710: TrapError,  # ASSERT
    714: FaultError,  # HARDWARE_STACK_ERROR
    715: TrapError,  # ILLEGAL_INSTRUCTION
    716: MemoryFault,  # MISALIGNED_ADDRESS
    717: MemoryFault,  # INVALID_ADDRESS_SPACE
    718: TrapError,  # INVALID_PC
    719: TrapError,  # LAUNCH_FAILED, which is also what trap gives
}
"""What a kernel can do to its context. The context is lost with it, and every later call fails in the same way."""
DEFAULT_SHARED = 48 << 10  # static and dynamic shared memory of a CTA that a kernel may have without asking
PORTABLE_CLUSTER = 8


class GpuDevice:
    """One GPU, on a stream of its own.

    Attributes:
        target: its architecture with the ``a`` suffix where there is one.
        properties: cuda.core's.
    """

    kind = "gpu"
    lacks: frozenset[str] = frozenset()

    def __init__(self, index: int = 0) -> None:
        from cuda.core import Device, StreamOptions

        devices = Device.get_all_devices() if hasattr(Device, "get_all_devices") else [Device(0)]
        if not 0 <= index < len(devices):
            raise UnavailableError(f"there is no GPU {index}; there are {len(devices)}, numbered from 0")
        self.index = index
        self.core = Device(index)
        self.core.set_current()
        self.driver = Driver()
        self.name: str = self.core.name
        self.target: Target | None = own_target(self.core.compute_capability)
        self._context = ctypes.c_void_p()
        self.driver.call("cuCtxGetCurrent", ctypes.byref(self._context))
        # a blocking stream keeps order with the default stream, which other libraries use
        self.stream = self.core.create_stream(options=StreamOptions(nonblocking=False))
        self.stream_handle = int(self.stream.handle)
        self.lost: str | None = None
        self._recent: dict[str, None] = {}  # kernels launched since the device was last seen to be well, in order
        self._modules: dict[str, LoadedModule] = {}
        self._handles: dict[str, ctypes.c_void_p] = {}  # the driver's, of these modules
        self.retired: list[Callable[[], object]] = []  # destroys what the GPU may still be using
        self._plain = False
        self._shared_limits: dict[int, int] = {}  # function handle -> dynamic shared memory it may have

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
        self._enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)))
        return max(0, free.value - (256 << 20))

    @property
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""
        return int(self.properties.l2_cache_size)

    @property
    def multiprocessors(self) -> int:
        """How many there are."""
        return int(self.properties.multiprocessor_count)

    def facts(self) -> Facts:
        """What this GPU is: multiprocessors, clocks, caches, driver."""
        from ptxkit.runtime.gpu_facts import facts

        return facts(self)

    def sensors(self) -> Sensors:
        """How it is at the moment: clocks, power, temperature."""
        from ptxkit.runtime.gpu_facts import sensors

        return sensors(self)

    # -- errors and contexts -----------------------------------------------------------------------------------------

    def _check(self, code: int) -> None:
        if code:
            self._fail(code)

    def _fail(self, code: int) -> None:
        """Raise for a driver error. One that a kernel caused ends the context: all that follows fails with the same story."""
        self._usable()
        text = self.driver.message(int(code))
        if code == OUT_OF_MEMORY:
            raise UnavailableError(f"{self.name} is out of memory; use smaller sizes")
        if code not in FAULTS:
            raise FaultError(f"{self.name}: {text}")
        names = list(self._recent)
        culprit = "a kernel" if not names else names[0] if len(names) == 1 else f"one of {', '.join(names[-4:])}"
        self.lost = f"{culprit} failed on {self.name}: {text}"
        raise FAULTS[code](f"{self.lost}; run it with --device emulator, which finds the line")

    def _usable(self) -> None:
        if self.lost is not None:
            raise FaultError(f"the GPU's context was lost when {self.lost}; start a new process")

    def _enter(self) -> None:
        """Make this GPU's context the calling thread's: another thread has none, another device its own."""
        self._usable()
        self._check(self.driver.library.cuCtxSetCurrent(self._context))

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, name: str) -> int:
        """Address of new memory; the contents are whatever was there."""
        if nbytes > self.memory_bytes:
            what = f"'{name}'" if name else "an array"
            raise UnavailableError(
                f"{what} of {nbytes:,} bytes does not fit: {self.name} has {self.memory_bytes:,} bytes free; use smaller sizes"
            )
        address = ctypes.c_uint64()
        code = self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        self._check(code)
        return address.value

    def free(self, address: int) -> None:
        """Give memory back; after a fault the context's memory is gone anyway."""
        if self.lost is None:
            # garbage is collected in any thread and at any moment, so the thread's context is put back
            previous = ctypes.c_void_p()
            self.driver.call("cuCtxPushCurrent_v2", self._context)
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(address), wait=True)
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(previous))

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to the device, behind what was launched before; when it returns, every stream sees it."""
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
        self._check(
            self.driver.call("cuStreamSynchronize", None, wait=True)
        )  # the driver may still be copying from its own

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
        self._enter()
        self._check(
            self.driver.call(
                "cuMemsetD8Async",
                ctypes.c_uint64(address),
                ctypes.c_ubyte(value),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream_handle),
            )
        )

    def tensor_map(self, m: Encoding) -> bytes:
        """A tensor map in the GPU's encoding."""
        from ptxkit.runtime.gpu_tensor_map import encode

        self._enter()
        return encode(self, m)

    def upload(self, array: Any, name: str = "") -> DeviceArray:
        """A copy of a C-contiguous array."""
        data = contiguous(array, name or "the array")
        out = DeviceArray(self, data.shape, data.dtype, name)
        out.copy_from(data)
        return out

    def empty(self, shape: int | tuple[int, ...], dtype: Any, name: str = "") -> DeviceArray:
        """An uninitialised array."""
        return DeviceArray(self, shape, dtype, name)

    def foreign(self, value: Any, what: str) -> int | np.ndarray[Any, Any] | None:
        """Address of an array in device memory, by DLPack or ``__cuda_array_interface__``; one in host memory as numpy's.

        The stream waits for what the array's library has queued on its own.

        Raises:
            LaunchError: it is not C-contiguous, or its library refuses to share it.
        """
        self._enter()
        if (array := host_array(value)) is not None:
            return array
        from cuda.core.utils import StridedMemoryView

        try:
            view = StridedMemoryView.from_any_interface(value, stream_ptr=self.stream_handle)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            raise LaunchError(f"{what}: {error}") from None
        if view.strides is not None and not _is_contiguous(view.shape, view.strides):
            raise LaunchError(
                f"{what} is not C-contiguous (shape {view.shape}, strides {view.strides}); make it contiguous"
            )
        if view.device_id != self.index:
            raise LaunchError(f"{what} is on GPU {view.device_id}; the kernel runs on GPU {self.index}")
        return int(view.ptr)

    # -- kernels -----------------------------------------------------------------------------------------------------

    def load(self, image: Image, source: str | None = None) -> LoadedModule:
        """The image's kernels, from its cubin; ``source`` is the text they were compiled from, where that is no file.

        Raises:
            CompileError: the image was not assembled, or not for this GPU.
        """
        self._enter()
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
        text = source or source_text(image)

        def make(name: str) -> Kernel:
            self._enter()
            function = ctypes.c_void_p()
            self._check(self.driver.call("cuModuleGetFunction", ctypes.byref(function), handle, name.encode()))
            parameters = parameters_of(module.functions[name], text)
            self._compare_layout(name, function, parameters)
            resources = image.functions.get(name, FunctionResources())
            return Kernel(self, name, image.readable(name), module.functions[name], parameters, resources, function)

        self._modules[key] = LoadedModule(image, make, tuple(module.entries))
        self._handles[key] = handle
        return self._modules[key]

    def unload(self, image: Image) -> None:
        """Give back what :meth:`load` took. None of the image's kernels, prepared launches and graphs may be used after it."""
        key = image.key or str(id(image))
        if self._modules.pop(key, None) is None or self.lost is not None:
            return
        self.synchronize()
        self._shared_limits.clear()  # the driver may give another function the same handle
        self._check(self.driver.call("cuModuleUnload", self._handles.pop(key)))

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
        # parameters begin at an address that is a multiple of 16 and no more: what is aligned to 64 has other offsets there.
        # A launch hands over an array of pointers, so only the sizes matter then
        aligned = all(p.align <= 16 for p in parameters)
        if ours != theirs if aligned else [size for _, size in ours] != [size for _, size in theirs]:
            raise LaunchError(f"{name}: the driver lays the parameters out as {theirs}, the signature says {ours}")

    def prepare(
        self, kernel: Kernel, bound: Bound, geometry: Geometry, stream: Any, *, once: bool = False
    ) -> Callable[[], None]:
        """A callable that launches once on the stream; its host cost is one driver call. ``once``: it is called but once."""
        self._enter()
        where = self.stream_handle if stream is None else stream_pointer(stream)
        self._allow(kernel, geometry)
        config = launch_config(
            geometry.grid,
            geometry.block,
            geometry.shared,
            where,
            geometry.cluster,
            geometry.cooperative,
            not geometry.cooperative and _waits_for_previous_grid(kernel.function),
        )
        buffer = (ctypes.c_char * max(1, buffer_size(kernel.parameters))).from_buffer_copy(bytes(bound.buffer) or b"\0")
        base = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * max(1, len(kernel.parameters)))(*(base + p.offset for p in kernel.parameters))
        plainly = partial(self.driver.library.cuLaunchKernelEx, ctypes.byref(config), kernel.handle, pointers, None)
        keep = (buffer, pointers, config, bound.keep)
        name, recent, refused = kernel.readable, self._recent, self._refused

        submit: Callable[[], int] = plainly

        def first() -> int:
            nonlocal submit
            if capture_check(self, where)():
                return int(plainly())
            graph = self._as_graph(config, plainly)
            capturing = capture_check(self, where)

            def replay() -> int:
                # a graph cannot be launched into somebody's capture, a kernel can
                return int(plainly()) if capturing() else graph()

            # nobody but this device, which launches plainly then, captures its own stream; asking would double the cost
            submit = graph if graph is plainly or where == self.stream_handle else replay
            return submit()

        if not once:
            submit = first

        def fire(keep: Any = keep) -> None:
            recent[name] = None
            code = plainly() if self._plain else submit()
            if code:
                refused(name, code, geometry, plainly)

        return fire

    def _as_graph(self, config: LaunchConfig, plainly: Callable[[], int]) -> Callable[[], int]:
        """A prepared launch as a graph of one kernel; as it is, where the driver makes no graph of it.

        cuGraphLaunch costs the host less than cuLaunchKernelEx; scripts/gpu_runtime_check.py times both.
        """
        self._enter()
        where, config.stream = config.stream, self._side_stream

        def queue() -> None:
            if code := plainly():
                raise FaultError(self.driver.message(code))

        try:
            return capture(self, self._side_stream, queue, where or 0)
        except FaultError:
            self._usable()
            return plainly
        finally:
            config.stream = where

    @contextmanager
    def plain_launches(self) -> Iterator[None]:
        """Inside, prepared launches go to the driver as plain kernels: to become part of a graph, or to be timed."""
        before, self._plain = self._plain, True
        try:
            yield
        finally:
            self._plain = before

    def _allow(self, kernel: Kernel, geometry: Geometry) -> None:
        limit = int(self.properties.max_shared_memory_per_block_optin)
        static = kernel.resources.shared_bytes
        if geometry.shared + static > limit:
            raise LaunchError(
                f"{kernel.readable}: {geometry.shared:,} bytes of dynamic and {static:,} of static shared memory; "
                f"{self.name} gives a CTA {limit:,}"
            )
        function = kernel.handle.value  # two modules may have kernels of one name
        if geometry.shared > self._shared_limits.get(function, DEFAULT_SHARED - static):
            self._check(
                self.driver.call("cuFuncSetAttribute", kernel.handle, FUNCTION_MAX_DYNAMIC_SHARED, geometry.shared)
            )
            self._shared_limits[function] = geometry.shared
        if geometry.cluster is not None and int(np.prod(geometry.cluster)) > PORTABLE_CLUSTER:
            self._check(self.driver.call("cuFuncSetAttribute", kernel.handle, FUNCTION_NON_PORTABLE_CLUSTER, 1))

    def _refused(self, name: str, code: int, geometry: Geometry, call: Callable[[], int]) -> None:
        """A launch that the driver did not take: tried again in this GPU's context, or raised as what it is."""
        self._usable()
        if code in (INVALID_CONTEXT, INVALID_HANDLE):
            self._enter()
            code = call()
            if not code:
                return
        if code in FAULTS:  # an earlier kernel's
            self._fail(code)
        sticky = self.driver.call("cuStreamQuery", ctypes.c_void_p(self.stream_handle))
        if sticky in FAULTS:
            self._fail(sticky)
        raise LaunchError(
            f"{name}: {self.driver.message(code)} (grid {geometry.grid}, block {geometry.block}, {geometry.shared:,} bytes of "
            f"shared memory, cluster {geometry.cluster}{', cooperative' if geometry.cooperative else ''})"
        )

    def synchronize(self) -> None:
        """Wait for everything launched, on every stream.

        Raises:
            FaultError: a kernel failed; the process can use this GPU no more.
        """
        self._enter()
        self._check(self.driver.call("cuCtxSynchronize", wait=True))
        self._recent.clear()
        while self.retired:
            self.retired.pop()()

    @cached_property
    def _side_stream(self) -> int:
        """Handle of a stream that nothing runs on; launches are captured there."""
        self._side = self.core.create_stream()
        return int(self._side.handle)

    # -- time --------------------------------------------------------------------------------------------------------

    @cached_property
    def timing(self) -> Timing:
        """How this device is measured."""
        from ptxkit.runtime.gpu_timing import Timing

        return Timing(self)

    def measure(self, launch: Callable[[], None], samples: int) -> Measurement:
        """See :meth:`ptxkit.runtime.gpu_timing.Timing.cold`."""
        return Measurement(times_us=tuple(self.timing.cold(launch, samples)))

    def measure_copy(self, nbytes: int, samples: int) -> list[float]:
        """See :meth:`ptxkit.runtime.gpu_timing.Timing.copy`."""
        return self.timing.copy(nbytes, samples)

    def time_back_to_back(self, launch: Callable[[], None], samples: int) -> list[float]:
        """See :meth:`ptxkit.runtime.gpu_timing.Timing.hot`."""
        return self.timing.hot(launch, samples)

    def reset_persisting_l2(self) -> None:
        """Make lines that some kernel asked the L2 cache to keep ordinary again."""
        self._enter()
        self._check(self.driver.call("cuCtxResetPersistingL2Cache"))

    def graph(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What ``launches`` queues on this device's stream, as a CUDA graph: a callable that launches it once."""
        self._enter()
        before = dict(self._recent)
        self._recent.clear()
        with self.plain_launches():
            call = capture(self, self.stream_handle, launches, self.stream_handle)
        inside = dict(self._recent)
        self._recent.clear()
        self._recent.update(before)

        def fire() -> None:
            self._recent.update(inside)
            self._check(call())

        return fire


def _waits_for_previous_grid(function: Function) -> bool:
    """Whether a kernel waits by itself until the grid before has ended (programmatic dependent launch), so that it may start
    before. Such a kernel touches no memory that the other writes ahead of its ``griddepcontrol.wait``."""
    return any(i.opcode == "griddepcontrol.wait" for i in function.instructions)


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
