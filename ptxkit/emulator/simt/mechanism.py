"""Completion mechanisms of asynchronous operations: what a family of instructions declares of its own.

A family makes one :class:`Mechanism`, and hands it to the wave's queue with every operation, commit and wait. Neither the
scheduler nor the race check knows the families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, eq=False)
class Mechanism(Generic[T]):
    """How the operations of a family complete.

    Attributes:
        name: in messages and in the debugger.
        pending: holds the operations in flight of a wave, made from its number of threads.
        operation: an operation in words, with ``{}`` for the threads that issued it; "" where it has no agent of its own.
        wait: for the race check, how a program waits for one.
        span: warps whose operations are one agent's: 4 where a warpgroup issues them, 0 where single threads do.
    """

    name: str
    pending: Callable[[int], T]
    operation: str = ""
    wait: str = ""
    span: int = 1
