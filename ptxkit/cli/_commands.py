"""The group of commands: an unknown command is refused with the nearest known one, a former name with the present one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


class Commands(click.Group):
    """A click group that names the nearest command where a user gives an unknown one.

    Args:
        renamed: former name of a command -> its present name.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.renamed = dict(renamed or {})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from ptxkit.cli._text import nearest

            if name in self.renamed:
                raise click.UsageError(f"`{ctx.command_path} {name}` is called `{ctx.command_path} {self.renamed[name]}`", ctx)
            raise click.UsageError(f"no command {name!r}{nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)
