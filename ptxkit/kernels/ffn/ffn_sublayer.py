"""ffn_sublayer: out = residual + gelu(layer_norm(x) w^T + bias)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from ptxkit import Launch, Tile, Tolerance, Work, Workload, uniform, variant
from ptxkit.kernels.elementwise.elementwise import ACTIVATION_FLOPS, activation
from ptxkit.kernels.ffn import few_rows, linear
from ptxkit.kernels.rows import rows as row
from ptxkit.kernels.rows.layernorm import Layernorm, standardized
from ptxkit.workload.inputs import dtype_of

FOLD_THREADS = 256
STATISTICS = ("statistics", "column_sums", "shift")
MOST_EARLY_ROWS = 256  # up to which row_kernels_early was measured to be at least as fast as row_kernels_wgmma,
MOST_EARLY_ELEMENTS = 1 << 20  # and the elements of x up to which it was
MOST_MULTICAST_ROWS = 128
ADDING_US = 3.5e-4
"""How much longer the epilogue of ``row_kernels_multicast`` takes than that of step 15 of matmul_wgmma, for each sum of a
warpgroup, because it computes gelu and adds the residual as it stores: in tiles of 72, 152 and 208 rows, whose products are
predicted to take as long as those of step 8, it took 1.7, 4.0 and 6.1 us more on an H200. The residual was then added after
the sums had been transposed."""
OBSERVED_REGISTERS = 224  # of a consumer thread: those of the warps that sum the statistics have 56
NORM_FLOPS = 7  # of layernorm, for each element


def most_offset(w: Any) -> float:
    """The largest mean of a row, in units of its standard deviation, with which the folded products are accurate.

    Tensor cores add 16 products at a time, and truncate the sum, by up to 2^-23 of it. Partial sums of weights with random
    signs grow with the root of their number to mean * sqrt(hidden) times the standard deviation of a weight; truncations
    in the same direction add up to hidden / 24 times 2^-23 of that (docs/ffn.md). It may be a quarter of the absolute
    tolerance, 2 units of the type.
    """
    return float(2 * linear.UNIT[w.dtype] * 2**23 * 24 / w.hidden)


def accurate(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of the folded variants on the inputs."""
    if abs(w.offset) > (most := most_offset(w)):
        return f"the product cancels where |offset| > {most:.0f} with hidden={w.hidden} in {w.dtype}; use row_kernels"
    return True


def row_tile(w: FfnSublayer) -> Tile | None:
    """The tile of the row kernels of this description; None if no cluster holds a row in registers."""
    of_rows = w.normalized_rows
    fits = row.fits_in_registers(1)
    tiles = (Tile(t) for t in row.preferred_in_registers(1)(of_rows))
    return next((t for t in tiles if fits(of_rows, t) is True), None)


def rows_fit(w: FfnSublayer) -> bool | str:
    """Whether the row kernels of this description hold a row."""
    return row_tile(w) is not None or f"no cluster holds a row of hidden={w.hidden} in registers; use row_kernels"


