"""Caches what is computed from a workload and the device to which it is bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

Value = TypeVar("Value")


def cached_per_device(function: Callable[..., Value]) -> Callable[..., Value]:
    """Let a function of a workload, and of further arguments, be computed once for equal workloads on the same device.

    Workloads are equal if their sizes and options are. A cache of the function itself would give the value of one device for
    another one.
    """

    @lru_cache(maxsize=1024)
    def found(w: Any, device: object, *more: Any) -> Value:
        return function(w, *more)

    @wraps(function)
    def call(w: Any, *more: Any) -> Value:
        return found(w, w.device, *more)

    return call
