"""A GPU's context through the CUDA driver API: its stream, its memory, and the handling of failed kernels.

The device and the stream are those of cuda.core; memory is allocated through the driver API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.arguments import NOTHING, takes
from ptxkit.errors import FaultError, LaunchError, MemoryFault, TrapError, UnavailableError
from ptxkit.isa.specials import NO_GRID_WORKSPACE
from ptxkit.runtime.abilities import TARGET
from ptxkit.runtime.buffers import MakesArrays
from ptxkit.runtime.gpu.driver import OUT_OF_MEMORY, Driver
from ptxkit.runtime.gpu.loss import lose_context
from ptxkit.runtime.gpu.staging import Staging
from ptxkit.runtime.host_arrays import host_array
from ptxkit.targets import TARGETS, Target
from ptxkit.targets.gpus import DeviceFacts

if TYPE_CHECKING:
    from ptxkit.runtime.gpu.texture import GpuTexels
    from ptxkit.runtime.tensor_map.limits import Encoding
    from ptxkit.runtime.texture.layout import Texels

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
"""CUresult of a failed kernel -> the exception. The kernel's context is then lost: every later call returns the same
code."""


class GpuContext(MakesArrays):
    """A GPU with its own stream: memory, errors, synchronization; :mod:`ptxkit.runtime.gpu.kernels` adds launches.

    Attributes:
        target: its target, architecture-specific if available.
        properties: cuda.core's.
        lost: the kernel that failed and its error; None while the context is usable.
        retired: functions that destroy objects which the GPU may still use, called at the next synchronization.
    """

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
        self.own_stream = self.core.create_stream(options=StreamOptions(nonblocking=False))
        self.stream_handle = int(self.own_stream.handle)
        self.lost: str | None = None
        self._recent: dict[str, None] = {}  # kernels launched since the last successful synchronization, in order
        self._not_cooperative: set[str] = set()  # kernels with this_grid() that were launched without cooperative=True
        self.retired: list[Callable[[], object]] = []  # destroys objects that the GPU may still use
        self._staging = Staging(self.driver)

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
        """Number of SMs."""
        return int(self.properties.multiprocessor_count)

    @takes(target=TARGET | NOTHING)
    def facts_for(self, target: Target | None) -> DeviceFacts:
        """The facts of this GPU for kernel descriptions and launch checks; they do not depend on ``target``."""
        assert self.target is not None
        return DeviceFacts(self.name, self.target, self.multiprocessors, self.l2_bytes, self.name)

    # -- errors and contexts -----------------------------------------------------------------------------------------

    def _check(self, code: int) -> None:
        if code:
            self._fail(code)

    def _fail(self, code: int) -> None:
        """Raise for a driver error. After an error that a kernel caused, every later call raises with the same
        message."""
        self._usable()
        text = self.driver.message(int(code))
        if code == OUT_OF_MEMORY:
            raise UnavailableError(f"{self.name} is out of memory; use smaller sizes")
        if code not in FAULTS:
            raise FaultError(f"{self.name}: {text}")
        names = list(self._recent)
        culprit = "a kernel" if not names else names[0] if len(names) == 1 else f"one of {', '.join(names[-4:])}"
        self.lost = f"{culprit} failed on {self.name}: {text}"
        lose_context(text)
        if self._not_cooperative.intersection(names[-4:]):
            self.lost += f" ({NO_GRID_WORKSPACE})"
        raise FAULTS[code](f"{self.lost}; run it with --device emulator, which finds the line")

    def _usable(self) -> None:
        if self.lost is not None:
            raise FaultError(f"the GPU's context was lost when {self.lost}; start a new process")

    def _enter(self) -> None:
        """Make this GPU's context current in the calling thread, which may have none or that of another device."""
        self._usable()
        self._check(self.driver.library.cuCtxSetCurrent(self._context))

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, name: str) -> int:
        """Address of new memory, which is not initialised."""
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
        """Free memory; after a fault, the memory of the context is already lost."""
        if self.lost is None:
            # Garbage collection may run in any thread at any time, so the current context of the thread is restored.
            previous = ctypes.c_void_p()
            self.driver.call("cuCtxPushCurrent_v2", self._context)
            self.driver.call("cuMemFree_v2", ctypes.c_uint64(address), wait=True)
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(previous))

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to the device, after earlier launches; when it returns, the data is visible to all streams."""
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
        """Copy from the device, after earlier launches."""
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

    def copy(self, address: int, source: int, nbytes: int) -> None:
        """Copy memory of the device, on the stream."""
        self._enter()
        self._check(
            self.driver.call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(address),
                ctypes.c_uint64(source),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(self.stream_handle),
            )
        )

    def staging(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """See :class:`ptxkit.runtime.gpu.staging.Staging`."""
        self._enter()
        return self._staging.array(shape, dtype)

    def poison(self, address: int, nbytes: int, value: int) -> None:
        """Set all bytes; a GPU does not track initialisation."""
        self.fill(address, nbytes, value)

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
        from ptxkit.runtime.gpu.tensor_map import encode

        self._enter()
        return encode(self.driver, self.name, tuple(self.core.compute_capability), m)

    def texel_object(self, texels: Texels) -> GpuTexels:
        """A texture or surface object."""
        from ptxkit.runtime.gpu.texture import GpuTexels

        return GpuTexels(self.driver, self._enter, self._check, self.retired.append, texels)

    def foreign(self, value: Any, what: str) -> int | np.ndarray[Any, Any] | None:
        """Address of an array in device memory, by DLPack or ``__cuda_array_interface__``; an array in host memory as a
        numpy array.

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

    # -- order -------------------------------------------------------------------------------------------------------

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

    def reset_persisting_l2(self) -> None:
        """Reset the lines that kernels marked as persisting in the L2 cache to normal."""
        self._enter()
        self._check(self.driver.call("cuCtxResetPersistingL2Cache"))


def own_target(capability: Any) -> Target:
    """The target of a compute capability, architecture-specific if available.

    Raises:
        UnavailableError: newer than ptxkit knows.
    """
    major, minor = capability
    base = f"sm_{major}{minor}"
    for name in (f"{base}a", base):
        if name in TARGETS:
            return TARGETS[name]
    raise UnavailableError(f"ptxkit does not know {base} yet; it knows {', '.join(TARGETS)}")


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True
