"""Plain tables and lines that fit into a terminal: text is wrapped, and a table that is still too wide is split into parts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

GAP = 2  # columns of blanks between two of a table
HEADER = 2  # that tabulate adds to a header
LEAST = 14  # columns that a cell of text is left with
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def plain(
    rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str], width: int | None = None, keys: int = 1
) -> str:
    """A table as text.

    Args:
        rows: cells; they may hold colours.
        headers: one per column; a column without a header belongs to the column before it.
        align: ``"left"`` or ``"right"`` for each column; only left ones are wrapped.
        width: of the terminal; None for no limit, as in a pipe.
        keys: the number of leading columns that identify a row; they are repeated in each part of a split table.
    """
    columns = [[header, *(row[c] for row in rows)] for c, header in enumerate(headers)]
    widths = [max(_visible(cells[0]) + HEADER, *map(_visible, cells)) for cells in columns]
    if width is None or _total(widths) <= width:
        return _tabulated(rows, headers, align, None)
    words = [max((_visible(word) for cell in cells for word in cell.split()), default=0) for cells in columns]
    least = [min(w, max(LEAST, min(word, width // 3))) for w, word in zip(widths, words, strict=True)]
    fitting = _wrapped(widths, least, align, width)
    if _total(fitting) <= width:
        return _tabulated(rows, headers, align, fitting)
    half = [max(low, min(w, width // 2)) if a == "left" else w for w, low, a in zip(widths, least, align, strict=True)]
    fitting = half if _total(half[:keys]) <= width // 2 else fitting
    parts = [[*range(keys), *columns] for columns in _stacked(fitting, headers, width, keys)]
    return "\n\n".join(
        _tabulated(
            [[row[c] for c in part] for row in rows],
            [headers[c] for c in part],
            [align[c] for c in part],
            [fitting[c] for c in part],
        )
        for part in parts
    )


def _wrapped(widths: Sequence[int], least: Sequence[int], align: Sequence[str], width: int) -> list[int]:
    """Column widths, with text columns narrowed, the widest first, until the table fits or none can be narrowed further."""
    fitting = list(widths)
    while (over := _total(fitting) - width) > 0:
        texts = [c for c, side in enumerate(align) if side == "left" and fitting[c] > least[c]]
        if not texts:
            break
        widest = max(texts, key=fitting.__getitem__)
        others = max((fitting[c] for c in texts if c != widest), default=0)
        fitting[widest] = max(least[widest], fitting[widest] - over, min(others, fitting[widest] - 1))
    return fitting


def _stacked(widths: Sequence[int], headers: Sequence[str], width: int, keys: int) -> list[list[int]]:
    """The columns after the keys in groups, each of which fits beside the keys; columns that belong together stay together."""
    units: list[list[int]] = []
    for column in range(keys, len(widths)):
        if headers[column] or not units:
            units.append([column])
        else:
            units[-1].append(column)
    groups: list[list[int]] = [[]]
    for unit in units:
        if groups[-1] and _total([widths[c] for c in (*range(keys), *groups[-1], *unit)]) > width:
            groups.append([])
        groups[-1] += unit
    return groups


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _visible(text: str) -> int:
    return len(_STYLE.sub("", text))


def _tabulated(
    rows: Sequence[Sequence[str]], headers: Sequence[str], align: Sequence[str], widths: Sequence[int] | None
) -> str:
    from tabulate import tabulate

    limits = None if widths is None else [w if a == "left" else None for w, a in zip(widths, align, strict=True)]
    return tabulate(
        rows,
        headers=headers,
        colalign=align if rows else None,
        disable_numparse=True,
        tablefmt="simple",
        maxcolwidths=limits if rows else None,
    )


def hanging(line: str, indent: int, width: int | None) -> str:
    """A line broken between words so that it fits ``width``; continuation lines are indented to the column ``indent``."""
    if width is None or _visible(line) <= width:
        return line
    styles = len(line) - _visible(line)
    wrap = textwrap.TextWrapper(
        width=max(width, 2 * indent) + styles,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrap.fill(line)
