"""The environment variables: one table, read in one place, documented, and unknown ones reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptxkit import environment
from ptxkit.compiler.request import target_macros
from ptxkit.emulator.engine.hardware import worker_count
from ptxkit.errors import UsageError
from ptxkit.targets import Target

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_has_the_table():
    assert environment.table() in (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")


def test_no_other_module_names_or_reads_a_variable():
    known = {variable.name for variable in environment.VARIABLES}
    macros = set(target_macros(Target.parse("sm_90a")))  # of device code
    for file in (ROOT / "ptxkit").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert file.name == "environment.py" or not re.search(r"environ\S*[\[(][\"']PTXKIT_", text), file
        assert set(re.findall(r"(?<![_\w])PTXKIT_[A-Z_]+\b", text)) <= known | macros | {"PTXKIT_"}, file


@pytest.mark.parametrize(
    ("name", "words"),
    [("PTXKIT_CACHEDIR", "did you mean PTXKIT_CACHE_DIR?"), ("PTXKIT_COLOUR", "the variables are PTXKIT_CACHE_DIR, ")],
)
def test_an_unknown_variable_is_reported_once(monkeypatch, name, words):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(environment, "_reported", set())
    with pytest.warns(UserWarning, match=re.escape(f"{name} is set, which is no variable of ptxkit; {words}")) as seen:
        environment.read(environment.CACHE_DIR)
        environment.read(environment.CACHE_LIMIT)
    assert len(seen) == 1


def test_the_command_line_reports_it_on_stderr_and_goes_on():
    done = subprocess.run(
        [sys.executable, "-m", "ptxkit", "cache", "info"],
        capture_output=True, text=True, timeout=60, env={"PTXKIT_CACH_DIR": "x", "PYTHONPATH": str(ROOT), "HOME": "/tmp"},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == "warning: PTXKIT_CACH_DIR is set, which is no variable of ptxkit; did you mean PTXKIT_CACHE_DIR?\n"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999999999999999999"])
def test_a_number_of_threads_that_is_none(monkeypatch, text):
    monkeypatch.setenv("PTXKIT_EMULATOR_THREADS", text)
    with pytest.raises(UsageError, match="is not a number of threads"):
        worker_count()
