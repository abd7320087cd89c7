// The beginning and the end of a kernel that uses tensor memory.
#pragma once
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tcgen05.cuh"

namespace ptxkit {

// A barrier for all threads of a CTA, or of both CTAs of a pair.
template <int CTAS>
__device__ __forceinline__ void barrier_of_pair() {
    if constexpr (CTAS > 1) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
}

// Warp `allocator` allocates COLUMNS columns of tensor memory, and thread `initializer` calls `initialize`, which
// initializes the mbarriers of the CTA and makes them visible to asynchronous operations. Returns the address of the
// columns, when all of this is done in each CTA of the group. All threads call it; `slot` is a word of shared memory.
//
// tcgen05.alloc is synchronous, so that no tcgen05 fence is needed before the barrier, nor by warp `allocator` after
// it. Other warps execute one when they have waited for a tcgen05_commit, before their first load.
template <int CTAS, int COLUMNS, class Initialize>
__device__ __forceinline__ unsigned begin_tensor_memory(unsigned char* slot, unsigned warp, unsigned allocator,
                                                        unsigned initializer, Initialize initialize) {
    if (warp == allocator) {
        tcgen05_alloc<CTAS>(cvta_to_shared(slot), COLUMNS);
        tcgen05_relinquish_alloc_permit<CTAS>();
    }
    if (threadIdx.x == initializer) initialize();
    barrier_of_pair<CTAS>();
    return *reinterpret_cast<volatile unsigned*>(slot);
}

// Frees the columns when all threads have called it, each after it has waited for its loads from them (tcgen05_wait_ld).
// Of a pair, the other CTA may arrive at this one's mbarriers until then.
template <int CTAS, int COLUMNS>
__device__ __forceinline__ void end_tensor_memory(unsigned address, unsigned warp, unsigned allocator) {
    __syncwarp();
    barrier_of_pair<CTAS>();
    if (warp == allocator) tcgen05_dealloc<CTAS>(address, COLUMNS);
}

}  // namespace ptxkit
