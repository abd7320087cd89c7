"""Figures drawn to files by matplotlib, which is an optional dependency (extra ``plot``)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import check_writable, write_bytes

FORMATS = (".svg", ".png", ".pdf")


def check_drawable(path: str | Path, what: str) -> None:
    """Raise an error unless :func:`drawn_to` can draw to the path; call this before the work whose result is drawn.

    Args:
        what: names the figure in messages: ``"a heat map"``.

    Raises:
        UsageError, FileAccessError: another suffix, or a file that cannot be written.
        UnavailableError: matplotlib is not installed.
    """
    if Path(path).suffix not in FORMATS:
        raise UsageError(f"{path}: {what} is drawn to {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise UnavailableError(f"drawing {what} needs matplotlib: pip install 'ptxkit[plot]'")
    check_writable(path)


@contextmanager
def drawn_to(path: str | Path, what: str, size: tuple[float, float]) -> Iterator[Any]:
    """A matplotlib figure of ``size`` inches, saved when the block ends in the format of the path's suffix.

    Args:
        what: names the figure in messages: ``"a heat map"``.

    Raises:
        UsageError, FileAccessError, UnavailableError: see :func:`check_drawable`.
    """
    check_drawable(path, what)
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    yield figure
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix[1:])
    write_bytes(path, picture.getvalue())
