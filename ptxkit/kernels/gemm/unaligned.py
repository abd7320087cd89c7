"""Launches of matmul_unaligned.cu: products of matrices whose rows in memory are no multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ptxkit import Launch, TensorMap, Tile, cdiv
from ptxkit.kernels.gemm import stream_model, wgmma_tiles
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import measured
from ptxkit.kernels.template import TemplateStruct

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_unaligned.cu"
COPY_SOURCE = "align_rows.cu"
BK = 64  # elements of k in a tile
ALIGNMENT = wgmma_tiles.ALIGNMENT
SIZE = 2  # bytes of an element
LINE = 128 // SIZE  # elements of which the pitch of a copy is a multiple, so that no row has a part of a cache line
STEPS_FOR_PIECES = 10
"""Steps along k from which consumers that compute tiles in turn may store rows in pieces.

Each piece has ends of its own, and with fewer steps one consumer stores longer than the other one multiplies. On an H100, tiles
of 192 columns in two pieces were slower than those of 160 in one up to a k of 495, and faster from 670 on.
"""
MOST_SUMS = 128  # of a thread
SHIFTED_ROWS = 16  # of c that a warp stores at a time
ROWS_BYTES = 8 * 72 * 4  # of a consumer warp that stores sums
COPY_THREADS, COPY_BATCH = 256, 4  # vectors of a thread

COPY_US = 1.5  # of the launch that copies operands, on an H200
COPY_GBS = 3500.0  # of the bytes that it reads and writes: with 3 x 8191 x 8191, step 12 took 112 us, of which this is 77

NO_COPIES: Mapping[str, tuple[int, int]] = MappingProxyType({})

SPACE = {
    "BM": [128, 64, 256],  # rows and columns of c in a tile
    "BN": [256, 128, 64, 192],
    "CONSUMERS": [2, 1],  # warpgroups that multiply
    "STAGES": [4, 3, 5, 6, 8],  # stages of the ring of tiles
    "GROUP": [16, 4, 8, 32, 1],  # rows of tiles in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
    "REGISTERS": [200, 0],  # registers of a consumer thread; 0: the same as of a producer thread
}


class Boxes(Protocol):
    """The operands of a product as a template argument, which give the tensor maps for their copies."""

    def boxes(self, a: str, b: str, rows: int, cols: int) -> tuple[TensorMap, TensorMap]:
        """Tensor maps of the arrays a and b, for copies of ``rows`` rows of a and ``cols`` rows of b, (n, k)."""


@dataclass(frozen=True)
class UnalignedTile(TemplateStruct):
    """``UnalignedTile`` of the kernel."""

    BM: int
    BN: int
    CONSUMERS: int
    STAGES: int
    GROUP: int
    REGISTERS: int


@dataclass(frozen=True)
class Producers(TemplateStruct):
    """``Producers`` of the kernel: whether threads fill the tiles of an operand, instead of TMA."""

    A: int
    B: int


def aligned(pitch: int) -> bool:
    """Whether a tensor map can describe rows with this pitch, in elements."""
    return pitch * SIZE % ALIGNMENT == 0


def pitches(w: Matmul) -> dict[str, int]:
    """Elements from one row in memory to the next, of a, b and c."""
    given = {name: getattr(w, f"ld{name}", 0) for name in "abc"}
    return {name: given[name] or length for name, length in {**stored_columns(w), "c": w.n}.items()}


def needed(w: Matmul) -> str | None:
    """Why TMA cannot read and write all matrices; None if it can."""
    for name, pitch in pitches(w).items():
        if not aligned(pitch):
            return f"rows of {name} have {pitch * SIZE} bytes in memory, no multiple of {ALIGNMENT}"
    return None if aligned(w.n) else f"rows of c have {w.n * SIZE} bytes, no multiple of {ALIGNMENT}"


def simple(w: Matmul) -> bool:
    """Whether the epilogue reads no arrays, so that it needs few registers."""
    return not w.beta and w.epilogue == "none"


def stores_by_tma(w: Matmul) -> bool:
    """Whether TMA can store c: it writes all of the last 16 bytes of a row."""
    return aligned(pitches(w)["c"]) and aligned(w.n)


def shifted_bytes(width: int) -> int:
    """Shared memory of a warp for rows of ``width`` columns of c that begin anywhere: ``shifted_bytes`` of shifted_rows.cuh."""
    vectors = SIZE * width // ALIGNMENT
    return SHIFTED_ROWS * ALIGNMENT * (vectors + 1 + vectors % 2)


def pieces(w: Matmul, t: Mapping[str, int]) -> int:
    """The pieces of a row of c that a warp stores one after the other, the fewest that fit into shared memory; 0 without room.

    Each has a multiple of 8 columns, whole vectors (cu/ptxkit/gemm/shifted_rows.cuh).
    """
    ring = t["STAGES"] * ((t["BM"] + t["BN"]) * BK * SIZE + 16)
    of_warp = (w.device.target.limits.shared_bytes_per_cta - ring) // (4 * t["CONSUMERS"])
    for count in range(1, t["BN"] // 8 + 1):
        if t["BN"] % (8 * count) == 0 and shifted_bytes(t["BN"] // count) <= of_warp:
            return count
    return 0


def copies(w: Matmul) -> dict[str, tuple[int, int]]:
    """The operands that step 12 copies: name -> shape of the copy."""
    stored, pitch = dict(zip("ab", w.stored(w.m, w.n, w.k), strict=True)), pitches(w)
    return {
        name: (rows, cdiv(columns, LINE) * LINE) for name, (rows, columns) in stored.items() if not aligned(pitch[name])
    }


def copies_us(w: Matmul) -> float:
    """The predicted time of the copies before steps 12 to 15, in microseconds; 0 without copies."""
    nbytes = sum(SIZE * rows * columns for rows, columns in copies(w).values())
    return COPY_US + 2 * nbytes / (COPY_GBS * 1e3) if nbytes else 0.0


def usable(w: Matmul, t: Tile) -> bool | str:
    """The constraint of step 11."""
    if (sums := t.BM * t.BN // (128 * t.CONSUMERS)) > MOST_SUMS:
        return f"a thread of {t.CONSUMERS} consumers holds {sums} sums of {t.BM} x {t.BN}, more than {MOST_SUMS}"
    if t.BM % (64 * t.CONSUMERS):
        return f"BM={t.BM} is not a multiple of 64 rows for each of {t.CONSUMERS} consumers"
    if t.REGISTERS and t.CONSUMERS == 1:
        return "one consumer has enough registers without setmaxnreg"
    limit = w.device.target.limits.shared_bytes_per_cta
    if (bytes_needed := shared_bytes(t) + 16 * t.STAGES) > limit:
        return f"needs {bytes_needed} bytes of shared memory, more than {limit}"
    return True


def shared_bytes(t: Tile) -> int:
    """Dynamic shared memory of a CTA: the ring, and the rows that consumer warps store."""
    return int(t.STAGES * (t.BM + t.BN) * BK * SIZE + 4 * t.CONSUMERS * ROWS_BYTES)


def alternating(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles of steps 8 and 12 that consumers compute in turn."""
    return wgmma_tiles.alternating_candidates(w, simple=simple(w), two_boxes=True)


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles of step 12: those of step 8 with memory for rows of c that TMA cannot store."""
    by_tma, most = stores_by_tma(w), None if cdiv(w.k, BK) >= STEPS_FOR_PIECES else 1
    yield from (t for t in wgmma_tiles.candidates(w) if by_tma or pieces(w, t))
    yield from (t for t in alternating(w) if by_tma or 0 < pieces(w, t) <= (most or t["BN"]))


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What step 12 does after the copies, whose rows are whole cache lines."""
    made, of_copies = wgmma_tiles.stream_work(w, t), copies(w)
    of = {name: 0.0 if name in of_copies else wgmma_tiles.split_rows(pitch * SIZE) for name, pitch in pitches(w).items()}
    rows, cols = t["BM"] / t["CLUSTER_N"], t["BN"] / t["CLUSTER_M"]
    split = (rows * of["a"] + cols * of["b"]) / (rows + cols)
    if stores_by_tma(w):
        return replace(made, split=split)
    return replace(made, split=split, shifted=made.ends, box_rows=0.0)


