"""Calls of an operation: launched without torch's dispatcher where nothing observes or transforms them, else through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad

from ptxkit.errors import UsageError
from ptxkit.torch.operations import (
    Operation,
    check_tensor,
    check_transforms,
    functorch_interpreter,
    is_autocast,
    seed_of,
    without_autocast,
)
from ptxkit.torch.plan import Zeros
from ptxkit.torch.recent import NOTHING_KNOWN, Call, Kind, Matches, has_negative

_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_is_functorch = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # as torch.autograd.grad(is_grads_batched=True) makes them
_grad_enabled = torch.is_grad_enabled
_is_traced = torch.compiler.is_dynamo_compiling
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_SEED = torch.zeros((), dtype=torch.int64, device="cpu")
"""The seed of a call that draws no random numbers."""


def function_of(operation: Operation) -> Callable[..., Any]:
    """The function that calls an operation: ``call(tensors, options, seed)``, of tuples and, if it is random, the seed.

    On tensors of a GPU, the launch takes place without torch's dispatcher, which costs more
    time than the launch. Where something observes or transforms operations (torch.compile, dispatch modes,
    functorch), the call goes through the dispatcher. A call like a recent one (:mod:`ptxkit.torch.recent`) is
    recognised in one step.
    """
    visible, trains, random = operation.visible, operation.trains, operation.random is not None
    names = [t.name for t in operation.tensors]
    accepted = [operation.accepted(option) for option in operation.options]
    recent = operation.recent
    calls = recent.calls

    def checked(options: tuple[Any, ...]) -> tuple[Any, ...]:
        """The options in the types of the schema: numbers and texts."""
        if all(
            type(value) in types and (type(value) is not int or abs(value) < 1 << 63)
            for value, types in zip(options, accepted, strict=True)
        ):
            return options
        return tuple(operation.check_option(o, v) for o, v in zip(operation.options, options, strict=True))

    def direct(tensors: tuple[torch.Tensor, ...], given: tuple[Any, ...], seed: Any) -> Any:
        """The results for plain tensors, without the dispatcher; None if the call needs it."""
        key = options = checked(given)
        converts = operation.autocast and is_autocast(tensors[0])
        if converts:  # calls under autocast are kept for its type and the tensors that it makes
            tensors = tuple(operation.converted(tensors))
            key = (*options, torch.get_autocast_dtype(tensors[0].device.type))
        run = recent.found(tensors, key)
        if run is not None:  # a recent call whose options were tensors, or under autocast
            return run(tensors, operation.drawn(options, seed) if random else None)
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if wanted and operation.gradient is None:
            return None
        plan, values = operation.prepared(tensors, options, wanted and trains)
        if converts and isinstance(plan, Zeros):  # it may compute by torch's operations, which autocast would convert again
            return None
        differentiable = partial(_differentiable, operation, options) if wanted else None
        call = Call(plan, values, differentiable, visible, tensors)
        recent.add(tensors, key, call)
        return call.run(tensors, operation.drawn(options, seed) if random else None)

    def call(tensors: tuple[torch.Tensor, ...], options: tuple[Any, ...] = (), seed: Any = None) -> Any:
        if not _is_traced():
            # the time of these lines is host time of each launch
            matches: Matches | None = None
            others: tuple[Kind, ...] = ()
            # dispatch modes are seen by the guards
            if not _function_modes() and functorch_interpreter() is None and forward_ad._current_level < 0:
                try:
                    zeros, matches, run, others = calls[_grad_enabled()].get(options, NOTHING_KNOWN)
                    if zeros and has_negative(options, zeros):
                        matches, others = None, ()
                    # guards read sizes; nested tensors have none, which ends the process there, in functorch too
                    for tensor in tensors:
                        if tensor.is_nested:
                            matches, others = None, ()
                except TypeError:  # an option that has no hash, such as an array
                    options = options if torch.compiler.is_compiling() else checked(options)
                    matches, others = None, ()
                except AttributeError:  # an argument that is no tensor
                    matches, others = None, ()
            if matches is not None and matches(*tensors):
                return run(tensors, operation.drawn(options, seed) if random else None)
            for kind in others:
                if kind[0](*tensors):
                    recent.used(options, kind)
                    return kind[1](tensors, operation.drawn(options, seed) if random else None)
            if not torch.compiler.is_compiling():
                if is_plain(tensors):
                    results = direct(tensors, options, seed)
                    if results is not None:
                        return results
                for name, given in zip(names, tensors, strict=True):
                    check_tensor(operation.title, name, given)
                check_transforms(operation.title, tensors)
                options = checked(options)
        arguments: tuple[Any, ...] = tensors
        if operation.autocast and is_autocast(tensors[0]):
            arguments = tuple(operation.converted(tensors))
        arguments += options
        if trains:
            arguments += (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in arguments[: len(names)]),)
        if random and not isinstance(seed, torch.Tensor | None):
            seed = torch.tensor(seed_of(operation.title, seed), dtype=torch.int64, device="cpu")
        found = operation_call(*arguments, seed) if random else operation_call(*arguments)
        if visible == 1:
            return found if isinstance(found, torch.Tensor) else found[0]
        return found[:visible]

    operation_call = operation.registered
    return call


def is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call may bypass torch's dispatcher: on a GPU, with nothing that observes or transforms the call."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN or not is_on_gpu(tensor) or tensor.is_neg():
            return False
        if _is_functorch(tensor) or _is_batched(tensor):
            return False
        if tensor.is_nested or tensor.layout is not torch.strided or tensor._is_zerotensor():
            return False
    return not (
        _dispatch_modes()
        or _function_modes()
        or functorch_interpreter() is not None
        or forward_ad._current_level >= 0
    )


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in the memory of a GPU."""
    return tensor.is_cuda


