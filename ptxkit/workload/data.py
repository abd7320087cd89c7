"""The inputs of a workload with their reference and tolerance, on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ptxkit.errors import DescriptionError, UsageError
from ptxkit.runtime.host_arrays import is_masked
from ptxkit.workload.blame import at, blamed
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.parallel import blocks
from ptxkit.workload.tolerance import Rule, Sums, Typical
from ptxkit.workload.verify import Verdict, check_real
from ptxkit.workload.workload import Workload

if TYPE_CHECKING:
    from ptxkit.workload.variant import Variant


Prepared = tuple[dict[str, Any], dict[str, Any] | None]
"""Inputs and reference of a workload; None for a reference that is not computed yet."""


def not_prepared(workload: Workload, seed: int) -> Prepared | None:
    """Nothing is prepared: see :class:`Data`."""
    return None


class Data:
    """Inputs of a workload and their reference. Cases can share them; each case has its own device arrays.

    Args:
        workload: the workload of the inputs.
        seed: seed for random inputs.
        inputs: inputs instead of random ones.
        prepared: workload and seed -> what another process has computed of them, or None; it is asked first. The inputs that
            are passed by value are those of ``seed`` for every seed, as after :meth:`renew`.

    Attributes:
        verdicts: of outputs that were verified on these inputs, by tolerance and digests of the outputs, so that results with
            the same bytes are compared once. unwritten: whether outputs may hold elements that were not written, by digests,
            poison and the size of stores. poisons: of outputs of one byte. renewals: how often :meth:`renew` was called. For
            :class:`~ptxkit.workload.case.Case`.
    """

    def __init__(
        self,
        workload: Workload,
        seed: int = 0,
        inputs: Mapping[str, Any] | None = None,
        prepared: Callable[[Workload, int], Prepared | None] = not_prepared,
    ) -> None:
        self.workload = workload
        self.seed = seed
        self._given = inputs
        self._prepared = prepared
        self._reference: dict[str, Any] | None = None  # of the present inputs, if it is prepared
        self._typical: dict[str, tuple[Any, Typical]] = {}
        self.verdicts: dict[tuple[object, ...], Verdict] = {}
        self.unwritten: dict[tuple[object, ...], bool] = {}
        self.poisons: dict[str, int] = {}
        self.renewals = 0

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Input name -> numpy array or scalar."""
        with np.errstate(over="ignore"):  # of options; see _refuse_overflow
            made = self._given if self._given is not None else self._made()
        self._refuse_overflow(made)
        self._refuse_masks(made, "the input {}", "a kernel sees no mask")
        self._refuse_temporaries(made, "an input")
        self._refuse_temporaries(self.workload.outputs(), "an output")
        return dict(made)

    def _made(self) -> Mapping[str, Any]:
        """The random inputs of the present seed, prepared or computed now."""
        prepared = self._prepared(self.workload, self.seed)
        self._reference = prepared[1] if prepared is not None else None
        return prepared[0] if prepared is not None else self.workload.inputs(np.random.default_rng(self.seed))

    @property
    def has_reference(self) -> bool:
        """Whether the workload has a ``reference()``; a kernel of a source file that is only run has none."""
        return type(self.workload).reference is not Workload.reference

    @cached_property
    def expected(self) -> dict[str, Any]:
        """Output name -> reference, computed from arrays that ``reference()`` cannot change.

        Raises:
            DescriptionError: the reference verifies nothing: no output, no element, no real numbers, or NaN everywhere.
        """
        inputs = {name: _read_only(value) for name, value in self.inputs.items()}
        found = self.workload.reference(**inputs) if self._reference is None else self._reference
        self._reference = None
        self._refuse_masks(found, "the reference of {}", "every element is compared")
        self._refuse_temporaries(found, "an output")
        expected = {name: np.asarray(value) for name, value in found.items()}
        where = at(type(self.workload), "reference")
        for name, value in expected.items():
            check_real(f"{where}{self.workload.name}: the reference of {name}", value.dtype)
            if self._given is None and value.size and value.dtype.kind == "f" and _is_nan_everywhere(value):
                raise DescriptionError(f"{where}{self.workload.name}: the reference of {name} is NaN everywhere")
        if not any(value.size for value in expected.values()):
            what = "only empty arrays" if expected else "no output"
            raise DescriptionError(
                f"{where}{self.workload.name}: reference() returns {what}; nothing would be verified"
            )
        return expected

    def _refuse_overflow(self, made: Mapping[str, Any]) -> None:
        """Raise UsageError if a finite option is infinite in the type in which it is passed to the kernels."""
        passed = {value.dtype for value in made.values() if isinstance(value, np.floating) and np.isinf(value)}
        options = {name: getattr(self.workload, name) for name in self.workload.options}
        for name, value in options.items():
            for dtype in passed:
                with np.errstate(over="ignore"):
                    beyond = isinstance(value, float) and np.isfinite(value) and np.isinf(np.array(value).astype(dtype))
                if beyond:
                    raise UsageError(
                        f"{self.workload.name}: option {name}={value:g} is larger than {dtype} can represent"
                    )

    def _refuse_temporaries(self, names: Mapping[str, Any], what: str) -> None:
        for name in self.workload.temporaries():
            if name in names:
                place = at(type(self.workload), "temporaries")
                clash = f"{place}{self.workload.name}: temporaries() has {name!r}, which is {what}"
                raise DescriptionError(f"{clash}; choose another name")

    def _refuse_masks(self, arrays: Mapping[str, Any], what: str, why: str) -> None:
        for name, value in arrays.items():
            if is_masked(value):
                method = at(type(self.workload), "inputs" if what.startswith("the input") else "reference")
                place = f"{method}{self.workload.name}: {what.format(name)}"
                raise DescriptionError(f"{place} is a masked array, and {why}; return .filled(value) of it")

    def tolerance_rule(
        self, variant: Variant | None = None, own: Tolerance | Mapping[str, Tolerance] | None = None
    ) -> Rule:
        """The rule from which the tolerance of each output follows.

        Args:
            variant: its tolerance, if it has one, replaces that of the workload.
            own: tolerance of a peer or of the caller, which replaces both; of all outputs, or of those that it names.
        """
        if own is not None:
            return self._rule(own, "as given")
        if variant is not None and variant.tolerance is not None:
            stated, origin = _of_variant(variant, self.workload), f"stated by variant {variant.name}"
            return self._rule(stated, origin)
        return self._rule(_stated_tolerance(self.workload), "stated by the description")

    def _rule(self, stated: Tolerance | Mapping[str, Tolerance], origin: str) -> Rule:
        """The rule for a tolerance of all outputs, or of those that it names; others have the default."""
        if isinstance(stated, Tolerance):
            return Rule(stated, origin, known=self._typical)
        if unknown := stated.keys() - self.expected.keys():
            raise DescriptionError(
                f"{self.workload.name}: tolerance names {min(unknown)!r}; the outputs are {', '.join(self.expected)}"
            )
        elements = sum(value.size for value in self.expected.values())
        kinds = [value.dtype for value in self.inputs.values() if is_array(value)]
        sums = Sums.of(self.workload.work(), elements, kinds)
        return Rule(None, origin if stated else "", sums, stated, self._typical)

    def renew(self, seed: int) -> None:
        """Replace the random arrays by others. Values that are passed by value stay, because prepared launches contain them."""
        inputs = self.inputs
        self.seed = seed
        self.renewals += 1
        inputs.update({name: value for name, value in self._made().items() if is_array(value)})
        self.__dict__.pop("expected", None)
        for known in (self._typical, self.verdicts, self.unwritten, self.poisons):
            known.clear()


