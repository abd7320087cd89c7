"""The tcgen05 patterns against ptxas: they take what it takes for sm_100a, sm_103a or sm_110a."""

from __future__ import annotations

import random

import ptxas_oracle
import pytest

from ptxkit.emulator.simt.table import Entry, entries, lookup
from ptxkit.emulator.tensor_core.tcgen05 import fragments

GROUP = "ptxkit.emulator.tensor_core.tcgen05."
TARGETS = ("sm_100a", "sm_103a", "sm_110a")


def rows() -> list[Entry]:
    return [e for e in entries() if e.group.startswith(GROUP)]


def vector(count: int) -> str:
    return "{" + ", ".join(f"%r{k % 16}" for k in range(count)) + "}"


def statement(opcode: str) -> str:
    """The instruction with operands of the right kinds."""
    parts = opcode.split(".")
    what = parts[1]
    if what == "alloc":
        return f"{opcode} [%{'r' if 'shared::cta' in opcode else 'rd'}0], 64;"
    if what == "dealloc":
        return f"{opcode} %r0, 64;"
    if what in ("ld", "st"):
        shape = next(p for p in parts if p in fragments.SHAPES.split())
        count = fragments.registers(shape, int(next(p for p in parts if p[0] == "x" and p[1:].isdigit())[1:]))
        split = ", 8" if shape == "16x32bx2" else ""
        if what == "st":
            return f"{opcode} [%r0]{split}, {vector(count)};"
        reduced = ", %r1" if "red" in parts else ""
        values = vector(count).replace("%r", "%f") if parts[-1] == "f32" else vector(count)
        reduced = reduced.replace("%r", "%f") if parts[-1] == "f32" else reduced
        return f"{opcode} {values}{reduced}, [%r0]{split};"
    if what == "commit":
        return f"{opcode} [%rd0]{', %h0' if 'multicast::cluster' in opcode else ''};"
    if what == "cp":
        return f"{opcode} [%r0], %rd0;"
    if what == "shift":
        return f"{opcode} [%r0];"
    if what == "mma":
        left = "[%r1]" if "ashift" in parts else "%rd1"
        metadata = " [%r4]," if "sp" in parts else ""
        scales = " [%r5], [%r6]," if "block_scale" in parts else ""
        return f"{opcode} [%r0], {left}, %rd2,{metadata} %r3,{scales} %p0;"
    return f"{opcode};"


def exists(opcode: str) -> bool:
    """Whether the form is one of those of its pattern that there are."""
    parts = opcode.split(".")
    if parts[1] in ("ld", "st"):
        shape = next(p for p in parts if p in fragments.SHAPES.split())
        repeat = int(next(p for p in parts if p[0] == "x" and p[1:].isdigit())[1:])
        return fragments.registers(shape, repeat) <= fragments.MAX_REGISTERS
    if "ashift" in parts:
        return not any(p in ("collector::a::use", "collector::a::fill") for p in parts)
    return True


def refused_by_all(statements: list[str]) -> dict[int, str]:
    """What none of the targets takes."""
    found: dict[int, str] = {}
    for group in ("cta_group::1", "cta_group::2"):  # which ptxas does not take in one function
        found |= _refused({n: s for n, s in enumerate(statements) if (group[-1] == "2") == ("cta_group::2" in s)})
    return found


def _refused(left: dict[int, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for target in TARGETS:
        if not left:
            break
        numbers = list(left)
        refused = ptxas_oracle.refused([left[n] for n in numbers], target, compiled=False)
        found = {numbers[k]: why for k, why in refused.items()}
        left = {n: left[n] for n in found}
    return found


@pytest.mark.parametrize("entry", rows(), ids=lambda e: e.pattern)
def test_ptxas_takes_what_the_pattern_takes(entry):
    opcodes = [o for o in entry.opcodes() if exists(o)]
    if len(opcodes) > 120:
        opcodes = opcodes[:: len(opcodes) // 60]
    refused = refused_by_all([statement(o) for o in opcodes])
    assert not refused, {opcodes[n]: why for n, why in list(refused.items())[:4]}


@pytest.mark.parametrize("entry", rows(), ids=lambda e: e.pattern)
def test_the_order_of_the_modifiers_does_not_matter(entry):
    generator = random.Random(entry.pattern)
    for opcode in list(entry.opcodes())[:40]:
        name, what, *rest = opcode.split(".")
        generator.shuffle(rest)
        found = lookup(".".join([name, what, *rest]))
        assert found is not None, rest
        assert found[1].opcode == opcode
