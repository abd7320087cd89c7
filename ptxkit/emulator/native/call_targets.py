"""The functions that machine code calls, and what it passes to them."""

from __future__ import annotations

from collections.abc import Mapping

from ptxkit.emulator.instructions.branches import Call
from ptxkit.emulator.native.interpreter import OWN
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.isa.model import Symbol

Callee = tuple[int, Places]
"""The number and the places of a function."""

MOST_TARGETS = 64
"""Functions among which machine code chooses for a call through a register."""


def callee_of(call: Call, places: Places, callees: Mapping[int, Callee]) -> Callee | None:
    """The function that a call without predicate names, if machine code can perform the call."""
    if call.predicate is not None or not isinstance(call.callee, Symbol) or len(call.entries) != 1:
        return None
    (code,) = call.entries.values()
    return _callable(call, code, places, callees)


def targets_of(call: Call, places: Places, callees: Mapping[int, Callee]) -> list[tuple[int, Callee | None]]:
    """The functions that a call through a register may call, by address, in the order of their blocks.

    None for a function that machine code cannot call. Empty for other calls.
    """
    k = places.register(call.callee)
    if call.predicate is not None or k is None or places.bits(k) != 64 or len(call.entries) > MOST_TARGETS:
        return []
    found = sorted(call.entries.items(), key=lambda item: item[1].entry)
    return [(address, _callable(call, code, places, callees)) for address, code in found]


def _callable(call: Call, code: FunctionCode, places: Places, callees: Mapping[int, Callee]) -> Callee | None:
    """The number and places of a function, if machine code can pass it the operands of a call."""
    operands = (*call.site.arguments, *call.site.returns)
    function = code.function
    formal = (*function.params, *function.returns)
    plain = all(isinstance(o, Symbol) and o.name in places.frame for o in operands)
    if code.undefined or not plain or any(v.space == "reg" for v in formal) or len(formal) != len(operands):
        return None
    return callees.get(code.entry)


def call_words(call: Call, places: Places, number: int, callee: Places) -> list[int]:
    """The record of a call."""
    code = callee.code
    actual = dict(zip((v.name for v in code.function.params), call.site.arguments, strict=True))
    actual |= dict(zip((v.name for v in code.function.returns), call.site.returns, strict=True))
    words = [number, places.code.frame_bytes, code.frame_bytes, code.entry, len(callee.frame)]
    for name in callee.frame:
        offset = code.frame_offsets.get(name)
        if offset is not None:
            words += [OWN, places.code.frame_bytes + offset]
        else:
            given = actual[name]
            assert isinstance(given, Symbol)
            words += [places.frame[given.name], given.offset]
    return words
