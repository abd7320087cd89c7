"""Step 13 of micro_tiling_matmul: few columns of b, whose product takes as long as reading a."""

from __future__ import annotations

from typing import Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm.micro_tiles import PARTS, F32Product
from ptxkit.targets import WARP, SmLimits

SPACE = {
    "ROWS": [4, 8, 2, 1],  # of a that a warp multiplies
    "COLUMNS": [1, 2, 4, 8, 16],  # of b that a CTA multiplies
    "BATCH": [4, 2, 8],  # elements, or vectors of four, of each row that a thread has in flight
    "THREADS": [256, 128],
    "PARTS": PARTS,
}

MOST_GROUPS = SmLimits.grid[1]
BESIDE = 24  # registers for addresses and counters
MOST_VECTORS = 2  # of b that belong to one of a: the lanes of more would read from more cache lines than a has


def groups(w: F32Product, t: Tile) -> int:
    """Groups of rows, each of a CTA or of a cluster."""
    return cdiv(w.m, t.ROWS * t.THREADS // WARP)


def access(w: F32Product, t: Tile) -> str:
    """How elements are read: an ``Access`` of cu/kernels/micro_tiling_few_columns.cu."""
    if w.n == t.COLUMNS and w.n <= MOST_VECTORS and w.k % 4 == 0:
        return "VECTORS"
    return "B_VECTORS" if t.COLUMNS % 4 == 0 and w.n % 4 == 0 else "ELEMENTS"


def registers(w: F32Product, t: Tile) -> int:
    """Registers of a thread, about: the sums, the elements of a in flight, those of b, and addresses."""
    deep = 4 if access(w, t) == "VECTORS" else 1
    return int(t.ROWS * (t.COLUMNS + t.BATCH * deep) + deep * t.COLUMNS + BESIDE)


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of the variant."""
    if cdiv(w.n, t.COLUMNS) > MOST_GROUPS:
        return f"n={w.n} has more than {MOST_GROUPS} groups of COLUMNS={t.COLUMNS}"
    limits = w.device.target.limits
    if registers(w, t) > (most := limits.registers_of(t.THREADS)):
        needed = registers(w, t)
        return f"{t.ROWS} x {t.COLUMNS} sums and {t.BATCH} loads of {t.ROWS} rows need {needed} registers, more than {most}"
    if cdiv(w.k, WARP) < t.PARTS:
        return f"k={w.k} has fewer than PARTS={t.PARTS} times {WARP} elements"
    return True


def launches(w: F32Product, t: Tile) -> list[Launch]:
    """The launch of ``matmul_few_columns``."""
    return [
        Launch(
            "matmul_few_columns",
            (groups(w, t) * t.PARTS, cdiv(w.n, t.COLUMNS)),
            t.THREADS,
            w.arguments,
            cluster=t.PARTS if t.PARTS > 1 else None,
            template=(t.ROWS, t.COLUMNS, t.BATCH, t.THREADS, access(w, t)),
        )
    ]
