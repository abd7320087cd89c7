"""Enumerates the tiles that a constraint permits.

A tile space may have 100,000 combinations of values, most of which are refused for the values of a few parameters, or for the
sizes alone. If the constraint refuses a tile after it has read some of its parameters, it refuses every tile with the same
values of these, so the enumeration continues where one of them changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ptxkit.workload.launch import Tile


class ObservedTile(Tile):
    """A tile that records which of its parameters are read."""

    def __init__(self, tile: Tile) -> None:
        self._values = tile._values
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._read.add(name)
        return super().__getattr__(name)

    def __iter__(self) -> Iterator[str]:
        self._read.update(self._values)
        return iter(self._values)

    def __hash__(self) -> int:
        self._read.update(self._values)
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self._read.update(self._values)
        return super().__eq__(other)

    def __str__(self) -> str:
        self._read.update(self._values)
        return super().__str__()

    def __repr__(self) -> str:
        self._read.update(self._values)
        return super().__repr__()

    @property
    def read(self) -> set[str]:
        """The parameters that were read."""
        return self._read


def permitted(
    preferred: Iterable[Mapping[str, Any]],
    space: Mapping[str, Sequence[Any]],
    permits: Callable[[Tile], bool],
) -> Iterator[Tile]:
    """The tiles that can be used, each once.

    Args:
        preferred: values of all parameters, of the tiles to try first.
        space: parameter -> values; of their combinations, those with the first values come first.
        permits: whether a tile can be used. It depends on nothing but the parameters that it reads from the tile.
    """
    seen = set()
    for values in preferred:
        tile = Tile({name: values[name] for name in space})
        if tile in seen:
            continue
        seen.add(tile)
        observed = ObservedTile(tile)
        if permits(observed):
            yield tile
        elif not observed.read:
            return
    for tile in _combinations(space, permits):
        if tile not in seen:
            yield tile


def _combinations(space: Mapping[str, Sequence[Any]], permits: Callable[[Tile], bool]) -> Iterator[Tile]:
    """The permitted combinations, with the values of the last parameter changing fastest."""
    names = list(space)
    values = [tuple(dict.fromkeys(space[name])) for name in names]
    places = [0] * len(names)
    while True:
        tile = Tile({name: offered[place] for name, offered, place in zip(names, values, places, strict=True)})
        observed = ObservedTile(tile)
        changed = len(names) - 1
        if permits(observed):
            yield tile
        else:
            read = (index for index, name in enumerate(names) if name in observed.read and len(values[index]) > 1)
            changed = max(read, default=-1)  # no other values of what the refusal depends on: none is permitted
        places[changed + 1 :] = [0] * (len(names) - changed - 1)
        while changed >= 0 and places[changed] == len(values[changed]) - 1:
            places[changed] = 0
            changed -= 1
        if changed < 0:
            return
        places[changed] += 1
