"""A heat map over two tile parameters: each cell shows the best configuration with these two values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.figures import drawn_to
from ptxkit.sweep.journal import Entry
from ptxkit.workload.workload import suggestion

WHAT = "a heat map"


def grid(entries: Sequence[Entry], x: str, y: str, axes: dict[str, tuple[Any, ...]]) -> np.ndarray[Any, Any]:
    """The minimum of each cell, rows along ``y``; NaN where no configuration works.

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


def check_axes(text: str | None, axes: dict[str, tuple[Any, ...]]) -> tuple[str, str] | None:
    """The two axes of ``--axes``; None where it is left out and :func:`most_telling` will choose.

    Raises:
        UsageError: not two names, no such parameter, or nothing to choose from.
    """
    if text is None:
        if len(_varied(axes)) < 2:
            raise UsageError("a heat map needs two tile parameters that vary; --axes X,Y names others")
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise UsageError(f"--axes takes two tile parameters, X,Y, not {text!r}")
    x, y = names
    for name in names:
        if name not in axes:
            raise UsageError(f"--axes {text}: there is no tile parameter {name}; {suggestion(name, axes)}")
    if x == y:
        raise UsageError(f"--axes {text}: the two tile parameters must be different")
    return x, y


def most_telling(entries: Sequence[Entry], axes: dict[str, tuple[Any, ...]]) -> tuple[str, str]:
    """The two parameters, of two or more that vary, whose values change the best time most."""
    spread = {}
    for name in _varied(axes):
        best = [min((e.value for e in entries if e.tile[name] == v), default=math.inf) for v in axes[name]]
        finite = [b for b in best if math.isfinite(b)]
        spread[name] = max(finite) / min(finite) if finite else 1.0
    first, second = sorted(spread, key=lambda n: -spread[n])[:2]
    return first, second


def _varied(axes: dict[str, tuple[Any, ...]]) -> list[str]:
    return [name for name, values in axes.items() if len(values) > 1]


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
        UsageError: another suffix, no such axis, or a file that cannot be written. UnavailableError: matplotlib is not
            installed.
    """
    x, y = xy
    axes = {name: in_order(values) for name, values in axes.items()}
    values = grid(entries, x, y, axes)
    with drawn_to(path, WHAT, (1.6 + 0.9 * len(axes[x]), 1.6 + 0.6 * len(axes[y]))) as figure:
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


def in_order(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers by size, whatever the order in which the description prefers them; other values as they are."""
    return tuple(sorted(values)) if all(isinstance(v, (int, float)) for v in values) else values
