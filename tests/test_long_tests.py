"""The list of tests that take long names tests that exist, and is what measured times give."""

from __future__ import annotations

from pathlib import Path

from ptxkit_long_tests import FOLDERS, LIMIT, listed, of_times

TESTS = Path(__file__).parent


def test_each_listed_test_exists() -> None:
    gone = []
    for test in listed():
        file, _, function = test.partition("[")[0].rpartition("::")
        source = TESTS.parent / file.partition("::")[0]
        if not source.is_file() or f"def {function}(" not in source.read_text():
            gone.append(test)
    assert not gone, "write the list anew: make test-all PYTEST_ARGS=--write-long"


def test_a_file_keeps_its_shortest_test() -> None:
    folder = f"tests/{FOLDERS[0]}"
    times = {f"{folder}/test_a.py::test_{n}": LIMIT + n for n in (3, 1, 2)}
    times |= {f"{folder}/test_b.py::test_short": LIMIT / 2, f"{folder}/test_b.py::test_long": LIMIT * 2}
    times |= {"tests/cli/test_c.py::test_long": LIMIT * 9, f"{folder}/test_b.py::test_other_case": LIMIT * 9}
    by_default = set(times) - {f"{folder}/test_b.py::test_other_case"}
    assert of_times(times, by_default) == [
        f"{folder}/test_a.py::test_2",
        f"{folder}/test_a.py::test_3",
        f"{folder}/test_b.py::test_long",
    ]
