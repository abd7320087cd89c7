"""A kernel that is compiled for the shapes and types of some tensors, and launched on the memory of others of the same kind.

A :class:`Plan` is made once for each shape, type, device and set of options. A call then allocates results and temporaries with
torch, writes addresses into prepared launches, and launches them on torch's current stream. Tensors in host memory are
copied to the memory of the emulator and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch

from ptxkit.errors import DescriptionError, PtxkitError, UnavailableError, UsageError
from ptxkit.runtime.arguments import Slot
from ptxkit.runtime.device import Device
from ptxkit.runtime.device import device as open_device
from ptxkit.runtime.kernel import OpenLaunch
from ptxkit.targets import lowest_target, missing
from ptxkit.torch.dtypes import host_view, numpy_dtype
from ptxkit.torch.written import Parts, Run, written
from ptxkit.workload.build import compiled
from ptxkit.workload.execute import lacking, launch_arguments
from ptxkit.workload.launch import Generated, array_spec
from ptxkit.workload.resolve import ResolvedVariant, as_recorded, resolve
from ptxkit.workload.tuned import lookup
from ptxkit.workload.variant import Variant
from ptxkit.workload.workload import Workload


def _dispatched_empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


_empty_on_gpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = getattr(
    torch._C._dynamo.guards, "_empty_strided_cuda", _dispatched_empty
)
"""Allocates on the current GPU: shape, strides, type. Without torch's dispatcher this takes a third of the time."""
ALIGNMENT = 16  # bytes: kernels access memory in vectors of 128 bits, and TMA requires as much
TEMPORARY_ALIGNMENT = 256  # bytes: what cuMemAlloc guarantees


def device_of(device: torch.device) -> Device:
    """The device on which the kernels for tensors on a device of torch run: its GPU, or for the CPU the emulator.

    Raises:
        UnavailableError: the device is neither.
    """
    if device.type == "cpu":
        return open_device("emulator")
    if device.type == "cuda":
        return open_device("gpu", torch.cuda.current_device() if device.index is None else device.index)
    raise UnavailableError(f"kernels run on tensors of cuda, and of cpu in the emulator, not of {device}")


@dataclass(frozen=True)
class Layout:
    """What a plan is made for.

    Attributes:
        inputs: names of the description's inputs that are tensors, in the order of the call, with shape and dtype.
        outputs: names of the description's outputs, in the order of the results, with the shape and dtype of the result.
        constants: inputs whose values follow from the sizes, such as the starts of sequences.
        values: inputs that are passed by value and given at each call, with their dtype.
        scalars: a function that returns the other inputs that are passed by value.
        shapes: of the tensors, in the order of the call.
        turned: positions of the tensors that are transposes of contiguous matrices, which the kernel reads as they lie in
            memory; ``inputs`` and ``shapes`` are of these matrices.
    """

    inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    outputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    values: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    scalars: Callable[[], Mapping[str, Any]] = dict
    shapes: tuple[tuple[int, ...], ...] = ()
    turned: tuple[int, ...] = ()


def objection(workload: Workload, variant: Variant) -> str | None:
    """Why another variant is faster at the sizes of a description (``slower`` of a variant); None if it does not say so."""
    return variant.slower(workload) if variant.slower is not None else None


def chosen(
    candidates: Sequence[tuple[Workload, Variant]],
    device: Device,
    objects: Callable[[Workload, Variant], str | None] = objection,
) -> ResolvedVariant:
    """The first candidate that the device can run at its sizes and to which there is no objection there, resolved; if there is
    one to all, the first of them. One that ``run --tune`` recorded as the fastest on this GPU model precedes the others of its
    description, whatever the description says.

    Args:
        objects: (description on the device, variant) -> why another candidate is faster, or None.

    Raises:
        PtxkitError: none can; the error is that of the last candidate.
    """
    error: PtxkitError | None = None
    slower: ResolvedVariant | None = None
    won = _tuned(candidates, device)
    for workload, variant in [*won, *(c for c in candidates if c not in won)]:
        default = device.target or lowest_target(())
        target = default if device.target or missing(variant.requires, default) is None else None
        try:
            if reason := lacking(variant, device, workload.name):
                raise UnavailableError(reason)
            found = resolve(workload, variant, target, device=device)
        except (UnavailableError, UsageError) as refused:
            error = refused
            continue
        if (workload, variant) in won or not objects(found.workload, variant):
            return found
        slower = slower or found
    if slower is not None:
        return slower
    assert error is not None
    raise error


