"""The product of quantized tokens with the weights of one or many experts: tiles, launches, quantization, references."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ptxkit import Launch, TensorMap, Tile, cdiv, uniform
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.parallel import in_threads
from ptxkit.workload.products import convert_to, of_library

Dtype = Literal["s8", "e4m3"]
Array = npt.NDArray[Any]

SOURCE = "moe_int8.cu"
TYPES = {"s8": "signed char", "e4m3": "ptxkit::e4m3"}
SUMS = {"s8": "s32", "e4m3": "f32"}
LARGEST = {"s8": 127.0, "e4m3": 448.0}
"""The largest quantized magnitude of a type."""
FORMATS = {"sums": 0, "f32": 1, "bf16": 2, "given": 3, "own": 4}
"""``ptxkit::Format`` in cu/ptxkit/gemm/grouped.cuh."""
DEPTH = 128  # elements of k in a stage
MAX_EXPERTS = 1024
CHUNK = 1024  # terms of products of s8 whose sums are exact in f32: 2^14 * 2^10 = 2^24
NULL = np.uint64(0)
MOST_STAGES = 16
LARGE_BLOCKS = {256: 1.0, 128: 1.05, 64: 1.25}
"""Tokens of large tiles, and an estimate of the time of a product of one token in them: small tiles are read more often."""
MOST_SUMS = 144  # of a thread; with 192, registers are spilled
SMALLEST_BLOCK = 8  # tokens of the smallest tile
ALTERNATING_BLOCK = 144  # tokens of the largest tile of a warpgroup with 128 weights
MEMORY_LIMITED = 64  # tokens of the largest tile whose product takes as long as reading the weights

WGMMA_WIDTHS = (64, 128, 256)
"""Weights of a tile."""

MMA_TILE = {
    "BW": [128, 256, 64],  # weights in a tile
    "BT": [64, 16, 32, 128],  # tokens in a tile
    "WW": [32, 64, 16],  # weights of a warp
    "WT": [32, 16, 64],  # tokens of a warp
    "STAGES": [3, 4, 2, 6],  # of the ring
    "GROUP": [8, 1, 4, 16],  # blocks of tokens in a group, see GroupTiles in cu/ptxkit/gemm/grouped.cuh
}
WGMMA_TILE = {
    "BW": [128, 256, 64],  # weights in a tile
    "BT": [256, 144, 128, 64, 32, 16, 8],  # tokens in a tile
    "CONSUMERS": [2, 1],  # warpgroups that multiply
    "GROUP": [8, 1, 2, 4, 16],  # blocks of tokens in a group, see GroupTiles in cu/ptxkit/gemm/grouped.cuh
    "CLUSTER": [1, 2],  # CTAs of a cluster, which have the same tokens and neighbouring weights, or
    "SHARE_WEIGHTS": [0, 1],  # the same weights and tokens of the same expert, each an equal part
    "PING_PONG": [0, 1],  # warpgroups have tiles of their own, one multiplies during the epilogue of the other
}


@dataclass(frozen=True)
class ExpertMmaTile(TemplateStruct):
    """``ExpertMmaTile`` of cu/kernels/moe_int8.cu."""

    BW: int
    BT: int
    WW: int
    WT: int
    STAGES: int
    GROUP: int


@dataclass(frozen=True)
class ExpertTile(TemplateStruct):
    """``ExpertTile`` of cu/kernels/moe_int8.cu."""

    BW: int
    BT: int
    CONSUMERS: int
    STAGES: int
    GROUP: int
    PARTS: int = 1
    CLUSTER: int = 1
    PING_PONG: bool = False
    PROMOTED: bool = False
    BOX: int = 8
    STEP: int = 8
    SHARE_WEIGHTS: bool = False
    DYNAMIC: bool = False


@dataclass(frozen=True)
class Product:
    """One product: names of its arrays, sizes, and the form of its results.

    Attributes:
        device: on which it runs.
        dtype: element type of tokens, weights, and quantized results.
        format: a key of :data:`FORMATS`. swiglu: neighbouring groups of 8 weights are gates and factors.
        rows: tokens of all experts. n: weights of an expert. k: elements of a token.
        a, b, a_scales, b_scales, out: names of arrays.
        token: name of the row of ``a`` of each row, or null. offsets: name of the first row of each expert, or null.
        scales: name of the results' scales, for the formats "given" and "own".
        experts: their number.
        parts: of k, which are summed apart.
        promoted: sums of :data:`DEPTH` products leave the tensor cores and are added in f32, in ``moe_product_wgmma``.
    """

    device: DeviceFacts
    dtype: Dtype
    format: str
    rows: int
    n: int
    k: int
    a: str = "a"
    b: str = "b"
    a_scales: str = "a_scales"
    b_scales: str = "b_scales"
    out: str = "out"
    scales: object = NULL
    token: object = NULL
    offsets: object = NULL
    experts: int = 1
    swiglu: bool = False
    parts: int = 1
    promoted: bool = False

    def columns(self, t: Tile) -> int:
        """Tiles across the weights, those of whole clusters."""
        cluster = t.get("CLUSTER", 1) // self.token_ctas(t)
        return int(cdiv(self.n, t.BW * cluster) * cluster)

    def most_blocks(self, tokens: int) -> int:
        """Blocks of ``tokens`` tokens, at most: those of experts may be incomplete."""
        return cdiv(self.rows, tokens) if self.experts == 1 else self.rows // tokens + min(self.experts, self.rows)

    @staticmethod
    def token_ctas(t: Tile) -> int:
        """CTAs that share weights, and have tokens of their own."""
        return int(t.CLUSTER) if t.get("SHARE_WEIGHTS") else 1

    @property
    def exchange(self) -> tuple[object, object]:
        """The arrays by which CTAs exchange the magnitudes of their tokens, ``largest`` and ``arrived``."""
        return ("largest", "arrived") if self.format == "own" else (NULL, NULL)

    def resident(self, t: Tile) -> bool | str:
        """Whether all tiles of a group of blocks of tokens can be resident at once, where they wait for each other.

        Tiles have consecutive numbers in a group, and go to CTAs, or their warpgroups, in turn. A tile waits only for those of
        its group, and follows, in its CTA, a tile of which all others in the group have lower numbers than it has. Hence the
        unfinished tile with the lowest number can always be computed.
        """
        if self.format != "own":
            return True
        cluster, group = t.get("CLUSTER", 1), t.GROUP if "CONSUMERS" in t else 1  # mma.sync has groups of one block
        slots = self.device.sms // cluster * cluster * (2 if t.get("PING_PONG") else 1)
        if (tiles := group * self.columns(t)) <= slots:
            return True
        return (
            f"the results of {group * t.BT} tokens are in {tiles} tiles of BW={t.BW} weights, which exchange the tokens' "
            f"largest magnitudes: more than {slots}, which {self.device.sms} SMs compute at a time"
        )

    def mma(self, t: Tile) -> Launch:
        """A launch of ``moe_product_mma``."""
        shared = self.mma_bytes(t)
        tiles = self.most_blocks(t.BT) * self.columns(t)
        exclusive = self.format == "own" or 2 * shared > self.device.target.limits.shared_bytes - 2048
        return Launch(
            "moe_product_mma",
            min(tiles, self.device.sms * (1 if exclusive else 2)),
            32 * (t.BW // t.WW) * (t.BT // t.WT),
            (
                *(self.a, self.b, self.token, self.offsets, self.a_scales, self.b_scales, self.out, self.scales),
                *(*self.exchange, self.rows, self.n, self.k, self.experts),
            ),
            shared=shared,
            source=SOURCE,
            cooperative=self.format == "own",
            template=(TYPES[self.dtype], ExpertMmaTile(**t), FORMATS[self.format], self.swiglu),
        )

    def wgmma(self, t: Tile) -> Launch:
        """A launch of ``moe_product_wgmma``, with as many stages as shared memory has room for."""
        stages, sharing = self.stages(t), self.token_ctas(t)
        tiles = self.most_blocks(t.BT * sharing) * sharing * self.columns(t) * self.parts
        shape = {name: t[name] for name in ("BW", "BT", "CONSUMERS", "GROUP", "CLUSTER")}
        box = self.token_box(t)
        forms = {name: bool(t.get(name)) for name in ("PING_PONG", "SHARE_WEIGHTS", "DYNAMIC")}
        exchange = (NULL, "arrived") if t.get("DYNAMIC") else self.exchange
        tile = ExpertTile(
            **shape, **forms, STAGES=stages, PARTS=self.parts, PROMOTED=self.promoted, BOX=box, STEP=self.token_step(t)
        )
        return Launch(
            "moe_product_wgmma",
            min(tiles, self.device.sms // t.CLUSTER * t.CLUSTER),
            128 * (t.CONSUMERS + 1),
            (
                TensorMap(self.a, box=(box, DEPTH), swizzle="128B"),
                TensorMap(self.b, box=(t.BW // sharing, DEPTH), swizzle="128B"),
                *(self.offsets, self.a_scales, self.b_scales, self.out, self.scales),
                *(*exchange, self.rows, self.n, self.k, self.experts),
            ),
            shared=stages * (self.stage_bytes(t) + self.barrier_bytes(t)) + self.wgmma_epilogue_bytes(t),
            source=SOURCE,
            cluster=t.CLUSTER if t.CLUSTER > 1 else None,
            cooperative=self.format == "own",
            template=(TYPES[self.dtype], tile, FORMATS[self.format], self.swiglu),
        )

    def token_box(self, t: Tile) -> int:
        """Rows of a TMA box of tokens; boxes without a token are not loaded.

        The last tile of an expert's tokens is incomplete. Its other rows, which are tokens of the next expert, would be read
        from L2 for all weights. Boxes are a third of a tile or less, and at most 64 rows, in whole swizzle patterns; tiles of 8
        and 16 tokens have hardly more than one pattern. TMA itself does not read rows behind those of a single expert. Where
        the tokens' magnitudes are exchanged, the results of all rows must be numbers.
        """
        loaded = int(t.BT * self.token_ctas(t) // t.CLUSTER)
        if self.experts == 1 or self.format == "own" or t.BT <= 16:
            return loaded
        return max(box for box in range(8, min(loaded, max(8, t.BT // 3), 64) + 1, 8) if loaded % box == 0)

    def token_step(self, t: Tile) -> int:
        """The number of tokens of a tile that are multiplied is a multiple of this one.

        Half of the last tile of an expert's tokens is empty on average. wgmma has all multiples of 16 tokens for s8, and of 8
        for e4m3. A single expert has at most one such tile.
        """
        return 16 if self.experts > 1 and t.BT > 16 and not self.promoted else int(t.BT)

    def epilogue_bytes(self, t: Tile) -> int:
        """``EpilogueShared`` of cu/ptxkit/gemm/grouped.cuh, in multiples of 8."""
        size = 2 if self.format == "bf16" else 1
        pitch = t.BW // (2 if self.swiglu else 1) * size + 16
        staged = min(t.BT, 32) * pitch if FORMATS[self.format] >= FORMATS["bf16"] else 0
        return cdiv(staged + 8 * t.BT + 4 * (MAX_EXPERTS + 4), 8) * 8

    def wgmma_epilogue_bytes(self, t: Tile) -> int:
        """The same of all tiles that a CTA of ``moe_product_wgmma`` computes at a time."""
        return cdiv(self.epilogue_bytes(t), 16) * 16 * (2 if t.PING_PONG else 1)

    @staticmethod
    def stage_bytes(t: Tile) -> int:
        """Bytes of a stage: a tile of weights and one of tokens."""
        return int((t.BW + t.BT) * DEPTH)

    @staticmethod
    def barrier_bytes(t: Tile) -> int:
        """Bytes of the two mbarriers of a stage, and of the number of the tile that begins in it, where CTAs take tiles."""
        return 20 if t.get("DYNAMIC") else 16

    def stages(self, t: Tile) -> int:
        """Stages of the ring that shared memory has room for."""
        room = self.device.target.limits.shared_bytes_per_cta - self.wgmma_epilogue_bytes(t)
        return min(MOST_STAGES, room // (self.stage_bytes(t) + self.barrier_bytes(t)))

    def mma_bytes(self, t: Tile) -> int:
        """Dynamic shared memory of ``moe_product_mma``."""
        return int(t.STAGES * self.stage_bytes(t) + self.epilogue_bytes(t))

    def has_type(self) -> bool | str:
        """Whether the target has the element type, or why not."""
        if self.dtype == "e4m3" and "mma.fp8" not in self.device.target.features:
            return "e4m3 needs sm_89 or later"
        return True

    def usable_mma(self, t: Tile) -> bool | str:
        """The constraint of ``moe_product_mma``."""
        if (reason := self.has_type()) is not True:
            return reason
        if t.BW % t.WW or t.BT % t.WT:
            return f"warps of {t.WW} x {t.WT} do not cover {t.BW} x {t.BT}"
        warps = t.BW // t.WW * (t.BT // t.WT)
        if warps % 2 or warps > 16 or t.BW * 8 % (32 * warps):
            return f"{warps} warps cannot share the copies of {t.BW} weights"
        if t.WW * t.WT > 64 * 32:
            return f"a warp has too few registers for {t.WW} x {t.WT} sums"
        limit = self.device.target.limits.shared_bytes_per_cta
        if (needed := self.mma_bytes(t)) > limit:
            return f"needs {needed} bytes of shared memory, more than {limit}"
        return self.resident(t)

    def usable_wgmma(self, t: Tile) -> bool | str:
        """The constraint of ``moe_product_wgmma``."""
        if t.PING_PONG and t.CONSUMERS != 2:
            return "two warpgroups alternate; other numbers cannot"
        if t.PING_PONG and self.parts > 1:
            return "tiles of parts of k have different numbers of steps, and warpgroups cannot alternate"
        sharing = 1 if t.PING_PONG else t.CONSUMERS
        if t.BW % (64 * sharing):
            return f"BW={t.BW} is not a multiple of 64 weights for each of {sharing} consumers"
        most = 64 if self.promoted else MOST_SUMS
        if (sums := t.BW * t.BT // (128 * sharing)) > most:
            rest = ", and as many of one step" if self.promoted else ""
            return f"a thread holds {sums} sums of {t.BW} x {t.BT}, more than {most}{rest}"
        if t.SHARE_WEIGHTS and (t.CLUSTER == 1 or self.format == "own"):
            return "only the CTAs of a cluster share weights, where tokens' magnitudes are not exchanged"
        if t.get("DYNAMIC"):
            if t.CLUSTER > 1 or t.PING_PONG or self.format == "own":
                return "clusters, alternating warpgroups and the exchange of magnitudes exclude tiles from a counter"
            if cdiv(self.k, DEPTH) < self.parts:
                return f"a tile is passed to the consumers with its first step, and some of {self.parts} parts of k have none"
        if t.BT % (8 * t.CLUSTER):
            return f"{t.BT} tokens cannot be divided among {t.CLUSTER} CTAs in groups of 8, as the swizzle requires"
        if self.device.sms < t.CLUSTER:
            return f"a cluster of {t.CLUSTER} CTAs needs as many SMs, and the device has {self.device.sms}"
        if self.stages(t) < 3:
            return f"shared memory has room for {self.stages(t)} stages, fewer than 3"
        return self.resident(t)


def block_of(tokens: float, *, exact: bool = True) -> int:
    """Tokens of a tile for this number of tokens of an expert; if it is not exact, the mean of many experts.

    Few tokens fit in one tile. Without the exact number, it has room for three standard deviations more than the mean, because
    an expert with two tiles reads its weights twice, while larger tiles of so few tokens cost nothing. Of many, tiles of 256
    are multiplied fastest, but the last one of an expert is incomplete, half of it on average.
    """
    margin = 0.0 if exact or tokens <= 1 else 3 * (tokens - 1) ** 0.5
    if tokens + margin <= 32:
        return next(block for block in (8, 16, 32) if tokens + margin <= block)

    def cost(block: int) -> float:
        blocks = math.ceil(tokens / block) if exact else max(1.0, tokens / block + 0.5)
        return blocks * block * LARGE_BLOCKS[block]

    return min(LARGE_BLOCKS, key=cost)


def arrived_blocks(rows: int, experts: int) -> int:
    """Elements of the temporary ``arrived``: one per block of tokens."""
    return rows // SMALLEST_BLOCK + min(experts, rows) + 1


def clear_launch(rows: int, experts: int) -> Launch:
    """A launch that clears what the CTAs of a product exchange."""
    args = ("largest", rows, "arrived", arrived_blocks(rows, experts))
    return Launch("clear_exchange", min(64, cdiv(rows, 256)), 256, args, source=SOURCE, template=(256,))


def by_row(kernel: str, rows: int, args: tuple[object, ...], types: tuple[str, ...]) -> Launch:
    """A launch of a kernel of moe_int8.cu with a CTA per row."""
    return Launch(kernel, rows, 256, args, source=SOURCE, template=(*types, 256))


def random_elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: Dtype) -> Array:
    """Quantized values in [-127, 127] (s8) or [-1, 1) (e4m3).

    Beyond 64 MB, a block of random bytes is repeated, at another offset in each repetition: drawing 11 GB would take longer
    than every measurement of them.
    """
    count = int(np.prod(shape))
    size = min(count, (64 << 20) - 57)
    if dtype == "s8":
        block: Array = rng.integers(-127, 128, size, dtype=np.int8)
    else:
        block = uniform(rng, size, "e4m3")
    if size == count:
        return block.reshape(shape)
    result = np.empty(count, block.dtype)

    def repeat(at: tuple[int, int]) -> None:
        first, shift = at
        part = result[first : first + size]
        head = min(part.size, size - shift)
        part[:head] = block[shift : shift + head]
        part[head:] = block[: part.size - head]

    in_threads(repeat, [(first, int(rng.integers(size))) for first in range(0, count, size)])
    return result.reshape(shape)


def random_scales(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: Dtype) -> Array:
    """Scales with which the largest dequantized magnitudes are between 0.5 and 1.5."""
    scales: Array = rng.random(shape, dtype=np.float32) + np.float32(0.5)
    return scales / np.float32(127) if dtype == "s8" else scales


def sums_of(a: Array, b: Array) -> Array:
    """a b^T, exact for int8; for e4m3 summed in float32, in parts of 1024 terms if numpy computes it, whose error is far below
    that of the tensor cores."""
    by_library = of_library(a, b, np.float64 if a.dtype == np.int8 else np.float32)
    if by_library is not None:
        return by_library
    total = np.zeros((a.shape[0], b.shape[0]))
    for first in range(0, a.shape[1], CHUNK):
        parts = [x[:, first : first + CHUNK] for x in (a, b)]
        x, y = (np.empty(part.shape, np.float32) for part in parts)
        convert_to(parts[0], x)
        convert_to(parts[1], y)
        total += x @ y.T
    return total


def quantized(v: Array, dtype: Dtype) -> tuple[Array, Array]:
    """The rows of v (rows, cols) as elements of ``dtype``, ties to even, and the scales (rows), in float64."""
    steps, scales = in_steps(v, dtype)
    return (
        np.rint(steps).astype(np.int8) if dtype == "s8" else steps.astype(np.float32).astype(dtype_of(dtype))
    ), scales


def in_steps(v: Array, dtype: Dtype, scales: Array | None = None) -> tuple[Array, Array]:
    """The rows of v (rows, cols) divided by their scales and limited to the range of ``dtype``, and the scales (rows).

    Without ``scales``, the largest magnitude of a row becomes the largest of the type; a row of zeros has scale 0.

    Returns:
        Both in float64. The elements are not rounded to ``dtype``.
    """
    if scales is None:
        scales = np.abs(v).max(axis=1, initial=0) / LARGEST[dtype]
    steps = v / np.where(scales == 0, 1, scales)[:, None]
    lowest = -128 if dtype == "s8" else -LARGEST[dtype]
    return np.clip(steps, lowest, LARGEST[dtype]), scales


def wgmma_tiles(product: Product, tokens: float, experts: float = 1, *, exact: bool = True) -> Iterator[dict[str, int]]:
    """Tiles for this number of tokens of each of ``experts`` experts (see :func:`block_of`), the most promising first.

    Each tile reads its tokens again, so that one of many tokens has as many weights as leave each SM a tile. Few tokens are
    limited by memory, see :func:`width_for_few`. Smaller and then larger ones follow.
    """
    first = block_of(tokens, exact=exact)
    for block in (first, *(other for other in LARGE_BLOCKS if other < first)):
        widths = [width for width in WGMMA_WIDTHS if width * block <= 256 * 128]
        tiles = experts * max(1.0, tokens / block) / product.device.sms
        if block <= MEMORY_LIMITED:
            best = width_for_few(product, block, tiles)
        else:
            best = max((w for w in widths if tiles * cdiv(product.n, w) >= 0.8), default=min(widths))
        for width in sorted(widths, key=lambda width: (width > best, abs(width - best))):
            yield from _with_groups(product, {"BW": width, "BT": block, "CONSUMERS": consumers(width)})


def tiles_of_many(tokens: float, experts: float, products: Sequence[Product]) -> Iterator[dict[str, int]]:
    """Tiles for these products with many tokens of each of ``experts`` experts, on average ``tokens``.

    Warpgroups alternate on 128 weights x 144 tokens, and CTAs share tokens in pairs. Where most experts have more tokens than
    such a tile, and at most twice as many, two CTAs share 256 weights and divide the tokens evenly: the weights of an expert
    then leave L2 once. The rule was derived from times on an H200 (docs/moe.md). Products with few tiles, and clusters that
    would reach far beyond the weights, are left to :func:`wgmma_tiles`.
    """
    device, spread = products[0].device, tokens**0.5
    if tokens < MEMORY_LIMITED or device.sms < 2:
        return
    blocks = max(1.0, tokens / ALTERNATING_BLOCK)
    fits = all(256 * cdiv(p.n, 256) <= 9 / 8 * p.n for p in products)
    if not fits or any(experts * blocks * cdiv(p.n, 128) < 1.5 * device.sms for p in products):
        return
    tile = {"BT": ALTERNATING_BLOCK, "CONSUMERS": 2, "GROUP": 8, "CLUSTER": 2}
    if tokens + spread > ALTERNATING_BLOCK and tokens + 2 * spread <= 2 * ALTERNATING_BLOCK:
        yield {**tile, "BW": 256, "SHARE_WEIGHTS": 1, "PING_PONG": 0}
    yield {**tile, "BW": 128, "SHARE_WEIGHTS": 0, "PING_PONG": 1}


def width_for_few(product: Product, block: int, tiles: float) -> int:
    """Weights of a tile of ``block`` tokens, where memory limits the product; ``tiles``: of all tokens, for each SM.

    An SM that gets many tiles of 128 weights reads at full speed. Of few tiles, the last ones leave other SMs without work, so
    that tiles of 64 weights take less time. Two cases are exceptions: a tile of 64 weights that is smaller than the ring of
    stages, and one of more than 16 tokens, which are read again for every 64 weights. Tiles have 64 weights in any case where
    not every SM gets one of 128. The rule was derived from times on an H200 (docs/moe.md).
    """
    wide = tiles * cdiv(product.n, 128) * product.parts
    if wide < (1.0 if block <= 16 else 1.5):
        return 64
    ring = product.device.target.limits.shared_bytes_per_cta * 3 // 4
    return 64 if block <= 16 and wide < 8 and 64 * product.k // product.parts >= ring else 128


def _with_groups(product: Product, tile: dict[str, int]) -> Iterator[dict[str, int]]:
    """The tile with alternating warpgroups, clusters and groups of blocks of tokens, the preferred ones first.

    Warpgroups that alternate multiply while the other one is in its epilogue; their tiles have half as many tokens, so that
    they read more from L2, which a cluster makes up for. On an H200, 4096 tokens x 14336 x 4096 in e4m3 to bf16, this takes 6%
    less time than tiles of 256 tokens. Results with a scale of their own wait for the other tiles of their tokens. As many
    blocks of tokens form a group, and share their weights, as can be resident; clusters wait for each other, which costs 10%.
    """
    if product.experts == 1 and tile["BW"] == 128 and tile["BT"] >= 128:
        alternating = {
            **tile,
            "BT": 128,
            "PING_PONG": 1,
            "CLUSTER": 1 if product.format == "own" else 2,
            "SHARE_WEIGHTS": 0,
        }
        yield from _resident_groups(product, alternating)
    yield from _resident_groups(product, {**tile, "PING_PONG": 0, "CLUSTER": 1, "SHARE_WEIGHTS": 0})


def _resident_groups(product: Product, tile: dict[str, int]) -> Iterator[dict[str, int]]:
    if product.format != "own":
        yield tile
        return
    for group in sorted(WGMMA_TILE["GROUP"], reverse=True):
        if product.resident(Tile({**tile, "GROUP": group})) is True:
            yield {**tile, "GROUP": group}
            return


def consumers(width: int) -> int:
    """Warpgroups that multiply a tile of this many weights."""
    return 2 if width >= 128 else 1


def mma_tiles(tokens: float) -> Iterator[dict[str, int]]:
    """The same for ``moe_product_mma``."""
    if tokens <= 16:
        yield {"BW": 128, "BT": 16, "WW": 32, "WT": 16, "STAGES": 4}
    if tokens <= 32:
        yield {"BW": 128, "BT": 32, "WW": 32, "WT": 32, "STAGES": 4}
    if tokens > 128:
        yield {"BW": 128, "BT": 128, "WW": 64, "WT": 32, "STAGES": 3}
    yield {"BW": 128, "BT": 64, "WW": 32, "WT": 32, "STAGES": 3}
    yield {"BW": 256, "BT": 64, "WW": 64, "WT": 32, "STAGES": 3}
    yield {"BW": 256, "BT": 32, "WW": 32, "WT": 32, "STAGES": 2}
