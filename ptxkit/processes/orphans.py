"""Ends processes whose parent was killed: they would keep a GPU, or processors, that the next ones need alone."""

from __future__ import annotations

import os
import threading
import time

ORPHAN_CHECK_S = 0.25


def end_with(parent: int) -> None:
    """Start a thread that ends this process when its parent process, of this id, has ended."""
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(1)
