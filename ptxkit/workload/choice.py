"""Which variant of a kernel to take at given sizes on a device: :func:`choose`.

Where sweeps on the device have recorded times of several variants at these sizes, the choice is the fastest. Otherwise the
order of the variants counts: they are steps, each of which is meant to be faster than those before it. The choice is therefore
the last one that the device can run, with three exceptions: a variant whose description says that an earlier one is faster
(``slower`` of :class:`~ptxkit.workload.variant.Variant`), a kernel written in PTX by hand, whose shape is fixed, and a variant
for which a model predicts much more time than for an earlier one. The tile is that of :func:`ptxkit.workload.resolve.resolve`:
the one that a sweep recorded for this device, else the one that the description prefers.

The model has five named terms (:class:`Terms`), computed from the launches of a variant and the facts of the GPU, without
compiling anything. Registers are therefore unknown, and occupancy follows from threads and shared memory alone.
``scripts/regret.py`` compares the choices with all times in ``expectations/``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError, UnavailableError, UsageError
from ptxkit.targets.achievable import L2_RATE, LAUNCH_US, PRODUCT, RESIDENT, VECTOR, WARP_PRODUCT, WAVE_US, copy_gbs
from ptxkit.targets.gpus import gpu_named, reference_gpu
from ptxkit.targets.occupancy import calculate
from ptxkit.workload.launch import Launch, array_spec
from ptxkit.workload.resolve import ResolvedVariant, as_recorded, resolve, target_for
from ptxkit.workload.tuned import lookup

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Device
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import Gpu
    from ptxkit.workload.workload import Workload

EXAMINED = 256  # tiles of a variant for which a time is predicted
MARGIN = 3.0  # how many times slower than another variant the last one must be predicted for the other to be chosen
VECTOR_UNITS = ("f32", "f64")  # types that the CUDA cores multiply


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
            launch with the most shared memory keep busy: its last wave, or fewer CTAs than SMs.
    """

    launches: float
    memory: float
    temporaries: float
    waves: float
    arithmetic: float

    @property
    def total(self) -> float:
        """The launches, and the longest of the other terms, where temporaries are added to the minimum bytes."""
        return self.launches + max(self.memory + self.temporaries, self.waves, self.arithmetic)

    @property
    def least(self) -> float:
        """The total without temporaries."""
        return self.launches + max(self.memory, self.waves, self.arithmetic)

    @property
    def bound(self) -> str:
        """The name of the longest term."""
        terms = asdict(self)
        return max(terms, key=terms.__getitem__)


@dataclass(frozen=True)
class Option:
    """A variant that the device can run.

    Attributes:
        resolved: with its tile and launches. terms: its predicted time.
        objection: why the description or its source says not to take it; "" for none.
        swept_us: the time that a sweep on this device recorded for this tile at these sizes; None without one.
    """

    resolved: ResolvedVariant
    terms: Terms
    objection: str = ""
    swept_us: float | None = None

    @property
    def name(self) -> str:
        """The name of the variant."""
        return self.resolved.variant.name


@dataclass(frozen=True)
class Choice:
    """The chosen variant, the others, and the reason.

    Attributes:
        option: the chosen one. reason: in words.
        options: all that the device can run, in the order of the description.
        gpu: the GPU whose facts the prediction uses.
    """

    option: Option
    reason: str
    options: tuple[Option, ...]
    gpu: str

    @property
    def variant(self) -> str:
        """The name of the chosen variant."""
        return self.option.name

    @property
    def tile(self) -> dict[str, Any]:
        """Its tile parameters."""
        return dict(self.option.resolved.tile)

    def __str__(self) -> str:
        note = f" ({self.option.resolved.tile_note})" if self.option.resolved.tuned else ""
        named = " ".join(filter(None, [self.variant, str(self.option.resolved.tile)]))
        terms = self.option.terms
        return f"{named}{note}: {self.reason}; predicted {terms.total:.3g} us on {self.gpu}, largest term {terms.bound}"

    def to_json(self) -> dict[str, Any]:
        """The chosen variant, the reason, and the predicted time by terms, in microseconds."""
        terms = self.option.terms
        return {
            "variant": self.variant,
            "tile": self.tile,
            "tuned": self.option.resolved.tuned,
            "reason": self.reason,
            "gpu": self.gpu,
            "predicted_us": {"total": terms.total, **asdict(terms)},
        }


