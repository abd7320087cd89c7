"""Reads command lines: finds the command by its name, an abbreviation or an alias, and executes it on a session."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ptxkit.debugger.session import Session
from ptxkit.errors import UsageError

GROUPS = ("running", "breakpoints", "data", "threads", "status")


@dataclass(frozen=True)
class Reply:
    """The output of a command.

    Attributes:
        text: the output as text. data: the same as JSON values.
        quit: whether the session ends.
    """

    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    quit: bool = False


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: in full; two words for a subcommand, as ``"info warps"``.
        aliases: short forms.
        usage: with its arguments. about: what it does, one sentence.
        group: of :data:`GROUPS`.
        repeats: an empty line executes it again.
    """

    name: str
    aliases: tuple[str, ...]
    usage: str
    about: str
    group: str
    run: Callable[[Interpreter, str], Reply]
    repeats: bool = False


TABLE: dict[str, Command] = {}


def command(
    name: str, *aliases: str, usage: str = "", group: str, repeats: bool = False
) -> Callable[[Callable[[Interpreter, str], Reply]], Callable[[Interpreter, str], Reply]]:
    """Put a function ``(interpreter, argument) -> Reply`` into the table; its docstring's first line is the help text."""

    def add(function: Callable[[Interpreter, str], Reply]) -> Callable[[Interpreter, str], Reply]:
        about = " ".join((function.__doc__ or "").split())
        made = Command(name, aliases, f"{name} {usage}".strip(), about, group, function, repeats)
        for key in (name, *aliases):
            if key in TABLE:
                raise ValueError(f"two commands are called {key}")
            TABLE[key] = made
        return function

    return add


class Interpreter:
    """Executes command lines on a session.

    Attributes:
        session: the debugging session.
        style: format that the command line gave after a slash: ``"x"`` of ``p/x``.
        displays: expressions that every stop shows, by number.
        listed: (file, next line) of the last ``list``.
        finished: makes the reply for the outcome of a finished run, with the verdict on its results.
    """

    def __init__(self, session: Session, finished: Callable[[Any], Reply] | None = None) -> None:
        self.session = session
        self.finished = finished
        self.style = ""
        self.displays: dict[int, str] = {}
        self.listed: tuple[str, int] | None = None
        self._last = ""

    def execute(self, line: str) -> Reply:
        """Execute one line. A comment does nothing; an empty line repeats what can be repeated.

        Raises:
            PtxkitError: the command cannot be executed; the session is as it was.
        """
        line = line.strip()
        if line.startswith("#"):
            return Reply()
        if not line:
            if not self._last:
                return Reply()
            line = self._last
        found, style, argument = self._split(line)
        self.style = style
        self._last = line if found.repeats else ""
        return found.run(self, argument)

    def _split(self, line: str) -> tuple[Command, str, str]:
        match = re.match(r"([A-Za-z][\w-]*)(?:/(\w+))?\s*(.*)", line, re.DOTALL)
        if match is None:
            raise UsageError(f"{line!r} is no command; 'help' lists the commands")
        word, style, rest = match[1], match[2] or "", match[3].strip()
        first = self._find(word, [k for k in TABLE if " " not in k] + [k.split()[0] for k in TABLE if " " in k])
        if any(key.startswith(first + " ") for key in TABLE):
            second, _, after = rest.partition(" ")
            names = [k.split(" ", 1)[1] for k in TABLE if k.startswith(first + " ")]
            if second:
                # "thread 3" is a command with an argument where 3 is no subcommand
                if first in TABLE and not any(n.startswith(second) for n in names):
                    return TABLE[first], style, rest
                return TABLE[f"{first} {self._find(second, names, first)}"], style, after.strip()
            if first not in TABLE:
                raise UsageError(f"{first} needs a subcommand: one of {', '.join(sorted(set(names)))}")
        return TABLE[first], style, rest

    def _find(self, word: str, names: list[str], before: str = "") -> str:
        names = sorted(set(names))
        if word in names:
            return word
        near = [n for n in names if n.startswith(word)]
        prefix = f"{before} " if before else ""
        meant = {id(TABLE[f"{prefix}{n}"]) if f"{prefix}{n}" in TABLE else n for n in near}
        if len(meant) == 1:
            return near[0]
        if near:
            raise UsageError(f"'{prefix}{word}' is ambiguous: {', '.join(prefix + n for n in near)}")
        from difflib import get_close_matches

        close = get_close_matches(word, names, n=1)
        hint = f"did you mean '{prefix}{close[0]}'?" if close else "'help' lists the commands"
        raise UsageError(f"no command '{prefix}{word}'; {hint}")


def number(text: str, what: str, default: int | None = None, least: int = 0) -> int:
    """A whole number argument.

    Raises:
        UsageError: the text is not a whole number, or is too small.
    """
    text = text.strip()
    if not text and default is not None:
        return default
    try:
        value = int(text, 0)
    except ValueError:
        raise UsageError(f"{what} is a whole number, not {text!r}") from None
    if value < least:
        raise UsageError(f"{what} is at least {least}, not {value}")
    return value


def coordinates(text: str, what: str) -> list[int]:
    """``"3"``, ``"3,0,0"`` or ``"(3,0,0)"`` as numbers."""
    parts = text.strip().strip("()").split(",")
    try:
        return [int(p) for p in parts]
    except ValueError:
        raise UsageError(f"a {what} is a number or x,y,z, not {text.strip()!r}") from None


@command("help", "h", usage="[COMMAND]", group="status")
def _help(d: Interpreter, argument: str) -> Reply:
    """List the commands, or explain one."""
    commands = list({id(c): c for c in TABLE.values()}.values())
    if argument:
        found, _, _ = d._split(argument)
        names = [c for c in commands if c is found or c.name.startswith(found.name + " ")]
    else:
        names = commands
    lines = []
    for group in GROUPS:
        members = sorted((c for c in names if c.group == group), key=lambda c: c.name)
        if members:
            lines.append(f"{group}:")
            for c in members:
                short = f" ({', '.join(c.aliases)})" if c.aliases else ""
                lines.append(f"  {c.usage}{short}\n      {c.about}")
    if not argument:
        lines.append("A command may be shortened as long as it stays unique. An empty line repeats a step.")
    data = [{"name": c.name, "aliases": list(c.aliases), "usage": c.usage, "about": c.about} for c in names]
    return Reply("\n".join(lines), {"commands": data})
