"""The model of register banks, compared with measurements of an H200, and in real code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.inspect import banks
from ptxkit.inspect.advice import findings
from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.targets import Target
from ptxkit.targets.sm import REGISTER_BANKS

TARGETS = ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"]
COUNT = 256
CLASS = [[r for r in range(120) if r % 4 == k] for k in range(4)]
EVEN, ODD = sorted(CLASS[0] + CLASS[2]), sorted(CLASS[1] + CLASS[3])


def ffma(d, a, b, c, reuse=0, address=0):
    return SassInstruction(
        address=address,
        opcode="FFMA",
        modifiers=(),
        operands=f"R{d}, R{a}, R{b}, R{c}",
        encoding=d << 16 | a << 24 | b << 32 | c << 64 | reuse << 122 | 1 << 105,
        reads=tuple(sorted({f"R{a}", f"R{b}", f"R{c}"})),
        writes=(f"R{d}",),
    )


def at(registers, i):
    return registers[i % len(registers)]


def plain(a, b, c):
    """Operands with these remainders modulo four, each register different from the previous one."""
    a, b, c = CLASS[a], CLASS[b], CLASS[c]
    return [ffma(at(c, i + 9), at(a, i), at(b, i + 3), at(c, i + 6)) for i in range(COUNT)]


def held(a, b, c, run):
    """The first operand is the same for ``run`` instructions."""
    a, b, c = CLASS[a], CLASS[b], CLASS[c]
    return [ffma(at(c, i + 9), at(a, i // run), at(b, i + 3), at(c, i + 6), i % run != run - 1) for i in range(COUNT)]


def alternating(same):
    """The first operand stays the same; the other two are both in one bank and then in the other, or each in a
    different one."""
    made = []
    for i in range(COUNT):
        b, c = (EVEN, ODD)[i % 2], (EVEN, ODD)[i % 2 ^ (not same)]
        made.append(ffma(at(c, i // 2 + 9), at(CLASS[0], i // 16), at(b, i // 2 + 3), at(c, i // 2 + 6), i % 16 != 15))
    return made


MEASURED = [  # cycles an instruction of one warp a sub-partition on an H200, less the loop's own; by patched registers
    (plain(0, 0, 0), 3.004),
    (plain(0, 2, 0), 3.004),
    (plain(1, 3, 3), 3.000),
    (plain(0, 0, 1), 2.004),
    (plain(0, 1, 0), 2.004),
    (plain(1, 0, 0), 2.004),
    (plain(1, 2, 3), 2.000),
    (held(0, 0, 0, 16), 2.098),
    (held(0, 2, 2, 16), 2.070),
    (held(1, 0, 0, 16), 2.004),
    (held(0, 0, 1, 16), 1.070),
    (held(0, 1, 2, 16), 1.074),
    (held(1, 1, 0, 16), 1.070),
    (held(0, 0, 2, 8), 2.133),
    (held(0, 0, 1, 8), 1.135),
    (held(1, 1, 0, 8), 1.129),
    (alternating(same=False), 1.086),
    (alternating(same=True), 1.082),
    ([ffma(at(EVEN, i + 5), *[at(EVEN, i)] * 3) for i in range(COUNT)], 1.011),
    ([ffma(at(EVEN, i + 5), at(EVEN, i), at(EVEN, i), at(EVEN, i + 2)) for i in range(COUNT)], 2.004),
]


def cycles(instructions):
    return 1 + sum(banks.bank_stalls(instructions, fma_cycles=1)) / len(instructions)


@pytest.mark.parametrize(("instructions", "measured"), MEASURED)
def test_the_model_is_near_what_was_measured(instructions, measured):
    assert cycles(instructions) == pytest.approx(measured, abs=0.06)


def test_the_model_ranks_as_the_measurement_does():
    ranks = [np.argsort(np.argsort(v)) for v in zip(*((cycles(i), m) for i, m in MEASURED), strict=True)]
    assert np.corrcoef(*ranks)[0, 1] > 0.85


registers = st.integers(0, 253)


@given(st.lists(st.tuples(registers, st.integers(0, 126), st.integers(0, 126)), min_size=1, max_size=40))
def test_one_read_a_bank_never_waits(rows):
    code = [ffma(d, 2 * even, 2 * odd + 1, 2 * even) for d, even, odd in rows]
    assert banks.bank_stalls(code, fma_cycles=1) == [0] * len(code)


@given(st.lists(st.tuples(registers, registers, registers, registers, st.integers(0, 7)), min_size=1, max_size=40))
def test_reads_bound_the_waits_from_both_sides(rows):
    code = [ffma(*row) for row in rows]
    one, two = banks.bank_stalls(code, fma_cycles=1), banks.bank_stalls(code, fma_cycles=2)
    assert 0 <= min(one) <= max(one) <= 3 * REGISTER_BANKS
    assert sum(two) <= sum(one) <= 2 * len(code) + banks.WINDOW  # three reads of a bank are two cycles more than one


def test_two_operands_of_a_bank_are_free_where_an_ffma_takes_two_cycles():
    """Volta, Turing and the A100: only three operands in one bank conflict."""
    assert sum(banks.bank_stalls(plain(0, 0, 1), fma_cycles=2)) == 0
    assert sum(banks.bank_stalls(plain(0, 0, 0), fma_cycles=2)) > COUNT / 2


def looped(code, target="sm_90a"):
    """A kernel whose one loop is this code."""
    moved = [
        ffma(*map(int, i.operands.replace("R", "").split(", ")), i.encoding >> 122, n * 16) for n, i in enumerate(code)
    ]
    end = len(moved) * 16
    branch = SassInstruction(end, "BRA", (), ".L", predicate="@P0", targets=(".L",), reads=("P0",))
    leave = SassInstruction(end + 16, "EXIT", (), "")
    return SassFunction("k", Target.parse(target), (*moved, branch, leave), labels={".L": 0})


def test_a_loop_and_its_finding():
    found = banks.register_banks(looped(plain(0, 0, 1)))
    assert (found.arithmetic, found.slots) == (COUNT, COUNT + 1)
    assert found.lost_slots == pytest.approx(COUNT, rel=0.02) and found.delayed >= COUNT - banks.WINDOW
    assert found.share == pytest.approx(0.5, abs=0.01)
    (finding,) = findings(looped(plain(0, 0, 1)))
    assert finding.rule == "register-banks" and "50% of its issue slots (a model)" in finding.message
    assert finding.count == found.delayed


def test_nothing_to_find():
    assert findings(looped(held(0, 0, 1, COUNT))) == ()
    assert banks.register_banks(looped(plain(0, 0, 1), "sm_80")).lost_slots == 0
    straight = looped(plain(0, 0, 1))
    assert banks.register_banks(SassFunction("k", straight.target, straight.instructions[:-2])) is None


@pytest.mark.parametrize("target", TARGETS)
def test_slots_are_where_nvdisasm_sees_reuse(kernels, target):
    """The register in each slot whose reuse bit is set is one that is printed with .reuse."""
    checked = 0
    for function in kernels(target).values():
        for i in filter(banks._is_arithmetic, function.instructions):
            kept = {banks._in_slot(i, slot) for slot in i.control.reuse}
            printed = {int(word.split(".")[0].lstrip("-|~!R")) for word in i.operands.split(", ") if ".reuse" in word}
            assert kept == printed, str(i)
            checked += len(kept)
    assert checked > 5


@pytest.mark.parametrize("target", TARGETS)
def test_the_hottest_loop_of_real_code(kernels, target):
    found = banks.register_banks(kernels(target)["nested"])
    assert 0 < found.arithmetic <= len(found.loop.instructions)
    assert found.lost_slots >= 0 and 0 <= found.share < 0.7
