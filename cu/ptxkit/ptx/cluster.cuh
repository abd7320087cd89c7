// PTX ISA, clusters: what their CTAs send each other besides plain loads and stores (data_movement.cuh: mapa, ld, st)
// and beside barrier.cluster (synchronization.cuh).
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

namespace ptxkit {

// The rank of the CTA to which a shared::cluster address belongs.
__device__ __forceinline__ unsigned getctarank_shared_cluster(unsigned address) {
#if PTXKIT_SM >= 90
    unsigned rank;
    asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(address));
    return rank;
#else
    PTXKIT_UNSUPPORTED("getctarank", "sm_90");
    return 0;
#endif
}

// A store that reports its bytes to an mbarrier of the CTA it goes to.

__device__ __forceinline__ void st_async_shared_cluster(unsigned address, unsigned value, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(address), "r"(value), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("st.async", "sm_90");
#endif
}

__device__ __forceinline__ void st_async_shared_cluster(unsigned address, float4 value, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(address), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("st.async", "sm_90");
#endif
}

// The same, but added to what is there.
__device__ __forceinline__ void red_async_shared_cluster_add_u32(unsigned address, unsigned value, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
                 :: "r"(address), "r"(value), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("red.async", "sm_90");
#endif
}

}  // namespace ptxkit
