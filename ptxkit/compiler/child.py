"""Runs a compiler library in a child process, so that a crash of the library, or what it leaves behind, ends with the child.

The child runs a file of this package by path. Such a file imports nothing of ptxkit, which would take longer than most
requests. It reads a pickled dictionary from stdin and writes another to stdout; both consist of built-in types.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ChildCrashError(Exception):
    """The child ended without an answer; the text says how, such as ``SIGABRT (free(): invalid pointer)``."""


def answer(program: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """What ``program`` answers.

    Args:
        program: name of a file in ``ptxkit/compiler`` whose ``main`` answers one request.
        request: sent to it.

    Raises:
        ChildCrashError: the child ended without an answer.
    """
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name(program))],
        input=pickle.dumps(dict(request)),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode != 0:
        raise ChildCrashError(_how_it_ended(done))
    result: dict[str, Any] = pickle.loads(done.stdout)
    return result


def _how_it_ended(done: subprocess.CompletedProcess[bytes]) -> str:
    code = done.returncode
    how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    lines = done.stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how} ({last})" if last else how
