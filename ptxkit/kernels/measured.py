"""Tiles and thresholds from measurements on GPUs: one entry for each measured GPU, and a rule for all others.

Descriptions ask :func:`measured` with the facts of their device and combine the answer with what follows from the device itself
(SM count, L2 cache, limits of the target). To add a GPU, add an entry to :data:`MEASURED`; no description changes.

The rule for a GPU without an entry: it takes the entry of the measured GPU with the nearest compute capability, the newer of
two that are equally near. Numbers that depend on the size of the GPU are scaled to its own: a number of CTAs with the SM count,
a number of bytes with the L2 cache. All tiles are preferences, which are checked in order against the constraints and the
limits of the device, so that an entry of another GPU may cost time but never makes a kernel fail. ``ptxkit sweep tiles
--apply`` measures on the GPU at hand, and what it records has precedence over this table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from ptxkit import cdiv
from ptxkit.targets.gpus import reference_facts

MIB = 1 << 20
H200_FACTS = reference_facts("sm_90a")


class Facts(Protocol):
    """What this module reads of :class:`ptxkit.targets.gpus.DeviceFacts`."""

    @property
    def gpu(self) -> str: ...
    @property
    def sms(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def target(self) -> Any: ...


@dataclass(frozen=True)
class GemmTiles:
    """Tiles of a matrix product, and the size of the products that they are for.

    Attributes:
        block: (rows, columns) of the output that a CTA or a cluster's CTA computes with them.
        min_tiles: minimum number of blocks of the output for which they are the fastest on the measured GPU.
        tiles: tile parameters, best first; the later ones are for devices that lack what the first one needs.
        min_side: minimum number of rows and of columns of the output.
    """

    block: tuple[int, int]
    min_tiles: int
    tiles: tuple[Mapping[str, Any], ...]
    min_side: int = 0


@dataclass(frozen=True)
class ElementwiseShapes:
    """Shapes of the vectorized element-wise kernels (:mod:`ptxkit.kernels.elementwise.elementwise`).

    Attributes:
        small_vectors: maximum size of an array in L2, in 128-bit vectors, for which CTAs of 128 threads are the fastest.
        one_access_vectors: maximum size, in vectors, for which one access per array and thread is the fastest.
        l2_threads: THREADS for larger arrays in L2: (kernels that read one array, that read several).
        vectors: VECTORS for arrays from device memory: (kernels that read one array, that read several).
        compute_bound: the tile for kernels that arithmetic limits.
    """

    small_vectors: int
    one_access_vectors: int
    l2_threads: tuple[int, int]
    vectors: tuple[int, int]
    compute_bound: Mapping[str, Any]


@dataclass(frozen=True)
class PersistentTiles:
    """A tile of the persistent row kernels, which differ in the use of shared memory and registers and in the size of CTAs.

    Attributes:
        clusters: the tile is for rows that this number of CTAs of 512 threads with 8 vectors each would hold.
        weights: arrays that all rows share.
        tile: tile parameters that differ from these.
        element_bytes: of x, or None for all.
    """

    clusters: tuple[int, ...]
    weights: int
    tile: Mapping[str, Any]
    element_bytes: int | None = None


@dataclass(frozen=True)
class RowShapes:
    """Shapes of the vectorized row kernels (:mod:`ptxkit.kernels.rows.rows`).

    Attributes:
        l2_columns: columns of a thread where many rows stay in L2.
        columns: columns of a thread where rows come from device memory; twice as many for kernels with much arithmetic.
        vectors_at: (bytes of an element, columns of a row) -> VECTORS for rows from device memory, instead of ``columns``.
        instead_of_four: THREADS and CLUSTER where rows from device memory would take four CTAs with 64 columns a thread.
        instead_of_eight: THREADS and VECTORS for rows of 16-bit elements that would take eight CTAs.
        chunked: kernel -> maximum number of columns -> (THREADS, VECTORS): rows of f32 from device memory that are faster in
            the shared memory of eight CTAs than in registers, which would hold them with one CTA on each SM: while that
            CTA waits, nothing is loaded.
        l2norm_threads: maximum number of columns -> THREADS of fused_l2norm, for many rows that a CTA of half as many threads
            would hold.
        keep_input_bytes: minimum traffic of fused_l2norm with which CACHE_INPUT is faster than CACHE_KEEP, in bytes.
        pipelined_columns: columns of a thread of the pipelined kernels, and the maximum for long rows.
        persistent_cols: minimum number of columns of a row for the persistent kernels.
        persistent: their tiles besides those that follow from the row's length, best first.
    """

    l2_columns: int
    columns: int
    vectors_at: Mapping[tuple[int, int], int]
    instead_of_four: tuple[int, int]
    instead_of_eight: tuple[int, int]
    chunked: Mapping[str, Mapping[int, tuple[int, int]]]
    l2norm_threads: Mapping[int, int]
    keep_input_bytes: int
    pipelined_columns: tuple[int, int]
    persistent_cols: int
    persistent: tuple[PersistentTiles, ...]


@dataclass(frozen=True)
class GradientTile:
    """A tile of the pipelined gradients of norms with many rows, and where it was the fastest.

    Attributes:
        element_bytes: of x and dy. cols: minimum and maximum number of columns of a row.
        centered: for layernorm (True), rmsnorm (False) or both (None).
        power_of_two: whether cols is a power of two, or None for both.
        tile: tile parameters. Without PARTIALS, it follows from the number of SMs.
    """

    element_bytes: int
    cols: tuple[int, int]
    tile: Mapping[str, Any]
    centered: bool | None = None
    power_of_two: bool | None = None

    def suits(self, element_bytes: int, cols: int, centered: bool) -> bool:
        """Whether it is for rows of this kind."""
        first, last = self.cols
        return (
            self.element_bytes == element_bytes
            and first <= cols <= last
            and self.centered in (None, centered)
            and self.power_of_two in (None, cols & (cols - 1) == 0)
        )


@dataclass(frozen=True)
class StreamRates:
    """Coefficients of the model in :mod:`ptxkit.kernels.gemm.stream_model`, fitted to times: some have no meaning alone.

    Attributes:
        memory_gbs: what all SMs read from device memory. shared_gbs: what the shared memory of an SM receives and delivers.
        reads: the share of the bytes that wgmma reads in it. l2_gbs: what L2 delivers to all SMs.
        latency_us: from the request to the arrival of a stage from device memory. hit_us: from L2.
        column_us: a wgmma of 64 rows, one column and 128 bytes along k.
        split_line: how many times as long L2 takes for rows that begin at any multiple of 16 bytes. order: of the norm.
        launch_us: of the launch. cluster_us: of clusters. wave_us: of another wave of CTAs. end_us: of a tile, for each sum.
        scattered_us: more for each sum that is stored alone.
        exchange_us: of a sum that is sent to another CTA of the cluster.
        second_us: of a second launch. partial_gbs: sums that are stored for it and added by it.
        release_us: until another CTA that reads a stage has released it, for each of them.
        shifted_us: more for each sum of a row of c that is stored by shifted vectors, or row by row.
        power: by how much less time a wgmma takes the more SMs are idle, because the clock falls with the power.
        uneven: the share of the excess of the busiest TPCs over the mean by which reading device memory takes longer.
        again: time of a byte that several CTAs read soon after each other, for each but the first, in those of device memory.
        step_us: of a step along k in which a CTA has few sums: waiting for a stage, issuing its products, and releasing it.
        paired: how much longer L2 takes for a row of a that it delivers to the two CTAs of a pair, as a share of a row.
        wide_us: more for each sum that is stored as four bytes.
        box_us: of a row of a box of c that TMA stores, beside the rows of operands that L2 delivers.
    """

    memory_gbs: float
    shared_gbs: float
    reads: float
    l2_gbs: float
    latency_us: float
    hit_us: float
    column_us: float
    split_line: float
    order: float
    launch_us: float
    cluster_us: float
    wave_us: float
    end_us: float
    scattered_us: float
    exchange_us: float
    second_us: float
    partial_gbs: float
    release_us: float = 0.0
    power: float = 0.0
    shifted_us: float = 0.0
    again: float = 0.0
    step_us: float = 0.0
    uneven: float = 0.0
    paired: float = 0.0
    wide_us: float = 0.0
    box_us: float = 0.0


PRODUCTS_FILE = Path(__file__).parent / "fitted_products.json"
"""The coefficients of :class:`StreamRates`, which ``scripts/fit_products.py`` writes from measured times."""

SPARSE_FILE = Path(__file__).parent / "fitted_sparse.json"
"""The same of 2:4 sparse products, which ``scripts/fit_sparse.py`` writes."""


def fitted_products(path: Path = PRODUCTS_FILE) -> dict[str, StreamRates]:
    """Model -> its coefficients, of the GPU on which the products were measured."""
    models = json.loads(path.read_text(encoding="utf-8"))["models"]
    return {name: StreamRates(**rates) for name, rates in models.items()}


@dataclass(frozen=True)
class Measured:
    """The measurements of one GPU.

    Attributes:
        gpu: its name, as the driver reports it. cc: compute capability times ten.
        sms, l2_bytes: of this GPU; the numbers below belong to them.
        resident_bytes: what stays in L2 from one launch to the next.
        gemm: kernel and variant -> tiles; the first entry with enough blocks counts.
        elementwise, rows: see there.
        gradients: the first suitable entry counts.
        swapped: of the products with swapped operands. stream_k: of those with tiles of any width and equal shares of k.
        parts: of those in which each of few tiles has as many shares of k;
        cluster_k: of those whose clusters divide k; multicast: of those whose clusters load both operands for each other;
            multicast_parts: of these, those that divide k;
            direct: of those that read b without shared memory between warps; shifted: of those
            whose CTAs put rows of any length together; row_classes: of those whose tiles have every second to eighth row of b;
            short_k: of those with a short k by mma.sync; ping_pong: of those whose consumers compute tiles in turn;
            few_steps, few_steps_ping_pong: of those with few steps along k, and where consumers compute tiles in turn as well;
            dot: of those with one row of a by fma; fused, fused_ping_pong: of ``products`` and ``ping_pong``, those of
            matmul_fused of other types than 16 bits;
            None before they were measured.
        sparse: of 2:4 sparse products with any multiple of 8 rows of a in a tile; sparse_tiles: of those with large tiles.
        products: of the others by wgmma. unaligned: of those whose operands are copied for TMA, or whose
            results it cannot store.
        cluster_ctas: size of a cluster -> the most CTAs of such clusters that are resident, with one on each SM; without the
            sizes for which these are all SMs.
        remote_store_us: of one of many stores of 16 bytes from an SM to the shared memory of other CTAs (st.async).
        few_rows_gbs: what ffn_sublayer:cluster reads of the weights.
        copy_gbs: of a copy in device memory, bytes read and written.
        magnitudes_us: element type -> (of the exchange of the largest magnitudes in moe_int8:step2_wgmma, for each tile of
            128 x 128 of an SM; more for each tile across the weights, all of which wait for each other).
    """

    gpu: str
    cc: int
    sms: int
    l2_bytes: int
    resident_bytes: int
    gemm: Mapping[str, tuple[GemmTiles, ...]]
    elementwise: ElementwiseShapes
    rows: RowShapes
    gradients: tuple[GradientTile, ...]
    swapped: StreamRates
    stream_k: StreamRates
    products: StreamRates
    unaligned: StreamRates
    cluster_ctas: Mapping[int, int]
    remote_store_us: float
    few_rows_gbs: float
    copy_gbs: float
    magnitudes_us: Mapping[str, tuple[float, float]]
    parts: StreamRates | None = None
    cluster_k: StreamRates | None = None
    multicast: StreamRates | None = None
    multicast_parts: StreamRates | None = None
    direct: StreamRates | None = None
    shifted: StreamRates | None = None
    row_classes: StreamRates | None = None
    short_k: StreamRates | None = None
    ping_pong: StreamRates | None = None
    few_steps: StreamRates | None = None
    few_steps_ping_pong: StreamRates | None = None
    dot: StreamRates | None = None
    fused: StreamRates | None = None
    fused_ping_pong: StreamRates | None = None
    sparse: StreamRates | None = None
    sparse_tiles: StreamRates | None = None


def _gradient_tiles() -> tuple[GradientTile, ...]:
    """The tiles for an H200, from sweeps with 800 MB of x, dy and dx."""

    def row(
        threads: int,
        vectors: int,
        stages: int,
        in_flight: int = 0,
        *,
        gamma: bool = False,
        **more: int,
    ) -> dict[str, Any]:
        tile = {"THREADS": threads, "VECTORS": vectors, "STAGES": stages, "MAX_IN_FLIGHT": in_flight}
        return tile | ({"SMEM_GAMMA": True} if gamma else {}) | more

    def cluster(vectors: int, stages: int, ctas: int, partials: int) -> dict[str, Any]:
        return row(512, vectors, stages, gamma=True, CLUSTER=ctas, PARTIALS=partials)

    return (
        GradientTile(2, (2048, 2048), row(512, 2, 6, 2, gamma=True), centered=False),
        GradientTile(2, (4096, 4096), row(512, 2, 3, gamma=True), centered=False),
        GradientTile(2, (8192, 8192), row(512, 2, 3, gamma=True), centered=False),
        GradientTile(2, (1, 8192), row(512, 2, 6, gamma=True)),
        GradientTile(2, (8193, 16384), cluster(2, 6, 2, 66), centered=True),
        GradientTile(2, (8193, 16384), cluster(2, 4, 2, 66)),
        GradientTile(2, (16385, 32768), cluster(2, 4, 4, 33)),
        GradientTile(2, (32769, 65536), cluster(2, 4, 8, 32)),
        GradientTile(2, (65537, 131072), cluster(2, 4, 16, 16)),
        GradientTile(4, (1, 1024), row(256, 2, 4, CTAS_PER_SM=2), power_of_two=False),
        GradientTile(4, (1, 1024), row(256, 2, 3, CTAS_PER_SM=2), centered=True),
        GradientTile(4, (1, 1024), row(256, 2, 2, CTAS_PER_SM=2), centered=False),
        GradientTile(4, (2049, 4095), row(512, 4, 2, gamma=True), centered=True),
        GradientTile(4, (1025, 4096), row(512, 2, 4), centered=True),
        GradientTile(4, (1025, 2047), row(512, 2, 4), centered=False),
        GradientTile(4, (2048, 2048), row(512, 2, 4, 2), centered=False),
        GradientTile(4, (4096, 4096), row(512, 2, 3), centered=False),
        GradientTile(4, (2049, 4095), row(512, 2, 6), centered=False),
        GradientTile(4, (8192, 8192), row(512, 4, 2, 1, gamma=True)),
        GradientTile(4, (4097, 8191), row(512, 4, 2, gamma=True)),
        GradientTile(4, (8193, 16384), cluster(4, 2, 2, 66)),
        GradientTile(4, (16385, 32768), cluster(4, 3, 4, 33)),
        GradientTile(4, (32769, 65536), cluster(4, 3, 8, 32)),
        GradientTile(4, (65537, 131072), cluster(4, 3, 16, 16)),
    )


def _gemm_tiles() -> dict[str, tuple[GemmTiles, ...]]:
    """Tiles of the matrix products, measured on an H200. Those of micro_tiling_matmul were the best of 140 to 154 tiles
    at 4096^3."""
    wide = {"TM": 8, "TN": 16, "WM": 32, "WN": 128}
    small = {"BM": 64, "BN": 64, "WM": 32, "WN": 64, "TM": 8, "TN": 8}
    ring = {"BM": 256, "BN": 128, "BK": 32, **wide, "STAGES": 4, "CTAS": 1}

    def micro(large: dict[str, Any], min_tiles: int, rest: dict[str, Any]) -> tuple[GemmTiles, ...]:
        block = large["BM"], large["BN"]
        return GemmTiles(block, min_tiles, (large, rest)), GemmTiles((rest["BM"], rest["BN"]), 0, (rest,))

    mma = {"BM": 64, "BN": 128, "WM": 64, "WN": 32, "STAGES": 5}
    mma_tma = {**mma, "WM": 32, "GROUP": 1}  # many warps for each scheduler
    one_consumer = {"BM": 64, "BN": 128, "CONSUMERS": 1, "REGISTERS": 0, "STAGES": 8}
    return {
        "micro_tiling_matmul:step6_warps": micro(
            {"BM": 64, "BN": 128, "BK": 16, **wide, "STAGES": 3}, H200_FACTS.sms, small
        ),
        "micro_tiling_matmul:step7_bulk": micro(
            {"BM": 128, "BN": 128, **wide, "STAGES": 3, "CTAS": 1}, H200_FACTS.sms, small
        ),
        "micro_tiling_matmul:step8_ring": micro(ring, 120, small),
        # four to six stages had the same time, three were slower
        "matmul_mma:step5_coalesced": (
            GemmTiles((256, 128), 99, ({"STAGES": 6}, {})),
            GemmTiles((64, 128), 0, ({**mma, "BK": 64}, {**mma, "BK": 32})),
        ),
        # boxes with rows of 128 bytes are a quarter faster than those of 64
        "matmul_mma:step6_tma": (
            GemmTiles((256, 128), 99, ({"BK": 64}, {"STAGES": 3})),
            GemmTiles((64, 128), 0, ({**mma_tma, "BK": 64, "STAGES": 6}, {**mma_tma, "BK": 32})),
        ),
        # Large tiles read less shared memory, which limits them; those of 200 rows fill ten waves at 8192 x 8192, those of
        # 176 rows three at 4096 x 4096. Where each SM has one tile at most, launching clusters takes longer than it saves.
        "matmul_sparse:step5_multicast": (
            GemmTiles((200, 256), 900, ({"BM": 200, "BN": 256},)),
            GemmTiles((176, 256), 300, ({"BM": 176, "BN": 256},)),
            GemmTiles((256, 128), H200_FACTS.sms + 1, ({"BM": 256, "BN": 128},)),
            GemmTiles((256, 128), 0, ({"BM": 256, "BN": 128, "CLUSTER_N": 1, "GROUP": 16},)),
        ),
        # Blocks are those of rows of gate and of up.
        "sparse_swiglu_ffn:step4_multicast": (
            GemmTiles((200, 256), 900, ({"BM": 200},)),
            GemmTiles((176, 256), 300, ({"BM": 176},)),
            GemmTiles((128, 256), 0, ({"BM": 128, "CLUSTER_N": 1},), min_side=65),
            GemmTiles(
                (64, 128), 0, ({"BM": 64, "BN": 128, "CONSUMERS": 1, "CLUSTER_N": 1, "REGISTERS": 0, "STAGES": 8},)
            ),
        ),
        "swiglu_ffn:step3_multicast": (
            GemmTiles((128, 256), 99, ({},), min_side=128),
            GemmTiles((64, 128), 0, ({**one_consumer, "CLUSTER_M": 1},)),
        ),
    }


_TWO_CTAS = {"THREADS": 256, "STAGES": 2, "CTAS_PER_SM": 2}

H200 = Measured(
    gpu="NVIDIA H200",
    cc=90,
    sms=H200_FACTS.sms,
    l2_bytes=H200_FACTS.l2_bytes,
    resident_bytes=32 * MIB,
    gemm=_gemm_tiles(),
    elementwise=ElementwiseShapes(
        small_vectors=1 << 15,
        one_access_vectors=1 << 18,
        l2_threads=(256, 256),
        vectors=(4, 2),
        compute_bound={"THREADS": 128, "VECTORS": 2, "CACHE": 0},  # small CTAs, of which the last leave few SMs idle
    ),
    rows=RowShapes(
        l2_columns=8,
        columns=16,
        vectors_at={(2, 8192): 8},
        instead_of_four=(256, 8),  # 1024 rows of 131072
        instead_of_eight=(512, 2),  # 512 rows of 262144
        chunked={
            "rmsnorm": {65536: (256, 2), 131072: (512, 2), 262144: (512, 4)},
            "layernorm": {65536: (256, 2), 131072: (512, 2)},
            "softmax": {131072: (256, 4)},
        },
        l2norm_threads={4096: 1024},  # two rows a CTA
        keep_input_bytes=1 << 28,
        pipelined_columns=(32, 64),  # rows of 4096
        persistent_cols=16384,  # the gain was measured from 65536 columns on
        persistent=(
            PersistentTiles((16,), 0, {"VECTORS": 16, "CLUSTER": 8, "CHUNK_VECTORS": 4, "STAGES": 4}),
            PersistentTiles(
                (16,), 1, {"VECTORS": 16, "CLUSTER": 8, "CHUNK_VECTORS": 4, "STAGES": 3, "SMEM_VECTORS": 16}
            ),
            # of two CTAs on each SM one computes while the other waits
            PersistentTiles((2,), 2, {**_TWO_CTAS, "CLUSTER": 4, "CHUNK_VECTORS": 4, "SMEM_VECTORS": 8}),
            PersistentTiles((4,), 2, {**_TWO_CTAS, "CLUSTER": 8, "CHUNK_VECTORS": 4, "SMEM_VECTORS": 8}),
            PersistentTiles((2,), 0, {**_TWO_CTAS, "CLUSTER": 4, "CHUNK_VECTORS": 8}, element_bytes=2),
            PersistentTiles((4,), 0, {**_TWO_CTAS, "CLUSTER": 8, "CHUNK_VECTORS": 8}, element_bytes=2),
            PersistentTiles((2, 4, 8, 16), 2, {"CHUNK_VECTORS": 4, "STAGES": 3, "SMEM_VECTORS": 8}),
        ),
    ),
    gradients=_gradient_tiles(),
    **fitted_products(),
    **fitted_products(SPARSE_FILE),
    cluster_ctas=MappingProxyType({3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120}),  # cuOccupancyMaxActiveClusters
    # ffn_sublayer:cluster with 64 rows instead of 32, 4096 features of 4096 columns
    remote_store_us=0.0059,
    # the same with 1 row of 4096 and of 8192 columns: 15.0 and 44.2 us without the launch, a latency, and the exchange
    few_rows_gbs=3460.0,
    copy_gbs=4246.0,
    magnitudes_us={"s8": (0.43, 0.048), "e4m3": (3.8, 0.033)},  # docs/moe.md
)

MEASURED: Mapping[str, Measured] = MappingProxyType({entry.gpu: entry for entry in (H200,)})
"""By the name of the GPU."""


def measured(facts: Facts) -> Measured:
    """The entry of a device, or by the rule above that of another GPU."""
    known = MEASURED.get(facts.gpu)
    if known:
        return known
    cc = facts.target.cc
    return min(MEASURED.values(), key=lambda entry: (abs(entry.cc - cc), -entry.cc))


def resident_bytes(facts: Facts) -> int:
    """How many bytes stay in the L2 cache of a device from one launch to the next."""
    return _scaled(facts, measured(facts).resident_bytes)


def keep_input_bytes(facts: Facts) -> int:
    """:attr:`RowShapes.keep_input_bytes` for the L2 cache of a device."""
    return _scaled(facts, measured(facts).rows.keep_input_bytes)


def gemm_tiles(facts: Facts, what: str, m: int, n: int) -> tuple[Mapping[str, Any], ...]:
    """Tiles of a matrix product with m x n outputs, best first.

    Args:
        what: kernel and variant, ``"matmul_mma:step6_tma"``.
    """
    entry = measured(facts)
    for found in entry.gemm[what]:
        rows, cols = found.block
        blocks = cdiv(m, rows) * cdiv(n, cols)
        if min(m, n) >= found.min_side and blocks * entry.sms >= found.min_tiles * facts.sms:
            return found.tiles
    return ()


def cluster_ctas(facts: Facts, size: int) -> int:
    """The most CTAs of clusters of this size that are resident with one on each SM; all SMs where no number is known."""
    entry = measured(facts)
    resident = entry.cluster_ctas.get(size, entry.sms // size * size)
    return max(size, resident * facts.sms // entry.sms)


def _scaled(facts: Facts, nbytes: int) -> int:
    """Bytes that belong to the L2 cache of the measured GPU, as the same share of the device's own L2 cache.

    They are not scaled for the measured GPU itself, whose driver reports another size than its data sheet.
    """
    entry = measured(facts)
    return nbytes if facts.gpu == entry.gpu else nbytes * facts.l2_bytes // entry.l2_bytes
