"""docs/debug.md: its commands print what it shows, and its Python runs."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ptxkit.cli import cli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "debug.md").read_text()
CONSOLE = re.findall(r"```console\n\$ ptxkit (.*?[^\\])\n(.*?)\n```", TEXT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def normal(text):
    """Without what depends on the compiler's version: numbers, and the widths of columns."""
    text = re.sub(r"\d+", "#", text.replace(f"{ROOT}/", ""))
    return [re.sub(r"[\s-]+", " ", line).strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("command", "output"), CONSOLE, ids=lambda v: v.split("\n")[0][:40])
def test_commands(command, output):
    result = CliRunner().invoke(cli, shlex.split(command.replace("\\\n", " ")), standalone_mode=False)
    assert result.exception is None
    assert normal(result.output) == normal(output)


@pytest.mark.parametrize("code", PYTHON)
def test_python(code):
    exec(compile(code, "debug.md", "exec"), {})


def test_there_is_something_to_test():
    assert len(CONSOLE) == 3
    assert len(PYTHON) == 1