@dataclass(frozen=True)
class _Saved:
    """What a derivative needs of a call.

    Attributes:
        operation: with its derivative.
        options: by name.
        picks: finds the tensors to keep, as a tuple, among the arguments, the results and the seed; None if the derivative
            computes some of them.
    """

    operation: Operation
    options: Mapping[str, Any]
    picks: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None

    def kept(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], seed: int | None) -> Any:
        """The tensors to keep for the backward pass."""
        if self.picks is not None:
            return self.picks((*tensors, *results, _NO_SEED))
        operation = self.operation
        assert operation.gradient is not None
        made = dict(zip((r.name for r in operation.results), results, strict=True))
        if seed is not None:
            made["seed"] = torch.tensor(seed, dtype=torch.int64, device="cpu") if seed else _NO_SEED
        given = dict(zip((t.name for t in operation.tensors), tensors, strict=True))
        return operation.gradient.save({**given, **self.options}, made)


def _saved(operation: Operation, options: Sequence[Any]) -> _Saved:
    """What the derivative of a call with these options keeps, found by one call with objects in place of tensors."""
    assert operation.gradient is not None
    named = operation.named(options)
    given: dict[str, Any] = {t.name: object() for t in operation.tensors}
    made: dict[str, Any] = {r.name: object() for r in operation.results}
    picks: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None
    if operation.random is None or not operation.random(named):
        order = [*given.values(), *made.values(), _NO_SEED]
        with suppress(UsageError, AttributeError, TypeError):  # it computes with them
            kept = operation.gradient.save({**given, **named}, {**made, "seed": _NO_SEED})
            places = [next(i for i, each in enumerate(order) if each is one) for one in kept]
            # itemgetter returns a tuple for two places or more
            picks = itemgetter(*places) if len(places) > 1 else lambda tensors: [tensors[i] for i in places]
    return _Saved(operation, named, picks)


def _differentiable(
    operation: Operation, options: Sequence[Any], compute: Callable[..., Sequence[torch.Tensor]]
) -> Callable[..., Any]:
    """A function of tensors and the seed, with a derivative, without torch's dispatcher; ``compute`` computes all results."""
    saved = _saved(operation, options)
    apply = super(torch.autograd.Function, _Direct).apply  # Function.apply adds what functorch needs, which is not active here
    return lambda tensors, seed: apply(saved, compute, seed, *tensors)


class _Direct(torch.autograd.Function):
    """An operation with its derivative, without torch's dispatcher."""

    @staticmethod
    def forward(
        ctx: Any,
        saved: _Saved,
        compute: Callable[..., Sequence[torch.Tensor]],
        seed: int | None,
        *tensors: torch.Tensor,
    ) -> Any:
        """The visible results."""
        results = compute(tensors, seed)
        ctx.saved = saved
        ctx.save_for_backward(*saved.kept(tensors, results, seed))
        visible = saved.operation.visible
        return results[0] if visible == 1 else tuple(results[:visible])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The gradients of the tensors that need one."""
        saved = ctx.saved
        wanted = ctx.needs_input_grad[3:]
        with without_autocast(grads[0]):
            found = saved.operation.derivative(ctx.saved_tensors, saved.options, grads, wanted)
        return (None, None, None, *(g if needed else None for g, needed in zip(found, wanted, strict=True)))
