"""Futures that are waited for, any number of them: the cost of one that ends does not depend on how many others there are."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """Futures, each with what it is for.

    ``concurrent.futures.wait`` would visit all of them whenever one ends.

    Attributes:
        futures: those that :meth:`done` has not returned.
    """

    def __init__(self) -> None:
        self.futures: dict[Future[Any], T] = {}
        self._ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self.futures)

    def add(self, future: Future[Any], meaning: T) -> None:
        """Wait for a future, too."""
        self.futures[future] = meaning
        future.add_done_callback(self._ended.put)

    def done(self) -> Iterator[tuple[Future[Any], T]]:
        """Wait until one has ended; then all that have ended by now, which are not waited for any more."""
        ended = [self._ended.get()]
        while not self._ended.empty():
            ended.append(self._ended.get())
        for future in ended:
            yield future, self.futures.pop(future)
