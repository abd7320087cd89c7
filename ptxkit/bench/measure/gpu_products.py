"""The products of references by cuBLAS on the GPU that is measured, before and after samples are taken.

The operands and results are freed after each product; the handle with its workspace stays.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ptxkit.bench.peers.cublas import Cublas
from ptxkit.bench.peers.cublas_peer import CublasPeer
from ptxkit.kernels.gemm.product import Gemm
from ptxkit.workload.parallel import blocks, in_threads
from ptxkit.workload.products import Multiply

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import TimedDevice
    from ptxkit.runtime.gpu.device import GpuDevice

Array = npt.NDArray[Any]

CHUNK_BYTES = 1 << 30  # of the rows of a, or of the results, that are on the device at a time


def gpu_products(device: TimedDevice) -> Multiply | None:
    """The library for :func:`ptxkit.workload.products.by_library`; None if cuBLAS is not installed."""
    if CublasPeer().absent():
        return None
    lock = threading.Lock()
    library = cache(lambda: Cublas(cast("GpuDevice", device)))  # made for the first product

    def multiply(a: Array, b: Array) -> Array:
        with lock:
            return by_rows_of_a(library(), a, b)

    return multiply


def _with_pages(shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """An array whose pages all cores have made the operating system provide, for which a copy by one thread takes longer."""
    found = np.empty(shape, dtype)
    flat = found.reshape(-1)
    in_threads(lambda block: flat[block].fill(0), blocks(flat.size, flat.size, CHUNK_BYTES >> 6))
    return found


def by_rows_of_a(library: Cublas, a: Array, b: Array) -> Array:
    """a b^T of a (m, k) and b (n, k), both of float32 or of float64, with some rows of a on the device at a time.

    Raises:
        UnavailableError: the device has too little memory. FaultError: the product failed.
    """
    device = library.device
    (m, k), n = a.shape, len(b)
    found = _with_pages((m, n), a.dtype)
    step = max(1, CHUNK_BYTES // (max(k, n) * a.dtype.itemsize))
    with ExitStack() as all_rows:
        y = device.upload(b, "b")
        all_rows.callback(y.free)
        for first in range(0, m, step):
            part, results = a[first : first + step], found[first : first + step]
            with ExitStack() as some_rows:
                x = device.upload(part, "a")
                some_rows.callback(x.free)
                c = device.empty(results.shape, a.dtype, "c")
                some_rows.callback(c.free)
                library.gemm(Gemm(len(part), n, k, b_transposed=True), x, y, c)  # this computes it once
                device.read(c.address, results)
    return found
