"""Tiles of matmul_short_k.cu: small products with a short k and rows of any length, by many small CTAs and mma.sync.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm import direct, stream_model, unaligned
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import split_share
from ptxkit.kernels.measured import measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import SHARED_BANKS, WARP

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_short_k.cu"
VECTOR = 8  # elements
BARRIER_BYTES = 16
READ_BEYOND = 48  # bytes after the last row that a step of 16 elements may read, and multiplies by nothing
BANK_ELEMENTS = 16  # rows whose pitch is a multiple of it begin in few banks

SPACE = {
    "DOWN": [2, 1, 4],  # warps with different rows of c
    "ACROSS": [2, 1, 4],  # warps with different columns
    "DEEP": [1, 2, 4],  # warps that divide k
    "WM": [16, 32],
    "WN": [16, 32],
    "STAGED": [0, 1],  # whether c is stored through shared memory
}

MOST_STEPS = 16  # of 128 bytes along k, up to which the variant is considered
TILES = (  # of SPACE, those that are considered
    (1, 1, 4, 16, 16, 0),
    (1, 4, 1, 16, 16, 1),
    (2, 2, 1, 16, 16, 1),
    (4, 1, 1, 16, 32, 1),
    (2, 2, 1, 32, 32, 1),
)


@dataclass(frozen=True)
class ShortTile(TemplateStruct):
    """``ShortTile`` of the kernel."""

    DOWN: int
    ACROSS: int
    DEEP: int
    WM: int
    WN: int
    STAGED: int


def rows(t: Mapping[str, int]) -> int:
    """Rows of a in a tile."""
    return t["DOWN"] * t["WM"]


def columns(t: Mapping[str, int]) -> int:
    """Rows of b in a tile."""
    return t["ACROSS"] * t["WN"]


def threads(t: Mapping[str, int]) -> int:
    """Threads of a CTA."""
    return WARP * t["DOWN"] * t["ACROSS"] * t["DEEP"]


def strides(w: Matmul) -> dict[str, int]:
    """Elements from one row of a and of b to the next in shared memory.

    That of a contiguous matrix, whose rows are copied as one piece, unless they would begin in few banks; else an odd number of
    vectors, with which neighbouring rows begin in different ones.
    """
    padded = VECTOR * (cdiv(w.k + VECTOR - 1, VECTOR) | 1)
    pitch = unaligned.pitches(w)
    return {x: w.k if pitch[x] == w.k and w.k % BANK_ELEMENTS else padded for x in "ab"}


def staged_at(w: Matmul, t: Mapping[str, int]) -> int:
    """Bytes of shared memory before those for elements of c: the rows of both operands, which sums of parts of k replace."""
    stride = strides(w)
    operands = unaligned.SIZE * (rows(t) * stride["a"] + columns(t) * stride["b"]) + READ_BEYOND
    sums = 4 * (t["DEEP"] - 1) * rows(t) * columns(t)
    return BARRIER_BYTES + cdiv(max(operands, sums), unaligned.ALIGNMENT) * unaligned.ALIGNMENT


def shared_bytes(w: Matmul, t: Mapping[str, int]) -> int:
    """Dynamic shared memory of a CTA."""
    of_c = (rows(t) * (columns(t) + VECTOR) + VECTOR) * unaligned.SIZE
    return staged_at(w, t) + t["STAGED"] * of_c


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of step 19."""
    if not direct.along_k(w):
        return "reads rows of a and of b along k: layout tn"
    limits = w.device.target.limits
    if not 2 * WARP <= threads(t) <= limits.threads_per_cta:
        return f"{threads(t)} threads are not from {2 * WARP} to {limits.threads_per_cta}"
    if (across := cdiv(w.n, columns(t))) > limits.grid[1]:
        return f"n={w.n} has {across} tiles of {columns(t)} columns, more than the {limits.grid[1]} of a grid"
    if (needed := shared_bytes(w, t)) > limits.shared_bytes_per_cta:
        return f"needs {needed} bytes of shared memory, more than {limits.shared_bytes_per_cta}"
    return True


