"""Stops the code of a kernel description from ending the process: exit code 0 would look as if everything were verified."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

leave = os._exit
"""The real ``os._exit``, for the command line's own use."""


@contextmanager
def exits_refused() -> Iterator[None]:
    """Make ``os._exit`` raise SystemExit in this process, as ``sys.exit`` does; forked processes still exit at once."""
    process = os.getpid()
    before = os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            before(status)
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = before
