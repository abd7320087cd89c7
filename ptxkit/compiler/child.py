"""Runs a compiler library in a child process, so that a crash of the library, or what it leaves behind, ends with the child.

The child runs this file by path, which loads a program of this package and calls its ``answer``. Neither imports anything
of ptxkit, which would take longer than most requests. The request is a pickled dictionary on stdin, the answer another one on
stdout; both consist of built-in types.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import runpy
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
        program: name of a file in ``ptxkit/compiler`` with a function ``answer``.
        request: its argument. ``libraries`` are paths of libraries that the child loads first, so that ``cuda.bindings`` does
            not look for others; ``answer`` does not get them.

    Raises:
        ChildCrashError: the child ended without an answer.
    """
    done = subprocess.run(
        [sys.executable, "-P", __file__, str(Path(__file__).with_name(program))],
        input=pickle.dumps(dict(request)),
        capture_output=True,
        check=False,
        env=environment_of_children(),
    )
    if done.returncode != 0:
        raise ChildCrashError(how_it_ended(done.returncode, done.stderr))
    result: dict[str, Any] = pickle.loads(done.stdout)
    return result


def environment_of_children() -> dict[str, str]:
    """The environment of a process that imports what this one can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def how_it_ended(code: int, stderr: bytes) -> str:
    """How a process ended: ``SIGABRT (free(): invalid pointer)``.

    Args:
        code: its return code; negative for a signal.
        stderr: what it wrote to stderr, whose last line says why.
    """
    how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    lines = stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how} ({last})" if last else how


def _serve(program: str) -> None:
    """Answer the request on stdin by a program."""
    request = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library may print
    with answers:
        for path in request.pop("libraries"):
            ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        pickle.dump(runpy.run_path(program)["answer"](request), answers)


if __name__ == "__main__":
    _serve(sys.argv[1])
