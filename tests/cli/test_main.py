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
from ptxkit_processes import CLOSED, run

from ptxkit import cli, errors


def fail_with(monkeypatch, error):
    def command(*args, **kwargs):
        raise error

    monkeypatch.setattr(cli.cli, "main", command)


def exit_of(args=()):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(args))
    return stopped.value.code


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
        done = run("--help", stdout=full.fileno())
    assert done.returncode == 7
    assert "No space left on device" in done.stderr and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = run("--help", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_stderr_changes_no_exit_code():
    done = subprocess.run(f"{sys.executable} -m ptxkit nonsense 2>&-", shell=True)
    assert done.returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_scripts(shell):
    done = run(env={**os.environ, "_PTXKIT_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0 and "_PTXKIT_COMPLETE" in done.stdout


def completions(words):
    env = {**os.environ, "_PTXKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return run(env=env).stdout.split()


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


@pytest.mark.parametrize("closed", [("stdout",), ("stderr",), ("stdout", "stderr"), ("stdin",), ("stdin", "stdout")])
def test_closed_streams(closed):
    """Output that cannot be written is a failure; a command that prints nothing to stdout, and messages, are none."""

    def code_of(*words):
        done = run(*words, **dict.fromkeys(closed, CLOSED))
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
        if done.returncode == 7 and "stderr" not in closed:
            assert done.stderr == "error: cannot write the output: stdout is closed\n"
        return done.returncode

    printed = 7 if "stdout" in closed else 0
    assert code_of("bench", "list") == printed
    assert code_of("cache", "info", "--json") == printed
    assert code_of("--version") == printed
    assert code_of("list", "-h") == printed
    assert code_of("nonsense") == 2


def test_a_directory_that_was_deleted_is_said(tmp_path, monkeypatch, capsys):
    """Python says of it what it says of an output that cannot be written: a reason, and no file."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert exit_of(["run", "saxpy", "64"]) == 2
    assert capsys.readouterr().err == "error: the current directory does not exist any more; change to another one\n"


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_before_python_starts(closed):
    command = f"{sys.executable} -m ptxkit cache info --json {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 7
    assert done.stderr == ("" if "2>&-" in closed else "error: cannot write the output: stdout is closed\n")


@pytest.mark.parametrize(
    "closed", [("stdout",), ("stderr",), ("stdin",), ("stdin", "stderr"), ("stdin", "stdout", "stderr"), "stderr full"]
)
def test_a_command_that_prints_nothing_needs_no_streams(closed, tmp_path):
    file = tmp_path / "saxpy.ptx"
    with open("/dev/full", "w") as full:
        streams = {"stderr": full.fileno()} if closed == "stderr full" else dict.fromkeys(closed, CLOSED)
        done = run("inspect", "saxpy:ptx", "--arch", "sm_90", "--ptx", "-o", file, **streams)
    assert done.returncode == 0, done.stderr
    assert ".visible .entry" in file.read_text()


LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ["run", LONG],
        ["run", f"./{LONG}.py"],
        ["run", f"./{LONG[:100]}/{LONG}.cu"],
        ["run", "saxpy", LONG],
        ["run", "saxpy", "--variant", LONG],
        ["run", "saxpy", "--device", LONG],
        ["run", "saxpy", "--arch", LONG],
        ["run", "saxpy", f"--{LONG}"],
        ["run", "saxpy", "--tile", f"{LONG}=1"],
        ["run", "saxpy", "--option", "a b " * 1200],
        ["inspect", "saxpy", "--heatmap", LONG],
        ["bench", "run", LONG],
        ["bench", "compare", LONG, LONG],
        ["sweep", "tiles", LONG],
        ["list", LONG],
        [LONG],
        ["cache", LONG],
    ],
)
def test_long_names_are_shortened_in_errors(words, capsys):
    assert exit_of(words) == (3 if "--arch" in words else 2)
    err = capsys.readouterr().err
    assert len(err) < 1500 and err.count("\n") == 1, err[:3000]


def test_only_what_was_given_is_shortened():
    text = " ".join(f"the warp's {k} lanes' values" for k in range(100))
    assert errors.shortened(text) == text
    once = errors.shortened(f"no file {'/dir' * 200}/x.cu; there is 'a'")
    assert once.endswith("/dir/x.cu; there is 'a'") and "(806 characters)" in once
    assert errors.shortened(once) == once and str(errors.UsageError(once)) == once


FILE = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1.f; }'


@pytest.mark.parametrize(
    "words",
    [
        ["run", "saxpy", "1000"],
        ["bench", "run", "saxpy", "--sizes", "1000", "--peers", "none"],
        ["sweep", "tiles", "saxpy", "1000", "--device", "emulator"],
        ["run", "./k.cu", "--arg", "x=float32[1000]:zeros", "--grid", "1", "--block", "32"],
        ["debug", "saxpy", "1000", "-ex", "run"],
    ],
)
def test_too_little_memory_is_the_same_code_in_every_command(words, monkeypatch, tmp_path, capsys):
    """Here and in docs/exit-codes.md: what this machine lacks is 3."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTXKIT_STATE_DIR", str(tmp_path))
    (tmp_path / "k.cu").write_text(FILE)
    monkeypatch.setattr("ptxkit.workload.memory.free_host_bytes", lambda: 100)
    assert exit_of(words) == 3
    assert "on the host, which has 1e-07 GB free; take smaller sizes" in capsys.readouterr().err


def test_an_input_that_numpy_cannot_allocate_is_too_little_memory(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom ptxkit.kernels.elementwise.saxpy import Saxpy\n\n"
        "class Mine(Saxpy):\n    name = 'mine'\n\n    def inputs(self, rng):\n        return {'x': np.empty(1 << 55)}\n"
    )
    assert exit_of(["run", "./mine.py", "1000"]) == 3
    assert "error: not enough memory on this machine: Unable to allocate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("inputs(self, rng): return {**super().inputs(rng), 'x': np.ma.masked_array(np.zeros(self.n, np.float32))}",
         "the input x is a masked array"),
        ("reference(self, **inputs): return {'y': np.ma.masked_array(inputs['y'])}", "the reference of y is a masked array"),
    ],
)  # fmt: skip
def test_a_mask_that_would_be_ignored_is_refused(method, message, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom ptxkit.kernels.elementwise.saxpy import Saxpy\n\n"
        f"class Mine(Saxpy):\n    name = 'mine'\n\n    def {method}\n"
    )
    assert exit_of(["run", "./mine.py", "1000"]) == 2
    assert message in capsys.readouterr().err
