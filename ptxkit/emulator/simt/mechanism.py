"""Completion mechanisms of asynchronous operations. Each family of asynchronous instructions declares one.

A family creates one :class:`Mechanism`, and passes it to the wave's queue with every operation, commit and wait, so that
neither the scheduler nor the race check depends on the families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, eq=False)
class Mechanism(Generic[T]):
    """A mechanism by which the asynchronous operations of a family complete.

    Attributes:
        name: the name in messages and in the debugger.
        pending: the class that holds the operations in flight of a wave; its argument is the number of threads.
        operation: the text that names an operation, with ``{}`` for the threads that issued it; "" for mbarriers.
        wait: for messages of the race check, how a program waits for an operation.
        generic_proxy: the operations access memory through the generic proxy, as cp.async does, not through the async proxy.
        span: number of warps that issue an operation together: 4 for a warpgroup, 0 for single threads.
    """

    name: str
    pending: Callable[[int], T]
    operation: str = ""
    wait: str = ""
    span: int = 1
    generic_proxy: bool = False
