"""Operations on tensors: kernels of a description that are registered with ``torch.library``.

An :class:`Operation` states how the arguments of a function become sizes, options and inputs of a description. From it follow
the schema, the implementation, the implementation on fake tensors for ``torch.compile``, the derivative, and what is refused:
``torch.func.vmap``, and derivatives of derivatives.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import threading
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch.autograd import forward_ad

from ptxkit.errors import DescriptionError, UnavailableError, UsageError
from ptxkit.torch.dtypes import KINDS, numpy_dtype, torch_dtype
from ptxkit.torch.plan import Layout, Plan, Zeros, chosen, device_of, is_turned, objection
from ptxkit.torch.recent import Recent, is_zero
from ptxkit.torch.shapes import Sizes, flat, match, shape_of, shown
from ptxkit.workload import registry
from ptxkit.workload.values import option_value
from ptxkit.workload.variant import Variant
from ptxkit.workload.workload import Workload

KEPT_PLANS = 4096
"""Plans that an operation keeps; the oldest are dropped first. A plan holds about 10 KB of host memory."""

_Made = TypeVar("_Made")
_SCHEMA_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}
_INSTEAD = (
    "; tensors may have any number of leading dimensions, such as a batch, and torch.autograd.grad computes derivatives"
)
AUTOCAST_DEVICES = ("cpu", "cuda")
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
functorch_interpreter = torch._C._functorch.peek_interpreter_stack
_NOTHING: AbstractContextManager[Any] = nullcontext()


@dataclass(frozen=True)
class TensorArgument:
    """A tensor that an operation takes.

    Attributes:
        name: of the argument.
        shape: its pattern (:mod:`ptxkit.torch.shapes`).
        array: the input of the description; "" for the same name.
        kind: type of its elements in a description's words; "" for the type of the operation.
        memory: the pattern in which the kernel sees it, such as ``"batch*q heads d"``; "" for its shape with leading
            dimensions as one.
        layouts: of a matrix that kernels can read transposed, the letters in the description's option ``layout`` for a
            contiguous matrix, and for the transpose of one; "" for other tensors, which are copied if not contiguous.
    """

    name: str
    shape: str
    array: str = ""
    kind: str = ""
    memory: str = ""
    layouts: str = ""

    @property
    def input(self) -> str:
        """The input of the description."""
        return self.array or self.name


@dataclass(frozen=True)
class Option:
    """An argument that is no tensor.

    Attributes:
        name: of the argument.
        kind: bool, int, float, str or a Literal.
        default: its value if it is not given.
        target: the size or option of the description; "" for the same name.
        by_value: kernels take numbers that follow from it by value (``Operation.values``), so that their code does not
            depend on it, and each call may have another.
        optional: it may be None.
    """

    name: str
    kind: Any
    default: Any
    target: str = ""
    by_value: bool = False
    optional: bool = False

    @property
    def schema_type(self) -> str:
        """Its type in a schema of torch.library."""
        plain = type(typing.get_args(self.kind)[0]) if typing.get_origin(self.kind) is Literal else self.kind
        return _SCHEMA_TYPES[plain] + "?" * self.optional


@dataclass(frozen=True)
class Result:
    """A tensor that an operation returns.

    Attributes:
        name: the output of the description.
        shape, kind: as of :class:`TensorArgument`.
        saved: only computed if a derivative will be computed, which needs it; else a tensor without elements.
    """

    name: str
    shape: str
    kind: str = ""
    saved: bool = False


@dataclass(frozen=True)
class Gradient:
    """The derivative of an operation.

    Attributes:
        save: (arguments by name, results by name) -> tensors to keep for the backward pass.
        compute: (tensors kept, options by name, gradients of the visible results, whether each tensor argument needs its
            gradient) -> the gradient of each tensor argument, or None.
        by_user: whether a function of a user computes it, whose errors are reported as they are.
    """

    save: Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Sequence[torch.Tensor]]
    compute: Callable[
        [Sequence[torch.Tensor], Mapping[str, Any], Sequence[torch.Tensor], Sequence[bool]],
        Sequence[torch.Tensor | None],
    ]
    by_user: bool = False


@dataclass(frozen=True, eq=False)
class Operation:
    """A function on tensors that launches the kernels of a description.

    Attributes:
        name: of the function, and of the operation in torch's namespace.
        candidates: (description, variant), best first; a call takes the first that its device can run at its sizes.
        tensors, options, results: the arguments and results.
        kinds: types of elements that tensors without a kind of their own may have; () for those of the descriptions.
        constants: inputs of the description that follow from its sizes.
        values: options by name -> the inputs of the description that kernels take by value and that differ between calls.
        fixed: options of the description that are always the same.
        random: options by name -> whether the kernel draws random numbers; None for a kernel that never does. The last
            argument is the seed, an integer in a tensor of the CPU, which by default comes from torch's generator; the
            last result is the seed that was used.
        empty: computes the results where a size is 0, from the tensors in the order of the call and the options; None for
            zeros, which are sums over nothing.
        refuses: sizes by name -> why the operation refuses them, or None, where no constraint of the descriptions does.
        objects: (description, variant) -> why another candidate is faster, or None; by default what the description says.
        autocast: the type that autocast converts tensors to: ``"f32"``, ``"lower"`` for the 16-bit type of the context,
            ``"widest"`` for the widest type of the arguments, "" for no conversion.
        gradient: the derivative; None if there is none.
        namespace: in which the operation is registered.
    """

    name: str
    candidates: tuple[tuple[str | type[Workload], str], ...]
    tensors: tuple[TensorArgument, ...]
    options: tuple[Option, ...]
    results: tuple[Result, ...]
    kinds: tuple[str, ...] = ()
    constants: Callable[[Any], Mapping[str, np.ndarray[Any, Any]]] | None = None
    values: Callable[[Mapping[str, Any]], Mapping[str, np.generic]] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    random: Callable[[Mapping[str, Any]], bool] | None = None
    empty: Callable[..., Sequence[torch.Tensor]] | None = None
    refuses: Callable[[Mapping[str, int]], str | None] | None = None
    objects: Callable[[Workload, Variant], str | None] = objection
    autocast: Literal["", "f32", "lower", "widest"] = "widest"
    gradient: Gradient | None = None
    namespace: str = "ptxkit"
    _plans: dict[Any, Plan | Zeros] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)
    recent: Recent = field(default_factory=Recent, init=False, repr=False)

    # -- what the parts say together ---------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The name in messages."""
        return self.name

    @cached_property
    def visible(self) -> int:
        """Number of results that the function returns."""
        return sum(not result.saved for result in self.results)

    @property
    def trains(self) -> bool:
        """Whether some results are only computed for a derivative."""
        return self.visible < len(self.results)

    @cached_property
    def schema(self) -> str:
        """The schema for torch.library: tensors, options, whether to train, the seed."""
        arguments = [f"Tensor {t.name}" for t in self.tensors]
        arguments += [f"{o.schema_type} {o.name}" for o in self.options]
        arguments += ["bool training"] * self.trains + ["Tensor? seed"] * (self.random is not None)
        results = ["Tensor"] * (len(self.results) + (self.random is not None))
        return f"({', '.join(arguments)}) -> {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}"

    @cached_property
    def classes(self) -> tuple[tuple[type[Workload], Variant], ...]:
        """The candidates as classes and variants."""
        found = ((registry.get(w) if isinstance(w, str) else w, variant) for w, variant in self.candidates)
        return tuple((workload, workload.variant(variant)) for workload, variant in found)

    @cached_property
    def element_kinds(self) -> tuple[str, ...]:
        """Types of elements that the operation takes."""
        if self.kinds:
            return self.kinds
        offered: dict[str, None] = {}
        for workload, _ in self.classes:
            offered |= dict.fromkeys(kinds_of(workload))
        return tuple(offered)

    # -- shapes and types --------------------------------------------------------------------------------------------

    def sizes(self, tensors: Sequence[torch.Tensor]) -> tuple[Sizes, str]:
        """The sizes and the type of elements that follow from the arguments.

        Raises:
            UsageError: names an argument with a wrong shape, type or device.
        """
        sizes, kind = Sizes(), ""
        first = tensors[0] if tensors else None
        for argument, tensor in zip(self.tensors, tensors, strict=True):
            what = f"{self.title}: {argument.name}"
            check_tensor(self.title, argument.name, tensor)
            found = KINDS.get(tensor.dtype, "")
            allowed = (argument.kind,) if argument.kind else self.element_kinds
            if found not in allowed:
                known = ", ".join(str(torch_dtype(k)) for k in allowed)
                raise UsageError(
                    f"{what} has the type {tensor.dtype}, but must have {'one of ' * (len(allowed) > 1)}{known}"
                )
            if not argument.kind:
                if kind and found != kind:
                    origin = next(a.name for a in self.tensors if not a.kind)
                    raise UsageError(f"{what} has the type {tensor.dtype}, but {origin} has {torch_dtype(kind)}")
                kind = found
            assert first is not None
            if tensor.device != first.device:
                raise UsageError(f"{what} is on {tensor.device}, but {self.tensors[0].name} is on {first.device}")
            match(self.title, argument.name, argument.shape, tensor.shape, sizes)
        return sizes, kind or self.element_kinds[0]

    def accepted(self, option: Option) -> tuple[type, ...]:
        """Types of values that torch takes for an option as they are."""
        kind = option.schema_type.rstrip("?")
        found: tuple[type, ...] = {"bool": (bool,), "int": (int,), "float": (float,), "str": (str,)}[kind]
        return (*found, type(None)) if option.optional else found

    def check_option(self, option: Option, value: Any) -> Any:
        """The value of an option, converted to its type.

        Raises:
            UsageError: that is not possible without a change of the value, or would detach it from its derivative.
        """
        if value is None and option.optional:
            return value
        what = f"{self.title}: option {option.name}"
        if isinstance(value, (torch.Tensor, np.ndarray)):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                raise UsageError(f"{what} is a number without a derivative; pass {option.name}.item()")
            if value.ndim:
                choices = typing.get_args(option.kind) if typing.get_origin(option.kind) is Literal else ()
                wanted = f"one of {', '.join(map(str, choices))}" if choices else "a number"
                raise UsageError(f"{what} must be {wanted}, not an array of the shape {shown(value.shape)}")
            value = value.item()
        if isinstance(value, str) and option.kind in (int, float, bool):
            raise UsageError(f"{what} must be {option.kind.__name__}, not {value!r}")
        if option.kind is int and isinstance(value, float | np.floating):
            raise UsageError(f"{what} must be a whole number, not {value!r}")
        if option.kind in (int, float) and isinstance(value, int):
            largest = 2**63 - 1 if option.kind is int else int(np.finfo(np.float32).max)
            if abs(value) > largest:
                text = str(value) if abs(value) < 10**20 else "what is given"
                raise UsageError(f"{what} must be at most {largest:.6g} in magnitude, not {text}")
        return option_value(self.title, option.name, option.kind, value)

    def shapes(
        self, sizes: Sizes, kind: str, training: bool, options: Mapping[str, Any]
    ) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each result."""
        return [
            (shape_of(r.shape, sizes) if training or not r.saved else (0,), torch_dtype(r.kind or kind))
            for r in self.results
        ]

    # -- execution ---------------------------------------------------------------------------------------------------

    def execute(
        self, tensors: Sequence[torch.Tensor], options: Sequence[Any], training: bool, seed: int = 0
    ) -> list[torch.Tensor]:
        """The results that are computed, on the current stream.

        Raises:
            UsageError: names the argument that is wrong. CompileError, FaultError: the kernel does not compile, or failed.
        """
        plan, values = self.prepared(tensors, options, training)
        return plan(tensors, values if self.random is None else [*values, seed])

    def prepared(
        self, tensors: Sequence[torch.Tensor], options: Sequence[Any], training: bool
    ) -> tuple[Plan | Zeros, list[Any]]:
        """The plan for a call, and the numbers that it passes by value, without the seed.

        Raises:
            UsageError: names the argument that is wrong. CompileError: the kernel does not compile.
        """
        # the time of these lines is host time of each launch that is not among the recent ones
        kinds = [part for tensor in tensors for part in (tensor.shape, tensor.dtype, tensor.device)]
        for i, option in enumerate(options):
            if i not in self._by_value:
                kinds.append(repr(option) if is_zero(option) else option)  # 0.0 == -0.0
        turned: tuple[int, ...] = ()
        if self._matrices:
            turned = tuple(i for i in self._matrices if is_turned(tensors[i]))
        key = (training, turned, *kinds)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._planned(key, tensors, options, training, turned)
        return plan, self.numbers(options, plan) if self.values is not None and isinstance(plan, Plan) else []

    def numbers(self, options: Sequence[Any], plan: Plan) -> list[Any]:
        """The numbers that a plan passes by value and that differ between calls."""
        return [value.item() for value in self.passed(options).values()]

    @cached_property
    def _by_value(self) -> tuple[int, ...]:
        """Positions of the options that are passed by value."""
        return tuple(i for i, option in enumerate(self.options) if option.by_value)

    @cached_property
    def _matrices(self) -> tuple[int, ...]:
        """Positions of the tensors that kernels can read transposed."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.layouts)

    def named(self, options: Sequence[Any]) -> dict[str, Any]:
        """The options by name."""
        return dict(zip((option.name for option in self.options), options, strict=True))

    def passed(self, options: Sequence[Any]) -> Mapping[str, np.generic]:
        """The inputs of the description that are passed by value and differ between calls."""
        return {} if self.values is None else self.values(self.named(options))

    def scalars(self, workload: Workload) -> Mapping[str, Any]:
        """The other inputs that are passed by value."""
        return by_value(workload)

    def of_kind(self, kind: str) -> list[tuple[type[Workload], Variant]]:
        """The candidates that take elements of a type."""
        return [(d, v) for d, v in self.classes if kind in kinds_of(d)]

    def _planned(
        self,
        key: Any,
        tensors: Sequence[torch.Tensor],
        options: Sequence[Any],
        training: bool,
        turned: tuple[int, ...],
    ) -> Plan | Zeros:
        device = tensors[0].device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise UsageError(
                f"{self.title}: the first call with these shapes, types and layouts compiles and loads a kernel, which a CUDA "
                "graph cannot capture; call it once before the capture"
            )
        # ptxkit makes the context of its GPU current, so that torch's current device is restored
        current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with self._lock, current:  # one thread compiles
            if key not in self._plans:
                made = self.plan(tensors, options, training, turned)
                while len(self._plans) >= KEPT_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = made
            return self._plans[key]

    def plan(
        self, tensors: Sequence[torch.Tensor], options: Sequence[Any], training: bool, turned: tuple[int, ...] = ()
    ) -> Plan | Zeros:
        """A plan for tensors of these shapes and types.

        Args:
            turned: positions of the tensors that are transposes of contiguous matrices. If no kernel of the device reads them
                as they lie in memory, the plan copies them.

        Raises:
            UsageError: names the argument that is wrong. CompileError: the kernel does not compile.
        """
        sizes, kind = self.sizes(tensors)
        if self.refuses is not None and (why := self.refuses(sizes.values)):
            raise UsageError(f"{self.title}: {why}")
        device = tensors[0].device
        checked = {o.name: self.check_option(o, v) for o, v in zip(self.options, options, strict=True)}
        inputs = {
            a.input: (flat(a.memory or a.shape, sizes), numpy_dtype(t.dtype))
            for a, t in zip(self.tensors, tensors, strict=True)
        }
        shapes = zip(self.results, self.shapes(sizes, kind, training, checked), strict=True)
        outputs = {r.name: shape for r, shape in shapes if training or not r.saved}
        values = {n: v.dtype for n, v in self.passed(tuple(checked.values())).items()}
        if self.random is not None:
            values["seed"] = np.dtype(np.uint64)
        known = self.of_kind(kind)
        if self.has_no_elements(sizes):
            bare = accepted(partial(self.without_checks, d, sizes, kind, checked) for d, _ in known)
            self.check_empty(bare, inputs, outputs)
            return Zeros(Layout(inputs, outputs), device, partial(self.empty, options=checked) if self.empty else None)
        if all(0 in shape for shape, _ in outputs.values()):  # nothing to launch, although no size is 0
            for description, _ in known:
                self.check_inputs(self.workload(description, sizes, kind, checked, training), inputs)
            return Zeros(Layout(inputs, outputs), device)
        where = device_of(device)
        resolved = None
        able = [(d, v) for d, v in known if "layout" in d.fields()] if turned else []
        if able:
            layouts = "".join(a.layouts[i in turned] for i, a in enumerate(self.tensors) if a.layouts)
            with suppress(UnavailableError, UsageError):  # not for this device or these sizes: copies are made
                made = self.workloads(able, sizes, kind, checked, training, layouts)
                resolved = chosen(made, where, self.objects)
        if resolved is None:
            turned = ()
            made = self.workloads(known, sizes, kind, checked, training)
            for workload, _ in made:
                self.check_inputs(workload, inputs)
            resolved = chosen(made, where, self.objects)
        stored = [tensor.t() if i in turned else tensor for i, tensor in enumerate(tensors)]
        for i in turned:
            name = self.tensors[i].input
            inputs[name] = (tuple(stored[i].shape), inputs[name][1])
        found = resolved.workload
        constants = self.constants(found) if self.constants is not None else {}
        given = tuple(tuple(tensor.shape) for tensor in stored)
        layout = Layout(inputs, outputs, constants, values, lambda: self.scalars(found), given, turned)
        return Plan(self.title, resolved, layout, device)

    def workload(
        self,
        description: type[Workload],
        sizes: Sizes,
        kind: str,
        options: Mapping[str, Any],
        training: bool = False,
        layout: str = "",
    ) -> Workload:
        """A description with the sizes and options of a call; UsageError if it refuses them.

        Args:
            layout: its option ``layout``; "" for the default, or for a description without it.
        """
        return description(**self._fields(description, sizes, kind, options, training, layout))

    def workloads(
        self,
        known: Sequence[tuple[type[Workload], Variant]],
        sizes: Sizes,
        kind: str,
        options: Mapping[str, Any],
        training: bool = False,
        layout: str = "",
    ) -> list[tuple[Workload, Variant]]:
        """The descriptions that accept the sizes and options of a call, with their variants.

        Raises:
            UsageError: all refuse them; the error is that of the first one.
        """
        return accepted(
            lambda d=d, v=v: (self.workload(d, sizes, kind, options, training, layout), v)  # type: ignore[misc]
            for d, v in known
        )

    def _fields(
        self,
        description: type[Workload],
        sizes: Sizes,
        kind: str,
        options: Mapping[str, Any],
        training: bool = False,
        layout: str = "",
    ) -> dict[str, Any]:
        known = description.fields()
        fields: dict[str, Any] = {n: int(v) for n, v in sizes.values.items() if n in known}
        fields |= {o.target or o.name: options[o.name] for o in self.options if not o.by_value}
        fields |= {"layout": layout} if layout else {}
        fields |= {"dtype": kind} if "dtype" in known and any(not t.kind for t in self.tensors) else {}
        fields |= {"training": training} if "training" in known else {}
        return {**fields, **self.fixed}

    def has_no_elements(self, sizes: Sizes) -> bool:
        """Whether a size is 0, so that no kernel can be launched."""
        return 0 in sizes.values.values()

    def without_checks(
        self, description: type[Workload], sizes: Sizes, kind: str, options: Mapping[str, Any]
    ) -> Workload:
        """A description of which a size is 0; UsageError if its constraints on sizes and options refuse it."""
        made = object.__new__(description)
        defaults = {f.name: f.default for f in dataclasses.fields(description)}  # type: ignore[arg-type]
        for name, value in (defaults | self._fields(description, sizes, kind, options)).items():
            object.__setattr__(made, name, value)
        with suppress(ZeroDivisionError, DescriptionError):  # a constraint that divides by the size does not apply
            for complaint in made.constraints():
                raise UsageError(f"{self.title} with {made.size_text()}: {complaint}")
        return made

    def check_empty(
        self,
        workloads: Sequence[Workload],
        inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
        outputs: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    ) -> None:
        """Check what constraints do not, where a size is 0; patterns describe all of bundled descriptions."""

    def check_inputs(self, workload: Workload, inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Compare shapes of inputs that no pattern describes; those of bundled descriptions are all described."""

    # -- registration ------------------------------------------------------------------------------------------------

    @cached_property
    def registered(self) -> Any:
        """The operation of ``torch.library``; made at the first use."""
        with self._lock:
            return self._register()

    def _register(self) -> Any:
        count, chosen_ = len(self.tensors), len(self.options)
        tags = (torch.Tag.nondeterministic_seeded,) if self.random is not None else ()

        def split(args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], bool, torch.Tensor | None]:
            rest = list(args[count + chosen_ :])
            training = bool(rest.pop(0)) if self.trains else False
            return args[:count], args[count : count + chosen_], training, rest.pop(0) if rest else None

        def returned(results: list[torch.Tensor]) -> Any:
            return results[0] if len(results) == 1 else tuple(results)

        def implementation(*args: Any) -> Any:
            tensors, options, training, seed = split(args)
            used = self.drawn(options, seed)
            results = self.execute(tensors, options, training, used)
            if self.trains and not training:
                missing = (r for r in self.results if r.saved)
                results += [tensors[0].new_empty(0, dtype=torch_dtype(r.kind) if r.kind else None) for r in missing]
            if self.random is not None:
                results.append(torch.tensor(used, dtype=torch.int64, device="cpu"))
            return returned(results)

        def fake(*args: Any) -> Any:
            tensors, options, training, _ = split(args)
            for option, value in zip(self.options, options, strict=True):
                if isinstance(value, (str, bool)):  # numbers may be symbols here
                    self.check_option(option, value)
            sizes, kind = self.sizes(tensors)
            shapes = self.shapes(sizes, kind, training, self.named(options))
            results = [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in shapes]
            if self.random is not None:
                results.append(torch.empty((), dtype=torch.int64, device="cpu"))
            return returned(results)

        def refuse(*_: Any) -> Any:
            raise NotImplementedError(f"ptxkit.torch.{self.title} does not support torch.func.vmap{_INSTEAD}")

        made = torch.library.custom_op(
            f"{self.namespace}::{self.name}", implementation, mutates_args=(), schema=self.schema, tags=tags
        )
        made.register_fake(fake)
        made.register_vmap(refuse)
        self._register_gradient(made, split)
        return made._opoverload

    def _register_gradient(self, made: Any, split: Callable[..., Any]) -> None:
        gradient, count = self.gradient, len(self.tensors)
        names = [*(t.name for t in self.tensors), *(o.name for o in self.options)]

        def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
            if gradient is None:
                return
            tensors, options, training, _ = split(inputs)
            results = (output,) if isinstance(output, torch.Tensor) else output
            by_name = dict(zip([*(r.name for r in self.results), "seed"], results, strict=False))
            ctx.options = self.named(options)
            ctx.complete = training or not self.trains
            ctx.count = len(inputs)
            if ctx.complete:
                arguments = dict(zip(names, (*tensors, *options), strict=True))
                ctx.save_for_backward(*gradient.save(arguments, by_name))

        def backward(ctx: Any, *grads: Any) -> Any:
            if gradient is None:
                raise NotImplementedError(f"ptxkit.torch.{self.title} {self.without_gradient}")
            if not ctx.complete:
                raise RuntimeError(
                    f"{self.namespace}::{self.title}: pass training=True to compute its derivative later"
                )
            wanted = ctx.needs_input_grad[:count]
            with without_autocast(grads[0]):
                found = self.derivative(ctx.saved_tensors, ctx.options, grads[: self.visible], wanted)
            kept = [g if needed else None for g, needed in zip(found, wanted, strict=True)]
            return (*kept, *[None] * (ctx.count - count))

        made.register_autograd(backward, setup_context=keep)

    def derivative(self, saved: Any, options: Mapping[str, Any], grads: Any, wanted: Any) -> Sequence[Any]:
        """The gradients of the tensors.

        Raises:
            NotImplementedError: the kernel of the derivative does not have these sizes, which that of the operation has.
        """
        assert self.gradient is not None
        try:
            return self.gradient.compute(saved, options, grads, wanted)
        except UsageError as error:
            if self.gradient.by_user:
                raise
            instead = "detach its result, or call it under torch.no_grad()"
            raise NotImplementedError(
                f"ptxkit.torch.{self.title} has no derivative for these tensors ({error}); {instead}"
            ) from error

    @property
    def without_gradient(self) -> str:
        """Why there is no derivative, as the end of a sentence."""
        if self.name.endswith("_backward"):
            return "has no derivative: derivatives of derivatives (double backward) are not implemented"
        return "has no derivative; detach its result, or call it under torch.no_grad()"

    def converted(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors, in the types that autocast gives to the operation; those of other than floating-point types
        unchanged."""
        floats = [t.dtype for t, a in zip(tensors, self.tensors, strict=True) if not a.kind and t.is_floating_point()]
        dtype = torch.float32
        if self.autocast == "lower":
            dtype = torch.get_autocast_dtype(tensors[0].device.type)
        elif self.autocast == "widest":
            dtype = functools.reduce(torch.promote_types, floats) if floats else dtype
        return [
            t.to(dtype) if not a.kind and t.is_floating_point() else t
            for t, a in zip(tensors, self.tensors, strict=True)
        ]

    def drawn(self, options: Sequence[Any], seed: int | torch.Tensor | None) -> int:
        """The seed of a call: the one that is given, or one from torch's default generator if random numbers are needed."""
        if self.random is None:
            return 0
        if seed is None:
            return int(torch.randint(0, 1 << 62, (), device="cpu")) if self.random(self.named(options)) else 0
        return seed_of(self.title, seed)


def accepted(makes: Iterable[Callable[[], _Made]]) -> list[_Made]:
    """What functions make that do not refuse.

    Raises:
        UsageError: all refuse; the error is that of the first one.
    """
    made: list[_Made] = []
    error: UsageError | None = None
    for make in makes:
        try:
            made.append(make())
        except UsageError as refused:
            error = error or refused
    if not made and error is not None:
        raise error
    return made


def kinds_of(workload: type[Workload]) -> tuple[str, ...]:
    """Types of elements of a description: those of its option ``dtype``, its attribute ``dtype``, or f32."""
    if "dtype" in workload.option_types():
        return typing.get_args(workload.option_types()["dtype"])
    return (str(getattr(workload, "dtype", "f32")),)


def by_value(workload: Workload) -> dict[str, Any]:
    """The inputs of a description that are passed by value; they depend on its options and not on its sizes."""
    small = type(workload)(**{**workload.options, **workload.emulator_sizes})
    given = small.inputs(np.random.default_rng(0))
    return {name: value for name, value in given.items() if np.ndim(value) == 0}


def seed_of(operation: str, seed: Any) -> int:
    """The seed as an integer, from an integer or a tensor of one; UsageError if it is none, or out of range."""
    if isinstance(seed, torch.Tensor):
        if seed.numel() != 1 or seed.is_floating_point() or seed.is_complex() or seed.dtype is torch.bool:
            raise UsageError(
                f"{operation}: seed must be a whole number, not a tensor of {seed.numel()} elements of {seed.dtype}"
            )
        seed = seed.item()
    try:
        number = operator.index(seed)
    except TypeError:
        raise UsageError(f"{operation}: seed must be a whole number, not {seed!r}") from None
    if not 0 <= number < 1 << 63:
        raise UsageError(f"{operation}: seed must be a whole number from 0 to 2^63 - 1, not {number}")
    return number


def number_of(operation: str, name: str, kind: type[np.generic], value: Any) -> np.generic:
    """A number in the type in which a kernel takes it by value; UsageError if that cannot represent it."""
    try:
        with np.errstate(over="ignore"):
            found = kind(value)
        fits = bool(np.isfinite(found)) or not np.isfinite(float(value)) if kind is not np.bool_ else True
    except (OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        text = str(value) if isinstance(value, float) or abs(value) < 10**20 else "what is given"
        raise UsageError(f"{operation}: {name} must be representable in {np.dtype(kind)}, not {text}")
    return found


def check_tensor(operation: str, name: str, value: Any) -> None:
    """Raise UsageError unless an argument is a tensor whose elements lie in memory with strides."""
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"{operation}: {name} must be a tensor, not {type(value).__name__}")
    if value.is_nested:
        raise UsageError(f"{operation}: {name} is a nested tensor; pass torch.nested.to_padded_tensor({name}, 0.0)")
    if value.layout is not torch.strided:
        raise UsageError(f"{operation}: {name} is a tensor with the layout {value.layout}; pass {name}.to_dense()")
    if value.is_quantized:
        raise UsageError(f"{operation}: {name} is a quantized tensor; pass {name}.dequantize()")


def without_autocast(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Disables autocast for the device of a tensor: gradients have the types of the forward pass."""
    if not _is_any_autocast_enabled():
        return _NOTHING
    return torch.autocast(tensor.device.type, enabled=False) if is_autocast(tensor) else _NOTHING


def is_autocast(tensor: torch.Tensor) -> bool:
    """Whether autocast is enabled for the device of a tensor; the device meta has no autocast.

    ``torch.amp.is_autocast_available`` would end the graph of torch.compile in torch 2.11.
    """
    kind = tensor.device.type
    return kind in AUTOCAST_DEVICES and bool(torch.is_autocast_enabled(kind))


def check_transforms(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse what would compute another result without an error: transforms of torch.func, and forward-mode derivatives.

    Raises:
        NotImplementedError: names the transform.
    """
    interpreter = functorch_interpreter()
    if interpreter is not None and interpreter.key() != torch._C._functorch.TransformType.Functionalize:
        raise NotImplementedError(
            f"ptxkit.torch.{name} does not support torch.func.{interpreter.key().name.lower()}{_INSTEAD}"
        )
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(f"ptxkit.torch.{name} has no forward-mode derivative; use torch.autograd.grad")
