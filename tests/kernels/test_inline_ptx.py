"""inline_ptx: every step in every variant, the presence of the instructions, and the guards on targets that lack them."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit import TensorMap
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import FaultError, UnavailableError, UsageError
from ptxkit.kernels.inline_ptx import BLACKWELL, HOPPER, PLAIN, PTX, TCGEN05, InlinePtx
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.inputs import dtype_of

N = 2048


def run(device, variant, inputs=None, n=N):
    case = execute.Case(InlinePtx(n=n), device, seed=3, inputs=inputs)
    result = execute.run(case, InlinePtx.variant(variant))
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.verdict.verified, f"{variant}: {result.verdict.worst}"
    return case


@pytest.mark.parametrize("n", [N, 3 * N])
@pytest.mark.parametrize("variant", InlinePtx.variants())
def test_every_step_is_right(device, variant, n):
    run(device, variant, n=n)


@pytest.mark.parametrize("variant", InlinePtx.variants())
def test_special_values(device, variant):
    inputs = InlinePtx(n=N).inputs(np.random.default_rng(1))
    special = np.array([0, -0.0, np.inf, -np.inf, 1e30, -1e-45, 65504, 3e38], np.float32)
    for name in ("x", "y", "u16", "v16", "ub16", "vb16"):
        with np.errstate(over="ignore"):
            inputs[name][: special.size] = special.astype(inputs[name].dtype)
    inputs["y"][: special.size] = 1
    for name in ("v16", "vb16"):
        inputs[name][: special.size] = 0.5
    run(device, variant, inputs)


@pytest.mark.parametrize("variant", ["async_copy", "tcgen05"])
def test_asynchronous_operations_are_waited_for(variant):
    """In the other completion mode of the emulator a missing wait would be visible as a sentinel value."""
    device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal", racecheck="lanes"))
    run(device, variant, n=3 * N)


def test_every_variant_does_every_step():
    def names(args):
        return [arg.array if isinstance(arg, TensorMap) else arg for arg in args]

    for steps in (PTX, HOPPER, BLACKWELL, TCGEN05):
        assert list(steps) == list(PLAIN)
        assert [names(step[-1][2]) for step in steps.values()] == [list(step[-1][2]) for step in PLAIN.values()]


INSTRUCTIONS = {
    "ptx": [
        "createpolicy.fractional.L2::evict_first.b64",
        "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32",
        "st.global.cs.v4.f32",
        "prmt.b32",
        "lop3.b32",
        "fma.rn.relu.f16x2",
        "fma.rn.relu.bf16x2",
        "redux.sync.add.u32",
        "redux.sync.max.u32",
        "vote.sync.ballot.b32",
    ],
    "async_copy": ["cp.async.cg.shared.global", "cp.async.wait_all"],
    "hopper": ["elect.sync", "griddepcontrol.launch_dependents", "griddepcontrol.wait"],
    "blackwell": ["ld.global.nc.L1::no_allocate.v8.f32", "fma.rn.f32x2", "redux.sync.max.abs.NaN.f32"],
    "tcgen05": [
        "tcgen05.alloc.cta_group::1",
        "cp.async.bulk.tensor.2d.shared::cluster.global",
        "tcgen05.mma.cta_group::1.kind::f16",
        "tcgen05.commit.cta_group::1",
        "tcgen05.fence::after_thread_sync",
        "tcgen05.ld.sync.aligned.32x32b.x8",
        "tcgen05.wait::ld",
        "tcgen05.dealloc.cta_group::1",
    ],
}


@pytest.mark.parametrize("variant", INSTRUCTIONS)
def test_the_instructions_are_in_the_kernels_that_are_launched(variant):
    workload = InlinePtx(n=N)
    built = build(workload, workload.variant(variant))
    bodies = []
    for step in built.steps:
        entry = step.image.entry(step.launch.entry)
        start = step.image.ptx.index(f".entry {entry}")
        bodies.append(step.image.ptx[start : step.image.ptx.index("\n}", start)])
    text = "\n".join(bodies)
    for instruction in INSTRUCTIONS[variant]:
        assert instruction in text


@pytest.mark.parametrize(
    ("variant", "target", "reason"),
    [
        ("hopper", "sm_80", "elect needs sm_90"),
        ("blackwell", "sm_90a", "f32x2 needs sm_100"),
        ("blackwell", "sm_100", "redux.f32 needs sm_100a, sm_103a or sm_107a"),
        ("tcgen05", "sm_120a", "tcgen05 needs sm_100a, sm_103a, sm_107a or sm_110a"),
        ("tcgen05", "sm_90a", "tcgen05 needs sm_100a, sm_103a, sm_107a or sm_110a"),
        ("plain", "sm_75", "bf16 needs sm_80"),
    ],
)
def test_what_a_target_lacks_is_said_before_anything_is_compiled(variant, target, reason):
    workload = InlinePtx(n=N)
    with pytest.raises(UnavailableError, match=reason):
        build(workload, workload.variant(variant), Target.parse(target))


@pytest.mark.parametrize(
    ("variant", "target"),
    [
        ("plain", "sm_80"),
        ("async_copy", "sm_80"),
        ("hopper", "sm_90"),
        ("blackwell", "sm_100a"),
        ("blackwell", "sm_103a"),
        ("tcgen05", "sm_100f"),
        ("tcgen05", "sm_103a"),
    ],
)
def test_the_oldest_and_newest_targets_that_have_it(variant, target):
    workload = InlinePtx(n=N)
    assert build(workload, workload.variant(variant), Target.parse(target)).target.name == target


def test_a_guarded_kernel_launched_all_the_same_traps(device):
    """A launch that ignores `requires`: the program for sm_90a contains the kernel for sm_100, which reports the
    missing feature."""
    image = build(InlinePtx(n=N), InlinePtx.variant("ptx"), Target.parse("sm_90a")).images[0]
    if device.kind == "gpu":
        pytest.skip("a trap costs the process its context")
    kernel = device.load(image)["stream_sm100"]
    arrays = [device.empty(N, np.float32) for _ in range(3)]
    with pytest.raises(FaultError):
        kernel(*arrays, grid=1, block=256)
        device.synchronize()


def test_tcgen05_on_a_target_without_it_traps_with_a_message():
    """The program for sm_90a has the kernel, whose first missing instruction is named."""
    image = build(InlinePtx(n=N), InlinePtx.variant("ptx"), Target.parse("sm_90a")).images[0]
    assert "tcgen05.mma" not in image.ptx
    device = EmulatedDevice()
    maps = [TensorMap(np.zeros((rows, 16), dtype_of("bf16")), box=(rows, 16), swizzle="32B") for rows in (128, 16)]
    message = r"inline_ptx.cu:\d+: tcgen05.alloc needs .*; the target is sm_90a; compile for sm_100a \(--arch sm_100a\)"
    with pytest.raises(FaultError, match=message):
        device.load(image)["product_sm100a"](*maps, device.empty(N, np.float32), grid=1, block=256)
        device.synchronize()


def test_sizes_that_do_not_fill_the_ctas():
    with pytest.raises(UsageError, match="n must be a multiple of 2048"):
        InlinePtx(n=256)
