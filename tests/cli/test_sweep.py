"""``ptxkit sweep tiles`` on the emulator: a whole sweep, resumed, and every bad word."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ptxkit import cli


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


SWEEP = ("sweep", "tiles", "saxpy:vectorized", "2048", "--device", "emulator", "--workers", "1")


def test_swept_then_known(tmp_path, capsys):
    journal = tmp_path / "j.jsonl"
    out = tmp_path / "s.json"
    assert exit_of(*SWEEP, "--journal", journal, "--json", out, "--t4", tmp_path / "t4.json") == 0
    assert "Modelled from exact counts" in capsys.readouterr().out
    value = json.loads(out.read_text())
    assert value["unit"] == "modelled cost"
    assert {e["tile"]["THREADS"] for e in value["entries"]} == {128, 256, 512}
    assert all(e["status"] == "ok" and e["time_us"] is None for e in value["entries"])
    assert json.loads((tmp_path / "t4.json").read_text())["schema_version"] == "1.0.0"
    before = journal.read_bytes()
    assert exit_of(*SWEEP, "--journal", journal) == 0
    assert "3 known already" in capsys.readouterr().out
    assert journal.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["saxpyy"], "saxpy"),
        (["saxpy:ptx", "64"], "no tile parameters"),
        (["saxpy:vectorized", "1", "2"], "too many"),
        (["saxpy:vectorized", "--tile", "THREADS=7"], "offers"),
        (["saxpy:vectorized", "--tile", "WARPS=7"], "no tile parameter WARPS"),
        (["saxpy:vectorized", "--t1", "none.json"], "No such file"),
        (["saxpy:vectorized", "--apply"], "--apply needs a GPU"),
        (["saxpy:vectorized", "-5"], "at least 1"),
    ],
)
def test_one_line_for_bad_words(words, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTXKIT_STATE_DIR", str(tmp_path))
    assert exit_of("sweep", "tiles", *words, "--device", "emulator") == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1


def test_without_scikit_learn_it_is_random_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["fused_l2norm:vectorized", "16", "1024", "--evaluations", "2", "--workers", "1", "--device", "emulator"]
    assert exit_of("sweep", "tiles", *words, "--journal", tmp_path / "j.jsonl") == 0
    assert "searched at random: pip install 'ptxkit[sweep]'" in capsys.readouterr().err


def test_an_interrupt_loses_nothing(tmp_path):
    journal = tmp_path / "j.jsonl"
    words = ["sweep", "tiles", "fused_l2norm:vectorized", "16", "1024", "--device", "emulator", "--workers", "1"]
    command = [sys.executable, "-m", "ptxkit", *words, "--journal", str(journal)]
    restored = (
        "import signal, sys, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv = sys.argv[1:]; "
    )
    started = subprocess.Popen(
        [sys.executable, "-c", restored + "runpy.run_module('ptxkit', run_name='__main__')", *command[2:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert "leaked" not in err
    lines = journal.read_text().splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(lines) >= 3
    until = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):  # nobody is left of its session
        while time.monotonic() < until:
            os.killpg(started.pid, 0)
            time.sleep(0.05)
