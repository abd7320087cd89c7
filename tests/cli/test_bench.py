"""``ptxkit bench`` on the emulator: counting, receipts, and every bad word."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from ptxkit import cli

SLOW = """
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Slow(Workload):
    source = "slow.cu"
    n: int = 4096
    def inputs(self, rng):
        return {"x": np.zeros(self.n, np.float32)}
    def outputs(self):
        return {"x": (self.n, np.float32)}
    def reference(self, x):
        return {"x": x}
    def work(self):
        return Work(flops=1, bytes=8 * self.n)
    @variant()
    def only(self, t):
        return [Launch("slow", grid=1, block=32, args=("x", 1 << 28))]
"""
SLOW_CU = """
extern "C" __global__ void slow(float* x, int rounds) {
    float v = x[threadIdx.x];
    for (int i = 0; i < rounds; ++i) v = v * 0.5f;
    x[threadIdx.x] = v;
}
"""


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


@pytest.fixture(scope="module")
def receipt(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "r.json"
    assert exit_of("bench", "run", "saxpy", "--sizes", "2048", "--device", "emulator", "--json", file) == 0
    return file


def test_counts_are_shown_and_said_to_be_counts(receipt, capsys):
    assert exit_of("bench", "run", "saxpy", "--sizes", "2048", "--device", "emulator") == 0
    out = capsys.readouterr().out
    assert "the emulator has no times" in out
    assert "24.6 kB" in out  # 12 bytes an element, the least


def test_the_file_holds_counts_and_hashes(receipt):
    value = json.loads(receipt.read_text())
    assert value["schema"] == "ptxkit.bench/1"
    (target,) = value["targets"]
    assert len(target["inputs_sha256"]) == 64
    counted = {row["name"]: row["counted"] for row in target["rows"]}
    assert counted["scalar"]["load_bytes"] == 2 * 4 * 2048
    assert counted["scalar"]["store_bytes"] == 4 * 2048
    assert all(row["cold"] is None for row in target["rows"])


def test_a_receipt_runs_again_with_the_same_counts(receipt, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    from ptxkit.runtime import device

    monkeypatch.setattr(device, "gpu_present", lambda: False)
    assert exit_of("bench", "verify", receipt) == 0
    out = capsys.readouterr().out
    assert "same counts" in out
    assert "other counts" not in out


def test_json_alone_on_stdout(capsys):
    assert exit_of("bench", "run", "saxpy:scalar", "--sizes", "64", "--device", "emulator", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["rows"][0]["name"] == "scalar"


def test_list_names_kernels_and_sizes(capsys):
    assert exit_of("bench", "list", "--format", "csv") == 0
    out = capsys.readouterr().out
    assert "fused_l2norm,rows=16384 cols=8192" in out


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["run", "saxpyy"], 2, "saxpy"),
        (["run", "saxpy", "--sizes", "x"], 2, "--sizes takes sizes"),
        (["run", "saxpy", "--option", "a"], 2, "NAME=VALUE"),
        (["run", "saxpy", "--tile", "WARPS=3"], 2, "tile parameter WARPS"),
        (["run", "saxpy", "--check"], 2, "needs a GPU"),
        (["run", "saxpy", "--update-expectations"], 2, "needs a GPU"),
        (["run", "saxpy", "--profile", "ncu"], 2, "needs a GPU"),
        (["compare", "nowhere.json"], 2, "No such file"),
        (["roofline", "nowhere.json"], 2, "No such file"),
        (["verify", "nowhere.json"], 2, "No such file"),
    ],
)
def test_one_line_for_bad_words(words, code, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extra = ["--device", "emulator"] if words[0] == "run" else []
    assert exit_of("bench", *words, *extra) == code
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1


def test_a_roofline_needs_times(receipt, capsys):
    assert exit_of("bench", "roofline", receipt) == 2
    assert "needs times" in capsys.readouterr().err


def test_an_unknown_peer_is_named(capsys):
    from ptxkit.bench.peers import peers
    from ptxkit.errors import UsageError

    with pytest.raises(UsageError, match="torch"):
        peers(["torhc"])


def test_a_users_own_kernel_is_found_again_by_its_file(tmp_path, capsys, monkeypatch):
    from ptxkit.runtime import device

    monkeypatch.setattr(device, "gpu_present", lambda: False)
    assert exit_of("new", "mine", "--directory", tmp_path) == 0
    receipt = tmp_path / "r.json"
    assert (
        exit_of("bench", "run", tmp_path / "mine.py", "--sizes", "512", "--device", "emulator", "--json", receipt) == 0
    )
    capsys.readouterr()
    assert exit_of("bench", "verify", receipt) == 0
    assert "same counts" in capsys.readouterr().out
    (tmp_path / "mine.py").unlink()
    assert exit_of("bench", "verify", receipt) == 2
    assert "there is no file" in capsys.readouterr().err


def test_counts_are_compared_where_there_are_no_times(receipt, capsys):
    assert exit_of("bench", "compare", receipt, receipt) == 0
    out = capsys.readouterr().out
    assert "load bytes" in out
    assert "same" in out
    assert exit_of("bench", "compare", receipt) == 0
    assert "identical, bit for bit" in capsys.readouterr().out


def test_a_misspelt_peer_is_said_without_a_gpu(capsys):
    assert exit_of("bench", "run", "saxpy", "--sizes", "64", "--device", "emulator", "--peers", "torhc") == 2
    assert "torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_what_was_measured_survives_being_stopped(tmp_path, sent, code, word):
    """The first target is short, the second one is not over when the signal comes."""
    file = tmp_path / "r.json"
    restored = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from ptxkit.cli import main; main(sys.argv[1:])"
    )
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    (tmp_path / "slow.cu").write_text(SLOW_CU)
    words = ["bench", "run", "saxpy", str(slow), "--sizes", "4096", "--device", "emulator", "--json", str(file)]
    child = subprocess.Popen(
        [sys.executable, "-c", restored, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (file.exists() and json.loads(file.read_text())["targets"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(sent)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert word in err and "1 of 2 targets" in err
    assert "saxpy n=4096" in out
    value = json.loads(file.read_text())
    assert value["partial"] is True
    assert [t["kernel"] for t in value["targets"]] == ["saxpy"]
    assert [p.name for p in tmp_path.glob(".*")] == []


def test_a_run_that_ended_is_not_partial(receipt):
    assert json.loads(receipt.read_text())["partial"] is False
