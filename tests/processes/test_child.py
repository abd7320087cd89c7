"""A process that answers, and sends values before its answer."""

from __future__ import annotations

import pytest

from ptxkit.processes.child import Child


def doubled(state, value, send):
    for number in range(value):
        send(state * number)
    return 2 * value


def test_values_arrive_before_the_result_and_errors_of_their_reader_are_its_own():
    child, found = Child(int, 10, gpu=False), []
    try:
        assert child.ask(doubled, 3, take=found.append) == 6
        assert found == [0, 10, 20]
        with pytest.raises(OSError, match="disk is full"):
            child.ask(doubled, 1, take=full)
    finally:
        child.end()


def full(value):
    raise OSError("the disk is full")
