"""micro_tiling_matmul: f32 matrix product on the CUDA cores, in fourteen steps, from one element per thread to few rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.gemm import few_columns, few_rows, micro_choice, micro_cluster_k
from ptxkit.kernels.gemm.micro_tiles import (
    BULK_BK,
    BULK_SPACE,
    OPTIONS,
    PARTIAL_SPACE,
    RING_SPACE,
    SPACE,
    STEP_5,
    STREAM_SPACE,
    MicroTile,
    aligned_copies,
    bulk_bytes,
    bulk_usable,
    copying,
    micro_tile,
    most_partials,
    operands,
    partial_usable,
    preferred,
    producers,
    ring_bytes,
    ring_maps,
    ring_usable,
    shared_bytes,
    shares,
    stream_bytes,
    stream_usable,
    threads,
    usable,
)
from ptxkit.kernels.gemm.product import Gemm
from ptxkit.targets import WARP

NULL = np.uint64(0)


def stream_k(w: MicroTilingMatmul, t: Tile, *, chain: bool = True, second: bool = False) -> list[Launch]:
    """Launches of ``matmul_stream_k``: whole tiles, then shares of the tiles of the last ``SHARED_WAVES`` waves.

    Without ``chain``, of ``matmul_partial_sums``; with ``second``, ``matmul_add_partials`` adds the sums after it. Copies of
    operands come first where the tile has them.
    """
    work = shares(w, t)
    suffix, of_operands, of_template = operands(w, t)
    of_shares = (w.m, w.n, w.k, work.whole, work.shares)
    multiply = Launch(
        f"matmul_{'stream_k' if chain else 'partial_sums'}{suffix}",
        work.grid,
        threads(t) + producers(t),
        (*of_operands, "c", NULL if second and work.divided else "flags", *(() if chain else ("partials",)), *of_shares),
        shared=stream_bytes(w, t),
        template=(micro_tile(t), *of_template),
        options=OPTIONS,
        cooperative=work.divided and not (chain or second),  # a CTA waits for CTAs before and after it
    )
    if not work.divided:
        return [*copying(w, t), multiply]
    if second:
        split = min(8, 1 << (cdiv(cdiv(work.shares, work.left) + 1, 8) - 1).bit_length())  # a warp adds at most 8 parts at once
        grid = (t.BM * t.BN // 4 // WARP * split // 8, work.left)
        arguments = ("partials", "c", *of_shares, work.grid, split)
        add = Launch("matmul_add_partials", grid, 256, arguments, template=(micro_tile(t),), options=OPTIONS)
        return [*copying(w, t), multiply, add]
    flags = work.grid * threads(t) // WARP * (1 if chain else 2)
    clear = Launch("matmul_stream_k_clear", 1, 1024, ("flags", flags), options=OPTIONS)
    return [*copying(w, t), clear, multiply]


class MicroTilingMatmul(Workload):
    """c = a b in f32 on the CUDA cores, in fourteen steps."""

    source = "micro_tiling_matmul.cu"
    m: int = 4096
    n: int = 4096
    k: int = 4096
    emulator_sizes = {"m": 128, "n": 128, "k": 128}
    benchmarks = ({"m": 2048, "n": 2048, "k": 2048}, {}, {"m": 8192, "n": 8192, "k": 8192})

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"a": uniform(rng, (self.m, self.k)), "b": uniform(rng, (self.k, self.n))}

    def reference(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {"c": a.astype(np.float64) @ b.astype(np.float64)}

    def outputs(self) -> Mapping[str, Any]:
        return {"c": ((self.m, self.n), "f32")}

    def temporaries(self) -> Mapping[str, Any]:
        return {
            "flags": (2 * self.device.sms * self.device.target.limits.warps, "u32"),
            "partials": (most_partials(self), "f32"),
            **{copy.to: (4 * copy.rows * copy.vectors, "f32") for copy in aligned_copies(self).values()},
        }

    def work(self) -> Work:
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return Work(flops=2 * self.m * self.n * self.k, bytes=4 * elements)

    def gemm(self) -> Gemm:
        """The product as libraries compute it."""
        return Gemm(self.m, self.n, self.k)

    def constraints(self) -> Iterable[str]:
        for name, rows, cols in (("a", self.m, self.k), ("b", self.k, self.n), ("c", self.m, self.n)):
            if rows * cols >= 2**40:
                yield f"{name} is too large"

    @property
    def tolerance(self) -> Tolerance:  # type: ignore[override]  # depends on k here
        """Rounding errors of k partial sums of about sqrt(k / 9) add up as a random walk; five times its size is allowed."""
        return Tolerance(relative=1e-5, absolute=5 * 2.0**-24 * max(1.0, self.k / 3))

    @property
    def aligned(self) -> bool:
        """Whether every row begins at a multiple of 16 bytes."""
        return self.n % 4 == 0 and self.k % 4 == 0

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments of every kernel."""
        return ("a", "b", "c", self.m, self.n, self.k)

    def grid(self, rows: int, cols: int) -> int:
        """Number of tiles of this size, one CTA each."""
        return cdiv(self.m, rows) * cdiv(self.n, cols)

    @variant
    def step1_naive(self) -> list[Launch]:
        """One element per thread: each fma loads two numbers from memory."""
        return [Launch("matmul_naive", (cdiv(self.n, 32), cdiv(self.m, 8)), (32, 8), self.arguments)]

    @variant
    def step2_shared(self) -> list[Launch]:
        """Tiles of 32 x 32 in shared memory."""
        grid = (cdiv(self.n, 32), cdiv(self.m, 32))
        return [Launch("matmul_shared", grid, 1024, self.arguments, template=(32,))]

    @variant
    def step3_registers(self) -> list[Launch]:
        """A thread computes 8 x 8 elements: 16 loads from shared memory feed 64 fmas."""
        grid = (cdiv(self.n, 128), cdiv(self.m, 128))
        return [Launch("matmul_registers", grid, 256, self.arguments, template=(128, 128, 8, 8, 8))]

    @variant
    def step4_vectorized(self) -> list[Launch]:
        """128-bit accesses without bank conflicts; a is transposed when it is stored to shared memory."""
        template = (MicroTile(BM=128, BN=128, BK=8, TM=8, TN=8, WM=16, WN=128), self.aligned)
        return [Launch("matmul_vectorized", self.grid(128, 128), 256, self.arguments, template=template)]

    @variant(requires=["cp.async"])
    def step5_async(self) -> list[Launch]:
        """cp.async copies the next tile while this one is multiplied."""
        return self.pipelined(STEP_5)

    @variant(
        tile=SPACE, constraint=usable, prefer=preferred("step6_warps"), requires=["cp.async"], blocks=("BM", "BN")
    )
    def step6_warps(self, t: Tile) -> list[Launch]:
        """Compact warp tiles, several stages, CTAs in an order that shares tiles in L2."""
        return self.pipelined(t)

    @variant(tile=BULK_SPACE, constraint=bulk_usable, prefer=preferred("step7_bulk"), requires=["tma"])
    def step7_bulk(self, t: Tile) -> list[Launch]:
        """TMA copies whole boxes, which one thread issues."""
        maps = (TensorMap("a", box=(t.BM, BULK_BK), swizzle="128B"), TensorMap("b", box=(BULK_BK, t.BN)))
        template = (micro_tile(t),)
        arguments = (*maps, "c", self.m, self.n, self.k)
        grid = self.grid(t.BM, t.BN)
        return [Launch("matmul_bulk", grid, threads(t), arguments, shared=bulk_bytes(t), template=template)]

    @variant(tile=RING_SPACE, constraint=ring_usable, prefer=preferred("step8_ring"), requires=["tma"])
    def step8_ring(self, t: Tile) -> list[Launch]:
        """mbarriers instead of CTA barriers, so that warps may be stages apart; interleaved lanes share reads."""
        template = (micro_tile(t),)
        arguments = (*ring_maps(t), "c", self.m, self.n, self.k)
        grid = self.grid(t.BM, t.BN)
        return [Launch("matmul_ring", grid, threads(t), arguments, shared=ring_bytes(t), template=template)]

    @variant(
        source="micro_tiling_stream_k.cu",
        tile=STREAM_SPACE,
        constraint=stream_usable,
        prefer=micro_choice.preferred("step9_stream_k"),
        slower=lambda w: micro_choice.slower(w, "step9_stream_k"),
        requires=["sm_90a"],
    )
    def step9_stream_k(self, t: Tile) -> list[Launch]:
        """Persistent CTAs with equal numbers of steps of k: the tiles of the last waves are shared."""
        return stream_k(self, t)

    @variant(
        source="micro_tiling_cluster_k.cu",
        tile=micro_cluster_k.SPACE,
        constraint=micro_cluster_k.usable,
        prefer=micro_choice.preferred("step10_cluster_k"),
        slower=lambda w: micro_choice.slower(w, "step10_cluster_k"),
        requires=["sm_90a"],
    )
    def step10_cluster_k(self, t: Tile) -> list[Launch]:
        """The CTAs of a cluster divide k, and add their sums through distributed shared memory."""
        return micro_cluster_k.launches(self, t)

    @variant(
        source="micro_tiling_stream_k.cu",
        tile=PARTIAL_SPACE,
        constraint=partial_usable,
        prefer=micro_choice.preferred("step11_partial_sums"),
        slower=lambda w: micro_choice.slower(w, "step11_partial_sums"),
        requires=["sm_90a"],
    )
    def step11_partial_sums(self, t: Tile) -> list[Launch]:
        """Shares of steps of k as in step 9, whose sums all CTAs of a tile add together."""
        return stream_k(self, t, chain=False)

    @variant(
        source="micro_tiling_few_rows.cu",
        tile=few_rows.SPACE,
        constraint=few_rows.usable,
        prefer=micro_choice.preferred("step12_few_rows"),
        slower=lambda w: micro_choice.slower(w, "step12_few_rows"),
        requires=["sm_90"],
    )
    def step12_few_rows(self, t: Tile) -> list[Launch]:
        """Threads read b into registers, for few rows of a, which take as long as reading b."""
        return few_rows.launches(self, t)

    @variant(
        source="micro_tiling_few_columns.cu",
        tile=few_columns.SPACE,
        constraint=few_columns.usable,
        prefer=micro_choice.preferred("step13_few_columns"),
        slower=lambda w: micro_choice.slower(w, "step13_few_columns"),
        requires=["sm_90"],
    )
    def step13_few_columns(self, t: Tile) -> list[Launch]:
        """Threads read a into registers, for few columns of b, which take as long as reading a."""
        return few_columns.launches(self, t)

    @variant(
        source="micro_tiling_stream_k.cu",
        tile=PARTIAL_SPACE,
        constraint=partial_usable,
        prefer=micro_choice.preferred("step14_two_launches"),
        slower=lambda w: micro_choice.slower(w, "step14_two_launches"),
        requires=["sm_90a"],
    )
    def step14_two_launches(self, t: Tile) -> list[Launch]:
        """The sums of step 11, which a second launch adds, so that no CTA waits for another one."""
        return stream_k(self, t, chain=False, second=True)

    def pipelined(self, t: Tile) -> list[Launch]:
        """A launch of ``matmul_pipelined``."""
        template = (micro_tile(t), self.aligned)
        grid = self.grid(t.BM, t.BN)
        return [Launch("matmul_pipelined", grid, threads(t), self.arguments, shared=shared_bytes(t), template=template)]
