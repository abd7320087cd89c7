"""matmul_wgmma: bf16 or f16 matrix product on Hopper's tensor cores, in twenty steps, with operands in any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, TensorMap, Tile, Workload, cdiv, uniform, variant
from ptxkit.kernels.gemm import (
    cluster_k,
    direct,
    dot,
    multicast,
    row_classes,
    shifted,
    short_k,
    steps,
    stream_k,
    swapped,
    unaligned,
    wgmma_tiles,
)
from ptxkit.kernels.gemm.matmul import Matmul, without_epilogue
from ptxkit.kernels.gemm.product import Gemm, HasLayout, Layout
from ptxkit.kernels.measured import cluster_ctas
from ptxkit.kernels.template import TemplateStruct

BK = 64  # elements of k in a tile, and rows of a column-major operand in a box
ROW_BYTES = 128  # of a row of a tile in shared memory
BOX_BYTES = 16 * ROW_BYTES  # the part of c that a consumer warp stores at a time
STAGED_BYTES = 8 * 72 * 4  # of a consumer warp that stores row by row: cu/ptxkit/gemm/staged_rows.cuh
FROM_REGISTERS, BY_TMA, STAGED, SHIFTED = 0, 1, 2, 3  # ``Store`` of cu/ptxkit/gemm/wgmma_sums.cuh
REQUIRES = ("sm_90a",)
PITCHED = 16  # a bit of ``Epilogue`` in cu/ptxkit/gemm/gemm.cuh
MOST_PITCH = 2**31 - 1  # elements, which kernels count in 32 bits

TILE = {
    "BM": [128, 64, 256, 192],  # rows and columns of c in a tile
    "BN": [256, 128, 64, 192, 224, 160, 96, 176, 208, 144, 240, 112],
    "CONSUMERS": [2, 1, 3],  # warpgroups that multiply
    "STAGES": [4, 3, 5, 6, 8],  # stages of the ring of tiles
    "CLUSTER_M": [1, 2, 4],  # CTAs that share a tile of b
    "CLUSTER_N": [1, 2],  # CTAs that share a tile of a
    "GROUP": [16, 4, 8, 32, 1],  # rows of clusters in a group, see grouped_tile in cu/ptxkit/gemm/gemm.cuh
    "REGISTERS": [240, 0, 160],  # registers of a consumer thread; 0: the same as of a producer thread
    "BOXES": [2, 4, 1],  # boxes of c that a warp may have in flight
}
STEP_8_TILE = {
    **TILE,
    "PING_PONG": [0, 1],  # 1: each of two consumers computes tiles of its own, and stores while the other one multiplies
}
STEP_3 = Tile(
    {
        "BM": 128,
        "BN": 128,
        "CONSUMERS": 1,
        "STAGES": 4,
        "CLUSTER_M": 1,
        "CLUSTER_N": 1,
        "GROUP": 1,
        "REGISTERS": 0,
        "STORE": 0,
        "BOXES": 1,
        "PING_PONG": 0,
    }
)


@dataclass(frozen=True)
class WgmmaTile(TemplateStruct):
    """``WgmmaTile`` of cu/ptxkit/gemm/wgmma_product.cuh."""

    BM: int
    BN: int
    CONSUMERS: int
    STAGES: int
    CLUSTER_M: int
    CLUSTER_N: int
    GROUP: int
    REGISTERS: int
    STORE: int
    BOXES: int
    PING_PONG: int = 0


@dataclass(frozen=True)
class Operands(TemplateStruct):
    """``Operands`` of cu/ptxkit/gemm/wgmma_product.cuh.

    Attributes:
        A_MAJOR, B_MAJOR: for each operand whether it is column-major, ``MN_MAJOR``.
        BATCHED: whether tensor maps have the product of a batch as their first dimension.
    """

    A_MAJOR: int
    B_MAJOR: int
    BATCHED: int = 0

    @classmethod
    def of(cls, w: HasLayout) -> Operands:
        """The layouts of a description; its b is (k, n), that of the sources (n, k)."""
        return cls(int(w.a_layout == "column"), int(w.b_layout == "row"))

    def boxes(self, a: str, b: str, rows: int, cols: int) -> tuple[TensorMap, TensorMap]:
        """Tensor maps of the arrays a and b, for copies of ``rows`` rows of a and ``cols`` rows of b, (n, k).

        A box of a column-major operand has 64 of these rows, which are a row of 128 bytes in shared memory; several boxes are
        copied.
        """
        return (
            TensorMap(a, box=(BK, 64) if self.A_MAJOR else (rows, BK), swizzle="128B"),
            TensorMap(b, box=(BK, 64) if self.B_MAJOR else (cols, BK), swizzle="128B"),
        )


K_MAJOR = Operands(0, 0)


def but(tile: Tile, **changed: int) -> Tile:
    """The same tile with some values replaced."""
    return Tile({**tile, **changed})


STEP_4 = but(STEP_3, BN=256, CONSUMERS=2)
STEP_5 = but(STEP_4, GROUP=16)
STEP_6 = but(STEP_5, CLUSTER_M=2, GROUP=8)
STEP_7 = but(STEP_6, REGISTERS=240)


def consumers_of_a_tile(t: Mapping[str, int]) -> int:
    """Warpgroups that multiply a tile together: ``SHARING`` of the kernel's ``WgmmaTile``."""
    return 1 if t.get("PING_PONG") else t["CONSUMERS"]


