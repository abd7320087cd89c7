"""Processes that are started with SIGINT blocked keep it blocked."""

from __future__ import annotations

import subprocess
import sys

SOURCE = """
import multiprocessing, signal
from ptxkit.processes.interrupts import interrupts_blocked
with interrupts_blocked():
    pool = multiprocessing.get_context("spawn").Pool(1)
print(signal.SIGINT in pool.apply(signal.pthread_sigmask, (signal.SIG_BLOCK, ())))
print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
pool.terminate()
"""


def test_the_first_process_that_is_started_has_interrupts_blocked():
    """The first one also starts multiprocessing's resource tracker, which unblocks SIGINT in the thread that starts it."""
    found = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["True", "False"]
