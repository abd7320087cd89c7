"""Host memory that is used again once nothing refers to an array in it."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from ptxkit.runtime.device import device
from ptxkit.runtime.gpu import staging
from ptxkit.runtime.gpu.staging import Staging

KIND = np.dtype(np.float32)


class Driver:
    """Allocates ordinary memory."""

    def __init__(self, fails=False):
        self.fails, self.held, self.calls = fails, {}, []

    def call(self, function, *arguments, wait=False):
        self.calls.append(function)
        if function == "cuMemFreeHost":
            del self.held[arguments[0].value]
            return 0
        if self.fails:
            return 2
        memory = ctypes.create_string_buffer(arguments[1].value)
        self.held[ctypes.addressof(memory)] = memory
        arguments[0]._obj.value = ctypes.addressof(memory)
        return 0


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(staging, "SMALLEST", 64)
    monkeypatch.setattr(staging, "UNIT", 256)
    monkeypatch.setattr(staging, "LIMIT", 1024)


def test_memory_is_used_again_when_no_array_refers_to_it_and_not_before():
    pool = Staging(Driver())
    first = pool.array((8, 8), KIND)
    assert (first.shape, first.dtype) == ((8, 8), KIND)
    address = first.ctypes.data
    part = first[3:]
    del first
    gc.collect()
    second = pool.array((64,), KIND)
    assert second.ctypes.data != address  # the view refers to the other memory
    del part
    gc.collect()
    assert pool.array((40,), KIND).ctypes.data == address
    assert pool.allocated == 512


def test_free_memory_makes_room_for_larger_arrays():
    driver = Driver()
    pool = Staging(driver)
    for _ in range(2):
        held = [pool.array((64,), KIND) for _ in range(4)]
        del held
        gc.collect()
    assert pool.array((200,), KIND).size == 200
    assert pool.allocated == sum(len(memory) for memory in driver.held.values()) == 1024


@pytest.mark.parametrize("elements", [3, 1000], ids=["small", "beyond the limit"])
def test_other_arrays_are_in_ordinary_memory(elements):
    driver = Driver()
    assert Staging(driver).array((elements,), KIND).size == elements
    assert not driver.held


def test_without_page_locked_memory_there_is_ordinary_memory():
    driver = Driver(fails=True)
    assert Staging(driver).array((64,), KIND).size == 64
    assert driver.calls == ["cuMemHostAlloc"]


def test_a_staged_copy_is_that_of_the_array():
    array = device("emulator").upload(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert (array.staged() == array.numpy()).all()


def test_an_array_is_copied_on_its_device():
    emulator = device("emulator")
    source, to = emulator.upload(np.arange(5, dtype=np.int32)), emulator.empty((5,), np.float32)
    to.copy_from(source)
    assert (to.numpy().view(np.int32) == np.arange(5)).all()
