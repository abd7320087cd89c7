"""The description of a CUTLASS GEMM: operand types and layouts, tile, instruction, cluster, stages, schedule, epilogue.

A description is an immutable value: it is checked on construction, needs neither a GPU nor CUTLASS, and names its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ptxkit.cutlass.formats import FORMATS
from ptxkit.errors import DescriptionError
from ptxkit.targets import SM_LIMITS

Shape3 = tuple[int, int, int]

BITS = {"bf16": 16, "f16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "s32": 32}
BITS |= {"mxf8": 8, "mxf4": 4, "nvf4": 4}
"""Element types and their widths."""

OUTPUTS = {
    "bf16": ("bf16", "f32"),
    "f16": ("f16", "f32"),
    "tf32": ("f32",),
    "f32": ("f32",),
    "e4m3": ("bf16", "f16", "f32"),
    "e5m2": ("bf16", "f16", "f32"),
    **dict.fromkeys(FORMATS, ("bf16", "f16", "f32")),
    "s8": ("s32",),
}
"""Type of a and b -> types that c may have, the default first."""

SCHEDULES = {
    "simt": (80,),
    "multistage": (80, 89),
    "cooperative": (90,),
    "pingpong": (90,),
    "stream_k": (90,),
    "one_sm_stream_k": (100,),
    "one_sm": (100,),
    "two_sm": (100,),
}
"""Kernel schedule -> the architectures that support it."""

INSTRUCTIONS: dict[str, Shape3] = {
    "bf16": (16, 8, 16),
    "f16": (16, 8, 16),
    "tf32": (16, 8, 8),
    "e4m3": (16, 8, 32),
    "e5m2": (16, 8, 32),
    "s8": (16, 8, 32),
    "f32": (1, 1, 1),
}
"""The shape of mma.sync (PTX ISA, "mma"); on the CUDA cores a multiply-add."""

SHARED_BYTES = {cc: SM_LIMITS[cc].shared_bytes_per_cta for cc in (80, 89, 90, 100)}
"""The maximum for a CTA."""

MAX_SUMS = 128
"""The limit for a thread with CUDA cores, mma.sync and wgmma; operands and addresses take most of the other registers."""

EPILOGUES = ("linear", "relu", "gelu", "silu")


def default_alignment(schedule: str, dtype: str) -> int:
    """Elements in 16 bytes, which TMA, cp.async and vectorized loads take; 1 on the CUDA cores."""
    return 1 if schedule == "simt" else 128 // BITS[dtype]


def output_alignment(alignment: int, dtype: str, output: str) -> int:
    """The number of elements of which the length of c's rows is a multiple."""
    return 1 if alignment == 1 else min(alignment * BITS[dtype], 128) // BITS[output]


def complaint_of_types(arch: int, schedule: str, dtype: str, a_layout: str, b_layout: str) -> str | None:
    """The reason why no tile of a schedule multiplies these types in these layouts, or None."""
    transposed = (a_layout, b_layout) != ("row", "column")
    if arch not in SCHEDULES[schedule]:
        return f"schedule {schedule} is for sm_{_among(SCHEDULES[schedule])}, not sm_{arch}"
    if schedule == "simt" and dtype != "f32":
        return f"schedule simt is for f32, not {dtype}"
    if schedule != "simt" and dtype == "f32":
        return "f32 is for schedule simt; on tensor cores dtype tf32 takes float32 arrays"
    if arch >= 90:
        if transposed and dtype in ("tf32", "e4m3", "e5m2", *FORMATS, "s8"):
            return f"{dtype} takes a row-major and b column-major: wgmma transposes 16-bit types alone"
        return None
    if dtype in ("e4m3", "e5m2") and arch != 89:
        return f"{dtype} needs sm_89 or later"
    if dtype not in ("e4m3", "e5m2") and arch == 89:
        return "arch 89 is for e4m3 and e5m2; use arch 80 for other types, also on sm_89"
    if dtype in FORMATS:
        return f"{dtype} needs sm_100a"
    if transposed and dtype in ("e4m3", "e5m2", "s8"):
        return f"{dtype} takes a row-major and b column-major"
    return None


