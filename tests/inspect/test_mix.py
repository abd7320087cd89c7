"""The instruction mix of SASS and PTX."""

from __future__ import annotations

import pytest

from ptxkit import inspect
from ptxkit.inspect.classes import GROUPS, group_of, mix, ptx_mix, width_bits
from ptxkit.inspect.model import SassInstruction
from ptxkit.isa.parser import parse


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_every_opcode_has_a_group(kernels, target):
    for function in kernels(target).values():
        assert "other" not in mix(function).groups, mix(function).classes.get("other")
        assert mix(function).total == len(function.instructions) == sum(mix(function).groups.values())


def test_counts_by_class_opcode_and_group(kernels):
    wide, narrow = mix(kernels("sm_90a")["wide"]), mix(kernels("sm_90a")["narrow"])
    assert (wide.count("LDG.128"), wide.count("STG.128"), wide.count("LDG.32"), wide.count("global")) == (
        1,
        1,
        0,
        2,
    )
    assert (narrow.count("LDG.32"), narrow.count("LDG"), narrow.count("LDG.128")) == (4, 4, 0)
    assert mix(kernels("sm_90a")["hgmma"]).count("HGMMA") == mix(kernels("sm_90a")["hgmma"]).groups["tensor"]
    assert mix(kernels("sm_100a")["utcmma"]).count("tensor") == 1
    assert mix(kernels("sm_80")["hmma"]).classes["tensor"] == {"HMMA": 4}
    assert mix(kernels("sm_90a")["outer"]).count("FFMA") >= 16


def test_no_opcode_is_in_two_groups():
    every = [opcode for opcodes in GROUPS.values() for opcode in opcodes.split()]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("text", "group", "bits"),
    [
        ("LDG.E.128.CONSTANT R4, [R2]", "global", 128),
        ("LDG.E.U8 R4, [R2]", "global", 8),
        ("STS.64 [R2], R4", "shared", 64),
        ("IMAD.MOV.U32 R1, RZ, RZ, R2", "move", 32),
        ("IMAD.WIDE R2, R5, 0x4, R2", "integer", 32),
        ("HFMA2.MMA R7, -RZ, RZ, 1.875, 0", "move", 32),
        ("HFMA2.MMA R7, R1, R2, R3", "fp16", 32),
        ("NEWOP R1", "other", 32),
    ],
)
def test_groups_and_widths(text, group, bits):
    name, _, operands = text.partition(" ")
    opcode, *modifiers = name.split(".")
    instruction = SassInstruction(0, opcode, tuple(modifiers), operands)
    assert (group_of(instruction), width_bits(instruction)) == (group, bits)


def test_ptx_mix(compiled):
    functions = parse(compiled("sm_90a").ptx).functions
    wide = ptx_mix(functions["wide"])
    assert wide.classes["memory"]["ld.global.v4"] == wide.classes["memory"]["st.global.v4"] == 1
    assert wide.total == len(functions["wide"].instructions)
    assert ptx_mix(functions["hgmma"]).groups["tensor"] >= 1
    assert ptx_mix(functions["nested"]).count("bar") == 2
    assert "other" not in wide.groups


def test_public_names_are_functions():
    assert (
        callable(inspect.sass) and callable(inspect.mix) and callable(inspect.diff) and callable(inspect.occupancy)
    )
    assert set(inspect._HOMES) <= set(dir(inspect))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = inspect.nonsense
