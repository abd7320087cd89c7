"""Destructors repeat the error of the kernel that made the context unusable; nothing else is hidden."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ptxkit.runtime.gpu import loss

MESSAGE = "CUDA_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction was encountered"


class Destroyed:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


@pytest.fixture
def reported(monkeypatch):
    """The errors that the hooks report, after the context is lost."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: found.append(str(unraisable.exc_value)))
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: found.append(str(error)))
    monkeypatch.setattr(loss, "_errors", [])
    assert not loss.context_lost()
    loss.lose_context(MESSAGE)
    assert loss.context_lost()
    return found


@pytest.mark.parametrize("text", [MESSAGE, "CUDA error: an illegal instruction was encountered", "other"])
def test_a_destructor_does_not_repeat_the_error(reported, text):
    Destroyed(RuntimeError(text))
    error = RuntimeError(text)
    sys.excepthook(RuntimeError, error, None)
    assert reported == (["other", "other"] if text == "other" else [])


UNCAUGHT = """
from ptxkit.errors import FaultError
from ptxkit.runtime.gpu import loss
loss.lose_context("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")
raise FaultError("scale failed on a GPU: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")
"""


@pytest.mark.parametrize("arguments", [["{path}"], ["-m", "uncaught"]], ids=["script", "module"])
def test_an_error_that_ends_the_program_is_shown(tmp_path, arguments):
    path = tmp_path / "uncaught.py"
    path.write_text(UNCAUGHT)
    command = [sys.executable, *(argument.format(path=path) for argument in arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "FaultError: scale failed on a GPU" in done.stderr


PROGRAM = """
import atexit
from ptxkit.cli import main
from ptxkit.runtime.gpu import loss
atexit.register(print, "destructors")
if {lost}:
    loss.lose_context("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")
main(["--version"])
"""


@pytest.mark.parametrize("lost", [True, False])
def test_the_command_ends_without_destructors_once_the_context_is_lost(lost):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(lost=lost)], capture_output=True, text=True, check=True)
    assert "ptxkit" in done.stdout and ("destructors" in done.stdout) is not lost
