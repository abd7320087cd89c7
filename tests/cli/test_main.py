"""The command line's frame: errors become one line and an exit code, whatever the command."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import click
import pytest

from ptxkit import cli, errors


def fail_with(monkeypatch, error):
    def command(*args, **kwargs):
        raise error

    monkeypatch.setattr(cli.cli, "main", command)


def exit_of(args=()):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(args))
    return stopped.value.code


def ptxkit(*args, **kwargs):
    return subprocess.run([sys.executable, "-m", "ptxkit", *args], capture_output=True, text=True, **kwargs)


@pytest.mark.parametrize(
    "error, code",
    [
        (errors.UsageError("no"), 2),
        (errors.LaunchError("no"), 2),
        (errors.UnavailableError("no"), 3),
        (errors.CompileError("no"), 4),
        (errors.UnsupportedError("no"), 4),
        (errors.MemoryFault("no"), 5),
        (errors.DeadlockError("no"), 5),
        (errors.VerificationError("no"), 1),
        (click.UsageError("No."), 2),
        (OSError(28, "No space left on device", "x.cu"), 7),
        (MemoryError("no"), 3),
        (errors.FileAccessError("no"), 7),
        (errors.TimeLimitError("no"), 8),
        (errors.PtxkitError("no"), 9),
        (SystemExit(0), 2),
        (SystemExit(), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(monkeypatch, capsys, error, code):
    fail_with(monkeypatch, error)
    assert exit_of() == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1


def test_a_bug_keeps_its_traceback_and_is_not_taken_for_a_wrong_result(monkeypatch, capsys):
    fail_with(monkeypatch, ZeroDivisionError("bug"))
    assert exit_of() == 9
    err = capsys.readouterr().err
    assert "ZeroDivisionError: bug" in err and "bug in ptxkit" in err


def test_unknown_command_suggests_the_nearest(capsys):
    assert exit_of(["dcotor"]) == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err


def test_unknown_option_is_usage(capsys):
    assert exit_of(["list", "--frobnicate"]) == 2
    assert "--frobnicate" in capsys.readouterr().err


def test_version_and_help(capsys):
    assert exit_of(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ptxkit ")
    assert exit_of(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("run", "list", "doctor", "new", "cache"))


def test_a_full_disk_under_stdout_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "ptxkit", "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 7
    assert "No space left on device" in done.stderr and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "ptxkit", "--help"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_stderr_changes_no_exit_code():
    done = subprocess.run(f"{sys.executable} -m ptxkit nonsense 2>&-", shell=True)
    assert done.returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_scripts(shell):
    done = ptxkit(env={**os.environ, "_PTXKIT_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0 and "_PTXKIT_COMPLETE" in done.stdout


def completions(words):
    env = {**os.environ, "_PTXKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return ptxkit(env=env).stdout.split()


def test_commands_and_kernels_complete():
    assert completions("ptxkit do") == ["plain,doctor"]
    assert "plain,fused_l2norm" in completions("ptxkit run fused_l")
    assert "plain,fused_l2norm" in completions("ptxkit list fused_l")


def test_ctrl_c_in_the_middle_is_130_even_while_threads_work():
    code = (
        "import signal, threading, time\nfrom ptxkit import cli\n"
        # a shell that starts the tests in the background may ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def command(*a, **k):\n"
        "    threading.Thread(target=time.sleep, args=(30,)).start()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(30)\n"
        "cli.cli.main = command\ncli.main([])"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=10)
    assert child.returncode == 130 and err == "error: interrupted\n"
    assert time.monotonic() - start < 5


def test_a_second_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", interrupted)
    monkeypatch.setattr(cli, "_complain", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["list"])
    assert stopped.value.code == 130


def test_an_error_is_seen_although_stderr_was_set_aside(monkeypatch, capsys):
    def interrupted(*_, **__):
        sys.stderr = io.StringIO()
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", interrupted)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["list"])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_without_stdout_or_stderr(closed):
    command = f"{sys.executable} -m ptxkit bench list {closed} </dev/null"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
