"""Each family of instructions declares what it does with undefined values, and which of its operands may not be undefined."""

from __future__ import annotations

import pytest

from ptxkit.emulator import instruction_set
from ptxkit.emulator.initcheck.effects import has_rule, rule
from ptxkit.emulator.simt.table import entries

CONTROL = "ptxkit.emulator.instructions.branches"
"""The module of the instructions that end a block: their operands are checked with the block."""

PURE = ("ptxkit.emulator.instructions.arithmetic.video", "ptxkit.emulator.instructions.moves")
"""Modules whose entries are bound to pure steps, which the rules of arithmetic cover."""

FAMILIES = sorted(
    {e.pattern.split(".")[0].split("{")[0] for e in entries() if e.kind != "alu" and e.group not in (CONTROL, *PURE)}
)


@pytest.mark.parametrize("name", FAMILIES)
def test_instructions_with_effects_have_a_rule(name):
    assert has_rule(name), f"{name}: register its rule in ptxkit/emulator/initcheck/effects.py, or declare it as combined"


def test_the_table_is_complete():
    assert instruction_set and {"ld", "st", "atom", "cp", "wgmma", "tcgen05", "shfl"} <= set(FAMILIES)


def test_a_second_rule_is_refused():
    with pytest.raises(AssertionError, match="ld has two rules"):
        rule("ld")(lambda *given: None)
