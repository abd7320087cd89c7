"""Arrays of the emulator in other libraries: both use the same memory, by DLPack and numpy's protocols."""

from __future__ import annotations

import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest

import ptxkit
from ptxkit.errors import UsageError
from ptxkit.runtime.emulated import EmulatedDevice


@pytest.fixture
def emulator():
    return EmulatedDevice()


@pytest.mark.parametrize("share", [np.from_dlpack, np.asarray])
def test_memory_is_shared(emulator, share):
    array = emulator.upload(np.arange(12, dtype=np.float32).reshape(3, 4))
    shared = share(array)
    assert shared.dtype == np.float32 and shared.shape == (3, 4)
    array.copy_from(np.full((3, 4), 7, np.float32))
    assert (shared == 7).all()


def test_what_is_shared_is_written(emulator):
    x = emulator.upload(np.zeros(8, np.int32))
    np.asarray(x)[3] = 5
    kernel = ptxkit.compile(
        "__global__ void k(int* x) { x[threadIdx.x] *= 2; }\n{}".replace("{}", ""), device=emulator
    )["k"]
    kernel(x, grid=1, block=8)
    assert x.numpy().tolist() == [0, 0, 0, 10, 0, 0, 0, 0]


def test_memory_outlives_the_array_that_shared_it(emulator):
    shared = np.from_dlpack(emulator.upload(np.arange(1000)))
    gc.collect()
    emulator.upload(np.zeros(1000))
    assert (shared == np.arange(1000)).all()


def test_it_is_the_hosts(emulator):
    array = emulator.empty(4, np.int8)
    assert array.__dlpack_device__() == (1, 0)
    assert not hasattr(array, "__cuda_array_interface__")


@pytest.mark.parametrize(
    ("dtype", "code"),
    [(ml_dtypes.bfloat16, 4), (ml_dtypes.float8_e4m3fn, 10), (ml_dtypes.float8_e5m2, 12), ("f2", 2), ("?", 6)],
)
@pytest.mark.parametrize(
    ("version", "name", "offset"), [({}, b"dltensor", 20), ({"max_version": (1, 0)}, b"dltensor_versioned", 52)]
)
def test_types_arrive_as_dlpack_names_them(emulator, dtype, code, version, name, offset):
    array = emulator.upload(np.zeros(4, dtype))
    capsule = array.__dlpack__(**version)
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = ctypes.pythonapi.PyCapsule_GetPointer(capsule, name)
    assert list((ctypes.c_uint8 * 2).from_address(address + offset)) == [code, 8 * np.dtype(dtype).itemsize]


def test_an_empty_array_is_shared(emulator):
    assert np.asarray(emulator.empty((0, 3), np.float32)).shape == (0, 3)


def test_numpys_functions_take_device_arrays(emulator):
    np.testing.assert_allclose(emulator.upload(np.ones(4)), np.ones(4))
    assert np.asarray(emulator.upload(np.ones(4, ml_dtypes.bfloat16))).dtype == ml_dtypes.bfloat16


def test_another_type_of_the_same_memory(device):
    array = device.upload(np.arange(8, dtype=np.float32).reshape(2, 4))
    bits = array.view(np.uint8)
    assert bits.shape == (2, 16) and bits.address == array.address
    del array
    gc.collect()
    assert bits.view(np.float32).numpy().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert bits.view(np.float64, 4).shape == (4,)
    with pytest.raises(UsageError, match="cannot be viewed as float64 of shape"):
        bits.view(np.float64, 5)


def test_what_the_host_may_write_counts_as_initialised(emulator):
    kernel = ptxkit.compile("__global__ void k(int* x, int* y) { y[0] = x[0]; }", device=emulator)["k"]
    x, y = emulator.empty(1, np.int32), emulator.empty(1, np.int32)
    np.asarray(x)[0] = 4
    with emulator.settings(initcheck=True):
        kernel(x, y, grid=1, block=1)
    assert y.numpy()[0] == 4
