"""Keeps numpy's matrix products on the thread that asks for them while a launch runs.

The emulator's workers each multiply their own tiles. OpenBLAS, which numpy's wheels carry, would start as many threads
again for each of them; they wait for each other by spinning, and where the processors are busy with anything else a
product then takes twenty times as long. One thread also makes the order of additions the same on every machine.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

_PREFIXES = ("scipy_openblas_", "openblas_")
_SUFFIXES = ("64_", "")


@dataclass
class _State:
    """How many launches run, and how many threads a product had before the first of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    before: int = 0


_STATE = _State()


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's get and set of the number of threads; None where numpy has another library, or not its own."""
    package = Path(np.__file__).parent
    for place in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(place.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            for prefix in _PREFIXES:
                for suffix in _SUFFIXES:
                    get = getattr(library, f"{prefix}get_num_threads{suffix}", None)
                    put = getattr(library, f"{prefix}set_num_threads{suffix}", None)
                    if get is not None and put is not None:
                        return get, put
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits each matrix product to one thread in this process, until the last caller leaves the context."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    with _STATE.lock:
        if _STATE.users == 0:
            _STATE.before = int(get())
            put(1)
        _STATE.users += 1
    try:
        yield
    finally:
        with _STATE.lock:
            _STATE.users -= 1
            if _STATE.users == 0:
                put(_STATE.before)
