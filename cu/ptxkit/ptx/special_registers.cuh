// PTX ISA, "Special Registers".
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

__device__ __forceinline__ unsigned laneid() {
    unsigned value;
    asm("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

__device__ __forceinline__ unsigned smid() {
    unsigned value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

// Rank of the CTA in its cluster; 0 where there are no clusters.
__device__ __forceinline__ unsigned cluster_ctarank() {
#if PTXKIT_SM >= 90
    unsigned value;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
    return value;
#else
    return 0;
#endif
}

// Number of CTAs in the cluster; 1 where there are no clusters.
__device__ __forceinline__ unsigned cluster_nctarank() {
#if PTXKIT_SM >= 90
    unsigned value;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(value));
    return value;
#else
    return 1;
#endif
}

__device__ __forceinline__ unsigned long long globaltimer() {
    unsigned long long value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

}  // namespace ptxkit