def few_steps(w: Matmul, t: Mapping[str, int]) -> bool:
    """Whether a tile has the model of few steps along k, which has times of shifted vectors only where consumers alternate."""
    return wgmma_tiles.few_steps(w) and (stores_by_tma(w) or bool(t.get("PING_PONG")))


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time of step 12 by the model, without that of the copies."""
    entry = measured(w.device)
    rates = wgmma_tiles.rates_of(entry, t, others=entry.unaligned, few=few_steps(w, t))
    return stream_model.predicted_us(rates, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t))


def filled(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The tiles of step 11, whose model is that of step 12: with at most two consumers, and whole passes of 64 columns."""
    for t in sorted(wgmma_tiles.candidates(w), key=lambda t: predicted_us(w, t)):
        tile = Tile({**{name: t[name] for name in SPACE}, "REGISTERS": 200 if t["REGISTERS"] else 0})
        alone = t["CLUSTER_M"] * t["CLUSTER_N"] == 1 and t["BN"] in SPACE["BN"] and t["CONSUMERS"] in SPACE["CONSUMERS"]
        if alone and usable(w, tile) is True:
            yield tile


def stores_pairs(w: Matmul) -> int:
    """Whether all rows of c begin and end at multiples of 16 bytes, a template argument of steps 13 to 15."""
    return int(stores_by_tma(w))


