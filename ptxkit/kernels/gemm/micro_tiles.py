"""Tiles of the f32 products on the CUDA cores (micro_tiling_matmul): spaces, constraints and tensor maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any, Protocol

from ptxkit import Launch, TensorMap, Tile, Work, cdiv
from ptxkit.kernels.gemm.unaligned import Copied, align_rows
from ptxkit.kernels.measured import gemm_tiles
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets import WARP, SmLimits
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.targets.sm import PORTABLE_CLUSTER, WARPGROUP

BESIDE = 24  # registers for addresses and counters, in addition to sums and operands
LEAST_BESIDE = 16  # with which ptxas spills none of the threads that keep the registers of their launch
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
COPIES = [0, 1]  # whether operands whose rows TMA cannot read are copied first to rows that it can
STREAM_SPACE = RING_SPACE | {
    "BM": [128, 64, 256, 32, 16, 96, 192],
    "BN": [128, 64, 256, 32, 16, 96, 192],
    "TM": [8, 4],
    "TN": [16, 8, 12, 4],
    "WM": [64, 32, 16],
    "WN": [32, 64, 128, 16, 48, 96],
    "STAGES": [3, 2, 4, 5, 6],
    "GROUP": [8, 16, 4],
    "CTAS": [1, 2, 3, 4],
    "SHARED_WAVES": [2, 1, 4, 0],  # waves of tiles at the end that are divided into shares of steps of k
    "MIN_STEPS": [8, 2, 32],  # minimum number of steps of k in a share
    "COPY": COPIES,
}
PARTIAL_SPACE = STREAM_SPACE | {
    "BM": [64, 128, 256, 32, 16, 96, 192],
    "BN": [128, 64, 256, 32, 16, 96, 192],
    "TM": [8, 4],
    "TN": [8, 16, 4, 12],
    "WM": [32, 64, 16],
    "WN": [64, 128, 32, 16, 48, 96],
    "STAGES": [3, 4, 5, 6, 2],
    "CTAS": [2, 1, 3, 4],
    "MIN_STEPS": [8, 2, 4, 16, 32],
}
CHUNK = 8  # of cu/ptxkit/gemm/micro_tiling.cuh: elements of k, of which the last step of steps 9 to 14 multiplies whole chunks
PARTS = list(range(1, PORTABLE_CLUSTER + 1))  # of k in steps 10, 12 and 13, each for a CTA of a cluster
DEEP_BK = 32  # elements of k of a deep stage: a row of a is then a line of 128 bytes
DEEP_STAGES = 3  # the fewest of a ring
SEVERAL_STEPS = 8
OPTIONS = ("--ptxas-options=-O1",)
"""Of all kernels from step 9 on that multiply from a ring, see BankedOperands in cu/ptxkit/gemm/micro_tiling.cuh, and of those
launched with them, which are then in the same program."""
SUMS_OF_AN_SM = 1 << 15  # sums of the tiles of the CTAs that an SM has in steps 11 and 14


class F32Product(Protocol):
    """What the tiles and the model read of :class:`~ptxkit.kernels.gemm.micro_tiling_matmul.MicroTilingMatmul`."""

    @property
    def m(self) -> int:
        """Rows of a."""

    @property
    def n(self) -> int:
        """Columns of b."""

    @property
    def k(self) -> int:
        """Columns of a."""

    @property
    def device(self) -> DeviceFacts:
        """The facts of the device."""

    @property
    def aligned(self) -> bool:
        """Whether every row begins at a multiple of 16 bytes."""

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments of every kernel."""

    def grid(self, rows: int, cols: int) -> int:
        """Number of tiles of this size."""

    def work(self) -> Work:
        """Its products and bytes."""


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


def whole_warpgroups(t: Tile) -> bool:
    """Whether whole warpgroups multiply, which can be given the registers of the producers (setmaxnreg)."""
    return threads(t) % WARPGROUP == 0


