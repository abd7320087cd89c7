"""The number of threads of numpy's matrix products.

numpy's products use all cores. Products that several threads compute at a time wait for each other then: with blocks of a few
megabytes, the whole takes many times as long as with one thread for each product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PREFIXES = "scipy_openblas", "openblas"
SUFFIXES = "64_", ""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which each product of numpy uses one thread, for callers that compute products in several threads.

    It changes nothing where numpy uses another library than OpenBLAS, which its wheels contain. Products of other threads that
    are no part of the caller are slower meanwhile, but not different.
    """
    count, change = _openblas()
    before = count()
    if before > 1:
        change(1)
    try:
        yield
    finally:
        if before > 1:
            change(before)


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]]:
    """Functions that return and set the number of threads of the OpenBLAS in this process; without one, they do nothing."""
    for path in _loaded("openblas"):
        library = ctypes.CDLL(path)  # which is loaded, so that this is a reference to it
        for prefix in PREFIXES:
            for suffix in SUFFIXES:
                found = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                change = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                if found is not None and change is not None:
                    return found, change
    return lambda: 1, lambda threads: None


def _loaded(name: str) -> list[str]:
    """Paths of the shared libraries of this process whose file names contain ``name``."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    return [path for path in paths if name in Path(path).name]
