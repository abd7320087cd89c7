"""Modifiers in other orders: the emulator takes those that ptxas takes, and no others."""

from __future__ import annotations

import random
import re

import modifier_orders
import ptxas_oracle
import pytest

from ptxkit.emulator import Machine
from ptxkit.errors import UnsupportedError
from ptxkit.isa.parser import parse


def unbound(statements: list[str], target: str) -> set[int]:
    """Indices of the statements that the emulator refuses."""
    text = ptxas_oracle.module(statements, target, "9.0")
    program = Machine(capacity=1 << 20).load(parse(text, "orders.ptx"), target)
    with pytest.raises(UnsupportedError) as e:
        program.bind("k")
    return {int(n) - ptxas_oracle.FIRST_LINE for n in re.findall(r"(?:orders\.ptx:|line )(\d+)", "\n".join(e.value.places))}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow)])
def test_the_orders_that_ptxas_takes_are_bound(target):
    rng = random.Random(1)
    every = [s for form in modifier_orders.forms(target) for s in modifier_orders.orders(form, rng, 6)]
    every = list(dict.fromkeys(every))
    assert len(every) > 3000
    refused = ptxas_oracle.refused(every, target, compiled=False)
    ours = unbound(every, target)
    assert 1000 < len(refused) < len(every) - 1000
    assert [every[n] for n in sorted(ours - set(refused))] == []
    assert [(every[n], refused[n]) for n in sorted(set(refused) - ours)] == []


def test_cubs_ballot_is_bound():
    """CUB and Thrust write the mode of a vote before ``.sync``."""
    statement = "vote.ballot.sync.b32 %r1, %p1, %r2;"
    assert not ptxas_oracle.refused([statement], "sm_90a")
    text = ptxas_oracle.module([statement], "sm_90a", "9.0")
    Machine(capacity=1 << 20).load(parse(text, "orders.ptx"), "sm_90a").bind("k")