def launches(w: Matmul, t: Tile) -> list[Launch]:
    """A launch of ``matmul_short_k``."""
    pitch, stride = unaligned.pitches(w), strides(w)
    return [
        Launch(
            "matmul_short_k",
            (cdiv(w.m, rows(t)), cdiv(w.n, columns(t))),
            threads(t),
            ("a", "b", *w.scalars, pitch["a"], pitch["b"], stride["a"], stride["b"], staged_at(w, t)),
            shared=shared_bytes(w, t),
            template=(ShortTile(t.DOWN, t.ACROSS, t.DEEP, t.WM, t.WN, t.STAGED), f"ptxkit::{w.kind}", w.epilogue_bits),
        )
    ]


def considered(w: Matmul) -> bool:
    """Whether the variant may be the fastest: where k has few steps."""
    return direct.along_k(w) and cdiv(w.k * unaligned.SIZE, ROW_BYTES) <= MOST_STEPS


def was_timed(w: Matmul) -> bool:
    """Whether there are times of such products."""
    return considered(w) and measured(w.device).short_k is not None


def ctas(w: Matmul, t: Mapping[str, int]) -> int:
    """CTAs of the launch."""
    return cdiv(w.m, rows(t)) * cdiv(w.n, columns(t))


def fitting(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles that can compute the product."""
    yield from (t for values in TILES if usable(w, t := dict(zip(SPACE, values, strict=True))) is True)


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider: those whose CTAs are resident at the same time, of which alone there are times.

    Where TMA can read both operands, one CTA on an SM: 2079 x 344 x 96, with 363 CTAs, took 4.1 us, step 8 2.9.
    """
    for t in fitting(w):
        if ctas(w, t) <= w.device.sms * (resident(w, t) if unaligned.copies(w) else 1):
            yield t


def resident(w: Matmul, t: Mapping[str, int]) -> int:
    """CTAs that share an SM, by their shared memory and threads."""
    limits = w.device.target.limits
    of_memory = limits.shared_bytes // (shared_bytes(w, t) + limits.reserved_bytes)
    return max(1, min(of_memory, limits.threads // threads(t)))


@cache
def wavefronts(stride: int, odd: bool) -> int:
    """Of a warp that reads a word of each lane of 8 rows, ``stride`` elements apart: the most words in one bank."""
    apart = 2 if odd else 1  # words between neighbouring lanes of a row
    words = {row * stride // 2 + lane * apart for row in range(8) for lane in range(4)}
    return max(Counter(word % SHARED_BANKS for word in words).values())


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What the launch does. Warps read the rows of their sums in shared memory, three words for two if they begin anywhere.

    A ``unit`` is 64 rows that are read; its columns stand for the time of a warp that waits for its own reads and products.
    """
    count, of_k = ctas(w, t), cdiv(w.k * unaligned.SIZE, ROW_BYTES)
    on_sm, sums = cdiv(count, w.device.sms), rows(t) * columns(t)
    together = min(on_sm, resident(w, t))
    pitch, stride = unaligned.pitches(w), strides(w)
    odd = bool((pitch["a"] | pitch["b"]) % 2)
    words = 3 if odd else 2
    of_warp = words * (t["WM"] * wavefronts(stride["a"], odd) + t["WN"] * wavefronts(stride["b"], odd)) / 2
    read = t["DOWN"] * t["ACROSS"] * of_warp
    alone = (words * (t["WM"] + t["WN"]) + t["WM"] * t["WN"] / 8) / (8 * t["DEEP"] * together)
    units = (read - alone) / 64
    height = min(rows(t), w.m)
    stored = sums * on_sm
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, height, columns(t)),
        steps=on_sm * of_k,
        rows=height,
        columns=columns(t),
        delivered=height + columns(t),
        sms=min(count, w.device.sms),
        idle=1 - min(count, w.device.sms) / w.device.sms,
        stages=of_k * together,
        units=units,
        wgmma_columns=alone / units,
        ends=stored,
        scattered=0.0 if t["STAGED"] else stored / (1 if pitch["c"] % 2 else 2),
        shifted=stored if t["STAGED"] and not unaligned.stores_by_tma(w) else 0.0,
        waves=cdiv(on_sm, together) - 1,
    )


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.short_k or entry.swapped, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """Those tiles, the one with the shortest predicted time first."""
    yield from sorted(fitting(w), key=lambda t: predicted_us(w, t))
