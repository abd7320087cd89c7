"""Differences between kernels, without those of register numbers and addresses."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.inspect.compare import diff, longest_common, normal


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_longest_common_subsequence(left, right):
    @cache
    def length(i, j):
        if i == len(left) or j == len(right):
            return 0
        return max(
            length(i + 1, j), length(i, j + 1), (left[i] == right[j]) + length(i + 1, j + 1) * (left[i] == right[j])
        )

    pairs = longest_common(left, right)
    assert len(pairs) == length(0, 0)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


def test_a_kernel_and_itself(kernels):
    for function in kernels("sm_90a").values():
        found = diff(function, function)
        assert found.same and not found.classes and len(found.lines) == len(function.instructions)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_renumbered_registers_and_moved_code_are_the_same(kernels, data):
    function = kernels("sm_90a")["nested"]
    order = data.draw(st.permutations(range(60)))
    offset = 16 * data.draw(st.integers(0, 64))

    def moved(instruction):
        text = re.sub(r"\bR(\d+)\b", lambda m: f"R{order[int(m[1])]}", instruction.operands)
        text = re.sub(r"\.L_x_(\d+)", lambda m: f".L_x_{int(m[1]) + 7}", text)
        return replace(instruction, operands=text, address=instruction.address + offset)

    other = replace(function, instructions=tuple(moved(i) for i in function.instructions))
    assert all(line.mark == " " for line in diff(function, other).lines)


def test_what_stays_visible(kernels):
    load = next(i for i in kernels("sm_90a")["wide"].instructions if i.opcode == "LDG")
    assert normal(load) == "LDG.E.128 R, desc[UR][R.64]"
    assert normal(replace(load, operands=load.operands.replace("64]", "64+0x10]"))) != normal(load)
    assert normal(replace(load, predicate="@P3")) == normal(replace(load, predicate="@P0")) != normal(load)


def test_narrow_and_wide(kernels):
    left, right = kernels("sm_90a")["narrow"], kernels("sm_90a")["wide"]
    found = diff(left, right)
    assert not found.same
    assert found.classes["LDG.32"] == ("global", 4, 0) and found.classes["LDG.128"] == ("global", 0, 1)
    assert found.resources["instructions"] == (len(left.instructions), len(right.instructions))
    assert [line.left for line in found.lines if line.left] == list(left.instructions)
    assert [line.right for line in found.lines if line.right] == list(right.instructions)


def test_resources_are_joined(kernels):
    found = diff(kernels("sm_90a")["spilling"], kernels("sm_90a")["wide"])
    assert found.resources["registers"][0] == 32
    assert found.resources["spill store bytes"][0] > 0 == found.resources["spill store bytes"][1]
    assert found.resources["CTAs per SM"] == (2, 8)