def producers(t: Tile) -> int:
    """Threads of a CTA of steps 9 to 14 that fill the ring, ``PRODUCERS`` of cu/ptxkit/gemm/micro_tiling_operands.cuh."""
    return WARPGROUP if whole_warpgroups(t) else WARPGROUP // 2


def has_deep_steps(w: F32Product, t: Mapping[str, int]) -> bool:
    """Whether the shares of k that CTAs have are enough steps of DEEP_BK, so that threads fill stages of so many faster."""
    parts = t.get("PARTS", 1)
    return cdiv(w.k, DEEP_BK) >= (SEVERAL_STEPS * parts if parts > 1 else DEEP_STAGES)


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
    """Whether CTAS CTAs, with ``held`` registers for data per thread and ``shared`` bytes of shared memory, fit on an SM."""
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


def stream_bytes(w: F32Product, t: Tile) -> int:
    """Dynamic shared memory of steps 9, 11 and 14: the ring, and room for rows of c that are not stored as vectors."""
    vectors = w.n % 4 == 0 and (w.aligned or t.get("COPY", 0))
    return ring_bytes(t) + (0 if vectors else 4 * t.BM // t.TM * t.BN)


def ring_usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``ring``."""
    if not w.aligned:
        return "tensor maps need rows of a multiple of 16 bytes: n and k multiples of 4"
    return boxes_usable(w, t)


def boxes_usable(w: Any, t: Tile) -> bool | str:
    """Whether boxes fill the stages of a ring, and lanes read them as ``BankedOperands``; rows need not be aligned."""
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


def copies_usable(w: Any, t: Tile) -> bool | str:
    """Whether ``COPY`` has rows to copy, and as many as the launch can."""
    if not t.get("COPY", 0):
        return True
    if w.aligned:
        return "COPY=1 is for rows that TMA cannot read: n and k are multiples of 4"
    for copy in aligned_copies(w).values():
        if copy.rows * copy.vectors >= 2**31:
            return f"the copy of {copy.name} has {copy.rows * copy.vectors} vectors, more than 2^31"
    return True


def stream_usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``stream_k``: that of ``ring`` for rows of any length, and the registers that are distributed."""
    for allows in (boxes_usable, copies_usable):  # the second reads COPY, whose values a refusal by the first rules out
        if (said := allows(w, t)) is not True:
            return said
    limits = w.device.target.limits
    if (stream_bytes(w, t) + limits.reserved_bytes) * t.CTAS > limits.shared_bytes:
        return f"{t.CTAS} CTAs need {stream_bytes(w, t) * t.CTAS} bytes of shared memory"
    return distributable(w, t)


@dataclass(frozen=True)
class Shares:
    """How the tiles of steps 9, 11 and 14 are divided.

    Attributes:
        whole: tiles that each CTA computes alone. left: the other tiles, whose steps of k are divided into ``shares``.
        grid: CTAs.
    """

    whole: int
    left: int
    shares: int
    grid: int

    @property
    def divided(self) -> bool:
        """Whether tiles are divided: there are others than whole ones, and their shares are not whole tiles either."""
        return self.left > 0 and self.left % self.shares != 0


def shares(w: F32Product, t: Tile) -> Shares:
    """Whole tiles for all resident CTAs, then shares of the tiles of the last ``SHARED_WAVES`` waves."""
    tiles, ctas = w.grid(t.BM, t.BN), w.device.sms * t.CTAS
    if t.SHARED_WAVES == 0:
        whole = tiles // ctas
        left = tiles - whole * ctas
        count = max(1, left)
    else:
        whole = tiles // ctas if tiles % ctas == 0 else max(0, cdiv(tiles, ctas) - t.SHARED_WAVES)
        left = tiles - whole * ctas
        count = min(ctas, max(1, left * cdiv(w.k, t.BK) // t.MIN_STEPS))
    return Shares(whole, left, count, ctas if whole else count)


def most_partials(w: F32Product) -> int:
    """Elements of the sums of parts of tiles in steps 11 and 14: two tiles for each CTA, as far as c has them."""
    parts = cdiv(w.m, 256) * cdiv(w.n, 256) * cdiv(w.k, 16)  # more than there can be of the largest tiles
    return 2 * min(w.device.sms * SUMS_OF_AN_SM, parts << 16)


def partial_usable(w: Any, t: Tile) -> bool | str:
    """The constraint of steps 11 and 14: that of ``stream_k``, and room for the sums."""
    if t.BM * t.BN * t.CTAS > SUMS_OF_AN_SM:
        return f"{t.CTAS} tiles of {t.BM} x {t.BN} have more than {SUMS_OF_AN_SM} sums"
    return stream_usable(w, t)


def distributable(w: F32Product, t: Tile) -> bool | str:
    """Whether ``Registers`` of cu/ptxkit/gemm/micro_tiling_operands.cuh can give consumer threads what they need."""
    held = t.TM * t.TN + 4 * t.TM + 2 * t.TN
    at_launch = w.device.target.limits.registers // t.CTAS // (threads(t) + producers(t)) // 8 * 8
    if threads(t) % producers(t):
        return f"{threads(t)} threads are not a multiple of {producers(t)}, half of a warpgroup"
    if not whole_warpgroups(t):
        return at_launch >= held + LEAST_BESIDE or f"{at_launch} registers are too few for {t.TM} x {t.TN} sums"
    kept = 24 if w.aligned or t.get("COPY", 0) else 48
    left = min(240, (at_launch * (threads(t) + WARPGROUP) - kept * WARPGROUP) // threads(t) // 8 * 8)
    if not kept <= at_launch <= left:
        return f"{t.CTAS} CTAs of {threads(t)} threads start with {at_launch} registers each; a consumer thread gets {left}"
    if left < held + BESIDE:
        return f"{left} registers are too few for {t.TM} x {t.TN} sums"
    return True


def operands(w: F32Product, t: Tile) -> tuple[str, tuple[object, ...], tuple[object, ...]]:
    """The suffix of the kernels of steps 9 to 11, their arguments for a and b, and their template arguments after the tile.

    TMA copies rows that are aligned, or those of copies with ``COPY``. Otherwise threads copy as many elements at a time as
    rows have a multiple of.
    """
    if not (w.aligned or t.get("COPY", 0)):
        return "_unaligned", ("a", "b", *(gcd(columns, 4) for columns in (w.k, w.n))), ()
    copies = aligned_copies(w)
    maps = (
        replace(made, array=copy.to, shape=(copy.rows, copy.columns), strides=(16 * copy.vectors, 4))
        if (copy := copies.get(str(made.array))) is not None
        else made
        for made in ring_maps(t)
    )
    return "", tuple(maps), () if w.n % 4 == 0 else (False,)


def ring_maps(t: Tile) -> tuple[TensorMap, TensorMap]:
    """The tensor maps of a and b, whose boxes fill a stage of the ring."""
    return TensorMap("a", box=(t.BM, t.BK), swizzle={16: "64B", 32: "128B"}[t.BK]), TensorMap("b", box=(t.BK, t.BN))


def aligned_copies(w: F32Product) -> dict[str, Copied]:
    """The operands whose rows are no multiples of 16 bytes, with the copies that ``COPY`` makes of them."""
    sizes = {"a": (w.m, w.k), "b": (w.k, w.n)}
    return {
        name: Copied(name, f"{name}_aligned", rows, columns, columns, cdiv(columns, 4))
        for name, (rows, columns) in sizes.items()
        if columns % 4
    }


def copying(w: F32Product, t: Tile) -> list[Launch]:
    """The launch that copies the operands whose rows are not aligned; none without ``COPY``."""
    return align_rows("float", tuple(aligned_copies(w).values())) if t.get("COPY", 0) else []
