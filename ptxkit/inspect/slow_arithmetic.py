"""Arithmetic that ptxas expands into a subroutine or a long sequence: division, square root, trigonometric reduction.

The names of the subroutines are those that ptxas 13 writes into a cubin, ``$__internal_0_$__cuda_sm20_div_s64``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.inspect.natural_loops import depth_of

_SUBROUTINES = (
    (r"div_\w*f32", "a float division, whose slow path is a call; __fdividef or -use_fast_math avoids it"),
    (r"sqrt_\w*f32", "a float square root, whose slow path is a call; sqrt.approx.f32 or -use_fast_math avoids it"),
    (r"rcp_\w*f32", "a float reciprocal, whose slow path is a call; rcp.approx.f32 or -use_fast_math avoids it"),
    (r"(div|rcp|d?sqrt)_\w*f64", "a double-precision division, reciprocal or square root: dozens of instructions"),
    (r"(div|rem)_[us]64", "a 64-bit integer division or modulo: about a hundred instructions; use 32 bits or shifts"),
    (r"(div|rem)_[us]16", "an integer division or modulo; use shifts or a reciprocal"),
    (r"trig_reduction", "the reduction of a large trigonometric argument; keep arguments small, or use __sinf and __cosf"),
)  # fmt: skip


def slow_arithmetic(function: SassFunction) -> Iterator[tuple[str, list[SassInstruction]]]:
    """(message, instructions) for each source line with such arithmetic in a loop."""
    depth = depth_of(function)
    groups: dict[tuple[object, str], list[SassInstruction]] = {}
    for instruction in function.instructions:
        what = _described(instruction) if instruction.address in depth else ""
        if what:
            line = (instruction.source.file, instruction.source.line) if instruction.source else instruction.ptx_line
            groups.setdefault((line, what), []).append(instruction)
    wide = {line for line, what in groups if "64-bit" in what}  # also contains a 32-bit division, for operands that fit
    for (place, what), group in groups.items():
        if place in wide and "32-bit" in what:
            continue
        yield f"in a loop: {what}", group


def _described(instruction: SassInstruction) -> str:
    if instruction.opcode == "CALL":
        names = " ".join(instruction.targets)
        return next((what for pattern, what in _SUBROUTINES if re.search(pattern, names)), "")
    if instruction.opcode == "I2F" and "RP" in instruction.modifiers:  # rounded up for the reciprocal of a divisor
        return "a 32-bit integer division or modulo by a variable, about 20 instructions; use a power of two or a reciprocal"
    return ""
