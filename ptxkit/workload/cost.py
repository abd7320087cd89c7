"""The predicted time of a variant, by named terms, from its launches, its tile and the facts of the GPU, without compiling it.

Registers are therefore unknown, and occupancy follows from threads and shared memory alone. For variants that declare
``blocks``, the parts of a product that a CTA computes, the terms describe tiles: the padding of the last tiles, the number of
tiles of the busiest SM, and the bytes that its CTAs keep in flight. The coefficients of these terms are in
``ptxkit/targets/fitted.json``, which ``scripts/fit_choice.py`` writes from measured times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ptxkit.targets
from ptxkit.targets.achievable import L2_RATE, LAUNCH_US, PRODUCT, RESIDENT, VECTOR, WARP_PRODUCT, WAVE_US, copy_gbs
from ptxkit.targets.gpus import gpu_named, reference_gpu
from ptxkit.targets.occupancy import calculate
from ptxkit.workload.launch import Launch, Tile, array_spec

if TYPE_CHECKING:
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import Gpu
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

FILE = Path(ptxkit.targets.__file__).parent / "fitted.json"
VECTOR_UNITS = ("f32", "f64")  # types that the CUDA cores multiply
OPERAND_BYTES = {"f64": 8, "f32": 4, "tf32": 4, "bf16": 2, "f16": 2}  # all others are of one byte
SHARPNESS = 4.0  # terms that overlap are added as a norm of this order: nearly their maximum


@dataclass(frozen=True)
class Coefficients:
    """What is fitted to measured times of tiles.

    Attributes:
        product: share of the peak rate of tensor cores that a tile reaches; warp_product: that of mma.sync relative to it where
            the target has wgmma; vector_product: share of the peak of the CUDA cores.
        latency_us: from the request of a part of the operands until it can be multiplied, by which the bytes in flight limit
            the rate of an SM; also once for each launch.
        epilogue_us: of 10^4 elements of the output by an SM.
        cluster_us: of a launch in clusters.
        margin: how many times faster than the preferred tile another one must be predicted to be taken.
    """

    product: float
    warp_product: float
    vector_product: float
    latency_us: float
    epilogue_us: float
    cluster_us: float
    margin: float


@cache
def fitted() -> Coefficients:
    """The coefficients of the package."""
    values = json.loads(FILE.read_text(encoding="utf-8"))["coefficients"]
    return Coefficients(**values)


@dataclass(frozen=True)
class Terms:
    """The predicted time of a variant in microseconds, by what it is spent on.

    Attributes:
        launches: of all kernels.
        memory: the minimum bytes at the bandwidth of a copy, or of L2 where all arrays fit there.
        temporaries: each once for each launch that reads or writes it, likewise. That is an upper bound: they are declared for
            the tile that needs the most, such as the largest number of partial sums.
        waves: the latency of device memory for each wave of CTAs, which more bytes in flight for each thread would shorten.
        arithmetic: the executed flops at the rate that good kernels reach, divided by the share of the SMs that the CTAs of the
            launch with the most shared memory keep busy: its last wave, or fewer CTAs than SMs. For blocks of a product: the
            flops of the tiles of the busiest SM, with their padding.
        intake: the operands of these tiles at the rate that the bytes in flight on an SM allow; 0 without blocks.
        epilogue: the output of these tiles; 0 without blocks.
    """

    launches: float
    memory: float
    temporaries: float
    waves: float
    arithmetic: float
    intake: float = 0.0
    epilogue: float = 0.0

    @property
    def total(self) -> float:
        """The launches, and the longest of the other terms, where temporaries are added to the minimum bytes."""
        return self._with(self.memory + self.temporaries)

    @property
    def least(self) -> float:
        """The total without temporaries."""
        return self._with(self.memory)

    @property
    def bound(self) -> str:
        """The name of the longest term."""
        terms = asdict(self)
        return max(terms, key=terms.__getitem__)

    def _with(self, memory: float) -> float:
        if not self.intake:
            return self.launches + max(memory, self.waves, self.arithmetic)
        overlapped: float = sum(t**SHARPNESS for t in (memory, self.arithmetic, self.intake)) ** (1 / SHARPNESS)
        return self.launches + self.waves + overlapped + self.epilogue


def gpu_of(workload: Workload, target: Target) -> Gpu:
    """The documented facts of the GPU of a workload: its own, or those of the reference GPU of the target."""
    return gpu_named(workload.device.gpu) or reference_gpu(target)


@dataclass(frozen=True)
class Model:
    """The prediction for a variant with its tile.

    Attributes:
        workload: with its sizes and the facts of the device. variant, target, tile, launches: see
            :class:`ptxkit.workload.resolve.ResolvedVariant`.
    """

    workload: Workload
    variant: Variant
    target: Target
    tile: Tile
    launches: Sequence[Launch]

    def terms(self, coefficients: Coefficients | None = None) -> Terms:
        """The predicted time by terms, with the given coefficients or those of the package."""
        return self.bounds() if self._blocks is None else self._blocks.terms(coefficients or fitted())

    def bounds(self) -> Terms:
        """The terms without blocks. They are lower bounds, more or less, and the only ones in which variants with and without
        blocks can be compared."""
        return Terms(
            LAUNCH_US * len(self.launches),
            self._memory_us,
            self._passes / self._rate / 1e3,
            WAVE_US * sum(math.ceil(self._waves(launch)) for launch in self.launches),
            self._arithmetic_us(),
        )

    @cached_property
    def _gpu(self) -> Gpu:
        return gpu_of(self.workload, self.target)

    @property
    def _memory_us(self) -> float:
        return self.workload.work().bytes / self._rate / 1e3

    @cached_property
    def _passes(self) -> int:
        """Bytes of the temporaries of all launches."""
        sizes = {}
        for name, spec in self.workload.temporaries().items():
            shape, dtype = array_spec(spec)
            sizes[name] = math.prod(shape) * dtype.itemsize
        return sum(sizes.get(name, 0) for launch in self.launches for name in set(launch.array_names))

    @cached_property
    def _rate(self) -> float:
        """Bandwidth in GB/s."""
        fits = self.workload.work().bytes + self._passes <= RESIDENT * self.workload.device.l2_bytes
        return copy_gbs(self._gpu) * (L2_RATE if fits else 1)

    def _arithmetic_us(self) -> float:
        work = self.workload.work()
        peak = self._gpu.peak_tflops.get(work.unit)
        if peak is None:
            return 0.0
        warp = 1.0 if self._own_products else WARP_PRODUCT
        rate = peak * (VECTOR if work.unit in VECTOR_UNITS else PRODUCT * warp)
        return work.executed / (rate * self._busy()) / 1e6

    @property
    def _own_products(self) -> bool:
        """Whether the variant uses the target's own tensor core instructions; mma.sync does not reach the rate of wgmma."""
        specific = self.target.has_a_form and any(
            word.endswith("a") or word in ("wgmma", "tcgen05") for word in self.variant.requires
        )
        return not self.target.name.endswith("a") or specific

    def _busy(self) -> float:
        """The share of the SMs that the CTAs of the launch with the most shared memory keep busy."""
        waves = self._waves(self._main)
        if waves > 1:
            return waves / math.ceil(waves)
        return min(1.0, _product(self._main.grid) / self.workload.device.sms)

    @cached_property
    def _main(self) -> Launch:
        return max(self.launches, key=lambda launch: launch.shared)

    def _waves(self, launch: Launch) -> float:
        """CTAs of a launch over those that are resident at a time."""
        return _product(launch.grid) / (self._held(launch) * self.workload.device.sms)

    def _held(self, launch: Launch) -> int:
        """CTAs of a launch that an SM holds, by threads and shared memory."""
        cluster = _product(launch.cluster)
        found = calculate(self.target, _product(launch.block), 0, launch.shared, cluster=cluster)
        return max(1, found.ctas_per_sm)

    @cached_property
    def _blocks(self) -> _Blocks | None:
        """The tiles of a product; None where the variant declares none, or the peak rate of the GPU is not known."""
        work, sizes = self.workload.work(), self.workload.sizes
        peak = self._gpu.peak_tflops.get(work.unit)
        if not self.variant.blocks or peak is None or not {"m", "n", "k"} <= set(sizes):
            return None
        rows, columns = (int(self.tile[name]) for name in self.variant.blocks)
        sms = self.workload.device.sms
        across = _rounded(math.ceil(sizes["m"] / rows), self.tile.get("CLUSTER_M", 1))
        tiles = across * _rounded(math.ceil(sizes["n"] / columns), self.tile.get("CLUSTER_N", 1))
        shared = "SHARED_WAVES" in self.tile  # the last waves are divided along k
        resident = min(self._held(self._main), math.ceil(_product(self._main.grid) / sms))
        return _Blocks(
            tiles=max(tiles / sms, 0.2) if shared else math.ceil(tiles / sms),
            rows=rows,
            columns=columns,
            depth=sizes["k"],
            itemsize=OPERAND_BYTES.get(work.unit, 1),
            dense=work.executed / work.flops,
            in_flight=max(1024, resident * self._main.shared),
            memory_us=work.bytes / copy_gbs(self._gpu) / 1e3,
            sm_flops_us=peak * 1e6 / sms,
            vector=work.unit in VECTOR_UNITS,
            own_products=self._own_products,
            clustered=_product(self._main.cluster) > 1,
            launches=len(self.launches),
        )


