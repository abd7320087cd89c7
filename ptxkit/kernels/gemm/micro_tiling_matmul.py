"""micro_tiling_matmul: f32 matrix product on the CUDA cores, in nine steps, from one element per thread to stream-K."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Tolerance, Work, Workload, cdiv, uniform, variant
from ptxkit.kernels.gemm.product import Gemm
from ptxkit.kernels.measured import gemm_tiles
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets import WARP, SmLimits

BESIDE = 24  # registers for addresses and counters, in addition to sums and operands
BULK_BK = 32  # columns of a that are one swizzle span
STEP_5 = Tile(
    {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "WM": 16, "WN": 128, "STAGES": 2, "GROUP": 1, "CTAS": 2}
)

SPACE = {
    "BM": [128, 64, 256],
    "BN": [128, 64, 256],
    "BK": [16, 8, 32],
    "TM": [8, 4, 16],
    "TN": [8, 4, 16],
    "WM": [64, 32, 128],
    "WN": [32, 64, 128],
    "STAGES": [3, 2, 4, 5],
    "GROUP": [8, 1, 16],
    "CTAS": [2, 1],  # resident CTAs of an SM, for which registers are limited
}
BULK_SPACE = {name: values for name, values in SPACE.items() if name != "BK"}
RING_SPACE = SPACE | {"BK": [16, 32], "CTAS": [2, 1, 4]}
STREAM_SPACE = RING_SPACE | {
    "TM": [8],
    "TN": [16, 8],
    "WM": [64, 32],
    "GROUP": [8, 16, 4],
    "CTAS": [1, 2],
    "SHARED_WAVES": [2, 1, 4],  # waves of tiles at the end that are divided into shares of steps of k
    "MIN_STEPS": [8, 2, 32],  # minimum number of steps of k in a share
}


@dataclass(frozen=True)
class MicroTile(TemplateStruct):
    """``MicroTile`` of cu/ptxkit/gemm/micro_tiling.cuh."""

    BM: int
    BN: int
    BK: int
    TM: int
    TN: int
    WM: int
    WN: int
    STAGES: int = 1
    GROUP: int = 1
    CTAS: int = 1


def micro_tile(t: Tile) -> MicroTile:
    """The template argument for a tile; BK is BULK_BK if the tile has none."""
    names = (field.name for field in fields(MicroTile))
    return MicroTile(**{name: t.get(name, BULK_BK) for name in names})


def threads(t: Tile) -> int:
    """Threads of a CTA."""
    return int(t.BM // t.WM * (t.BN // t.WN) * WARP)


def covers(t: Tile) -> str | None:
    """Why lanes do not cover the warp tile, or warps the CTA tile, as ``Lanes`` asserts; None if they do."""
    if t.WM % t.TM or t.WN % t.TN or (t.WM // t.TM) * (t.WN // t.TN) != WARP:
        return f"{WARP} lanes of {t.TM} x {t.TN} do not cover a warp's {t.WM} x {t.WN}"
    if t.BM % t.WM or t.BN % t.WN:
        return f"warps of {t.WM} x {t.WN} do not cover {t.BM} x {t.BN}"
    if not 64 <= threads(t) <= SmLimits.threads_per_cta:
        return f"{threads(t)} threads per CTA; 64 to {SmLimits.threads_per_cta} are possible"
    return None


def shared_bytes(t: Tile) -> int:
    """Dynamic shared memory of ``matmul_pipelined``: rows of a are padded by 4 elements."""
    return int(4 * t.STAGES * t.BK * (t.BM + 4 + t.BN))


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``warps``."""
    if reason := covers(t):
        return reason
    if threads(t) % t.BK or (threads(t) % (t.BN // 4) and t.BN // 4 % threads(t)):
        return f"{threads(t)} threads do not copy whole rows of {t.BK} and {t.BN} elements"
    return fits(w, t, t.TM * t.TN + 2 * (t.TM + t.TN), shared_bytes(t))


def fits(w: Any, t: Tile, held: int, shared: int) -> bool | str:
    """Whether CTAS CTAs, with ``registers`` registers for data per thread, fit on an SM."""
    limits = w.device.target.limits
    registers = held + BESIDE
    if registers > limits.registers_per_thread or registers * threads(t) * t.CTAS > limits.registers:
        return f"{t.CTAS} CTAs of {threads(t)} threads with {registers} registers are too many"
    if (shared + limits.reserved_bytes) * t.CTAS > limits.shared_bytes:
        return f"{t.CTAS} CTAs need {shared * t.CTAS} bytes of shared memory, more than {limits.shared_bytes_per_cta}"
    return True


def bulk_bytes(t: Tile) -> int:
    """Dynamic shared memory of ``matmul_bulk``."""
    return int(4 * t.STAGES * BULK_BK * (t.BM + t.BN))


def bulk_usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``bulk``."""
    if w.n % 4 or w.k % 4:
        return "tensor maps need rows of a multiple of 16 bytes: n and k multiples of 4"
    if reason := covers(t):
        return reason
    return fits(w, t, t.TM * t.TN + 4 * t.TM + t.TN, bulk_bytes(t))


def ring_bytes(t: Tile) -> int:
    """Dynamic shared memory of ``matmul_ring``."""
    return int(4 * t.STAGES * t.BK * (t.BM + t.BN))


def ring_usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``ring``."""
    if w.n % 4 or w.k % 4:
        return "tensor maps need rows of a multiple of 16 bytes: n and k multiples of 4"
    if reason := covers(t):
        return reason
    if t.BK not in (16, 32) or t.BM > 256 or t.BN > 256:
        return f"boxes of {t.BM} x {t.BK} and {t.BK} x {t.BN}: BK is 16 or 32 columns of a, the others at most 256"
    if t.WM == t.TM or t.WN == t.TN or t.TM & t.TM - 1:
        return f"lanes need neighbours in both directions and a power of two of rows, not {t.TM} x {t.TN} of {t.WM} x {t.WN}"
    return fits(w, t, t.TM * t.TN + 4 * t.TM + 2 * t.TN, ring_bytes(t))


def preferred(step: str) -> Callable[[Any], Iterator[Mapping[str, Any]]]:
    """Tiles of a step by size: large ones if enough SMs get some, else small ones."""

    def choose(w: Any) -> Iterator[Mapping[str, Any]]:
        yield from gemm_tiles(w.device, f"{w.name}:{step}", w.m, w.n)

    return choose


def stream_usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``stream_k``: that of ``ring``, and the registers that ``Registers`` of the kernel distributes."""
    if (said := ring_usable(w, t)) is not True:
        return said
    if threads(t) % 128:
        return f"{threads(t)} threads are not a multiple of 128, the warpgroup to which setmaxnreg applies"
    at_launch = w.device.target.limits.registers // t.CTAS // (threads(t) + 128) // 8 * 8
    left = min(240, (at_launch * (threads(t) + 128) - 24 * 128) // threads(t) // 8 * 8)
    if not 24 <= at_launch <= left:
        return f"{t.CTAS} CTAs of {threads(t)} threads start with {at_launch} registers each; a consumer thread gets {left}"
    if left < t.TM * t.TN + 4 * t.TM + 2 * t.TN + BESIDE:
        return f"{left} registers are too few for {t.TM} x {t.TN} sums"
    return True


def stream_k(w: MicroTilingMatmul, t: Tile) -> list[Launch]:
    """Launches of ``matmul_stream_k``: whole tiles, then shares of the tiles of the last ``SHARED_WAVES`` waves."""
    tiles, steps, ctas = w.grid(t.BM, t.BN), cdiv(w.k, t.BK), w.device.sms * t.CTAS
    whole = tiles // ctas if tiles % ctas == 0 else max(0, cdiv(tiles, ctas) - t.SHARED_WAVES)
    shares = min(ctas, max(1, (tiles - whole * ctas) * steps // t.MIN_STEPS))
    grid = ctas if whole else shares
    arguments = (*ring_maps(t), "c", "flags", w.m, w.n, w.k, whole, shares)
    multiply = Launch(
        "matmul_stream_k",
        grid,
        threads(t) + 128,
        arguments,
        shared=ring_bytes(t),
        template=(micro_tile(t),),
        options=("--ptxas-options=-O1",),  # see BankedOperands in cu/ptxkit/gemm/micro_tiling.cuh
    )
    if tiles == whole * ctas:
        return [multiply]
    return [Launch("matmul_stream_k_clear", 1, 1024, ("flags", grid * threads(t) // 32)), multiply]


def ring_maps(t: Tile) -> tuple[TensorMap, TensorMap]:
    """The tensor maps of a and b, whose boxes fill a stage of the ring."""
    return TensorMap("a", box=(t.BM, t.BK), swizzle={16: "64B", 32: "128B"}[t.BK]), TensorMap("b", box=(t.BK, t.BN))


class MicroTilingMatmul(Workload):
    """c = a b in f32 on the CUDA cores, in nine steps."""

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
            "flags": (self.device.sms * self.device.target.limits.warps, "u32")
        }  # one flag for each consumer warp of the resident CTAs

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
        prefer=preferred("step9_stream_k"),
        blocks=("BM", "BN"),
        requires=["sm_90a"],
    )
    def step9_stream_k(self, t: Tile) -> list[Launch]:
        """Persistent CTAs with equal numbers of steps of k: the tiles of the last waves are shared."""
        return stream_k(self, t)

    def pipelined(self, t: Tile) -> list[Launch]:
        """A launch of ``matmul_pipelined``."""
        template = (micro_tile(t), self.aligned)
        grid = self.grid(t.BM, t.BN)
        return [Launch("matmul_pipelined", grid, threads(t), self.arguments, shared=shared_bytes(t), template=template)]
