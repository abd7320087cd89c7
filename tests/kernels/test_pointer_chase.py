"""pointer_chase arrives where the chain says, wherever the chain is."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.inspect.subject import subjects
from ptxkit.kernels.pointer_chase import LINE_WORDS, PointerChase
from ptxkit.testing import assert_verified


@pytest.mark.parametrize("lines, steps", [(1, 5), (2, 3), (17, 1), (64, 200), (300, 299)])
def test_the_end_of_the_chain(lines, steps):
    assert_verified(PointerChase(lines=lines, steps=steps), device="emulator")


def test_the_chain_visits_every_line_once():
    following = PointerChase(lines=97).inputs(np.random.default_rng(3))["next"]
    assert following.shape == (97, LINE_WORDS)
    at, seen = 0, set()
    for _ in range(97):
        at = int(following[at, 0])
        seen.add(at)
    assert seen == set(range(97))


@pytest.mark.parametrize("variant, opcode", [("global_ca", "LDG"), ("global_cg", "LDG"), ("shared", "LDS")])
def test_a_step_is_one_load(variant, opcode):
    """The loop has sixteen loads, and beside them what counts its iterations."""
    functions = [subject.function for subject in subjects(f"pointer_chase:{variant}@sm_90a")]
    loads = [
        (sum(i.opcode == opcode for i in block.instructions), len(block.instructions))
        for function in functions
        for block in function.blocks
    ]
    steps, instructions = max(loads)
    assert steps == 16
    assert instructions <= 16 + 4


def test_a_chain_that_does_not_fit_in_shared_memory():
    workload = PointerChase(lines=4096, steps=10)
    variant = workload.variant("shared")
    with pytest.raises(UsageError, match="requires lines <= "):
        from ptxkit.workload.resolve import resolve

        resolve(workload, variant)


def test_more_lines_than_a_chain_may_have():
    with pytest.raises(UsageError, match="lines must be at most 16777216, which are 2 GiB"):
        PointerChase(lines=(1 << 24) + 1)
