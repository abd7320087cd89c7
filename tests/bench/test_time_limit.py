"""The limit on the execution time of kernels: which calls it ends, and when it must end the process."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
import types

import pytest

from ptxkit.bench.measure import time_limit
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.errors import TimeLimitError

LIBC = ctypes.CDLL(None)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(time_limit, "GRACE_S", 0.3)
    monkeypatch.setattr(time_limit, "BEAT_S", 0.05)


class Lock:
    """A lock whose acquisition is a C call that no signal ends, as a synchronization with a GPU is."""

    def __init__(self):
        self.memory = ctypes.create_string_buffer(64)
        LIBC.pthread_mutex_init(self.memory, None)
        self.acquire()

    def acquire(self):
        LIBC.pthread_mutex_lock(self.memory)

    def release(self):
        LIBC.pthread_mutex_unlock(self.memory)


def function_of(module, code, **names):
    """The function ``f`` of a module of this name."""
    made = types.ModuleType(module)
    made.__dict__.update(names)
    exec(code, made.__dict__)
    return made.f


def test_the_block_is_ended():
    with pytest.raises(TimeLimitError, match="not done within 0.1 s"), TimeLimit(0.1).around("k"):
        while True:
            time.sleep(0.01)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_blocks_of_one_variant_count_together_and_those_of_another_do_not():
    limit = TimeLimit(0.2)
    with limit.around("a"):
        time.sleep(0.15)
    with limit.around("b"):
        time.sleep(0.1)
    with pytest.raises(TimeLimitError), limit.around("a"):
        time.sleep(5)


def test_a_call_of_the_driver_that_does_not_return_ends_the_process():
    lock, stuck = Lock(), []

    def end(what):
        stuck.append(what)
        lock.release()

    code = "def f():\n    libc.pthread_mutex_lock(memory)\n"
    synchronize = function_of("cuda.fake", code, libc=LIBC, memory=lock.memory)
    with pytest.raises(TimeLimitError), TimeLimit(0.1, end).around("k"):
        synchronize()
    assert stuck == ["k"]


def test_a_long_call_outside_the_driver_does_not_end_the_process():
    lock, stuck = Lock(), []
    threading.Timer(1.0, lock.release).start()
    with pytest.raises(TimeLimitError), TimeLimit(0.1, stuck.append).around("k"):
        lock.acquire()
    assert stuck == []


def test_python_that_goes_on_in_the_driver_package_does_not_end_the_process():
    code = """
def f():
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                pass
        except TimeLimitError:
            pass
"""
    busy, stuck = function_of("cuda.fake", code, time=time, TimeLimitError=TimeLimitError), []
    with TimeLimit(0.1, stuck.append).around("k"):
        busy()
    assert stuck == []


def test_only_the_main_thread_is_limited():
    ended = []

    def work():
        with TimeLimit(0.05).around("k"):
            time.sleep(0.2)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]
