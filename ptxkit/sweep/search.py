"""Selects the configurations to evaluate, through an ask-and-tell interface. The module does no input or output.

*guided* models the logarithm of the time with extremely randomized trees (P. Geurts, D. Ernst, L. Wehenkel, 2006, through
scikit-learn) over the parameters and the launch geometry. It selects the tiles with the lowest bound: the mean of the
trees minus CAUTION standard deviations. Trees model the steps of tile spaces well, such as a spill, or one CTA more per
SM.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np

from ptxkit.errors import UnavailableError
from ptxkit.workload.launch import Tile

Features = Callable[[Tile], Sequence[float]]

START_SHARE = 0.01  # share of the space that the guided search evaluates before it has a model
START_MINIMUM = 10
TREES = 120
SPLIT_SHARE = 0.5  # share of the features that a split considers; it makes the trees differ where data is sparse
CAUTION = 1.0  # standard deviations of the trees that are subtracted from their mean
THREADS = 8  # that fit the trees, while the compiling processes have a lower priority
FAILED = 1.5  # logarithm of the factor by which a failed configuration counts as slower than the slowest


UNLIMITED = sys.maxsize
""":attr:`Search.ahead` of a search that does not use the times."""


class Shape(Protocol):
    """The shape of a launch: CTAs of the grid, threads and bytes of shared memory of a CTA."""

    @property
    def ctas(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...


class Search(Protocol):
    """An ask-and-tell interface: :meth:`ask` returns a tile to try, :meth:`tell` takes its time.

    Attributes:
        ahead: maximum number of tiles in flight; further ones would be selected without the results of these.
        batch: minimum number of tiles to request at once, while others are in flight.
    """

    ahead: int
    batch: int

    def ask(self, count: int) -> list[Tile]:
        """Up to ``count`` tiles that were not returned before; none when there are no more."""

    def reserve(self, tiles: Iterable[Tile]) -> list[Tile]:
        """Those of the tiles that :meth:`ask` has not returned; it will not return them later."""

    def tell(self, tile: Tile, value: float) -> None:
        """Report the time of a tile; infinite when it failed."""


class Listed:
    """Every tile, in the order given: exhaustive, or random after a shuffle."""

    ahead = UNLIMITED
    batch = 1

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self.left = dict.fromkeys(tiles)

    def ask(self, count: int) -> list[Tile]:
        """See :class:`Search`."""
        return self.reserve(list(islice(self.left, count)))

    def reserve(self, tiles: Iterable[Tile]) -> list[Tile]:
        """See :class:`Search`."""
        found = [tile for tile in dict.fromkeys(tiles) if tile in self.left]
        for tile in found:
            del self.left[tile]
        return found

    def tell(self, tile: Tile, value: float) -> None:
        """Does nothing: the order is fixed."""


def exhaustive(tiles: Sequence[Tile]) -> Listed:
    """All tiles, the preferred ones first."""
    return Listed(tiles)


def shuffled(tiles: Sequence[Tile], seed: int) -> Listed:
    """All tiles in a random order."""
    return Listed(random.Random(seed).sample(list(tiles), len(tiles)))


class Guided:
    """Model-guided search.

    Args:
        tiles: the space, preferred tiles first: the first one is tried in any case.
        features: tile -> numbers that a model can learn from.
        seed: of all that is random.

    Raises:
        UnavailableError: scikit-learn is not installed.
    """

    ahead = 16
    batch = 8

    def __init__(self, tiles: Sequence[Tile], features: Features, seed: int = 0) -> None:
        try:
            from sklearn.ensemble import ExtraTreesRegressor
        except ImportError:
            raise UnavailableError(
                "the guided search needs scikit-learn: pip install 'ptxkit[sweep]'; or take --search random"
            ) from None
        threads = min(THREADS, len(os.sched_getaffinity(0)))
        self._model: Any = ExtraTreesRegressor(TREES, max_features=SPLIT_SHARE, random_state=seed, n_jobs=threads)
        self._random = random.Random(seed)
        self._rows = np.array([features(tile) for tile in tiles], dtype=np.float32).reshape(len(tiles), -1)
        self._tiles = list(tiles)
        self._place = {tile: i for i, tile in enumerate(tiles)}
        self._free = set(range(len(tiles)))
        self._known: dict[int, float] = {}
        self._start = max(START_MINIMUM, math.ceil(START_SHARE * len(tiles)))

    def ask(self, count: int) -> list[Tile]:
        """See :class:`Search`."""
        chosen: list[int] = []
        while len(chosen) < count and self._free:
            chosen += self._some(count - len(chosen))
        return [self._tiles[i] for i in chosen]

    def reserve(self, tiles: Iterable[Tile]) -> list[Tile]:
        """See :class:`Search`."""
        found = [tile for tile in dict.fromkeys(tiles) if self._place.get(tile) in self._free]
        self._free.difference_update(self._place[tile] for tile in found)
        return found

    def tell(self, tile: Tile, value: float) -> None:
        """See :class:`Search`."""
        self._known[self._place[tile]] = value
        self._free.discard(self._place[tile])

    def _some(self, count: int) -> list[int]:
        asked = len(self._tiles) - len(self._free)
        good = [v for v in self._known.values() if math.isfinite(v)]
        if asked == 0:
            picked = [0]
        elif asked < self._start or len(good) < 3:
            wanted = min(count, max(1, self._start - asked))
            picked = self._random.sample(sorted(self._free), min(wanted, len(self._free)))
        else:
            picked = self._modelled(count)
        self._free -= set(picked)
        return picked

    def _modelled(self, count: int) -> list[int]:
        places = list(self._known)
        good = [math.log(v) for v in self._known.values() if math.isfinite(v)]
        worst = max(good) + FAILED
        values = [math.log(self._known[i]) if math.isfinite(self._known[i]) else worst for i in places]
        self._model.fit(self._rows[places], values)
        free = np.array(sorted(self._free))
        rows = self._rows[free]
        trees = np.array([tree.tree_.predict(rows)[:, 0] for tree in self._model.estimators_])
        bound = trees.mean(axis=0) - CAUTION * trees.std(axis=0)
        order = np.argsort(bound, kind="stable")
        return [int(i) for i in free[order[:count]]]


def replayed(made: Search, times: Mapping[Tile, float], evaluations: int, in_flight: int = 48) -> list[float]:
    """The best value after each evaluation of a search over tiles whose values are known, used as in a sweep.

    Args:
        evaluations: number of evaluations.
        in_flight: maximum number of tiles whose times are not known yet.
    """
    best = math.inf
    seen: list[float] = []
    waiting: deque[Tile] = deque()
    while len(seen) < evaluations:
        room = min(made.ahead, in_flight) - len(waiting)
        left = evaluations - len(seen) - len(waiting)
        if left > 0 and (room >= made.batch or not waiting):
            waiting.extend(made.ask(min(left, room)))
        if not waiting:
            break
        tile = waiting.popleft()
        made.tell(tile, times[tile])
        best = min(best, times[tile])
        seen.append(best)
    return seen


def numbers(axes: dict[str, tuple[Any, ...]]) -> Features:
    """Features of the parameters alone: logarithms of numbers, places of other values, and log products of pairs of numbers."""

    def number(name: str, value: Any) -> float:
        values = axes[name]
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            return math.log2(value + 1) if min(values) >= 0 else float(value)
        return float(values.index(value))

    def features(tile: Tile) -> list[float]:
        single = [number(name, tile[name]) for name in axes]
        return [
            *single,
            *(a + b for i, a in enumerate(single) for b in single[:i]),
            *(a - b for i, a in enumerate(single) for b in single[:i]),
        ]

    return features


def described(axes: dict[str, tuple[Any, ...]], launch_of: Callable[[Tile], Shape], sms: int) -> Features:
    """Features of the parameters and of the launch they lead to.

    Args:
        launch_of: tile -> the largest of its launches.
        sms: of the GPU.
    """
    plain = numbers(axes)

    def features(tile: Tile) -> list[float]:
        shape = launch_of(tile)
        filled = shape.ctas / sms / math.ceil(shape.ctas / sms)
        sizes = (shape.threads, shape.ctas, 1 + shape.shared_bytes)
        return [*plain(tile), *(math.log2(max(1, size)) for size in sizes), filled]

    return features
