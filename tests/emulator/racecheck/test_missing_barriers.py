"""Latest-legal completion reports a thread that reads data for which only another thread has waited, without a barrier."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import RaceError
from ptxkit.runtime.emulated import EmulatedDevice

HEAD = r"""
__device__ unsigned shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ void wait(unsigned long long* bar, int parity) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra L; }"
               :: "r"(shared(bar)), "r"(parity) : "memory");
}
"""

COPY = (
    HEAD
    + r"""
extern "C" __global__ void through(float* to, const float* from) {
  __shared__ alignas(16) float tile[256];
  int source = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(shared(tile + source)), "l"(from + source) : "memory");
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
  BARRIER
  to[threadIdx.x] = tile[READ];
}"""
)

BULK = (
    HEAD
    + r"""
extern "C" __global__ void through(float* to, const float* from) {
  __shared__ alignas(16) float tile[256];
  __shared__ alignas(8) unsigned long long full;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(shared(&full)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(shared(&full)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 :: "r"(shared(tile)), "l"(from), "r"(shared(&full)) : "memory");
  }
  __syncthreads();
  WAIT
  to[threadIdx.x] = tile[threadIdx.x];
}"""
)


def through(source: str, completion: str = "latest-legal") -> None:
    """Run a program that copies 256 floats through shared memory, and check what it copied."""
    device = EmulatedDevice(settings=EmulatorSettings(completion=completion))
    to, values = np.zeros(256, np.float32), np.arange(256, dtype=np.float32)
    ptxkit.compile(source, device=device, target="sm_90a")["through"](to, values, grid=1, block=256)
    assert sorted(to) == sorted(values)


@pytest.mark.parametrize(
    ("barrier", "read", "missing"),
    [
        ("__syncthreads();", "threadIdx.x ^ 128", False),
        ("", "threadIdx.x ^ 128", True),
        ("", "threadIdx.x", False),
        ('asm volatile("bar.sync 1, 256;" ::: "memory");', "255 - threadIdx.x", False),
        ('asm volatile("bar.sync %0, 128;" :: "r"(1 + (int)threadIdx.x / 128) : "memory");', "threadIdx.x ^ 64", False),
        ('asm volatile("bar.sync %0, 128;" :: "r"(1 + (int)threadIdx.x / 128) : "memory");', "threadIdx.x ^ 128", True),
    ],
)
def test_what_another_warp_has_copied_and_waited_for(barrier, read, missing):
    source = COPY.replace("BARRIER", barrier).replace("READ", read)
    through(source, "eager")
    if not missing:
        through(source)
        return
    with pytest.raises(RaceError, match=r"reads shared memory .*tile.*a cp.async of warp \d.*__syncthreads\(\)") as error:
        through(source)
    (hazard,) = error.value.hazards
    assert hazard.what == "read-after-write" and hazard.later.split()[-1].startswith("ld.shared")


@pytest.mark.parametrize(
    ("wait", "missing"),
    [
        ("wait(&full, 0);", False),
        ("if (threadIdx.x < 32) wait(&full, 0); __syncthreads();", False),
        ("if (threadIdx.x < 32) wait(&full, 0); else __nanosleep(100);", True),
    ],
)
def test_a_copy_whose_mbarrier_another_thread_has_waited_for(wait, missing):
    source = BULK.replace("WAIT", wait)
    if not missing:
        through(source)
        return
    with pytest.raises((RaceError, AssertionError)):
        through(source)


def test_a_copy_whose_completion_one_thread_announces_by_a_flag():
    """All warps except the first one poll a flag; with a release and an acquire this is a barrier, without them it is not."""
    wait = r"""
  __shared__ volatile int flag;
  if (threadIdx.x == 0) { wait(&full, 0); FENCE flag = 1; }
  while (flag != 1) {} FENCE"""
    source = BULK.replace("WAIT", wait).replace("__syncthreads();", "if (threadIdx.x == 0) flag_ = 0; __syncthreads();")
    source = source.replace("  __shared__ volatile int flag;\n", "").replace("flag_", "flag")
    source = source.replace("  __shared__ alignas(8)", "  __shared__ volatile int flag;\n  __shared__ alignas(8)")
    through(source.replace("FENCE", "__threadfence_block();"))
    with pytest.raises(RaceError, match=r"reads shared memory .*a copy that completes on"):
        through(source.replace("FENCE", ""))
