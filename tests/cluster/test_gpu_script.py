"""What scripts/cluster_gpus.py makes of the lines of a journal."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster_gpus.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("cluster_gpus", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cluster_gpus", module)
    spec.loader.exec_module(module)
    return module


def test_the_parts_of_a_command_follow_from_its_journal(script):
    """100 configurations, 10 a second on two GPUs of which each takes 0.15 s for one; the command takes 30 s."""
    line = {"prepare_s": 0.10, "verify_s": 0.01, "time_s": 0.03, "measured_s": 0.15, "compile_s": 0.3}
    entries = [{**line, "read": 8 + n / 10} for n in range(100)]
    run = script.Run(2, entries=entries, leaders=[{"read": 24.0}, {"read": 26.0, "other_gpu": True}])
    run.processors, run.seconds = [float(n) for n in range(100)], 30.0
    run.result = {"spent_s": {"explored": 13.9, "start": 4.0}}
    parts = run.parts()
    assert {name: round(parts[name], 3) for name in script.PARTS} == {
        "before": 4.0, "ready": 4.0, "first": 4.0, "1st tenth": 1.0, "steady": 8.0, "last tenth": 0.9,
        "leaders": 6.1, "end": 6.0, "command": 30.0,
    }  # fmt: skip
    assert run.rates() == pytest.approx((10, 10))
    each = run.steady()
    assert {name: round(each[name], 3) for name in (*script.EACH, "busy")} == {
        "prepare": 100.0, "verify": 10.0, "time": 30.0, "answer": 10.0, "wait": 50.0, "compile": 300.0, "busy": 0.75,
    }  # fmt: skip


def test_lines_of_a_journal_are_read_as_they_come(script, tmp_path):
    path = tmp_path / "j"
    with script.Lines(path) as lines:
        assert lines.more() == []
        path.write_text('{"schema": 1}\n{"a": 1}\n{"a"')
        assert lines.more() == [{"a": 1}]
        with path.open("a") as file:
            file.write(": 2}\n" + json.dumps({"a": 3}) + "\n")
        assert lines.more() == [{"a": 2}, {"a": 3}]


def test_rounds_are_compared_pair_by_pair(script):
    """The machine is twice as fast in the second round, in which two GPUs have 0.9 of linear; the third has one run only."""

    def run(number, gpus, seconds):
        return script.Run(gpus, "full", number, entries=[{"read": seconds * n} for n in range(101)])

    runs = [script.Run(1), run(1, 1, 0.2), run(1, 2, 0.1), run(2, 1, 0.1), run(2, 2, 0.1 / 1.8), run(3, 2, 0.05)]
    assert script.in_rounds(runs, 2, 1) == pytest.approx([1.0, 0.9])
