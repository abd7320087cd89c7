"""The gradients of layernorm and rmsnorm, except the names of their kernels.

Their kernels are named ``<norm>_backward_<step>`` and made of ``cu/ptxkit/rows/backward*.cuh``. ``centered``
distinguishes them: layernorm has a mean and dbeta, rmsnorm has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, by_rows, cdiv, uniform
from ptxkit.kernels.elementwise.elementwise import derivative, width
from ptxkit.kernels.measured import H200_FACTS, measured
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.template import TemplateStruct
from ptxkit.targets import missing
from ptxkit.targets.sm import NAMED_BARRIERS, WARP
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.tile_space import permitted
from ptxkit.workload.tolerance import BASES

BLOCK_COLUMNS = 8192  # maximum number of columns of rows that move as blocks of vectors: the registers of a CTA hold them
MANY_ROWS = 8  # of each group of threads, from which the measured tile of the GPU is preferred
FINISHERS = 1024  # threads of a CTA that adds up partial sums; with many, each loads few rows, all in flight at once
SMS = H200_FACTS.sms  # of the GPU for which the values of PARTIALS were chosen
MOST_PARTIALS = 4 * SMS  # maximum number of rows of partial sums of any tile

TILE: Mapping[str, list[Any]] = {
    "THREADS": [256, 64, 128, 512, 1024],  # threads of a CTA
    "VECTORS": [2, 1, 4],  # 128-bit vectors of a row that a thread holds
    "CLUSTER": [1, 2, 4, 8],  # CTAs of a cluster, which hold one row
    "CTAS_PER_SM": [1, 2, 3, 4],  # minimum of resident CTAs per SM, which limits the registers of a thread
    # maximum number of rows of partial sums: one per CTA with producer warps, else one per group
    "PARTIALS": [SMS * ctas for ctas in (1, 2, 3, 4)],
}

FEWER_PARTIALS = [*TILE["PARTIALS"], SMS // 2, SMS // 4, 32, 16, 8]  # fewer are for clusters and for GPUs with fewer SMs

TILE_VECTORIZED: Mapping[str, list[Any]] = {
    **TILE,
    "PARTIALS": FEWER_PARTIALS,
    # blocks of rows that a CTA has in shared memory, where rows begin between two vectors; 0: rows move one by one
    "BLOCK_STAGES": [0, 2, 3, 4],
}

TILE_PIPELINED: Mapping[str, list[Any]] = {
    **TILE,
    "CLUSTER": [1, 2, 4, 8, 16],
    "PARTIALS": FEWER_PARTIALS,
    "STAGES": [2, 1, 3, 4, 6],  # rows of a group of threads that are prefetched while one is computed
    "MAX_IN_FLIGHT": [0, 1, 2, 3],  # maximum number of these rows in flight; 0: all
    "SMEM_GAMMA": [False, True],  # with producer warps: gamma (and beta) in shared memory instead of registers
}


@dataclass(frozen=True)
class BackwardTile(TemplateStruct):
    """``BackwardTile`` of cu/ptxkit/rows/backward_rows.cuh."""

    THREADS: int
    LANES: int
    VECTORS: int
    CTAS: int
    STAGES: int
    MAX_IN_FLIGHT: int
    SMEM_GAMMA: bool
    CTAS_PER_SM: int


def normalized(
    x: np.ndarray[Any, Any], rstd: np.ndarray[Any, Any], mean: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """(x - mean) * rstd of each row in float64; without a mean, x * rstd."""
    n = x.astype(np.float64)
    if mean is not None:
        n -= mean.astype(np.float64)[:, None]
    n *= rstd.astype(np.float64)[:, None]
    return n


DERIVATIVE_FLOPS = {"none": 0, "relu": 3, "gelu": 14}
"""Flops of an activation's argument, its derivative and the product with dy; ex2 and rcp count as one, an fma as two."""
NEAR_ZERO = 1e-5  # relative to its two terms: a sum for which f32 may give another sign


