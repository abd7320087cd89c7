"""matmul_mma: bf16 or f16 matrix product by mma.sync and ldmatrix, in six steps, for sm_80 and, with TMA, sm_90 and later.

The step with block scaling, for sm_120a, quantizes its operands and is therefore a variant of another kernel:
``matmul_block_scaled:mma_sync``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ptxkit import Launch, TensorMap, Tile, cdiv, variant
from ptxkit.kernels.gemm.matmul import Matmul, without_epilogue
from ptxkit.kernels.measured import gemm_tiles
from ptxkit.kernels.template import TemplateStruct

REQUIRES = ("sm_80",)
STEP_4 = Tile({"BM": 256, "BN": 128, "BK": 32, "WM": 64, "WN": 64, "STAGES": 4, "GROUP": 16})
TILE = {
    "BM": [256, 128, 64],  # rows and columns of c that a CTA computes
    "BN": [128, 256, 64],
    "BK": [32, 64],  # elements of k in a stage
    "WM": [64, 32],  # rows and columns of c that a warp computes
    "WN": [64, 32],
    "STAGES": [4, 6, 5, 3, 2],
    "GROUP": [16, 8, 4, 1],  # rows of tiles in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
}


@dataclass(frozen=True)
class MmaTile(TemplateStruct):
    """``MmaTile`` of cu/ptxkit/gemm/mma.cuh."""

    BM: int
    BN: int
    BK: int
    WM: int
    WN: int
    STAGES: int = 1
    GROUP: int = 1


def warps(t: Tile) -> int:
    """Warps of a CTA that multiply."""
    return int(t.BM // t.WM * (t.BN // t.WN))


def shared_bytes(t: Tile, *, coalesced: bool = False, barriers: bool = False) -> int:
    """Dynamic shared memory of a CTA: the stages, a box of 16 rows of sums per warp, two mbarriers per stage."""
    boxes = warps(t) * 16 * t.WN * 2 if coalesced else 0
    return int(t.STAGES * (t.BM + t.BN) * t.BK * 2 + boxes + (16 * t.STAGES if barriers else 0))


def usable_tma(w: MatmulMma, t: Tile) -> bool | str:
    """The constraint of step 6."""
    if t.BM % t.WM or t.BN % t.WN:
        return f"warps of {t.WM} x {t.WN} do not cover {t.BM} x {t.BN}"
    if not 4 <= warps(t) <= 16:
        return f"{warps(t)} warps per CTA; 4 to 16 are possible"
    if warps(t) * 32 * (t.WM * t.WN // 32 + (t.WM + t.WN) // 4 + 40) > w.device.target.limits.registers:
        return f"{warps(t)} warps have too few registers for {t.WM} x {t.WN} sums each"
    most = w.device.target.limits.shared_bytes_per_cta
    if (needed := shared_bytes(t, coalesced=True, barriers=True)) > most:
        return f"needs {needed} bytes of shared memory, more than {most}"
    return True


def usable(w: MatmulMma, t: Tile) -> bool | str:
    """The constraint of step 5, whose threads each copy as many 16-byte pieces of a stage."""
    pieces = min(t.BM, t.BN) * t.BK // 8
    if pieces % (32 * warps(t)):
        return f"{32 * warps(t)} threads cannot share {pieces} copies of 16 bytes"
    return usable_tma(w, t)


def preferred(w: MatmulMma) -> Iterator[Mapping[str, Any]]:
    """Large tiles where they give nearly every SM one."""
    yield from gemm_tiles(w.device, "matmul_mma:step5_coalesced", w.m, w.n)


def preferred_tma(w: MatmulMma) -> Iterator[Mapping[str, Any]]:
    """Tiles of step6_tma by size."""
    yield from gemm_tiles(w.device, "matmul_mma:step6_tma", w.m, w.n)


class MatmulMma(Matmul):
    """c = gelu(alpha a b^T + beta c + bias) by mma.sync, in six steps."""

    source = "matmul_mma.cu"
    dtype: Literal["bf16", "f16"] = "bf16"

    @property
    def pointers(self) -> tuple[object, ...]:
        """The arguments of every kernel."""
        return ("a", "b", *self.scalars)

    def unpipelined(self, swizzle: bool) -> list[Launch]:
        """A launch of ``matmul_mma_unpipelined``."""
        grid = (cdiv(self.n, 128), cdiv(self.m, 128))
        tile = MmaTile(BM=128, BN=128, BK=32, WM=64, WN=32)
        template = (f"ptxkit::{self.dtype}", tile, swizzle, self.epilogue_bits)
        return [Launch("matmul_mma_unpipelined", grid, 256, self.pointers, template=template)]

    def pipelined(self, t: Tile, *, ahead: bool = True, coalesced: bool = False) -> list[Launch]:
        """A launch of ``matmul_mma_pipelined``."""
        tiles = cdiv(self.m, t.BM) * cdiv(self.n, t.BN)
        return [
            Launch(
                "matmul_mma_pipelined",
                tiles,
                32 * warps(t),
                self.pointers,
                shared=shared_bytes(t, coalesced=coalesced),
                template=(f"ptxkit::{self.dtype}", MmaTile(**t), ahead, coalesced, self.epilogue_bits),
            )
        ]

    @variant(requires=REQUIRES)
    def step1_ldmatrix(self) -> list[Launch]:
        """ldmatrix and mma.sync on 128 x 128 tiles; copies and products do not overlap."""
        return self.unpipelined(False)

    @variant(requires=REQUIRES)
    def step2_swizzled(self) -> list[Launch]:
        """A swizzle places the eight rows of an ldmatrix in different banks."""
        return self.unpipelined(True)

    @variant(requires=REQUIRES)
    def step3_multistage(self) -> list[Launch]:
        """cp.async fills a ring of four stages before the products."""
        t = Tile({"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 32, "STAGES": 4, "GROUP": 1})
        return self.pipelined(t, ahead=False)

    @variant(requires=REQUIRES)
    def step4_registers_ahead(self) -> list[Launch]:
        """The next operands are loaded during the products; warp tiles of 64 x 64, CTAs in an order that shares tiles in L2."""
        return self.pipelined(STEP_4)

    def persistent(self, t: Tile) -> list[Launch]:
        """A launch of ``matmul_mma_tma``."""
        tiles = cdiv(self.m, t.BM) * cdiv(self.n, t.BN)
        maps = (TensorMap(name, box=(rows, t.BK), swizzle=f"{2 * t.BK}B") for name, rows in (("a", t.BM), ("b", t.BN)))
        return [
            Launch(
                "matmul_mma_tma",
                min(tiles, self.device.sms),
                32 * (warps(t) + (t.WM * t.WN < 64 * 64)),  # plus the producer warp, if registers allow
                (*maps, *self.scalars),
                shared=shared_bytes(t, coalesced=True, barriers=True),
                template=(f"ptxkit::{self.dtype}", MmaTile(**t), self.epilogue_bits),
            )
        ]

    @variant(requires=REQUIRES, tile=TILE, constraint=usable, prefer=preferred, blocks=("BM", "BN"))
    def step5_coalesced(self, t: Tile) -> list[Launch]:
        """The sums are stored through shared memory, 16 bytes per thread."""
        return self.pipelined(t, coalesced=True)

    @variant(requires=("sm_90",), tile=TILE, constraint=usable_tma, prefer=preferred_tma, blocks=("BM", "BN"))
    def step6_tma(self, t: Tile) -> list[Launch]:
        """TMA fills the ring; mbarriers instead of CTA barriers, so that warps may be stages apart; persistent CTAs."""
        return self.persistent(t)

    @variant(requires=REQUIRES, source="matmul_mma.ptx", constraint=without_epilogue)
    def ptx(self) -> list[Launch]:
        """Hand-written PTX: cp.async fills a ring of three stages; ldmatrix and mma.sync, 64 x 64 tiles."""
        return [Launch("matmul", (cdiv(self.n, 64), cdiv(self.m, 64)), 128, ("a", "b", "c", self.m, self.n, self.k))]
