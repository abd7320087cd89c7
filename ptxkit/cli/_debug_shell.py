"""The prompt of ``ptxkit debug``, and its scripted use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from ptxkit.debugger.commands import Interpreter, Reply
from ptxkit.debugger.commands.interpreter import TABLE
from ptxkit.debugger.session import Session
from ptxkit.debugger.workloads import finished
from ptxkit.errors import PtxkitError
from ptxkit.exit_codes import ExitCode

SCHEMA = "ptxkit.debug/1"
PROMPT = "(ptxkit) "


def run_session(session: Session, lines: Sequence[str] | None, as_json: bool, *, started: bool = False) -> int:
    """Execute the lines of a script, or of standard input; the exit code.

    Args:
        lines: the script; None reads standard input, with a prompt where that is a terminal.
        as_json: print nothing but one JSON object at the end.
        started: start the kernel at once.
    """
    from ptxkit.cli._output import stdout_set_aside

    shell = _Shell(session, as_json)
    with stdout_set_aside(as_json):
        if lines is not None:
            shell.script(lines)
        else:
            shell.interactive(started)
        session.close()
    if as_json:
        from ptxkit.cli._text import print_json

        print_json({"schema": SCHEMA, "commands": shell.log, "exit_code": int(shell.code)})
    return int(shell.code)


class _Shell:
    """Executes lines and records their replies.

    Attributes:
        log: every command with its reply, as JSON values.
        code: the exit code of the process.
    """

    def __init__(self, session: Session, as_json: bool) -> None:
        self.session = session
        self.as_json = as_json
        self.interpreter = Interpreter(session, finished)
        self.log: list[dict[str, Any]] = []
        self.code: int = ExitCode.DONE

    def script(self, lines: Sequence[str]) -> None:
        """Execute every line. The first line in error ends the script, and its exit code becomes that of the process."""
        for line in lines:
            if line.strip() and not self.as_json:
                click.echo(f"{PROMPT}{line.strip()}")
            reply = self.execute(line)
            if reply is None or reply.quit:
                return

    def interactive(self, started: bool) -> None:
        """Read lines until ``quit`` or the end of the input."""
        terminal = sys.stdin.isatty()
        if terminal:
            _prepare_editing(self.session)
        if started:
            self.execute("run")
        while True:
            try:
                line = input(PROMPT) if terminal and not self.as_json else sys.stdin.readline()
            except EOFError:
                if terminal:
                    click.echo()
                return
            except KeyboardInterrupt:
                click.echo()
                continue
            if not terminal and not line:
                return
            try:
                reply = self.execute(line)
            except KeyboardInterrupt:
                click.echo("interrupted")
                continue
            if reply is not None and reply.quit:
                return
            if reply is None and terminal:
                self.code = ExitCode.DONE  # an interactive session continues: the user has seen the message

    def execute(self, line: str) -> Reply | None:
        """Execute a line and print its reply; None when the line is in error."""
        try:
            reply = self.interpreter.execute(line)
        except PtxkitError as error:
            from ptxkit.cli._text import explain, to_stderr

            self.code = int(error.exit_code)
            self.log.append({"command": line.strip(), "error": str(error), "exit_code": int(error.exit_code)})
            to_stderr(f"error: {explain(error)}", fg="red")
            return None
        if line.strip():
            self.log.append({"command": line.strip(), "text": reply.text, **reply.data})
        if reply.text and not self.as_json:
            click.echo(reply.text)
        reason = reply.data.get("reason")
        if reason in ("fault", "race", "failed"):
            self.code = ExitCode.FAULT
        elif reason == "finished":
            self.code = ExitCode.WRONG if reply.data.get("verified") is False else ExitCode.DONE
        elif reason is not None and self.code != ExitCode.DONE:
            self.code = ExitCode.DONE if line.split()[:1] in (["run"], ["r"], ["start"], ["restart"]) else self.code
        return reply


def _prepare_editing(session: Session) -> None:
    """Line editing, history and completion, where Python has readline."""
    try:
        import readline
    except ImportError:
        return
    words = sorted({key for key in TABLE if " " not in key} | {key.split()[0] for key in TABLE if " " in key})

    def candidates(text: str) -> list[str]:
        line = readline.get_line_buffer()[: readline.get_begidx()].strip()
        if not line:
            return [w for w in words if w.startswith(text)]
        if any(key.startswith(f"{line} ") for key in TABLE):
            return [k.split(" ", 1)[1] for k in TABLE if k.startswith(f"{line} {text}")]
        names: set[str] = set()
        for subject in session.subjects.values():
            names |= {p.name for p in subject.parameters if p.name}
            names |= set(subject.module.functions) | {subject.module.path}
            names |= set(subject.module.functions[subject.entry].registers)
        return sorted(n for n in names if n.startswith(text))

    def complete(text: str, state: int) -> str | None:
        found = candidates(text)
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n()[]+-*/&|^,=")
    readline.parse_and_bind("tab: complete")
