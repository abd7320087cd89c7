"""The base class of kernel descriptions: sizes, inputs, reference, work and variants.

A description is one class in one file, in the directory of its source or with the same name::

    class Saxpy(Workload):
        \"\"\"saxpy: y = a*x + y.\"\"\"
        source = "saxpy.cu"
        n: int = 1 << 20
        emulator_sizes = {"n": 4096}

        def inputs(self, rng): return {"a": np.float32(2), "x": uniform(rng, self.n), "y": uniform(rng, self.n)}
        def reference(self, a, x, y): return {"y": np.float64(a) * x + y}
        def work(self): return Work(flops=2 * self.n, bytes=12 * self.n)

        @variant(tile={"THREADS": [256, 128, 512]})
        def fused(self, t): return [Launch("saxpy", cdiv(self.n, t.THREADS), t.THREADS, ("a", "x", "y", self.n))]
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, dataclass_transform

from ptxkit.arguments import FLAG, MAPPING, NOTHING, SEQUENCE, TEXT, takes
from ptxkit.errors import DescriptionError, UsageError
from ptxkit.targets import lowest_target
from ptxkit.targets.gpus import DeviceFacts, reference_facts
from ptxkit.workload.blame import METHODS, at, guarded
from ptxkit.workload.launch import ArraySpec, Tolerance, Work, array_spec
from ptxkit.workload.values import check_size, option_value, parse_size
from ptxkit.workload.variant import Variant

if TYPE_CHECKING:
    import numpy as np


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Workload:
    """The computation of a kernel for given sizes. Subclasses are made frozen dataclasses automatically.

    Annotated ``int`` fields are the sizes, in order; ``str``, ``float``, ``bool``, ``Literal`` fields and ``int`` fields made
    with ``field(default=..., kw_only=True)`` are options. All need defaults.

    Class attributes:
        name: name on the command line; by default the class name in snake case.
        source: the ``.cu`` or ``.ptx`` file, in the directory of the description or among the bundled ones.
        include_dirs: directories that are searched first for headers, relative to the directory of the description.
        defines: preprocessor macros of its sources, which the ``defines`` of a launch extend or replace; may be a property.
        emulator_sizes: default sizes in the emulator.
        benchmarks: the cases of `ptxkit bench`: for each the sizes and options that differ from the defaults.
        tolerance: permitted error of all outputs, or of single ones by name; outputs without one have the default of their
            dtype.
    """

    name: ClassVar[str] = ""
    source: ClassVar[str] = ""
    include_dirs: ClassVar[Sequence[str | os.PathLike[str]]] = ()
    defines: ClassVar[Mapping[str, object]] = {}
    emulator_sizes: ClassVar[Mapping[str, int]] = {}
    benchmarks: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    tolerance: ClassVar[Tolerance | Mapping[str, Tolerance] | None] = None
    _fields: ClassVar[dict[str, tuple[Any, bool]]]  # of this class alone; see fields()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = snake_case(cls.__name__)
        for name in METHODS if not cls.__module__.startswith("ptxkit.") else ():
            if name in cls.__dict__:
                setattr(cls, name, guarded(cls.__dict__[name], name))
        dataclasses.dataclass(frozen=True)(cls)
        cls.__init__ = _naming_fields(cls.__init__)  # type: ignore[method-assign]
        cls._check_names()

    def __post_init__(self) -> None:
        self._check_complete()
        for name in self.size_names():
            value = getattr(self, name)
            own = type(self).__dict__.get(name)
            check_size(f"{at(type(self), name) if own is not None and own is value else ''}{self.name}", name, value)
        for name, kind in self.option_types().items():
            object.__setattr__(self, name, option_value(self.name, name, kind, getattr(self, name)))
        for complaint in self.constraints():
            raise UsageError(f"{self.name} with {self.size_text()}: {complaint}")

    # Methods that a description defines

    def inputs(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Random inputs by name: numpy arrays, and numpy scalars for values that are passed by value."""
        raise NotImplementedError

    def shaped_inputs(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Inputs with the names, types and shapes of :meth:`inputs`, to compile and prepare for: nothing is verified or timed
        with them. A description whose inputs take long to compute may return other values."""
        return self.inputs(rng)

    def reference(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """The outputs by name in float64 (integers exactly), from the inputs as keyword arguments.

        An output with the name of an input is updated in place by the kernel.
        """
        raise NotImplementedError

    def rounded_terms(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Typical magnitudes of the terms whose difference an output is, by output name, from the inputs as keyword arguments.

        They are needed where terms may cancel in whole rows, as in gradients of a softmax: a library that rounds a term has an
        error in proportion to it, whereas the magnitude of the result and of the results around it says nothing of it
        (:mod:`ptxkit.bench.measure.library_accuracy`). The arrays are broadcast to the shapes of the outputs.
        """
        return {}

    def work(self) -> Work:
        """The minimum that any variant must compute and move."""
        raise NotImplementedError

    def outputs(self) -> Mapping[str, ArraySpec]:
        """Output name -> (shape, dtype). By default the shape of the reference and the dtype of the inputs."""
        return {}

    def temporaries(self) -> Mapping[str, ArraySpec]:
        """Name -> (shape, dtype) of device memory that variants pass between their launches."""
        return {}

    def constraints(self) -> Iterable[str]:
        """Complaints about these sizes and options: ``if self.m % 128: yield "m must be a multiple of 128"``."""
        return ()

    # Derived from these

    @property
    def device(self) -> DeviceFacts:
        """The facts of the device that the kernels are launched on: SM count, L2 cache and the limits of its target.

        Without a device, for instance if a variant is only compiled or inspected, these are the facts of the reference GPU of
        the default target (:func:`ptxkit.targets.gpus.reference_gpu`).
        """
        return self.__dict__.get("_device") or _unbound_facts()

    @property
    def is_bound(self) -> bool:
        """Whether :meth:`on` has set a device."""
        return "_device" in self.__dict__

    def on(self, device: DeviceFacts) -> Self:
        """The same workload with the facts of a device."""
        bound = copy.copy(self)
        object.__setattr__(bound, "_device", device)
        return bound

    def bytes_needed(self) -> int:
        """Device memory in bytes for inputs, outputs and temporaries; computed without allocating them."""
        total = self.work().bytes
        for spec in self.temporaries().values():
            shape, dtype = array_spec(spec)
            count = dtype.itemsize
            for n in shape:
                count *= n
            total += count
        return total

    @property
    def sizes(self) -> dict[str, int]:
        """Size name -> value, in order."""
        return {name: getattr(self, name) for name in self.size_names()}

    @property
    def options(self) -> dict[str, Any]:
        """Option name -> value."""
        return {name: getattr(self, name) for name in self.option_types()}

    def size_text(self) -> str:
        """``"rows=128, cols=4096"``, for messages."""
        return ", ".join(f"{name}={value}" for name, value in self.sizes.items())

    @classmethod
    def fields(cls) -> dict[str, tuple[Any, bool]]:
        """Field name -> (type, whether it is a size).

        Raises:
            DescriptionError: a field has no default, or a type that the command line does not support.
        """
        if "_fields" not in cls.__dict__:  # evaluated once for each class: every instance reads them several times
            cls._fields = cls._evaluated_fields()
        return dict(cls._fields)

    @classmethod
    def _evaluated_fields(cls) -> dict[str, tuple[Any, bool]]:
        """The value of :meth:`fields`, from the annotations, which may be text."""
        hints = typing.get_type_hints(cls)
        result: dict[str, tuple[Any, bool]] = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # __init_subclass__ makes it a dataclass
            kind = hints[field.name]
            if kind not in (int, float, str, bool) and typing.get_origin(kind) is not Literal:
                raise DescriptionError(
                    f"{cls.name}: field {field.name} must be int, float, str, bool or Literal, not {kind}"
                )
            if field.default is dataclasses.MISSING:
                raise DescriptionError(f"{at(cls, field.name)}{cls.name}: field {field.name} needs a default")
            result[field.name] = (kind, kind is int and not field.kw_only)
        return result

    @classmethod
    def size_names(cls) -> tuple[str, ...]:
        """Names of the sizes, in the order of the command line."""
        return tuple(name for name, (_, is_size) in cls.fields().items() if is_size)

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Option name -> type."""
        return {name: kind for name, (kind, is_size) in cls.fields().items() if not is_size}

    @classmethod
    def variants(cls) -> dict[str, Variant]:
        """Variant name -> variant, in the order of their definition, base classes first."""
        found: dict[str, Variant] = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, Variant)})
        return found

    @classmethod
    @takes(name=TEXT)
    def variant(cls, name: str) -> Variant:
        """The variant called ``name``; UsageError with similar names if it does not exist."""
        found = cls.variants()
        if name not in found:
            raise UsageError(f"{cls.name} has no variant {name!r}; {suggestion(name, found)}")
        return found[name]

    @classmethod
    @takes(sizes=SEQUENCE, options=MAPPING | NOTHING, small=FLAG)
    def make(
        cls, sizes: Sequence[str | int] = (), options: Mapping[str, Any] | None = None, *, small: bool = False
    ) -> Self:
        """A workload from the words of a command line.

        Args:
            sizes: all sizes in order, or none for the default.
            options: option name -> value.
            small: use ``emulator_sizes`` instead of the defaults if no sizes are given.

        Raises:
            UsageError: a size that is not a number or out of range, a wrong number of sizes, an unknown option.
        """
        names = cls.size_names()
        values: dict[str, Any] = {}
        if sizes:
            if len(sizes) != len(names):
                many = "too many" if len(sizes) > len(names) else "too few"
                raise UsageError(
                    f"{cls.name} takes {len(names)} size{'s' * (len(names) != 1)} ({' '.join(n.upper() for n in names)}); "
                    f"{many} are given"
                )
            values = {name: parse_size(cls.name, name, text) for name, text in zip(names, sizes, strict=True)}
        elif small:
            values = dict(cls.emulator_sizes)
        for name, value in (options or {}).items():
            if name not in cls.option_types():
                raise UsageError(f"{cls.name} has no option {name!r}; {suggestion(name, cls.option_types())}")
            values[name] = value
        return cls(**values)

    @classmethod
    @takes(fields=MAPPING)
    def of(cls, fields: Mapping[str, str | int]) -> Self:
        """A workload with these sizes and options by name; the others have their defaults.

        Raises:
            UsageError: no such size or option, or it cannot have that value.
        """
        known, sizes = cls.fields(), cls.size_names()
        for name in fields:
            if name not in known:
                raise UsageError(f"{cls.name} has no size or option {name!r}; {suggestion(name, known)}")
        return cls(**{n: parse_size(cls.name, n, v) if n in sizes else v for n, v in fields.items()})

    @classmethod
    def directory(cls) -> Path | None:
        """The directory of the description's file; None if it was not read from a file."""
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        return Path(file).resolve().parent if file else None

    @classmethod
    def _check_names(cls) -> None:
        """Check that sizes and options which the description names elsewhere are fields, and that none hides a method."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in (*known, *(name for name, value in vars(cls).items() if isinstance(value, Variant))):
            own = inspect.getattr_static(Workload, name, None)
            if isinstance(own, (types.FunctionType, classmethod, property)):
                what = "field" if name in known else "variant"
                raise DescriptionError(f"{cls.name}: the {what} {name} hides a method of Workload; choose another name")
        for where, given in (
            ("emulator_sizes", cls.emulator_sizes),
            *(("benchmarks", case) for case in cls.benchmarks),
        ):
            for name in given:
                if name not in known:
                    raise DescriptionError(
                        f"{cls.name}: {where} names {name!r}, which is not a field; {suggestion(name, known)}"
                    )

    def _check_complete(self) -> None:
        cls = type(self)
        for method in ("inputs", "reference", "work"):
            if getattr(cls, method) is getattr(Workload, method):
                raise DescriptionError(f"{cls.name}: {cls.__name__} has no {method}()")
        if not isinstance(cls.source, (str, os.PathLike)):
            raise DescriptionError(f"{cls.name}: source is the path of a file, not {cls.source!r}")
        if not cls.variants():
            raise DescriptionError(f"{cls.name}: {cls.__name__} has no variant; declare one with @variant")
        options = set(cls.emulator_sizes) - set(cls.size_names())
        if options:
            names = ", ".join(cls.size_names()) or "none"
            raise DescriptionError(
                f"{cls.name}: emulator_sizes names {', '.join(sorted(options))}; sizes are the fields with type int: {names}"
            )


def _naming_fields(init: Callable[..., None]) -> Callable[..., None]:
    """A description's ``__init__``, which refuses what is no field in one line that names the nearest field."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        known = type(self).fields()
        for name in kwargs:
            if name not in known:
                raise UsageError(f"{type(self).name} has no size or option {name!r}; {suggestion(name, known)}")
        positional = [field.name for field in dataclasses.fields(self) if not field.kw_only]
        if len(args) > len(positional):
            raise UsageError(
                f"{type(self).name} takes {len(positional)} values by position, {', '.join(positional)}, not {len(args)}"
            )
        for name in positional[: len(args)]:
            if name in kwargs:
                raise UsageError(f"{type(self).name}: {name} is given twice, by position and by name")
        init(self, *args, **kwargs)

    return checked


@functools.cache  # constraints of tiles read it once for each of thousands of tiles
def _unbound_facts() -> DeviceFacts:
    return reference_facts(lowest_target(()))


def snake_case(name: str) -> str:
    """``FusedL2norm`` -> ``fused_l2norm``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """``did you mean 'saxpy'?`` if a name is similar, else the list of names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return f"there are {', '.join(names)}" if names else "there are none"
