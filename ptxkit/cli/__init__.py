"""The command line: each command parses its arguments, calls the library and prints the result.

One file per command; a file's stem is the command's name and its ``command`` is what click runs. Files whose name starts
with ``_`` are shared by commands. A command's file imports nothing but click and the standard library at its top, so that
``ptxkit --help`` starts neither numpy nor a CUDA library.

Exit codes are those of :class:`ptxkit.exit_codes.ExitCode`, for every command.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from ptxkit import environment
from ptxkit.cli._commands import Commands
from ptxkit.cli._early_exit import exits_refused
from ptxkit.cli._help import EXIT_CODES, format_exit_codes
from ptxkit.cli._output import open_missing, show_any_text
from ptxkit.cli._signals import (
    Terminated,
    handle_interrupts,
    interruptible,
    lost_interrupts_repeated,
    release_semaphores,
)
from ptxkit.errors import PtxkitError, shortened
from ptxkit.exit_codes import ExitCode

COMPLETION = "_PTXKIT_COMPLETE"  # set by the shell's completion function


class CommandFiles(Commands):
    """A click group whose commands are the files of this package; a command's file is imported when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return _with_exit_codes(command)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of exit codes, which all commands share, before the text on shell completion."""
        format_exit_codes(formatter)
        super().format_epilog(ctx, formatter)


NO_DIRECTORY = "the current directory does not exist any more; change to another one"
EPILOG = (
    "To enable shell completion, add to ~/.bashrc: "
    'eval "$(_PTXKIT_COMPLETE=bash_source ptxkit)". For other shells, use zsh_source or fish_source.'
)


@click.command(cls=CommandFiles, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ptxkit", prog_name="ptxkit", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compile, run, verify and measure CUDA kernels at the PTX level, with or without a GPU."""
    from ptxkit.cli._text import colourless, to_stderr

    if colourless():
        ctx.color = False
    for complaint in environment.complaints():
        to_stderr(f"warning: {shortened(complaint)}", fg="yellow")


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; every expected failure prints one line on stderr and has its own exit code."""
    open_missing()
    show_any_text()
    handler = interruptible()
    owned = getattr(handler, "__module__", "") == "ptxkit.start"
    try:
        with lost_interrupts_repeated():
            code = _guarded(args)
    except KeyboardInterrupt:  # a second interrupt, while the first one was being handled
        code = ExitCode.INTERRUPTED
    handle_interrupts(handler)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _output_failed(error)
    try:
        sys.stderr.flush()
    except OSError:  # messages that cannot be written change no exit code
        _discard_output(2)
    interrupted = code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED) and (owned or threading.active_count() > 1)
    if interrupted or _context_lost():
        release_semaphores()
        # the interpreter would wait for worker threads that are in the middle of a kernel, and may end by SIGINT itself; once
        # a GPU's context is lost, destructors of CUDA libraries would report the error of the kernel again, or abort
        os._exit(code)
    sys.exit(int(code))


def _context_lost() -> bool:
    """Whether a kernel has made a GPU's context unusable for this process."""
    loss = sys.modules.get("ptxkit.runtime.gpu.loss")
    return loss is not None and bool(loss.context_lost())


def _guarded(args: Sequence[str] | None) -> int:
    stdout, stderr = sys.stdout, sys.stderr
    try:
        try:
            with exits_refused():
                result = cli.main(args, prog_name="ptxkit", standalone_mode=False)
        finally:
            sys.stderr = stderr  # a command that redirects it may have been stopped before it restored it
        return int(result) if isinstance(result, int) else ExitCode.DONE
    except PtxkitError as error:
        from ptxkit.cli._text import explain

        return _complain(explain(error), error.exit_code)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:  # of click 8.2
        click.echo(error.format_message(), err=True)
        return int(error.exit_code)
    except click.UsageError as error:
        if isinstance(error, click.NoSuchOption) and error.possibilities and error.ctx:
            hidden = {name for param in error.ctx.command.params if getattr(param, "hidden", False) for name in param.opts}
            offered = [name for name in error.possibilities if name not in hidden]  # no former names
            error = click.NoSuchOption(error.option_name, possibilities=offered, ctx=error.ctx)
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _complain(shortened(_sentence(error.format_message())) + hint, error.exit_code)
    except click.ClickException as error:
        return _complain(shortened(error.format_message()), error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        stop = error if isinstance(error, KeyboardInterrupt) else error.__cause__  # click turns it into Abort
        where = f"; {stop}" if stop is not None and str(stop) else ""  # where the threads of a kernel were
        if isinstance(stop, Terminated):
            return _complain(f"terminated{where}", ExitCode.TERMINATED)
        return _complain(f"interrupted{where}", ExitCode.INTERRUPTED)
    except MemoryError as error:
        return _complain(
            f"not enough memory on this machine: {str(error) or 'try smaller sizes'}", ExitCode.UNAVAILABLE
        )
    except SystemExit as error:
        if sys.stdout is not stdout:
            sys.stdout = stdout  # click replaces it on a broken pipe, and exits with 1, which means "wrong result" here
            return _output_failed(BrokenPipeError(errno.EPIPE, "Broken pipe"))
        if COMPLETION in os.environ:
            raise  # click exits after it printed completions
        what = f"code that ptxkit imported or called ended the program with SystemExit({error.code!r})"
        return _complain(f"{what}; nothing was verified", ExitCode.USAGE)
    except OSError as error:
        if error.strerror is None:
            raise
        if error.filename is None:
            return _output_failed(error) if _directory_exists() else _complain(NO_DIRECTORY, ExitCode.USAGE)
        from ptxkit.files import WRONG_PATH

        code = ExitCode.USAGE if error.errno in WRONG_PATH else ExitCode.FILE_ACCESS
        return _complain(shortened(f"{error.filename}: {error.strerror}"), code)
    except Exception:  # noqa: BLE001  # the interpreter would exit with 1, which means "wrong result" here
        traceback.print_exc()
        return _complain("this is a bug in ptxkit; please report it with the traceback above", ExitCode.INTERNAL)


def _with_exit_codes(command: click.Command) -> click.Command:
    """The command; its help and that of its subcommands end with the place of the table of exit codes."""
    command.epilog = command.epilog or EXIT_CODES
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        _with_exit_codes(subcommand)
    return command


def _complain(message: str, code: int) -> int:
    from ptxkit.cli._text import to_stderr

    to_stderr("error: " + message.removeprefix("error: "), fg="red")
    return code


def _directory_exists() -> bool:
    """Whether the current directory exists, without which nothing can be compiled, and no process be started."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _output_failed(error: OSError) -> int:
    """Handle an output that cannot be written: no message for a closed pipe, one line for a full disk."""
    _discard_output(1)
    if error.errno == errno.EPIPE:
        return ExitCode.BROKEN_PIPE
    reason = "stdout is closed" if error.errno == errno.EBADF else error.strerror
    return _complain(f"cannot write the output: {reason}", ExitCode.FILE_ACCESS)


def _discard_output(descriptor: int) -> None:
    """Redirect a stream that cannot be written, because the interpreter flushes its buffer at exit and would exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _sentence(text: str) -> str:
    """Click's message in the form of ptxkit's errors: no capital letter at the start, no full stop."""
    text = text.removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
