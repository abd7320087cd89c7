"""Recent calls of an operation: a call with tensors of the same kind is recognised in one step, and launched.

The kind of a tensor is what torch.compile's guards compare: class, type, device, shape, strides, whether it requires a
gradient, and the keys of torch's dispatcher that apply to it in the current state of the thread, so that a call under autocast
or in a transform of torch.func is another kind. One function of torch compares all tensors of a call
(``torch._C._dynamo.guards.TensorGuards``). Where torch does not have it, or it compares less, no call is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import copysign
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ptxkit.torch.plan import Plan, Zeros, plainly

KEPT_OPTIONS = 64
"""Sets of options of which an operation keeps calls."""
KEPT_KINDS = 8
"""Kinds of tensors of which it keeps calls, for each set of options; the latest ones."""


class _Observer(TorchDispatchMode):
    """A dispatch mode."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation."""
        return function(*args, **(kwargs or {}))


def _working(guards: Any) -> Any:
    """torch's class of guards, if it compares what this module relies on; else None, so that no call is kept."""
    probe = torch.empty(2, 3, device="cpu")
    others = (torch.empty(3, 3), probe.double(), torch.empty(3, 2).t(), probe.clone().requires_grad_())
    try:
        check = guards(probe, dynamic_dims_sizes=[[2, 3]], dynamic_dims_strides=[[3, 1]]).check
        with _Observer():
            seen = check(probe)
        works = check(probe) and not seen and not any(check(other) for other in others)
    except (AttributeError, TypeError, SystemError, RuntimeError):  # of another version of torch
        return None
    return guards if works else None


_Guards: Any = _working(getattr(torch._C._dynamo.guards, "TensorGuards", None))


class Call:
    """What is launched for tensors of one kind.

    Args:
        plan: the compiled launches.
        values: numbers that are passed by value, without the seed.
        differentiable: makes a function with a derivative of one that computes all results; None without a derivative.
        visible: number of results that are returned.
        tensors: of the kind.
    """

    __slots__ = ("quick", "run")

    run: Callable[[Sequence[torch.Tensor], int | None], Any]
    """The visible results for tensors of the kind and a seed: one tensor, or a tuple."""

    def __init__(
        self,
        plan: Plan | Zeros,
        values: Sequence[Any],
        differentiable: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
        visible: int,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        self.quick = isinstance(plan, Plan) and plan.reads(tensors)
        alone = visible == 1 and differentiable is None
        compute = plan.quick(values, alone) if isinstance(plan, Plan) and self.quick else plainly(plan, values, alone)
        if differentiable is not None:
            self.run = differentiable(compute)
        else:
            self.run = compute if alone else lambda given, seed: tuple(compute(given, seed)[:visible])


Matches = Callable[..., bool]
"""Whether tensors are of a kind."""
Kind = tuple[Matches, Callable[..., Any]]
"""A function that says whether tensors are of a kind, and :attr:`Call.run`."""


Known = tuple[tuple[int, ...], Matches | None, Callable[..., Any], tuple[Kind, ...]]
"""The kinds of tensors with which an operation was called with the same options: positions of zeros among the options, the
two functions of the kind that is compared first, and the other kinds. A call unpacks a plain tuple in less time than a named
one."""


def _nothing(*_: Any) -> Any:
    raise AssertionError("a call of no known kind")


NOTHING_KNOWN: Known = ((), None, _nothing, ())


def kinds_of(known: Known) -> tuple[Kind, ...]:
    """All kinds, in the order in which they are compared."""
    _, matches, run, others = known
    return () if matches is None else ((matches, run), *others)


def is_zero(option: Any) -> bool:
    """Whether an option is a zero with a sign: 0.0 and -0.0 are equal as keys, but not for kernels."""
    return isinstance(option, float | np.floating) and not option


def has_negative(options: Sequence[Any], zeros: tuple[int, ...]) -> bool:
    """Whether one of the zeros is -0.0."""
    return any(copysign(1, options[i]) < 0 for i in zeros)


class Recent:
    """The recent calls of an operation.

    Attributes:
        calls: for calls without and with gradients enabled: options -> what is known of them. Only calls without -0.0 are
            kept; whether it is one of those, the caller decides by the sign of a zero.
    """

    def __init__(self) -> None:
        self.calls: tuple[dict[tuple[Any, ...], Known], ...] = ({}, {})
        self._turns = count(1)

    def found(self, tensors: Sequence[torch.Tensor], options: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What a call like a recent one launches, for tensors that are not nested; None if there was none.

        Args:
            options: numbers and texts.
        """
        known = self.calls[torch.is_grad_enabled()].get(options, NOTHING_KNOWN)
        if has_negative(options, known[0]):
            return None
        return next((run for matches, run in kinds_of(known) if matches(*tensors)), None)

    def add(self, tensors: Sequence[torch.Tensor], options: tuple[Any, ...], call: Call) -> None:
        """Keep a call, unless it copies tensors, or too many sets of options are known already.

        Args:
            options: numbers and texts. An object whose value can change, such as a tensor, would be taken for the same option
                after the change.
        """
        if _Guards is None or not call.quick:
            return
        zeros = tuple(i for i, option in enumerate(options) if is_zero(option))
        if has_negative(options, zeros):
            return
        calls = self.calls[torch.is_grad_enabled()]
        known = calls.get(options, NOTHING_KNOWN)
        if known is NOTHING_KNOWN and len(calls) >= KEPT_OPTIONS:
            return
        shapes, strides = ([list(size) for size in of] for of in ((t.shape for t in tensors), (t.stride() for t in tensors)))
        guards = _Guards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        if guards.check(*tensors):  # not if a tensor is given twice
            calls[options] = zeros, guards.check, call.run, kinds_of(known)[: KEPT_KINDS - 1]

    def used(self, options: tuple[Any, ...], kind: Kind) -> None:
        """Compare a kind first from now on, the next time in sixteen that this is called: each kind that is compared in vain
        takes a tenth of the time of a call, and so does a change of the order."""
        if next(self._turns) % 16:
            return
        calls = self.calls[torch.is_grad_enabled()]
        known = calls.get(options, NOTHING_KNOWN)
        if kind in known[3]:
            calls[options] = known[0], *kind, tuple(k for k in kinds_of(known) if k is not kind)
