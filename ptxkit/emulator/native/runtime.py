"""The functions that all machine code calls, compiled once for a process, and what other modules declare of them."""

from __future__ import annotations

from functools import cache

from ptxkit.emulator.native import call_code, collectives, gates, helpers, memory_code, scalar, target_code


def common() -> str:
    """The text at the beginning of a module that calls these functions."""
    return _common()


@cache
def _common() -> str:
    declared = (helpers, memory_code, call_code, target_code, gates, collectives, scalar)
    return "\n".join([helpers.accessors(), *(part.declarations() for part in declared)])


@cache
def runtime_text() -> str:
    """The text of the functions."""
    parts = (helpers.helpers(), memory_code.memory_code(), call_code.call_code(), target_code.target_code())
    return "\n".join([helpers.accessors(), *parts, gates.gate_code(), collectives.permute_code()])


@cache
def exported() -> tuple[str, ...]:
    """The names of the functions that other modules call."""
    declared = (helpers, memory_code, call_code, target_code, gates, collectives)
    lines = "".join(part.declarations() for part in declared).splitlines()
    names = [line.partition("@")[2].partition("(")[0] for line in lines]
    return tuple(name for name in names if name.startswith("ptxkit_"))
