"""Large matrix products of references: by numpy on all CPU cores, or by a library on an idle GPU.

The float64 products of the largest benchmarks take minutes on a CPU. A caller that has an idle GPU provides a library for them
with :func:`by_library`; it is used where sending the operands takes less time than numpy's product. It has to be independent of
what is verified, and each of its products is compared with numpy's in rows that are drawn at random. After a difference, numpy
computes all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.blas import one_thread
from ptxkit.errors import PtxkitError
from ptxkit.workload.parallel import blocks, in_threads

Array = npt.NDArray[Any]
Multiply = Callable[[Array, Array], Array]
"""a (m, k) and b (n, k), of float32 or float64 and C-contiguous -> a b^T, with all sums in their type.

Raises PtxkitError if it cannot be computed, for example because there is too little memory.
"""

FLOPS_PER_S = 5e11  # of numpy's float64 product on 16 cores; twice that in float32
BYTES_PER_S = 5e9  # of operands and results, from and to memory of the host that is not page-locked
WORTH_S = 0.1  # seconds of numpy's product from which the library is used
ROWS = 8  # of each product that numpy computes, too
SPREADS = 8.0  # permitted error, in roundings of a sum: see ptxkit.workload.tolerance


class LeftToLibrary(PtxkitError):
    """A product that another process computes, which has the library."""


@dataclass
class _State:
    """The library of this process, None for none, and a function that is called with a line about its failures."""

    multiply: Multiply | None = None
    tell: Callable[[str], None] = print


_STATE = _State()


@contextmanager
def by_library(multiply: Multiply | None, tell: Callable[[str], None]) -> Iterator[None]:
    """A context in which ``multiply`` computes the large products of all threads.

    Args:
        multiply: None for no library. tell: called with a line when numpy has to compute what the library did not.
    """
    before = replace(_STATE)
    _STATE.multiply, _STATE.tell = multiply, tell
    try:
        yield
    finally:
        _STATE.multiply, _STATE.tell = before.multiply, before.tell


def product(a: Array, b: Array, wide: Any) -> Array:
    """a b^T of a (m, k) and b (n, k), both converted to ``wide`` before, by numpy or by the library of :func:`by_library`."""
    found = of_library(a, b, wide)
    return converted(a, wide) @ converted(b, wide).T if found is None else found


def of_library(a: Array, b: Array, wide: Any) -> Array | None:
    """:func:`product` by the library; None if there is none, or if numpy's product takes less time."""
    multiply = _STATE.multiply
    if multiply is None or not _is_worth_it(len(a), len(b), a.shape[1], np.dtype(wide).itemsize):
        return None
    if multiply is leave:
        return leave(a, b)
    x, y = converted(a, wide), converted(b, wide)
    try:
        found = multiply(x, y)
    except PtxkitError as error:
        _STATE.tell(f"numpy computes a product of a reference: {error}")
        return None
    if complaint := difference(x, y, found):
        _STATE.multiply = None
        _STATE.tell(f"numpy computes the products of references, because those of the library are wrong: {complaint}")
        return None
    return found


def leave(a: Array, b: Array) -> Array:
    """A ``multiply`` for :func:`by_library` in a process that leaves large products to another one."""
    raise LeftToLibrary("another process computes this product")


def _is_worth_it(m: int, n: int, k: int, itemsize: int) -> bool:
    """Whether sending operands and results takes less time than numpy's product."""
    numpy_s = 2 * m * n * k * (itemsize / 8) / FLOPS_PER_S  # on any cores, so that all processes of a benchmark decide alike
    return numpy_s > WORTH_S and (m * k + n * k + m * n) * itemsize / BYTES_PER_S < numpy_s


def difference(a: Array, b: Array, found: Array) -> str:
    """What is wrong with a product in rows that are drawn at random, in words; "" if it agrees with numpy's in float64.

    The error of a sum of k terms is a few times its rounding times the root of k and the magnitude of the sum, which for
    terms of random sign is the root of the sum of their squares.
    """
    if found.shape != (len(a), len(b)):
        return f"the product has shape {found.shape} instead of {(len(a), len(b))}"
    k = a.shape[1]
    chosen = np.random.default_rng(int.from_bytes(os.urandom(8), "little")).integers(len(a), size=min(ROWS, len(a)))
    rows = a[chosen].astype(np.float64)
    squares = np.square(rows)
    rounding = np.finfo(found.dtype).eps / 2

    def of_columns(block: slice) -> str:
        y = b[block].astype(np.float64)
        wanted = rows @ y.T
        magnitude = np.sqrt(squares @ np.square(y).T) + np.abs(wanted)
        error = np.abs(found[chosen, block] - wanted)
        wrong = ~(error <= SPREADS * math.sqrt(k) * rounding * magnitude)
        if not wrong.any():
            return ""
        row, column = np.argwhere(wrong)[0]
        at = int(chosen[row]), block.start + int(column)
        return f"element {at} is {found[at]}, numpy's is {wanted[row, column]}"

    with one_thread():  # of OpenBLAS for each of ours
        return next(filter(None, in_threads(of_columns, blocks(len(b), b.size))), "")


def converted(array: Array, wide: Any) -> Array:
    """An array in another type and in the order of C, converted on all CPU cores."""
    if array.dtype == wide and array.flags.c_contiguous:
        return array
    result = np.empty(array.shape, wide)

    def convert(rows: slice) -> None:
        convert_to(array[rows], result[rows])

    in_threads(convert, blocks(len(array), array.size))
    return result


def convert_to(array: Array, result: Array) -> None:
    """Write the elements of an array to one of another type, which is C-contiguous.

    Floating-point numbers of 8 bits are looked up: ml_dtypes takes six times as long to convert them.
    """
    if array.dtype.itemsize == 1 and array.dtype.kind not in "biu":
        np.take(_values(array.dtype, result.dtype), array.view(np.uint8), out=result, mode="clip")  # "raise" would buffer
    else:
        result[...] = array


@cache
def _values(dtype: np.dtype[Any], wide: np.dtype[Any]) -> Array:
    """The 256 numbers of an 8-bit type."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(wide)
