"""What tests of clusters leave behind otherwise."""

from __future__ import annotations

import threading
import time


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
