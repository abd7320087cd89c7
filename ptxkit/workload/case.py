"""A workload with inputs on one device: its arrays, how they are restored before each variant, and what is checked afterwards.

Inputs that are not outputs must not change. The result of a launch that overwrites one is wrong, and the input is restored
before the next launch is verified, so that an error of one variant does not affect another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.errors import DescriptionError, PtxkitError
from ptxkit.workload.blame import at
from ptxkit.workload.data import Data, is_array
from ptxkit.workload.launch import Tolerance, array_spec
from ptxkit.workload.memory import check_memory
from ptxkit.workload.mismatch import Sentinel, element, may_be_unwritten, places, value_text
from ptxkit.workload.originals import SMALLEST, Originals, differing, digests_of
from ptxkit.workload.parallel import blocks, in_threads
from ptxkit.workload.partial_stores import WIDEST
from ptxkit.workload.resolve import ResolvedVariant, resolve
from ptxkit.workload.verify import Verdict, compare_all
from ptxkit.workload.workload import Workload, suggestion

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device, DeviceArray
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant

POISON = 0xFF
"""Every byte of an output before a launch: NaN in every floating-point type and -1 in the integers.

An element that is not written fails verification, and so does a sum that includes an unwritten element, even multiplied by 0
as in ``alpha * A @ B + 0 * C``. Minimum and maximum ignore a NaN, so launches after the
first use two more sentinels.
"""

HIGH, LOW = 0x7B, 0xFB
"""Sentinels of opposite signs, large in every floating-point type: 1.3e36 and -2.6e36 as float32. Signed integers get the
largest and the smallest value of their type instead. Unsigned integers and booleans get 0 for :data:`LOW`; their largest value
is :data:`POISON`."""


class Case:
    """A workload with inputs from one seed, on one device.

    Args:
        workload: the workload to compute.
        device: the device that computes it.
        seed: seed for random inputs.
        inputs: inputs instead of random ones.
        data: inputs and reference to share with another case.
        originals: of cases with the same data on the same device; None for those of this case alone.
        target: default target of :meth:`resolve`, whose device facts the inputs see; None for the target of the device.

    Attributes:
        unwritten: whether the latest :meth:`verify` found elements of outputs, or bytes of them, that still hold the poison.
            They may be right by chance, so that a second launch with another poison must decide.

    Raises:
        UnavailableError: the device or the host has too little memory for these sizes; raised before anything is allocated.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        seed: int = 0,
        inputs: Mapping[str, Any] | None = None,
        data: Data | None = None,
        target: Target | None = None,
        originals: Originals | None = None,
    ) -> None:
        workload = self.workload = workload.on(device.facts_for(target))
        self.device = device
        self.data = data or Data(workload, seed, inputs)
        self.originals = originals or Originals(device, self.data)
        self.target = target
        self._arrays: dict[str | tuple[object, ...], DeviceArray] = {}  # temporaries, by name, shape and dtype
        self._uploaded: dict[str, None] = {}  # names of inputs, in the order of their upload
        self._poisons: dict[str | tuple[object, ...], Sentinel] = {}  # poison of each output, from the latest reset
        self._resolved: dict[tuple[object, ...], ResolvedVariant] = {}
        self.unwritten = False
        check_memory(workload, device)

    def resolve(
        self, variant: Variant, target: Target | None = None, tile: Mapping[str, Any] | None = None
    ) -> ResolvedVariant:
        """The variant resolved for this device; cached by target and tile.

        Args:
            target: None for the target of the case.
            tile: fixed tile parameters.

        Raises:
            UnavailableError, UsageError, DescriptionError: see :func:`ptxkit.workload.resolve.resolve`.
        """
        chosen = target or self.target
        key = id(variant), chosen, repr(sorted((tile or {}).items()))
        if key not in self._resolved:
            self._resolved[key] = resolve(self.workload, variant, chosen, tile, device=self.device)
        return self._resolved[key]

    def resolvable(
        self, variants: Iterable[Variant], tile_of: Callable[[Variant], Mapping[str, Any] | None] = lambda variant: None
    ) -> list[ResolvedVariant]:
        """The variants that can be built and launched on this device, resolved; for others, :meth:`resolve` raises the reason.

        Args:
            tile_of: variant -> fixed tile parameters.
        """
        found = []
        for variant in variants:
            if not self.device.lacks.intersection(variant.requires):
                with suppress(PtxkitError):
                    found.append(self.resolve(variant, tile=tile_of(variant)))
        return found

    def at(self, workload: Workload) -> Case:
        """A case with the same arrays for launches that see the device facts of ``workload``.

        The sizes of temporaries may depend on the number of SMs.
        """
        if not workload.is_bound or workload.device == self.workload.device:
            return self
        other = copy.copy(self)
        other.workload = workload
        return other

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
        arrays = {name: value for name, value in self.inputs.items() if is_array(value)}
        if declared:
            for name, (shape, _) in declared.items():
                if name in arrays and arrays[name].shape != shape:
                    place = at(type(self.workload), "outputs")
                    raise DescriptionError(
                        f"{place}{self.workload.name}: outputs() gives {name} the shape {shape}, but the input {name}, which "
                        f"is updated in place, has {arrays[name].shape}"
                    )
            return declared
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
        """The device array of an input, output or temporary; uploaded or allocated at the first use."""
        if name in self._arrays:
            return self._arrays[name]
        if is_array(self.inputs.get(name)):
            value = self.inputs[name]
            array = self.device.empty(value.shape, value.dtype, name)
            self.originals.write(name, value, array, updated=name in self.output_specs)
            self._arrays[name] = array
            self._uploaded[name] = None
            return array
        shape, dtype = self._spec(name)
        key = (name, shape, dtype) if name in self.workload.temporaries() else name
        if key not in self._arrays:
            self._arrays[key] = self.device.empty(shape, dtype, name)
        return self._arrays[key]

    def use(self, arrays: Mapping[str, DeviceArray]) -> None:
        """Use these device arrays, by name, instead of uploading inputs."""
        self._arrays.update(arrays)

    def argument(self, name: str) -> Any:
        """The value of a launch argument given by name: a device array, or an input that is passed by value."""
        value = self.inputs.get(name)
        return self.array(name) if value is None or is_array(value) else value

    def constant(self, name: str) -> bool:
        """Whether a name is that of an input that is no output, too."""
        return name in self.inputs and name not in self.output_specs

    def reset(self, poison: int | None = None) -> None:
        """Poison every byte of outputs and temporaries; restore inputs that are updated in place or were overwritten.

        Args:
            poison: the byte to use instead of one that no correct output element has, as far as there is a reference. Integers
                get other values for :data:`HIGH` and :data:`LOW`.
        """
        reset_all([self], poison)

    def _reset(self, poison: int | None, changed: Iterable[str]) -> None:
        """:meth:`reset`; ``changed`` names inputs that were overwritten."""
        restored = {*self.output_specs, *changed}
        for name, array in self._arrays.items():
            if not isinstance(name, str) or name not in self.inputs:
                chosen = self._poison(name) if poison is None else self._other_poison(name, array.dtype, poison)
                self._poisons[name] = chosen
                if isinstance(chosen, int):
                    array.poison(chosen)
                else:
                    _fill(array, chosen)
            elif name in self._uploaded:
                if name in restored:
                    self.originals.write(name, self.inputs[name], array, updated=name in self.output_specs)
            elif name in restored:
                array.copy_from(np.ascontiguousarray(self.inputs[name]))

    @property
    def poisons(self) -> dict[str, Sentinel]:
        """Output name -> its contents since the latest :meth:`reset`, for the outputs that are no inputs."""
        return {
            name: value for name, value in self._poisons.items() if isinstance(name, str) and name in self.output_specs
        }

    def has_wider_temporaries(self, smallest_store: int) -> bool:
        """Whether launches use temporaries with elements of more than ``smallest_store`` bytes."""
        wider = (a.dtype.itemsize > smallest_store for name, a in self._arrays.items() if not isinstance(name, str))
        return any(wider)

    @property
    def is_poisoned(self) -> bool:
        """Whether the latest :meth:`reset` has poisoned any array."""
        return bool(self._poisons)

    def overwritten(self) -> list[str]:
        """A sentence for each input that is not an output and has changed since it was uploaded."""
        return overwritten([self])

    def upload(self) -> None:
        """Copy the inputs to the device again, after :meth:`Data.renew`."""
        for name, value in self.inputs.items():
            if is_array(value):
                array = self.array(name)
                if name in self._uploaded:
                    self.originals.write(name, value, array, updated=name in self.output_specs)
                else:
                    array.copy_from(np.ascontiguousarray(value))

    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the outputs from the device."""
        return {name: self.array(name).staged() for name in self.output_specs}

    def digests(self) -> dict[str, int]:
        """Output name -> digest of its bytes on the device."""
        return dict(zip(self.output_specs, digests_of(map(self.array, self.output_specs)), strict=True))

    def verify(
        self, variant: Variant | None = None, own: Tolerance | None = None, smallest_store: int = WIDEST
    ) -> Verdict:
        """Compare the outputs on the device with the reference, and the inputs with what was uploaded.

        Args:
            variant: the variant whose tolerance applies.
            own: a tolerance that replaces those of the variant and the workload.
            smallest_store: bytes of the smallest write of the launches; elements of more bytes may be written in part.

        Raises:
            DescriptionError: outputs() and reference() do not name the same outputs.
        """
        self.check_names()
        self._check_shapes()
        self.device.synchronize()
        poisons = self.poisons
        key = self._verdict_key(variant, own)
        held = (*poisons.items(), smallest_store, *key[2:])
        verdict = self.data.verdicts.get(key)
        if verdict is None or held not in self.data.unwritten:
            outputs = self.outputs()
            self.data.unwritten[held] = any(
                may_be_unwritten(outputs[name], poison, smallest_store) for name, poison in poisons.items()
            )
            if verdict is None:
                rule = self.data.tolerance_rule(variant, own)
                verdict = compare_all(outputs, self.expected, rule, poisons, smallest_store)
            if verdict.verified:
                self.data.verdicts[key] = verdict
        self.unwritten = self.data.unwritten[held]
        return with_complaints(verdict, [*self.undefined(self.output_specs), *self.overwritten()])

    def known_verdict(self, variant: Variant) -> Verdict | None:
        """The verdict of outputs with the same bytes, of any variant, verified on these inputs with the same tolerance.

        None if there were none, or if an input has changed.
        """
        verdict = self.data.verdicts.get(self._verdict_key(variant, None))
        return None if verdict is None or self.overwritten() else verdict

    def _verdict_key(self, variant: Variant | None, own: Tolerance | None) -> tuple[object, ...]:
        stated = variant.name if variant is not None and variant.tolerance is not None else ""
        return own, stated, *self.digests().items()

    def undefined(self, names: Iterable[str]) -> list[str]:
        """A sentence for each of these outputs that holds bytes which launches have copied from uninitialised ones."""
        arrays = {name: self.array(name) for name in names}
        found = {name: self.device.undefined_bytes(a.address, a.nbytes) for name, a in arrays.items()}
        return [f"{name}: {text}" for name, text in found.items() if text]

    def _check_shapes(self) -> None:
        for name, value in self.expected.items():
            shape = self.array(name).shape
            if value.shape != shape:
                place = f"{at(type(self.workload), 'reference')}{self.workload.name}"
                raise DescriptionError(f"{place}: the reference of {name} has shape {value.shape}, the output {shape}")

    def check_names(self) -> None:
        """Raise DescriptionError unless outputs() and reference() name the same outputs."""
        for lacking, where, whose in (
            (set(self.expected) - set(self.output_specs), "outputs()", "reference() returns"),
            (
                set(self.output_specs) - set(self.expected),
                "reference()",
                "outputs() declares, so they would not be verified",
            ),
        ):
            if lacking:
                place = at(type(self.workload), where.partition("(")[0])
                raise DescriptionError(
                    f"{place}{self.workload.name}: {where} lacks {', '.join(sorted(lacking))}, which {whose}"
                )

    def _poison(self, name: str | tuple[object, ...]) -> int:
        """:data:`POISON`, or for elements of one byte a value that does not occur in the reference."""
        if not self.data.has_reference or not isinstance(name, str) or name not in self.output_specs:
            return POISON
        if self.output_specs[name][1].itemsize != 1 or name not in self.expected:
            return POISON
        known = self.data.poisons
        if name not in known:
            counts = _counts(self.expected[name], self.output_specs[name][1])
            known[name] = POISON if not counts[POISON] else int(np.argmin(counts))
        return known[name]

    def _other_poison(self, name: str | tuple[object, ...], dtype: np.dtype[Any], poison: int) -> Sentinel:
        """The contents of an array before a launch after the first, where ``poison`` may be :data:`HIGH` or :data:`LOW`."""
        if poison not in (HIGH, LOW):
            return poison
        if dtype.kind == "i" and dtype.itemsize > 1:
            limits = np.iinfo(dtype)
            return np.array(limits.max if poison == HIGH else limits.min, dtype).tobytes()
        first = self._poison(name)
        if dtype.kind == "i":
            poison = 0x7F if poison == HIGH else 0x80
        elif dtype.kind in "ub" and poison == LOW:
            poison = 0
        elif dtype.kind == "u" and first != POISON:
            poison = POISON
        return poison ^ 1 if poison == first else poison

    def _constants(self) -> list[str]:
        """The uploaded inputs that no launch may change."""
        return [name for name in self._uploaded if name not in self.output_specs]

    def _overwritten(self, name: str) -> str:
        now, before = self._arrays[name].numpy().reshape(-1), np.ascontiguousarray(self.inputs[name]).reshape(-1)
        size = now.dtype.itemsize
        octets = now.view(np.uint8).reshape(-1, size) != before.view(np.uint8).reshape(-1, size)
        changed = octets.any(axis=1)
        first = int(np.argmax(changed))
        return (
            f"input {name}, which is not an output, was overwritten: {int(changed.sum()):,} of {now.size:,} elements, first "
            f"{element(name, self.inputs[name].shape, first)}, which was {value_text(before[first])} and is "
            f"{value_text(now[first])}; {places(changed.reshape(self.inputs[name].shape))}"
        )

    def _spec(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        temporaries = self.workload.temporaries()
        if name in temporaries:
            return array_spec(temporaries[name])
        if name in self.output_specs:
            return self.output_specs[name]
        known = [*self.inputs, *self.output_specs, *temporaries]
        raise DescriptionError(
            f"{self.workload.name}: no input, output or temporary is called {name!r}; {suggestion(name, known)}; "
            f"temporaries() declares arrays that variants pass between launches"
        )


def changed_inputs(cases: Sequence[Case]) -> list[list[str]]:
    """Of each of several cases with the same data, the inputs that are no outputs and have changed since they were uploaded.

    The digests of all are computed together.
    """
    every = [(case, name) for case in cases for name in case._constants()]
    differ = differing(cases[0].originals, [(name, case._arrays[name]) for case, name in every]) if every else []
    found: dict[int, list[str]] = {id(case): [] for case in cases}
    for (case, name), one in zip(every, differ, strict=True):
        if one:
            found[id(case)].append(name)
    return [found[id(case)] for case in cases]


def overwritten(cases: Sequence[Case]) -> list[str]:
    """The sentences of :meth:`Case.overwritten` for several cases with the same data."""
    every = zip(cases, changed_inputs(cases), strict=True)
    return [case._overwritten(name) for case, names in every for name in names]


def reset_all(cases: Sequence[Case], poison: int | None = None) -> None:
    """:meth:`Case.reset` of several cases with the same data."""
    for case in cases:
        for output in case.output_specs:
            case.array(output)  # one that no launch takes, too: its memory may hold the right result of an earlier array
    for case, changed in zip(cases, changed_inputs(cases), strict=True):
        case._reset(poison, changed)


def _fill(array: DeviceArray, element: bytes) -> None:
    """Set every element of an array; of a large one a part is copied on the device until all of it is filled."""
    first = min(array.nbytes, SMALLEST // len(element) * len(element))
    block = np.frombuffer(element, array.dtype)[0]
    if array.nbytes:
        array.memory.write(array.address, np.full(first // len(element), block, array.dtype))
    done = first
    while done < array.nbytes:
        count = min(done, array.nbytes - done)
        array.memory.copy(array.address + done, array.address, count)
        done += count


def _counts(expected: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """How often each value of a byte occurs in a reference, in the type of its output, which has one byte."""
    flat = expected.reshape(-1)

    def of_block(block: slice) -> np.ndarray[Any, Any]:
        with np.errstate(all="ignore"):
            octets = np.ascontiguousarray(_nearest(flat[block], dtype)).view(np.uint8)
        return np.bincount(octets, minlength=256)

    total: np.ndarray[Any, Any] = np.sum([of_block(slice(0)), *in_threads(of_block, blocks(flat.size, flat.size))], axis=0)
    return total


def _nearest(expected: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A reference in the type of its output; the reference of integers may contain fractions."""
    return (np.rint(expected) if dtype.kind in "iu" and expected.dtype.kind == "f" else expected).astype(dtype)


def with_complaints(verdict: Verdict, complaints: list[str]) -> Verdict:
    """The verdict, changed to wrong if there are complaints, such as of overwritten inputs."""
    if not complaints:
        return verdict
    worst = verdict.worst or complaints[0]
    explanation = "\n".join(filter(None, [verdict.explanation, *complaints]))
    return replace(verdict, verified=False, worst=worst, explanation=explanation)
