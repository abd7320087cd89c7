"""The group of commands: an unknown command is refused with the nearest known one."""

from __future__ import annotations

import click


class Commands(click.Group):
    """A click group that names the nearest command where a user gives an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from ptxkit.cli._text import nearest

            raise click.UsageError(f"no command {name!r}{nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)
