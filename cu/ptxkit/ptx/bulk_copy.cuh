// PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk": one thread starts a copy of many bytes, which
// the TMA unit carries out. Addresses and sizes are multiples of 16 bytes. A copy to shared memory reports its bytes to
// an mbarrier; one to global memory belongs to a group of the thread that started it.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// Global to shared memory; the mbarrier is of the same CTA.
__device__ __forceinline__ void cp_async_bulk_shared_global(unsigned to, const void* from, unsigned bytes,
                                                            unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(cvta_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// With a policy of createpolicy_L2_...
__device__ __forceinline__ void cp_async_bulk_shared_global_L2_cache_hint(unsigned to, const void* from, unsigned bytes,
                                                                         unsigned barrier, unsigned long long policy) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(cvta_to_global(from)), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// To the same offset of every CTA that has a bit in `ctas`, by rank in the cluster, and to its mbarrier at that offset.
__device__ __forceinline__ void cp_async_bulk_shared_global_multicast(
    unsigned to, const void* from, unsigned bytes, unsigned barrier, unsigned short ctas) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(cvta_to_global(from)), "r"(bytes), "r"(barrier), "h"(ctas)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.multicast", "sm_90");
#endif
}

// Shared memory of this CTA to that of another one, whose addresses (mapa_shared_cluster) `to` and `barrier` are.
__device__ __forceinline__ void cp_async_bulk_shared_cluster_shared(unsigned to, unsigned from, unsigned bytes,
                                                                    unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// Shared to global memory. What was written to shared memory before needs fence_proxy_async_shared_cta by its writers.
__device__ __forceinline__ void cp_async_bulk_global_shared(void* to, unsigned from, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(cvta_to_global(to)), "r"(from), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// The same, but added to what is there.
__device__ __forceinline__ void cp_reduce_async_bulk_global_shared_add_f32(float* to, unsigned from, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :: "l"(cvta_to_global(to)), "r"(from), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.reduce.async.bulk", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_prefetch_L2_global(const void* from, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(cvta_to_global(from)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.prefetch", "sm_90");
#endif
}

// This thread's copies to global memory since the last commit become a group.
__device__ __forceinline__ void cp_async_bulk_commit_group() {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.commit_group", "sm_90");
#endif
}

// Until at most PENDING of this thread's groups are not complete.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.wait_group", "sm_90");
#endif
}

// Until all but PENDING have read their shared memory, which may then be written again.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.wait_group", "sm_90");
#endif
}

}  // namespace ptxkit
