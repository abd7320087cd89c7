"""Step 12 of micro_tiling_matmul: few rows of a, whose product takes as long as reading b."""

from __future__ import annotations

from typing import Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm.micro_tiles import PARTS, F32Product
from ptxkit.targets import SmLimits
from ptxkit.targets.sm import SECTOR_BYTES

SPACE = {
    "ROWS": [1, 2, 4, 8, 16, 3],  # of a that a CTA multiplies
    "ACROSS": [32, 16, 8, 4],  # threads that cover a strip of four times as many columns
    "BATCH": [2, 1, 4],  # times four vectors of b that a thread has in flight
    "THREADS": [256, 128, 512, 1024],
    "PARTS": PARTS,
    "SHIFT": [0, 1],  # whether rows of b that are no multiples of 16 bytes are read by vectors, and sums shifted at the end
}
MOST_GROUPS = SmLimits.grid[1]
SECTOR = SECTOR_BYTES // 4  # elements
MOST_SHIFTED = 4  # rows of a, of which a thread has sums for each place at which rows of b may begin in a vector
WIDEST = 32  # threads that cover a strip
BESIDE = 20  # registers for addresses and counters


def access(w: F32Product, t: Tile) -> str:
    """How elements of b are read: an ``Access`` of cu/kernels/micro_tiling_few_rows.cu."""
    return "VECTORS" if w.n % 4 == 0 else "SHIFTED" if t.get("SHIFT", 0) else "ELEMENTS"


def many_strips(w: F32Product, rows: int) -> bool:
    """Whether single elements of b may be read, of up to MOST_SHIFTED rows of a, and each SM has a strip of the widest."""
    return may_shift(w, rows) and cdiv(w.n, 4 * WIDEST) * cdiv(w.m, rows) >= w.device.sms


def may_shift(w: F32Product, rows: int) -> bool:
    """Whether a thread has room for the sums of each place at which rows of b begin in a vector."""
    return w.n % 4 != 0 and rows <= MOST_SHIFTED


def strip_columns(w: F32Product, t: Tile) -> int:
    """Columns of a strip: four of each of ACROSS threads.

    Where vectors are read and at least half of the SMs have a strip, strips are narrower, down to half, if no SM then has fewer
    CTAs than others; they do not share a sector. Of single elements and shifted vectors, threads without columns would leave
    the loop of their warp, which takes longer.
    """
    reading = access(w, t)
    most = int(4 * (t.ACROSS - 1 if reading == "SHIFTED" else t.ACROSS))
    of_strip = t.PARTS * cdiv(w.m, t.ROWS)  # CTAs
    ctas, sms = cdiv(w.n, most) * of_strip, w.device.sms
    if reading != "VECTORS" or 2 * ctas < sms:
        return most
    narrower = cdiv(w.n, max(1, cdiv(ctas, sms) * sms // of_strip))
    return min(most, cdiv(max(narrower, most // 2), SECTOR) * SECTOR)


def strips(w: F32Product, t: Tile) -> int:
    """Strips of columns."""
    return cdiv(w.n, strip_columns(w, t))


def registers(w: F32Product, t: Tile) -> int:
    """Registers of a thread, about: the sums, a vector of each row of a if they are shifted, those of b, and addresses."""
    return int(t.ROWS * (20 if access(w, t) == "SHIFTED" else 4) + 16 * t.BATCH + BESIDE)


def at_once(w: F32Product, t: Tile) -> int:
    """CTAs of an SM, by their registers."""
    return max(1, int(w.device.target.limits.registers // (registers(w, t) * t.THREADS)))


def shared_bytes(t: Tile) -> int:
    """Dynamic shared memory: the sums of all threads."""
    return int(16 * t.ROWS * t.THREADS)


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of the variant."""
    limits = w.device.target.limits
    if t.get("SHIFT", 0) and not may_shift(w, t.ROWS):
        return f"SHIFT=1 is for up to {MOST_SHIFTED} rows of a and rows of b that are no multiples of 16 bytes"
    if cdiv(w.m, t.ROWS) > MOST_GROUPS:
        return f"m={w.m} has more than {MOST_GROUPS} groups of ROWS={t.ROWS}"
    if registers(w, t) > (most := limits.registers_of(t.THREADS)):
        return f"sums of {t.ROWS} rows and {t.BATCH} x 16 numbers of b need {registers(w, t)} registers, more than {most}"
    if cdiv(w.k, 4) < t.PARTS:
        return f"k={w.k} has fewer than PARTS={t.PARTS} times four rows of b"
    if shared_bytes(t) > (most := limits.shared_bytes_per_cta):
        return f"the sums need {shared_bytes(t)} bytes of shared memory, more than {most}"
    return True


def launches(w: F32Product, t: Tile) -> list[Launch]:
    """The launch of ``matmul_few_rows``."""
    return [
        Launch(
            "matmul_few_rows",
            (strips(w, t) * t.PARTS, cdiv(w.m, t.ROWS)),
            t.THREADS,
            (*w.arguments, strip_columns(w, t)),
            shared=shared_bytes(t),
            cluster=t.PARTS if t.PARTS > 1 else None,
            template=(t.ROWS, t.ACROSS, t.BATCH, t.THREADS, w.k % 4 == 0, access(w, t)),
        )
    ]
