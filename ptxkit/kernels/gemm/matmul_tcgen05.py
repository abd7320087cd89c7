"""matmul_tcgen05: matrix product on Blackwell's tensor cores, in eight steps, in bf16, f16, tf32 or e4m3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ptxkit import Launch, TensorMap, Tile, cdiv, variant
from ptxkit.kernels.gemm.matmul import Matmul
from ptxkit.kernels.template import TemplateStruct
from ptxkit.workload.inputs import dtype_of

BM = 128  # rows of c that a CTA computes
ROW_BYTES = 128  # of a row of a tile of a or b in shared memory
ANSWERS = 2  # of cluster launch control in shared memory
REQUIRES = ("tcgen05",)
ONE_TILE, PERSISTENT, LAUNCH_CONTROL = 0, 1, 2  # Schedule of cu/kernels/matmul_tcgen05.cu
FROM_REGISTERS, BY_TMA = 0, 1  # Store

STEP_4 = Tile(
    {
        "BN": 256,
        "CTAS": 1,
        "STAGES": 4,
        "ACCUMULATORS": 1,
        "SCHEDULE": ONE_TILE,
        "GROUP": 1,
        "STORE": FROM_REGISTERS,
        "BOXES": 1,
    }
)


@dataclass(frozen=True)
class Tcgen05Tile(TemplateStruct):
    """``Tcgen05Tile`` of cu/kernels/matmul_tcgen05.cu."""

    BN: int
    CTAS: int
    STAGES: int
    ACCUMULATORS: int
    SCHEDULE: int
    GROUP: int
    STORE: int
    BOXES: int


def but(tile: Tile, **changed: int) -> Tile:
    """The same tile with other values."""
    return Tile({**tile, **changed})


STEP_5 = but(STEP_4, ACCUMULATORS=2, SCHEDULE=PERSISTENT, GROUP=8)
STEP_6 = but(STEP_5, CTAS=2, STAGES=6)
STEP_7 = but(STEP_6, SCHEDULE=LAUNCH_CONTROL)
STEP_8 = but(STEP_7, STORE=BY_TMA, BOXES=2)


def shared_bytes(t: Tile) -> int:
    """Dynamic shared memory of a CTA: ``SpecializedLayout`` of the kernel."""
    stage = (BM + t.BN // t.CTAS) * ROW_BYTES
    boxes = 4 * t.BOXES * 32 * ROW_BYTES if t.STORE == BY_TMA else 0
    barriers = 8 * 2 * (t.STAGES + t.ACCUMULATORS + ANSWERS)
    return int(t.STAGES * stage + boxes + 16 * ANSWERS + barriers + 8)


def usable(w: MatmulTcgen05, t: Tile) -> bool | str:
    """The constraint of step 8."""
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := shared_bytes(but(STEP_8, **t))) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


class MatmulTcgen05(Matmul):
    """c = gelu(alpha a b^T + beta c + bias) by tcgen05.mma, in eight steps."""

    source = "matmul_tcgen05.cu"
    dtype: Literal["bf16", "f16", "tf32", "e4m3"] = "bf16"
    tolerance = None  # follows from the types; see docs/verification.md

    @property
    def kind(self) -> str:
        """Element type of a and b; tf32 is read from f32."""
        return "f32" if self.dtype == "tf32" else self.dtype

    @property
    def unit(self) -> str:
        """``Work.unit``: what the tensor cores multiply."""
        return self.dtype

    @property
    def output_kind(self) -> str:
        """Element type of c and of the bias."""
        return "bf16" if self.dtype == "e4m3" else self.kind

    @property
    def types(self) -> tuple[str, str]:
        """Template arguments T and Out."""
        out = "float" if self.output_kind == "f32" else f"ptxkit::{self.output_kind}"
        return f"ptxkit::{self.dtype}", out

    def maps(self, rows: int, cols: int) -> tuple[TensorMap, TensorMap]:
        """Tensor maps of a and b, whose boxes have that many rows of 128 bytes."""
        depth = ROW_BYTES // dtype_of(self.kind).itemsize
        return (
            TensorMap("a", box=(rows, depth), swizzle="128B"),
            TensorMap("b", box=(cols, depth), swizzle="128B"),
        )

    def single_issuer(self, cols: int, stages: int) -> list[Launch]:
        """A launch of ``matmul_single_issuer``."""
        shared = stages * (BM + cols) * ROW_BYTES + 16 * stages + 16
        return [
            Launch(
                "matmul_single_issuer",
                (cdiv(self.n, cols), cdiv(self.m, BM)),
                128,
                (*self.maps(BM, cols), *self.scalars),
                shared=shared,
                template=(*self.types, cols, stages, self.epilogue_bits),
            )
        ]

    def specialized(self, t: Tile) -> list[Launch]:
        """A launch of ``matmul_tcgen05_specialized``."""
        tiles = cdiv(self.m, BM * t.CTAS) * cdiv(self.n, t.BN)
        resident = max(1, self.device.sms // t.CTAS)
        out = dtype_of(self.output_kind).itemsize
        return [
            Launch(
                "matmul_tcgen05_specialized",
                t.CTAS * (min(tiles, resident) if t.SCHEDULE == PERSISTENT else tiles),
                224 if t.SCHEDULE == LAUNCH_CONTROL else 192,
                (
                    *self.maps(BM, t.BN // t.CTAS),
                    TensorMap("c", box=(32, ROW_BYTES // out), swizzle="128B"),
                    *self.scalars,
                ),
                shared=shared_bytes(t),
                cluster=t.CTAS if t.CTAS > 1 else None,
                template=(*self.types, Tcgen05Tile(**t), self.epilogue_bits),
            )
        ]

    @variant(requires=REQUIRES)
    def step1_one_stage(self) -> list[Launch]:
        """One thread loads a tile by TMA and multiplies it, one after the other."""
        return self.single_issuer(128, 1)

    @variant(requires=REQUIRES)
    def step2_two_stages(self) -> list[Launch]:
        """The next tile is loaded while one is multiplied."""
        return self.single_issuer(128, 2)

    @variant(requires=REQUIRES)
    def step3_multistage(self) -> list[Launch]:
        """A ring of six stages."""
        return self.single_issuer(128, 6)

    @variant(requires=REQUIRES)
    def step4_specialized(self) -> list[Launch]:
        """A warp loads, a warp multiplies, four warps store; tiles of 128 x 256."""
        return self.specialized(STEP_4)

    @variant(requires=REQUIRES)
    def step5_two_accumulators(self) -> list[Launch]:
        """Persistent CTAs store one tile of sums while they multiply the next."""
        return self.specialized(STEP_5)

    @variant(requires=REQUIRES)
    def step6_cta_pairs(self) -> list[Launch]:
        """Two CTAs multiply a tile of 256 x 256 and load half of each operand."""
        return self.specialized(STEP_6)

    @variant(requires=REQUIRES)
    def step7_launch_control(self) -> list[Launch]:
        """A pair that has finished takes over a tile whose pair has not started."""
        return self.specialized(STEP_7)

    @variant(
        requires=REQUIRES,
        tile={
            "BN": [256, 128, 64],  # columns of c in a tile
            "CTAS": [2, 1],  # that multiply a tile together
            "STAGES": [6, 3, 4, 5],  # of the ring of tiles
            "GROUP": [8, 1, 4, 16],  # tile rows before the next columns
            "BOXES": [2, 1],  # of c that a warp may have in flight
        },
        constraint=usable,
    )
    def step8_tma_store(self, t: Tile) -> list[Launch]:
        """Results are stored through shared memory by TMA."""
        return self.specialized(but(STEP_8, **t))
