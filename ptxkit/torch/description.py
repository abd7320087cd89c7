"""A user's own description as an operation on tensors.

The inputs of the description that are arrays become tensor arguments. Which of its sizes follow from the shapes of
tensors is found by evaluating ``inputs()`` for small sizes, and again with each of them changed:

- a dimension that equals a size, and changes with this size alone, determines it;
- a size that is the first dimension of arrays, and occurs nowhere else, stands for any number of leading dimensions;
- all shapes are compared with those of ``inputs()`` and ``outputs()`` when shapes are used for the first time; outputs with
  other dimensions, such as ``n // 2``, have the shapes of ``outputs()``;
- sizes that no dimension of an input determines are keywords without a default, and options are keywords with their
  defaults;
- inputs that are passed by value are keywords; without them they have the values of ``inputs()`` at the sizes of the call.
"""

from __future__ import annotations

import itertools
import keyword
import os
import re
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ptxkit.compiler.includes import closure
from ptxkit.errors import DescriptionError, UsageError
from ptxkit.torch.calls import function_of
from ptxkit.torch.dtypes import KINDS, from_numpy, torch_dtype
from ptxkit.torch.operations import (
    KEPT_PLANS,
    Gradient,
    Operation,
    Option,
    Result,
    TensorArgument,
    kinds_of,
    number_of,
)
from ptxkit.torch.plan import Plan
from ptxkit.torch.shapes import Sizes, flat, shape_of, shown
from ptxkit.workload import registry
from ptxkit.workload.launch import array_spec
from ptxkit.workload.resolve import find_source
from ptxkit.workload.variant import Variant
from ptxkit.workload.workload import Workload, suggestion

