"""Running a variant on a device and holding its outputs against the reference.

A :class:`Case` is a workload with fresh inputs on one device; its variants share the inputs, the reference and the device
arrays. :func:`prepare` makes a variant ready to be launched again and again, by a benchmark for instance; :func:`run` launches
it once and verifies. Nothing here asks which kind of device it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.errors import DescriptionError, LaunchError, UnavailableError, UsageError
from ptxkit.runtime.tensor_map.description import TensorMap
from ptxkit.workload import tuned
from ptxkit.workload.build import Build, build, unavailable
from ptxkit.workload.generated import Generated
from ptxkit.workload.launch import Launch, Tile, array_spec
from ptxkit.workload.verify import Verdict, compare_all
from ptxkit.workload.workload import suggestion

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters
    from ptxkit.runtime.device import Device, DeviceArray, Kernel, PreparedLaunch
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

POISON = 0xCD
"""Every byte of an output before a launch: -4.3e8 as a float32, so that an element nobody wrote fails verification."""

HOST_BYTES_PER_BYTE = 3  # inputs, outputs, and the float64 reference with one float64 copy of the inputs


class Data:
    """Inputs of a workload and what they should give; cases that share them hold device arrays of their own.

    Args:
        workload: whose inputs.
        seed: of the random ones.
        inputs: given ones instead.
    """

    def __init__(self, workload: Workload, seed: int = 0, inputs: Mapping[str, Any] | None = None) -> None:
        self.workload = workload
        self.seed = seed
        self._given = inputs

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Input name -> numpy array or scalar."""
        made = self._given if self._given is not None else self.workload.inputs(np.random.default_rng(self.seed))
        return dict(made)

    @cached_property
    def expected(self) -> dict[str, Any]:
        """Output name -> reference."""
        return {name: np.asarray(value) for name, value in self.workload.reference(**self.inputs).items()}

    def renew(self, seed: int) -> None:
        """Other random arrays. What is passed by value stays: launches that were prepared hold it already."""
        fresh = self.workload.inputs(np.random.default_rng(seed))
        self.inputs.update({name: value for name, value in fresh.items() if _is_array(value)})
        self.seed = seed
        self.__dict__.pop("expected", None)