def registers(w: Any, t: Tile) -> int:
    """Registers of a thread: n, w, the weights, the partial sums of dgamma and, for layernorm, dbeta; and other values."""
    other = 32 if w.activation == "none" else 40
    rows_held = (4 if w.centered else 3) + (0 if t.get("SMEM_GAMMA") else len(weights(w)))
    count: int = rows_held * width(w.dtype) * t.VECTORS + other
    return count


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``vectorized``."""
    # Registers are allocated per quarter of an SM, so that one more warp costs as much as four.
    threads = t.THREADS + 128 * warp_specialized(w, t)
    available = row.registers(w, threads * t.CTAS_PER_SM)
    if registers(w, t) > available:
        return f"{t.CTAS_PER_SM} CTAs of {t.THREADS} threads have {available} registers each, too few for VECTORS={t.VECTORS}"
    if t.CLUSTER > 1 and w.cols <= row.capacity(w, t) // 2:
        return f"half of the cluster of {t.CLUSTER} holds {w.cols} columns already"
    groups = t.THREADS // row.lanes(w, t)
    if groups > NAMED_BARRIERS - warp_specialized(w, t) and row.lanes(w, t) > WARP:
        return f"{groups} rows of {row.lanes(w, t)} threads per CTA, more than a CTA has barriers"
    if t.get("BLOCK_STAGES") and (refusal := _block_refusal(w, t)):
        return refusal
    for name in ("SMEM_GAMMA", "MAX_IN_FLIGHT"):
        if t.get(name) and not warp_specialized(w, t):
            return f"there are no producer warps, so {name} has no effect"
    if t.get("MAX_IN_FLIGHT", 0) >= t.get("STAGES", 1):
        return f"MAX_IN_FLIGHT={t.MAX_IN_FLIGHT} has no effect with {t.STAGES} stages"
    units = t.THREADS // max(row.lanes(w, t), 32)
    slots = 512 + 24 * t.get("STAGES", 0) * units  # bytes for sums of warps, mbarriers and statistics
    limits = w.device.target.limits
    shared = t.CTAS_PER_SM * (shared_bytes(w, t) + slots + limits.reserved_bytes)
    if row.in_registers(w, t) and shared > (most := limits.shared_bytes_per_cta):
        return f"{t.CTAS_PER_SM} CTAs take {shared:,} bytes of shared memory, and an SM has {most:,}"
    return True


def _block_refusal(w: Any, t: Tile) -> str | None:
    """Why the rows of a CTA cannot move as blocks of vectors."""
    if row.is_aligned(w):
        return f"{w.cols} columns are whole vectors, so BLOCK_STAGES has no effect"
    if t.CLUSTER > 1 or not row.in_registers(w, t):
        return "BLOCK_STAGES applies to rows in the registers of a CTA"
    if reason := missing(row.ASYNC_COPY, w.device.target):
        return f"BLOCK_STAGES: {reason}"
    if t.THREADS // row.lanes(w, t) >= NAMED_BARRIERS and row.lanes(w, t) > WARP:
        return f"{NAMED_BARRIERS} or more rows of {row.lanes(w, t)} threads leave no barrier for the CTA"
    return None


def warp_specialized(w: Any, t: Tile) -> bool:
    """Whether CTAs have producer warps: with TMA copies, unless a warp holds several rows."""
    whole = row.lanes(w, t) >= 32 and row.in_registers(w, t)
    return bool(t.get("STAGES", 0)) and whole and t.THREADS > 32


def producer_warps(w: Any, t: Tile) -> int:
    """Number of producer warps of a CTA, as in cu/ptxkit/rows/backward_warp_specialized.cuh."""
    groups: int = t.THREADS // row.lanes(w, t)
    return min(groups, 4) if t.THREADS < 512 else 4


def shared_bytes(w: Any, t: Tile) -> int:
    """Dynamic shared memory of a CTA: the prefetched rows of x and dy, and the weights with SMEM_GAMMA."""
    if t.get("BLOCK_STAGES"):
        wide, of_cta = width(w.dtype), t.THREADS // row.lanes(w, t)
        block = (of_cta * int(w.cols) + 2 * wide - 2) // wide * row.VECTOR_BYTES
        sums = (2 if w.centered else 1) * 4 * wide * t.VECTORS * row.lanes(w, t)  # f32
        return int(max(2 * t.BLOCK_STAGES * block, sums))
    rows_ahead = 2 * t.get("STAGES", 2) * t.THREADS
    kept = len(weights(w)) if t.get("SMEM_GAMMA") else 0
    return int(16 * t.VECTORS * (rows_ahead + row.lanes(w, t) * kept))


def preferred(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles by size, for :data:`TILE_VECTORIZED`: blocks where rows begin between two vectors."""
    if move_as_blocks(w):
        yield from preferred_blocks(w)
    yield from preferred_rows(w)


