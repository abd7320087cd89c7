"""The help texts: every option is listed once, below an existing heading, and every text begins with a verb."""

from __future__ import annotations

import re

import click
import pytest

from ptxkit.cli import cli
from ptxkit.cli._help import OTHER, HeadedCommand

MANY_OPTIONS = 10


def commands(group, path=()):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


COMMANDS = {" ".join(path): command for path, command in commands(cli)}
HEADED = {name: command for name, command in COMMANDS.items() if isinstance(command, HeadedCommand)}


def options_of(command):
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def test_commands_with_many_options_list_them_below_headings():
    many = {name for name, command in COMMANDS.items() if len(options_of(command)) > MANY_OPTIONS}
    assert many <= set(HEADED) and len(many) >= 6


@pytest.mark.parametrize("name", HEADED)
def test_every_option_is_listed_once(name):
    command = HEADED[name]
    text = command.get_help(click.Context(command, info_name=name))
    text = text[text.index(f"\n{next(iter(command.headings))}:\n") :]
    for option in options_of(command):
        shown = ", ".join(sorted(option.opts, key=lambda word: word.startswith("--")))
        assert len(re.findall(rf"^  {re.escape(shown)}(?=\s|$)", text, re.MULTILINE)) == 1, shown
    assert [heading for heading in command.headings if f"\n{heading}:\n" not in text] == []
    rest = text.partition(f"\n{OTHER}:\n")[2].partition("\n\n")[0]
    assert len(rest.splitlines()) == 1 and "--help" in rest, "an option without a heading"


NO_VERBS = {"The", "A", "An", "With", "Without", "Of", "For", "In", "To", "These", "This", "Only", "Exactly", "Seed"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_begin_with_a_verb_and_end_with_a_full_stop(name):
    command = COMMANDS[name]
    texts = [option.help for option in options_of(command)] + [command.help.split("\n")[0]]
    for text in texts:
        assert text.split()[0] not in NO_VERBS, text
        assert text.endswith("."), text