class Case:
    """A workload with inputs from one seed, on one device.

    Args:
        workload: what to compute.
        device: where.
        seed: of the random inputs.
        inputs: given ones instead of random ones.
        data: inputs and reference that another case has already.

    Raises:
        UsageError: the device or the host has too little memory for these sizes; said before anything is allocated.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        seed: int = 0,
        inputs: Mapping[str, Any] | None = None,
        data: Data | None = None,
    ) -> None:
        self.workload = workload
        self.device = device
        self.data = data or Data(workload, seed, inputs)
        self._arrays: dict[str, DeviceArray] = {}
        check_memory(workload, device)

    @property
    def inputs(self) -> dict[str, Any]:
        """Input name -> numpy array or scalar."""
        return self.data.inputs

    @property
    def expected(self) -> dict[str, Any]:
        """Output name -> reference."""
        return self.data.expected

    @cached_property
    def output_specs(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Output name -> (shape, dtype), declared or taken from the reference and the inputs."""
        declared = {name: array_spec(spec) for name, spec in self.workload.outputs().items()}
        if declared:
            return declared
        arrays = {name: value for name, value in self.inputs.items() if _is_array(value)}
        kinds = {value.dtype for value in arrays.values()}
        specs = {}
        for name, value in self.expected.items():
            if name not in arrays and len(kinds) != 1:
                raise DescriptionError(
                    f"{self.workload.name}: the dtype of output {name} is unclear; declare outputs()"
                )
            specs[name] = (value.shape, arrays[name].dtype if name in arrays else next(iter(kinds)))
        return specs

    def array(self, name: str) -> DeviceArray:
        """The device array of an input, output or temporary, uploaded or allocated at its first use."""
        if name not in self._arrays:
            if _is_array(self.inputs.get(name)):
                self._arrays[name] = self.device.upload(np.ascontiguousarray(self.inputs[name]), name)
            else:
                self._arrays[name] = self.device.empty(*self._spec(name), name)
        return self._arrays[name]

    def use(self, arrays: Mapping[str, DeviceArray]) -> None:
        """Take these device arrays by their names, instead of uploading."""
        self._arrays.update(arrays)

    def argument(self, name: str) -> Any:
        """What a launch argument given by name stands for: a device array, or an input passed by value."""
        value = self.inputs.get(name)
        return self.array(name) if value is None or _is_array(value) else value

    def reset(self, poison: int = POISON) -> None:
        """Poison outputs and temporaries, every byte of them, and restore inputs that are updated in place."""
        for name, array in self._arrays.items():
            if name not in self.inputs:
                array.fill(poison)
            elif name in self.output_specs:
                array.copy_from(np.ascontiguousarray(self.inputs[name]))

    def upload(self) -> None:
        """Copy the inputs to the device once more, after :meth:`Data.renew`."""
        for name, value in self.inputs.items():
            if _is_array(value):
                self.array(name).copy_from(np.ascontiguousarray(value))

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the outputs from the device."""
        return {name: self.array(name).numpy() for name in self.output_specs}

    def verify(self, variant: Variant) -> Verdict:
        """Compare what is on the device with the reference, within the variant's or the workload's tolerance."""
        undeclared = set(self.expected) - set(self.output_specs)
        if undeclared:
            raise DescriptionError(f"{self.workload.name}: outputs() lacks {', '.join(sorted(undeclared))}")
        return compare_all(self.outputs(), self.expected, variant.tolerance or self.workload.tolerance)

    def _spec(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        temporaries = self.workload.temporaries()
        if name in temporaries:
            return array_spec(temporaries[name])
        if name in self.output_specs:
            return self.output_specs[name]
        known = [*self.inputs, *self.output_specs, *temporaries]
        raise DescriptionError(
            f"{self.workload.name}: no input, output or temporary is called {name!r}; {suggestion(name, known)}; "
            f"temporaries() declares what variants pass between launches"
        )


@dataclass(frozen=True)
class Prepared:
    """A variant on a device, ready to be launched any number of times.

    Attributes:
        case: its inputs and arrays.
        build: what was compiled.
        launches: one callable for each launch, in order; of a generated kernel also what goes before it.
        tuned: the tile is the one that a sweep recorded for this GPU.
        keep: what has to live as long: workspaces of generated kernels.
    """

    case: Case
    build: Build
    launches: tuple[PreparedLaunch, ...]
    tuned: bool = False
    keep: tuple[object, ...] = ()

    def launch(self) -> None:
        """Launch everything once, without waiting for the end."""
        for launch in self.launches:
            launch()

    def verify(self) -> Verdict:
        """Reset the arrays, launch once and compare with the reference."""
        return self.check()[0]

    def check(self) -> tuple[Verdict, Counters | None]:
        """Verify, and say what the launch did where the device counts: emulating it again to count would take as long."""
        self.case.reset()
        measured = self.case.device.measure(self.launch, samples=1)
        self.case.device.synchronize()
        return self.case.verify(self.build.variant), measured.counters


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
        tile: tile parameters to hold. The others are what a sweep recorded for this GPU, sizes and options, else what the
            description prefers.

    Raises:
        UnavailableError, CompileError, UsageError, DescriptionError, LaunchError: see :func:`ptxkit.workload.build.build`.
    """
    recorded = tuned.tile_for(case.workload, variant.name, case.device.name)
    built = build(case.workload, variant, target or case.device.target, {**recorded, **(tile or {})})
    return bound(case, built, bool(recorded) and all(built.tile[name] == value for name, value in recorded.items()))


def bound(case: Case, built: Build, is_tuned: bool = False) -> Prepared:
    """What was compiled, loaded on a case's device and bound to its arrays.

    Raises:
        LaunchError: the arguments are not the kernel's.
    """
    modules = {image.key: case.device.load(image) for image in built.images}
    launches, kept = [], []
    for step in built.steps:
        module = modules[step.image.key]
        group: tuple[Launch, ...] = (step.launch,)
        if isinstance(step.launch.source, Generated):
            group, keep = step.launch.source.bind(step.launch, module, case.device, case.array)
            kept.append(keep)
        launches += [_bind(case, module[launch.entry], launch) for launch in group]
    return Prepared(case, built, tuple(launches), is_tuned, tuple(kept))


def run(
    case: Case,
    variant: Variant,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    *,
    explicit: bool = False,
) -> VariantResult:
    """Prepare a variant, launch it once on poisoned outputs and verify.

    Args:
        explicit: the variant was asked for by name, so that a target which lacks something is an error, not a skip.
    """
    reason = unavailable(variant, target or case.device.target, case.workload)
    beyond = lacking(variant, case.device, case.workload.name) if reason is None else None
    if beyond is not None and explicit:
        raise UnavailableError(beyond)
    if (reason or beyond) and not explicit:
        return VariantResult(variant.name, skipped=reason or beyond)
    prepared = prepare(case, variant, target, tile)
    verdict, counters = prepared.check()
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


def check_memory(workload: Workload, device: Device) -> None:
    """Raise UsageError when the workload's sizes need more memory than the device or the host has free."""
    needed = workload.bytes_needed()
    places = [(device.name, needed, device.memory_bytes), ("the host", HOST_BYTES_PER_BYTE * needed, free_host_bytes())]
    for place, wanted, free in places:
        if free is not None and wanted > free:
            raise UsageError(
                f"{workload.name} with {workload.size_text()} needs {_gigabytes(wanted)} on {place}, "
                f"which has {_gigabytes(free)} free; take smaller sizes"
            )


def free_host_bytes() -> int | None:
    """Memory that the host can still give, in bytes; None where that is not known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count < 1e15 else f"{count / 1e12:,.0f} TB"


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


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
