// %laneid, %smid, %cluster_ctarank, %cluster_nctarank, %globaltimer. PTX ISA, "Special Registers". Target: sm_75 or
// newer. The registers of clusters exist from sm_90 on; for older targets their functions return the values of a
// cluster of one CTA.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// Index of the thread in its warp, 0 to 31.
__device__ __forceinline__ unsigned laneid() {
    unsigned value;
    asm("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

// Number of SMs of the device, or more, if not all of them have a number.
__device__ __forceinline__ unsigned nsmid() {
    unsigned value;
    asm("mov.u32 %0, %%nsmid;" : "=r"(value));
    return value;
}

// Number of the SM on which the thread runs. It may change during execution.
__device__ __forceinline__ unsigned smid() {
    unsigned value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

// Rank of the CTA in its cluster.
__device__ __forceinline__ unsigned cluster_ctarank() {
#if PTXKIT_SM >= 90
    unsigned value;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
    return value;
#else
    return 0;
#endif
}

// Number of CTAs in the cluster.
__device__ __forceinline__ unsigned cluster_nctarank() {
#if PTXKIT_SM >= 90
    unsigned value;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(value));
    return value;
#else
    return 1;
#endif
}

// Time of the GPU's global timer in nanoseconds. Its resolution depends on the GPU.
__device__ __forceinline__ unsigned long long globaltimer() {
    unsigned long long value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

}  // namespace ptxkit
