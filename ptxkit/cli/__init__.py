"""The command line: parse, call, print.

One file per command; a file's stem is the command's name and its ``command`` is what click runs. Files whose name starts
with ``_`` are shared by commands. A command's file imports nothing but click and the standard library at its top, so that
``ptxkit --help`` starts neither numpy nor a CUDA library.

Exit codes: 0 done, 1 wrong result, 2 usage, 3 not available here, 4 does not compile, 5 fault in a kernel (see
:mod:`ptxkit.errors`), 130 interrupted, 141 the reader of the output went away, 143 terminated.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from ptxkit.cli._signals import TERMINATED, Terminated
from ptxkit.errors import PtxkitError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE


class CommandFiles(click.Group):
    """A group whose commands are the files beside this one, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from ptxkit.cli._text import nearest

            raise click.UsageError(f"no command {name!r}{nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


EPILOG = """Shell completion, in ~/.bashrc: eval "$(_PTXKIT_COMPLETE=bash_source ptxkit)"; zsh_source, fish_source likewise."""


@click.command(cls=CommandFiles, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ptxkit", prog_name="ptxkit", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """The workbench for CUDA kernels at the PTX level: compile, run, verify and measure, with or without a GPU."""
    from ptxkit.cli._text import colourless

    if colourless():
        ctx.color = False


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; every foreseen failure is one line on stderr and its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us, as ``>&-`` does
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # to the end
    try:
        code = _guarded(args)
    except KeyboardInterrupt:  # a second one, while what follows from the first was under way
        code = INTERRUPTED
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _output_failed(error)
    if code in (INTERRUPTED, TERMINATED) and threading.active_count() > 1:
        sys.stderr.flush()
        os._exit(code)  # the interpreter would wait for worker threads that are in the middle of a kernel
    sys.exit(code)


def _guarded(args: Sequence[str] | None) -> int:
    stdout, stderr = sys.stdout, sys.stderr
    try:
        try:
            result = cli.main(args, prog_name="ptxkit", standalone_mode=False)
        finally:
            sys.stderr = stderr  # who sets it aside may have been stopped before setting it back
        return result if isinstance(result, int) else 0
    except PtxkitError as error:
        from ptxkit.cli._text import explain

        return _complain(explain(error), error.exit_code)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:  # of click 8.2
        click.echo(error.format_message(), err=True)
        return int(error.exit_code)
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _complain(_sentence(error.format_message()) + hint, error.exit_code)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error, Terminated) or isinstance(error.__cause__, Terminated):  # click turns it into Abort
            return _complain("terminated", TERMINATED)
        return _complain("interrupted", INTERRUPTED)
    except MemoryError as error:
        return _complain(f"not enough memory on this machine: {error or 'try smaller sizes'}", 1)
    except SystemExit:
        if sys.stdout is stdout:
            raise  # shell completion
        sys.stdout = stdout  # click replaces it on a broken pipe, and exits with 1, our "wrong result"
        return _output_failed(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    except OSError as error:
        if error.strerror is None:
            raise
        if error.filename is None:
            return _output_failed(error)
        return _complain(f"{error.filename}: {error.strerror}", 1)


def _complain(message: str, code: int) -> int:
    from ptxkit.cli._text import to_stderr

    to_stderr("error: " + message, fg="red")
    return code


def _output_failed(error: OSError) -> int:
    """The output cannot be written: quiet when its reader left, a line for a full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes nowhere, without a second complaint
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    return _complain(f"cannot write the output: {error.strerror}", 1)


def _sentence(text: str) -> str:
    """Click's sentence as our errors are written: no capital, no full stop."""
    text = text.removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
