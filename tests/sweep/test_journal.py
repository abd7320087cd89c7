"""The journal is valid after a crash."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.sweep import journal_lock
from ptxkit.sweep.journal import Entry, Journal, entry_of, read
from ptxkit.sweep.problem import Problem

PROBLEM = Problem("fused_l2norm", "vectorized", {"rows": 64, "cols": 1024}, {"eps": 1e-12}, "sm_90a")
GOOD = Entry({"THREADS": 128}, "ok", time_us=3.5, spread_us=0.1, samples=10, fingerprint="f")


def journal(tmp_path, device="NVIDIA H200", problem=PROBLEM):
    return Journal(tmp_path / "j.jsonl", problem, device)


def test_what_was_added_is_read_again(tmp_path):
    journal(tmp_path).add(GOOD)
    journal(tmp_path).add(Entry({"THREADS": 64}, "timeout", "not done within 1 s"))
    entries = journal(tmp_path).entries
    assert [e.status for e in entries] == ["ok", "timeout"]
    assert entries[0] == GOOD


@given(st.integers(1, 400))
def test_a_line_cut_short_costs_that_line_only(tmp_path_factory, cut):
    tmp_path = tmp_path_factory.mktemp("cut")
    first = journal(tmp_path)
    first.add(GOOD)
    first.add(GOOD)
    path = tmp_path / "j.jsonl"
    data = path.read_bytes()
    last = len(data.rstrip(b"\n").split(b"\n")[-1]) + 1
    path.write_bytes(data[: len(data) - min(cut, last)])
    again = journal(tmp_path)
    assert len(again.entries) in (1, 2)
    again.add(GOOD)
    assert len(journal(tmp_path).entries) == len(again.entries)


NAMES = st.sampled_from([field.name for field in fields(Entry)])
ODD = [None, True, 10**400, {"A": [1]}, {}]
VALUES = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


@given(st.dictionaries(NAMES, VALUES))
def test_a_line_with_values_of_other_types_costs_that_line_only(tmp_path_factory, changed):
    tmp_path = tmp_path_factory.mktemp("changed")
    journal(tmp_path).add(GOOD)
    path = tmp_path / "j.jsonl"
    line = {**json.loads(path.read_bytes().split(b"\n")[1]), **changed}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n" + json.dumps([line]) + "\n")
    again = journal(tmp_path)
    assert len(again.entries) + again.unread == 3
    assert again.entries[0] == GOOD
    for entry in again.entries:
        assert isinstance(hash((entry.key, entry.fingerprint)), int)
        assert sorted([entry.value, 0.0, entry.compile_s]) == sorted([entry.compile_s, entry.value, 0.0])
        assert entry.value >= 0 and (entry.time_us is None or entry.time_us > 0)


@pytest.mark.parametrize("change", [{"cost": -5}, {"time_us": -1.0}, {"time_us": 0}, {"samples": -1}, {"time_us": 1e-300}])
def test_a_number_that_cannot_be_measured_is_no_entry(change):
    """It would win."""
    values = {"tile": {"THREADS": 64}, "status": "ok"}
    assert entry_of(values) is not None
    assert entry_of({**values, **change}) is None


def test_known_by_machine_code_not_by_tile(tmp_path):
    j = journal(tmp_path)
    j.add(GOOD)
    assert j.known("f") == GOOD
    assert j.known("g") is None


def test_a_hang_is_tried_again(tmp_path):
    j = journal(tmp_path)
    j.add(Entry({"THREADS": 64}, "timeout", fingerprint="f"))
    assert j.known("f") is None


@pytest.mark.parametrize("change", ["device", "problem"])
def test_another_sweep_is_refused(tmp_path, change):
    journal(tmp_path)
    other = Problem("fused_l2norm", "vectorized", {"rows": 65, "cols": 1024}, {"eps": 1e-12}, "sm_90a")
    with pytest.raises(UsageError, match="another sweep"):
        journal(tmp_path, **({"device": "emulator"} if change == "device" else {"problem": other}))


def test_not_a_journal(tmp_path):
    (tmp_path / "j.jsonl").write_text(json.dumps({"schema": "x"}))
    with pytest.raises(UsageError, match=r"ptxkit\.sweep/1"):
        journal(tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none")


def test_leaders_are_kept_apart(tmp_path):
    journal(tmp_path).add(GOOD, leader=True)
    again = journal(tmp_path)
    assert (len(again.entries), len(again.leaders)) == (0, 1)


HOLD = """
import sys
from pathlib import Path
from ptxkit.sweep.journal_lock import lock
held = lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_journal_that_another_process_writes_is_refused(tmp_path):
    """Two sweeps at once would record each configuration twice; after the other one has ended, however, this one goes on."""
    journal(tmp_path).add(GOOD)
    path = tmp_path / "j.jsonl"
    before = path.read_bytes()
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another sweep is writing to .*j.jsonl; wait for its end, or take another file"):
            journal(tmp_path)
        assert path.read_bytes() == before
        other.kill()
    assert journal(tmp_path).entries == [GOOD]


def test_a_file_system_without_locks_is_used(tmp_path, monkeypatch):
    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(journal_lock.fcntl, "flock", refuse)
    journal(tmp_path).add(GOOD)
    assert journal(tmp_path).entries == [GOOD]


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 0)], ids=["deleted", "emptied"])
def test_a_journal_that_is_lost_during_a_sweep_is_written_again(tmp_path, lose):
    journal(tmp_path).add(GOOD)
    current = journal(tmp_path)
    lose(tmp_path / "j.jsonl")
    current.add(Entry({"THREADS": 64}, "timeout", "not done within 1 s"))
    current.add(GOOD, leader=True)
    again = journal(tmp_path)
    assert [e.status for e in again.entries] == ["ok", "timeout"] and again.leaders == [GOOD] and not again.unread


def test_what_cannot_be_appended_to_is_refused(tmp_path):
    """Lines after compressed ones would make the file unreadable, and opening a pipe waits for a reader."""
    journal(tmp_path).add(GOOD)
    packed = tmp_path / "j.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "j.jsonl").read_bytes()))
    before = packed.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("j.jsonl.gz", "can only be read; decompress it: gunzip .*j.jsonl.gz"), ("pipe", "is a pipe")):
        with pytest.raises(UsageError, match=what):
            Journal(tmp_path / name, PROBLEM, "NVIDIA H200")
    assert packed.read_bytes() == before and read(packed).entries == [GOOD]
