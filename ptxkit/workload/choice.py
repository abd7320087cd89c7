"""Which variant of a kernel to take at given sizes on a device: :func:`choose`.

Where sweeps on the device have recorded times of several variants at these sizes, the choice is the fastest. Otherwise the
order of the variants counts: they are steps, each of which is meant to be faster than those before it. The choice is therefore
the last one that the device can run, with three exceptions: a variant whose description says that an earlier one is faster
(``slower`` of :class:`~ptxkit.workload.variant.Variant`), a kernel written in PTX by hand, whose shape is fixed, and a variant
for which a model predicts much more time than for an earlier one. The tile is that of :func:`ptxkit.workload.resolve.resolve`:
that of a recorded winner, else the one that the description prefers, or for products in blocks the one that the model expects
to be much faster (:mod:`ptxkit.workload.tiling`). The model and its terms are in :mod:`ptxkit.workload.cost`.

``scripts/regret.py`` compares the choices with all times in ``expectations/``, and with those of many tiles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any
from weakref import ref

from ptxkit.errors import PtxkitError, UnavailableError, UsageError
from ptxkit.workload.cost import Model, Terms, gpu_of
from ptxkit.workload.resolve import ResolvedVariant, as_recorded, resolve, target_for
from ptxkit.workload.tuned import lookup

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload

KEPT = 4096  # choices that a process remembers; the oldest are dropped first
EXAMINED = 256  # tiles of a variant for which a time is predicted
MARGIN = 3.0  # how many times slower than another variant the last one must be predicted for the other to be chosen


@dataclass(frozen=True)
class PredictedVariant:
    """A variant that the device can run, with its tile and its predicted time.

    Attributes:
        resolved: with its tile and launches. terms: its predicted time. bounds: the terms in which variants are compared, see
            :meth:`ptxkit.workload.cost.Model.bounds`.
        objection: why the description or its source says not to take it; "" for none.
        swept_us: the time that a sweep on this device recorded for this tile at these sizes; None without one.
    """

    resolved: ResolvedVariant
    terms: Terms
    bounds: Terms
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
        chosen: the variant to take. reason: in words.
        candidates: all that the device can run, in the order of the description.
        gpu: the GPU whose facts the prediction uses.
    """

    chosen: PredictedVariant
    reason: str
    candidates: tuple[PredictedVariant, ...]
    gpu: str

    @property
    def variant(self) -> str:
        """The name of the chosen variant."""
        return self.chosen.name

    @property
    def tile(self) -> dict[str, Any]:
        """Its tile parameters."""
        return dict(self.chosen.resolved.tile)

    def __str__(self) -> str:
        note = f" ({self.chosen.resolved.tile_note})" if self.chosen.resolved.tuned else ""
        named = " ".join(filter(None, [self.variant, str(self.chosen.resolved.tile)]))
        terms = self.chosen.terms
        return f"{named}{note}: {self.reason}; predicted {terms.total:.3g} us on {self.gpu}, largest term {terms.bound}"

    def to_json(self) -> dict[str, Any]:
        """The chosen variant, the reason, and the predicted time by terms, in microseconds."""
        terms = self.chosen.terms
        return {
            "variant": self.variant,
            "tile": self.tile,
            "tuned": self.chosen.resolved.tuned,
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
    candidates, refusal = [], "it has none"
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
        candidates.append(replace(_predicted(resolved), swept_us=_swept_us(resolved, device)))
    if not candidates:
        raise UnavailableError(f"no variant of {workload.name} can run: {refusal}")
    won = _won(candidates, device) if device is not None else None
    chosen, reason = won or _chosen(candidates)
    return Choice(chosen, reason, tuple(candidates), gpu_of(candidates[0].resolved.workload, target).name)


def ranked(
    workload: Workload,
    count: int,
    device: Device | None = None,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    variants: Collection[str] = (),
) -> list[PredictedVariant]:
    """The variants and tiles to measure if only ``count`` may be: the choice without records first, then alternately its tiles
    with the shortest predicted times, and the other variants with their first tiles.

    No two launch the same: of tiles with the same programs and launches the first stands for all. Variants to which their
    description objects come after the others.

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
    candidates = [[_predicted(resolved) for resolved in tiles] for tiles in made]
    firsts = [of_variant[0] for of_variant in candidates]
    chosen, _ = _expected(firsts)
    tiles = [o for of_variant in candidates for o in of_variant[1:]]
    tiles.sort(key=lambda o: (o.name != chosen.name, bool(o.objection), o.terms.total))
    others = sorted((o for o in firsts if o is not chosen), key=lambda o: (bool(o.objection), o.bounds.total))
    mixed = [o for pair in zip_longest(tiles, others) for o in pair if o is not None]
    distinct = {_launched(o.resolved): o for o in reversed([chosen, *mixed])}
    return list(reversed(distinct.values()))[:count]


def _predicted(resolved: ResolvedVariant) -> PredictedVariant:
    model = model_of(resolved)
    return PredictedVariant(resolved, model.terms(), model.bounds(), _objection(resolved))


def _other_tiles(first: ResolvedVariant, fixed: Mapping[str, Any]) -> Iterator[ResolvedVariant]:
    """The tiles after the first that the variant prefers or declares and the target can run, at most ``EXAMINED``."""
    for tile in islice(first.variant.tiles(first.workload, first.variant.held(first.workload, fixed)), EXAMINED):
        if tile != first.tile:
            with suppress(UsageError, UnavailableError):
                yield resolve(first.workload, first.variant, first.target, tile)


def _launched(resolved: ResolvedVariant) -> str:
    return repr((resolved.programs, resolved.launches))


def _won(candidates: list[PredictedVariant], device: Device) -> tuple[PredictedVariant, str] | None:
    """The candidate that ``--tune`` measured to be the fastest on this GPU model, at these sizes or near ones."""
    workload, target = candidates[0].resolved.workload, candidates[0].resolved.target
    found = lookup.winner(workload, device.name, target)
    if found is None or not lookup.applies(found, workload, partial(as_recorded, target)):
        return None
    for candidate in candidates:
        if candidate.name == found.variant and (candidate.resolved.tuned or not found.tile):
            at = "" if found.sizes == workload.sizes else f" at {' '.join(f'{k}={v}' for k, v in found.sizes.items())}"
            return candidate, f"the fastest of {len(found.others) + 1} candidates that --tune measured{at} on {found.day}"
    return None


def _swept_us(resolved: ResolvedVariant, device: Device | None) -> float | None:
    """The time that a sweep over the tiles of a variant recorded for its tile at exactly these sizes."""
    if device is None or not resolved.tuned:
        return None
    workload = resolved.workload
    found = lookup.tile_of(workload, resolved.variant.name, device.name, resolved.target)
    return found.time_us if found is not None and found.scope == "tile" and found.sizes == workload.sizes else None


def remembered(workload: Workload, device: Device) -> Choice:
    """The choice for a workload on a device that :func:`choose` made first in this process; later calls search nothing.

    Winners that are recorded meanwhile count after :func:`forget`. ``scripts/choice_overhead.py`` measures a call.

    Raises:
        UnavailableError: see :func:`choose`.
    """
    known = _by_object.get(id(workload))
    if known is not None and known[0]() is workload and known[1] is device:
        return known[2]
    key = (workload, device)
    found = _by_value.get(key)
    if found is None:
        found = _by_value[key] = choose(workload, device)
    _by_object[id(workload)] = (ref(workload), device, found)
    for memory in (_by_object, _by_value):
        if len(memory) > KEPT:
            with suppress(KeyError, RuntimeError):  # another thread dropped it, or adds one
                del memory[next(iter(memory))]  # type: ignore[arg-type]
    return found


def forget() -> None:
    """Forget what :func:`remembered` has returned."""
    _by_object.clear()
    _by_value.clear()


_by_object: dict[int, tuple[ref[Workload], Device, Choice]] = {}  # by identity, whose hash takes no time
_by_value: dict[tuple[Workload, Device], Choice] = {}


def _chosen(candidates: list[PredictedVariant]) -> tuple[PredictedVariant, str]:
    """The candidate to take, and why: measured times precede the order and the model, if they include their choice."""
    chosen, reason = _expected(candidates)
    swept = [candidate for candidate in candidates if candidate.swept_us is not None]
    if len(swept) > 1 and chosen in swept:
        fastest = min(swept, key=lambda candidate: candidate.swept_us or 0.0)
        return fastest, f"the fastest of {len(swept)} variants that sweeps measured at these sizes"
    return chosen, reason


def _expected(candidates: list[PredictedVariant]) -> tuple[PredictedVariant, str]:
    """The candidate to take without measured times, and why."""
    free = [candidate for candidate in candidates if not candidate.objection] or candidates
    last, fastest = free[-1], min(free, key=lambda candidate: candidate.bounds.total)
    chosen = [candidate for candidate in free if candidate.bounds.least <= MARGIN * fastest.bounds.total][-1]
    if chosen is not last:
        times = last.bounds.least / chosen.bounds.total
        return chosen, f"{last.name} is predicted to take at least {times:.2g} times as long"
    if len(candidates) == 1:
        return chosen, "the only variant that runs here"
    if last is candidates[-1]:
        return chosen, f"the last of {len(candidates)} variants that run here"
    return chosen, f"the last without an objection; {candidates[-1].name}: {candidates[-1].objection}"


def _objection(resolved: ResolvedVariant) -> str:
    variant, workload = resolved.variant, resolved.workload
    if variant.slower is not None and (reason := variant.slower(workload)):
        return reason
    sources = [variant.source_of(workload, launch) for launch in resolved.launches]
    if all(isinstance(source, str) and source.endswith(".ptx") for source in sources):
        return "written in PTX by hand, in one shape for all sizes"
    return ""


def predicted(resolved: ResolvedVariant) -> Terms:
    """The predicted time of a variant with its tile, by terms."""
    return model_of(resolved).terms()


def model_of(resolved: ResolvedVariant) -> Model:
    """The model of a variant with its tile."""
    return Model(resolved.workload, resolved.variant, resolved.target, resolved.tile, resolved.launches)
