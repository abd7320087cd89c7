"""cuBLAS through ctypes: the functions for a matrix product. Types and constants are those of cublas_api.h of CUDA 13."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ptxkit.errors import FaultError, UnavailableError

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.product import Gemm
    from ptxkit.runtime.buffers import DeviceArray
    from ptxkit.runtime.gpu.device import GpuDevice

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14, "float64": 1, "int8": 3, "int32": 10}  # cudaDataType
COMPUTE_F64 = 70
COMPUTE = {
    "f32": 68,
    "tf32": 77,
    "s32": 72,
}  # cublasComputeType_t; f32 is without tf32, also for sums of f16 and bf16
DEFAULT_ALGORITHM = -1
WORKSPACE_BYTES = 32 << 20  # workspace that cuBLAS's manual recommends for Hopper; the library's default is smaller


class Cublas:
    """A cuBLAS handle on a device's stream.

    Raises:
        UnavailableError: cuBLAS is not installed, or cannot use the GPU.
    """

    def __init__(self, device: GpuDevice) -> None:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

        try:
            path = load_nvidia_dynamic_lib("cublas").abs_path
            self.library: Any = ctypes.CDLL(path)
        except DynamicLibNotFoundError:
            raise UnavailableError("there is no cuBLAS; pip install nvidia-cublas") from None
        except (RuntimeError, OSError) as error:
            raise UnavailableError(f"cuBLAS cannot be loaded: {error}") from None
        self.device = device
        self.library.cublasGetStatusString.restype = ctypes.c_char_p
        self.workspace = device.empty(WORKSPACE_BYTES, "uint8", "cuBLAS workspace")
        self._handle = ctypes.c_void_p()
        if code := self.library.cublasCreate_v2(ctypes.byref(self._handle)):
            raise UnavailableError(f"cuBLAS cannot use {device.name}: {self._message(code)}")
        self._ok(self.library.cublasSetStream_v2(self._handle, ctypes.c_void_p(device.stream_handle)))
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        self._ok(self.library.cublasSetWorkspace_v2(self._handle, ctypes.c_void_p(self.workspace.address), size))

    def gemm(self, gemm: Gemm, a: DeviceArray, b: DeviceArray, c: DeviceArray) -> Callable[[], None]:
        """A callable that queues the product, without epilogue.

        Raises:
            UnavailableError: cuBLAS does not support these types.
        """
        transa, transb, m, n, k, lda, ldb, ldc = column_major(gemm)
        wide = c.dtype.name == "float64"
        scalar: Any = ctypes.c_double if wide else ctypes.c_int if gemm.compute == "s32" else ctypes.c_float
        alpha, zero = scalar(int(gemm.alpha) if gemm.compute == "s32" else gemm.alpha), scalar(0)

        def operand(array: DeviceArray, leading: int) -> tuple[Any, ...]:
            return ctypes.c_void_p(array.address), ctypes.c_int(TYPES[array.dtype.name]), ctypes.c_int(leading)

        call = partial(
            self.library.cublasGemmEx,
            self._handle,
            *map(ctypes.c_int, (transa, transb, m, n, k)),
            ctypes.byref(alpha),
            *operand(b, lda),  # the first operand of the transposed product
            *operand(a, ldb),
            ctypes.byref(zero),
            *operand(c, ldc),
            ctypes.c_int(COMPUTE_F64 if wide else COMPUTE[gemm.compute]),
            ctypes.c_int(DEFAULT_ALGORITHM),
        )

        def launch(keep: tuple[Any, ...] = (a, b, c)) -> None:
            self._ok(call())

        if code := call():
            raise UnavailableError(f"cuBLAS does not compute this product: {self._message(code)}")
        return launch

    def _ok(self, code: int) -> None:
        if code:
            raise FaultError(f"cuBLAS: {self._message(code)}")

    def _message(self, code: int) -> str:
        return str(self.library.cublasGetStatusString(code).decode())


def column_major(gemm: Gemm) -> tuple[int, ...]:
    """transa, transb, m, n, k, lda, ldb, ldc of cublasGemmEx with b as its first operand and a as its second.

    A row-major c (m, n) is c' (n, m) for cuBLAS, and c' = b' a'.
    """
    lda = gemm.k if gemm.b_transposed else gemm.n
    ldb = gemm.m if gemm.a_transposed else gemm.k
    return int(gemm.b_transposed), int(gemm.a_transposed), gemm.n, gemm.m, gemm.k, lda, ldb, gemm.n