def usable_folded_mma(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of ``folded``."""
    for reason in (accurate(w, t), rows_fit(w)):
        if reason is not True:
            return reason
    return linear.usable_mma(w, t)


def usable_folded_wgmma(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of ``folded_wgmma``."""
    for reason in (accurate(w, t), rows_fit(w)):
        if reason is not True:
            return reason
    return linear.usable_wgmma(w, t)


def usable_early(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of ``row_kernels_early``."""
    if t.CLUSTER_M * t.CLUSTER_N > 1:
        return "each CTA loads its own weights, without clusters"
    return reason if (reason := rows_fit(w)) is not True else linear.usable_wgmma(w, t)


def slower_early(w: FfnSublayer) -> str | None:
    """Why other variants are taken. Where reading the weights takes a small part of the time, those without early weights are
    faster; ``folded_wgmma``, whose first launch reads x and stores little, takes less time where it is accurate."""
    if abs(w.offset) <= most_offset(w):
        return "folded_wgmma took less time, or as much, at all sizes measured on an H200 (docs/ffn.md)"
    if w.rows <= MOST_EARLY_ROWS and w.rows * w.hidden <= MOST_EARLY_ELEMENTS:
        return None
    return f"faster only for up to {MOST_EARLY_ROWS} rows and {MOST_EARLY_ELEMENTS:,} elements of x"


def slower_multicast(w: FfnSublayer) -> str | None:
    """Why the other products are faster: by the model of their times and :data:`ADDING_US`."""
    if w.rows > MOST_MULTICAST_ROWS:
        return f"it was measured to be the fastest for up to {MOST_MULTICAST_ROWS} rows only"
    found = linear.product_times(w)
    if 15 not in found:
        return "its product has no tile"
    tile = next(linear.preferred_multicast(w))
    mine = found.pop(15) + ADDING_US * 64 * tile["ROWS"] * tile["TOKENS"] / tile["PARTS"]
    fastest = min(found, key=found.__getitem__)
    if mine < found[fastest]:
        return None
    return f"its product is predicted to take {mine:.3g} us, and step {fastest} of matmul_wgmma {found[fastest]:.3g} us"


def usable_swapped(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of ``row_kernels_swapped``."""
    return reason if (reason := rows_fit(w)) is not True else linear.usable_swapped(w, t)


def usable_multicast(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of ``row_kernels_multicast``."""
    return reason if (reason := rows_fit(w)) is not True else linear.usable_multicast(w, t)


def observed_bytes(t: Tile) -> int:
    """Shared memory of ``ObservedRows`` of cu/ptxkit/gemm/row_statistics.cuh: two buffers of statistics, four mbarriers."""
    return int(2 * t.BM * 8 + 32)


def usable_observed(w: FfnSublayer, t: Tile) -> bool | str:
    """The constraint of ``folded_one_launch``."""
    if (reason := accurate(w, t)) is not True:
        return reason
    if t.BM * t.BN // (128 * t.CONSUMERS) > 128:
        return "a thread holds at most 128 sums"
    return linear.usable_wgmma(w, t, observed_bytes(t))


def folded(
    w: np.ndarray[Any, Any], gamma: np.ndarray[Any, Any], beta: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """The weights as the folded variants read them.

    Args:
        w: (features, hidden). gamma, beta: (hidden,). bias: (features,).

    Returns:
        ``folded``: w * gamma, rounded to the type of w. ``column_sums``: the sum of each row of ``folded``, and ``shift``:
        w beta + bias, both of shape (features,) in float32.
    """
    product = (w.astype(np.float32) * gamma.astype(np.float32)).astype(w.dtype)
    shift = w.astype(np.float32) @ beta.astype(np.float32) + bias.astype(np.float32)
    sums = product.astype(np.float32).sum(1, dtype=np.float64).astype(np.float32)
    return {"folded": product, "column_sums": sums, "shift": shift}


class FfnSublayer(Workload):
    """out = residual + gelu(layer_norm(x) w^T + bias): x (rows, hidden), w (features, hidden), out (rows, features).

    The feed-forward sub-layer of a transformer with one linear layer, pre-normalized. The weights are constants: the folded
    variants read them in another form, which is computed once; with ``weights="plain"`` each call computes it.
    """

    source = "ffn_sublayer.cu"
    rows: int = 2048
    hidden: int = 4096
    features: int = 4096
    dtype: linear.Dtype = "bf16"
    eps: float = 1e-5
    offset: float = 0.0  # mean of the rows of x, in units of their standard deviation
    weights: Literal["folded", "plain"] = field(default="folded", kw_only=True)
    emulator_sizes = {"rows": 64, "hidden": 256, "features": 256}
    benchmarks = linear.PRESETS

    def constraints(self) -> Iterable[str]:
        yield from linear.check_sizes(self)
        if not abs(self.offset) <= 1e6:
            yield f"offset must be a number of at most 1e6 standard deviations, not {self.offset}"

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = uniform(rng, (self.rows, self.hidden)) + np.float32(self.offset / np.sqrt(3))
        w = linear.weights(rng, self.features, self.hidden, self.dtype)
        gamma, beta = uniform(rng, self.hidden, self.dtype), uniform(rng, self.hidden, self.dtype)
        bias = uniform(rng, self.features, self.dtype)
        given = {
            "x": x.astype(dtype_of(self.dtype)),
            "gamma": gamma,
            "beta": beta,
            "w": w,
            "bias": bias,
            "residual": uniform(rng, (self.rows, self.features), self.dtype),
            "eps": np.float32(self.eps),
        }
        return given | (folded(w, gamma, beta, bias) if self.weights == "folded" else {})

    def reference(
        self, x: Any, gamma: Any, beta: Any, w: Any, bias: Any, residual: Any, eps: Any, **folded: Any
    ) -> dict[str, Any]:
        """The reference in float64; the product of large sizes in float32, whose error is far below the tolerance."""
        wide = linear.wide(self)
        normalized = standardized(x, eps)[0] * gamma.astype(np.float64) + beta.astype(np.float64)
        product = normalized.astype(wide) @ w.astype(wide).T
        return {"out": residual.astype(wide) + activation("gelu", product + bias.astype(wide))}

    def outputs(self) -> Mapping[str, Any]:
        return {"out": ((self.rows, self.features), self.dtype)}

    def temporaries(self) -> Mapping[str, Any]:
        rows, across = (self.rows, self.hidden), (self.rows, self.features)
        chain = {"means": (self.rows, "f64"), "rstds": (self.rows, "f64"), "normalized": (rows, "f32")}
        found = chain | {"layer": (rows, self.dtype), "statistics": ((self.rows, 2), "f32")}
        found |= dict.fromkeys(("product", "biased", "activated"), (across, self.dtype))
        if self.weights == "plain":
            found["folded"] = ((self.features, self.hidden), self.dtype)
            found |= dict.fromkeys(("column_sums", "shift"), (self.features, "f32"))
        return found

    def work(self) -> Work:
        """The flops of the product, of layernorm, and of bias, gelu and residual; each array is read or written once."""
        inputs, results = self.rows * self.hidden, self.rows * self.features
        product = 2 * inputs * self.features
        elements = inputs + 2 * self.hidden + self.features * self.hidden + self.features + 2 * results
        return Work(
            flops=product + NORM_FLOPS * inputs + (2 + ACTIVATION_FLOPS["gelu"]) * results,
            bytes=row.itemsize(self.dtype) * elements,
            unit=self.dtype,
            sum_length=self.hidden,
        )

    @property
    def tolerance(self) -> Tolerance:  # type: ignore[override]  # depends on the type here
        return linear.tolerance(self)

    @property
    def layernorm(self) -> list[Launch]:
        """The row kernel: x to layer."""
        return linear.layernorm(self, self.hidden, "vectorized", {"y": "layer"})

    @property
    def fold(self) -> list[Launch]:
        """The launch that folds gamma, beta and bias into the weights, if each call computes it."""
        if self.weights == "folded":
            return []
        args = ("w", "gamma", "beta", "bias", "folded", "column_sums", "shift", self.hidden)
        return [Launch("ffn_fold", self.features, FOLD_THREADS, args, template=(linear.cu_type(self), FOLD_THREADS))]

    @property
    def normalized_rows(self) -> Layernorm:
        """The layer normalization of x, for its sizes."""
        return Layernorm(rows=self.rows, cols=self.hidden, dtype=self.dtype).on(self.device)

    def row_launch(self, kernel: str, args: tuple[object, ...]) -> Launch:
        """A launch of a row kernel of this description."""
        tile = row_tile(self)
        assert tile is not None, "the constraint of the variant has checked this"
        return row.launch_in_registers(kernel, self.normalized_rows, tile, args, (linear.cu_type(self),))

    @property
    def statistics(self) -> list[Launch]:
        """The launch that computes mean and rstd of each row."""
        return [self.row_launch("ffn_statistics", ("x", "statistics", self.rows, self.hidden, "eps"))]

    @variant(requires=linear.MMA, tolerance=linear.unfused_tolerance)
    def unfused(self) -> list[Launch]:
        """Eight launches: mean, variance, normalize, scale and shift, product, bias, gelu, residual."""
        return [
            *linear.layernorm(self, self.hidden, "unfused", {"y": "layer"}),
            *linear.product(self, "layer", "w", "product"),
            linear.add_bias(self, "product", "biased"),
            linear.elementwise(self, "gelu", "biased", "activated"),
            linear.elementwise(self, "add", "activated", "residual", "out"),
        ]

    @variant(requires=linear.MMA, tile=linear.MMA_TILE, constraint=linear.usable_mma, prefer=linear.preferred_mma)
    def row_kernels(self, t: Tile) -> list[Launch]:
        """A row kernel normalizes x; the product by mma.sync adds bias, gelu and residual in its epilogue."""
        args = ("layer", "w", "bias", "residual", "out")
        return [*self.layernorm, linear.mma_launch("ffn_product_mma", self, t, args)]

    @variant(requires=linear.MMA, tile=linear.MMA_TILE, constraint=usable_folded_mma, prefer=linear.preferred_mma)
    def folded(self, t: Tile) -> list[Launch]:
        """Statistics of the rows, then the product of x and w gamma by mma.sync, whose epilogue normalizes the sums."""
        args = ("x", "folded", *STATISTICS, "residual", "out")
        return [*self.fold, *self.statistics, linear.mma_launch("ffn_folded_mma", self, t, args)]

    @variant(
        requires=linear.WGMMA,
        tile=linear.WGMMA_TILE,
        constraint=linear.usable_wgmma,
        prefer=linear.preferred_wgmma,
    )
    def row_kernels_wgmma(self, t: Tile) -> list[Launch]:
        """row_kernels with the product by wgmma, whose results TMA stores."""
        args = ("bias", "residual", "out")
        return [*self.layernorm, linear.wgmma_launch("ffn_product_wgmma", self, t, ("layer", "w", "out"), args)]

    @variant(
        requires=linear.WGMMA,
        tile=linear.WGMMA_TILE,
        constraint=usable_folded_wgmma,
        prefer=linear.preferred_wgmma,
    )
    def folded_wgmma(self, t: Tile) -> list[Launch]:
        """folded with the product by wgmma, of which only the epilogue waits for the statistics."""
        args = (*STATISTICS, "residual", "out")
        launch = linear.wgmma_launch("ffn_folded_wgmma", self, t, ("x", "folded", "out"), args)
        return [*self.fold, *self.statistics, launch]

    @variant(
        requires=linear.WGMMA,
        tile=linear.WGMMA_TILE,
        constraint=usable_observed,
        prefer=linear.preferred_wgmma,
        slower=linear.slower_than_two,
    )
    def folded_one_launch(self, t: Tile) -> list[Launch]:
        """folded_wgmma without the launch for the statistics: two warps take them from the tiles of x."""
        registers = OBSERVED_REGISTERS if t.REGISTERS else 0
        tile = Tile({**t, "REGISTERS": registers})
        args = ("column_sums", "shift", "residual", "out", "eps")
        maps = ("x", "folded", "out")
        return [*self.fold, linear.wgmma_launch("ffn_folded_observed", self, tile, maps, args, observed_bytes(t))]

    @property
    def normalize(self) -> Launch:
        """The row kernel that lets the next launch read weights meanwhile: x to layer."""
        return self.row_launch("ffn_normalize", ("x", "gamma", "beta", "layer", self.rows, self.hidden, "eps"))

    @variant(
        requires=linear.WGMMA,
        tile=linear.WGMMA_TILE,
        constraint=usable_early,
        prefer=linear.preferred_wgmma,
        slower=slower_early,
    )
    def row_kernels_early(self, t: Tile) -> list[Launch]:
        """row_kernels_wgmma whose product loads its first weights during the row kernel."""
        launch = linear.wgmma_launch("ffn_product_early", self, t, ("layer", "w", "out"), ("bias", "residual", "out"))
        return [self.normalize, launch]

    @variant(
        requires=linear.WGMMA,
        tile=linear.SWAPPED_TILE,
        constraint=usable_swapped,
        prefer=linear.preferred_swapped,
        slower=linear.slower_swapped,
    )
    def row_kernels_swapped(self, t: Tile) -> list[Launch]:
        """For few rows: the product has the weights as its first operand, and loads some during the row kernel."""
        args = ("bias", "residual", "out")
        return [self.normalize, linear.swapped_launch("ffn_product_swapped", self, t, ("layer", "w"), args)]

    @variant(
        requires=linear.WGMMA,
        tile=linear.MULTICAST_TILE,
        constraint=usable_multicast,
        prefer=linear.preferred_multicast,
        slower=slower_multicast,
    )
    def row_kernels_multicast(self, t: Tile) -> list[Launch]:
        """For few rows: the clusters of the product load both operands, and some weights during the row kernel."""
        args = ("bias", "residual", "out")
        return [self.normalize, linear.multicast_launch("ffn_product_multicast", self, t, ("layer", "w"), args)]

    @variant(
        requires=linear.WGMMA,
        tile=few_rows.TILE,
        constraint=few_rows.usable,
        prefer=few_rows.preferred,
        slower=few_rows.slower,
    )
    def cluster(self, t: Tile) -> list[Launch]:
        """One launch for few rows: a cluster divides k, and exchanges statistics and sums by distributed shared memory."""
        return [few_rows.launch(self, t)]
