"""Workers of a cluster that tests share, and what tests of clusters leave behind otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def pids(cluster: Any) -> list[int]:
    """The processes of the workers that answer."""
    return sorted(w["pid"] for w in cluster.workers().values() if isinstance(w, dict))


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds, and fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def no_command_left() -> None:
    """Every command ends its own threads."""
    wait_for(lambda: not any(t.name.startswith("ptxkit") for t in threading.enumerate()), 10)


def end_threads() -> None:
    """End the threads that Dask keeps: a command that is interrupted in this process by another test would end the process."""
    from distributed import Future, utils

    utils._offload_executor.shutdown()
    utils._offload_executor = type(utils._offload_executor)(1, thread_name_prefix="Dask-Offload")
    if Future._cb_executor is not None:
        Future._cb_executor.shutdown()
        Future._cb_executor = None
    for loop in list(utils.LoopRunner._all_loops):  # of a client whose scheduler was killed
        loop.add_callback(loop.stop)
    deadline = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < deadline:  # a thread that ends by itself
        time.sleep(0.05)
    assert [t.name for t in threading.enumerate() if not t.name.startswith("execnet")] == ["MainThread"]
