"""Forms that are not executed: each is refused with its reason, and the page of the documentation lists it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ptxas_oracle
import pytest

from ptxkit.emulator import Machine
from ptxkit.emulator.simt.absent import ABSENT, Absent
from ptxkit.errors import UnsupportedError
from ptxkit.isa.parser import parse

ROOT = Path(__file__).parents[3]
EXAMPLES = [pytest.param(a, s, id=s.split(" ")[0]) for a in ABSENT for s in a.examples]


@pytest.mark.parametrize(("absent", "statement"), EXAMPLES)
def test_a_form_is_refused_with_its_reason(absent: Absent, statement: str):
    text = ptxas_oracle.module([statement], "sm_90a", "9.0")
    with pytest.raises(UnsupportedError) as caught:
        Machine(capacity=1 << 20).load(parse(text, "forms.ptx"), "sm_90a").bind("k")
    assert "forms.ptx:6" in str(caught.value)
    if "without .sync" not in absent.forms:  # refused by the check of the module, as ptxas does, in its own words
        assert absent.reason in str(caught.value)


def test_the_page_lists_the_forms_as_they_are():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/write_forms.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
