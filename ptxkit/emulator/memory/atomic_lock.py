"""The lock that is held while an atomic operation is performed, by Python or by machine code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

BY_PYTHON = 2
"""In the word of the lock: Python holds it. Machine code writes another number."""


class AtomicLock:
    """A lock of Python, and a word that machine code takes, because it cannot take locks of Python.

    Python also takes the word once a wave executes atomics by machine code. A word that contains
    :data:`BY_PYTHON` belongs to the thread that holds the lock of Python, so that an interrupt leaves nothing locked.

    Attributes:
        word: one integer, 0 while no atomic is being performed.
    """

    def __init__(self) -> None:
        self.word = np.zeros(1, np.int64)
        self._lock = threading.RLock()
        self._change: Callable[[int, int], object] | None = None

    def share(self, change: Callable[[int, int], object]) -> None:
        """Let machine code execute atomics from now on.

        Args:
            change: a function of machine code: (address of the word, 1 to take it or 0 to release it).
        """
        if self._change is None:
            with self._lock:  # Python is performing no atomic
                self._change = change

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in a ``with`` block."""
        with self._lock:
            change = self._change
            if change is None:
                yield
                return
            address = int(self.word.__array_interface__["data"][0])
            change(address, 1)
            try:
                yield
            finally:
                change(address, 0)
