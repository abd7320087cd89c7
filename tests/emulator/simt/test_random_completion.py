"""``completion="random"``: legal points drawn from a seed. The same seed gives the same run, and some seeds detect a
missing wait."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel
from test_async_copy import STAGES, folded
from test_bulk_copy import WAIT, load

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import DeadlockError, RaceError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry

SEEDS = range(12)
ROWS = np.arange(1, 1281, dtype=np.uint32).reshape(10, 128)


def result(program: Run, source: np.ndarray, like: np.ndarray, seed: int, **launch: int) -> np.ndarray:
    return program(source, np.zeros_like(like), completion="random", completion_seed=seed, **launch)[1]


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_a_kernel_with_its_waits_is_right_with_each_seed(pending):
    program = Run(kernel(STAGES.format(pending=pending)))
    for seed in SEEDS:
        assert (result(program, ROWS, ROWS[0], seed, block=128) == folded(ROWS)).all()


EARLY = (
    THREAD
    + """
    .shared .align 4 .b32 buf[128]; mov.u32 %r5, buf; shl.b32 %r6, %r0, 2; add.u32 %r5, %r5, %r6;
    cp.async.ca.shared.global [%r5], [%rd21], 4; cp.async.commit_group;
    bar.sync 0; bar.sync 0; bar.sync 0;
    st.global.b32 [%rd21], 5;
    cp.async.wait_group 0;
    ld.shared.b32 %r7, [%r5]; st.global.b32 [%rd22], %r7;
    """
)
"""Each thread overwrites the source of its copy before the wait, which no race check sees."""


def test_some_seeds_find_a_wait_that_comes_too_late_and_others_do_not():
    source = np.ones(1, np.uint32)
    program = Run(kernel(EARLY))
    outs = [result(program, source, source, seed, block=1) for seed in SEEDS]
    assert {int(out[0]) for out in outs} == {1, 5}


def test_a_copy_that_arrives_without_a_wait_is_a_race():
    """Each seed detects the mistake: the data have not arrived, or their arrival is not ordered before the read."""
    source = np.arange(512, dtype=np.uint32)
    program = Run(kernel(load(2048, "bar.sync 0;")))
    found = set()
    for seed in SEEDS:
        try:
            found.add(bool((result(program, source, source, seed, block=128) == source[::-1]).all()))
        except RaceError:
            found.add("race")
    assert found == {False, "race"}


def test_lanes_of_one_copy_complete_at_points_of_their_own():
    """Some lanes get the data and others what was stored later, which neither of the other modes can show."""
    out = result(Run(kernel(EARLY)), ROWS[1], ROWS[1], 0, block=128)
    assert 0 < (out == ROWS[1]).mean() < 1 and set(out[out != ROWS[1]]) == {5}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**70))
def test_a_seed_repeats_the_run(seed):
    """The result does not depend on the number of host threads."""
    source = np.arange(9, 9 + 100 * 128, dtype=np.uint32)
    outs = [result(Run(kernel(EARLY), workers), source, source, seed, grid=100, block=128) for workers in (1, 2, 2)]
    assert (outs[0] == outs[1]).all() and (outs[1] == outs[2]).all()


def test_seeds_differ():
    program = Run(kernel(EARLY))
    assert len({result(program, ROWS[0], ROWS[0], seed, block=128).tobytes() for seed in SEEDS}) == len(SEEDS)


def test_a_wait_for_a_phase_that_never_completes_is_a_deadlock():
    program = Run(kernel(load(2048, WAIT.format(parity=0) + WAIT.format(parity=1).replace("WAIT", "AGAIN"))))
    source = np.arange(512, dtype=np.uint32)
    for seed in range(4):
        with pytest.raises(DeadlockError, match=r"phase 1 \(parity 1\)"):
            result(program, source, source, seed, block=128)


def test_a_polling_loop_ends_when_its_copy_completes():
    poll = WAIT.format(parity=0).replace("try_wait", "test_wait")
    program = Run(kernel(load(2048, poll)))
    source = np.arange(512, dtype=np.uint32)
    for seed in SEEDS:
        assert (result(program, source, source, seed, block=128) == source[::-1]).all()


KERNELS = [
    ("inline_ptx", "async_copy", [4096]),
    ("layernorm_backward", "pipelined", [6, 1024]),
    ("matmul_wgmma", "step3_specialized", [128, 128, 72]),
    ("matmul_tcgen05", "step8_tma_store", [256, 256, 72]),
]


@pytest.mark.parametrize(("name", "variant", "sizes"), KERNELS)
def test_kernels_are_verified_with_five_seeds(name, variant, sizes):
    kind = registry.get(name)
    for seed in range(5):
        device = EmulatedDevice(settings=EmulatorSettings(completion="random", completion_seed=seed, counting=False))
        ran = execute.run(execute.Case(kind.make(sizes, {}), device, seed=5), kind.variant(variant))
        assert ran.verdict.verified, (seed, ran.verdict.worst)
