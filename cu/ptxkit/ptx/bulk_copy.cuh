// cp.async.bulk, cp.reduce.async.bulk, cp.async.bulk.prefetch, cp.async.bulk.commit_group, cp.async.bulk.wait_group.
// PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy: Bulk copy". Target: sm_90 or newer.
//
// One thread issues a copy of a contiguous block of memory, which the TMA unit performs asynchronously. Completion:
//   - A copy to shared memory performs complete-tx with its size in bytes on an mbarrier (mbarrier.cuh). The data is
//     visible to a thread that has waited for the phase of that mbarrier.
//   - A copy to global memory belongs to a bulk group of the thread that issued it.
//
// Operands: `to` and `from` are multiples of 16 bytes, and so is `bytes`, the size of the copy. Shared addresses and
// `barrier`, the address of an mbarrier, are byte addresses in the shared window (cvta_to_shared).
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// Copies global memory to shared memory of the executing CTA, with an mbarrier of the same CTA.
__device__ __forceinline__ void cp_async_bulk_shared_global(unsigned to, const void* from, unsigned bytes,
                                                            unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(cvta_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// The same with an L2 cache policy that createpolicy_L2_evict_first or createpolicy_L2_evict_last has created.
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

// Copies global memory to several CTAs of the cluster: to each CTA whose rank has its bit set in `ctas`. The data and
// the complete-tx go to the same CTA-relative offsets in each of them as `to` and `barrier` have in the executing CTA.
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

// Copies shared memory of the executing CTA to shared memory of another CTA of the cluster. `to` and `barrier` are
// addresses in that CTA, from mapa_shared_cluster.
__device__ __forceinline__ void cp_async_bulk_shared_cluster_shared(unsigned to, unsigned from, unsigned bytes,
                                                                    unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "r"(from), "r"(bytes), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// Copies shared memory to global memory. The threads that wrote the shared memory execute fence_proxy_async_shared_cta
// and then a barrier before this instruction is issued.
__device__ __forceinline__ void cp_async_bulk_global_shared(void* to, unsigned from, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(cvta_to_global(to)), "r"(from), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk", "sm_90");
#endif
}

// Adds the f32 elements of shared memory to those of global memory, each addition atomically.
__device__ __forceinline__ void cp_reduce_async_bulk_global_shared_add_f32(float* to, unsigned from, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :: "l"(cvta_to_global(to)), "r"(from), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.reduce.async.bulk", "sm_90");
#endif
}

// Requests that global memory be loaded into L2.
__device__ __forceinline__ void cp_async_bulk_prefetch_L2_global(const void* from, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(cvta_to_global(from)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.prefetch", "sm_90");
#endif
}

// Combines the bulk copies to global memory that this thread has issued since its last commit into a group.
__device__ __forceinline__ void cp_async_bulk_commit_group() {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.commit_group", "sm_90");
#endif
}

// Waits until at most the PENDING most recent bulk groups of this thread are incomplete.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.wait_group", "sm_90");
#endif
}

// Waits until all but the PENDING most recent bulk groups have read their sources, so that the shared memory may be
// written again. The writes to global memory need not be complete.
template <int PENDING>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.wait_group", "sm_90");
#endif
}

}  // namespace ptxkit
