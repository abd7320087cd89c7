"""Predictions of a workload are of the device to which it is bound, whichever device was asked for before."""

from __future__ import annotations

import pytest

from ptxkit.kernels.gemm import fused_tiles, steps
from ptxkit.kernels.measured import H200_FACTS
from ptxkit.kernels.per_device import cached_per_device
from ptxkit.kernels.rows import backward_one_launch
from ptxkit.targets import Target, missing
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry
from ptxkit.workload.resolve import resolve, target_for

OTHER = facts_of(find_gpu("NVIDIA H100 PCIe"))
PREDICTIONS = [
    (fused_tiles.choice, "matmul_fused", {"m": 5000, "n": 5000, "k": 2048}),
    (steps.choice, "matmul_wgmma", {"m": 5000, "n": 5000, "k": 2048}),
    (backward_one_launch.ordered, "rmsnorm_backward", {"rows": 700, "cols": 5000}),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("predicted", "kernel", "sizes"), PREDICTIONS, ids=[kernel for _, kernel, _ in PREDICTIONS])
def test_other_devices_have_other_times(predicted, kernel, sizes):
    workload = registry.get(kernel)(**sizes)
    first, other = predicted(workload.on(H200_FACTS)), predicted(workload.on(OTHER))
    assert first != other and first == predicted(workload.on(H200_FACTS))


def test_a_value_is_computed_once_for_each_device():
    calls = []
    cached = cached_per_device(lambda w: calls.append(w.device))
    for device in (H200_FACTS, OTHER, H200_FACTS, OTHER):
        cached(registry.get("saxpy")(n=8).on(device))
    assert calls == [H200_FACTS, OTHER]


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_100a"])
def test_every_variant_has_launches_on_each_target_that_it_states(target):
    """A CTA of sm_86 has less than half of the shared memory of one of sm_90. Variants may refuse sizes, but not a target."""
    for name in registry.names():
        kernel = registry.get(name)
        workload = kernel.make((), {}, small=True)
        for variant in kernel.variants().values():
            wanted = target_for(variant, Target.parse(target))
            if missing(variant.requires, wanted) is None and variant.refusal(workload) is None:
                resolve(workload, variant, Target.parse(target))