def choose(
    workload: Workload,
    device: Device | None = None,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
) -> Choice:
    """The variant to take for a workload on a device, without compiling or measuring.

    Args:
        workload: the kernel with its sizes and options.
        device: whose facts and recorded tiles count; None for those of the workload, or of the reference GPU of the target.
        target: to compile for; None for that of the device, or if it runs any target for that of the first variant.
        tile: fixed tile parameters, for the variants that have them.

    Raises:
        UnavailableError: no variant can run there; the message has the reason for the last one.
    """
    options, refusal = [], "it has none"
    variants = list(workload.variants().values())
    target = target_for(variants[0], target or (device.target if device is not None else None))
    for variant in variants:
        fixed = {name: value for name, value in (tile or {}).items() if name in variant.tile}
        lacks = sorted(device.lacks.intersection(variant.requires)) if device is not None else []
        try:
            if lacks:
                raise UnavailableError(f"{variant.name}: the device has no {lacks[0]}")
            resolved = resolve(workload, variant, target, fixed, device=device)
        except PtxkitError as error:
            refusal = str(error)
            continue
        options.append(Option(resolved, predicted(resolved), _objection(resolved), _swept_us(resolved, device)))
    if not options:
        raise UnavailableError(f"no variant of {workload.name} can run: {refusal}")
    won = _won(options, device) if device is not None else None
    chosen, reason = won or _chosen(options)
    return Choice(chosen, reason, tuple(options), gpu_of(options[0].resolved).name)


def ranked(
    workload: Workload,
    count: int,
    device: Device | None = None,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    variants: Collection[str] = (),
) -> list[Option]:
    """The variants and tiles to measure if only ``count`` may be: the choice without records first, then by predicted time.

    No two launch the same: of tiles with the same programs and launches the first stands for all. Variants to which their
    description objects come last.

    Args:
        workload, device, target, tile: see :func:`choose`. variants: names; empty for all.

    Raises:
        UnavailableError: no variant can run there; the message has the reason for the last one.
    """
    made, refusal = [], "it has none"
    every = list(workload.variants().values())
    target = target_for(every[0], target or (device.target if device is not None else None))
    if device is not None:
        workload = workload.on(device.facts_for(target))
    for variant in every:
        if variants and variant.name not in variants:
            continue
        fixed = {name: value for name, value in (tile or {}).items() if name in variant.tile}
        try:
            if device is not None and (lacks := sorted(device.lacks.intersection(variant.requires))):
                raise UnavailableError(f"{variant.name}: the device has no {lacks[0]}")
            first = resolve(workload, variant, target, fixed)
        except PtxkitError as error:
            refusal = str(error)
            continue
        made.append([first, *_other_tiles(first, fixed)])
    if not made:
        raise UnavailableError(f"no variant of {workload.name} can run: {refusal}")
    options = [[Option(r, predicted(r), _objection(r)) for r in tiles] for tiles in made]
    chosen, _ = _expected([of_variant[0] for of_variant in options])
    rest = [o for of_variant in options for o in of_variant if o is not chosen]
    rest.sort(key=lambda o: (bool(o.objection), o.terms.total))
    distinct = {_launched(o.resolved): o for o in reversed([chosen, *rest])}
    return list(reversed(distinct.values()))[:count]


def _other_tiles(first: ResolvedVariant, fixed: Mapping[str, Any]) -> Iterator[ResolvedVariant]:
    """The tiles after the first that the variant prefers or declares and the target can run, at most ``EXAMINED``."""
    for tile in islice(first.variant.tiles(first.workload, first.variant.held(first.workload, fixed)), EXAMINED):
        if tile != first.tile:
            with suppress(UsageError, UnavailableError):
                yield resolve(first.workload, first.variant, first.target, tile)


def _launched(resolved: ResolvedVariant) -> str:
    return repr((resolved.programs, resolved.launches))


def _won(options: list[Option], device: Device) -> tuple[Option, str] | None:
    """The option that ``--tune`` measured to be the fastest on this GPU model, at these sizes or near ones."""
    workload, target = options[0].resolved.workload, options[0].resolved.target
    found = lookup.winner(workload, device.name, target)
    if found is None or not lookup.applies(found, workload, partial(as_recorded, target)):
        return None
    for option in options:
        if option.name == found.variant and (option.resolved.tuned or not found.tile):
            at = "" if found.sizes == workload.sizes else f" at {' '.join(f'{k}={v}' for k, v in found.sizes.items())}"
            return option, f"the fastest of {len(found.others) + 1} candidates that --tune measured{at} on {found.day}"
    return None


def _swept_us(resolved: ResolvedVariant, device: Device | None) -> float | None:
    """The time that a sweep over the tiles of a variant recorded for its tile at exactly these sizes."""
    if device is None or not resolved.tuned:
        return None
    workload = resolved.workload
    found = lookup.tile_of(workload, resolved.variant.name, device.name, resolved.target)
    return found.time_us if found is not None and found.scope == "tile" and found.sizes == workload.sizes else None


def _chosen(options: list[Option]) -> tuple[Option, str]:
    """The option to take, and why: measured times precede the order and the model, if they include their choice."""
    chosen, reason = _expected(options)
    swept = [option for option in options if option.swept_us is not None]
    if len(swept) > 1 and chosen in swept:
        fastest = min(swept, key=lambda option: option.swept_us or 0.0)
        return fastest, f"the fastest of {len(swept)} variants that sweeps measured at these sizes"
    return chosen, reason


