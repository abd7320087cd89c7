"""Tiles of matmul_short_k.cu: small products with a short k and rows of any length, by many small CTAs and mma.sync.

The tile is the one for which a model predicts the shortest time (:mod:`ptxkit.kernels.gemm.stream_model`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxkit import Launch, Tile, cdiv
from ptxkit.kernels.gemm import direct, stream_model, unaligned
from ptxkit.kernels.gemm.stream_model import ROW_BYTES, StreamWork
from ptxkit.kernels.gemm.wgmma_tiles import split_share
from ptxkit.kernels.measured import measured
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.sm import WARP

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_short_k.cu"
STAGES = {64: 5, 128: 3}  # elements of k in a stage -> stages
VECTOR = 8  # elements

SPACE = {
    "DOWN": [4, 1, 2, 8],  # warps with different rows of c
    "ACROSS": [1, 2, 4],  # warps with different columns
    "DEEP": [1, 2, 4, 8],  # warps that divide k
    "WM": [16, 32],
    "WN": [32, 8, 16, 64],
    "DEPTH": [128, 64],  # elements of k in a stage
}

MOST_STEPS = 2  # of 128 bytes along k, up to which the variant is considered: one chunk
TILES = ((4, 1, 1, 16, 32, 128), (2, 2, 1, 32, 32, 128))  # of SPACE, those that are considered


@dataclass(frozen=True)
class ShortTile(TemplateStruct):
    """``ShortTile`` of the kernel."""

    DOWN: int
    ACROSS: int
    DEEP: int
    WM: int
    WN: int
    DEPTH: int
    STAGES: int


def rows(t: Mapping[str, int]) -> int:
    """Rows of a in a tile."""
    return t["DOWN"] * t["WM"]


def columns(t: Mapping[str, int]) -> int:
    """Rows of b in a tile."""
    return t["ACROSS"] * t["WN"]


def threads(t: Mapping[str, int]) -> int:
    """Threads of a CTA."""
    return WARP * t["DOWN"] * t["ACROSS"] * t["DEEP"]


def stage_bytes(t: Mapping[str, int]) -> int:
    """Bytes of the rows of a chunk of k, each with a vector more than it needs."""
    return (rows(t) + columns(t)) * (t["DEPTH"] + VECTOR) * unaligned.SIZE


def shared_bytes(w: Matmul, t: Mapping[str, int]) -> int:
    """Dynamic shared memory of a CTA: the stages, and the elements of c."""
    of_c = (rows(t) * (columns(t) + VECTOR) + VECTOR) * unaligned.SIZE
    return min(STAGES[t["DEPTH"]], cdiv(w.k, t["DEPTH"])) * stage_bytes(t) + of_c


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of step 19."""
    if not direct.along_k(w):
        return "reads rows of a and of b along k: layout tn"
    if threads(t) % t["DEPTH"]:
        return f"{threads(t)} threads are no multiple of the {t['DEPTH']} that copy 8 rows"
    if (most := max(rows(t), columns(t))) > threads(t):
        return f"{threads(t)} threads are fewer than the {most} rows of an operand, of which each copies the last vector of one"
    limits = w.device.target.limits
    if 4 * (t["DEEP"] - 1) * rows(t) * columns(t) > stage_bytes(t):
        return f"the sums of {t['DEEP']} parts do not fit into the memory of a stage"
    if (across := cdiv(w.n, columns(t))) > limits.grid[1]:
        return f"n={w.n} has {across} tiles of {columns(t)} columns, more than the {limits.grid[1]} of a grid"
    if (needed := shared_bytes(w, t)) > limits.shared_bytes_per_cta:
        return f"needs {needed} bytes of shared memory, more than {limits.shared_bytes_per_cta}"
    return True


def launches(w: Matmul, t: Tile) -> list[Launch]:
    """A launch of ``matmul_short_k``."""
    pitch = unaligned.pitches(w)
    tile = ShortTile(t.DOWN, t.ACROSS, t.DEEP, t.WM, t.WN, t.DEPTH, STAGES[t.DEPTH])
    return [
        Launch(
            "matmul_short_k",
            (cdiv(w.m, rows(t)), cdiv(w.n, columns(t))),
            threads(t),
            ("a", "b", *w.scalars, pitch["a"], pitch["b"]),
            shared=shared_bytes(w, t),
            template=(tile, f"ptxkit::{w.kind}", w.epilogue_bits),
        )
    ]


def considered(w: Matmul) -> bool:
    """Whether the variant may be the fastest: where TMA cannot read an operand, and k has few steps.

    There are times of such products alone: of four, with 25 to 2919 columns and k from 63 to 124.
    """
    return direct.along_k(w) and cdiv(w.k * unaligned.SIZE, ROW_BYTES) <= MOST_STEPS and bool(unaligned.copies(w))


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
    """The tiles to consider: those whose CTAs are resident at the same time, of which alone there are times."""
    yield from (t for t in fitting(w) if ctas(w, t) <= resident(w, t) * w.device.sms)


def resident(w: Matmul, t: Mapping[str, int]) -> int:
    """CTAs that share an SM, by their shared memory and threads."""
    limits = w.device.target.limits
    of_memory = limits.shared_bytes // (shared_bytes(w, t) + limits.reserved_bytes)
    return max(1, min(of_memory, limits.threads // threads(t)))


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What the launch does. Warps read the rows of their sums in shared memory, twice if a row begins within a word."""
    count, of_k = ctas(w, t), cdiv(w.k * unaligned.SIZE, ROW_BYTES)
    on_sm, sums = cdiv(count, w.device.sms), rows(t) * columns(t)
    together = min(on_sm, resident(w, t))
    pitch = unaligned.pitches(w)
    odd = 2 if (pitch["a"] | pitch["b"]) % 2 else 1
    read = t["DOWN"] * t["ACROSS"] * (t["WM"] + t["WN"]) * odd
    height = min(rows(t), w.m)
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, height, columns(t)),
        steps=on_sm * of_k,
        rows=height,
        columns=columns(t),
        delivered=height + columns(t),
        sms=min(count, w.device.sms),
        idle=1 - min(count, w.device.sms) / w.device.sms,
        stages=min(of_k, STAGES[t["DEPTH"]] * t["DEPTH"] * unaligned.SIZE // ROW_BYTES) * together,
        units=read / (64 + columns(t)),
        wgmma_columns=columns(t),
        ends=sums * on_sm,
        shifted=0.0 if unaligned.stores_by_tma(w) else sums * on_sm,
        waves=cdiv(on_sm, together) - 1,
    )


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.short_k or entry.swapped, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """Those tiles, the one with the shortest predicted time first."""
    yield from sorted(fitting(w), key=lambda t: predicted_us(w, t))
