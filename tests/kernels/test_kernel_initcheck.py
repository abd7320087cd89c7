"""The kernels use no uninitialised value, with outputs and temporaries poisoned; elements that are not written are reported."""

from __future__ import annotations

import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry

CASES = [
    ("fused_l2norm", "vectorized"),
    ("layernorm_backward", "pipelined"),
    ("matmul_mma", "step1_ldmatrix"),
    ("matmul_mma", "step6_tma"),
    ("matmul_wgmma", "step1_tma"),
    ("matmul_block_scaled", "step2_specialized"),
    ("matmul_tcgen05", "step6_cta_pairs"),
    ("matmul_wgmma", "step6_multicast"),
    ("matmul_wgmma", "step8_tma_store"),
    ("micro_tiling_matmul", "step5_async"),
    ("micro_tiling_matmul", "step9_stream_k"),
    ("warp_specialized", "mbarriers"),
]


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_nothing_uninitialised_is_used(name, variant, completion):
    kind = registry.get(name)
    settings = EmulatorSettings(initcheck=True, completion=completion, trap=("nan", "div0"))
    case = execute.Case(kind.make((), {}, small=True), EmulatedDevice(settings=settings), seed=5)
    assert execute.run(case, kind.variant(variant)).verdict.verified
