"""The list of tests that run in ``make test-all`` alone because of the processor time that they take.

``pytest --slow --write-long`` runs every test, measures it, and writes the list anew. Tests of kernels, instructions and
compiled code are on it if they take more than :data:`LIMIT`; those of the command line, clusters and documents run always. A
file whose tests would all be on it keeps its shortest one.
"""

from __future__ import annotations

import resource
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

import pytest

LIMIT = 1.2
"""Seconds of processor time, of the process and of its children, that a test of :data:`FOLDERS` may take to run by default."""
FOLDERS = ("kernels", "emulator", "cutlass", "inspect", "compiler", "bench", "fusion")
"""Folders below tests/ whose tests may be on the list."""
PATH = Path(__file__).with_name("long_tests.txt")
SECONDS, DEFAULT = "processor_seconds", "runs_by_default"
"""Properties of the reports of tests: the processor time, and whether a test would run without ``--slow`` and this list."""

measured: dict[str, float] = {}
by_default: set[str] = set()


def listed() -> frozenset[str]:
    """The identifiers of the tests on the list."""
    return frozenset(PATH.read_text().splitlines())


def of_times(times: Mapping[str, float], runs_by_default: Iterable[str]) -> list[str]:
    """The tests that belong on the list, sorted.

    Args:
        times: seconds of processor time, by identifier. runs_by_default: the tests that would run by default without the list.
    """
    by_file: dict[str, list[str]] = {}
    for test in runs_by_default:
        if test in times and test.split("/")[1] in FOLDERS:
            by_file.setdefault(test.partition("::")[0], []).append(test)
    found = []
    for tests in by_file.values():
        long = [test for test in tests if times[test] > LIMIT]
        if len(long) == len(tests):
            long.remove(min(long, key=times.__getitem__))
        found += long
    return sorted(found)


def _processor_seconds() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "with --slow and all tests: write the list of tests that take long and run with --slow alone"
    parser.addoption("--write-long", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-long") and not config.getoption("--slow"):
        raise pytest.UsageError("--write-long needs --slow: it writes the list from the times of all tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    begin = _processor_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append((SECONDS, _processor_seconds() - begin))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = dict(report.user_properties)
    seconds = properties.get(SECONDS)
    if report.when == "teardown" and isinstance(seconds, float):
        measured[report.nodeid] = seconds
        if properties.get(DEFAULT):
            by_default.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the list, in the process that collects the reports of all workers."""
    if session.config.getoption("--write-long") and not hasattr(session.config, "workerinput"):
        PATH.write_text("".join(f"{test}\n" for test in of_times(measured, by_default)))
