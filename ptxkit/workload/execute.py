"""Runs a variant on a device and compares its outputs with the reference.

A :class:`Case` is a workload with inputs on one device; its variants share the inputs, the reference and the device arrays.
:func:`prepare` returns a variant that can be launched any number of times, for instance by a benchmark; :func:`run` launches it
once and verifies it. This module does not depend on the kind of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.errors import DescriptionError, LaunchError, MissingKernelError, UnavailableError, UsageError
from ptxkit.runtime.tensor_map.description import TensorMap
from ptxkit.runtime.texture.description import Surface, Texture
from ptxkit.targets import missing
from ptxkit.workload.blame import at, is_placed
from ptxkit.workload.build import Build, compiled
from ptxkit.workload.case import HIGH, LOW, POISON, Case, with_complaints
from ptxkit.workload.data import Data
from ptxkit.workload.launch import Generated, Launch, Tile, Tolerance
from ptxkit.workload.memory import check_memory
from ptxkit.workload.module_state import ModuleState
from ptxkit.workload.resolve import ResolvedVariant, target_for
from ptxkit.workload.verify import Verdict

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters
    from ptxkit.runtime.device import Device, Kernel, PreparedLaunch
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant

__all__ = [
    "HIGH",
    "LOW",
    "POISON",
    "Case",
    "Data",
    "Prepared",
    "VariantResult",
    "bound",
    "check_memory",
    "lacking",
    "launch_arguments",
    "prepare",
    "prepare_resolved",
    "run",
]


def other_poisons(counters: Counters | None, unknown: bool, again: bool) -> tuple[int, ...]:
    """The poison of launches after the first; none where its result does not depend on what memory held before.

    A minimum or maximum ignores one sentinel or the other, so where a launch has read unwritten elements of outputs or
    temporaries, or updated them atomically, both signs are tried. Without counts nothing is known of what a launch
    reads, so that both are tried if any array was poisoned. Every byte of :data:`LOW` differs from the first poison, also those
    of integers.

    Args:
        counters: of the first launch; None where the device does not count.
        unknown: the launch may have read what no launch had written, without a count of it.
        again: one more launch is needed in any case: an element of an output still holds the poison, or variables of the module
            have changed, so that the next launch begins with others.
    """
    if unknown or (counters is not None and counters.unwritten_loads):
        return HIGH, LOW
    return (LOW,) if again else ()


@dataclass(frozen=True)
class Prepared:
    """A variant on a device, ready to be launched any number of times.

    Attributes:
        case: its inputs and arrays.
        build: the compiled programs.
        launches: one callable for each launch, in order, including launches that a generated kernel needs before its own.
        keep: objects that must live as long as the launches, such as workspaces of generated kernels.
        state: the variables of its modules.
    """

    case: Case
    build: Build
    launches: tuple[PreparedLaunch, ...]
    keep: tuple[object, ...] = ()
    state: ModuleState = ModuleState(())  # noqa: RUF009  # immutable

    def launch(self) -> None:
        """Queue all launches once, without waiting for their completion."""
        for launch in self.launches:
            launch()

    def verify(self, own: Tolerance | None = None) -> Verdict:
        """Restore the arrays, launch once and compare with the reference; see :meth:`check`."""
        return self.check(own)[0]

    def check(self, own: Tolerance | None = None) -> tuple[Verdict, Counters | None]:
        """Verify, and return the counters of the same launch if the device counts, since a second emulation would take as long.

        Outputs and temporaries are poisoned and inputs restored before the launch; outputs and inputs are compared after it.
        Where the result may be correct by chance, launches with other poison (:func:`other_poisons`) are verified, too.

        Args:
            own: a tolerance that replaces those of the variant and the workload.
        """
        self.state.restore()
        self.case.reset()
        measured = self.case.device.measure(self.launch, samples=1)
        self.case.device.synchronize()
        case = self.case
        smallest = self.build.smallest_store
        verdict = case.verify(self.build.variant, own, smallest)
        again = case.unwritten or self.state.changed()
        # a load of a temporary that is written in part is not counted as one of an unwritten element
        unknown = case.is_poisoned if measured.counters is None else case.has_wider_temporaries(smallest)
        poisons = other_poisons(measured.counters, unknown, again) if verdict.verified else ()
        verified = case.digests() if poisons else None
        for poison in poisons:
            verdict = self.again(own, poison, verified) or verdict
            if not verdict.verified:
                break
        return verdict, measured.counters

    def again(
        self, own: Tolerance | None = None, poison: int = HIGH, verified: Mapping[str, int] | None = None
    ) -> Verdict | None:
        """Launch once more, with another poison and without restoring module variables.

        Args:
            own: a tolerance that replaces those of the variant and the workload.
            poison: every byte of outputs and temporaries before the launch.
            verified: digests of outputs that were verified; the same outputs are not compared again.

        Returns:
            A description of the error; None if the result is verified.
        """
        complaints = self.case.overwritten()  # inputs overwritten by launches since the latest check
        if complaints:
            return with_complaints(Verdict.refused(f"after several launches, {complaints[0]}"), complaints[1:])
        self.case.reset(poison)
        self.launch()
        self.case.device.synchronize()
        if verified is not None and self.case.digests() == verified and not self.case.overwritten():
            return None
        verdict = self.case.verify(self.build.variant, own, self.build.smallest_store)
        if verdict.verified:
            return None
        what = "on a launch after the first: "
        return replace(verdict, worst=what + verdict.worst, explanation=what + verdict.explanation)


@dataclass(frozen=True)
class VariantResult:
    """The result of one variant.

    Attributes:
        name: the variant.
        skipped: why it was not run, or None.
        target: the target it was compiled for; "" if skipped.
        tile: the chosen tile parameters.
        launches: number of launches.
        verdict: the comparison with the reference; None if skipped.
        counters: exact counts of all its launches together; None if the device does not count.
        prepared: the variant, for further launches and measurements; None if skipped.
    """

    name: str
    skipped: str | None = None
    target: str = ""
    tile: Tile = Tile({})  # noqa: RUF009  # immutable
    launches: int = 0
    verdict: Verdict | None = None
    counters: Counters | None = None
    prepared: Prepared | None = None


def prepare(
    case: Case,
    variant: Variant,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    *,
    images: Sequence[str] = (),
) -> Prepared:
    """Compile a variant, load it and bind its arguments.

    Args:
        case: workload, inputs and device.
        variant: one of the workload's.
        target: the target to compile for; None for that of the device.
        tile: fixed tile parameters; see :func:`ptxkit.workload.resolve.resolve`.
        images: see :func:`ptxkit.workload.build.compiled`.

    Raises:
        UnavailableError, UsageError, DescriptionError: see :func:`ptxkit.workload.resolve.resolve`.
        CompileError: see :func:`ptxkit.workload.build.build`. LaunchError: see :func:`bound`.
    """
    return bound(case, compiled(case.resolve(variant, target, tile), images=images))


def prepare_resolved(case: Case, resolved: ResolvedVariant) -> Prepared:
    """Compile a resolved variant, load it on the case's device and bind its arguments.

    Raises:
        UnavailableError, CompileError, LaunchError: as :func:`prepare`.
    """
    return bound(case, compiled(resolved))


def bound(case: Case, built: Build) -> Prepared:
    """Load compiled programs on the device of a case and bind the arguments to its arrays.

    Raises:
        LaunchError: the arguments do not match the kernel's parameters.
    """
    modules = {image.key: case.device.load(image) for image in built.images}
    case = case.at(built.workload)
    launches, kept = [], []
    for step in built.steps:
        module = modules[step.image.key]
        group: tuple[Launch, ...] = (step.launch,)
        if isinstance(step.launch.source, Generated):
            group, keep = step.launch.source.bind(step.launch, module, case.device, case.array)
            kept.append(keep)
        try:
            launches += [_bind(case, module[launch.entry], launch) for launch in group]
        except (DescriptionError, MissingKernelError) as error:
            place = "" if is_placed(error) else at(type(built.workload), built.variant.name)
            raise (type(error)(f"{place}{error}") if place else error) from None
    state = ModuleState(tuple(variable for module in modules.values() for variable in module.variables))
    return Prepared(case, built, tuple(launches), tuple(kept), state)


def run(
    case: Case,
    variant: Variant,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    *,
    explicit: bool = False,
    tolerance: Tolerance | None = None,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> VariantResult:
    """Prepare a variant, launch it on poisoned outputs and verify outputs and inputs; see :meth:`Prepared.check`.

    Args:
        tolerance: a tolerance that replaces those of the variant and the workload.
        explicit: the variant was named by the caller, so that a missing feature of the target is an error, not a skip.
        around: a context for the launches and the comparison, such as a time limit, which begins after compilation.
    """
    wanted = target or case.target or case.device.target
    reason = missing(variant.requires, target_for(variant, wanted))
    if reason is None and (beyond := lacking(variant, case.device, case.workload.name)) is not None:
        if explicit:
            raise UnavailableError(beyond)
        reason = beyond
    if reason is not None and not explicit:
        return VariantResult(variant.name, skipped=reason)
    try:
        resolved = case.resolve(variant, target, tile)
    except UsageError:
        reason = variant.refusal(case.workload)  # the constraint allows no tile for these sizes
        if explicit or reason is None:
            raise
        return VariantResult(variant.name, skipped=reason)
    prepared = prepare_resolved(case, resolved)
    with around():
        verdict, counters = prepared.check(tolerance)
    built = prepared.build
    return VariantResult(
        variant.name, None, built.target.name, built.tile, len(built.steps), verdict, counters, prepared
    )


def lacking(variant: Variant, device: Device, kernel: str) -> str | None:
    """Why the device cannot run a variant that can be compiled, or None."""
    lacks = sorted(device.lacks.intersection(variant.requires))
    if not lacks:
        return None
    return f"the {device.kind} has no {', '.join(lacks)} yet; `ptxkit inspect {kernel}:{variant.name}` shows what is compiled"


def _bind(case: Case, kernel: Kernel, launch: Launch) -> PreparedLaunch:
    return kernel.prepare(
        *launch_arguments(kernel, launch, case.argument, case.constant),
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        cluster=launch.cluster,
        cooperative=launch.cooperative,
    )


def launch_arguments(
    kernel: Kernel, launch: Launch, named: Callable[[str], Any], constant: Callable[[str], bool] = lambda name: False
) -> list[Any]:
    """The values of a launch's arguments for its kernel.

    Args:
        named: name of an input, output or temporary -> array or scalar. It replaces names and arrays of tensor maps.
        constant: whether no launch writes an array, so that textures of it are copied once.

    Raises:
        LaunchError: a Python number that a parameter cannot hold.
    """
    arguments = [_argument(named, constant, a) for a in launch.args]
    for parameter, (index, value) in zip(kernel.parameters, enumerate(arguments), strict=False):
        if isinstance(value, (int, float)) and not isinstance(value, np.generic) and parameter.dtype is not None:
            arguments[index] = _typed(value, parameter.dtype, f"{launch.kernel}: parameter {parameter.name}")
    return arguments


def _argument(named: Callable[[str], Any], constant: Callable[[str], bool], given: Any) -> Any:
    """The value of a launch argument; names, and tensor maps, textures and surfaces of names, are replaced by arrays."""
    if isinstance(given, (TensorMap, Texture, Surface)) and isinstance(given.array, str):
        if isinstance(given, Texture) and constant(given.array):
            given = replace(given, refresh=False)
        return given.with_array(named(given.array))
    return named(given) if isinstance(given, str) else given


def _typed(value: float, dtype: np.dtype[Any], what: str) -> Any:
    """A Python number converted to the kernel's parameter type; LaunchError if it cannot be represented."""
    if dtype.kind in "iu" and isinstance(value, float):
        raise LaunchError(f"{what} is {dtype}, not the float {value}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise LaunchError(f"{what} is {dtype} and cannot hold {value}")
    with np.errstate(over="ignore"):
        made = dtype.type(value)
    if np.isfinite(value) and not np.isfinite(np.float64(made)):
        raise LaunchError(f"{what} is {dtype} and cannot hold {value}")
    return made
