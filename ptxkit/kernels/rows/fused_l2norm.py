"""fused_l2norm: rows divided by their L2 norm, y[r, :] = x[r, :] / sqrt(sum(x[r, :]^2) + eps)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.elementwise.elementwise import stays_in_l2
from ptxkit.kernels.rows import row_pipeline as pipeline
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.template import TemplateStruct

STAGED_COLS = 12 * 1024  # 48 KiB: the dynamic shared memory that every target gives without asking
THREADS = 256  # of a CTA, in the unfused chain and in fused
ELEMENTS = 4  # of a thread, in the element-wise launches of the chain


@dataclass(frozen=True)
class L2normTile(TemplateStruct):
    """``L2normTile`` of cu/kernels/fused_l2norm.cu."""

    THREADS: int
    LANES: int
    QUADS: int
    CTAS: int
    ROWS: int
    HINT: int
    NO_EARLY_LAUNCH: bool
    FULL_TILE: bool


def lanes(w: FusedL2norm, t: Tile) -> int:
    """Threads of a CTA that hold a row together: a power of two, enough for its columns where THREADS are."""
    threads: int = t.THREADS
    return min(threads, 1 << (cdiv(w.cols, 4 * t.QUADS * t.CLUSTER) - 1).bit_length())


def in_registers(w: FusedL2norm, t: Tile) -> bool:
    """Whether the registers of a whole cluster hold a row."""
    return bool(w.cols <= 4 * t.QUADS * t.THREADS * t.CLUSTER)


def staged_bytes(w: FusedL2norm, t: Tile) -> int:
    """Shared memory of a CTA for its part of a row."""
    bytes_: int = cdiv(w.cols, 4 * t.QUADS * t.THREADS * t.CLUSTER) * 16 * t.QUADS * t.THREADS
    return bytes_


def usable(w: FusedL2norm, t: Tile) -> bool | str:
    """The constraint of ``vectorized``."""
    beside = 28 if in_registers(w, t) else 36  # registers beside the row; measured, so that nothing spills
    available = w.device.target.limits.registers // t.THREADS
    if (1 + (t.ROWS > 1)) * 4 * t.QUADS + beside > available:
        return f"{t.THREADS} threads have {available} registers each, too few for QUADS={t.QUADS} ROWS={t.ROWS}"
    if t.CLUSTER > 1 and w.cols <= 4 * t.QUADS * t.THREADS * t.CLUSTER // 2:
        return f"half a cluster of {t.CLUSTER} holds {w.cols} columns already"
    if t.ROWS > 1 and not in_registers(w, t):
        return f"{w.cols} columns do not stay in registers, so only ROWS=1 is possible"
    if in_registers(w, t):
        if not t.STAGED:
            return f"{w.cols} columns stay in registers, so STAGED=False changes nothing"
    elif t.STAGED and staged_bytes(w, t) > row.STAGED_BYTES:
        return f"a CTA's part of {w.cols} columns takes {staged_bytes(w, t):,} bytes of shared memory"
    if t.NO_EARLY_LAUNCH and not (in_registers(w, t) and stays_in_l2(w)):
        return "NO_EARLY_LAUNCH is for rows in registers that stay in L2"
    return True


def preferred(w: FusedL2norm) -> Iterator[dict[str, Any]]:
    """Tiles by size. Few rows leave SMs idle, so a row is spread over many threads; many rows fill the SMs, and then as many
    bytes in flight as threads and registers allow hide the latency of device memory."""
    few, resident = w.rows <= 512, stays_in_l2(w)
    if few or resident:
        alone = row.few(w)  # each row has an SM
        quads = 1 if alone and w.cols <= 512 else 4 if (alone and w.cols >= 2048) or w.cols > 8192 else 2
    else:
        quads = 1 if w.cols <= 256 else 4 if w.cols <= 2048 else 2
    threads = 128
    while threads < 1024 and 4 * quads * threads < w.cols:
        threads *= 2
    while quads < 8 and 4 * quads * threads < w.cols:
        quads *= 2
    cluster = 1
    while cluster < 8 and 4 * quads * threads * cluster < w.cols:
        cluster *= 2
    if 4 * quads * threads * cluster < w.cols:
        threads, quads = 512, 4  # in parts, with more registers for addresses
    # on an H200 KEEP_X is faster where x is many times larger than L2, KEEP_Y slower; below that neither matters
    hint = 0 if w.work().bytes < 1 << 28 else 1
    tile = {"THREADS": threads, "QUADS": quads, "CLUSTER": cluster, "HINT": hint}
    if not few and not resident and 2048 < w.cols <= 4096 and threads == 512:
        tile["THREADS"] = 1024  # two rows a CTA: fastest on an H200
    if resident and (w.cols >= 1024 or not row.few(w)):
        yield tile | {"NO_EARLY_LAUNCH": True}
    yield tile
    for staged in (True, False):
        for ctas in (cluster, 1):  # for targets without clusters
            yield {"THREADS": 512, "QUADS": 4, "CLUSTER": ctas, "HINT": hint, "STAGED": staged}


class FusedL2norm(Workload):
    """Rows divided by their L2 norm: one read of x and one write of y."""

    source = "fused_l2norm.cu"
    rows: int = 8192
    cols: int = 4096
    eps: float = 1e-12
    emulator_sizes = {"rows": 128, "cols": 4096}
    benchmarks = ({"rows": 128}, {}, {"rows": 16384, "cols": 8192})
    tolerance = Tolerance(ulp=4)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": uniform(rng, (self.rows, self.cols)), "eps": np.float32(self.eps)}

    def reference(self, x: np.ndarray[Any, Any], eps: np.float32) -> dict[str, Any]:
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):  # NaN and infinity propagate
            return {"y": wide / np.sqrt(np.einsum("rc,rc->r", wide, wide) + np.float64(eps))[:, None]}

    def outputs(self) -> Mapping[str, Any]:
        return {"y": ((self.rows, self.cols), "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        return {
            "squares": ((self.rows, self.cols), "f32"),
            "sums": (self.rows, "f64"),
            "norms": ((self.rows, 2), "f32"),
            "next": (1, "u32"),
        }

    def work(self) -> Work:
        n = self.rows * self.cols
        return Work(flops=3 * n + 2 * self.rows, bytes=8 * n)

    def constraints(self) -> Iterable[str]:
        if not self.eps >= 0:
            yield f"eps must be at least 0, not {self.eps}"
        if self.rows * cdiv(self.cols, THREADS * ELEMENTS) >= 2**31:
            yield "more CTAs than a grid can have"

    @variant
    def unfused(self) -> list[Launch]:
        """Five launches through device memory, as a framework evaluates x / sqrt((x * x).sum(1) + eps)."""
        n = self.rows * self.cols
        chunk = THREADS * ELEMENTS
        elementwise, by_row = (THREADS, ELEMENTS), (THREADS,)
        small = cdiv(self.rows, THREADS)
        return [
            Launch("l2norm_square", cdiv(n, chunk), THREADS, ("x", "squares", n), template=elementwise),
            Launch("l2norm_row_sum", self.rows, THREADS, ("x", "squares", "sums", self.cols), template=by_row),
            Launch("l2norm_add_eps", small, THREADS, ("sums", self.rows, "eps"), template=by_row),
            Launch("l2norm_sqrt", small, THREADS, ("sums", "norms", self.rows), template=by_row),
            Launch(
                "l2norm_divide",
                self.rows * cdiv(self.cols, chunk),
                THREADS,
                ("x", "norms", "y", self.cols),
                template=elementwise,
            ),
        ]

    @variant
    def fused(self) -> list[Launch]:
        """One CTA a row, which waits in shared memory for its norm; bit for bit what unfused gives."""
        keep = self.cols <= STAGED_COLS
        shared = 4 * self.cols if keep else 0
        args = ("x", "y", self.cols, "eps")
        return [Launch("l2norm_fused", self.rows, THREADS, args, shared=shared, template=(THREADS, keep))]

    @variant(
        tile={
            "THREADS": [128, 256, 512, 1024],  # of a CTA
            "QUADS": [8, 4, 2, 1],  # 128-bit registers of a row that a thread holds
            "CLUSTER": [1, 2, 4, 8],  # CTAs that hold one row
            "ROWS": [1, 2, 4],  # rows that a thread takes one after another, the next being loaded ahead
            "HINT": [0, 1, 2],  # L2 keeps: 0 what it likes, 1 x rather than y, 2 y rather than x
            "STAGED": row.TILE["STAGED"],
            "NO_EARLY_LAUNCH": row.TILE["NO_EARLY_LAUNCH"],
        },
        constraint=usable,
        prefer=preferred,
    )
    def vectorized(self, t: Tile) -> list[Launch]:
        """128-bit accesses, rows in registers: several a CTA when short, one a cluster when long."""
        cluster = t.CLUSTER if t.CLUSTER > 1 else None
        args = ("x", "y", self.rows, self.cols, "eps")
        if not in_registers(self, t):
            template: tuple[int, ...] = (t.THREADS, t.QUADS, t.CLUSTER, t.STAGED)
            shared = staged_bytes(self, t) if t.STAGED else 0
            grid = self.rows * t.CLUSTER
            return [Launch("l2norm_streamed", grid, t.THREADS, args, shared, cluster, template=template)]
        width = lanes(self, t)
        groups = t.THREADS // width
        grid = cdiv(cdiv(self.rows, groups), t.ROWS) * t.CLUSTER
        tile = L2normTile(
            THREADS=t.THREADS,
            LANES=width,
            QUADS=t.QUADS,
            CTAS=t.CLUSTER,
            ROWS=t.ROWS,
            HINT=t.HINT,
            NO_EARLY_LAUNCH=t.NO_EARLY_LAUNCH,
            FULL_TILE=self.cols == 4 * t.QUADS * width * t.CLUSTER and self.rows % (groups * t.ROWS) == 0,
        )
        return [Launch("l2norm_vectorized", grid, t.THREADS, args, 0, cluster, template=(tile,))]

    @pipeline.persistent(beside=32, weights=0)
    def persistent(self, t: Tile) -> list[Launch]:
        """Dynamic persistent kernel for long rows: clusters take rows from a tile scheduler and prefetch them through TMA."""
        args = ("x", "y", "next", self.rows, self.cols, "eps")
        return pipeline.launch_persistent("l2norm", self, t, args, ("float",), weights=0)

    @variant(source="fused_l2norm.ptx")
    def ptx(self) -> list[Launch]:
        """Written in PTX by hand: one CTA a row, 128-bit accesses, the first 8192 columns in registers."""
        return [Launch("l2norm", self.rows, 512, ("x", "y", self.cols, "eps"))]
