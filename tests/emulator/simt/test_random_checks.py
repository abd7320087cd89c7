"""``completion="random"`` together with the checks for uninitialised values and with traps."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel
from test_async_copy import STAGES, folded
from test_bulk_copy import WAIT, load

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import ArithmeticTrap, UninitialisedError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry

SEEDS = range(6)
ROWS = np.arange(1, 1281, dtype=np.uint32).reshape(10, 128)
CHECKS = {"initcheck": True, "trap": ("nan", "inf", "div0"), "racecheck": True}
HALF = (
    THREAD
    + """
    .shared .align 16 .b32 buf[64]; mov.u32 %r5, buf; shl.b32 %r6, %r0, 2; add.u32 %r5, %r5, %r6; setp.lt.u32 %p0, %r0, 32;
    @%p0 cp.async.ca.shared.global [%r5], [%rd21], 4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    {between}
    ld.shared.b32 %r7, [%r5]; st.global.b32 [%rd22], %r7;
    """
)
"""Half of the words of shared memory are copied; the others are never initialised."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_kernel_passes_all_checks_with_each_seed(seed):
    for body, source, like, expected, block in (
        (STAGES.format(pending=0), ROWS, ROWS[0], folded(ROWS), 128),
        (load(512, WAIT.format(parity=0)), np.arange(128, dtype=np.uint32), np.arange(128, dtype=np.uint32), None, 128),
    ):
        options = {"block": block, "completion": "random", "completion_seed": seed, **CHECKS}
        out = Run(kernel(body))(source, np.zeros_like(like), **options)[1]
        assert expected is None or (out == expected).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_no_copy_brings_is_reported_with_each_seed(seed):
    source = np.arange(64, dtype=np.uint32)
    options = {"block": 64, "completion": "random", "completion_seed": seed, "initcheck": True}
    with pytest.raises(UninitialisedError, match=r"thread \(32, 0, 0\) .* writes to global memory an uninitialised value"):
        Run(kernel(HALF.format(between="")))(source, np.zeros_like(source), **options)
    Run(kernel(HALF.format(between="@!%p0 st.shared.b32 [%r5], 7;")))(source, np.zeros_like(source), **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trap_is_raised_by_what_a_copy_brings_with_each_seed(seed):
    source = np.full(64, 3e38, np.float32)
    options = {"block": 64, "completion": "random", "completion_seed": seed, "trap": ("inf",)}
    double = HALF.format(between="@!%p0 st.shared.b32 [%r5], 0;").replace(
        "st.global.b32 [%rd22], %r7;", "mov.b32 %f1, %r7; add.f32 %f1, %f1, %f1; st.global.f32 [%rd22], %f1;"
    )
    with pytest.raises(ArithmeticTrap, match=r"add.f32: thread \(0, 0, 0\)"):
        Run(kernel(double))(source, np.zeros_like(source), **options)
    Run(kernel(double))(source / 4, np.zeros_like(source), **options)


@pytest.mark.parametrize(("name", "variant"), [("two_stage_pipeline", "bulk"), ("matmul_wgmma", "step8_tma_store")])
def test_kernels_of_the_catalogue_pass_all_checks(name, variant):
    settings = EmulatorSettings(completion="random", completion_seed=3, initcheck=True, trap=("nan", "inf"), counting=False)
    kind = registry.get(name)
    case = execute.Case(kind.make((), {}, small=True), EmulatedDevice(settings=settings), seed=5)
    verdict = execute.run(case, kind.variant(variant)).verdict
    assert verdict.verified, verdict.worst
