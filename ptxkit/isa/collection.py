"""Pauses Python's garbage collector while many objects without cycles are made.

The collector walks over all objects each time their number has grown by a quarter, which takes as long as parsing a large
module. Nothing that is made here has cycles, so that there is nothing for it to free.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the collector; if it was off before, it stays off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
