"""Limits numpy's matrix products to one thread each, for callers that compute several products at a time.

Each worker thread of the emulator multiplies its own tiles, and references of large cases compute blocks in threads. OpenBLAS,
which numpy's wheels contain, would use all processors for each of these products. Its threads wait for each other in spin
loops, so that a product takes up to twenty times as long when the processors are busy. One thread also makes the order of
additions the same on every machine.
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
    """The number of contexts that are open, and OpenBLAS's number of threads before the first of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    before: int = 0


_STATE = _State()


@cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's functions to get and set the number of threads; None if numpy uses another library."""
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
    """A context in which each matrix product of this process uses one thread; contexts of several callers may overlap."""
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
