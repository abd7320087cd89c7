"""Processes of a pool die: nothing is lost, and the function that kills them is named."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from ptxkit.errors import FaultError, UnavailableError
from ptxkit.sweep.pool import HOPELESS, Pool, _Job

MAKE = partial(ProcessPoolExecutor, mp_context=get_context("spawn"))


@pytest.fixture
def pool():
    made = Pool(MAKE, 2)
    yield made
    made.end()


def kill(code):
    """End this process as the system does for want of memory."""
    os.kill(os.getpid(), code)


def kill_once(mark):
    """End this process unless it is the second call."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_a_function_that_kills_its_processes_is_given_up_and_all_others_have_a_result(pool, tmp_path):
    numbers = range(12)
    futures = [pool.submit(abs, -number) for number in numbers]
    futures[5:5] = [pool.submit(kill, signal.SIGKILL)]
    futures += [pool.submit(abs, -12), once := pool.submit(kill_once, tmp_path / "mark")]
    with pytest.raises(FaultError, match="quarantined: two processes died while they executed it"):
        futures.pop(5).result(60)
    assert isinstance(once.result(60), int)
    assert [future.result(60) for future in futures[:-1]] == [*numbers, 12]
    assert pool.deaths >= 2


def test_what_had_not_begun_when_another_process_died_has_two_tries_of_its_own(pool, tmp_path):
    job = _Job(kill_once, (tmp_path / "mark",))
    pool._execute_alone(job)
    assert isinstance(job.future.result(60), int) and pool.deaths == 1


def test_a_process_that_dies_without_a_function_is_replaced(pool):
    child = pool.submit(os.getpid).result(60)
    os.kill(child, signal.SIGKILL)
    time.sleep(0.2)
    assert pool.submit(abs, -1).result(60) == 1


def test_what_a_function_raises_is_raised(pool):
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(60)
    assert pool.deaths == 0


def test_it_ends_where_processes_die_whatever_they_execute(pool):
    found = [pool.submit(kill, signal.SIGKILL).exception(60) for _ in range(HOPELESS)]
    assert [type(error) for error in found] == [FaultError] * (HOPELESS - 1) + [UnavailableError]


def test_without_repetition_the_owner_learns_of_a_death():
    pool = Pool(MAKE, 1, repeats=False)
    futures = [pool.submit(kill, signal.SIGKILL), pool.submit(abs, -1)]
    for future in futures:
        with pytest.raises(BrokenProcessPool):
            future.result(60)
    with pytest.raises(BrokenProcessPool):
        pool.submit(abs, -1).result(60)
    pool.end()


def test_nothing_is_started_again_after_the_end():
    pool = Pool(MAKE, 1)
    child = pool.submit(os.getpid).result(60)
    waiting = pool.submit(time.sleep, 60)
    pool.stop()
    os.kill(child, signal.SIGKILL)
    pool.end()
    assert waiting.cancelled()
