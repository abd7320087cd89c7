// getctarank, st.async, red.async: instructions on the shared memory of another CTA of the cluster. PTX ISA, "Data
// Movement and Conversion Instructions: getctarank, st.async" and "Parallel Synchronization and Communication
// Instructions: red.async". Target: sm_90 or newer.
//
// mapa, ld.shared::cluster and st.shared::cluster are in data_movement.cuh, barrier.cluster is in synchronization.cuh.
//
// Operands: `address` and `barrier` are byte addresses in the shared::cluster window, from mapa_shared_cluster.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

namespace ptxkit {

// getctarank: the rank in the cluster of the CTA that contains a shared::cluster address.
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

// st.async: an asynchronous store of 4, 8 or 16 bytes to a CTA. It performs complete-tx with its size in bytes on
// `barrier`, an mbarrier in the destination CTA, whose threads see the value after they have waited for the phase.

__device__ __forceinline__ void st_async_shared_cluster(unsigned address, unsigned value, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(address), "r"(value), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("st.async", "sm_90");
#endif
}

__device__ __forceinline__ void st_async_shared_cluster(unsigned address, float2 value, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :: "r"(address), "f"(value.x), "f"(value.y), "r"(barrier) : "memory");
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

// red.async: atomically adds `value` to a 32-bit integer in another CTA, with the same completion as st.async.
__device__ __forceinline__ void red_async_shared_cluster_add_u32(unsigned address, unsigned value, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
                 :: "r"(address), "r"(value), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("red.async", "sm_90");
#endif
}

}  // namespace ptxkit
