"""Two axes of a tile space as a picture: in each cell the best of all configurations there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.figures import drawn_to
from ptxkit.sweep.journal import Entry


def grid(entries: Sequence[Entry], x: str, y: str, axes: dict[str, tuple[Any, ...]]) -> np.ndarray[Any, Any]:
    """The least value in each cell, rows along ``y``; NaN where nothing worked.

    Raises:
        UsageError: no such axis.
    """
    for name in (x, y):
        if name not in axes:
            raise UsageError(f"there is no tile parameter {name}; there are {', '.join(axes)}")
    found = np.full((len(axes[y]), len(axes[x])), np.nan)
    for entry in entries:
        if math.isfinite(entry.value):
            cell = axes[y].index(entry.tile[y]), axes[x].index(entry.tile[x])
            found[cell] = np.fmin(found[cell], entry.value)
    return found


def most_telling(entries: Sequence[Entry], axes: dict[str, tuple[Any, ...]]) -> tuple[str, str]:
    """The two parameters whose values move the best time most.

    Raises:
        UsageError: fewer than two parameters vary.
    """
    spread = {}
    for name, values in axes.items():
        best = [min((e.value for e in entries if e.tile[name] == v), default=math.inf) for v in values]
        finite = [b for b in best if math.isfinite(b)]
        if len(finite) > 1:
            spread[name] = max(finite) / min(finite)
    if len(spread) < 2:
        raise UsageError("a heat map needs two tile parameters that vary")
    first, second = sorted(spread, key=lambda n: -spread[n])[:2]
    return first, second


def draw(
    entries: Sequence[Entry],
    path: str | Path,
    axes: dict[str, tuple[Any, ...]],
    xy: tuple[str, str],
    title: str,
    timed: bool,
) -> None:
    """Draw it to a file; the format follows from its suffix.

    Raises:
        UsageError: another suffix, no such axis, or a file that cannot be written. UnavailableError: matplotlib is not here.
    """
    x, y = xy
    axes = {name: _in_order(values) for name, values in axes.items()}
    values = grid(entries, x, y, axes)
    with drawn_to(path, "a heat map", (1.6 + 0.9 * len(axes[x]), 1.6 + 0.6 * len(axes[y]))) as figure:
        plot = figure.subplots()
        image = plot.imshow(values, cmap="viridis_r", aspect="auto", origin="lower")
        plot.set(xlabel=x, ylabel=y, title=title)
        plot.set_xticks(range(len(axes[x])), [str(v) for v in axes[x]])
        plot.set_yticks(range(len(axes[y])), [str(v) for v in axes[y]])
        middle = (np.nanmin(values) + np.nanmax(values)) / 2 if np.isfinite(values).any() else 0
        for (row, column), value in np.ndenumerate(values):
            text = "-" if math.isnan(value) else f"{value:.4g}"
            color = "white" if value > middle else "black"
            plot.text(column, row, text, ha="center", va="center", fontsize=7, color=color)
        figure.colorbar(image, ax=plot, label="us, the best there" if timed else "modelled cost, the best there")


def _in_order(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers by size, whatever the order in which the description prefers them; other values as they are."""
    return tuple(sorted(values)) if all(isinstance(v, (int, float)) for v in values) else values
