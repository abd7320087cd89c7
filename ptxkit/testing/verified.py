"""Assertions on the results of kernels: every variant is verified, on any device, and its exact counts are within limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.arguments import FLAG, MAPPING, NOTHING, STRINGS, TEXT, shown, takes, whole
from ptxkit.errors import CompileError, PtxkitError, UsageError
from ptxkit.runtime.abilities import DEVICE, TARGET

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.execute import Case, VariantResult
    from ptxkit.workload.launch import Tolerance
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload


@takes(
    variants=STRINGS | NOTHING,
    device=TEXT | DEVICE,
    target=TEXT | TARGET | NOTHING,
    inputs=MAPPING | NOTHING,
    tile=MAPPING | NOTHING,
    completion=STRINGS,
    racecheck=FLAG | TEXT,
    **dict.fromkeys(("sectors", "bank_conflicts", "instructions", "spills", "registers"), whole(0) | NOTHING),
)
def assert_verified(
    kernel: Workload | type[Workload] | str,
    *,
    variants: str | Iterable[str] | None = None,
    device: Device | str = "auto",
    target: Target | str | None = None,
    seed: int | Iterable[int] = 0,
    inputs: Mapping[str, Any] | None = None,
    tile: Mapping[str, Any] | None = None,
    tolerance: Tolerance | None = None,
    completion: str | Iterable[str] = ("eager",),
    racecheck: bool | str = False,
    sectors: int | None = None,
    bank_conflicts: int | None = None,
    instructions: int | None = None,
    spills: int | None = None,
    registers: int | None = None,
) -> dict[str, VariantResult]:
    """Run variants of a kernel, compare outputs with the reference, and check that inputs are unchanged.

    Args:
        kernel: a workload with its sizes (``MyKernel(n=1000)``), a class or a name or path, which have the emulator's sizes.
        variants: names, or one name. None takes all; those that the device or target lacks are left out, but not all of them.
        device: ``"auto"``, ``"gpu"``, ``"emulator"``, or a device.
        target: compile for this one instead of the device's own: ``"sm_90a"``.
        seed: for the input data, or several seeds. inputs: arrays to use instead of random ones.
        tile: tile parameters to fix, in the variants that have them.
        tolerance: replaces the variant's or the workload's.
        completion: ``"eager"``, ``"latest-legal"``, ``"random"`` or several: when the emulator completes asynchronous
            operations. Random points are drawn from ``seed``.
        racecheck: in the emulator; True, ``"warps"`` or ``"lanes"``.
        sectors, bank_conflicts, instructions: the maximum for all launches together. Only the emulator counts these.
        spills: the maximum of the bytes of spill stores and loads together, for every kernel.
        registers: the maximum per thread.

    Returns:
        Variant name -> the result of its last run.

    Raises:
        AssertionError: a variant has a wrong result, faults, does not compile, or exceeds a limit; the message has everything
            that ``ptxkit run`` would print. Also if no variant can run on the device: then nothing was verified.
        UsageError: no such kernel, variant, tile parameter or setting; or emulator settings or counts with a GPU.
    """
    __tracebackhide__ = True
    from ptxkit.runtime.device import device as open_device
    from ptxkit.targets import Target

    on = open_device(device) if isinstance(device, str) else device
    workload = _workload(kernel)
    counts = {"sectors": sectors, "bank_conflicts": bank_conflicts, "instructions": instructions}
    seeds = _seeds(seed)
    _check_tolerance(tolerance)
    chosen = _chosen(workload, variants, tile)
    limits = {name: most for name, most in counts.items() if most is not None}
    modes = _modes(on, completion, racecheck, limits)
    compiled = Target.parse(target) if isinstance(target, str) else target
    complaints: list[str] = []
    found: dict[str, VariantResult] = {}
    for number in seeds:
        case = _case(workload, on, number, inputs, compiled)
        for chosen_mode in modes:
            drawn = {"completion_seed": number} if chosen_mode.get("completion") == "random" else {}
            mode = {**chosen_mode, **drawn}
            where = ", ".join([f"seed {number}", *(f"{name} {value}" for name, value in mode.items())])
            for variant in chosen:
                explicit = variants is not None
                result, wrong = _run(case, variant, compiled, tile, explicit, tolerance, _settings(on, mode))
                if result is not None:
                    found[variant.name] = result
                    wrong += _exceeded(result, limits, spills, registers)
                title = f"{workload.name}:{variant.name} ({workload.size_text()}) on {on.name}, {where}"
                complaints += [f"{title}: {text}" for text in wrong]
                if on.lost is not None:
                    raise AssertionError("\n".join([*complaints, f"{on.name} is lost: start a new process"]))
    if complaints:
        raise AssertionError("\n".join(complaints))
    ran = [result for result in found.values() if result.skipped is None]
    if not ran:
        reasons = "; ".join(f"{name}: {result.skipped}" for name, result in found.items())
        raise AssertionError(f"{workload.name}: nothing was verified, every variant was skipped: {reasons}")
    return found


def _seeds(seed: int | Iterable[int]) -> list[int]:
    seeds = list(seed) if isinstance(seed, Iterable) and not isinstance(seed, str) else [seed]
    if not seeds:
        raise UsageError("assert_verified takes at least one seed; without one nothing would be verified")
    for number in seeds:
        if not isinstance(number, (int, np.integer)) or number < 0:
            raise UsageError(f"seed is a whole number of at least 0, or several of them, not {number!r}")
    return [int(number) for number in seeds]


def _check_tolerance(tolerance: object) -> None:
    from ptxkit.workload.launch import Tolerance

    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise UsageError(f"tolerance takes a Tolerance, such as Tolerance(relative=1e-3), not {shown(tolerance)}")


def _workload(kernel: Workload | type[Workload] | str) -> Workload:
    from ptxkit.workload import registry
    from ptxkit.workload.workload import Workload

    if isinstance(kernel, str):
        kernel = registry.find(kernel)
    if isinstance(kernel, type) and issubclass(kernel, Workload):
        return kernel.make((), {}, small=True)
    if not isinstance(kernel, Workload):
        raise UsageError(f"assert_verified takes a Workload with its sizes, a class or a name, not {kernel!r}")
    return kernel


def _chosen(workload: Workload, names: str | Iterable[str] | None, tile: Mapping[str, Any] | None) -> Sequence[Variant]:
    from ptxkit.workload.variant import require_tile_parameters

    wanted = [names] if isinstance(names, str) else None if names is None else list(names)
    if wanted == []:
        raise UsageError("assert_verified takes at least one variant; without one nothing would be verified")
    chosen = list(workload.variants().values()) if wanted is None else [workload.variant(name) for name in wanted]
    require_tile_parameters(workload, chosen, tile or {}, every=wanted is None)
    return chosen


def _modes(
    device: Device, completion: str | Iterable[str], racecheck: bool | str, limits: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The emulator's settings of each pass; on a GPU there is one pass without settings."""
    from ptxkit.runtime.device import is_emulating

    completions = [completion] if isinstance(completion, str) else list(completion)
    if is_emulating(device):
        settings: dict[str, Any] = {"racecheck": racecheck} if racecheck else {}
        if not completions:
            raise UsageError("completion is 'eager', 'latest-legal', 'random' or several of them")
        if limits and not device.current_settings.counting:
            raise UsageError(f"{', '.join(limits)}: {device.name} does not count with counting=False; leave that setting out")
        return [{**settings, "completion": mode} for mode in completions]
    asked = [name for name, given in (("racecheck", racecheck), ("completion", completions != ["eager"])) if given]
    if asked or limits:
        names = ", ".join([*asked, *limits])
        raise UsageError(f"{names}: for the emulator only, and this is {device.name}; pass device='emulator'")
    return [{}]


