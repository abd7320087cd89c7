"""What the README shows in Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_python_api_block_runs(monkeypatch, capsys):
    from ptxkit.runtime import device

    monkeypatch.setattr(device, "gpu_present", lambda: False)
    blocks = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "Workload" not in block]
    assert len(blocks) == 2
    exec("\n".join(blocks), {"__name__": "readme"})
    out = capsys.readouterr().out
    assert "25000 sectors of 32 bytes loaded" in out
    assert "instructions" in out
