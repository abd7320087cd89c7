"""Running a variant on a device and comparing its outputs with the reference.

A :class:`Case` is a workload with fresh inputs on one device; its variants share the inputs, the reference and the device
arrays. :func:`prepare` makes a variant ready to be launched again and again, by a benchmark for instance; :func:`run` launches
it once and verifies. Nothing here asks which kind of device it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.errors import LaunchError, UnavailableError, UsageError
from ptxkit.runtime.tensor_map.description import TensorMap
from ptxkit.targets import missing
from ptxkit.workload.build import Build, compiled
from ptxkit.workload.case import POISON, Case, Data, with_overwritten
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
    "POISON",
    "Case",
    "Data",
    "Prepared",
    "VariantResult",
    "bound",
    "check_memory",
    "lacking",
    "prepare",
    "prepare_resolved",
    "run",
]

OTHER_POISON = 0x32
"""Every byte of an output before a second launch: 1.0e-8 as a float32."""


@dataclass(frozen=True)
class Prepared:
    """A variant on a device, ready to be launched any number of times.

    Attributes:
        case: its inputs and arrays.
        build: what was compiled.
        launches: one callable for each launch, in order; of a generated kernel also what goes before it.
        keep: what has to live as long: workspaces of generated kernels.
        state: the variables of its modules.
    """

    case: Case
    build: Build
    launches: tuple[PreparedLaunch, ...]
    keep: tuple[object, ...] = ()
    state: ModuleState = ModuleState(())  # noqa: RUF009  # immutable

    def launch(self) -> None:
        """Launch everything once, without waiting for the end."""
        for launch in self.launches:
            launch()

    def verify(self, own: Tolerance | None = None) -> Verdict:
        """Restore the arrays, launch once and compare with the reference; see :meth:`check`."""
        return self.check(own)[0]

    def check(self, own: Tolerance | None = None) -> tuple[Verdict, Counters | None]:
        """Verify, and say what the launch did where the device counts: emulating it again to count would take as long.

        The outputs are poisoned and the inputs restored before the launch; outputs and inputs are compared after it. A second
        launch, with another poison, is verified where the first may have been right by chance: an element of an output still
        holds the poison; the launch changed variables of its module, so that the next launch begins with others; or it updated
        global memory atomically, which a maximum with the poison may leave right.

        Args:
            own: a tolerance instead of the variant's or the workload's.
        """
        self.state.restore()
        self.case.reset()
        measured = self.case.device.measure(self.launch, samples=1)
        self.case.device.synchronize()
        verdict = self.case.verify(self.build.variant, own)
        atomics = measured.counters is not None and measured.counters.global_atomic_bytes > 0
        if verdict.verified and (self.case.unwritten or atomics or self.state.changed()):
            verdict = self.again(own) or verdict
        return verdict, measured.counters

    def again(self, own: Tolerance | None = None) -> Verdict | None:
        """Launch once more, with other poison, on module variables as earlier launches left them.

        Returns:
            What is wrong with it; None when it is verified.
        """
        complaints = self.case.overwritten()  # by launches since the latest check
        if complaints:
            return with_overwritten(Verdict.refused(f"after several launches, {complaints[0]}"), complaints[1:])
        self.case.reset(OTHER_POISON)
        self.launch()
        self.case.device.synchronize()
        verdict = self.case.verify(self.build.variant, own)
        if verdict.verified:
            return None
        what = "on a launch after the first: "
        return replace(verdict, worst=what + verdict.worst, explanation=what + verdict.explanation)


@dataclass(frozen=True)
class VariantResult:
    """What came of one variant.

    Attributes:
        name: the variant.
        skipped: why it was not run, or None.
        target: what it was compiled for, "" when skipped.
        tile: the chosen tile parameters.
        launches: number of launches.
        verdict: the comparison with the reference; None when skipped.
        counters: exact counts of all its launches together; None where the device does not count.
        prepared: to launch and measure it further; None when skipped.
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
    case: Case, variant: Variant, target: Target | None = None, tile: Mapping[str, Any] | None = None
) -> Prepared:
    """Compile a variant, load it and bind its arguments.

    Args:
        case: workload, inputs and device.
        variant: one of the workload's.
        target: instead of the device's own.
        tile: fixed tile parameters; see :func:`ptxkit.workload.resolve.resolve`.

    Raises:
        UnavailableError, UsageError, DescriptionError: see :func:`ptxkit.workload.resolve.resolve`.
        CompileError: see :func:`ptxkit.workload.build.build`. LaunchError: see :func:`bound`.
    """
    return prepare_resolved(case, case.resolve(variant, target, tile))


def prepare_resolved(case: Case, resolved: ResolvedVariant) -> Prepared:
    """Compile a resolved variant, load it on the case's device and bind its arguments.

    Raises:
        UnavailableError, CompileError, LaunchError: as :func:`prepare`.
    """
    return bound(case, compiled(resolved))


def bound(case: Case, built: Build) -> Prepared:
    """What was compiled, loaded on a case's device and bound to its arrays.

    Raises:
        LaunchError: the arguments are not the kernel's.
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
        launches += [_bind(case, module[launch.entry], launch) for launch in group]
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
        tolerance: instead of the variant's or the workload's.
        explicit: the variant was asked for by name, so that a target which lacks something is an error, not a skip.
        around: a context for the launches and the comparison, which begins when everything is compiled: a time limit.
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
        reason = variant.refusal(case.workload)  # the constraint allows no tile for these sizes at all
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
    """Why the device cannot run the variant though it can be compiled, or None."""
    lacks = sorted(device.lacks.intersection(variant.requires))
    if not lacks:
        return None
    return f"the {device.kind} has no {', '.join(lacks)} yet; `ptxkit inspect {kernel}:{variant.name}` shows what is compiled"


def _bind(case: Case, kernel: Kernel, launch: Launch) -> PreparedLaunch:
    arguments = [_argument(case, a) for a in launch.args]
    for parameter, (index, value) in zip(kernel.parameters, enumerate(arguments), strict=False):
        if isinstance(value, (int, float)) and not isinstance(value, np.generic) and parameter.dtype is not None:
            arguments[index] = _typed(value, parameter.dtype, f"{launch.kernel}: parameter {parameter.name}")
    return kernel.prepare(
        *arguments,
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        cluster=launch.cluster,
        cooperative=launch.cooperative,
    )


def _argument(case: Case, given: Any) -> Any:
    """What a launch argument stands for, where it is a name or a tensor map of one."""
    if isinstance(given, TensorMap) and isinstance(given.array, str):
        return given.with_array(case.array(given.array))
    return case.argument(given) if isinstance(given, str) else given


def _typed(value: float, dtype: np.dtype[Any], what: str) -> Any:
    """A Python number as the kernel's parameter type; LaunchError when it does not fit."""
    if dtype.kind in "iu" and isinstance(value, float):
        raise LaunchError(f"{what} is {dtype}, not the float {value}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise LaunchError(f"{what} is {dtype} and cannot hold {value}")
    return dtype.type(value)
