"""The measured exceptions of gradients of norms: taken at their sizes on the GPU that was measured, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxkit.kernels.rows import backward_one_launch
from ptxkit.targets import Target
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry
from ptxkit.workload.choice import choose

SM_90A = Target.parse("sm_90a")
H200 = facts_of(find_gpu("NVIDIA H200"))
EXCEPTIONS = sorted(backward_one_launch.exceptions().items())


@pytest.mark.parametrize(("key", "tile"), EXCEPTIONS, ids=str)
def test_an_exception_is_taken_on_its_gpu(key, tile):
    _, kernel, rows, cols, dtype = key
    choice = choose(registry.get(kernel)(rows=rows, cols=cols, dtype=dtype).on(H200), target=SM_90A)
    if tile is None:
        assert choice.variant != "one_launch"
    else:
        assert (choice.variant, choice.tile) == ("one_launch", tile)


def test_exceptions_are_not_taken_at_other_sizes_or_on_other_gpus(monkeypatch):
    workload = registry.get("rmsnorm_backward")(rows=700, cols=5000)
    slow = dict(backward_one_launch.ordered(workload.on(H200))[-1][1])
    table = {(H200.gpu, "rmsnorm_backward", 700, 5000, workload.dtype): slow}
    monkeypatch.setattr(backward_one_launch, "exceptions", lambda: table)
    variant = workload.variant("one_launch")
    assert variant.select_tile(workload.on(H200), SM_90A) == slow
    assert variant.select_tile(workload.on(replace(H200, gpu="NVIDIA H100 PCIe")), SM_90A) != slow
    other = registry.get("rmsnorm_backward")(rows=701, cols=5000)
    assert variant.select_tile(other.on(H200), SM_90A) != slow
