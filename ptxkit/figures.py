"""Pictures drawn to a file by matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptxkit.errors import UnavailableError, UsageError

FORMATS = (".svg", ".png", ".pdf")


@contextmanager
def drawn_to(path: str | Path, what: str, size: tuple[float, float]) -> Iterator[Any]:
    """A matplotlib figure of ``size`` inches, which becomes a file when the block ends; the format follows from its suffix.

    Args:
        what: is drawn, for messages: ``"a heat map"``.

    Raises:
        UsageError: another suffix, or a file that cannot be written.
        UnavailableError: matplotlib is not here.
    """
    file = Path(path)
    if file.suffix not in FORMATS:
        raise UsageError(f"{path}: {what} is drawn to {', '.join(FORMATS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError(f"drawing {what} needs matplotlib: pip install 'ptxkit[plot]'") from None
    figure = Figure(figsize=size, layout="constrained")
    yield figure
    try:
        figure.savefig(file)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