@dataclass(frozen=True)
class _Blocks:
    """A product in tiles, for one SM: the busiest one.

    Attributes:
        tiles: that it computes. rows, columns: of a tile. depth: length of the sums. itemsize: bytes of an operand's element.
        dense: executed share of the flops. in_flight: bytes of shared memory of the resident CTAs, which the operands fill.
        memory_us: the minimum bytes at the bandwidth of a copy. sm_flops_us: peak rate of an SM in flops per microsecond.
        vector: on the CUDA cores. own_products: see :class:`Model`. clustered: launched in clusters. launches: their number.
    """

    tiles: float
    rows: int
    columns: int
    depth: int
    itemsize: int
    dense: float
    in_flight: int
    memory_us: float
    sm_flops_us: float
    vector: bool
    own_products: bool
    clustered: bool
    launches: int

    def terms(self, c: Coefficients) -> Terms:
        """The time by terms."""
        share = c.vector_product if self.vector else c.product * (1 if self.own_products else c.warp_product)
        flops = 2 * self.tiles * self.rows * self.columns * self.depth * self.dense
        operands = self.tiles * (self.rows + self.columns * self.dense) * self.depth * self.itemsize
        return Terms(
            launches=LAUNCH_US * self.launches,
            memory=self.memory_us,
            temporaries=0.0,
            waves=c.latency_us + (c.cluster_us if self.clustered else 0.0),
            arithmetic=flops / (self.sm_flops_us * share),
            intake=operands * c.latency_us / self.in_flight,
            epilogue=self.tiles * self.rows * self.columns * c.epilogue_us / 1e4,
        )


def _rounded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _product(extents: Any) -> int:
    return math.prod(extents) if isinstance(extents, tuple) else 1  # Launch converts all to tuples