@dataclass(frozen=True)
class GemmDescription:
    """c (m, n) = activation(alpha a (m, k) b (k, n) + beta c), sums in f32 (int32 for s8); c is row-major.

    Attributes:
        arch: 80, 89 (CUTLASS 2.x: mma.sync or the CUDA cores), 90 (3.x: TMA and wgmma), 100 (3.x: TMA and tcgen05).
        schedule: one of :data:`SCHEDULES`.
        dtype: of a and b; ``"mxf8"`` is e4m3 and ``"mxf4"`` e2m1 with a scale factor of type ue8m0 for each 32 elements along
            k, ``"nvf4"`` e2m1 with one of type ue4m3 for each 16.
        output: of c; "" takes the first of :data:`OUTPUTS`.
        a_layout, b_layout: ``"row"`` or ``"column"``. Row-major a and column-major b lie contiguous along k.
        tile: rows, columns and depth that a CTA works on at a time; on sm_100 with ``two_sm`` a pair of CTAs.
        warps: of a CTA along m, n and k, on sm_80. 3.x works with warpgroups.
        cluster: CTAs, on sm_90 and later.
        stages: stages of the ring of tiles; 0 for the maximum (3.x).
        epilogue: ``"linear"``, or an activation after it.
        alignment: elements that rows (columns) of a and b are multiples of; 0 means 16 bytes' worth, 1 for simt.

    Raises:
        DescriptionError: the parts are incompatible; the message names them and the fix.
    """

    arch: Literal[80, 89, 90, 100] = 90
    schedule: str = "cooperative"
    dtype: str = "bf16"
    output: str = ""
    a_layout: str = "row"
    b_layout: str = "column"
    tile: Shape3 = (128, 128, 64)
    warps: Shape3 = (2, 2, 1)
    cluster: Shape3 = (1, 1, 1)
    stages: int = 0
    epilogue: str = "linear"
    alignment: int = 0

    def __post_init__(self) -> None:
        for what, value, known in (
            ("arch", self.arch, SHARED_BYTES),
            ("schedule", self.schedule, SCHEDULES),
            ("dtype", self.dtype, OUTPUTS),
            ("a_layout", self.a_layout, ("row", "column")),
            ("b_layout", self.b_layout, ("row", "column")),
            ("epilogue", self.epilogue, EPILOGUES),
        ):
            if value not in known:
                raise DescriptionError(f"a CUTLASS GEMM's {what} is {_among(known)}, not {value!r}")
        if not self.output:
            object.__setattr__(self, "output", OUTPUTS[self.dtype][0])
        if not self.alignment:
            object.__setattr__(self, "alignment", default_alignment(self.schedule, self.dtype))
        complaint = self._complaint()
        if complaint is not None:
            raise DescriptionError(f"CUTLASS GEMM {self.name}: {complaint}")

    @property
    def generation(self) -> Literal[2, 3]:
        """The generation of the CUTLASS API: 2 for mma.sync and CUDA cores, 3 for TMA."""
        return 3 if self.arch >= 90 else 2

    @property
    def instruction(self) -> Shape3:
        """Shape of the multiply instruction; from sm_90 on it has as many columns as the tile."""
        if self.generation == 2:
            return INSTRUCTIONS[self.dtype]
        rows = 64 if self.arch == 90 else self.tile[0]
        return rows, self.tile[1], 256 // BITS[self.dtype]

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return "s32" if self.dtype == "s8" else "f32"

    @property
    def warp_tile(self) -> Shape3:
        """The tile of one warp, in mma.sync kernels."""
        m, n, k = (size // count for size, count in zip(self.tile, self.warps, strict=True))
        return m, n, k

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a CTA for the tiles of a and b of one stage, in bytes."""
        m, n, k = self.tile
        ctas = 2 if self.schedule == "two_sm" else 1
        return (m + n) * k * BITS[self.dtype] // 8 // ctas

    @property
    def most_sums(self) -> int:
        """The maximum number of sums in the registers of a thread. For 8-bit floats CUTLASS keeps two copies of each sum:
        one that the tensor core adds to, and one in full precision."""
        return MAX_SUMS // 2 if self.dtype in ("e4m3", "e5m2") else MAX_SUMS

    @property
    def output_alignment(self) -> int:
        """The number of elements of which the length of c's rows is a multiple."""
        return output_alignment(self.alignment, self.dtype, self.output)

    @property
    def requires(self) -> str:
        """The lowest target that compiles it."""
        return f"sm_{self.arch}a" if self.generation == 3 else f"sm_{self.arch}"

    @property
    def name(self) -> str:
        """An identifier: the kernel's name."""
        tile, cluster, warps = ("x".join(map(str, shape)) for shape in (self.tile, self.cluster, self.warps))
        layouts = "".join("t" if layout == "row" else "n" for layout in (self.a_layout, self.b_layout))
        parts = [f"cutlass_sm{self.arch}_{self.schedule}_{self.dtype}_{self.output}_{layouts}_{tile}"]
        parts.append(f"w{warps}" if self.generation == 2 else f"cluster{cluster}")
        parts.append(f"s{self.stages or 'auto'}")
        if self.epilogue != "linear":
            parts.append(self.epilogue)
        if self.alignment * BITS[self.dtype] != 128 and self.schedule != "simt":
            parts.append(f"align{self.alignment}")
        return "_".join(parts)

    def _complaint(self) -> str | None:
        """The reason why the parts are incompatible, or None."""
        if self.output not in OUTPUTS[self.dtype]:
            return f"c is {_among(OUTPUTS[self.dtype])} where a and b are {self.dtype}, not {self.output!r}"
        reason = complaint_of_types(self.arch, self.schedule, self.dtype, self.a_layout, self.b_layout)
        if reason is not None:
            return reason
        if any(size < 1 for size in (*self.tile, *self.warps, *self.cluster)):
            return "tile, warps and cluster are at least 1 everywhere"
        if self.alignment not in (1, 2, 4, 8, 16, 32) or self.alignment * BITS[self.dtype] > 128:
            return f"alignment {self.alignment} is a power of two of at most 16 bytes"
        return self._complaint_2x() if self.generation == 2 else self._complaint_3x()

    def _complaint_2x(self) -> str | None:
        if self.cluster != (1, 1, 1):
            return f"sm_{self.arch} has no clusters"
        if any(size % count for size, count in zip(self.tile, self.warps, strict=True)):
            return f"warps {self.warps} do not divide the tile {self.tile}"
        if self.warps[2] != 1:
            return "warps cannot be distributed along k: warps is (m, n, 1)"
        if self.schedule == "simt":
            if (self.stages, self.tile[2]) != (2, 8):
                return f"simt has 2 stages of depth 8, not {self.stages} of {self.tile[2]}"
        elif not 3 <= self.stages <= 10:
            return f"multistage has 3 to 10 stages, not {self.stages}"
        elif any(size % unit for size, unit in zip(self.warp_tile, self.instruction, strict=True)):
            return f"a warp's {self.warp_tile} is no multiple of the instruction's {self.instruction}"
        elif self.tile[2] * BITS[self.dtype] not in (512, 1024):
            return f"a stage holds 64 or 128 bytes of a row, not {self.tile[2] * BITS[self.dtype] // 8}"
        elif self.alignment * BITS[self.dtype] < 32:
            return "cp.async copies at least 4 bytes: alignment is too small"
        threads = 32 * self.warps[0] * self.warps[1]
        narrow = min(self.tile[:2])
        if narrow * self.tile[2] < threads * self.alignment:
            return f"{narrow} x {self.tile[2]} elements are less than one access for each of {threads} threads"
        rows, cols, _ = self.warp_tile
        if rows * cols > 32 * self.most_sums:
            return f"a lane of a warp with {rows} x {cols} sums would hold more than {self.most_sums}"
        if self.schedule == "multistage" and cols < 32:
            return f"a warp stores rows of at least 32 elements, not {cols}"
        if (needed := self.stages * self.stage_bytes) > SHARED_BYTES[self.arch]:
            return f"needs {needed:,} bytes of shared memory, more than {SHARED_BYTES[self.arch]:,}"
        return None

    def _complaint_3x(self) -> str | None:
        m, n, k = self.tile
        if self.alignment * BITS[self.dtype] != 128:
            return "TMA takes rows of multiples of 16 bytes: leave alignment out"
        if self.dtype in FORMATS and (
            self.schedule not in ("one_sm", "two_sm") or self.epilogue != "linear" or k * BITS[self.dtype] != 1024
        ):
            depth = 1024 // BITS[self.dtype]
            return f"{self.dtype} takes schedule one_sm or two_sm, the linear epilogue, and tiles of depth {depth}"
        if self.dtype in FORMATS and n not in (64, 128, 192, 256):
            return f"{self.dtype} takes 64, 128, 192 or 256 columns a tile, not {n}"
        if self.cluster[2] != 1 or self.cluster[0] * self.cluster[1] > 8:
            return f"a cluster has at most 8 CTAs along m and n, not {self.cluster}"
        if k * BITS[self.dtype] % 256:
            return f"the depth of the tile is a multiple of {256 // BITS[self.dtype]} for {self.dtype}, not {k}"
        if self.arch == 90:
            if m not in ({64, 128} if self.schedule == "pingpong" else {128, 256}):
                rows = "64 or 128" if self.schedule == "pingpong" else "128 or 256"
                return f"{self.schedule} takes {rows} rows a tile, not {m}"
            if n % 16 or not 16 <= n <= 256:
                return f"wgmma takes 16 to 256 columns in steps of 16, not {n}"
            consumers = 1 if self.schedule == "pingpong" else 2
            if m * n > 128 * consumers * self.most_sums:
                return f"a thread would hold more than {self.most_sums} of {m} x {n} sums"
        else:
            if m != (256 if self.schedule == "two_sm" else 128):
                return f"{self.schedule} takes {256 if self.schedule == 'two_sm' else 128} rows a tile, not {m}"
            if n % 32 or not 32 <= n <= 256:
                return f"tcgen05.mma takes 32 to 256 columns in steps of 32, not {n}"
            if self.schedule == "two_sm" and self.cluster[0] % 2:
                return f"two_sm takes an even number of CTAs along m in a cluster, not {self.cluster}"
        if self.stages < 0 or self.stages == 1:
            return "stages must be at least 2, or 0 for the maximum"
        if (needed := (self.stages or 2) * self.stage_bytes) > SHARED_BYTES[self.arch]:
            return f"needs {needed:,} bytes of shared memory, more than {SHARED_BYTES[self.arch]:,}"
        return None


def _among(values: object) -> str:
    """``80 or 89``, ``a, b or c``."""
    *first, last = map(str, values)  # type: ignore[call-overload]  # any iterable
    return f"{', '.join(first)} or {last}" if first else last