def _expected(options: list[Option]) -> tuple[Option, str]:
    """The option to take without measured times, and why."""
    free = [option for option in options if not option.objection] or options
    last, fastest = free[-1], min(free, key=lambda option: option.terms.total)
    chosen = [option for option in free if option.terms.least <= MARGIN * fastest.terms.total][-1]
    if chosen is not last:
        times = last.terms.least / chosen.terms.total
        return chosen, f"{last.name} is predicted to take at least {times:.2g} times as long"
    if len(options) == 1:
        return chosen, "the only variant that runs here"
    if last is options[-1]:
        return chosen, f"the last of {len(options)} variants that run here"
    return chosen, f"the last without an objection; {options[-1].name}: {options[-1].objection}"


def _objection(resolved: ResolvedVariant) -> str:
    variant, workload = resolved.variant, resolved.workload
    if variant.slower is not None and (reason := variant.slower(workload)):
        return reason
    sources = [variant.source_of(workload, launch) for launch in resolved.launches]
    if all(isinstance(source, str) and source.endswith(".ptx") for source in sources):
        return "written in PTX by hand, in one shape for all sizes"
    return ""


def gpu_of(resolved: ResolvedVariant) -> Gpu:
    """The documented facts of the GPU of a workload: its own, or those of the reference GPU of the target."""
    return gpu_named(resolved.workload.device.gpu) or reference_gpu(resolved.target)


def predicted(resolved: ResolvedVariant) -> Terms:
    """The predicted time of a variant, by terms."""
    model = _Model(resolved, gpu_of(resolved))
    return Terms(model.launches_us, model.memory_us, model.temporaries_us, model.waves_us, model.arithmetic_us)


@dataclass(frozen=True)
class _Model:
    resolved: ResolvedVariant
    gpu: Gpu

    @cached_property
    def launches_us(self) -> float:
        return LAUNCH_US * len(self.resolved.launches)

    @cached_property
    def memory_us(self) -> float:
        return self.resolved.workload.work().bytes / self._rate / 1e3

    @cached_property
    def temporaries_us(self) -> float:
        return self._passes / self._rate / 1e3

    @cached_property
    def _passes(self) -> int:
        """Bytes of the temporaries of all launches."""
        sizes = {}
        for name, spec in self.resolved.workload.temporaries().items():
            shape, dtype = array_spec(spec)
            sizes[name] = math.prod(shape) * dtype.itemsize
        return sum(sizes.get(name, 0) for launch in self.resolved.launches for name in set(launch.array_names))

    @cached_property
    def _rate(self) -> float:
        """Bandwidth in GB/s."""
        workload = self.resolved.workload
        fits = workload.work().bytes + self._passes <= RESIDENT * workload.device.l2_bytes
        return copy_gbs(self.gpu) * (L2_RATE if fits else 1)

    @cached_property
    def waves_us(self) -> float:
        return WAVE_US * sum(math.ceil(self._waves(launch)) for launch in self.resolved.launches)

    @cached_property
    def arithmetic_us(self) -> float:
        work = self.resolved.workload.work()
        peak = self.gpu.peak_tflops.get(work.unit)
        if peak is None:
            return 0.0
        rate = peak * (VECTOR if work.unit in VECTOR_UNITS else PRODUCT * self._tensor_core_share())
        return work.executed / (rate * self._busy()) / 1e6

    def _tensor_core_share(self) -> float:
        """The share of the rate of the target's own tensor core instructions: mma.sync does not reach that of wgmma."""
        specific = self.resolved.target.has_a_form and any(
            word.endswith("a") or word in ("wgmma", "tcgen05") for word in self.resolved.variant.requires
        )
        own = not self.resolved.target.name.endswith("a") or specific
        return 1.0 if own else WARP_PRODUCT

    def _busy(self) -> float:
        """The share of the SMs that the CTAs of the launch with the most shared memory keep busy."""
        main = max(self.resolved.launches, key=lambda launch: launch.shared)
        waves = self._waves(main)
        if waves > 1:
            return waves / math.ceil(waves)
        return min(1.0, _ctas(main) / self.resolved.workload.device.sms)

    def _waves(self, launch: Launch) -> float:
        """CTAs of a launch over those that are resident at a time."""
        target = self.resolved.target
        cluster = _product(launch.cluster)
        held = calculate(target, _product(launch.block), 0, launch.shared, cluster=cluster).ctas_per_sm
        return _ctas(launch) / (max(1, held) * self.resolved.workload.device.sms)


def _ctas(launch: Launch) -> int:
    return _product(launch.grid)


def _product(extents: object) -> int:
    return math.prod(extents) if isinstance(extents, tuple) else 1  # Launch converts all to tuples
