"""Work on large arrays in blocks, on all CPU cores: numpy releases the interpreter's lock during its operations.

Blocks are so small that the float64 temporaries of one stay in the cache of a core. No temporary has the size of the whole
array, whose pages the operating system would have to provide first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from hashlib import blake2b
from inspect import signature
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ptxkit.errors import DescriptionError

BLOCK = 1 << 16  # elements of a block

Item = TypeVar("Item")
Found = TypeVar("Found")
Reference = TypeVar("Reference", bound=Callable[..., dict[str, Any]])


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[Item], Found], items: Iterable[Item], most: int | None = None) -> list[Found]:
    """``function`` of each item, in their order; in threads unless there is only one item.

    After an exception no further calls begin.

    Args:
        most: maximum number of threads; None for one on each core.
    """
    every = list(items)
    if len(every) <= 1:
        return [function(item) for item in every]
    with ThreadPoolExecutor(min(most or cores(), cores(), len(every))) as pool:
        try:
            return list(pool.map(function, every))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def blocks(rows: int, elements: int, size: int | None = None) -> list[slice]:
    """The rows in blocks of about ``size`` elements (None for :data:`BLOCK`), where all rows have ``elements``."""
    step = max(1, (size or BLOCK) * rows // max(1, elements))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class Scratch(threading.local):
    """Arrays of float64 that a thread uses for one block after another.

    New arrays of megabytes would be unmapped after every block, and their pages provided again by the operating system, which
    takes far longer than the arithmetic.

    Args:
        count: number of arrays.
    """

    def __init__(self, count: int) -> None:
        self._arrays = np.empty((count, 0))

    def of(self, size: int) -> npt.NDArray[np.float64]:
        """The arrays, of this length: (count, size)."""
        if self._arrays.shape[1] < size:
            self._arrays = np.empty((len(self._arrays), size))
        return self._arrays[:, :size]


def digest_of(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A hash of the names, dtypes, shapes and bytes of arrays: BLAKE2b of the hashes of their blocks, on all CPU cores."""
    total = blake2b(digest_size=32)
    for name, array in arrays.items():
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        total.update(f"{name} {array.dtype} {array.shape}\0".encode())
        parts = [octets[block] for block in blocks(octets.size, octets.size // 64)]
        for part in in_threads(_blake2b, parts):
            total.update(part)
    return total.digest()


def _blake2b(octets: npt.NDArray[np.uint8]) -> bytes:
    return blake2b(octets.data).digest()


def by_rows(*names: str, summed: Sequence[str] = ()) -> Callable[[Reference], Reference]:
    """A decorator of ``reference``: it is computed in blocks of rows, on all CPU cores, without temporaries of the whole size.

    It is for references of which row i (element i, where there is one axis) depends on no other row of the named inputs::

        @by_rows("x", "dy", summed=["dgamma"])
        def reference(self, x, dy, gamma): ...

    The function is called with a block of each named input and with all of the others. The blocks of its results are joined
    along the first axis. Those in ``summed`` are added up in the order of the blocks, so that they do not depend on the number
    of cores.

    Args:
        names: inputs whose first axes have the same length. Those that are absent or None are left out.
        summed: results that are sums over the rows.

    Raises:
        DescriptionError: in the decorated function, if the named inputs differ in length, or a result has not the length of the
            block.
    """

    def decorated(reference: Reference) -> Reference:
        parameters = list(signature(reference).parameters)[1:]

        @wraps(reference)
        def in_blocks(workload: Any, *values: Any, **named: Any) -> dict[str, Any]:
            inputs = {**dict(zip(parameters, values, strict=False)), **named}
            split = {name: inputs[name] for name in names if inputs.get(name) is not None}
            lengths = {name: len(value) for name, value in split.items()}
            if len(set(lengths.values())) != 1:
                raise DescriptionError(f"{workload.name}: reference() is computed by rows, of which its inputs have {lengths}")
            rows = next(iter(lengths.values()))
            joined = _Joined(workload.name, rows, summed)

            def compute(block: slice) -> Mapping[str, Any]:
                mine = {name: value[block] for name, value in split.items()}
                return joined.entered(block, reference(workload, **{**inputs, **mine}))

            every = blocks(rows, max(value.size for value in split.values()))
            if len(every) <= 1:
                return reference(workload, **inputs)
            first = compute(every[0])  # makes the arrays of the results
            return joined.result([first, *in_threads(compute, every[1:])])

        return in_blocks  # type: ignore[return-value]  # the same call by names

    return decorated


class _Joined:
    """The results of a reference, which is computed in blocks."""

    def __init__(self, kernel: str, rows: int, summed: Sequence[str]) -> None:
        self.kernel = kernel
        self.rows = rows
        self.summed = summed
        self.arrays: dict[str, npt.NDArray[Any]] = {}

    def entered(self, block: slice, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Enter the results of a block; return its sums."""
        length = block.stop - block.start
        for name, value in found.items():
            if name in self.summed:
                continue
            part = np.asarray(value)
            if part.shape[:1] != (length,):
                raise DescriptionError(
                    f"{self.kernel}: reference() is computed by rows, but {name} of {length} rows has shape {part.shape}; "
                    "name it in summed, or do not compute the reference by rows"
                )
            if name not in self.arrays:
                self.arrays[name] = np.empty((self.rows, *part.shape[1:]), part.dtype)
            self.arrays[name][block] = part
        return {name: found[name] for name in self.summed if name in found}

    def result(self, sums: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All results, in the order in which the reference returns them as far as they are joined, then the sums."""
        totals = {name: sum((part[name] for part in sums[1:]), sums[0][name]) for name in sums[0]}
        return {**self.arrays, **totals}
