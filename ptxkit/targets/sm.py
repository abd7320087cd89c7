"""The limits of an SM, a CTA and a cluster for each architecture, from which launch checks and occupancy are computed.

Sources, by the names used in the comments below:

*guide*    CUDA C++ Programming Guide, "Compute Capabilities", tables "Technical Specifications per Compute Capability" and
           "Feature Support per Compute Capability"; ``cuda/__device/arch_traits.h`` of CCCL repeats them.
*arithmetic*  CUDA C++ Programming Guide, "Arithmetic Instructions", the table of results per clock and SM.
*occupancy*  NVIDIA's ``cuda_occupancy.h`` (in the wheel nvidia-cuda-runtime).
*PTX*      PTX ISA, "Kernel Function Parameter Attributes" and the directives' own sections.
*tuning*   Hopper and Blackwell Tuning Guides, "Thread Block Clusters".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Dim = tuple[int, int, int]

WARP = 32  # threads (guide: the same for every compute capability)
WARPGROUP = 4 * WARP  # threads, to which wgmma and setmaxnreg apply: PTX, "Warpgroup"
KIB = 1024
NAMED_BARRIERS = 16  # of a CTA: PTX, "bar, barrier"
TENSOR_MEMORY_COLUMNS, TENSOR_MEMORY_LANES = 512, 128  # of an SM, where there is tensor memory: PTX, "Tensor Memory"
SECTOR_BYTES = 32  # of a sector, the unit of transfers between L1, L2 and device memory
SHARED_BANKS = 32  # of shared memory, of a word of 4 bytes each
REGISTER_BANKS = 2  # of a sub-partition, of even and of odd registers; the sources are in ptxkit/inspect/banks.py


@dataclass(frozen=True)
class SmLimits:
    """The limits of one architecture. Those with a default are the same for every architecture that ptxkit knows.

    Attributes:
        threads: resident threads per SM.
        ctas: resident CTAs per SM ("CTA slots").
        shared_bytes: shared memory per SM, in bytes.
        carveouts_kb: sizes in KiB that the shared memory of an SM can be set to; the L1 cache has the rest.
        shared_unit: granularity of the shared memory that a CTA is given, in bytes.
        reserved_bytes: shared memory that the system keeps in each CTA.
        barriers_per_cta: named barriers of an SM over its CTA slots; 0 where barriers do not limit occupancy.
        portable_cluster: maximum CTAs of a cluster that all GPUs of the target support; 1 without clusters.
        largest_cluster: CTAs of a cluster when the kernel allows a non-portable size.
        threads_per_cta: of one CTA. block: of one CTA, by axis. grid: CTAs of a grid, by axis.
        registers: 32-bit registers per SM. registers_per_cta, registers_per_thread: the most.
        register_unit: registers are given to a warp in units of this many.
        subpartitions: of an SM; each has an equal part of the registers and of the warps, and issues one instruction of a
            warp in a clock.
        default_shared_bytes: shared memory of a CTA without opt-in, which is also the most that static variables can take.
        fp32_per_clock, fp64_per_clock: additions, multiplications or fused multiply-adds of an SM in a clock on the CUDA
            cores; 0 where no source states them.
        special_per_clock: exponentials, logarithms, reciprocals and the like of an SM in a clock, approximate, of f32.
    """

    threads: int
    ctas: int
    shared_bytes: int
    carveouts_kb: tuple[int, ...]
    shared_unit: int = 128  # occupancy: cudaOccSMemAllocationGranularity
    reserved_bytes: int = 1 * KIB  # guide, "Shared Memory" of compute capability 8.x and later; arch_traits.h
    barriers_per_cta: int = 0
    portable_cluster: int = 1
    largest_cluster: int = 1
    threads_per_cta: int = 1024  # guide
    block: Dim = (1024, 1024, 64)  # guide
    grid: Dim = (2**31 - 1, 65535, 65535)  # guide
    registers: int = 64 * KIB  # guide: 64 K 32-bit registers per SM
    registers_per_cta: int = 64 * KIB  # guide
    registers_per_thread: int = 255  # guide
    register_unit: int = 256  # occupancy: cudaOccRegAllocationGranularity
    subpartitions: int = 4  # occupancy: cudaOccSubPartitionsPerMultiprocessor
    default_shared_bytes: int = (
        48 * KIB
    )  # guide, "Shared Memory": more is dynamic and needs an opt-in; ptxas refuses it
    fp32_per_clock: int = 128  # arithmetic
    fp64_per_clock: int = 2  # arithmetic
    special_per_clock: int = 16  # arithmetic

    @property
    def shared_bytes_per_cta(self) -> int:
        """The most shared memory that a CTA can have with opt-in, static and dynamic together."""
        return self.shared_bytes - self.reserved_bytes

    def registers_of(self, threads: int) -> int:
        """The most registers of a thread with ``threads`` resident threads on an SM."""
        return min(self.registers // threads, self.registers_per_thread)

    @property
    def thread_register_unit(self) -> int:
        """Registers are given to a thread in units of this many."""
        return self.register_unit // WARP

    @property
    def warps(self) -> int:
        """Resident warps per SM."""
        return self.threads // WARP

    @property
    def clusters(self) -> bool:
        """Whether CTAs can be launched in clusters."""
        return self.largest_cluster > 1


# occupancy: cudaOccAlignUpShmemSizeVoltaPlus and its siblings
_SMALL = (0, 8, 16, 32, 64, 100)
_MEDIUM = (*_SMALL, 132, 164)
_LARGE = (*_MEDIUM, 196, 228)

PORTABLE_CLUSTER = 8
"""The most CTAs of a cluster that every GPU with clusters takes. guide, "Thread Block Clusters"."""

SMS_PER_TPC = 2
"""SMs of a texture processing cluster (TPC), of GPUs since compute capability 6.0."""

# guide: threads, CTAs and shared memory per SM.
# tuning: H100 and B200 take clusters of 16 CTAs when the kernel allows it
_AMPERE_SMALL = SmLimits(1536, 16, 100 * KIB, _SMALL)
_BLACKWELL = SmLimits(
    2048, 32, 228 * KIB, _LARGE, barriers_per_cta=1, portable_cluster=PORTABLE_CLUSTER, largest_cluster=16, fp64_per_clock=0
)
_BLACKWELL_SMALL = SmLimits(
    1536, 24, 100 * KIB, _SMALL, barriers_per_cta=1, portable_cluster=PORTABLE_CLUSTER, largest_cluster=PORTABLE_CLUSTER
)

SM_LIMITS: dict[int, SmLimits] = {
    75: SmLimits(1024, 16, 64 * KIB, (32, 64), shared_unit=256, reserved_bytes=0, fp32_per_clock=64),
    80: SmLimits(2048, 32, 164 * KIB, _MEDIUM, fp32_per_clock=64, fp64_per_clock=32),
    86: _AMPERE_SMALL,
    87: SmLimits(1536, 16, 164 * KIB, _MEDIUM),
    88: _AMPERE_SMALL,
    89: SmLimits(1536, 24, 100 * KIB, _SMALL),
    90: replace(_BLACKWELL, barriers_per_cta=2, fp64_per_clock=64),
    100: replace(_BLACKWELL, barriers_per_cta=2, fp64_per_clock=64),
    103: _BLACKWELL,
    # not in the guide yet: what ptxas 13.5 accepts in .minnctapersm, and cuda_occupancy.h's carve-outs of 10.7
    107: replace(
        _BLACKWELL_SMALL, threads=1024, ctas=16, shared_bytes=328 * KIB, carveouts_kb=(*_LARGE, 328), fp64_per_clock=0
    ),
    110: replace(_BLACKWELL_SMALL, shared_bytes=228 * KIB, carveouts_kb=_LARGE, fp64_per_clock=0),
    120: _BLACKWELL_SMALL,
    121: _BLACKWELL_SMALL,
}
"""Compute capability times ten -> limits, in ascending order. :attr:`ptxkit.targets.Target.limits` looks a target up."""

# PTX, "Kernel Function Parameter Attributes": the size of a kernel's parameters by PTX ISA version
_WIDE_PARAMETERS_SINCE = (8, 1)


def parameter_bytes(ptx_version: tuple[int, int]) -> int:
    """The most bytes that the parameters of a kernel can take in PTX of a version, on sm_70 and later."""
    return 32764 if ptx_version >= _WIDE_PARAMETERS_SINCE else 4352
