// PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", and the fences that go with
// asynchronous copies.
//
// An mbarrier is 8 bytes of shared memory that count arrivals and bytes. A phase ends when all arrivals that were
// announced at init have come and all expected bytes have been copied; then the next phase begins. A waiting thread
// names a phase by its parity: the first phase has parity 0. A wait for parity 1 on a fresh barrier returns at once,
// which is how a producer starts.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// Barriers are named by their address in the shared window, from cvta_to_shared.

__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
#if PTXKIT_SM >= 80
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.init", "sm_80");
#endif
}

// The 8 bytes may be used for something else from here on.
__device__ __forceinline__ void mbarrier_inval(unsigned barrier) {
#if PTXKIT_SM >= 80
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.inval", "sm_80");
#endif
}

// Makes the initialisation visible to the other CTAs of the cluster and to asynchronous copies.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
#if PTXKIT_SM >= 90
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("fence.mbarrier_init", "sm_90");
#endif
}

// One arrival. The state that it returns names the phase it counted for.
__device__ __forceinline__ unsigned long long mbarrier_arrive(unsigned barrier) {
    unsigned long long state = 0;
#if PTXKIT_SM >= 80
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive", "sm_80");
#endif
    return state;
}

// One arrival at a barrier of any CTA of the cluster, whose address mapa_shared_cluster gives. Its release has the
// default scope, this CTA: enough to say that shared memory has been read and may be written by a copy again.
__device__ __forceinline__ void mbarrier_arrive_shared_cluster(unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive.shared::cluster", "sm_90");
#endif
}

// The same, and the writes of this thread before it are visible to threads that wait with acquire_cluster. For data
// that threads exchange by ordinary accesses: it becomes MEMBAR.ALL.GPU, which waits until the whole GPU sees all
// earlier writes.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive.shared::cluster", "sm_90");
#endif
}

// One arrival, and the phase also waits for this number of bytes.
__device__ __forceinline__ void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.expect_tx", "sm_90");
#endif
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive.expect_tx", "sm_90");
#endif
}

// Counts bytes as a completed copy does.
__device__ __forceinline__ void mbarrier_complete_tx(unsigned barrier, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.complete_tx", "sm_90");
#endif
}

// Arrives when all earlier cp.async of this thread are complete; noinc: as one of the arrivals that init announced.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(unsigned barrier) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.mbarrier.arrive", "sm_80");
#endif
}

// Whether the phase has ended: the one that an arrival returned, or the current or last one by its parity.

__device__ __forceinline__ bool mbarrier_test_wait(unsigned barrier, unsigned long long state) {
    unsigned ended = 0;
#if PTXKIT_SM >= 80
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(ended) : "r"(barrier), "l"(state) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.test_wait", "sm_80");
#endif
    return ended;
}

__device__ __forceinline__ bool mbarrier_test_wait_parity(unsigned barrier, unsigned parity) {
    unsigned ended = 0;
#if PTXKIT_SM >= 80
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.test_wait.parity", "sm_80");
#endif
    return ended;
}

// try_wait may suspend the thread for a while before it returns false.

__device__ __forceinline__ bool mbarrier_try_wait_parity(unsigned barrier, unsigned parity) {
    unsigned ended = 0;
#if PTXKIT_SM >= 90
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.try_wait", "sm_90");
#endif
    return ended;
}

// The same where threads of other CTAs have arrived with release_cluster: their earlier writes are visible afterwards.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cluster(unsigned barrier, unsigned parity) {
    unsigned ended = 0;
#if PTXKIT_SM >= 90
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, "
        "1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.try_wait", "sm_90");
#endif
    return ended;
}

// Waits until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
#if PTXKIT_SM >= 90
    while (!mbarrier_try_wait_parity(barrier, parity)) {
    }
#else
    while (!mbarrier_test_wait_parity(barrier, parity)) {
    }
#endif
}

// fence.proxy.async: orders ordinary accesses of this thread and those of asynchronous copies and wgmma to the same
// memory.

__device__ __forceinline__ void fence_proxy_async() {
#if PTXKIT_SM >= 90
    asm volatile("fence.proxy.async;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("fence.proxy.async", "sm_90");
#endif
}

__device__ __forceinline__ void fence_proxy_async_shared_cta() {
#if PTXKIT_SM >= 90
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("fence.proxy.async", "sm_90");
#endif
}

// Initializes the barriers of a ring of STAGES buffers, 8 bytes apart: those at `full` for `filling` arrivals each,
// those at `empty` for `emptying`. One thread calls it, before a barrier of all threads that use them.
template <int STAGES>
__device__ __forceinline__ void init_ring(unsigned full, unsigned filling, unsigned empty, unsigned emptying) {
    for (int s = 0; s < STAGES; s++) {
        mbarrier_init(full + s * 8, filling);
        mbarrier_init(empty + s * 8, emptying);
    }
    fence_mbarrier_init_release_cluster();
}

// A position in a ring of STAGES buffers and the parity of its barriers' phase, which flips each time the ring wraps
// around.
template <int STAGES>
struct Ring {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace ptxkit
