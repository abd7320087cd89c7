"""Output to a terminal: colours, progress, tables, and Ctrl-C. stdout and stderr are two pseudo-terminals here."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from dataclasses import dataclass

import pytest
from ptxkit_processes import Command

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
KERNEL = ["run", "saxpy", "4096", "--device", "emulator"]
MATMUL = ["micro_tiling_matmul", "512", "512", "512", "--variant", "step2_shared", "--device", "emulator"]
LONG = ["micro_tiling_matmul:step2_shared", "--device", "emulator"]


@dataclass
class Seen:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def last_line(self):
        """The lines of stderr that the terminal shows at the end."""
        shown: list[str] = []
        at = 0
        for character in ESCAPE.sub("", self.err).replace("\r\n", "\n").rstrip("\n").rsplit("\n", 1)[-1]:
            if character in "\r\b":
                at = 0 if character == "\r" else at - 1
            else:
                shown[at : at + 1] = character
                at += 1
        return "".join(shown).rstrip()


def opened(terminal, columns):
    if not terminal:
        return os.pipe()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    return ours, theirs


def seen(*words, columns=100, out=True, err=True, when=None, **environment):
    """Run a command, and press Ctrl-C when its stderr contains the text ``when``."""
    outer = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "PAGER")}
    (out_ours, out_theirs), (err_ours, err_theirs) = opened(out, columns), opened(err, columns)
    child = Command(words, stdout=out_theirs, stderr=err_theirs, env={**outer, "TERM": "xterm", **environment})
    os.close(out_theirs)
    os.close(err_theirs)
    text = {out_ours: b"", err_ours: b""}
    alive, deadline = set(text), time.monotonic() + 60
    while alive and time.monotonic() < deadline:
        for file in select.select(list(alive), [], [], 0.05)[0]:
            try:
                read = os.read(file, 65536)
            except OSError:  # Linux reports in this way that the other end is closed
                read = b""
            text[file] += read
            if not read:
                alive.discard(file)
        if when and when in text[err_ours]:
            child.send_signal(signal.SIGINT)
            when = None
    os.close(out_ours)
    os.close(err_ours)
    return Seen(child.wait(10), text[out_ours].decode(), text[err_ours].decode())


def test_colours_and_progress_on_a_terminal():
    found = seen(*KERNEL)
    assert found.code == 0
    assert "\x1b[32mverified" in found.out
    assert "saxpy n=4096: vectorized on ptxkit emulator ..." in found.err
    assert "..." not in found.out
    assert found.last_line == ""  # the progress line has been erased


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("words", [KERNEL, ["list", "saxpy"], ["run", "no_such_kernel"]])
def test_no_escapes_where_colour_is_disabled(environment, words):
    found = seen(*words, **environment)
    assert not ESCAPE.search(found.out + found.err)
    assert found.code == (2 if "no_such_kernel" in words else 0)


def test_in_a_pipe_there_is_nothing_but_the_result():
    found = seen(*KERNEL, out=False, err=False)
    assert not ESCAPE.search(found.out) and "\r" not in found.out
    assert found.err == ""
    beside = seen(*KERNEL, out=False)
    assert beside.out == found.out and "..." in beside.err


def test_an_error_is_red_on_a_terminal_alone():
    assert seen("run", "no_such_kernel").err.startswith("\x1b[31merror: ")
    assert seen("run", "no_such_kernel", err=False).err.startswith("error: ")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words",
    [
        KERNEL,
        ["bench", "list"],
        ["bench", "run", "saxpy", "--sizes", "64", "--device", "emulator"],
        ["inspect", "saxpy:vectorized"],
    ],
)
def test_tables_fit(words, columns):
    lines = ESCAPE.sub("", seen(*words, columns=columns).out).replace("\r\n", "\n").split("\n")
    rules = [n for n, line in enumerate(lines) if line.strip().startswith("---")]
    assert rules
    for n in rules:
        end = next(k for k in range(n, len(lines)) if not lines[k].strip())
        assert max(map(len, lines[n - 1 : end])) <= columns, lines[n - 1 : end]


def test_a_long_line_of_progress_is_cut():
    found = seen("bench", "run", *LONG, "--sizes", "64x64x64", columns=40)
    assert "..." not in found.out and found.last_line == ""
    assert max(len(piece.rstrip("\b")) for piece in re.split(r"[\r\n]", found.err)) < 40


@pytest.mark.parametrize(
    ("words", "when"),
    [
        (["run", *MATMUL], b"preparing inputs"),
        (["run", *MATMUL], b"step2_shared on"),
        (["bench", "run", *LONG, "--sizes", "512x512x512"], b"step2_shared"),
    ],
)
def test_ctrl_c_is_one_line_and_130(words, when):
    found = seen(*words, when=when)
    assert found.code == 130
    assert found.last_line == "error: interrupted"
    assert "Traceback" not in found.err and found.out == ""


def test_a_group_without_a_command_is_its_help():
    found = seen("cache", err=False)
    assert found.code == 2 and "error" not in found.err
    assert "Usage: ptxkit cache" in found.err
