"""The functions of which machine code consists besides the forms of instructions, and what forms declare of them."""

from __future__ import annotations

from functools import cache

from ptxkit.emulator.native import (
    access_code,
    atomic_code,
    call_code,
    collectives,
    gates,
    helpers,
    interpreter,
    memory_code,
    scalar,
    target_code,
    traffic_code,
)
from ptxkit.emulator.native.forms import narrow


@cache
def common() -> str:
    """The text at the beginning of a module of forms."""
    declared = (memory_code, access_code, atomic_code, collectives, scalar)
    lines = [line for part in declared for line in part.declarations().splitlines()]
    narrowed = [narrow(line) for line in scalar.declarations().splitlines()]
    return "\n".join([helpers.accessors(), *dict.fromkeys([*lines, *narrowed]), ""])


@cache
def runtime_text() -> str:
    """The text of the functions."""
    parts = (
        helpers.helpers(),
        memory_code.memory_code(),
        traffic_code.traffic_code(),
        access_code.access_code(),
        atomic_code.atomic_code(),
        call_code.call_code(),
        target_code.target_code(),
        gates.gate_code(),
        collectives.permute_code(),
        interpreter.interpreter(),
    )
    return "\n".join([helpers.accessors(), *parts])


RUN = "ptxkit_run"
"""The function that executes a function of a kernel: (context, its records) -> status."""


@cache
def exported() -> tuple[str, ...]:
    """The names of the functions that forms and Python call."""
    lines = "".join(part.declarations() for part in (memory_code, access_code, atomic_code, collectives)).splitlines()
    names = [line.partition("@")[2].partition("(")[0] for line in lines]
    return (RUN, *(name for name in names if name.startswith("ptxkit_")))