def shared_bytes(t: Tile) -> int:
    """Dynamic shared memory of a CTA: ``WgmmaLayout`` of the kernel."""
    shifted_bytes = unaligned.shifted_bytes(t.BN // t.BOXES) if t.STORE == SHIFTED else 0
    of_warp = {FROM_REGISTERS: 0, BY_TMA: t.BOXES * BOX_BYTES, STAGED: STAGED_BYTES, SHIFTED: shifted_bytes}[t.STORE]
    return int(t.STAGES * ((t.BM + t.BN) * ROW_BYTES + 16) + 4 * t.CONSUMERS * of_warp)


def stored_box(t: Mapping[str, int]) -> dict[str, Any]:
    """The arguments of the tensor map of c, of 16-bit elements."""
    row_bytes = wgmma_tiles.box_row_bytes(t)
    return {"box": (16, row_bytes // 2), "swizzle": f"{row_bytes}B"}


def product_launch(
    kernel: str,
    w: Workload,
    size: tuple[int, int],
    t: Tile,
    maps: tuple[str, str, str],
    args: tuple[object, ...],
    template: tuple[object, ...],
    *,
    persistent: bool = True,
    beside: int = 0,
    operands: Operands = K_MAJOR,
) -> Launch:
    """A launch of a kernel around ``wgmma_product`` of cu/ptxkit/gemm/wgmma_product.cuh.

    Args:
        w: the workload, for the number of SMs.
        size: rows and columns of c.
        t: a tile with all parameters of :class:`WgmmaTile`, which is the first template argument.
        maps: names of the arrays a, b and c, whose tensor maps are the first parameters of the kernel.
        args, template: the other arguments.
        persistent: as many CTAs as are resident at the same time, instead of one for each tile.
        beside: bytes of shared memory beside those of the product.
        operands: the layouts of a and b, which the kernel knows from ``template``.
    """
    rows, cols = size
    cluster = t.CLUSTER_M * t.CLUSTER_N
    tiles = cdiv(rows, t.BM * t.CLUSTER_M) * cdiv(cols, t.BN * t.CLUSTER_N)
    a, b, c = maps
    return Launch(
        kernel,
        cluster * (min(tiles, cluster_ctas(w.device, cluster) // cluster) if persistent else tiles),
        128 * (t.CONSUMERS + 1),
        (
            *operands.boxes(a, b, t.BM // t.CLUSTER_N, t.BN // t.CLUSTER_M),
            TensorMap(c, **stored_box(t)) if t.STORE != SHIFTED else TensorMap(c, box=(8,), shape=(1,)),  # one that is not used
            *args,
        ),
        shared=shared_bytes(t) + beside,
        cluster=cluster if cluster > 1 else None,
        template=(WgmmaTile(**t), *template),
    )


def in_memory(w: MatmulWgmma, launch: Launch) -> Launch:
    """The launch with tensor maps of a, b and c as they lie in memory, or of the copies of operands that TMA cannot read."""
    copies = unaligned.copies(w)

    def of(argument: object) -> object:
        if isinstance(argument, TensorMap) and not argument.shape:  # one with a shape is not used
            return unaligned.map_of(w, argument, copies)
        return argument

    return replace(launch, args=tuple(map(of, launch.args)))


def specialized(w: MatmulWgmma, t: Tile, *, persistent: bool = True) -> list[Launch]:
    """A launch of ``matmul_specialized``, after copies for TMA."""
    operands = Operands.of(w)
    launch = product_launch(
        "matmul_specialized",
        w,
        (w.m, w.n),
        t,
        ("a", "b", "c"),
        w.scalars,
        (w.cu_type, operands, w.epilogue_bits),
        persistent=persistent,
        operands=operands,
    )
    return [*unaligned.copying(w, unaligned.copies(w)), in_memory(w, launch)]


def plain(w: MatmulWgmma, rows: int, cols: int) -> list[Launch]:
    """A launch of ``matmul_tma``."""
    operands = Operands.of(w)
    grid = (cdiv(w.n, cols), cdiv(w.m, rows))
    args = (*operands.boxes("a", "b", rows, cols), *w.scalars)
    launch = Launch("matmul_tma", grid, 128, args, template=(rows, cols, w.cu_type, operands, w.epilogue_bits))
    return [in_memory(w, launch)]


def full(t: Tile) -> Tile:
    """The tile of step 8 with the parameters that are not swept."""
    return Tile({name: t.get(name, fixed) for name, fixed in {**STEP_7, "STORE": 1}.items()})


def stored(w: MatmulWgmma, t: Mapping[str, int]) -> Tile:
    """The tile of step 12 with how it stores c: as step 8 where TMA can, and by pieces of rows where it cannot."""
    whole = full(Tile(t))
    return whole if unaligned.stores_by_tma(w) else but(whole, STORE=SHIFTED, BOXES=unaligned.pieces(w, t))


def copied_usable(w: MatmulWgmma, t: Tile) -> bool | str:
    """The constraint of step 12."""
    if unaligned.stores_by_tma(w):
        return usable(w, t)
    return usable(w, but(t, BOXES=1)) if unaligned.pieces(w, t) else "shared memory has no place for pieces of rows of c"


def read_by_tma(w: MatmulWgmma, t: Tile) -> bool | str:
    """The constraint of the steps that read and write all matrices by TMA."""
    reason = unaligned.needed(w)
    return True if reason is None else f"{reason}, as TMA requires: steps 11 to 19 compute such products"


def by_tma(constraint: Callable[[Any, Tile], bool | str]) -> Callable[[Any, Tile], bool | str]:
    """The constraint of such a step, together with another one."""

    def both(w: MatmulWgmma, t: Tile) -> bool | str:
        allowed = read_by_tma(w, t)
        return constraint(w, t) if allowed is True else allowed

    return both


def whole_boxes(w: HasLayout, t: Tile) -> bool | str:
    """Whether CTAs of a cluster copy whole boxes of 64 rows of column-major operands."""
    of = Operands.of(w)
    for name, column_major, rows, sharing in (
        ("a", of.A_MAJOR, t.BM, t.CLUSTER_N),
        ("b", of.B_MAJOR, t.BN, t.CLUSTER_M),
    ):
        if column_major and rows // sharing % 64:
            return f"each of {sharing} CTAs copies {rows // sharing} rows of {name}, whose boxes have 64 in this layout"
    return True


def usable(w: MatmulWgmma, t: Tile) -> bool | str:
    """The constraint of step 8."""
    allowed = whole_boxes(w, t)
    if allowed is not True:
        return allowed
    return can_run(w, t, simple=unaligned.simple(w))


def can_run(w: Workload, t: Tile, *, simple: bool, beside: int = 0, box_columns: int = 0) -> bool | str:
    """Whether a tile has enough registers and shared memory, or why not.

    Args:
        t: a tile of step 8; parameters that it omits are those of step 8.
        simple: the epilogue reads no arrays, and therefore needs few registers.
        beside: bytes of shared memory beside those of the product.
        box_columns: columns of the tile that one box of the result takes; 0 for those of 16-bit elements.
    """
    if t.get("PING_PONG") and t.CONSUMERS != 2:
        return "two consumers alternate with PING_PONG=1"
    sharing = consumers_of_a_tile(t)
    most = 96 if t.CONSUMERS == 3 else 192 if simple and t.REGISTERS == 240 and t.CONSUMERS == 2 else 128
    box_columns = box_columns or wgmma_tiles.box_row_bytes(t) // 2
    if (sums := t.BM * t.BN // (128 * sharing)) > most:
        return f"a thread of {sharing} consumers holds {sums} sums of {t.BM} x {t.BN}, more than {most}"
    if t.BM % (64 * sharing):
        return f"BM={t.BM} is not a multiple of 64 rows for each of {sharing} consumers"
    if t.REGISTERS and t.CONSUMERS == 1:
        return "one consumer has enough registers without setmaxnreg"
    if t.REGISTERS and (t.REGISTERS == 160) != (t.CONSUMERS == 3):
        return f"{t.CONSUMERS} consumers have REGISTERS={160 if t.CONSUMERS == 3 else 240}, or 0"
    for rows, ctas, name in ((t.BM, full(t).CLUSTER_N, "a"), (t.BN, full(t).CLUSTER_M, "b")):
        if rows % (8 * ctas):
            return f"{rows} rows of {name} are no multiples of the 8 rows of a swizzle pattern for each of {ctas} CTAs"
    boxes = t.BM // sharing // 64 * (t.BN // box_columns)
    if boxes % min(t.BOXES, boxes):
        return f"the {boxes} boxes of a warp are not a multiple of BOXES={t.BOXES}"
    limit = w.device.target.limits.shared_bytes_per_cta
    if (needed := shared_bytes(full(t)) + beside) > limit:
        return f"needs {needed} bytes of shared memory, more than {limit}"
    return True


def split_usable(w: MatmulWgmma, t: Tile) -> bool | str:
    """The constraint of step 10."""
    most = wgmma_tiles.most_parts(w)
    if not most:
        return f"c has tiles for all SMs, or k={w.k} is too short to be divided"
    if most < t.PARTS:
        return f"PARTS={t.PARTS} is more than the {most} for whose sums there is memory"
    if (steps := cdiv(w.k, BK)) < t.PARTS:
        return f"k={w.k} has {steps} steps of {BK}, fewer than PARTS={t.PARTS}"
    return usable(w, full(t))


def split_k(w: MatmulWgmma, t: Tile) -> list[Launch]:
    """Launches of ``matmul_parts`` and ``matmul_sum_parts``."""
    operands = Operands.of(w)
    values = {name: t[name] for name in TILE}
    parts = Tile({**values, "STORE": 0})
    tiles = wgmma_tiles.tiles(w, t) * t.PARTS
    cluster = t.CLUSTER_M * t.CLUSTER_N
    multiply = Launch(
        "matmul_parts",
        cluster * min(tiles // cluster, cluster_ctas(w.device, cluster) // cluster),
        128 * (t.CONSUMERS + 1),
        (
            *operands.boxes("a", "b", t.BM // t.CLUSTER_N, t.BN // t.CLUSTER_M),
            TensorMap("c", **stored_box(t)),
            *("partials", w.m, w.n, w.k, t.PARTS),
        ),
        shared=shared_bytes(parts),
        cluster=cluster if cluster > 1 else None,
        template=(WgmmaTile(**parts), w.cu_type, operands),
    )
    c, bias, m, n, _, *others = w.scalars
    adders = stream_k.adders(t.PARTS)
    add = Launch(
        "matmul_sum_parts",
        cdiv(w.m * (w.n // 4) * adders, 128),
        128,
        ("partials", c, bias, m, n, *others, t.PARTS, adders),
        template=(w.cu_type, w.epilogue_bits),
    )
    return [in_memory(w, multiply), add]


def shared_steps(w: MatmulWgmma, t: Tile) -> list[Launch]:
    """Launches of ``matmul_stream_k``: before it copies for TMA, after it the sums of divided tiles, where there are any."""
    operands, shares, ring = Operands.of(w), stream_k.Shares.of(w, t), stream_k.stages(w, t)
    copies = unaligned.copies(w)
    a, b = "ab"
    if shares.transposed:
        operands, a, b = Operands(operands.B_MAJOR, operands.A_MAJOR), b, a
    boxes = [unaligned.map_of(w, made, copies) for made in operands.boxes(a, b, shares.rows, t.COLUMNS // shares.b_sharing)]
    if shares.parts:
        boxes = [replace(made, l2_promotion=unaligned.promotion(made)) for made in boxes]
    copied = unaligned.copying(w, copies)
    c, bias, m, n, _, *others = w.scalars
    output = (c, bias, m, n, *others)
    tile, pairs = stream_k.StreamKTile.of(t), unaligned.stores_pairs(w)
    add = Launch(
        "matmul_sum_shares",
        shares.sums(t),
        stream_k.SHARE_THREADS,
        ("partials", *output, *shares.arguments, shares.adders),
        template=(tile, w.cu_type, w.epilogue_bits, pairs),
    )
    clear = Launch("matmul_clear_arrived", 1, stream_k.SHARE_THREADS, ("partials", *shares.words), template=(tile,))
    multiply = Launch(
        "matmul_stream_k",
        shares.clusters * shares.ctas,
        stream_k.threads(t) + 32,
        (
            *boxes,
            *(*output, "partials" if shares.shares else np.uint64(0), *shares.arguments, ring),
        ),
        shared=ring * stream_k.stage_bytes(t) + stream_k.staged_bytes(w, t),
        cluster=shares.ctas if shares.ctas > 1 else None,
        template=(tile, w.cu_type, operands, w.epilogue_bits, pairs),
        instantiate=(add.entry, clear.entry),
    )
    return [*copied, *shares.launches(clear, multiply, add)]


def divided_by_clusters(w: MatmulWgmma, t: Tile) -> list[Launch]:
    """A launch of ``matmul_cluster_k``, after copies for TMA."""
    operands, rows = Operands.of(w), stream_k.loaded_rows(w, {**t, **cluster_k.ALONE})
    copies = unaligned.copies(w)
    c, bias, m, n, _, *others = w.scalars
    multiply = Launch(
        "matmul_cluster_k",
        cluster_k.of_product(w, t) * t.PARTS,
        stream_k.threads(t) + 32,
        (
            *(unaligned.map_of(w, made, copies) for made in operands.boxes("a", "b", rows, t.COLUMNS)),
            *(c, bias, m, n, *others),
            *(cluster_k.down(w, t), cluster_k.steps(w, 2), rows, cluster_k.stages(w, t)),
        ),
        shared=cluster_k.shared_bytes(w, t),
        cluster=t.PARTS,
        template=(stream_k.StreamKTile.of(t), w.cu_type, operands, w.epilogue_bits, unaligned.stores_pairs(w)),
    )
    return [*unaligned.copying(w, copies), multiply]


def loaded_by_clusters(w: MatmulWgmma, t: Tile) -> list[Launch]:
    """A launch of ``matmul_multicast``, after copies for TMA."""
    operands, copies = Operands.of(w), unaligned.copies(w)
    c, bias, m, n, _, *others = w.scalars
    multiply = Launch(
        "matmul_multicast",
        multicast.clusters(w, t) * multicast.cluster(t),
        multicast.threads(t),
        (
            *(unaligned.map_of(w, made, copies) for made in operands.boxes("a", "b", *multicast.loaded_rows(t))),
            *(c, bias, m, n, *others),
            *multicast.arguments(w, t),
        ),
        shared=multicast.shared_bytes(w, t),
        cluster=multicast.cluster(t) if multicast.cluster(t) > 1 else None,
        template=(multicast.MulticastTile.of(t), w.cu_type, operands, w.epilogue_bits, multicast.stores(w)),
    )
    return [*unaligned.copying(w, copies), multiply]


def contiguous(w: MatmulWgmma, t: Tile) -> bool | str:
    """The constraint of the variant in PTX."""
    return "the PTX kernel reads and writes contiguous matrices" if w.pitched else without_epilogue(w, t)


class MatmulWgmma(Matmul):
    """c = gelu(alpha a b^T + beta c + bias) by wgmma, in twenty steps; with ``epilogue="bias"`` without gelu.

    ``layout`` gives the layouts of a and of b as a matrix (k, n), in the notation of BLAS: t is row-major, n column-major. With
    "tn" both are contiguous along k, a stored as (m, k) and b as (n, k); with "n" for a, it is stored as (k, m), and with "t"
    for b, it is stored as (k, n).

    ``lda``, ``ldb`` and ``ldc`` are the elements from one row in memory to the next where that is more than the length of a
    row: a, b and c are then parts of larger matrices, and the rest of c is not written.
    """

    source = "matmul_wgmma.cu"
    epilogue: Literal["none", "bias", "bias_gelu"] = "none"  # type: ignore[assignment]  # one more than the base has
    dtype: Literal["bf16", "f16"] = "bf16"
    layout: Layout = "tn"
    lda: int = field(default=0, kw_only=True)
    ldb: int = field(default=0, kw_only=True)
    ldc: int = field(default=0, kw_only=True)

    @property
    def cu_type(self) -> str:
        """The element type in C++."""
        return f"ptxkit::{self.dtype}"

    def constraints(self) -> Iterable[str]:
        yield from self.limits()
        lengths = {**unaligned.stored_columns(self), "c": self.n}
        for name, length in lengths.items():
            if (given := getattr(self, f"ld{name}")) and given < length:
                yield f"ld{name} must be at least {length}, the length of a row"
        rows = {name: shape[0] for name, shape in zip("ab", self.stored(self.m, self.n, self.k), strict=True)}
        for name, pitch in unaligned.pitches(self).items():
            if pitch > MOST_PITCH or pitch * rows.get(name, self.m) >= 2**40:
                yield f"{name} is too large"

    @property
    def pitched(self) -> bool:
        """Whether an array is a part of a larger matrix."""
        return unaligned.pitches(self) != {**unaligned.stored_columns(self), "c": self.n}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        given = super().inputs(rng)
        pitch = unaligned.pitches(self)
        for name in "ab":
            rows, columns = given[name].shape
            if pitch[name] > columns:
                given[name] = uniform(rng, (rows, pitch[name]), self.kind)
        if pitch["c"] > self.n:
            given["c"] = uniform(rng, (self.m, pitch["c"]), self.output_kind)
        return given

    def reference(self, a: Any, b: Any, c: Any = None, bias: Any = None) -> dict[str, Any]:
        lengths = unaligned.stored_columns(self)
        old = c[:, : self.n] if c is not None and self.beta else None
        found = super().reference(a[:, : lengths["a"]], b[:, : lengths["b"]], old, bias)
        if c is None or c.shape[1] == self.n:
            return found
        whole = c.astype(found["c"].dtype)
        whole[:, : self.n] = found["c"]
        return {"c": whole}

    def outputs(self) -> Mapping[str, Any]:
        return {"c": ((self.m, unaligned.pitches(self)["c"]), self.output_kind)}

    def gemm(self) -> Gemm | None:
        """The product as libraries compute it; None for parts of larger matrices, which they are not given."""
        return None if self.pitched else super().gemm()

    @property
    def epilogue_bits(self) -> int:
        return super().epilogue_bits | (PITCHED if unaligned.pitches(self)["c"] > self.n else 0)

    @property
    def scalars(self) -> tuple[object, ...]:
        """The arguments c, bias, m, n, k, alpha, beta and the pitch of c."""
        return (*super().scalars, unaligned.pitches(self)["c"])

    def temporaries(self) -> Mapping[str, Any]:
        if unaligned.needed(self):
            copies = {f"{name}_aligned": (shape, self.kind) for name, shape in unaligned.copies(self).items()}
            if row_classes.considered(self):
                copies[row_classes.SHIFTED] = (row_classes.copies(self), self.kind)
            elements = stream_k.partials(self)
            return {**copies, "partials": ((elements,), "f32")} if elements else copies
        elements = max(wgmma_tiles.most_parts(self) * self.m * self.n, stream_k.partials(self))
        return {"partials": ((elements,), "f32")} if elements else {}

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step1_tma(self) -> list[Launch]:
        """TMA, then wgmma, on 64 x 64 tiles; copies and products do not overlap."""
        return plain(self, 64, 64)

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step2_larger_tile(self) -> list[Launch]:
        """128 x 128 tiles: four times the work for twice the bytes."""
        return plain(self, 128, 128)

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step3_specialized(self) -> list[Launch]:
        """A producer warpgroup fills a ring of stages while a consumer warpgroup multiplies."""
        return specialized(self, STEP_3, persistent=False)

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step4_two_consumers(self) -> list[Launch]:
        """128 x 256 tiles: two consumer warpgroups share the tile of b."""
        return specialized(self, STEP_4, persistent=False)

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step5_persistent(self) -> list[Launch]:
        """One persistent CTA per SM, tiles in an order that shares data in L2."""
        return specialized(self, STEP_5)

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step6_multicast(self) -> list[Launch]:
        """Clusters of two CTAs load each tile of b once."""
        return specialized(self, STEP_6)

    @variant(requires=REQUIRES, constraint=read_by_tma)
    def step7_setmaxnreg(self) -> list[Launch]:
        """The producer's registers go to the consumers."""
        return specialized(self, STEP_7)

    @variant(
        requires=REQUIRES,
        tile=STEP_8_TILE,
        constraint=by_tma(usable),
        prefer=steps.preferred(8),
    )
    def step8_tma_store(self, t: Tile) -> list[Launch]:
        """TMA stores the sums from shared memory during the products of the next tile."""
        return specialized(self, full(t))

    @variant(
        requires=REQUIRES,
        source=swapped.SOURCE,
        tile=swapped.SPACE,
        constraint=by_tma(swapped.usable),
        prefer=steps.preferred(9),
        slower=lambda w: steps.slower(w, 9),
    )
    def step9_swapped(self, t: Tile) -> list[Launch]:
        """For few rows of a: b is the first operand of wgmma, and CTAs of a cluster divide k."""
        return swapped.launches(self, Operands.of(self), t)

    @variant(
        requires=REQUIRES,
        source="matmul_split_k.cu",
        tile={**TILE, "PARTS": wgmma_tiles.PARTS},
        constraint=by_tma(split_usable),
        prefer=steps.preferred(10),
        slower=lambda w: steps.slower(w, 10),
    )
    def step10_split_k(self, t: Tile) -> list[Launch]:
        """For a long k and a small c: CTAs multiply parts of k, and a second launch adds their sums in order."""
        return split_k(self, t)

    @variant(
        requires=REQUIRES,
        source=unaligned.SOURCE,
        tile=unaligned.SPACE,
        constraint=unaligned.usable,
        prefer=steps.preferred(11),
        slower=lambda w: steps.slower(w, 11),
    )
    def step11_unaligned(self, t: Tile) -> list[Launch]:
        """For rows of any number of bytes: threads of the producer warpgroup fill the tiles that TMA cannot."""
        return unaligned.launches(self, Operands.of(self), t)

    @variant(
        requires=REQUIRES,
        tile=STEP_8_TILE,
        constraint=copied_usable,
        prefer=steps.preferred(12),
        slower=lambda w: steps.slower(w, 12),
    )
    def step12_aligned_copy(self, t: Tile) -> list[Launch]:
        """Step 8 after a copy of each such operand to rows that TMA can read; shifted vectors store rows that TMA cannot."""
        return specialized(self, stored(self, t))

    @variant(
        requires=REQUIRES,
        source=stream_k.SOURCE,
        tile=stream_k.SPACE,
        constraint=stream_k.fits,
        prefer=steps.preferred(13),
        slower=lambda w: steps.slower(w, 13),
    )
    def step13_stream_k(self, t: Tile) -> list[Launch]:
        """Tiles as wide as n divided by the SMs, or equal shares of the steps of k, whose sums are added in order."""
        return shared_steps(self, t)

    @variant(
        requires=REQUIRES,
        source=cluster_k.SOURCE,
        tile=cluster_k.SPACE,
        constraint=cluster_k.usable,
        prefer=steps.preferred(14),
        slower=lambda w: steps.slower(w, 14),
    )
    def step14_cluster_k(self, t: Tile) -> list[Launch]:
        """For a small c: CTAs of a cluster multiply parts of k, and add their sums through distributed shared memory."""
        return divided_by_clusters(self, t)

    @variant(
        requires=REQUIRES,
        source=multicast.SOURCE,
        tile=multicast.SPACE,
        constraint=multicast.usable,
        prefer=steps.preferred(15),
        slower=lambda w: steps.slower(w, 15),
    )
    def step15_multicast(self, t: Tile) -> list[Launch]:
        """For up to some hundred rows of a: tiles with any multiple of 8 of them, and both operands loaded for a cluster."""
        return loaded_by_clusters(self, t)

    @variant(
        requires=REQUIRES,
        source=direct.SOURCE,
        tile=direct.SPACE,
        constraint=direct.usable,
        prefer=steps.preferred(16),
        slower=lambda w: steps.slower(w, 16),
    )
    def step16_direct(self, t: Tile) -> list[Launch]:
        """For few rows of a: vectors of rows of b that begin anywhere, from device memory to the operands of mma.sync."""
        return direct.launches(self, t)

    @variant(
        requires=REQUIRES,
        source=shifted.SOURCE,
        tile=shifted.SPACE,
        constraint=shifted.usable,
        prefer=steps.preferred(17),
        slower=lambda w: steps.slower(w, 17),
    )
    def step17_shifted(self, t: Tile) -> list[Launch]:
        """For rows of any length and a short k or few rows of a: asynchronous copies of aligned vectors, which are shifted."""
        return shifted.launches(self, t)

    @variant(
        requires=REQUIRES,
        source=row_classes.SOURCE,
        tile=row_classes.SPACE,
        constraint=row_classes.usable,
        prefer=steps.preferred(18),
        slower=lambda w: steps.slower(w, 18),
    )
    def step18_row_classes(self, t: Tile) -> list[Launch]:
        """For few rows of a or b: TMA reads rows of any length of the other one by eight tensor maps, without a copy."""
        return row_classes.launches(self, t)

    @variant(
        requires=REQUIRES,
        source=short_k.SOURCE,
        tile=short_k.SPACE,
        constraint=short_k.usable,
        prefer=steps.preferred(19),
        slower=lambda w: steps.slower(w, 19),
    )
    def step19_short_k(self, t: Tile) -> list[Launch]:
        """For small products with a short k: small CTAs that read rows of any length where copies put them, for mma.sync."""
        return short_k.launches(self, t)

    @variant(
        requires=REQUIRES,
        source=dot.SOURCE,
        tile=dot.SPACE,
        constraint=dot.usable,
        prefer=steps.preferred(20),
        slower=lambda w: steps.slower(w, 20),
    )
    def step20_dot(self, t: Tile) -> list[Launch]:
        """For one row of a: dot products with rows of b, which warps read in long pieces."""
        return dot.launches(self, t)

    @variant(requires=REQUIRES, source="matmul_wgmma.ptx", constraint=by_tma(contiguous))
    def ptx(self) -> list[Launch]:
        """Hand-written PTX: a producer warp, TMA, a ring of four stages, wgmma on 64 x 128 tiles."""
        maps = (TensorMap("a", box=(64, BK), swizzle="128B"), TensorMap("b", box=(128, BK), swizzle="128B"))
        grid = (cdiv(self.n, 128), cdiv(self.m, 64))
        return [Launch("matmul", grid, 160, (*maps, "c", self.m, self.n, self.k), shared=98368)]
