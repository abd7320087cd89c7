"""The simulation of docs/cluster.md, which places configurations by the policy of the cluster itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "cluster_simulation.py"


def test_two_simulated_gpus_are_as_fast_as_two():
    words = ["--gpus", "1,2", "--measure-ms", "500"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=True)
    title, headers, *rows = (line.split() for line in done.stdout.splitlines())
    assert headers[:2] == ["GPUs", "configurations"]
    assert [row[0] for row in rows] == ["1", "2"]
    assert 0.9 < float(rows[1][4]) < 1.1
    assert {row[-1] for row in rows} == {"GPU"}