def _tuned(
    candidates: Sequence[tuple[Workload, Variant]], device: Device
) -> Sequence[tuple[Workload, Variant]]:
    """The candidates that are recorded winners at their sizes."""
    won = []
    for workload, variant in candidates:
        target = device.target or lowest_target(())
        bound = workload.on(device.facts_for(target))
        found = lookup.winner(bound, device.name, target)
        mine = found is not None and found.variant == variant.name
        if mine and lookup.applies(found, bound, partial(as_recorded, target)):
            won.append((workload, variant))
    return won


class Plan:
    """Compiled launches for tensors of one layout on one device.

    Args:
        name: of the operation, for messages.
        resolved: the variant to launch.
        layout: shapes, types and names.
        device: of the tensors.

    Raises:
        CompileError, LaunchError, DescriptionError: the variant cannot be compiled or launched.
    """

    def __init__(self, name: str, resolved: ResolvedVariant, layout: Layout, device: torch.device) -> None:
        self.name = name
        self.layout = layout
        self.device = device
        self._device = device_of(device)
        self._emulates = self._device.emulates
        self._inputs = tuple(layout.inputs)
        self._turned = layout.turned
        # an output with the name of an input is updated in place, in a copy
        self._copied = tuple(self._inputs.index(n) if n in layout.inputs else None for n in layout.outputs)
        self._makes = tuple(
            (shape, _strides(shape), dtype, copied)
            for (shape, dtype), copied in zip(layout.outputs.values(), self._copied, strict=True)
        )
        self._updates = any(copied is not None for copied in self._copied)
        self._new = tuple(n for n in layout.outputs if n not in layout.inputs)
        self._values = tuple(layout.values)
        self._temporaries: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._constants = {n: self._device.upload(np.ascontiguousarray(a), n) for n, a in layout.constants.items()}
        self._launches = self._open(resolved)
        self._offsets, self._scratch = _offsets(self._temporaries.values())
        self._index = device.index if device.index is not None else 0
        self._written: dict[bool, Callable[[Sequence[Any]], Run]] = {}

    def _open(self, resolved: ResolvedVariant) -> tuple[OpenLaunch, ...]:
        workload, layout = resolved.workload, self.layout
        declared = {n: array_spec(s) for n, s in workload.temporaries().items()}
        # values of a call: inputs, new outputs, values, then temporaries in the order of their first use
        order = [*self._inputs, *self._new, *self._values]
        # a description need not declare outputs with the shape and type of its inputs
        outputs = {n: (shape, numpy_dtype(dtype)) for n, (shape, dtype) in layout.outputs.items()}
        outputs |= {n: array_spec(s) for n, s in workload.outputs().items()}
        scalars: Mapping[str, Any] | None = None

        def named(name: str) -> Any:
            nonlocal scalars
            if name in self._constants:
                return self._constants[name]
            if name in layout.values:
                return Slot(order.index(name), layout.values[name])
            if name in layout.inputs:
                shape, dtype = layout.inputs[name]
                return Slot(order.index(name), dtype, shape)
            if name in outputs and name in self._new:
                shape, dtype = outputs[name]
                return Slot(order.index(name), dtype, shape)
            if name in declared or name in outputs:  # an output that the operation does not return
                if name not in self._temporaries:
                    self._temporaries[name] = declared.get(name) or outputs[name]
                    order.append(name)
                shape, dtype = self._temporaries[name]
                return Slot(order.index(name), dtype, shape)
            if scalars is None:
                scalars = layout.scalars()
            if name in scalars:
                return scalars[name]
            raise DescriptionError(f"{workload.name}: no input, output or temporary is called {name!r}")

        built = compiled(resolved)
        modules = {image.key: self._device.load(image) for image in built.images}
        launches = []
        for step in built.steps:
            if isinstance(step.launch.source, Generated):
                raise UsageError(
                    f"{self.name}: {step.launch.source} generates its source, and cannot become an operation"
                )
            kernel, launch = modules[step.image.key][step.launch.entry], step.launch
            launches.append(
                kernel.unbound(
                    *launch_arguments(kernel, launch, named),
                    grid=launch.grid,
                    block=launch.block,
                    shared=launch.shared,
                    cluster=launch.cluster,
                    cooperative=launch.cooperative,
                )
            )
        return tuple(launches)

    @cached_property
    def numbers(self) -> Mapping[str, Any]:
        """The inputs that are passed by value, as the description has them at these sizes."""
        return self.layout.scalars()

    def reads(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the kernels read tensors with these strides as they lie in memory, without a copy."""
        return all(i in self._turned or tensor.is_contiguous() for i, tensor in enumerate(tensors))

    def quick(self, values: Sequence[Any], alone: bool) -> Run:
        """As a call, in less host time: a function of tensors, of which :meth:`reads` is known to be true, and a seed.

        Args:
            values: those that are passed by value, without the seed.
            alone: the function returns the first result, instead of all of them.
        """
        if self._emulates or self._updates:
            return plainly(self, values, alone)
        if alone not in self._written:
            self._written[alone] = written(self._parts(len(values), alone), alone)
        return self._written[alone](values)

    def _parts(self, values: int, alone: bool) -> Parts:
        """What :meth:`quick` is made of, for so many numbers that are passed by value."""
        return Parts(
            tensors=len(self._inputs),
            makes=[(shape, strides, dtype) for shape, strides, dtype, _ in self._makes],
            values=values,
            seeded=len(self._values) > values,
            scratch=(self._scratch, self._offsets),
            launches=self._launches,
            alignment=ALIGNMENT,
            empty=_empty_on_gpu,
            stream=torch._C._cuda_getCurrentRawStream,
            current=torch._C._cuda_getDevice if torch.cuda.device_count() > 1 else None,
            index=self._index,
            otherwise=lambda numbers: plainly(self, numbers, alone),
        )

    def __call__(self, tensors: Sequence[torch.Tensor], values: Sequence[Any] = ()) -> list[torch.Tensor]:
        """The results for tensors of the layout, on torch's current stream.

        Args:
            tensors: the inputs, with any strides.
            values: those that are passed by value.
        """
        if self._turned:
            tensors = [tensor.t() if i in self._turned else tensor for i, tensor in enumerate(tensors)]
        if self._emulates:
            return self._emulated(tensors, values)
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._index):
                return self._launched(tensors, values)
        return self._launched(tensors, values)

    def _launched(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> list[torch.Tensor]:
        # the time of these lines is host time of each launch that is not written out (ptxkit/torch/written.py)
        given: list[torch.Tensor] = []
        arguments: list[Any] = []
        for tensor in tensors:
            address = tensor.data_ptr()
            if address % ALIGNMENT or not tensor.is_contiguous():
                tensor = _aligned(tensor)
                address = tensor.data_ptr()
            given.append(tensor)
            arguments.append(address)
        results = self._results(given, arguments)
        arguments += values
        if self._scratch:
            scratch = _empty_on_gpu((self._scratch,), (1,), torch.uint8)
            base = scratch.data_ptr()
            arguments += [base + offset for offset in self._offsets]
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        for launch in self._launches:
            launch(arguments, stream)
        return results

    def _results(self, given: Any, arguments: list[Any]) -> list[torch.Tensor]:
        """New tensors for the results, whose addresses are appended to ``arguments``.

        A copy of an input that is updated takes its place in ``given``, a list, and in ``arguments``.
        """
        results = []
        for shape, strides, dtype, copied in self._makes:
            if copied is not None:
                given[copied] = made = _aligned(given[copied])
                arguments[copied] = made.data_ptr()
            else:  # on a GPU, the device of the plan is the current one
                made = torch.empty(shape, dtype=dtype) if self._emulates else _empty_on_gpu(shape, strides, dtype)
                arguments.append(made.data_ptr())
            results.append(made)
        return results

    def _emulated(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> list[torch.Tensor]:
        device, outputs = self._device, self.layout.outputs
        given = [tensor.detach() for tensor in tensors]
        given = [tensor.contiguous() for tensor in given]
        results = self._results(given, [0] * len(given))
        inputs = [device.upload(host_view(t), n) for n, t in zip(self._inputs, given, strict=True)]
        copies = iter(zip(outputs, results, self._copied, strict=True))
        arrays = [inputs[c] if c is not None else device.empty(r.shape, host_view(r).dtype, n) for n, r, c in copies]
        made = [array for array, copied in zip(arrays, self._copied, strict=True) if copied is None]
        scratch = [device.empty(shape, dtype, n) for n, (shape, dtype) in self._temporaries.items()]
        addresses = [array.address for array in (*inputs, *made)]
        arguments = [*addresses, *values, *(array.address for array in scratch)]
        for launch in self._launches:
            launch(arguments, 0)
        device.synchronize()
        for result, array in zip(results, arrays, strict=True):
            if array.nbytes:
                array.memory.read(array.address, host_view(result))
        return results


class Zeros:
    """Takes the place of a plan if there is nothing to compute, because a size is 0.

    Args:
        layout: shapes, types and names.
        device: of the tensors.
        compute: the results from the tensors, where they are no sums over nothing; None for zeros.
    """

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None,
    ) -> None:
        self.layout = layout
        self.device = device
        self._compute = compute

    def __call__(self, tensors: Sequence[torch.Tensor], values: Sequence[Any] = ()) -> list[torch.Tensor]:
        """The results: those of ``compute``, or a copy of an input that would be updated, and zeros for others."""
        if self._compute is not None:
            with torch.no_grad():
                return list(self._compute([tensor.detach() for tensor in tensors]))
        names = list(self.layout.inputs)
        return [
            _aligned(tensors[names.index(name)])
            if name in self.layout.inputs
            else torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in self.layout.outputs.items()
        ]


def plainly(plan: Plan | Zeros, values: Sequence[Any], alone: bool) -> Run:
    """A call of a plan as a function of tensors and a seed that returns the results, or the first one if it is ``alone``.

    Args:
        values: those that are passed by value, without the seed.
    """

    def run(tensors: Sequence[torch.Tensor], seed: int | None) -> Any:
        results = plan(tensors, values if seed is None else [*values, seed])
        return results[0] if alone else results

    return run


def is_turned(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not contiguous, but the transpose of a contiguous matrix that TMA can read: its address and the
    length of its rows are multiples of 16 bytes."""
    return (
        tensor.ndim == 2
        and tensor.layout is torch.strided
        and not tensor.is_contiguous()
        and tensor.stride() == (1, tensor.shape[0])
        and not tensor.shape[0] * tensor.element_size() % ALIGNMENT
        and not tensor.data_ptr() % ALIGNMENT
    )


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in memory of its own."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, in elements."""
    return tuple(prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def _offsets(arrays: Any) -> tuple[tuple[int, ...], int]:
    """The offset of each array in one allocation of all, and its size in bytes."""
    at, offsets = 0, []
    for shape, dtype in arrays:
        offsets.append(at)
        at += -(-prod(shape) * dtype.itemsize // TEMPORARY_ALIGNMENT) * TEMPORARY_ALIGNMENT
    return tuple(offsets), at
