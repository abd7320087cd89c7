"""The examples of docs/torch.md run, and its table has every function."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import ptxkit.torch as pt

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "ptxkit", "new", "my_kernel"], check=True, capture_output=True)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 5
    exec(compile("\n".join(blocks), "torch.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out in re.sub(r"\n    print\(error\)  # ", "\n", PAGE)


def test_the_table_has_every_function():
    table = PAGE.partition("## Functions")[2].partition("`help(")[0]
    named = set(re.findall(r"`(\w+)[(`]", table))
    functions = {name for name in pt.__all__ if name[0].islower() and name != "operation"}
    assert functions <= named


def test_a_program_that_does_not_use_torch_does_not_import_it():
    before = "import sys, ptxkit, ptxkit.workload.registry; assert 'torch' not in sys.modules"
    code = f"{before}; ptxkit.torch; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