def preferred_rows(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles for rows that move one by one. With prefetched rows, one CTA per SM is enough, with the fewest partial sums."""
    wide = width(w.dtype)
    vectors, threads, cluster = 1 if w.cols <= 64 * wide else 16 // (2 * wide) or 1, 128, 1
    while threads < 512 and wide * vectors * threads < w.cols:
        threads *= 2
    while cluster < 8 and wide * vectors * threads * cluster < w.cols:
        cluster *= 2
    tile = {"THREADS": threads, "VECTORS": vectors, "CLUSTER": cluster}
    if 2 * w.cols <= wide * WARP:  # rows share warps, and each has partial sums of its own
        yield tile | {"PARTIALS": partials(w, MOST_PARTIALS // SMS)}
    yield tile
    yield {"THREADS": 512, "VECTORS": vectors}  # for targets without clusters


def second_tile(w: Any) -> Tile | None:
    """The first tile that the variants with partial sums can have: blocks, or rows that TMA prefetches; None without one.

    Where the shared memory of an SM holds no preferred tile, it is the first one that :data:`TILE_PIPELINED` permits.
    """
    if move_as_blocks(w) and (blocks := block_tile(w)):
        return Tile(blocks)
    first = {name: values[0] for name, values in TILE_PIPELINED.items()}
    preferred_tiles = (first | tile for tile in preferred_pipelined(w))
    return next(permitted(preferred_tiles, TILE_PIPELINED, lambda t: usable(w, t) is True), None)


def preferred_blocks(w: Any) -> Iterator[dict[str, Any]]:
    """Tiles with BLOCK_STAGES: many short rows on an SM at a time, or one CTA with rows of a warp or more."""
    if w.cols <= WARP * width(w.dtype):
        small = {"THREADS": 256, "VECTORS": 1, "CLUSTER": 1, "BLOCK_STAGES": 3}
        for ctas in (3, 2):
            yield small | {"CTAS_PER_SM": ctas, "PARTIALS": partials(w, ctas)}
    large = {"THREADS": 512, "CLUSTER": 1, "BLOCK_STAGES": 2, "CTAS_PER_SM": 1, "PARTIALS": partials(w, 1)}
    for vectors in (2, 4, 1):  # an activation leaves no registers for two
        yield large | {"VECTORS": vectors}


def block_tile(w: Any) -> dict[str, Any] | None:
    """The first tile of :func:`preferred_blocks` that can be used; None where there is none."""
    return next((tile for tile in preferred_blocks(w) if usable(w, Tile(tile)) is True), None)


def move_as_blocks(w: Any) -> bool:
    """Whether rows that begin between two vectors should move as blocks of vectors.

    Single columns of 16 bits take eight times as many accesses, single columns of 32 bits four times as many wider ones.
    """
    fits = width(w.dtype) == 8 and w.cols <= BLOCK_COLUMNS
    return fits and not row.is_aligned(w) and block_tile(w) is not None


def slower_one_by_one(w: Any) -> str | None:
    """Why rows should not be prefetched by TMA, which copies vectors."""
    if not move_as_blocks(w):
        return None
    return "TMA does not prefetch rows that begin between two vectors; vectorized copies blocks of them"


def preferred_pipelined(w: Any) -> Iterator[dict[str, Any]]:
    """As :func:`preferred_rows`, for TMA copies; for many rows, the measured tile of the GPU."""
    tile = _measured_tile(w)
    if tile:
        t = Tile({"CLUSTER": 1, "PARTIALS": partials(w, 1)} | tile)
        if w.rows >= MANY_ROWS * t.PARTIALS * (t.THREADS // row.lanes(w, t)):
            yield tile
    wide = width(w.dtype)
    vectors = 16 // (2 * wide) or 1
    if w.rows > w.device.sms and 64 * wide < w.cols <= 512 * wide * vectors:
        yield {"THREADS": 512, "VECTORS": vectors}  # several rows at a time, for each of which the next ones are loaded
    if w.rows > w.device.sms and wide * WARP < 2 * w.cols <= 2 * 64 * wide:
        yield {"THREADS": 256, "VECTORS": 2, "PARTIALS": partials(w, 2)}
    yield from preferred_rows(w)


def partials(w: Any, per_sm: int) -> int:
    """Rows of partial sums for ``per_sm`` CTAs on each SM.

    The permitted numbers are multiples of an H200's SMs; for another GPU it is the largest one that its SMs fill.
    """
    return int(max(n for n in FEWER_PARTIALS if n <= max(per_sm * w.device.sms, 8)))


def _measured_tile(w: Any) -> dict[str, Any]:
    """The measured tile for many rows of this length, {} where there is none."""
    if w.cols <= 64 * width(w.dtype):
        return {}
    suitable = (
        entry.tile for entry in measured(w.device).gradients if entry.suits(row.itemsize(w.dtype), w.cols, w.centered)
    )
    tile = dict(next(suitable, {}))
    per_sm = tile.get("CTAS_PER_SM", 1)
    return tile | ({"PARTIALS": partials(w, per_sm)} if per_sm > 1 else {})


class Gradients(Workload):
    """Gradients of a norm: one read of x and dy and one write of dx, and sums over rows."""

    norm: ClassVar[str]
    centered: ClassVar[bool]
    eps: ClassVar[float]  # the eps with which the statistics were computed
    activation = "none"  # an option of the kernels that have one
    rows: int = 16384
    cols: int = 4096
    dtype: row.Dtype = "f32"
    emulator_sizes = {"rows": 64, "cols": 1024}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        shape = (self.rows, self.cols)
        x, dy = uniform(rng, shape, self.dtype), uniform(rng, shape, self.dtype)
        wide = x.astype(np.float64)
        squares = wide.var(1) if self.centered else np.einsum("rc,rc->r", wide, wide) / self.cols
        kept = {"mean": wide.mean(1).astype(np.float32)} if self.centered else {}
        rstd = (1 / np.sqrt(squares + self.eps)).astype(np.float32)
        made = {"x": x, "dy": dy, "gamma": uniform(rng, self.cols, self.dtype), **kept, "rstd": rstd}
        if self.activation == "none":
            return made
        made["beta"] = uniform(rng, self.cols, self.dtype)
        if self.activation == "relu":  # the derivative jumps at 0, where rounding decides
            scaled = normalized(x, rstd, kept.get("mean")) * made["gamma"].astype(np.float64)
            shift = made["beta"].astype(np.float64)
            dy[np.abs(scaled + shift) <= NEAR_ZERO * (np.abs(scaled) + np.abs(shift))] = 0
        return made

    @by_rows("x", "dy", "rstd", "mean", summed=["dgamma", "dbeta"])
    def reference(
        self,
        x: np.ndarray[Any, Any],
        dy: np.ndarray[Any, Any],
        gamma: np.ndarray[Any, Any],
        rstd: np.ndarray[Any, Any],
        mean: np.ndarray[Any, Any] | None = None,
        beta: np.ndarray[Any, Any] | None = None,
    ) -> dict[str, Any]:
        factor, scale = rstd.astype(np.float64)[:, None], gamma.astype(np.float64)
        n = normalized(x, rstd, mean)
        dy = dy.astype(np.float64)
        if beta is not None:
            dy *= derivative(self.activation, n * scale + beta.astype(np.float64))
        w = dy * scale
        dx = w - n * np.einsum("rc,rc->r", w, n)[:, None] / self.cols
        if self.centered:
            dx -= w.mean(1, keepdims=True)
        dx *= factor
        sums = {"dx": dx, "dgamma": np.einsum("rc,rc->c", dy, n)}
        return sums | ({"dbeta": dy.sum(0)} if self.centered else {})

    def outputs(self) -> Mapping[str, Any]:
        return {"dx": ((self.rows, self.cols), self.dtype)} | dict.fromkeys(gradients(self), (self.cols, self.dtype))

    def temporaries(self) -> Mapping[str, Any]:
        matrix, partial = ((self.rows, self.cols), "f32"), ((MOST_PARTIALS, self.cols), "f32")
        shared: dict[str, Any] = {"dz": matrix} if self.activation != "none" else {}
        shared |= {"normalized": matrix, "weighted": matrix, "product": matrix, "means_wn": (self.rows, "f32")}
        return (
            shared | {"gammas": partial} | ({"means_w": (self.rows, "f32"), "betas": partial} if self.centered else {})
        )

    def work(self) -> Work:
        n, size, kept = self.rows * self.cols, row.itemsize(self.dtype), len(statistics(self))
        shared = len(weights(self)) + len(gradients(self))
        flops = (14 if self.centered else 11) + DERIVATIVE_FLOPS[self.activation]
        return Work(flops=flops * n, bytes=size * (3 * n + shared * self.cols) + 4 * kept * self.rows)

    def constraints(self) -> Iterable[str]:
        yield from row.too_many(self)

    @property
    def tolerance(self) -> Tolerance | Mapping[str, Tolerance] | None:  # type: ignore[override]  # depends on the sizes
        """A sum over many rows may cancel; its error is that of its terms, each rounded to half an ulp of the partial sum.

        Where rows have no more columns than the normalization has conditions (a mean of 0, a root mean square of 1), dx follows
        from eps alone: the terms of all elements cancel, and their errors exceed the default tolerance of small elements.

        The derivative of gelu has an error of up to 2^-20 (``cu/ptxkit/elementwise/activations.cuh``), and an error of its
        argument, two roundings of n and one of the sum, has at most 1.13 times its effect; rstd, 1.7 for inputs in [-1, 1),
        multiplies these errors in dx.
        """
        if self.dtype != "f32":
            if self.cols > (2 if self.centered else 1):
                return None
            return {"dx": replace(BASES[dtype_of(self.dtype).name], absolute=4e-6)}
        term = 4e-6 if self.activation == "gelu" else 1e-6
        return Tolerance(relative=1e-5, absolute=term * max(1.0, np.sqrt(self.rows)))


def unfused(w: Any) -> list[Launch]:
    """One launch per operation."""
    norm, cu = w.norm, row.cu_type(w.dtype)
    dy, kind = (
        ("dy", cu) if w.activation == "none" else ("dz", "float")
    )  # the gradient of what is normalized and scaled
    sums = (cdiv(w.cols, 32), row.THREADS)
    args = ("normalized", "product", w.cols)

    def total(of: str, to: str, kind: str) -> Launch:
        return Launch(f"{norm}_backward_sum", *sums, (of, to, w.rows, w.cols), template=(kind, cu, row.THREADS))

    def mean(of: str, to: str) -> Launch:
        return row.by_row(f"{norm}_backward_mean", w, (of, to, w.cols), ())

    mean_w = [mean("weighted", "means_w")] if w.centered else []
    activated = []
    if w.activation != "none":
        given = ("dy", "normalized", *weights(w), "dz", w.cols)
        activated.append(row.by_element(f"{prefix(w)}_derive", w, given, types(w)))
    combined = ("weighted", "normalized", "means_wn", "means_w" if w.centered else row.NULL, "rstd", "dx", w.cols)
    return [
        row.by_element(f"{norm}_backward_normalize", w, ("x", *statistics(w), "normalized", w.cols), (cu,)),
        *activated,
        row.by_element(f"{prefix(w)}_weigh", w, (dy, "gamma", "weighted", w.cols), (cu,)),
        row.by_element(f"{norm}_backward_multiply", w, ("weighted", *args), ("float",)),
        mean("product", "means_wn"),
        *mean_w,
        row.by_element(f"{norm}_backward_combine", w, combined, (cu,)),
        row.by_element(f"{norm}_backward_multiply", w, (dy, *args), (kind,)),
        total("product", "dgamma", "float"),
        *([total(dy, "dbeta", kind)] if w.centered else []),
    ]


def statistics(w: Any) -> tuple[str, ...]:
    """Names of the forward kernel's statistics."""
    return ("mean", "rstd") if w.centered else ("rstd",)


def weights(w: Any) -> tuple[str, ...]:
    """Names of the weights: beta is needed for the argument of an activation."""
    return ("gamma",) if w.activation == "none" else ("gamma", "beta")


def prefix(w: Any) -> str:
    """How the names of the kernels begin that differ if there is an activation."""
    return f"{w.norm}_backward" if w.activation == "none" else f"{w.norm}_activation_backward"


def types(w: Any) -> tuple[str, ...]:
    """The first template arguments of these kernels: element type and, if there is one, activation."""
    cu = row.cu_type(w.dtype)
    return (cu,) if w.activation == "none" else (cu, w.activation.upper())


def gradients(w: Any) -> tuple[str, ...]:
    """Names of the gradients of gamma and beta."""
    return ("dgamma", "dbeta") if w.centered else ("dgamma",)


def columns(w: Any) -> Launch:
    """dgamma and dbeta, in a separate pass."""
    given = () if w.activation == "none" else weights(w)
    args = ("x", "dy", *given, *statistics(w), *gradients(w), w.rows, w.cols)
    template = (*types(w), row.THREADS)
    return Launch(f"{prefix(w)}_columns", cdiv(w.cols, 32), row.THREADS, args, template=template)


def fused(w: Any) -> list[Launch]:
    """dx with one CTA per row, then the sums over rows."""
    args = ("x", "dy", *weights(w), *statistics(w), "dx", w.cols)
    return [row.kept(f"{prefix(w)}_fused", w, args, types(w), size=8), columns(w)]


def vectorized(w: Any, t: Tile) -> list[Launch]:
    """All gradients in one pass, and a small launch that adds up the partial sums; two passes for long rows."""
    norm, cu = w.norm, row.cu_type(w.dtype)
    cluster = t.CLUSTER if t.CLUSTER > 1 else None
    inputs = ("x", "dy", *weights(w), *statistics(w), "dx")
    if not row.in_registers(w, t):
        template: tuple[object, ...] = (*types(w), t.THREADS, t.VECTORS, t.CLUSTER)
        args: tuple[object, ...] = (*inputs, w.rows, w.cols)
        grid = w.rows * t.CLUSTER
        return [
            Launch(f"{prefix(w)}_streamed", grid, t.THREADS, args, cluster=cluster, template=template),
            columns(w),
        ]
    lanes = row.lanes(w, t)
    groups = t.THREADS // lanes
    specialized = warp_specialized(w, t)
    blocks = bool(t.get("BLOCK_STAGES"))
    of_cta = specialized or blocks  # a CTA adds up the sums of its groups
    most = t.PARTIALS if of_cta else max(t.PARTIALS // groups, 1)  # CTAs, or clusters
    iterations = cdiv(w.rows, most * groups)
    ctas = cdiv(w.rows, iterations * groups)  # the smallest grid with this number of iterations
    partial_rows = ctas if of_cta else ctas * groups
    partials = ("gammas", "betas") if w.centered else ("gammas",)
    args = (*inputs, *partials, w.rows, w.cols)
    tile = BackwardTile(
        THREADS=t.THREADS,
        LANES=lanes,
        VECTORS=t.VECTORS,
        CTAS=t.CLUSTER,
        STAGES=t.get("STAGES", 0) or t.get("BLOCK_STAGES", 0),
        MAX_IN_FLIGHT=t.get("MAX_IN_FLIGHT", 0),
        SMEM_GAMMA=t.get("SMEM_GAMMA", False),
        CTAS_PER_SM=t.CTAS_PER_SM,
    )
    name = f"{prefix(w)}_{'warp_specialized' if specialized else 'blocks' if blocks else 'vectorized'}"
    block = t.THREADS + 32 * producer_warps(w, t) if specialized else t.THREADS
    main = Launch(name, ctas * t.CLUSTER, block, args, shared_bytes(w, t), cluster, template=(*types(w), tile))
    return [
        main,
        Launch(
            f"{norm}_backward_finish",
            cdiv(w.cols, 32),
            FINISHERS,
            (*partials, *gradients(w), partial_rows, w.cols),
            template=(cu, FINISHERS),
        ),
    ]
