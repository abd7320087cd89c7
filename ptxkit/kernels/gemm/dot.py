"""Tiles of dot_rows.cuh: products with one or two rows of a as dot products with rows of b.

A model predicts with how many warps that divide k the time is the shortest (:mod:`ptxkit.kernels.gemm.stream_model`).
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

SOURCE = "matmul_dot.cu"
GATED_SOURCE = "swiglu_ffn_dot.cu"
WARPS = 8
THREADS = WARP * WARPS
PIECE_BYTES = 16 * WARP  # of a row of b that a warp reads at a time
MOST_ROWS = 1  # of a, up to which the step is considered: for two, others were faster where it was measured

SPACE = {
    "TOKENS": [1, 2],  # rows of a in a tile
    "BATCH": [4, 2, 8],  # vectors of a lane in flight
    "PARTS": [1, 2, 4, 8],  # of k, each for other warps
}


@dataclass(frozen=True)
class DotTile(TemplateStruct):
    """``DotTile`` of cu/ptxkit/gemm/dot_rows.cuh."""

    TOKENS: int
    BATCH: int
    MATRICES: int = 1


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of step 20."""
    if not direct.along_k(w):
        return "reads rows of a and of b along k: layout tn"
    pitch = unaligned.pitches(w)
    if not all(unaligned.aligned(length) for length in (w.k, pitch["a"], pitch["b"])):
        return f"rows of a and b have to be multiples of {unaligned.ALIGNMENT} bytes"
    if (tiles := cdiv(w.m, t["TOKENS"])) > (most := w.device.target.limits.grid[1]):
        return f"{tiles} tiles of rows of a are more than the {most} of a grid"
    return True


def across(t: Mapping[str, int]) -> int:
    """Rows of b of a CTA."""
    return WARPS // t["PARTS"]


def launches(w: Matmul, t: Tile) -> list[Launch]:
    """A launch of ``matmul_dot``."""
    pitch = unaligned.pitches(w)
    return [
        Launch(
            "matmul_dot",
            (cdiv(w.n, across(t)), cdiv(w.m, t.TOKENS)),
            THREADS,
            ("a", "b", *w.scalars, pitch["a"], pitch["b"], across(t)),
            template=(DotTile(t.TOKENS, t.BATCH), f"ptxkit::{w.kind}", w.epilogue_bits),
        )
    ]


def gated(gate: Matmul, down: Matmul, t: Mapping[str, int], cu: str) -> list[Launch]:
    """The launches of ``swiglu_ffn_dot.cu``.

    Args:
        gate: the product of x with the rows of gate, which are as many as those of up. down: the second product.
        t: the tile of the first launch. cu: the type of the elements in C++.
    """
    second = next(preferred(down))

    def launch(kernel: str, w: Matmul, t: Mapping[str, int], names: tuple[str, ...]) -> Launch:
        return Launch(
            kernel,
            (cdiv(w.n, across(t)), cdiv(w.m, t["TOKENS"])),
            THREADS,
            (*names, w.m, w.n, w.k, across(t)),
            source=GATED_SOURCE,
            template=(DotTile(t["TOKENS"], t["BATCH"], len(names) - 2), cu),
        )

    first = launch("gated_dot", gate, t, ("x", "gate", "up", "h"))
    return [first, launch("early_dot", down, second, ("h", "down", "y"))]


def considered(w: Matmul) -> bool:
    """Whether the step may be the fastest."""
    return w.m <= MOST_ROWS and usable(w, {"TOKENS": MOST_ROWS}) is True


def was_timed(w: Matmul) -> bool:
    """Whether there are times of such products."""
    return considered(w) and measured(w.device).dot is not None


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider: no more warps for a row of b than have a piece of it."""
    for parts in SPACE["PARTS"]:
        t = {"TOKENS": min(w.m, max(SPACE["TOKENS"])), "BATCH": SPACE["BATCH"][0], "PARTS": parts}
        if parts == 1 or parts <= cdiv(w.k * unaligned.SIZE, t["BATCH"] * PIECE_BYTES):
            yield t


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What the launch does; a step of a CTA is 128 bytes along k of its rows of b. The rows of a are in L1."""
    rows = across(t)
    count = cdiv(w.n, rows) * cdiv(w.m, t["TOKENS"])
    sms = min(count, w.device.sms)
    on_sm = cdiv(count, w.device.sms)
    resident = min(on_sm, w.device.target.limits.threads // (2 * THREADS))  # half of the threads, by registers
    return StreamWork(
        memory_bytes=w.work().bytes,
        split=split_share(w, 0, rows),
        steps=on_sm * cdiv(w.k * unaligned.SIZE, ROW_BYTES),
        rows=0,
        columns=rows,
        delivered=rows,
        sms=sms,
        idle=1 - sms / w.device.sms,
        stages=resident * t["PARTS"] * t["BATCH"] * PIECE_BYTES // ROW_BYTES,
        units=0,
        wgmma_columns=0,
        ends=t["TOKENS"] * rows * on_sm,
        waves=cdiv(on_sm, resident) - 1,
    )


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time by the model; before there were times of it, by that of the products with swapped operands."""
    entry = measured(w.device)
    return stream_model.predicted_us(entry.dot or entry.swapped, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t))
