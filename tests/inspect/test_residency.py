"""Occupancy compared with NVIDIA's cuda_occupancy.h, where a C compiler is installed, and with what ptxas accepts."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from ptxkit.compiler import compile_source, toolkit
from ptxkit.errors import UsageError
from ptxkit.inspect.residency import occupancy
from ptxkit.targets import SM_LIMITS, TARGETS, Target
from ptxkit.targets.occupancy import curve

HARNESS = r"""
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <cuda_occupancy.h>
int main(void) {
    int major, minor, threads, per_sm, optin, reserved, block, registers, shared, dynamic, barriers, carveout;
    while (scanf("%d %d %d %d %d %d %d %d %d %d %d %d", &major, &minor, &threads, &per_sm, &optin, &reserved, &block,
                 &registers, &shared, &dynamic, &barriers, &carveout) == 12) {
        cudaOccDeviceProp p; cudaOccFuncAttributes f; cudaOccDeviceState s; cudaOccResult r;
        memset(&p, 0, sizeof p), memset(&f, 0, sizeof f), memset(&s, 0, sizeof s), memset(&r, 0, sizeof r);
        p.computeMajor = major, p.computeMinor = minor, p.maxThreadsPerBlock = 1024, p.maxThreadsPerMultiprocessor = threads;
        p.regsPerBlock = p.regsPerMultiprocessor = 65536, p.warpSize = 32, p.sharedMemPerBlock = 49152, p.numSms = 100;
        p.sharedMemPerMultiprocessor = per_sm, p.sharedMemPerBlockOptin = optin, p.reservedSharedMemPerBlock = reserved;
        f.maxThreadsPerBlock = 1024, f.numRegs = registers, f.sharedSizeBytes = shared, f.numBlockBarriers = barriers;
        f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, f.maxDynamicSharedSizeBytes = optin, s.carveoutConfig = carveout;
        int failed = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, block, dynamic);
        printf("%d\n", failed ? -1 : r.activeBlocksPerMultiprocessor);
    }
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_it_is_what_cuda_occupancy_h_says(tmp_path):
    source, program = tmp_path / "harness.c", tmp_path / "harness"
    source.write_text(HARNESS)
    include = next(t.path for t in toolkit.headers() if (t.path / "cuda_occupancy.h").is_file())
    subprocess.run(["cc", f"-I{include}", str(source), "-o", str(program)], check=True)
    rng = random.Random(11)
    cases = []
    for _ in range(6000):
        cc = rng.choice(list(SM_LIMITS))
        static = rng.choice([0, rng.randrange(49153)])
        dynamic = rng.choice([0, rng.randrange(SM_LIMITS[cc].shared_bytes_per_cta + 2000)])
        block = rng.choice([rng.randrange(1, 1025), 32 * rng.randrange(1, 33)])
        carveout = rng.choice([-1, -1, rng.randrange(101)])
        cases.append((cc, block, rng.randrange(256), static, dynamic, rng.randrange(17), carveout))
    lines = []
    for cc, *rest in cases:
        limits = SM_LIMITS[cc]
        sm = (limits.threads, limits.shared_bytes, limits.shared_bytes_per_cta, limits.reserved_bytes)
        lines.append(" ".join(map(str, (cc // 10, cc % 10, *sm, *rest))))
    done = subprocess.run([str(program)], input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [int(word) for word in done.stdout.split()]
    assert len(theirs) == len(cases)
    for (cc, block, registers, static, dynamic, barriers, carveout), expected in zip(cases, theirs, strict=True):
        ours = occupancy(
            target=f"sm_{cc}",
            block=block,
            registers=registers,
            shared_bytes=static,
            dynamic_shared_bytes=dynamic,
            barriers=barriers,
            carveout=carveout,
        )
        assert ours.ctas_per_sm == expected, (cc, block, registers, static, dynamic, barriers, carveout)


@pytest.mark.parametrize("cc", sorted(SM_LIMITS))
def test_ptxas_accepts_as_many_ctas_as_we_say_and_no_more(cc):
    limits = SM_LIMITS[cc]
    kernel = 'extern "C" __global__ void __launch_bounds__({1}, {2}) {0}(float* y) {{ y[threadIdx.x] = 1; }}\n'
    launches = {
        "slots": (32, limits.ctas),
        "slots_too_many": (32, limits.ctas + 1),
        "threads": (256, limits.threads // 256),
        "threads_too_many": (256, limits.threads // 256 + 1),
    }
    source = "".join(kernel.format(name, *launch) for name, launch in launches.items())
    log = compile_source(source, target=f"sm_{cc}", cache=False).log
    refused = {name for name in launches if f"for entry {name} is out of range" in log}
    assert refused == {"slots_too_many", "threads_too_many"}


def test_every_target_has_limits():
    assert {t.cc for t in TARGETS.values()} == set(SM_LIMITS)


def test_a_known_launch():
    # 168 registers of 384 threads: 12 warps of 5376 registers, one CTA; 200000 bytes leave room for one as well.
    found = occupancy(target="sm_90a", block=384, registers=168, shared_bytes=0, dynamic_shared_bytes=200000)
    assert (found.ctas_per_sm, found.warps_per_sm, found.max_warps) == (1, 12, 64)
    assert found.limiters == ("registers", "shared memory")
    assert (found.registers_per_cta, found.shared_bytes_per_cta) == (64512, 201088)
    assert found.fraction == 12 / 64


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"registers": 255, "block": 1024}, "exceed the 65536 registers of a CTA"),
        ({"dynamic_shared_bytes": 228 * 1024}, "a CTA gets 232448 at most"),
        ({"cluster": 32}, "a cluster of 32 CTAs; 16 is the most"),
        ({"registers": 256}, "255 is the most"),
    ],
)
def test_impossible_launches_say_why(arguments, reason):
    found = occupancy(target="sm_90a", **arguments)
    assert found.ctas_per_sm == 0 and reason in found.impossible


def test_no_clusters_before_hopper():
    assert "no clusters" in occupancy(target="sm_80", cluster=2).impossible


def test_a_kernel_brings_its_own(kernels):
    found = occupancy(kernels("sm_90a")["nested"])
    assert (found.block, found.shared_bytes, found.ctas_per_sm) == (256, 1024, 8)
    assert occupancy(kernels("sm_90a")["spilling"]).block == 1024
    assert occupancy(kernels("sm_90a")["nested"], block=64, registers=200).limiters == ("registers",)


@pytest.mark.parametrize("arguments", [{"block": 0}, {"block": 1025}, {"registers": -1}, {"cluster": 0}])
def test_nonsense_is_refused(arguments):
    with pytest.raises(UsageError):
        occupancy(target="sm_90a", **arguments)
    with pytest.raises(UsageError, match="needs a target"):
        occupancy()


@pytest.mark.parametrize("axis", ["registers", "shared memory", "threads"])
def test_curves_agree_with_the_calculator(axis):
    target = Target.parse("sm_90a")
    base = occupancy(target=target, block=256, registers=40, shared_bytes=8192)
    steps = curve(base, target, axis, barriers=0)
    assert len(steps) > 4
    names = {"registers": "registers", "shared memory": "shared_bytes", "threads": "block"}
    for step in steps:
        arguments = {"block": 256, "registers": 40, "shared_bytes": 8192, names[axis]: step.quantity}
        found = occupancy(target=target, **arguments)
        assert (found.ctas_per_sm, found.warps_per_sm) == (step.ctas_per_sm, step.warps_per_sm)
    if axis == "registers":
        assert [s.warps_per_sm for s in steps] == sorted((s.warps_per_sm for s in steps), reverse=True)
        assert steps[0].quantity == 1
