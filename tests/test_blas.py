"""Matrix products of numpy use one thread while a launch runs, and all threads afterwards."""

from __future__ import annotations

import threading

import pytest

from ptxkit import blas


@pytest.fixture
def threads():
    functions = blas._functions()
    if functions is None:
        pytest.skip("numpy has no OpenBLAS of its own here")
    get, put = functions
    before = get()
    put(2)
    yield get
    put(before)


def test_one_thread_while_anybody_asks_for_it(threads):
    inside, done = threading.Event(), threading.Event()

    def other():
        with blas.one_thread():
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    with blas.one_thread():
        assert threads() == 1
        thread.start()
        inside.wait()
    assert threads() == 1
    done.set()
    thread.join()
    assert threads() == 2


def test_errors_give_the_threads_back(threads):
    with pytest.raises(KeyError), blas.one_thread():
        raise KeyError
    assert threads() == 2
