"""Files that are not text, locales without Unicode, and interrupts during the start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ptxkit_processes import run

ROOT = Path(__file__).resolve().parents[2]
KERNEL = 'extern "C" __global__ void k(float* x) { x[0] = 1; }\n'


def started(*words, cwd, **environment):
    """The whole of a process, which has another locale."""
    return subprocess.run(
        [sys.executable, "-m", "ptxkit", *words], cwd=cwd, capture_output=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("k.ptx", b".version 8.0\n.target sm_80\n\0\n", "k.ptx:3: there is a NUL byte"),
        ("k.cu", KERNEL.encode("utf-16"), "k.cu:1: the text is UTF-16"),
        ("k.py", b"x = 1\n\0", "k.py:2: there is a NUL byte"),
        ("k.py", b"x = 1\n\n# \xff", "k.py:3: the byte 0xff"),
    ],
)
def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    done = run("run", f"./{name}", cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_a_source_in_latin_1_is_compiled(tmp_path):
    (tmp_path / "k.cu").write_bytes(b"// caf\xe9\n" + KERNEL.encode())
    assert run("run", "./k.cu", cwd=tmp_path).returncode == 0


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "k.cu").write_bytes(b"\xef\xbb\xbf" + KERNEL.encode())
    assert run("run", "./k.cu", cwd=tmp_path).returncode == 0


def test_a_locale_without_unicode_prints_plain_characters(tmp_path):
    (tmp_path / "é").mkdir()
    (tmp_path / "é" / "ké.cu").write_text(KERNEL)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = ("--arg", "x=float32[4]:zeros", "--grid", "1", "--block", "1", "--device", "emulator")
    done = started("run", "é/ké.cu", *words, cwd=tmp_path, **plain)
    assert done.returncode == 0, done.stderr
    listed = started("inspect", "é/ké.cu", "--source", cwd=tmp_path, **plain)
    assert b'1  extern "C" __global__' in listed.stdout, listed.stderr
    debugged = started("debug", "é/ké.cu", *words[:-2], "--break", "1", "-ex", "run", "-ex", "list", cwd=tmp_path, **plain)
    assert debugged.returncode == 0 and b"__global__" in debugged.stdout, debugged.stderr
    missing = started("run", "é/none.py", cwd=tmp_path, **plain)
    assert missing.returncode == 2 and missing.stderr.startswith(b"error: there is no file")


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["nosuch"], "no command 'nosuch' (see ptxkit --help)"),
        (["insp"], "'inspect'? (see ptxkit --help)"),
        (["bnech"], "'bench'? (see ptxkit --help)"),
        (["sweep", "tile"], "did you mean 'tiles'? (see ptxkit sweep --help)"),
        (["bench", "rn"], "did you mean 'run'? (see ptxkit bench --help)"),
        (["cache", "clr"], "did you mean 'clear'? (see ptxkit cache --help)"),
        (["cache", "nosuch"], "no command 'nosuch' (see ptxkit cache --help)"),
        (["bench", "verify", "r.json"], "`ptxkit bench verify` is called `ptxkit bench rerun` (see ptxkit bench --help)"),
        (["sweep", "tiles", "saxpy", "--workers", "2"], "--workers is called --jobs in `ptxkit sweep tiles`"),
        (["cluster", "worker", "a:1", "--gpu", "0"], "--gpu is called --gpu-index in `ptxkit cluster worker`"),
        (["cluster", "worker", "a:1", "--workers", "2"], "--workers is called --jobs in `ptxkit cluster worker`"),
        (["inspect", "saxpy", "--cluster", "2"], "--cluster is called --cluster-dims in `ptxkit inspect`"),
        (["debug", "k.cu", "--cluster", "2,1"], "--cluster is called --cluster-dims in `ptxkit debug`"),
        (["run", "k.cu", "--cluster", "2,1"], "--cluster-dims X[,Y[,Z]]"),
    ],
)
def test_only_a_near_command_is_suggested(tmp_path, words, end):
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.strip().endswith(end)


@pytest.mark.parametrize("group", [[], ["bench"], ["cache"], ["cluster"], ["sweep"], ["tuned"]], ids=" ".join)
def test_no_line_of_a_list_of_commands_is_cut_off(tmp_path, group):
    lines = run(*group, "--help", cwd=tmp_path).stdout.splitlines()
    assert "Commands:" in lines
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage")]


def test_a_file_that_is_here_is_named_with_its_path(tmp_path):
    (tmp_path / "mine.py").write_text("")
    assert "give its path: ./mine.py" in run("run", "mine", cwd=tmp_path).stderr
    assert "give ./mine.py --variant fused" in run("run", "./mine.py:fused", cwd=tmp_path).stderr


def test_an_interrupt_while_modules_are_imported_ends_without_a_traceback(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'ptxkit.cli':\n"
        "            print('importing', flush=True)\n"
        "            time.sleep(30)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from ptxkit.start import main\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == b"importing\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130 and stderr == b"error: interrupted\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("debug", "saxpy", "--clusterr", "2"), "no such option '--clusterr'"),
        (("run", "saxpy", "1000", "--seeds", "3", "--cluster", "2"), "'2' is a number, not the address of a scheduler"),
        (("cluster", "scheduler", "--host", "0.0.0.0"), "0.0.0.0 is all networks of this machine"),
        (("run", "saxpy:scalar", "1000"), "give the kernel, saxpy, and the option --variant scalar"),
    ],
)
def test_the_place_and_the_fix_are_named(words, complaint):
    done = run(*words)
    assert done.returncode == 2 and complaint in done.stderr and "mean '--cluster'" not in done.stderr
