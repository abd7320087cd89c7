"""``ptxkit cache``: the compiled images kept on disk."""

from __future__ import annotations

import click

from ptxkit.cli._commands import Commands


@click.group(cls=Commands)
def command() -> None:
    """Show or empty the cache of compiled kernels."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def info(as_json: bool) -> None:
    """Show where the cache is and what it contains."""
    from dataclasses import asdict

    from ptxkit.cli._text import number_of, print_json
    from ptxkit.compiler.cache import default_cache
    from ptxkit.quantities import quantity

    held = default_cache().info()
    if as_json:
        print_json({"schema": "ptxkit.cache/1", **asdict(held), "directory": str(held.directory)})
        return
    state = "" if held.writable else ", cannot be written"
    size = f"{quantity(held.size_bytes, 'B')} of {quantity(held.limit_bytes, 'B')}"
    click.echo(f"{held.directory}: {number_of(held.entries, 'image')}, {size}{state}")


@command.command()
def clear() -> None:
    """Delete every compiled image."""
    from ptxkit.cli._text import number_of
    from ptxkit.compiler.cache import default_cache

    click.echo(f"removed {number_of(default_cache().clear(), 'image')}")
