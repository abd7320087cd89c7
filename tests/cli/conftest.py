"""Commands that are called in the process of the tests must not end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ptxkit.cli._early_exit import exits_refused


@pytest.fixture(autouse=True)
def tests_go_on() -> Iterator[None]:
    """An interrupted command ends its process by ``os._exit`` if other threads are alive, such as one of an earlier test."""
    with exits_refused():
        yield
