"""The table of exit codes: one order, and the same rows in every document and in the help text."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

from ptxkit import errors
from ptxkit.cli import cli
from ptxkit.cli._help import EXIT_CODES
from ptxkit.exit_codes import SEVERITY, ExitCode, markdown_rows, most_severe

ROOT = Path(__file__).parents[1]
HEADER = "| code | meaning |"
DOCUMENTS = [file for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if HEADER in file.read_text()]


def table_of(text):
    rows = text.split(HEADER, 1)[1].splitlines()[2:]
    return [row for i, row in enumerate(rows) if all(r.startswith("|") for r in rows[: i + 1])]


def test_the_table_is_documented():
    assert ROOT / "docs" / "exit-codes.md" in DOCUMENTS


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_a_documented_table_is_the_table_of_the_code(file):
    assert table_of(file.read_text()) == markdown_rows()


def test_the_documented_order_is_the_order_of_the_code():
    text = (ROOT / "docs" / "exit-codes.md").read_text()
    order = re.search(r"in this order: ([0-9, ]+)\.", text).group(1)
    assert [int(code) for code in order.split(", ")] == [c.value for c in SEVERITY if c != ExitCode.DONE]


@pytest.mark.parametrize(
    "codes, code",
    [((), 0), ((0, 6), 6), ((1, 5, 4), 5), ((1, 4, 2), 1), ((2, 3), 2), ((8, 1), 8), ((5, 130), 130), ((9, 5), 9)],
)
def test_the_most_severe_of_several_is_chosen(codes, code):
    assert most_severe(codes) == code


def test_every_error_has_a_code_of_the_table_and_only_a_wrong_result_has_1():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PtxkitError)]
    assert all(ExitCode(kind.exit_code) for kind in kinds)
    assert [kind for kind in kinds if kind.exit_code == 1] == [errors.VerificationError]


def test_the_tree_in_the_docstring_has_the_codes_of_the_classes():
    drawn = dict(re.findall(r"(\w+Error|MemoryFault|ArithmeticTrap) +(?:exit code )?(\d)", errors.__doc__))
    kinds = {k: v for k, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.PtxkitError)}
    assert {name: str(int(kind.exit_code)) for name, kind in kinds.items()} == drawn


def commands(group, path=()):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def help_of(command, name):
    return " ".join(command.get_help(click.Context(command, info_name=name)).split())


def test_the_help_of_ptxkit_contains_the_table():
    for code in ExitCode:
        assert f"{code.value} {code.meaning.replace('`', '')}" in help_of(cli, "ptxkit")


def test_the_help_of_every_command_ends_with_the_place_of_the_table():
    for path, command in commands(cli):
        assert help_of(command, path[-1]).endswith(EXIT_CODES), path


def test_no_command_writes_exit_codes_of_its_own():
    for file in (ROOT / "ptxkit" / "cli").glob("*.py"):
        module = importlib.import_module(f"ptxkit.cli.{file.stem}" if file.stem != "__init__" else "ptxkit.cli")
        assert "Exit codes: 0" not in Path(module.__file__).read_text()
