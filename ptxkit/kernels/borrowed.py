"""Launches of one kernel's variants as parts of another kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ptxkit import Launch, TensorMap, Tile, Workload


def borrowed(
    w: Workload, variant: str, names: Mapping[str, str], tile: Mapping[str, Any] | None = None
) -> list[Launch]:
    """The launches of a variant of another kernel, on other arrays.

    Args:
        w: that kernel, with the device on which it is launched.
        variant: its variant. tile: its tile; None for the one that it prefers.
        names: the names of its arrays and scalars, where others take their place.
    """
    found = w.variant(variant)
    if tile is None:
        _, launches = found.select(w, w.device.target)
    else:
        launches = found.launches(w, Tile(tile))
    return [replace(renamed(launch, names), source=found.source_of(w, launch)) for launch in launches]


def renamed(launch: Launch, names: Mapping[str, str]) -> Launch:
    """A launch with other names for its arrays and scalars."""

    def named(arg: object) -> object:
        if isinstance(arg, TensorMap):
            return replace(arg, array=names.get(arg.array, arg.array))
        return names.get(arg, arg) if isinstance(arg, str) else arg

    return replace(launch, args=tuple(map(named, launch.args)))
