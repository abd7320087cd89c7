"""What descriptions of element-wise kernels with one value for each column share: the launch of ``for_each_row_vector``.

The loop is in ``cu/ptxkit/elementwise/elementwise.cuh``; the template arguments of such a kernel are the type, then
``THREADS, LANES, ROWS, CACHE``. The workloads have ``rows``, ``cols`` and ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.elementwise.elementwise import TILE, width
from ptxkit.kernels.measured import keep_input_bytes, measured

ROW_TILE: Mapping[str, list[int]] = {
    "THREADS": TILE["THREADS"],  # threads of a CTA
    "ROWS": [1, 2, 4, 8],  # rows of a thread: the number of vectors of each input in flight
    "CACHE": TILE["CACHE"],
}


def lanes(w: Any, threads: int) -> int:
    """Threads of a CTA that share a row: a power of two, at most ``threads``, and no more than the row has vectors."""
    return min(threads, 1 << (cdiv(w.cols, width(w.dtype)) - 1).bit_length())


def ctas(w: Any, threads: int, rows: int) -> int:
    """CTAs of a launch whose threads compute ``rows`` rows each."""
    across = lanes(w, threads)
    return cdiv(w.rows, rows * threads // across) * cdiv(w.cols, across * width(w.dtype))


def usable(inputs: int) -> Callable[[Any, Tile], bool | str]:
    """A constraint for :data:`ROW_TILE`; ``inputs`` is the number of arrays with a value for each element."""

    def check(w: Any, t: Tile) -> bool | str:
        registers = w.device.target.limits.registers // t.THREADS
        if min(registers, 255) < 4 * inputs * t.ROWS + 44:
            return f"{t.THREADS} threads have {registers} registers each, too few for ROWS={t.ROWS}"
        if t.ROWS > 1 and w.rows <= t.ROWS // 2 * (t.THREADS // lanes(w, t.THREADS)):
            return f"half of ROWS={t.ROWS} covers all {w.rows} rows"
        return True

    return check


def preferred(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles by size. Up to several times the L2 cache: one thread per vector. Larger: more bytes in flight per thread, and L2
    keeps the inputs."""
    small = w.rows * w.cols <= measured(w.device).elementwise.small_vectors * width(w.dtype)
    if w.work().bytes < keep_input_bytes(w.device):
        yield {"THREADS": 128 if small else 256, "ROWS": 1}
    else:
        yield {"THREADS": 256, "ROWS": 2, "CACHE": 4}
    yield {"THREADS": 128, "ROWS": 1, "CACHE": 4}


def launch(
    kernel: str, w: Any, t: Tile, args: tuple[object, ...], template: tuple[object, ...], more: tuple[object, ...] = ()
) -> Launch:
    """A vectorized launch; ``template`` comes before the tile's arguments, and ``more`` after them."""
    return Launch(
        kernel,
        ctas(w, t.THREADS, t.ROWS),
        t.THREADS,
        args,
        template=(*template, t.THREADS, lanes(w, t.THREADS), t.ROWS, t.CACHE, *more),
    )
