"""``ptxkit sweep tiles`` on the emulator: a whole sweep, a resumed one, and every wrong argument."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ptxkit_processes import Command, run

from ptxkit import cli
from ptxkit.errors import FaultError
from ptxkit.sweep.problem import Problem


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


SWEEP = ("sweep", "tiles", "saxpy:vectorized", "2048", "--device", "emulator", "--jobs", "1")


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
        (["saxpy:vectorized", "--timeout", "nan"], "not a number of seconds"),
        (["saxpy:vectorized", "--json", "none/s.json"], "cannot write none/s.json: No such file"),
        (["saxpy:vectorized", "--json", ""], "--json takes the name of a file"),
        (["saxpy:vectorized", "--t4", "."], "cannot write .: Is a directory"),
        (["saxpy:vectorized", "--t4", "here.json", "--json", "./here.json"], "--json and --t4 name the same file"),
        (["saxpy:vectorized", "--t4", "here.jsonl", "--journal", "here.jsonl"], "--journal and --t4 name the same file"),
        (["saxpy:vectorized", "--heatmap", "h.bmp"], "a heat map is drawn to .svg, .png, .pdf"),
        (["saxpy:vectorized", "--heatmap", "none/h.svg"], "cannot write none/h.svg"),
        (["saxpy:vectorized", "--heatmap", "h.svg"], "two tile parameters that vary"),
        (["saxpy:vectorized", "--heatmap", "h.svg", "--axes", "THREADS"], "--axes takes two"),
        (["saxpy:vectorized", "--heatmap", "h.svg", "--axes", "THREADS,WARPS"], "no tile parameter WARPS"),
        (["saxpy:vectorized", "--axes", "THREADS,WARPS"], "give --heatmap FILE"),
        (["saxpy:vectorized", "--peers", "torch"], "--peers needs a GPU"),
        (["saxpy:vectorized", "--peers", "torhc"], "did you mean 'torch'"),
        (["saxpy:vectorized", "--journal", "."], "Is a directory"),
        (["saxpy:vectorized", "--journal", ""], "--journal takes the name of a file"),
        (["saxpy:vectorized", "--journal", "file/j.jsonl"], "cannot write file/j.jsonl"),
    ],
)
def test_one_line_for_bad_words_before_anything_is_swept(words, complaint, capsys, tmp_path, monkeypatch):
    from ptxkit.sweep.run import Sweep

    monkeypatch.setattr(Sweep, "run", lambda *_: pytest.fail("it was swept"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PTXKIT_STATE_DIR", str(tmp_path))
    assert exit_of("sweep", "tiles", *words, "--device", "emulator") == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1


def test_a_picture_without_matplotlib_is_refused_before_the_sweep(capsys, tmp_path, monkeypatch):
    from ptxkit import figures
    from ptxkit.sweep.run import Sweep

    monkeypatch.setattr(Sweep, "run", lambda *_: pytest.fail("it was swept"))
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    words = ["fused_l2norm:vectorized", "16", "1024", "--device", "emulator", "--journal", tmp_path / "j"]
    assert exit_of("sweep", "tiles", *words, "--heatmap", tmp_path / "h.svg") == 3
    assert "pip install 'ptxkit[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("option", ["--json", "--t4", "--journal"])
def test_a_full_disk_is_an_exit_code_of_its_own(option, capsys, tmp_path):
    words = [*SWEEP, "--journal", tmp_path / "j.jsonl", option, "/dev/full"]
    assert exit_of(*words) == 7
    captured = capsys.readouterr()
    assert captured.err == "error: cannot write /dev/full: No space left on device\n"
    assert (option == "--journal") == ("Modelled from exact counts" not in captured.out)


def test_a_journal_on_a_full_disk_ends_with_a_whole_line(tmp_path, monkeypatch):
    from ptxkit.errors import FileAccessError
    from ptxkit.sweep.journal import Entry, Journal
    from ptxkit.sweep.problem import Problem

    journal = Journal(tmp_path / "j", Problem("saxpy", "vectorized", {"n": 64}, {}, "sm_90a"), "a device")
    before = (tmp_path / "j").read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:5]))
    with pytest.raises(FileAccessError, match="No space left"):
        journal.add(Entry({"THREADS": 128}, "ok"))
    assert (tmp_path / "j").read_bytes() == before


def test_json_is_alone_on_stdout_where_a_description_prints_and_nothing_is_disassembled(tmp_path):
    (tmp_path / "k.cu").write_text(
        "template <int THREADS> __global__ void k(float* x) { x[blockIdx.x * THREADS + threadIdx.x] *= 2; }\n"
    )
    (tmp_path / "k.py").write_text(
        "import os\nimport numpy as np\nfrom ptxkit import Launch, Work, Workload, variant\n"
        "print('at import'); os.system('echo from a child')\n"
        "class K(Workload):\n"
        "    source = 'k.cu'\n    n: int = 256\n"
        "    def inputs(self, rng):\n        print('inputs')\n        return {'x': np.ones(self.n, np.float32)}\n"
        "    def reference(self, x):\n        print('reference')\n        return {'x': 2 * x}\n"
        "    def work(self):\n        return Work(flops=self.n, bytes=8 * self.n)\n"
        "    @variant(tile={'THREADS': [64, 128]})\n"
        "    def plain(self, tile):\n"
        "        print('launch')\n"
        "        return [Launch('k', self.n // tile.THREADS, tile.THREADS, ('x',), template=(tile.THREADS,))]\n"
    )
    description = str(tmp_path / "k.py")
    for words in (
        ["run", description, "--json", "--device", "emulator"],
        ["run", description, "--json", "--device", "emulator", "--dry-run"],
        ["bench", "run", description, "--json", "-", "--device", "emulator"],
        ["list", description, "--json"],
        ["inspect", description, "--json"],
        ["sweep", "tiles", description, "--json", "-", "--device", "emulator", "--jobs", "1", "--journal", "j"],
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout), words
        assert "from a child" in done.stderr, words


def test_without_scikit_learn_it_is_random_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["fused_l2norm:vectorized", "16", "1024", "--evaluations", "2", "--jobs", "1", "--device", "emulator"]
    assert exit_of("sweep", "tiles", *words, "--journal", tmp_path / "j.jsonl") == 0
    assert "searched at random: pip install 'ptxkit[sweep]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "no configuration is known yet; the same command starts again, with j"),
        (1, "1 configuration is in j; the same command goes on from there"),
        (2, "2 configurations are in j; the same command goes on from there"),
    ],
)
def test_what_a_stopped_sweep_says_about_its_journal(count, said):
    from ptxkit.cli.sweep import _kept

    assert _kept(count, Path("j")) == said


@pytest.mark.parametrize(
    ("stop", "code"), [(KeyboardInterrupt(), 130), (FaultError("a fault"), 5), (MemoryError(), 3)]
)
def test_what_is_known_is_shown_when_the_end_of_a_sweep_is_stopped(stop, code, tmp_path, capsys, monkeypatch):
    from ptxkit.sweep.run import Sweep

    def stopped(self, mixing, say):
        raise stop

    monkeypatch.setattr(Sweep, "_gather", stopped)
    journal = tmp_path / "j.jsonl"
    assert exit_of(*SWEEP, "--journal", journal, "--json", tmp_path / "s.json") == code
    captured = capsys.readouterr()
    assert "Stopped early: these are the results so far." in captured.out
    assert captured.out.count("1.000x") == 1 and "THREADS" in captured.out
    assert f"3 configurations are in {journal}; the same command goes on from there" in captured.err
    assert len([json.loads(line) for line in journal.read_text().splitlines()]) == 4
    value = json.loads((tmp_path / "s.json").read_text())
    assert value["partial"] is True and len(value["entries"]) == 3


def test_the_machine_code_of_what_is_shown_is_disassembled_in_the_pool(tmp_path, monkeypatch, capsys):
    from ptxkit.inspect import disassembly
    from ptxkit.sweep.run import Sweep

    gathered = []
    gather = Sweep._gather

    def counted(self, mixing, say):
        gathered.append(len(mixing))
        gather(self, mixing, say)

    monkeypatch.setattr(Sweep, "_gather", counted)
    monkeypatch.setattr(disassembly, "_disassemble", lambda *_: pytest.fail("disassembled in this process"))
    monkeypatch.setenv("PTXKIT_CACHE_DIR", str(tmp_path / "cache"))  # disassembly listings are stored there
    assert exit_of(*SWEEP, "--journal", tmp_path / "j", "--top", "1") == 0
    assert "%, " in capsys.readouterr().out
    assert exit_of(*SWEEP, "--journal", tmp_path / "j", "--json", "-") == 0
    assert gathered == [1, 0]


def test_a_cluster_shows_the_table_and_an_interrupt_keeps_what_is_known(tmp_path):
    pytest.importorskip("distributed", reason="clusters need Dask")
    pytest.importorskip("cryptography", reason="connections of local clusters are encrypted")
    done = run(*SWEEP, "--cluster", "local", "--journal", tmp_path / "j")
    dashboard = r"dashboard: http://127\.0\.0\.1:\d+/status\n" if importlib.util.find_spec("bokeh") else ""
    assert done.returncode == 0
    assert re.fullmatch(dashboard, done.stderr)
    assert "3 of 3 configurations" in done.stdout
    words = ["sweep", "tiles", "fused_l2norm:vectorized", "16", "1024", "--cluster", "local", "--journal", tmp_path / "k"]
    started = Command([*words, "--jobs", "1"])
    until = time.monotonic() + 60
    while time.monotonic() < until and (not (tmp_path / "k").exists() or (tmp_path / "k").read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate()
    assert started.returncode == 130, err
    assert "these are the results so far" in out
    assert "the same command goes on from there" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--cluster", "node1:8786"], "--insecure in a network that you trust"),
        (["--cluster", "tls://node1"], "needs --tls DIRECTORY"),
        (["--cluster", "local", "--insecure"], "not for --cluster local"),
        (["--tls", "keys"], "are for --cluster ADDRESS"),
        (["--cluster", "127.0.0.1", "--jobs", "2"], "--jobs is for this machine"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(words, complaint, capsys):
    assert exit_of("sweep", "tiles", "saxpy:vectorized", "64", *words) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_an_interrupt_loses_nothing(tmp_path):
    journal = tmp_path / "j.jsonl"
    words = ["sweep", "tiles", "fused_l2norm:vectorized", "16", "1024", "--device", "emulator", "--jobs", "1"]
    command = [sys.executable, "-m", "ptxkit", *words, "--journal", str(journal)]
    restored = (
        "import signal, sys, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv = sys.argv[1:]; "
    )
    started = subprocess.Popen(
        [sys.executable, "-c", restored + "runpy.run_module('ptxkit', run_name='__main__')", *command[2:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert "these are the results so far" in out and "1.000x" in out
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert "leaked" not in err
    lines = journal.read_text().splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(lines) >= 3
    until = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):  # no process of its session is left
        while time.monotonic() < until:
            os.killpg(started.pid, 0)
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "evaluations", "count"),
    [("random", 3, 3), ("guided", 1, 8), ("guided", 3, 20), ("exhaustive", 3, 30)],
)
def test_a_large_space_is_not_listed_for_a_few_evaluations(monkeypatch, how, evaluations, count):
    """A space of 138 tiles stands for one of hundreds of thousands."""
    sweep = importlib.import_module("ptxkit.cli.sweep")
    monkeypatch.setattr(sweep, "LISTED_UP_TO", 30)
    monkeypatch.setattr(sweep, "GUIDED_SAMPLE", 8)
    fixed = {"CACHE": 1, "WIDTH": 0, "SHIFTED": False, "EVEN": False, "NO_EARLY_LAUNCH": False}
    sizes, options = {"rows": 64, "cols": 1024}, {"eps": 1e-12}
    problem = Problem("fused_l2norm", "vectorized", sizes, options, "sm_90a", fixed)
    space = sweep._space({"how": how, "evaluations": evaluations, "t1_file": None, "seed": 0}, problem)
    assert len(space.tiles) == count and not space.complete
