"""The help texts of commands: options below headings, and where the exit codes are explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ptxkit.exit_codes import ExitCode

OTHER = "Other options"
EXIT_CODES = "Exit codes: see `ptxkit --help`."

EMULATOR_CHECKS = (
    "--racecheck",
    "--racecheck-lanes",
    "--initcheck",
    "--trap",
    "--completion",
    "--completion-seed",
)
"""The options of :func:`ptxkit.cli._options.emulator_options` except the limit ``--max-instructions``."""

SOURCE_FILE_HEADINGS: Mapping[str, tuple[str, ...]] = {
    "Compilation of a source file": ("--instantiate", "--define", "--include", "--compiler-option"),
    "Launch of a source file's kernel": ("--arg", "--grid", "--block", "--cluster-dims", "--shared", "--cooperative"),
    "Arrays of a source file's kernel": ("--expect", "--tolerance", "--output"),
}
"""The options of :func:`ptxkit.cli._run_file.file_options`."""


class HeadedCommand(click.Command):
    """A command whose help lists the options below headings.

    Attributes:
        headings: heading -> its options, in the order of the help. Options that it does not name are listed last.
    """

    def __init__(self, *args: Any, headings: Mapping[str, tuple[str, ...]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headings = dict(headings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each heading."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option: record for option in options if (record := option.get_help_record(ctx)) is not None}
        named = {name: option for option in records for name in option.opts}
        for heading, names in self.headings.items():
            _section(formatter, heading, [records.pop(named[name]) for name in names])
        _section(formatter, OTHER, list(records.values()))


def format_exit_codes(formatter: click.HelpFormatter) -> None:
    """Write the table of exit codes as a section of a help text."""
    _section(formatter, "Exit codes", [(str(code.value), code.meaning.replace("`", "")) for code in ExitCode])


def _section(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)