def _settings(device: Device, mode: Mapping[str, Any]) -> AbstractContextManager[object]:
    from ptxkit.runtime.device import is_emulating

    return device.settings(**mode) if is_emulating(device) else nullcontext()


def _case(
    workload: Workload, device: Device, seed: int, inputs: Mapping[str, Any] | None, target: Target | None
) -> Case:
    from ptxkit.workload.execute import Case

    if inputs is not None:
        takes = [p.name for p in signature(workload.reference).parameters.values() if p.kind is not p.VAR_KEYWORD]
        if set(takes) != set(inputs):
            given = ", ".join(inputs) or "nothing"
            raise UsageError(f"inputs has {given}; reference() of {workload.name} takes {', '.join(takes)}")
    return Case(workload, device, seed, inputs, target=target)


def _run(
    case: Case,
    variant: Variant,
    target: Target | None,
    tile: Mapping[str, Any] | None,
    explicit: bool,
    tolerance: Tolerance | None,
    settings: AbstractContextManager[object],
) -> tuple[VariantResult | None, list[str]]:
    """The text of a variant's result and of its failure."""
    from ptxkit.workload import execute

    held = {name: value for name, value in (tile or {}).items() if name in variant.tile}
    try:
        with settings:
            result = execute.run(case, variant, target, held, explicit=explicit, tolerance=tolerance)
    except UsageError:
        raise
    except CompileError as error:
        return None, [error.log.rstrip() or str(error)]
    except PtxkitError as error:
        return None, [f"{type(error).__name__}: {error}"]
    verdict = result.verdict
    if verdict is None or verdict.verified:
        return result, []
    return result, [f"wrong result: {verdict.explanation or verdict.worst}"]


def _exceeded(
    result: VariantResult, limits: Mapping[str, int], spills: int | None, registers: int | None
) -> Iterator[str]:
    """A sentence for each limit that a variant exceeds."""
    if result.prepared is None:
        return
    counters = result.counters
    if counters is not None:
        counts = {
            "sectors": counters.global_sectors,
            "bank_conflicts": counters.shared_bank_conflicts,
            "instructions": counters.instructions,
        }
        for name, most in limits.items():
            if counts[name] > most:
                yield f"{counts[name]:,} {name.replace('_', ' ')}, more than {most:,}"
    for step in {step.entry: step for step in result.prepared.build.steps}.values():
        resources = step.resources
        if registers is not None and resources.registers > registers:
            yield f"{step.launch.entry} uses {resources.registers} registers a thread, more than {registers}"
        spilled = resources.spill_store_bytes + resources.spill_load_bytes
        if spills is not None and spilled > spills:
            yield f"{step.launch.entry} spills {spilled} bytes, more than {spills}"
