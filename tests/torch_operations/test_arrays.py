"""Arrays of CuPy and JAX as tensors by DLPack, and results as their arrays."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt


def softmax(rows):
    exponentials = np.exp(rows - rows.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


ROWS = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)


def test_arrays_of_cupy(where):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if where == "cpu":
        pytest.skip("arrays of CuPy are on a GPU")
    rows = cupy.asarray(ROWS)
    cupy.cuda.Device().synchronize()  # CuPy has a stream of its own
    given = torch.from_dlpack(rows)
    assert given.data_ptr() == rows.data.ptr
    found = cupy.from_dlpack(pt.softmax(given))
    torch.cuda.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(found), softmax(ROWS), rtol=1e-5, atol=1e-7)


def test_arrays_of_jax(where, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else the memory that other tests on the GPU need
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    try:
        device = jax.devices("cpu" if where == "cpu" else "gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"JAX has no device here: {error}")
    rows = jax.device_put(ROWS, device).block_until_ready()
    given = torch.from_dlpack(rows)
    assert given.device.type == where
    found = jax.dlpack.from_dlpack(pt.softmax(given))
    if where == "cuda":
        torch.cuda.synchronize()
    np.testing.assert_allclose(np.asarray(found), softmax(ROWS), rtol=1e-5, atol=1e-7)