def launches(w: Matmul, operands: Boxes, t: Tile) -> list[Launch]:
    """A launch of ``matmul_unaligned``."""
    pitch = pitches(w)
    by_threads = {name: not aligned(pitch[name]) for name in "ab"}
    maps = []
    for name, made in zip("ab", operands.boxes("a", "b", t.BM, t.BN), strict=True):
        if by_threads[name]:  # a map that is not used, of an array with aligned rows
            maps.append(TensorMap(name, box=(8,), shape=(1,)))
        else:
            maps.append(map_of(w, made))
    producers = Producers(*map(int, by_threads.values()))
    product = Launch(
        "matmul_unaligned",
        min(cdiv(w.m, t.BM) * cdiv(w.n, t.BN), w.device.sms),
        128 * (t.CONSUMERS + 1),
        (*maps, "a", "b", *w.scalars, pitch["a"], pitch["b"]),
        shared=shared_bytes(t),
        template=(UnalignedTile(**t), f"ptxkit::{w.kind}", operands, producers, w.epilogue_bits),
    )
    return [product]


def map_of(w: Matmul, made: TensorMap, of_copies: Mapping[str, tuple[int, int]] = NO_COPIES) -> TensorMap:
    """The tensor map ``made`` of a, b or c with the rows that the array has in memory, or of its copy if it is among these."""
    name = made.array
    stored = {**dict(zip("ab", w.stored(w.m, w.n, w.k), strict=True)), "c": (w.m, w.n)}[name]
    copied = name in of_copies
    columns = of_copies[name][1] if copied else pitches(w)[name]
    return replace(made, array=f"{name}_aligned" if copied else name, shape=stored, strides=(columns * SIZE, SIZE))


def promotion(made: TensorMap) -> str:
    """How much a miss brings into L2, for few tiles with a long k: the second line too where rows of tiles lie in two.

    With rows that begin within a cache line, 256 bytes took 1.7% less time than no promotion in 29 tiles, the less the longer k
    is. With rows of whole lines they change nothing, and where many tiles read the same rows they cost up to 15%.
    """
    return "256B" if made.strides and wgmma_tiles.split_rows(made.strides[0]) else "none"


def copying(w: Matmul, of_copies: Mapping[str, tuple[int, int]]) -> list[Launch]:
    """The launch of ``align_rows`` for one or both operands; none without copies."""
    copied = [
        Copied(name, f"{name}_aligned", rows, stored_columns(w)[name], pitches(w)[name], columns * SIZE // ALIGNMENT)
        for name, (rows, columns) in of_copies.items()
    ]
    return align_rows(f"ptxkit::{w.kind}", copied)


class Copied(NamedTuple):
    """A matrix that ``align_rows`` copies: its name and that of the copy, its sizes, the elements from one of its rows to the
    next, and the vectors of 16 bytes of a row of the copy."""

    name: str
    to: str
    rows: int
    columns: int
    pitch: int
    vectors: int


def align_rows(element: str, copied: Sequence[Copied]) -> list[Launch]:
    """The launch of ``align_rows`` for one or two matrices of a type; none without matrices."""
    if not copied:
        return []
    arguments: list[object] = []
    ctas = 0
    for matrix in copied:
        arguments += [ctas, *matrix] if arguments else matrix
        ctas += cdiv(matrix.rows * matrix.vectors, COPY_THREADS * COPY_BATCH)
    if len(copied) == 1:
        arguments += [ctas, *[np.uint64(0)] * 2, *[0] * 4]
    return [Launch("align_rows", ctas, COPY_THREADS, tuple(arguments), template=(element,), source=COPY_SOURCE)]


def stored_columns(w: Matmul) -> dict[str, int]:
    """Elements of a row of a and b in memory."""
    return {name: columns for name, (_, columns) in zip("ab", w.stored(w.m, w.n, w.k), strict=True)}
