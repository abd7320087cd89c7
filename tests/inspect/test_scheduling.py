"""The scheduling fields, compared with the output of nvdisasm and with the rules of scoreboards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.inspect.control import NO_SCOREBOARD, decode

TARGETS = ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"]
VARIABLE_LATENCY = {"LDG", "LDS", "LDL", "MUFU", "S2R"}


@given(
    stall=st.integers(0, 15),
    keeps=st.booleans(),
    write=st.integers(0, 7),
    read=st.integers(0, 7),
    wait=st.integers(0, 63),
    reuse=st.integers(0, 15),
    rest=st.integers(0, 2**105 - 1),
)
def test_fields_do_not_overlap(stall, keeps, write, read, wait, reuse, rest):
    word = rest | stall << 105 | keeps << 109 | write << 110 | read << 113 | wait << 116 | reuse << 122
    control = decode(word)
    assert (control.stall, control.prefers_switch) == (stall, not keeps)
    assert control.write_barrier == (None if write == NO_SCOREBOARD else write)
    assert control.read_barrier == (None if read == NO_SCOREBOARD else read)
    assert control.wait == tuple(i for i in range(6) if wait >> i & 1)
    assert control.reuse == tuple(i for i in range(4) if reuse >> i & 1)


def test_a_known_instruction():
    # S2R R5, SR_TID.X of sm_90: sets scoreboard 0; the IMAD.WIDE that uses it waits for 0.
    assert str(decode(0x000E2E00000021000000000000057919)) == "B------:R-:W0:-:S07"
    assert str(decode(0x001FCA00078E00020000000405027825)) == "B0-----:R-:W-:Y:S05"


@pytest.mark.parametrize("target", TARGETS)
def test_reuse_is_what_nvdisasm_prints(kernels, target):
    marked = 0
    for function in kernels(target).values():
        for instruction in function.instructions:
            printed = instruction.operands.count(".reuse")
            assert len(instruction.control.reuse) == printed, instruction
            marked += printed
    assert marked > 10


@pytest.mark.parametrize("target", TARGETS)
def test_results_of_variable_latency_are_waited_for(kernels, target):
    """Within a block, the first reader of a loaded register waits for the load's scoreboard, or an instruction between
    them does."""
    checked = 0
    for function in kernels(target).values():
        for block in function.blocks:
            pending: dict[str, int] = {}
            for instruction in block.instructions:
                waited = set(instruction.control.wait)
                pending = {r: b for r, b in pending.items() if b not in waited}
                late = [r for r in instruction.reads if r in pending]
                assert not late, (target, function.name, str(instruction))
                barrier = instruction.control.write_barrier
                if instruction.opcode in VARIABLE_LATENCY:
                    assert barrier is not None, str(instruction)
                    checked += 1
                    pending.update(dict.fromkeys((r for r in instruction.writes if r[0] == "R"), barrier))
    assert checked > 100


@pytest.mark.parametrize("target", TARGETS)
def test_stores_release_their_operands_before_these_are_overwritten(kernels, target):
    stores = [i for f in kernels(target).values() for i in f.instructions if i.opcode in ("STG", "STS")]
    assert stores and all(i.control.write_barrier is None for i in stores)
    assert any(i.control.read_barrier is not None for i in stores)


def test_stall_cycles_of_a_block(kernels):
    for block in kernels("sm_90a")["nested"].blocks:
        assert block.stall_cycles == sum(i.encoding >> 105 & 15 for i in block.instructions) > 0
