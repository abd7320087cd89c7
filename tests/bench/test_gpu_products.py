"""Products on a device, with some rows of a at a time; what was allocated is freed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit.bench.measure import gpu_products
from ptxkit.bench.peers.cublas import Cublas
from ptxkit.errors import FaultError, UnavailableError
from ptxkit.runtime.device import emulating_device


class Library:
    """Replaces Cublas: the product of arrays of the emulator by numpy."""

    def __init__(self, fails=False):
        self.device, self.fails, self.rows = emulating_device(), fails, []

    def gemm(self, gemm, a, b, c):
        if self.fails:
            raise FaultError("no product")
        assert (gemm.m, gemm.n, gemm.k) == (*c.shape, a.shape[1])
        self.rows.append(gemm.m)
        c.copy_from(a.numpy() @ b.numpy().T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_multiplied_in_parts(monkeypatch, dtype):
    monkeypatch.setattr(gpu_products, "CHUNK_BYTES", 4 * 16 * np.dtype(dtype).itemsize)
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (10, 16)).astype(dtype), rng.uniform(-1, 1, (6, 16)).astype(dtype)
    library = Library()
    found = gpu_products.by_rows_of_a(library, a, b)
    assert library.rows == [4, 4, 2]
    np.testing.assert_allclose(found, a @ b.T, rtol=1e-6)


@pytest.mark.parametrize("fails", [False, True])
def test_the_arrays_are_freed_in_any_case(monkeypatch, fails):
    library, freed = Library(fails), []
    make = library.device.empty

    def empty(*arguments):
        made = make(*arguments)
        monkeypatch.setattr(made, "free", lambda: freed.append(made.name))
        return made

    def upload(array, name):
        made = empty(array.shape, array.dtype, name)
        made.copy_from(array)
        return made

    library.device = SimpleNamespace(empty=empty, upload=upload, read=library.device.read)
    a = np.ones((4, 4))
    with pytest.raises(FaultError) if fails else nullcontext():
        gpu_products.by_rows_of_a(library, a, a)
    assert freed == ["c", "a", "b"]


@pytest.mark.parametrize("error", [RuntimeError("Failed to dlopen libcublas.so"), OSError("wrong ELF class")])
def test_a_library_that_cannot_be_loaded_is_unavailable(monkeypatch, error):
    """So that numpy computes the products instead."""

    def load(name):
        raise error

    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", load)
    with pytest.raises(UnavailableError, match=f"cuBLAS cannot be loaded: {error}"):
        Cublas(emulating_device())