NAMESPACE = "ptxkit_user"
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
_MULTIPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Small sizes are different primes times one of these, because a description may permit only multiples; where it
permits none of them, they are its ``emulator_sizes``."""

Backward = Callable[..., Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Probe:
    """A description with small sizes, and the arrays and numbers that it takes and returns with them."""

    workload: Workload
    inputs: Mapping[str, Any]
    outputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


class _Evaluated(typing.NamedTuple):
    """What inputs() returns: numbers by name, and the shape of each array."""

    numbers: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class DescribedOperation(Operation):
    """An operation whose shapes are partly known to its description alone.

    Attributes:
        derived: the inputs with dimensions that are no sizes.
        unknown: the outputs with such dimensions.
    """

    derived: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    _evaluated: dict[Workload, _Evaluated] = field(default_factory=dict, init=False, repr=False)

    @property
    def title(self) -> str:
        """The name of the description: that of the operation differs when a file was changed."""
        return self.classes[0][0].name

    @cached_property
    def _numbers(self) -> dict[str, Any]:
        """Name of an input that is passed by value -> numpy's type of it."""
        return {name: type(value) for name, value in (self.values({}) if self.values else {}).items()}

    def shapes(
        self, sizes: Sizes, kind: str, training: bool, options: Mapping[str, Any]
    ) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each result; those that are no sizes are those of the description's outputs()."""
        workload = self.classes[0][0]
        given = {n: v for n, v in options.items() if n in workload.size_names()}
        sizes = replace(sizes, values={**sizes.values, **given})
        kind = str(options.get("dtype", kind))
        if not self.unknown:
            return super().shapes(sizes, kind, training, options)
        make = self.without_checks if self.has_no_elements(sizes) else self.workload
        declared = make(workload, sizes, kind, options).outputs()
        found = []
        for result in self.results:
            dtype = torch_dtype(result.kind or kind)
            known = result.name not in self.unknown
            found.append((shape_of(result.shape, sizes) if known else array_spec(declared[result.name])[0], dtype))
        return found

    def of_kind(self, kind: str) -> list[tuple[type[Workload], Variant]]:
        """All candidates: they are variants of one description, which has the types of the tensors."""
        return list(self.classes)

    def has_no_elements(self, sizes: Sizes) -> bool:
        """Whether a size of the description is 0; dimensions that are no sizes may be."""
        return any(sizes.values.get(name) == 0 for name in self.classes[0][0].size_names())

    def passed(self, options: Sequence[Any]) -> Mapping[str, np.generic]:
        """The inputs that are passed by value, as far as the call gives them; 0 for others."""
        given = {n: self.named(options)[n] for n in self._numbers}
        return {
            n: self._numbers[n](0) if value is None else number_of(self.title, n, self._numbers[n], value)
            for n, value in given.items()
        }

    def numbers(self, options: Sequence[Any], plan: Plan) -> list[Any]:
        """The inputs that are passed by value: those of the call, and for others those of inputs() at the sizes of the
        plan."""
        given = self.named(options)
        found = ((n, kind, given[n]) for n, kind in self._numbers.items())
        return [
            number_of(self.title, n, kind, plan.numbers[n] if value is None else value).item()
            for n, kind, value in found
        ]

    def scalars(self, workload: Workload) -> Mapping[str, Any]:
        """The inputs that are passed by value at the sizes of a workload."""
        return self._evaluate(workload).numbers

    def _evaluate(self, workload: Workload) -> _Evaluated:
        """What inputs() returns at the sizes of a call, without the contents of arrays; kept for later calls."""
        with self._lock:
            if workload not in self._evaluated:
                while len(self._evaluated) >= KEPT_PLANS:
                    del self._evaluated[next(iter(self._evaluated))]
                inputs = workload.inputs(np.random.default_rng(0))
                self._evaluated[workload] = _Evaluated(
                    {n: v for n, v in inputs.items() if not np.ndim(v)}, {n: np.shape(v) for n, v in inputs.items()}
                )
            return self._evaluated[workload]

    def check_empty(
        self,
        workloads: Sequence[Workload],
        inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
        outputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    ) -> None:
        """Refuse to compute results with elements without a launch: they need not be zeros."""
        for name, (shape, _) in outputs.items():
            if name not in inputs and 0 not in shape:
                raise UsageError(
                    f"{self.title}: the output {name} has the shape {shown(shape)}, but its kernel cannot be launched "
                    f"with {workloads[0].size_text()}; pass tensors with elements"
                )

    def check_inputs(self, workload: Workload, inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Compare shapes with those of the description at the sizes of the call."""
        expected = self._evaluate(workload).shapes
        sizes = workload.sizes
        for name in inputs:
            if inputs[name][0] != expected[name]:
                raise UsageError(
                    f"{self.title}: {name} has the shape {shown(inputs[name][0])}, but must be "
                    f"{shown(expected[name])} for {workload.size_text()}"
                )
        declared = {n: array_spec(s)[0] for n, s in workload.outputs().items()}
        for result in self.results:
            if result.name in declared and result.name not in self.unknown:
                found = flat(result.shape, Sizes(dict(sizes)))
                if found != declared[result.name]:
                    raise DescriptionError(
                        f"{self.title}: the output {result.name} has the shape {shown(declared[result.name])} for "
                        f"{workload.size_text()}, but {shown(found)} follows from small sizes; give emulator_sizes or "
                        "defaults at which the dimension differs from the size"
                    )


class _Made(typing.NamedTuple):
    """A function of an operation, and its files when it was made."""

    function: Callable[..., Any]
    stamps: Mapping[str, tuple[int, int]]


_SOURCES = (".cu", ".cuh", ".h", ".hpp", ".ptx")
_made: dict[tuple[Any, ...], _Made] = {}
_lock = threading.Lock()
_counts: dict[str, int] = {}


def operation(
    description: str | os.PathLike[str] | type[Workload],
    *,
    variant: str | None = None,
    backward: Backward | None = None,
) -> Callable[..., Any]:
    """A function on tensors from a kernel description.

    Args:
        description: a ``.py`` file, the name of a bundled kernel, or a class.
        variant: the variant to launch; None for the last one in the description that the device can run at the sizes of a call.
        backward: computes the derivative: ``backward(grads, values)`` receives the gradients of the outputs and the inputs and
            outputs, both by name, and returns the gradients of inputs by name. None: the operation has no derivative.

    Returns:
        A function of tensors, by position in the order of ``inputs()`` or by name, and of keywords. It returns the outputs: one
        tensor, or a tuple. An output with the name of an input is a new tensor; the input is not changed.

    Raises:
        UsageError: no such file, kernel or variant. DescriptionError: the description is wrong, has no inputs that are
            arrays, or an output whose shape follows from sizes and is not declared by outputs().
    """
    is_file = isinstance(description, (str, os.PathLike)) and isinstance(os.fspath(description), str)
    if not is_file and not (isinstance(description, type) and issubclass(description, Workload)):
        raise UsageError(
            f"operation: description must be a .py file, the name of a kernel or a Workload class, not {description!r}"
        )
    if backward is not None and not callable(backward):
        raise UsageError(f"operation: backward must be a function of (grads, values), not {backward!r}")
    given = description if isinstance(description, type) else os.fspath(description)
    if isinstance(given, str) and given.endswith(".py") and Path(given).is_file():
        given = str(Path(given).resolve())
    with _lock:
        key = (given, variant, backward)
        known = _made.get(key)
        if known is None or known.stamps != _stamps(known.stamps):
            found = registry.find(given) if isinstance(given, str) else given
            if isinstance(variant, str):
                found.variant(variant)
            function = _function(described(found, variant, backward))
            _made[key] = known = _Made(function, _stamps(_files(found)))
        return known.function


def _files(workload: type[Workload]) -> list[str]:
    """The files of a user's description: its own, the sources and headers beside it, and those that its sources include."""
    directory = workload.directory()
    if directory is None or workload.__module__.startswith("ptxkit."):
        return []
    own = sys.modules[workload.__module__].__file__
    files = [str(own), *(str(path) for path in directory.iterdir() if path.suffix in _SOURCES)]
    search = [str(directory / name) for name in workload.include_dirs]
    for source in {workload.source, *(v.source for v in workload.variants().values())} - {"", None}:
        if isinstance(source, (str, os.PathLike)):
            path = find_source(workload, os.fspath(source))
            text = path.read_text(encoding="utf-8", errors="replace")
            files += [str(path), *closure(text, str(path.parent), search).headers]
    return files


def _stamps(files: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The time of change and the size of files; those that are no longer there are absent."""
    found = {}
    for file in files:
        with suppress(FileNotFoundError):
            stat = Path(file).stat()
            found[file] = (stat.st_mtime_ns, stat.st_size)
    return found


def described(
    workload: type[Workload], variant: str | None = None, backward: Backward | None = None
) -> DescribedOperation:
    """The operation of a description; see :func:`operation`."""
    name = re.sub(r"\W", "_", workload.name)
    first, varied = _probes(workload)
    arrays = {n: v for n, v in first.inputs.items() if np.ndim(v)}
    numbers = {n: v for n, v in first.inputs.items() if not np.ndim(v)}
    if not arrays:
        raise DescriptionError(
            f"{workload.name}: inputs() returns no arrays, so that an operation would have no tensors"
        )
    other = _of_other_type(first)
    kind_of = {
        n: "" if other is not None and other.inputs[n].dtype != v.dtype else _kind(workload, n, v.dtype)
        for n, v in arrays.items()
    }
    for n in (*first.inputs, *first.outputs, *workload.fields()):
        if not n.isidentifier() or keyword.iskeyword(n):
            raise DescriptionError(f"{workload.name}: {n!r} cannot be the name of an argument in Python; rename it")
    sizes = workload.size_names()
    tokens = {n: _tokens(first, varied, lambda p, n=n: np.shape(p.inputs[n])) for n in arrays}  # type: ignore[misc]
    results = {n: _tokens(first, varied, lambda p, n=n: p.outputs[n][0]) for n in first.outputs}  # type: ignore[misc]
    _compare_with_defaults(workload, first.outputs, results)
    for n, found_tokens in results.items():
        if None in found_tokens and n not in first.workload.outputs():
            raise DescriptionError(
                f"{workload.name}: a dimension of the output {n} is no size, so that its shape is unknown; declare outputs()"
            )
    starred = _leading(list(tokens.values()) + list(results.values())) & {t[0] for t in tokens.values() if t}
    patterns = {n: _pattern(n, t, starred) for n, t in tokens.items()}
    determined = {t for found in tokens.values() for t in found if t}
    options = [Option(size, int, None) for size in sizes if size not in determined]
    for option, kind in workload.option_types().items():
        if option != "dtype" or not any(k == "" for k in kind_of.values()):
            options.append(Option(option, kind, getattr(first.workload, option)))
    taken = {option.name for option in options}
    passed = tuple(n for n in numbers if n not in taken)
    options += [Option(n, _number(numbers[n]), None, by_value=True, optional=True) for n in passed]
    outputs = []
    for n, (_, dtype) in first.outputs.items():
        varies = other is not None and other.outputs[n][1] != dtype
        outputs.append(Result(n, _pattern(n, results[n], starred), "" if varies else _kind(workload, n, dtype)))
    kinds = tuple(dict.fromkeys(typing.get_args(workload.option_types()["dtype"]))) if other is not None else ()
    chosen = [variant] if variant is not None else list(reversed(workload.variants()))
    with_gradient = (
        None if backward is None else _gradient(workload.name, backward, tuple(arrays), tuple(first.outputs))
    )
    return DescribedOperation(
        _unique(name),
        tuple((workload, v) for v in chosen),
        tuple(TensorArgument(n, patterns[n], kind=kind_of[n]) for n in arrays),
        tuple(options),
        tuple(outputs),
        kinds=kinds or kinds_of(workload) or ("f32",),
        values=_values(passed, numbers) if passed else None,
        autocast="",
        gradient=with_gradient,
        namespace=NAMESPACE,
        derived=frozenset(n for n, t in tokens.items() if None in t),
        unknown=frozenset(n for n, t in results.items() if None in t),
    )


def _unique(name: str) -> str:
    """A name that no operation has: a changed file is another operation."""
    name += "_" * keyword.iskeyword(name)  # torch's schemas do not take keywords
    _counts[name] = _counts.get(name, 0) + 1
    return name if _counts[name] == 1 else f"{name}_{_counts[name]}"


def _probes(workload: type[Workload]) -> tuple[Probe, dict[str, Probe]]:
    """The description with small sizes, and for each size that its constraints permit to vary, with another value of it.

    Raises:
        DescriptionError: no small sizes are permitted.
    """
    names = workload.size_names()
    primes = [dict(zip(names, (m * p for p in _PRIMES), strict=False)) for m in _MULTIPLES]
    error: Exception | None = None
    for fields in (*primes, dict(workload.emulator_sizes)):
        try:
            base = _probe(workload, fields)
            break
        except UsageError as refused:
            error = refused
    else:
        raise DescriptionError(
            f"{workload.name}: no small sizes were found from which shapes could be inferred: {error}"
        )
    varied = {}
    for name, factor in itertools.product(names, (2, 3, 4)):
        if name not in varied:
            with suppress(UsageError):
                varied[name] = _probe(workload, {**base.workload.sizes, name: factor * base.workload.sizes[name]})
    return base, varied


def _probe(workload: type[Workload], fields: Mapping[str, Any]) -> Probe:
    made = workload(**fields)
    inputs = made.inputs(np.random.default_rng(0))
    return Probe(made, inputs, _outputs(made, inputs))


def _outputs(workload: Workload, inputs: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each output: declared, or those of the reference and the inputs."""
    declared = {n: array_spec(s) for n, s in workload.outputs().items()}
    if declared:
        return declared
    arrays = {n: v for n, v in inputs.items() if np.ndim(v)}
    kinds = {v.dtype for v in arrays.values()}
    found = {}
    for name, value in workload.reference(**inputs).items():
        if name not in arrays and len(kinds) != 1:
            raise DescriptionError(f"{workload.name}: the dtype of output {name} is unclear; declare outputs()")
        found[name] = (np.shape(value), arrays[name].dtype if name in arrays else next(iter(kinds)))
    return found


def _of_other_type(probe: Probe) -> Probe | None:
    """The same sizes with another value of the option ``dtype``; None if there is no other."""
    kind = type(probe.workload).option_types().get("dtype")
    for value in typing.get_args(kind):
        if value != getattr(probe.workload, "dtype"):  # noqa: B009  # not every workload has it
            made = type(probe.workload)(**{**probe.workload.sizes, **probe.workload.options, "dtype": value})
            inputs = made.inputs(np.random.default_rng(0))
            return Probe(made, inputs, _outputs(made, inputs))
    return None


def _tokens(base: Probe, varied: Mapping[str, Probe], shape_in: Callable[[Probe], Sequence[int]]) -> list[str | None]:
    """For each dimension of an array the size that it is, or None.

    Args:
        shape_in: its shape in a probe.
    """
    shape = shape_in(base)
    if any(len(shape_in(other)) != len(shape) for other in varied.values()):
        raise DescriptionError(f"{base.workload.name}: the number of dimensions of an array depends on sizes")

    def is_size(i: int, name: str) -> bool:
        follows = (
            shape[i] == base.workload.sizes[name] and shape_in(varied[name])[i] == varied[name].workload.sizes[name]
        )
        return follows and all(shape_in(other)[i] == shape[i] for n, other in varied.items() if n != name)

    return [next((n for n in varied if is_size(i, n)), None) for i in range(len(shape))]


def _compare_with_defaults(
    workload: type[Workload],
    outputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
    tokens: Mapping[str, list[str | None]],
) -> None:
    """Drop sizes that dimensions of outputs equal for small sizes only, as that of ``min(n, 64)``."""
    try:
        made = workload()
    except UsageError:  # the defaults are not permitted, so that there is nothing to compare with
        return
    for name, (shape, _) in ((n, array_spec(s)) for n, s in made.outputs().items() if n in outputs):
        for i, size in enumerate(tokens[name]):
            if size and (len(shape) <= i or shape[i] != made.sizes[size]):
                tokens[name][i] = None


def _leading(shapes: list[list[str | None]]) -> frozenset[str]:
    """Sizes that are first dimensions and occur nowhere else."""
    first = {t[0] for t in shapes if t and t[0]}
    elsewhere = {name for t in shapes for name in t[1:] if name}
    return frozenset(name for name in first - elsewhere if name)


def _pattern(array: str, tokens: list[str | None], starred: frozenset[str]) -> str:
    names = [name or f"{array}_{i}" for i, name in enumerate(tokens)]
    return " ".join(f"*{name}" if i == 0 and name in starred else name for i, name in enumerate(names))


def _kind(workload: type[Workload], name: str, dtype: np.dtype[Any]) -> str:
    found = from_numpy(dtype)
    if found is torch.bool:
        raise DescriptionError(
            f"{workload.name}: {name} has bool elements, which operations do not take; declare uint8, and pass "
            f"{name}.to(torch.uint8)"
        )
    if found is None or found not in KINDS:
        raise DescriptionError(f"{workload.name}: torch has no type for {name}, which has {dtype} elements")
    return KINDS[found]


def _number(value: Any) -> type:
    kind = np.asarray(value).dtype.kind
    return bool if kind == "b" else int if kind in "iu" else float


def _values(
    names: tuple[str, ...], numbers: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], Mapping[str, np.generic]]:
    """A function from the options of a call to the inputs that are passed by value; 0 for those that are not given."""
    dtypes = {name: np.asarray(numbers[name]).dtype.type for name in names}

    def values(options: Mapping[str, Any]) -> Mapping[str, np.generic]:
        given = {name: options.get(name) for name in names}
        return {name: dtypes[name](0 if value is None else value) for name, value in given.items()}

    return values


def _gradient(title: str, backward: Backward, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Gradient:
    names = [*inputs, *(n for n in outputs if n not in inputs)]

    def save(given: Mapping[str, Any], made: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        return [given[n] if n in inputs else made[n] for n in names]

    def compute(
        kept: Sequence[torch.Tensor], options: Mapping[str, Any], grads: Sequence[torch.Tensor], wanted: Sequence[bool]
    ) -> Sequence[torch.Tensor | None]:
        values = {**options, **dict(zip(names, kept, strict=True))}
        found = backward(dict(zip(outputs, grads, strict=True)), values)
        shapes = {n: values[n].shape for n in inputs}
        _check_gradients(title, found, shapes)
        return [found.get(n) for n in inputs]

    return Gradient(save, compute, by_user=True)


def _check_gradients(title: str, found: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise UsageError unless what a user's ``backward`` has returned are gradients of inputs by name."""
    if not isinstance(found, Mapping):
        raise UsageError(f"{title}: backward must return a dict of gradients by name, not {type(found).__name__}")
    for name, gradient in found.items():
        if name not in shapes:
            raise UsageError(
                f"{title}: backward returned a gradient of {name!r}; {suggestion(str(name), list(shapes))}"
            )
        if gradient is None:
            continue
        if not isinstance(gradient, torch.Tensor):
            raise UsageError(f"{title}: backward must return tensors or None, not {type(gradient).__name__} for {name}")
        if gradient.shape != shapes[name]:
            raise UsageError(
                f"{title}: backward returned a gradient of {name} with the shape {shown(gradient.shape)}, but {name} has "
                f"{shown(shapes[name])}"
            )


def _function(made: DescribedOperation) -> Callable[..., Any]:
    """The function of an operation, with arguments by position or by name."""
    call = function_of(made)
    tensors = [t.name for t in made.tensors]
    defaults = {o.name: o.default for o in made.options}
    required = [o.name for o in made.options if o.default is None and not o.optional]
    title = made.candidates[0][0].name if not isinstance(made.candidates[0][0], str) else made.name

    def function(*args: Any, **keywords: Any) -> Any:
        if len(args) > len(tensors):
            raise UsageError(f"{title} takes {len(tensors)} tensors by position, {', '.join(tensors)}, not {len(args)}")
        given = dict(zip(tensors, args, strict=False))
        options = dict(defaults)
        for name, value in keywords.items():
            if name in given:
                raise UsageError(f"{title}: {name} is given twice, by position and by name")
            if name in tensors:
                given[name] = value
            elif name in options:
                options[name] = value
            else:
                raise UsageError(f"{title} has no argument {name!r}; {suggestion(name, [*tensors, *options])}")
        for name in tensors:
            if name not in given:
                raise UsageError(f"{title}: the tensor {name} is missing; it takes {', '.join(tensors)}")
        for name in required:
            if options[name] is None:
                raise UsageError(
                    f"{title}: the size {name} does not follow from the shape of a tensor; pass {name}=..."
                )
        return call(tuple(given[name] for name in tensors), tuple(options.values()))

    signature = ", ".join([*tensors, *(["*"] if defaults else []), *(f"{n}={v!r}" for n, v in defaults.items())])
    workload = made.classes[0][0]
    function.__name__ = function.__qualname__ = title
    function.__doc__ = f"{title}({signature})\n\n{(workload.__doc__ or '').strip()}"
    function.operation = made  # type: ignore[attr-defined]  # for torch.library.opcheck and for messages
    return function