def is_array(value: Any) -> bool:
    """Whether an input is an array in device memory; other inputs are passed by value."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def _is_nan_everywhere(value: np.ndarray[Any, Any]) -> bool:
    """Whether an array has no other element than NaN; ends at the first block that has one."""
    flat = value.reshape(-1)
    return all(np.isnan(flat[block]).all() for block in blocks(flat.size, flat.size))


def _read_only(value: Any) -> Any:
    """A read-only view of an array; other values unchanged."""
    if not is_array(value):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _of_variant(variant: Variant, workload: Workload) -> Tolerance | Mapping[str, Tolerance]:
    """The tolerance that a variant states for one workload: of all outputs, or of those that it names.

    Raises:
        DescriptionError: it is neither a Tolerance nor a mapping of output names to these.
    """
    stated: Any = variant.tolerance
    if not isinstance(stated, Tolerance) and callable(stated):
        with blamed(stated):
            stated = stated(workload)
    return _checked(stated, workload, variant.name, "tolerance of a variant")


def _stated_tolerance(workload: Workload) -> Tolerance | Mapping[str, Tolerance]:
    """The description's ``tolerance``, a class attribute, a property or a method: of all outputs, or of those that it names.

    Raises:
        DescriptionError: it is neither a Tolerance nor a mapping of output names to these.
    """
    stated: Any = workload.tolerance
    if callable(stated):
        with blamed(type(workload).tolerance):  # type: ignore[arg-type]  # a method of the description
            stated = stated()
    if stated is None:
        return {}
    return _checked(stated, workload, "tolerance", "tolerance")


def _checked(stated: Any, workload: Workload, method: str, what: str) -> Tolerance | Mapping[str, Tolerance]:
    """A stated tolerance; DescriptionError if it is neither a Tolerance nor a mapping of output names to these."""
    for value in stated.values() if isinstance(stated, Mapping) else [stated]:
        if not isinstance(value, Tolerance):
            raise DescriptionError(
                f"{at(type(workload), method)}{workload.name}: {what} must be a Tolerance, not {value!r}"
            )
    return cast("Tolerance | Mapping[str, Tolerance]", stated)
