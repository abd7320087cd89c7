"""Launches that no GPU of a target accepts, and their messages."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.targets import SM_LIMITS, TARGETS
from ptxkit.targets.gpus import reference_facts
from ptxkit.targets.launch import Resources, geometry_refusal, resource_refusal
from ptxkit.targets.occupancy import calculate, resident_ctas

ONE = (1, 1, 1)


def geometry(target="sm_90a", grid=ONE, block=ONE, cluster=None, **directives):
    return geometry_refusal(grid, block, cluster, directives, reference_facts(target))


def resources(target="sm_90a", grid=ONE, block=ONE, cluster=None, cooperative=False, **used):
    return resource_refusal(grid, block, cluster, Resources(**used), reference_facts(target), cooperative=cooperative)


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ({"grid": (2**31, 1, 1)}, "grid x is 2,147,483,648; the limit is 2,147,483,647"),
        ({"grid": (1, 65536, 1)}, "grid y is 65,536; the limit is 65,535"),
        ({"grid": (1, 1, 65536)}, "grid z is 65,536; the limit is 65,535"),
        ({"block": (1025, 1, 1)}, "block x is 1,025; the limit is 1,024"),
        ({"block": (1, 1, 65)}, "block z is 65; the limit is 64"),
        ({"block": (32, 33, 1)}, "1,056 threads a block; the limit is 1024"),
        ({"block": (64, 1, 1), "reqntid": (32, 2, 1)}, "block (64, 1, 1); the kernel requires (32, 2, 1)"),
        ({"block": (64, 1, 1), "reqntid": (32,)}, "block (64, 1, 1); the kernel requires (32, 1, 1)"),
        (
            {"block": (16, 9, 1), "maxntid": (128, 1, 1)},
            "144 threads a block; the kernel is bounded to 128 (__launch_bounds__)",
        ),
        ({"grid": (6, 1, 1), "cluster": (4, 1, 1)}, "grid (6, 1, 1) is not a multiple of the cluster (4, 1, 1)"),
        (
            {"grid": (3, 1, 1), "reqnctapercluster": (2, 1, 1)},
            "grid (3, 1, 1) is not a multiple of the cluster (2, 1, 1)",
        ),
        (
            {"grid": (4, 1, 1), "cluster": (4, 1, 1), "reqnctapercluster": (2, 1, 1)},
            "cluster (4, 1, 1); the kernel requires (2, 1, 1)",
        ),
        (
            {"grid": (32, 1, 1), "cluster": (32, 1, 1)},
            "32 CTAs in a cluster; sm_90a takes at most 16, and 8 is portable",
        ),
        (
            {"target": "sm_120", "grid": (4, 4, 1), "cluster": (4, 4, 1)},
            "16 CTAs in a cluster; sm_120 takes at most 8, and 8 is portable",
        ),
        (
            {"target": "sm_89", "grid": (2, 1, 1), "cluster": (2, 1, 1)},
            "a cluster of 2 CTAs; sm_89 has no clusters (they need sm_90 or newer)",
        ),
        (
            {"grid": (4, 1, 1), "cluster": (4, 1, 1), "maxclusterrank": (2,)},
            "4 CTAs in a cluster; the kernel is bounded to 2 (.maxclusterrank)",
        ),
        (
            {"explicitcluster": ()},
            "the launch names no cluster; the kernel is declared .explicitcluster, give cluster=",
        ),
    ],
)
def test_geometries_that_are_refused(launch, reason):
    assert geometry(**launch) == reason


@pytest.mark.parametrize(
    "launch",
    [
        {"grid": (2**31 - 1, 65535, 65535)},
        {"block": (1024, 1, 1)},
        {"block": (1, 1024, 1)},
        {"block": (16, 1, 64)},
        {"block": (16, 8, 1), "maxntid": (128, 1, 1)},
        {"block": (32, 2, 1), "reqntid": (32, 2)},
        {"grid": (16, 1, 1), "cluster": (16, 1, 1)},
        {"target": "sm_75", "cluster": (1, 1, 1)},
    ],
)
def test_geometries_at_the_limits_are_taken(launch):
    assert geometry(**launch) is None


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (
            {"block": (1024, 1, 1), "registers": 128},
            (
                "1024 threads of 128 registers are allocated 131,072 registers; sm_90a gives a CTA 65,536; "
                "launch fewer threads or "
                "bound the kernel with __launch_bounds__(1024)"
            ),
        ),
        (
            {"target": "sm_75", "dynamic_shared": 100 << 10},
            "102,400 bytes of dynamic and 0 of static shared memory; sm_75 gives a CTA 65,536",
        ),
        (
            {"target": "sm_86", "dynamic_shared": 220 << 10},
            "225,280 bytes of dynamic and 0 of static shared memory; sm_86 gives a CTA 101,376",
        ),
        (
            {"dynamic_shared": 232448, "static_shared": 1},
            "232,448 bytes of dynamic and 1 of static shared memory; sm_90a gives a CTA 232,448",
        ),
        (
            {"static_shared": 49153},
            "49,153 bytes of static shared memory; a kernel may have 49,152, and more only as dynamic shared memory",
        ),
        ({"parameters": 4353, "ptx_version": (8, 0)}, "4,353 bytes of kernel parameters; PTX 8.0 allows 4,352"),
        ({"parameters": 32765, "ptx_version": (8, 1)}, "32,765 bytes of kernel parameters; PTX 8.1 allows 32,764"),
        (
            {"grid": (133, 1, 1), "block": (1024, 1, 1), "registers": 64, "cooperative": True},
            (
                "a cooperative grid of 133 CTAs; the 132 SMs of sm_90a hold 132 CTAs of this kernel at once, and a cooperative "
                "launch needs all of them resident"
            ),
        ),
    ],
)
def test_resources_that_are_refused(launch, reason):
    assert resources(**launch) == reason


@pytest.mark.parametrize(
    "launch",
    [
        {"block": (1024, 1, 1), "registers": 64},
        {"block": (512, 1, 1), "registers": 128},
        {"block": (256, 1, 1), "registers": 255},
        {"target": "sm_107a", "dynamic_shared": 300 << 10},
        {"target": "sm_86", "dynamic_shared": 99 << 10},
        {"dynamic_shared": 227 << 10},
        {"parameters": 4352, "ptx_version": (7, 8)},
        {"parameters": 32764, "ptx_version": (8, 1)},
        {"grid": (132, 1, 1), "block": (1024, 1, 1), "registers": 64, "cooperative": True},
        {"grid": (133, 1, 1), "block": (1024, 1, 1), "registers": 64},
    ],
)
def test_resources_at_the_limits_are_taken(launch):
    assert resources(**launch) is None


@given(
    target=st.sampled_from(sorted(TARGETS)),
    threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    static=st.integers(0, 49152),
    dynamic=st.integers(0, 340 << 10),
)
def test_a_launch_is_refused_exactly_when_no_cta_is_resident(target, threads, registers, static, dynamic):
    found = calculate(target, threads, registers, static + dynamic)
    reason = resources(target, block=(threads, 1, 1), registers=registers, static_shared=static, dynamic_shared=dynamic)
    assert (reason is not None) == (found.ctas_per_sm == 0)


@given(
    target=st.sampled_from(sorted(TARGETS)),
    threads=st.integers(1, 1024),
    registers=st.integers(1, 64),
    sms=st.integers(1, 200),
    cluster=st.sampled_from([1, 2, 4, 8]),
)
def test_the_largest_cooperative_grid_is_whole_clusters_within_the_sms(target, threads, registers, sms, cluster):
    if cluster > 1 and not TARGETS[target].limits.clusters:
        return
    resident = resident_ctas(target, sms, threads, registers, 0, cluster=cluster)
    limits = SM_LIMITS[TARGETS[target].cc]
    assert resident % cluster == 0
    assert resident * threads <= sms * limits.threads
    assert resident <= sms * limits.ctas
    assert prod((resident, threads, registers)) <= sms * limits.registers
